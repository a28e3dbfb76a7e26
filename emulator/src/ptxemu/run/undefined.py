"""Values that a shuffle leaves undefined: followed through registers, reported where they begin to matter.

``__shfl_down_sync(0xff, v, 4)`` is a common way to sum over eight lanes. Lane 4 reads lane 8, which takes no part,
gets some value, adds it and never uses the sum. Hardware runs that and so does the emulator. It is an error where such
a value would decide something: stored (any memory but the thread's own local one), used as an address, as a membermask
or a barrier's operand, or by the guard of a branch or of an instruction that does more than write registers.

Marks are kept for registers that hold an undefined value in some lane: 0, or the number of the shuffle that made it.
Rules, for each lane that executes:

- a result is marked if any source is, whatever the instruction computes, with these exceptions: ``selp`` takes the
  mark of what it picks if its predicate is clean; ``and`` with a clean 0 and ``or`` with a clean -1 (false, true) are
  clean;
- a marked guard marks what its instruction may write, whether it does or not;
- ``shfl`` moves marks with the values; ``vote``, ``match`` and ``redux`` mark all lanes that take part if one brings a
  mark, ``mma`` and ``movmatrix`` the whole warp;
- no marked value may go into a ``wgmma``, which happens later;
- local memory has marks by bytes (arguments of calls live there too), other memory never holds any.

Nothing of this runs before a shuffle has read an absent lane (`Undefined.born` interrupts the engine's fast loop), nor
after the last mark is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ptxemu.isa.loads import form_of
from ptxemu.isa.warp import meet, source_lanes
from ptxemu.machine.compiled import Operation, guard_mask
from ptxemu.machine.control import registers_in, uses_and_defines, word
from ptxemu.machine.core import Step
from ptxemu.machine.state import FullMachine, FullStep
from ptxemu.syntax.tree import Address, Instruction, Operand
from ptxemu.values import WARP, Array, BoolArray

STORES = ("st", "stmatrix", "atom", "red")
PURE = ("mov", "activemask", "prefetch", "prefetchu", "membar", "fence", "nanosleep")  # registers at most
DOMINANT = {"and": 0, "or": -1}  # with this clean operand the result does not depend on the other one
HINT = "name the lane in the membermask, or use the value only where its lane takes part"


def _guards(instruction: Instruction) -> list[str]:
    return [instruction.guard.register.name] if instruction.guard else []


class Interruption(Exception):
    """The first undefined value of a stretch: from the next instruction on, marks have to be followed.

    Attributes:
        begin: to be called once the shuffle has run: gives its result the first marks.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        super().__init__()
        self.begin = begin


class Undefined:
    """The marks of one machine.

    Attributes:
        tracking: whether some register or local byte may hold a mark, so that instructions have to go by `follow`.
    """

    def __init__(self, machine: FullMachine) -> None:
        self.machine = machine
        self.tracking = False
        self._registers: dict[str, Array] = {}  # name -> marks, int32 of the full shape
        self._local: Array | None = None  # marks of local memory, (*full shape, bytes)
        self._sites: list[Instruction] = []  # mark n is site n - 1
        self._born: Array | None = None  # marks that the shuffle now running makes
        self._steps: dict[int, tuple[FullStep, tuple[str, ...], tuple[str, ...]]] = {}

    def born(self, step: Step, lanes: BoolArray) -> None:
        """A shuffle gave these lanes an undefined value.

        Raises:
            Interruption: nobody follows marks yet.
        """
        if step.instruction not in self._sites:
            self._sites.append(step.instruction)
        mark = self._sites.index(step.instruction) + 1
        self._born = np.where(step.lanes() & lanes, np.int32(mark), np.int32(0))
        if not self.tracking:
            self.tracking = True
            raise Interruption(partial(self._give_born, step.instruction))

    def _give_born(self, instruction: Instruction) -> None:
        if self._born is not None:
            self._give(instruction, self._born, self._born > 0)
            self._born = None

    def forget(self, names: Sequence[str]) -> None:
        """Registers that nothing reads any more lose their marks."""
        for name in names:
            self._registers.pop(name, None)

    def settle(self) -> None:
        """After a basic block: forgets registers without a mark, and stops when nothing is marked."""
        live = self.machine.live
        self._registers = {name: marks for name, marks in self._registers.items() if (marks[live] > 0).any()}
        if self._local is not None and not self._local[live].any():
            self._local = None
        self.tracking = bool(self._registers) or self._local is not None

    def follow(self, operation: Operation, lanes: BoolArray | None, mask: BoolArray | None) -> None:
        """Runs an instruction for `lanes` and moves the marks of those of `mask`, which execute it.

        Fails: kind ``undefined``: a marked value matters here; whatever the instruction raises.
        """
        instruction = operation.instruction
        step, read, _ = self._bound(instruction)
        step.mask = mask
        guard = self._joined(_guards(instruction)) * step.lanes()
        sources = self._joined(read)
        if not operation.pure and word(instruction.opcode) not in PURE:
            self._refuse(step, guard, "decides whether an instruction runs")
        step.mask, some = guard_mask(self.machine, instruction, mask)
        executing = step.lanes() if some else np.zeros(self.machine.shape, np.bool_)
        if operation.pure or word(instruction.opcode) in PURE:
            marks = self._computed(step, sources)
            operation.run(lanes if operation.pure else mask)
            self._give(instruction, np.maximum(np.where(executing, marks, 0), guard), executing | (guard > 0))
        elif some:
            self._machine_row(operation, step, mask)

    def leave(self, terminator: Instruction | None, mask: BoolArray | None) -> None:
        """Before the terminator of a block. Fails: kind ``undefined``: it depends on a marked value."""
        if terminator is None:
            return
        step, read, _ = self._bound(terminator)
        step.mask = mask
        what = "decides a branch" if word(terminator.opcode) == "bra" else "decides what a control instruction does"
        self._refuse(step, np.maximum(self._joined(_guards(terminator)), self._joined(read)), what)
        step.mask, some = guard_mask(self.machine, terminator, mask)
        if some:
            self._give(terminator, np.zeros(self.machine.shape, np.int32), step.lanes())  # the result of bar.red

    def _machine_row(self, operation: Operation, step: FullStep, mask: BoolArray | None) -> None:
        """Memory and warp-wide instructions; `step` has the mask of the lanes whose guard holds."""
        instruction, first = step.instruction, word(step.instruction.opcode)
        space = form_of(instruction.opcode).space if first in ("ld", "st") else ""
        self._refuse_uses(step, first, space)
        where = step.address(0 if first == "st" else 1) if space == "local" else None
        marks = self._moved(step, first)
        operation.run(mask)
        if where is not None:
            marks = self._through_local(step, first, where, marks)
        if self._born is not None:
            marks, self._born = np.where(marks > 0, marks, self._born), None
        self._give(instruction, marks, step.lanes())

    def _refuse_uses(self, step: FullStep, first: str, space: str) -> None:
        """Fails where a marked value is an address, goes to memory, or says who meets."""
        for index, operand in enumerate(step.instruction.operands):
            if isinstance(operand, Address):
                self._refuse(step, self._joined(registers_in(operand)), "is an address")
            elif first in STORES and space != "local" and index > (0 if first == "atom" else -1):
                self._refuse(step, self._joined(registers_in(operand)), "is stored")
        operands = step.instruction.operands
        if first == "shfl" or first in ("vote", "match", "redux") or first == "bar":
            self._refuse(step, self._joined(registers_in(operands[-1])), "is a membermask")
        elif step.instruction.opcode.startswith("wgmma.mma_async"):
            self._refuse(step, self._joined([n for o in operands[1:] for n in registers_in(o)]), "goes into a wgmma")
        elif first == "cp":
            self._refuse(step, self._joined([n for o in operands[2:] for n in registers_in(o)]), "limits a copy")

    def _moved(self, step: FullStep, first: str) -> Array:
        """The marks of a warp-wide instruction's results, of a load (none) or of what a store stores."""
        operands = step.instruction.operands
        if first == "shfl":
            lane, _ = source_lanes(step.instruction.opcode.split(".")[2], step.source(2, "b32"), step.source(3, "b32"))
            moved: Array = np.take_along_axis(self._marks(operands[1]), self.machine.full(lane), -1)
            return np.maximum(moved, np.maximum(self._marks(operands[2]), self._marks(operands[3])))
        if first in ("vote", "match", "redux"):
            marks, together = self._marks(operands[1]), meet(step, 2)
            found: Array = np.zeros_like(marks)
            for i in range(WARP):
                found = np.maximum(found, np.where((together >> np.uint32(i)) & 1, marks[..., i : i + 1], 0))
            return found
        if first in ("mma", "movmatrix"):
            joined = self._joined([name for operand in operands[1:] for name in registers_in(operand)])
            return self.machine.full(joined.max(axis=-1, keepdims=True))
        return self._marks(operands[1]) if first == "st" else np.zeros(self.machine.shape, np.int32)

    def _through_local(self, step: FullStep, first: str, where: Array, stored: Array) -> Array:
        """Stores marks beside local memory's bytes, or returns those of the bytes that were read."""
        if self._local is None:
            if not (stored * step.lanes()).any():
                return stored
            self._local = np.zeros((*self.machine.shape, self.machine.local.nbytes), np.int32)
        at = np.argwhere(step.lanes())
        nbytes = form_of(step.instruction.opcode).width
        places = self.machine.full(where.astype(np.int64))[tuple(at.T)][:, None] + np.arange(nbytes)
        rows = tuple(axis[:, None] for axis in at.T)
        if first == "st":
            self._local[(*rows, places)] = stored[tuple(at.T)][:, None]
            return stored
        found = np.zeros(self.machine.shape, np.int32)
        found[tuple(at.T)] = self._local[(*rows, places)].max(axis=1)
        return found

    def _computed(self, step: FullStep, sources: Array) -> Array:
        """The marks of a lane-wise result; `sources` joins those of all operands."""
        parts = step.instruction.opcode.split(".")
        operands = step.instruction.operands
        if parts[0] == "selp" and len(operands) == 4:
            chosen = self.machine.full(step.source(3, "pred"))
            picked = np.where(chosen, self._marks(operands[1]), self._marks(operands[2]))
            return np.maximum(picked, self._marks(operands[3]))
        if parts[0] in DOMINANT and len(parts) == 2:
            for operand in operands[1:]:
                wanted = np.array(DOMINANT[parts[0]]).astype(step.value(operand, parts[1]).dtype)
                decides = (step.value(operand, parts[1]) == wanted) & (self._marks(operand) == 0)
                sources = np.where(decides, 0, sources)
        return sources

    def _give(self, instruction: Instruction, marks: Array, lanes: BoolArray) -> None:
        """Sets the marks of an instruction's results in these lanes."""
        for name in self._bound(instruction)[2]:
            old = self._registers.get(name)
            if old is None and not marks.any():
                continue
            new = np.where(lanes, marks, 0 if old is None else old).astype(np.int32)
            if new.any():
                self._registers[name] = new
            else:
                self._registers.pop(name, None)

    def _refuse(self, step: FullStep, marks: Array, what: str) -> None:
        """Fails if a lane of the step's mask has a mark."""
        marked = step.lanes() & (marks > 0)
        if not marked.any():
            return
        site = self._sites[int(marks[marked][0]) - 1]
        found = f"what {site.place} read from a lane that does not take part"
        step.fail("undefined", f"an undefined value {what}", lanes=marked, found=found, hint=HINT)

    def _bound(self, instruction: Instruction) -> tuple[FullStep, tuple[str, ...], tuple[str, ...]]:
        """The instruction on this machine, the registers that it reads (its guard aside) and those that it writes."""
        known = self._steps.get(id(instruction))
        if known is None:
            read, written = uses_and_defines(replace(instruction, guard=None))
            known = self._steps[id(instruction)] = (FullStep(self.machine, instruction), read, written)
        return known

    def _marks(self, operand: Operand) -> Array:
        return self._joined(registers_in(operand))

    def _joined(self, names: Sequence[str]) -> Array:
        """The marks of several registers together, of the full shape."""
        joined = np.zeros(self.machine.shape, np.int32)
        for name in names:
            if name in self._registers:
                joined = np.maximum(joined, self._registers[name])
        return joined
