"""Imports every module that adds rows to the table of instructions."""

from flashladder.emulator.isa import (
    approximate,
    atomics,
    bits,
    calls,
    convert,
    copies,
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
from flashladder.emulator.run import engine

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
