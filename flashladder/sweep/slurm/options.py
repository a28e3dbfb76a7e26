"""What ``--slurm partition=gpu,account=me,array=8,time=2:00:00`` means, and how many tasks fit on what is free.

Why apart from `flashladder.sweep.slurm.submit`: a mistake is told in one line before anything is submitted, on machines
without Slurm too.
"""

from __future__ import annotations

from dataclasses import dataclass
import re

from flashladder.errors import FlashladderError
from flashladder.ladder.gpus import load_gpus
from flashladder.located import closest

KEYS = {
    "partition": "as sinfo lists them; the site's default",
    "account": "whom to charge",
    "qos": "quality of service",
    "gpu": "key of configs/gpus that the tasks get; that of the grid, needed where it is made for any",
    "constraint": "features of a node, for example h100",
    "reservation": "name of a reservation",
    "gres": "instead of one GPU of any type per task, for example gpu:h100:1",
    "cpus": "CPUs of a task; 1 for the cpu grid, 4 beside a GPU",
    "mem": "memory of a task, for example 32G; the site's default",
    "time": "of a task, as Slurm writes it (minutes, H:M:S, D-H); 60, and a task that runs out of it goes on later",
    "array": "tasks; one per free GPU (of the cpu grid: per free CPU), at most 64",
}
MOST_TASKS = 64  # without array=; a site that shares its GPUs among people should not be taken whole
MOST_ARRAY = 1000  # Slurm's MaxArraySize less one, by default
DEFAULT_MINUTES = 60
_TIMES = (  # Slurm's six forms, as names of their fields
    ("m",), ("m", "s"), ("h", "m", "s"), ("d", "h"), ("d", "h", "m"), ("d", "h", "m", "s"),
)  # fmt: skip
_MINUTES = {"d": 1440.0, "h": 60.0, "m": 1.0, "s": 1 / 60}
_CPUS = re.compile(r"(\d{1,6}/){3}\d{1,6}", re.ASCII)
_FREE = re.compile(r"(?:idle|mix)[~%^@+-]*")  # # * $: starting, not answering, reserved


@dataclass(frozen=True)
class SlurmOptions:
    """Checked options.

    Attributes:
        gpu: key of configs/gpus; empty: the grid's.
        site: what goes to sbatch under the same name: partition, account, qos, constraint, reservation, gres, mem.
        minutes: of a task, at least 1.
        cpus: of a task; None: 1 for the cpu grid, 4 beside a GPU.
        array: tasks; None: what is free.
    """

    site: dict[str, str]
    gpu: str = ""
    minutes: int = DEFAULT_MINUTES
    cpus: int | None = None
    array: int | None = None

    @property
    def gpu_type(self) -> str:
        """The type that ``gres=gpu:TYPE:1`` asks for; empty for any."""
        found = re.match(r"gpu:([a-z]\w*)", self.site.get("gres", ""), re.IGNORECASE)
        return found[1] if found else ""


def parse_options(text: str) -> SlurmOptions:
    """`text` of ``--slurm``: ``key=value`` with commas between, or nothing for the site's defaults.

    Raises:
        FlashladderError: a key that does not exist, comes twice or has no value; a number or a time that is none.
    """
    found: dict[str, str] = {}
    for item in text.split(",") if text.strip() else []:
        key, equals, value = (part.strip() for part in item.partition("="))
        if key not in KEYS:
            raise FlashladderError(
                "unknown key", where="--slurm", expected=f"one of {', '.join(KEYS)}", found=repr(key),
                hint=closest(key, list(KEYS)),
            )  # fmt: skip
        if not equals or not re.fullmatch(r"[^\s\"'`$\\;]+", value):
            raise FlashladderError(f"{key} needs a value", where="--slurm", expected=KEYS[key], found=repr(item))
        if key in found:
            raise FlashladderError(f"{key} twice", where="--slurm", found=repr(text))
        found[key] = value
    minutes = _minutes(found.pop("time")) if "time" in found else DEFAULT_MINUTES
    cpus = _count("cpus", found.pop("cpus")) if "cpus" in found else None
    array = _count("array", found.pop("array")) if "array" in found else None
    gpu = found.pop("gpu", "")
    if gpu and gpu not in (known := load_gpus()):
        raise FlashladderError("unknown GPU", where="--slurm", expected=f"one of {', '.join(known)}", found=repr(gpu))
    return SlurmOptions(found, gpu, minutes, cpus, array)


def _count(key: str, value: str) -> int:
    """A number of tasks or CPUs."""
    if not (value.isascii() and value.isdigit() and 1 <= int(value[:9]) <= MOST_ARRAY):
        raise FlashladderError(
            f"{key} is no number of that size", where="--slurm", expected=f"1 to {MOST_ARRAY}", found=value
        )
    return int(value)


def _minutes(value: str) -> int:
    """One of Slurm's forms of a time, in whole minutes, rounded up."""
    days, dash, rest = value.rpartition("-")
    numbers = [*([days] if dash else []), *rest.split(":")]
    names = next((form for form in _TIMES if len(form) == len(numbers) and (form[0] == "d") == bool(dash)), None)
    if names is None or not all(re.fullmatch(r"\d{1,6}", number, re.ASCII) for number in numbers):
        expected = "minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S"
        raise FlashladderError("time is none of Slurm's", where="--slurm", expected=expected, found=value)
    total = sum(int(number) * _MINUTES[name] for number, name in zip(numbers, names, strict=True))
    if total <= 0:
        raise FlashladderError("no time at all", where="--slurm", expected="at least a minute", found=value)
    return -int(-total // 1)


def free_gpus(sinfo: str, kind: str = "") -> int:
    """GPUs that no job holds.

    Args:
        sinfo: rows ``node|state|GRES|GRES in use|CPUs A/I/O/T``; a node of several partitions comes once for each.
        kind: of this type only; empty: of any.
    """
    return sum(max(0, _gpus(gres, kind) - _gpus(used, kind)) for gres, used, _ in _free_nodes(sinfo))


def free_cpus(sinfo: str) -> int:
    """CPUs that no job holds; rows as for `free_gpus`."""
    return sum(int(cpus.split("/")[1]) for _, _, cpus in _free_nodes(sinfo) if _CPUS.fullmatch(cpus))


def _free_nodes(sinfo: str) -> list[tuple[str, str, str]]:
    """GRES, GRES in use and CPUs of every node that takes jobs."""
    nodes = {}
    for line in sinfo.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == 5 and _FREE.fullmatch(fields[1]):  # a warning of Slurm's has other ones
            nodes[fields[0]] = (fields[2], fields[3], fields[4])
    return list(nodes.values())


def _gpus(gres: str, kind: str) -> int:
    """GPUs of a field such as ``gpu:h100:8(S:0-1),nic:2`` or ``gpu:2``."""
    found = re.findall(r"(?:^|,)gpu(?::([A-Za-z]\w*))?:(\d{1,6})\b", gres, re.ASCII)
    return sum(int(count) for name, count in found if kind in ("", name))
