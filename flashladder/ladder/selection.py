"""Selection keys: short words for the configurations that a command shows, builds, checks or measures.

The family decides which configurations are legal and which are worth timing (`flashladder.ladder.family`). `choices`
gives the step that `flashladder.forward` takes by default, because the last step is not the fastest everywhere.
``invoke report`` writes ``configs/fastest.json`` from each GPU's sweep with the most steps and from the ladder's own
table (`flashladder.report.data`). The gate compares the file; do not edit it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from pathlib import Path
import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import configs_for, gpu_key, load_gpus
from flashladder.ladder.iteration import Iteration, load_all, load_runnable
from flashladder.located import closest, read_committed
from flashladder.names import DTYPES, PUBLISHED_GPU
from flashladder.paths import CONFIGS
from flashladder.problem import Mask

WORDS = ("prog", "prog-all", "all", "tune")
_TILE = re.compile(r"(\d{1,9}), ?(\d{1,9})", re.ASCII)

MOST_LISTED = 6  # configurations that one message names


def select_configs(
    iteration: Iteration,
    key: str,
    dtypes: Sequence[str] = DTYPES,
    *,
    mask: Mask | None = None,
    packed: bool | None = None,
    single: bool = False,
) -> tuple[KernelConfig, ...]:
    """The configurations that `key` selects for an iteration, each once, for each of `dtypes`.

    ``a100`` or ``prog:a100``: one GPU's (``h100`` and ``rtx4090`` use those of the H200 and the RTX 3090); ``prog``:
    those of all its GPUs; ``prog-all``: those of all iterations that this one can express; ``all``: every legal one;
    ``tune``: the tuning space; ``128,64``: those of the tuning space with this B_r and B_c; ``128,64,4 2_2_2+buffer``,
    as ``invoke list`` prints it, or a short form: that one. A short form has its own dtype and mask; the others
    come with each mask that the iteration knows, or with `mask` alone, and for samples and packed sequences, or for
    what `packed` says alone. If `single`, the error for an unknown key lists only keys of one configuration.

    An unknown key or dtype, a tile that the tuning space lacks, and a configuration that the iteration cannot express
    are errors.
    """
    if key.startswith("("):
        return (_expressible(iteration, KernelConfig.parse(key), key),)
    chosen = tuple(dict.fromkeys(_chosen(iteration, key, single=single)))
    masks = [one for one in iteration.family.masks(iteration.parts) if mask in (None, one)]
    packs = [one for one in (False, *[True] * iteration.family.packs(iteration.parts)) if packed in (None, one)]
    kinds = product(dtypes, packs, masks, chosen)
    return tuple(config.with_dtype(dtype).with_packed(pack).with_mask(one) for dtype, pack, one, config in kinds)


def one_config(
    iteration: Iteration, key: str | None = None, dtype: str = "", mask: Mask = "none", *, packed: bool = False
) -> KernelConfig:
    """The one configuration that `key` names (see `select_configs`), by default the A100's.

    `dtype` replaces a short form's own; other keys give fp16 without it. Errors as of `select_configs`; a key that
    names none or several is an error, too.
    """
    key = key or PUBLISHED_GPU
    chosen = select_configs(iteration, key, (dtype or DTYPES[0],), mask=mask, packed=packed, single=True)
    if len(chosen) != 1:
        what = f"{key!r} names {len(chosen)} configurations of iteration {iteration.description}, and one is needed"
        briefs, more = [config.brief() for config in chosen], len(chosen) - MOST_LISTED
        found = "; ".join(briefs[:MOST_LISTED]) + f" and {more} more" * (more > 0)
        raise FlashladderError(what, expected=f"{', '.join(iteration.configs)} or one of these", found=found)
    return chosen[0].with_dtype(dtype) if dtype else chosen[0]


def _chosen(iteration: Iteration, key: str, *, single: bool) -> Iterable[KernelConfig]:
    """The fp16 configurations behind a key."""
    gpus, gpu = load_gpus(), key.removeprefix("prog:")
    family, parts = iteration.family, iteration.parts
    if gpu in gpus:
        return [iteration.configs[gpus[gpu].configs_of]]
    if key == "prog":
        return iteration.configs.values()
    if key == "prog-all":
        steps = (step for step in (iteration, *load_all()) if step.family is family)
        candidates = (config for step in steps for config in step.configs.values())
        return [config for config in candidates if not family.conflicts(parts, config)]
    space = family.tuning_space(parts)
    if key in {"all", "tune"}:
        return family.legal_configs(parts) if key == "all" else space
    if tile := _TILE.fullmatch(key):
        B_r, B_c = map(int, tile.groups())
        if chosen := [config for config in space if (config.B_r, config.B_c) == (B_r, B_c)]:
            return chosen
        what = f"no configuration with tile {B_r},{B_c} in the tuning space of iteration {iteration.description}"
        expected = "one of " + " ".join(f"{r},{c}" for r, c in sorted({(one.B_r, one.B_c) for one in space}))
        raise FlashladderError(what, expected=expected, found=key)
    if (brief := family.of_brief(parts, key)) is not None:
        return [_expressible(iteration, brief, key)]
    keys = [*gpus, *([] if single else WORDS)]
    tile_form = "" if single else "a tile such as 128,64, "
    expected = f"one of {', '.join(keys)}, {tile_form}what `invoke list` prints, or a short form"
    raise FlashladderError("no such configuration", expected=expected, found=repr(key), hint=closest(key, keys))


def _expressible(iteration: Iteration, config: KernelConfig, text: str) -> KernelConfig:
    """`config`, which a person wrote as `text`, if the iteration can express it."""
    family, parts = iteration.family, iteration.parts
    if not isinstance(config, family.config_type):
        expected = f"a configuration of the family {family.name}, such as {iteration.configs[PUBLISHED_GPU]}"
        found = "another family's"
    elif conflicts := family.conflicts(parts, config):
        of_fitted = family.conflicts(parts, family.fit(parts, config))  # these do not concern flags the parts decide
        expected, found = "a legal combination", (of_fitted or conflicts)[0]
    else:
        return config
    what = f"iteration {iteration.description} cannot express {text}"
    raise FlashladderError(what, expected=expected, found=found)


FASTEST = CONFIGS / "fastest.json"
Positive = Annotated[int, Field(ge=1)]
# Pairs of a sequence length, ascending from 1, and the steps from that length on, fastest first.
Choices = tuple[tuple[int, tuple[int, ...]], ...]


class Fastest(BaseModel):
    """The fastest steps of one GPU."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    from_seq_len: dict[Positive, Positive] = Field(description="length: step from there up to the next", min_length=1)
    ranking: tuple[Positive, ...] = Field(default=(), description="steps, the fastest first, over all lengths")
    causal: dict[Positive, Positive] = Field(default={}, description="as from_seq_len, with a causal mask")


@cache
def load_fastest(path: Path = FASTEST) -> dict[str, Fastest]:
    """The fastest steps by GPU key; a missing or malformed file is an error."""
    return read_committed(path, dict[str, Fastest], "no table of the fastest steps", "invoke report writes it")


@cache
def choices(gpu: str | None, arch: str | None = None, mask: Mask = "none") -> Choices:
    """The preferred steps on a GPU by sequence length, from its name and architecture; None stands for any.

    Each entry has all steps that run there: the fastest of these lengths, then the others by their rank over all
    lengths, then those without measurements. A GPU without measurements has the table of the one whose configurations
    it runs (`configs_for`). Without that table too, later steps come first. A GPU that runs no step is an error.

    With a causal mask each entry has only the fastest step, measured on this GPU or else on another one; there is no
    entry if there are no such measurements.
    """
    tables, key = load_fastest(), gpu_key(gpu) if gpu else None
    if mask == "causal":
        of_mask = (table.causal for table in (tables.get(key or ""), *tables.values()) if table and table.causal)
        return tuple((start, (step,)) for start, step in sorted(next(of_mask, {}).items()))
    steps = load_all() if arch is None else load_runnable(arch)
    measured = [step.number for step in steps if not step.unmeasured]
    if not measured:
        raise FlashladderError("no step runs on this GPU", expected=load_all()[0].family.needs, found=arch)
    candidates = [tables.get(name or "") for name in (key, arch and configs_for(key, arch))]
    known = [one for one in candidates if one and {*one.from_seq_len.values()} <= {step.number for step in steps}]
    starts = known[0].from_seq_len if known else {1: measured[-1]}
    ranking = next((table.ranking for table in known if table.ranking), ())
    last = [step.number for step in reversed(steps) if step.unmeasured]  # taken if no other one is installed
    rest = [*(step for step in (*ranking, *reversed(measured)) if step in measured), *last]
    return tuple((start, tuple(dict.fromkeys((step, *rest)))) for start, step in sorted(starts.items()))
