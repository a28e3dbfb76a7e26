"""What an iteration of the Hopper family is made of, and every rule on what goes with what, in this one place.

Each rule answers with sentences that say why; no sentence means legal. The numbers behind the rules on registers are
those of ``setmaxnreg`` (PTX ISA 9.0, 9.7.19.4) and of an SM's 65,536 registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from flashladder.ladder.config import D_HEAD, MAX_SMEM_BYTES
from flashladder.ladder.families.hopper.config import WARPGROUP, HopperConfig
from flashladder.ladder.family import Contradiction
from flashladder.ladder.protocol.part_files import part_names
from flashladder.paths import KERNELS

PARTS = "hopper"  # the folder of the bodies and parts below kernels/
WGMMA_ROWS = 64  # query rows of one wgmma
MMA_ROWS = 16  # of one mma.sync, hence at least as many per warp
K_STEP = 16  # rows of V that one step of P V takes
BOX_ROWS = 256  # the most rows that one copy of a tensor map brings
MOST_CONSUMERS, MOST_STAGES = 3, 4
WGMMA_COLUMNS = tuple(range(64, 193, 16))  # B_c whose accumulators of S fit beside those of O
REGISTERS = 65_536  # of an SM
LEAST_REGISTERS, MOST_REGISTERS, REGISTER_STEP = 24, 240, 8  # setmaxnreg; 255 is the most that an instruction can name

TOGETHER, PING_PONG = "together", "ping_pong"  # roles without a producer; roles that take turns
MMA_SYNC, OVERLAPPED, FLATTENED = "mma_sync", "overlapped", "flattened"  # mainloops
ONE_TILE, PERSISTENT, SPLIT = "one_tile", "persistent", "split"  # schedulers
STALE = "stale"  # a softmax
WARP_STORE, MERGED_STORE = "warp_store", "merged_store"  # epilogues


@dataclass(frozen=True)
class Parts:
    """One value per concern: the stem of its file under ``kernels/hopper/<concern>/``.

    Attributes:
        pipeline: how tiles of K and V travel: rings of full and empty barriers.
        roles: who fetches, who multiplies, and with how many registers.
        mainloop: the products of a KV block and the order of what is between them.
        softmax: the online softmax's arithmetic.
        scheduler: which tiles of Q a CTA takes.
        epilogue: how O leaves.
    """

    pipeline: str
    roles: str
    mainloop: str
    softmax: str
    scheduler: str
    epilogue: str


CONCERNS = tuple(field.name for field in fields(Parts))
VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {concern: part_names(KERNELS / PARTS / concern) for concern in CONCERNS}
)
"""The values of each concern, in the order in which the ladder meets them: its part files."""


def contradictions(parts: Parts) -> Iterator[Contradiction]:
    """Every contradiction within `parts`; none when a kernel can be composed of them."""

    def found(why: str, *concerns: str) -> Contradiction:
        values = " with ".join(f"{concern} {getattr(parts, concern)}" for concern in concerns)
        return Contradiction(f"{values} ({why})", concerns)

    if parts.mainloop in (OVERLAPPED, FLATTENED) and parts.roles == TOGETHER:
        yield found("it leaves fetching to a producer", "mainloop", "roles")
    if (parts.mainloop == FLATTENED) != (parts.softmax == STALE):
        why = "a slot that waits for no P V follows maxima in its rare path alone"
        yield found(why, "mainloop", "softmax")
    if (parts.scheduler == SPLIT) != (parts.epilogue == MERGED_STORE):
        yield found("what CTAs share is merged, and only that", "scheduler", "epilogue")
    elif (parts.scheduler == PERSISTENT) != (parts.epilogue == WARP_STORE):
        yield found("a CTA with more to do sends O warp by warp, and only such a one", "scheduler", "epilogue")
    if parts.scheduler == SPLIT and parts.mainloop != FLATTENED:
        yield found("another loop goes over all blocks of a tile", "scheduler", "mainloop")
    if parts.mainloop == FLATTENED and parts.scheduler == ONE_TILE:
        yield found("there is one loop over the blocks of several tiles", "mainloop", "scheduler")
    if parts.roles == TOGETHER and parts.scheduler != ONE_TILE:
        yield found("its copies are counted from the tile's first", "roles", "scheduler")
    if parts.mainloop == MMA_SYNC and parts.roles != TOGETHER:
        yield found("its fragments of K and V take the registers of a consumer", "mainloop", "roles")


def config_conflicts(parts: Parts, config: HopperConfig) -> tuple[str, ...]:
    """Why `parts` cannot express `config`, one sentence per reason; empty when they can.

    Every other rule in the project about legal configurations goes through here.
    """
    return (
        *_knob_conflicts(parts, config),
        *_size_conflicts(config),
        *_mainloop_conflicts(parts, config),
        *(_register_conflicts(config) if parts.roles != TOGETHER else ()),
    )


def derived_knobs(parts: Parts) -> dict[str, Any]:
    """The knobs of a configuration that `parts` leave no choice about."""
    knobs: dict[str, Any] = {
        "overlap": parts.mainloop in (OVERLAPPED, FLATTENED),
        "persistent": parts.scheduler in (PERSISTENT, SPLIT),
        "flattened": parts.mainloop == FLATTENED,
        "split": parts.scheduler == SPLIT,
    }
    if parts.roles == TOGETHER:
        knobs |= {"producer_registers": 0, "consumer_registers": 0}
    return knobs


def fit_config(parts: Parts, config: HopperConfig) -> HopperConfig:
    """`config` with every knob that `parts` decide set to what they decide; tile, stages and free registers stay."""
    return replace(config, **derived_knobs(parts))


def _knob_conflicts(parts: Parts, config: HopperConfig) -> Iterator[str]:
    """Contradictions between the knobs of `config` and what the parts do."""
    reasons = {
        "overlap": f"mainloop {parts.mainloop} decides it",
        "persistent": f"scheduler {parts.scheduler} decides it",
        "flattened": f"mainloop {parts.mainloop} decides it",
        "split": f"scheduler {parts.scheduler} decides it",
        "producer_registers": f"roles {parts.roles} have no producer",
        "consumer_registers": f"roles {parts.roles} leave registers to the compiler",
    }
    for name, value in derived_knobs(parts).items():
        if getattr(config, name) != value:
            yield f"{name} must be {value}: {reasons[name]}"
    if parts.roles == PING_PONG and config.n_consumers != 2:
        yield f"n_consumers {config.n_consumers}: two warpgroups take turns in roles {parts.roles}"
    least = {"k_stages": parts.roles == TOGETHER, "v_stages": parts.roles == TOGETHER or parts.mainloop == OVERLAPPED}
    for name in (name for name, two in least.items() if two and getattr(config, name) < 2):
        yield f"{name} {getattr(config, name)}: the next tile is asked for while one is read, so that there are two"
    if parts.mainloop == FLATTENED and config.v_stages < 3:
        yield f"v_stages {config.v_stages}: two tiles are read while the next one lands, so that there are three"


def _size_conflicts(config: HopperConfig) -> Iterator[str]:
    """Sizes that do not fit the copies, the rings or the hardware, whatever the parts."""
    if config.d_head != D_HEAD:
        yield f"d_head {config.d_head}: the kernels are written for {D_HEAD}"
    if config.n_consumers > MOST_CONSUMERS:
        yield f"n_consumers {config.n_consumers}: a CTA has at most {MOST_CONSUMERS} warpgroups that multiply"
    if config.B_c % K_STEP:
        yield f"B_c {config.B_c}: must be a multiple of {K_STEP}, the k of P V's product"
    if config.B_c > BOX_ROWS:
        yield f"B_c {config.B_c}: one copy brings at most {BOX_ROWS} rows"
    for name in ("k_stages", "v_stages"):
        if getattr(config, name) > MOST_STAGES:
            yield f"{name} {getattr(config, name)}: a ring has at most {MOST_STAGES} stages"
    if config.smem_bytes > MAX_SMEM_BYTES:
        yield f"{config.smem_bytes} bytes of shared memory: a CTA has at most {MAX_SMEM_BYTES}"


def _mainloop_conflicts(parts: Parts, config: HopperConfig) -> Iterator[str]:
    """Tiles that the products of this mainloop do not take."""
    rows, each = config.B_r, WGMMA_ROWS * config.n_consumers
    if parts.mainloop == MMA_SYNC:
        if rows % each:
            yield f"B_r {rows} with {config.n_consumers} warpgroups: each has a multiple of {WGMMA_ROWS} query rows"
        return
    if rows != each:
        yield f"B_r {rows} with {config.n_consumers} warpgroups: a wgmma has {WGMMA_ROWS} query rows"
    if config.B_c not in WGMMA_COLUMNS:
        known = f"{WGMMA_COLUMNS[0]} to {WGMMA_COLUMNS[-1]}"
        yield f"B_c {config.B_c}: {known} columns of S fit a warpgroup's registers beside O"


def _register_conflicts(config: HopperConfig) -> Iterator[str]:
    """Registers that cannot be dealt out so."""
    for name in ("producer_registers", "consumer_registers"):
        value = getattr(config, name)
        if value % REGISTER_STEP or not LEAST_REGISTERS <= value <= MOST_REGISTERS:
            span = f"{LEAST_REGISTERS} to {MOST_REGISTERS}"
            found = f"no {name}" if not value else f"{name} {value}"
            yield f"{found}: a producer and its consumers have a multiple of {REGISTER_STEP} each, from {span}"
            return
    producer, consumer, share = config.producer_registers, config.consumer_registers, at_launch(config)
    if producer > consumer:
        yield f"producer_registers {producer}: a consumer, to whom it gives registers, would have {consumer}"
    if consumer < share <= MOST_REGISTERS:
        yield f"consumer_registers {consumer}: the launch brings {share}, and setmaxnreg.inc takes none away"
    dealt, pool = producer + config.n_consumers * consumer, config.n_warpgroups * share
    if dealt > pool:
        yield f"consumer_registers {consumer}: {dealt} are dealt out, the launch brings {pool}"


def at_launch(config: HopperConfig) -> int:
    """Registers per thread that every warpgroup begins with: an equal share of the SM's, in steps of eight."""
    return REGISTERS // WARPGROUP // config.n_warpgroups // REGISTER_STEP * REGISTER_STEP
