"""Libraries below the steps: the sweep that they come from, and the cells that do not count."""

from __future__ import annotations

from pathlib import Path
import shutil
from statistics import median

import pytest

from flashladder.paths import RESULTS
from flashladder.problem import Problem
from flashladder.report.data import anchors_of, causal_of, fastest_of
from flashladder.results.files import load_as, write_result
from flashladder.results.schema import BenchResult, Summary
from tests.null.report.test_sweeps import with_late

HOPPER = RESULTS / "h200" / "hopper.json.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A machine's folder with two sweeps beside libraries: 17 to 19, and 19 to 24."""
    for name in ("beyond.json.gz", "hopper.json.gz"):
        shutil.copy(RESULTS / "h200" / name, tmp_path / name)
    return tmp_path


def test_libraries_are_those_beside_the_last_step_with_their_own_numbers(folder: Path) -> None:
    result = load_as(HOPPER, BenchResult)
    found = anchors_of(folder)
    assert {(one.name, one.dtype) for one in found} == {(a, b) for a in ("cudnn", "fa4") for b in ("fp16", "bf16")}
    for one in found:
        theirs = [each for each in result.summaries if (each.kernel, each.dtype) == (one.name, one.dtype)]
        assert one.summaries == {each.shape.seq_len: each for each in theirs}
        (mean,) = [each for each in result.means if (each.kernel, each.dtype) == (one.name, one.dtype)]
        assert one.mean == mean
        beside = [
            each.reference_tflops
            for each in result.summaries
            if (each.dtype, each.shape.seq_len) == (one.dtype, 4096) and each.kernel in result.kernels
        ]
        assert one.fa2 == (min(beside), median(beside), max(beside))
        assert one.tflops == pytest.approx(one.summaries[4096].pct / 100 * median(beside))
    (folder / "hopper.json.gz").unlink()
    assert {one.name for one in anchors_of(folder)} == {"cudnn"}


def test_cells_of_other_shapes_than_the_ladders_are_not_theirs(folder: Path) -> None:
    """A sweep may time few heads or another batch at the same length, and its mean may include them."""
    made = load_as(HOPPER, BenchResult)
    changes = ({"batch": 1}, {"n_heads": 2}, {"seq_len": 640}, {"mask": "causal"}, {"kv_len": 77})
    shapes = [(one, Problem.model_validate(one.shape.model_dump() | own)) for one in made.summaries for own in changes]
    other = [one.model_copy(update={"shape": shape, "reference_tflops": 1.0}) for one, shape in shapes]
    means = [one.model_copy(update={"seq_lens": (640,)}) for one in made.means]
    before = anchors_of(folder)
    changed = made.model_copy(update={"summaries": (*other, *made.summaries), "means": (*means, *made.means)})
    write_result(folder / "hopper.json.gz", changed)
    assert anchors_of(folder) == before
    write_result(folder / "hopper.json.gz", made.model_copy(update={"summaries": tuple(other)}))
    left = anchors_of(folder)
    assert {one.name for one in left} == {"cudnn"}, "a sweep of other shapes alone does not count"
    assert all(len(one.summaries) == 6 for one in left)


FASTER = {512: 20, 1024: 20, 2048: 22, 4096: 21, 8192: 21, 16384: 20}  # a step of each length


def with_faster(made: BenchResult) -> BenchResult:
    """A run in which the steps of `FASTER` are so."""

    def raised(one: Summary) -> Summary:
        kernel = made.kernels.get(one.kernel)
        more = 1000.0 if kernel and FASTER[one.shape.seq_len] == kernel.iteration else 0.0
        percents = {"pct": one.pct + more, "pct_low": one.pct_low + more, "pct_high": one.pct_high + more}
        return one.model_copy(update=percents)

    return made.model_copy(update={"summaries": tuple(map(raised, made.summaries))})


def test_the_fastest_step_of_each_length_is_that_of_the_last_sweep(folder: Path) -> None:
    """By the mean over dtypes; a length without a sweep takes the step of the next shorter one."""
    made = load_as(HOPPER, BenchResult)
    steps = {kernel.iteration for kernel in made.kernels.values()}
    assert set(fastest_of(folder).values()) <= steps
    write_result(folder / "hopper.json.gz", with_faster(made))
    assert fastest_of(folder) == {1: 20, 2048: 22, 4096: 21, 16384: 20}


def test_the_fastest_step_with_a_mask_may_be_the_same_again_at_longer_rows(folder: Path) -> None:
    assert causal_of(folder) == {}
    write_result(folder / "causal.json.gz", with_faster(load_as(HOPPER, BenchResult)))
    assert causal_of(folder) == {1: 20, 2048: 22, 4096: 21, 16384: 20}


def test_a_sweep_of_another_kind_or_that_cannot_be_read_is_none(folder: Path) -> None:
    made = load_as(HOPPER, BenchResult)
    changes: tuple[dict[str, object], ...] = ({"purpose": "tune"}, {"references": {}}, {"mode": "event-locked"})
    for change in changes:
        write_result(folder / "hopper.json.gz", made.model_copy(update=change))
        assert {one.name for one in anchors_of(folder)} == {"cudnn"}
    (folder / "hopper.json.gz").write_bytes(b"not gzip")
    assert {one.name for one in anchors_of(folder)} == {"cudnn"}


def test_the_hosts_time_is_no_librarys_speed(folder: Path) -> None:
    """The cell and the mean are left out; without a cell at S = 4096 the library is, too."""
    made, before = load_as(HOPPER, BenchResult), {(one.name, one.dtype): one for one in anchors_of(folder)}
    write_result(folder / "hopper.json.gz", with_late(made, "fa4", "fp16", 1024))
    after = {(one.name, one.dtype): one for one in anchors_of(folder)}
    less = after.pop(("fa4", "fp16"))
    assert less.summaries == {n: one for n, one in before.pop(("fa4", "fp16")).summaries.items() if n != 1024}
    assert less.mean is None
    assert less.tflops
    assert after == before
    write_result(folder / "hopper.json.gz", with_late(made, "fa4", "fp16", 4096))
    assert {(one.name, one.dtype) for one in anchors_of(folder)} == before.keys()
