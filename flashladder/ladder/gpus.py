"""GPU descriptions (configs/gpus/): from the name that the driver reports to the key that YAML files use.

Each file holds the key (``a100``), patterns of names (``NVIDIA A100*``), the architecture, and peaks with unit and
source. A configuration under a GPU's key must fit that GPU (`require_fit`).
Try ``gpu_key("NVIDIA H200")`` and ``load_gpus()["a100"].occupancy(registers=255, threads=128, shared_bytes=65536)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.ladder.config import KernelConfig
from flashladder.located import read_located, validate, yaml_files
from flashladder.machine_code.ptxas import WARP
from flashladder.names import GPUS as TUNED
from flashladder.names import PUBLISHED_GPU
from flashladder.paths import CONFIGS
from flashladder.toolchain import load_pins

if TYPE_CHECKING:
    from flashladder.ladder.family import Family

GPUS = CONFIGS / "gpus"
LIMITS = ("threads_per_block", "registers_per_block", "registers_per_thread", "shared_memory_per_block")
"""The peaks of a CTA, which each GPU's file must have."""
OF_SM = (
    *LIMITS[:3], "warps_per_sm", "blocks_per_sm", "registers_per_sm", "partitions_per_sm", "register_unit",
    "shared_memory_per_sm", "shared_memory_unit", "shared_memory_reserved",
)  # fmt: skip
"""The peaks that `Gpu.occupancy` needs."""
LAST_CAPABILITY = 199  # 19.9; later GPUs have its configurations
_UNITS = {"KiB": 1024, "KiB/block": 1024}
COUNTED = {
    "barriers_per_sm": "barrier/SM", "blocks_per_sm": "block/SM", "partitions_per_sm": "partition/SM",
    "registers_per_block": "register/block", "registers_per_sm": "register/SM",
    "registers_per_thread": "register/thread", "register_unit": "register/warp", "sms": "SM",
    "threads_per_block": "thread/block", "warps_per_sm": "warp/SM", "shared_memory_per_block": "KiB",
    "shared_memory_per_sm": "KiB", "shared_memory_reserved": "KiB/block", "shared_memory_unit": "byte/block",
}  # fmt: skip
"""The unit of each peak that is a whole number."""
PEAKS = COUNTED | {
    "boost_clock": "MHz", "max_clock": "MHz", "memory_bandwidth": "GB/s", "fp16_tensor": "TFLOP/s",
    "fp16_tensor_rate": "FLOP/clock/SM",
}  # fmt: skip
RATES = {
    **dict.fromkeys(("alu", "fma", "imad", "issue", "mufu"), "warp instruction/clock/SM"), "l2": "byte/clock/SM",
    "mma": "mma.m16n8k16/clock/SM", "mma_issue": "clock/mma", "published_clock": "MHz", "shared": "wavefront/clock/SM",
    "shared_return": "clock/wavefront",
    **{f"{name}_latency": "clock" for name in ("barrier", "l2", "mma", "mufu", "shared", "shuffle")},
}  # fmt: skip
"""The unit of each peak, and of each rate and latency, that a formula uses."""


class Quantity(BaseModel):
    """A number with its unit and its source."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    unit: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=1, description="document and table, or the command that measured it")]


@dataclass(frozen=True)
class Occupancy:
    """How many CTAs of a kernel fit on one SM."""

    # the CTAs that each resource alone would allow: ``warps``, ``CTAs``, ``registers``, ``shared memory``,
    # ``barriers``; a resource that the kernel does not use is absent
    limits: Mapping[str, int]
    warps_per_cta: int  # warps of one CTA
    most_warps: int  # warps that the SM can hold

    @cached_property
    def ctas(self) -> int:
        """CTAs that are resident at once; 0 when the kernel cannot be launched."""
        return min(self.limits.values())

    @property
    def warps(self) -> int:
        """Warps that are resident at once."""
        return self.ctas * self.warps_per_cta

    @property
    def fraction(self) -> float:
        """Resident warps over the most that the SM can hold, 0 to 1: the theoretical occupancy of profilers."""
        return self.warps / self.most_warps

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that limit the number of CTAs, in the order of `limits`; at least one."""
        return tuple(name for name, ctas in self.limits.items() if ctas == self.ctas)


def _up(number: int, unit: int) -> int:
    """`number` rounded up to a multiple of `unit`."""
    return -(-number // unit) * unit


class Gpu(BaseModel):
    """One file of configs/gpus/: the constants of a GPU model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu: Annotated[str, Field(pattern=r"^[a-z0-9_]+$", description="the key; also the file's name")]
    title: Annotated[str, Field(min_length=1, description="the name that tables print")]
    names: Annotated[
        tuple[str, ...], Field(min_length=1, description="shell patterns of the names that the driver reports")
    ]
    arch: Annotated[str, Field(pattern=r"^sm_\d+$")]
    peaks: Annotated[
        Mapping[str, Quantity], Field(description="what no kernel can exceed: compute by dtype, bandwidth, sizes")
    ]
    rates: Annotated[
        Mapping[str, Quantity],
        Field(default_factory=dict, description="what an SM takes per clock, and latencies: for the model of a kernel"),
    ]

    def excess(self, config: KernelConfig) -> tuple[str, str] | None:
        """The limit that a CTA of `config` exceeds on this GPU, and what it needs; None if it fits."""
        for name, (needed, unit) in config.needs().items():
            limit = self.whole(name)
            if needed > limit:
                return f"at most {limit} {unit}, as {self.title} has", str(needed)
        return None

    def _of(self, table: Mapping[str, Quantity], name: str) -> Quantity:
        if name not in table:
            where = f"configs/gpus/{self.gpu}.yaml"
            raise FlashladderError("the GPU's description lacks a value", where=where, expected=name)
        return table[name]

    def whole(self, name: str) -> int:
        """A count, or a size in bytes, of `peaks`; an error if the GPU's file lacks it."""
        found = self._of(self.peaks, name)
        return int(found.value * _UNITS.get(found.unit, 1))

    def rate(self, name: str) -> float:
        """A rate or a latency of `rates`; errors as of `whole`."""
        return self._of(self.rates, name).value

    def occupancy(self, *, registers: int, threads: int, shared_bytes: int, barriers: int = 1) -> Occupancy:
        """How many CTAs of a kernel fit on one SM; errors as of `whole`.

        `registers` (32 bits, per thread) and named `barriers` (of a CTA) are as ptxas reports them; a CTA has
        `threads`, at least 1, and `shared_bytes`, static and dynamic. The rules are those of ``cuda_occupancy.h`` in
        the CUDA runtime's wheel, for compute capability 8.0 to 9.0; `tests/nvcc/test_explain.py` compares both.
        """
        of, limits, warps = {name: self.whole(name) for name in OF_SM}, dict[str, int](), _up(threads, WARP) // WARP
        if registers:
            # A warp's registers lie in one partition. The hardware refuses a launch as if every partition held as many
            # warps of the CTA as the fullest one.
            per_warp, partitions = _up(registers * WARP, of["register_unit"]), of["partitions_per_sm"]
            fits = per_warp * _up(warps, partitions) <= of["registers_per_block"]
            fits = fits and registers <= of["registers_per_thread"]
            limits["registers"] = fits * (of["registers_per_sm"] // partitions // per_warp * partitions // warps)
        shared = _up(shared_bytes + of["shared_memory_reserved"], of["shared_memory_unit"])
        limits["shared memory"] = of["shared_memory_per_sm"] // shared
        limits["warps"] = of["warps_per_sm"] // warps if threads <= of["threads_per_block"] else 0
        limits["CTAs"] = of["blocks_per_sm"]
        if barriers and "barriers_per_sm" in self.peaks:  # a limit from compute capability 9.0 on
            limits["barriers"] = self.whole("barriers_per_sm") // barriers
        return Occupancy(limits, warps, of["warps_per_sm"])

    def runs(self, arch: str) -> bool:
        """Whether it runs machine code for `arch`: its own, or one of the same major and a smaller minor version."""
        same_major = arch[:-1] == self.arch[:-1] and arch[-1:].isdigit()
        return arch == f"{self.arch}a" or (same_major and arch[-1] <= self.arch[-1])

    @property
    def configs_of(self) -> str:
        """The key of the GPU whose configurations it uses."""
        return configs_for(self.gpu, self.arch)

    @field_validator("peaks", "rates", mode="after")
    @classmethod
    def _peaks_say_what_is_computed_with(
        cls, found: Mapping[str, Quantity], info: ValidationInfo
    ) -> Mapping[str, Quantity]:
        """Checks units, that counts are whole numbers, and that the limits on a CTA's size are there."""
        is_peak = info.field_name == "peaks"
        for name, one in found.items():
            if one.unit != (unit := (PEAKS if is_peak else RATES).get(name, one.unit)):
                raise PydanticCustomError("unit", "bad", {"expected": f"{name} in {unit}", "found": one.unit})
            if is_peak and name in COUNTED and not one.value.is_integer():
                expected = f"{name} as a whole number"
                raise PydanticCustomError("whole", "bad", {"expected": expected, "found": str(one.value)})
        if is_peak and (missing := [name for name in LIMITS if name not in found]):
            raise PydanticCustomError("limits", "bad", {"expected": ", ".join(LIMITS), "found": f"no {missing[0]}"})
        return found


def require_fit(key: str, config: KernelConfig, folder: Path = GPUS, *, family: Family | None = None) -> None:
    """Checks that the GPU `key` is described, that the toolchain compiles for it, and that a CTA of `config` fits it.

    A GPU that cannot run `family` need not fit it: there, the configuration serves only the claims. The error names no
    place, because the caller knows the line.
    """
    gpu = load_gpus(folder).get(key)
    if gpu is None:
        what, found = f"no GPU {key} is described", ", ".join(load_gpus(folder))
        raise FlashladderError(what, where=relative(folder), expected=f"{key}.yaml", found=found)
    arches = load_pins().arches
    if gpu.arch not in arches:
        raise FlashladderError(f"no machine code is made for {key}", expected=", ".join(arches), found=gpu.arch)
    if (family is None or family.runs_on(gpu.arch)) and (excess := gpu.excess(config)):
        raise FlashladderError(f"the configuration is too large for {key}", expected=excess[0], found=excess[1])


@cache
def load_gpus(folder: Path = GPUS) -> Mapping[str, Gpu]:
    """All files of `folder`, by key; a malformed file, and a pattern in two files, are errors."""
    found, claimed = {gpu.gpu: gpu for gpu in map(read_gpu, yaml_files(folder))}, dict[str, str]()
    for key, pattern in ((key, pattern.lower()) for key, gpu in found.items() for pattern in gpu.names):
        if (other := claimed.setdefault(pattern, key)) != key:
            where = f"{relative(folder / other)}.yaml and {key}.yaml"
            hint = "a longer pattern in one of them is tried first"
            raise FlashladderError("two files name the same GPU", where=where, found=pattern, hint=hint)
    return found


def gpu_key(name: str, folder: Path = GPUS) -> str | None:
    """The key of the GPU that the driver calls `name`, such as ``"a100"``; None if no file describes it.

    If the patterns of several files match, the longest one counts: ``NVIDIA H100 NVL*`` before ``NVIDIA H100*``.
    """
    keys = {pattern.lower(): key for key, gpu in load_gpus(folder).items() for pattern in gpu.names}
    longest_first = sorted(keys, key=len, reverse=True)
    return next((keys[pattern] for pattern in longest_first if fnmatchcase(name.lower(), pattern)), None)


def configs_for(gpu: str | None, arch: str) -> str:
    """The key of the GPU whose configurations a GPU uses: its own, or one of its architecture; on Ada the RTX 3090.

    `gpu` is its key (None if no file describes it), `arch` its architecture, ``sm_90``.
    """
    if gpu in TUNED:
        return gpu
    arches = {key: load_gpus()[key].arch for key in TUNED}
    same = [key for key, own in arches.items() if own[:-1] == arch[:-1] and own <= arch]
    return same[-1] if same else PUBLISHED_GPU


def tuned_from(configs: Mapping[str, KernelConfig]) -> dict[int, KernelConfig]:
    """Compute capability (90 for 9.0) to the one of `configs` that GPUs use from it on (`configs_for`).

    This is for a library that knows a GPU's capability but not its name.
    """
    found: dict[int, KernelConfig] = {}
    for capability in range(LAST_CAPABILITY + 1):
        config = configs[configs_for(None, f"sm_{capability}")]
        if not found or found[max(found)] != config:
            found[capability] = config
    return found


def read_gpu(path: Path) -> Gpu:
    """One validated file; another GPU's name is an error."""
    located = read_located(path)
    gpu = validate(Gpu, located)
    if gpu.gpu != path.stem:
        raise located.error(("gpu",), "key and file name differ", path.stem, gpu.gpu)
    return gpu
