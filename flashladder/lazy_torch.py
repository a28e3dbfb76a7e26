"""torch, imported when one of its names is first used: the import takes seconds, and most commands need no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("torch"), name)

    torch, Tensor = _Torch(), Any  # `Tensor` is for annotations

__all__ = ["Tensor", "torch"]
