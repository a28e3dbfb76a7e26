"""Imports every module that adds rows to the table of instructions."""

from flashladder.emulator import (
    approximate,
    atomics,
    bits,
    calls,
    convert,
    copies,
    engine,
    floating,
    halfs,
    integer,
    loads,
    logic,
    matrix,
    moves,
    simd,
    warp,
)

GROUPS = (
    engine,
    calls,
    moves,
    integer,
    bits,
    simd,
    logic,
    floating,
    approximate,
    halfs,
    convert,
    loads,
    atomics,
    copies,
    warp,
    matrix,
)
