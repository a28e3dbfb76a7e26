"""Limits that committed data must keep: each broken alone, each named in a line of its own."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashladder.errors import Checked
from flashladder.gate import claim_checks, limits, null_step, statements
from flashladder.gpu.ncu import PEER, REGISTER_TOLERANCE, read_peer
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.ladder.selection import select_configs
from flashladder.lock import code_claims, step_counts
from flashladder.lock.schema import LOCKS, LockFile, read_lock, write_lock
from flashladder.names import PUBLISHED_GPU, REGISTERS
from flashladder.paths import RESULTS, ROOT
from flashladder.results.differences import Found
from tests.null.bench_fixture import GPU

LOCK = read_lock("sm_90")


def edited(folder: Path, number: int, form: str, **changed: int) -> Path:
    """The lock of sm_90 with one kernel's numbers changed; None takes it away."""
    entry = LOCK.iterations[number]
    kernels = dict(entry.kernels)
    kernels[form] = kernels[form].model_copy(update=changed)
    entries = {**LOCK.iterations, number: entry.model_copy(update={"kernels": kernels})}
    return write_lock(LockFile(arch="sm_90", iterations=entries), folder)


def form_of(number: int, *, spilling: bool) -> str:
    """A configuration of an iteration whose tile may spill, or may not."""
    forms = LOCK.iterations[number].kernels
    return next(form for form in forms if (KernelConfig.parse(form).tile == "128,64,4") == spilling)


def test_every_lock_is_within_its_limits() -> None:
    for path in limits.lock_files(RESULTS):
        found = limits.lock_problems(path)
        lock = read_lock(path.stem)
        assert list(found.problems) == []
        assert found.n == sum(len(entry.kernels) for entry in lock.iterations.values())
    assert limits.lock_files(RESULTS) == [LOCKS / f"{arch}.json" for arch in LOCK_ARCHES]


@pytest.mark.parametrize(("bytes_", "registers", "most"), [(88, 255, None), (89, 255, 88), (1, 254, 0), (0, 254, None)])
def test_only_the_published_tile_at_all_registers_may_spill(
    tmp_path: Path, bytes_: int, registers: int, most: int | None
) -> None:
    form = form_of(16, spilling=True)
    path = edited(tmp_path, 16, form, spill_stores=bytes_, registers=registers)
    told = f"{path}: iteration 16, {form}: spills {bytes_} bytes, at most {most}"
    assert [line for line in limits.lock_problems(path).problems if "spills" in line] == (
        [] if most is None else [told]
    )


def test_another_tile_may_not_spill(tmp_path: Path) -> None:
    form = form_of(16, spilling=False)
    path = edited(tmp_path, 16, form, spill_stores=4, registers=255)
    assert f"{path}: iteration 16, {form}: spills 4 bytes, at most 0" in limits.lock_problems(path).problems


def test_a_lock_holds_the_ladder_and_nothing_else(tmp_path: Path) -> None:
    forms = sorted(config.short_form() for config in select_configs(load_iteration(7), "prog"))
    kernels = dict(LOCK.iterations[7].kernels)
    other = form_of(16, spilling=False)
    kernels[other] = kernels.pop(forms[0])
    entries = {**LOCK.iterations, 7: LOCK.iterations[7].model_copy(update={"kernels": kernels}), 99: LOCK.iterations[8]}
    del entries[9]
    path = write_lock(LockFile(arch="sm_90", iterations=entries), tmp_path)
    gone = sorted(config.short_form() for config in select_configs(load_iteration(9), "prog"))
    assert list(limits.lock_problems(path).problems) == [
        f"{path}: iteration 7, {forms[0]}: is not locked",
        f"{path}: iteration 7, {other}: is locked, but not of the ladder",
        *(f"{path}: iteration 9, {form}: is not locked" for form in gone),
        *(
            f"{path}: iteration 99, {form}: is locked, but not of the ladder"
            for form in sorted(LOCK.iterations[8].kernels)
        ),
    ]


def test_registers_are_those_of_the_published_kernels_on_their_architecture(tmp_path: Path) -> None:
    theirs = read_peer(PEER)[8][REGISTERS]
    form = load_iteration(8).configs[PUBLISHED_GPU].short_form()
    for off, broken in ((REGISTER_TOLERANCE, False), (REGISTER_TOLERANCE + 1, True)):
        for registers in (theirs + off, theirs - off):
            path = edited(tmp_path, 8, form, registers=registers, spill_stores=0)
            expected = f"expected {theirs} within {REGISTER_TOLERANCE}, as the published kernel"
            told = f"{path}: iteration 8, {form}: {registers} registers, {expected}"
            assert list(limits.lock_problems(path).problems) == ([told] if broken else [])


def test_every_configuration_is_checked_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = [one for one in load_all() if not one.unmeasured]
    every = [(one.number, config.short_form()) for one in measured for config in select_configs(one, "prog")]
    kernels = {str(pair): SimpleNamespace(iteration=pair[0], config=pair[1]) for pair in every}
    result: Any = SimpleNamespace(kernels=kernels, gpu=GPU)
    asked: list[Path] = []

    def checks_of(folder: Path) -> Any:
        asked.append(folder)
        return result

    monkeypatch.setattr(limits, "checks_of", checks_of)
    folder = RESULTS / "h200"
    assert limits.unchecked(folder) == Found([], len(every))
    del kernels[str(every[3])]
    number, form = every[3]
    told = f"results/h200/check.json.gz: iteration {number}, {form}: was not checked"
    assert limits.unchecked(folder) == Found([told], len(every))
    assert asked == [folder, folder]
    old = GPU.model_copy(update={"compute_capability": "3.0"})
    result.gpu = old
    assert limits.unchecked(folder) == Found([], 0)


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Peaks of an H200 that a test may change, by name."""
    gpu = load_gpus()["h200"]
    peaks = {name: quantity.model_copy() for name, quantity in gpu.peaks.items()}
    one = gpu.model_copy(update={"peaks": peaks})
    monkeypatch.setattr(limits, "load_gpus", lambda _: {"h200": one})
    return peaks


def change(peaks: dict[str, Any], name: str, factor: float) -> None:
    peaks[name] = peaks[name].model_copy(update={"value": peaks[name].value * factor})


def told_by(sms: int | None = 132, clock: int | None = 1980, name: str = "NVIDIA H200") -> Any:
    return GPU.model_copy(update={"name": name, "n_sm": sms, "max_sm_clock_mhz": clock})


def test_peaks_fit_each_other_and_the_measured_card(described: dict[str, Any]) -> None:
    n = len(described)
    where = "configs/gpus/h200.yaml: peaks"
    assert limits.peak_problems([told_by(), told_by(name="NVIDIA Example 1"), told_by(clock=None)]) == Found([], n)
    assert limits.peak_problems([told_by(sms=130, clock=1985)]).problems == [
        f"{where}.sms: expected 130, as the driver told, found 132",
        f"{where}.max_clock: expected 1985, as the driver told, found 1980",
    ]
    change(described, "fp16_tensor", 1.001)
    assert limits.peak_problems([]).problems == []  # a datasheet rounds
    change(described, "fp16_tensor", 1.01)
    (line,) = limits.peak_problems([]).problems
    made = described["fp16_tensor_rate"].value * 132 * described["boost_clock"].value * 1e6 / 1e12
    found = described["fp16_tensor"].value
    assert line == f"{where}.fp16_tensor: expected {made:.1f} TFLOP/s of all SMs, found {found:g}"
    change(described, "fp16_tensor", 1 / 1.01 / 1.001)
    change(described, "max_clock", 0.5)
    boost = described["boost_clock"].value
    assert limits.peak_problems([]).problems == [
        f"{where}.boost_clock: expected at most the max_clock 990, found {boost:g}"
    ]


@pytest.mark.parametrize("name", ["fp16_tensor", "fp16_tensor_rate", "sms", "boost_clock", "max_clock"])
def test_no_peak_is_left_out(described: dict[str, Any], name: str) -> None:
    n = len(described)
    del described[name]
    found = limits.peak_problems([told_by()])
    assert found.problems[0] == f"configs/gpus/h200.yaml: peaks: lacks {name}"
    unknown = {"sms": "expected 132", "max_clock": "expected 1980"}
    if name in unknown:
        told = f"configs/gpus/h200.yaml: peaks.{name}: {unknown[name]}, as the driver told, found none"
        assert found.problems[1:] == [told]
    assert found.n == n - 1
    del described["memory_bandwidth"]


@pytest.mark.parametrize(
    ("seconds", "rate", "lines"),
    [
        ([1.0, 1.99], 30e6, []),
        ([1.0, 2.0], 30e6, ["iteration 16, S = 512, 1 heads: expected less than 2 s, found 2.00 s"]),
        (
            [1.0],
            29e6,
            [
                f"iteration {n}, S = 1024, 16 heads: expected 30 million lane-instructions a second, found 29.0"
                for n in (1, 16)
            ],
        ),
    ],
)
def test_the_emulators_goals(tmp_path: Path, seconds: list[float], rate: float, lines: list[str]) -> None:
    runs: list[dict[str, Any]] = [{"iteration": 16, "seq_len": 512, "heads": 1, "seconds": seconds}]
    for number in (1, 16):
        run: dict[str, Any] = {
            "iteration": number,
            "seq_len": 1024,
            "heads": 16,
            "seconds": [2.0, 1.0, 0.1],
            "lane_instructions": rate,
        }
        runs.append(run)
    path = tmp_path / "speed.json"
    loops = [{"seq_len": 512, "seconds": [2.9]}]
    path.write_text(json.dumps({"runs": runs, "loops": loops}), encoding="utf-8")
    assert limits.speed_problems(path) == Found([f"{path}: {line}" for line in lines], 4)
    path.write_text(json.dumps({"runs": []}), encoding="utf-8")
    assert [line.rpartition(": ")[2] for line in limits.speed_problems(path).problems] == ["was not timed"] * 4


def test_claims_are_judged_on_the_files_of_the_checkout_that_is_asked_about(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[object] = []

    def check(*given: object, **named: object) -> Checked:
        asked.append((*given, named))
        return Checked("fine")

    for module in (code_claims, statements, null_step):
        monkeypatch.setattr(module, "check", check)
    for _, run in claim_checks.CHECKS:
        assert run(tmp_path).summary == "fine"
    counts = tmp_path / step_counts.COUNTS.relative_to(ROOT)
    assert asked == [
        ({"path": counts, "locks": tmp_path / "results" / "locks"},),
        (tmp_path / "configs" / "statements.yaml", tmp_path / "iterations", {}),
        (tmp_path / null_step.PAGE.relative_to(ROOT), tmp_path / "results", {}),
    ]
    assert [name for name, _ in claim_checks.CHECKS] == [
        "claims about machine code", "words and claims of the steps fit", "a claim of each step fails without it",
    ]  # fmt: skip
