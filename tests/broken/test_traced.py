"""`trace` names the first wrong intermediate of a wrong kernel, and where it is: KV block, warp, row and column.

Mistakes in the scale, the maximum, the sum, the rescaling, the conversion of P, the indexing of V and the rows of Q,
each in an early iteration and in a late one; a needle: one accumulator of one lane in one KV block; from iteration 17
on the vote, the threshold and the rescaling of a stale maximum, which rows are heavy and which start so, and the
stages of rings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
import re

import pytest
import yaml

from flashladder.emulate.kernel import kernel_of
from flashladder.ladder.iteration import load_iteration
from flashladder.problem import Problem
from flashladder.trace import compare
from flashladder.trace.command import verdict
from flashladder.trace.compare import Trace, trace
import ptxemu
from ptxemu.values import Array
from tests.broken.wrong_kernels import WrongKernel, made, ptx_of, read_all

pytestmark = pytest.mark.nvcc
TABLE = yaml.safe_load(Path(__file__).with_name("traced.yaml").read_text(encoding="utf-8"))
SEQ_LEN = 256  # as the command has it
FILL = compare.fill


def wrong_kernels(section: str) -> tuple[WrongKernel, ...]:
    """The wrong kernels of a section of ``traced.yaml``."""
    return tuple(
        WrongKernel(name=name, story=name, case="-", evidence="numbers", **one) for name, one in TABLE[section].items()
    )


OWN, BEYOND = wrong_kernels("own"), wrong_kernels("beyond")


@dataclass(frozen=True)
class Found:
    """What has to be found first, in which KV block and at which visit, and by whom it is held; then what it says."""

    what: str
    block: int | None
    visit: int
    row: int
    column: int | None
    warp: int
    lane: int
    says: str = ""
    seq_len: int = SEQ_LEN


PLANTED = {name: Found(*expected) for name, expected in TABLE["found"].items()}


def traced(wrong: WrongKernel, seq_len: int) -> Trace:
    """The trace of a wrong kernel at the shape that the command takes, or longer."""
    step = load_iteration(wrong.iteration)
    config = step.configs["a100"].with_dtype(wrong.dtype)
    if wrong in (*OWN, *BEYOND):
        with made(wrong) as kernels:
            kernel = kernel_of(step, config, kernels)
    else:
        kernel = ptxemu.load(ptx_of(wrong), path=f"{wrong.name}/kernel.ptx").kernel()
    return trace(step, config, Problem(batch=1, seq_len=seq_len, n_heads=1, d_head=128), kernel=kernel)


@pytest.mark.parametrize("name", PLANTED)
def test_a_mistake_is_found_where_it_is_made(name: str) -> None:
    (wrong,) = (one for one in (*OWN, *read_all()) if one.name == name)
    expected = PLANTED[name]
    found = traced(wrong, expected.seq_len)
    said = "\n".join(verdict(found))
    assert not found.passed
    first = found.first
    assert first is not None
    assert first.first is not None
    place = first.first
    seen = (first.name, first.block, first.step + 1, place.row, place.column, place.warp)
    assert seen == (expected.what, expected.block, expected.visit, expected.row, expected.column, expected.warp)
    assert place.lane == (None if expected.block is None else expected.lane)
    assert re.search(expected.says, said), said


def large(_name: str, q: Array, k: Array, v: Array) -> None:
    """S[i, j] is 1000 i in odd rows; in even ones it rises from there, by four powers of two from block to block."""
    FILL("range", q, k, v)
    k[...] = k[:, ::-1].copy()
    q[:, 1::2, :, 2:4] = 0


@pytest.mark.parametrize("number", [17, 19])
def test_beyond_where_the_last_bit_counts_rows_are_right(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "fill", large)
    step = load_iteration(number)
    found = trace(step, step.configs["a100"], Problem(batch=1, seq_len=SEQ_LEN, n_heads=1, d_head=128))
    assert found.passed, found.first
    first, second = (one["m"].array[..., 0] for one in found.steps[:2])
    assert (first[second != first] >= 1024).mean() > 0.9


@pytest.mark.parametrize("wrong", BEYOND, ids=str)
def test_a_mistake_is_found_where_m_is_beyond_its_mark(wrong: WrongKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "fill", large)
    found = traced(wrong, SEQ_LEN)
    assert not found.passed
    assert found.first is not None
    assert (found.first.name, found.first.step) == ("m", 1)
