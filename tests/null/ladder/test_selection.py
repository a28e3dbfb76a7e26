"""Configurations: their names, the keys that select them, the tuning space and its exclusion rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder.config import EXAMPLE, KernelConfig
from flashladder.ladder.families.ampere import FAMILY, AmpereConfig
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
from flashladder.ladder.selection import one_config, select_configs

LADDER = load_all()


KEYS = "a100, h100, h200, rtx3090, rtx4090, prog, prog-all, all, tune"


tuning_space = FAMILY.tuning_space


TALL = "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_{}_tiles"


@pytest.mark.parametrize(("gpu", "whose"), [("h100", "h200"), ("rtx4090", "rtx3090")])
def test_a_gpu_that_is_not_tuned_for_names_the_configurations_that_it_runs(gpu: str, whose: str) -> None:
    for step in LADDER:
        assert one_config(step, gpu) == step.configs[whose]
        assert select_configs(step, f"prog:{gpu}") == select_configs(step, whose)


def winners(step: Iteration) -> set[KernelConfig]:
    """Of each GPU; of Ampere's rings an A100's alone: the others fill their own SM, which the space is not of."""
    return {config for gpu, config in step.configs.items() if gpu == "a100" or step.number not in (18, 19)}


@pytest.mark.parametrize("step", LADDER, ids=lambda step: step.slug)
def test_tune_is_all_minus_the_exclusions_and_holds_the_winners(step: Iteration) -> None:
    tune = set(select_configs(step, "tune", ("fp16",)))
    legal, family = step.family.legal_configs(step.parts), step.family
    assert tune == {config for config in legal if not any(rule.excludes(config) for rule in family.exclusions)}
    assert winners(step) <= tune
    assert tune < set(legal)


@pytest.mark.parametrize("number", [16, 22], ids=["ampere", "hopper"])
def test_every_rule_excludes_something_that_no_other_one_does(number: int) -> None:
    step = load_iteration(number)
    space = step.family.legal_configs(step.parts)
    for rule in step.family.exclusions:
        only = [config for config in space if [one.name for one in step.family.excluded_by(config)] == [rule.name]]
        assert only, f"{rule.name} is implied by the others"


def test_a_tile_is_a_slice_of_tune() -> None:
    step = load_iteration(16)
    chosen = select_configs(step, "128,64", ("fp16",))
    assert chosen == select_configs(step, "128, 64", ("fp16",))
    assert set(chosen) == {c for c in tuning_space(step.parts) if (c.B_r, c.B_c) == (128, 64)}
    tiles = {(c.B_r, c.B_c) for c in tuning_space(step.parts)}
    assert sum(len(select_configs(step, f"{r},{c}")) for r, c in tiles) == 2 * len(tuning_space(step.parts))


@pytest.mark.parametrize(
    ("number", "key", "message"),
    [
        (
            16,
            "porg",
            (
                f"no such configuration: expected one of {KEYS}, a tile such as 128,64, what "
                "`invoke list` prints, or a short form, found 'porg'; did you mean 'prog'?"
            ),
        ),
        (
            16,
            "96,64",
            (
                "no configuration with tile 96,64 in the tuning space of iteration 16: expected one of 64,64 64,128 "
                "128,32 128,64 128,128, found 96,64"
            ),
        ),
        (
            1,
            TALL.format("0_0_0"),
            (
                f"iteration 1 cannot express {TALL.format('0_0_0')}: expected a legal combination, found "
                "eager_load_blocks must be False: schedule lazy decides it"
            ),
        ),
    ],
)
def test_bad_keys(number: int, key: str, message: str) -> None:
    with pytest.raises(FlashladderError) as caught:
        select_configs(load_iteration(number), key)
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


SPELLINGS = {
    "h200": "64,64,4 0_0_2+opt",
    "prog:h200": "64,64,4 0_0_2+opt",
    "64,64,4 0_0_2+opt": "64,64,4 0_0_2+opt",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_0_2_tiles+opt_softmax": "64,64,4 0_0_2+opt",
    "rtx3090": "128,32,4 2_2_2+buffer+opt",
    "": "64,64,4 0_2_2+opt",
}


@pytest.mark.parametrize(("key", "brief"), SPELLINGS.items())
def test_one_spelling_in_every_command(key: str, brief: str) -> None:
    step = load_iteration(7)
    assert one_config(step, key).brief() == brief
    assert one_config(step, key, "bf16") == one_config(step, key).with_dtype("bf16")
    if key:
        assert select_configs(step, key, ("fp16",)) == (one_config(step, key),)


def test_what_the_list_prints_is_a_spelling_of_every_configuration() -> None:
    for step in LADDER:
        for config in step.family.legal_configs(step.parts):
            assert one_config(step, config.brief()) == config


@pytest.mark.parametrize(
    ("number", "key", "message"),
    [
        (
            8,
            "64,64",
            (
                "'64,64' names 11 configurations of iteration 8, and one is needed: expected a100, rtx3090, h200 or "
                "one of these, found 64,64,4 0_0_0; 64,64,4 0_0_2; 64,64,4 0_0_2+buffer; 64,64,4 0_2_0; "
                "64,64,4 0_2_0+buffer; 64,64,4 0_2_2 and 5 more"
            ),
        ),
        (
            4,
            "64,64,4 2_2_2+opt",
            (
                "iteration 4 cannot express 64,64,4 2_2_2+opt: expected a legal combination, found "
                "+opt: softmax exp in era runtime_offsets decides it"
            ),
        ),
    ],
)
def test_a_command_for_one_configuration_says_when_there_are_several(number: int, key: str, message: str) -> None:
    with pytest.raises(FlashladderError) as caught:
        one_config(load_iteration(number), key)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("64,64,4 9_9_9", "load size 9 of Q: must be "),
        ("256,256,4 0_0_0", "no +opt: softmax exp2_folded in era runtime_offsets decides it"),
        ("512,256,4 0_0_0", "262144 bytes of shared memory: "),
    ],
)
def test_a_sizes_mistake_comes_before_a_flag_that_the_parts_decide(text: str, found: str) -> None:
    with pytest.raises(FlashladderError) as caught:
        select_configs(load_iteration(7), text)
    assert f"cannot express {text}: expected a legal combination, found {found}" in str(caught.value)


FULL = AmpereConfig("fp16", 128, 64, 64, 4, True, True, True, 2, 2, 2, True, True)


BARE = AmpereConfig("bf16", 128, 128, 32, 8, True, False, False, 0, 0, 0, False, False)


SPACE = {c.with_dtype(d) for step in LADDER[:19] for c in FAMILY.legal_configs(step.parts) for d in ("fp16", "bf16")}


def test_short_form() -> None:
    assert FULL.short_form() == EXAMPLE
    assert str(FULL) == "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
    assert BARE.short_form() == "(BF16, 128, 128, 32, 8): async+load_0_0_0_tiles"


def test_round_trip_over_the_whole_space() -> None:
    assert len(SPACE) > 400
    for config in SPACE:
        assert AmpereConfig.parse(config.short_form()) == config


@pytest.mark.parametrize(
    "text",
    [
        "",
        "prog",
        EXAMPLE + " ",
        " " + EXAMPLE,
        EXAMPLE + "\n",
        EXAMPLE.lower(),
        EXAMPLE.replace("FP16", "FP32"),
        EXAMPLE.replace("FP16", "fp16"),
        EXAMPLE.replace(", 128", ",128"),
        EXAMPLE.replace("128", "0128"),
        EXAMPLE.replace("64, 64", "64"),
        EXAMPLE.replace("64, 64", "0, 64"),
        EXAMPLE.replace("64, 64", "-64, 64"),
        EXAMPLE.replace("eager+swizzled", "swizzled+eager"),
        EXAMPLE.replace("buffer+opt_softmax", "opt_softmax+buffer"),
        EXAMPLE.replace("+buffer", "+buffer+buffer"),
        EXAMPLE.replace("load_2_2_2_tiles", "load_2_2_tiles"),
        EXAMPLE.replace("load_2_2_2_tiles", "load_2_2_2"),
        EXAMPLE.replace("load_2_2_2_tiles", "load_02_2_2_tiles"),
        EXAMPLE.replace("4)", "\N{ARABIC-INDIC DIGIT FOUR})"),
        "(FP16, 128, 128, 128, 2): stages_02_2",
        "(FP16, 128, 128, 128, 2): stages_2_2+registers_0_0",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(FlashladderError) as caught:
        KernelConfig.parse(text)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dtype", "fp32", "bad kernel configuration, dtype: expected fp16 or bf16, found 'fp32'"),
        ("B_r", 0, "bad kernel configuration, B_r: expected 1 or more, found 0"),
        ("B_c", 64.0, "bad kernel configuration, B_c: expected an integer, found 64.0"),
        ("n_warps", True, "bad kernel configuration, n_warps: expected an integer, found True"),
        ("V_mma_load_K_tiles", -2, "bad kernel configuration, V_mma_load_K_tiles: expected 0 or more, found -2"),
        ("swizzled", 1, "bad kernel configuration, swizzled: expected True or False, found 1"),
    ],
)
def test_impossible_fields(field: str, value: Any, message: str) -> None:
    values: dict[str, Any] = {field: value}
    with pytest.raises(FlashladderError) as caught:
        replace(FULL, **values)
    assert str(caught.value) == message
