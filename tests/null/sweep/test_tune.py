"""Tuning: halving finds the winner within its budget; who fails is left out; runs resume; the finals judge."""

from __future__ import annotations

from collections.abc import Mapping
import functools
import json
from pathlib import Path
import sys

import pytest

from flashladder.errors import CheckFailed
from flashladder.gate import verify
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.families.ampere import EXCLUSIONS
from flashladder.ladder.grid import load_grid
from flashladder.ladder.iteration import load_iteration
from flashladder.problem import Problem
from flashladder.results.derive import problems
from flashladder.results.files import load_as
from flashladder.results.schema import A_A, BenchResult, Failure, FailureKind, PlannedCell
from flashladder.sweep import command, place, plan, tune
from flashladder.sweep.measure import MARK
from flashladder.sweep.place import Place
from flashladder.sweep.plan import RUNGS, Settings, cell_of, with_code
from flashladder.sweep.records import CellRecord, Records
from flashladder.sweep.screen import dry_run
from flashladder.sweep.tune import Ladder, key_of, left_out, pairs_for
from flashladder.sweep.winner import BOTH, judged
from flashladder.sweep.workers import Device, Worker, run
from tests.null.simulated_gpu import BEST, InProcess, speed, tuning_gpu
from tests.null.sweep_fixture import SHORT, SMALL, digests, grid, planned

LADDER_SETTINGS = Settings("h200", "tune", 2, 2, 20)
FORMS = [f"(FP16, 128, {rows}, 64, 4): async+eager+swizzled+load_{load}_tiles{opt}"
         for rows in (64, 128) for load in ("2_2_2", "2_2_0") for opt in ("", "+buffer", "+opt_softmax")]  # fmt: skip
SHAPE = Problem(batch=1, seq_len=128, n_heads=16, d_head=128)
CELLS = [with_code(cell_of("16", form, "fp16", SHAPE), "c", LADDER_SETTINGS) for form in FORMS]


@pytest.fixture
def ladder() -> Ladder:
    return Ladder(list(CELLS), LADDER_SETTINGS)


def fail(ladder: Ladder, part: tuple[PlannedCell, ...], kind: FailureKind, message: str, tail: str = "") -> None:
    cell = ladder.cell(part)
    failure = Failure(address=cell.address, kind=kind, message=message, tail=tail)
    ladder.follow(CellRecord(cell=cell, failure=failure, lane="gpu0", attempts=1, seconds=1.0))


def test_without_a_name_the_rung_is_halved_until_the_guilty_one_is_alone(ladder: Ladder) -> None:
    guilty, n_failures = CELLS[7], 0
    while bad := [part for part in ladder.parts if guilty in part]:
        fail(ladder, bad[0], "crash", "its worker ended with signal SIGSEGV")
        n_failures += 1
    assert n_failures <= 5
    assert [failure.address for failure in ladder.failures] == [guilty.address]
    left = [cell for part in ladder.parts for cell in part]
    assert sorted(map(key_of, left)) == sorted(key_of(cell) for cell in CELLS if cell != guilty)


def test_the_candidate_that_was_checked_when_the_process_died_is_removed(ladder: Ladder) -> None:
    guilty = CELLS[4]
    tail = f"{MARK}\n{MARK}{key_of(CELLS[3])}\n{MARK}{key_of(guilty)}\nsomething else\n"
    fail(ladder, ladder.parts[0], "timeout", "no answer within 60 s: its worker was killed", tail)
    assert [failure.address for failure in ladder.failures] == [guilty.address]
    assert [len(part) for part in ladder.parts] == [len(CELLS) - 1]


@pytest.mark.parametrize("kind", ["refused", "gpu-lost"])
def test_a_failure_that_blames_no_candidate_holds_the_ladder(ladder: Ladder, kind: FailureKind) -> None:
    fail(ladder, ladder.parts[0], kind, "2 other processes still used this GPU")
    assert ladder.held == f"{kind}: 2 other processes still used this GPU"
    assert not ladder.failures
    assert len(ladder.parts) == 1


SPACE = SHORT | {"mode": "tune", "configs": "tune", "dtypes": ["fp16", "bf16"]}
TILE = SPACE | {"configs": "64,64"}
N = 11  # candidates of that tile


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The records' folder of a tuning run on a simulated GPU."""
    for module in (place, tune):
        monkeypatch.setattr(module, "code_of", lambda cell, _: (sys.executable, digests([cell])[0]))
    monkeypatch.setattr("flashladder.sweep.workers.Worker", InProcess)
    tuning_gpu().plug_in(monkeypatch.setattr)
    return tmp_path / "tune"


def measure(folder: Path, changed: Mapping[str, object], *words: str) -> int:
    where = Place((Device("gpu0", "gpu"),), "h200", "sm_90")
    options = command.parse_arguments(["--grid", "tune", "--out", str(folder), "--no-build", *words])
    return command.measure(grid(folder.parent, {**SMALL, **changed}, "tune"), where, options)


def documents(folder: Path) -> tuple[BenchResult, BenchResult]:
    rungs, finals = folder.with_name("tune.json.gz"), folder.with_name("tuned.json.gz")
    return load_as(rungs, BenchResult), load_as(finals, BenchResult)


def pairs_in(document: BenchResult, dtype: str) -> int:
    every = (series for group in document.groups if group.dtype == dtype for series in group.series)
    return sum(len(series.pairs) for series in every if series.kernel != A_A)


def test_the_whole_space_gives_the_winner_within_its_budget(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure(tuned, SPACE | {"dtypes": ["bf16"]}) == 0
    rungs, finals = documents(tuned)
    assert problems(rungs) == problems(finals) == []
    assert rungs.purpose == finals.purpose == "tune"
    assert len(rungs.summaries) == 47
    assert pairs_in(rungs, "bf16") <= pairs_for(47)
    assert pairs_in(rungs, "bf16") < 0.5 * 47 * sum(RUNGS)
    (found,) = judged(rungs, finals)
    assert speed(found.config.with_dtype("bf16").short_form()) > 1.005
    assert found.config.brief() == BEST
    assert found.verdict == "faster"
    seeds = [{seed for group in one.groups for seed in group.input_seeds} for one in (rungs, finals)]
    assert seeds[0].isdisjoint(seeds[1])
    assert "finals: percent of FA2" in capsys.readouterr().out


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
    """Kind and message of the failure of each failed candidate."""
    assert rungs.sweep is not None
    cells = {cell.address: cell for cell in rungs.sweep.planned}
    return {
        f"{(cell := cells[one.address]).dtype} {KernelConfig.parse(cell.config).brief()}": (one.kind, one.message)
        for one in rungs.sweep.failures
    }


def sound(*results: BenchResult) -> bool:
    return all(problems(one) == [*verify._sweep(one)] == [] for one in results)


def test_wrong_candidates_are_left_out_alone(tuned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guilty = ["wrong:fp16 64,64,4 2_2_2+opt", "illegal:bf16 64,64,4 2_2_0+opt", "moody:bf16 64,64,4 0_0_0+opt"]
    monkeypatch.setenv("FAULTS", ";".join(guilty))
    with pytest.raises(CheckFailed, match="3 candidates failed and were removed, the first: 7"):
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
    monkeypatch.setattr("flashladder.sweep.workers.Worker", Worker)
    monkeypatch.setattr(tune, "run", functools.partial(run, module="tests.null.simulated_gpu"))
    monkeypatch.setenv("FAULTS", "crash:fp16 64,64,4 2_2_2+opt")
    with pytest.raises(CheckFailed, match="1 candidates failed and were removed"):
        measure(tuned, TILE | {"dtypes": ["fp16"]})
    rungs, finals = documents(tuned)
    ((kind, message),) = failed(rungs).values()
    assert (kind, "SIGSEGV" in message) == ("crash", True)
    assert sound(rungs, finals)
    started = [{process.started_utc for process in one.processes} for one in (rungs, finals)]
    assert started[0].isdisjoint(started[1])


def test_shards_climb_their_ladders_and_a_call_without_packs(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index in (0, 1):
        assert measure(tuned, TILE, "--shard", f"{index}/2") == 0
        assert f"ladders complete, recorded in {tuned}; run the other shards, then" in capsys.readouterr().err
        assert not tuned.with_name("tune.json.gz").exists()
    assert measure(tuned, TILE) == 0
    assert len(documents(tuned)[0].summaries) == 2 * N


def test_the_dry_run_counts_what_each_rule_leaves_out(tuned: Path) -> None:
    made = planned(tuned.parent, SPACE, name="tune")

    def shown(of: plan.Plan, *notes: str, as_json: bool = False) -> str:
        return dry_run(of, tune.planned(of, Records(tuned)), tuned, 1, notes, as_json=as_json, build=True)

    text = shown(made)
    counts = left_out(load_iteration(7))
    assert (sum(counts.values()), counts[""]) == (99, 47)
    row = next(line for line in text.splitlines() if line.split()[:1] == ["7"])
    assert row.split() == ["7", "99", "47", *(str(counts[rule.name]) for rule in EXCLUSIONS)]
    assert all(rule.why in " ".join(text.split()) for rule in EXCLUSIONS)
    assert max(map(len, text.replace(str(tuned), "").splitlines())) <= 80
    assert f"at most {2 * pairs_for(47)}" in text
    whole = shown(plan.make(load_grid("tune"), "h200", digests))
    assert len(whole.partition("\n\n")[0].splitlines()) > 1
    assert max(map(len, whole.replace(str(tuned), "").splitlines())) <= 80
    event = json.loads(shown(made, "a note", as_json=True))
    assert (event["candidates"], event["ladders"], event["climbed"], event["to_build"]) == (2 * 47, 2, 0, 0)
    assert (event["event"], event["notes"]) == ("dry-run", ["a note"])
