"""The published ladder's family: mma.m16n8k16, ldmatrix and cp.async, from compute capability 8.0 on.

Its configurations, its parts with every rule on what goes with what (each answers with sentences that say why; no
sentence means legal), its tuning space, its translation unit, and its launch. The kernel's symbol and its type always
have the same names (`flash_fwd_kernel`, `Kernel`), so that the difference between two iterations has no rename noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any

from pydantic import Field, StrictInt, create_model

from flashladder.ladder.config import D_HEAD, ELEMENT_BYTES, MAX_SMEM_BYTES, KernelConfig, Word
from flashladder.ladder.family import (
    Contradiction,
    Exclusion,
    Family,
    Iteration,
    Knobs,
    Launch,
    Targets,
    change_model,
    type_name,
    values_of,
)
from flashladder.names import EXAMPLE
from flashladder.toolchain import load_pins

PARTS = "ampere"  # the folder of the bodies and parts below kernels/
ENTRY = "entry.cuh"  # the `__global__`, below `Kernel`
UNIT = 8  # elements of k per unit of the load sizes
MMA_M = 16  # query rows of one mma.m16n8k16, hence at least as many per warp
LOAD_TILES = (0, 2)  # everything up front, or one 16-wide k-tile at a time: what PARTS/operands/ can do
LOADS = ("Q_mma_load_K_tiles", "K_mma_load_K_tiles", "V_mma_load_K_tiles")
TILE = ("B_r", "B_c", "n_warps")


@dataclass(frozen=True, order=True)
class AmpereConfig(KernelConfig):
    """The knobs of one compiled kernel.

    Attributes (besides those of `KernelConfig`):
        n_warps: warps of a CTA; each owns ``B_r / n_warps`` query rows.
        async_copy: global to shared memory through 16-byte ``cp.async``.
        eager_load_blocks: the next K and V blocks are in flight before they are needed.
        swizzled: tiles in shared memory are permuted in 16-byte units against bank conflicts.
        Q_mma_load_K_tiles: how much of Q one step loads to registers, in units of 8 elements of the mma's k dimension
            (2 is one 16-wide k-tile); 0 is the whole operand before the first mma.
        K_mma_load_K_tiles: the same for K, along d_head.
        V_mma_load_K_tiles: the same for V, along B_c.
        mma_double_buffer_loads: the next step's fragments are loaded while this step's mma run.
        optimized_softmax: iterations 6 and 7: scale and maximum fold into one FFMA before ``ex2``; from 10 on: the
            first KV block starts the row statistics instead of correcting -inf and 0.
        kv_rings: K and V lie in rings of two stages each, instead of one tile each.
    """

    example = EXAMPLE
    sizes = ("d_head", *TILE)
    words = (
        Word("async", ("async_copy",)),
        Word("eager", ("eager_load_blocks",)),
        Word("swizzled", ("swizzled",)),
        Word("load_{}_{}_{}_tiles", LOADS),
        Word("buffer", ("mma_double_buffer_loads",), brief="buffer", key="double_buffer"),
        Word("opt_softmax", ("optimized_softmax",), brief="opt", key="optimized_softmax"),
        Word("rings", ("kv_rings",)),
    )
    dtype: str
    d_head: int
    B_r: int
    B_c: int
    n_warps: int
    async_copy: bool
    eager_load_blocks: bool
    swizzled: bool
    Q_mma_load_K_tiles: int
    K_mma_load_K_tiles: int
    V_mma_load_K_tiles: int
    mma_double_buffer_loads: bool
    optimized_softmax: bool
    kv_rings: bool = False

    @property
    def load_tiles(self) -> tuple[int, int, int]:
        """The three load sizes, in the order Q, K, V, in units of 8 elements of k; 0 is the whole operand."""
        return (self.Q_mma_load_K_tiles, self.K_mma_load_K_tiles, self.V_mma_load_K_tiles)

    @property
    def n_threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.n_warps

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA in bytes: one Q tile (used again for O), a tile of K and of V a stage."""
        stages = 2 if self.kv_rings else 1
        return (self.B_r + 2 * stages * self.B_c) * self.d_head * ELEMENT_BYTES

    def needs(self) -> dict[str, tuple[int, str]]:
        """Threads, shared memory and the registers that every iteration needs.

        Those are the fp32 accumulators of O, which live through the whole main loop, and of S beside them. What else a
        kernel keeps is the assembler's to place or to spill.
        """
        return {
            **super().needs(),
            "registers_per_thread": (self.B_r * self.d_head // self.n_threads, "registers per thread for O"),
            "registers_per_block": (self.B_r * (self.d_head + self.B_c), "registers per CTA for O and S"),
        }


ERAS: Mapping[str, str] = {"linear": "runtime_offsets", "xor": "runtime_offsets"}
"""Layouts whose offsets are computed at run time to their era; the body of one is ``flash_fwd_<era>.cuh``."""
NEWEST_ERA = "static_offsets"  # of every other layout
RINGS = "rings"  # the schedule with K and V in rings of two stages, and the era of its body


PEELED = ("exp2_peeled", "exp2_stale")  # arithmetic that asks for a first block of its own


@dataclass(frozen=True)
class Parts:
    """One value per concern: the stem of its file under ``kernels/ampere/<concern>/``, but for `row_stride`.

    Attributes:
        layout: how a tile lies in shared memory.
        schedule: when K and V blocks are fetched, and in which order they are visited.
        operands: what loads of fragments the iteration can do; the configuration picks per operand.
        k_order: order of K's fragments in registers.
        softmax: the online softmax's arithmetic.
        normalize: how O is divided by its row sums.
        gmem: how global addresses are formed.
        epilogue: how O's shared-memory addresses are formed.
        store_policy: cache policy of O's stores.
        row_stride: elements between two rows of one head, fixed at compile time; 0 is any.
    """

    layout: str
    schedule: str
    operands: str
    k_order: str
    softmax: str
    normalize: str
    gmem: str
    epilogue: str
    store_policy: str
    row_stride: int

    @property
    def era(self) -> str:
        """The era whose body composes this layout and schedule."""
        return RINGS if self.schedule == RINGS else ERAS.get(self.layout, NEWEST_ERA)


VALUES = values_of(PARTS, Parts)


def _knob_conflicts(parts: Parts, config: AmpereConfig) -> Iterator[str]:
    """Contradictions between the knobs of `config` and what the parts do."""
    derived = derived_knobs(parts)
    reasons = {
        "async_copy": "every iteration copies with cp.async",
        "swizzled": f"layout {parts.layout} decides it",
        "eager_load_blocks": f"schedule {parts.schedule} decides it",
        "kv_rings": f"schedule {parts.schedule} decides it",
        "optimized_softmax": f"softmax {parts.softmax} in era {parts.era} decides it",
        "mma_double_buffer_loads": f"operands {parts.operands} have no second buffer",
    }
    for name, value in derived.items():
        if getattr(config, name) != value:
            yield f"{name} must be {value}: {reasons[name]}"
    if parts.operands == "whole" and config.load_tiles != (0, 0, 0):
        yield f"load_tiles must be 0, 0, 0: operands {parts.operands} load everything before the first mma"
    if parts.operands == "tiled" and config.load_tiles == (0, 0, 0):
        yield "load_tiles must not all be 0: operands tiled load at least one operand by k-tile"


def _size_conflicts(config: AmpereConfig) -> Iterator[str]:
    """Sizes that do not fit the mma, the loads or the hardware, whatever the parts."""
    q, k, _ = config.load_tiles
    if config.d_head != D_HEAD:
        yield f"d_head {config.d_head}: the kernels are written for {D_HEAD}"
    if config.n_warps not in (1, 2, 4, 8, 16):
        yield f"n_warps {config.n_warps}: a CTA has 1, 2, 4, 8 or 16 warps"
    elif config.B_r % (MMA_M * config.n_warps):
        yield f"B_r {config.B_r} with {config.n_warps} warps: each warp needs a multiple of {MMA_M} query rows"
    if config.B_c % MMA_M:
        yield f"B_c {config.B_c}: must be a multiple of {MMA_M}, the k of P V's mma"
    if config.smem_bytes > MAX_SMEM_BYTES:
        yield f"{config.smem_bytes} bytes of shared memory: a CTA has at most {MAX_SMEM_BYTES}"
    for operand, size, extent in zip("QKV", config.load_tiles, (D_HEAD, D_HEAD, config.B_c), strict=True):
        if size not in LOAD_TILES:
            yield f"load size {size} of {operand}: must be {' or '.join(map(str, LOAD_TILES))}"
        elif size * UNIT >= extent and size:
            yield f"load size {size} of {operand}: that is all {extent} of its k, which is written 0"
    if q not in (0, k):
        yield f"load size {q} of Q: must be 0 or K's, {k}, since both walk along d_head together"
    if config.mma_double_buffer_loads and config.load_tiles == (0, 0, 0):
        yield "a double buffer without a tiled load: there is nothing to buffer"


def _copy_conflicts(parts: Parts, config: AmpereConfig) -> Iterator[str]:
    """Tiles that the CTA's threads cannot copy in equal shares of 16 bytes."""
    if parts.era == "runtime_offsets":
        if config.B_c % (4 * config.n_warps):
            yield f"B_c {config.B_c} with {config.n_warps} warps: each warp copies four rows at a time"
        return
    rows = config.n_threads // (8 if parts.layout == "xor_tiled" else 16)
    if rows % 8:
        yield f"{config.n_warps} warps copy {rows} rows at a time: the static swizzle needs a multiple of 8"
    elif config.B_c % rows or config.B_r % rows:
        yield f"B_r {config.B_r} and B_c {config.B_c}: must be multiples of {rows}, the rows copied at a time"


def derived_knobs(parts: Parts) -> dict[str, bool]:
    """The knobs of a configuration that `parts` leave no choice about."""
    knobs = {
        "async_copy": True,
        "eager_load_blocks": parts.schedule != "lazy",
        "swizzled": parts.layout != "linear",
        "kv_rings": parts.schedule == RINGS,
    }
    if parts.operands != "double_buffered":
        knobs["mma_double_buffer_loads"] = False
    if parts.softmax == "exp2_stale":
        knobs["optimized_softmax"] = True
    elif parts.softmax != "exp2_peeled":
        knobs["optimized_softmax"] = parts.softmax == "exp2_folded" and parts.era == "runtime_offsets"
    return knobs


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


_TEMPLATE = """\
// {title}
// Iteration {number}, {short_form}
// Generated by flashladder/ladder/families/ampere.py from {source}; the parts are under kernels/{family}/.
{includes}

struct Kernel {{
    using Args = flashladder::FlashFwdArgs;
    using value_t = flashladder::{config.dtype};
    static constexpr int B_r = {config.B_r};
    static constexpr int B_c = {config.B_c};
    static constexpr int d_head = {config.d_head};
    static constexpr int n_warps = {config.n_warps};
    static constexpr int n_threads = {config.n_threads};
    static constexpr int smem_bytes = {config.smem_bytes};
    using Schedule = flashladder::{schedule};
    using Layout = flashladder::{layout};
    using Gmem = flashladder::{gmem};
    using KOrder = flashladder::{k_order};
    using Softmax = flashladder::{softmax};
    using Normalize = flashladder::{normalize};
    using Epilogue = flashladder::{epilogue};
    using StorePolicy = flashladder::{store_policy};
    template <int k_tiles, int x4s>
    using QOperand = flashladder::{q_operand}<k_tiles, x4s>;
    template <int k_tiles, int x4s>
    using KOperand = flashladder::{k_operand}<k_tiles, x4s>;
    template <int k_tiles, int x4s>
    using VOperand = flashladder::{v_operand}<k_tiles, x4s>;
}};

#include "{entry}"
"""


def _operand(load_tiles: int, config: AmpereConfig) -> str:
    """The file stem of the part that serves one operand: the configuration picks per operand."""
    if load_tiles == 0:
        return "whole"
    return "double_buffered" if config.mma_double_buffer_loads else "tiled"


def grid_of(config: AmpereConfig, shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """A CTA per row block, head and sample of tensors of `shape`, (batch, seq_len, n_heads, d_head)."""
    batch, seq_len, heads, _ = shape
    return (seq_len // config.B_r, heads, batch)


def launch_of(config: AmpereConfig, tensors: Sequence[Any]) -> Launch:
    """Four pointers, their strides of samples, heads and positions in bytes, and the number of KV blocks.

    Args:
        config: of the kernel.
        tensors: Q, K, V and O: arrays (batch, seq_len, n_heads, d_head).
    """
    import numpy as np  # which a build, where nothing is launched, does without

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


class _Knobs(Knobs):
    """Knobs of the configuration on one GPU; absent ones are inherited, or decided by the parts."""

    B_r: Annotated[int, Field(gt=0)] | None = None
    B_c: Annotated[int, Field(gt=0)] | None = None
    n_warps: Annotated[int, Field(gt=0)] | None = None
    load_tiles: Annotated[tuple[StrictInt, StrictInt, StrictInt], Field(strict=False)] | None = None

    def knobs(self) -> dict[str, object]:
        """The knobs that are given, under the names of `AmpereConfig`."""
        given = super().knobs()
        if self.load_tiles is not None:
            del given["load_tiles"]
            given |= zip(LOADS, self.load_tiles, strict=True)
        return {KEYED.get(key, key): value for key, value in given.items()}


KEYED = {word.key: name for name, word in AmpereConfig.flags().items() if word.key}  # key in YAML to field
_FLAGS: dict[str, Any] = dict.fromkeys(KEYED, (bool | None, None))


LEGEND = """\
B_r,B_c,n_warps, then the loads of Q_K_V in units of 8 elements of k (0: all up
front).
+buffer: the next step's fragments are loaded while this step's mma run.
+opt: optimized softmax; iterations 6 and 7: scale and maximum fold into one
      FFMA before ex2; from 10 on: the first KV block starts the row statistics
      instead of correcting -inf and 0."""


class Ampere(Family):
    """Iterations 1 to 19, and what goes on from them."""

    name = "ampere"
    parts_type = Parts
    config_type = AmpereConfig
    change_model = change_model(
        VALUES,
        "What differs from the parent: any of the ten concerns.",
        row_stride=(Annotated[int, Field(ge=0, lt=2**22)] | None, None),
    )
    knobs_model = create_model("KnobsFile", __base__=_Knobs, __doc__=_Knobs.__doc__, **_FLAGS)
    legend = LEGEND
    required = TILE
    keys = dict.fromkeys(LOADS, "load_tiles") | {name: key for key, name in KEYED.items()}
    exclusions = EXCLUSIONS
    live_registers = staticmethod(live_registers)
    grid = staticmethod(grid_of)
    plan = "ampere/plan.cpp"
    least_capability = (8, 0)

    @property
    def targets(self) -> Targets:
        """Those that the toolchain is pinned for: one PTX serves all."""
        pins = load_pins()
        return Targets(pins.ptx_arch, pins.arches)

    def contradictions(self, parts: Parts) -> Iterator[Contradiction]:
        """Every contradiction within `parts`; none when a kernel can be composed of them."""
        found = partial(Contradiction.of, parts)
        if (parts.gmem == "static_stride") != (parts.row_stride != 0):
            yield found("static_stride and a row_stride other than 0 come together", "gmem", "row_stride")
        if parts.row_stride % UNIT:
            yield found(f"rows start on 16 bytes, so the stride is a multiple of {UNIT} elements", "row_stride")
        if 0 < parts.row_stride < D_HEAD:
            yield found(f"a row holds at least one head of {D_HEAD} elements", "row_stride")
        if parts.softmax in PEELED and parts.schedule in ("lazy", "eager"):
            yield found("no first block of its own in this schedule", "softmax", "schedule")
        if parts.schedule == RINGS and ERAS.get(parts.layout, NEWEST_ERA) != NEWEST_ERA:
            yield found("a stage's addresses are static offsets", "schedule", "layout")
        if parts.schedule == RINGS and parts.gmem == "advance":
            yield found("a ring copies the next block before this one is done with", "schedule", "gmem")
        if parts.schedule == "backward" and parts.gmem == "advance":
            yield found("an advancing pointer only walks forwards", "schedule", "gmem")
        if parts.era == "runtime_offsets" and parts.k_order == "row_major":
            yield found("row-major fragments come with static offsets", "k_order", "layout")
        if parts.k_order == "serpentine" and parts.era != RINGS:
            yield found("only the body of the rings multiplies in another order", "k_order", "schedule")
        if parts.era == "runtime_offsets" and parts.epilogue == "encoded":
            yield found("the encoding reuses a lane's static copy offset", "epilogue", "layout")

    def conflicts(self, parts: Parts, config: AmpereConfig) -> tuple[str, ...]:
        """See the rules above: of knobs, of sizes, of copies."""
        return (*_knob_conflicts(parts, config), *_size_conflicts(config), *_copy_conflicts(parts, config))

    def candidates(self, parts: Parts, dtype: str) -> Iterator[AmpereConfig]:
        """Every tile, load and switch that the ladder knows."""
        del parts
        for knobs in product(TILE_ROWS, TILE_COLUMNS, WARPS, *[LOAD_TILES] * 3, (False, True), (False, True)):
            names = (*TILE, *LOADS, "mma_double_buffer_loads", "optimized_softmax")
            yield AmpereConfig.of({"d_head": D_HEAD, **dict(zip(names, knobs, strict=True))}, dtype)

    def part_files(self, of: Iteration, config: AmpereConfig) -> tuple[str, ...]:
        """The part files that this kernel is composed of, relative to ``kernels/``, in reading order."""
        parts = of.parts
        operands = sorted({_operand(load, config) for load in config.load_tiles})
        names = (
            f"schedule/{parts.schedule}",
            f"flash_fwd_{parts.era}",
            f"layout/{parts.layout}",
            f"gmem/{parts.gmem}",
            *(f"operands/{stem}" for stem in operands),
            f"k_order/{parts.k_order}",
            f"softmax/{parts.softmax}",
            f"normalize/{parts.normalize}",
            f"epilogue/{parts.epilogue}",
            f"store_policy/{parts.store_policy}",
        )
        return tuple(f"{PARTS}/{name}.cuh" for name in names)

    def translation_unit(self, of: Iteration, config: AmpereConfig) -> str:
        """The CUDA source of one kernel."""
        parts = of.parts
        peeled = f", {str(config.optimized_softmax).lower()}" * (parts.softmax == "exp2_peeled")
        return _TEMPLATE.format(
            title=of.title,
            entry=ENTRY,
            family=PARTS,
            number=of.number,
            short_form=config.short_form(),
            source=of.path.name,
            includes="\n".join(f'#include "{name}"' for name in sorted(self.part_files(of, config))),
            config=config,
            schedule=type_name(parts.schedule),
            layout=type_name(parts.layout),
            gmem=type_name(parts.gmem) + f"<{parts.row_stride}>" * (parts.gmem == "static_stride"),
            k_order=type_name(parts.k_order),
            softmax=f"{type_name(parts.softmax)}<{config.d_head}{peeled}>",
            normalize=type_name(parts.normalize),
            epilogue=type_name(parts.epilogue),
            store_policy=type_name(parts.store_policy),
            q_operand=type_name(_operand(config.Q_mma_load_K_tiles, config)),
            k_operand=type_name(_operand(config.K_mma_load_K_tiles, config)),
            v_operand=type_name(_operand(config.V_mma_load_K_tiles, config)),
        )

    def decided(self, parts: Parts) -> dict[str, Any]:
        """See `derived_knobs`; operands that are loaded whole leave no load size."""
        return derived_knobs(parts) | (dict.fromkeys(LOADS, 0) if parts.operands == "whole" else {})

    def to_knobs(self, parts: Parts, config: AmpereConfig) -> dict[str, str]:
        """``{B_r: 128, ...}``: tile, loads and the flags that are free."""
        found = {name: str(getattr(config, name)) for name in TILE}
        found["load_tiles"] = str(list(config.load_tiles))
        free = {key: name for key, name in KEYED.items() if name not in derived_knobs(parts)}
        return found | {key: str(getattr(config, name)).lower() for key, name in free.items()}

    def launch(self, config: AmpereConfig, tensors: Sequence[Any], multiprocessors: int) -> Launch:
        """See `launch_of`; every GPU gets the same grid."""
        del multiprocessors
        return launch_of(config, tensors)

    def in_brief(self, reason: str) -> str:
        """Flags as ``+buffer`` and ``no +buffer``."""
        for name, word in AmpereConfig.flags().items():
            reason = reason.replace(f"{name} must be True", f"no +{word.brief}")
            reason = reason.replace(f"{name} must be False", f"+{word.brief}")
        return reason

    def row_stride(self, parts: Parts) -> int:
        """That of ``gmem: static_stride``."""
        return parts.row_stride

    def facts(self, parts: Parts) -> dict[str, object]:
        """The body that composes them."""
        return {"era": parts.era}

    def own_knobs(self, step: Iteration) -> tuple[str, ...]:
        """Loads of a step that brings operands; the whole tile of a step that only tunes."""
        loads = (*LOADS, "mma_double_buffer_loads")
        if not step.change:
            return (*TILE, *loads)
        return loads if "operands" in step.change else ()


FAMILY = Ampere()
