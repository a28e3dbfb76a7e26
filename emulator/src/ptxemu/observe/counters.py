"""What a launch cost, in Nsight Compute's terms: wavefronts, bank conflicts, sectors, executed instructions.

The numbers that ``ncu`` gives on a GPU follow from the addresses and the masks alone, so a machine without one can
show them too, and by PTX line. The names in `Counters.as_dict` are ncu's own. What depends on timing or on SASS
(replays, registers, ``smsp__inst_executed``) has no counterpart here: PTX instructions are counted under PTX names.

    counters = Counters()
    kernel.launch(grid, block, arguments, observers=[counters])
    counters.as_dict()["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
import operator

import numpy as np

from ptxemu.machine.control import Block
from ptxemu.machine.core import Machine, Step
from ptxemu.machine.observer import Access, Copy, Global, Observer, Transfer
from ptxemu.syntax.tree import Instruction, SourceLine, Vector
from ptxemu.values import WARP, Array, BoolArray, Shape3

# Metrics of Nsight Compute, by its names.
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
GLOBAL_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum"
GLOBAL_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_{}.sum"
LDSM = "smsp__inst_executed_op_ldsm.sum"
TENSOR = "smsp__inst_executed_pipe_tensor.sum"
SHORT = {
    "shared_ld_conflicts": CONFLICTS.format("ld"),
    "shared_st_conflicts": CONFLICTS.format("st"),
    "shared_ld_wavefronts": WAVEFRONTS.format("ld"),
    "shared_st_wavefronts": WAVEFRONTS.format("st"),
    "global_ld_sectors": GLOBAL_SECTORS.format("ld"),
    "global_st_sectors": GLOBAL_SECTORS.format("st"),
    "global_ld_requests": GLOBAL_REQUESTS.format("ld"),
    "global_st_requests": GLOBAL_REQUESTS.format("st"),
    "ldsm": LDSM,
    "tensor": TENSOR,
}
"""Short names of some of them."""
BANKS = 32
WORD = 4  # bytes that a bank delivers in one wavefront
PHASE_BYTES = BANKS * WORD
SECTOR = 32  # bytes
LARGEST = 4096  # addresses of a pattern that is remembered; larger ones are computed each time
_ABSENT = np.iinfo(np.int64).max  # stands for a lane that takes no part; sorts behind every address


def _distinct(items: Array) -> tuple[Array, BoolArray]:
    """Each row of the last axis sorted, and a mask of the first occurrences of what is present."""
    ordered = np.sort(items, axis=-1)
    first = ordered != _ABSENT
    first[..., 1:] &= ordered[..., 1:] != ordered[..., :-1]
    return ordered, first


def _present(units: Array, mask: BoolArray | None) -> Array:
    return units if mask is None else np.where(mask, units, _ABSENT)


def wavefronts(
    address: Array, width: int, mask: BoolArray | None = None, *, lanes: int | None = None
) -> tuple[Array, Array]:
    """Wavefronts and phases of shared-memory accesses, one number per warp.

    Args:
        address: bytes, (..., n): n = 32 lanes, or 8 rows per matrix of an ``ldmatrix`` (width 16).
        width: bytes per lane or row: 1, 2, 4, 8 or 16.
        mask: lanes that take part, same shape as `address`; None for all.
        lanes: lanes of a phase; None for as many as fill 128 bytes.

    Returns:
        Two integer arrays of shape ``address.shape[:-1]``; a phase without active lanes counts in neither.
    """
    words = max(1, width // WORD)
    lanes = lanes or BANKS // words
    first_word = _present((address // np.uint64(WORD)).astype(np.int64), mask)
    rows = first_word.reshape(*address.shape[:-1], -1, lanes)
    if words > 1:
        spread = rows[..., None] + np.arange(words)
        rows = np.where(rows[..., None] == _ABSENT, _ABSENT, spread).reshape(*rows.shape[:-1], -1)
    ordered, first = _distinct(rows)
    phases = int(np.prod(rows.shape[:-1]))
    bank = np.arange(phases).reshape(*rows.shape[:-1], 1) * BANKS + ordered % BANKS
    load = np.bincount(bank[first], minlength=phases * BANKS).reshape(*rows.shape[:-1], BANKS)
    busiest = load.max(axis=-1)
    return busiest.sum(axis=-1), (busiest > 0).sum(axis=-1)


def load_wavefronts(address: Array, width: int, mask: BoolArray | None = None) -> tuple[Array, Array]:
    """`wavefronts` of ``ld.shared``: a phase has twice the lanes where all lanes agree with a neighbour.

    A load of 8 or 16 bytes per lane is served in one or two phases instead of two or four when every active lane reads
    the address of lane ``l ^ 1`` (or every one that of lane ``l ^ 2``), inactive neighbours aside. Stores and
    ``ldmatrix`` have no such rule.
    """
    if width <= WORD:
        return wavefronts(address, width, mask)
    merged = np.zeros(address.shape[:-1], dtype=np.bool_)
    lanes = np.arange(address.shape[-1])
    for distance in (1, 2):
        agrees = address == address[..., lanes ^ distance]
        if mask is not None:
            agrees |= ~(mask & mask[..., lanes ^ distance])
        merged |= agrees.all(axis=-1)
    single = wavefronts(address, width, mask)
    if not merged.any():
        return single
    double = wavefronts(address, width, mask, lanes=2 * PHASE_BYTES // width)
    return np.where(merged, double[0], single[0]), np.where(merged, double[1], single[1])


def bypass_sectors(address: Array, width: int, mask: BoolArray | None = None) -> tuple[Array, Array]:
    """What ncu calls sectors of ``cp.async.cg``, which passes L1 by: distinct 128-byte lines of each pair of lanes."""
    del width
    pairs = _present((address // np.uint64(PHASE_BYTES)).astype(np.int64), mask)
    _, first = _distinct(pairs.reshape(*address.shape[:-1], -1, 2))
    found = first.sum(axis=(-1, -2))
    return found, (found > 0).astype(np.int64)


def sectors(address: Array, width: int, mask: BoolArray | None = None) -> tuple[Array, Array]:
    """Sectors and requests of global-memory accesses, one number per warp.

    Args:
        address: bytes, (..., 32), aligned to `width`, so that a lane touches one sector.
        width: bytes per lane, at most 16.
        mask: lanes that take part, same shape as `address`; None for all.

    Returns:
        Two integer arrays of shape ``address.shape[:-1]``: distinct sectors, and 1 where any lane takes part.
    """
    del width  # an aligned access of up to 32 bytes never crosses a sector
    _, first = _distinct(_present((address // np.uint64(SECTOR)).astype(np.int64), mask))
    found = first.sum(axis=-1)
    return found, (found > 0).astype(np.int64)


Rule = Callable[[Array, int, "BoolArray | None"], tuple[Array, Array]]


@dataclass
class Patterns:
    """The totals of a rule over a slice of the grid, remembered by address pattern: loops repeat the same few.

    Attributes:
        rule: `wavefronts`, `sectors` or one of their kin.
        period: a shift of all addresses of a block by a multiple of this many bytes does not change the result.
        limit: patterns that are remembered, of at most `LARGEST` addresses each.
    """

    rule: Rule
    period: int
    limit: int = 4096
    _known: dict[tuple[int, tuple[int, ...], bytes, bytes], tuple[Array, Array]] = field(default_factory=dict)

    def total(self, address: Array, width: int, mask: BoolArray | None, blocks: int, warps: int) -> tuple[int, int]:
        """The rule's two numbers, summed over all warps of a slice of `blocks` x `warps`.

        `address` and `mask` follow the convention of `values`: any axis may have length 1.
        """
        if address.shape[2] == 1:
            address = np.broadcast_to(address, (*address.shape[:2], WARP))
        if address.shape[0] > 1:  # the pattern of one block, where those of all are the same but for a harmless shift
            start = address[:, :1, :1]
            shifted = address - (start - start % np.uint64(self.period))
            address = shifted[:1] if (shifted == shifted[:1]).all() else address
        if mask is None:
            first, second = self._lookup(address, width, None)
            times = (blocks // address.shape[0]) * (warps // address.shape[1])
            return int(first.sum()) * times, int(second.sum()) * times
        active = mask.any(axis=2)
        if mask.shape[2] == 1 or (active == mask.all(axis=2)).all():  # whole warps: the pattern does not depend on it
            first, second = self._lookup(address, width, None)
            weight = np.broadcast_to(active, (blocks, warps)).astype(np.int64)
            return int((weight * first).sum()), int((weight * second).sum())
        shape = np.broadcast_shapes(address.shape, mask.shape)
        first, second = self._lookup(np.broadcast_to(address, shape), width, np.broadcast_to(mask, shape))
        times = (blocks // shape[0]) * (warps // shape[1])
        return int(first.sum()) * times, int(second.sum()) * times

    def _lookup(self, address: Array, width: int, mask: BoolArray | None) -> tuple[Array, Array]:
        if address.size > LARGEST:
            return self.rule(address, width, mask)
        key = (width, address.shape, address.tobytes(), b"" if mask is None else mask.tobytes())
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self.limit:
                self._known.clear()
            known = self._known[key] = self.rule(address, width, mask)
        return known


WARPS = 4  # of a warpgroup
ROW_BYTES = 32  # of A and B along K
M = 64
SHARED_BYTES = 128  # that an SM's shared memory delivers in a cycle
COLUMNS_PER_CYCLE = 2
PRODUCT = "wgmma.mma_async."


def columns(instruction: Instruction) -> int:
    """N of a ``wgmma.mma_async``."""
    return int(instruction.opcode.split(".")[4].partition("n")[2].partition("k")[0])


def tensor_cycles(instruction: Instruction) -> int:
    """Cycles of the tensor cores for a warpgroup's instruction, 0 for others."""
    return columns(instruction) // COLUMNS_PER_CYCLE if instruction.opcode.startswith(PRODUCT) else 0


def operand_bytes(instruction: Instruction) -> int:
    """Bytes of shared memory that it reads, 0 for others."""
    if not instruction.opcode.startswith(PRODUCT):
        return 0
    rows = columns(instruction) + (0 if isinstance(instruction.operands[1], Vector) else M)
    return rows * ROW_BYTES


def cycles(instruction: Instruction) -> int:
    """Cycles at best: those of the tensor cores, or of shared memory where that takes longer."""
    return max(tensor_cycles(instruction), operand_bytes(instruction) // SHARED_BYTES)


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
        return Traffic(*map(operator.add, astuple(self), astuple(other)))


@dataclass(frozen=True)
class LineTraffic:
    """The traffic of one PTX instruction; `operation` as of `Counters.traffic`, `source` its CUDA line."""

    line: int
    opcode: str
    source: SourceLine | None
    space: str
    operation: str
    traffic: Traffic


@dataclass(frozen=True)
class SourceConflicts:
    """Bank conflicts of one CUDA source line, reached by one chain of calls.

    Attributes:
        opcode: of the PTX instructions.
        chain: source lines, innermost first; empty without ``-lineinfo``.
        ptx_lines: lines of the instructions in the PTX file.
        traffic: their sum.
    """

    opcode: str
    chain: tuple[str, ...]
    ptx_lines: tuple[int, ...]
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
        first = (self.first, self.phases, 0) if self.space == "shared" else (0, 0, self.first)
        return Traffic(self.requests, *first)


@dataclass
class _Runs:
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
    _runs: dict[int, _Runs] = field(default_factory=dict, repr=False)
    _shared: Patterns = field(default_factory=lambda: Patterns(wavefronts, PHASE_BYTES), repr=False)
    _shared_loads: Patterns = field(default_factory=lambda: Patterns(load_wavefronts, PHASE_BYTES), repr=False)
    _global: Patterns = field(default_factory=lambda: Patterns(sectors, SECTOR), repr=False)
    _bypassing: Patterns = field(default_factory=lambda: Patterns(bypass_sectors, PHASE_BYTES), repr=False)

    def start(self, machine: Machine) -> None:
        """Remembers the shape of the slice that begins."""
        self._shape = machine.shape

    def block(self, block: Block, mask: BoolArray | None) -> None:
        """Counts a visit to a basic block; its instructions are counted when the numbers are read."""
        runs = self._runs.setdefault(id(block), _Runs(block))
        runs.warps += self._warps(mask)
        runs.lanes += self._lanes(mask)

    def access(self, step: Step, access: Access) -> None:
        """Counts the wavefronts or sectors of one instruction."""
        if access.space == "shared" and access.kind == "cp.async":
            return  # ncu does not count what LDGSTS writes as shared stores
        fresh = _Tally(step.instruction, access.space, OPERATIONS[access.kind])
        tally = self._tallies.setdefault((id(step.instruction), access.space), fresh)
        blocks, warps, _ = self._shape
        patterns = self._shared_loads if access.kind == "ld" else self._shared
        if access.space == "global":
            patterns = self._bypassing if step.instruction.opcode.startswith("cp.async.cg.") else self._global
        first, second = patterns.total(access.address, access.width, access.mask, blocks, warps)
        tally.first += first
        if access.space == "shared":
            tally.phases += second
            tally.requests += self._warps(access.mask)
        else:
            tally.requests += second

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
        for runs in self._runs.values():
            for instruction in runs.block.instructions:
                counts[instruction.opcode] += runs.warps
        return counts

    @property
    def warp_instructions(self) -> int:
        """Executed PTX instructions, one per warp with any active lane."""
        return sum(runs.warps * len(runs.block.instructions) for runs in self._runs.values())

    @property
    def lane_instructions(self) -> int:
        """Executed PTX instructions, one per active lane."""
        return sum(runs.lanes * len(runs.block.instructions) for runs in self._runs.values())

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
        return sum(runs.warps // WARPS * sum(map(amount, runs.block.instructions)) for runs in self._runs.values())

    @property
    def lines(self) -> tuple[LineTraffic, ...]:
        """Memory traffic by PTX instruction, in the order of the file."""
        found = [
            LineTraffic(where.line, where.opcode, where.source, each.space, each.operation, each.traffic())
            for each in self._tallies.values()
            for where in (each.instruction,)
        ]
        return tuple(sorted(found, key=lambda entry: (entry.line, entry.space)))

    def traffic(self, space: str, operation: str) -> Traffic:
        """The sum over all instructions of a state space (``shared``, ``global``) and an operation (``ld``, ...)."""
        chosen = [each for each in self._tallies.values() if (each.space, each.operation) == (space, operation)]
        return sum((tally.traffic() for tally in chosen), Traffic())

    def as_dict(self) -> dict[str, int]:
        """All counters that Nsight Compute has too, by its names."""
        counts: dict[str, int] = {}
        for operation in ("ld", "st", "atom"):
            shared, memory = self.traffic("shared", operation), self.traffic("global", operation)
            counts[CONFLICTS.format(operation)] = shared.conflicts
            counts[WAVEFRONTS.format(operation)] = shared.wavefronts
            counts[GLOBAL_SECTORS.format(operation)] = memory.sectors
            counts[GLOBAL_REQUESTS.format(operation)] = memory.requests
        for name, prefixes in ((LDSM, "ldmatrix."), (TENSOR, ("mma.", "wgmma.mma_async."))):
            counts[name] = sum(count for opcode, count in self.opcodes.items() if opcode.startswith(prefixes))
        return counts

    def short(self) -> dict[str, tuple[int, str]]:
        """Counters by short name, sorted: the value, and Nsight Compute's name or a description.

        The names of bulk copies and of ``wgmma`` are there only where the kernel executes them.
        """
        nsight = self.as_dict()
        found = {short: (nsight[name], name) for short, name in SHORT.items()}
        for operation in ("ld", "st"):
            ideal = self.traffic("shared", operation).phases
            found[f"shared_{operation}_ideal"] = (ideal, "wavefronts of the same accesses without conflicts")
        found["cp_async_bytes"] = (self.copied_bytes, "bytes written to shared memory by cp.async")
        found["ptx_instructions"] = (self.warp_instructions, "executed by warps; SASS has other ones")
        if self.bulk_bytes:
            found["bulk_bytes"] = (self.bulk_bytes, "bytes that the copy engine moved")
            for operation, did in (("ld", "read"), ("st", "wrote")):
                touched = self.traffic("global", f"bulk {operation}").sectors
                found[f"bulk_{operation}_sectors"] = (touched, f"sectors of global memory that it {did}")
        if self.tensor_cycles:
            found["wgmma_cycles"] = (self.wgmma_cycles, "of one SM's tensor cores, at best, for all wgmma")
            found["wgmma_shared_bytes"] = (self.wgmma_shared_bytes, "bytes of shared memory that wgmma read")
        return dict(sorted(found.items()))

    def conflicts(self, wrappers: Sequence[str] = ()) -> list[SourceConflicts]:
        """Bank conflicts by CUDA source line, worst first.

        Args:
            wrappers: how the names of source files begin whose lines say little, such as one-instruction functions.
                They are left out of a chain of calls, unless it has no other lines.
        """
        groups: dict[tuple[str, str, tuple[str, ...]], list[LineTraffic]] = {}
        for entry in self.lines:
            if entry.space == "shared" and entry.traffic.conflicts:
                groups.setdefault((entry.opcode, entry.operation, _chain(entry, tuple(wrappers))), []).append(entry)
        found = [
            SourceConflicts(opcode, chain, tuple(e.line for e in entries), sum((e.traffic for e in entries), Traffic()))
            for (opcode, _, chain), entries in groups.items()
        ]
        return sorted(found, key=lambda one: (-one.traffic.conflicts, one.ptx_lines))

    def facts(self, wrappers: Sequence[str] = ()) -> dict[str, object]:
        """All counters by both names, executed opcodes and `conflicts`, ready for `json.dumps`."""
        conflicts = [
            {
                "opcode": one.opcode,
                "source": list(one.chain),
                "ptx_lines": list(one.ptx_lines),
                "conflicts": one.traffic.conflicts,
                "wavefronts": one.traffic.wavefronts,
                "ideal": one.traffic.phases,
            }
            for one in self.conflicts(wrappers)
        ]
        return {
            "short": {name: value for name, (value, _) in self.short().items()},
            "nsight": self.as_dict(),
            "opcodes": dict(self.opcodes.most_common()),
            "bank_conflicts": conflicts,
        }


def _chain(entry: LineTraffic, wrappers: tuple[str, ...]) -> tuple[str, ...]:
    """The CUDA lines that lead to an instruction, innermost first."""
    chain, source = [], entry.source
    while source is not None:
        chain.append(str(source))
        source = source.inlined_at
    telling = [line for line in chain if not line.startswith(wrappers)]
    return tuple(telling or chain)
