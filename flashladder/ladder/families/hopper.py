"""Kernels for sm_90a alone: tiles through the copy engine (TMA), mbarriers, tensor cores by the warpgroup (wgmma).

Its configurations, its parts with every rule on what goes with what (each answers with sentences that say why; no
sentence means legal), its tuning space, its translation unit, and its launch with four tensor maps. The numbers behind
the rules on registers are those of ``setmaxnreg`` (PTX ISA 9.0, 9.7.19.4) and of an SM's 65,536 registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
import math
from typing import Any

from flashladder.ladder.config import D_HEAD, ELEMENT_BYTES, KernelConfig, Word
from flashladder.ladder.family import (
    Exclusion,
    Family,
    Iteration,
    Launch,
    Targets,
    TensorBox,
    change_model,
    type_name,
)
from flashladder.machine_code.ptxas import PtxasUsage

WARPGROUP = 128  # threads
MBARRIERS = 16  # bytes of the two mbarriers of a stage: full and empty
STATS = 8  # bytes of a row's maximum and sum

PARTS = "hopper"  # the folder of the bodies and parts below kernels/
WGMMA_ROWS = 64  # query rows of one wgmma
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

CHUNK = 64  # elements of d_head in a row of a box: the 128 bytes within which it is swizzled
WARP_ROWS = 16  # query rows of a warp
MOST_PARTS = 8  # CTAs of a cluster, the most that every GPU with clusters takes
LEAST_BLOCKS = 2  # KV blocks of a part
LEAST_SAVED = 4  # KV blocks that no part has of a tile's: a cluster and its merging cost about three
OF_A_GPC = 16  # multiprocessors of a whole one

ENTRY = f"{PARTS}/entry.cuh"  # the `__global__`, below `Kernel`
BODY = f"{PARTS}/flash_fwd_tma.cuh"  # what composes the parts
READING = ("roles", "mainloop", "", "pipeline", "softmax", "scheduler", "epilogue")  # "" stands for the body

TILE = ("B_r", "B_c", "n_consumers")
RING_STAGES = ("k_stages", "v_stages")
REGISTER_KNOBS = ("producer_registers", "consumer_registers")
SIZES = ("B_r", "B_c", "d_head", "n_consumers", "q_stages", *RING_STAGES, *REGISTER_KNOBS, "n_threads", "smem_bytes")


@dataclass(frozen=True, order=True)
class HopperConfig(KernelConfig):
    """The knobs of one compiled kernel."""

    example = "(FP16, 128, 128, 128, 2): stages_2_2+registers_24_240+overlap"
    sizes = ("d_head", *TILE)
    words = (
        Word("stages_{}_{}", RING_STAGES, least=1),
        Word("registers_{}_{}", REGISTER_KNOBS, optional=True),
        Word("overlap", ("overlap",)),
        Word("persistent", ("persistent",)),
        Word("flattened", ("flattened",)),
        Word("split", ("split",)),
    )
    dtype: str
    d_head: int
    B_r: int
    B_c: int
    n_consumers: int  # warpgroups that multiply; each owns ``B_r / n_consumers`` query rows
    k_stages: int  # tiles in the ring of K
    v_stages: int  # tiles in the ring of V
    # registers per thread of the warpgroup that fetches tiles (``setmaxnreg``); 0 without one
    producer_registers: int = 0
    consumer_registers: int = 0  # of those that multiply; 0 without a producer
    overlap: bool = False  # the softmax of a block runs under the product P V of the block before it
    # a CTA computes tile after tile; Q has two stages then, so that the next one's comes early
    persistent: bool = False
    flattened: bool = False  # blocks of all tiles are one loop, with two buffers of P
    split: bool = False  # where there are few tiles, the CTAs of a cluster share the blocks of one and merge their O

    @property
    def q_stages(self) -> int:
        """Tiles of Q in shared memory."""
        return 1 + self.persistent

    @property
    def has_producer(self) -> bool:
        """Whether a warpgroup of its own fetches tiles."""
        return self.producer_registers > 0

    @property
    def n_warpgroups(self) -> int:
        """Warpgroups of a CTA."""
        return self.n_consumers + self.has_producer

    @property
    def n_threads(self) -> int:
        """Threads of a CTA."""
        return WARPGROUP * self.n_warpgroups

    @property
    def rows(self) -> int:
        """Query rows of a warpgroup."""
        return self.B_r // self.n_consumers

    @property
    def multiples(self) -> dict[str, int]:
        """None: a tensor map ends where the tensor does, and the ragged block is masked."""
        return {}

    @property
    def few_tiles(self) -> tuple[tuple[int, int, int], ...]:
        """Tiles that an H200 may split in 2 to 7: parts of unlike lengths, ragged blocks."""
        lengths = ((5, 1, 1), (6, 59, 1), (7, 3, 5), (7, self.B_c, 1), (9, 64, 1), (13, self.B_c - 1, 1))
        return tuple((1, whole * self.B_c + rows, heads) for whole, rows, heads in lengths) if self.split else ()

    @property
    def heavy_rows(self) -> bool:
        """Where tiles follow one another: runs of the kernels before have an exact maximum, and are older."""
        return self.persistent

    @property
    def parting(self) -> tuple[tuple[int, int, int], ...]:
        """Long enough that some warps follow their maximum in a block and others do not; the last block is ragged."""
        return ((1, 14 * self.B_c - 1, 4),) if self.flattened else ()

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA in bytes: Q (whose place O takes), the rings, two mbarriers a stage.

        Where O is merged, m and l of each row besides.
        """
        rows = self.B_r * self.q_stages + self.B_c * (self.k_stages + self.v_stages)
        stages = self.q_stages + self.k_stages + self.v_stages
        return rows * self.d_head * ELEMENT_BYTES + stages * MBARRIERS + self.split * self.B_r * STATS

    @property
    def registers(self) -> int:
        """Those of the accumulators of O; where roles deal them out, the consumer's."""
        return max(self.rows * self.d_head // WARPGROUP, self.consumer_registers)


@dataclass(frozen=True)
class Parts:
    """One value per concern: the stem of its file under ``kernels/hopper/<concern>/``."""

    pipeline: str  # how tiles of K and V travel: rings of full and empty barriers
    roles: str  # who fetches, who multiplies, and with how many registers
    mainloop: str  # the products of a KV block and the order of what is between them
    softmax: str  # the online softmax's arithmetic
    scheduler: str  # which tiles of Q a CTA takes
    epilogue: str  # how O leaves


def _size_conflicts(config: HopperConfig) -> Iterator[str]:
    """Sizes that do not fit the copies, the rings or the hardware, whatever the parts."""
    if config.n_consumers > MOST_CONSUMERS:
        yield f"n_consumers {config.n_consumers}: a CTA has at most {MOST_CONSUMERS} warpgroups that multiply"
    if config.B_c % K_STEP:
        yield f"B_c {config.B_c}: must be a multiple of {K_STEP}, the k of P V's product"
    if config.B_c > BOX_ROWS:
        yield f"B_c {config.B_c}: one copy brings at most {BOX_ROWS} rows"
    for name in ("k_stages", "v_stages"):
        if getattr(config, name) > MOST_STAGES:
            yield f"{name} {getattr(config, name)}: a ring has at most {MOST_STAGES} stages"


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


EXCLUSIONS = (
    Exclusion(
        "registers",
        f"O, S and P with {OTHERS} registers for all else are more than a consumer has: wgmma are serialised",
        lambda one: live_registers(one) + OTHERS > (one.consumer_registers or min(COMPILED, at_launch(one))),
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


def blocks(length: int, size: int) -> int:
    """Blocks of `size` rows that `length` positions need, the last of them perhaps ragged."""
    return -(-length // size)


def grid_of(config: HopperConfig, shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """A CTA per row block, head and sample of tensors of `shape`, (batch, seq_len, n_heads, d_head).

    Of a persistent kernel they are tiles, in x alone.
    """
    batch, seq_len, heads, _ = shape
    of_head = blocks(seq_len, config.B_r)
    return (of_head * heads * batch, 1, 1) if config.persistent else (of_head, heads, batch)


def store_rows(config: HopperConfig) -> int:
    """Rows of a box of O: those of a warpgroup, or of a warp where each sends its own."""
    return WARP_ROWS if config.persistent else config.rows


def map_of(tensor: Any, dtype: str, rows: int) -> TensorBox:
    """The map of a tensor (batch, seq_len, n_heads, d_head), strides in bytes, whose box is `rows` rows of one head.

    Axes, innermost first: 64 elements, positions, the two halves of a head, heads, samples. A box lies in shared memory
    as two tiles of `rows` times 128 bytes, each swizzled.
    """
    batch, seq_len, heads, d_head = tensor.shape
    sizes = (seq_len, d_head // CHUNK, heads, batch)
    row = CHUNK * ELEMENT_BYTES
    strides = (tensor.strides[1], row, tensor.strides[2], tensor.strides[0])
    return TensorBox(
        tensor,
        dtype,
        dims=(CHUNK, *sizes),
        strides=tuple(row if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)),
        box=(CHUNK, rows, d_head // CHUNK, 1, 1),
        swizzle=row,
    )


def clusters_at_once(parts: int, multiprocessors: int) -> int:
    """Clusters of so many CTAs, one a multiprocessor, that a GPU may run at once; a launch on one asks its driver.

    A cluster lies in one GPC, the two multiprocessors of a TPC are never apart, and one GPC's worth is lost where GPCs
    are not all whole.
    """
    return multiprocessors // 2 if parts == 2 else (multiprocessors // OF_A_GPC - 1) * (OF_A_GPC // parts)


def parts_of(tiles: int, kv_blocks: int, multiprocessors: int) -> int:
    """CTAs that share a tile's KV blocks: of numbers that pay and run at once the least with the shortest parts."""
    best = 1
    for parts in range(2, MOST_PARTS + 1):
        longest = blocks(kv_blocks, parts)
        pays = kv_blocks >= LEAST_BLOCKS * parts and kv_blocks - longest >= LEAST_SAVED
        fits = tiles * parts <= multiprocessors and tiles <= clusters_at_once(parts, multiprocessors)
        if pays and fits and longest < blocks(kv_blocks, best):
            best = parts
    return best


def launch_of(config: HopperConfig, tensors: Sequence[Any], multiprocessors: int) -> Launch:
    """Four tensor maps, the scale of scores for powers of two, and the numbers of positions, blocks, heads, samples."""
    import numpy as np  # which a build, where nothing is launched, does without

    batch, seq_len, heads, d_head = tensors[0].shape
    box_rows = (config.rows, config.B_c, config.B_c, store_rows(config))
    maps = [map_of(tensor, config.dtype, rows) for tensor, rows in zip(tensors, box_rows, strict=True)]
    counts = (seq_len, blocks(seq_len, config.B_c), blocks(seq_len, config.B_r), heads, batch)
    scale = np.float32(math.log2(math.e) / math.sqrt(d_head))
    grid = grid_of(config, tensors[0].shape)
    parts = parts_of(grid[0], counts[1], multiprocessors) if config.split else 1
    return Launch(
        grid=(grid[0] * parts, *grid[1:]),
        block=(config.n_threads,),
        arguments=((*maps, scale, *map(np.int32, counts)),),
        shared_bytes=config.smem_bytes,
        cluster=(parts, 1, 1),
        resident=config.persistent and parts == 1,
    )


class Hopper(Family):
    """Kernels that only an H100 or H200 runs: their PTX is compute_90a's, which no other GPU takes."""

    name = PARTS
    parts_type = Parts
    config_type = HopperConfig
    change_model = change_model(PARTS, Parts)
    legend = (
        "For sm_90a: B_r,B_c,warpgroups that multiply, stages of K_V, then, where a\n"
        "producer fetches tiles, registers per thread of it and of the others."
    )
    required = (*TILE, *RING_STAGES)
    brought = ("roles", REGISTER_KNOBS)
    exclusions = EXCLUSIONS
    live_registers = staticmethod(live_registers)
    grid = staticmethod(grid_of)
    launch = staticmethod(launch_of)
    plan = "hopper/plan.cpp"
    least_capability = (9, 0)
    warps_alike = False
    max_row_bytes = 2**40 - 16  # of a tensor map's strides

    @property
    def targets(self) -> Targets:
        """One architecture, and PTX for it alone."""
        return Targets("compute_90a", ("sm_90a",))

    def incompatible(self, parts: Parts) -> Iterator[tuple[str, ...]]:
        """Each reason why `parts` exclude each other, followed by the concerns whose values do."""
        if parts.mainloop in (OVERLAPPED, FLATTENED) and parts.roles == TOGETHER:
            yield "it leaves fetching to a producer", "mainloop", "roles"
        if (parts.mainloop == FLATTENED) != (parts.softmax == STALE):
            why = "a slot that waits for no P V follows maxima in its rare path alone"
            yield why, "mainloop", "softmax"
        if (parts.scheduler == SPLIT) != (parts.epilogue == MERGED_STORE):
            yield "what CTAs share is merged, and only that", "scheduler", "epilogue"
        elif (parts.scheduler == PERSISTENT) != (parts.epilogue == WARP_STORE):
            yield "a CTA with more to do sends O warp by warp, and only such a one", "scheduler", "epilogue"
        if parts.scheduler == SPLIT and parts.mainloop != FLATTENED:
            yield "another loop goes over all blocks of a tile", "scheduler", "mainloop"
        if parts.mainloop == FLATTENED and parts.scheduler == ONE_TILE:
            yield "there is one loop over the blocks of several tiles", "mainloop", "scheduler"
        if parts.roles == TOGETHER and parts.scheduler != ONE_TILE:
            yield "its copies are counted from the tile's first", "roles", "scheduler"
        if parts.mainloop == MMA_SYNC and parts.roles != TOGETHER:
            yield "its fragments of K and V take the registers of a consumer", "mainloop", "roles"

    def decisions(self, parts: Parts) -> dict[str, tuple[int, str]]:
        """Flags, and registers where roles have no producer."""
        by_mainloop, by_scheduler = f"mainloop {parts.mainloop} decides it", f"scheduler {parts.scheduler} decides it"
        found: dict[str, tuple[int, str]] = {
            "overlap": (parts.mainloop in (OVERLAPPED, FLATTENED), by_mainloop),
            "persistent": (parts.scheduler in (PERSISTENT, SPLIT), by_scheduler),
            "flattened": (parts.mainloop == FLATTENED, by_mainloop),
            "split": (parts.scheduler == SPLIT, by_scheduler),
        }
        if parts.roles == TOGETHER:
            found["producer_registers"] = (0, f"roles {parts.roles} have no producer")
            found["consumer_registers"] = (0, f"roles {parts.roles} leave registers to the compiler")
        return found

    def rules(self, parts: Parts, config: HopperConfig) -> Iterator[str]:
        """See the rules above; and of rings."""
        if parts.roles == PING_PONG and config.n_consumers != 2:
            yield f"n_consumers {config.n_consumers}: two warpgroups take turns in roles {parts.roles}"
        together = parts.roles == TOGETHER
        for name, two in (("k_stages", together), ("v_stages", together or parts.mainloop == OVERLAPPED)):
            if two and (stages := getattr(config, name)) < 2:
                yield f"{name} {stages}: the next tile is asked for while one is read, so that there are two"
        if parts.mainloop == FLATTENED and config.v_stages < 3:
            yield f"v_stages {config.v_stages}: two tiles are read while the next one lands, so that there are three"
        yield from _size_conflicts(config)
        yield from _mainloop_conflicts(parts, config)
        if not together:
            yield from _register_conflicts(config)

    def candidates(self, parts: Parts) -> Iterator[HopperConfig]:
        """Every tile, ring and split of the registers that is known here."""
        by_mma = parts.mainloop == MMA_SYNC
        rows = (1, 2) if by_mma else (1,)  # blocks of 64 of a warpgroup
        columns = MMA_COLUMNS if by_mma else WGMMA_COLUMNS
        splits = ((0, 0),) if parts.roles == TOGETHER else SPLITS
        names = (*HopperConfig.sizes, *RING_STAGES, *REGISTER_KNOBS)
        for n, each, B_c, k, v, split in product(range(1, MOST_CONSUMERS + 1), rows, columns, STAGES, STAGES, splits):
            values = (D_HEAD, WGMMA_ROWS * each * n, B_c, n, k, v, *split)
            yield HopperConfig.of(dict(zip(names, values, strict=True)))

    def part_files(self, of: Iteration, config: HopperConfig) -> tuple[str, ...]:
        """The part files that a kernel is composed of, relative to ``kernels/``, in reading order."""
        del config
        names = {concern: f"{PARTS}/{concern}/{getattr(of.parts, concern)}.cuh" for concern in self.concerns}
        return tuple(names.get(concern, BODY) for concern in READING)

    def translation_unit(self, of: Iteration, config: HopperConfig) -> str:
        """The CUDA source of one kernel."""
        members = [f"static constexpr int {name} = {getattr(config, name)};" for name in SIZES]
        for concern in self.concerns:
            name = type_name(getattr(of.parts, concern))
            members.append(f"using {type_name(concern)} = flashladder::hopper::{name};")
        parts = [name for name in self.part_files(of, config) if name != BODY]
        return self.composed(of, config, parts, "HopperArgs", members, ENTRY)

    def for_plan(self, parts: Parts, config: HopperConfig) -> tuple[int, int, int, int]:
        """Rows of a box of Q and of O, whether a CTA computes several tiles, whether several CTAs share a tile."""
        del parts
        return config.rows, store_rows(config), int(config.persistent), int(config.split)

    def refuses(self, usage: PtxasUsage) -> str:
        """Products that ptxas serialised, registers that it did not deal out, anything in local memory.

        Such code is right and several times slower; ptxas says so in notes, C7504 to C7519, and goes on.
        """
        notes = [warning for warning in usage.warnings if "(C75" in warning]
        spills = f"{usage.stack} bytes of stack, {usage.spill_stores} stored and {usage.spill_loads} loaded in spills"
        return notes[0] if notes else spills if usage.stack or usage.spill_stores or usage.spill_loads else ""


FAMILY = Hopper()
