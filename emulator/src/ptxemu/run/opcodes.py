"""Imports every module that adds rows to the table of instructions."""

from __future__ import annotations

from ptxemu.isa import (
    approximate,
    atomics,
    bits,
    calls,
    clusters,
    convert,
    copies,
    floating,
    halfs,
    integer,
    loads,
    logic,
    matrix,
    mbarrier,
    moves,
    tensor_copies,
    warp,
    wgmma,
)
from ptxemu.run import engine

GROUPS = (
    *(engine, calls, moves, integer, bits, logic, floating, approximate, halfs, convert),
    *(loads, atomics, copies, tensor_copies, warp, matrix, wgmma, mbarrier, clusters),
)
