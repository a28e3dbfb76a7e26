"""``invoke trace`` on the PTX that ships: every iteration is read and right, and its screens say what they should."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder.ablation import load_description
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.names import INTERMEDIATES, PUBLISHED_GPU
from flashladder.problem import Problem
from flashladder.trace.compare import trace
from tests.typed import command

pytestmark = pytest.mark.nvcc
NUMBERS = [iteration.number for iteration in load_all() if iteration.family.warps_alike]  # trace refuses the others


@pytest.mark.parametrize("number", NUMBERS)
def test_an_iterations_intermediates_are_those_of_the_reference(number: int) -> None:
    step = load_iteration(number)
    config = step.configs[PUBLISHED_GPU].with_dtype(("fp16", "bf16")[number % 2])
    shape = Problem(batch=1, seq_len=2 * max(config.B_r, config.B_c), n_heads=1, d_head=128)
    found = trace(step, config, shape, seed=number)
    assert found.passed, found.first
    assert found.backward == (step.parts.schedule in ("backward", "rings"))
    names = [one.name for one in found.comparisons]
    per_block = [name for name in INTERMEDIATES[:-1] if name != "S_scaled" or step.parts.softmax == "exp"]
    assert names == [*per_block * (shape.seq_len // config.B_c), "out"]
    assert found.steps[0]["S"].array.std() > 5  # N(0, 1): sqrt(128), not a tensor of zeros
    assert all(one.worst.maker is not None for one in found.comparisons if one.block is not None)


@pytest.mark.parametrize(
    ("description", "gpu", "heads"),
    [("16 - swizzle", "a100", 2), ("16", "h200", 3), ("7", "rtx3090", 1), ("18", "rtx3090", 1), ("17", "h200", 2)],
)
def test_other_configurations_ablations_and_heads_are_read_too(description: str, gpu: str, heads: int) -> None:
    step = load_description(description)
    shape = Problem(batch=2, seq_len=step.configs[gpu].B_r, n_heads=heads, d_head=128)
    found = trace(step, step.configs[gpu], shape, contents="range")
    assert found.passed, found.first
    assert {cta[1:] for cta in found.ctas} == {(head, sample) for head in range(heads) for sample in range(2)}


@pytest.mark.parametrize(("number", "gpu", "seq_len"), [(17, "a100", 512), (18, "h200", 512), (19, "a100", 1024)])
def test_rows_start_as_their_length_says(number: int, gpu: str, seq_len: int) -> None:
    step = load_iteration(number)
    found = trace(step, step.configs[gpu], Problem(batch=1, seq_len=seq_len, n_heads=1, d_head=128))
    assert found.passed, found.first
    marked = (found.steps[0]["m"].array.view(np.uint32) & 1).astype(bool)  # the next block takes such a row for heavy
    assert 0.9 < 1 - marked.mean() < 1 if seq_len == 512 else marked.all()


def test_the_screen_and_the_values_at_a_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("trace", "13", "--input", "range", "--show", "S", "--block", "2", "--at", "16,8") == 0
    page = capsys.readouterr().out
    assert "4 KV blocks of 64 keys, last to first" in page
    assert re.search(r"^3 +S +0\.0e\+00 ", page, re.MULTILINE)  # the first row: block 3, exact numbers
    assert "no difference beyond rounding" in page
    assert "S of CTA (0, 0, 0), KV block 2, kernel" in page
    assert re.search(r"^ +16  16136  16137  16138", page, re.MULTILINE)  # row 16, key 128 + 8
    assert max(map(len, page.split("no difference")[0].splitlines())) <= 100


def test_json_has_every_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("trace", "1", "--seq-len", "64", "--dtype", "bf16", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["right"] is True
    assert facts["first_difference"] is None
    assert facts["kv_blocks"] == {"visited": 1, "expected": 1, "backward": False}
    assert [one["what"] for one in facts["comparisons"]] == list(INTERMEDIATES)
    p16 = facts["comparisons"][INTERMEDIATES.index("P16")]
    assert p16["elements"] == 64 * 64
    assert 0 < p16["max_error"] <= 2.0**-9  # half a unit of bf16 below 1
    assert 0.5 < p16["of_allowed"] <= 1
    assert p16["worst"]["instruction"].startswith("cvt.rn.bf16x2.f32")


@pytest.mark.parametrize(
    ("words", "says"),
    [(["S_scaled"], "iteration 13 has no S_scaled"), (["m", "--block", "9"], "a whole number from 0 to 1, found .9.")],
)
def test_what_an_iteration_does_not_have_is_refused(words: list[str], says: str) -> None:
    with pytest.raises(FlashladderError, match=says):
        command("trace", "13", "--seq-len", "128", "--show", *words)
