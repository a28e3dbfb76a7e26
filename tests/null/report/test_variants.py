"""The worth of a change or a compiler: made-up speeds give the expected worths and verdicts. Pages of tuning runs."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest

from analysis import sweep_tables
from flashladder.ladder.ablation import load_description, parse_subject
from flashladder.problem import Problem
from flashladder.report import sweeps
from flashladder.report.variants import BOTH, TITLES, Comparison, compared, document
from flashladder.results.derive import derive
from flashladder.results.files import write_result
from flashladder.results.schema import A_A, BenchResult, Failure, Kernel, PlannedCell, Series, Sweep
from flashladder.results.statistics import LogSummary
from flashladder.sweep.winner import rows_of
from tests.null.bench_fixture import GOOD, SHAPE, group, pairs, result
from tests.null.sweep.test_winner import FAST, PRESENT, both, made, with_a_failure
from tests.typed import error_line

LONG = Problem(batch=4, seq_len=16384, n_heads=16, d_head=128)
ABLATIONS = {
    ("16", ""): (1.00, 40),
    ("16 - swizzle", ""): (0.50, 124),  # the change is worth 100 %
    ("16 - store_policy", ""): (1.00, 40),  # nothing
    ("16 - backward", ""): (1.10, 0),  # it costs a tenth of what it would be without
    ("1", ""): (0.20, 0),
    ("1 + swizzle", ""): (0.50, 0),  # worth 150 %
}
TOOLCHAINS = {("16", ""): (1.00, 40), ("16", "13.1"): (1.05, 8), ("16", "13.2"): (1.00, 40)}
CRASHED = Failure(address="f" * 16, kind="crash", message="the worker died")


def config_of(subject: str) -> str:
    """The short form of a subject's configuration for an A100, in fp16."""
    return str(load_description(subject).configs["a100"])


def kernel(subject: str, cuda: str, spills: int, text: str) -> Kernel:
    named = parse_subject(subject, cuda)
    return Kernel(
        iteration=named.number, variant=named.variant, config=config_of(subject), dtype="fp16", arch="sm_90",
        text_sha256=text, registers=255, spill_stores=spills, spill_loads=spills + 4,
        toolchain={"nvidia-cuda-nvcc": f"{cuda or '13.0'}.88"},
    )  # fmt: skip


def sweep(
    cells: dict[tuple[str, str], tuple[float, int]],
    *,
    shapes: tuple[Problem, ...] = (SHAPE, LONG),
    crashed: tuple[str, str] | None = None,
) -> BenchResult:
    """Each subject and toolchain, timed at its speed relative to FA2; `crashed` was planned and failed."""
    kernels, plan, groups = dict[str, Kernel](), list[PlannedCell](), []

    def planned(subject: str, cuda: str, shape: Problem, address: str) -> PlannedCell:
        config = config_of(subject)
        return PlannedCell(
            subject=subject, config=config, dtype="fp16", shape=shape, toolchain=cuda, code="c", address=address
        )

    for n, shape in enumerate(shapes):
        floor = Series(kernel=A_A, pairs=pairs(1.0, 90 + n, shape))
        groups.append(group(shape=shape).model_copy(update={"series": (floor,)}))
        for i, (name, (speed, spills)) in enumerate(cells.items()):
            one = kernel(*name, spills, f"{i:02x}" * 32)
            kernels[one.key] = one
            plan.append(planned(*name, shape, f"{100 * n + i:016x}"))
            series = Series(kernel=one.key, pairs=pairs(speed, 7 * i + n, shape), before=GOOD, after=GOOD)
            groups.append(group(shape=shape).model_copy(update={"series": (series,)}))
    if crashed:
        plan.append(planned(*crashed, SHAPE, CRASHED.address))
    named = Sweep(grid="g", grid_sha256="0" * 64, planned=tuple(plan), failures=(CRASHED,) if crashed else ())
    return derive(result(*groups).model_copy(update={"kernels": kernels, "sweep": named}))


def by_name(found: list[Comparison]) -> dict[tuple[str, int], Comparison]:
    return {(one.variant.subject.text, one.shape.seq_len): one for one in found}


def worth_of(one: Comparison) -> LogSummary:
    assert one.worth is not None
    return one.worth


def test_taken_back_and_added_changes_are_worth_their_ratio_at_every_length() -> None:
    found = by_name(compared("ablation", sweep(ABLATIONS)))
    assert len(found) == 8
    for length in (SHAPE.seq_len, LONG.seq_len):
        for name, ratio, told in (
            ("16 - swizzle", 2.0, "faster"),
            ("16 - backward", 1 / 1.1, "slower"),
            ("1 + swizzle", 2.5, "faster"),
        ):
            one = found[name, length]
            worth = worth_of(one)
            assert math.exp(worth.median) == pytest.approx(ratio, rel=2e-3)
            assert worth.low < math.log(ratio) < worth.high
            assert worth.high - worth.low - 2 * BOTH * one.floor < 4e-3, "the noise of two ratios is in it"
            assert one.verdict == told
        nothing = found["16 - store_policy", length]
        assert nothing.verdict in {"same", "ambiguous"}
        assert abs(worth_of(nothing).median) < 2e-3
    assert found["16 - swizzle", LONG.seq_len].base.config == config_of("16")
    assert found["16 - swizzle", LONG.seq_len].variant.config == config_of("16 - swizzle") != config_of("16")


def test_a_difference_beyond_one_floor_and_within_that_of_two_ratios_is_none() -> None:
    made = sweep({("16", ""): (1.0, 0), ("16 - store_policy", ""): (0.994, 0)}, shapes=(SHAPE,))
    for floor, told in ((0.1, "faster"), (0.52, "same")):
        (one,) = compared("ablation", made.model_copy(update={"floors_pct": {"fp16": floor}}))
        assert (one.verdict, worth_of(one).low > 0) == (told, told == "faster"), "what is printed fits the verdict"


def test_a_failure_stands_where_the_number_would() -> None:
    result = sweep(ABLATIONS, shapes=(SHAPE,), crashed=("16 - tuned", ""))
    found = by_name(compared("ablation", result))
    one = found["16 - tuned", SHAPE.seq_len]
    assert (one.worth, one.verdict, one.lacking) == (None, None, "crash: the worker died")
    text = document("ablation", result, list(found.values()))
    (row,) = cells(text, "| tuned")
    assert row[3:] == ["–", "–", "crash: the worker died"]  # no registers are invented
    assert "1 of 5 comparisons lack a measurement" in text


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"sweep": None}, "not the packed result of a sweep; `invoke sweep --grid NAME` ends with one"),
        ({"floors_pct": {}}, "no A/A floor"),
    ],
)
def test_what_cannot_be_compared(edit: dict[str, object], message: str) -> None:
    assert message in error_line(compared, "ablation", sweep(ABLATIONS, shapes=(SHAPE,)).model_copy(update=edit))
    assert "the sweep has no other toolchain" in error_line(compared, "toolchain", sweep(ABLATIONS, shapes=(SHAPE,)))
    assert "the sweep has no ablation" in error_line(compared, "ablation", sweep(TOOLCHAINS, shapes=(SHAPE,)))


@pytest.mark.parametrize(("name", "timed"), [("ablation", ABLATIONS), ("toolchain", TOOLCHAINS)])
def test_the_script_writes_table_and_plot_the_same_each_time(
    name: str, timed: dict[tuple[str, str], tuple[float, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    file = write_result(tmp_path / f"{name}.json.gz", sweep(timed))
    written = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        sweep_tables.main([name, str(file), "--out", str(folder)])
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert written[0] == written[1]
    assert sorted(written[0]) == sorted(f"{name}.{suffix}" for suffix in ("md", "csv", "svg", "png"))
    assert written[0][f"{name}.png"].startswith(b"\x89PNG")
    assert f"{TITLES[name]}; data ".encode() in written[0][f"{name}.svg"]
    assert len(capsys.readouterr().out.splitlines()) == 8
    assert error_line(sweep_tables.main, [name, str(tmp_path / "none.json.gz")])


def cells(text: str, start: str) -> list[list[str]]:
    """The cells of the table rows that begin with `start`."""
    rows = (line for line in text.splitlines() if line.startswith(start))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_a_committed_run_has_a_page_a_table_and_a_plot(tmp_path: Path) -> None:
    results = tmp_path / "results"
    run = write_result(results / "h200" / "tune.json.gz", with_a_failure())
    write_result(results / "h200" / "tuned.json.gz", made({PRESENT: both(1.05), FAST: both(1.08)}, 24, seed=1))
    found = sweeps.render(results)
    assert set(found) == {f"tune_h200.{suffix}" for suffix in ("md", "csv", "svg", "png")}
    text = found["tune_h200.md"].decode()
    assert "7 candidates, 1 of them failed, S = 4096" in text
    (joint,) = cells(text, "| 16 | both")
    assert (joint[2], joint[3], joint[5]) == (FAST.brief(), "faster", PRESENT.brief())
    for interval, expected in ((joint[4], 108), (joint[6], 105)):
        median, low, high = (float(part.strip("[],")) for part in interval.split())
        assert low < median < high
        assert median == pytest.approx(expected, abs=0.3)
    listed = list(csv.DictReader(io.StringIO(found["tune_h200.csv"].decode())))
    assert len(listed) == len(rows_of(with_a_failure())) == 7
    sweep_tables.main(["tune", str(run), "--out", str(tmp_path / "out")])
    written = {path.name.replace("tune.", "tune_h200."): path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert written == found
