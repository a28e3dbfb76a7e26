"""Cases of `ptxemu.isa.bits`: fields of words one by one, in Python's integers."""

from __future__ import annotations

from tests.cases.harness import Case, triples
from tests.cases.reference_int import case

CASES: list[Case] = []


def _fields(value: int, bits: int) -> list[int]:
    return [value >> start & ((1 << bits) - 1) for start in range(0, 32, bits)]


def _differences(a: int, b: int, bits: int) -> list[int]:
    return [abs(x - y) for x, y in zip(_fields(a, bits), _fields(b, bits), strict=True)]


def _absolute_differences(count: int) -> None:
    bits = 32 // count
    a, b, c = triples("u32", "u32", "u32", limit=640)
    inputs = {"a": ("u32", a), "b": ("u32", b), "c": ("u32", c)}
    form = f"vabsdiff{count}.u32.u32.u32"

    def joined(a: int, b: int, _: int) -> int:
        return sum(each << bits * place for place, each in enumerate(_differences(a, b, bits)))

    CASES.append(case(form, inputs, "u32", joined))
    CASES.append(case(f"{form}.add", inputs, "u32", lambda a, b, c: c + sum(_differences(a, b, bits))))


_absolute_differences(2)
_absolute_differences(4)
