"""What a machine's folder of results must hold: ``results/<machine>/manifest.yaml``, strict models and their reader.

Why: files that agree with each other may still lack a cell, a length, a case or a tool. What they owe is data of its
own, written by hand beside them: per file what it holds, for which iterations, configurations, dtypes and lengths, by
which settings and on which day. `flashladder.gate.evidence.manifest` compares; the form is exported as JSON Schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Union

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from flashladder.files import read_text
from flashladder.ladder.config import Dtype, KernelConfig
from flashladder.ladder.grid import ReferenceName
from flashladder.ladder.iteration import load_all
from flashladder.ladder.selection import select_configs
from flashladder.located import read_located, validate

NAME = "manifest.yaml"

Count = Annotated[int, Field(ge=0)]
Some = Annotated[int, Field(gt=0)]


def _each_once(lengths: list[int]) -> list[int]:
    """The lengths, none of which is named twice."""
    if len(set(lengths)) != len(lengths):
        raise ValueError(f"expected each length once, found {lengths}")
    return lengths


Lengths = Annotated[list[Some], Field(min_length=1), AfterValidator(_each_once)]
Dtypes = Annotated[list[Dtype], Field(min_length=1)]


class _Strict(BaseModel):
    """No unknown keys, no conversion between types, no change after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Kernels(_Strict):
    """Which kernels a file holds: iterations in the configurations that the keys select, in each dtype."""

    iterations: Annotated[list[Some], Field(min_length=1)]
    configs: Annotated[list[str], Field(min_length=1, description="selection keys; each kernel counts once")]
    dtypes: Dtypes

    def configurations(self) -> dict[int, tuple[KernelConfig, ...]]:
        """Configurations by iteration, each once, in order.

        Raises:
            FlashladderError: an iteration that there is not, or a key that selects nothing.
        """
        ladder = {one.number: one for one in load_all()}
        return {
            number: tuple(
                dict.fromkeys(
                    config for key in self.configs for config in select_configs(ladder[number], key, tuple(self.dtypes))
                )
            )
            for number in self.iterations
            if number in ladder
        }


class Apart(_Strict):
    """Cells that were measured farther from the machine's other runs than the floors allow; twice as far at most.

    A cell that agrees with them after all may not be listed.
    """

    cells: Annotated[list[str], Field(min_length=1, description="as messages name them, without the word cell")]
    why: Annotated[str, Field(min_length=20, description="what is known of the reason")]


class Timings(_Strict):
    """Paired timings: `of` is the ladder's own, `kernels` names others (variants, toolchains, finals) in full.

    `beside` is a file with the same kernels on another card, timed in the same way: their ratios agree within both
    floors. `other_card_than` is one that was timed on another card, whose ratios may be as far off as any other's.
    `grid` is the one that a sweep answers.
    """

    holds: Literal["timings"]
    day: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="UTC, on which its processes were started")]
    purpose: Literal["report", "tune"] = "report"
    mode: Literal["event-free", "event-locked", "ncu-base"] = "event-free"
    protocol: str
    processes: Some
    pairs: Some
    blocks: Some
    min_pairs: Some
    of: Kernels | None = None
    kernels: list[str] = []
    references: list[ReferenceName] = []
    seq_lens: Lengths
    grid: str | None = None
    beside: str | None = None
    other_card_than: str | None = None
    apart: Apart | None = None


class EveryCase(_Strict):
    """Every case of each configuration, so often."""

    of: Kernels
    cases: Annotated[int, Field(gt=0, description="per kernel")]
    ragged: Annotated[int, Field(ge=0, description="more, per kernel that takes any length")] = 0
    few: Annotated[int, Field(ge=0, description="more, per kernel that splits the tiles of small grids")] = 0
    repeats: Annotated[int, Field(gt=1, description="runs of a case that agree bit for bit")]


class Cases(EveryCase):
    """Numerical checks: every case of each configuration, so often."""

    holds: Literal["cases"]


class Sanitizers(_Strict):
    """compute-sanitizer: these tools over these kernels."""

    holds: Literal["sanitizers"]
    of: Kernels
    tools: Annotated[list[str], Field(min_length=1)]


class Counters(_Strict):
    """Hardware counters of these kernels, by Nsight Compute's names."""

    holds: Literal["counters"]
    of: Kernels
    seq_len: Some
    counters: Annotated[list[str], Field(min_length=1)]


class Opinions(_Strict):
    """The same cells by other tools, with at least so many samples of each subject."""

    holds: Literal["opinions"]
    of: Kernels
    references: list[ReferenceName] = []
    seq_lens: Lengths
    samples: Annotated[dict[str, Some], Field(min_length=1, description="by tool")]


class Log(_Strict):
    """pytest's output: so many passed and were skipped."""

    holds: Literal["tests"]
    passed: Some
    skipped: Count = 0


class Seconds(_Strict):
    """Seconds of the cells of sweeps, a row each; each has its file beside."""

    holds: Literal["seconds"]
    sweeps: Annotated[list[str], Field(min_length=1)]


class Trials(_Strict):
    """Trials of variants that are not in the tree: how many, and pairs in all."""

    holds: Literal["trials"]
    trials: Some
    pairs: Some


class Rates(_Strict):
    """Micro-benchmarks of instructions: so many runs, each so often, a span of every SM each time."""

    holds: Literal["rates"]
    runs: Some
    repeats: Some


class Energy(_Strict):
    """Runs of some seconds of these kernels and references in turn, with their joules."""

    holds: Literal["energy"]
    of: Kernels
    references: list[ReferenceName] = []
    seq_lens: Lengths
    turns: Some
    seconds: Annotated[float, Field(gt=0, description="of a run, at least")]


class Soak(EveryCase):
    """Every case beside other work, launches at small shapes in all, and long shapes: of each kernel."""

    holds: Literal["soak"]
    launches: Annotated[int, Field(gt=0, description="at small shapes, of each kernel")]
    far: Annotated[int, Field(gt=0, description="long shapes of each kernel")]


class Accuracy(_Strict):
    """Errors of iterations, FA2 and other references against fp64, on so many inputs in each dtype."""

    holds: Literal["accuracy"]
    iterations: Annotated[list[Some], Field(min_length=1)]
    references: list[ReferenceName] = []
    inputs: Some


class Other(_Strict):
    """A text, or a table that is derived from a file beside it."""

    holds: Literal["text", "table"]


Held = Annotated[
    Union[  # noqa: UP007  # a discriminated union reads as one
        Timings,
        Cases,
        Sanitizers,
        Counters,
        Opinions,
        Log,
        Seconds,
        Trials,
        Rates,
        Energy,
        Soak,
        Accuracy,
        Other,
    ],
    Field(discriminator="holds"),
]


class Manifest(_Strict):
    """One file ``results/<machine>/manifest.yaml``: every file of the folder but itself, the seal and machine.json."""

    machine: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    files: Annotated[dict[str, Held], Field(min_length=1)]


def load_manifest(folder: Path) -> Manifest:
    """The manifest of a machine's folder.

    Raises:
        FlashladderError: it is missing or malformed.
    """
    text = read_text(folder / NAME)
    if text not in _READ:
        if len(_READ) > 16:
            _READ.clear()
        _READ[text] = validate(Manifest, read_located(folder / NAME))
    return _READ[text]


_READ: dict[str, Manifest] = {}  # by text: PyYAML needs 0.1 s for one, and the gate asks often
