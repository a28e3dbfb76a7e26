"""Is there a GPU that torch can use? Answered in milliseconds, from the driver and torch's files, importing neither.

Why: ``invoke check 7`` on a laptop should say at once what is missing and what works instead; torch takes seconds.

Run: ``python -c "from flashladder.gpu.present import n_gpus; print(n_gpus())"``.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
import importlib.metadata
import importlib.util
from pathlib import Path
import re

from flashladder.errors import FlashladderError

CUDA_TORCH = "`pip install torch` brings a CUDA build on Linux"
EMULATOR = "`invoke check N --backend emulator` checks the PTX on this CPU"


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch: its version, and the version of the CUDA that it was built with (None: for the CPU)."""

    version: str
    cuda: str | None


def torch_build() -> TorchBuild | None:
    """What torch is installed, read from its files: importing it would take seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    text = (Path(next(iter(spec.submodule_search_locations))) / "version.py").read_text(encoding="utf-8")
    cuda = re.search(r"^cuda\b.*=\s*'([\d.]+)'", text, re.MULTILINE)
    return TorchBuild(importlib.metadata.version("torch"), cuda[1] if cuda else None)


def require_gpu(instead: str = EMULATOR) -> None:
    """Nothing, where there is a driver with a GPU and a CUDA build of torch; imports neither, so that it is quick.

    Args:
        instead: what the error says that works on this CPU.

    Raises:
        FlashladderError: something is missing; what to install, and what works without it.
    """
    if not n_gpus():
        raise FlashladderError(
            "no GPU here", expected="an NVIDIA GPU with its driver", hint=f"{instead}; beside a GPU, {CUDA_TORCH}"
        )
    build = torch_build()
    if build is None or build.cuda is None:
        found = "none" if build is None else f"torch {build.version}, CPU only"
        raise FlashladderError(
            "no torch that can use the GPU here", expected="a CUDA build", found=found, hint=f"{CUDA_TORCH}; {instead}"
        )


def n_gpus() -> int:
    """GPUs that the CUDA driver gives to this process; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if found else 0
