"""The instructions: modules by kind, which add a row to `ptxemu.table` for each form when they are imported."""

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

GROUPS = (
    *(calls, moves, integer, bits, logic, floating, approximate, halfs, convert),
    *(loads, atomics, copies, tensor_copies, warp, matrix, wgmma, mbarrier, clusters),
)
