"""torch, imported when one of its names is first used: the import takes seconds, and most commands need no torch."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:

    @cache
    def _module() -> Any:
        """Found once: launches of a few microseconds are timed through `torch`."""
        return import_module("torch")

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            return getattr(_module(), name)

    torch, Tensor = _Torch(), Any  # `Tensor` is for annotations

__all__ = ["Tensor", "torch"]
