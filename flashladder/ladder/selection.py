"""Selection keys: short words for the configurations that a command shows, builds, checks or measures.

Why: ``a100``, ``prog``, ``prog-all``, ``all``, ``tune``, ``128,64``, what ``invoke list`` prints and a short form are
what people and grids write instead of lists, in every command alike. The tuning space is all that is legal minus what
the exclusion rules below predict to lose, each with its reason; legality itself is decided in
`flashladder.ladder.parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
import re
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.ladder.config import BRIEF, DTYPES, FLAGS, INTEGERS, KernelConfig
from flashladder.ladder.iteration import Iteration, load_all
from flashladder.ladder.parts import (
    D_HEAD,
    LOAD_TILES,
    MMA_M,
    UNIT,
    Parts,
    config_conflicts,
    derived_knobs,
    fit_config,
)
from flashladder.located import closest
from flashladder.names import GPUS, PUBLISHED_GPU
from flashladder.paths import ITERATIONS

TILE_ROWS = (64, 128)
TILE_COLUMNS = (32, 64, 128)
WARPS = (4, 8)
KEYS = (*GPUS, "prog", "prog-all", "all", "tune")
_TILE = re.compile(r"(\d{1,9}), ?(\d{1,9})", re.ASCII)

LIVE_LIMIT = 304
"""Registers per thread that accumulators and fragments may need on paper.

A thread has 255. The published winner of iteration 16 on an A100, (128, 64, 4) with V loaded whole, needs 288 by this
count and compiles with 88 bytes of spills, because ptxas sinks ldmatrix between the mma; a sixth more is out of reach.
"""
SM_SMEM_BYTES = 164 * 1024  # an A100's shared memory per SM, of which each CTA takes 1 KiB for the system
MOST_LISTED = 6  # configurations that one message names
LEAST_WARPS = 8  # two per scheduler, so that one can issue while the other waits for an mma


@dataclass(frozen=True)
class Exclusion:
    """A rule that takes configurations out of the tuning space.

    Attributes:
        name: one word for reports.
        why: the mechanism by which such a configuration loses.
        excludes: whether the rule applies to a configuration.
    """

    name: str
    why: str
    excludes: Callable[[KernelConfig], bool]


def live_registers(config: KernelConfig) -> int:
    """Registers per thread that accumulators and operand fragments take on paper, at the fuller of the two products.

    Per warp with R query rows: O and S are fp32 accumulators, 4 R and R * B_c / 32 registers; P, Q, K and V are packed
    16-bit fragments. Loading by k-tile holds one k-tile of an operand, or two with a double buffer.
    """
    rows = config.B_r // config.n_warps
    copies = 2 if config.mma_double_buffer_loads else 1

    def fragments(extent: int, k_extent: int, load: int) -> int:
        """Registers of an operand that is `extent` wide across k."""
        k = k_extent if load == 0 else min(k_extent, load * UNIT * copies)
        return extent * k // 64

    output, scores = rows * D_HEAD // 32, rows * config.B_c // 32
    q, k, v = config.load_tiles
    first = output + scores + fragments(rows, D_HEAD, q) + fragments(config.B_c, D_HEAD, k)
    whole_q = fragments(rows, D_HEAD, 0) if q == 0 else 0
    second = output + scores // 2 + whole_q + fragments(D_HEAD, config.B_c, v)
    return max(first, second)


def resident_warps(config: KernelConfig) -> int:
    """Warps per SM that an A100's shared memory leaves room for."""
    return SM_SMEM_BYTES // (config.smem_bytes + 1024) * config.n_warps


EXCLUSIONS = (
    Exclusion(
        "registers",
        f"accumulators and fragments need more than {LIVE_LIMIT} of 255 registers on paper: the main loop spills",
        lambda config: live_registers(config) > LIVE_LIMIT,
    ),
    Exclusion(
        "residency",
        f"fewer than {LEAST_WARPS} warps fit an A100's SM: nothing issues while they wait for mma or ldmatrix",
        lambda config: resident_warps(config) < LEAST_WARPS,
    ),
    Exclusion(
        "small_steps",
        f"with {MMA_M} rows per warp a K or V fragment feeds one mma only, and 32 columns are too few to hide that",
        lambda config: config.B_r // config.n_warps == MMA_M and config.B_c < 64,
    ),
)
"""The rules, in the order in which they are reported."""


def exclusions(config: KernelConfig) -> tuple[Exclusion, ...]:
    """The rules that keep `config` out of the tuning space; empty when it is in."""
    return tuple(rule for rule in EXCLUSIONS if rule.excludes(config))


@lru_cache(maxsize=64)
def legal_configs(parts: Parts, dtype: str = "fp16") -> tuple[KernelConfig, ...]:
    """Every configuration that these parts can express, sorted, over the tiles and loads that the ladder knows."""
    found = set()
    for B_r, B_c, n_warps in product(TILE_ROWS, TILE_COLUMNS, WARPS):
        for q, k, v, buffer, optimized in product(*[LOAD_TILES] * 3, (False, True), (False, True)):
            wanted = KernelConfig(
                dtype, D_HEAD, B_r, B_c, n_warps, True, True, True, q, k, v, bool(buffer), bool(optimized)
            )
            config = fit_config(parts, wanted)
            if not config_conflicts(parts, config):
                found.add(config)
    return tuple(sorted(found))


def tuning_space(parts: Parts, dtype: str = "fp16") -> tuple[KernelConfig, ...]:
    """The legal configurations that no rule excludes, sorted."""
    return tuple(config for config in legal_configs(parts, dtype) if not exclusions(config))


def select_configs(
    iteration: Iteration, key: str, dtypes: Sequence[str] = DTYPES, folder: Path = ITERATIONS
) -> tuple[KernelConfig, ...]:
    """The configurations that `key` selects for an iteration, each once, for each of `dtypes`.

    ``a100`` or ``prog:a100``: one GPU's; ``prog``: those of all its GPUs; ``prog-all``: those of all iterations that
    this one can express; ``all``: every legal one; ``tune``: the tuning space; ``128,64``: those of it with this B_r
    and B_c; ``128,64,4 2_2_2+buffer``, as ``invoke list`` prints it: that one; a short form: that one, with the short
    form's own dtype.

    Raises:
        FlashladderError: an unknown key or dtype, a tile that the tuning space lacks, or a configuration that the
            iteration cannot express.
    """
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise FlashladderError("unknown dtype", expected=" or ".join(DTYPES), found=repr(dtype))
    if key.startswith("("):
        return (_expressible(iteration, KernelConfig.parse(key), key),)
    chosen = tuple(dict.fromkeys(_chosen(iteration, key, folder)))
    return tuple(config.with_dtype(dtype) for dtype in dtypes for config in chosen)


def one_config(iteration: Iteration, key: str | None = None, dtype: str = "") -> KernelConfig:
    """The one configuration that `key` names (see `select_configs`), or that of the A100 when there is none.

    Args:
        iteration: whose configuration it is.
        key: for commands that show or run a single kernel.
        dtype: overrides that of a short form; everything else is fp16 without it.

    Raises:
        FlashladderError: as `select_configs`, or `key` names none or several.
    """
    key = key or PUBLISHED_GPU
    chosen = select_configs(iteration, key, (dtype or DTYPES[0],))
    if len(chosen) != 1:
        listed = [config.brief() for config in chosen[:MOST_LISTED]]
        more = f" and {len(chosen) - MOST_LISTED} more" if len(chosen) > MOST_LISTED else ""
        raise FlashladderError(
            f"{key!r} names {len(chosen)} configurations of iteration {iteration.description}, and one is needed",
            expected=f"{', '.join(iteration.configs)} or one of these",
            found="; ".join(listed) + more,
        )
    return chosen[0].with_dtype(dtype) if dtype else chosen[0]


def _chosen(iteration: Iteration, key: str, folder: Path) -> Iterable[KernelConfig]:
    """The fp16 configurations behind a key."""
    gpu = key.removeprefix("prog:")
    if gpu in iteration.configs:
        return [iteration.configs[gpu]]
    if key == "prog":
        return iteration.configs.values()
    if key == "prog-all":
        candidates = (config for step in (iteration, *load_all(folder)) for config in step.configs.values())
        return [config for config in candidates if not config_conflicts(iteration.parts, config)]
    if key in {"all", "tune"}:
        return legal_configs(iteration.parts) if key == "all" else tuning_space(iteration.parts)
    if tile := _TILE.fullmatch(key):
        return _with_tile(iteration, int(tile[1]), int(tile[2]))
    if brief := BRIEF.fullmatch(key):
        return [_expressible(iteration, _of_brief(iteration.parts, brief), key)]
    raise FlashladderError(
        "no such configuration",
        expected=f"one of {', '.join(KEYS)}, a tile such as 128,64, what `invoke list` prints, or a short form",
        found=repr(key),
        hint=closest(key, KEYS),
    )


def _of_brief(parts: Parts, text: re.Match[str]) -> KernelConfig:
    """The fp16 configuration that `KernelConfig.brief` writes as `text`, with what the parts decide."""
    found = text.groupdict()
    decided = derived_knobs(parts)
    knobs: dict[str, Any] = {name: int(found[name]) for name in INTEGERS if name in found}
    knobs |= {name: found[name] is not None if name in found else decided[name] for name in FLAGS}
    return KernelConfig("fp16", D_HEAD, **knobs)


def _with_tile(iteration: Iteration, B_r: int, B_c: int) -> list[KernelConfig]:
    """The tuning space at one tile."""
    space = tuning_space(iteration.parts)
    chosen = [config for config in space if (config.B_r, config.B_c) == (B_r, B_c)]
    if not chosen:
        tiles = sorted({(config.B_r, config.B_c) for config in space})
        raise FlashladderError(
            f"no configuration with tile {B_r},{B_c} in the tuning space of iteration {iteration.description}",
            expected="one of " + " ".join(f"{r},{c}" for r, c in tiles),
            found=f"{B_r},{B_c}",
        )
    return chosen


def _expressible(iteration: Iteration, config: KernelConfig, text: str) -> KernelConfig:
    """`config`, which a person wrote as `text`, if the iteration can express it."""
    if conflicts := config_conflicts(iteration.parts, config):
        own = config_conflicts(iteration.parts, fit_config(iteration.parts, config))  # not of a flag the parts decide
        found = (own or conflicts)[0]
        for name, flag in FLAGS.items() if BRIEF.fullmatch(text) else ():
            found = found.replace(f"{name} must be True", f"no +{flag.brief}")
            found = found.replace(f"{name} must be False", f"+{flag.brief}")
        raise FlashladderError(
            f"iteration {iteration.description} cannot express {text}",
            expected="a legal combination",
            found=found,
        )
    return config
