"""Kernel configurations: names, sizes and the short form, over everything that the ladder can express."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder.config import EXAMPLE, KernelConfig
from flashladder.ladder.families.ampere import FAMILY, AmpereConfig
from flashladder.ladder.iteration import load_all

FULL = AmpereConfig("fp16", 128, 64, 64, 4, True, True, True, 2, 2, 2, True, True)
BARE = AmpereConfig("bf16", 128, 128, 32, 8, True, False, False, 0, 0, 0, False, False)
LADDER = [step for step in load_all() if step.family is FAMILY]
SPACE = {c.with_dtype(d) for step in LADDER for c in FAMILY.legal_configs(step.parts) for d in ("fp16", "bf16")}


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
