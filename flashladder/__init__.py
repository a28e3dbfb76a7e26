"""flashladder: FlashAttention-2 forward kernels, from naive to state of the art, as a reproducible pipeline.

Import stays cheap: torch is loaded only by the call that needs it.

    >>> import flashladder
    >>> flashladder.__version__
    '0.1.0'
    >>> out = flashladder.forward(q, k, v, iteration=16)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashladder.version import __version__

if TYPE_CHECKING:
    from flashladder.ops import forward as forward

__all__ = ["__version__", "forward"]


def __getattr__(name: str) -> object:
    """Loads `forward` at its first use, so that commands that never call it do not pay for it."""
    if name == "forward":
        from flashladder.errors import FlashladderError

        try:
            from flashladder.ops import forward
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise FlashladderError("flashladder.forward needs torch 2.10 or later", hint="pip install torch") from error
        return forward
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
