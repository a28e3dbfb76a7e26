"""Iterations: published configurations, inheritance, the arithmetic of claims, and folders that hold none."""

from __future__ import annotations

import csv
from dataclasses import asdict, replace
from functools import partial
import math
from pathlib import Path
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder.ablation import load_description
from flashladder.ladder.families.ampere import (
    AmpereConfig,
)
from flashladder.ladder.iteration import Claim, Iteration, claim_configs, load_all, load_iteration
from flashladder.names import GPUS
from flashladder.paths import ITERATIONS, RESULTS

LADDER = load_all()


PUBLISHED = RESULTS / "published"


# Which concern of a kernel each knob of the published configurations belongs to; tiles belong to none.
def rows(name: str) -> list[dict[str, str]]:
    """The rows of a table of published figures."""
    with (PUBLISHED / name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def as_config(row: dict[str, str]) -> AmpereConfig:
    """A row of published_configs.csv as a configuration."""
    knobs: dict[str, Any] = {name: int(row[name]) for name in list(row)[3:]}
    for name in ("async_copy", "eager_load_blocks", "swizzled", "mma_double_buffer_loads", "optimized_softmax"):
        knobs[name] = bool(knobs[name])
    return AmpereConfig(dtype=row["dtype"], **knobs)


@pytest.mark.parametrize("step", LADDER[1:], ids=lambda step: step.slug)
def test_parts_are_the_parents_plus_the_change(step: Iteration) -> None:
    parent = load_iteration(step.parent or 0)
    inherited = asdict(parent.parts) if parent.family is step.family else {}
    assert asdict(step.parts) == inherited | dict(step.change)


@pytest.mark.parametrize("row", rows("published_configs.csv"), ids=lambda row: f"{row['iteration']}-{row['gpu']}")
def test_configurations_are_the_published_winners(row: dict[str, str]) -> None:
    configs = load_iteration(int(row["iteration"])).configs
    for gpu in ("a100", "rtx3090") if row["gpu"] == "any" else (row["gpu"].lower(),):
        assert configs[gpu] == as_config(row)


@pytest.mark.parametrize("step", LADDER, ids=lambda step: step.slug)
def test_every_gpu_has_a_legal_fp16_configuration(step: Iteration) -> None:
    assert set(step.configs) == set(GPUS)
    for config in step.configs.values():
        assert config.dtype == "fp16"
        assert step.family.conflicts(step.parts, config) == ()
        assert step.family.fit(step.parts, config) == config


def test_an_absent_configuration_is_inherited(tmp_path: Path) -> None:
    for path in ITERATIONS.glob("*.yaml"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    (step,) = tmp_path.glob("08_*.yaml")
    (step.parent / step.name).write_text(
        "iteration: 8\ntitle: Static\nparent: 7\nwhy: A sentence about the mechanism, long enough to be read.\n"
        "change: {layout: xor_static}\nconfigs:\n  rtx3090: {load_tiles: [0, 2, 0]}\n",
        encoding="utf-8",
    )
    before, after = load_iteration(7, tmp_path), load_iteration(8, tmp_path)
    assert after.configs["a100"] == replace(before.configs["a100"], optimized_softmax=False)
    assert after.configs["rtx3090"].load_tiles == (0, 2, 0)
    assert after.configs["rtx3090"].mma_double_buffer_loads
    assert dict(after.own_configs) == {
        "rtx3090": {"Q_mma_load_K_tiles": 0, "K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 0}
    }


def test_any_serves_all_gpus_and_a_gpus_own_knobs_win(tmp_path: Path) -> None:
    text = next(ITERATIONS.glob("01_*.yaml")).read_text(encoding="utf-8")
    own = text.replace("n_warps: 4}\n", "n_warps: 4}\n  rtx3090: {B_c: 32}\n")
    (tmp_path / "01_base.yaml").write_text(own, encoding="utf-8")
    configs = load_iteration(1, tmp_path).configs
    assert [(configs[gpu].B_r, configs[gpu].B_c) for gpu in GPUS] == [(64, 64), (64, 32), (64, 64)]


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    text = next(ITERATIONS.glob("01_*.yaml")).read_text(encoding="utf-8")
    path = tmp_path / "01_base.yaml"
    path.write_text(text, encoding="utf-8")
    assert load_iteration(1, tmp_path).title == "Base implementation"
    path.write_text(text.replace("Base implementation", "Another title"), encoding="utf-8")
    assert load_iteration(1, tmp_path).title == "Another title"


@pytest.mark.parametrize("number", [0, 29, -1])
def test_unknown_numbers(number: int) -> None:
    with pytest.raises(FlashladderError) as caught:
        load_iteration(number)
    assert str(caught.value) == (f"no such iteration: expected a number from 1 to 28, found {number}")


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    for load in (load_all, partial(load_iteration, 1), partial(load_description, "1")):
        with pytest.raises(FlashladderError) as caught:
            load(folder=tmp_path)
        assert str(caught.value) == f"{tmp_path}: no iterations found: expected files named NN_name.yaml"
        assert caught.value.exit_code == 2
    with pytest.raises(FlashladderError, match=r"nowhere: cannot read the folder \(No such file or directory\)$"):
        load_all(tmp_path / "nowhere")


def test_tiles_that_the_threads_cannot_copy() -> None:
    small = "(FP16, 128, 64, 64, 2): async+eager+swizzled+load_2_2_2_tiles"
    reasons = load_iteration(1).family.conflicts(load_iteration(9).parts, AmpereConfig.parse(small))
    assert reasons == ("2 warps copy 4 rows at a time: the static swizzle needs a multiple of 8",)
    many = "(FP16, 128, 256, 32, 16): async+eager+swizzled+load_2_2_2_tiles"
    assert load_iteration(1).family.conflicts(load_iteration(15).parts, AmpereConfig.parse(many)) == (
        "B_r 256 and B_c 32: must be multiples of 64, the rows copied at a time",
    )
    odd = "(FP16, 128, 256, 16, 16): async+eager+swizzled+load_0_0_0_tiles+opt_softmax"
    assert load_iteration(1).family.conflicts(load_iteration(7).parts, AmpereConfig.parse(odd)) == (
        "B_c 16 with 16 warps: each warp copies four rows at a time",
    )


def test_a_link_that_leads_nowhere_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "01_base.yaml").symlink_to("gone.yaml")
    with pytest.raises(FlashladderError) as caught:
        load_iteration(1, tmp_path)
    assert str(caught.value) == f"{tmp_path}/01_base.yaml: cannot read the file (a link to a file that does not exist)"


def test_claims_are_made_at_equal_tiles() -> None:
    for step in LADDER[1:]:
        own, parent = claim_configs(step)
        if load_iteration(step.parent or 0).family is not step.family:
            assert parent is None
            continue
        assert parent is not None
        assert own.tile == parent.tile
        assert step.family.conflicts(step.parts, own) == ()
        assert step.family.conflicts(load_iteration(step.parent or 0).parts, parent) == ()
    assert claim_configs(LADDER[0])[1] is None
    own, _ = claim_configs(load_iteration(8))
    assert own.short_form() == "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles"


def test_claim_arithmetic() -> None:
    falls = Claim("A+B", "kernel", "falls", at_least=0.5)
    assert falls.holds({"A": 1, "B": 1}, {"A": 3, "B": 1})
    assert not falls.holds({"A": 1, "B": 2}, {"A": 3, "B": 1})
    assert not Claim("A", "kernel", "falls").holds({"A": 3}, {"A": 3})
    assert Claim("A", "kernel", "rises").holds({"A": 1}, {})
    assert Claim("total", "kernel", "equals").holds({"A": 1, "B": 2}, {"total": 3})
    assert not Claim("TYPO", "kernel", "equals").holds({"A": 1}, {"A": 1})
    assert Claim("A", "kernel", "equals").holds({"A": 0}, {"A": 0})
    assert not Claim("A/B", "kernel", "equals", value=0).holds({"A": 1, "B": 0})
    ratio = Claim("A/B", "kernel", "equals", value=32, within=0.01)
    assert ratio.holds({"A": 322, "B": 10})
    assert not ratio.holds({"A": 324, "B": 10})
    assert not Claim("A", "kernel", "equals", value=0).holds({"A": math.nan})
    assert not Claim("A", "kernel", "falls").holds({"A": math.nan}, {"A": 1})
    with pytest.raises(ValueError, match="needs the parent's counts"):
        falls.holds({"A": 1})


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (Claim("FMUL", "kernel", "falls", at_least=0.192), "FMUL falls by at least 19.2 %"),
        (Claim("IADD3+SHF", "main_loop", "falls"), "IADD3+SHF in the main loop falls"),
        (Claim("total", "kernel", "equals"), "total is unchanged"),
        (Claim("add.s64", "ptx", "rises", at_least=2), "add.s64 in the PTX rises by at least 200 %"),
        (Claim("LEA", "kernel", "falls", at_least=1, on=("sm_90",)), "LEA falls by at least 100 % (on sm_90 only)"),
        (Claim("A/B", "kernel", "equals", value=32, within=0.01), "A/B is 32 within 1 %"),
    ],
)
def test_claims_in_words(claim: Claim, words: str) -> None:
    assert str(claim) == words
