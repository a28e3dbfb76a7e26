"""Winners of made-up tuning runs: who wins, against what, and how that is entered into a copy of the iterations."""

from __future__ import annotations

from pathlib import Path
import random
import shutil

import pytest

from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.paths import ITERATIONS
from flashladder.results.derive import derive
from flashladder.results.files import write_result
from flashladder.results.schema import A_A, BenchResult, Block, Failure, Pair, Series, Settings, Sweep
from flashladder.sweep import winner
from flashladder.sweep.plan import Settings as CellSettings
from flashladder.sweep.plan import cell_of, with_code
from flashladder.sweep.winner import BOTH, enter, finalists, judged
from tests.null.bench_fixture import GOOD, group, kernel, result, sample
from tests.typed import error_line

PRESENT = load_iteration(16).configs["h200"]
FAST = KernelConfig.parse(PRESENT.short_form().replace("2_2_0", "2_2_2"))
ONLY_FP16 = KernelConfig.parse(PRESENT.short_form().replace("2_2_0", "0_2_2"))


def made(speeds: dict[KernelConfig, dict[str, float]], n: int, seed: int = 0) -> BenchResult:
    """A document of iteration 16 on an H200 in which these configurations have these ratios, and `n` pairs each."""
    draw, groups, kernels = random.Random(seed), [], {}
    for dtype in ("fp16", "bf16"):
        series = [Series(kernel=A_A, pairs=_pairs(1.0, n, draw))]
        for config, ratios in speeds.items():
            own = kernel(16, config.with_dtype(dtype).short_form()).model_copy(update={"dtype": dtype})
            kernels[own.key] = own
            series.append(Series(kernel=own.key, pairs=_pairs(ratios[dtype], n, draw), before=GOOD, after=GOOD))
        order, samples = tuple(one.kernel for one in series), (sample(), sample())
        blocks = [Block(index=i, kernel_first=bool(i % 2), order=order, samples=samples) for i in range(n)]
        update: dict[str, object] = {"dtype": dtype, "blocks": tuple(blocks), "series": tuple(series)}
        groups.append(group().model_copy(update=update))
    base = result(*groups)
    update = {
        "kernels": kernels,
        "purpose": "tune",
        "gpu": base.gpu.model_copy(update={"name": "NVIDIA H200"}),
        "settings": Settings(pairs=2, blocks=2, min_pairs=20, flush_bytes=2**28),
    }
    return derive(base.model_copy(update=update))


def _pairs(ratio: float, n: int, draw: random.Random) -> tuple[Pair, ...]:
    return tuple(Pair(index, 0, 6000 * draw.lognormvariate(0, 0.003), 6000 / ratio) for index in range(n))


def both(ratio: float) -> dict[str, float]:
    return {"fp16": ratio, "bf16": ratio}


def with_a_failure() -> BenchResult:
    """Three candidates per dtype, one of which has two pairs alone, and one that crashed; registers and spills."""
    rungs = made({PRESENT: both(1.05), FAST: both(1.08)}, 24)
    few = made({ONLY_FP16: both(1.2)}, 2)
    kernels = {
        key: kernel.model_copy(
            update={"registers": 255, "spill_stores": 8 * (kernel.dtype == "fp16"), "spill_loads": 4}
        )
        for key, kernel in (rungs.kernels | few.kernels).items()
    }
    form, shape = FAST.with_dtype("bf16").short_form().replace("64, 4", "32, 4"), rungs.groups[0].shape
    planned = with_code(cell_of("16", form, "bf16", shape), "c", CellSettings("h200", "tune", 2, 2, 20))
    failure = Failure(address=planned.address, kind="crash", message="signal SIGSEGV")
    sweep = Sweep(grid="tune", grid_sha256="0" * 64, planned=(planned,), failures=(failure,))
    update = {"groups": (*rungs.groups, *few.groups), "kernels": kernels, "sweep": sweep}
    return derive(rungs.model_copy(update=update))


@pytest.mark.parametrize(("n", "known"), [(20, True), (19, False)])
def test_a_candidate_of_just_enough_pairs_has_an_interval(n: int, known: bool) -> None:
    update = {"sweep": with_a_failure().sweep}
    rows = winner.rows_of(made({PRESENT: both(1.05)}, n).model_copy(update=update))
    assert [row.low is not None for row in rows if not row.failure] == [known] * 2


def test_the_joint_winner_is_good_in_both_dtypes_and_finals_judge_it() -> None:
    speeds = {PRESENT: both(1.05), FAST: both(1.08), ONLY_FP16: {"fp16": 1.10, "bf16": 0.90}}
    rungs, finals = made(speeds, 24), made(speeds, 24, seed=1)
    assert set(finalists(rungs, 16)) == set(speeds)
    standings = judged(rungs, finals)
    assert {one.dtype: one.config for one in standings} == {"fp16": ONLY_FP16, "bf16": FAST, BOTH: FAST}
    assert {one.verdict for one in standings} == {"faster"}
    assert "16 both " + FAST.brief() in winner.render(standings)
    only_fp16 = derive(finals.model_copy(update={"groups": finals.groups[:1]}))  # every bf16 final failed
    assert [one.dtype for one in judged(rungs, only_fp16)] == ["fp16"]


@pytest.mark.parametrize(
    ("floors", "ratio", "expected"),
    [
        ({"fp16": 5.0, "bf16": 0.1}, 1.08, "same"),  # the smaller floor alone would tell three per cent
        ({"fp16": 0.1, "bf16": 0.1}, 1.08, "faster"),
        ({"fp16": 0.1, "bf16": 0.1}, 1.02, "slower"),  # than the rungs said
    ],
)
def test_the_finals_and_the_larger_floor_judge(floors: dict[str, float], ratio: float, expected: str) -> None:
    rungs = made({PRESENT: both(1.05), FAST: both(1.08)}, 24)
    finals = made({PRESENT: both(1.05), FAST: both(ratio)}, 24, 1).model_copy(update={"floors_pct": floors})
    (joint,) = (one for one in judged(rungs, finals) if one.dtype == BOTH)
    assert (joint.config, joint.verdict) == (FAST, expected)


def test_few_pairs_never_win() -> None:
    rungs, lucky = made({PRESENT: both(1.05), FAST: both(1.06)}, 24), made({ONLY_FP16: both(1.2)}, 2)
    joined = derive(
        rungs.model_copy(update={"groups": (*rungs.groups, *lucky.groups), "kernels": rungs.kernels | lucky.kernels})
    )
    assert winner.ranked(joined, 16) == {key: [FAST, PRESENT, ONLY_FP16] for key in ("fp16", "bf16", BOTH)}


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copied = Path(shutil.copytree(ITERATIONS, tmp_path / "iterations"))
    monkeypatch.setattr(winner, "ITERATIONS", copied)
    return copied


def run(tmp_path: Path, ratio: float, *more: str) -> None:
    speeds = {PRESENT: both(1.05), FAST: both(ratio)}
    path = write_result(tmp_path / "tune.json.gz", made(speeds, 24))
    write_result(tmp_path / "tuned.json.gz", made(speeds, 24, 1))
    winner.main([str(path), *more])


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")}


def test_write_changes_one_line_and_says_why(tmp_path: Path, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = texts(copy)
    run(tmp_path, 1.08)
    run(tmp_path, 1.0501, "--write")
    assert "nothing to enter" in capsys.readouterr().out
    assert texts(copy) == before  # without --write, or where nothing is faster
    run(tmp_path, 1.08, "--write")
    after = texts(copy)
    (name,) = (name for name in before if before[name] != after[name])
    new = [line for line in after[name].splitlines() if line not in before[name].splitlines()]
    assert new[0].startswith("  # tuned: tuned.json.gz, sha256 ")
    assert new[1].startswith("  h200: {B_r: 128, B_c: 64, n_warps: 4, load_tiles: [2, 2, 2], double_buffer: true")
    assert len(new) == 2
    assert "entered: " in capsys.readouterr().out
    assert load_iteration(16, copy).configs["h200"] == FAST
    assert [one.configs for one in load_all(copy)][:15] == [one.configs for one in load_all()][:15]
    evidence = enter({16: PRESENT}, "h200", "other.json.gz, sha256 00")
    assert [path.name for path in evidence] == [name]
    again = texts(copy)[name]
    assert again.count("# tuned: ") == 1
    assert again.replace("  # tuned: other.json.gz, sha256 00\n", "") == before[name]


def test_a_comment_behind_a_configuration_stays(copy: Path) -> None:
    path = copy / load_iteration(16).path.name
    lines = path.read_text(encoding="utf-8").splitlines()
    marked = [f"{line}  # by hand" if line.startswith("  h200: {") else line for line in lines]
    path.write_text("\n".join(marked) + "\n", encoding="utf-8")
    enter({16: FAST}, "h200", "other.json.gz")
    assert path.read_text(encoding="utf-8").count("}  # by hand") == 1


def test_a_document_that_is_not_of_a_tuning_run_is_named(tmp_path: Path) -> None:
    timed = made({PRESENT: both(1.05)}, 24)
    report = timed.model_copy(update={"purpose": "report"})
    path, again = tmp_path / "tune.json.gz", tmp_path / "tuned.json.gz"
    for rungs, finals, name in ((report, timed, path), (timed, report, again)):
        write_result(path, rungs)
        write_result(again, finals)
        assert f"{name}: not a tuning run: found timings for a report" in error_line(winner.main, [str(path)])
    assert "tuned.json.gz: file contains the finals" in error_line(winner.main, [str(again)])


def test_an_edit_that_would_change_a_child_is_refused(copy: Path) -> None:
    child = next(copy.glob("16_*.yaml"))
    text = child.read_text(encoding="utf-8")
    child.write_text("".join(line for line in text.splitlines(True) if "h200:" not in line), encoding="utf-8")
    before = texts(copy)
    other = load_iteration(15, copy).configs["a100"]
    assert "would change another configuration" in error_line(enter, {15: other}, "h200", "e")
    assert "no one-line configuration of h200" in error_line(enter, {16: other}, "h200", "e")
    assert texts(copy) == before
