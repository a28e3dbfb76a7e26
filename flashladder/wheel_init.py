"""One iteration of flashladder's ladder, compiled: importing this loads it into torch and makes it traceable.

    >>> import torch, flashladder_16                                        # NN = 01 to 16
    >>> torch.ops.flashladder_16.forward(q, k, v)                           # (batch, seq_len, n_heads, d_head)
    >>> torch.ops.flashladder_16.forward_out(q, k, v, out, config="(FP16, 128, 64, 64, 4): ...")
    >>> flashladder_16.configurations()

The same text is `__init__.py` of every `flashladder_NN` wheel (flashladder/wheel_init.py is the template). Beside it:
`_C.abi3.so`, `manifest.json` (digests of all inputs) and `kernels.csv` (registers, spills, shared memory).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

__all__ = ["LIBRARY", "NAMESPACE", "configurations"]

NAMESPACE = __name__.rpartition(".")[2]
LIBRARY = Path(__file__).with_name("_C.abi3.so")
OLDEST_TORCH = (2, 10)


def configurations() -> tuple[str, ...]:
    """The short forms of the configurations that this library holds; the first of a dtype is that dtype's default."""
    lines: str = getattr(torch.ops, NAMESPACE).configurations()
    return tuple(lines.splitlines())


def _forward_fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, config: str = "") -> torch.Tensor:
    """What `forward` returns, without running it: a contiguous tensor of q's shape, dtype and device."""
    del k, v, config
    return q.new_empty(q.shape)


def _forward_out_fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str = "") -> None:
    """`forward_out` returns nothing: it writes to `out`."""


def _load() -> None:
    """Loads the library into torch and registers the fake implementations, once."""
    if str(LIBRARY) in torch.ops.loaded_libraries:
        return
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < OLDEST_TORCH:
        raise ImportError(f"{NAMESPACE}: expected torch 2.10 or later, found {torch.__version__}; upgrade torch")
    if hasattr(getattr(torch.ops, NAMESPACE), "forward"):
        raise ImportError(f"{NAMESPACE}: another library is already loaded under this name; start a new process")
    operators: Any = torch.ops  # untyped in torch
    try:
        operators.load_library(LIBRARY)
    except OSError as error:
        reason = error.__cause__ or error
        raise ImportError(f"{NAMESPACE}: torch could not load the library ({reason}); build it again") from error
    torch.library.register_fake(f"{NAMESPACE}::forward", _forward_fake)
    torch.library.register_fake(f"{NAMESPACE}::forward_out", _forward_out_fake)


if NAMESPACE != "wheel_init":  # in the checkout this file is only the template
    _load()
