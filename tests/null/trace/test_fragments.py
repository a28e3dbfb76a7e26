"""Registers to rows and columns and back, with a number in every element that says where it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashladder.trace.recorder import Geometry, matrix, statistics

GEOMETRY = Geometry(ctas=2, warps=3, rows=96, keys=24, d_head=16)


def label(cta: Any, warp: Any, lane: Any, m: int, n: int, element: int) -> Any:
    """A number that only this element has; an array of them for arrays."""
    return ((((cta * 4 + warp) * 32 + lane) * 2 + m) * 4 + n) * 4 + element


def test_every_element_of_an_accumulator_is_where_its_place_says() -> None:
    cta, warp, lane = np.ogrid[:2, :3, :32]
    registers = [
        [[np.asarray(label(cta, warp, lane, m, n, element)) for element in range(4)] for n in range(3)]
        for m in range(2)
    ]  # fmt: skip
    found = matrix(registers, GEOMETRY)
    assert found.shape == (2, 96, 24)
    for row, column in np.ndindex(96, 24):
        place = GEOMETRY.place(row, column)
        assert found[1, row, column] == label(1, place.warp, place.lane, place.m, place.n, place.element)


def test_every_copy_of_a_row_statistic_is_where_its_place_says() -> None:
    cta, warp, lane = np.ogrid[:2, :3, :32]
    registers = [[np.asarray(label(cta, warp, lane, m, 0, 2 * half)) for half in range(2)] for m in range(2)]
    found = statistics(registers, GEOMETRY)
    assert found.shape == (2, 96, 4)
    for row, copy in np.ndindex(96, 4):
        place = GEOMETRY.place(row, copy, statistic=True)
        assert found[0, row, copy] == label(0, place.warp, place.lane, place.m, 0, place.element)
