"""The check's command with a planted GPU: what is asked for, what is kept, what is written, how it ends."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashladder import parallel
from flashladder.bench.references import reference_identity
from flashladder.build.installed import chosen_configs
from flashladder.cases.case import REPEATS
from flashladder.cases.inputs import Case
from flashladder.cases.reference import References
from flashladder.check import cases as listed
from flashladder.check import command as check
from flashladder.check import on_emulator
from flashladder.check.cases import CheckReport, check_iteration
from flashladder.check.results import emulated_identity, rule, tell_kept, write_emulated
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.ladder.config import DTYPES
from flashladder.ladder.iteration import claim_configs, load_all, load_iteration
from flashladder.problem import Shape
from flashladder.results.files import load_result, this_host
from flashladder.results.schema import Accuracy, CaseResult, CheckResult, Kernel
from tests.null.bench_fixture import GPU

SHAPE = Shape(batch=1, seq_len=64, n_heads=1, d_head=128)
GOOD = Accuracy(max_error=1.0, max_allowed=2.0, rms_error=1.0, rms_allowed=4.0, finite=True)


def outcome(key: str, name: str, status: str = "pass", accuracy: Accuracy | None = GOOD) -> CaseResult:
    return CaseResult.model_validate(
        {"kernel": key, "case": name, "dtype": "fp16", "shape": SHAPE, "status": status, "accuracy": accuracy}
        | ({"reason": "because"} if status == "fail" else {})
    )


def options(**changed: object) -> argparse.Namespace:
    given: dict[str, object] = {"configs": ["prog"], "dtypes": ["fp16"], "quick": True, "budget": 0.0, "out": None}
    return argparse.Namespace(**given | changed)


def identity(number: int, config: Any, arch: str) -> Kernel:
    code = {"text_sha256": "ab" * 32, "toolchain": {}}
    return Kernel(iteration=number, config=config.short_form(), dtype=config.dtype, arch=arch, **code)  # type: ignore[arg-type]


class Planted:
    """A GPU, the wheels on it, and a checker that passes two cases of each kernel."""

    def __init__(self) -> None:
        self.device = SimpleNamespace(gpu=GPU, host=this_host(), rung="GPU")
        self.asked: list[dict[str, Any]] = []
        self.now = 0.0

    def load_installed(self, number: int) -> Any:
        return SimpleNamespace(identity=lambda config, arch: identity(number, config, arch))

    def check_iteration(self, number: int, **given: Any) -> CheckReport:
        self.asked.append({"number": number, **given})
        self.now += 10.0
        keys = [f"{number:02d} {one.short_form()}" for one in chosen_configs(number, given["configs"], given["dtypes"])]
        made = [outcome(key, name) for key in keys for name in ("a", "b")]
        return CheckReport(tuple(one for one in made if (one.kernel, one.case) not in given["done"]))


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    made = Planted()
    monkeypatch.setattr(check, "load_installed", made.load_installed)
    monkeypatch.setattr(check, "check_iteration", made.check_iteration)
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


def keys(*numbers: int, dtypes: Sequence[str] = ("fp16",)) -> list[str]:
    return [f"{n:02d} {one.short_form()}" for n in numbers for one in chosen_configs(n, ["prog"], dtypes)]


def test_every_kernel_is_checked_and_written_with_its_machine_code(planted: Planted, tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    report = check.run_checks([7, 8], options(out=out), planted.device)  # type: ignore[arg-type]
    assert [(one.kernel, one.case) for one in report.cases] == [(key, name) for key in keys(7, 8) for name in "ab"]
    references = planted.asked[0].pop("references")
    assert isinstance(references, References)
    assert planted.asked[1].pop("references") is references
    done = frozenset((one.kernel, one.case) for one in report.cases if one.kernel.startswith("07"))
    common = {"configs": ["prog"], "dtypes": ["fp16"], "quick": True}
    assert planted.asked == [
        {"number": 7, "done": frozenset(), **common},
        {"number": 8, "done": done, **common},
    ]
    written = load_result(out)
    assert isinstance(written, CheckResult)
    assert (written.rung, written.gpu, written.host) == ("GPU", GPU, this_host())
    assert (written.reference, written.rule, written.cases) == (reference_identity({}), rule(), report.cases)
    assert list(written.kernels) == sorted(keys(7, 8))
    assert {kernel.arch for kernel in written.kernels.values()} == {"sm_90"}
    assert written.kernels[keys(7)[0]].text_sha256 == "ab" * 32


def test_a_run_without_a_file_writes_none(planted: Planted, tmp_path: Path) -> None:
    assert check.run_checks([7], options(), planted.device).passed  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_it_goes_on_where_the_budget_ended_it(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "check.json"
    for budget in (10.0, 9.9):  # one that is spent exactly lets the next begin
        planted.now, planted.asked = 5.0, []
        out.unlink(missing_ok=True)
        n = 2 if budget == 10.0 else 1
        with pytest.raises(FlashladderError) as caught:
            check.run_checks([7, 8, 9], options(out=out, budget=budget), planted.device)  # type: ignore[arg-type]
        assert str(caught.value) == (
            f"not finished: the budget of 10 s was spent before iteration {7 + n}; "
            "run it again with the same --out to go on"
        )
        assert len(planted.asked) == n
        assert capsys.readouterr().out.endswith(f"{2 * len(keys(*range(7, 7 + n)))} cases, 0 failed\n")
    report = check.run_checks([7, 8, 9], options(out=out), planted.device)  # type: ignore[arg-type]
    kept = 2 * len(keys(7))
    assert capsys.readouterr().out == f"{kept} cases kept from {out}, not run again\n"
    assert [one.kernel for one in report.cases] == [key for key in keys(7, 8, 9) for _ in "ab"]
    assert [one["number"] for one in planted.asked] == [7, 7, 8, 9]
    assert planted.asked[1]["done"] == {(key, name) for key in keys(7) for name in "ab"}


def test_iterations_that_the_card_cannot_run_are_left_out(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    old = GPU.model_copy(update={"compute_capability": "3.0"})
    device = SimpleNamespace(gpu=old, host=this_host(), rung="GPU")
    assert not check.run_checks([7], options(), device).passed  # type: ignore[arg-type]
    assert planted.asked == []
    assert capsys.readouterr().out == "iteration 7: not run here: needs compute capability 8.0 or later\n"


def test_one_kept_case_is_told_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    for cases, told in (((), ""), (("a",), "1 case"), (("a", "b"), "2 cases")):
        tell_kept(Path("x.json"), [outcome("k", name) for name in cases])
        assert capsys.readouterr().out == (f"{told} kept from x.json, not run again\n" if told else "")


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["7"], {"numbers": [7], "all": False, "configs": None, "dtypes": list(DTYPES), "budget": 0.0, "out": None}),
        (["7", "8", "--quick"], {"numbers": [7, 8], "quick": True}),
        (["--all", "--budget", "90", "--dtype", "bf16"], {"all": True, "budget": 90.0, "dtypes": ["bf16"]}),
        (["7", "--out", "x.json", "--configs", "a100"], {"out": Path("x.json"), "configs": ["a100"]}),
        (["7", "--backend", "emulator"], {"backend": "emulator"}),
    ],
)
def test_the_command_line(argv: list[str], found: dict[str, object]) -> None:
    options = check.parse_arguments(argv)
    assert {name: getattr(options, name) for name in found} == found


@pytest.mark.parametrize(
    "argv", [[], ["x"], ["7", "--budget", "soon"], ["7", "--dtype", "fp8"], ["7", "--backend", "z"]]
)
def test_a_wrong_command_line_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        check.parse_arguments(argv)
    assert left.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_command_asks_the_gpu_or_the_emulator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []
    report = CheckReport((outcome("k", "a"),))

    def on_gpu(numbers: list[int], options: argparse.Namespace, device: object) -> CheckReport:
        asked.append(("gpu", numbers, options.configs, device))
        return report

    def emulated(numbers: list[int], options: argparse.Namespace) -> CheckReport:
        asked.append(("emulator", numbers, options.configs))
        return report

    monkeypatch.setattr(check, "open_device", lambda: "a device")
    monkeypatch.setattr(check, "run_checks", on_gpu)
    monkeypatch.setattr(check, "run_emulated", emulated)
    every = [iteration.number for iteration in load_all()]
    assert check.main(["7", "8"]) == 0
    assert check.main(["--all", "--configs", "a100"]) == 0
    assert check.main(["7", "--backend", "emulator"]) == 0
    assert check.main(["--all", "--backend", "emulator"]) == 0
    assert asked == [
        ("gpu", [7, 8], ["prog"], "a device"),
        ("gpu", every, ["a100"], "a device"),
        ("emulator", [7], None),
        ("emulator", every, None),
    ]
    assert capsys.readouterr().out == f"{report.render()}\n" * 4
    report = CheckReport((outcome("k", "a"), outcome("k", "b", "fail")))
    with pytest.raises(CheckFailed) as caught:
        check.main(["7"])
    assert str(caught.value) == "1 of 2 cases failed"
    with pytest.raises(FlashladderError, match="77"):
        check.main(["77"])
    assert len(asked) == 5


def test_a_report_counts_what_became_of_each_kernel() -> None:
    worse = GOOD.model_copy(update={"max_error": 0.2, "rms_error": 3.0})
    none = GOOD.model_copy(update={"max_error": None})
    report = CheckReport(
        (outcome("one", "a"), outcome("two", "a", accuracy=worse), outcome("one", "b", "fail", none),
         outcome("one", "c", "not_applicable", None), outcome("two", "b"),
         outcome("three", "a", "not_applicable", None))
    )  # fmt: skip
    tail = "refused as it must; worst error"
    assert report.render().splitlines() == [
        f"{'one':88s}   1 passed   1 failed  1 {tail}  50% of what is allowed",
        f"{'two':88s}   2 passed   0 failed  0 {tail}  75% of what is allowed",
        f"{'three':88s}   0 passed   0 failed  1 {tail}   0% of what is allowed",
        "FAILED one b: because",
        "6 cases, 1 failed",
    ]
    assert not report.passed
    assert CheckReport(report.cases[:2]).passed
    assert not CheckReport(report.cases[3:4]).passed  # nothing that passed is no proof
    assert not CheckReport(()).passed


SEEN = (Case("a", SHAPE), Case("b", SHAPE))


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What `check_case` was asked for; every case passes."""
    asked: list[tuple[Any, ...]] = []

    def check_case(subject: Any, case: Case, references: object, device: str, repeats: int) -> CaseResult:
        asked.append((subject, case.name, references, device, repeats))
        return outcome(subject.key, case.name)

    monkeypatch.setattr(listed, "check_case", check_case)
    return asked


def nothing(*_: object) -> None:
    """An operator that is never called."""


def test_every_case_of_every_configuration_is_checked_but_those_that_are_done(checked: list[tuple[Any, ...]]) -> None:
    references = References()
    first, second = keys(16, dtypes=("fp16", "bf16"))[:2]
    report = check_iteration(
        16, references=references, device="cpu", run=nothing, cases=lambda _: SEEN, repeats=3, bar=False,
        done=frozenset({(first, "b")}),
    )  # fmt: skip
    expected = [(key, name) for key in keys(16, dtypes=DTYPES) for name in "ab" if (key, name) != (first, "b")]
    assert [(one.kernel, one.case) for one in report.cases] == expected
    assert second in {one.kernel for one in report.cases}
    assert {(device, repeats) for *_, device, repeats in checked} == {("cpu", 3)}
    assert all(given is references for _, _, given, _, _ in checked)
    assert {(subject.iteration, subject.run, subject.row_stride) for subject, *_ in checked} == {
        (16, nothing, load_iteration(16).row_stride)
    }


def test_an_installed_wheel_is_what_runs_by_default(
    checked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    required: list[str] = []
    wheel = SimpleNamespace(run=nothing, require=lambda config: required.append(config.short_form()))
    monkeypatch.setattr(listed, "load_installed", lambda number: {7: wheel}[number])
    monkeypatch.setattr(listed, "cases_for", lambda config, quick: SEEN[:1] if quick else SEEN)
    assert len(check_iteration(7, dtypes=["fp16"], quick=True).cases) == len(keys(7))
    assert len(check_iteration(7, dtypes=["fp16"]).cases) == 2 * len(keys(7))
    assert required == [key[3:] for key in keys(7)] * 2
    assert {(device, repeats) for *_, device, repeats in checked} == {("cuda", REPEATS)}
    assert isinstance(checked[0][2], References)


def test_what_a_failed_launch_broke_ends_the_check_and_nothing_else_is_swallowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check_case(subject: Any, case: Case, *_: object) -> CaseResult:
        if case.name == "c":
            raise FlashladderError("the GPU is lost")
        return outcome(subject.key, case.name, statuses[case.name])

    monkeypatch.setattr(listed, "check_case", check_case)
    cases = [Case(name, SHAPE) for name in "abcd"]
    given: dict[str, Any] = {"dtypes": ["fp16"], "run": nothing, "cases": lambda _: cases, "configs": ["a100"]}
    statuses = {"a": "fail", "b": "pass", "d": "pass"}
    assert [(one.case, one.status) for one in check_iteration(7, **given).cases] == [("a", "fail"), ("b", "pass")]
    statuses["a"] = "pass"
    with pytest.raises(FlashladderError, match="the GPU is lost"):
        check_iteration(7, **given)


def test_the_emulators_check_takes_the_same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def planted_check(number: int, **given: Any) -> CheckReport:
        asked.append({"number": number, **given})
        return CheckReport((outcome(str(number), "a"),))

    monkeypatch.setattr(on_emulator, "check_iteration", planted_check)
    monkeypatch.setattr(on_emulator, "emulated_run", lambda iteration: ("run", iteration.number))
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    done = frozenset({("k", "a")})
    assert on_emulator.check_many([16], ["h200"], ["fp16"], quick=True, done=done).cases[0].kernel == "16"
    on_emulator._Job(7, ("a100",), ("bf16",), quick=False, done=done).run()
    on_emulator.check_emulated(8)
    assert threads == [1]
    config = load_iteration(16).configs["a100"]
    for made, stride, quick in zip(asked, (2048, 0, 0), (True, False, False), strict=True):
        assert made.pop("cases")(config) == on_emulator.cases_for(config, stride, quick=quick)
    common = {"references": on_emulator._REFERENCES, "device": "cpu", "repeats": 2}
    assert asked == [
        {
            "number": 16,
            "configs": ["h200"],
            "dtypes": ["fp16"],
            "run": ("run", 16),
            "done": done,
            "bar": True,
            **common,
        },
        {
            "number": 7,
            "configs": ("a100",),
            "dtypes": ("bf16",),
            "run": ("run", 7),
            "done": done,
            "bar": False,
            **common,
        },
        {
            "number": 8,
            "configs": ("a100",),
            "dtypes": DTYPES,
            "run": ("run", 8),
            "done": frozenset(),
            "bar": True,
            **common,
        },
    ]


def test_several_iterations_are_compiled_once_and_their_cases_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[list[tuple[int, str]]] = []
    told: list[str] = []
    jobs_seen: list[Any] = []

    def over(function: object, jobs: list[Any], name: str) -> list[CheckReport]:
        assert function == on_emulator._Job.run
        told.append(name)
        jobs_seen.extend(jobs)
        return [CheckReport((outcome(str(job.number), "a"), outcome(str(job.number), "b"))) for job in jobs]

    def ptx_many(pairs: list[Any]) -> None:
        compiled.append([(iteration.number, config.short_form()) for iteration, config in pairs])

    monkeypatch.setattr(on_emulator, "ptx_many", ptx_many)
    monkeypatch.setattr(parallel, "over", over)
    done = frozenset({("k", "a")})
    report = on_emulator.check_many([7, 8], ["a100"], ["fp16"], quick=True, done=done)
    assert [(one.kernel, one.case) for one in report.cases] == [("7", "a"), ("7", "b"), ("8", "a"), ("8", "b")]
    assert jobs_seen == [
        on_emulator._Job(n, ("a100",), ("fp16",), quick=True, done=done) for n in (8, 7)
    ]  # the last first
    assert told == ["check"]
    assert compiled == [[(n, load_iteration(n).configs["a100"].short_form()) for n in (7, 8)]]
    on_emulator.check_many([7, 8])
    assert jobs_seen[2:] == [
        on_emulator._Job(n, ("a100",), DTYPES, quick=False, done=frozenset()) for n in (8, 7)
    ]  # the last first
    assert len(compiled[1]) == 4


def test_an_emulated_kernel_is_known_by_ptx_emulator_and_rule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from flashladder.build import compile as compiler
    from flashladder.emulate import take_reading
    from flashladder.files import sha256
    from flashladder.machine_code.ptx import ptx_sha256

    ptx = tmp_path / "kernel.ptx"
    ptx.write_text(".version 8.0\n\tret;\n", encoding="utf-8")
    iteration = load_iteration(7)
    config, _ = claim_configs(iteration)
    asked: list[object] = []

    def ptx_for(*given: object) -> object:
        asked.append(given)
        return SimpleNamespace(ptx=ptx)

    monkeypatch.setattr(compiler, "ptx_for", ptx_for)
    monkeypatch.setattr(compiler, "tools_of", lambda: SimpleNamespace(ptx_versions={"nvcc": "13.0"}))
    monkeypatch.setattr(take_reading, "version", lambda: "emulator 1 ")
    found = emulated_identity(iteration, config)
    assert asked == [(iteration, config)]
    assert found == Kernel(
        iteration=7, config=config.short_form(), dtype=config.dtype, arch=iteration.family.targets.ptx,
        text_sha256=None, build=sha256("emulator 1 " + rule() + ptx_sha256(ptx.read_text())),
        toolchain={"nvcc": "13.0"},
    )  # fmt: skip


def test_an_emulated_result_has_the_kernels_of_its_cases_alone(tmp_path: Path) -> None:
    kernels = {
        key: identity(int(key[:2]), chosen_configs(int(key[:2]), ["prog"], ["fp16"])[0], "sm_80") for key in keys(7, 8)
    }
    first = next(iter(kernels))
    path = write_emulated(tmp_path / "a.json", kernels, [outcome(first, "a"), outcome(first, "b")])
    written = load_result(path)
    assert list(written.kernels) == [first]
    assert written.rung == "CPU only"


def test_a_budget_needs_a_gpu() -> None:
    with pytest.raises(FlashladderError) as caught:
        check.run_emulated([7], options(budget=9.0))
    assert str(caught.value) == "--budget needs a GPU; leave it out, or use --backend gpu"


def test_without_a_file_the_emulators_check_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def many(*given: object, **named: object) -> CheckReport:
        asked.append((given, named))
        return CheckReport(())

    monkeypatch.setattr(on_emulator, "check_many", many)
    check.run_emulated([7, 8], options(configs=None, quick=False))
    check.run_emulated([7], options(configs=["h200"], dtypes=["bf16"]))
    assert asked == [
        (([7, 8], on_emulator.CONFIGS, ["fp16"]), {"quick": False}),
        (([7], ["h200"], ["bf16"]), {"quick": True}),
    ]


def test_a_file_of_the_emulators_check_names_every_kernel_and_passes_on_what_was_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[object] = []

    def many(*given: object, **named: object) -> CheckReport:
        asked.append((given, named))
        return CheckReport(tuple(outcome(key, "a") for key in keys(7, 8)))

    def made(iteration: Any, config: Any) -> Kernel:
        return identity(iteration.number, config, "compute_80")

    monkeypatch.setattr(on_emulator, "check_many", many)
    monkeypatch.setattr(check, "emulated_identity", made)
    out = tmp_path / "out.json"
    report = check.run_emulated([7, 8], options(out=out, quick=False))
    assert asked == [(([7, 8], ["prog"], ["fp16"]), {"quick": False, "done": frozenset()})]
    assert [one.kernel for one in report.cases] == keys(7, 8)
    assert list(load_result(out).kernels) == sorted(keys(7, 8))
