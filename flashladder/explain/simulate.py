"""One SM that runs warps: its rates, what each machine instruction asks of it, and the simulation.

Four schedulers issue in order, one instruction per clock, of the warp that each issued last as long as it can, else of
the next one (greedy). A warp's next instruction starts when its stall has passed, its scoreboards are clear, the mma
that it depends on are done, and its pipe is free. All warps run the same steps, over and over; what is counted is how
many rounds they make, once they have begun to run apart. A simulation and not a formula, because two warps share a
scheduler, and whether one waits while the other multiplies is what the ladder's second half is about.

Rates and latencies come from ``configs/gpus/``, as they are measured and documented; what neither gives is in
`ASSUMED`, one number for all GPUs, fitted to none. An opcode that stands in no table here is an error, never a guess.

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
from flashladder.machine_code.sass import BYTES, N_BARRIERS, Instruction, control_of

SCHEDULERS = 4  # of an SM, from compute capability 7.0 on
DRAM_UNIT = 1e9  # GB/s


@dataclass(frozen=True)
class Assumed:
    """Clocks and sizes that nobody documents, the same for every GPU."""

    queue: int = 8  # instructions of one scheduler that may wait for shared memory before the next one cannot be issued
    to_shared: int = 2  # clocks from issue to the pipe of shared memory
    operands_read: int = 6  # clocks until the address of a memory instruction may be overwritten
    branch: int = 8  # clocks from a branch that is taken to the next instruction
    launch: int = 500  # clocks from a CTA's end to the first instruction of the next one in its place
    copy_wavefronts: int = 4  # wavefronts that a cp.async of 16 bytes per lane takes when its data are written
    variable: int = 14  # clocks of an instruction that sets a scoreboard and has no latency of its own here
    store: int = 20  # clocks until a store's data may be overwritten


ASSUMED = Assumed()


@dataclass(frozen=True)
class Chip:
    """One SM in clocks; of a pipe, those for which an instruction of a warp holds it on one of four schedulers."""

    mma: float  # tensor pipe; `mma_issue` of those clocks the scheduler can issue nothing else
    mma_issue: float
    # the other pipes; an imad, and a conversion to 16 bit, hold the FMA pipe for longer than an fma: mixed rounds on
    # the chip take the sum of both
    fma: float
    imad: float
    alu: float
    mufu: float
    l2: float  # bytes per clock and SM from L2; `dram` from memory, at the boost clock
    dram: float
    # from issue to result
    mma_latency: float
    shared_latency: float
    shared_return: float  # clocks for which each wavefront of a load holds the way back into a scheduler's registers
    shuffle_latency: float
    mufu_latency: float
    barrier_latency: float
    l2_latency: float
    sms: int  # of the GPU


def chip_of(gpu: Gpu) -> Chip:
    """One SM of a GPU.

    Raises:
        FlashladderError: the GPU's file lacks a rate.
    """
    pipes = {name: SCHEDULERS / gpu.rate(name) for name in ("mma", "fma", "imad", "alu", "mufu")}
    latencies = ("mma", "shared", "shuffle", "mufu", "barrier", "l2")
    per_clock = gpu.peaks["memory_bandwidth"].value * DRAM_UNIT / (gpu.peaks["boost_clock"].value * 1e6)
    return Chip(
        **pipes,
        **{f"{name}_latency": gpu.rate(f"{name}_latency") for name in latencies},
        mma_issue=gpu.rate("mma_issue"),
        shared_return=gpu.rate("shared_return"),
        l2=gpu.rate("l2"),
        dram=per_clock / gpu.whole("sms"),
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
    "mufu": "MUFU I2F",  # whole numbers become floats where exponentials are made
    "alu": "BMSK CS2R FMNMX FSEL FSETP HADD2 HFMA2 HMUL2 I2FP IABS IADD3 IMNMX ISETP LEA LOP3 MOV P2R PLOP3 POPC "
    "PRMT R2P SEL SGXT SHF VIADD VIMNMX VOTE",
    "uniform": "BREAK BSSY BSYNC CALL LDC NOP R2UR RET S2R S2UR WARPSYNC YIELD R2B MEMBAR ERRBAR CCTL",
}
_SHARED_PIPE = {"imad": "fma"}  # what takes a pipe for another time than most of its instructions
_PIPE_OF = {opcode: pipe for pipe, text in _OPCODES.items() for opcode in text.split()}
_UNIFORM = re.compile(r"^U[A-Z]")  # the uniform datapath: one for a scheduler
_REGISTER = re.compile(r"\bR(\d+)")
_GROUPS_LEFT = re.compile(r"SB\d,\s*(0x[0-9a-f]+|\d+)")
_OFF = "@!PT"  # never runs, takes its slot
_MMA_OPERANDS = (4, 4, 2, 4)  # registers of D, A, B and C of HMMA.16816.F32
_LANE_BYTES = 32  # lanes
HALF = 2.0  # the uniform datapath is taken for two clocks


@dataclass(frozen=True)
class Step:
    """One instruction."""

    text: str  # the instruction
    kind: Kind  # what it does beside taking a pipe
    pipe: int | None  # place in `PIPES`; None for what takes no pipe of a scheduler's own
    holds: float  # clocks for which it takes the pipe; `issues` those for which nothing else is issued
    issues: float
    stall: int  # clocks to the warp's next instruction, at least
    waits: tuple[int, ...]  # scoreboards that must be clear
    # scoreboards that it sets until its result is there, and until its operands were read
    written: int | None
    read: int | None
    latency: float = 0.0  # clocks to its result; of a memory instruction, without its wavefronts
    wavefronts: float = 0.0  # for which it takes the pipe of shared memory; `returns` clocks of the way back
    returns: float = 0.0
    copied: int = 0  # bytes that it brings from L2
    left: int = 0  # groups of copies that a wait leaves in flight
    after: tuple[int, ...] = ()  # registers that it reads, as far as an mma may still be writing them
    makes: tuple[int, ...] = ()  # registers that an mma writes


def steps_of(instructions: Sequence[Instruction], text: bytes, chip: Chip, conflicts: float = 1.0) -> tuple[Step, ...]:
    """Instructions, in the order in which a warp runs them, as steps.

    Args:
        instructions: any of a kernel, as often as they run.
        text: the kernel's ``.text`` section.
        chip: the SM.
        conflicts: wavefronts of an ldmatrix over those that it has without bank conflicts.

    Raises:
        FlashladderError: an opcode that the model does not know.
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
    return Step(
        text=str(one),
        kind=kind,
        pipe=None if pipe is None else PIPES.index(_SHARED_PIPE.get(pipe, pipe)),
        holds=0.0 if pipe is None else HALF if pipe == "uniform" else getattr(chip, pipe),
        issues=chip.mma_issue if kind == "mma" else 1.0,
        stall=max(1, code.stall),
        waits=code.waits,
        written=code.write,
        read=code.read,
        latency=_latency(name, chip),
        wavefronts=waves,
        returns=waves * chip.shared_return if name in _LOADS else 0.0,
        copied=lane_bytes(opcode) * _LANE_BYTES if kind == "copy" else 0,
        left=int(left[1], 0) if left else 0,
        after=_reads(kind, one.operands),
        makes=_registers(one.operands)[0] if kind == "mma" else (),
    )


def lane_bytes(opcode: str) -> int:
    """Bytes per lane that a memory instruction moves: 4 unless its opcode says 64 or 128 bits."""
    parts = opcode.split(".")
    return 16 if "128" in parts else 8 if "64" in parts else 4


def _wavefronts(opcode: str, conflicts: float) -> float:
    """Wavefronts of 128 bytes; of an ldmatrix as many as matrices, of other accesses without conflicts."""
    name, _, rest = opcode.partition(".")
    if name == "LDSM":
        return float(rest.rpartition(".")[2]) * conflicts if rest[-1].isdigit() else conflicts
    if name == "LDGSTS":
        return ASSUMED.copy_wavefronts * lane_bytes(opcode) / 16
    return lane_bytes(opcode) / 4


def _latency(name: str, chip: Chip) -> float:
    if name in ("LDSM", "LDS", "LDL", "STS"):
        return chip.shared_latency
    fixed = {
        "HMMA": chip.mma_latency, "MUFU": chip.mufu_latency, "SHFL": chip.shuffle_latency, "LDG": chip.l2_latency,
        "STG": ASSUMED.store, "STL": ASSUMED.store, "LDGSTS": 0.0,
    }  # fmt: skip
    return fixed.get(name, ASSUMED.variable)


def _registers(operands: str) -> list[tuple[int, ...]]:
    """Registers of D, A, B and C of an mma."""
    firsts = (_REGISTER.search(part) for part in operands.split(","))
    sized = zip(firsts, _MMA_OPERANDS, strict=False)
    return [tuple(range(int(first[1]), int(first[1]) + size)) if first else () for first, size in sized]


def _reads(kind: Kind, operands: str) -> tuple[int, ...]:
    """Registers that may have to wait for an mma: those named, of an mma all of A, B and C."""
    if kind == "mma":
        return sum(_registers(operands)[1:], ())
    return tuple(int(name) for name in _REGISTER.findall(operands.partition(",")[2]))


ROUNDS = 3  # of which the first fills the registers
FIXED = 4.0  # clocks from an instruction of a fixed-latency pipe to one that reads its result, as ptxas spaces them
_NAMES = re.compile(r"\bU?[RP]\d+")


def chain(block: Sequence[Instruction], steps: Sequence[Step]) -> float:
    """Clocks of the longest path of dependences through one KV block.

    Args:
        block: instructions of a round of the loop.
        steps: the same ones.
    """
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
            for name in written_by(one, operands(one)) or ():
                there[name] = done
            for register in step.makes:
                there[f"R{register}"] = done
        ends.append(last)
    return (ends[-1] - ends[0]) / (ROUNDS - 1)


REGISTERS = 256
GROUPS = 8  # of copies that are remembered; no kernel has more in flight


class Rounds(NamedTuple):
    """What came out: `idle` tells why a scheduler issued nothing, by what its first warp to go on waited for."""

    clocks: float  # for one round of every warp
    idle: dict[str, float]  # shares of its clocks


@dataclass
class _Warp:
    """A warp: where it is, and when what it waits for is there."""

    cta: int
    scheduler: int
    ready: float
    at: int = 0
    held: bool = False
    boards: list[float] = field(default_factory=lambda: [0.0] * N_BARRIERS)
    made: list[float] = field(default_factory=lambda: [0.0] * REGISTERS)
    copied: float = 0.0
    groups: deque[float] = field(default_factory=lambda: deque(maxlen=GROUPS))


@dataclass
class _Scheduler:
    """A quarter of the SM: its warps, when its pipes are free, and what it has waiting for shared memory."""

    warps: list[_Warp] = field(default_factory=list)
    pipes: list[float] = field(default_factory=lambda: [0.0] * len(PIPES))
    waiting: deque[float] = field(default_factory=deque)
    way_back: float = 0.0
    last: _Warp | None = None
    wakes: float = 0.0


class _Sm:
    """The SM while it runs."""

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
        """Rounds of all warps, with the parts of those that they are in."""
        return self.rounds + sum(warp.at for one in self.schedulers for warp in one.warps) / len(self.steps)

    def run(self, rounds: int) -> float:
        """Goes on until the warps have made so many rounds, all together; the clock then."""
        while self.queue:
            now, place = heapq.heappop(self.queue)
            scheduler = self.schedulers[place]
            if now != scheduler.wakes:
                continue  # it was woken earlier
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
        """The warp that goes on now; or None, when the first one can, and what it waits for."""
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
        """When a warp's next instruction can be issued, and what decides that."""
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
            self._arrive(warp, now, self.chip.barrier_latency if step.kind == "barrier" else ASSUMED.launch)
        if step.written is not None and done > warp.boards[step.written]:
            warp.boards[step.written] = done
        if step.read is not None and read > warp.boards[step.read]:
            warp.boards[step.read] = read
        warp.at += 1
        if warp.at == len(self.steps):
            warp.at = 0
            self.rounds += 1

    def _access(self, scheduler: _Scheduler, warp: _Warp, step: Step, now: float) -> tuple[float, float]:
        """An access to shared memory, a shuffle or a copy; when its result is there and its operands are read."""
        start = max(now + ASSUMED.to_shared, self.shared)
        self.shared = start + step.wavefronts
        scheduler.waiting.append(start)
        latency = step.latency - ASSUMED.to_shared
        if step.kind == "copy":
            self.l2 = max(self.l2, start) + step.copied / self.chip.l2
            warp.copied = max(warp.copied, self.l2 + self.chip.l2_latency)
            return warp.copied, start + ASSUMED.operands_read
        if step.returns:  # the first wavefront is in the latency
            scheduler.way_back = max(scheduler.way_back, start) + step.returns
            done = max(start + step.returns - self.chip.shared_return, scheduler.way_back) + latency
        else:
            done = start + step.wavefronts + latency
        return done, start + ASSUMED.operands_read

    def _arrive(self, warp: _Warp, now: float, latency: float) -> None:
        """A warp at a barrier of its CTA: held until all of them are there."""
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
    """Runs `steps` on one SM, over and over, in every warp.

    Args:
        steps: of one round: a KV block, or a CTA from its first instruction to its last.
        chip: the SM.
        ctas: resident at once.
        warps: of each.
        rounds: of every warp that are counted.
        skipped: rounds before these.
        apart: clocks between the begins of two CTAs.

    Raises:
        FlashladderError: warps of a CTA wait at a barrier for others that never come.
    """
    sm = _Sm(steps, chip, ctas, warps, apart)
    n = ctas * warps
    begin = sm.run(skipped * n)
    made, before = sm.progress, dict(sm.idle)
    span = sm.run((skipped + rounds) * n) - begin
    idle = {why: (clocks - before.get(why, 0.0)) / span / SCHEDULERS for why, clocks in sm.idle.items()}
    return Rounds(span * n / (sm.progress - made), dict(sorted(idle.items(), key=lambda item: -item[1])))
