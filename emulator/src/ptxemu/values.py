"""PTX types as NumPy dtypes, and the shape that every value has.

The value of a register is one array over all lanes of a slice of the grid, of shape ``(blocks, warps, 32)``, in which
any axis may have length 1: a value that does not depend on the block is stored once for all blocks, a loop counter is
a single number. NumPy's broadcasting does the rest. Values are never changed in place, so that a ``mov`` shares its
source's array.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Shape3: TypeAlias = tuple[int, int, int]

WARP = 32  # lanes of a warp
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# Packed types (f16x2, bf16x2) are stored as their 32 bits; `halves` below opens them.
DTYPES: dict[str, np.dtype[Any]] = {
    "pred": np.dtype(np.bool_),
    **{
        f"{kind}{bits}": np.dtype(f"{'i' if kind == 's' else 'u'}{bits // 8}")
        for kind in "bus"
        for bits in (8, 16, 32, 64)
    },
    "f16": np.dtype(np.float16),
    "bf16": BFLOAT16,
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16x2": np.dtype(np.uint32),
    "bf16x2": np.dtype(np.uint32),
}


def width(ptx_type: str) -> int:
    """Bytes of one element of a PTX type: 1 for ``b8`` (and predicates), 8 for ``f64``."""
    return DTYPES[ptx_type].itemsize


def as_type(value: Array, ptx_type: str) -> Array:
    """The same bits read as another type of the same width; no copy."""
    dtype = DTYPES[ptx_type]
    return value if value.dtype == dtype else value.view(dtype)


def constant(value: float | np.generic, ptx_type: str) -> Array:
    """A number as a value of shape (1, 1, 1); integers wrap to the width, as PTX's untyped constants do."""
    dtype = DTYPES[ptx_type]
    if dtype.kind in "iu" and isinstance(value, int):
        raw = value % (1 << (8 * dtype.itemsize))
        return np.array(raw, dtype=f"u{dtype.itemsize}").view(dtype).reshape(1, 1, 1)
    return np.array(value).astype(dtype).reshape(1, 1, 1)


def halves(value: Array, ptx_type: str) -> Array:
    """A packed ``f16x2``/``bf16x2`` value as (blocks, warps, lanes, 2) of ``f16`` or ``bf16``, low half first."""
    return np.ascontiguousarray(value).view(np.uint32)[..., None].view(DTYPES[ptx_type.removesuffix("x2")])


def pack_halves(pair: Array) -> Array:
    """The inverse of `halves`: (..., 2) of a 16-bit type as (...) of ``u32``."""
    return np.ascontiguousarray(pair).view(np.uint32)[..., 0]


def fitted(value: Array, ptx_type: str) -> Array:
    """A register's value read as `ptx_type`: the same bits, or its low ones where the type is narrower (``st.u8``)."""
    dtype = DTYPES[ptx_type]
    if value.dtype is dtype:
        return value
    if value.dtype.itemsize != dtype.itemsize:
        value = value.view(f"u{value.dtype.itemsize}").astype(f"u{dtype.itemsize}")
    return as_type(value, ptx_type)


def merged(old: Array, new: Array, mask: BoolArray | None) -> Array:
    """`new` where the mask holds and `old` elsewhere; the result has the type of `new`."""
    if mask is None:
        return new
    if old.dtype != new.dtype:
        old = old.view(new.dtype)
    return np.where(mask, new, old)
