"""The race detector: an observer that reports missing barriers and waits with both instructions.

The emulator runs threads in one particular order, so that a missing barrier may well give right numbers. This observer
judges by what the program guarantees instead (`clocks`): shared memory within a block or cluster, and global memory
between blocks (`races`). It watches and changes nothing.

Blocks that have done the same so far (same addresses, masks and barriers) share one bookkeeping; it is divided where
they begin to differ. Most kernels use shared memory alike in all blocks, and then a grid costs as much as a block.

    hazards = Hazards()
    kernel.launch(grid, block, arguments, observers=[hazards])
    print(hazards.render())
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ptxemu.machine.core import Machine, Step
from ptxemu.machine.observer import Access, Copy, Global, RemoteAccess, Targets
from ptxemu.machine.state import FullMachine
from ptxemu.observe.between_blocks import BetweenBlocks, is_device_fence
from ptxemu.observe.clocks import MOST_THREADS, Clocks, Finding
from ptxemu.observe.operations import Products
from ptxemu.observe.races import GlobalRaces, block_and_thread, places_of, thread_of
from ptxemu.observe.synchronisation import Group, row
from ptxemu.syntax.tree import Instruction
from ptxemu.values import WARP, Array, BoolArray, Shape3

KINDS = {
    "RAW": "read after write by another thread",
    "WAR": "write after read by another thread",
    "WAW": "write after write by another thread",
    "in-flight read": "read of bytes that an asynchronous copy still writes: a wait is missing",
    "in-flight write": "write to bytes that an asynchronous copy still writes: a wait is missing",
    "async overwrite": "write to bytes that an asynchronous operation may still read: a wait is missing",
    "proxy": "asynchronous access to bytes that were written in the ordinary way: a fence.proxy.async is missing",
    "mbarrier": "an mbarrier used by a thread that nothing orders after its init, or ended while others may use it",
    "mbarrier fence": "an mbarrier that a bulk copy tells of bytes: a fence.mbarrier_init after its init is missing",
    "start": "access of another block's shared memory, which may not have started yet: a cluster barrier is missing",
    "exit": "access of another block's shared memory, which may have exited by then: a cluster barrier is missing",
    "descriptor": "a wgmma reads a tile otherwise than a copy wrote it",
    "elect": "elect.sync must choose the lowest lane, as it does on all known chips",
    "ignored": "an instruction that ptxas leaves out",
    "same-instruction write": "two lanes of one instruction write the same byte",
}
EXPLAINED = frozenset({"descriptor", "elect", "ignored"})  # kinds about one instruction, whose `Hazard.text` says what
WARNINGS = frozenset({"mbarrier fence", "elect", "ignored"})  # no known chip gives other numbers


def level_of(kind: str) -> str:
    """``error``: undefined, or wrong numbers are possible; ``warning``: asked for, and harmless on all known chips."""
    return "warning" if kind in WARNINGS else "error"


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
        place: what lies at an address of global memory: the element and the array; empty of shared memory.
        text: what else is to be said; of kinds in `EXPLAINED` instead of what is not ordered.
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
    place: str = ""
    text: str = ""

    @property
    def level(self) -> str:
        """``error`` or ``warning``, as `level_of` says."""
        return level_of(self.kind)

    def render(self) -> str:
        """One readable line."""
        times = "once" if self.count == 1 else f"{self.count} times"
        elsewhere = "" if self.first_block == self.block else f" of block {self.first_block}"
        place = f"{self.address:#x}" + (f", {self.place}" if self.place else "")
        warning = "" if self.level == "error" else "warning: "
        if self.kind in EXPLAINED:
            copied = f"; the tile was copied by thread {self.first_thread}{elsewhere} in {self.first.place}"
            return (
                f"{self.path}:{self.second.line}: {warning}{self.kind} ({KINDS[self.kind]}) in block {self.block}, "
                f"thread {self.second_thread} in {self.second.place}: {self.text}"
                f"{copied if self.kind == 'descriptor' else ''}; {times}"
            )
        return (
            f"{self.path}:{self.second.line}: {warning}{self.space} {self.kind} ({KINDS[self.kind]}) at {place}, "
            f"block {self.block}: thread {self.second_thread} in {self.second.place}, not ordered after "
            f"thread {self.first_thread}{elsewhere} in {self.first.place}; {times}"
            + (f"; {self.text}" if self.text else "")
        )

    def fields(self) -> dict[str, object]:
        """The same facts for scripts."""
        sides = (
            ("second", self.second, self.block, self.second_thread),
            ("first", self.first, self.first_block, self.first_thread),
        )
        return {
            "kind": self.kind, "level": self.level, "meaning": KINDS[self.kind],
            "space": self.space, "address": self.address, "place": self.place,
            "text": self.text, "count": self.count, "ptx": self.path,
            **{
                name: {
                    "line": instruction.line, "instruction": str(instruction), "block": block, "thread": thread,
                    "source": instruction.source.chain if instruction.source else None,
                }
                for name, instruction, block, thread in sides
            },
        }  # fmt: skip


MIXED = "global memory that one thread writes and another one reads in this launch"
# Parts of instructions whose answers depend on time or on where a warp runs.
TIMELY = ("activemask", "%clock", "%globaltimer", "%smid", "%nsmid", "%warpid", "%nwarpid")
STRONG = frozenset({"volatile", "relaxed", "acquire", "release"})
ORDERED = frozenset({"acquire", "release", "acq_rel"})


def _strength(kind: str, opcode: str) -> str:
    """A global access's kind as `GlobalRaces` takes it: strong loads and stores do not race with atomics."""
    if kind in {"ld", "st"} and not STRONG.isdisjoint(opcode.split(".")):
        return "strong ld" if kind == "ld" else "atom"
    return kind


class Hazards(Products):
    """Finds races while a kernel runs; read `reports` after the launch.

    Args:
        limit: reports that are kept; one for each kind and pair of PTX lines. Further ones count in `dropped`.
        global_memory: whether races between blocks in global memory are looked for.
    """

    def __init__(self, limit: int = 200, *, global_memory: bool = True) -> None:
        super().__init__()
        self.limit = limit
        self.dropped = 0
        self.global_memory = global_memory
        self._found: dict[tuple[str, str, int, int], Hazard] = {}
        self._sites: dict[int, int] = {}
        self._instructions: list[Instruction] = []
        self._blocks: list[tuple[int, int, int]] = []  # of the whole launch, in the order in which slices began
        self._shape: Shape3 = (0, 0, 0)
        self._path = ""
        self._elects: Instruction | None = None
        self._launch: Mapping[str, int] | None = None  # the symbols of the launch, which its slices share

    @property
    def any_schedule(self) -> bool:
        """Whether every schedule of the launches has the same races as the ones that ran, so far: see `phases`."""
        return not self._unsure

    @property
    def may_differ(self) -> tuple[str, ...]:
        """What may differ in other schedules, and where that was seen first; empty if nothing."""
        return tuple(what if one is None else f"{what}, in {one.place}" for what, one in self._unsure.items())

    @property
    def elects(self) -> bool:
        """Whether ``elect.sync`` has chosen a lane: another one may be chosen elsewhere."""
        return self._elects is not None

    def relies_on_election(self, why: str) -> None:
        """Another lane was elected in the same launch, and that was no good: warns."""
        if self._elects is not None:
            place = (0, (0, 0, 0), (0, 0, 0), 0, 0, 1, self._path, "", why)
            self._found["shared", "elect", 0, self._elects.line] = Hazard(
                "elect", "shared", self._elects, self._elects, *place
            )

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
        if self._launch is not machine.symbols:  # another launch: ordered after the last one
            self._launch = machine.symbols
            self._memory, self._blocks, self._stores = GlobalRaces(), [], []
        self._shape, self._path = machine.shape, machine.path
        self._element = machine.memory.element if isinstance(machine, FullMachine) else hex
        self._first_block = len(self._blocks)
        self._blocks += [(int(x), int(y), int(z)) for x, y, z in machine.blocks]
        super().start(machine)
        self._copies_globally = machine.copies_in_bulk and self.global_memory
        if machine.orders_blocks and self.global_memory and self._memory.between is None:
            self._memory.between = BetweenBlocks(self._place_of)
        if machine.exists[0].size * machine.cluster_size > MOST_THREADS:
            self._may_differ(f"clusters of more than {MOST_THREADS} threads")

    def follow(self, machine: Machine, instruction: Instruction) -> Callable[[BoolArray | None], None] | None:
        """Also what tells the time, and ``elect.sync``."""
        inner, between = super().follow(machine, instruction), self._memory.between
        if between is not None and is_device_fence(instruction.opcode):

            def fenced(lanes: BoolArray | None) -> None:
                if inner is not None:
                    inner(lanes)
                full = machine.exists if lanes is None else machine.full(lanes)
                for group, chosen in self._masks(full):
                    group.races.clocks.order_device(chosen)
                block, warp, lane = np.nonzero(full)
                between.fence(self._first_block + block, warp * WARP + lane)

            return fenced
        text = str(instruction)
        if any(word in text for word in TIMELY):
            self._may_differ("the time, or where a warp runs", instruction)
        if instruction.opcode.startswith("elect"):
            self._elects = self._elects or instruction
        return inner

    def _place_of(self, block: int) -> tuple[Clocks, int]:
        """The clocks of a block of the slice, and the number of its first thread there."""
        group, first = self._group_of(block - self._first_block)
        return group.races.clocks, first

    def access(self, step: Step, access: Access) -> None:
        """Checks an instruction against all earlier ones that nothing orders before it."""
        site = self._site(step.instruction)
        if access.space == "global":
            if self.global_memory:
                kind = _strength(access.kind, step.instruction.opcode)
                between = self._memory.between
                if self._copies_globally or between is not None:
                    self._tell_times()
                if self._copies_globally:
                    self._against_copies(step, access)
                found = self._memory.access(
                    kind, access.address, access.width, access.mask, self._shape, self._first_block, site
                )
                self._report("global", found, step.instruction, None)
                if between is not None and kind in {"atom", "strong ld"}:
                    who, where = self._accessing(access)
                    between.access(step.instruction.opcode, *places_of(who), where)
                if self._memory.mixed:
                    self._may_differ(MIXED, step.instruction)
                self._answered(kind, step.instruction)
            return
        if access.kind == "cp.async":
            return  # `copy_issued` tells more
        opcode = step.instruction.opcode
        kind = access.kind if ".volatile" in opcode else _strength(access.kind, opcode)  # code of warps trusts volatile
        self._answered(_strength(access.kind, opcode), step.instruction)
        for group, address, mask in self._placed(access.address, access.mask):
            found = group.races.access(kind, address, access.width, mask, site)
            self._report("shared", found, step.instruction, group)
            self._ordering |= not ORDERED.isdisjoint(opcode.split("."))
            if kind in {"strong ld", "atom"} and self._ordering:
                shape = group.races.clocks.exists.shape
                chosen = group.races.clocks.exists if mask is None else group.races.clocks.exists & mask
                group.races.synchronise(np.broadcast_to(address, shape), chosen, opcode)

    def _tell_times(self) -> None:
        """Accesses of global memory remember the time of their blocks."""
        times = np.zeros(len(self._blocks), np.int32)
        for group in self._groups:
            group.races.clocks.tick()
            first = self._first_block + group.members * self._fold.size
            times[(first[:, None] + np.arange(self._fold.size)).reshape(-1)] = group.races.clocks.now
        self._memory.times = times

    def _accessing(self, access: Access) -> tuple[Array, Array]:
        """The threads of an access to global memory, as `thread_of` numbers them, and its addresses, flat."""
        blocks, warps, _ = self._shape
        who = thread_of(self._first_block + np.arange(blocks)[:, None], np.arange(warps * WARP)).reshape(self._shape)
        chosen: BoolArray = np.broadcast_to(np.True_ if access.mask is None else access.mask, self._shape)
        return who[chosen], np.broadcast_to(access.address, self._shape)[chosen].astype(np.int64)

    def _against_copies(self, step: Step, access: Access) -> None:
        """Checks accesses against copies of their own block that still write."""
        if not self._stores:
            return
        writes, (mine, where) = access.kind in {"st", "atom"}, self._accessing(access)
        for transfer, addresses, owners in self._stores:
            unit = transfer.target.unit if isinstance(transfer.target, Global) else 0
            at = np.maximum(np.searchsorted(addresses, where, "right") - 1, 0)
            inside = (addresses[at] <= where) & (where < addresses[at] + unit)
            hit = np.flatnonzero(inside & (places_of(owners[at])[0] == places_of(mine)[0]))
            if hit.size:
                (own, thread), (_, issuer) = (block_and_thread(int(each[hit[0]])) for each in (mine, owners[at]))
                kind, threads = "in-flight write" if writes else "in-flight read", np.unique(mine[hit]).size
                copy, address = self._site(transfer.step.instruction), int(where[hit[0]])
                found = Finding(kind, copy, address, issuer, thread, threads, (own, own))
                self._report("global", [found], step.instruction, None)

    def ignored(self, step: Step, why: str) -> None:
        """Warns."""
        site = self._site(step.instruction)
        for group, chosen in self._masks(step.lanes()):
            thread = int(np.flatnonzero(chosen)[0]) if chosen.any() else 0
            found = [Finding("ignored", site, 0, thread, thread, int(chosen.sum()), text=why)] if chosen.any() else []
            self._report("shared", found, step.instruction, group)

    def _answered(self, kind: str, instruction: Instruction) -> None:
        """What an atomic or a strong load answers, and how floats are rounded that are added up, is up to the order."""
        opcode = instruction.opcode
        if kind == "strong ld" or (kind == "atom" and (opcode.startswith("atom") or ".f" in opcode or ".bf" in opcode)):
            self._may_differ("what an atomic or a strong load finds", instruction)

    def remote(self, step: Step, access: RemoteAccess) -> None:
        """Checks an access to another block's shared memory, and remembers it until that block exits."""
        self._answered(_strength(access.kind, step.instruction.opcode), step.instruction)
        site = self._site(step.instruction)
        for group, address, mask in self._targeted(access.lanes, access.blocks, access.offsets):
            found = group.races.access(access.kind, address, access.width, mask, site)
            found += group.races.reached(address, mask, self._fold, site)
            self._report("shared", found, step.instruction, group)

    def store_issued(self, step: Step, access: RemoteAccess) -> None:
        """Bytes of an asynchronous store are in flight from now on."""
        self._may_differ("when asynchronous stores land", step.instruction)
        site = self._site(step.instruction)
        for group, address, mask in self._targeted(access.lanes, access.blocks, access.offsets):
            found = group.races.issue(address, access.width, mask, site)
            found += group.races.reached(address, mask, self._fold, site)
            self._report("shared", found, step.instruction, group)

    def store_landed(self, step: Step, access: RemoteAccess, barriers: Array) -> None:
        """They count as written by what tells their mbarriers."""
        site = self._site(step.instruction)
        told, _ = self._fold.flat(access.lanes, access.blocks, barriers)
        self._agree(told)
        for group, address, mask in self._targeted(access.lanes, access.blocks, access.offsets):
            own = row(told, group)
            for barrier in np.unique(own[mask]):
                key = ("mbarrier", int(barrier))
                group.races.asynchronous.stored(address, access.width, mask & (own == barrier), site, key)

    def exited(self, lanes: BoolArray, by: Instruction | None) -> None:
        """A block all of whose threads have exited: its peers must have done with its memory."""
        if self._fold.size == 1:
            return
        for group, chosen in self._masks(lanes):
            for rank, part in self._fold.ranks(chosen):
                found = group.races.remote.leave(rank, part, self._fold)
                if found:
                    self._report("shared", found, by or self._instructions[found[0].first], group)

    def mbarrier(self, step: Step, targets: Targets, action: str) -> None:
        """An mbarrier is used: after its init, and inval after all uses."""
        site = self._site(step.instruction)
        for group, address, mask in self._targeted(targets.lanes, targets.blocks, targets.offsets):
            found = group.races.use_mbarriers(address, mask, action, site)
            found += group.races.reached(address, mask, self._fold, site)
            self._report("shared", found, step.instruction, group)
        super().mbarrier(step, targets, action)

    def copy_issued(self, step: Step, copy: Copy) -> None:  # noqa: ARG002 - the observer's signature
        """The copy's bytes are in flight from now on."""
        site = self._site(copy.instruction)
        for group, address, mask in self._placed(copy.address, copy.mask):
            found = group.races.issue(address, copy.width, mask, site)
            self._report("shared", found, copy.instruction, group)

    def copy_landed(self, step: Step, copy: Copy, lanes: BoolArray | None) -> None:  # noqa: ARG002 - the observer's signature
        """The copy's bytes count as written by the threads that waited."""
        site = self._site(copy.instruction)
        mask = copy.mask if lanes is None else lanes if copy.mask is None else copy.mask & lanes
        for group, address, chosen in self._placed(copy.address, mask):
            group.races.land(address, copy.width, chosen, site)

    def copy_told(self, step: Step, copy: Copy, lanes: BoolArray, targets: Targets) -> None:  # noqa: ARG002 - as above
        """The copy's bytes count as written by what tells the mbarriers."""
        self._may_differ("when copies have landed of which an mbarrier is told", copy.instruction)
        site = self._site(copy.instruction)
        told, _ = self._fold.flat(targets.lanes, targets.blocks, targets.offsets)
        self._agree(told)
        mask = lanes if copy.mask is None else copy.mask & lanes
        for group, address, chosen in self._placed(copy.address, mask):
            own = row(told, group)
            lands: BoolArray = np.broadcast_to(np.True_ if chosen is None else chosen, own.shape)
            for barrier in np.unique(own[lands]):
                key = ("mbarrier", int(barrier))
                group.races.asynchronous.stored(address, copy.width, lands & (own == barrier), site, key)

    def _placed(self, address: Array, mask: BoolArray | None) -> list[tuple[Group, Array, BoolArray | None]]:
        """Each group with its own (warps, lanes) part of an access to the blocks' own windows."""
        return self._by_group(self._fold.address(address), None if mask is None else self._fold.lanes(mask))

    def _site(self, instruction: Instruction) -> int:
        site = self._sites.get(id(instruction))
        if site is None:
            site = self._sites[id(instruction)] = len(self._instructions)
            self._instructions.append(instruction)  # keeps it alive, and so its id
        return site

    def _report(self, space: str, found: list[Finding], second: Instruction, group: Group | None) -> None:
        for finding in found:
            first = self._instructions[finding.first]
            count = finding.count * (1 if group is None else group.members.size)
            ranks = [self._fold.place(thread) for thread in (finding.first_thread, finding.second_thread)]
            if group is None:
                ranks = [(0, finding.first_thread), (0, finding.second_thread)]
            key = (space, finding.kind, first.line, second.line)
            known = self._found.get(key)
            if known is not None:
                self._found[key] = replace(known, count=known.count + count)
                continue
            if len(self._found) >= self.limit:
                self.dropped += 1
                continue
            here = self._first_block + (0 if group is None else int(group.members[0]) * self._fold.size)
            blocks = finding.blocks or (here + ranks[0][0], here + ranks[1][0])
            address = finding.address if group is None else finding.address % self._fold.stride
            where = self._blocks[blocks[1]], self._blocks[blocks[0]], ranks[0][1], ranks[1][1]
            place = self._element(address) if group is None else ""
            self._found[key] = Hazard(
                finding.kind, space, first, second, address, *where, count, self._path, place, finding.text
            )
