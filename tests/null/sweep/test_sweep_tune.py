"""A tuning run on a GPU that is a number: it finds the winner, leaves out who fails, resumes, and judges by finals."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import functools
import json
from pathlib import Path
import sys

import pytest

from flashladder.bench.timing import bench_group
from flashladder.errors import CheckFailed
from flashladder.gate import verify_sweep
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.families.ampere.space import EXCLUSIONS, legal_configs
from flashladder.ladder.grid import Grid, load_grid
from flashladder.ladder.iteration import load_iteration
from flashladder.results.derive import problems
from flashladder.results.files import load_as
from flashladder.results.schema import A_A, BenchResult
from flashladder.sweep import command, plan
from flashladder.sweep.cells import Wanted
from flashladder.sweep.halving import RUNGS, most_pairs
from flashladder.sweep.lanes.lane import Device, Lane
from flashladder.sweep.lanes.run import Outcome, run
from flashladder.sweep.measure import gpu as measure_gpu
from flashladder.sweep.measure import rung as measure_rung
from flashladder.sweep.place import Place
from flashladder.sweep.records import Records
from flashladder.sweep.tune import command as tune
from flashladder.sweep.tune.space import left_out
from flashladder.sweep.tune.winner import BOTH, judged
from tests.null.sweep_fixture import grid
from tests.null.tune_worker import BEST, InProcess, speed

GRID = """\
why: The space of one step at a length that a CPU can check, for tests.
gpu: any
mode: tune
iterations: [7]
configs: tune
dtypes: [fp16, bf16]
seq_lens:
  - {seq_len: 128, batch: 1}
n_heads: 1
"""


def digests(cells: Sequence[Wanted]) -> list[str]:
    return [f"code of {cell.subject} {cell.config}" for cell in cells]


def options(out: Path, **changed: object) -> argparse.Namespace:
    usual = {"out": out, "no_build": True, "shard": None, "retry": False, "timeout": None, "json": False}
    return argparse.Namespace(**(usual | changed))


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which `measure` works; the GPU is simulated from here on."""

    def planned(of: Grid, place: Place, *, build: bool, **_: object) -> plan.Plan:
        assert not build
        return plan.make(of, place.machine, digests)

    monkeypatch.setattr(tune, "make_plan", planned)
    monkeypatch.setattr(tune, "python_of", lambda *_: sys.executable)
    monkeypatch.setattr("flashladder.sweep.lanes.run.Lane", InProcess)
    monkeypatch.setattr(measure_rung, "bench_group", bench_group)  # these as they were, afterwards
    for name in ("FIRST_WARM_UP_S", "WARM_UP_S"):
        monkeypatch.setattr(measure_gpu, name, getattr(measure_gpu, name))
    return tmp_path / "tune"


def measure(folder: Path, text: str = GRID, lanes: int = 1, **changed: object) -> int:
    place = Place(tuple(Device(f"gpu{number}", "gpu") for number in range(lanes)), "h200", "sm_90")
    folder.parent.mkdir(exist_ok=True)
    return command.measure(grid(folder.parent, text, "tune"), place, options(folder, **changed))


TILE = GRID.replace("configs: tune", 'configs: "64,64"')
N = 11  # candidates of that tile


def documents(folder: Path) -> tuple[BenchResult, BenchResult]:
    rungs, finals = folder.with_name("tune.json.gz"), folder.with_name("tuned.json.gz")
    return load_as(rungs, BenchResult), load_as(finals, BenchResult)


def pairs_in(document: BenchResult, dtype: str) -> int:
    every = (series for group in document.groups if group.dtype == dtype for series in group.series)
    return sum(len(series.pairs) for series in every if series.kernel != A_A)


def test_the_whole_space_gives_the_winner_within_its_budget(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure(tuned, GRID.replace("[fp16, bf16]", "[bf16]")) == 0
    rungs, finals = documents(tuned)
    assert problems(rungs) == problems(finals) == []
    assert rungs.purpose == finals.purpose == "tune"
    assert len(rungs.summaries) == 47
    assert pairs_in(rungs, "bf16") <= most_pairs(47)
    assert pairs_in(rungs, "bf16") < 0.5 * 47 * sum(RUNGS)
    (found,) = judged(rungs, finals)
    assert speed(found.config.with_dtype("bf16").short_form()) > 1.005
    assert found.config.brief() == BEST
    assert found.verdict == "faster"
    assert {process.started_utc for process in rungs.processes}.isdisjoint(
        process.started_utc for process in finals.processes
    )
    seeds = [{seed for group in one.groups for seed in group.input_seeds} for one in (rungs, finals)]
    assert seeds[0].isdisjoint(seeds[1])
    assert "finals: percent of FA2" in capsys.readouterr().out


def test_a_finished_run_measures_nothing_again(tuned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure(tuned, TILE) == 0
    before = [path.read_bytes() for path in sorted(tuned.parent.glob("*.json.gz"))]

    def none(work: Sequence[object], *_: object, **__: object) -> Outcome:
        assert len(work) == 0
        return Outcome()

    monkeypatch.setattr(tune, "run", none)
    assert measure(tuned, TILE) == 0
    assert [path.read_bytes() for path in sorted(tuned.parent.glob("*.json.gz"))] == before


def test_a_run_that_was_cut_goes_on_with_the_rung_that_is_missing(tuned: Path) -> None:
    assert measure(tuned, TILE) == 0
    kept = sorted(tuned.glob("*.json.gz"), key=lambda path: path.stat().st_mtime_ns)
    times = {path: path.stat().st_mtime_ns for path in kept[:-3]}
    for path in kept[-3:]:
        path.unlink()
    tuned.with_name("tune.json.gz").unlink()
    assert measure(tuned, TILE) == 0
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert problems(documents(tuned)[0]) == []


def failed(rungs: BenchResult) -> dict[str, tuple[str, str]]:
    """Per failed candidate what kind of failure it was, and what was said."""
    assert rungs.sweep is not None
    cells = {cell.address: cell for cell in rungs.sweep.planned}
    return {
        f"{(cell := cells[one.address]).dtype} {KernelConfig.parse(cell.config).brief()}": (one.kind, one.message)
        for one in rungs.sweep.failures
    }


def sound(*results: BenchResult) -> bool:
    return all(problems(one) == verify_sweep.problems(one) == [] for one in results)


def test_wrong_candidates_are_left_out_alone(tuned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guilty = ["wrong:7 fp16 64,64,4 2_2_2+opt", "illegal:7 bf16 64,64,4 2_2_0+opt", "moody:7 bf16 64,64,4 0_0_0+opt"]
    monkeypatch.setenv("FAULTS", ";".join(guilty))
    with pytest.raises(CheckFailed, match="3 candidates failed and were left out, the first: 7"):
        measure(tuned, TILE)
    rungs, finals = documents(tuned)
    found = failed(rungs)
    assert {name: kind for name, (kind, _) in found.items()} == {
        "fp16 64,64,4 2_2_2+opt": "wrong",
        "bf16 64,64,4 2_2_0+opt": "illegal-address",
        "bf16 64,64,4 0_0_0+opt": "wrong",
    }
    assert found["fp16 64,64,4 2_2_2+opt"][1].startswith("wrong before timing: max error")
    assert "other bits after timing" in found["bf16 64,64,4 0_0_0+opt"][1]
    assert sound(rungs, finals)
    assert len(rungs.summaries) == len(rungs.kernels) == 2 * N - 3
    assert next(one for one in judged(rungs, finals) if one.dtype == BOTH).config.brief() == BEST


def test_a_candidate_that_kills_its_process_is_left_out_alone(tuned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashladder.sweep.lanes.run.Lane", Lane)
    monkeypatch.setattr(tune, "run", functools.partial(run, module="tests.null.tune_worker"))
    monkeypatch.setenv("FAULTS", "crash:7 fp16 64,64,4 2_2_2+opt")
    with pytest.raises(CheckFailed, match="1 candidates failed and were left out"):
        measure(tuned, TILE.replace("[fp16, bf16]", "[fp16]"))
    rungs, finals = documents(tuned)
    ((kind, message),) = failed(rungs).values()
    assert (kind, "SIGSEGV" in message) == ("crash", True)
    assert sound(rungs, finals)
    started = [{process.started_utc for process in one.processes} for one in (rungs, finals)]
    assert started[0].isdisjoint(started[1])


def test_two_gpus_share_the_ladders(tuned: Path) -> None:
    assert measure(tuned, TILE, lanes=2) == 0
    rungs, _ = documents(tuned)
    assert problems(rungs) == verify_sweep.problems(rungs) == []
    assert len(rungs.processes) == 2


def test_shards_climb_their_ladders_and_a_call_without_packs(tuned: Path) -> None:
    for index in (0, 1):
        assert measure(tuned, TILE, shard=(index, 2)) == 0
        assert not tuned.with_name("tune.json.gz").exists()
    assert measure(tuned, TILE) == 0
    assert len(documents(tuned)[0].summaries) == 2 * N


def test_the_dry_run_counts_what_each_rule_leaves_out(tuned: Path) -> None:
    made = plan.make(grid(tuned.parent, GRID, "tune"), "h200", digests)
    text = tune.dry_run(made, Records(tuned), 1)
    counts = left_out(load_iteration(7))
    legal = legal_configs(load_iteration(7).parts)
    assert sum(counts.values()) == len(legal)
    assert counts[""] == len(load_iteration(7).family.tuning_space(load_iteration(7).parts)) == 47
    row = next(line for line in text.splitlines() if line.split()[:1] == ["7"])
    assert row.split() == ["7", "99", "47", *(str(counts[rule.name]) for rule in EXCLUSIONS)]
    assert all(rule.why in " ".join(text.split()) for rule in EXCLUSIONS)
    assert max(map(len, text.replace(str(tuned), "").splitlines())) <= 80
    assert f"at most {2 * most_pairs(47)}" in text
    whole = tune.dry_run(plan.make(load_grid("tune"), "h200", digests), Records(tuned), 1)
    assert len(whole.partition("\n\n")[0].splitlines()) > 1
    assert max(map(len, whole.replace(str(tuned), "").splitlines())) <= 80
    told = json.loads(tune.dry_run(made, Records(tuned), 1, ["a note"], as_json=True))
    assert (told["candidates"], told["ladders"], told["climbed"], told["to_build"]) == (2 * 47, 2, 0, 0)
    assert (told["event"], told["notes"]) == ("dry-run", ["a note"])
