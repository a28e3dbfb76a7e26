"""Families: known by being there, named in a file, each with its own configurations, GPUs and cells."""

from __future__ import annotations

import argparse
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from flashladder.bench import command as bench
from flashladder.check import command as check
from flashladder.errors import FlashladderError
from flashladder.ladder.config import EXAMPLE, KernelConfig
from flashladder.ladder.families.ampere import FAMILY, Ampere, AmpereConfig
from flashladder.ladder.families.hopper import FAMILY as HOPPER
from flashladder.ladder.family import families, family_named, register
from flashladder.ladder.grid import load_grid, runnable
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.ladder.iteration import runnable as iterations_that_run
from flashladder.ladder.selection import select_configs
from flashladder.sweep import command as sweep


class Newer(Ampere):
    """As Ampere, on later GPUs."""

    name = "newer"
    least_capability = (10, 3)


class Other(KernelConfig):
    """Another family's, of which a test needs no more than that it is one."""

    @classmethod
    def match(cls, text: str) -> Other | None:
        return object.__new__(_Made) if text == "other" else None


class _Made(Other):
    n_threads, smem_bytes, tile, dtype = 32, 0, "1,1,1", "fp16"

    def short_form(self) -> str:
        return "other"

    brief = slug = short_form

    def with_dtype(self, dtype: str) -> _Made:
        del dtype
        return self


def test_the_ladder_is_of_the_default_family_and_goes_on_in_another() -> None:
    assert families() == (FAMILY, HOPPER)
    assert [step.family for step in load_all()] == [FAMILY] * 19 + [HOPPER] * (len(load_all()) - 19)
    assert family_named("ampere") is FAMILY
    assert FAMILY.concerns[0] == "layout"
    assert FAMILY.targets.ptx == "compute_80"


def test_another_family_of_the_same_name_is_refused() -> None:
    class Twin(Ampere):
        """Not Ampere."""

    assert register(Ampere()) is FAMILY
    with pytest.raises(FlashladderError, match="two families of one name"):
        register(Twin())


@pytest.mark.parametrize("name", ["hoper", 7, None, ["ampere"]])
def test_an_unknown_family_is_refused(name: object) -> None:
    with pytest.raises(FlashladderError, match="no such family of kernels: expected ampere or hopper, found"):
        family_named(name)


def test_a_short_form_is_parsed_by_its_own_family() -> None:
    assert isinstance(KernelConfig.parse(EXAMPLE), AmpereConfig)
    assert isinstance(KernelConfig.parse("other"), Other)
    with pytest.raises(FlashladderError, match="not the short form of a kernel configuration"):
        AmpereConfig.parse("other")


def test_an_iteration_cannot_express_another_familys_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    step = load_iteration(16)
    monkeypatch.setattr(FAMILY, "of_brief", lambda _parts, _text: KernelConfig.parse("other"))
    with pytest.raises(FlashladderError, match=r"a configuration of the family ampere, .* found another family's"):
        select_configs(step, "other")


def test_a_gpu_runs_what_it_can() -> None:
    newer = Newer()
    assert [arch for arch in ("sm_80", "sm_90a", "sm_100", "sm_103", "sm_120") if newer.runs_on(arch)] == [
        "sm_103", "sm_120",
    ]  # fmt: skip
    step = replace(load_iteration(16), family=newer)
    assert step.not_run_on("sm_103") == ""
    assert step.not_run_on("sm_90") == "iteration 16: not run here: needs compute capability 10.3 or later"
    said: list[str] = []
    assert iterations_that_run([1, 16], "sm_75", said.append) == []
    assert said == [f"iteration {number}: not run here: needs compute capability 8.0 or later" for number in (1, 16)]


def test_cells_that_a_gpu_cannot_run_are_left_out_with_their_reason() -> None:
    grid = load_grid("smoke")
    assert runnable(grid, "sm_90") == grid
    newer = tuple(
        replace(cell, iteration=replace(cell.iteration, family=Newer())) if cell.iteration.number == 16 else cell
        for cell in grid.cells
    )
    mixed = runnable(replace(grid, cells=newer), "sm_90")
    left = sum(cell.iteration.number == 16 for cell in grid.cells)
    assert len(mixed.cells) == len(grid.cells) - left > 0 < left
    assert mixed.excluded[-1] == (left, "iteration 16: not run here: needs compute capability 10.3 or later")
    with pytest.raises(FlashladderError, match="no cell of the grid runs here"):
        runnable(grid, "sm_75")


def test_what_a_gpu_cannot_run_is_neither_timed_nor_checked_nor_swept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FAMILY, "runs_on", lambda _: False)
    device: Any = SimpleNamespace(gpu=SimpleNamespace(arch="sm_90", uuid="GPU-0"))
    options = argparse.Namespace(numbers=[16], configs=["a100"], dtypes=["fp16"], tune=False, out=None, budget=None)
    with pytest.raises(FlashladderError, match="no kernel to time"):
        bench.choose(options, "sm_90")
    assert check.run_checks([16], options, device).cases == ()
    assert capsys.readouterr().out.count("iteration 16: not run here: needs compute capability 8.0 or later") == 2
    place: Any = SimpleNamespace(arch="sm_90", machine="h200")
    with pytest.raises(FlashladderError, match="no cell of the grid runs here"):
        sweep.measure(load_grid("smoke"), place, options)
