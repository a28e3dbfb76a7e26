"""The reasons of each step: prose of iterations/reasons/NN.md, whose figures are calls over committed data.

A page is a jinja2 template. ``{{ falls("LOP3", "sm_80") }}`` gives "149 to 44", and is an error when LOP3 no longer
falls. Speeds are measured or published percentages of FA2; counts are of machine code, PTX and counters; loads are
shares of the cycles that the tensor pipe takes. `analysis/render_notes.py` sets the result into the notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
import io
from pathlib import Path
import statistics
import traceback
from typing import Any, Literal

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from flashladder.columns import csv_records
from flashladder.emulate.agreement import counter_files
from flashladder.errors import FlashladderError
from flashladder.files import load_json, read_text, relative
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
from flashladder.report.data import Ladder, Machine
from flashladder.report.tables import DASH, headline_machine
from flashladder.report.variants import BOTH
from flashladder.results.files import load_as, read_json
from flashladder.results.published import sass_counts
from flashladder.results.schema import CounterResult, kernel_key

Direction = Literal["falls", "rises", "stays"]


class Contradicted(FlashladderError):
    """The data say otherwise than the page."""


@dataclass(frozen=True)
class Change:
    """A number before and after a step; a change within `noise` is none. `unit` follows the numbers."""

    what: str
    before: float
    after: float
    noise: float = 0.0
    unit: str = ""

    @property
    def direction(self) -> Direction:
        """What became of it."""
        if abs(self.after - self.before) <= self.noise:
            return "stays"
        return "rises" if self.after > self.before else "falls"

    def require(self, said: Direction) -> Change:
        """Itself.

        Raises:
            Contradicted: it took another direction than what is said.
        """
        if self.direction != said:
            found = f"{self.direction}, {figure(self.before)} to {figure(self.after)}{self.unit}"
            raise Contradicted(f"the data contradict the page about {self.what}", expected=said, found=found)
        return self

    def said(self) -> str:
        """``149 to 44``; one number where both are printed alike."""
        texts = figure(self.before), figure(self.after)
        return (" to ".join(texts) if texts[0] != texts[1] else texts[1]) + self.unit


def figure(value: float) -> str:
    """A count whole, with separators of thousands; anything else with two decimals below ten and one above."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.1f}"  # as the text says


DTYPE = "fp16"


@dataclass(frozen=True)
class Speeds:
    """Of one step: `number` is the page's."""

    ladder: Ladder
    number: int

    def vocabulary(self) -> Mapping[str, Callable[..., str]]:
        """What a page may call."""
        return {
            "speed": self.speed, "gains": self.gains, "loses": self.loses, "keeps": self.keeps, "more": self.more,
            "grows": self.grows, "pays": self.pays, "costs": self.costs, "worthless": self.worthless,
            "spilled": self.spilled, "length": self.length, "shortest": self.shortest, "noise": self.said_noise,
        }  # fmt: skip

    @property
    def machine(self) -> Machine:
        """The one that measured the ladder."""
        if machine := headline_machine(self.ladder):
            return machine
        raise FlashladderError("nothing was measured", where=relative(RESULTS), hint="git checkout -- results")

    @property
    def noise(self) -> float:
        """Points of FA2 within which two percentages count as one: a floor is of a run, the larger one of both runs.

        Raises:
            FlashladderError: neither the page's step nor its parent was timed.
        """
        compared = {self.number, load_iteration(self.number).parent}
        timed = (one for (number, _), one in self.machine.measured.items() if number in compared)
        floors = [one.floor for one in timed if one.kernel.dtype == DTYPE]
        if not floors:
            raise FlashladderError(f"iteration {self.number} was not measured", found=self.machine.key)
        return BOTH * max(floors)

    def length(self) -> str:
        """The sequence length of the headline."""
        return str(HEADLINE_LENGTH)

    def shortest(self) -> str:
        """The shortest sequence length."""
        return str(min(self.ladder.published.description.shape.seq_lens))

    def said_noise(self) -> str:
        """``0.8 points``."""
        return f"{self.noise:.1f} points"

    def pct(self, gpu: str, of: int, at: int = HEADLINE_LENGTH, configs: str | None = None) -> float:
        """Percent of FA2: published (a100, rtx3090) or measured, with `configs` of another GPU where it is named.

        Raises:
            FlashladderError: there is no such figure.
        """
        if gpu in self.ladder.published.gpus and at == HEADLINE_LENGTH and configs is None:
            return self.ladder.published.cell(of, gpu, "seq4096").value
        if gpu != self.machine.key:
            raise FlashladderError("no such speed", expected=self.machine.key, found=f"{gpu} at S = {at}")
        rows = {row.iteration.number: row.measured for row in self.ladder.rows(self.machine, DTYPE, configs)}
        measured = rows.get(of)
        if measured is None or at not in measured.summaries:
            raise FlashladderError(f"iteration {of} was not measured at S = {at}", found=gpu)
        return measured.summaries[at].pct

    def speed(self, gpu: str, of: int = 0, at: int = HEADLINE_LENGTH, configs: str | None = None) -> str:
        """``97.5 %``."""
        return f"{self.pct(gpu, of or self.number, at, configs):.1f} %"

    def change(self, gpu: str, at: int = HEADLINE_LENGTH, configs: str | None = None) -> Change:
        """Of the page's step against its parent, each in its own configuration unless `configs` says whose."""
        parent = load_iteration(self.number).parent
        if parent is None:
            raise FlashladderError(f"iteration {self.number} has no parent to be compared with")
        old, new = (self.pct(gpu, one, at, configs) for one in (parent, self.number))
        return Change(f"the speed on {gpu}", round(old, 1), round(new, 1), self.noise, " % of FA2")

    def gains(self, gpu: str, at: int = HEADLINE_LENGTH, configs: str | None = None) -> str:
        """``gains 7.5 points (80.3 to 87.8 % of FA2)``: faster, beyond noise.

        Raises:
            Contradicted: it is not.
        """
        return _moved("gains", self.change(gpu, at, configs).require("rises"))

    def loses(self, gpu: str, at: int = HEADLINE_LENGTH, configs: str | None = None) -> str:
        """The same of a step that makes it slower."""
        return _moved("loses", self.change(gpu, at, configs).require("falls"))

    def keeps(self, gpu: str, at: int = HEADLINE_LENGTH, configs: str | None = None) -> str:
        """``95.2 to 95.3 % of FA2``: of a step that changes nothing beyond noise."""
        return _shown(self.change(gpu, at, configs).require("stays"))

    def more(self, gpu: str, other: str, configs: str | None = None) -> str:
        """``+4.8 against -1.4 points``: the step's change on `gpu`, larger than that on `other` beyond noise."""
        first, second = (
            round(one.after - one.before, 1) for one in (self.change(gpu, configs=configs), self.change(other))
        )
        if first - second <= self.noise:
            what = f"the data contradict the page about {gpu} beside {other}"
            raise Contradicted(what, expected="a larger gain", found=f"{first:+.1f} and {second:+.1f} points")
        return f"{first:+.1f} against {second:+.1f} points"

    def grows(self, gpu: str, at: int) -> str:
        """``+3.4 points at S = 512 and +4.8 at S = 4096``: a gain that is larger in the headline than at `at`.

        Raises:
            Contradicted: it is not, beyond noise.
        """
        first, second = (round(one.after - one.before, 1) for one in (self.change(gpu, at), self.change(gpu)))
        said = f"{first:+.1f} points at S = {at} and {second:+.1f} at S = {HEADLINE_LENGTH}"
        if second - first <= self.noise:
            raise Contradicted(f"the data contradict the page about the gain on {gpu}", expected="it grows", found=said)
        return said

    def ablation(self, change: str, gpu: str, of: int, at: int) -> Mapping[str, str]:
        """The row of a change in an iteration, at the configuration that it has for `gpu`; see `pays`."""
        base = load_iteration(of or max(cell.iteration for cell in self.ladder.published.cells))
        subject = f"{base.number} {'+' if base.parent is None else '-'} {change}"
        config = base.configs[gpu].short_form()
        name = f"ablation_{self.machine.key}.csv"
        for row in _worths(name):
            if (row["subject"], row["base_config"], row["seq_len"]) == (subject, config, str(at)):
                return row
        raise FlashladderError(f"no ablation {subject}", expected=f"a row of results/report/{name}", found=gpu)

    def worth(self, change: str, gpu: str, of: int, at: int, verdicts: tuple[str, ...]) -> float:
        """What it is worth in percent of speed; refused unless the verdict is one of `verdicts`."""
        row = self.ablation(change, gpu, of, at)
        worth = float(row["worth_pct"])
        if row["verdict"] not in verdicts:
            what = f"the data contradict the page about {row['subject']}"
            raise Contradicted(what, expected=" or ".join(verdicts), found=f"{row['verdict']}, {worth:+.1f} %")
        return worth

    def spilled(self, change: str, gpu: str = PUBLISHED_GPU, of: int = 0) -> str:
        """``352 against 40 bytes``: spill stores without a change and with it, of the kernels of `pays`."""
        row = self.ablation(change, gpu, of, HEADLINE_LENGTH)
        return f"{row['spill_store_bytes']} against {row['base_spill_store_bytes']} bytes"

    def pays(self, change: str, gpu: str = PUBLISHED_GPU, of: int = 0, at: int = HEADLINE_LENGTH) -> str:
        """``26.4 %``: how much faster a kernel is with the change, in the configuration for `gpu`, on the H200.

        The change is taken back from the end of the published ladder, or added to the first (``of=1``).

        Raises:
            Contradicted: it is not faster beyond noise.
        """
        return f"{self.worth(change, gpu, of, at, ('faster',)):.1f} %"

    def costs(self, change: str, gpu: str = PUBLISHED_GPU, of: int = 0, at: int = HEADLINE_LENGTH) -> str:
        """As `pays`, of a change that makes it slower."""
        return f"{-self.worth(change, gpu, of, at, ('slower',)):.1f} %"

    def worthless(self, change: str, gpu: str = PUBLISHED_GPU, of: int = 0, at: int = HEADLINE_LENGTH) -> str:
        """As `pays`, of a change whose effect noise hides."""
        return f"{round(self.worth(change, gpu, of, at, ('same', 'ambiguous')), 1) + 0.0:+.1f} %"


def _shown(change: Change) -> str:
    return f"{change.before:.1f} to {change.after:.1f} % of FA2"


def _moved(verb: str, change: Change) -> str:
    return f"{verb} {abs(change.after - change.before):.1f} points ({_shown(change)})"


@lru_cache(maxsize=1)
def _worths(name: str) -> tuple[Mapping[str, str], ...]:
    """The rows of the ablation's table, which the gate holds to its samples."""
    path = RESULTS / "report" / name
    try:
        return tuple(csv_records(io.StringIO(read_text(path))))
    except (FlashladderError, ValueError) as error:
        raise FlashladderError(
            "no ablation", where=relative(path), found=error, hint="git checkout -- results"
        ) from error


SCOPES: Mapping[str, Scope] = {"kernel": "kernel", "loop": "main_loop"}
LISTINGS = {f"published {gpu}": gpu for gpu in ("a100", "rtx3090")}
COUNTED = ("emulator", "ncu")
MEASURES = ("registers", "spill_stores", "spill_loads", "dynamic_smem")  # of a locked kernel, beside its opcodes
Counts = Mapping[str, float]


@dataclass(frozen=True)
class Counted:
    """Of one step: `number` is the page's."""

    ladder: Ladder
    number: int

    def vocabulary(self) -> Mapping[str, Callable[..., str]]:
        """What a page may call."""
        return {"count": self.count, "falls": self.falls, "rises": self.rises, "stays": self.stays, "knob": self.knob,
                "ctas": self.ctas}  # fmt: skip

    def value(self, metric: str, where: str, scope: str, of: int) -> float:
        """A count, a sum of counts (``A+B``) or a quotient (``A/B``).

        Raises:
            FlashladderError: no such name or place, or nothing was counted there.
        """
        counts = self._counts(where, scope, of)
        for name in Claim(metric, "kernel", "equals").names:
            _known(name, where, counts)
        return Claim(metric, "kernel", "equals").measure(counts)

    def _counts(self, where: str, scope: str, of: int) -> Counts:
        if scope not in SCOPES:
            raise FlashladderError("no such scope", expected=", ".join(SCOPES), found=scope)
        if where in (*LOCK_ARCHES, "ptx"):
            return self._step(where, scope, of)
        if where in GPUS:
            return _locked_counts(locked(load_iteration(of), where), scope)
        if where in LISTINGS and scope == "kernel":
            return sass_counts()[of, LISTINGS[where]]
        if where in COUNTED:
            return self._counters(where, of)
        known = (*LOCK_ARCHES, "ptx", *GPUS, *LISTINGS, *COUNTED)
        raise FlashladderError("no such place to count in", expected=", ".join(known), found=where)

    def _step(self, where: str, scope: str, of: int) -> Counts:
        """At the configuration of the page's step, which `of` is or is the parent of."""
        step = load_iteration(self.number)
        own, before = claim_configs(step)
        if of not in (step.number, step.parent) or (of == step.parent and before is None):
            raise FlashladderError(f"the step alone compares iterations {step.parent} and {step.number}", found=of)
        config = own if of == step.number or before is None else before
        claim = Claim("total", "ptx" if where == "ptx" else SCOPES[scope], "equals")
        return scope_counts(claim, read_counts().of(of, config), where)

    def _counters(self, where: str, of: int) -> Counts:
        if where == "ncu":
            found = self._ncu[kernel_key(of, load_iteration(of).configs[PUBLISHED_GPU].short_form())]
            return {short: found[name] for short, name in COUNTERS.items() if name in found}
        if self.ladder.emulated is None:
            raise FlashladderError("no emulated counters", hint="python -m flashladder.emulate.take_reading --write")
        kernel = self.ladder.emulated.of(of)
        counters = {short: kernel.counters[name] for short, name in COUNTERS.items() if name in kernel.counters}
        ideal = {f"ideal_{one}_wavefronts": count for one, count in kernel.ideal_wavefronts.items()}
        return {**counters, **ideal, "ptx_instructions": kernel.warp_instructions}

    @cached_property
    def _ncu(self) -> Mapping[str, Mapping[str, int]]:
        """Readings of the one machine that has some, by kernel."""
        (path,) = counter_files()
        return load_as(path, CounterResult).counters

    def count(self, metric: str, where: str, scope: str = "loop", of: int = 0) -> str:
        """``44``: in one KV block's trip of the main loop, unless `scope` is ``kernel``."""
        return figure(self.value(metric, where, _scope(where, scope), of or self.number))

    def change(self, metric: str, where: str, scope: str) -> Change:
        """Of the page's step against its parent."""
        scope = _scope(where, scope)
        parent = load_iteration(self.number).parent
        if parent is None:
            raise FlashladderError(f"iteration {self.number} has no parent to be compared with")
        old, new = (self.value(metric, where, scope, of) for of in (parent, self.number))
        return Change(f"{metric} ({where})", old, new)

    def falls(self, metric: str, where: str, scope: str = "loop") -> str:
        """``149 to 44``: fewer than in the parent.

        Raises:
            Contradicted: they are not.
        """
        return self.change(metric, where, scope).require("falls").said()

    def rises(self, metric: str, where: str, scope: str = "loop") -> str:
        """As `falls`, of what grows."""
        return self.change(metric, where, scope).require("rises").said()

    def stays(self, metric: str, where: str, scope: str = "loop") -> str:
        """``72``: as many as in the parent."""
        return self.change(metric, where, scope).require("stays").said()

    def knob(self, name: str, gpu: str, of: int = 0) -> str:
        """``128``: a number of a GPU's configuration, by the field's name (B_r, B_c, n_warps)."""
        value = getattr(load_iteration(of or self.number).configs[gpu], name, None)
        if not isinstance(value, int) or isinstance(value, bool):
            raise FlashladderError("no such number of a configuration", found=name)
        return figure(value)

    def ctas(self, gpu: str, of: int = 0, configs: str | None = None) -> str:
        """CTAs that one of a GPU's SMs holds at once, in its own configuration or in that for another GPU."""
        iteration = load_iteration(of or self.number)
        config, kernel = iteration.configs[configs or gpu], locked(iteration, gpu, configs)
        fits = load_gpus()[gpu].occupancy(
            registers=kernel.registers, threads=config.n_threads, shared_bytes=kernel.dynamic_smem + kernel.static_smem
        )
        return figure(fits.ctas)


def _scope(where: str, scope: str) -> str:
    """Loops are told apart in our machine code alone; everything else is counted whole."""
    return scope if where in (*LOCK_ARCHES, *GPUS) else "kernel"


def locked(iteration: Iteration, gpu: str, configs: str | None = None) -> LockedKernel:
    """The locked kernel of a GPU's own configuration, or of that for another one.

    Raises:
        FlashladderError: it is not locked.
    """
    config = iteration.configs[configs or gpu]
    arch = iteration.family.targets.serving(load_gpus()[gpu].arch)
    if arch and (found := locked_kernel(iteration.number, config, arch)):
        return found
    raise FlashladderError(f"iteration {iteration.number} is not locked", expected=config.short_form(), found=gpu)


def _locked_counts(kernel: LockedKernel, scope: str) -> Counts:
    counts = kernel.main_loop if scope == "loop" else kernel.counts
    return {**counts, **{name: getattr(kernel, name) for name in MEASURES}}


def _known(name: str, where: str, counts: Counts) -> None:
    """Refuses a name that could only ever be counted zero times."""
    if name in counts:
        return
    language = "ptx" if where == "ptx" else "sass"
    wrong = (", ".join(counts), None) if where in COUNTED else unknown(name, language)
    if wrong:
        raise FlashladderError(f"nothing is called {name!r} in {where}", expected=wrong[0], hint=wrong[1])


MMA = "mma.f16"
MMA_FLOPS = 2 * 16 * 8 * 16  # of an HMMA: m16n8k16, a multiplication and an addition each
SCHEDULERS = 4  # of an SM, from sm_80 to sm_90: each issues an instruction per clock
ISSUED = ("fma", "mul", "iadd", "cvt.f16x2", "shfl.bfly")  # beside an mma these take one slot each, and no more


def tensor_rate(gpu: str) -> float:
    """HMMA per clock and SM: measured where it was, else the documented one."""
    path = RESULTS / gpu / "rates.json.gz"
    if not path.is_file():
        return documented_rate(gpu)
    return max(rate for parts, rate in _rounds(path) if parts == {MMA: 1})


def documented_rate(gpu: str) -> float:
    """HMMA per clock and SM at the documented peak, by whichever instruction reaches it."""
    return load_gpus()[gpu].peaks["fp16_tensor_rate"].value / MMA_FLOPS


def mma_issue(machine: str) -> float:
    """Clocks of a scheduler that an HMMA takes from other instructions: the mean over rounds that mix it with them.

    Args:
        machine: folder of the results that hold the rates.

    Raises:
        FlashladderError: it holds none.
    """
    path = RESULTS / machine / "rates.json.gz"
    best: dict[tuple[tuple[str, float], ...], float] = {}
    for parts, rate in _rounds(path) if path.is_file() else ():
        others = parts.keys() - {MMA}
        if MMA in parts and others and others <= set(ISSUED):
            clocks = SCHEDULERS / rate - sum(parts[name] for name in others)
            key = tuple(sorted(parts.items()))
            best[key] = min(clocks, best.get(key, clocks))
    if not best:
        raise FlashladderError("no rates of mixed rounds", where=relative(path), expected=f"{MMA} + fma and its like")
    return statistics.mean(best.values())


@lru_cache(maxsize=4)
def _rounds(path: Path) -> tuple[tuple[dict[str, float], float], ...]:
    """Instructions of a round for each of its first kind, and how many of that kind an SM takes per clock."""
    found = []
    for run in read_json(path)["runs"]:
        if not run["alone"]:
            spans = [span for repeat in run["spans"] for span in repeat]
            first = next(iter(run["instructions"].values()))
            rate = run["trips"] * first * run["warps"] / statistics.median(spans)
            found.append(({name: count / first for name, count in run["instructions"].items()}, rate))
    return tuple(found)


WHOLE = 100.0  # %: as many cycles as the tensor pipe's
RESOURCES = ("shared reads", "issue slots")


@dataclass(frozen=True)
class Loads:
    """Of one step: `number` is the page's."""

    ladder: Ladder
    number: int

    def vocabulary(self) -> Mapping[str, Callable[..., str]]:
        """What a page may call."""
        return {
            "ceiling": self.ceiling, "binds": self.binds, "hides": self.hides,
            "busy": self.busy,
            "tensor_use": self.tensor_use, "fa2_use": self.fa2_use, "mma_cycles": self.mma_cycles,
            "peak_cycles": self.peak_cycles, "mma_issue": self.mma_issue,
        }  # fmt: skip

    @cached_property
    def _mma_issue(self) -> float:
        """Measured on the machine of the ladder, and taken for other GPUs, of which nobody says it."""
        return mma_issue(Speeds(self.ladder, self.number).machine.name)

    def mma_issue(self) -> str:
        """Clocks for which an HMMA keeps its scheduler from issuing anything else."""
        return f"{self._mma_issue:.1f}"

    def share(self, resource: str, gpu: str, of: int) -> float:
        """Cycles of a resource in percent of the tensor pipe's, in the main loop of a GPU's own configuration."""
        if resource not in RESOURCES:
            raise FlashladderError("no such resource", expected=", ".join(RESOURCES), found=resource)
        loop = locked(load_iteration(of), gpu).main_loop
        tensor = loop["HMMA"] / tensor_rate(gpu)
        if resource == "issue slots":
            others = loop["total"] - loop["HMMA"]
            return 100 * (others + loop["HMMA"] * self._mma_issue) / SCHEDULERS / tensor
        if self.ladder.emulated is None:
            raise FlashladderError("no emulated counters", hint="python -m flashladder.emulate.take_reading --write")
        kernel = self.ladder.emulated.of(of)
        wavefronts = kernel.counters[WAVEFRONTS.format("ld")] / kernel.counters[LDSM]  # a property of the layout
        return 100 * loop["LDSM"] * wavefronts / tensor

    def ceiling(self, resource: str, gpu: str) -> str:
        """``12 %``: how much of the tensor pipe's rate such a resource leaves at most; of one that binds.

        Raises:
            Contradicted: the tensor pipe needs longer.
        """
        self._held(resource, gpu, self.number, binds=True)
        return f"{100 * WHOLE / self.share(resource, gpu, self.number):.0f} %"

    def binds(self, resource: str, gpu: str, of: int = 0) -> str:
        """``133 %`` of the tensor pipe's cycles: of a resource that needs at least as long as it.

        Raises:
            Contradicted: it does not.
        """
        return self._held(resource, gpu, of or self.number, binds=True)

    def hides(self, resource: str, gpu: str, of: int = 0) -> str:
        """``63 %``: as `binds`, of a resource that needs less time than the tensor pipe."""
        return self._held(resource, gpu, of or self.number, binds=False)

    def _held(self, resource: str, gpu: str, of: int, *, binds: bool) -> str:
        share = self.share(resource, gpu, of)
        if (share >= WHOLE) is not binds:
            expected = f"{'at least' if binds else 'less than'} {WHOLE:g} %"
            what = f"the data contradict the page about {resource} of iteration {of} on {gpu}"
            raise Contradicted(what, expected=expected, found=f"{share:.1f} %")
        return f"{share:.0f} %"

    def mma_cycles(self, gpu: str) -> str:
        """Clocks that one HMMA keeps the tensor pipe of its scheduler busy."""
        return f"{SCHEDULERS / tensor_rate(gpu):.1f}".removesuffix(".0")

    def peak_cycles(self, gpu: str) -> str:
        """The same at the documented rate; fewer than measured.

        Raises:
            Contradicted: they are not.
        """
        if documented_rate(gpu) <= tensor_rate(gpu):
            raise Contradicted(f"the data contradict the page about mma on {gpu}", expected="less than the peak")
        return f"{SCHEDULERS / documented_rate(gpu):.1f}".removesuffix(".0")

    def tensor_use(self, gpu: str, of: int = 0) -> str:
        """``59 %``: the share of the tensor pipe's rate through mma.sync that the kernel reaches at S = 4096."""
        return f"{100 * self._use(gpu, of or self.number):.0f} %"

    def busy(self, resource: str, gpu: str, of: int = 0) -> str:
        """``46 %``: the share of the kernel's time that a resource works, at S = 4096."""
        of = of or self.number
        return f"{self.share(resource, gpu, of) * self._use(gpu, of):.0f} %"

    def _use(self, gpu: str, of: int) -> float:
        return self._tflops(gpu, of) * 1e12 / self._peak(gpu)

    def fa2_use(self, gpu: str) -> str:
        """The same of FA2."""
        first = self.ladder.iterations[0].number
        tflops = self._tflops(gpu, first) / Speeds(self.ladder, first).pct(gpu, first) * 100
        return f"{100 * tflops * 1e12 / self._peak(gpu):.0f} %"

    def _peak(self, gpu: str) -> float:
        """FLOP/s of all tensor pipes, at the clock of the timing or, of a published figure, the boost clock."""
        peaks = load_gpus()[gpu].peaks
        speeds = Speeds(self.ladder, self.number)
        clocks = [peaks["boost_clock"].value]
        if gpu == speeds.machine.key:
            family = load_iteration(self.number).family  # another family's kernels may run at another clock
            own = {one.number for one in self.ladder.iterations if one.family is family}
            measured = (one for (number, _), one in speeds.machine.measured.items() if number in own)
            summaries = [one.summaries.get(HEADLINE_LENGTH) for one in measured]
            clocks = [one.sm_clock_mhz for one in summaries if one and one.sm_clock_mhz]
        return tensor_rate(gpu) * MMA_FLOPS * peaks["sms"].value * statistics.median(clocks) * 1e6

    def _tflops(self, gpu: str, of: int) -> float:
        speeds = Speeds(self.ladder, self.number)
        if gpu in self.ladder.published.gpus:
            return self.ladder.published.tflops(of, gpu, "seq4096")
        row = next(row for row in self.ladder.rows(speeds.machine, "fp16") if row.iteration.number == of)
        if row.tflops is None:
            raise FlashladderError("FA2 was not timed", found=gpu)
        return row.tflops


PREDICTIONS = "explain/predictions.json"  # under a results folder


def bottleneck(ladder: Ladder, number: int, folder: Path = RESULTS) -> Iterator[str]:
    """Lines of the section, from its heading on; none without predictions, or of a kernel that the model cannot follow.

    Raises:
        FlashladderError: the predictions are malformed, lack the kernel, or are of other machine code than the lock's.
    """
    path = folder / PREDICTIONS
    iteration = next(one for one in ladder.iterations if one.number == number)
    if not path.is_file() or not iteration.family.warps_alike:
        return
    speeds = Speeds(ladder, number)
    found = {gpu: _prediction(path, ladder, gpu, number) for gpu in GPUS}
    first = found[PUBLISHED_GPU]["resources"]
    names = sorted(first, key=lambda name: (-first[name], name))
    yield from (
        "## Bottleneck",
        "",
        "What a KV block of one CTA asks of an SM in the configuration of the GPU, in percent of the clocks that the",
        f"model predicts for it (`invoke explain {number} --gpu a100`); a model is not a measurement.",
        "",
        f"| | {' | '.join(load_gpus()[gpu].title for gpu in found)} |",
        "| --- |" + " ---: |" * len(found),
    )
    rows = {name: [f"{100 * one['resources'][name] / one['clocks']:.0f} %" for one in found.values()] for name in names}
    rows["clocks"] = [f"{one['clocks']:,.0f}" for one in found.values()]
    rows["binds"] = [str(one["binding"]) for one in found.values()]
    rows["predicted, of FA2"] = [f"{one['percent_of_fa2']:.1f} %" for one in found.values()]
    rows["published or measured"] = [_actual(speeds, gpu) for gpu in found]
    yield from (f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())
    yield ""


def _actual(speeds: Speeds, gpu: str) -> str:
    """What was published or measured of the page's step; a dash on a GPU where nobody has timed it."""
    if gpu in speeds.ladder.published.gpus and speeds.ladder.published.find(speeds.number, gpu, "seq4096") is None:
        return DASH
    return speeds.speed(gpu)


def _prediction(path: Path, ladder: Ladder, gpu: str, number: int) -> Mapping[str, Any]:
    """What the model said of an iteration on a GPU."""
    where = relative(path)
    try:
        (found,) = (one for one in _read(path, path.stat().st_mtime_ns)["gpus"][gpu] if one["iteration"] == number)
        own, *_ = (found[name] for name in ("text_sha256", "resources", "clocks", "binding", "percent_of_fa2"))
    except (KeyError, ValueError) as error:
        raise FlashladderError(f"no prediction of iteration {number} on {gpu}", where=where, found=error) from error
    iteration = next(one for one in ladder.iterations if one.number == number)
    if own != (theirs := locked(iteration, gpu).text_sha256):
        raise FlashladderError(f"iteration {number} on {gpu} is not what was predicted", expected=theirs, found=own)
    return found  # type: ignore[no-any-return]  # JSON


@lru_cache(maxsize=2)
def _read(path: Path, stamp: int) -> Any:
    del stamp
    return load_json(path.read_bytes())


FOLDER = ITERATIONS / "reasons"
SECTIONS = ("What one sees", "Reasons", "Try next")
ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False)


def vocabulary(ladder: Ladder, number: int) -> Mapping[str, Callable[..., str]]:
    """All that the page of an iteration may call."""
    return {name: call for part in (Speeds, Counted, Loads) for name, call in part(ladder, number).vocabulary().items()}


def reasons(ladder: Ladder, number: int, folder: Path = FOLDER) -> str:
    """The reasons of an iteration as Markdown, without a newline at the end.

    Raises:
        FlashladderError: the page is missing, a name is unknown, a section lacks, or the data contradict it; with file
            and line.
    """
    path = folder / f"{number:02d}.md"
    where = relative(path)
    if not path.exists():
        raise FlashladderError("no reasons", where=where, hint="docs/add-an-iteration.md says how")
    text = read_text(path)
    found = tuple(line.removeprefix("## ") for line in text.splitlines() if line.startswith("#"))
    if found != SECTIONS:
        raise FlashladderError("wrong sections", where=where, expected=", ".join(SECTIONS), found=", ".join(found))
    try:
        return ENVIRONMENT.from_string(text).render(vocabulary(ladder, number)).strip()
    except jinja2.TemplateSyntaxError as error:
        raise FlashladderError("broken page of reasons", where=f"{where}:{error.lineno}", found=error) from error
    except (FlashladderError, jinja2.TemplateError, KeyError, TypeError) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
        at = f"{where}:{lines[-1]}" if lines else where
        if isinstance(error, FlashladderError):
            error.where = at
            raise
        raise FlashladderError("a call that fails", where=at, found=error) from error
