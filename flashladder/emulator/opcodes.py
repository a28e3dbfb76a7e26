"""Imports every module that adds rows to the table of instructions."""

from flashladder.emulator import (
    approximate,
    atomics,
    bits,
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
    warp,
)

GROUPS = (
    engine,
    moves,
    integer,
    bits,
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
