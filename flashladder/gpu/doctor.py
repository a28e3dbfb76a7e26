"""What this machine can do, what it lacks, and how to fix that.

It reads NVML, ``/proc`` and torch's files. It changes nothing, launches no kernel and does not import torch: a command
can ask for a GPU before it loads anything slow.

Run:
    invoke doctor
    invoke doctor --json
Exit code 0; 2 if the machine can neither compile nor run a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import ctypes
from dataclasses import asdict, dataclass
import importlib.metadata
import importlib.util
import os
from pathlib import Path
import platform
import re
import shutil
import sys
from typing import Any

from flashladder import toolchain
from flashladder.columns import hanging
from flashladder.errors import PACKAGES, FlashladderError
from flashladder.files import dump_json, require_folder_or_nothing
from flashladder.paths import BUILD

CUDA_TORCH = "`pip install torch` brings a CUDA build on Linux"
EMULATOR = "`invoke check N --backend emulator` checks the PTX on this CPU"


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch: its version, and the CUDA version that it was built with (None: CPU only)."""

    version: str
    cuda: str | None


def torch_build() -> TorchBuild | None:
    """The installed torch, read from its files: an import takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    text = (Path(next(iter(spec.submodule_search_locations))) / "version.py").read_text(encoding="utf-8")
    cuda = re.search(r"^cuda\b.*=\s*'([\d.]+)'", text, re.MULTILINE)
    return TorchBuild(importlib.metadata.version("torch"), cuda[1] if cuda else None)


def require_gpu(instead: str = "") -> None:
    """Refuses a machine without GPU or CUDA torch; the hint says what to install, or what to do `instead`."""
    instead = instead or EMULATOR
    if not n_gpus():
        expected, hint = "an NVIDIA GPU with its driver", f"{instead}; beside a GPU, {CUDA_TORCH}"
        raise FlashladderError("no GPU here", expected=expected, hint=hint)
    build = torch_build()
    if build is None or build.cuda is None:
        what, found = "no torch that can use the GPU here", f"torch {build.version}, CPU only" if build else "none"
        raise FlashladderError(what, expected="a CUDA build", found=found, hint=f"{CUDA_TORCH}; {instead}")


def n_gpus() -> int:
    """The number of GPUs that this process may use; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if found else 0


DRIVER_PARAMS = Path("/proc/driver/nvidia/params")
PROCESS_STATUS = Path("/proc/self/status")
CAP_SYS_ADMIN = 1 << 21  # capabilities(7); the driver requires it for clock changes and restricted counters
OLDEST_CUDA_DRIVER = (13, 0)  # the operators link the runtime of CUDA 13
DISK_GB = 8.0  # 1.1 GB for torch and toolchain, the rest for all build environments and the store
OLDEST_TORCH = (2, 10)  # first release with the stable ABI that kernels/host/binding.cpp uses
RUNGS = ("GPU with clock rights", "GPU", "GPU without counters", "CPU only")


@dataclass(frozen=True)
class Finding:
    """One check: `found` is for people; `remedy` says what to do if it is not `ok`."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


@contextmanager
def nvml() -> Iterator[Any]:
    """The initialised module `pynvml`; `FlashladderError`: no binding, no driver, or NVML refused a question inside."""
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise FlashladderError("NVML binding not installed", hint="pip install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
        yield pynvml
    except pynvml.NVMLError as error:
        hint = "this needs a machine with an NVIDIA GPU and its driver"
        raise FlashladderError("no GPU answers through NVML", found=error, hint=hint) from error


def gpus() -> tuple[Finding, Finding]:
    """The findings about the GPUs of this machine, and about driver and NVML."""
    none = Finding("gpu", False, "none", "compiling, emulating and reports work without one; bench needs one")
    try:
        with nvml() as asked:
            found = [_gpu(asked, index) for index in range(asked.nvmlDeviceGetCount())]
            version = int(asked.nvmlSystemGetCudaDriverVersion())
            name = decoded(asked.nvmlSystemGetDriverVersion())
    except FlashladderError as error:
        return none, Finding("driver", False, error.what, error.hint or "")
    cuda = (version // 1000, version % 1000 // 10)
    driver = Finding(
        "driver", cuda >= OLDEST_CUDA_DRIVER, f"{name}, up to CUDA {cuda[0]}.{cuda[1]}, NVML answers",
        "update the driver to 580 or newer: the CUDA 13 runtime inside the operators needs it",
    )  # fmt: skip
    if not found:
        return none, driver
    remedy = "use a whole GPU of sm_80 or newer, with no other process on it, to time kernels"
    return Finding("gpu", any(ok for ok, _ in found), "; ".join(text for _, text in found), remedy), driver


def _gpu(asked: Any, index: int) -> tuple[bool, str]:
    """Whether a GPU can time kernels (it must be new enough, whole and free), and its description."""
    handle = asked.nvmlDeviceGetHandleByIndex(index)

    def ask(name: str) -> Any:
        try:
            return getattr(asked, name)(handle)
        except asked.NVMLError:  # this GPU does not know the question
            return None

    name, memory = decoded(asked.nvmlDeviceGetName(handle)), asked.nvmlDeviceGetMemoryInfo(handle).total / 2**30
    major, minor = asked.nvmlDeviceGetCudaComputeCapability(handle)
    power, mig = ask("nvmlDeviceGetEnforcedPowerLimit"), (ask("nvmlDeviceGetMigMode") or (0,))[0]
    processes = len(ask("nvmlDeviceGetComputeRunningProcesses") or ())
    facts = [f"sm_{major}{minor}", f"{memory:.0f} GiB"]
    facts += [f"{power / 1000:.0f} W"] * bool(power) + ["MIG"] * bool(mig)
    facts += [f"{processes} processes on it"] * bool(processes)
    return major >= 8 and not mig and not processes, f"{index}: {name} ({', '.join(facts)})"


def decoded(value: object) -> str:
    """NVML's text; older bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def find_tool(name: str, *folders: str) -> Path | None:
    """A tool of NVIDIA's: on PATH, else the newest in these folders, which may contain stars."""
    if path := shutil.which(name):
        return Path(path)
    return max((found for folder in folders for found in Path("/").glob(f"{folder[1:]}/{name}")), default=None)


def find_ncu() -> Path | None:
    """Nsight Compute's command line."""
    return find_tool("ncu", "/opt/nvidia/nsight-compute/*", "/usr/local/cuda*/bin")


def privileged(status: Path = PROCESS_STATUS) -> bool:
    """Whether this process has CAP_SYS_ADMIN."""
    try:
        found = re.search(r"^CapEff:\s*([0-9a-f]+)", status.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return os.geteuid() == 0
    return found is not None and bool(int(found[1], 16) & CAP_SYS_ADMIN)


def counters(params: Path = DRIVER_PARAMS, status: Path = PROCESS_STATUS) -> Finding:
    """Whether hardware counters can be read: Nsight Compute is installed, and the driver allows this user."""
    try:
        found = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", params.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return Finding("counters", False, "no NVIDIA driver is loaded", "use a machine with a GPU to profile")
    restricted = found is None or found[1] != "0"
    if restricted and not privileged(status):
        return Finding(
            "counters", False, "the driver keeps them for administrators (ERR_NVGPUCTRPERM)",
            "as root: write 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' to /etc/modprobe.d/, then reboot",
        )  # fmt: skip
    if (ncu := find_ncu()) is None:
        return Finding("counters", False, "allowed, but ncu is not installed", "install Nsight Compute")
    return Finding("counters", True, f"allowed{' to administrators' if restricted else ''}, {ncu}")


def rung(gpu: bool, counted: bool, clocks: bool) -> str:
    """This machine's capability level, one of `RUNGS`."""
    return RUNGS[3 if not gpu else 2 if not counted else 0 if clocks else 1]


@dataclass(frozen=True)
class Diagnosis:
    """All findings, the capability level, and what can be done here."""

    findings: tuple[Finding, ...]
    rung: str
    can: tuple[str, ...]


def _looked_for(name: str, look: Callable[[], str], remedy: str) -> Finding:
    """What `look` finds, or its error; the error's hint is the remedy."""
    try:
        return Finding(name, True, look())
    except FlashladderError as error:
        hint = error.hint or ("correct or restore the file" if ".yaml" in str(error.where) else remedy)
        error.hint = None
        return Finding(name, False, str(error), hint)


def _compiler() -> str:
    path = toolchain.host_compiler()
    return f"{toolchain.host_compiler_version(path)} at {path}"


def _toolchain() -> str:
    found = toolchain.find_toolchain().versions
    return ", ".join(f"{re.sub(r'^nvidia-(cuda-)?', '', name)} {version}" for name, version in found.items())


def tool(name: str, remedy: str) -> Finding:
    """A command that sits beside this interpreter or on PATH."""
    beside = Path(sys.executable).with_name(name)
    path = str(beside) if beside.is_file() else shutil.which(name)
    return Finding(name, path is not None, path or "not found", remedy)


def torch(gpu: bool) -> Finding:
    """Whether torch is new enough, and a CUDA build beside a GPU."""
    remedy, build = "run: nox -s dev (or install torch >= 2.10; a CPU build is enough to compile)", torch_build()
    if build is None:
        return Finding("torch", False, "not installed in this environment", remedy)
    if gpu and not build.cuda:
        found = f"{build.version}, CPU only beside a GPU"
        return Finding("torch", False, found, "install a CUDA build of torch >= 2.10 (on Linux: pip install torch)")
    ok = tuple(int(part) for part in re.findall(r"\d+", build.version)[:2]) >= OLDEST_TORCH
    return Finding("torch", ok, f"{build.version}, " + (f"CUDA {build.cuda}" if build.cuda else "CPU only"), remedy)


def emulator() -> Finding:
    """Whether the packages that run PTX on the CPU are installed."""
    missing = [name for name in ("ptxemu", "numpy", "ml_dtypes") if importlib.util.find_spec(name) is None]
    if missing:
        remedy = f"run: pip install {' '.join(PACKAGES[name] for name in missing)} (in a checkout: nox -s dev)"
        return Finding("emulator", False, f"{' and '.join(missing)} not installed", remedy)
    return Finding("emulator", True, f"ml_dtypes {importlib.metadata.version('ml_dtypes')}", "")


def disk() -> Finding:
    """Whether the build folder has enough free space."""
    try:
        require_folder_or_nothing(BUILD)
    except FlashladderError as error:
        return Finding("disk", False, f"{error.where} is {error.found}, where builds need a folder", "remove it")
    place = BUILD if BUILD.is_dir() else BUILD.parent
    free = shutil.disk_usage(place).free / 1e9
    found = f"{free:.1f} GB free in {place}"
    return Finding("disk", free >= DISK_GB, found, f"free space: builds need {DISK_GB:g} GB")


def diagnose() -> Diagnosis:
    """Makes all findings; takes about a second."""
    gpu, driver = gpus()
    has_gpu = gpu.found != "none"
    lockable = has_gpu and privileged()
    may = "may be locked (not tried)" if lockable else "no permission to lock them"
    clocks = Finding("clocks", lockable, may, "not needed: ratios are paired, and nothing here changes a clock")
    uv = "run: pip install 'nox[uv]' (it makes environments, and installs the wheels of iterations)"
    python = f"{platform.python_version()} at {sys.executable}"
    findings = (
        Finding("python", sys.version_info >= (3, 10), python, "install Python 3.10 or newer"),
        _looked_for("compiler", _compiler, "install g++, or set CXX"),
        _looked_for("toolchain", _toolchain, "run: nox -s dev"),
        _looked_for("ninja", lambda: str(toolchain.find_ninja()), "run: pip install ninja"),
        torch(has_gpu), emulator(), tool("nox", "run: pip install nox"), tool("uv", uv), disk(), gpu, driver,
        counters(), clocks,
    )  # fmt: skip
    ok = {finding.name: finding.ok for finding in findings}
    compiles = ok["compiler"] and ok["toolchain"] and ok["ninja"] and (BUILD.is_dir() or not os.path.lexists(BUILD))
    can = {
        "compile kernels, verify locks": compiles,
        "emulate kernels": compiles and ok["emulator"],
        "build and load torch operators": compiles and ok["torch"],
        "check and time kernels": has_gpu and ok["torch"],
        "profile with ncu": has_gpu and ok["counters"],
    }
    return Diagnosis(findings, rung(has_gpu, ok["counters"], ok["clocks"]), tuple(k for k, v in can.items() if v))


def render(diagnosis: Diagnosis) -> str:
    """The diagnosis for people: one line per finding, and a remedy below each that is lacking."""
    lines = []
    for finding in diagnosis.findings:
        lines.append(hanging(f"{'ok' if finding.ok else 'lacking':7s}  {finding.name:9s}  ", finding.found))
        if not finding.ok and finding.remedy:
            lines.append(hanging(f"{'':9s}{'':9s}  -> ", finding.remedy))
    nothing = "read the ladder, verify and render results; no kernel is compiled or timed without a compiler or a GPU"
    can = "; ".join(diagnosis.can) or nothing
    return "\n".join([*lines, "", f"level    {diagnosis.rung}", hanging("can      ", can)])


def doctor(*, as_json: bool = False) -> int:
    """Prints the diagnosis; returns 2 if nothing can be done here, else 0."""
    diagnosis = diagnose()
    print(dump_json(asdict(diagnosis)).rstrip() if as_json else render(diagnosis))
    return 0 if diagnosis.can else 2
