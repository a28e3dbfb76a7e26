"""What the GPU was doing while we timed: clock, power, temperature, throttle reasons, identity, other processes.

Why: a ratio is trusted only beside the clock it was seen at (rules 5, 9 and 13 of the measurement protocol). Everything
is read through NVML (`nvidia-ml-py`); nothing is ever set. A question that a GPU does not answer gives None.

Run on a machine with a GPU:
    python -m flashladder.gpu.telemetry
"""

from __future__ import annotations

from collections.abc import Callable
import os
import re
import time
from typing import Any

from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import dump_json
from flashladder.results.schema import Gpu, Sample

_FORM_FACTORS = (
    (re.compile(r"SXM\d?"), None),
    (re.compile(r"PCI[eE]", re.IGNORECASE), "PCIe"),
    (re.compile(r"NVL"), "NVL"),
    (re.compile(r"H100 80GB HBM3|H200$|H20$"), "SXM5"),  # the driver names the SXM parts plainly
    (re.compile(r"GeForce|RTX"), "PCIe"),
)


def form_factor(name: str) -> str | None:
    """SXM, PCIe or NVL, as far as a device name tells: ``NVIDIA A100-SXM4-80GB`` is SXM4."""
    for pattern, label in _FORM_FACTORS:
        if found := pattern.search(name):
            return label or found[0]
    return None


class Telemetry:
    """One GPU seen through NVML.

    Args:
        nvml: the `pynvml` module, or a stand-in with the functions used here.
        handle: the device's NVML handle.
        clock: seconds that only grow; sample times count from the creation of this object.
    """

    def __init__(self, nvml: Any, handle: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._handle = handle
        self._clock = clock
        self._start = clock()

    def _ask(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError):  # not every GPU, driver or binding knows every question
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
        """Millijoules that the GPU has taken since its driver was loaded; ticks about ten times a second."""
        found = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if found is None else int(found)

    def identity(self, *, n_sm: int, l2_bytes: int) -> Gpu:
        """Who this GPU is; the number of SMs and the size of its L2 in bytes come from CUDA."""
        name = _text(self._ask("nvmlDeviceGetName"))
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        ecc, mig = self._ask("nvmlDeviceGetEccMode"), self._ask("nvmlDeviceGetMigMode")
        major, minor = self._ask("nvmlDeviceGetCudaComputeCapability") or (0, 0)
        return Gpu(
            name=name,
            uuid=_text(self._ask("nvmlDeviceGetUUID")),
            form_factor=form_factor(name),
            compute_capability=f"{major}.{minor}",
            n_sm=n_sm,
            l2_bytes=l2_bytes,
            memory_bytes=0 if memory is None else int(memory.total),
            power_limit_w=None if limit is None else limit / 1000,
            max_sm_clock_mhz=self._ask("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_SM),
            ecc=None if ecc is None else bool(ecc[0]),
            mig=None if mig is None else bool(mig[0]),
            driver=_text(self._nvml.nvmlSystemGetDriverVersion()),
        )

    def foreign_processes(self, *, own_context: bool) -> int | None:
        """How many other processes compute on the GPU; None when the driver does not tell.

        Args:
            own_context: whether this process already uses the GPU. In a container NVML may show host process ids, so
                that our own cannot be recognised: then one unknown process is taken to be us.
        """
        running = self._ask("nvmlDeviceGetComputeRunningProcesses")
        if running is None:
            return None
        ids = {int(process.pid) for process in running}
        if os.getpid() in ids:
            return len(ids) - 1
        return max(0, len(ids) - int(own_context))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def open_telemetry(uuid: str | None = None) -> Telemetry:
    """The GPU with this UUID (``GPU-...``); without one, or where NVML knows a single GPU, that GPU.

    Raises:
        FlashladderError: the NVML binding or the driver is missing, or there is no such GPU.
    """
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise FlashladderError("NVML binding not installed", hint="pip install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
        by_uuid = uuid is not None and pynvml.nvmlDeviceGetCount() > 1
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid) if by_uuid else pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError as error:
        raise FlashladderError(
            "no GPU answers through NVML",
            found=error,
            hint="this command needs a machine with an NVIDIA GPU and its driver",
        ) from error
    return Telemetry(pynvml, handle)


if __name__ == "__main__":
    with one_line_errors():
        seen = open_telemetry()
        print(dump_json(seen.sample().model_dump(mode="json")).rstrip())
