"""SIMD video instructions: absolute differences of the two or four fields of a word.

Why only these: of the video instructions they are the ones that nvcc still writes (``__vabsdiffu4``, ``__vsadu4``); the
other ``__v...`` intrinsics become ordinary instructions. Source: PTX ISA 9.0, 9.7.18 (SIMD video). Arrays are uint32,
in any shapes that broadcast; nothing raises.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from flashladder.emulator.table import lane
from flashladder.emulator.values import Array


def field_differences(bits: int, a: Array, b: Array) -> list[Array]:
    """``|a - b|`` of each unsigned field of `bits` bits, lowest first."""
    mask = np.uint32((1 << bits) - 1)
    fields = [((a >> start) & mask, (b >> start) & mask) for start in range(0, 32, bits)]
    return [np.maximum(left, right) - np.minimum(left, right) for left, right in fields]


def differences(bits: int, a: Array, b: Array, c: Array) -> Array:
    """The differences in their fields; `c` would fill fields that a mask leaves out: there is no mask."""
    word: Array = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.uint32)
    for place, difference in enumerate(field_differences(bits, a, b)):
        word = word | (difference << (bits * place))
    return word


def differences_sum(bits: int, a: Array, b: Array, c: Array) -> Array:
    """``c`` plus the sum of the differences, wrapping."""
    total = c
    for difference in field_differences(bits, a, b):
        total = total + difference
    return total


for _fields in (2, 4):
    _form = f"vabsdiff{_fields}.u32.u32.u32"
    lane(_form, "u32", "u32 u32 u32", partial(differences, 32 // _fields), f"|a - b| of {_fields} fields")
    _summary = f"c + |a - b| of {_fields} fields"
    lane(f"{_form}.add", "u32", "u32 u32 u32", partial(differences_sum, 32 // _fields), _summary)
