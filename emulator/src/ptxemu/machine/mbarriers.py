"""mbarriers: eight bytes of shared memory that count arrivals and bytes, phase by phase.

A phase completes when no arrival and no byte is outstanding: the pending count and the tx-count are zero. Then the
next one begins with the expected count, all within the instruction that brought the last arrival or byte. The tx-count
may be below zero within a phase: bytes may land before `expect_tx` announces them.

Lanes of one instruction may name different mbarriers of different blocks; what happens to each is decided for all of
its lanes at once. The state is kept here, by offset and block; the bytes in memory only show whether somebody wrote
over them. What the ISA leaves undefined is an error: use of what was not initialised or is invalid, a second `init`,
more arrivals than the phase expects, counts out of range, a waiter for a phase that is neither this one nor the last.

Source: PTX ISA 9.0, 9.7.13.15 (mbarrier).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from ptxemu.machine.core import Step
from ptxemu.machine.observer import Observer, Targets
from ptxemu.machine.shared import MBARRIER_BYTES, Cluster
from ptxemu.syntax.tree import Instruction
from ptxemu.values import Array, BoolArray

PHASE_SHIFT = 40  # a state: phase (modulo 2^20), expected and pending count, 20 bits each
PHASES = (1 << 20) - 1
MOST = (1 << 20) - 1  # the largest count of arrivals, and of bytes either way
MARK = 0x6D62_6172 << 32  # in the upper half of its bytes; the lower one holds its offset
SHOWN = 32  # arrival instructions that are remembered


class Mbarrier:
    """The mbarriers at one offset of every block of the slice; arrays of int64 by block.

    Attributes:
        live: whether the block has one there now.
        expected: arrivals that a phase takes.
        pending: arrivals that the current one still needs.
        bytes: its tx-count: bytes that it still needs.
        phase: how many phases are complete.
        places: what initialised each, by block.
    """

    def __init__(self, blocks: int) -> None:
        self.live = np.zeros(blocks, np.bool_)
        self.expected, self.pending, self.bytes, self.phase = (np.zeros(blocks, np.int64) for _ in range(4))
        self.places: dict[int, Instruction] = {}
        self._arrivals: deque[tuple[Instruction, Array, Array, Array]] = deque(maxlen=SHOWN)

    def note(self, instruction: Instruction, blocks: Array, lanes: tuple[Array, ...]) -> None:
        """Remembers who arrives, for messages: the block of each one's mbarrier, and where it is itself."""
        self._arrivals.append((instruction, blocks, np.stack(lanes[:2]), self.phase[blocks]))

    def arrived(self, block: int, phase: int) -> str:
        """Who arrived at a block's mbarrier in a phase, of those that are remembered."""
        found: dict[str, set[int]] = {}
        for instruction, blocks, places, phases in self._arrivals:
            for owner, warp in places[:, (blocks == block) & (phases == phase)].T:
                peer = "" if owner == block else ", of another block"
                found.setdefault(f"(line {instruction.line}{peer})", set()).add(int(warp))
        return ", ".join(
            f"warp{'s' if len(warps) > 1 else ''} {', '.join(map(str, sorted(warps)))} {where}"
            for where, warps in found.items()
        )

    def states(self, blocks: Array, counts: Array) -> Array:
        """The state that each of several arrivals finds, one after the other."""
        pending = self.pending[blocks].copy()
        for block in np.unique(blocks):
            mine = blocks == block
            pending[mine] -= np.cumsum(counts[mine]) - counts[mine]
        expected = self.expected[blocks]
        turns = np.maximum(0, -(-(1 - pending) // np.maximum(1, expected)))  # phases that earlier arrivals complete
        pending += turns * expected
        states: Array = (((self.phase[blocks] + turns) & PHASES) << PHASE_SHIFT) | (expected << 20) | pending
        return states.astype(np.uint64)

    def add_bytes(self, step: Step, targets: Targets, entries: Array, nbytes: Array) -> None:
        """Changes the tx-count, which has to stay in its range."""
        self.bytes += summed(targets.blocks[entries], nbytes, len(self.live))
        wrong = np.abs(self.bytes) > MOST
        if wrong.any():
            block = int(wrong.argmax())
            mine, what = entries[targets.blocks[entries] == block], "tx-count of an mbarrier out of range"
            targets.fail(step, what, mine, expected=f"-{MOST} to {MOST}", found=int(self.bytes[block]))

    def complete(self) -> BoolArray:
        """Begins the next phase where the current one is complete; returns where."""
        done: BoolArray = self.live & (self.pending == 0) & (self.bytes == 0)
        self.phase[done] += 1
        self.pending[done] = np.where(self.expected[done] > 0, self.expected[done], -1)  # -1: all have dropped out
        return done


def summed(blocks: Array, counts: Array, size: int) -> Array:
    """Sums of the counts by block."""
    return np.bincount(blocks, counts, size).astype(np.int64)


def check_range(step: Step, targets: Targets, entries: Array, counts: Array, least: int) -> None:
    """Refuses counts below `least` or too large."""
    wrong = (counts < least) | (counts > MOST)
    if wrong.any():
        what = "count of an mbarrier out of range"
        targets.fail(step, what, entries[wrong], expected=f"{least} to {MOST}", found=int(counts[wrong][0]))


class Mbarriers:
    """The mbarriers of all blocks of a slice.

    Attributes:
        at: those that were ever initialised, by offset.
        events: how often anything changed; the engine looks whether waiting threads may go on.
    """

    def __init__(self, cluster: Cluster, observers: Sequence[Observer]) -> None:
        self.machine, self.shared, self.cluster, self.observers = cluster.machine, cluster.shared, cluster, observers
        self.at: dict[int, Mbarrier] = {}
        self.events = 0

    def targets(self, step: Step, address: Array, mask: BoolArray | None = None, *, own: bool = False) -> Targets:
        """The mbarriers at `address` of the executing lanes, or of those of `mask`; `own`: in their own blocks alone.

        Fails: "misaligned", "out-of-bounds" (a rank that the cluster does not have, too), "exited", "mbarrier" (another
        block's where only one's own will do).
        """
        full, nbytes, first = self.machine.full, self.shared.nbytes, self.shared.first
        active = step.lanes() if mask is None else full(mask)
        what = "no block of the cluster has this address"
        step.refuse(~self.cluster.valid(address) & active, "out-of-bounds", what, address=address)
        block, offset = self.cluster.resolve(address)
        what = f"an mbarrier is {MBARRIER_BYTES} bytes aligned to {MBARRIER_BYTES}"
        step.refuse((offset % MBARRIER_BYTES != 0) & active, "misaligned", what, address=address)
        what = f"mbarrier outside of the block's {nbytes - first} bytes of shared memory"
        outside = ((offset + MBARRIER_BYTES > nbytes) | (offset < first)) & active
        step.refuse(outside, "out-of-bounds", what, address=address, hint=self.shared.hint)
        lanes = np.nonzero(active)
        blocks = full(block)[lanes]
        if self.cluster.mapped_any:
            if own and (blocks != lanes[0]).any():
                what = "mbarrier of another block, where only arrivals and bytes may go"
                step.fail("mbarrier", what, address=address)
            self.cluster.refuse_exited(step, lanes, blocks, "use of an mbarrier")
        return Targets(lanes, blocks, full(offset)[lanes])

    def init(self, step: Step, address: Array, count: Array) -> None:
        """``mbarrier.init``: phase 0 begins, `count` arrivals outstanding."""
        targets = self.targets(step, address, own=True)
        counts = self.machine.full(count)[targets.lanes].astype(np.int64)
        for offset, entries in targets.by_offset():
            slot = self.at.get(offset)
            if slot is None:
                slot = self.at[offset] = Mbarrier(self.machine.shape[0])
                self.shared.mbarriers[offset] = slot.live
            blocks = targets.blocks[entries]
            check_range(step, targets, entries, counts[entries], 1)
            again = slot.live[blocks]
            if again.any():
                what = "init of an mbarrier that is initialised already"
                found = f"the one of {slot.places[int(blocks[again.argmax()])].place}"
                hint = "mbarrier.inval ends the old one; one thread initialises it"
                targets.fail(step, what, entries[again], found=found, hint=hint)
            named, times = np.unique(blocks, return_counts=True)
            if (times > 1).any():
                several = entries[blocks == named[times > 1][0]]
                what = f"{len(several)} threads initialise one mbarrier"
                targets.fail(step, what, several, hint="let one thread of the block do it")
            slot.live[blocks] = True
            slot.expected[blocks] = slot.pending[blocks] = counts[entries]
            slot.bytes[blocks] = slot.phase[blocks] = 0
            slot.places.update({int(block): step.instruction for block in blocks})
        self._mark(step, targets, live=True)

    def invalidate(self, step: Step, address: Array) -> None:
        """``mbarrier.inval``: the eight bytes are ordinary memory again."""
        targets = self.targets(step, address, own=True)
        for offset, entries in targets.by_offset():
            slot = self._slot(step, targets, offset, entries)
            slot.live[targets.blocks[entries]] = False
        self._mark(step, targets, live=False)

    def arrive(
        self,
        step: Step,
        targets: Targets,
        counts: Array,
        *,
        nbytes: Array | None = None,
        drop: bool = False,
        complete: bool = True,
        told: bool = False,
    ) -> Array:
        """Lanes arrive, each `counts` times (per entry, int64), after announcing `nbytes`; the state before each, u64.

        Where they are more than a phase takes, the first ones complete it: it promises nothing of the others. With
        `drop` later phases expect as many arrivals less (``arrive_drop``); without `complete` (``.noComplete``) the
        phase may not complete. Of arrivals that are `told` the observers know.
        """
        states = np.zeros(len(targets.blocks), np.uint64)
        rest = np.arange(len(targets.blocks))
        while True:
            late = self._late(targets.chosen(rest), counts[rest]) if complete else np.zeros(len(rest), np.bool_)
            now = rest[~late]
            announced = None if nbytes is None else nbytes[now]
            if not told:
                self.tell(step, targets.chosen(now), "arrive")
            states[now] = self._arrivals(
                step, targets.chosen(now), counts[now], announced, drop=drop, complete=complete
            )
            rest = rest[late]
            if not rest.size:
                self.events += 1
                return states

    def _late(self, targets: Targets, counts: Array) -> BoolArray:
        """Which of these arrivals come when earlier ones have completed the phase."""
        late = np.zeros(len(targets.blocks), np.bool_)
        for offset, entries in targets.by_offset():
            slot, blocks = self.at.get(offset), targets.blocks[entries]
            if slot is None or not (summed(blocks, counts[entries], len(slot.live)) > slot.pending).any():
                continue
            for block in np.unique(blocks):
                mine = entries[blocks == block]
                pending = int(slot.pending[block])
                late[mine] = (np.cumsum(counts[mine]) - counts[mine] >= pending) & (pending > 0)
        return late

    def _arrivals(
        self, step: Step, targets: Targets, counts: Array, nbytes: Array | None, *, drop: bool, complete: bool
    ) -> Array:
        """Arrivals at one time, with the states that they find."""
        states = np.zeros(len(targets.blocks), np.uint64)
        for offset, entries in targets.by_offset():
            slot = self._slot(step, targets, offset, entries)
            check_range(step, targets, entries, counts[entries], 1)
            if nbytes is not None:
                check_range(step, targets, entries, nbytes[entries], 0)
                slot.add_bytes(step, targets, entries, nbytes[entries])
            lanes = tuple(axis[entries] for axis in targets.lanes)
            slot.note(step.instruction, targets.blocks[entries], lanes)
            states[entries] = slot.states(targets.blocks[entries], counts[entries])
            self._arrive(step, offset, targets, entries, counts[entries], drop=drop, complete=complete)
        return states

    def more(self, step: Step, targets: Targets) -> None:
        """The current phase takes one more arrival for each entry."""
        for offset, entries in targets.by_offset():
            slot = self._slot(step, targets, offset, entries)
            slot.pending += summed(targets.blocks[entries], np.ones(len(entries), np.int64), len(slot.live))
            check_range(step, targets, entries, slot.pending[targets.blocks[entries]], 1)

    def expect_tx(self, step: Step, targets: Targets, nbytes: Array) -> None:
        """Lanes announce bytes; int64 per entry."""
        self.tell(step, targets, "expect")
        for offset, entries in targets.by_offset():
            slot = self._slot(step, targets, offset, entries)
            check_range(step, targets, entries, nbytes[entries], 0)
            slot.add_bytes(step, targets, entries, nbytes[entries])
            self._settle(offset, slot)
        self.events += 1

    def complete_tx(self, step: Step, blocks: Array, addresses: Array, nbytes: Array) -> None:
        """Bytes have landed, or a thread says so: for the mbarriers at `addresses` of `blocks`; all flat."""
        targets = Targets((), np.asarray(blocks, np.int64), np.asarray(addresses, np.int64))
        sizes = np.asarray(nbytes, np.int64)
        for offset, entries in targets.by_offset():
            slot = self._slot(step, targets, offset, entries)
            slot.add_bytes(step, targets, entries, -sizes[entries])
            self._settle(offset, slot)
        self.events += 1

    def completed(self, step: Step, targets: Targets, parity: Array | None, state: Array | None) -> BoolArray:
        """For each entry whether the phase that it names, by parity or state, is complete."""
        done = np.zeros(len(targets.blocks), np.bool_)
        for offset, entries in targets.by_offset():
            slot = self._slot(step, targets, offset, entries)
            phase = slot.phase[targets.blocks[entries]]
            if parity is not None:
                done[entries] = (phase & 1) != parity[entries]
                continue
            wanted = np.asarray(state)[entries].astype(np.int64) >> PHASE_SHIFT
            stale = (phase - wanted) & PHASES
            if (stale > 1).any():
                what = "wait for a phase that is neither the current one nor the one before"
                targets.fail(step, what, entries[stale > 1])
            done[entries] = stale == 1
        return done

    def finish(self) -> None:
        """At the end of a slice, when everything asynchronous has finished.

        Fails: "mbarrier": bytes that were announced never came, or came and were never announced.
        """
        for offset, slot in self.at.items():
            wrong = slot.live & (slot.bytes != 0)
            if wrong.any():
                block = int(wrong.argmax())
                step = Step(self.machine, slot.places[block])
                what = "the block ends with bytes of a phase outstanding"
                hint = "expect_tx announces exactly the bytes that arrive: positive is too many announced"
                found, targets = int(slot.bytes[block]), Targets((), np.array([block]), np.array([offset]))
                targets.fail(step, what, np.array([0]), expected="a tx-count of 0", found=found, hint=hint)

    def _slot(self, step: Step, targets: Targets, offset: int, entries: Array) -> Mbarrier:
        slot = self.at.get(offset)
        dead = np.ones(len(entries), np.bool_) if slot is None else ~slot.live[targets.blocks[entries]]
        if slot is None or dead.any():
            hint = "mbarrier.init by one thread, then a barrier (and fence.mbarrier_init for a cluster), come first"
            targets.fail(step, f"no mbarrier was initialised at {offset:#x}", entries[dead], hint=hint)
        return slot

    def _arrive(
        self, step: Step, offset: int, targets: Targets, entries: Array, counts: Array, *, drop: bool, complete: bool
    ) -> None:
        slot = self.at[offset]
        left = summed(targets.blocks[entries], counts, len(slot.live))
        if drop:
            slot.expected -= left
        here = left > 0
        if not complete and (here & (left >= slot.pending)).any():
            targets.fail(step, "arrive.noComplete would complete the phase", entries)
        while True:
            now = np.minimum(left, np.maximum(slot.pending, 0))
            slot.pending -= now
            left -= now
            done = self._settle(offset, slot)
            if not left.any():
                return
            stuck = (left > 0) & ~done
            if stuck.any():
                block = int(stuck.argmax())
                what = "more arrivals than the phase takes, whose bytes are still outstanding"
                found = f"{int(left[block])} more, and {int(slot.bytes[block])} bytes outstanding"
                mine, expected = entries[targets.blocks[entries] == block], f"{int(slot.expected[block])} arrivals"
                targets.fail(step, what, mine, expected=expected, found=found)

    def _settle(self, offset: int, slot: Mbarrier) -> BoolArray:
        done = slot.complete()
        if done.any():
            for observer in self.observers:
                observer.mbarrier_completed(offset, done)
        return done

    def tell(self, step: Step, targets: Targets, action: str) -> None:
        """Tells the observers what lanes do to mbarriers: init, inval, expect, arrive, wait."""
        for observer in self.observers:
            observer.mbarrier(step, targets, action)

    def _mark(self, step: Step, targets: Targets, *, live: bool) -> None:
        """Writes the eight bytes of mbarriers that begin or end."""
        offsets = targets.offsets.astype(np.uint64)
        words = offsets | np.uint64(MARK) if live else np.zeros_like(offsets)
        self.shared.rows.put(targets.blocks, offsets, MBARRIER_BYTES, words)
        self.tell(step, targets, "init" if live else "inval")
        self.events += 1
