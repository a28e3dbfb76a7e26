"""The GPU that this process measures on: its identity, its state by NVML, and the lock of a timing run.

NVML is only read, never set. A question that a GPU does not answer gives None (rules 5, 9 and 13 of the measurement
protocol). `run_bounded` runs a program that uses the GPU, such as a profiler, for a limited time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
import fcntl
import os
from pathlib import Path
import re
import signal
import subprocess
import tempfile
import time
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.gpu.doctor import CUDA_TORCH, EMULATOR, counters, decoded, nvml, privileged, require_gpu, rung
from flashladder.results.files import this_host
from flashladder.results.schema import Gpu, Host, Sample

LOCKS = Path(tempfile.gettempdir())  # of this machine: one file per GPU that is measured on
_FORM_FACTORS = (
    (re.compile(r"SXM\d?"), None),
    (re.compile(r"PCI[eE]", re.IGNORECASE), "PCIe"),
    (re.compile(r"NVL"), "NVL"),
    (re.compile(r"H100 80GB HBM3|H200$|H20$"), "SXM5"),  # the driver gives SXM parts no suffix
    (re.compile(r"GeForce|RTX"), "PCIe"),
)


def form_factor(name: str) -> str | None:
    """SXM, PCIe or NVL by the device name, else None: ``NVIDIA A100-SXM4-80GB`` is SXM4."""
    for pattern, label in _FORM_FACTORS:
        if found := pattern.search(name):
            return label or found[0]
    return None


class Telemetry:
    """One GPU seen through NVML, `pynvml` or a stand-in; samples count seconds of `clock` since it was made."""

    def __init__(self, nvml: Any, handle: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml, self._handle = nvml, handle
        self._clock, self._start = clock, clock()

    def _ask(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError):  # this GPU, driver or binding does not know the question
            return None

    def sample(self) -> Sample:
        """Clocks in MHz, power in W, temperature in degrees C and throttle bits, now; about a millisecond."""
        power = self._ask("nvmlDeviceGetPowerUsage")
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")  # its name before driver 535
        return Sample(
            t_s=round(self._clock() - self._start, 4),
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_MEM),
            power_w=None if power is None else power / 1000,
            temperature_c=self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU),
            throttle_bits=bits,
        )

    def energy_mj(self) -> int | None:
        """Millijoules that the GPU has used since its driver was loaded; updated about ten times a second."""
        found = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if found is None else int(found)

    def identity(self, *, n_sm: int, l2_bytes: int) -> Gpu:
        """This GPU's identity; the number of SMs and the L2's size in bytes come from CUDA."""
        name = decoded(self._ask("nvmlDeviceGetName"))
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        ecc, mig = self._ask("nvmlDeviceGetEccMode"), self._ask("nvmlDeviceGetMigMode")
        major, minor = self._ask("nvmlDeviceGetCudaComputeCapability") or (0, 0)
        return Gpu(
            name=name, uuid=decoded(self._ask("nvmlDeviceGetUUID")), form_factor=form_factor(name),
            compute_capability=f"{major}.{minor}", n_sm=n_sm, l2_bytes=l2_bytes,
            memory_bytes=0 if memory is None else int(memory.total),
            power_limit_w=None if limit is None else limit / 1000,
            max_sm_clock_mhz=self._ask("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_SM),
            ecc=None if ecc is None else bool(ecc[0]), mig=None if mig is None else bool(mig[0]),
            driver=decoded(self._nvml.nvmlSystemGetDriverVersion()),
        )  # fmt: skip

    def foreign_processes(self, *, own_context: bool) -> int | None:
        """How many other processes compute on the GPU; None if the driver does not report it.

        In a container NVML may show the host's process ids, and this process cannot be found among them. If it already
        uses the GPU (`own_context`), one unknown process counts as this one.
        """
        running = self._ask("nvmlDeviceGetComputeRunningProcesses")
        if running is None:
            return None
        ids = {int(process.pid) for process in running}
        if os.getpid() in ids:
            return len(ids) - 1
        return max(0, len(ids) - int(own_context))


@dataclass(frozen=True)
class Device:
    """An open GPU; `foreign_before` counts other processes on it at the start (None: NVML does not report them)."""

    gpu: Gpu
    host: Host
    rung: str
    telemetry: Telemetry
    foreign_before: int | None


def origin(device: Device) -> dict[str, Any]:
    """The fields of a result that describe GPU and host."""
    return {"rung": device.rung, "gpu": device.gpu, "host": device.host}


def open_device() -> Device:
    """Opens torch's current GPU; `FlashladderError` without a GPU, without torch for CUDA, or if NVML is silent."""
    require_gpu()
    import torch

    if not torch.cuda.is_available():
        found, hint = f"torch {torch.__version__}", f"{CUDA_TORCH}; {EMULATOR}"
        raise FlashladderError("torch cannot use the GPU here", found=found, hint=hint)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    uuid = "GPU-" + str(properties.uuid).removeprefix("GPU-")
    with nvml() as asked:  # in a container a single GPU may have another UUID
        several = asked.nvmlDeviceGetCount() > 1
        handle = asked.nvmlDeviceGetHandleByUUID(uuid) if several else asked.nvmlDeviceGetHandleByIndex(0)
    telemetry = Telemetry(asked, handle)
    foreign = telemetry.foreign_processes(own_context=True)
    gpu = telemetry.identity(n_sm=properties.multi_processor_count, l2_bytes=properties.L2_cache_size)
    return Device(gpu, this_host(), rung(True, counters().ok, privileged()), telemetry, foreign)


@contextmanager
def exclusive(uuid: str, folder: Path | None = None) -> Iterator[None]:
    """Locks a GPU for one timing run, at most until the process ends; `FlashladderError` if another process has it."""
    path = (folder or LOCKS) / f"flashladder-{uuid}.lock"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW  # anybody can put a link into this folder
    with os.fdopen(os.open(path, flags, 0o666), "a", encoding="ascii") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            what, hint = "another flashladder process measures on this GPU", "wait for it, or choose another GPU"
            raise FlashladderError(what, where=path, hint=hint) from error
        yield


def run_bounded(
    command: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Exit code of `command` (None: it was ended after `timeout_s` seconds), and its stdout and stderr together.

    It runs in a process group of its own, which ends as a whole: a profiler must not leave its program on the GPU.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=env,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]
        except BaseException:  # also after an interrupt
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output
