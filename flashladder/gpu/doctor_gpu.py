"""What `flashladder.gpu.doctor` sees of GPUs: devices, driver, counter rights, clock rights, the rung they amount to.

Everything is read, nothing is tried: NVML is asked, `/proc` is read, no clock is touched and no kernel is launched.

Run: `invoke doctor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import os
from pathlib import Path
import re
import shutil
from typing import Any

from flashladder.errors import FlashladderError

DRIVER_PARAMS = Path("/proc/driver/nvidia/params")
PROCESS_STATUS = Path("/proc/self/status")
CAP_SYS_ADMIN = 1 << 21  # capabilities(7); the driver asks for it before it changes clocks or opens restricted counters
OLDEST_CUDA_DRIVER = (13, 0)  # the runtime linked into the operators is of CUDA 13
RUNGS = ("GPU with clock rights", "GPU", "GPU without counters", "CPU only")


@dataclass(frozen=True)
class Finding:
    """One thing looked at: `found` for people, `remedy` says what to do when it is not ok."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Gpu:
    """GPU as the driver describes it; `memory_gib` in GiB, `power_w` is the enforced limit in W (None: not told)."""

    index: int
    name: str
    arch: str
    memory_gib: float
    power_w: float | None
    mig: bool
    processes: int


def gpus() -> tuple[list[Gpu], Finding, Finding]:
    """GPUs of this machine with what is to say about them, and about driver and NVML."""
    no_gpu = gpu_finding(())
    try:
        import pynvml
    except ModuleNotFoundError:
        return [], no_gpu, Finding("driver", False, "NVML binding not installed", "run: nox -s dev (nvidia-ml-py)")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (
            [],
            no_gpu,
            Finding("driver", False, f"NVML: {error}", "on a machine with a GPU, install NVIDIA's driver"),
        )
    try:
        found = [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        version = int(pynvml.nvmlSystemGetCudaDriverVersion())
        cuda = (version // 1000, version % 1000 // 10)
        name = _text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        return [], no_gpu, Finding("driver", False, f"NVML: {error}", "look at the kernel log; restart the machine")
    finally:
        pynvml.nvmlShutdown()
    driver = Finding(
        "driver", cuda >= OLDEST_CUDA_DRIVER, f"{name}, up to CUDA {cuda[0]}.{cuda[1]}, NVML answers",
        "update the driver to 580 or newer: the CUDA 13 runtime inside the operators needs it",
    )  # fmt: skip
    return found, gpu_finding(found), driver


def gpu_finding(found: Sequence[Gpu]) -> Finding:
    """What the GPUs are worth for timing: one must be whole, free and of sm_80 or newer."""
    if not found:
        return Finding("gpu", False, "none", "compiling, emulating and reports work without one; bench needs one")
    text = "; ".join(
        f"{gpu.index}: {gpu.name} ({gpu.arch}, {gpu.memory_gib:.0f} GiB"
        + (f", {gpu.power_w:.0f} W" if gpu.power_w else "")
        + (", MIG" if gpu.mig else "")
        + (f", {gpu.processes} processes on it" if gpu.processes else "")
        + ")"
        for gpu in found
    )
    ok = any(int(gpu.arch.removeprefix("sm_")) >= 80 and not gpu.mig and not gpu.processes for gpu in found)
    return Finding("gpu", ok, text, "use a whole GPU of sm_80 or newer, with no other process on it, to time kernels")


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    power = _optional(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    mig = _optional(nvml, "nvmlDeviceGetMigMode", handle)
    return Gpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        arch=f"sm_{major}{minor}",
        memory_gib=nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30,
        power_w=None if power is None else power / 1000,
        mig=mig is not None and bool(mig[0]),
        processes=len(_optional(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()),
    )


def _optional(nvml: Any, name: str, handle: object) -> Any:
    try:
        return getattr(nvml, name)(handle)
    except nvml.NVMLError:  # not every GPU knows every question
        return None


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def find_ncu() -> Path | None:
    """Nsight Compute's command line: on PATH, else the newest in the places its installers use."""
    if path := shutil.which("ncu"):
        return Path(path)
    places = [*Path("/opt/nvidia/nsight-compute").glob("*/ncu"), *Path("/usr/local").glob("cuda*/bin/ncu")]
    return max(places, default=None)


def require_ncu() -> Path:
    """Nsight Compute's command line.

    Raises:
        FlashladderError: it is not installed.
    """
    if ncu := find_ncu():
        return ncu
    raise FlashladderError("Nsight Compute is not installed", hint="install ncu, or put it on PATH")


def privileged(status: Path = PROCESS_STATUS) -> bool:
    """Whether this process has CAP_SYS_ADMIN, which clock changes and restricted counters need."""
    try:
        found = re.search(r"^CapEff:\s*([0-9a-f]+)", status.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return os.geteuid() == 0
    return found is not None and bool(int(found[1], 16) & CAP_SYS_ADMIN)


def counters(ncu: Path | None, params: Path = DRIVER_PARAMS, *, admin: bool | None = None) -> Finding:
    """Whether hardware counters can be read: Nsight Compute is there and the driver lets this user."""
    admin = privileged() if admin is None else admin
    try:
        found = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", params.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return Finding("counters", False, "no NVIDIA driver is loaded", "use a machine with a GPU to profile")
    restricted = found is None or found[1] != "0"
    if restricted and not admin:
        return Finding(
            "counters", False, "the driver keeps them for administrators (ERR_NVGPUCTRPERM)",
            "as root: write 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' to /etc/modprobe.d/, then reboot",
        )  # fmt: skip
    if ncu is None:
        return Finding("counters", False, "allowed, but ncu is not installed", "install Nsight Compute")
    return Finding("counters", True, f"allowed{' to administrators' if restricted else ''}, {ncu}")


def rung(gpu: bool, counted: bool, clocks: bool) -> str:
    """The measurement rung: what a result measured here is worth, from clock rights down to no GPU."""
    if not gpu:
        return RUNGS[3]
    if not counted:
        return RUNGS[2]
    return RUNGS[0] if clocks else RUNGS[1]
