"""The GPU that this process measures on: who it is, on which rung it stands, and the reference that torch brings.

Why: check, bench and counters write the same identity into their results (rule 9 of the measurement protocol).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
import fcntl
from pathlib import Path
import tempfile
from typing import TYPE_CHECKING

from flashladder.doctor_gpu import counters, find_ncu, privileged, rung
from flashladder.errors import FlashladderError
from flashladder.gpu_present import CUDA_TORCH, EMULATOR, require_gpu
from flashladder.result_schema import Gpu, Host, Reference
from flashladder.results import this_host
from flashladder.telemetry import Telemetry, open_telemetry

if TYPE_CHECKING:
    import torch

REFERENCE_OP = "torch.ops.aten._flash_attention_forward"


@dataclass(frozen=True)
class Device:
    """An open GPU. `foreign_before`: other processes that computed on it when we came; None: NVML does not tell."""

    gpu: Gpu
    host: Host
    rung: str
    telemetry: Telemetry
    foreign_before: int | None


def open_device() -> Device:
    """Opens torch's current GPU.

    Raises:
        FlashladderError: there is no GPU, torch is missing or has no CUDA, or NVML does not answer.
    """
    require_gpu()
    import torch

    if not torch.cuda.is_available():
        raise FlashladderError(
            "torch cannot use the GPU here", found=f"torch {torch.__version__}", hint=f"{CUDA_TORCH}; {EMULATOR}"
        )
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    telemetry = open_telemetry("GPU-" + str(properties.uuid).removeprefix("GPU-"))
    foreign = telemetry.foreign_processes(own_context=True)
    gpu = telemetry.identity(n_sm=properties.multi_processor_count, l2_bytes=properties.L2_cache_size)
    counted = counters(find_ncu()).ok
    return Device(gpu, this_host(), rung(True, counted, privileged()), telemetry, foreign)


@contextmanager
def exclusive(uuid: str, folder: Path | None = None) -> Iterator[None]:
    """Holds this machine's lock on a GPU, so that two timing runs never share it; it goes with the process.

    Raises:
        FlashladderError: another process holds it.
    """
    path = (folder or Path(tempfile.gettempdir())) / f"flashladder-{uuid}.lock"
    with path.open("w", encoding="ascii") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FlashladderError(
                "another flashladder process measures on this GPU",
                where=path,
                hint="wait for it, or choose another GPU",
            ) from error
        yield


def reference_identity(kernels: Mapping[str, str]) -> Reference:
    """FA2 as this torch ships it; `kernels` maps dtype to the name of the reference's kernel."""
    import torch

    return Reference(op=REFERENCE_OP, torch=torch.__version__, cuda=torch.version.cuda, kernels=dict(kernels))


def reference_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """FA2 forward, non-causal, on (B, S, H, D) tensors, as torch ships it."""
    import torch

    length = q.shape[1]
    fa2 = torch.ops.aten._flash_attention_forward  # noqa: SLF001 - torch exposes FA2 itself under no public name
    outputs = fa2(q, k, v, None, None, length, length, 0.0, False, False)
    result: torch.Tensor = outputs[0]
    return result


def reference_kernel(dtype: str) -> str | None:
    """The name of the kernel that the reference launches, read once by the profiler; None when it sees no kernel.

    Not to be called while anything is timed: the profiler slows launches down.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    from flashladder.inputs import torch_dtype

    q = torch.randn(1, 1024, 16, 128, device="cuda", dtype=torch_dtype(dtype))
    reference_forward(q, q, q)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
        reference_forward(q, q, q)
        torch.cuda.synchronize()
    names = [event.name for event in seen.events() if str(event.device_type).endswith("CUDA")]
    return next((name for name in names if "flash" in name.lower()), None)
