"""The reasons of each step: text of iterations/reasons.md, in which every figure is a call over committed data.

The text of a step, below the heading ``# 7``, is a jinja2 template. ``{{ falls("LOP3", "sm_80") }}`` gives "149 to 44",
and is an error when LOP3 no longer falls. Speeds are measured or published percentages of FA2. Counts are of machine
code, PTX and counters. Loads are percentages of the cycles that the tensor pipe takes. `analysis/render_notes.py` puts
the result into the notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
import io
from pathlib import Path
import re
import statistics
import traceback
from typing import Literal, get_args

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from flashladder.columns import csv_records, grouped
from flashladder.emulate.reading import EmulatedKernel, counter_files
from flashladder.errors import FlashladderError
from flashladder.explain.predict import NAME as PREDICTIONS
from flashladder.explain.predict import load_predictions
from flashladder.files import read_text, relative
from flashladder.ladder.claim import COUNTERS, LOCK_ARCHES, Claim, Scope
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import Iteration, claim_configs, load_iteration
from flashladder.lock.code_claims import scope_counts
from flashladder.lock.command import locked_kernel
from flashladder.lock.schema import LockedKernel
from flashladder.lock.step_counts import read_counts
from flashladder.machine_code.opcodes import unknown
from flashladder.names import GPUS, HEADLINE_LENGTH, LDSM, PUBLISHED_GPU, WAVEFRONTS
from flashladder.paths import ITERATIONS, RESULTS
from flashladder.report.data import Ladder
from flashladder.report.tables import DASH, headline_machine
from flashladder.report.variants import BOTH
from flashladder.results.files import load_as, read_json
from flashladder.results.published import sass_counts
from flashladder.results.schema import CounterResult, kernel_key

Direction = Literal["falls", "rises", "stays"]  # of a figure from the parent to the step
Counts = Mapping[str, float]
FILE = ITERATIONS / "reasons.md"
SECTIONS = ("What one sees", "Reasons", "Try next")
ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False)
DTYPE = "fp16"
SCOPES: Mapping[str, Scope] = {"kernel": "kernel", "loop": "main_loop"}
COUNTED = ("emulator", "ncu")
PLACES = (*LOCK_ARCHES, "ptx", *GPUS, "published a100", "published rtx3090", *COUNTED)
MEASURES = ("registers", "spill_stores", "spill_loads", "dynamic_smem")  # of a locked kernel, beside its opcodes
MMA = "mma.f16"
MMA_FLOPS = 2 * 16 * 8 * 16  # of an HMMA m16n8k16: a multiplication and an addition per element
SCHEDULERS = 4  # per SM, from sm_80 to sm_90; each issues one instruction per clock
ISSUED = ("fma", "mul", "iadd", "cvt.f16x2", "shfl.bfly")  # beside an mma each of these takes one issue slot


def contradiction(what: str, expected: str, found: str) -> FlashladderError:
    """The error of a text that says something else than the data."""
    return FlashladderError(f"the data contradict the page about {what}", expected=expected, found=found)


def require(what: str, before: float, after: float, expected: Direction, noise: float = 0.0, unit: str = "") -> None:
    """Raises FlashladderError unless the figure changes in the expected direction by more than `noise`."""
    found = "stays" if abs(after - before) <= noise else "rises" if after > before else "falls"
    if found != expected:
        raise contradiction(what, expected, f"{found}, {figure(before)} to {figure(after)}{unit}")


def figure(value: float) -> str:
    """A whole number with separators of thousands; another number with two decimals below ten and one above."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.1f}"


def shown(form: Callable[[float], str], value: Callable[..., float], **fixed: object) -> Callable[..., str]:
    """A function that returns `value` of its arguments and of `fixed`, as the text that `form` makes of it."""
    return lambda *args, **named: form(value(*args, **named, **fixed))


class Words:
    """The functions that the text of step `number` may call, by name in `called`; each returns text.

    Common arguments: `gpu` is a key of configs/gpus, `at` a sequence length, `of` another iteration than the step.
    `configs` is the key of another GPU whose configuration the kernel has. A word with a direction (`gains`, `falls`,
    `binds`) raises FlashladderError if the data contradict it.
    """

    def __init__(self, ladder: Ladder, number: int) -> None:
        machine = headline_machine(ladder)
        if machine is None:
            raise FlashladderError("nothing was measured", where=relative(RESULTS), hint="git checkout -- results")
        self.ladder, self.number, self.step, self.machine = ladder, number, load_iteration(number), machine
        percent, percents, clocks = "{:.0f} %".format, "{:.1f} %".format, "{:.2g}".format
        self.called: Mapping[str, Callable[..., str]] = {
            "length": lambda: str(HEADLINE_LENGTH),
            "shortest": lambda: str(min(ladder.published.description.shape.seq_lens)),
            "noise": lambda: f"{self.noise_points:.1f} points",
            "speed": shown(percents, self.pct),
            # ``gains 7.5 points (80.3 to 87.8 % of FA2)``; `keeps`: ``95.2 to 95.3 % of FA2``, equal within the noise
            "gains": partial(self.moves, "rises", "gains "),
            "loses": partial(self.moves, "falls", "loses "),
            "keeps": partial(self.moves, "stays", ""),
            "gain": shown("{:+.1f}".format, self.gain),
            # ``26.4 %``: how much faster the change makes the kernel; `costs`: how much slower
            "pays": shown(percents, self.worth, verdicts=("faster",)),
            "costs": lambda *change, **at: percents(-self.worth(*change, **at, verdicts=("slower",))),
            "worthless": shown("{:+.1f} %".format, self.worth, verdicts=("same", "ambiguous")),
            "spilled": self.spilled,
            # ``149 to 44``: counts of the parent and the step; one number if both are printed alike
            **{direction: partial(self.counts, direction) for direction in get_args(Direction)},
            "count": shown(figure, self.count),
            "knob": lambda name, gpu, of=0: figure(getattr(load_iteration(of or number).configs[gpu], name)),
            "ctas": shown(figure, self.ctas),
            # ``133 %`` of the tensor pipe's cycles; `ceiling`: the share of the pipe's rate that remains possible
            "binds": shown(percent, self.held, binds=True),
            "hides": shown(percent, self.held, binds=False),
            "ceiling": lambda *load, **of: percent(100 * 100 / self.held(*load, **of, binds=True)),
            "busy": lambda load, gpu, of=0: percent(self.share(load, gpu, of) * self.tensor_use(gpu, of) / 100),
            "mma_issue": lambda: f"{mma_issue(machine.name):.1f}",
            "mma_cycles": lambda gpu: clocks(SCHEDULERS / tensor_rate(gpu)),
            "peak_cycles": lambda gpu: clocks(SCHEDULERS / documented_rate(gpu)),
            "tensor_use": shown(percent, self.tensor_use),
            "fa2_use": shown(percent, self.fa2_use),
        }

    @property
    def parent(self) -> int:
        """The iteration that the step is compared with."""
        if self.step.parent is None:
            raise FlashladderError(f"iteration {self.number} has no parent to be compared with")
        return self.step.parent

    def emulated(self, of: int) -> EmulatedKernel:
        """The emulator's counters of an iteration."""
        if self.ladder.emulated is None:
            raise FlashladderError("no emulated counters", hint="python -m flashladder.emulate.reading --write")
        return self.ladder.emulated.of(of)

    # Speeds, in percent of FA2.

    @property
    def noise_points(self) -> float:
        """Differences of speed up to this many points are noise; the larger floor of step and parent counts."""
        timed = [one for one in self.machine.measured.values() if one.kernel.dtype == DTYPE]
        floors = [one.floor for one in timed if one.kernel.iteration in {self.number, self.step.parent}]
        if not floors:
            raise FlashladderError(f"iteration {self.number} was not measured", found=self.machine.key)
        return BOTH * max(floors)

    def pct(self, gpu: str, of: int = 0, at: int = HEADLINE_LENGTH, configs: str | None = None) -> float:
        """Percent of FA2: published for A100 and RTX 3090, otherwise measured."""
        of = of or self.number
        if gpu in self.ladder.published.gpus and at == HEADLINE_LENGTH and configs is None:
            return self.ladder.published.cell(of, gpu, "seq4096").value
        if gpu != self.machine.key:
            raise FlashladderError("no such speed", expected=self.machine.key, found=f"{gpu} at S = {at}")
        for row in self.ladder.rows(self.machine, DTYPE, configs):
            if row.iteration.number == of and row.measured and at in row.measured.summaries:
                return row.measured.summaries[at].pct
        raise FlashladderError(f"iteration {of} was not measured at S = {at}", found=gpu)

    def _speeds(self, gpu: str, at: int = HEADLINE_LENGTH, configs: str | None = None) -> tuple[float, ...]:
        """Speeds of the parent and of the step, each in its own configuration unless `configs` is given."""
        return tuple(round(self.pct(gpu, one, at, configs), 1) for one in (self.parent, self.number))

    def gain(self, gpu: str, at: int = HEADLINE_LENGTH, configs: str | None = None) -> float:
        """The points that the step gains."""
        old, new = self._speeds(gpu, at, configs)
        return new - old

    def moves(
        self, expected: Direction, verb: str, gpu: str, at: int = HEADLINE_LENGTH, configs: str | None = None
    ) -> str:
        """The speeds of parent and step, which must change in the expected direction beyond noise."""
        old, new = self._speeds(gpu, at, configs)
        require(f"the speed on {gpu}", old, new, expected, self.noise_points, " % of FA2")
        shown = f"{old:.1f} to {new:.1f} % of FA2"
        return f"{verb}{abs(new - old):.1f} points ({shown})" if verb else shown

    # The worth of one change: taken back from the last published step, or added to the first step (`of=1`).

    def _ablation(self, change: str, gpu: str, of: int, at: int) -> Mapping[str, str]:
        """The ablation's row of a change, in the configuration that the iteration has for `gpu`."""
        base = load_iteration(of or max(cell.iteration for cell in self.ladder.published.cells))
        subject = f"{base.number} {'+' if base.parent is None else '-'} {change}"
        wanted = (subject, base.configs[gpu].short_form(), str(at))
        path = RESULTS / "report" / f"ablation_{self.machine.key}.csv"
        rows = csv_records(io.StringIO(read_text(path)))
        if row := next((row for row in rows if (row["subject"], row["base_config"], row["seq_len"]) == wanted), None):
            return row
        raise FlashladderError(f"no ablation {subject}", expected=f"a row of {relative(path)}", found=gpu)

    def worth(
        self, change: str, gpu: str = PUBLISHED_GPU, of: int = 0, at: int = HEADLINE_LENGTH, *, verdicts: Sequence[str]
    ) -> float:
        """Percent of speed that a change is worth in the configuration for `gpu`, as measured on `machine`."""
        row = self._ablation(change, gpu, of, at)
        worth = round(float(row["worth_pct"]), 1) + 0  # no -0.0
        if row["verdict"] not in verdicts:
            raise contradiction(row["subject"], " or ".join(verdicts), f"{row['verdict']}, {worth:+.1f} %")
        return worth

    def spilled(self, change: str, gpu: str = PUBLISHED_GPU, of: int = 0) -> str:
        """``352 against 40 bytes``: spill stores of the kernels of `pays`, without the change and with it."""
        row = self._ablation(change, gpu, of, HEADLINE_LENGTH)
        return f"{row['spill_store_bytes']} against {row['base_spill_store_bytes']} bytes"

    # Counts of the main loop (one KV block) in this project's machine code, or of the whole kernel (`scope`).

    def count(self, metric: str, where: str, scope: str = "loop", of: int = 0) -> float:
        """A count, a sum of counts (``A+B``) or a quotient (``A/B``)."""
        claim, counts = Claim(metric, "kernel", "equals"), self._counts(where, scope, of or self.number)
        for name in claim.names:
            language: Literal["ptx", "sass"] = "ptx" if where == "ptx" else "sass"
            known = (", ".join(counts), None) if where in COUNTED else unknown(name, language)
            if name not in counts and known:  # otherwise it is an opcode that the kernel does not have
                raise FlashladderError(f"nothing is called {name!r} in {where}", expected=known[0], hint=known[1])
        return claim.measure(counts)

    def _counts(self, where: str, scope: str, of: int) -> Counts:
        if where in (*LOCK_ARCHES, "ptx"):  # in the configuration of the step, also for the parent
            configs = dict(zip((self.number, self.step.parent), claim_configs(self.step), strict=True))
            if (config := configs.get(of)) is None:
                raise FlashladderError(f"no counts of iteration {of} beside {self.number}", expected="the parent's")
            claim = Claim("total", "ptx" if where == "ptx" else SCOPES[scope], "equals")
            return scope_counts(claim, read_counts().of(of, config), where)
        if where in GPUS:
            kernel = locked(load_iteration(of), where)
            counts = kernel.main_loop if scope == "loop" else kernel.counts
            return {**counts, **{name: getattr(kernel, name) for name in MEASURES}}
        if where.startswith("published "):
            return sass_counts()[of, where.removeprefix("published ")]
        if where == "ncu":
            (path,) = counter_files()
            read = load_as(path, CounterResult).counters
            return _short(read[kernel_key(of, load_iteration(of).configs[PUBLISHED_GPU].short_form())])
        if where == "emulator":
            emulated = self.emulated(of)
            ideal = {f"ideal_{one}_wavefronts": count for one, count in emulated.ideal_wavefronts.items()}
            return {**_short(emulated.counters), **ideal, "ptx_instructions": emulated.warp_instructions}
        raise FlashladderError("no such place to count in", expected=", ".join(PLACES), found=where)

    def counts(self, expected: Direction, metric: str, where: str, scope: str = "loop") -> str:
        """The counts of parent and step, which must change in the expected direction."""
        old, new = (self.count(metric, where, scope, of) for of in (self.parent, self.number))
        require(f"{metric} ({where})", old, new, expected)
        return " to ".join(dict.fromkeys((figure(old), figure(new))))

    def ctas(self, gpu: str, of: int = 0, configs: str | None = None) -> int:
        """The number of CTAs that are resident on one SM of a GPU."""
        iteration = load_iteration(of or self.number)
        config, kernel = iteration.configs[configs or gpu], locked(iteration, gpu, configs)
        shared = kernel.dynamic_smem + kernel.static_smem
        fits = load_gpus()[gpu].occupancy(registers=kernel.registers, threads=config.n_threads, shared_bytes=shared)
        return fits.ctas

    # Loads: cycles of a resource in the main loop, in percent of those of the tensor pipe.

    def share(self, resource: str, gpu: str, of: int = 0) -> float:
        """Percent of the tensor pipe's cycles that a resource needs, in the GPU's own configuration."""
        of = of or self.number
        loop = locked(load_iteration(of), gpu).main_loop
        tensor = loop["HMMA"] / tensor_rate(gpu)
        if resource == "issue slots":
            clocks = (loop["total"] - loop["HMMA"] + loop["HMMA"] * mma_issue(self.machine.name)) / SCHEDULERS
        elif resource == "shared reads":
            counters = self.emulated(of).counters
            clocks = loop["LDSM"] * counters[WAVEFRONTS.format("ld")] / counters[LDSM]
        else:
            raise FlashladderError("no such resource", expected="shared reads, issue slots", found=resource)
        return 100 * clocks / tensor

    def held(self, resource: str, gpu: str, of: int = 0, *, binds: bool) -> float:
        """`share` of a resource that must need at least as many cycles as the tensor pipe (`binds`), or fewer."""
        share = self.share(resource, gpu, of)
        if (share >= 100) is not binds:
            expected = f"{'at least' if binds else 'less than'} 100 %"
            raise contradiction(f"{resource} of iteration {of or self.number} on {gpu}", expected, f"{share:.1f} %")
        return share

    def tensor_use(self, gpu: str, of: int = 0) -> float:
        """Percent of the mma.sync rate that a kernel reaches at S = 4096 (published figures: at the boost clock)."""
        peaks = load_gpus()[gpu].peaks
        clocks = [peaks["boost_clock"].value]
        if gpu == self.machine.key:
            own = {one.number for one in self.ladder.iterations if one.family is self.step.family}
            timed = (one.headline for (number, _), one in self.machine.measured.items() if number in own)
            clocks = [one.sm_clock_mhz for one in timed if one and one.sm_clock_mhz]
        peak = tensor_rate(gpu) * MMA_FLOPS * peaks["sms"].value * statistics.median(clocks) * 1e6
        return 100 * self._tflops(gpu, of or self.number) * 1e12 / peak

    def fa2_use(self, gpu: str) -> float:
        """Percent of the tensor pipe's mma.sync rate that FA2 reaches at S = 4096."""
        first = self.ladder.iterations[0].number
        return 100 * self.tensor_use(gpu, first) / self.pct(gpu, first)

    def _tflops(self, gpu: str, of: int) -> float:
        if gpu in self.ladder.published.gpus:
            return self.ladder.published.tflops(of, gpu, "seq4096")
        row = next(row for row in self.ladder.rows(self.machine, DTYPE) if row.iteration.number == of)
        if row.tflops is None:
            raise FlashladderError("FA2 was not timed", found=gpu)
        return row.tflops


def _short(counters: Mapping[str, int]) -> Counts:
    return {short: counters[name] for short, name in COUNTERS.items() if name in counters}


def locked(iteration: Iteration, gpu: str, configs: str | None = None) -> LockedKernel:
    """The locked kernel in the configuration for `configs` (default: `gpu`); FlashladderError if there is none."""
    config = iteration.configs[configs or gpu]
    arch = iteration.family.targets.serving(load_gpus()[gpu].arch)
    if arch and (found := locked_kernel(iteration.number, config, arch)):
        return found
    raise FlashladderError(f"iteration {iteration.number} is not locked", expected=config.short_form(), found=gpu)


def tensor_rate(gpu: str) -> float:
    """HMMA per clock and SM: measured if the GPU's results hold rates, otherwise documented."""
    rounds = _rounds(RESULTS / gpu / "rates.json.gz")
    return max((rate for parts, rate in rounds if parts == {MMA: 1}), default=documented_rate(gpu))


def documented_rate(gpu: str) -> float:
    """HMMA per clock and SM at the documented peak, which may need another instruction."""
    return load_gpus()[gpu].peaks["fp16_tensor_rate"].value / MMA_FLOPS


def mma_issue(machine: str) -> float:
    """Clocks for which an HMMA keeps its scheduler from issuing: the mean over measured rounds of mixed instructions.

    It is an error if the folder `machine` of the results holds no such rounds.
    """
    path = RESULTS / machine / "rates.json.gz"
    mixed = [one for one in _rounds(path) if {MMA} < one[0].keys() <= {MMA, *ISSUED}]
    if not mixed:
        raise FlashladderError("no rates of mixed rounds", where=relative(path), expected=f"{MMA} + fma and its like")
    alike = grouped(mixed, lambda one: tuple(sorted(one[0].items()))).values()
    return statistics.mean(min(SCHEDULERS / rate - sum(parts.values()) + 1 for parts, rate in own) for own in alike)


@lru_cache(maxsize=8)
def _rounds(path: Path) -> tuple[tuple[dict[str, float], float], ...]:
    """Per round: its instructions for each one of the first kind, and how many of that kind an SM issues per clock."""
    found = []
    for run in read_json(path)["runs"] if path.is_file() else ():
        if not run["alone"]:
            spans = [span for repeat in run["spans"] for span in repeat]
            first = next(iter(run["instructions"].values()))
            rate = run["trips"] * first * run["warps"] / statistics.median(spans)
            found.append(({name: count / first for name, count in run["instructions"].items()}, rate))
    return tuple(found)


def bottleneck(ladder: Ladder, number: int, folder: Path = RESULTS) -> Iterator[str]:
    """Lines of the section on the predicted bottleneck; none without predictions, or for kernels outside the model.

    Predictions that are malformed, lack the kernel, or are of other machine code than the locked are errors.
    """
    path, words = folder / PREDICTIONS, Words(ladder, number)
    if not path.is_file() or not words.step.family.warps_alike:
        return
    every = load_predictions(path).gpus
    found = {gpu: one for gpu in GPUS for one in every.get(gpu, ()) if one.iteration == number}
    for gpu in GPUS:
        predicted, own = found[gpu].text_sha256 if gpu in found else "nothing", locked(words.step, gpu).text_sha256
        if predicted != own:
            what = f"iteration {number} on {gpu} is not what was predicted"
            raise FlashladderError(what, where=relative(path), expected=own, found=predicted)
    first = found[PUBLISHED_GPU].resources
    untimed = [gpu for gpu in ladder.published.gpus if ladder.published.find(number, gpu, "seq4096") is None]
    rows: dict[str, list[str]] = {
        "": [load_gpus()[gpu].title for gpu in found],
        **{
            name: [f"{100 * one.resources[name] / one.clocks:.0f} %" for one in found.values()]
            for name in sorted(first, key=lambda name: (-first[name], name))
        },
        "clocks": [f"{one.clocks:,.0f}" for one in found.values()],
        "bottleneck": [one.binding for one in found.values()],
        "predicted % of FA2": [f"{one.percent_of_fa2:.1f} %" for one in found.values()],
        "published or measured": [DASH if gpu in untimed else words.called["speed"](gpu) for gpu in found],
    }
    header, *lines = (f"| {name} | {' | '.join(cells)} |".replace("|  |", "| |") for name, cells in rows.items())
    yield from (
        "## Bottleneck",
        "",
        "How long one KV block keeps each resource of an SM busy, in percent of its predicted clocks, in the GPU's",
        f"configuration (`invoke explain {number} --gpu a100`). Latencies keep these below 100 %. This is a model.",
        "", header, "| --- |" + " ---: |" * len(found), *lines, "",
    )  # fmt: skip


def reasons(ladder: Ladder, number: int, path: Path = FILE) -> str:
    """The reasons of an iteration as Markdown, without a newline at the end.

    A missing text or section, an unknown name, and data that contradict the text are errors with file and line.
    """
    whole, where = read_text(path), relative(path)
    page = re.search(rf"^# {number}\s*?\n(.*?)(?=^# |\Z)", whole, re.MULTILINE | re.DOTALL)
    if page is None:
        hint = "docs/add-an-iteration.md says how"
        raise FlashladderError(f"no reasons of iteration {number}", where=where, hint=hint)
    above, found = whole.count("\n", 0, page.start(1)), tuple(re.findall(r"^(?:## |(?=#))(.*)", page[1], re.MULTILINE))
    if found != SECTIONS:
        raise FlashladderError(
            "wrong sections", where=f"{where}:{above}", expected=", ".join(SECTIONS), found=", ".join(found)
        )
    try:
        return ENVIRONMENT.from_string(page[1]).render(Words(ladder, number).called).strip()
    except (FlashladderError, jinja2.TemplateError, AttributeError, KeyError, TypeError, ValueError) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
        line = error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else lines[-1] if lines else None
        at = f"{where}:{above + line}" if line else where
        if isinstance(error, FlashladderError):
            error.where = at
            raise
        raise FlashladderError("a call that fails", where=at, found=repr(error)) from error
