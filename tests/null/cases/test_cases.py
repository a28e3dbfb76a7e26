"""Cases of the check: inputs, the reference, the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
import math
import mmap
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from flashladder.cases import inputs
from flashladder.cases.inputs import (
    BESIDE,
    CONSTANT,
    CONTENTS,
    EDGES,
    ENDING,
    HEAVY,
    LOGITS,
    LONE,
    Case,
    Tensors,
    far_stride,
    make_tensors,
)
from flashladder.cases.reference import (
    Expected,
    References,
    accuracy,
    attention_fp64,
    attention_torch16,
    choose_slices,
    compared_slices,
)
from flashladder.problem import Mask, Problem
from tests.null.check.test_check import attention, parts
from tests.typed import error_line

SMALL = Problem(batch=2, seq_len=64, n_heads=3, d_head=128)


def logits(content: str, seq_len: int = 256) -> torch.Tensor:
    """(seq_len, seq_len) scores of one slice with this content."""
    shape = Problem(batch=1, seq_len=seq_len, n_heads=1, d_head=128)
    tensors = make_tensors(Case(content, shape, contents=(content,)), "bf16", "cpu")
    q, k = tensors.q[0, :, 0].double(), tensors.k[0, :, 0].double()
    return q @ k.T / math.sqrt(128)


def test_inputs_repeat_with_their_seed_and_are_normal() -> None:
    case = Case("inputs", Problem(batch=2, seq_len=256, n_heads=4, d_head=128), seed=5)
    first, again = (make_tensors(case, "bf16", "cpu") for _ in range(2))
    assert torch.equal(first.q, again.q)
    assert not torch.equal(first.q, first.k)
    assert abs(float(first.q.float().std()) - 1) < 0.02
    assert torch.isnan(first.out).all()


@pytest.mark.parametrize(
    ("view", "make"),
    [
        ("contiguous", lambda b, s, h: torch.zeros(b, s, h, 128)),
        ("transposed", lambda b, s, h: torch.zeros(b, h, s, 128).transpose(1, 2)),
        ("head_slice", lambda b, s, h: torch.zeros(b, s, 16, 128)[:, :, 1 : 1 + h]),
        ("packed", lambda b, s, h: torch.zeros(b, s, 3, h, 128)[:, :, 0]),
        ("sliced", lambda b, s, h: torch.zeros(2 * b, s + 64, h, 128)[::2, 32 : 32 + s]),
    ],
)
def test_a_view_lies_as_torch_lays_it(view: inputs.View, make: Callable[[int, int, int], torch.Tensor]) -> None:
    wanted = make(2, 64, 3)
    found = make_tensors(Case("view", SMALL, view), "fp16", "cpu")
    assert found.q.stride() == wanted.stride()
    assert found.q.storage_offset() == wanted.storage_offset()
    assert found.out.shape == (2, 64, 3, 128)


@pytest.mark.parametrize("view", ["mixed", "mixed_slots"])
@pytest.mark.parametrize("heads", [2, 4])
def test_mixed_tensors_differ_in_every_stride_and_offset(view: inputs.View, heads: int) -> None:
    shape = Problem(batch=2, seq_len=128, n_heads=heads, d_head=128)
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for turn in range(4):
        tensors = make_tensors(Case("mixed", shape, view, turn=turn), "fp16", "cpu")
        four = (tensors.q, tensors.k, tensors.v, tensors.out)
        for one, other in combinations(four, 2):
            assert one.storage_offset() != other.storage_offset()
            assert one.stride(0) != other.stride(0)
            assert one.stride(2) != other.stride(2)
            assert (one.stride(1) != other.stride(1)) == (view == "mixed")
        assert all(stride % 8 == 0 for one in four for stride in (*one.stride()[:3], one.storage_offset()))
        assert sum(one.storage_offset() % 64 != 0 for one in four) >= 3  # 16-byte aligned, but not to a line
        seen |= {(name, one.stride()) for name, one in zip("qkvo", four, strict=True)}
        assert view == "mixed" or tensors.row_strides == {2048}
    assert len(seen) == 16  # each tensor in each layout


def test_one_tensor_alone_has_another_row_stride() -> None:
    for turn in range(4):
        tensors = make_tensors(Case("one", SMALL, "one_off", turn=turn), "fp16", "cpu")
        strides = [one.stride(1) for one in (tensors.q, tensors.k, tensors.v, tensors.out)]
        assert [number for number, stride in enumerate(strides) if stride != 2048] == [turn]


def test_around_the_inputs_all_is_nan() -> None:
    for view in ("head_slice", "sliced", "mixed", "mixed_slots"):
        tensors = make_tensors(Case("view", SMALL, view), "fp16", "cpu")
        for one in (tensors.q, tensors.k, tensors.v):
            storage = torch.empty(0, dtype=one.dtype).set_(one.untyped_storage())
            assert int(torch.isfinite(storage).sum()) == one.numel()
            assert torch.isnan(storage[0])
            assert torch.isnan(storage[-1])


@pytest.mark.parametrize(
    ("view", "shape", "axis"),
    [("far_rows", (1, 128, 1), 1), ("far_heads", (2, 64, 2), 2), ("far_samples", (2, 64, 2), 0)],
)
def test_a_far_view_passes_32_bits_in_one_stride_and_takes_no_memory(
    view: inputs.View, shape: tuple[int, int, int], axis: int
) -> None:
    batch, length, heads = shape
    size = Problem(batch=batch, seq_len=length, n_heads=heads, d_head=128)
    far = far_stride(shape[axis])
    tensors = make_tensors(Case("far", size, view, far_bytes=far), "bf16", "cpu")
    four = (tensors.q, tensors.k, tensors.v, tensors.out)
    for one in four:
        assert 2 * one.stride(axis) == far
        assert 2 * one.stride(axis) * (shape[axis] - 1) > 2**32
        assert 2 * one.stride(1) < 2**31  # what the launcher takes
        assert all(2 * one.stride(other) < 2**25 for other in range(3) if other != axis and shape[other] > 1)
    assert len({one.data_ptr() for one in four}) == 4
    assert torch.isfinite(torch.stack(four[:3])).all()  # none overlaps O or another's poison
    assert tensors.poisoned.all()
    assert tensors.out_base.numel() == 2 * tensors.out.numel()
    before = torch.isnan(tensors.out_base).sum()
    storage = torch.empty(0, dtype=torch.bfloat16).set_(tensors.out.untyped_storage())
    storage[tensors.out.storage_offset() - 1] = 0.0
    storage[tensors.out.storage_offset() + 128] = 0.0
    assert int(before - torch.isnan(tensors.out_base).sum()) == 2


def test_no_address_space_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "mmap", Mock(side_effect=OSError(12, "Cannot allocate memory")))
    case = Case("far", Problem(batch=1, seq_len=64, n_heads=2, d_head=128), "far_heads", far_bytes=far_stride(2))
    assert "address space for a sparse tensor" in error_line(make_tensors, case, "fp16", "cpu")


def test_contents_put_the_logits_where_they_say() -> None:
    below, above = logits("far below zero"), logits("far above zero")
    assert below.max() < -70
    assert above.min() > 70
    assert above.max() > 89  # where exp overflows in fp32
    first, last = logits("first key"), logits("last key")
    assert (first.argmax(1) == 1).double().mean() > 0.95
    assert (last.argmax(1) == 254).double().mean() > 0.95
    for scores in (logits("rising"), logits("falling").flip(1)):
        blocks = scores.view(256, 4, 64).amax(2)
        assert (blocks.diff(dim=1) > 0).double().mean() > 0.8
        assert (blocks[:, -1] > blocks[:, 0]).all()
    deep = logits("deep below zero")
    assert deep.max() < -1.1e4
    assert torch.equal(deep * math.sqrt(128), torch.full_like(deep, -(2.0**17)))
    assert logits("plunging")[:, 64:].max() < -70
    assert logits("plunging")[:, :64].min() > 70
    for half, name in enumerate(("left spikes", "right spikes")):
        halves = logits(name).view(256, 4, 2, 32)
        assert halves[:, :, half].amax(2).min() > 70
        assert halves[:, :, half].topk(2).values[..., 1].max() < -70
        assert halves[:, :, 1 - half].max() < -70
    assert (logits("first key, constant").argmax(1) == 1).double().mean() > 0.95
    matching = logits("matching")
    assert torch.equal(matching.argmax(1), torch.arange(256))
    assert (torch.softmax(matching, 1).amax(1) > 0.7).all()
    equal = logits("equal")
    assert torch.equal(equal, equal[:, :1].expand_as(equal))
    assert (equal[:, 0] < 0).any()
    assert (equal[:, 0] > 0).any()


def test_edges_are_where_they_say() -> None:
    assert torch.equal(logits("zero queries"), torch.zeros(256, 256, dtype=torch.float64))
    for name, sign in (("high levels", 1), ("low levels", -1)):
        scores = logits(name) * math.sqrt(128) * sign
        assert set(scores.flatten().tolist()) == {2.0**20, 2.0**21}
        assert all({2.0**20, 2.0**21} == set(block.tolist()) for block in scores[0].view(4, 64))
    wide = make_tensors(Case("wide", SMALL, contents=("wide",)), "bf16", "cpu")
    for tensor in (wide.q, wide.k, wide.v):
        assert tensor.half().double().ne(tensor.double()).double().mean() > 0.5  # fp16 has not most of them
    assert logits("wide").abs().max() < 8
    assert torch.isfinite(make_tensors(Case("wide", SMALL, contents=("wide",)), "fp16", "cpu").v).all()


def test_a_constant_column_is_exact_in_both_dtypes_and_differs_from_the_next() -> None:
    for dtype in ("fp16", "bf16"):
        tensors = make_tensors(Case("constant", SMALL, contents=("constant",), seed=3), dtype, "cpu")
        assert torch.equal(tensors.v, tensors.v[:, :1].expand_as(tensors.v))
        values = tensors.v[:, 0].double().flatten()
        assert torch.equal(values.half().double(), values.bfloat16().double())
        assert (values < 0).any()
        assert (values > 0).any()
        assert values.abs().max() > 2**15
        assert values.abs().min() < 2**-16
        assert len(set(values.tolist())) > 350


def test_each_slice_has_its_content_in_turn() -> None:
    contents = ("normal", "equal", "constant")
    shape = Problem(batch=2, seq_len=64, n_heads=2, d_head=128)
    tensors = make_tensors(Case("contents", shape, contents=contents), "fp16", "cpu")
    for number in range(4):
        b, h = divmod(number, 2)
        k, v = tensors.k[b, :, h], tensors.v[b, :, h]
        assert torch.equal(k[0], k[1]) == (contents[number % 3] == "equal")
        assert torch.equal(v[0], v[1]) == (contents[number % 3] == "constant")
    assert {"normal", *CONSTANT, *LOGITS, *EDGES, *HEAVY, *LONE, *BESIDE, *ENDING} == set(CONTENTS)


MANY = Problem(batch=3, seq_len=16, n_heads=16, d_head=128)  # more slices than are compared
ROUNDOFF = {"fp16": 1 / 2048, "bf16": 1 / 256}


def inputs_of(case: Case, dtype: str) -> tuple[Tensors, Expected]:
    tensors = make_tensors(case, dtype, "cpu")
    return tensors, References().expected(case, dtype, tensors)


def judged(out: torch.Tensor, expected: Expected) -> Any:
    """The `Accuracy` of O, whose errors are numbers here."""
    return accuracy(out, expected)


def exact(tensors: Tensors) -> torch.Tensor:
    """The fp64 result of every slice, (B, S, H, D)."""
    q, k, v = (one.double().transpose(1, 2) for one in (tensors.q, tensors.k, tensors.v))
    scores = q @ k.transpose(2, 3) / math.sqrt(128)
    return (torch.softmax(scores, -1) @ v).transpose(1, 2)


def right(tensors: Tensors) -> torch.Tensor:
    """What a right kernel gives, in fp32."""
    return attention(tensors.q, tensors.k, tensors.v)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_largest_error_may_be_twice_that_of_torch_on_the_slice_and_no_more(dtype: str) -> None:
    tensors, expected = inputs_of(Case("small", SMALL), dtype)
    for number, (b, h) in enumerate(expected.slices):
        q, k, v = (one[b : b + 1, :, h] for one in (tensors.q, tensors.k, tensors.v))
        truth = attention_fp64(q, k, v)[0][0]
        torchs = float((attention_torch16(q, k, v)[0].double() - truth).abs().max())
        allowed = max(2.0 * torchs, ROUNDOFF[dtype] * float(truth.abs().max()))  # torch may be lucky with few elements
        assert float(expected.max_allowed[number]) == pytest.approx(allowed, rel=1e-12)
        for share, ok in ((0.95, True), (1.1, False)):
            out = exact(tensors).clone()
            out[b, 5, h, 7] += share * allowed
            found = judged(out, expected)
            assert found.ok is ok
            assert found.max_error == pytest.approx(share * allowed, rel=1e-6)
            assert found.max_allowed == pytest.approx(allowed, rel=1e-12)


@pytest.mark.parametrize(("dtype", "roundoff"), ROUNDOFF.items())
def test_the_rms_error_may_be_one_unit_roundoff_and_no_more(dtype: str, roundoff: float) -> None:
    tensors, expected = inputs_of(Case("small", SMALL), dtype)
    assert expected.rms_allowed == roundoff
    truth = exact(tensors)
    signs = torch.randint(0, 2, truth.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for b, h in expected.slices:  # the worst slice counts, not the mean over all
        for share, ok in ((0.95, True), (1.05, False)):
            out = truth.clone()
            out[b, :, h] += share * roundoff * truth[b, :, h].square().mean().sqrt() * signs[b, :, h]
            found = judged(out, expected)
            assert found.rms_error == pytest.approx(share * roundoff, rel=1e-6)
            assert found.ok is ok


def test_every_slice_of_a_small_case_and_every_head_of_a_large_one_is_compared() -> None:
    small = Problem(batch=2, seq_len=64, n_heads=16, d_head=128)
    assert compared_slices(small, 1) == tuple((b, h) for b in range(2) for h in range(16))
    for batch, heads in ((3, 16), (16, 16), (40, 2), (5, 7), (33, 1)):
        for seed in range(20):
            chosen = compared_slices(Problem(batch=batch, seq_len=64, n_heads=heads, d_head=128), seed)
            assert {h for _, h in chosen} == set(range(heads))
            assert len(set(chosen)) == len(chosen) == heads
            samples = {b for b, _ in chosen}
            assert samples <= set(range(batch))
            assert heads == 1 or {0, batch - 1} <= samples
    assert compared_slices(MANY, 1) != compared_slices(MANY, 2)
    assert len(choose_slices(MANY, 0, 2)) == 2


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (5, 9), (9, 5), (1, 8), (8, 1)])
def test_both_references_align_the_mask_at_the_last_query_and_the_last_key(queries: int, keys: int, mask: Mask) -> None:
    generator = torch.Generator().manual_seed(queries)
    q, k, v = (torch.randn(2, rows, 128, generator=generator).half() for rows in (queries, keys, keys))
    scores = q.double() @ k.double().transpose(1, 2) / math.sqrt(128)
    if mask == "causal":
        scores[:, ~torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)] = -math.inf
    wanted, sums = torch.softmax(scores, -1).nan_to_num(0.0) @ v.double(), torch.logsumexp(scores, -1)
    output, lse = attention_fp64(q, k, v, mask)
    assert torch.allclose(output, wanted, atol=1e-12)
    assert torch.allclose(lse, sums, atol=1e-12)
    assert torch.allclose(attention_torch16(q, k, v, mask).double(), wanted, atol=1e-2)


def test_nan_is_looked_for_in_slices_that_are_not_compared() -> None:
    tensors, expected = inputs_of(Case("many", MANY), "fp16")
    every = {(b, h) for b in range(MANY.batch) for h in range(MANY.n_heads)}
    for b, h in sorted(every - set(expected.slices)):
        for hole in (math.nan, math.inf):
            out = exact(tensors)
            out[b, -1, h, -1] = hole
            found = judged(out, expected)
            assert not found.finite
            assert not found.ok


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("contents", [("normal",), LOGITS, CONSTANT])
@pytest.mark.parametrize("seq_len", [64, 192, 1024])
def test_a_right_result_has_no_bias(dtype: str, contents: tuple[str, ...], seq_len: int) -> None:
    shape = Problem(batch=1, seq_len=seq_len, n_heads=len(contents), d_head=128)
    for seed in range(3):
        tensors, expected = inputs_of(Case("bias", shape, contents=contents, seed=seed), dtype)
        found = judged(right(tensors).to(tensors.q.dtype), expected)
        assert found.ok
        assert abs(found.bias) < 0.6 * found.bias_allowed
        assert found.row_bias < 0.16 * ROUNDOFF[dtype]


def test_the_bias_that_tensor_cores_may_have_grows_with_the_length_and_slowly() -> None:
    """A sixteenth of a roundoff, and 2^-24 for each sum of 16 products: 2^-14 at S = 16384."""
    exact = torch.rand((1, 16384, 1, 8), generator=torch.Generator().manual_seed(0)).half()
    slices = exact[:, :, 0].double()
    roundoff, lse = ROUNDOFF["fp16"], slices[0]
    expected = Expected(((0, 0),), slices, slices.half(), torch.ones(1, 1, 8), torch.ones(1), roundoff, lse)
    found = judged(exact, expected)
    assert found.bias == 0
    assert found.bias_allowed == pytest.approx(2.0**-15 + 2.0**-14)


@pytest.mark.parametrize(("dtype", "exponent"), [("bf16", 10), ("bf16", 11), ("fp16", 13), ("fp16", 14)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_biased_reciprocal_is_caught_by_its_mean_error_alone(dtype: str, exponent: int, sign: int) -> None:
    tensors, expected = inputs_of(Case("bias", SMALL), dtype)
    out = (right(tensors) * (1 + sign * 2.0**-exponent)).to(tensors.q.dtype)
    found = judged(out, expected)
    assert found.max_error <= found.max_allowed  # the other bounds do not see it
    assert found.rms_error <= found.rms_allowed
    assert found.bias == pytest.approx(sign * 2.0**-exponent, rel=0.3)
    assert not found.unbiased
    assert not found.ok


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("wrong", range(4))
def test_rows_of_one_slice_that_are_off_are_caught_among_right_slices(dtype: str, wrong: int) -> None:
    """Every other row is 0.4 of a roundoff too large or too small: no mean shows it, nor all slices' rows together."""
    tensors, expected = inputs_of(Case("rows", Problem(batch=1, seq_len=256, n_heads=4, d_head=128)), dtype)
    factor = torch.ones(1, 256, 4, 1)
    factor[:, 0::2, wrong] += 0.4 * ROUNDOFF[dtype]
    factor[:, 1::2, wrong] -= 0.4 * ROUNDOFF[dtype]
    found = judged((right(tensors) * factor).to(tensors.q.dtype), expected)
    assert found.unbiased is False
    assert found.row_bias == pytest.approx(0.4 * ROUNDOFF[dtype], rel=0.1)
    assert abs(found.bias) < found.bias_allowed


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_slices_of_few_rows_are_taken_together(dtype: str) -> None:
    """The RMS over one row is that row: it may lie beyond what many rows have in the mean."""
    tensors, expected = inputs_of(Case("short", Problem(batch=4, seq_len=2, n_heads=8, d_head=128)), dtype)
    factor = torch.ones(4, 2, 8, 1)
    factor[0, :, 0] += 0.4 * ROUNDOFF[dtype]
    found = judged((right(tensors) * factor).to(tensors.q.dtype), expected)
    assert found.row_bias < 0.2 * ROUNDOFF[dtype]


@pytest.mark.parametrize(("dtype", "roundoff"), ROUNDOFF.items())
def test_a_constant_comes_back_to_one_roundoff(dtype: str, roundoff: float) -> None:
    tensors, expected = inputs_of(Case("constant", SMALL, contents=("constant",)), dtype)
    truth = tensors.v.double()
    found = judged(right(tensors).to(tensors.q.dtype), expected)
    assert found.ok
    assert found.max_allowed == roundoff
    smallest = int(truth[0, 0, 0].abs().argmin())  # errors count relative to the constant, however small
    for share, ok in ((0.9, True), (1.1, False)):
        out = truth.clone()
        out[1, 63, 2] *= 1 + share * roundoff
        assert accuracy(out, expected).ok is ok
        out = truth.clone()
        out[0, 0, 0, smallest] *= 1 - share * roundoff
        assert accuracy(out, expected).ok is ok


def test_rows_that_are_alike_do_not_count_as_many() -> None:
    """With equal weights all rows of O are alike, with constant V all columns: repeating an error proves nothing."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(1, 64, 1, 128, generator=generator, dtype=torch.float64).half().double()
    _, expected = inputs_of(Case("one", Problem(batch=1, seq_len=64, n_heads=1, d_head=128)), "bf16")
    expected = replace(expected, output=truth[:, :, 0], rounded=truth[:, :, 0], max_allowed=torch.ones(1))
    noise = 2.0**-9 * torch.randn(1, 64, 1, 128, generator=generator, dtype=torch.float64)
    floor = 2.0**-12 + 2.0**-22

    def margin(error: torch.Tensor) -> float:
        return float(judged(truth + error * truth, expected).bias_allowed) - floor

    independent = margin(noise)
    assert margin(noise[:, :1].expand_as(noise)) > 4 * independent
    assert margin(noise[..., :1].expand_as(noise)) > 4 * independent
    assert 6 * 2.0**-9 / math.sqrt(64 * 128) < independent < 4 * 6 * 2.0**-9 / math.sqrt(64 * 128)


def test_nan_never_compares_as_correct() -> None:
    tensors, expected = inputs_of(Case("small", SMALL), "fp16")
    found = judged(tensors.out, expected)  # all poison
    assert (found.max_error, found.rms_error, found.bias, found.finite, found.ok) == (None, None, None, False, False)


def test_a_small_slice_is_not_measured_by_a_large_one() -> None:
    case = Case("logits", SMALL, contents=("equal", "matching"))
    tensors, expected = inputs_of(case, "fp16")
    assert float(expected.max_allowed.max() / expected.max_allowed.min()) > 3
    small = expected.slices[int(expected.max_allowed.argmin())]
    out = exact(tensors)
    out[small[0], 0, small[1], 0] += 0.9 * float(expected.max_allowed.max())
    assert not accuracy(out, expected).ok


@pytest.mark.parametrize("row", [0, 1, 15])
def test_every_row_of_every_head_is_compared(row: int) -> None:
    tensors, expected = inputs_of(Case("many", MANY), "fp16")
    truth = exact(tensors)
    assert accuracy(truth, expected).ok
    assert len(expected.slices) < MANY.batch * MANY.n_heads
    for head in range(16):
        out = truth.clone()
        out[:, row, head, 127] += 0.1
        assert not accuracy(out, expected).ok


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_row_sum_in_16_bits_is_caught_by_what_each_row_has_in_common(dtype: str) -> None:
    tensors, expected = inputs_of(Case("sum", SMALL), dtype)
    p, v, total = parts(tensors.q, tensors.k, tensors.v)
    product = p.to(tensors.q.dtype).float() @ v
    for rounded in (total.to(tensors.q.dtype).float(), 1 / (1 / total).to(tensors.q.dtype).float()):
        found = judged((product / rounded).transpose(1, 2).to(tensors.q.dtype), expected)
        assert found.rms_error <= found.rms_allowed
        assert found.row_bias > 0.3 * ROUNDOFF[dtype]
        assert not found.ok


def test_flushed_subnormal_weights_are_caught() -> None:
    tensors, expected = inputs_of(Case("peak", SMALL, contents=("first key, constant",)), "fp16")
    p, v, total = parts(tensors.q, tensors.k, tensors.v)
    out = ((torch.where(p < 2.0**-14, 0.0, p.half().float()) @ v) / total).transpose(1, 2).half()
    assert accuracy(right(tensors).half(), expected).ok
    assert not accuracy(out, expected).ok


def test_an_expanded_case_has_one_head_of_k_and_one_sample_of_v() -> None:
    tensors = make_tensors(Case("expanded", SMALL, expanded=True), "fp16", "cpu")
    assert (tensors.k.stride(2), tensors.v.stride(0)) == (0, 0)
    assert tensors.k.shape == tensors.v.shape == tensors.q.shape


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_lone_weight_is_of_eight_rows_of_sixteen_and_one_key(dtype: str) -> None:
    """Each slice has other rows and another half of a block of 128 keys; the rest is no heavier than usual."""
    shape = Problem(batch=1, seq_len=640, n_heads=4, d_head=128)
    tensors = make_tensors(Case("lone", shape, contents=LONE), dtype, "cpu")
    for head in range(4):
        logits = tensors.q[0, :, head].double() @ tensors.k[0, :, head].double().T / 128**0.5
        key, own = 5 + 64 * (head % 2), torch.arange(640) // 8 % 2 == head // 2
        second = logits.topk(2, dim=1).values[:, 1]
        assert (logits.argmax(1)[own] == key).all()
        assert float((logits[own, key] - second[own]).min()) > 32, "beyond 16 bits where it is not followed"
        others = logits[~own].softmax(1) * 640
        assert float(others.max()) < 20, "rows beside them ask nobody to follow"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("contents", "length", "keys", "bounds"),
    [
        (HEAVY, 256, ((96, 160), (160, 96), (0, 128), (248, 96)), (0.75, 1.6, 0.6)),
        (BESIDE, 512, ((496, 128), (496, 192)) * 2, (0.7, 1.7, 0.5)),
        (ENDING, 641, ((640, 621), (640, 601), (640, 581), (640, 541)), (0.7, 1.7, 0.5)),
    ],
    ids=["heavy", "beside", "ending"],
)
def test_a_row_has_one_heavy_key_and_a_heavier_one(
    dtype: str,
    contents: tuple[str, ...],
    length: int,
    keys: tuple[tuple[int, int], ...],
    bounds: tuple[float, float, float],
) -> None:
    """Within a slack of 2, and hardly a power of two; of those beside flat rows eight of 16."""
    tensors = make_tensors(
        Case("two", Problem(batch=1, seq_len=length, n_heads=4, d_head=128), contents=contents), dtype, "cpu"
    )
    least, most, together = bounds
    for head, (first, second) in enumerate(keys):
        weights = torch.softmax(tensors.q[0, :, head].double() @ tensors.k[0, :, head].double().T / 128**0.5, 1)
        own = torch.arange(length) // 8 % 2 == head // 2 if contents is BESIDE else torch.ones(length, dtype=torch.bool)
        apart = (weights[own, second] / weights[own, first]).log2()
        assert least < float(apart.min()) < float(apart.max()) < most
        assert float((weights[own, first] + weights[own, second]).min()) > together
        third = weights[own].topk(3).values[:, 2]
        assert float((weights[own, first] / third).quantile(0.1)) > 4
        assert float(weights[~own].amax(1).max() if contents is BESIDE else 0) < 20 / length


def test_the_spike_of_a_part_of_a_block_is_one_of_its_keys() -> None:
    shape = Problem(batch=1, seq_len=641, n_heads=1, d_head=128)
    one = make_tensors(Case("spikes", shape, contents=("left spikes",)), "fp16", "cpu")
    found = ((one.q[0, 0, 0].float() @ one.k[0, :, 0].float().T) > 0).nonzero()[:, 0]
    assert (found // 64).tolist() == list(range(11))
