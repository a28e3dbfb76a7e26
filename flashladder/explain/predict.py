"""``invoke explain 16 --gpu a100``: predicts what limits a kernel on a GPU, its TFLOP/s and percent of FA2.

The input is the machine instructions of one KV block and of a short CTA, in the order in which a launch runs them. The
launch's parameters decide the branches; votes on data take the common path, on which no lane asks (docs/explain.md).
The model simulates rounds of the loop on one SM, adds the begin and end of each CTA (`overhead`), and corrects for the
last wave of CTAs, which does not fill all SMs (`waves`). Nothing is fitted to a kernel's measured speed. FA2's FLOP per
clock (`Anchor`) turns clocks into percent of FA2. ``analysis/explain_validation.py`` writes the predictions of
``results/explain/``, with digests of the machine code, and compares them with timings.

Try ``predict(kernel_of(load_iteration(16), config, "sm_80"), load_gpus()["a100"], 4096)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from flashladder.files import files_in, relative
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import Gpu, Occupancy, load_gpus
from flashladder.ladder.iteration import Iteration, load_iteration
from flashladder.ladder.selection import one_config
from flashladder.located import closest, read_committed
from flashladder.machine_code import executions
from flashladder.machine_code.cubin import Cubin
from flashladder.machine_code.executions import is_vote, operands
from flashladder.machine_code.flow import regions_of
from flashladder.machine_code.ptxas import WARP
from flashladder.machine_code.sass import Instruction
from flashladder.names import WAVEFRONTS
from flashladder.paths import RESULTS
from flashladder.problem import Problem
from flashladder.results import published
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult, Strict, Summary, kernel_key
from ptxemu import Counters

DTYPE = "fp16"
PUBLISHED_LENGTH = 4096
BEYOND = "beyond.json.gz"  # in a machine's folder: the sweep of the unpublished steps
TERA, MEGA = 1e12, 1e6
NAME = "explain/predictions.json"  # under a results folder
HOW_TO_WRITE = "run: python analysis/explain_validation.py"
Rounded = Annotated[float, AfterValidator(lambda number: round(number, 3))]
Share = Annotated[float, AfterValidator(lambda number: round(number, 6))]


class Predicted(Strict):
    """The prediction for one kernel on one GPU, as it is committed."""

    iteration: int
    config: str  # short form
    text_sha256: str  # of the machine code
    ctas: int  # resident on an SM
    clocks: Rounded  # of one SM for one KV block of one CTA, in the steady loop
    alone: Rounded  # clocks of a KV block in a CTA that has the SM to itself
    chain: Rounded  # clocks of the longest dependence path through a KV block
    overhead: Rounded  # clocks of a CTA beside its KV blocks, while others run
    waves: Share  # rounds of CTAs on an SM over those that full SMs would need
    resources: dict[str, Rounded]  # clocks of a KV block, by name
    idle: dict[str, Share]  # clocks without an issue, by reason, as shares, the largest first
    binding: str  # the resource or latency that limits the kernel
    flop_per_clock: Rounded  # of one SM over the whole launch
    tflops: Rounded  # at the clock at which FA2 was timed; if unknown, at the boost clock
    percent_of_fa2: Rounded | None  # None if FA2's speed is unknown
    percent_of_peak: Rounded  # of the tensor cores' peak


class Predictions(Strict):
    """The predictions for the ladder at one length, by GPU."""

    schema_version: Literal[1] = 1
    kind: Literal["predictions"] = "predictions"
    seq_len: int
    gpus: dict[str, tuple[Predicted, ...]]
    tuned: dict[str, tuple[Predicted, ...]]  # kernels of other tiles and loads, drawn from a GPU's tuning run


def load_predictions(path: Path = RESULTS / NAME) -> Predictions:
    """The committed predictions; raises `FlashladderError` if they are missing or malformed."""
    return read_committed(path, Predictions, "no predictions", HOW_TO_WRITE)


def worth(predictions: Predictions, gpu: str, one: Predicted) -> tuple[int, float] | None:
    """The parent of a kernel's iteration, and the predicted gain over it in percent; None if that is not predicted."""
    parent = load_iteration(one.iteration).parent
    before = next((other for other in predictions.gpus.get(gpu, ()) if other.iteration == parent), None)
    return None if before is None else (before.iteration, 100 * (one.flop_per_clock / before.flop_per_clock - 1))


@dataclass(frozen=True)
class Anchor:
    """FA2 on one GPU at one length."""

    flop_per_clock: float  # of one SM
    tflops: float  # on a measured GPU the median over all cells, throttled or not
    source: str  # of both numbers


def anchor_of(gpu: Gpu, seq_len: int) -> Anchor | None:
    """FA2 on a GPU; None if it was neither measured nor published at this length."""
    path, sms = RESULTS / gpu.gpu / f"{gpu.gpu}.json.gz", gpu.whole("sms")
    if path.is_file():
        cells = _cells(path, seq_len)
        highest = max((one.sm_clock_mhz or 0 for one in cells), default=0)
        if not highest:
            return None
        level = statistics.median(one.reference_tflops for one in cells if one.sm_clock_mhz == highest)
        tflops = statistics.median(one.reference_tflops for one in cells)
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
    """``measured`` or ``published``, and the known percentages of FA2 by iteration.

    The sweep of the ladder has priority over that of the later steps, and this over single benchmarks. Timings of other
    machine code are ignored.
    """
    own, measured = folder / gpu.gpu, dict[int, float]()
    for path in (own / f"{gpu.gpu}.json.gz", own / BEYOND, *files_in(own, "bench*.json.gz")):
        if path.is_file():
            timed, found = load_as(path, BenchResult).kernels, percentages(path, seq_len)
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
    """Percent of FA2 by kernel (``16 (FP16, ...)``) of a file of timings, or `FlashladderError` if it is unusable."""
    return {one.kernel: one.pct for one in _cells(path, seq_len)}


def _cells(path: Path, seq_len: int) -> list[Summary]:
    return [one for one in load_as(path, BenchResult).summaries if (one.dtype, one.shape.seq_len) == (DTYPE, seq_len)]


KV_BLOCKS = 4  # of the short CTA: enough for peeled blocks and rounds of the loop
HEADS, D_HEAD = 16, 128


@dataclass(frozen=True)
class Kernel:
    """The machine code of one kernel, and the instructions that a warp runs of it."""

    iteration: Iteration  # of the ladder, or an ablation
    config: KernelConfig
    cubin: Cubin
    whole: tuple[Instruction, ...]  # from a CTA's begin to its end, with `kv_blocks` KV blocks
    block: tuple[Instruction, ...]  # one round of the main loop: a KV block
    kv_blocks: int  # of `whole`
    conflicts: float  # as of `conflicts_of`
    votes: int = 0  # of the warp in `block`, all without a lane that asks

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return self.config.n_threads // WARP


def kernel_of(iteration: Iteration, config: KernelConfig, arch: str) -> Kernel:
    """An iteration's kernel; `FlashladderError` if it has no loop, or its branches depend on more than the launch."""
    length = -(-KV_BLOCKS * config.B_c // config.B_r) * config.B_r  # whole blocks of query rows
    shape = Problem(batch=1, seq_len=length, n_heads=HEADS, d_head=D_HEAD)
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
    whole = tuple(one for index in order for one in flow.code(index))
    votes = sum(is_vote(one, operands(one)) for one in block)
    return Kernel(iteration, config, cubin, whole, block, length // config.B_c, conflicts_of(iteration, config), votes)


def conflicts_of(iteration: Iteration, config: KernelConfig) -> float:
    """Wavefronts of loads from shared memory over those without bank conflicts.

    The emulator's committed counts in the A100's configuration give them, or else an emulation of a short CTA, which
    may raise `EmulationError`.
    """
    read = READING.is_file() and not iteration.is_ablation
    found = load_reading().find(iteration.number) if read else None
    if found is not None:
        return found.counters[WAVEFRONTS.format("ld")] / found.ideal_wavefronts["ld"]
    counters = Counters()
    shape = Problem(batch=1, seq_len=config.multiples["B_r"], n_heads=1, d_head=D_HEAD)
    forward(iteration, config, make_tensors(iteration, config, shape), observers=(counters,))
    return counters.as_dict()[WAVEFRONTS.format("ld")] / counters.traffic("shared", "ld").phases


BINDS_FROM = 0.7  # of the predicted clocks: a resource that is busy for less of them does not bind
EXPOSED_FROM = 0.1  # of the predicted clocks: a longer wait for copies means that memory latency binds
COPIES = "copies"
ELEMENT = 2  # bytes of fp16 and bf16
TENSORS = 4  # Q, K, V and O


@dataclass(frozen=True)
class Resource:
    """The use of one resource of an SM by one KV block of a CTA."""

    name: str
    count: float  # in `unit`
    unit: str
    clocks: float  # for which the resource is busy


def resources(steps: Sequence[Step], chip: Chip, kernel: Kernel, seq_len: int) -> tuple[Resource, ...]:
    """The use of every resource by one KV block of a CTA, all warps of which run `steps`."""
    config, warps = kernel.config, kernel.warps
    share = warps / SCHEDULERS

    def pipe(title: str, name: str) -> Resource:
        own = [one for one in steps if one.pipe == PIPES.index(name)]
        return Resource(title, len(own) * warps, "instructions", sum(one.holds for one in own) * share)

    waves = sum(one.wavefronts for one in steps) * warps
    copied = sum(one.copied for one in steps) * warps
    blocks = (seq_len / config.B_r) * (seq_len / config.B_c)
    dram = TENSORS * seq_len * D_HEAD * ELEMENT / blocks  # once per head: later CTAs find K and V in L2
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
    """The limit of a kernel: exposed copies, a resource that is busy most of the time, or else the longest wait.

    `clocks` are those predicted for a KV block, `waits` shares of idle clocks by reason, the largest first.
    """
    most = max(found, key=lambda one: one.clocks)
    if waits.get(COPIES, 0.0) >= EXPOSED_FROM:
        return f"latency ({COPIES})"
    if most.clocks >= BINDS_FROM * clocks or not waits:
        return most.name
    return f"latency ({next(iter(waits))})"


APART = tuple(phase / 8 for phase in range(8))  # phases between two CTAs of an SM, in KV blocks; they are averaged
APART_WHOLE = (0.1, 0.6)  # the same in short CTAs
BATCH = 16


@dataclass(frozen=True)
class Prediction:
    """The model's answer, with its inputs."""

    data: Predicted
    kernel: Kernel
    gpu: Gpu
    seq_len: int  # of the launch, with 16 heads and a batch of 16
    occupancy: Occupancy
    resources: tuple[Resource, ...]  # for a KV block
    anchor: Anchor | None  # FA2 on that GPU, if known

    @property
    def warps_to_hide(self) -> float:
        """Warps on a scheduler that would keep the busiest resource busy, each as slow as it is alone."""
        return self.data.alone / max(one.clocks for one in self.resources)


def predict(kernel: Kernel, gpu: Gpu, seq_len: int) -> Prediction:
    """The prediction for a kernel.

    Raises `FlashladderError` if the kernel does not fit the GPU, the length is no multiple of its tiles, the GPU's file
    lacks a rate, or the model does not know an instruction.
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
        for part in APART_WHOLE
    ]
    overhead = statistics.harmonic_mean(ends) - kernel.kv_blocks * clocks
    blocks = seq_len // config.B_c
    rounds = (BATCH * HEADS * seq_len // config.B_r) / (ctas * chip.sms)
    full, rest = divmod(rounds, 1)  # in the last round of CTAs, an SM with one CTA is faster than a full one
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
    """The prediction for an iteration or ablation on a GPU; `FlashladderError`: one is unknown, or as `predict`."""
    gpus = load_gpus()
    if (gpu := gpus.get(key)) is None:
        raise FlashladderError("no such GPU", expected=", ".join(gpus), found=repr(key), hint=closest(key, gpus))
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
    """The prediction as JSON, with the measured or published percentage of FA2."""
    known_percent, step = actual(prediction), worth_of(prediction)
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
        **({known_percent[0]: known_percent[1]} if known_percent else {}),
    }


def is_a_step(prediction: Prediction) -> bool:
    """Whether it is for an iteration in its configuration for the GPU."""
    kernel = prediction.kernel
    own = kernel.iteration.configs[prediction.gpu.configs_of]
    return not kernel.iteration.is_ablation and own.short_form() == kernel.config.short_form()


def worth_of(prediction: Prediction) -> tuple[int, float] | None:
    """`worth` of the prediction by the committed ones; None if these have another length."""
    if not (is_a_step(prediction) and (RESULTS / NAME).is_file()):
        return None
    committed = load_predictions()
    same = prediction.seq_len == committed.seq_len
    return worth(committed, prediction.gpu.gpu, prediction.data) if same else None


def actual(prediction: Prediction) -> tuple[str, float] | None:
    """``measured`` or ``published``, and that percentage of FA2; None if there is neither."""
    data, gpu, iteration = prediction.data, prediction.gpu, prediction.kernel.iteration
    if iteration.is_ablation:
        return None
    what, found = known(gpu, (data,), prediction.seq_len)
    if what == "published":
        own = iteration.configs.get(gpu.gpu)
        if gpu.configs_of != gpu.gpu or (own is not None and own.short_form() != data.config):
            return None
    return (what, found[data.iteration]) if data.iteration in found else None


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
    story = {
        "binding": data.binding,
        "occupancy": f"{occupancy.ctas} CTA{'s' * (occupancy.ctas != 1)}, {occupancy.warps} warps on an SM; limited by "
        + ", ".join(occupancy.limited_by),
        "chain": f"dependency chain: {data.chain:,.0f} clocks per KV block. One warp alone takes {data.alone:,.0f} "
        f"clocks; {prediction.warps_to_hide:.1f} warps per scheduler would hide its latencies, "
        f"{occupancy.warps / SCHEDULERS:g} are resident.",
        "waits": f"schedulers issue nothing: {', '.join(waits) or 'never'}",
        "overhead": f"{data.overhead:,.0f} clocks of a CTA outside its KV blocks; waves {data.waves:.3f}",
    }
    if (conflicts := prediction.kernel.conflicts) > 1:
        story["conflicts"] = f"{conflicts:.1f} wavefronts where one would do, in loads from shared memory"
    if votes := prediction.kernel.votes:
        which = "the vote" if votes == 1 else f"{votes} votes"
        story["assumed"] = f"no lane asks in {which} of a KV block: the code for that case is left out"
    return [f"{name:<11} {words}" for name, words in story.items()]


def _verdict(prediction: Prediction) -> list[str]:
    data = prediction.data
    fa2, known_percent = data.percent_of_fa2, actual(prediction)
    speed = f"predicted   {data.tflops:.0f} TFLOP/s, {data.percent_of_peak:.0f} % of the peak"
    if fa2 is None or prediction.anchor is None:
        lines = [f"{speed} at the boost clock; FA2 was neither measured nor published there"]
    else:
        lines = [f"{speed}, {fa2:.0f} % of FA2 (FA2: {prediction.anchor.source})"]
    if step := worth_of(prediction):  # adding 0.0 turns -0.0 into 0.0
        lines.append(f"step        {round(step[1], 1) + 0.0:+.1f} % over iteration {step[0]}, both predicted")
    if known_percent and fa2 is not None:
        what, percent = known_percent
        lines.append(f"{what:<11} {percent:.1f} % of FA2: the prediction is off by {fa2 - percent:+.1f} points")
    elif not known_percent and is_a_step(prediction):
        lines.append(f"measured    nothing: no timing of it on the {prediction.gpu.title} at this length is known here")
    return lines
