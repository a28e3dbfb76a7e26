"""Instructions as Python closures: operands are bound to register slots once; running one is little but a NumPy call.

Why: a lane row is a pure function of arrays. Binding its sources and its destination ahead of time leaves about a
microsecond of Python per instruction, however many lanes run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import difflib
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


def unsupported(opcode: str) -> str:
    """The supported forms nearest to `opcode`, or where the list of all of them is."""
    near = difflib.get_close_matches(opcode, ROWS, n=3, cutoff=0.75)
    listed = "docs/opcodes.md of ptxemu lists every supported form"
    return f"nearest supported: {', '.join(near)}; {listed}" if near else listed


Run: TypeAlias = Callable[["BoolArray | None"], None]
UNWRITTEN = {size: np.full((1, 1, 1), -1).astype(f"i{size}").view(f"u{size}") for size in (1, 2, 4, 8)}

OPERANDS = {  # beginning of an opcode: fewest and most operands; the first that fits counts
    **dict.fromkeys(("st.async", "red.async", "vote", "match", "redux", "mapa"), (3, 3)),
    **dict.fromkeys(("ld", "ldu", "st", "red", "ldmatrix", "stmatrix", "movmatrix", "mov", "getctarank"), (2, 2)),
    **dict.fromkeys(("prefetch", "prefetchu", "activemask", "bar.warp.sync", "bra", "nanosleep", "setmaxnreg"), (1, 1)),
    **dict.fromkeys(("cp.async.wait_group", "cp.async.bulk.wait_group", "cp.async.mbarrier.arrive"), (1, 1)),
    **dict.fromkeys(("fence.proxy.tensormap::generic.acquire", "elect"), (2, 2)),
    **dict.fromkeys(("membar", "fence", "ret", "exit", "trap", "brkpt", "barrier.cluster", "griddepcontrol"), (0, 0)),
    **dict.fromkeys(("cp.async.commit_group", "cp.async.wait_all", "cp.async.bulk.commit_group"), (0, 0)),
    **dict.fromkeys(("wgmma.fence", "wgmma.commit_group"), (0, 0)),
    **dict.fromkeys(("mbarrier.init", "mbarrier.expect_tx", "mbarrier.complete_tx", "mbarrier.pending_count"), (2, 2)),
    **dict.fromkeys(("mbarrier.arrive.expect_tx", "mbarrier.arrive_drop.expect_tx"), (3, 3)),
    **dict.fromkeys(("mbarrier.arrive.noComplete", "mbarrier.arrive_drop.noComplete", "mbarrier.test_wait"), (3, 3)),
    **dict.fromkeys(("mbarrier.arrive", "mbarrier.arrive_drop"), (2, 3)),
    **dict.fromkeys(("mbarrier.try_wait", "bar.red", "barrier.red", "barrier.cta.red"), (3, 4)),
    **dict.fromkeys(("mbarrier.inval",), (1, 1)),
    **dict.fromkeys(("bar", "barrier"), (1, 2)),
    **dict.fromkeys(("mma",), (4, 4)),
    **dict.fromkeys(("cp.async.bulk.prefetch",), (1, 3)),
    **dict.fromkeys(("tensormap.replace",), (2, 3)),
    **dict.fromkeys(("tensormap.cp_fenceproxy",), (3, 3)),
    **dict.fromkeys(("cp.async.bulk", "cp.reduce.async.bulk"), (2, 6)),
    **dict.fromkeys(("cp.async", "atom"), (3, 4)),
    **dict.fromkeys(("shfl",), (5, 5)),
}


def row_of(instruction: Instruction, path: str) -> Row:
    """The table's row of an instruction.

    Raises:
        EmulationError: (unsupported) there is none; the message names the nearest forms.
    """
    row = ROWS.get(instruction.opcode)
    if row is None:
        raise EmulationError(
            "unsupported",
            f"instruction {instruction.opcode} is not supported",
            path=path,
            instruction=instruction,
            hint=unsupported(instruction.opcode),
        )
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

    Raises:
        EmulationError: (unsupported, syntax) an instruction that is not known or not well formed.
    """
    if block.terminator is not None:
        row_of(block.terminator, machine.path)
        _check_guard(machine, block.terminator)
        _check_operands(FullStep(machine, block.terminator))
    body = block.instructions if block.terminator is None else block.instructions[:-1]
    return [
        Operation(
            instruction,
            _guarded(machine, instruction, _watched(machine, instruction, compile_instruction(machine, instruction))),
            row_of(instruction, machine.path).kind == "lane",
            dying,
            tuple((slot, machine.unwritten[slot]) for slot in map(machine.slots.get, dying) if slot is not None),
        )
        for instruction, dying in zip(body, block.dying, strict=False)
    ]


def _watched(machine: FullMachine, instruction: Instruction, run: Run) -> Run:
    """`run`, with what products in flight and observers have to do with it."""
    return machine.warpgroups.watch(instruction, _followed(machine, instruction, run))


def _followed(machine: FullMachine, instruction: Instruction, run: Run) -> Run:
    """`run`, after which the observers that asked for it hear of it."""
    after = [call for each in machine.observers if (call := each.follow(machine, instruction)) is not None]
    if not after:
        return run

    def run_followed(mask: BoolArray | None) -> None:
        try:
            run(mask)
        finally:  # a shuffle that reads an absent lane has run, too, when it says so
            for call in after:
                call(mask)

    return run_followed


def _check_operands(step: FullStep) -> None:
    """Refuses an instruction that is not a lane row's with fewer or more operands than its form has."""
    opcode, found = step.instruction.opcode, len(step.instruction.operands)
    least, most = _operand_counts(opcode)
    if not least <= found <= most:
        step.fail("syntax", f"operands of {opcode}", expected=" to ".join(map(str, {least, most})), found=found)


@cache
def _operand_counts(opcode: str) -> tuple[int, int]:
    """Fewest and most operands of an opcode; any number where its rows look themselves."""
    fits = (counts for name, counts in OPERANDS.items() if opcode == name or opcode.startswith(f"{name}."))
    return next(fits, (0, sys.maxsize))


def compile_instruction(machine: FullMachine, instruction: Instruction) -> Run:
    """An instruction without its guard as a closure that takes the mask of executing lanes."""
    row = row_of(instruction, machine.path)
    if row.kind != "lane":
        step = FullStep(machine, instruction)
        _check_operands(step)

        def run_machine(mask: BoolArray | None) -> None:
            step.mask = mask
            row.function(step)

        return run_machine
    return _lane(machine, instruction, row)


def _lane(machine: FullMachine, instruction: Instruction, row: Row) -> Run:
    step = FullStep(machine, instruction)
    if not instruction.operands:
        step.fail("syntax", f"{row.form} needs a destination")
    sources = instruction.operands[1:]
    if len(sources) != len(row.sources):
        step.fail("syntax", f"{row.form} takes {len(row.sources)} sources", found=f"{len(sources)}")
    fetch = [_fetcher(step, operand, kind) for operand, kind in zip(sources, row.sources, strict=True)]
    if row.reads_carry:
        fetch.append(_fetcher(step, Register(CARRY), "pred"))
    names = _destinations(instruction, row)
    if len(names) == 1 and len(row.results) == 1 and not row.writes_carry and isinstance(names[0], Register):
        return _single(step, row, fetch, names[0])

    def run(mask: BoolArray | None) -> None:
        step.mask = mask
        values = row.function(*[get() for get in fetch])
        for name, value in zip(names, values, strict=True):
            if name is not None:
                step.assign(name, value)

    if len(row.results) == 1 and not row.writes_carry:
        single = row.function

        def run_sink(mask: BoolArray | None) -> None:
            step.mask = mask
            step.assign(instruction.operands[0], single(*[get() for get in fetch]))

        return run_sink
    return run


def _destinations(instruction: Instruction, row: Row) -> list[Operand | None]:
    """Where each result of a lane row goes; None for a second result that the instruction does not name."""
    first = instruction.operands[0]
    names: list[Operand | None] = [first]
    if len(row.results) == 2:
        names = [first.first, first.second] if isinstance(first, Pair) else [first, None]
    if row.writes_carry:
        names.append(Register(CARRY))
    return names


def _single(step: FullStep, row: Row, fetch: Sequence[Callable[[], Array]], name: Register) -> Run:
    """The common case: one result into one register."""
    registers = step.machine.registers
    slot = _slot(step, name)
    function = row.function
    if DTYPES[row.results[0]].itemsize != step.machine.widths[slot]:

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


def _slot(step: FullStep, register: Register) -> int:
    if register.name not in step.machine.slots:
        step.fail("unsupported", f"undeclared register {register}")
    return step.machine.slots[register.name]


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


def _check_guard(machine: FullMachine, instruction: Instruction) -> None:
    guard = instruction.guard
    if guard is not None and machine.unwritten[_slot(FullStep(machine, instruction), guard.register)].dtype != np.bool_:
        FullStep(machine, instruction).fail("syntax", f"the guard {guard.register} is no predicate")


def _guarded(machine: FullMachine, instruction: Instruction, run: Run) -> Run:
    if instruction.guard is None:
        return run
    _check_guard(machine, instruction)

    def run_guarded(mask: BoolArray | None) -> None:
        chosen, some = guard_mask(machine, instruction, mask)
        if some:
            run(chosen)

    return run_guarded
