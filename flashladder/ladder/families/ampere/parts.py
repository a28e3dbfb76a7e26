"""What an iteration of the Ampere family is made of, and every rule on what goes with what, in this one place.

Why here: the YAML reader, the selection keys, ablations and the composer all need the same answers: which values a
concern may take, which values contradict each other, and which configurations a set of parts can express. Each rule
answers with sentences that say why; no sentence means legal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from flashladder.ladder.config import D_HEAD, MAX_SMEM_BYTES
from flashladder.ladder.families.ampere.config import LOADS, AmpereConfig
from flashladder.ladder.family import Contradiction
from flashladder.ladder.protocol.part_files import part_names
from flashladder.paths import KERNELS

PARTS = "ampere"  # the folder of the bodies and parts below kernels/
UNIT = 8  # elements of k per unit of the load sizes
MMA_M = 16  # query rows of one mma.m16n8k16, hence at least as many per warp
LOAD_TILES = (0, 2)  # everything up front, or one 16-wide k-tile at a time: what PARTS/operands/ can do

CHANGEABLE = ("layout", "schedule", "operands", "k_order", "softmax", "normalize", "gmem", "epilogue", "store_policy")


VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {concern: part_names(KERNELS / PARTS / concern) for concern in CHANGEABLE}
)
"""The values of each concern, in the order in which the ladder meets them: its part files."""

ERAS: Mapping[str, str] = MappingProxyType({"linear": "runtime_offsets", "xor": "runtime_offsets"})
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


CONCERNS = tuple(field.name for field in fields(Parts))


def contradictions(parts: Parts) -> tuple[Contradiction, ...]:
    """Every contradiction within `parts`; empty when a kernel can be composed of them."""
    return tuple(_contradictions(parts))


def _contradictions(parts: Parts) -> Iterator[Contradiction]:
    """Each rule on parts alone."""

    def found(why: str, *concerns: str) -> Contradiction:
        values = " with ".join(f"{concern} {getattr(parts, concern)}" for concern in concerns)
        return Contradiction(f"{values} ({why})", concerns)

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


def config_conflicts(parts: Parts, config: AmpereConfig) -> tuple[str, ...]:
    """Why `parts` cannot express `config`, one sentence per reason; empty when they can.

    Every other rule in the project about legal configurations goes through here.
    """
    return (*_knob_conflicts(parts, config), *_size_conflicts(config), *_copy_conflicts(parts, config))


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


def fit_config(parts: Parts, config: AmpereConfig) -> AmpereConfig:
    """`config` with every knob that `parts` decide set to what they decide; tile and free knobs stay.

    The result may still conflict (`config_conflicts`): tiled operands, for example, need a load size that only a
    person can choose.
    """
    knobs: dict[str, object] = dict(derived_knobs(parts))
    if parts.operands == "whole":
        knobs |= dict.fromkeys(LOADS, 0)
    return replace(config, **knobs)  # type: ignore[arg-type]  # names and types are those of the fields
