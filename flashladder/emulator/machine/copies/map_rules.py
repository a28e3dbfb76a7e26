"""What a tensor map refuses, and where its tensor may lie: small rules that `tensor_map` and a chip's encoder share."""

from __future__ import annotations

from typing import Any, NoReturn

from flashladder.emulator.errors import EmulationError

UNIT = 16  # bytes: alignment of addresses and strides, and of a box's rows


def check_address(address: int) -> None:
    """Refuses a tensor whose first element is not where the hardware wants it."""
    if address % UNIT:
        refuse("address of a tensor map's tensor", f"a multiple of {UNIT} bytes", hex(address))


def whole_numbers(numbers: Any, what: str) -> tuple[int, ...]:
    """Numbers along the axes; one with a fraction is a mistake in somebody's arithmetic."""
    try:
        given = tuple(numbers)
        whole = tuple(int(each) for each in given)
    except (TypeError, ValueError, OverflowError):
        given, whole = (None,), ()
    if whole != given:
        refuse(f"{what} of a tensor map", "whole numbers by axis, such as (64, 16) or (256,)", repr(numbers))
    return whole


def refuse(what: str, expected: object, found: object) -> NoReturn:
    """Fails with one line about a map."""
    raise EmulationError("arguments", what, path="TensorMap", expected=expected, found=found)
