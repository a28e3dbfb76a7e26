"""Simulates one SM that runs warps of a kernel: its rates, the needs of each machine instruction, and the simulation.

Four schedulers issue in order, one instruction per clock. Each is greedy: it stays with the warp that it issued last as
long as that warp can issue. A warp's next instruction starts when its stall has passed, its scoreboards are clear, the
mma that it depends on are done, and its pipe is free. All warps repeat the same steps; the simulation counts their
rounds after they have begun to run apart. A formula would not do: two warps share a scheduler, and the ladder's second
half is about whether one of them waits while the other multiplies.

Rates and latencies come from ``configs/gpus/``. `ASSUMED` has the numbers that are neither measured nor documented, the
same for all GPUs and fitted to none. An opcode that no table lists is an error, never a guess.

Try ``simulate(steps_of(instructions, cubin.text, chip), chip, ctas=2, warps=4).clocks``.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
import heapq
import math
import re
from typing import Literal, NamedTuple

from flashladder.errors import FlashladderError
from flashladder.ladder.gpus import Gpu
from flashladder.machine_code.executions import operands, written_by
from flashladder.machine_code.ptxas import WARP
from flashladder.machine_code.sass import BYTES, N_BARRIERS, Instruction, control_of

SCHEDULERS = 4  # of an SM, from compute capability 7.0 on


@dataclass(frozen=True)
class Assumed:
    """Clocks and sizes that nobody documents, the same for every GPU."""

    queue: int = 8  # instructions of one scheduler that may wait for shared memory at once
    to_shared: int = 2  # clocks from issue to the pipe of shared memory
    operands_read: int = 6  # clocks until the address of a memory instruction may be overwritten
    branch: int = 8  # clocks from a taken branch to the next instruction
    launch: int = 500  # clocks from a CTA's end to the first instruction of its successor
    copy_wavefronts: int = 4  # wavefronts that a cp.async of 16 bytes per lane takes when its data are written
    variable: int = 14  # clocks of an instruction that sets a scoreboard and has no other latency here
    store: int = 20  # clocks until a store's data may be overwritten


ASSUMED = Assumed()


@dataclass(frozen=True)
class Chip:
    """One SM, in clocks and bytes."""

    # By pipe, the clocks for which an instruction of a warp holds it on one of four schedulers. ``imad`` is the FMA
    # pipe under an imad or a conversion to 16 bits, which hold it longer than an fma.
    holds: Mapping[str, float]
    latency: Mapping[str, float]  # clocks from issue to result: mma, shared, shuffle, mufu, barrier, l2
    mma_issue: float  # clocks of an mma in which the scheduler can issue nothing else
    shared_return: float  # clocks for which a wavefront of a load holds the path back to a scheduler's registers
    l2: float  # bytes per clock and SM from L2
    dram: float  # bytes per clock and SM from memory, at the boost clock
    sms: int  # of the GPU


def chip_of(gpu: Gpu) -> Chip:
    """One SM of a GPU; raises `FlashladderError` if the GPU's file lacks a rate."""
    holds = {name: SCHEDULERS / gpu.rate(name) for name in ("mma", "fma", "imad", "alu", "mufu")}
    latencies = ("mma", "shared", "shuffle", "mufu", "barrier", "l2")
    dram = gpu.peaks["memory_bandwidth"].value * 1e9 / (gpu.peaks["boost_clock"].value * 1e6)  # GB/s, MHz
    return Chip(
        holds={**holds, "uniform": 2.0},  # an instruction takes the uniform datapath for two clocks
        latency={name: gpu.rate(f"{name}_latency") for name in latencies},
        mma_issue=gpu.rate("mma_issue"),
        shared_return=gpu.rate("shared_return"),
        l2=gpu.rate("l2"),
        dram=dram / gpu.whole("sms"),
        sms=gpu.whole("sms"),
    )


Kind = Literal["plain", "mma", "shared", "copy", "commit", "wait", "barrier", "branch", "end"]
PIPES = ("mma", "fma", "alu", "mufu", "uniform")
SHARED = ("LDSM", "LDS", "STS", "SHFL", "LDG", "STG", "LDL", "STL", "LDGSTS")
_LOADS = ("LDSM", "LDS", "LDL")
_KINDS: Mapping[str, Kind] = {
    "HMMA": "mma", **dict.fromkeys(SHARED, "shared"), "LDGSTS": "copy", "LDGDEPBAR": "commit", "DEPBAR": "wait",
    "BAR": "barrier", "BRA": "branch", "EXIT": "end",
}  # fmt: skip
_OPCODES = {
    "mma": "HMMA",
    "fma": "FFMA FMUL FADD",
    "imad": "IMAD F2FP",
    "mufu": "MUFU I2F",  # the unit for exponentials also converts integers to floats
    "alu": "BMSK CS2R FMNMX FSEL FSETP HADD2 HFMA2 HMUL2 I2FP IABS IADD3 IMNMX ISETP LEA LOP3 MOV P2R PLOP3 POPC "
    "PRMT R2P SEL SGXT SHF VIADD VIMNMX VOTE",
    "uniform": "BREAK BSSY BSYNC CALL LDC NOP R2UR RET S2R S2UR WARPSYNC YIELD R2B MEMBAR ERRBAR CCTL",
}
_PIPE_OF = {opcode: pipe for pipe, text in _OPCODES.items() for opcode in text.split()}
_UNIFORM = re.compile(r"^U[A-Z]")  # the uniform datapath, one per scheduler
_REGISTER = re.compile(r"\bR(\d+)")
_GROUPS_LEFT = re.compile(r"SB\d,\s*(0x[0-9a-f]+|\d+)")
_OFF = "@!PT"  # the predicate of an instruction that never runs but takes an issue slot
_MMA_OPERANDS = (4, 4, 2, 4)  # registers of D, A, B and C of HMMA.16816.F32


@dataclass(frozen=True)
class Step:
    """One instruction of a warp."""

    kind: Kind
    pipe: int | None  # place in `PIPES`; None if it takes no pipe of a scheduler
    holds: float  # clocks for which it takes the pipe
    issues: float  # clocks in which the scheduler issues nothing else
    stall: int  # clocks to the warp's next instruction, at least
    waits: tuple[int, ...]  # scoreboards that must be clear
    written: int | None  # scoreboard that is set until its result is there
    read: int | None  # scoreboard that is set until its operands were read
    latency: float = 0.0  # clocks to its result; for a memory instruction without its wavefronts
    wavefronts: float = 0.0  # clocks for which it takes the pipe of shared memory
    returns: float = 0.0  # clocks for which its result takes the path back
    copied: int = 0  # bytes from L2
    left: int = 0  # groups of copies that a wait leaves in flight
    after: tuple[int, ...] = ()  # registers that it reads and an mma may still be writing
    makes: tuple[int, ...] = ()  # registers that an mma writes


def steps_of(instructions: Sequence[Instruction], text: bytes, chip: Chip, conflicts: float = 1.0) -> tuple[Step, ...]:
    """Instructions, in the order in which a warp runs them, as steps; `FlashladderError` for an unknown opcode.

    `text` is the kernel's ``.text`` section, `conflicts` the wavefronts of an ldmatrix over those without conflicts.
    """
    known = {one.address: _step(one, text, chip, conflicts) for one in dict.fromkeys(instructions)}
    return tuple(known[one.address] for one in instructions)


def _step(one: Instruction, text: bytes, chip: Chip, conflicts: float) -> Step:
    code = control_of(text[one.address : one.address + BYTES])
    opcode = "NOP" if one.predicate == _OFF else one.opcode
    name = opcode.partition(".")[0]
    kind = _KINDS.get(name, "plain")
    pipe = None
    if kind in ("plain", "mma") and not (pipe := _PIPE_OF.get(name, "uniform" if _UNIFORM.match(name) else None)):
        hint = "add its opcode to flashladder/explain/simulate.py"
        what = "the model does not know what an instruction takes"
        raise FlashladderError(what, where=f"address {one.address:#x}", found=str(one), hint=hint)
    waves = _wavefronts(opcode, conflicts) if kind in ("shared", "copy") else 0.0
    left = _GROUPS_LEFT.search(one.operands) if kind == "wait" else None
    named = tuple(int(name) for name in _REGISTER.findall(one.operands.partition(",")[2]))
    made, *sources = _registers(one.operands) if kind == "mma" else [(), named]
    return Step(
        kind=kind,
        pipe=None if pipe is None else PIPES.index("fma" if pipe == "imad" else pipe),
        holds=0.0 if pipe is None else chip.holds[pipe],
        issues=chip.mma_issue if kind == "mma" else 1.0,
        stall=max(1, code.stall),
        waits=code.waits,
        written=code.write,
        read=code.read,
        latency=_latency(name, chip),
        wavefronts=waves,
        returns=waves * chip.shared_return if name in _LOADS else 0.0,
        copied=_bytes_per_lane(opcode) * WARP if kind == "copy" else 0,
        left=int(left[1], 0) if left else 0,
        after=sum(sources, ()),  # of an mma all of A, B and C
        makes=made,
    )


def _bytes_per_lane(opcode: str) -> int:
    """Bytes per lane that a memory instruction moves: 4 unless its opcode says 64 or 128 bits."""
    parts = opcode.split(".")
    return 16 if "128" in parts else 8 if "64" in parts else 4


def _wavefronts(opcode: str, conflicts: float) -> float:
    """Wavefronts of 128 bytes: one per matrix of an ldmatrix, times `conflicts`; other accesses have no conflicts."""
    name, _, rest = opcode.partition(".")
    if name == "LDSM":
        return float(rest.rpartition(".")[2]) * conflicts if rest[-1].isdigit() else conflicts
    if name == "LDGSTS":
        return ASSUMED.copy_wavefronts * _bytes_per_lane(opcode) / 16
    return _bytes_per_lane(opcode) / 4


def _latency(name: str, chip: Chip) -> float:
    fixed = {"STG": ASSUMED.store, "STL": ASSUMED.store, "LDGSTS": 0.0}
    by_kind = {"HMMA": "mma", "MUFU": "mufu", "SHFL": "shuffle", "LDG": "l2"}
    by_kind |= dict.fromkeys(("LDSM", "LDS", "LDL", "STS"), "shared")
    return chip.latency[by_kind[name]] if name in by_kind else fixed.get(name, ASSUMED.variable)


def _registers(operands: str) -> list[tuple[int, ...]]:
    """Registers of D, A, B and C of an mma."""
    firsts = (_REGISTER.search(part) for part in operands.split(","))
    sized = zip(firsts, _MMA_OPERANDS, strict=False)
    return [tuple(range(int(first[1]), int(first[1]) + size)) if first else () for first, size in sized]


ROUNDS = 3  # of which the first fills the registers
FIXED = 4.0  # clocks from an instruction of a fixed-latency pipe to one that reads its result, as ptxas spaces them
_NAMES = re.compile(r"\bU?[RP]\d+")


def chain(block: Sequence[Instruction], steps: Sequence[Step]) -> float:
    """Clocks of the longest dependence path through one KV block, given as instructions and as steps."""
    there: dict[str, float] = {}
    floor = last = 0.0
    ends = []
    for _ in range(ROUNDS):
        for one, step in zip(block, steps, strict=True):
            text = one.operands if step.kind in ("copy", "wait") else one.operands.partition(",")[2]
            read = [*_NAMES.findall(f"{one.predicate} {text}"), *(f"R{number}" for number in step.after)]  # or more
            has_latency = step.kind in ("mma", "shared", "copy") or step.written is not None
            start = max([floor, *(there.get(name, 0.0) for name in read)])
            done = start + (step.latency + step.returns if has_latency else FIXED)
            if step.kind in ("barrier", "wait"):
                floor = done = max(last, done)
            last = max(last, done)
            written = [*(written_by(one, operands(one)) or ()), *(f"R{register}" for register in step.makes)]
            there |= dict.fromkeys(written, done)
        ends.append(last)
    return (ends[-1] - ends[0]) / (ROUNDS - 1)


REGISTERS = 256
GROUPS = 8  # of copies to remember; no kernel has more in flight


class Rounds(NamedTuple):
    """The result of a simulation."""

    clocks: float  # for one round of every warp
    idle: dict[str, float]  # share of the clocks without an issue, by what the next warp to issue waited for


@dataclass
class _Warp:
    cta: int
    scheduler: int
    ready: float  # clock at which its stall ends
    at: int = 0  # its next step
    held: bool = False  # at a barrier
    boards: list[float] = field(default_factory=lambda: [0.0] * N_BARRIERS)  # clocks at which scoreboards clear
    made: list[float] = field(default_factory=lambda: [0.0] * REGISTERS)  # clocks at which mma results are there
    copied: float = 0.0  # clock at which its last copy lands
    groups: deque[float] = field(default_factory=lambda: deque(maxlen=GROUPS))  # the same for its last groups


@dataclass
class _Scheduler:
    """A quarter of the SM."""

    warps: list[_Warp] = field(default_factory=list)
    pipes: list[float] = field(default_factory=lambda: [0.0] * len(PIPES))  # clocks at which its pipes are free
    waiting: deque[float] = field(default_factory=deque)  # clocks at which its accesses reach shared memory
    way_back: float = 0.0  # clock at which the path back from shared memory is free
    last: _Warp | None = None
    wakes: float = 0.0


class _Sm:
    def __init__(self, steps: Sequence[Step], chip: Chip, ctas: int, warps: int, apart: float) -> None:
        self.steps, self.chip = steps, chip
        self.schedulers = [_Scheduler() for _ in range(SCHEDULERS)]
        self.warps_per_cta, self.rounds = warps, 0
        self.arrived: list[list[_Warp]] = [[] for _ in range(ctas)]
        self.shared = self.l2 = 0.0
        self.idle: defaultdict[str, float] = defaultdict(float)
        self.queue = [(0.0, place) for place in range(SCHEDULERS)]
        for cta in range(ctas):
            for warp in range(warps):
                place = (cta * warps + warp) % SCHEDULERS
                self.schedulers[place].warps.append(_Warp(cta, place, cta * apart))

    @property
    def progress(self) -> float:
        """Rounds of all warps, with the finished parts of current rounds."""
        return self.rounds + sum(warp.at for one in self.schedulers for warp in one.warps) / len(self.steps)

    def run(self, rounds: int) -> float:
        """Simulates until the warps have made `rounds` rounds in total; returns the clock at that time."""
        while self.queue:
            now, place = heapq.heappop(self.queue)
            scheduler = self.schedulers[place]
            if now != scheduler.wakes:
                continue  # another event woke it earlier
            warp, then, why = self._choose(scheduler, now)
            if warp is None:
                if then < math.inf:
                    self.idle[why] += then - now
                self._wake(place, then)
                continue
            step = self.steps[warp.at]
            scheduler.last = warp
            self._issue(scheduler, warp, step, now)
            self._wake(place, now + step.issues)
            if warp.at == 0 and self.rounds >= rounds:
                return now
        raise FlashladderError("the warps wait for each other", found="a barrier that not all warps of a CTA reach")

    def _wake(self, place: int, then: float) -> None:
        self.schedulers[place].wakes = then
        if then < math.inf:
            heapq.heappush(self.queue, (then, place))

    def _choose(self, scheduler: _Scheduler, now: float) -> tuple[_Warp | None, float, str]:
        """The warp that issues now; or None, the clock at which one can, and its reason to wait."""
        then, why = math.inf, ""
        for warp in (scheduler.last, *scheduler.warps):
            if warp is not None and not warp.held:
                at, reason = self._earliest(scheduler, warp, now)
                if at <= now:
                    return warp, now, ""
                if at < then:
                    then, why = at, reason
        return None, then, why

    def _earliest(self, scheduler: _Scheduler, warp: _Warp, now: float) -> tuple[float, str]:
        """The earliest clock for a warp's next instruction, and what decides it."""
        step = self.steps[warp.at]
        at, why = warp.ready, "dependence"
        for board in step.waits:
            if warp.boards[board] > at:
                at, why = warp.boards[board], "scoreboard"
        made = warp.made
        for register in step.after:
            if made[register] > at:
                at, why = made[register], "mma result"
        if step.pipe is not None:
            if scheduler.pipes[step.pipe] > at:
                at, why = scheduler.pipes[step.pipe], PIPES[step.pipe] + " pipe"
        elif step.wavefronts:
            waiting = scheduler.waiting
            while waiting and waiting[0] <= now:
                waiting.popleft()
            if len(waiting) >= ASSUMED.queue and waiting[-ASSUMED.queue] > at:
                at, why = waiting[-ASSUMED.queue], "shared memory"
        elif step.kind == "wait" and len(warp.groups) > step.left:
            landed = max(list(warp.groups)[: len(warp.groups) - step.left])
            if landed > at:
                at, why = landed, "copies"
        return at, why

    def _issue(self, scheduler: _Scheduler, warp: _Warp, step: Step, now: float) -> None:
        warp.ready = now + step.stall
        done, read = now + step.latency, now + ASSUMED.operands_read
        if step.pipe is not None:
            scheduler.pipes[step.pipe] = now + step.holds
            for register in step.makes:
                warp.made[register] = done
        elif step.wavefronts:
            done, read = self._access(scheduler, warp, step, now)
        elif step.kind == "commit":
            warp.groups.append(warp.copied)
        elif step.kind == "branch":
            warp.ready = now + max(step.stall, ASSUMED.branch)
        elif step.kind in ("barrier", "end"):
            self._arrive(warp, now, self.chip.latency["barrier"] if step.kind == "barrier" else ASSUMED.launch)
        if step.written is not None and done > warp.boards[step.written]:
            warp.boards[step.written] = done
        if step.read is not None and read > warp.boards[step.read]:
            warp.boards[step.read] = read
        warp.at += 1
        if warp.at == len(self.steps):
            warp.at = 0
            self.rounds += 1

    def _access(self, scheduler: _Scheduler, warp: _Warp, step: Step, now: float) -> tuple[float, float]:
        """Clocks at which an access to shared memory, a shuffle or a copy has its result and has read its operands."""
        start = max(now + ASSUMED.to_shared, self.shared)
        self.shared = start + step.wavefronts
        scheduler.waiting.append(start)
        latency = step.latency - ASSUMED.to_shared
        if step.kind == "copy":
            self.l2 = max(self.l2, start) + step.copied / self.chip.l2
            warp.copied = max(warp.copied, self.l2 + self.chip.latency["l2"])
            return warp.copied, start + ASSUMED.operands_read
        if step.returns:  # the first wavefront is in the latency
            scheduler.way_back = max(scheduler.way_back, start) + step.returns
            done = max(start + step.returns - self.chip.shared_return, scheduler.way_back) + latency
        else:
            done = start + step.wavefronts + latency
        return done, start + ASSUMED.operands_read

    def _arrive(self, warp: _Warp, now: float, latency: float) -> None:
        """Holds a warp at a barrier until all warps of its CTA are there."""
        there = self.arrived[warp.cta]
        there.append(warp)
        warp.held = True
        if len(there) < self.warps_per_cta:
            return
        for one in there:
            one.held = False
            one.ready = max(one.ready, now + latency)
            if one.scheduler != warp.scheduler and self.schedulers[one.scheduler].wakes > one.ready:
                self._wake(one.scheduler, one.ready)
        there.clear()


def simulate(
    steps: Sequence[Step], chip: Chip, *, ctas: int, warps: int, rounds: int = 6, skipped: int = 2, apart: float = 0.0
) -> Rounds:
    """Repeats `steps` in every warp of one SM.

    `steps` are one round: a KV block, or a CTA from its first instruction to its last. The SM holds `ctas` of `warps`
    warps each, which start `apart` clocks after each other. It counts `rounds` of every warp, after `skipped` ones.
    Raises `FlashladderError` if warps wait at a barrier that others never reach.
    """
    sm = _Sm(steps, chip, ctas, warps, apart)
    n = ctas * warps
    begin = sm.run(skipped * n)
    made, before = sm.progress, dict(sm.idle)
    span = sm.run((skipped + rounds) * n) - begin
    idle = {why: (clocks - before.get(why, 0.0)) / span / SCHEDULERS for why, clocks in sm.idle.items()}
    return Rounds(span * n / (sm.progress - made), dict(sorted(idle.items(), key=lambda item: -item[1])))
