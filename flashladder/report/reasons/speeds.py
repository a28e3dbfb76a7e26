"""Speeds that a page of reasons may name: measured and published percentages of FA2, and what a change is worth.

Why one noise for a step: a published figure has no interval, so that a change of it counts as one only beyond the A/A
floor for two ratios of the runs that timed the step and its parent here, as a measured one does. Nothing to run here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
import io

from flashladder.columns import csv_records
from flashladder.errors import FlashladderError
from flashladder.files import read_text, relative
from flashladder.ladder.iteration import load_iteration
from flashladder.names import HEADLINE_LENGTH, PUBLISHED_GPU
from flashladder.paths import RESULTS
from flashladder.report.data import Ladder, Machine
from flashladder.report.reasons.guarded import Change, Contradicted
from flashladder.report.tables import headline_machine
from flashladder.report.variants.worth import BOTH

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
