"""The emulator's committed counters and Nsight Compute's: complete, current, in agreement, and able to fail."""

from __future__ import annotations

from collections.abc import Callable
import csv
import io
import json
from pathlib import Path
import shutil

import pytest

from flashladder.emulate import agreement
from flashladder.emulate import (
    agreement as emulator_agreement,
)
from flashladder.emulate import (
    reading as emulator_reading,
)
from flashladder.emulate import (
    take_reading as emulator_counters,
)
from flashladder.emulate.agreement import counter_files
from flashladder.emulate.kernel import version
from flashladder.emulate.reading import READING, EmulatedCounters, load_reading
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.gpu.ncu import PEER, SHAPE, read_peer, traffic_differences
from flashladder.ladder.iteration import begun, load_all
from flashladder.names import CONFLICTS, LDSM, SECTORS, TENSOR, WAVEFRONTS
from flashladder.paths import RESULTS
from flashladder.report.data import collect
from flashladder.results.files import load_result, write_result
from flashladder.results.schema import BenchResult, CounterResult
import ptxemu
from tests.null.ladder_fixture import Fixture, make

LD, ST = WAVEFRONTS.format("ld"), WAVEFRONTS.format("st")


@pytest.fixture(scope="module")
def reading() -> EmulatedCounters:
    return load_reading()


def changed(reading: EmulatedCounters, number: int, **counters: int) -> EmulatedCounters:
    key, kernel = next((key, one) for key, one in reading.kernels.items() if one.iteration == number)
    other = kernel.model_copy(update={"counters": {**kernel.counters, **counters}})
    return reading.model_copy(update={"kernels": {**reading.kernels, key: other}})


def test_the_committed_bytes_are_what_the_reading_gives(reading: EmulatedCounters) -> None:
    assert emulator_reading.stale(reading) == []
    rows = list(csv.DictReader(io.StringIO(emulator_reading.to_csv(reading))))
    assert [int(row["iteration"]) for row in rows] == [step.number for step in load_all()]
    assert rows[0][CONFLICTS.format("ld")] == "29589504"
    assert {row["races_fp16"] + row["races_bf16"] for row in rows} == {"00"}


def test_a_counter_that_moved_is_stale(reading: EmulatedCounters) -> None:
    problems = emulator_reading.stale(changed(reading, 7, **{LD: 1}))
    assert [problem.partition(":")[0] for problem in problems] == [
        "results/emulator/counters.json",
        "results/emulator/counters.csv",
    ]
    assert all("python -m flashladder.emulate.take_reading --write" in problem for problem in problems)


def test_check_makes_the_reading_anew(monkeypatch: pytest.MonkeyPatch, reading: EmulatedCounters) -> None:
    monkeypatch.setattr(emulator_counters, "read_all", lambda: reading)
    emulator_counters.check().show()
    assert emulator_counters.main([]) == 0
    monkeypatch.setattr(emulator_counters, "read_all", lambda: changed(reading, 16, **{LDSM: 0}))
    with pytest.raises(CheckFailed, match="differs from what the PTX gives"):
        emulator_counters.check().show()
    with pytest.raises(CheckFailed, match=r"counters\.csv: differs"):
        emulator_counters.main([])


def test_a_race_fails_the_command_and_the_gate(
    monkeypatch: pytest.MonkeyPatch, reading: EmulatedCounters, tmp_path: Path
) -> None:
    key, kernel = next(iter(reading.kernels.items()))
    racy = kernel.model_copy(update={"races": {"fp16": 0, "bf16": 3}})
    found = reading.model_copy(update={"kernels": {**reading.kernels, key: racy}})
    monkeypatch.setattr(emulator_counters, "read_all", lambda: found)
    for fails in (lambda: emulator_counters.check().show(), lambda: emulator_counters.main([])):
        with pytest.raises(CheckFailed, match=r"iteration 1: races were found; invoke emulate 1 --hazards"):
            fails()
    shutil.copytree(RESULTS / "locks", tmp_path / "locks")
    path = tmp_path / "emulator" / "counters.json"
    path.parent.mkdir()
    path.write_text(emulator_reading.files_of(found, path)[path], encoding="utf-8")
    assert emulator_agreement.reading_problems(path)[0].endswith(f"{key}: 3 races in bf16")


def test_a_reading_of_other_ptx_is_refused(reading: EmulatedCounters, tmp_path: Path) -> None:
    shutil.copytree(RESULTS / "locks", tmp_path / "locks")
    document = json.loads(READING.read_text(encoding="utf-8"))
    document["kernels"][next(iter(reading.kernels))]["ptx_sha256"]["bf16"] = "0" * 64
    path = tmp_path / "emulator" / "counters.json"
    path.parent.mkdir()
    path.write_text(json.dumps(document), encoding="utf-8")
    (problem,) = emulator_agreement.reading_problems(path)
    assert "its PTX (bf16) is not the locked one" in problem


def test_a_missing_or_malformed_reading_says_how_to_make_it(tmp_path: Path, reading: EmulatedCounters) -> None:
    with pytest.raises(FlashladderError, match=r"no emulated counters.*--write"):
        load_reading(tmp_path / "counters.json")
    (tmp_path / "counters.json").write_text('{"schema_version": 2}', encoding="utf-8")
    with pytest.raises(FlashladderError, match="schema_version"):
        load_reading(tmp_path / "counters.json")
    with pytest.raises(FlashladderError, match="no emulated counters of iteration 29"):
        reading.of(29)


def test_the_emulator_agrees_with_the_published_kernels_and_with_ours() -> None:
    assert emulator_agreement.hardware_files() == [PEER, *counter_files()]
    for path in emulator_agreement.hardware_files():
        assert emulator_agreement.problems(path) == []
    assert emulator_agreement.main([]) == 0


@pytest.mark.parametrize("name", [*SECTORS, LDSM, TENSOR])
def test_one_sector_or_instruction_off_is_a_difference(reading: EmulatedCounters, name: str) -> None:
    wrong = changed(reading, 9, **{name: reading.of(9).counters[name] + 1})
    (problem,) = emulator_agreement.problems(PEER, wrong)
    assert problem.startswith(f"iteration 9: {name}: ")


@pytest.mark.parametrize(
    ("number", "name", "share", "agrees"),
    [
        (9, LD, 0.0009, True),
        (9, LD, 0.0011, False),
        (1, LD, 0.0011, False),
        (9, ST, 0.0001, False),
        (8, ST, 0.0001, False),
        (1, ST, 0.19, True),
        (1, ST, 0.21, False),
    ],
)
def test_wavefronts_may_differ_by_the_hardwares_noise(number: int, name: str, share: float, agrees: bool) -> None:
    hardware = read_peer()[number]
    extra = round(share * hardware[name])
    conflicts = name.replace("pipe_lsu_wavefronts_mem", "bank_conflicts_pipe_lsu_mem")
    conflicts = conflicts.replace("l1tex__data_pipe", "l1tex__data")
    assert conflicts in hardware
    emulated = {**hardware, name: hardware[name] + extra, conflicts: hardware[conflicts] + extra}
    found = traffic_differences(number, emulated, hardware, "hardware")
    assert (not found) == agrees, found


@pytest.mark.parametrize(("share", "agrees"), [(1.0, True), (0.75, True), (0.69, False), (1.0001, False)])
def test_stores_beside_products_of_a_warpgroup_are_counted_more_often_by_hardware(share: float, agrees: bool) -> None:
    hardware = {**read_peer()[9], LDSM: 0, ST: 40_000}
    found = traffic_differences(21, {**hardware, ST: round(40_000 * share)}, hardware, "hardware")
    assert (not found) == agrees, found
    with_ldmatrix = {**hardware, LDSM: 1}
    assert traffic_differences(20, {**with_ldmatrix, ST: 39_000}, with_ldmatrix, "hardware")


def test_conflicts_hidden_among_wavefronts_are_a_difference() -> None:
    hardware = read_peer()[9]
    emulated = {**hardware, CONFLICTS.format("ld"): 10}
    assert "without conflicts" in traffic_differences(9, emulated, hardware, "hardware")[0]


def test_claims_are_judged_but_for_those_about_machine_code(reading: EmulatedCounters) -> None:
    judged = emulator_agreement.claims(reading)
    assert len(judged) > 40
    assert all(one.holds for one in judged)
    left = [c for i in load_all() for c in i.expect.counters if not emulator_agreement.countable(c)]
    assert left
    assert all("inst_executed.sum" in claim.metric or "registers" in claim.metric for claim in left)
    broken = emulator_agreement.claims(changed(reading, 8, **{CONFLICTS.format("ld"): 5}))
    assert [one.iteration for one in broken if not one.holds] == [8, 9]  # unlike 7, and 9 is unlike it
    upward = emulator_agreement.claims(changed(reading, 13, copies_upward=110592, copies_downward=0))
    assert [(one.iteration, one.claim.metric) for one in upward if not one.holds] == [(13, "copies_upward")]


def test_a_kept_reading_is_void_when_the_emulators_code_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = version()
    package = Path(shutil.copytree(Path(ptxemu.__file__).parent, tmp_path / "emulator"))
    monkeypatch.setattr(ptxemu, "__file__", str(package / "__init__.py"))
    assert version() == before
    with (package / "observe" / "counters.py").open("a", encoding="utf-8") as file:
        file.write("# another rule\n")
    assert version() != before


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
