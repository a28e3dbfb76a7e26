"""What is suggested for a misspelt name: the word that it can only mean, never another GPU, architecture or opcode."""

from __future__ import annotations

import pytest

from flashladder.errors import FlashladderError
from flashladder.located import closest, is_of_a_file
from flashladder.machine_code.opcodes import unknown

FLAGS = ("--grid", "--dry-run", "--gpus", "--retry", "--config", "--counters")
GPUS = ("a100", "h100", "h200", "rtx3090", "rtx4090")


@pytest.mark.parametrize(
    ("typed", "candidates", "expected"),
    [
        ("--gird", FLAGS, "--grid"),
        ("--cnofig", FLAGS, "--config"),
        ("--dry_run", FLAGS, "--dry-run"),
        ("--retri", FLAGS, "--retry"),
        ("--gpu", FLAGS, "--gpus"),
        ("perstent", ("persistent", "ping_pong"), "persistent"),
        ("pingpong", ("persistent", "ping_pong"), "ping_pong"),
        ("smok", ("smoke", "split"), "smoke"),
        ("A100 ", GPUS, "a100"),
        ("RTX 3090", GPUS, "rtx3090"),
    ],
)
def test_a_slip_of_the_keyboard_is_answered_with_the_word(
    typed: str, candidates: tuple[str, ...], expected: str
) -> None:
    assert closest(typed, candidates) == f"did you mean {expected!r}?"


@pytest.mark.parametrize(
    "typed", ["b200", "b100", "a10", "h20", "h2000", "a1000", "rtx3080", "rtx5090", "3090", "v100"]
)
def test_another_gpu_is_no_slip(typed: str) -> None:
    assert closest(typed, GPUS) is None


@pytest.mark.parametrize("typed", ["FOO", "FOO.E.128", "DMUK", "IADD4", "FFMA3"])
def test_another_opcode_is_no_slip(typed: str) -> None:
    wrong = unknown(typed, "sass")
    assert wrong is not None
    assert wrong[1] is None


@pytest.mark.parametrize("typed", ["fp8", "fp32", "bf", "77", "", "-", "nosuch"])
def test_what_is_no_name_gets_no_guess(typed: str) -> None:
    assert closest(typed, ("fp16", "bf16", "bench", "1", "7")) is None


@pytest.mark.parametrize(
    ("where", "of_a_file"),
    [
        ("iterations/07_x.yaml:3", True),
        ("kernels/x.cuh", True),
        ("a.json", True),
        ("iteration 3", False),
        (None, False),
    ],
)
def test_an_error_that_names_a_file_is_told_as_it_is(where: str | None, *, of_a_file: bool) -> None:
    assert is_of_a_file(FlashladderError("x", where=where)) == of_a_file
