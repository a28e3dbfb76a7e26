"""The published ladder's family: mma.m16n8k16, ldmatrix and cp.async, from compute capability 8.0 on.

The kernel's symbol and its type always have the same names (`flash_fwd_kernel`, `Kernel`), so that the difference
between two iterations shows no renaming.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

from pydantic import Field

from flashladder.ladder.config import D_HEAD, ELEMENT_BYTES, KernelConfig, Word
from flashladder.ladder.family import Exclusion, Family, Iteration, Launch, Targets, change_model, type_name
from flashladder.names import EXAMPLE
from flashladder.toolchain import load_pins

PARTS = "ampere"  # the folder of the bodies and parts below kernels/
ENTRY = "entry.cuh"  # the `__global__`, below `Kernel`
UNIT = 8  # elements of k per unit of the load sizes
MMA_M = 16  # query rows of one mma.m16n8k16, hence at least as many per warp
LOAD_TILES = (0, 2)  # the whole operand up front, or one 16-wide k-tile at a time, as PARTS/operands/ can load
SIZES = ("B_r", "B_c", "d_head", "n_warps", "n_threads", "smem_bytes")  # of `Kernel`
TYPES = ("schedule", "layout", "gmem", "k_order", "softmax", "normalize", "epilogue", "store_policy")  # of `Kernel`
LOADS = ("Q_mma_load_K_tiles", "K_mma_load_K_tiles", "V_mma_load_K_tiles")
TILE = ("B_r", "B_c", "n_warps")


@dataclass(frozen=True, order=True)
class AmpereConfig(KernelConfig):
    """The knobs of one compiled kernel."""

    example = EXAMPLE
    sizes = ("d_head", *TILE)
    words = (
        Word("async", ("async_copy",)),
        Word("eager", ("eager_load_blocks",)),
        Word("swizzled", ("swizzled",)),
        Word("load_{}_{}_{}_tiles", LOADS, key="load_tiles"),
        Word("buffer", ("mma_double_buffer_loads",), brief="buffer", key="double_buffer"),
        Word("opt_softmax", ("optimized_softmax",), brief="opt", key="optimized_softmax"),
        Word("rings", ("kv_rings",)),
    )
    dtype: str
    d_head: int
    B_r: int
    B_c: int
    n_warps: int  # warps of a CTA; each owns ``B_r / n_warps`` query rows
    async_copy: bool  # global to shared memory through 16-byte ``cp.async``
    eager_load_blocks: bool  # the next K and V blocks are in flight before they are needed
    swizzled: bool  # tiles in shared memory are permuted in 16-byte units against bank conflicts
    # of Q, what one step loads to registers, in units of 8 elements of the mma's k dimension (2 is one 16-wide
    # k-tile); 0 is the whole operand before the first mma
    Q_mma_load_K_tiles: int
    K_mma_load_K_tiles: int  # the same for K, along d_head
    V_mma_load_K_tiles: int  # the same for V, along B_c
    mma_double_buffer_loads: bool  # the next step's fragments are loaded while this step's mma run
    # iterations 6 and 7: scale and maximum fold into one FFMA before ``ex2``; from 10 on: the first KV block sets the
    # row statistics instead of correcting -inf and 0
    optimized_softmax: bool
    kv_rings: bool = False  # K and V have rings of two stages each, instead of one tile each

    @property
    def load_tiles(self) -> tuple[int, int, int]:
        """The load sizes of Q, K and V, in units of 8 elements of k; 0 is the whole operand."""
        return (self.Q_mma_load_K_tiles, self.K_mma_load_K_tiles, self.V_mma_load_K_tiles)

    @property
    def n_threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.n_warps

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA in bytes: one Q tile (reused for O), one tile of K and of V per stage."""
        stages = 2 if self.kv_rings else 1
        return (self.B_r + 2 * stages * self.B_c) * self.d_head * ELEMENT_BYTES


RUNTIME, STATIC, RINGS = "runtime_offsets", "static_offsets", "rings"  # eras; `RINGS` is a schedule too
RUNTIME_LAYOUTS = ("linear", "xor")  # their offsets are computed at run time
PEELED = ("exp2_peeled", "exp2_stale")  # arithmetic that treats the first block apart


@dataclass(frozen=True)
class Parts:
    """One value per concern: the stem of its file under ``kernels/ampere/<concern>/``, except for `row_stride`."""

    layout: str  # of a tile in shared memory
    schedule: str  # when K and V blocks are fetched, and in which order they are visited
    operands: str  # the loads of fragments that the iteration has; the configuration picks one per operand
    k_order: str  # order of K's fragments in registers
    softmax: str  # the online softmax's arithmetic
    normalize: str  # how O is divided by its row sums
    gmem: str  # how global addresses are formed
    epilogue: str  # how O's shared-memory addresses are formed
    store_policy: str  # cache policy of O's stores
    row_stride: int  # elements between two rows of one head, fixed at compile time; 0 means any

    @property
    def era(self) -> str:
        """Which body, ``flash_fwd_<era>.cuh``, composes this layout and schedule."""
        return RINGS if self.schedule == RINGS else RUNTIME if self.layout in RUNTIME_LAYOUTS else STATIC


def _size_conflicts(config: AmpereConfig) -> Iterator[str]:
    """Sizes that do not fit the mma or the loads, with any parts."""
    q, k, _ = config.load_tiles
    if config.n_warps not in (1, 2, 4, 8, 16):
        yield f"n_warps {config.n_warps}: a CTA has 1, 2, 4, 8 or 16 warps"
    elif config.B_r % (MMA_M * config.n_warps):
        yield f"B_r {config.B_r} with {config.n_warps} warps: each warp needs a multiple of {MMA_M} query rows"
    if config.B_c % MMA_M:
        yield f"B_c {config.B_c}: must be a multiple of {MMA_M}, the k of P V's mma"
    for operand, size, extent in zip("QKV", config.load_tiles, (D_HEAD, D_HEAD, config.B_c), strict=True):
        if size not in LOAD_TILES:
            yield f"load size {size} of {operand}: must be {' or '.join(map(str, LOAD_TILES))}"
        elif size * UNIT >= extent and size:
            yield f"load size {size} of {operand}: that is all {extent} of its k, which is written 0"
    if q not in (0, k):
        yield f"load size {q} of Q: must be 0 or K's, {k}, since both walk along d_head together"
    if config.mma_double_buffer_loads and config.load_tiles == (0, 0, 0):
        yield "a double buffer without a tiled load: there is nothing to buffer"


TILE_ROWS = (64, 128)
TILE_COLUMNS = (32, 64, 128)
WARPS = (4, 8)

LIVE_LIMIT = 304
"""The most estimated registers per thread of accumulators and fragments.

A thread has 255. The published winner of iteration 16 on an A100, (128, 64, 4) with V loaded whole, needs 288 by this
estimate. It compiles with 88 bytes of spills, because ptxas moves ldmatrix between the mma.
"""
SM_SMEM_BYTES = 164 * 1024  # an A100's shared memory per SM, of which the system takes 1 KiB per CTA
LEAST_WARPS = 8  # two per scheduler, so that one can issue while the other waits for an mma


def live_registers(config: AmpereConfig) -> int:
    """Estimated registers per thread of accumulators and operand fragments, in the larger of the two products.

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


EXCLUSIONS = (
    Exclusion(
        "registers",
        f"accumulators and fragments need more than {LIVE_LIMIT} of 255 registers on paper: the main loop spills",
        lambda config: live_registers(config) > LIVE_LIMIT,
    ),
    Exclusion(
        "residency",
        f"fewer than {LEAST_WARPS} warps fit an A100's SM: nothing issues while they wait for mma or ldmatrix",
        lambda config: SM_SMEM_BYTES // (config.smem_bytes + 1024) * config.n_warps < LEAST_WARPS,
    ),
    Exclusion(
        "small_steps",
        f"with {MMA_M} rows per warp a K or V fragment feeds one mma only, and 32 columns are too few to hide that",
        lambda config: config.B_r // config.n_warps == MMA_M and config.B_c < 64,
    ),
)


def _operand(load_tiles: int, config: AmpereConfig) -> str:
    """The file stem of the part that loads one operand."""
    if load_tiles == 0:
        return "whole"
    return "double_buffered" if config.mma_double_buffer_loads else "tiled"


def grid_of(config: AmpereConfig, shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """One CTA per row block, head and sample of tensors of `shape`, (batch, seq_len, n_heads, d_head)."""
    batch, seq_len, heads, _ = shape
    return (seq_len // config.B_r, heads, batch)


def launch_of(
    config: AmpereConfig, tensors: Sequence[Any], multiprocessors: int, lse: Any = None, bounds: Sequence[Any] = ()
) -> Launch:
    """Four pointers, their strides of samples, heads and positions in bytes, and the number of KV blocks."""
    del multiprocessors, lse, bounds  # the same grid everywhere, no log-sum-exp, samples of one length
    import numpy as np  # a build does not need it

    seq_len = tensors[0].shape[1]
    strides = tuple(
        (np.int64(tensor.strides[0]), np.int64(tensor.strides[2]), np.int32(tensor.strides[1])) for tensor in tensors
    )
    return Launch(
        grid=grid_of(config, tensors[0].shape),
        block=(config.n_threads,),
        arguments=((*tensors, *strides, np.int32(seq_len // config.B_c)),),
        shared_bytes=config.smem_bytes,
    )


LEGEND = """\
B_r,B_c,n_warps, then the loads of Q_K_V in units of 8 elements of k (0: all up
front).
+buffer: the next step's fragments are loaded while this step's mma run.
+opt: optimized softmax; iterations 6 and 7: scale and maximum fold into one
      FFMA before ex2; from 10 on: the first KV block starts the row statistics
      instead of correcting -inf and 0."""


class Ampere(Family):
    """Iterations 1 to 19, and later iterations for all GPUs."""

    name = PARTS
    parts_type = Parts
    config_type = AmpereConfig
    change_model = change_model(PARTS, Parts, row_stride=(Annotated[int, Field(ge=0, lt=2**22)] | None, None))
    legend = LEGEND
    required = TILE
    brought = ("operands", (*LOADS, "mma_double_buffer_loads"))
    exclusions = EXCLUSIONS
    live_registers = staticmethod(live_registers)
    grid = staticmethod(grid_of)
    launch = staticmethod(launch_of)
    plan = "ampere/plan.cpp"
    least_capability = (8, 0)

    @property
    def targets(self) -> Targets:
        """The architectures of the pinned toolchain; one PTX serves all."""
        pins = load_pins()
        return Targets(pins.ptx_arch, pins.arches)

    def incompatible(self, parts: Parts) -> Iterator[tuple[str, ...]]:
        """Each reason why `parts` exclude each other, followed by the concerns whose values do."""
        if (parts.gmem == "static_stride") != (parts.row_stride != 0):
            yield "static_stride and a row_stride other than 0 come together", "gmem", "row_stride"
        if parts.row_stride % UNIT:
            yield f"rows start on 16 bytes, so the stride is a multiple of {UNIT} elements", "row_stride"
        if 0 < parts.row_stride < D_HEAD:
            yield f"a row holds at least one head of {D_HEAD} elements", "row_stride"
        if parts.softmax in PEELED and parts.schedule in ("lazy", "eager"):
            yield "no first block of its own in this schedule", "softmax", "schedule"
        if parts.schedule == RINGS and parts.layout in RUNTIME_LAYOUTS:
            yield "a stage's addresses are static offsets", "schedule", "layout"
        if parts.schedule == RINGS and parts.gmem == "advance":
            yield "a ring copies the next block before this one is done with", "schedule", "gmem"
        if parts.schedule == "backward" and parts.gmem == "advance":
            yield "an advancing pointer only walks forwards", "schedule", "gmem"
        if parts.era == RUNTIME and parts.k_order == "row_major":
            yield "row-major fragments come with static offsets", "k_order", "layout"
        if parts.k_order == "serpentine" and parts.era != RINGS:
            yield "only the body of the rings multiplies in another order", "k_order", "schedule"
        if parts.era == RUNTIME and parts.epilogue == "encoded":
            yield "the encoding reuses a lane's static copy offset", "epilogue", "layout"

    def decisions(self, parts: Parts) -> dict[str, tuple[int, str]]:
        """Flags, and the load sizes of operands that are loaded whole."""
        by_schedule = f"schedule {parts.schedule} decides it"
        found: dict[str, tuple[int, str]] = {
            "async_copy": (True, "every iteration copies with cp.async"),
            "eager_load_blocks": (parts.schedule != "lazy", by_schedule),
            "swizzled": (parts.layout != "linear", f"layout {parts.layout} decides it"),
            "kv_rings": (parts.schedule == RINGS, by_schedule),
        }
        if parts.operands != "double_buffered":
            found["mma_double_buffer_loads"] = (False, f"operands {parts.operands} have no second buffer")
        if parts.softmax != "exp2_peeled":
            folded = parts.softmax == "exp2_folded" and parts.era == RUNTIME
            why = f"softmax {parts.softmax} in era {parts.era} decides it"
            found["optimized_softmax"] = (folded or parts.softmax == "exp2_stale", why)
        if parts.operands == "whole":
            found |= dict.fromkeys(LOADS, (0, "operands whole load everything before the first mma"))
        return found

    def rules(self, parts: Parts, config: AmpereConfig) -> Iterator[str]:
        """Sizes that never fit, and tiles that the CTA's threads cannot copy in equal shares of 16 bytes."""
        if parts.operands == "tiled" and config.load_tiles == (0, 0, 0):
            yield "load_tiles must not all be 0: operands tiled load at least one operand by k-tile"
        yield from _size_conflicts(config)
        if parts.era == RUNTIME:
            if config.B_c % (4 * config.n_warps):
                yield f"B_c {config.B_c} with {config.n_warps} warps: each warp copies four rows at a time"
            return
        rows = config.n_threads // (8 if parts.layout == "xor_tiled" else 16)
        if rows % 8:
            yield f"{config.n_warps} warps copy {rows} rows at a time: the static swizzle needs a multiple of 8"
        elif config.B_c % rows or config.B_r % rows:
            yield f"B_r {config.B_r} and B_c {config.B_c}: must be multiples of {rows}, the rows copied at a time"

    def candidates(self, parts: Parts) -> Iterator[AmpereConfig]:
        """Every combination of tiles, loads and switches."""
        del parts
        names = (*TILE, *LOADS, "mma_double_buffer_loads", "optimized_softmax")
        for knobs in product(TILE_ROWS, TILE_COLUMNS, WARPS, *[LOAD_TILES] * 3, (False, True), (False, True)):
            yield AmpereConfig.of({"d_head": D_HEAD, **dict(zip(names, knobs, strict=True))})

    def part_files(self, of: Iteration, config: AmpereConfig) -> tuple[str, ...]:
        """The part files of this kernel, relative to ``kernels/``, in reading order."""
        names = [f"{concern}/{getattr(of.parts, concern)}" for concern in TYPES]
        operands = sorted({f"operands/{_operand(load, config)}" for load in config.load_tiles})
        schedule, layout, gmem, *others = names
        body = f"flash_fwd_{of.parts.era}"
        return tuple(f"{PARTS}/{name}.cuh" for name in (schedule, body, layout, gmem, *operands, *others))

    def translation_unit(self, of: Iteration, config: AmpereConfig) -> str:
        """The CUDA source of one kernel."""
        parts = of.parts
        types = {concern: type_name(getattr(parts, concern)) for concern in TYPES}
        peeled = f", {str(config.optimized_softmax).lower()}" * (parts.softmax == "exp2_peeled")
        types["softmax"] += f"<{config.d_head}{peeled}>"
        types["gmem"] += f"<{parts.row_stride}>" * (parts.gmem == "static_stride")
        members = [f"static constexpr int {name} = {getattr(config, name)};" for name in SIZES]
        members += [f"using {type_name(concern)} = flashladder::{name};" for concern, name in types.items()]
        for operand, load in zip("QKV", config.load_tiles, strict=True):
            name = type_name(_operand(load, config))
            members += ["template <int k_tiles, int x4s>"]
            members += [f"using {operand}Operand = flashladder::{name}<k_tiles, x4s>;"]
        return self.composed(of, config, self.part_files(of, config), "FlashFwdArgs", members, ENTRY)


FAMILY = Ampere()
