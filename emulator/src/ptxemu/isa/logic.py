"""Comparison and selection: setp, set, selp, slct.

A comparison is an operator, a type, perhaps a Boolean operation with a third predicate and perhaps a flush of
denormals; the table lists the product. `setp` returns both results of ``p|q``: the engine drops the second where the
instruction names one destination. Functions take and return arrays of the row's dtypes, in a shape that broadcasts to
the inputs'; none raises. Source: PTX ISA 9.0, 9.7.6 (comparison and selection) and 9.7.7 (half precision, without
packed pairs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from ptxemu.table import lane
from ptxemu.values import DTYPES, Array, BoolArray

Compare = Callable[[Array, Array], BoolArray]

# Both operands are numbers; a NaN makes each of these false.
ORDERED: dict[str, Compare] = {
    "eq": np.equal,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
# A NaN makes each of these true, `num` apart: the complement of the opposite ordered comparison.
UNORDERED: dict[str, Compare] = {
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: (a == a) & (b == b),  # noqa: PLR0124 - only NaN differs from itself
    "nan": lambda a, b: (a != a) | (b != b),  # noqa: PLR0124 - only NaN differs from itself
}
INTEGER: dict[str, Compare] = {**ORDERED, "ne": np.not_equal}
UNSIGNED: dict[str, Compare] = {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}
COMBINE: dict[str, Compare] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
SMALLEST_NORMAL = {np.dtype(np.float16): 2.0**-14, np.dtype(np.float32): 2.0**-126}


def comparisons(ptx_type: str) -> dict[str, Compare]:
    """The comparison operators that exist for a scalar type: bits know equality only, floats the unordered ones too."""
    if ptx_type.startswith("b") and ptx_type != "bf16":
        return {name: INTEGER[name] for name in ("eq", "ne")}
    if "f" in ptx_type:
        return {**ORDERED, **UNORDERED}
    return {**INTEGER, **UNSIGNED} if ptx_type[0] == "u" else INTEGER


def flushed(value: Array) -> Array:
    """Denormals of ``f32`` or ``f16`` as zeros of their sign (``.ftz``)."""
    return np.where(np.abs(value) < SMALLEST_NORMAL[value.dtype], value * value.dtype.type(0), value)


def _predicate(
    compare: Compare, combine: Compare | None, both: bool, a: Array, b: Array, *c: BoolArray
) -> BoolArray | tuple[BoolArray, BoolArray]:
    """`setp`: the comparison and, for two destinations, its complement, each combined with a third predicate."""
    result = compare(a, b)
    if combine is None:
        return result, ~result
    return (combine(result, c[0]), combine(~result, c[0])) if both else combine(result, c[0])


def _flushing(compare: Compare, a: Array, b: Array) -> BoolArray:
    return compare(flushed(a), flushed(b))


def _numbers(ptx_type: str, result: BoolArray) -> Array:
    """`set`: all ones (1.0 in a float type) where true, else 0."""
    dtype = DTYPES[ptx_type]
    return result.astype(dtype) if dtype.kind == "f" else np.negative(result.astype(dtype))


def select(a: Array, b: Array, condition: BoolArray) -> Array:
    """`selp`: a where the predicate holds, else b."""
    if condition.size == 1:
        return a if condition.item() else b
    return np.where(condition, a, b)


def _select_sign(flush: bool, a: Array, b: Array, c: Array) -> Array:
    """`slct`: a where c >= 0, else b; NaN selects b, -0.0 and (flushed) negative denormals select a."""
    return select(a, b, np.asarray((flushed(c) if flush else c) >= 0))


INTEGERS = tuple(f"{kind}{bits}" for kind in "bus" for bits in (16, 32, 64))


def _operators(types: tuple[str, ...]) -> Iterator[tuple[str, str, str, Compare]]:
    """(type, operator, ``.ftz`` or nothing, function) of every comparison of these types."""
    for ptx_type in types:
        for name, compare in comparisons(ptx_type).items():
            yield ptx_type, name, "", compare
            if ptx_type in {"f16", "f32"}:
                yield ptx_type, name, ".ftz", partial(_flushing, compare)


def _predicates() -> None:
    """`setp`, with and without a third predicate; of 16-bit floats it has no second destination."""
    for t, name, flush, compare in _operators((*INTEGERS, "f32", "f64", "f16", "bf16")):
        what = f"a {name} b" + (", denormals read as 0" if flush else "")
        both = t not in {"f16", "bf16"}
        results = "pred pred" if both else "pred"
        plain = partial(_predicate, compare, None, both) if both else compare
        lane(f"setp.{name}{flush}.{t}", results, f"{t} {t}", plain, f"p = {what}" + ("; q = not p" if both else ""))
        for join, combine in COMBINE.items():
            summary = f"p = ({what}) {join} c" + (f"; q = (not {what}) {join} c" if both else "")
            function = partial(_predicate, compare, combine, both)
            lane(f"setp.{name}.{join}{flush}.{t}", results, f"{t} {t} pred", function, summary)


def _values() -> None:
    """`set`: the result as a number."""
    for t, name, flush, compare in _operators((*INTEGERS, "f32", "f64")):
        for result in ("u32", "s32", "f32"):
            true = "1.0" if result == "f32" else "all ones"

            def function(a: Array, b: Array, compare: Compare = compare, result: str = result) -> Array:
                return _numbers(result, compare(a, b))

            lane(f"set.{name}{flush}.{result}.{t}", result, f"{t} {t}", function, f"{true} if a {name} b, else 0")


def _selections() -> None:
    """`selp` and `slct`."""
    for t in (*INTEGERS, "f32", "f64"):
        lane(f"selp.{t}", t, f"{t} {t} pred", select, "a if c else b")
        lane(f"slct.{t}.s32", t, f"{t} {t} s32", partial(_select_sign, False), "a if c >= 0 else b")
        lane(f"slct.{t}.f32", t, f"{t} {t} f32", partial(_select_sign, False), "a if c >= 0 else b; NaN: b")
        summary = "a if c >= 0 else b, denormals read as 0; NaN: b"
        lane(f"slct.ftz.{t}.f32", t, f"{t} {t} f32", partial(_select_sign, True), summary)


_predicates()
_values()
_selections()
