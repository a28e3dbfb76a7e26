"""The GPU that this process measures on: who it is and on which rung it stands.

Why: check, bench and counters write the same identity into their results (rule 9 of the measurement protocol).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
import fcntl
import os
from pathlib import Path
import tempfile

from flashladder.errors import FlashladderError
from flashladder.gpu.doctor_gpu import counters, find_ncu, privileged, rung
from flashladder.gpu.present import CUDA_TORCH, EMULATOR, require_gpu
from flashladder.gpu.telemetry import Telemetry, open_telemetry
from flashladder.results.files import this_host
from flashladder.results.schema import Gpu, Host

LOCKS = Path(tempfile.gettempdir())  # of this machine: one file per GPU that is measured on


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


def _own(path: Path) -> int:
    """A file of a folder that everybody can write, opened without following a link that somebody put there."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)


@contextmanager
def exclusive(uuid: str, folder: Path | None = None) -> Iterator[None]:
    """Holds this machine's lock on a GPU, so that two timing runs never share it; it goes with the process.

    Raises:
        FlashladderError: another process holds it.
    """
    path = (folder or LOCKS) / f"flashladder-{uuid}.lock"
    with os.fdopen(_own(path), "a", encoding="ascii") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FlashladderError(
                "another flashladder process measures on this GPU",
                where=path,
                hint="wait for it, or choose another GPU",
            ) from error
        yield
