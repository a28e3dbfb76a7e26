"""The values of a run as a graph: each executed instruction, what it read, and what it wrote.

PTX names registers, not values. In a loop a register holds another value each round, a ``mov`` gives a value a second
name, an accumulator is overwritten in place. To find what a number was made of (the maximum that an exponential
subtracted, the accumulators behind a product) one follows values: here every one has a node of its own, and ``mov``
from register to register makes none. All lanes of the slice are in one node, as they are in one register.

Use: a subclass, or the launch's observer itself; `forget` cuts what is no longer needed, or a run is kept whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ptxemu.machine.control import uses_and_defines
from ptxemu.machine.core import Machine
from ptxemu.machine.observer import Observer
from ptxemu.syntax.tree import Instruction, Register
from ptxemu.values import Array, BoolArray, as_type, halves


@dataclass(eq=False)
class Value:
    """What one register held after one instruction.

    Attributes:
        array: over the lanes, (blocks|1, warps|1, 32|1), in the type that the instruction wrote.
        event: what wrote it; None: it was there before anything was followed.
    """

    array: Array
    event: Event | None = None

    def as_type(self, ptx_type: str) -> Array:
        """The same bits read as another type of the same width; no copy."""
        return as_type(self.array, ptx_type)

    def halves(self, ptx_type: str) -> Array:
        """A packed ``f16x2`` or ``bf16x2`` as (blocks, warps, lanes, 2) of ``f16`` or ``bf16``, low half first."""
        return halves(self.array, ptx_type)


@dataclass(eq=False)
class Event:
    """One execution of an instruction.

    Attributes:
        number: its place in the order of execution.
        instruction: what ran.
        sources: the registers read, in the order of the operands; of a guarded one also the guard and what it kept.
        results: the registers written, in the order of the operands.
        whole: whether all lanes of the slice ran it.
    """

    number: int
    instruction: Instruction
    sources: tuple[Value, ...]
    results: tuple[Value, ...] = ()
    whole: bool = True

    @property
    def word(self) -> str:
        """The opcode's part before the first dot."""
        return self.instruction.opcode.partition(".")[0]


@dataclass
class Dataflow(Observer):
    """Follows every instruction that reads or writes registers.

    Attributes:
        events: what ran since the slice began, or since `forget`, in order.
    """

    events: list[Event] = field(default_factory=list)
    _values: dict[str, Value] = field(default_factory=dict, repr=False)
    _count: int = 0

    def start(self, machine: Machine) -> None:  # noqa: ARG002 - the observer's signature
        """A slice begins with nothing known."""
        self.events, self._values, self._count = [], {}, 0

    def forget(self, before: Event) -> None:
        """Drops the events before one, and what they read: values that later ones read stay."""
        kept = next((place for place, event in enumerate(self.events) if event is before), len(self.events))
        for event in self.events[:kept]:
            event.sources = ()
        del self.events[:kept]

    def happened(self, event: Event) -> None:
        """An event has been added."""

    def follow(self, machine: Machine, instruction: Instruction) -> Callable[[BoolArray | None], None] | None:
        """Every instruction's registers, and a call that notes what they hold."""
        read, _ = uses_and_defines(instruction)
        _, written = uses_and_defines(replace(instruction, guard=None))
        slots = [(name, machine.slots[name]) for name in written if name in machine.slots]

        def value_of(name: str) -> Value:
            known = self._values.get(name)
            if known is None:  # nobody wrote it: as it is
                known = self._values[name] = Value(machine.registers[machine.slots[name]])
            return known

        sources = [name for name in read if name in machine.slots]
        for name in sources:  # before the first run, which may overwrite what nobody has written yet
            value_of(name)

        def noted(mask: BoolArray | None) -> None:
            event = Event(self._count, instruction, tuple(map(value_of, sources)), whole=mask is None)
            event.results = tuple(Value(machine.registers[slot], event) for _, slot in slots)
            self._values.update({name: value for (name, _), value in zip(slots, event.results, strict=True)})
            self._count += 1
            self.events.append(event)
            self.happened(event)

        def copied(mask: BoolArray | None) -> None:
            if mask is None:
                self._values[slots[0][0]] = value_of(read[0])
            else:
                noted(mask)  # of some lanes: the others keep what they have, so that this is another value

        if not _copies(instruction):
            return noted
        return copied if sources else None


def _copies(instruction: Instruction) -> bool:
    """Whether it only gives a value another name."""
    registers = all(isinstance(operand, Register) for operand in instruction.operands)
    return instruction.opcode.startswith("mov.") and registers and instruction.guard is None
