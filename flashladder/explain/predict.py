"""``invoke explain 16 --gpu a100``: what binds a kernel on a GPU, TFLOP/s, percent of FA2, by the model.

A kernel is the machine instructions of one KV block and of a short CTA, in the order in which a launch runs them: which
way branches go follows from the launch's parameters. Votes on data take the common path, on which no lane asks
(docs/explain.md). An SM makes rounds of the loop, each CTA has a begin and an end (`overhead`), and the last wave of
CTAs does not fill all SMs (`waves`). Each is simulated; nothing is fitted to a kernel's measured speed. FA2's own FLOP
per clock (`Anchor`) turns clocks into percent of FA2. ``results/explain/`` holds what the model said,
with digests of the machine code; ``analysis/explain_validation.py`` makes it and compares it with timings.

Try ``predict(kernel_of(load_iteration(16), config, "sm_80"), load_gpus()["a100"], 4096)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
import json
from pathlib import Path
import statistics
import textwrap
from typing import Annotated, Literal

from pydantic import AfterValidator

from flashladder.arguments import within
from flashladder.columns import table, terminal_width
from flashladder.emulate.kernel import forward, machine_code, make_tensors, require_length
from flashladder.emulate.reading import READING, load_reading
from flashladder.errors import FlashladderError
from flashladder.explain.simulate import PIPES, SCHEDULERS, Chip, Step, chain, chip_of, simulate, steps_of
from flashladder.files import checked_json, files_in, relative
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import Gpu, load_gpus
from flashladder.ladder.iteration import Iteration, load_iteration
from flashladder.ladder.selection import one_config
from flashladder.located import closest, read_committed
from flashladder.machine_code import executions
from flashladder.machine_code.cubin import Cubin
from flashladder.machine_code.executions import is_vote, operands
from flashladder.machine_code.flow import regions_of
from flashladder.machine_code.ptxas import WARP, Occupancy
from flashladder.machine_code.sass import Instruction
from flashladder.names import WAVEFRONTS
from flashladder.paths import RESULTS
from flashladder.problem import Shape
from flashladder.results import published
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult, Strict, Summary, kernel_key
from ptxemu import Counters

DTYPE = "fp16"
PUBLISHED_LENGTH = 4096
BEYOND = "beyond.json.gz"  # of a machine's folder: the sweep of the steps that were published nowhere
TERA, MEGA = 1e12, 1e6
NAME = "explain/predictions.json"  # under a results folder
HOW_TO_WRITE = "run: python analysis/explain_validation.py"
Rounded = Annotated[float, AfterValidator(lambda number: round(number, 3))]
Share = Annotated[float, AfterValidator(lambda number: round(number, 6))]


class Predicted(Strict):
    """What the model says of one kernel on one GPU, as it is kept."""

    iteration: int
    config: str  # short form
    text_sha256: str  # of the machine code
    ctas: int  # resident on an SM
    clocks: Rounded  # of one SM for one KV block of one CTA, in the steady loop
    alone: Rounded  # clocks of a KV block in one CTA that has the SM to itself
    chain: Rounded  # of dependences through a KV block
    overhead: Rounded  # clocks that a CTA takes beside its KV blocks, while others run
    waves: Share  # rounds of CTAs that an SM makes over those that the launch is worth
    resources: dict[str, Rounded]  # clocks of a KV block, by name
    idle: dict[str, Share]  # why schedulers issue nothing, as shares of their clocks, the largest first
    binding: str  # what binds
    flop_per_clock: Rounded  # of one SM over the whole launch
    tflops: Rounded  # at the clock at which FA2 reached its own; where that is not known at the boost clock
    percent_of_fa2: Rounded | None  # None where FA2's speed is not known
    percent_of_peak: Rounded  # of what the tensor cores can do


class Predictions(Strict):
    """What the model says of the ladder: kernels by GPU, at one length.

    `tuned` are kernels of other tiles and loads, drawn from a GPU's tuning run: nobody looked at them before.
    """

    schema_version: Literal[1] = 1
    kind: Literal["predictions"] = "predictions"
    seq_len: int
    gpus: dict[str, tuple[Predicted, ...]]
    tuned: dict[str, tuple[Predicted, ...]]


def load_predictions(path: Path = RESULTS / NAME) -> Predictions:
    """The committed predictions.

    Raises:
        FlashladderError: they are missing or malformed.
    """
    return read_committed(
        path, lambda raw: Predictions.model_validate_json(checked_json(raw)), "no predictions", HOW_TO_WRITE
    )


def worth(predictions: Predictions, gpu: str, one: Predicted) -> tuple[int, float] | None:
    """The step before a kernel's, and by how many percent the kernel is faster than that one, both as predicted.

    Each step has the configuration that the GPU gives it. None for the first, and on a GPU without predictions.
    """
    parent = load_iteration(one.iteration).parent
    before = next((other for other in predictions.gpus.get(gpu, ()) if other.iteration == parent), None)
    return None if before is None else (before.iteration, 100 * (one.flop_per_clock / before.flop_per_clock - 1))


@dataclass(frozen=True)
class Anchor:
    """FA2 on one GPU at one length."""

    flop_per_clock: float  # of one SM
    tflops: float  # what it reached; on a measured GPU the median over all cells, throttled as they were
    source: str  # where both come from


def anchor_of(gpu: Gpu, seq_len: int) -> Anchor | None:
    """FA2 on a GPU; None where nobody measured or published it at this length.

    Raises:
        FlashladderError: a file of results is malformed.
    """
    path, sms = RESULTS / gpu.gpu / f"{gpu.gpu}.json.gz", gpu.whole("sms")
    if path.is_file():
        timed = [one for one in _cells(path, seq_len) if one.sm_clock_mhz is not None]
        highest = max((one.sm_clock_mhz or 0 for one in timed), default=0)
        if not highest:
            return None
        level = statistics.median(one.reference_tflops for one in timed if one.sm_clock_mhz == highest)
        tflops = statistics.median(one.reference_tflops for one in _cells(path, seq_len))
        source = f"{relative(path)}: {highest:.0f} MHz, the highest clock of its cells"
        return Anchor(level * TERA / (highest * MEGA * sms), tflops, source)
    theirs = published.load()
    if gpu.gpu not in theirs.gpus or seq_len != PUBLISHED_LENGTH or "published_clock" not in gpu.rates:
        return None
    clock = gpu.rate("published_clock")
    tflops = theirs.tflops(1, gpu.gpu, "seq4096") / theirs.cell(1, gpu.gpu, "seq4096").value * 100
    source = f"published, {theirs.description.source.repository}, at {clock:.0f} MHz"
    return Anchor(tflops * TERA / (clock * MEGA * sms), tflops, source)


def known(gpu: Gpu, kernels: Sequence[Predicted], seq_len: int, folder: Path = RESULTS) -> tuple[str, dict[int, float]]:
    """``measured`` or ``published``, and percent of FA2 by iteration; nothing where nobody has it.

    The sweep of the ladder counts first, then that of the steps beyond it, then single benchmarks; timings of other
    machine code do not count.
    """
    own, measured = folder / gpu.gpu, dict[int, float]()
    for path in (own / f"{gpu.gpu}.json.gz", own / BEYOND, *files_in(own, "bench*.json.gz")):
        if path.is_file():
            timed, found = _read(path).kernels, percentages(path, seq_len)
            for one in kernels:
                key = kernel_key(one.iteration, one.config)
                if key in found and (key not in timed or timed[key].text_sha256 in (None, one.text_sha256)):
                    measured.setdefault(one.iteration, found[key])
    if measured:
        return "measured", measured
    if seq_len != PUBLISHED_LENGTH:
        return "", {}
    theirs = published.load(folder / "published")
    cells = {one.iteration: theirs.find(one.iteration, gpu.gpu, "seq4096") for one in kernels}
    return "published", {number: cell.value for number, cell in cells.items() if cell}


def percentages(path: Path, seq_len: int) -> dict[str, float]:
    """Percent of FA2 by kernel (``16 (FP16, ...)``), of a file of timings.

    Raises:
        FlashladderError: it is missing or malformed.
    """
    return {one.kernel: one.pct for one in _cells(path, seq_len)}


def _cells(path: Path, seq_len: int) -> list[Summary]:
    return [one for one in _read(path).summaries if (one.dtype, one.shape.seq_len) == (DTYPE, seq_len)]


@cache
def _read(path: Path) -> BenchResult:
    return load_as(path, BenchResult)


KV_BLOCKS = 4  # of the short CTA: enough for what is peeled and for rounds of the loop
HEADS, D_HEAD = 16, 128


@dataclass(frozen=True)
class Kernel:
    """One iteration's machine code in one configuration, and what runs of it."""

    iteration: Iteration  # of the ladder, or an ablation
    config: KernelConfig  # of it
    cubin: Cubin  # its machine code
    whole: tuple[Instruction, ...]  # instructions of a warp from a CTA's begin to its end, with `kv_blocks` KV blocks
    block: tuple[Instruction, ...]  # those of one round of the main loop: a KV block
    kv_blocks: int  # of `whole`
    # wavefronts of loads from shared memory over those without bank conflicts, as the emulator counts them in the PTX
    conflicts: float
    votes: int = 0  # votes of the warp in `block`; none is taken to find a lane that asks for what stands behind it

    @property
    def warps(self) -> int:
        """Of a CTA."""
        return self.config.n_threads // WARP


def kernel_of(iteration: Iteration, config: KernelConfig, arch: str) -> Kernel:
    """An iteration's kernel, compiled if it is not in the store yet.

    Raises:
        FlashladderError: it does not compile, loops over nothing, or its branches depend on more than the launch.
    """
    length = -(-KV_BLOCKS * config.B_c // config.B_r) * config.B_r  # of the short CTA: whole blocks of query rows
    shape = Shape(batch=1, seq_len=length, n_heads=HEADS, d_head=D_HEAD)
    cubin, sass, constants = machine_code(iteration, config, arch, shape)
    flow = regions_of(sass).flow
    order = list(executions.path(flow, constants))
    starts = [place for place, block in enumerate(order) if flow.main_loop and block == flow.main_loop.header]
    if len(starts) < 2:
        raise FlashladderError(
            "the kernel has no loop over KV blocks", where=f"iteration {iteration.description}",
            expected="rounds of a main loop", found=f"{len(starts)} with {length} keys",
        )  # fmt: skip
    block = tuple(one for index in order[starts[0] : starts[1]] for one in flow.code(index))
    return Kernel(
        iteration=iteration,
        config=config,
        cubin=cubin,
        whole=tuple(one for index in order for one in flow.code(index)),
        block=block,
        kv_blocks=length // config.B_c,
        conflicts=conflicts_of(iteration, config),
        votes=sum(is_vote(one, operands(one)) for one in block),
    )


def conflicts_of(iteration: Iteration, config: KernelConfig) -> float:
    """Wavefronts of loads from shared memory over those without bank conflicts, as the emulator counts them.

    They are read where they were counted, in the A100's configuration, and counted on a short CTA where not.

    Raises:
        EmulationError: the kernel does something it may not.
    """
    read = READING.is_file() and not iteration.is_ablation
    found = load_reading().find(iteration.number) if read else None
    if found is not None:
        return found.counters[WAVEFRONTS.format("ld")] / found.ideal_wavefronts["ld"]
    counters = Counters()
    shape = Shape(batch=1, seq_len=config.multiples["B_r"], n_heads=1, d_head=D_HEAD)
    forward(iteration, config, make_tensors(iteration, config, shape), observers=(counters,))
    return counters.as_dict()[WAVEFRONTS.format("ld")] / counters.traffic("shared", "ld").phases


BINDS_FROM = 0.7  # of the predicted clocks: a resource that is taken for less of them does not bind
EXPOSED_FROM = 0.1  # of them: schedulers that wait longer than this for copies are bound by the latency of memory
COPIES = "copies"
ELEMENT = 2  # bytes of fp16 and bf16
TENSORS = 4  # Q, K, V and O


@dataclass(frozen=True)
class Resource:
    """One resource."""

    name: str  # of it
    count: float  # what a KV block of a CTA asks for, in `unit`
    unit: str  # of the count
    clocks: float  # for which one SM is taken by it


def resources(steps: Sequence[Step], chip: Chip, kernel: Kernel, seq_len: int) -> tuple[Resource, ...]:
    """Every resource, for the steps of one warp in one KV block; the same in all warps of the CTA.

    What comes from DRAM is each tensor once, shared out among the KV blocks of a head: K and V that another CTA has
    read are in L2.
    """
    config, warps = kernel.config, kernel.warps
    share = warps / SCHEDULERS

    def pipe(title: str, *names: str) -> Resource:
        own = [one for one in steps if one.pipe is not None and PIPES[one.pipe] in names]
        return Resource(title, len(own) * warps, "instructions", sum(one.holds for one in own) * share)

    waves = sum(one.wavefronts for one in steps) * warps
    copied = sum(one.copied for one in steps) * warps
    blocks = (seq_len / config.B_r) * (seq_len / config.B_c)
    dram = TENSORS * seq_len * D_HEAD * ELEMENT / blocks
    return (
        pipe("tensor", "mma"),
        pipe("FMA", "fma"),
        pipe("ALU", "alu"),
        pipe("MUFU", "mufu"),
        Resource("shared memory", waves, "wavefronts", waves),
        Resource("issue slots", len(steps) * warps, "instructions", sum(one.issues for one in steps) * share),
        Resource("L2", copied, "bytes", copied / chip.l2),
        Resource("DRAM", dram, "bytes", dram / chip.dram),
    )


def binding(found: Sequence[Resource], clocks: float, waits: dict[str, float]) -> str:
    """What binds, by name: copies that nothing hides, a resource that is taken most of the time, or else the waits.

    Args:
        found: what a KV block asks for.
        clocks: predicted for it.
        waits: why schedulers are idle, as shares of their clocks, the largest first.
    """
    most = max(found, key=lambda one: one.clocks)
    if waits.get(COPIES, 0.0) >= EXPOSED_FROM:
        return f"latency ({COPIES})"
    if most.clocks >= BINDS_FROM * clocks or not waits:
        return most.name
    return f"latency ({next(iter(waits))})"


PHASES = 8  # between two CTAs of an SM, over which the mean is taken
APART = tuple(phase / PHASES for phase in range(PHASES))  # of a KV block's clocks
APART_WHOLE = (0.1, 0.6)  # the same, of a short CTA
BATCH = 16


@dataclass(frozen=True)
class Prediction:
    """The model's answer, with what it was made of."""

    data: Predicted  # the answer
    kernel: Kernel  # what runs
    gpu: Gpu  # where
    seq_len: int  # of the launch, with 16 heads and a batch of 16
    occupancy: Occupancy  # of an SM
    resources: tuple[Resource, ...]  # what a KV block asks each for
    anchor: Anchor | None  # FA2 on that GPU; None where it is not known

    @property
    def warps_to_hide(self) -> float:
        """Warps on a scheduler that would keep the most wanted resource busy, each as slow as it is alone."""
        return self.data.alone / max(one.clocks for one in self.resources)


def predict(kernel: Kernel, gpu: Gpu, seq_len: int) -> Prediction:
    """What the model says.

    Raises:
        FlashladderError: the kernel does not fit the GPU, the length is no multiple of its tiles, the GPU's file lacks
            a rate, or the kernel has an instruction that the model does not know.
    """
    config = kernel.config
    require_length(config, seq_len)
    shared, _ = config.needs()["shared_memory_per_block"]
    occupancy = gpu.occupancy(registers=kernel.cubin.registers, threads=config.n_threads, shared_bytes=shared)
    if not occupancy.ctas:
        raise FlashladderError(f"the kernel does not fit an SM of the {gpu.title}", found=config.short_form())
    chip = chip_of(gpu)
    block = steps_of(kernel.block, kernel.cubin.text, chip, kernel.conflicts)
    whole = steps_of(kernel.whole, kernel.cubin.text, chip, kernel.conflicts)
    ctas = occupancy.ctas
    alone = simulate(block, chip, ctas=1, warps=kernel.warps)
    runs = [simulate(block, chip, ctas=ctas, warps=kernel.warps, rounds=4, apart=part * alone.clocks) for part in APART]
    clocks = statistics.harmonic_mean([one.clocks for one in runs])
    span = kernel.kv_blocks * alone.clocks
    ends = [
        simulate(whole, chip, ctas=ctas, warps=kernel.warps, rounds=2, skipped=1, apart=part * span).clocks
        for part in APART_WHOLE  # a short CTA among others, each followed by the next one in its place
    ]
    overhead = statistics.harmonic_mean(ends) - kernel.kv_blocks * clocks
    blocks = seq_len // config.B_c
    rounds = (BATCH * HEADS * seq_len // config.B_r) / (ctas * chip.sms)
    full, rest = divmod(rounds, 1)  # rounds of CTAs; in the last, an SM with one CTA is faster than a full one
    last = alone.clocks / clocks if rest * ctas <= 1 else 1.0
    waves = (full + last) / rounds if rest else 1.0
    flop = 4 * config.B_r * config.B_c * D_HEAD * ctas * blocks / ((blocks * clocks + overhead) * waves)
    found = resources(block, chip, kernel, seq_len)
    anchor = anchor_of(gpu, seq_len)
    tflops = flop * gpu.whole("sms") * gpu.peaks["boost_clock"].value * MEGA / TERA
    data = Predicted(
        iteration=kernel.iteration.number,
        config=config.short_form(),
        text_sha256=kernel.cubin.text_sha256,
        ctas=ctas,
        clocks=clocks / ctas,
        alone=alone.clocks,
        chain=chain(kernel.block, block),
        overhead=overhead,
        waves=waves,
        resources={one.name: one.clocks for one in found},
        idle=runs[0].idle,
        binding=binding(found, clocks / ctas, runs[0].idle),
        flop_per_clock=flop,
        tflops=anchor.tflops * flop / anchor.flop_per_clock if anchor else tflops,
        percent_of_fa2=100 * flop / anchor.flop_per_clock if anchor else None,
        percent_of_peak=100 * flop / gpu.peaks["fp16_tensor_rate"].value,
    )
    return Prediction(data, kernel, gpu, seq_len, occupancy, found, anchor)


SHOWN_FROM = 0.005  # share of a scheduler's clocks: shorter waits are not listed


def show(description: str, gpu: str, config: str | None, seq_len: int, *, as_json: bool = False) -> None:
    """Prints the prediction of one kernel on one GPU."""
    prediction = explain(description, gpu, config, within("seq-len", seq_len))
    print(json.dumps(document(prediction), indent=2) if as_json else text(prediction, terminal_width()))


def explain(description: str, key: str, config: str | None, seq_len: int) -> Prediction:
    """What the model says of an iteration or an ablation on a GPU.

    Raises:
        FlashladderError: no such iteration, GPU or configuration; else as `predict`.
    """
    gpu = load_gpus().get(key)
    if gpu is None:
        raise FlashladderError(
            "no such GPU", expected=", ".join(load_gpus()), found=repr(key), hint=closest(key, list(load_gpus()))
        )
    iteration = load_description(description)
    iteration.family.require_alike("explain")
    arch = iteration.family.targets.serving(gpu.arch)
    if not arch:
        built = ", ".join(iteration.family.targets.arches)
        what = f"iteration {iteration.description} is not built for the {gpu.title}"
        raise FlashladderError(what, expected=gpu.arch, found=built)
    chosen = one_config(iteration, config or gpu.configs_of)
    if excess := gpu.excess(chosen):
        raise FlashladderError(f"the configuration is too large for {key}", expected=excess[0], found=excess[1])
    return predict(kernel_of(iteration, chosen, arch), gpu, seq_len)


def document(prediction: Prediction) -> dict[str, object]:
    """The prediction for scripts, with what was measured or published beside it."""
    told, step = actual(prediction), worth_of(prediction)
    return {
        "gpu": prediction.gpu.gpu,
        "seq_len": prediction.seq_len,
        **prediction.data.model_dump(),
        "limited_by": list(prediction.occupancy.limited_by),
        "warps": prediction.occupancy.warps,
        "warps_to_hide": round(prediction.warps_to_hide, 3),
        "votes": prediction.kernel.votes,
        "step": None if step is None else {"parent": step[0], "percent_faster": round(step[1], 3)},
        "conflicts": round(prediction.kernel.conflicts, 6),
        "anchor": None if prediction.anchor is None else vars(prediction.anchor),
        **({told[0]: told[1]} if told else {}),
    }


def is_a_step(prediction: Prediction) -> bool:
    """Whether it is of an iteration in the configuration that the GPU gives it."""
    kernel = prediction.kernel
    own = kernel.iteration.configs[prediction.gpu.configs_of]
    return not kernel.iteration.is_ablation and own.short_form() == kernel.config.short_form()


def worth_of(prediction: Prediction) -> tuple[int, float] | None:
    """The step before it, as the committed predictions have that one, and by how many percent it is faster."""
    if not (is_a_step(prediction) and (RESULTS / NAME).is_file()):
        return None
    committed = load_predictions()
    same = prediction.seq_len == committed.seq_len
    return worth(committed, prediction.gpu.gpu, prediction.data) if same else None


def actual(prediction: Prediction) -> tuple[str, float] | None:
    """``measured`` or ``published``, and that percentage of FA2; None where there is neither."""
    if prediction.kernel.iteration.is_ablation:
        return None
    data = prediction.data
    what, found = known(prediction.gpu, (data,), prediction.seq_len)
    same = what == "measured" or prediction.gpu.configs_of == prediction.gpu.gpu
    own = prediction.kernel.iteration.configs.get(prediction.gpu.gpu)
    if what == "published" and own is not None and own.short_form() != data.config:
        return None
    return (what, found[data.iteration]) if same and data.iteration in found else None


def text(prediction: Prediction, width: int) -> str:
    """The prediction for people."""
    kernel, gpu = prediction.kernel, prediction.gpu
    launch = f"S = {prediction.seq_len}, batch {BATCH}, {HEADS} heads"
    head = f"Iteration {kernel.iteration.description} on {gpu.title}, {launch}: {kernel.config.short_form()}"
    rows = [("one KV block of one CTA", "asks for", "clocks", "share")]
    for one in sorted(prediction.resources, key=lambda one: -one.clocks):
        share = f"{100 * one.clocks / prediction.data.clocks:.0f} %"
        rows.append((one.name, f"{one.count:,.0f} {one.unit}", f"{one.clocks:,.0f}", share))
    rows.append(("predicted", "", f"{prediction.data.clocks:,.0f}", "100 %"))
    lines = [head, "", *table(rows, None, right={2, 3}), "", *_story(prediction), "", *_verdict(prediction)]
    wrapped = (textwrap.wrap(one, width, subsequent_indent="  ") if len(one) > width else [one] for one in lines)
    return "\n".join(line for some in wrapped for line in some)


def _story(prediction: Prediction) -> list[str]:
    data, occupancy = prediction.data, prediction.occupancy
    waits = [f"{why} {100 * share:.0f} %" for why, share in data.idle.items() if share >= SHOWN_FROM]
    told = {
        "binding": data.binding,
        "occupancy": f"{occupancy.ctas} CTA{'s' * (occupancy.ctas != 1)}, {occupancy.warps} warps on an SM; limited by "
        + ", ".join(occupancy.limited_by),
        "chain": f"{data.chain:,.0f} clocks of dependences in a KV block; a warp alone on its scheduler "
        f"takes {data.alone:,.0f}: {prediction.warps_to_hide:.1f} on each would hide that, there are "
        f"{occupancy.warps / SCHEDULERS:g}",
        "waits": f"schedulers issue nothing: {', '.join(waits) or 'never'}",
        "overhead": f"{data.overhead:,.0f} clocks of a CTA beside its KV blocks; waves {data.waves:.3f}",
    }
    if prediction.kernel.conflicts > 1:
        told["conflicts"] = (
            f"{prediction.kernel.conflicts:.1f} wavefronts where one would do, in loads from shared memory"
        )
    if votes := prediction.kernel.votes:
        which = "the vote" if votes == 1 else f"{votes} votes"
        told["assumed"] = f"no lane asks in {which} of a KV block, so that what stands behind is left out"
    return [f"{name:<11} {words}" for name, words in told.items()]


def _verdict(prediction: Prediction) -> list[str]:
    data = prediction.data
    fa2, told = data.percent_of_fa2, actual(prediction)
    speed = f"predicted   {data.tflops:.0f} TFLOP/s, {data.percent_of_peak:.0f} % of the peak"
    if fa2 is None or prediction.anchor is None:
        lines = [f"{speed} at the boost clock; FA2 was neither measured nor published there"]
    else:
        lines = [f"{speed}, {fa2:.0f} % of FA2 (FA2: {prediction.anchor.source})"]
    if step := worth_of(prediction):
        lines.append(f"step        {step[1]:+.1f} % over iteration {step[0]}, both predicted")
    if told and fa2 is not None:
        lines.append(f"{told[0]:<11} {told[1]:.1f} % of FA2: the prediction is off by {fa2 - told[1]:+.1f} points")
    elif not told and is_a_step(prediction):
        lines.append(f"measured    nothing: no timing of it on the {prediction.gpu.title} at this length is known here")
    return lines
