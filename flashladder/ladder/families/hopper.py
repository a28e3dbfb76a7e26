"""Kernels for sm_90a only: tiles through the copy engine (TMA), mbarriers, tensor cores by the warpgroup (wgmma).

The rules on registers follow from ``setmaxnreg`` (PTX ISA 9.0, 9.7.19.4) and from an SM's 65,536 registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
import math
from typing import Any

from flashladder.ladder.config import D_HEAD, ELEMENT_BYTES, KernelConfig, Word
from flashladder.ladder.family import Exclusion, Family, Iteration, Launch, Targets, TensorBox, change_model, type_name
from flashladder.machine_code.ptxas import PtxasUsage
from flashladder.problem import Mask

WARPGROUP = 128  # threads
RECORD = 32  # bytes that a producer tells consumers of a tile, per stage of Q
MBARRIERS = 16  # bytes of the two mbarriers of a stage: full and empty
STATS = 8  # bytes of a row's maximum and sum

PARTS = "hopper"  # the folder of the bodies and parts below kernels/
WGMMA_ROWS = 64  # query rows of one wgmma
K_STEP = 16  # rows of V in one step of P V
BOX_ROWS = 256  # the most rows that one copy of a tensor map moves
MOST_CONSUMERS, MOST_STAGES = 3, 4
WGMMA_COLUMNS = tuple(range(64, 193, 16))  # B_c whose accumulators of S fit beside those of O
REGISTERS = 65_536  # of an SM
LEAST_REGISTERS, MOST_REGISTERS, REGISTER_STEP = 24, 240, 8  # of setmaxnreg; an instruction can name 255

TOGETHER, PING_PONG = "together", "ping_pong"  # roles without a producer; with two alternating consumers
MMA_SYNC, OVERLAPPED = "mma_sync", "overlapped"  # mainloops
FLATTENED = ("flattened", "early_softmax")  # mainloops: one loop over the blocks of all tiles
ONE_TILE, PERSISTENT, PAIRED, SPLIT, BY_LENGTH = "one_tile", "persistent", "paired", "split", "by_length"  # schedulers
MASKED = (PAIRED, BY_LENGTH)  # those that know that tiles differ, for kernels with a causal mask
RESIDENT = (PERSISTENT, PAIRED, BY_LENGTH)  # those of CTAs that compute one tile after another
SQUARE = "square"  # a problem: as many keys as queries, as many heads of each
STALE = "stale"  # a softmax
WARP_STORE, MERGED_STORE = "warp_store", "merged_store"  # epilogues

CHUNK = 64  # elements of d_head in a row of a box: the 128 bytes within which it is swizzled
WARP_ROWS = 16  # query rows of a warp
MOST_PARTS = 8  # CTAs of a cluster, the most that every GPU with clusters takes
LEAST_BLOCKS = 2  # KV blocks of a part
LEAST_SAVED = 4  # KV blocks by which the longest part is shorter than the tile: a cluster and its merging cost about 3
PACKED_END = 1 << 30  # rows of a map of packed sequences
PACKED_BYTES = 1 << 34  # so many bytes times PACKED_END are 2^64: nothing
OF_A_GPC = 16  # multiprocessors of a complete GPC

ENTRY = f"{PARTS}/entry.cuh"  # the `__global__`, below `Kernel`
BODY = f"{PARTS}/flash_fwd_tma.cuh"  # composes the parts
READING = ("roles", "mainloop", "", "problem", "pipeline", "softmax", "scheduler", "epilogue")  # "" stands for the body

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
        Word("general", ("general",)),
        Word("causal", ("causal",), key="causal"),
        Word("packed", ("packed",), key="packed"),
    )
    dtype: str
    d_head: int
    B_r: int
    B_c: int
    n_consumers: int  # warpgroups that multiply; each owns ``B_r / n_consumers`` query rows
    k_stages: int  # tiles in the ring of K
    v_stages: int  # tiles in the ring of V
    producer_registers: int = 0  # per thread of the warpgroup that fetches tiles (``setmaxnreg``); 0 without one
    consumer_registers: int = 0  # per thread of those that multiply; 0 without a producer
    overlap: bool = False  # the softmax of a block runs during the product P V of the block before it
    persistent: bool = False  # a CTA computes several tiles; Q has two stages to fetch the next tile early
    flattened: bool = False  # one loop covers the blocks of all tiles, with two buffers of P
    general: bool = False  # lengths and head counts of Q and K may differ; the log-sum-exp on request
    causal: bool = False  # row i of Q sees the keys up to i + kv_len - q_len
    packed: bool = False  # sequences of any lengths lie one after another; the device knows where each begins
    split: bool = False  # if there are few tiles, the CTAs of a cluster share the KV blocks of one and merge their O

    @property
    def q_stages(self) -> int:
        """Tiles of Q in shared memory."""
        return 1 + self.persistent

    @property
    def has_producer(self) -> bool:
        """Whether a separate warpgroup fetches tiles."""
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
        """None: a tensor map ends with its tensor, and the kernel masks the ragged block."""
        return {}

    @property
    def few_tiles(self) -> tuple[tuple[int, int, int], ...]:
        """Shapes whose tiles an H200 splits in 2 to 7 parts, with unequal parts and ragged blocks."""
        lengths = ((5, 1, 1), (6, 59, 1), (7, 3, 5), (7, self.B_c, 1), (9, 64, 1), (13, self.B_c - 1, 1))
        return tuple((1, whole * self.B_c + rows, heads) for whole, rows, heads in lengths) if self.split else ()

    @property
    def heavy_rows(self) -> bool:
        """Only for persistent kernels; the kernels before them have an exact maximum."""
        return self.persistent

    @property
    def parting(self) -> tuple[tuple[int, int, int], ...]:
        """Long enough that some warps update their maximum in a block and others do not; the last block is ragged."""
        return ((1, 14 * self.B_c - 1, 4),) if self.flattened else ()

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA in bytes: Q (reused for O), the rings, two mbarriers per stage.

        Split kernels also store m and l of each row; kernels whose tiles differ, a record per stage of Q.
        """
        rows = self.B_r * self.q_stages + self.B_c * (self.k_stages + self.v_stages)
        stages = self.q_stages + self.k_stages + self.v_stages
        more = self.split * self.B_r * STATS + (self.causal or self.packed) * self.q_stages * RECORD
        return rows * self.d_head * ELEMENT_BYTES + stages * MBARRIERS + more

    @property
    def registers(self) -> int:
        """The accumulators of O, or the consumer's registers if roles set them."""
        return max(self.rows * self.d_head // WARPGROUP, self.consumer_registers)


@dataclass(frozen=True)
class Parts:
    """One value per concern: the stem of its file under ``kernels/hopper/<concern>/``."""

    problem: str  # which lengths and head counts it takes, and what it computes besides O
    pipeline: str  # of tiles of K and V: rings of full and empty barriers
    roles: str  # which warpgroups fetch or multiply, and their registers
    mainloop: str  # the products of a KV block and the order of the work between them
    softmax: str  # the online softmax's arithmetic
    scheduler: str  # which tiles of Q a CTA computes
    epilogue: str  # how O is stored


def _size_conflicts(config: HopperConfig) -> Iterator[str]:
    """Sizes that do not fit the copies or the rings, with any parts."""
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
    """Tiles that do not fit the products of this mainloop."""
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
    """Register counts that setmaxnreg cannot set."""
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
    """Registers per thread of every warpgroup at the launch: an equal share of the SM's, in steps of eight."""
    return REGISTERS // WARPGROUP // config.n_warpgroups // REGISTER_STEP * REGISTER_STEP


MMA_COLUMNS = (32, 48, 64, 80, 96, 112, 128)
STAGES = (1, 2, 3, 4)
SPLITS = ((24, 240), (40, 232), (56, 224), (24, 160), (32, 160))  # registers of the producer and of each consumer

OTHERS = 30  # registers per thread that ptxas used for statistics, addresses and counters
COMPILED = 255  # registers that an instruction can name


def live_registers(config: HopperConfig) -> int:
    """Estimated registers per thread of a consumer for O, S and P.

    O and S are fp32 accumulators, P is packed pairs. P V of a block overlaps with S of the next block.
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


def blocks(length: int, size: int) -> int:
    """Blocks of `size` rows that `length` positions need, the last of them perhaps ragged."""
    return -(-length // size)


def grid_of(config: HopperConfig, shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """One CTA per row block, head and sample of a Q of `shape`, (batch, seq_len, n_heads, d_head).

    For a persistent kernel, x is the number of these tiles, and of pairs of them under a mask. Packed sequences
    have at most one tile more each.
    """
    batch, seq_len, heads, _ = shape
    of_head = blocks(seq_len, config.B_r)
    if config.causal:
        of_head = blocks(of_head, 2)
    return (of_head * heads * batch, 1, 1) if config.persistent else (of_head, heads, batch)


def store_rows(config: HopperConfig) -> int:
    """Rows of a box of O: a warpgroup's, or a warp's if each warp stores its own."""
    return WARP_ROWS if config.persistent else config.rows


def map_of(tensor: Any, dtype: str, rows: int) -> TensorBox:
    """The map of a tensor (batch, seq_len, n_heads, d_head), strides in bytes, whose box is `rows` rows of one head.

    Axes, innermost first: 64 elements, positions, the two halves of a head, heads, samples. In shared memory, a box is
    two swizzled tiles of `rows` times 128 bytes.
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


def packed_map(tensor: Any, dtype: str, rows: int) -> TensorBox:
    """The map of packed sequences, a tensor (1, rows, heads, d_head): it ends with any of them (hopper/args.cuh)."""
    _, length, heads, d_head = tensor.shape
    box = map_of(tensor, dtype, rows)
    step, _, head, _ = box.strides
    return replace(
        box,
        dims=(d_head, PACKED_END, heads, PACKED_END + 1, length + 1),
        strides=(step, head, PACKED_BYTES - step, step),
        box=(CHUNK, rows, 1, 1, 1),
        wraps=True,
    )


def clusters_at_once(parts: int, multiprocessors: int) -> int:
    """Clusters of `parts` CTAs, one per multiprocessor, that a GPU can run at once; a real launch asks the driver.

    A cluster lies in one GPC and never separates the two multiprocessors of a TPC. Incomplete GPCs cost about one GPC.
    """
    return multiprocessors // 2 if parts == 2 else (multiprocessors // OF_A_GPC - 1) * (OF_A_GPC // parts)


def parts_of(tiles: int, kv_blocks: int, multiprocessors: int) -> int:
    """CTAs that share a tile's KV blocks: the fewest that make the longest part shortest, pay off and run at once."""
    best = 1
    for parts in range(2, MOST_PARTS + 1):
        longest = blocks(kv_blocks, parts)
        pays = kv_blocks >= LEAST_BLOCKS * parts and kv_blocks - longest >= LEAST_SAVED
        fits = tiles * parts <= multiprocessors and tiles <= clusters_at_once(parts, multiprocessors)
        if pays and fits and longest < blocks(kv_blocks, best):
            best = parts
    return best


def launch_of(
    config: HopperConfig, tensors: Sequence[Any], multiprocessors: int, lse: Any = None, bounds: Sequence[Any] = ()
) -> Launch:
    """Four tensor maps, the scale of scores for powers of two, and the numbers of keys, blocks, heads, samples.

    Then what kernels of general problems read besides: the queries, the heads of a group, and where the log-sum-exp
    (batch, n_heads, seq_len) goes, in fp32; None: nowhere. Of packed sequences, `bounds` are the rows of Q and of K at
    which each begins, and the end.
    """
    import numpy as np  # a build does not need it

    batch, seq_len, heads, d_head = tensors[0].shape
    _, kv_len, kv_heads, _ = tensors[1].shape
    box_rows = (config.rows, config.B_c, config.B_c, store_rows(config))
    encode = packed_map if config.packed else map_of
    maps = [encode(tensor, config.dtype, rows) for tensor, rows in zip(tensors, box_rows, strict=True)]
    batch = len(bounds[0]) - 1 if bounds else batch
    counts = (kv_len, blocks(kv_len, config.B_c), blocks(seq_len, config.B_r), heads, batch, seq_len, heads // kv_heads)
    scale = np.float32(math.log2(math.e) / math.sqrt(d_head))
    grid = grid_of(config, tensors[0].shape)
    if bounds:
        grid = (grid[0] + batch * heads, 1, 1)
    parts = parts_of(grid[0], counts[1], multiprocessors) if config.split else 1
    return Launch(
        grid=(grid[0] * parts, *grid[1:]),
        block=(config.n_threads,),
        arguments=((*maps, scale, *map(np.int32, counts), np.uint64(0) if lse is None else lse, *bounds),),
        shared_bytes=config.smem_bytes,
        cluster=(parts, 1, 1),
        resident=config.persistent and parts == 1,
    )


class Hopper(Family):
    """Kernels that only an H100 or H200 runs: no other GPU runs PTX for compute_90a."""

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

    @property
    def targets(self) -> Targets:
        """One architecture, with PTX for it only."""
        return Targets("compute_90a", ("sm_90a",))

    def incompatible(self, parts: Parts) -> Iterator[tuple[str, ...]]:
        """Each reason why `parts` exclude each other, followed by the concerns whose values do."""
        if parts.mainloop in (OVERLAPPED, *FLATTENED) and parts.roles == TOGETHER:
            yield "this main loop needs a producer that fetches", "mainloop", "roles"
        if (parts.mainloop in FLATTENED) != (parts.softmax == STALE):
            yield "only the flattened loop updates maxima in a rare path", "mainloop", "softmax"
        if (parts.scheduler == SPLIT) != (parts.epilogue == MERGED_STORE):
            yield "CTAs that share a tile merge their O, and no others do", "scheduler", "epilogue"
        elif (parts.scheduler in RESIDENT) != (parts.epilogue == WARP_STORE):
            yield "a CTA with several tiles stores O warp by warp, and no other does", "scheduler", "epilogue"
        if parts.scheduler == SPLIT and parts.mainloop not in FLATTENED:
            yield "the other main loops visit all blocks of a tile", "scheduler", "mainloop"
        if parts.mainloop in FLATTENED and parts.scheduler == ONE_TILE:
            yield "this main loop covers the blocks of several tiles", "mainloop", "scheduler"
        if parts.roles == TOGETHER and parts.scheduler != ONE_TILE:
            yield "these roles count copies from the first of one tile", "roles", "scheduler"
        if parts.scheduler in MASKED and (parts.mainloop not in FLATTENED or parts.problem == SQUARE):
            yield "tiles that differ in their blocks need the one loop over all, and a general problem", "scheduler"
        if parts.problem != SQUARE and (parts.scheduler == SPLIT or parts.mainloop not in FLATTENED):
            yield "only the one loop over all tiles takes any lengths and heads", "problem"
        if parts.mainloop == MMA_SYNC and parts.roles != TOGETHER:
            yield "its fragments of K and V take the registers of a consumer", "mainloop", "roles"

    def max_row_bytes(self, config: HopperConfig) -> int:
        """Of a tensor map's strides; one of a packed map's takes the others off again."""
        return (PACKED_BYTES if config.is_packed else 1 << 40) - 16

    def masks(self, parts: Parts) -> tuple[Mask, ...]:
        """Also the causal one if the scheduler knows that tiles differ."""
        return ("none", "causal") if parts.scheduler in MASKED else ("none",)

    def packs(self, parts: Parts) -> bool:
        """If the scheduler finds the tiles on the device."""
        return parts.scheduler == BY_LENGTH

    def decisions(self, parts: Parts) -> dict[str, tuple[int, str]]:
        """Flags, and registers where roles have no producer."""
        by_mainloop, by_scheduler = f"mainloop {parts.mainloop} decides it", f"scheduler {parts.scheduler} decides it"
        found: dict[str, tuple[int, str]] = {
            "overlap": (parts.mainloop in (OVERLAPPED, *FLATTENED), by_mainloop),
            "persistent": (parts.scheduler in (*RESIDENT, SPLIT), by_scheduler),
            "flattened": (parts.mainloop in FLATTENED, by_mainloop),
            "split": (parts.scheduler == SPLIT, by_scheduler),
            "general": (parts.problem != SQUARE, f"problem {parts.problem} decides it"),
        }
        if parts.scheduler != BY_LENGTH:
            found["packed"] = (False, f"scheduler {parts.scheduler} takes samples of one length")
        if parts.scheduler not in MASKED:
            found["causal"] = (False, f"scheduler {parts.scheduler} does not know that tiles differ")
        if parts.roles == TOGETHER:
            found["producer_registers"] = (0, f"roles {parts.roles} have no producer")
            found["consumer_registers"] = (0, f"roles {parts.roles} leave registers to the compiler")
        return found

    def rules(self, parts: Parts, config: HopperConfig) -> Iterator[str]:
        """Rules on roles and rings, then on sizes, products and registers."""
        if parts.roles == PING_PONG and config.n_consumers != 2:
            yield f"n_consumers {config.n_consumers}: two warpgroups take turns in roles {parts.roles}"
        together = parts.roles == TOGETHER
        for name, two in (("k_stages", together), ("v_stages", together or parts.mainloop == OVERLAPPED)):
            if two and (stages := getattr(config, name)) < 2:
                yield f"{name} {stages}: the next tile is asked for while one is read, so that there are two"
        if parts.mainloop in FLATTENED and config.v_stages < 3:
            yield f"v_stages {config.v_stages}: two tiles are read while the next one lands, so that there are three"
        yield from _size_conflicts(config)
        yield from _mainloop_conflicts(parts, config)
        if not together:
            yield from _register_conflicts(config)

    def candidates(self, parts: Parts) -> Iterator[HopperConfig]:
        """Every combination of tiles, rings and splits of the registers."""
        by_mma = parts.mainloop == MMA_SYNC
        rows = (1, 2) if by_mma else (1,)  # blocks of 64 query rows per warpgroup
        columns = MMA_COLUMNS if by_mma else WGMMA_COLUMNS
        splits = ((0, 0),) if parts.roles == TOGETHER else SPLITS
        names = (*HopperConfig.sizes, *RING_STAGES, *REGISTER_KNOBS)
        for n, each, B_c, k, v, split in product(range(1, MOST_CONSUMERS + 1), rows, columns, STAGES, STAGES, splits):
            values = (D_HEAD, WGMMA_ROWS * each * n, B_c, n, k, v, *split)
            yield HopperConfig.of(dict(zip(names, values, strict=True)))

    @staticmethod
    def part(parts: Parts, config: HopperConfig, concern: str) -> str:
        """The part of a concern in one kernel: pairs of tiles are for a mask, tiles by length for packed sequences."""
        found: str = getattr(parts, concern)
        if found in MASKED and not config.packed:
            return PAIRED if config.causal else PERSISTENT
        return found

    def part_files(self, of: Iteration, config: HopperConfig) -> tuple[str, ...]:
        """The part files of a kernel, relative to ``kernels/``, in reading order."""
        names = {name: f"{PARTS}/{name}/{self.part(of.parts, config, name)}.cuh" for name in self.concerns}
        return tuple(names.get(concern, BODY) for concern in READING)

    def translation_unit(self, of: Iteration, config: HopperConfig) -> str:
        """The CUDA source of one kernel."""
        members = [f"static constexpr int {name} = {getattr(config, name)};" for name in SIZES]
        members.append(f"static constexpr bool causal = {str(config.causal).lower()};")
        for concern in self.concerns:
            name = type_name(self.part(of.parts, config, concern))
            members.append(f"using {type_name(concern)} = flashladder::hopper::{name};")
        parts = [name for name in self.part_files(of, config) if name != BODY]
        return self.composed(of, config, parts, "HopperArgs", members, ENTRY)

    def for_plan(self, parts: Parts, config: HopperConfig) -> tuple[int, int, int, int]:
        """Rows of a box of Q and of O, whether a CTA computes several tiles, and whether several CTAs share one."""
        del parts
        return config.rows, store_rows(config), int(config.persistent), int(config.split)

    def refuses(self, usage: PtxasUsage) -> str:
        """Products that ptxas serialised, setmaxnreg that it ignored, or anything in local memory.

        Such code is correct but several times slower. ptxas only reports it in notes, C7504 to C7519.
        """
        notes = [warning for warning in usage.warnings if "(C75" in warning]
        spills = f"{usage.stack} bytes of stack, {usage.spill_stores} stored and {usage.spill_loads} loaded in spills"
        return notes[0] if notes else spills if usage.stack or usage.spill_stores or usage.spill_loads else ""


FAMILY = Hopper()
