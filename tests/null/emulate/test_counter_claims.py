"""Claims about counters in Nsight Compute's readings, of the published kernels; ways to fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flashladder.emulate import agreement
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.gpu.ncu import SHAPE, read_peer
from flashladder.ladder.iteration import begun, load_all
from flashladder.paths import RESULTS
from flashladder.report.data import collect
from flashladder.results.files import load_result, write_result
from flashladder.results.schema import BenchResult, CounterResult
from tests.null.ladder_fixture import Fixture, make

LD_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"


def write_readings(fixture: Fixture, edit: Callable[[dict[int, dict[str, int]]], None] = lambda _: None) -> Path:
    """The published kernels' counters, and ours of later steps, as if they had been read from the fixture's kernels."""
    bench = load_result(fixture.bench)
    assert isinstance(bench, BenchResult)
    counts = {**committed(), **read_peer()}
    edit(counts)
    configs = {iteration.number: iteration.configs["a100"].short_form() for iteration in load_all()}
    kernels = {k: v for k, v in bench.kernels.items() if configs[v.iteration] == v.config}
    result = CounterResult(
        rung=bench.rung,
        gpu=bench.gpu,
        host=bench.host,
        kernels=kernels,
        shape=SHAPE,
        ncu="test",
        counters={key: counts[kernel.iteration] for key, kernel in kernels.items()},
    )
    path = fixture.bench.parent / "counters.json.gz"
    write_result(path, result)
    return path


def committed() -> dict[int, dict[str, int]]:
    """An H200's counters of our kernels, by iteration."""
    read = load_result(RESULTS / "h200" / "counters.json.gz")
    assert isinstance(read, CounterResult)
    return {read.kernels[key].iteration: dict(found) for key, found in read.counters.items()}


@pytest.fixture
def fixture(tmp_path: Path) -> Fixture:
    return make(tmp_path / "results", lambda number: 50.0 + number, configs_of="a100", lengths=[4096])


def test_every_claim_of_the_ladder_is_read(fixture: Fixture) -> None:
    readings = agreement.hardware_claims(write_readings(fixture), fixture.folder / "locks")
    ladder = begun(load_all(), [1])  # the fixture has timed nothing of another family
    claimed = [claim for iteration in ladder for claim in iteration.expect.counters]
    assert [reading.claim for reading in readings] == [claim for claim in claimed if agreement.on_hardware(claim)]
    assert {str(claim) for claim in claimed if not agreement.on_hardware(claim)} == {
        "copies_upward is 0",
        "copies_upward+copies_downward is unchanged",
    }
    conflicts = [r for r in readings if r.claim.metric == LD_CONFLICTS and r.iteration >= 8]
    assert conflicts
    assert all(reading.holds and reading.after == 0 for reading in conflicts)


def test_a_bank_conflict_where_none_may_be_fails_by_name(fixture: Fixture, capsys: pytest.CaptureFixture[str]) -> None:
    def edit(counts: dict[int, dict[str, int]]) -> None:
        counts[9][LD_CONFLICTS] = 7

    write_readings(fixture, edit)
    with pytest.raises(CheckFailed, match="iteration 9"):
        agreement.check_hardware_claims(fixture.folder, fixture.folder / "locks").show()
    assert (
        f"FAILS  iteration 9 on machine: {LD_CONFLICTS} is unchanged: 0 -> 7; it does not hold"
        in capsys.readouterr().out
    )


def test_a_claim_that_the_parent_bears_out_as_well_is_refused(
    fixture: Fixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Iteration 8 claims that store conflicts are 0: nothing, if they were 0 before."""

    def edit(counts: dict[int, dict[str, int]]) -> None:
        counts[7][LD_CONFLICTS.replace("_ld.", "_st.")] = 0

    write_readings(fixture, edit)
    with pytest.raises(CheckFailed, match="iteration 8"):
        agreement.check_hardware_claims(fixture.folder, fixture.folder / "locks").show()
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILS  iteration 8"))
    assert line.endswith("is 0: 0 -> 0; it says nothing about the step, for it holds without it: write 'unchanged'")


def test_a_reading_of_other_machine_code_is_refused(tmp_path: Path) -> None:
    fixture = make(
        tmp_path / "results", lambda number: 50.0 + number, configs_of="a100", lengths=[4096], stale={5: "0" * 64}
    )
    path = write_readings(fixture)
    assert len(collect(fixture.folder).refused) == 1  # the report refuses the same kernel
    with pytest.raises(FlashladderError, match="is of machine code that no lock holds"):
        agreement.hardware_claims(path, fixture.folder / "locks")


def test_a_missing_iteration_is_named(fixture: Fixture) -> None:
    path = write_readings(fixture)
    result = load_result(path)
    assert isinstance(result, CounterResult)
    key = next(key for key, kernel in result.kernels.items() if kernel.iteration == 3)
    kernels = {k: v for k, v in result.kernels.items() if k != key}
    counters = {k: v for k, v in result.counters.items() if k != key}
    write_result(path, result.model_copy(update={"kernels": kernels, "counters": counters}))
    with pytest.raises(FlashladderError, match="no reading of iteration 3"):
        agreement.hardware_claims(path, fixture.folder / "locks")
