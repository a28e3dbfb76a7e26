"""flashladder: FlashAttention-2 forward kernels, from naive to state of the art, as a reproducible pipeline.

Import stays cheap: torch is loaded only by the call that needs it.

    >>> import flashladder
    >>> flashladder.__version__
    '0.1.0'
    >>> out = flashladder.attention(q, k, v, causal=True)   # by the best installed step
    >>> out = flashladder.forward(q, k, v, iteration=16)
    >>> flashladder.configurations(16)                      # those that the installed wheel holds
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashladder.names import __version__

if TYPE_CHECKING:
    from flashladder.ops import attention as attention
    from flashladder.ops import attention_varlen as attention_varlen
    from flashladder.ops import configurations as configurations
    from flashladder.ops import forward as forward

__all__ = ["__version__", "attention", "attention_varlen", "configurations", "forward"]


def __dir__() -> list[str]:
    """The public names, whether they are loaded yet or not; for completion in a shell."""
    return sorted(__all__)


def __getattr__(name: str) -> object:
    """Loads a public name at its first use, so that commands that never need torch do not pay for it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flashladder.errors import FlashladderError

    try:
        from flashladder import ops
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise FlashladderError(f"flashladder.{name} needs torch 2.10 or later", hint="pip install torch") from error
    found: object = getattr(ops, name)
    return found
