"""The tuning space of the Hopper family: every legal configuration over the tiles, rings and registers that it knows.

Why: a ranking is worth as much as the space that it was taken over. Each rule below leaves out what its mechanism
predicts to lose, and says so; legality itself is decided in `flashladder.ladder.families.hopper.parts`.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

from flashladder.ladder.config import D_HEAD
from flashladder.ladder.families.hopper.config import WARPGROUP, HopperConfig
from flashladder.ladder.families.hopper.parts import (
    MMA_SYNC,
    MOST_CONSUMERS,
    TOGETHER,
    WGMMA_COLUMNS,
    WGMMA_ROWS,
    Parts,
    at_launch,
    config_conflicts,
    fit_config,
)
from flashladder.ladder.family import Exclusion

MMA_COLUMNS = (32, 48, 64, 80, 96, 112, 128)
STAGES = (1, 2, 3, 4)
SPLITS = ((24, 240), (40, 232), (56, 224), (24, 160), (32, 160))  # registers of the producer and of each consumer

OTHERS = 30  # registers per thread for statistics, addresses and counters: what ptxas took beside accumulators and P
COMPILED = 255  # registers that an instruction can name


def live_registers(config: HopperConfig) -> int:
    """Registers per thread of a consumer that O, S and P take on paper.

    O and S are fp32 accumulators, P is packed pairs: one slot issues P V of a block and the next block's S.
    """
    output = config.rows * D_HEAD // WARPGROUP
    scores = config.rows * config.B_c // WARPGROUP
    return output + scores + (1 + config.flattened) * scores // 2


def _room(config: HopperConfig) -> int:
    """Registers that a consumer has."""
    return config.consumer_registers or min(COMPILED, at_launch(config))


EXCLUSIONS = (
    Exclusion(
        "registers",
        f"O, S and P with {OTHERS} registers for all else are more than a consumer has: wgmma are serialised",
        lambda config: live_registers(config) + OTHERS > _room(config),
    ),
    Exclusion(
        "one_stage",
        "a ring of one stage is filled while nobody multiplies",
        lambda config: min(config.k_stages, config.v_stages) < 2,
    ),
    Exclusion(
        "deep_rings",
        "a producer is never more than two blocks ahead of the slower warpgroup, and without one a copy only one",
        lambda config: max(config.k_stages, config.v_stages) > (3 if config.has_producer else 2),
    ),
    Exclusion(
        "small_steps",
        "fewer than 96 columns leave the barriers of a step uncovered by its products",
        lambda config: config.has_producer and config.B_c < 96,
    ),
    Exclusion(
        "idle_registers",
        "the same tile with more registers for its consumers exists",
        lambda config: config.has_producer and config.n_consumers < MOST_CONSUMERS and config.consumer_registers < 232,
    ),
)
"""The rules, in the order in which they are reported."""


@lru_cache(maxsize=64)
def legal_configs(parts: Parts, dtype: str = "fp16") -> tuple[HopperConfig, ...]:
    """Every configuration that these parts can express, sorted, over the tiles, rings and registers known here."""
    by_mma = parts.mainloop == MMA_SYNC
    rows = (1, 2) if by_mma else (1,)  # blocks of 64 of a warpgroup
    columns = MMA_COLUMNS if by_mma else WGMMA_COLUMNS
    splits = ((0, 0),) if parts.roles == TOGETHER else SPLITS
    found = set()
    for consumers, blocks, B_c in product(range(1, MOST_CONSUMERS + 1), rows, columns):
        B_r = WGMMA_ROWS * blocks * consumers
        for k, v, (producer, consumer) in product(STAGES, STAGES, splits):
            wanted = HopperConfig(dtype, D_HEAD, B_r, B_c, consumers, k, v, producer, consumer)
            config = fit_config(parts, wanted)
            if not config_conflicts(parts, config):
                found.add(config)
    return tuple(sorted(found))
