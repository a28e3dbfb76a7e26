"""Instructions as Python closures: operands are bound to register slots once; running one is little but a NumPy call.

A lane row is a pure function of arrays. Binding its sources and its destination ahead of time leaves about a
microsecond of Python per instruction, however many lanes run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import difflib
from fnmatch import fnmatchcase
from functools import cache
import sys
from typing import TypeAlias

import numpy as np

from ptxemu.errors import EmulationError
from ptxemu.machine.control import Block
from ptxemu.machine.state import FullMachine, FullStep
from ptxemu.syntax.tree import Instruction, Negated, Operand, Pair, Register, Symbol
from ptxemu.table import CARRY, ROWS, Row
from ptxemu.values import DTYPES, Array, BoolArray, fitted, merged

Run: TypeAlias = Callable[["BoolArray | None"], None]
UNWRITTEN = {size: np.full((1, 1, 1), -1).astype(f"i{size}").view(f"u{size}") for size in (1, 2, 4, 8)}

OPERANDS = {  # beginning of an opcode (* for anything): fewest and most operands; the first that fits counts
    name: (least, most)
    for names, least, most in (
        ("st.async red.async vote match redux mapa mbarrier.arrive*.expect_tx mbarrier.arrive*.noComplete", 3, 3),
        ("mbarrier.test_wait tensormap.cp_fenceproxy tensormap*_dim tensormap*_stride", 3, 3),
        ("fence.proxy.tensormap*.acquire ld ldu st red ldmatrix stmatrix movmatrix mov getctarank elect", 2, 2),
        ("tensormap.replace mbarrier.init mbarrier.expect_tx mbarrier.complete_tx mbarrier.pending_count", 2, 2),
        ("membar fence ret exit trap brkpt barrier.cluster griddepcontrol wgmma.fence *.commit_group *.wait_all", 0, 0),
        ("prefetch prefetchu activemask bar.warp.sync bra nanosleep setmaxnreg mbarrier.inval *.wait_group", 1, 1),
        ("cp.async.mbarrier.arrive cp.async.bulk.prefetch.tensor", 1, 1),
        ("bar.arrive barrier*.arrive cp.async.bulk.prefetch cp.*.tensor.*.global.shared::cta", 2, 2),
        ("mbarrier.arrive mbarrier.arrive_drop", 2, 3),
        ("mbarrier.try_wait bar.red barrier*.red cp.async.ca cp.async.cg", 3, 4),
        ("bar barrier createpolicy", 1, 2),
        ("mma cp.*.bulk.shared::cluster cp.*.bulk.shared::cta atom*.cas", 4, 4),
        ("cp.async.bulk cp.reduce.async.bulk atom", 3, 3),
        ("shfl", 5, 5),
    )
    for name in names.split()
}


def row_of(instruction: Instruction, path: str) -> Row:
    """The table's row of an instruction. Fails: (unsupported) there is none; the message names the nearest forms."""
    row = ROWS.get(instruction.opcode)
    if row is None:
        near = difflib.get_close_matches(instruction.opcode, ROWS, n=3, cutoff=0.75)
        hint = f"nearest supported: {', '.join(near)}" if near else "no supported instruction has a similar name"
        what = f"instruction {instruction.opcode} is not supported"
        raise EmulationError("unsupported", what, path=path, instruction=instruction, hint=hint)
    return row


def unwritten(bytes_wide: int, predicate: bool) -> Array:
    """What a register holds before anything wrote it: all bits set, which is NaN, -1 or true."""
    return np.ones((1, 1, 1), dtype=np.bool_) if predicate else UNWRITTEN[bytes_wide]


@dataclass(slots=True)
class Operation:
    """An instruction of a basic block, ready to run.

    Attributes:
        instruction: what it executes.
        run: executes it for the lanes of a mask.
        pure: whether it changes nothing but registers, so that lanes which have exited may run it as well.
        dead: registers that nothing reads after it.
        dying: their slots, each with the value of an unwritten register.
    """

    instruction: Instruction
    run: Run
    pure: bool
    dead: tuple[str, ...]
    dying: tuple[tuple[int, Array], ...]


def compile_block(machine: FullMachine, block: Block) -> list[Operation]:
    """One operation per instruction of a block, without its terminator.

    Fails: (unsupported, syntax) an instruction that is not known or not well formed.
    """
    if block.terminator is not None:
        _check(FullStep(machine, block.terminator))
    body = block.instructions if block.terminator is None else block.instructions[:-1]
    found = []
    for instruction, dying in zip(body, block.dying, strict=False):
        step = FullStep(machine, instruction)
        row = _check(step)
        slots = [machine.slots[name] for name in dying if name in machine.slots]
        blank = tuple([(slot, machine.unwritten[slot]) for slot in slots])
        found.append(Operation(instruction, _compiled(step, row), row.kind == "lane", dying, blank))
    return found


def _check(step: FullStep) -> Row:
    """The row of an instruction whose guard is a predicate and which has as many operands as its form takes."""
    row, guard, instruction = row_of(step.instruction, step.machine.path), step.instruction.guard, step.instruction
    if guard is not None and step.machine.unwritten[_slot(step, guard.register)].dtype != np.bool_:
        step.fail("syntax", f"the guard {guard.register} is no predicate")
    if row.kind != "lane":
        least, most = _operand_counts(instruction.opcode)
        if not least <= len(instruction.operands) <= most:
            expected, found = " to ".join(map(str, {least, most})), len(instruction.operands)
            step.fail("syntax", f"operands of {instruction.opcode}", expected=expected, found=found)
    return row


def _compiled(step: FullStep, row: Row) -> Run:
    """An instruction as a closure: guarded, with what products in flight and observers have to do with it."""
    machine, instruction = step.machine, step.instruction

    def run_machine(mask: BoolArray | None) -> None:
        step.mask = mask
        row.function(step)

    run = _lane(step, row) if row.kind == "lane" else run_machine
    if after := [call for each in machine.observers if (call := each.follow(machine, instruction)) is not None]:
        run = _followed(run, after)
    run = machine.warpgroups.watch(instruction, run)
    if instruction.guard is None:
        return run

    def run_guarded(mask: BoolArray | None) -> None:
        chosen, some = guard_mask(machine, instruction, mask)
        if some:
            run(chosen)

    return run_guarded


def _followed(run: Run, after: Sequence[Run]) -> Run:
    def run_followed(mask: BoolArray | None) -> None:
        try:
            run(mask)
        finally:  # a shuffle that reads an absent lane has run, too, when it says so
            for call in after:
                call(mask)

    return run_followed


def _slot(step: FullStep, register: Register) -> int:
    if register.name not in step.machine.slots:
        step.fail("unsupported", f"undeclared register {register}")
    return step.machine.slots[register.name]


@cache
def _operand_counts(opcode: str) -> tuple[int, int]:
    """Fewest and most operands of an opcode; any number where its rows look themselves."""
    more = sum(word in opcode for word in (".multicast::cluster", ".L2::cache_hint"))  # a mask, a policy
    fits = (counts for name, counts in OPERANDS.items() if fnmatchcase(f"{opcode}.", f"{name}.*"))
    least, most = next(fits, (0, sys.maxsize))
    return least + more, most + more


def _lane(step: FullStep, row: Row) -> Run:
    if not step.instruction.operands:
        step.fail("syntax", f"{row.form} needs a destination")
    first, *sources = step.instruction.operands
    if len(sources) != len(row.sources):
        step.fail("syntax", f"{row.form} takes {len(row.sources)} sources", found=f"{len(sources)}")
    fetch = [_fetcher(step, operand, kind) for operand, kind in zip(sources, row.sources, strict=True)]
    if row.reads_carry:
        fetch.append(_fetcher(step, Register(CARRY), "pred"))
    if len(row.results) == 1 and not row.writes_carry:
        return _single(step, row, fetch, first)
    names: list[Operand | None] = [first]
    if len(row.results) == 2:  # the instruction may leave out the second
        names = [first.first, first.second] if isinstance(first, Pair) else [first, None]
    if row.writes_carry:
        names.append(Register(CARRY))

    def run(mask: BoolArray | None) -> None:
        step.mask = mask
        values = row.function(*[get() for get in fetch])
        for name, value in zip(names, values, strict=True):
            if name is not None:
                step.assign(name, value)

    return run


def _single(step: FullStep, row: Row, fetch: Sequence[Callable[[], Array]], name: Operand) -> Run:
    """The common case: one result."""
    registers, function = step.machine.registers, row.function
    slot = _slot(step, name) if isinstance(name, Register) else -1
    if slot < 0 or DTYPES[row.results[0]].itemsize != step.machine.widths[slot]:

        def run_narrow(mask: BoolArray | None) -> None:
            step.mask = mask
            step.assign(name, function(*[get() for get in fetch]))

        return run_narrow
    if len(fetch) == 2:
        first, second = fetch

        def run_two(mask: BoolArray | None) -> None:
            value = function(first(), second())
            registers[slot] = value if mask is None else merged(registers[slot], value, mask)

        return run_two

    def run(mask: BoolArray | None) -> None:
        value = function(*[get() for get in fetch])
        registers[slot] = value if mask is None else merged(registers[slot], value, mask)

    return run


def _fetcher(step: FullStep, operand: Operand, ptx_type: str) -> Callable[[], Array]:
    """A function that returns an operand as an array of the wanted type."""
    if not isinstance(operand, Register):
        if isinstance(operand, Symbol) and operand.name == "_":
            step.fail("syntax", "the sink _ is read")
        if isinstance(operand, Negated):
            return lambda: step.value(operand, ptx_type)
        known = step.value(operand, ptx_type)
        return lambda: known
    registers = step.machine.registers
    slot = _slot(step, operand)
    dtype = DTYPES[ptx_type]

    def get() -> Array:
        value = registers[slot]
        return value if value.dtype is dtype else fitted(value, ptx_type)

    return get


def guard_mask(machine: FullMachine, instruction: Instruction, mask: BoolArray | None) -> tuple[BoolArray | None, bool]:
    """Lanes of `mask` whose guard holds, and whether there are any (where that is cheap to know)."""
    guard = instruction.guard
    if guard is None:
        return mask, True
    value = machine.registers[machine.slots[guard.register.name]]
    holds: BoolArray = ~value if guard.negated else value
    if holds.size == 1:
        return mask, bool(holds.item())
    if mask is None:
        return (None, True) if holds.all() else (holds, bool(holds.any()))
    chosen = mask & holds
    return chosen, bool(chosen.any())
