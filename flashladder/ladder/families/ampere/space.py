"""The tuning space of the Ampere family: every legal configuration over the tiles and loads that the ladder knows.

Why: a ranking is worth as much as the space that it was taken over. Each rule below leaves out what its mechanism
predicts to lose, and says so; legality itself is decided in `flashladder.ladder.families.ampere.parts`.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

from flashladder.ladder.config import D_HEAD
from flashladder.ladder.families.ampere.config import AmpereConfig
from flashladder.ladder.families.ampere.parts import (
    LOAD_TILES,
    MMA_M,
    UNIT,
    Parts,
    config_conflicts,
    fit_config,
)
from flashladder.ladder.family import Exclusion

TILE_ROWS = (64, 128)
TILE_COLUMNS = (32, 64, 128)
WARPS = (4, 8)

LIVE_LIMIT = 304
"""Registers per thread that accumulators and fragments may need on paper.

A thread has 255. The published winner of iteration 16 on an A100, (128, 64, 4) with V loaded whole, needs 288 by this
count and compiles with 88 bytes of spills, because ptxas sinks ldmatrix between the mma; a sixth more is out of reach.
"""
SM_SMEM_BYTES = 164 * 1024  # an A100's shared memory per SM, of which each CTA takes 1 KiB for the system
LEAST_WARPS = 8  # two per scheduler, so that one can issue while the other waits for an mma


def live_registers(config: AmpereConfig) -> int:
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


def resident_warps(config: AmpereConfig) -> int:
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


@lru_cache(maxsize=64)
def legal_configs(parts: Parts, dtype: str = "fp16") -> tuple[AmpereConfig, ...]:
    """Every configuration that these parts can express, sorted, over the tiles and loads that the ladder knows."""
    found = set()
    for B_r, B_c, n_warps in product(TILE_ROWS, TILE_COLUMNS, WARPS):
        for q, k, v, buffer, optimized in product(*[LOAD_TILES] * 3, (False, True), (False, True)):
            wanted = AmpereConfig(
                dtype, D_HEAD, B_r, B_c, n_warps, True, True, True, q, k, v, bool(buffer), bool(optimized)
            )
            config = fit_config(parts, wanted)
            if not config_conflicts(parts, config):
                found.add(config)
    return tuple(sorted(found))
