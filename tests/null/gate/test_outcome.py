"""How a check becomes one outcome, with checks, files and toolchains that are planted; and what each check looks at."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from flashladder.emulate import agreement as emulator_agreement
from flashladder.emulate.reading import NAME
from flashladder.errors import Checked, CheckFailed, FlashladderError
from flashladder.gate import checks, command, outcome, statements
from flashladder.gate import limits as gate_limits
from flashladder.gate import results as gate_results
from flashladder.gate.outcome import Check, Outcome
from flashladder.paths import PACKAGE
from flashladder.report import figures
from flashladder.results.differences import Found
from flashladder.toolchain import wheels


def raising(error: Exception) -> Callable[..., Any]:
    def run(*_: object) -> Any:
        raise error

    return run


def test_no_check_hides_another() -> None:
    good = Outcome("a", "ok", (), "2 files")
    found = outcome.run_all(
        [
            Check("a", lambda: good),
            Check("b", raising(FlashladderError("not there", where="x", hint="look"))),
            Check("c", raising(KeyError("two\n  lines"))),
            Check("d", lambda: good),
        ]
    )
    assert found == [
        good,
        Outcome("b", "failed", ("x: not there; look",)),
        Outcome("c", "failed", ("KeyError: 'two\\n lines'",)),
        good,
    ]


def test_problems_fail_a_check() -> None:
    assert outcome.outcome("a", iter(["x", "y"]), "2 files") == Outcome("a", "failed", ("x", "y"), "2 files")
    assert outcome.outcome("a", [], "2 files") == Outcome("a", "ok", (), "2 files")


def test_files_are_looked_at_one_by_one() -> None:
    paths = [Path("results/h200/a"), Path("results/b"), Path("elsewhere/c")]
    answers = {"a": Found(["one", "two"], 1500), "c": Found(["three"], 7)}

    def compare(path: Path) -> Found:
        if path.name not in answers:
            raise FlashladderError("cannot be read", where="b")
        return answers[path.name]

    found = outcome.over("name", paths, compare, "cells")
    where = f"h200/a, b, {paths[2]}"
    assert found.details == ("one", "two", "b: cannot be read", "three")
    assert (found.name, found.status) == ("name", "failed")
    assert found.summary == f"1,507 cells: {where}"
    nothing = outcome.over("name", [], compare, "cells")
    assert nothing == Outcome("name", "skipped", ("nothing of this kind under results/",))
    assert outcome.over("name", paths[:1], lambda _: Found([], 3), "files").status == "ok"


def test_a_commands_check_is_told_as_it_tells() -> None:
    failed = Checked("", problems=("one", "two"), failure=CheckFailed("no", where="x"))
    assert outcome.checked("a", lambda: failed) == Outcome("a", "failed", ("one", "two", "x: no"))
    good = Checked("3 files", ("line",), ("note",))
    assert outcome.checked("a", lambda: good) == Outcome("a", "ok", ("note",), "3 files")


@pytest.mark.parametrize(
    ("toolchain", "compiler", "installed", "cxx", "status"),
    [
        (True, True, True, "", "ok"),
        (False, True, False, "", "skipped"),
        (False, True, True, "", "failed"),
        (True, False, True, "", "skipped"),
        (True, False, True, "  ", "skipped"),
        (True, False, True, "g++-99", "failed"),
    ],
)
def test_what_compiles_is_skipped_where_nothing_was_installed_for_it(
    monkeypatch: pytest.MonkeyPatch, toolchain: bool, compiler: bool, installed: bool, cxx: str, status: str
) -> None:
    def there(answer: bool, what: str) -> Callable[[], object]:
        return (lambda: what) if answer else raising(FlashladderError(f"no {what}"))

    monkeypatch.setattr(wheels, "find_toolchain", there(toolchain, "toolchain"))
    monkeypatch.setattr(wheels, "host_compiler", there(compiler, "compiler"))
    monkeypatch.setattr(outcome, "_has_toolchain", lambda: installed)
    monkeypatch.setenv("CXX", cxx)
    found = outcome.needs_toolchain("name", lambda: Checked("compiled"))
    missing = "no toolchain" if not toolchain else "no compiler"
    told = Outcome("name", "ok", (), "compiled") if status == "ok" else Outcome("name", status, (missing,))
    assert found == told
    if not cxx:
        monkeypatch.delenv("CXX")
        assert outcome.needs_toolchain("name", lambda: Checked("compiled")) == told


def test_a_wheel_that_torch_brings_is_no_sign_of_a_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"nvidia-cuda-runtime"}
    pins = SimpleNamespace(packages={"nvidia-cuda-runtime": "13", "nvidia-cuda-nvcc": "13"})
    monkeypatch.setattr(wheels, "load_pins", lambda: pins)
    monkeypatch.setattr(metadata, "distributions", lambda name: [object()] if name in installed else [])
    assert not outcome._has_toolchain()
    installed.add("nvidia-cuda-nvcc")
    assert outcome._has_toolchain()
    monkeypatch.setattr(wheels, "load_pins", raising(FlashladderError("malformed")))
    assert outcome._has_toolchain()


FOLDER = Path("results")


def given(made: Any) -> Any:
    """What a planted `over` was given, which it answers with."""
    return made


@pytest.mark.parametrize(
    ("check", "name", "paths", "compare", "unit"),
    [
        (checks.published_intact, "published figures are as taken over", None,
         gate_results.published_problems, "files"),
        (checks.results_sealed, "result files are as sealed", "machine_folders", gate_results.sealed_problems, "files"),
        (checks.results_hold, "results follow from their raw samples", "sampled_files",
         gate_results.sample_problems, "cells"),
        (checks.checks_passed, "checks passed", "checked_folders", gate_results.check_problems, "cases"),
        (checks.checks_complete, "every configuration was checked", "checked_folders",
         gate_limits.unchecked, "kernels"),
        (checks.counter_tables_fresh, "tables of counters are up to date", "counter_files",
         gate_results.counter_table_problems, "kernels"),
        (checks.emulator_agrees, "the emulator counts what GPUs count", "hardware_files",
         gate_results.agreement_problems, "kernels"),
        (checks.locks_within_limits, "locked kernels are complete and within limits", "lock_files",
         gate_limits.lock_problems, "kernels"),
    ],
)  # fmt: skip
def test_what_each_check_looks_at(
    monkeypatch: pytest.MonkeyPatch, check: Any, name: str, paths: str | None, compare: object, unit: str
) -> None:
    asked: list[object] = []

    def listed(folder: Path) -> list[Path]:
        asked.append(folder)
        return [folder / "x"]

    for module in (gate_results, gate_limits, emulator_agreement):
        if paths and hasattr(module, paths):
            monkeypatch.setattr(module, paths, listed)
    monkeypatch.setattr(checks, "over", lambda *given: given)
    assert check(FOLDER) == (name, [FOLDER / "x"] if paths else [FOLDER], compare, unit)
    assert asked == ([FOLDER] if paths else [])


def test_documents_sanitizers_and_readings_are_looked_for_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from flashladder.gate.verify_document import folder_problems

    monkeypatch.setattr(checks, "over", lambda *given: given)
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sanitizer.json.gz").touch()
        (tmp_path / name / "SHA256SUMS").touch()
    files = [tmp_path / name / "sanitizer.json.gz" for name in ("a", "b")]
    expected = ("sanitizers clean", files, gate_results.sanitizer_problems, "kernels")
    assert given(checks.sanitizers_clean(tmp_path)) == expected
    documents = (
        "documents are as they were written",
        gate_results.machine_folders(tmp_path),
        folder_problems,
        "documents",
    )
    assert given(checks.documents_whole(tmp_path)) == documents
    name = "emulated kernels are locked and free of races"
    reading = (name, [tmp_path / NAME], gate_results.reading_problems, "kernels")
    assert given(checks.emulated_kernels_sound(tmp_path)) == reading
    speed = ("the emulator is as fast as asked", [tmp_path / "results" / "emulator" / "speed.json"],
             gate_limits.speed_problems, "goals")  # fmt: skip
    assert given(checks.speed_reached(tmp_path)) == speed


def test_claims_about_counters_need_readings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[object] = []

    def check(*given: object) -> Checked:
        asked.append(given)
        return Checked("5 claims hold")

    monkeypatch.setattr(emulator_agreement, "check_hardware_claims", check)
    monkeypatch.setattr(emulator_agreement, "check_claims", check)
    skipped = ("no readings under results/<machine>/counters.json.gz",)
    name = "claims about counters"
    assert checks.counter_claims_hold(tmp_path) == Outcome(name, "skipped", skipped)
    monkeypatch.setattr(emulator_agreement, "counter_files", lambda folder: [folder])
    assert checks.counter_claims_hold(tmp_path) == Outcome(name, "ok", (), "5 claims hold")
    assert checks.emulated_claims_hold(tmp_path) == Outcome(f"{name}, emulated", "ok", (), "5 claims hold")
    assert asked == [(tmp_path, tmp_path / "locks"), (tmp_path / NAME,)]


def test_what_follows_from_all_results_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from flashladder.report import command as report
    from flashladder.report import speed_page

    machines = [SimpleNamespace(gpu=f"gpu {n}", measured=dict.fromkeys(range(n))) for n in (2, 3)]
    ladder: Any = SimpleNamespace(machines=machines, refused=["a kernel"])
    asked: list[object] = []

    def planted(answer: object) -> Callable[..., Any]:
        def call(*given: object) -> object:
            asked.append(given)
            return answer

        return call

    monkeypatch.setattr(gate_limits, "peak_problems", planted(Found(["peak"], 4)))
    monkeypatch.setattr(figures, "problems", planted(Found(["figure"], 9)))
    monkeypatch.setattr(report, "committed", planted({"a": b"", "b": b""}))
    monkeypatch.setattr(report, "stale", planted(["stale"]))
    monkeypatch.setattr(speed_page, "stale", planted([]))
    locked = "results belong to locked machine code"
    assert checks.results_locked(ladder) == Outcome(locked, "failed", ("a kernel",), "5 kernels")
    assert checks.peaks_hold(ladder, tmp_path) == Outcome("peaks of GPUs hold", "failed", ("peak",), "4 peaks")
    fresh = "tables and plot are up to date"
    assert checks.report_fresh(ladder, tmp_path) == Outcome(fresh, "failed", ("stale",), "2 files")
    texts = "figures in texts are those of the data"
    assert checks.figures_hold(ladder, tmp_path) == Outcome(texts, "failed", ("figure",), "9 figures")
    page = "the page on the emulator's speed is up to date"
    assert checks.speed_page_fresh(tmp_path) == Outcome(page, "ok", (), "2 files")
    assert asked == [
        (["gpu 2", "gpu 3"], tmp_path),
        (ladder, tmp_path),
        ({"a": b"", "b": b""},),
        (ladder, tmp_path),
        (tmp_path,),
    ]


def test_compiling_checks_go_through_the_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    from flashladder.emulate import take_reading
    from flashladder.lock import command as lock
    from flashladder.lock import step_counts

    monkeypatch.setattr(checks, "needs_toolchain", lambda *given: given)
    found: list[object] = [checks.locks_hold(), checks.step_counts_current(), checks.emulated_current()]
    assert found == [
        ("machine code is the locked one", lock.check),
        ("counts of the steps are up to date", step_counts.check),
        ("emulated counters are up to date", take_reading.check),
    ]


def test_notes_are_rendered_by_their_own_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[tuple[list[str], dict[str, Any]]] = []
    answers = [(0, "", ""), (1, "", "warning\nerror: 2 notes are stale\n"), (3, "", " \n")]

    def run(command: list[str], **given: Any) -> Any:
        code, out, err = answers[len(ran)]
        ran.append((command, given))
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    monkeypatch.setattr(subprocess, "run", run)
    notes = tmp_path / "iterations" / "notes"
    notes.mkdir(parents=True)
    for name in ("01.md", "02.md", "README.txt"):
        (notes / name).touch()
    script = tmp_path / "analysis" / "render_notes.py"
    name = "notes on iterations are up to date"
    assert checks.notes_fresh(tmp_path) == Outcome(name, "ok", (), "2 notes")
    assert checks.notes_fresh(tmp_path) == Outcome(name, "failed", ("error: 2 notes are stale",), "2 notes")
    assert checks.notes_fresh(tmp_path) == Outcome(name, "failed", (f"{script}: exit code 3",), "2 notes")
    command, given = ran[0]
    assert command == [sys.executable, str(script), "--check"]
    environment = given.pop("env")
    assert given == {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    assert environment["FLASHLADDER_ROOT"] == str(tmp_path)
    assert environment["PYTHONPATH"] == str(PACKAGE.parent)
    assert environment["PATH"]


class Recorder:
    """Stands in for a module of checks: each answers with its name and what it was given."""

    def __getattr__(self, name: str) -> Callable[..., Outcome]:
        return lambda *given: Outcome(name, "ok", tuple(map(str, given)))


def test_each_check_of_the_gate_runs_what_it_is_named_after(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ladder: Any = SimpleNamespace(machines=[])
    monkeypatch.setattr(command, "gate_checks", Recorder())
    monkeypatch.setattr(command, "collect", lambda folder: ladder)
    claims = [("words fit", lambda root: Checked(f"words of {root}")), ("more", lambda root: Checked(str(root)))]
    monkeypatch.setattr(command, "CHECKS", claims)
    results, told = str(tmp_path / "results"), str(ladder)
    found = {check.name: check.run() for check in command.all_checks(tmp_path)}
    assert found.pop("words fit") == Outcome("words fit", "ok", (), f"words of {tmp_path}")
    assert found.pop("more") == Outcome("more", "ok", (), str(tmp_path))
    assert found.pop("results make a report") == Outcome("results make a report", "ok", (), "0 cells of 0 machines")
    root = {"speed_page_fresh", "speed_reached", "notes_fresh"}
    given = {
        "published_intact": (str(tmp_path / "results" / "published"),),
        "results_locked": (told,),
        "peaks_hold": (told, str(tmp_path / "configs" / "gpus")),
        "published_hold": (told, results),
        "repeats_hold": (results,),
        "peers_reached": (told,),
        **{name: (told, str(tmp_path)) for name in ("report_fresh", "page_fresh", "figures_hold")},
        **dict.fromkeys(("locks_hold", "step_counts_current", "emulated_current"), ()),
        **{name: (str(tmp_path),) for name in root},
    }
    ran = [one.name for one in found.values()]
    assert len(set(ran)) == len(ran)
    assert {one.name: one.details for one in found.values()} == {name: given.get(name, (results,)) for name in ran}
    assert set(given) - set(ran) == set()
    names = {
        "results_sealed": "result files are as sealed",
        "results_complete": "results are complete",
        "checks_passed": "checks passed",
        "checks_complete": "every configuration was checked",
        "emulated_claims_hold": "claims about counters, emulated",
        "locks_hold": "machine code is the locked one",
    }
    assert {one.name: name for name, one in found.items() if one.name in names} == names


def test_a_claims_words_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    path = tmp_path / "statements.yaml"
    path.write_text("statements:\n  - {iterations: [1], says: nine ways, sass: {IADD3: falls}}\n", encoding="utf-8")
    found = statements.check(path)
    lines = statements.problems(path)
    assert lines[:2] == [
        "iteration 1 says 'nine ways': its 'why' does not",
        "iteration 1 says 'nine ways': iteration 1 must claim IADD3 (sass): falls, and claims nothing",
    ]
    assert (found.summary, found.lines, found.problems) == ("", tuple(lines), tuple(lines))
    told = f"{path}: {len(lines)} statements and claims do not fit: found {lines[0]}"
    assert str(found.failure) == told
    n = len(statements.read_statements())
    assert statements.check().summary == f"{n} statements have their claims, every claim its statement"
