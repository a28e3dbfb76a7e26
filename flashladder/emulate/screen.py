"""What ``invoke emulate`` prints: one screen for a person, or the same facts as JSON.

`ptxemu` renders counters and hazards; the short names of counters are those of `expect.counters` in iterations/*.yaml.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from flashladder.build.compile import ptx_for
from flashladder.columns import hanging
from flashladder.files import dump_json, relative
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
import ptxemu

if TYPE_CHECKING:
    from flashladder.emulate.command import Emulation

SCHEMA_VERSION = 1
# Source files whose lines say less than those that call them, or that they call: one-instruction functions, and the
# composed file that includes all others.
WRAPPERS = ("kernels/ptx/", "kernel.cu:")


class Wanted(Protocol):
    """Which parts were asked for."""

    counters: bool
    hazards: bool


def render(found: Emulation, wanted: Wanted) -> str:
    """The screen."""
    parts = [_head(found), _numbers(found)]
    if wanted.counters:
        parts.append(ptxemu.render_counters(found.counters, wrappers=WRAPPERS, folder="kernels/"))
    if found.hazards is not None:
        parts.append(ptxemu.render_hazards(found.hazards))
    return "\n\n".join(parts)


def _head(found: Emulation) -> str:
    config, shape, iteration = found.config, found.shape, found.iteration
    size = f"batch {shape.batch}, seq_len {shape.seq_len}, heads {shape.n_heads}, d_head {shape.d_head}"
    warps, shared = config.n_threads // 32, config.smem_bytes >> 10
    sharing = f", {found.sharing} to a tile" if found.sharing > 1 else ""
    blocks = found.result.blocks
    ctas = f"{blocks} CTA{'s' if blocks > 1 else ''} of {warps} warps{sharing}, {shared} KiB of shared memory each"
    title = f"iteration {iteration.description}: {iteration.title}"
    return "\n".join((title, config.short_form(), f"{size}: {ctas}", relative(ptx_for(iteration, config).ptx)))


def _numbers(found: Emulation) -> str:
    errors = found.errors
    verdict = "right" if errors.right else "WRONG"
    told = (
        f"{verdict}: max error {errors.max_error:.2g} (allowed {errors.max_allowed:.2g}), relative RMS error "
        f"{errors.rms_error:.2g} (allowed {errors.rms_allowed:.2g}) against fp64"
    )
    return f"{hanging('numbers  ', told)}\n{_speed(found)}"


def _speed(found: Emulation) -> str:
    """How long it took."""
    slices = f", {found.result.slices} slices" if found.result.slices > 1 else ""
    lanes, seconds = found.counters.lane_instructions, f"{found.result.seconds:.2f} s{slices}"
    return f"speed    {seconds}: {lanes:,} lane-instructions, {found.speed / 1e6:.0f} million a second"


def as_json(found: Emulation, wanted: Wanted) -> str:
    """The facts of the screen, and all places and hazards instead of the first ones."""
    ptx = ptx_for(found.iteration, found.config).ptx
    facts: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "iteration": found.iteration.description,
        "title": found.iteration.title,
        "config": found.config.short_form(),
        "dtype": found.config.dtype,
        "shape": found.shape.model_dump(),
        "ptx": {"path": relative(ptx), "sha256": ptx_sha256(read_ptx(ptx))},
        "ctas": found.result.blocks,
        "slices": found.result.slices,
        "seconds": found.result.seconds,
        "lane_instructions": found.counters.lane_instructions,
        "lane_instructions_per_second": found.speed,
        "right": found.errors.right,
        "errors": {name: value if value == value else None for name, value in asdict(found.errors).items()},  # noqa: PLR0124 - JSON has no NaN
        "counters": None,
        "hazards": None,
    }
    if wanted.counters:
        facts["counters"] = found.counters.facts(WRAPPERS)
    if found.hazards is not None:
        facts["hazards"] = [hazard.render() for hazard in found.hazards.reports]
    return dump_json(facts).rstrip()
