"""The race detector: an observer that reports missing barriers and waits with both instructions.

Why: the emulator runs threads in one particular order, so that a missing barrier may well give right numbers. This
observer judges by what the program guarantees instead (`clocks`): shared memory within a block (`races`), global memory
between blocks (`interblock`). It watches and changes nothing; run it apart from counters if their speed matters.

Blocks that have done the same so far (same addresses, masks and barriers) share one bookkeeping; it is divided where
they part ways. Most kernels use shared memory alike in all blocks, and then a grid costs as much as a block.

    hazards = Hazards()
    kernel.launch(grid, block, arguments, observers=[hazards])
    print(hazards.render())
"""

from __future__ import annotations

import copy as copying
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
import weakref

import numpy as np

from flashladder.emulator.machine.observer import Access, Observer
from flashladder.emulator.observe.global_races import GlobalRaces
from flashladder.emulator.observe.shared_races import Finding, SharedRaces
from flashladder.emulator.syntax.tree import Instruction
from flashladder.emulator.values import Array, BoolArray, Shape3

if TYPE_CHECKING:
    from flashladder.emulator.machine.in_flight import Copy
    from flashladder.emulator.machine.memory import GlobalMemory
    from flashladder.emulator.machine.state import Machine, Step

KINDS = {
    "RAW": "read after write by another thread",
    "WAR": "write after read by another thread",
    "WAW": "write after write by another thread",
    "in-flight read": "read of bytes that a cp.async still writes: a wait is missing",
    "in-flight write": "write to bytes that a cp.async still writes: a wait is missing",
    "same-instruction write": "two lanes of one instruction write the same byte",
}
STRONG = frozenset({"volatile", "relaxed", "acquire", "release"})


@dataclass(frozen=True)
class Hazard:
    """Two instructions that touch the same byte, in the order in which the emulator ran them.

    Attributes:
        kind: a key of `KINDS`.
        space: ``shared`` or ``global``.
        first, second: the instructions, with their PTX lines and, where known, CUDA source lines.
        address: the first byte found, in bytes of its state space.
        block: (x, y, z) of the second access; `first_block` of the first one, the same in shared memory.
        first_thread, second_thread: linear index of the threads in their blocks.
        count: how many times a thread's second access raced with the first instruction, over all blocks.
        path: the PTX file.
    """

    kind: str
    space: str
    first: Instruction
    second: Instruction
    address: int
    block: tuple[int, int, int]
    first_block: tuple[int, int, int]
    first_thread: int
    second_thread: int
    count: int
    path: str = "<ptx>"

    def render(self) -> str:
        """One readable line."""
        times = "once" if self.count == 1 else f"{self.count} times"
        elsewhere = "" if self.first_block == self.block else f" of block {self.first_block}"
        return (
            f"{self.path}:{self.second.line}: {self.space} {self.kind} ({KINDS[self.kind]}) at {self.address:#x}, "
            f"block {self.block}: thread {self.second_thread} in {self.second.place}, not ordered after "
            f"thread {self.first_thread}{elsewhere} in {self.first.place}; {times}"
        )


def _strength(kind: str, opcode: str) -> str:
    """A global access's kind as `GlobalRaces` takes it: strong loads and stores do not race with atomics."""
    if kind in {"ld", "st"} and not STRONG.isdisjoint(opcode.split(".")):
        return "strong ld" if kind == "ld" else "atom"
    return kind


@dataclass
class _Group:
    """Blocks of the slice that have done the same so far, and their shared bookkeeping."""

    members: Array  # indices within the slice, ascending
    races: SharedRaces


class Hazards(Observer):
    """Finds races while a kernel runs; read `reports` after the launch.

    Args:
        limit: reports that are kept; one for each kind and pair of PTX lines. Further ones count in `dropped`.
        global_memory: whether races between blocks in global memory are looked for.
    """

    def __init__(self, limit: int = 200, *, global_memory: bool = True) -> None:
        self.limit = limit
        self.dropped = 0
        self.global_memory = global_memory
        self._found: dict[tuple[str, str, int, int], Hazard] = {}
        self._sites: dict[int, int] = {}
        self._instructions: list[Instruction] = []
        self._groups: list[_Group] = []
        self._blocks: list[tuple[int, int, int]] = []  # of the whole launch, in the order in which slices began
        self._first_block = 0  # number of the slice's first block in `_blocks`
        self._shape: Shape3 = (0, 0, 0)
        self._path = ""
        self._memory = GlobalRaces()
        self._launch: weakref.ref[GlobalMemory] | None = None

    @property
    def reports(self) -> tuple[Hazard, ...]:
        """The races, one for each kind and pair of PTX lines, in the order in which they were found."""
        return tuple(self._found.values())

    def render(self) -> str:
        """One line per race; empty when there is none."""
        lines = [hazard.render() for hazard in self.reports]
        if self.dropped:
            lines.append(f"{self.dropped} more races beyond the first {self.limit}")
        return "\n".join(lines)

    def start(self, machine: Machine) -> None:
        """A slice begins: its blocks are alike, and concurrent to those of all earlier slices of the launch."""
        if self._launch is None or self._launch() is not machine.memory:  # another launch: ordered after the last one
            self._launch = weakref.ref(machine.memory)
            self._memory, self._blocks = GlobalRaces(), []
        self._shape, self._path = machine.shape, machine.path
        self._first_block = len(self._blocks)
        self._blocks += [(int(x), int(y), int(z)) for x, y, z in machine.blocks]
        self._groups = [_Group(np.arange(machine.shape[0]), SharedRaces(machine.exists[0].copy()))]

    def finish(self, machine: Machine) -> None:  # noqa: ARG002 - the observer's signature
        """The slice's shared memory is gone."""
        self._groups = []

    def access(self, step: Step, access: Access) -> None:
        """Checks an instruction against all earlier ones that nothing orders before it."""
        site = self._site(step.instruction)
        if access.space == "global":
            if self.global_memory:
                kind = _strength(access.kind, step.instruction.opcode)
                found = self._memory.access(
                    kind, access.address, access.width, access.mask, self._shape, self._first_block, site
                )
                self._report("global", found, step.instruction, None)
            return
        if access.kind == "cp.async":
            return  # `copy_issued` tells more
        for group, address, mask in self._by_group(access.address, access.mask):
            found = group.races.access(access.kind, address, access.width, mask, site)
            self._report("shared", found, step.instruction, group)

    def copy_issued(self, step: Step, copy: Copy) -> None:  # noqa: ARG002 - the observer's signature
        """The copy's bytes are in flight from now on."""
        site = self._site(copy.instruction)
        for group, address, mask in self._by_group(copy.address, copy.mask):
            found = group.races.issue(address, copy.width, mask, site)
            self._report("shared", found, copy.instruction, group)

    def copy_landed(self, step: Step, copy: Copy, lanes: BoolArray | None) -> None:  # noqa: ARG002 - the observer's signature
        """The copy's bytes count as written by the threads that waited."""
        site = self._site(copy.instruction)
        mask = copy.mask if lanes is None else lanes if copy.mask is None else copy.mask & lanes
        for group, address, chosen in self._by_group(copy.address, mask):
            group.races.land(address, copy.width, chosen, site)

    def barrier(self, step: Step, number: int, lanes: BoolArray) -> None:  # noqa: ARG002 - the observer's signature
        """Threads that met at a CTA barrier know of each other."""
        for group, chosen in self._masks(lanes):
            if chosen is not None and chosen.any():
                group.races.barrier(chosen, number if group.races.clocks.signals else None)

    def barrier_arrive(self, step: Step, number: int, lanes: BoolArray) -> None:  # noqa: ARG002 - the observer's signature
        """Those who will meet at the barrier will know what these lanes have done until now."""
        for group, chosen in self._masks(lanes):
            if chosen is not None:
                group.races.arrive(chosen, number)

    def warp_sync(self, step: Step, lanes: BoolArray | None) -> None:  # noqa: ARG002 - the observer's signature
        """Lanes of each warp know of each other."""
        for group, chosen in self._masks(lanes):
            group.races.warp_sync(chosen)

    def _masks(self, lanes: BoolArray | None) -> list[tuple[_Group, BoolArray | None]]:
        """Each group with its own (warps, 32) part of a mask."""
        if lanes is None:
            return [(group, None) for group in self._groups]
        self._agree(lanes)
        shape = self._shape[1:]
        return [(group, np.broadcast_to(_row(lanes, group), shape)) for group in self._groups]

    def _by_group(self, address: Array, mask: BoolArray | None) -> list[tuple[_Group, Array, BoolArray | None]]:
        """Each group with its own (warps, lanes) part of an access."""
        if mask is not None:
            if address.shape[0] > 1:
                address = np.where(mask, address, np.uint64(0))  # idle lanes hold garbage: it must not divide blocks
            self._agree(mask)
        self._agree(address)
        return [(group, _row(address, group), None if mask is None else _row(mask, group)) for group in self._groups]

    def _agree(self, value: Array) -> None:
        """Divides groups until the blocks of each have the same value."""
        if value.shape[0] == 1:
            return
        groups: list[_Group] = []
        for group in self._groups:
            rows = value[group.members].reshape(group.members.size, -1)
            if (rows == rows[0]).all():
                groups.append(group)
                continue
            kinds = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
            groups += [
                _Group(group.members[kinds == kind], copying.deepcopy(group.races)) for kind in range(kinds.max() + 1)
            ]
        self._groups = groups

    def _site(self, instruction: Instruction) -> int:
        site = self._sites.get(id(instruction))
        if site is None:
            site = self._sites[id(instruction)] = len(self._instructions)
            self._instructions.append(instruction)  # keeps it alive, and so its id
        return site

    def _report(self, space: str, found: list[Finding], second: Instruction, group: _Group | None) -> None:
        for finding in found:
            first = self._instructions[finding.first]
            count = finding.count * (1 if group is None else group.members.size)
            key = (space, finding.kind, first.line, second.line)
            known = self._found.get(key)
            if known is not None:
                self._found[key] = replace(known, count=known.count + count)
                continue
            if len(self._found) >= self.limit:
                self.dropped += 1
                continue
            here = self._first_block + (0 if group is None else int(group.members[0]))
            blocks = finding.blocks or (here, here)
            self._found[key] = Hazard(
                finding.kind,
                space,
                first,
                second,
                finding.address,
                self._blocks[blocks[1]],
                self._blocks[blocks[0]],
                finding.first_thread,
                finding.second_thread,
                count,
                self._path,
            )


def _row(value: Array, group: _Group) -> Array:
    """The (warps, lanes) part of a value in the group's blocks."""
    row: Array = value[0] if value.shape[0] == 1 else value[group.members[0]]
    return row
