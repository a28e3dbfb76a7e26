"""Pages of sweeps and of sustained runs: tables, libraries, failures, medians of turns; frames; parts of a sweep."""

from __future__ import annotations

import csv
import io
from pathlib import Path
import re

import pytest

from analysis import ladder_of_sweep
from flashladder.errors import FlashladderError
from flashladder.paths import RESULTS
from flashladder.problem import Problem
from flashladder.report import sweeps as report_sweeps
from flashladder.report.frames import pairs, summaries
from flashladder.results.derive import derive
from flashladder.results.files import load_as, write_result
from flashladder.results.schema import A_A, BenchResult, Group
from flashladder.sweep import plan
from flashladder.sweep.records import Records
from flashladder.sweep.screen import pack
from tests.null.bench_fixture import KEY, SHAPE, energy_of, look, sustained
from tests.null.report.test_variants import cells
from tests.null.sweep_fixture import SMALL, digests, failed, grid, timed


@pytest.fixture
def packed(tmp_path: Path) -> BenchResult:
    """A sweep of the grid `h200` in which one of six cells failed."""
    made = plan.make(grid(tmp_path, SMALL, "h200"), "h200", digests)
    records = Records(tmp_path / "out")
    for number, cell in enumerate(made.cells):
        records.write(failed(cell) if number == 1 else timed(cell, made, seed=number))
    document = pack(made, records)
    assert isinstance(document, BenchResult)
    return document


def pages(tmp_path: Path, document: BenchResult, name: str = "h200.json.gz") -> dict[str, bytes]:
    write_result(tmp_path / "results" / "h200" / name, document)
    return report_sweeps.render(tmp_path / "results")


def test_a_sweep_has_a_page_and_a_table_of_every_cell(tmp_path: Path, packed: BenchResult) -> None:
    found = pages(tmp_path, packed)
    assert set(found) == {"h200.md", "sweeps.csv"}
    text = found["h200.md"].decode()
    assert f"## fp16, percent of FA2's speed; A/A floor {packed.floors_pct['fp16']:.2f} points" in text
    by_cell = {(one.kernel[:2], one.shape.seq_len): one for one in packed.summaries}
    assert "its worker ended with signal SIGSEGV" in text
    (last,) = cells(text, "| 16 ")
    assert last[2:4] == [f"{by_cell['16', n].pct:.1f} +" for n in (512, 1024)]
    rows = list(csv.DictReader(io.StringIO(found["sweeps.csv"].decode())))
    assert [float(row["pct_of_fa2"]) for row in rows] == pytest.approx([one.pct for one in packed.summaries], abs=1e-4)
    assert {row["a_a_floor_points"] for row in rows} == {f"{packed.floors_pct['fp16']:.4f}"}


def test_other_documents_have_no_page(tmp_path: Path, packed: BenchResult) -> None:
    assert pages(tmp_path, packed, "other.json.gz") == {}  # not called as a grid
    assert pages(tmp_path, packed, "h100.json.gz") == {}  # another grid's name
    with pytest.raises(FlashladderError, match=r"tuned\.json\.gz: "):
        pages(tmp_path, packed.model_copy(update={"purpose": "tune"}))
    assert pages(tmp_path, packed.model_copy(update={"sweep": None})) == {}


def with_late(made: BenchResult, subject: str, dtype: str, seq_len: int) -> BenchResult:
    """A run in which one cell waited for the host in every block but the first."""

    def changed(group: Group) -> Group:
        if (group.series[0].kernel, group.dtype, group.shape.seq_len) != (subject, dtype, seq_len):
            return group
        late = (one.model_copy(update={"late": int(one.index != 0)}) for one in group.blocks)
        return group.model_copy(update={"blocks": tuple(late)})

    return made.model_copy(update={"groups": tuple(map(changed, made.groups))})


def test_a_librarys_cell_of_host_time_is_no_speed() -> None:
    """The cell is marked, counts in no mean, and is not the fastest."""
    result = load_as(RESULTS / "h200" / "hopper.json.gz", BenchResult)
    late = with_late(result, "fa4", "fp16", 4096)
    before, text = report_sweeps.page(result), report_sweeps.page(late)
    assert "the GPU waited for the host" not in before
    assert "`h`: the GPU waited for the host in most blocks" in text
    was, found = (cells(page, "| fa4 ")[0] for page in (before, text))
    assert found[:5] + found[6:8] == was[:5] + was[6:8]
    assert found[5] == was[5].replace("+", "h")
    assert found[8:] == ["–", "–"], "neither a mean nor TFLOP/s"
    assert [cells(page, "| fastest ")[0][5] for page in (before, text)] == ["fa4", "cudnn but for fa4"]
    marked = [(one["kernel"], one["dtype"], one["seq_len"]) for one in report_sweeps.rows(late) if one["host_time"]]
    assert marked == [("fa4", "fp16", 4096)]


def masked(group: Group) -> Group:
    return group.model_copy(update={"shape": Problem(**{**group.shape.model_dump(), "mask": "causal"})})


def test_a_masked_sweep_says_so_and_counts_half_of_the_flops(tmp_path: Path) -> None:
    """Made of a sweep without a mask, as if it had been as fast with one."""
    plain = load_as(RESULTS / "h200" / "persistent.json.gz", BenchResult)
    assert plain.sweep
    own = {"groups": tuple(map(masked, plain.groups)), "sweep": plain.sweep.model_copy(update={"grid": "causal"})}
    found = pages(tmp_path, derive(plain.model_copy(update=own)), "causal.json.gz")
    text = found["causal.md"].decode()
    assert text.startswith("# Grid causal\n\n## H200: causal, measured by a sweep")
    assert "half of all" in text
    whole, half = (float(cells(one, "| 26 ")[0][-1]) for one in (report_sweeps.page(plain), text))
    assert half == pytest.approx(whole / 2, abs=0.1)
    assert {row["mask"] for row in csv.DictReader(io.StringIO(found["sweeps.csv"].decode()))} == {"causal"}
    (table,) = report_sweeps.headlines(tmp_path / "results")
    (row,) = cells(table, "| lengths")
    assert re.fullmatch(r"1\.\d\d to 1\.\d\d over cuDNN and FA4", row[2])
    assert (row[1], "(results/report/causal.md)" in row[0]) == ("–", True)


FREE = look(sm_clock_mhz=1965, throttle_bits=0)


def test_a_page_holds_all_files_of_a_machine(tmp_path: Path) -> None:
    assert report_sweeps.render_energy(tmp_path) == {}
    short = Problem(**{**SHAPE.model_dump(), "seq_len": 512})
    runs = [sustained(shape=short, launches=60_000, samples=(FREE,)), sustained(), sustained(KEY, joules=600.0)]
    later = [sustained(turn=1, joules=960.0), sustained(turn=2, joules=990.0)]
    longer = energy_of(sustained(seconds=10.5)).model_copy(update={"seconds": 10.0})
    write_result(tmp_path / "h200" / "energy.json.gz", energy_of(*runs[1:], runs[0], *later))
    write_result(tmp_path / "h200" / "energy_10s.json.gz", longer)
    write_result(tmp_path / "h100" / "energy.json.gz", energy_of(sustained()))
    found = report_sweeps.render_energy(tmp_path)
    assert found.keys() == {"energy_h100.md", "energy_h200.md", "energy.csv"}
    page = found["energy_h200.md"].decode()
    assert [row for row in cells(page, "| ") if row[0].isdecimal()] == [
        ["512", "fa2", "–", "1374.4", "1965", "600", "0.437", "structure"],
        ["4096", "fa2", "–", "1466.0", "1500", "640", "0.437", "power"],
        ["4096", "16", "64,64,4 2_2_2", "1466.0", "1500", "400", "0.273", "power"],
        ["4096", "fa2", "–", "209.4", "1500", "86", "0.409", "power"],
    ]
    assert page.count("\n## ") == 2
    assert "At least 10 s a run, 1 turn: power limit 700 W, highest clock 1980 MHz, driver 580.0; FA2 of torch" in page
    rows = list(csv.DictReader(io.StringIO(found["energy.csv"].decode())))
    assert [row["machine"] for row in rows] == ["h100"] + 6 * ["h200"]
    assert (rows[-1]["file"], rows[-1]["seconds"], rows[-1]["watts"]) == ("energy_10s.json.gz", "10.5", "85.71")


def test_every_raw_pair_and_every_summary_is_a_row() -> None:
    bench = load_as(RESULTS / "h200" / "bench.json.gz", BenchResult)
    frame = pairs(bench)
    series = [one for part in bench.groups for one in part.series]
    assert len(frame) == sum(len(one.pairs) for one in series)
    assert (frame.kernel == "fa2").sum() == sum(len(one.pairs) for one in series if one.kernel == A_A) > 0
    first = bench.groups[0]
    own = frame[
        (frame.process == first.process) & (frame.dtype == first.dtype) & (frame.seq_len == first.shape.seq_len)
    ]
    assert own.ratio.tolist() == [pair.reference_us / pair.kernel_us for one in first.series for pair in one.pairs]
    blocks = {block.index: block for block in first.blocks}
    assert own.kernel_first.tolist() == [blocks[index].kernel_first for index in own.block]
    assert own.sm_clock_mhz.tolist() == [blocks[index].samples[0].sm_clock_mhz for index in own.block]
    assert set(frame[frame.kernel != "fa2"].iteration) == set(range(1, 17))
    assert summaries(bench).pct.tolist() == [one.pct for one in bench.summaries]


@pytest.mark.parametrize("path", sorted((RESULTS / "h200").glob("bench_*.json.gz")), ids=lambda path: path.name)
def test_committed_parts_are_what_the_script_writes(path: Path, tmp_path: Path) -> None:
    committed = load_as(path, BenchResult)
    sweep = path.with_name(path.name.removeprefix("bench_"))
    if not sweep.is_file() or load_as(sweep, BenchResult).processes != committed.processes:
        pytest.skip(f"{path.name} is a run of its own, no part of {sweep.name}")
    numbers = sorted({kernel.iteration for kernel in committed.kernels.values()})
    out = tmp_path / path.name
    ladder_of_sweep.main([str(sweep), *map(str, numbers), "--out", str(out)])
    assert out.read_bytes() == path.read_bytes()
