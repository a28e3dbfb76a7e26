"""Which step `flashladder.forward` takes when nobody names one: on each measured GPU the fastest of each length.

Why: the last step is not the fastest everywhere; where tiles are many, 26 and 27 are faster than 28, and which of
the two depends on GPU and length. Where the fastest is not installed, the next fastest is taken.
``configs/fastest.json`` is written by ``invoke report`` from the sweep that goes farthest up the ladder on each GPU
(`flashladder.report.data.fastest_of`) and from the ladder's own table (`flashladder.report.data.Ladder.ranking`),
and the gate compares; nobody edits it.

Try: ``python -c "from flashladder.fastest import choices; print(choices('NVIDIA H200', 'sm_90'))"``.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from flashladder.errors import FlashladderError
from flashladder.files import load_json, relative
from flashladder.ladder.gpus import configs_for, gpu_key
from flashladder.ladder.iteration import load_all, load_runnable
from flashladder.located import first_problem
from flashladder.paths import CONFIGS

FASTEST = CONFIGS / "fastest.json"
Positive = Annotated[int, Field(ge=1)]
# A sequence length, and the steps from there on, the fastest first; lengths ascend, the first is 1.
Choices = tuple[tuple[int, tuple[int, ...]], ...]


def _from_one(steps: dict[int, int]) -> dict[int, int]:
    """Every length has a step."""
    if 1 not in steps:
        raise ValueError(f"expected a step from length 1 on, found lengths {sorted(steps)}")
    return steps


class Fastest(BaseModel):
    """The steps of one GPU."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    from_seq_len: Annotated[dict[Positive, Positive], AfterValidator(_from_one)] = Field(
        description="sequence length: step from there up to the next one"
    )
    ranking: tuple[Positive, ...] = Field(default=(), description="steps, the fastest first, over all lengths")


@cache
def load_fastest(path: Path = FASTEST) -> dict[str, Fastest]:
    """Steps by GPU key, as they are written.

    Raises:
        FlashladderError: the file is missing or malformed.
    """
    try:
        return TypeAdapter(dict[str, Fastest]).validate_python(load_json(path.read_bytes()))
    except (OSError, ValueError) as error:
        what = first_problem(error) if isinstance(error, ValidationError) else getattr(error, "strerror", None) or error
        raise FlashladderError(
            "cannot read the fastest steps", where=relative(path), found=what, hint="invoke report writes it"
        ) from error


@cache
def choices(gpu: str | None, arch: str | None) -> Choices:
    """From which sequence length on which steps are preferred on a GPU, by its name and architecture; None: on any.

    All measured steps that run there, each once: the fastest of these lengths, then the others by their rank over all
    lengths. A GPU that nobody measured has the table of the one whose configurations it runs (`configs_for`); where
    that was not measured either, later steps come first.

    Raises:
        FlashladderError: no step runs there.
    """
    measured = _measured(arch)
    key = gpu_key(gpu) if gpu else None
    tables = [load_fastest().get(known or "") for known in (key, arch and configs_for(key, arch))]
    known = [table for table in tables if table and set(table.from_seq_len.values()) <= set(measured)]
    starts = known[0].from_seq_len if known else {1: measured[-1]}
    ranking = next((table.ranking for table in known if table.ranking), ())
    rest = [step for step in (*ranking, *reversed(measured)) if step in measured]
    return tuple((start, tuple(dict.fromkeys((step, *rest)))) for start, step in sorted(starts.items()))


def _measured(arch: str | None) -> list[int]:
    """Numbers of the steps that run on an architecture and were timed; None: on any.

    Raises:
        FlashladderError: none does.
    """
    steps = load_all() if arch is None else load_runnable(arch)
    found = [step.number for step in steps if not step.unmeasured]
    if not found:
        raise FlashladderError("no step runs on this GPU", expected=load_all()[0].family.needs, found=arch)
    return found
