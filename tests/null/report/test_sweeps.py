"""Pages of sweeps and of sustained runs: tables, libraries, failures, medians of turns."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
import subprocess
import sys

import pytest

from flashladder.errors import FlashladderError
from flashladder.paths import RESULTS, ROOT
from flashladder.report import sweeps as report_sweeps
from flashladder.report.frames import pairs, summaries
from flashladder.report.sweeps import render_energy as render
from flashladder.results.files import load_as, write_result
from flashladder.results.schema import A_A, BenchResult, Group
from flashladder.sweep import plan
from flashladder.sweep.records import Records
from flashladder.sweep.screen import pack
from tests.null.bench_fixture import KEY, SHAPE, energy_of, look, sustained
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
    assert set(found) == {"sweep_h200.md", "sweep_h200.csv"}
    text = found["sweep_h200.md"].decode()
    assert f"## fp16, percent of FA2's speed; A/A floor {packed.floors_pct['fp16']:.2f} points" in text
    by_cell = {(one.kernel[:2], one.shape.seq_len): one for one in packed.summaries}
    assert "its worker ended with signal SIGSEGV" in text
    (last,) = (line for line in text.splitlines() if line.startswith("| 16 "))
    cells = [cell.strip() for cell in last.strip("|").split("|")]
    assert cells[2:4] == [f"{by_cell['16', n].pct:.1f} +" for n in (512, 1024)]
    rows = list(csv.DictReader(io.StringIO(found["sweep_h200.csv"].decode())))
    assert [float(row["pct_of_fa2"]) for row in rows] == pytest.approx([one.pct for one in packed.summaries], abs=1e-4)
    assert {row["a_a_floor_points"] for row in rows} == {f"{packed.floors_pct['fp16']:.4f}"}


def test_other_documents_have_no_page(tmp_path: Path, packed: BenchResult) -> None:
    assert pages(tmp_path, packed, "other.json.gz") == {}  # not called as a grid
    assert pages(tmp_path, packed, "h100.json.gz") == {}  # another grid's name
    with pytest.raises(FlashladderError, match=r"tuned\.json\.gz: "):
        pages(tmp_path, packed.model_copy(update={"purpose": "tune"}))
    assert pages(tmp_path, packed.model_copy(update={"sweep": None})) == {}


def test_a_librarys_cell_of_host_time_is_no_speed() -> None:
    """In most blocks the GPU waited for the host: told in the cell, in no mean, and not the fastest."""
    result = load_as(RESULTS / "h200" / "hopper.json.gz", BenchResult)

    def late(group: Group) -> Group:
        own = group.series[0].kernel == "fa4" and (group.dtype, group.shape.seq_len) == ("fp16", 4096)
        blocks = tuple(one.model_copy(update={"late": int(own and one.index != 0)}) for one in group.blocks)
        return group.model_copy(update={"blocks": blocks})

    before, text = (
        report_sweeps.page(result),
        report_sweeps.page(result.model_copy(update={"groups": tuple(map(late, result.groups))})),
    )
    assert "the GPU waited for the host" not in before
    assert "`h`: the GPU waited for the host in most blocks" in text

    def row(page: str, name: str, place: int) -> list[str]:
        lines = [line for line in page.splitlines() if line.startswith(f"| {name} ")]
        return [cell.strip() for cell in lines[place].strip("|").split("|")]

    was, found = row(before, "fa4", 0), row(text, "fa4", 0)
    assert found[:5] + found[6:8] == was[:5] + was[6:8]
    assert found[5] == was[5].replace("+", "h")
    assert found[8:] == ["–", "–"], "neither a mean nor TFLOP/s"
    assert (row(before, "fastest", 0)[5], row(text, "fastest", 0)[5]) == ("fa4", "cudnn but for fa4")
    whole = result.model_copy(update={"groups": tuple(map(late, result.groups))})
    told = [(one["kernel"], one["dtype"], one["seq_len"]) for one in report_sweeps.rows(whole) if one["host_time"]]
    assert told == [("fa4", "fp16", 4096)]


FREE = look(sm_clock_mhz=1965, throttle_bits=0)


def cells(text: str) -> list[list[str]]:
    """The cells of all tables, blanks and headers left out."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_page_holds_all_files_of_a_machine(tmp_path: Path) -> None:
    assert render(tmp_path) == {}
    short = SHAPE.model_copy(update={"seq_len": 512})
    runs = [sustained(shape=short, launches=60_000, samples=(FREE,)), sustained(), sustained(KEY, joules=600.0)]
    later = [sustained(turn=1, joules=960.0), sustained(turn=2, joules=990.0)]
    write_result(tmp_path / "h200" / "energy.json.gz", energy_of(*runs[1:], runs[0], *later))
    write_result(
        tmp_path / "h200" / "energy_10s.json.gz",
        energy_of(sustained(seconds=10.5)).model_copy(update={"seconds": 10.0}),
    )
    write_result(tmp_path / "h100" / "energy.json.gz", energy_of(sustained()))
    found = render(tmp_path)
    assert found.keys() == {f"energy_{name}.{suffix}" for name in ("h100", "h200") for suffix in ("csv", "md")}
    page = found["energy_h200.md"].decode()
    assert cells(page) == [
        ["512", "fa2", "–", "1374.4", "1965", "600", "0.437", "structure"],
        ["4096", "fa2", "–", "1466.0", "1500", "640", "0.437", "power"],
        ["4096", "16", "64,64,4 2_2_2", "1466.0", "1500", "400", "0.273", "power"],
        ["4096", "fa2", "–", "209.4", "1500", "86", "0.409", "power"],
    ]
    assert page.count("\n## ") == 2
    assert "At least 10 s a run, 1 turn: power limit 700 W, highest clock 1980 MHz, driver 580.0; FA2 of torch" in page
    rows = list(csv.DictReader(io.StringIO(found["energy_h200.csv"].decode())))
    assert len(rows) == 6
    assert (rows[-1]["file"], rows[-1]["seconds"], rows[-1]["watts"]) == ("energy_10s.json.gz", "10.5", "85.71")


BENCH = ROOT / "results" / "h200" / "bench.json.gz"


def test_every_raw_pair_and_every_summary_is_a_row() -> None:
    bench = load_as(BENCH, BenchResult)
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


H200 = RESULTS / "h200"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The script with these arguments."""
    command = [sys.executable, str(ROOT / "analysis" / "ladder_of_sweep.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=ENVIRONMENT)


@pytest.mark.parametrize("path", sorted(H200.glob("bench_*.json.gz")), ids=lambda path: path.name)
def test_committed_parts_are_what_the_script_writes(path: Path, tmp_path: Path) -> None:
    committed = load_as(path, BenchResult)
    sweep = H200 / path.name.removeprefix("bench_")
    whole = load_as(sweep, BenchResult) if sweep.is_file() else None
    if whole is None or whole.processes != committed.processes:
        pytest.skip(f"{path.name} is a run of its own, no part of {sweep.name}")
    numbers = sorted({kernel.iteration for kernel in committed.kernels.values()})
    out = tmp_path / path.name
    done = run(str(sweep), *map(str, numbers), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == path.read_bytes()
