"""What a launch cost, in Nsight Compute's terms: wavefronts, bank conflicts, sectors, executed instructions.

Why: the numbers that ``ncu`` gives on a GPU follow from the addresses and the masks alone, so a machine without one can
show them too, and by PTX line. The names in `Counters.as_dict` are ncu's own. What depends on timing or on SASS
(replays, registers, ``smsp__inst_executed``) has no counterpart here: PTX instructions are counted under PTX names.

    counters = Counters()
    kernel.launch(grid, block, arguments, observers=[counters])
    counters.as_dict()["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from flashladder import names
from flashladder.emulator.machine.copies.transfers import Global
from flashladder.emulator.machine.observer import Access, Observer
from flashladder.emulator.observe.banks import (
    PHASE_BYTES,
    SECTOR,
    Patterns,
    bypass_sectors,
    load_wavefronts,
    sectors,
    wavefronts,
)
from flashladder.emulator.observe.tensor_work import WARPS, cycles, operand_bytes, tensor_cycles
from flashladder.emulator.syntax.tree import Instruction, SourceLine
from flashladder.emulator.values import WARP, BoolArray, Shape3

if TYPE_CHECKING:
    from flashladder.emulator.machine.control import Block
    from flashladder.emulator.machine.copies.in_flight import Copy
    from flashladder.emulator.machine.copies.transfers import Transfer
    from flashladder.emulator.machine.state import Machine, Step

# ncu's operation of each kind of access; the global side of cp.async is a load (LDGSTS counts as global_op_ld).
OPERATIONS = {"ld": "ld", "ldmatrix": "ld", "cp.async": "ld", "st": "st", "stmatrix": "st", "atom": "atom"}


@dataclass(frozen=True)
class Traffic:
    """What accesses of one operation to one state space cost.

    Attributes:
        requests: warp-level instructions with any active lane.
        wavefronts: passes over the banks, shared memory only.
        phases: wavefronts that the same accesses would take without conflicts.
        sectors: 32-byte sectors, global memory only.
    """

    requests: int = 0
    wavefronts: int = 0
    phases: int = 0
    sectors: int = 0

    @property
    def conflicts(self) -> int:
        """Bank conflicts: wavefronts beyond one per phase."""
        return self.wavefronts - self.phases

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.requests + other.requests,
            self.wavefronts + other.wavefronts,
            self.phases + other.phases,
            self.sectors + other.sectors,
        )


@dataclass(frozen=True)
class LineTraffic:
    """The traffic of one PTX instruction; `operation` as of `Counters.traffic`, `source` its CUDA line."""

    line: int
    opcode: str
    source: SourceLine | None
    space: str
    operation: str
    traffic: Traffic


@dataclass
class _Tally:
    """The running sums behind one `LineTraffic`."""

    instruction: Instruction
    space: str
    operation: str
    requests: int = 0
    first: int = 0  # wavefronts, or sectors
    phases: int = 0

    def traffic(self) -> Traffic:
        if self.space == "shared":
            return Traffic(self.requests, self.first, self.phases, 0)
        return Traffic(self.requests, 0, 0, self.first)


@dataclass
class _Visits:
    """How often a basic block ran: warps with any active lane, and active lanes."""

    block: Block
    warps: int = 0
    lanes: int = 0


@dataclass
class Counters(Observer):
    """Counts while a kernel runs; read it after the launch. Several launches add up.

    `as_dict` has what Nsight Compute counts too, by its names; `lines` the memory traffic by PTX instruction, `traffic`
    the sum of a state space and an operation; `opcodes` the executed instructions, `warp_instructions` and
    `lane_instructions` their sums.

    Attributes:
        copied_bytes: bytes written to shared memory by ``cp.async``, zero-filled ones included.
        bulk_bytes: bytes that bulk copies moved, of boxes also those outside of the tensor; a multicast counts once.
            What they cost in global memory is `traffic` of the operations ``bulk ld``, ``bulk st`` and ``bulk red``:
            a request for each thread's copy, and the 32-byte sectors that it touches.
    """

    copied_bytes: int = 0
    bulk_bytes: int = 0
    _shape: Shape3 = (0, 0, WARP)
    _tallies: dict[tuple[int, str], _Tally] = field(default_factory=dict, repr=False)
    _visits: dict[int, _Visits] = field(default_factory=dict, repr=False)
    _shared: Patterns = field(default_factory=lambda: Patterns(wavefronts, PHASE_BYTES), repr=False)
    _shared_loads: Patterns = field(default_factory=lambda: Patterns(load_wavefronts, PHASE_BYTES), repr=False)
    _global: Patterns = field(default_factory=lambda: Patterns(sectors, SECTOR), repr=False)
    _bypassing: Patterns = field(default_factory=lambda: Patterns(bypass_sectors, PHASE_BYTES), repr=False)

    def start(self, machine: Machine) -> None:
        """Remembers the shape of the slice that begins."""
        self._shape = machine.shape

    def block(self, block: Block, mask: BoolArray | None) -> None:
        """Counts a visit to a basic block; its instructions are counted when the numbers are read."""
        visits = self._visits.get(id(block))
        if visits is None:
            visits = self._visits[id(block)] = _Visits(block)
        visits.warps += self._warps(mask)
        visits.lanes += self._lanes(mask)

    def access(self, step: Step, access: Access) -> None:
        """Counts the wavefronts or sectors of one instruction."""
        if access.space == "shared" and access.kind == "cp.async":
            return  # ncu does not count what LDGSTS writes as shared stores
        key = (id(step.instruction), access.space)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = _Tally(step.instruction, access.space, OPERATIONS[access.kind])
        blocks, warps, _ = self._shape
        patterns = self._patterns(step.instruction, access)
        first, second = patterns.total(access.address, access.width, access.mask, blocks, warps)
        tally.first += first
        if access.space == "shared":
            tally.phases += second
            tally.requests += self._warps(access.mask)
        else:
            tally.requests += second

    def _patterns(self, instruction: Instruction, access: Access) -> Patterns:
        """The rule that counts an access."""
        if access.space == "shared":
            return self._shared_loads if access.kind == "ld" else self._shared
        return self._bypassing if instruction.opcode.startswith("cp.async.cg.") else self._global

    def copy_issued(self, step: Step, copy: Copy) -> None:  # noqa: ARG002 - the observer's signature
        """Counts the bytes of a ``cp.async``."""
        self.copied_bytes += self._lanes(copy.mask) * copy.width

    def transfer_issued(self, transfer: Transfer) -> None:
        """Counts the bytes of a bulk copy, and its requests and sectors of global memory."""
        self.bulk_bytes += len(transfer.group) * transfer.nbytes
        operation = "bulk st" if transfer.reduce is None else "bulk red"
        for side, name in ((transfer.source, "bulk ld"), (transfer.target, operation)):
            if isinstance(side, Global):
                instruction = transfer.step.instruction
                tally = self._tallies.setdefault((id(instruction), name), _Tally(instruction, "global", name))
                touched, requests = sectors(side.addresses, side.unit, side.inside)
                tally.first += int(touched.sum())
                tally.requests += requests.size

    def _warps(self, mask: BoolArray | None) -> int:
        """Warps with any lane of a mask, over the whole slice."""
        blocks, warps, _ = self._shape
        if mask is None:
            return blocks * warps
        active = mask.any(axis=2)
        return int(np.count_nonzero(active)) * (blocks * warps // active.size)

    def _lanes(self, mask: BoolArray | None) -> int:
        """Lanes of a mask, over the whole slice."""
        blocks, warps, lanes = self._shape
        size = blocks * warps * lanes
        return size if mask is None else int(np.count_nonzero(mask)) * (size // mask.size)

    @property
    def opcodes(self) -> Counter[str]:
        """Executed warp-level PTX instructions by opcode; one that a guard switches off counts, as in ncu."""
        counts: Counter[str] = Counter()
        for visits in self._visits.values():
            for instruction in visits.block.instructions:
                counts[instruction.opcode] += visits.warps
        return counts

    @property
    def warp_instructions(self) -> int:
        """Executed PTX instructions, one per warp with any active lane."""
        return sum(visits.warps * len(visits.block.instructions) for visits in self._visits.values())

    @property
    def lane_instructions(self) -> int:
        """Executed PTX instructions, one per active lane."""
        return sum(visits.lanes * len(visits.block.instructions) for visits in self._visits.values())

    @property
    def tensor_cycles(self) -> int:
        """Cycles for which all ``wgmma`` keep the tensor cores of one SM busy at least, one after the other."""
        return self._of_warpgroups(tensor_cycles)

    @property
    def wgmma_cycles(self) -> int:
        """The same, or the cycles in which shared memory delivers A and B, whichever is more, by instruction."""
        return self._of_warpgroups(cycles)

    @property
    def wgmma_shared_bytes(self) -> int:
        """Bytes of shared memory that all ``wgmma`` read."""
        return self._of_warpgroups(operand_bytes)

    def _of_warpgroups(self, amount: Callable[[Instruction], int]) -> int:
        """The sum over all instructions that warpgroups executed."""
        return sum(
            visits.warps // WARPS * sum(map(amount, visits.block.instructions)) for visits in self._visits.values()
        )

    @property
    def lines(self) -> tuple[LineTraffic, ...]:
        """Memory traffic by PTX instruction, in the order of the file."""
        return tuple(sorted(self._line_traffic(), key=lambda entry: (entry.line, entry.space)))

    def _line_traffic(self) -> Iterator[LineTraffic]:
        for tally in self._tallies.values():
            where = tally.instruction
            yield LineTraffic(where.line, where.opcode, where.source, tally.space, tally.operation, tally.traffic())

    def traffic(self, space: str, operation: str) -> Traffic:
        """The sum over all instructions of a state space (``shared``, ``global``) and an operation (``ld``, ...)."""
        total = Traffic()
        for tally in self._tallies.values():
            if (tally.space, tally.operation) == (space, operation):
                total += tally.traffic()
        return total

    def as_dict(self) -> dict[str, int]:
        """All counters that Nsight Compute has too, by its names."""
        counts: dict[str, int] = {}
        for operation in ("ld", "st", "atom"):
            shared = self.traffic("shared", operation)
            counts[names.CONFLICTS.format(operation)] = shared.conflicts
            counts[names.WAVEFRONTS.format(operation)] = shared.wavefronts
        for operation in ("ld", "st", "atom"):
            memory = self.traffic("global", operation)
            counts[names.GLOBAL_SECTORS.format(operation)] = memory.sectors
            counts[names.GLOBAL_REQUESTS.format(operation)] = memory.requests
        opcodes = self.opcodes
        counts[names.LDSM] = _issued(opcodes, "ldmatrix.")
        counts[names.TENSOR] = _issued(opcodes, "mma.") + _issued(opcodes, "wgmma.mma_async.")
        return counts


def _issued(opcodes: Counter[str], prefix: str) -> int:
    return sum(count for opcode, count in opcodes.items() if opcode.startswith(prefix))
