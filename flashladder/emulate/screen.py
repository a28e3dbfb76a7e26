"""What ``invoke emulate`` prints: one screen for a person, or the same facts as JSON.

Counters carry both names: the short one that `expect.counters` of iterations/*.yaml uses, and Nsight Compute's. Nothing
to run here; `flashladder.emulate.command` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from flashladder.build.compile import ptx_for
from flashladder.columns import hanging
from flashladder.files import dump_json, relative
from flashladder.ladder.claim import COUNTERS
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.names import GLOBAL_REQUESTS
from ptxemu.observe.counters import Counters, LineTraffic, Traffic
from ptxemu.observe.hazards import Hazards
from ptxemu.run.launch import Result

if TYPE_CHECKING:
    from flashladder.emulate.command import Emulation

SCHEMA_VERSION = 1
TOP_OPCODES = 8
TOP_PLACES = 5
TOP_HAZARDS = 10
KERNELS = "kernels/"
WRAPPERS = f"{KERNELS}ptx/"  # one-instruction functions: the line that calls them says more
UNIT = "kernel.cu:"  # the composed file that includes all others: it calls the kernel's parts


class Wanted(Protocol):
    """Which parts were asked for."""

    counters: bool
    hazards: bool


@dataclass(frozen=True)
class Place:
    """Accesses to shared memory by one CUDA source line, reached by one chain of calls.

    Attributes:
        opcode: of the PTX instructions.
        chain: source lines, innermost first, without one-instruction wrappers; empty without ``-lineinfo``.
        ptx_lines: their lines in the PTX file.
        traffic: what they cost together.
    """

    opcode: str
    chain: tuple[str, ...]
    ptx_lines: tuple[int, ...]
    traffic: Traffic


def short_counters(counters: Counters) -> dict[str, tuple[int, str]]:
    """Counters by short name: value, and Nsight Compute's name or what it is."""
    found = counters.as_dict()
    names = {short: (found[name], name) for short, name in COUNTERS.items() if name in found}
    for operation in ("ld", "st"):
        ideal = counters.traffic("shared", operation).phases
        names[f"shared_{operation}_ideal"] = (ideal, "wavefronts of the same accesses without conflicts")
        request = GLOBAL_REQUESTS.format(operation)
        names[f"global_{operation}_requests"] = (found[request], request)
    names["cp_async_bytes"] = (counters.copied_bytes, "bytes written to shared memory by cp.async")
    names["ptx_instructions"] = (counters.warp_instructions, "executed by warps; SASS has other ones")
    return dict(sorted((names | _of_hopper(counters)).items()))


def _of_hopper(counters: Counters) -> dict[str, tuple[int, str]]:
    """What the copy engine and products of warpgroups did, by names of the emulator; empty where there are none."""
    found = {}
    if counters.bulk_bytes:
        found["bulk_bytes"] = (counters.bulk_bytes, "bytes that the copy engine moved")
        for operation, did in (("ld", "read"), ("st", "wrote")):
            sectors = counters.traffic("global", f"bulk {operation}").sectors
            found[f"bulk_{operation}_sectors"] = (sectors, f"sectors of global memory that it {did}")
    if counters.tensor_cycles:
        found["wgmma_cycles"] = (counters.wgmma_cycles, "of one SM's tensor cores, at best, for all wgmma")
        found["wgmma_shared_bytes"] = (counters.wgmma_shared_bytes, "bytes of shared memory that wgmma read")
    return found


def conflicting_places(counters: Counters) -> list[Place]:
    """Source lines with bank conflicts, worst first."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[LineTraffic]] = {}
    for entry in counters.lines:
        if entry.space == "shared" and entry.traffic.conflicts:
            groups.setdefault((entry.opcode, entry.operation, source_chain(entry)), []).append(entry)
    places = [
        Place(opcode, chain, tuple(e.line for e in entries), sum((e.traffic for e in entries), Traffic()))
        for (opcode, _, chain), entries in groups.items()
    ]
    return sorted(places, key=lambda place: (-place.traffic.conflicts, place.ptx_lines))


def source_chain(entry: LineTraffic) -> tuple[str, ...]:
    """The CUDA lines of an instruction, innermost first, from outside of the one-instruction wrappers."""
    chain, source = [], entry.source
    while source is not None:
        chain.append(str(source))
        source = source.inlined_at
    telling = [line for line in chain if not line.startswith((WRAPPERS, UNIT))]
    return tuple(telling or chain)


def render(found: Emulation, wanted: Wanted) -> str:
    """The screen."""
    parts = [_head(found), _numbers(found)]
    if wanted.counters:
        parts += counter_parts(found.counters)
    if found.hazards is not None:
        parts.append(hazard_lines(found.hazards))
    return "\n\n".join(part for part in parts if part)


def counter_parts(counters: Counters) -> list[str]:
    """Counters, opcodes and the source lines with bank conflicts, as paragraphs."""
    return [counter_table(short_counters(counters)), _opcodes(counters), _places(counters)]


def _head(found: Emulation) -> str:
    config, shape, iteration = found.config, found.shape, found.iteration
    size = f"batch {shape.batch}, seq_len {shape.seq_len}, heads {shape.n_heads}, d_head {shape.d_head}"
    warps, shared = config.n_threads // 32, config.smem_bytes >> 10
    sharing = f", {found.sharing} to a tile" if found.sharing > 1 else ""
    ctas = f"{ctas_of(found.result)} of {warps} warps{sharing}, {shared} KiB of shared memory each"
    title = f"iteration {iteration.description}: {iteration.title}"
    return "\n".join((title, config.short_form(), f"{size}: {ctas}", relative(ptx_for(iteration, config).ptx)))


def _numbers(found: Emulation) -> str:
    errors = found.errors
    verdict = "right" if errors.right else "WRONG"
    told = (
        f"{verdict}: max error {errors.max_error:.2g} (allowed {errors.max_allowed:.2g}), relative RMS error "
        f"{errors.rms_error:.2g} (allowed {errors.rms_allowed:.2g}) against fp64"
    )
    return f"{hanging('numbers  ', told)}\n{speed_line(found.result, found.counters)}"


def ctas_of(result: Result) -> str:
    """How many CTAs ran: ``1 CTA``, ``16 CTAs``."""
    return f"{result.blocks} CTA{'s' if result.blocks > 1 else ''}"


def speed_line(result: Result, counters: Counters) -> str:
    """How long it took."""
    slices = f", {result.slices} slices" if result.slices > 1 else ""
    speed = counters.lane_instructions / max(result.seconds, 1e-9) / 1e6
    return (
        f"speed    {result.seconds:.2f} s{slices}: {counters.lane_instructions:,} lane-instructions, "
        f"{speed:.0f} million a second"
    )


def counter_table(counters: Mapping[str, tuple[int, str]]) -> str:
    """Short name, value, Nsight Compute's name."""
    wide = max(map(len, counters))
    digits = max(len(f"{value:,}") for value, _ in counters.values())
    return "\n".join(f"{name:{wide}s}  {value:{digits},d}  {meaning}" for name, (value, meaning) in counters.items())


def _opcodes(counters: Counters) -> str:
    top = counters.opcodes.most_common(TOP_OPCODES)
    return "\n".join(["executed most, by warps:", *(f"{count:12,d}  {opcode}" for opcode, count in top)])


def _places(counters: Counters) -> str:
    places = conflicting_places(counters)
    if not places:
        return "no bank conflicts"
    lines = [f"bank conflicts by source line ({KERNELS}, innermost first), with wavefronts per conflict-free one:"]
    for place in places[:TOP_PLACES]:
        times = place.traffic.wavefronts / place.traffic.phases
        more = f" and {len(place.ptx_lines) - 1} more" if len(place.ptx_lines) > 1 else ""
        lines.append(
            f"{place.traffic.conflicts:12,d}  {times:.1f}x  {place.opcode}, PTX line {place.ptx_lines[0]}{more}"
        )
        lines.append(f"{'':20s}{' < '.join(line.removeprefix(KERNELS) for line in place.chain) or 'no source line'}")
    if len(places) > TOP_PLACES:
        rest = sum(place.traffic.conflicts for place in places[TOP_PLACES:])
        lines.append(f"{rest:12,d}  in {len(places) - TOP_PLACES} more places")
    return "\n".join(lines)


def hazard_lines(hazards: Hazards) -> str:
    """The first hazards, or that there are none."""
    reports = hazards.reports
    if not reports:
        return "no hazards"
    lines = [f"HAZARDS: {len(reports) + hazards.dropped}"]
    lines += [hazard.render() for hazard in reports[:TOP_HAZARDS]]
    if len(reports) > TOP_HAZARDS:
        lines.append(f"... {len(reports) - TOP_HAZARDS} more")
    return "\n".join(lines)


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
        facts["counters"] = counter_facts(found.counters)
    if found.hazards is not None:
        facts["hazards"] = [hazard.render() for hazard in found.hazards.reports]
    return dump_json(facts).rstrip()


def counter_facts(counters: Counters) -> dict[str, object]:
    """All counters by both names, opcodes, and every place with bank conflicts."""
    return {
        "short": {name: value for name, (value, _) in short_counters(counters).items()},
        "nsight": counters.as_dict(),
        "opcodes": dict(counters.opcodes.most_common()),
        "bank_conflicts": [_place_facts(place) for place in conflicting_places(counters)],
    }


def _place_facts(place: Place) -> dict[str, object]:
    return {
        "opcode": place.opcode,
        "source": list(place.chain),
        "ptx_lines": list(place.ptx_lines),
        "conflicts": place.traffic.conflicts,
        "wavefronts": place.traffic.wavefronts,
        "ideal": place.traffic.phases,
    }
