"""What the gate asks of result files: one damaged thing at a time, and the line that names it."""

from __future__ import annotations

from collections.abc import Callable
import gzip
import json
from pathlib import Path
import re
import shutil
from typing import Any

import pytest

from flashladder.emulate.reading import NAME as READING_NAME
from flashladder.gate import checks as gate_checks
from flashladder.gate import command as gate
from flashladder.paths import RESULTS
from flashladder.results import files as results
from flashladder.results.__main__ import main
from flashladder.results.published import PUBLISHED
from tests.null.ladder_fixture import Fixture, complete, make

SEALED = gate_checks.results_sealed
Document = dict[str, Any]
Check = Callable[[Path], gate.Outcome]
OVER_FILES: list[Check] = [
    gate_checks.results_hold, gate_checks.checks_passed, gate_checks.sanitizers_clean,
    gate_checks.counter_tables_fresh, gate_checks.results_sealed,
]  # fmt: skip


@pytest.fixture
def fixture(tmp_path: Path) -> Fixture:
    return complete(make(tmp_path / "results", lambda number: 50.0 + number, lengths=[4096]))


def edit(fixture: Fixture, name: str, change: Callable[[Document], object]) -> None:
    """Changes one JSON document of the machine's folder."""
    path = fixture.bench.parent / name
    document = json.loads(gzip.decompress(path.read_bytes()))
    change(document)
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


def case(document: Document, iteration: int, index: int) -> Document:
    """The case of an iteration at an index."""
    found: Document = [one for one in document["cases"] if one["kernel"].startswith(f"{iteration:02d} ")][index]
    return found


def one_detail(outcome: gate.Outcome) -> str:
    assert outcome.status == "failed"
    (line,) = outcome.details
    return line


@pytest.mark.parametrize("check", OVER_FILES)
def test_a_complete_folder_passes(fixture: Fixture, check: Check) -> None:
    assert check(fixture.folder).details == ()
    assert check(fixture.folder).status == "ok"


@pytest.mark.parametrize("check", OVER_FILES)
def test_no_files_are_said_to_be_skipped(tmp_path: Path, check: Check) -> None:
    assert check(tmp_path).status == "skipped"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: case(d, 7, 2).update(status="fail", reason="wrote outside O"), "failed: wrote outside O"),
        (lambda d: case(d, 7, 2)["accuracy"].update(max_error=1.5), "not within what is allowed"),
        (lambda d: case(d, 7, 2)["accuracy"].update(finite=False), "not within what is allowed"),
        (lambda d: case(d, 7, 2).update(accuracy=None), "not within what is allowed"),
        (lambda d: d["cases"].remove(case(d, 7, 2)), "case grid 16x2048x16 is missing"),
        (lambda d: d["cases"].append(case(d, 7, 2)), "case grid 16x2048x16 is unknown or repeated"),
        (lambda d: case(d, 7, 2).update(status="not_applicable"), "grid 16x2048x16 was refused, expected pass"),
        (lambda d: case(d, 16, 2).update(status="not_applicable"), "grid 16x2048x16 was refused, expected pass"),
        (lambda d: next(iter(d["kernels"].values())).update(text_sha256="0" * 64), "measured machine code 000000"),
        (lambda d: d["kernels"].pop(case(d, 7, 2)["kernel"]), "timed in bench.json.gz, but not checked"),
        (lambda d: d.update(kind="other"), "other"),
    ],
)
def test_a_check_that_proves_nothing_fails(
    fixture: Fixture, change: Callable[[Document], object], message: str
) -> None:
    edit(fixture, "check.json.gz", change)
    assert message in one_detail(gate_checks.checks_passed(fixture.folder))


def test_steps_may_have_a_check_of_their_own(fixture: Fixture) -> None:
    folder = fixture.bench.parent
    later = folder / "check_later.json.gz"
    later.write_bytes((folder / "check.json.gz").read_bytes())
    repeated = gate_checks.checks_passed(fixture.folder)
    assert "is unknown or repeated" in repeated.details[0]

    def only(document: Document, *, ours: bool) -> None:
        kept = {key for key in document["kernels"] if key.startswith("07 ") == ours}
        document["kernels"] = {key: one for key, one in document["kernels"].items() if key in kept}
        document["cases"] = [one for one in document["cases"] if one["kernel"] in kept]

    edit(fixture, "check.json.gz", lambda document: only(document, ours=False))
    assert "timed in bench.json.gz, but not checked" not in "".join(gate_checks.checks_passed(fixture.folder).details)
    edit(fixture, later.name, lambda document: only(document, ours=True))
    assert gate_checks.checks_passed(fixture.folder).status == "ok"
    edit(fixture, later.name, lambda document: case(document, 7, 2).update(status="fail", reason="wrote outside O"))
    assert "failed: wrote outside O" in one_detail(gate_checks.checks_passed(fixture.folder))
    later.unlink()
    assert "07 " in one_detail(gate_checks.checks_passed(fixture.folder))
    edit(fixture, "check.json.gz", lambda document: document["gpu"].update(name="NVIDIA H200"))
    later.write_bytes((folder / "check.json.gz").read_bytes())
    edit(fixture, later.name, lambda document: document["gpu"].update(name="NVIDIA H100 80GB HBM3"))
    assert "checks of another GPU" in one_detail(gate_checks.checks_passed(fixture.folder))


def test_a_benchmark_without_checks_fails(fixture: Fixture) -> None:
    (fixture.bench.parent / "check.json.gz").unlink()
    assert "check.json.gz" in one_detail(gate_checks.checks_passed(fixture.folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["findings"][1].update(clean=False, errors=3), "racecheck: not clean, errors 3"),
        (lambda d: d["findings"][1].update(clean=False), "racecheck: not clean, errors 0"),
        (lambda d: d["findings"][1].update(errors=3), "racecheck is called clean, but its errors are 3"),
        (lambda d: d["findings"][1].update(errors=None), "racecheck is called clean, but its errors are None"),
        (lambda d: d["findings"].pop(), "found memcheck, racecheck, synccheck"),
        (lambda d: d["findings"].append(d["findings"][0]), "once each"),
        (lambda d: d["findings"].clear(), "initcheck once each, found none"),
        (lambda d: next(iter(d["kernels"].values())).update(text_sha256=None), "compiled by the driver"),
        (lambda d: d["kernels"].popitem(), "no kernel of iteration "),
    ],
)
def test_a_sanitizer_run_that_is_not_clean_fails(
    fixture: Fixture, change: Callable[[Document], object], message: str
) -> None:
    edit(fixture, "sanitizer.json.gz", change)
    assert message in one_detail(gate_checks.sanitizers_clean(fixture.folder))


def test_an_edited_tuning_run_fails(fixture: Fixture) -> None:
    edit(fixture, "tune.json.gz", lambda d: d["summaries"][3].update(pct=99.0, pct_low=99.0, pct_high=99.0))
    lines = gate_checks.results_hold(fixture.folder).details
    assert {"tune.json.gz" in line for line in lines} == {True}
    assert " S=4096 B=16 H=16 pct: written 99.0, derived " in lines[0]


def test_an_interval_without_its_median_is_one_line_that_names_file_and_cell(fixture: Fixture) -> None:
    edit(fixture, "bench.json.gz", lambda d: d["summaries"][3].update(pct=99.0))
    line = one_detail(gate_checks.results_hold(fixture.folder))
    assert re.search(r"machine/bench.json.gz: bench.summaries.3: \d\d \(FP16.* fp16 S=4096: 99 % is not within", line)
    assert len(line) < 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["summaries"].pop(3), "fp16 S=4096 B=16 H=16: not written"),
        (lambda d: d["summaries"].append(d["summaries"][3]), "summaries does not follow from the raw samples: cells"),
        (lambda d: d["summaries"][3].update(dtype="bf16"), "bf16 S=4096 B=16 H=16: written, not derived"),
        (lambda d: d["means"][3].update(pct=99.0, pct_high=99.0), "fp16 all S pct: written 99.0, derived "),
        (lambda d: d["floors_pct"].update(fp16=99.0), "floors_pct does not follow from the raw samples: fp16: written"),
        (lambda d: d["groups"][0]["blocks"][0].update(dropped="x"), "process 0 fp16 S=4096 B=16 H=16 blocks.0.dropped"),
    ],
)  # fmt: skip
def test_what_does_not_follow_from_the_samples_is_named(
    fixture: Fixture, change: Callable[[Document], object], message: str
) -> None:
    edit(fixture, "bench.json.gz", change)
    assert any(message in line for line in gate_checks.results_hold(fixture.folder).details)


def test_an_edited_or_missing_table_of_counters_fails(fixture: Fixture) -> None:
    table = fixture.bench.parent / "counters.csv"
    table.write_text(table.read_text(encoding="utf-8").replace(",1\n", ",2\n", 1), encoding="utf-8")
    assert "counters.csv: differs from what counters.json.gz gives" in one_detail(
        gate_checks.counter_tables_fresh(fixture.folder)
    )
    table.unlink()
    assert "counters.csv: is missing" in one_detail(gate_checks.counter_tables_fresh(fixture.folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["counters"].clear(), "counters without a kernel"),
        (lambda d: d["kernels"].popitem(), "counters without a kernel"),
        (lambda d: next(iter(d["counters"].values())).pop("a"), "different metrics"),
    ],
)
def test_counters_that_make_no_table_fail(fixture: Fixture, change: Callable[[Document], object], message: str) -> None:
    edit(fixture, "counters.json.gz", change)
    assert message in one_detail(gate_checks.counter_tables_fresh(fixture.folder))


def test_each_changed_file_of_a_sealed_folder_is_named(fixture: Fixture) -> None:
    machine = fixture.bench.parent
    edit(fixture, "bench.json.gz", lambda d: d["groups"][0]["series"][0]["pairs"][0].__setitem__(3, 1.0))
    assert "bench.json.gz: edited since it was sealed" in one_detail(SEALED(fixture.folder))
    (machine / "counters.csv").unlink()
    (machine / "more.log").write_text("", encoding="utf-8")
    lines = SEALED(fixture.folder).details
    told = ("counters.csv: is sealed, but missing", "more.log: is not sealed", "bench.json.gz: edited")
    for line, expected in zip(lines, told, strict=True):
        assert expected in line
        assert "python -m flashladder.results --seal" in line
    assert main(["--seal", str(machine)]) == 0
    assert SEALED(fixture.folder).status == "ok"


def test_a_folder_without_a_seal_or_with_another_order_fails(fixture: Fixture) -> None:
    path = fixture.bench.parent / results.SEAL
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(reversed(lines)), encoding="utf-8")
    assert "not sorted sha256sum lines" in one_detail(SEALED(fixture.folder))
    path.unlink()
    assert "SHA256SUMS: is missing" in one_detail(SEALED(fixture.folder))


def test_every_published_csv_is_compared_and_named(tmp_path: Path) -> None:
    assert gate_checks.published_intact().status == "ok"
    folder = Path(shutil.copytree(PUBLISHED, tmp_path / "published"))
    names = sorted(path.name for path in folder.glob("*.csv"))
    assert len(names) > 4
    for name in names:
        (folder / name).chmod(0o644)
        (folder / name).write_bytes((folder / name).read_bytes() + b"\n")
    (folder / names[0]).unlink()
    (folder / names[1]).write_bytes(b"\xff")
    (folder / "more.csv").write_text("", encoding="utf-8")
    lines = gate_checks.published_intact(folder).details
    assert len(lines) == len(names) + 1
    expected = ("file is missing", "not UTF-8", *["published figures were edited"] * (len(names) - 2))
    for name, what in [*zip(names, expected, strict=True), ("more.csv", "is not described")]:
        assert any(name in line and what in line for line in lines), (name, lines)
    (folder / "progression.yaml").unlink()
    assert "progression.yaml" in one_detail(gate_checks.published_intact(folder))


def test_a_reading_is_held_to_its_locks_and_its_table(tmp_path: Path) -> None:
    names = ("locks/sm_80.json", "locks/sm_90a.json")  # the first of each family
    for name in (READING_NAME, READING_NAME.replace(".json", ".csv"), *names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(RESULTS / name, tmp_path / name)
    outcome = gate_checks.emulated_kernels_sound(tmp_path)
    n = len(json.loads((tmp_path / READING_NAME).read_text(encoding="utf-8"))["kernels"])
    assert (outcome.status, outcome.summary) == ("ok", f"{n} kernels: {tmp_path / READING_NAME}")
    table = (tmp_path / READING_NAME).with_suffix(".csv")
    table.write_text("", encoding="utf-8")
    line = one_detail(gate_checks.emulated_kernels_sound(tmp_path))
    assert line.startswith(f"{table}: differs from what the PTX gives")
    table.unlink()
    assert one_detail(gate_checks.emulated_kernels_sound(tmp_path)).startswith(f"{table}: is missing")
