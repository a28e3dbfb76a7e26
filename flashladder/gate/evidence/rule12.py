"""Rule 12 of the measurement protocol: a cell beside the same cell of another run, and why it may be elsewhere.

Why: a figure that is off by more than its tolerance is worth little without a guess at the reason. What two runs are
known by (configuration, machine code, compiler, clock, FA2's own speed, driver, card) is compared, and what differs is
named, the likeliest cause first. Nothing to run here; `invoke gate` and `invoke verify --rerun` do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flashladder.gate.evidence.repeats import APART, cell_of
from flashladder.results.differences import Found
from flashladder.results.published import load_description, tolerance_points
from flashladder.results.schema import BenchResult, Mean, Summary
from flashladder.results.statistics import ranks

COMPILERS = ("nvidia-cuda-nvcc", "nvidia-nvvm")
CLOCK_SHARE = 0.03  # by which a clock moves with a card's temperature; beyond it is another clock
SPEED_SHARE = 0.05  # the same of FA2's TFLOP/s, where no clock was recorded
FARTHEST = 3  # iterations that a rank order names
NONE = "nothing that was recorded differs; look at the host, other processes on the GPU and the samples"

Key = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True)
class Known:
    """What a cell's run is known by; None where it was not recorded."""

    config: str | None = None
    code: str | None = None
    compiler: str | None = None
    clock_mhz: float | None = None
    fa2_tflops: float | None = None
    driver: str | None = None
    torch: str | None = None
    card: str | None = None


def probable_cause(expected: Known, found: Known) -> str:
    """What differs between two runs, the likeliest cause of another ratio first."""
    return "; ".join(_differences(expected, found)) or NONE


def _differences(expected: Known, found: Known) -> Iterator[str]:
    pairs = {name: (getattr(expected, name), getattr(found, name)) for name in Known.__dataclass_fields__}
    both = {name: pair for name, pair in pairs.items() if None not in pair}

    def other(name: str) -> bool:
        return name in both and both[name][0] != both[name][1]

    def told(what: str, name: str, unit: str = "") -> str:
        a, b = (f"{one:.0f}" if isinstance(one, float) else str(one) for one in both[name])
        return f"{what}: {b}{unit} instead of {a}{unit}"

    if other("config"):
        yield told("another configuration", "config")
    if other("compiler"):
        yield told("another toolchain", "compiler")
    elif other("code") and not other("config"):
        yield "other machine code from the same compiler"
    if "clock_mhz" in both and abs(both["clock_mhz"][1] / both["clock_mhz"][0] - 1) > CLOCK_SHARE:
        yield told("another clock", "clock_mhz", " MHz")
    elif "fa2_tflops" in both and abs(both["fa2_tflops"][1] / both["fa2_tflops"][0] - 1) > SPEED_SHARE:
        yield told("another clock or another FA2, which itself runs at", "fa2_tflops", " TFLOP/s")
    for what, name in (("another driver", "driver"), ("another torch", "torch"), ("another card", "card")):
        if other(name):
            yield told(what, name)


def known_of(result: BenchResult, one: Summary | Mean) -> Known:
    """What a measured cell is known by."""
    kernel = result.kernels.get(one.kernel)
    versions = [f"{name} {kernel.toolchain[name]}" for name in COMPILERS if kernel and name in kernel.toolchain]
    single = one if isinstance(one, Summary) else None
    return Known(
        config=kernel.config if kernel else None,
        code=kernel.text_sha256 if kernel else None,
        compiler=", ".join(versions) or None,
        clock_mhz=single.sm_clock_mhz if single else None,
        fa2_tflops=single.reference_tflops if single else None,
        driver=result.gpu.driver,
        torch=result.reference.torch,
        card=result.gpu.uuid,
    )


def failing(where: str, cell: tuple[float, float], found: float, known: tuple[Known, Known]) -> str | None:
    """One line about a cell that is out of its tolerance; None where it is within.

    Args:
        where: the cell.
        cell: percent of FA2 that is expected, and the tolerance in points.
        found: percent of FA2.
        known: what the expected and the found one are known by.
    """
    expected, points = cell
    if abs(found - expected) <= points:
        return None
    cause = probable_cause(*known)
    return f"{where}: expected {expected:.1f} % of FA2 within {points:g} points, found {found:.1f} %; probably {cause}"


def same_model(expected: BenchResult, found: BenchResult, names: tuple[str, str], apart: Collection[str] = ()) -> Found:
    """Every cell and harmonic mean that two runs on one GPU model share, by iteration, dtype and length.

    Args:
        expected: whose figures count.
        found: the other run.
        names: of the two files.
        apart: cells of the other run that its manifest lists with a reason: they may lie `repeats.APART` times as far.
    """
    tolerance = load_description().tolerance
    problems, n = [], 0
    wanted = _cells(expected)
    for key, one in _cells(found).items():
        if key in wanted:
            n += 1
            statistic = f"seq{one.shape.seq_len}" if isinstance(one, Summary) else "hmean"
            points = tolerance_points(tolerance, statistic)
            if isinstance(one, Summary) and cell_of(one) in apart:
                points *= APART
            where = f"{names[1]}: {one.kernel} {one.dtype} {statistic}, beside {names[0]}"
            known = known_of(expected, wanted[key]), known_of(found, one)
            line = failing(where, (wanted[key].pct, points), one.pct, known)
            problems += [line] if line else []
    return Found(problems, n)


def _cells(result: BenchResult) -> dict[Key, Summary | Mean]:
    """Cells of the ladder's kernels with pairs enough, and their means, by a name that other files share."""
    own = {name for name, kernel in result.kernels.items() if not kernel.variant}
    cells: dict[Key, Summary | Mean] = {
        (one.kernel, one.dtype, (one.shape.batch, one.shape.seq_len, one.shape.n_heads, one.shape.d_head)): one
        for one in result.summaries
        if one.kernel in own and one.n_pairs >= result.settings.min_pairs
    }
    return cells | {(one.kernel, one.dtype, one.seq_lens): one for one in result.means if one.kernel in own}


def farthest(measured: Mapping[int, float], published: Sequence[float]) -> str:
    """The iterations whose rank is farthest from the published one, in words."""
    order = sorted(measured)
    mine, theirs = ranks([measured[number] for number in order]), ranks(published)
    by_distance = sorted(zip(order, mine, theirs, strict=True), key=lambda row: -abs(row[1] - row[2]))
    named = [f"iteration {number}: {a:g} instead of {b:g}" for number, a, b in by_distance[:FARTHEST] if a != b]
    return "farthest in rank " + ", ".join(named) if named else "all ranks alike"
