"""`trace` names the first wrong intermediate of a wrong kernel, and where it is: KV block, warp, row and column.

Mistakes in the scale, the maximum, the sum, the rescaling, the conversion of P, the indexing of V and the rows of Q,
each in an early iteration and in a late one; a needle: one accumulator of one lane in one KV block; from iteration 17
on the vote, the threshold and the rescaling of a stale maximum, which rows are heavy and which start so, and the
stages of rings.
"""

from __future__ import annotations

from dataclasses import dataclass
import re

import pytest

from flashladder.emulate.kernel import kernel_of
from flashladder.ladder.iteration import load_iteration
from flashladder.problem import Problem
from flashladder.trace import compare
from flashladder.trace.command import verdict
from flashladder.trace.compare import Trace, trace
import ptxemu
from ptxemu.values import Array
from tests.broken.wrong_kernels import Edit, WrongKernel, made, ptx_of, read_all

pytestmark = pytest.mark.nvcc
RUNTIME, STATIC = (f"kernels/ampere/flash_fwd_{which}_offsets.cuh" for which in ("runtime", "static"))
STALE, RINGS = "kernels/ampere/softmax/exp2_stale.cuh", "kernels/ampere/flash_fwd_rings.cuh"
SEQ_LEN = 256  # as the command has it
FILL = compare.fill


def own(name: str, iteration: int, file: str, old: str, new: str) -> WrongKernel:
    """A wrong kernel of this file's."""
    edit = Edit(file=file, old=old, new=new)
    return WrongKernel(name=name, story=name, iteration=iteration, edits=(edit,), case="-", evidence="numbers")


STARTS = "n_kv_blocks >= 512 / keys && n_kv_blocks < 1024 / keys"
NEEDLE = "if (block == 1 && threadIdx.x == 77) cta.s[{m}][5][3] -= 0.25f;"
OWN = (
    own("v_columns_swapped", 3, RUNTIME, "lane % 16, 2 * n + lane / 16", "lane % 16, 2 * (n ^ 1) + lane / 16"),
    own("v_of_the_next_16_keys", 11, STATIC, "regs[n], lane.at(t, n)", "regs[n], lane.at(t ^ 1, n)"),
    own("needle", 14, "kernels/ampere/schedule/backward.cuh", "cta.qk_matmul();",
        f"cta.qk_matmul(); {NEEDLE.format(m=1)}"),
    own("stale_o_not_rescaled", 17, STALE, "rescale(i / 2, i % 2, correction);", ""),
    own("stale_sum_not_rescaled", 18, STALE, "l *= correction;", ""),
    own("stale_threshold_never_met", 18, STALE, "-stats.m[i / 2][i % 2]) > slack", "-stats.m[i / 2][i % 2]) > 64.0f"),
    own("heavy_rows_have_slack", 17, STALE, "quad_sum(l) * lighter < due", "false"),
    own("rows_are_heavy_by_half_their_sum", 19, STALE, "return sum + ptx::shuffle_xor(sum, 1);", "return sum;"),
    own("every_row_starts_light", 17, STALE, STARTS, "true"),
    own("every_row_starts_heavy", 18, STALE, STARTS, "false"),
    own("lanes_never_apart", 19, STALE, "apart = 4.0f", "apart = 64.0f"),
    own("stale_vote_of_one_lane", 17, STALE, "__any_sync(0xffffffffu, any)", "__shfl_sync(0xffffffffu, any, 0)"),
    own("stale_maximum_of_half_the_quad", 19, STALE, "return fmaxf(best, ptx::shuffle_xor(best, 1));", "return best;"),
    own("v_of_the_other_stage", 18, RINGS, "v_source{v_first + stage(block)}", "v_source{v_first + stage(block / 2)}"),
    own("k_of_the_first_stage", 19, RINGS, "k_source{k_first + stage(block)}", "k_source{k_first + stage(0)}"),
)  # fmt: skip


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


PLANTED = {
    # scale
    "scale_of_half_the_head": Found("S_scaled", 0, 1, 0, 0, 0, 0, r"softmax/exp\.cuh:"),
    "scale_without_log2e": Found("P", 3, 1, 0, 0, 0, 0, r"look at the scale"),
    # maximum
    "maximum_of_this_block_alone": Found("m", 1, 2, 3, None, 0, 12, r"softmax/rows\.cuh:"),
    "maximum_of_half_the_columns_bf16": Found("m", 0, 1, 0, None, 0, 0, r"maximum over the row"),
    # sum
    "sum_not_rescaled": Found("l", 1, 2, 0, None, 0, 0, r"its correction to the new maximum"),
    "sum_in_fp16": Found("l", 3, 1, 0, None, 0, 0, r"row_sum|sum over the row"),
    # rescaling
    "o_not_rescaled": Found("O_rescaled", 1, 2, 0, 0, 0, 0, r"O's correction"),
    "o_rescaled_in_every_second_row": Found("O_rescaled", 1, 2, 8, 0, 0, 0, r"rows 8-14, 24-"),
    # conversion of P
    "truncation_bf16": Found("P16", 0, 1, 0, 0, 0, 0, r"conversion to 16 bits"),
    "p_truncated": Found("P16", 3, 1, 0, 3, 0, 1, r"conversion to 16 bits"),
    # V
    "v_columns_swapped": Found("O", 0, 1, 0, 0, 0, 0, r"V's column 16\n"),
    "v_of_the_next_16_keys": Found("O", 0, 1, 0, 0, 0, 0, r"which rows and columns of V"),
    # Q
    "q_of_the_next_warp": Found("S", 0, 1, 0, 0, 0, 0, r"the row is that of query 16\n"),
    # a stale maximum
    "stale_vote_of_one_lane": Found("m", 6, 2, 64, None, 2, 0, r"or the vote"),
    "stale_threshold_never_met": Found("m", 6, 2, 0, None, 0, 0, r"in use, .*; 1000 of 1024 differ"),
    "stale_maximum_of_half_the_quad": Found("m", 7, 1, 0, None, 0, 0, r"or the vote"),
    "heavy_rows_have_slack": Found("m", 6, 2, 8, None, 0, 0, r"or the vote"),
    "rows_are_heavy_by_half_their_sum": Found("m", 6, 2, 0, None, 0, 0, r"or the vote"),
    "every_row_starts_light": Found("m", 7, 1, 0, None, 0, 0, r"or the vote"),
    "every_row_starts_heavy": Found("m", 15, 1, 0, None, 0, 0, r"or the vote", seq_len=512),
    "lanes_never_apart": Found("m", 15, 1, 1, None, 0, 4, r"or the vote", seq_len=512),
    "stale_o_not_rescaled": Found("O_rescaled", 6, 2, 0, 0, 0, 0, r"O's correction"),
    "stale_sum_not_rescaled": Found("l", 6, 2, 0, None, 0, 0, r"its correction"),
    # rings
    "k_of_the_first_stage": Found("S", 6, 2, 0, 0, 0, 0, r"the row is that of keys 224 to 255\n"),
    "v_of_the_other_stage": Found("O", 6, 2, 0, 0, 0, 0, r"P V of V's rows 224 to 255\n"),
    # behind the last KV block
    "sum_not_shared": Found("out", None, 5, 0, 0, 0, 0, r"l's sum over the quad"),
    # one element: n-tile 5, element 3 of m-tile 1 or 0, thread 77 = warp 2, lane 13 (g = 3, t = 1)
    "needle": Found("P", 1, 3, 2 * 32 + 16 + 8 + 3, 5 * 8 + 2 + 1, 2, 13, r"; 2 of 16384 differ, in 2 of 2 CTAs"),
}


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


BEYOND = (
    own("rows_of_any_size_become_heavy", 17, STALE, " && marks(heavy_m);", ";"),
    own("an_odd_maximum_of_any_size_is_heavy", 19, STALE, "return marks(m) && (__float", "return (__float"),
)
"""What shows where m is 2^10 or more, and is brought up behind the first block."""


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
