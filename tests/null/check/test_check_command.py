"""The check's command with a planted GPU or emulator: what is asked for, kept and written, and how it ends."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashladder import parallel
from flashladder.build.wheel import chosen_configs
from flashladder.cases.inputs import Case, emulator_cases
from flashladder.cases.reference import References
from flashladder.check import command as check
from flashladder.check.command import CheckReport, check_iteration, emulated_identity, rule_digest
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.gate import verify
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
from flashladder.names import DTYPES
from flashladder.problem import Problem
from flashladder.results.files import load_as, load_result, this_host
from flashladder.results.schema import Accuracy, CaseResult, CheckResult, EmulatedCheckResult, Kernel
from tests.null.bench_fixture import GPU, kernel
from tests.typed import error_line

SHAPE = Problem(batch=1, seq_len=64, n_heads=1, d_head=128)
GOOD = Accuracy(max_error=1.0, max_allowed=2.0, rms_error=1.0, rms_allowed=4.0, finite=True)


def outcome(key: str, name: str, status: str = "pass", accuracy: Accuracy | None = GOOD) -> CaseResult:
    return CaseResult.model_validate(
        {"kernel": key, "case": name, "dtype": "fp16", "shape": SHAPE, "status": status, "accuracy": accuracy}
        | ({"reason": "because"} if status == "fail" else {})
    )


def keys(*numbers: int, dtypes: Sequence[str] = ("fp16",), configs: Sequence[str] = ("a100",)) -> list[str]:
    return [f"{n:02d} {one.short_form()}" for n in numbers for one in chosen_configs(n, configs, dtypes)]


def names(cases: Sequence[CaseResult]) -> list[tuple[str, str]]:
    return [(one.kernel, one.case) for one in cases]


class Planted:
    """Stands for a GPU and an emulator with kernels, and for a checker that passes two cases of each kernel."""

    def __init__(self) -> None:
        self.gpu = GPU
        self.code = dict[int, str]()
        self.status = "pass"
        self.asked: list[tuple[int, frozenset[tuple[str, str]]]] = []
        self.now = 0.0

    def run(self, backend: str, *numbers: int, **changed: object) -> CheckReport:
        given = {"configs": ["a100"], "dtypes": ["fp16"], "quick": True, "budget": 0.0, "out": None, "tune": False}
        options = argparse.Namespace(**given | changed, numbers=numbers)
        self.asked.clear()
        if backend == "emulator":
            return check.run_emulated(options)
        device: Any = SimpleNamespace(gpu=self.gpu, host=this_host(), rung="GPU")
        return check.run_checks(options, device)

    def identity(self, number: int, config: Any, arch: str) -> Kernel:
        made = kernel(number, config.short_form(), self.code.get(number, "ab" * 32))
        return made.model_copy(update={"dtype": config.dtype, "arch": arch})

    def check_iteration(self, number: int, **given: Any) -> CheckReport:
        self.asked.append((number, given["done"]))
        self.now += 10.0
        every = keys(number, dtypes=given["dtypes"], configs=given["configs"])
        made = [outcome(key, name, self.status) for key in every for name in "ab"]
        return CheckReport(tuple(one for one in made if (one.kernel, one.case) not in given["done"]))


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    made = Planted()

    def load_installed(number: int) -> Any:
        kernel = partial(made.identity, number)
        return SimpleNamespace(identity=kernel, require=lambda _: None, run=None)

    def over(function: Any, items: Sequence[Kernel], _: str, stop: None) -> list[CheckReport]:
        return [function(item) for item in items]

    monkeypatch.setattr("flashladder.bench.command.load_installed", load_installed)
    monkeypatch.setattr(check, "emulated_identity", lambda one, config: made.identity(one.number, config, "sm_80"))
    monkeypatch.setattr(check, "check_iteration", made.check_iteration)
    monkeypatch.setattr(check, "ptx_many", lambda _: None)
    monkeypatch.setattr(parallel, "over", over)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


BACKENDS = pytest.mark.parametrize("backend", ["gpu", "emulator"])


@BACKENDS
def test_every_kernel_is_checked_and_written_with_its_code(planted: Planted, tmp_path: Path, backend: str) -> None:
    out = tmp_path / "check.json"
    report = planted.run(backend, 7, 8, out=out, dtypes=["fp16", "bf16"])
    every = keys(7, 8, dtypes=["fp16", "bf16"])
    assert names(report.cases) == [(key, name) for key in every for name in "ab"]
    written: Any = load_result(out)
    assert isinstance(written, CheckResult if backend == "gpu" else EmulatedCheckResult)
    assert (written.rung, written.host) == ("GPU" if backend == "gpu" else "CPU only", this_host())
    assert written.cases == report.cases
    assert {key: kernel.text_sha256 for key, kernel in written.kernels.items()} == dict.fromkeys(every, "ab" * 32)
    if isinstance(written, CheckResult):
        assert (written.gpu, written.rule) == (GPU, rule_digest())
    assert planted.run(backend, 7).passed
    assert sorted(tmp_path.iterdir()) == [out], "without --out nothing is written"


def test_kernels_of_the_same_ptx_and_configuration_are_launched_once_and_all_named(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def identity(iteration: Iteration, config: KernelConfig) -> Kernel:
        made = planted.identity(iteration.number, config, "sm_90a")
        return made.model_copy(update={"build": planted.code.get(iteration.number, "that of 30")})

    monkeypatch.setattr(check, "emulated_identity", identity)
    planted.code = {29: "another"}
    out = tmp_path / "check.json"
    report = planted.run("emulator", 29, 30, 31, out=out)
    assert [number for number, _ in planted.asked] == [31, 30, 29], "of 31 only the kernel with a mask"
    every = [(key, name) for key in keys(29, 30, 31) for name in "ab"]
    assert len(every) == 8
    assert names(report.cases) == names(load_as(out, EmulatedCheckResult).cases) == every
    planted.code = {29: "another", 31: "changed"}
    planted.run("emulator", 30, 31, out=out)
    planted.code = {29: "another"}
    again = planted.run("emulator", 30, 31, out=out)
    assert names(again.cases) == every[2:], "30 was kept, and 31 is not proved by a launch that did not run"
    planted.status = "fail"
    planted.code = dict.fromkeys((30, 31), "wrong")
    assert names(planted.run("emulator", 30, 31, out=out).failures) == every[2:]


def test_verify_sees_what_an_emulated_check_failed_or_lacks(planted: Planted, tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    planted.run("emulator", 7, out=out)
    written: Any = load_result(out)
    ((key, kernel),) = written.kernels.items()

    def said(names: Sequence[str], **changes: Any) -> str:
        cases = tuple(written.cases[0].model_copy(update={"kernel": key, "case": name, **changes}) for name in names)
        return " ".join(verify._cases(written.model_copy(update={"cases": cases})))

    config = KernelConfig.parse(kernel.config)
    for quick in (False, True):
        names = [one.name for one in emulator_cases(config, 0, quick=quick)]
        assert said(names) == ""
        assert f"case {names[0]} is missing" in said(names[1:])
        assert f"case {names[0]} is unknown or repeated" in said([*names, names[0]])
        assert "failed: far off" in said(names, status="fail", reason="far off")


@BACKENDS
def test_a_case_is_kept_unless_it_failed_or_its_kernel_changed(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    out = tmp_path / "check.json"
    first = planted.run(backend, 7, 8, out=out)
    assert planted.run(backend, 7, 8, out=out).cases == first.cases
    assert capsys.readouterr().out == f"4 cases kept from {out}, not run again\n"
    assert all(first.done >= done and done for _, done in planted.asked)
    planted.code[7] = "cd" * 32
    planted.run(backend, 7, 8, out=out)
    assert planted.asked[-1][1] - {(keys(7)[0], name) for name in "ab"} == {(keys(8)[0], name) for name in "ab"}
    assert load_result(out).kernels[keys(7)[0]].text_sha256 == "cd" * 32
    planted.status, planted.code[7] = "fail", "ef" * 32
    assert not planted.run(backend, 7, out=out).passed
    planted.run(backend, 7, out=out)
    assert [done for _, done in planted.asked] == [frozenset()]


@BACKENDS
def test_what_is_not_asked_for_stays_in_the_file(planted: Planted, tmp_path: Path, backend: str) -> None:
    out = tmp_path / "check.json"
    planted.run(backend, 7, out=out)
    planted.code = {7: "cd" * 32}  # changed meanwhile, and not run
    assert names(planted.run(backend, 8, out=out).cases) == [(keys(8)[0], name) for name in "ab"]
    planted.status = "fail"
    report = planted.run(backend, 8, out=out, dtypes=["bf16"])
    (bf16,) = keys(8, dtypes=["bf16"])
    assert names(report.failures) == [(bf16, "a"), (bf16, "b")]
    held: Any = load_result(out)
    assert sorted(names(held.cases)) == sorted((key, name) for key in (*keys(7, 8), bf16) for name in "ab")
    assert held.kernels[keys(7)[0]].text_sha256 == "ab" * 32, "as it was when it ran"


def test_a_file_of_another_gpu_or_rule_is_left_alone_where_it_holds_more(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "check.json"
    planted.run("gpu", 7, 8, out=out)
    before = out.read_bytes()
    planted.gpu = GPU.model_copy(update={"uuid": "GPU-1"})
    with pytest.raises(FlashladderError, match=r"another GPU: expected GPU-1, found .*; choose another --out"):
        planted.run("gpu", 7, out=out)
    planted.gpu = GPU
    with monkeypatch.context() as patched:
        patched.setattr(check, "rule_digest", lambda: "ef" * 32)
        with pytest.raises(FlashladderError, match=r"another rule of correctness: .*; choose another --out"):
            planted.run("gpu", 7, out=out)
    assert "choose another --out" in error_line(planted.run, "emulator", 7, out=out)
    assert out.read_bytes() == before
    planted.gpu = GPU.model_copy(update={"uuid": "GPU-1"})
    planted.run("gpu", 7, 8, out=out)  # all that it holds is run again
    assert planted.asked[0][1] == frozenset()
    assert load_as(out, CheckResult).gpu.uuid == "GPU-1"


def test_it_goes_on_where_the_budget_ended_it(planted: Planted, tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    with pytest.raises(FlashladderError, match=r"the budget of 10 s was spent before iteration 9; run it again"):
        planted.run("gpu", 7, 8, 9, out=out, budget=10.0)
    assert [number for number, _ in planted.asked] == [7, 8], "one that is spent exactly lets the next begin"
    report = planted.run("gpu", 7, 8, 9, out=out)
    assert names(report.cases) == [(key, name) for key in keys(7, 8, 9) for name in "ab"]
    assert planted.asked[0][1] == {(key, name) for key in keys(7, 8) for name in "ab"}
    assert "--budget needs a GPU" in error_line(planted.run, "emulator", 7, budget=9.0)


def test_the_command_asks_the_gpu_or_the_emulator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []
    report = CheckReport((outcome("k", "a"),))

    def asks(options: argparse.Namespace, *device: object) -> CheckReport:
        asked.append((*device, options.numbers, options.configs))
        return report

    monkeypatch.setattr(check, "open_device", lambda: "a device")
    monkeypatch.setattr(check, "run_checks", asks)
    monkeypatch.setattr(check, "run_emulated", asks)
    every = [iteration.number for iteration in load_all()]
    check.main(["7", "8"])
    check.main(["--all", "--configs", "a100"])
    check.main(["7", "--backend", "emulator", "--out", "a.json"])
    assert asked == [("a device", [7, 8], ["prog"]), ("a device", every, ["a100"]), ([7], None)]
    assert capsys.readouterr().out == f"{report.render()}\n" * 3 + f"{check.WATCHED}\nresult: a.json\n"
    report = CheckReport((outcome("k", "a"), outcome("k", "b", "fail")))
    with pytest.raises(CheckFailed, match="1 of 2 cases failed"):
        check.main(["7"])
    report = CheckReport((outcome("k", "a", "not_applicable", None),))
    with pytest.raises(CheckFailed, match="no case passed"):
        check.main(["7"])
    assert "77" in error_line(check.main, ["77"])


def test_a_report_counts_what_became_of_each_kernel() -> None:
    worse = GOOD.model_copy(update={"max_error": 0.2, "rms_error": 3.0})
    none = GOOD.model_copy(update={"max_error": None})
    report = CheckReport(
        (outcome("one", "a"), outcome("two", "a", accuracy=worse), outcome("one", "b", "fail", none),
         outcome("one", "c", "not_applicable", None), outcome("two", "b"),
         outcome("three", "a", "not_applicable", None))
    )  # fmt: skip
    one, two, three, failed, verdict = (" ".join(line.split()) for line in report.render().splitlines())
    assert one.startswith("one 1 passed, 1 failed, 1 correctly rejected; largest max or RMS error 50%")
    assert two.startswith("two 2 passed, 0 failed, 0 correctly rejected; largest max or RMS error 75%")
    assert three.startswith("three 0 passed, 0 failed, 1 correctly rejected; largest max or RMS error 0%")
    assert (failed, verdict) == ("FAILED one b: because", "6 cases, 1 failed")
    assert not report.passed
    assert CheckReport(report.cases[:2]).passed
    assert not CheckReport(report.cases[3:4]).passed, "a rejected case alone proves nothing"
    assert not CheckReport(()).passed


SEEN = (Case("a", SHAPE), Case("b", SHAPE))


def test_every_case_of_every_configuration_is_checked_but_those_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    references, every = References(), keys(16, dtypes=DTYPES)
    checked: list[tuple[Any, ...]] = []

    def check_case(subject: Any, case: Case, *given: object) -> CaseResult:
        checked.append((subject, *given))
        return outcome(subject.key, case.name)

    monkeypatch.setattr(check, "check_case", check_case)
    report = check_iteration(
        16, configs=["a100"], references=references, device="cpu", run=print, cases=lambda _: SEEN, repeats=3,
        bar=False, done=frozenset({(every[0], "b")}),
    )  # fmt: skip
    assert names(report.cases) == [(key, name) for key in every for name in "ab" if (key, name) != (every[0], "b")]
    for subject, *rest in checked:
        assert (subject.iteration, subject.run, subject.row_stride) == (16, print, load_iteration(16).row_stride)
        assert rest == [references, "cpu", 3]


def test_what_a_failed_launch_broke_ends_the_check_and_nothing_else_is_swallowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check_case(subject: Any, case: Case, *_: object) -> CaseResult:
        if case.name == "c":
            raise FlashladderError("the GPU is lost")
        return outcome(subject.key, case.name, statuses[case.name])

    monkeypatch.setattr(check, "check_case", check_case)
    cases = [Case(name, SHAPE) for name in "abcd"]
    given: dict[str, Any] = {"dtypes": ["fp16"], "run": print, "cases": lambda _: cases, "configs": ["a100"]}
    statuses = {"a": "fail", "b": "pass", "d": "pass"}
    assert [(one.case, one.status) for one in check_iteration(7, **given).cases] == [("a", "fail"), ("b", "pass")]
    statuses["a"] = "pass"
    assert "the GPU is lost" in error_line(check_iteration, 7, **given)


def test_an_emulated_kernel_is_known_by_ptx_emulator_and_rule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ptx = tmp_path / "kernel.ptx"
    iteration = load_iteration(7)
    monkeypatch.setattr(check, "ptx_for", lambda *_: SimpleNamespace(ptx=ptx, versions={"nvcc": "13.0"}))
    found = []
    for code, judged, emulator in (("ret", "a", "1"), ("exit", "a", "1"), ("exit", "b", "1"), ("exit", "b", "2")):
        ptx.write_text(f".version 8.0\n\t{code};\n", encoding="utf-8")
        monkeypatch.setattr(check, "rule_digest", lambda judged=judged: judged)
        monkeypatch.setattr(check, "version", lambda emulator=emulator: emulator)
        found.append(emulated_identity(iteration, iteration.configs["a100"]))
    assert len({one.build for one in found}) == 4
    assert (found[0].key, found[0].arch) == (keys(7)[0], iteration.family.targets.ptx)
