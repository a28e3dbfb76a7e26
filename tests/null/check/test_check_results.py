"""What a check keeps: which earlier cases count again, and the result of a check on the emulator."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from flashladder.check import command as check
from flashladder.check.cases import CheckReport
from flashladder.check.results import earlier, earlier_emulated, rule, write_emulated
from flashladder.errors import FlashladderError
from flashladder.problem import Shape
from flashladder.results.files import load_result, this_host, write_result
from flashladder.results.schema import Accuracy, CaseResult, CheckResult, EmulatedCheckResult, Kernel, Reference
from tests.null.bench_fixture import FAST, GPU, SLOW, kernel

SHAPE = Shape(batch=1, seq_len=64, n_heads=1, d_head=128)
GOOD = Accuracy(max_error=1.0, max_allowed=2.0, rms_error=1.0, rms_allowed=2.0, finite=True)
KERNELS = {one.key: one for one in (kernel(3, FAST), kernel(1, SLOW))}
FIRST, SECOND = KERNELS


def case(key: str, name: str, status: str = "pass") -> CaseResult:
    return CaseResult.model_validate(
        {"kernel": key, "case": name, "dtype": "fp16", "shape": SHAPE, "status": status, "accuracy": GOOD}
    )


CASES = (case(FIRST, "a"), case(FIRST, "b", "fail"), case(FIRST, "c", "not_applicable"), case(SECOND, "a"))


def kept(path: Path) -> Path:
    """A GPU's file with all four cases."""
    reference = Reference(op="fa2", torch="2", cuda=None, kernels={})
    result = CheckResult(
        rung="GPU", gpu=GPU, host=this_host(), kernels=KERNELS, reference=reference, rule=rule(), cases=CASES
    )
    return write_result(path, result)


def changed(key: str, **update: object) -> dict[str, Kernel]:
    return {**KERNELS, key: KERNELS[key].model_copy(update=update)}


def names(cases: tuple[CaseResult, ...]) -> list[tuple[str, str]]:
    return [(one.kernel, one.case) for one in cases]


def test_cases_count_again_unless_they_failed_or_something_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept(tmp_path / "check.json.gz")
    held = [(FIRST, "a"), (FIRST, "c"), (SECOND, "a")]
    assert names(earlier(path, KERNELS, GPU.uuid)) == held
    assert earlier(path, KERNELS, "GPU-1") == ()
    assert names(earlier(path, changed(FIRST, text_sha256="cd" * 32), GPU.uuid)) == held[2:]
    assert names(earlier(path, changed(SECOND, arch="sm_80"), GPU.uuid)) == held[:2]
    assert names(earlier(path, changed(SECOND, text_sha256=None), GPU.uuid)) == held[:2]  # not known to be the same
    assert names(earlier(path, {SECOND: KERNELS[SECOND]}, GPU.uuid)) == held[2:]
    assert earlier(tmp_path / "none.json", KERNELS, GPU.uuid) == ()
    with monkeypatch.context() as patched:
        patched.setattr("flashladder.check.results.rule", lambda: "another")
        assert earlier(path, KERNELS, GPU.uuid) == ()
    assert earlier(None, KERNELS, GPU.uuid) == ()


def test_a_check_on_the_emulator_is_a_result_of_its_own(tmp_path: Path) -> None:
    kernels = {key: one.model_copy(update={"text_sha256": None, "build": key}) for key, one in KERNELS.items()}
    path = write_emulated(tmp_path / "emulated.json", kernels, CASES[:2])
    made = load_result(path)
    assert isinstance(made, EmulatedCheckResult)
    assert made.rung == "CPU only"
    assert made.host == this_host()
    assert list(made.kernels) == [FIRST]
    assert made.cases == CASES[:2]
    assert names(earlier_emulated(path, kernels)) == [(FIRST, "a")]
    other = {FIRST: kernels[FIRST].model_copy(update={"build": "another emulator"})}
    assert earlier_emulated(path, other) == ()
    with pytest.raises(FlashladderError, match="a result of another kind") as caught:
        earlier(path, KERNELS, GPU.uuid)
    assert "choose another --out" in str(caught.value)


def test_the_emulators_check_writes_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[frozenset[tuple[str, str]]] = []

    def many(
        numbers: list[int],
        configs: tuple[str, ...],
        dtypes: list[str],
        *,
        quick: bool,
        done: frozenset[tuple[str, str]] = frozenset(),
    ) -> CheckReport:
        asked.append(done)
        every = [case(one.key, name) for one in made for name in ("a", "b")]
        return CheckReport(tuple(one for one in every if (one.kernel, one.case) not in done))

    def identity(iteration: object, config: object) -> Kernel:
        return made[0]

    made = [KERNELS[FIRST]]
    monkeypatch.setattr("flashladder.check.on_emulator.check_many", many)
    monkeypatch.setattr(check, "emulated_identity", identity)
    options = argparse.Namespace(budget=0.0, configs=None, dtypes=["fp16"], quick=True, out=tmp_path / "out.json")
    for run in range(2):
        report = check.run_emulated([3], options)
        assert names(report.cases) == [(FIRST, "a"), (FIRST, "b")]
        assert asked[run] == (frozenset(names(report.cases)) if run else frozenset())
        result = load_result(options.out)
        assert isinstance(result, EmulatedCheckResult)
        assert result.cases == report.cases
        assert capsys.readouterr().out == (f"2 cases kept from {options.out}, not run again\n" if run else "")
    made[0] = made[0].model_copy(update={"text_sha256": "cd" * 32})
    check.run_emulated([3], options)
    assert asked[2] == frozenset()
