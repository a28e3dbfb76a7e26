"""Which step `flashladder.forward` takes when nobody names one: on each measured GPU the fastest of each length.

Why: the last step is not the fastest everywhere; where tiles are many, 26 and 27 are faster than 28, and 26 than 27 in
short rows. ``configs/fastest.json`` is written by ``invoke report`` from the sweep that goes farthest up the ladder
on each GPU (`flashladder.report.anchors.fastest_of`) and held to it by the gate; nobody edits it.

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
Choices = tuple[tuple[int, int], ...]  # a sequence length, and the step from there on; ascending, the first is 1


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
def choices(gpu: str, arch: str) -> Choices:
    """From which sequence length on which step is taken on a GPU, by its name and architecture.

    A GPU that nobody measured has those of the one whose configurations it runs (`configs_for`); where that was not
    measured either, the last measured step that runs there, for every length.
    """
    measured = _measured(arch)
    key = gpu_key(gpu)
    for known in (key, configs_for(key, arch)):
        found = load_fastest().get(known or "")
        if found and set(found.from_seq_len.values()) <= set(measured):
            return tuple(sorted(found.from_seq_len.items()))
    return ((1, measured[-1]),)


def last_measured(arch: str | None) -> int:
    """The last measured step that GPUs of an architecture run; None: of the ladder."""
    return _measured(arch)[-1]


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
