"""What counts as correct: the bounds, the slices that are compared, and the mean signed error."""

from __future__ import annotations

from dataclasses import replace
import math

import pytest
import torch

from flashladder.cases.inputs import CONSTANT, LOGITS, Case, Tensors, make_tensors
from flashladder.cases.reference import (
    Expected,
    References,
    accuracy,
    attention_fp64,
    attention_torch16,
    choose_slices,
    compared_slices,
)
from flashladder.problem import Shape

SMALL = Shape(batch=2, seq_len=64, n_heads=3, d_head=128)
MANY = Shape(batch=3, seq_len=16, n_heads=16, d_head=128)  # more slices than are compared
ROUNDOFF = {"fp16": 1 / 2048, "bf16": 1 / 256}


def inputs_of(case: Case, dtype: str) -> tuple[Tensors, Expected]:
    tensors = make_tensors(case, dtype, "cpu")
    return tensors, References().expected(case, dtype, tensors)


def exact(tensors: Tensors) -> torch.Tensor:
    """The fp64 result of every slice, (B, S, H, D)."""
    q, k, v = (one.double().transpose(1, 2) for one in (tensors.q, tensors.k, tensors.v))
    scores = q @ k.transpose(2, 3) / math.sqrt(128)
    return (torch.softmax(scores, -1) @ v).transpose(1, 2)


def right(tensors: Tensors) -> torch.Tensor:
    """What a right kernel gives: fp32 inside, P rounded to 16 bits before P V but not before its sum."""
    q, k, v = (one.float().transpose(1, 2) for one in (tensors.q, tensors.k, tensors.v))
    scores = q @ k.transpose(2, 3) / math.sqrt(128)
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    return ((p.to(tensors.q.dtype).float() @ v) / p.sum(-1, keepdim=True)).transpose(1, 2)


def test_nan_never_compares_as_correct() -> None:
    tensors, expected = inputs_of(Case("small", SMALL), "fp16")
    found = accuracy(tensors.out, expected)  # all poison
    assert (found.max_error, found.rms_error, found.bias, found.finite, found.ok) == (None, None, None, False, False)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_largest_error_may_be_twice_that_of_torch_on_the_slice_and_no_more(dtype: str) -> None:
    tensors, expected = inputs_of(Case("small", SMALL), dtype)
    for number, (b, h) in enumerate(expected.slices):
        q, k, v = (one[b : b + 1, :, h] for one in (tensors.q, tensors.k, tensors.v))
        truth = attention_fp64(q, k, v)[0]
        torchs = float((attention_torch16(q, k, v)[0].double() - truth).abs().max())
        allowed = max(2.0 * torchs, ROUNDOFF[dtype] * float(truth.abs().max()))  # torch may be lucky with few elements
        assert float(expected.max_allowed[number]) == pytest.approx(allowed, rel=1e-12)
        for share, ok in ((0.95, True), (1.1, False)):
            out = exact(tensors).clone()
            out[b, 5, h, 7] += share * allowed
            found = accuracy(out, expected)
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
            found = accuracy(out, expected)
            assert found.rms_error == pytest.approx(share * roundoff, rel=1e-6)
            assert found.ok is ok


def test_a_small_slice_is_not_measured_by_a_large_one() -> None:
    case = Case("logits", SMALL, contents=("equal", "matching"))
    tensors, expected = inputs_of(case, "fp16")
    assert float(expected.max_allowed.max() / expected.max_allowed.min()) > 3
    small = expected.slices[int(expected.max_allowed.argmin())]
    out = exact(tensors)
    out[small[0], 0, small[1], 0] += 0.9 * float(expected.max_allowed.max())
    assert not accuracy(out, expected).ok


def test_every_slice_of_a_small_case_and_every_head_of_a_large_one_is_compared() -> None:
    small = Shape(batch=2, seq_len=64, n_heads=16, d_head=128)
    assert compared_slices(small, 1) == tuple((b, h) for b in range(2) for h in range(16))
    for batch, heads in ((3, 16), (16, 16), (40, 2), (5, 7), (33, 1)):
        for seed in range(20):
            chosen = compared_slices(Shape(batch=batch, seq_len=64, n_heads=heads, d_head=128), seed)
            assert {h for _, h in chosen} == set(range(heads))
            assert len(set(chosen)) == len(chosen) == heads
            samples = {b for b, _ in chosen}
            assert samples <= set(range(batch))
            assert heads == 1 or {0, batch - 1} <= samples
    assert compared_slices(MANY, 1) != compared_slices(MANY, 2)
    assert len(choose_slices(MANY, 0, 2)) == 2


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


def test_nan_is_looked_for_in_slices_that_are_not_compared() -> None:
    tensors, expected = inputs_of(Case("many", MANY), "fp16")
    every = {(b, h) for b in range(MANY.batch) for h in range(MANY.n_heads)}
    for b, h in sorted(every - set(expected.slices)):
        for hole in (math.nan, math.inf):
            out = exact(tensors)
            out[b, -1, h, -1] = hole
            found = accuracy(out, expected)
            assert not found.finite
            assert not found.ok


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("contents", [("normal",), LOGITS, CONSTANT])
@pytest.mark.parametrize("seq_len", [64, 192, 1024])
def test_a_right_result_has_no_bias(dtype: str, contents: tuple[str, ...], seq_len: int) -> None:
    shape = Shape(batch=1, seq_len=seq_len, n_heads=len(contents), d_head=128)
    for seed in range(3):
        tensors, expected = inputs_of(Case("bias", shape, contents=contents, seed=seed), dtype)
        found = accuracy(right(tensors).to(tensors.q.dtype), expected)
        assert found.ok
        assert found.bias is not None
        assert found.bias_allowed is not None
        assert abs(found.bias) < 0.6 * found.bias_allowed
        assert found.row_bias is not None
        assert found.row_bias < 0.16 * ROUNDOFF[dtype]


def test_the_bias_that_tensor_cores_may_have_grows_with_the_length_and_slowly() -> None:
    """A sixteenth of a roundoff, and 2^-24 for each sum of 16 products: 2^-14 at S = 16384."""
    exact = torch.rand((1, 16384, 1, 8), generator=torch.Generator().manual_seed(0)).half()
    slices = exact[:, :, 0].double()
    expected = Expected(((0, 0),), slices, slices.half(), torch.ones(1, 1, 8), torch.ones(1), ROUNDOFF["fp16"])
    found = accuracy(exact, expected)
    assert found.bias == 0
    assert found.bias_allowed == pytest.approx(2.0**-15 + 2.0**-14)


@pytest.mark.parametrize(("dtype", "exponent"), [("bf16", 10), ("bf16", 11), ("fp16", 13), ("fp16", 14)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_biased_reciprocal_is_caught_by_its_mean_error_alone(dtype: str, exponent: int, sign: int) -> None:
    tensors, expected = inputs_of(Case("bias", SMALL), dtype)
    out = (right(tensors) * (1 + sign * 2.0**-exponent)).to(tensors.q.dtype)
    found = accuracy(out, expected)
    assert found.max_error is not None
    assert found.rms_error is not None
    assert found.max_error <= found.max_allowed  # the other bounds do not see it
    assert found.rms_error <= found.rms_allowed
    assert found.bias == pytest.approx(sign * 2.0**-exponent, rel=0.3)
    assert not found.unbiased
    assert not found.ok


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_row_sum_in_16_bits_is_caught_by_what_each_row_has_in_common(dtype: str) -> None:
    tensors, expected = inputs_of(Case("sum", SMALL), dtype)
    q, k, v = (one.float().transpose(1, 2) for one in (tensors.q, tensors.k, tensors.v))
    scores = q @ k.transpose(2, 3) / math.sqrt(128)
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    product = p.to(tensors.q.dtype).float() @ v
    total = p.sum(-1, keepdim=True)
    for rounded in (total.to(tensors.q.dtype).float(), 1 / (1 / total).to(tensors.q.dtype).float()):
        found = accuracy((product / rounded).transpose(1, 2).to(tensors.q.dtype), expected)
        assert found.rms_error is not None
        assert found.row_bias is not None
        assert found.rms_error <= found.rms_allowed
        assert found.row_bias > 0.3 * ROUNDOFF[dtype]
        assert not found.ok


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("wrong", range(4))
def test_rows_of_one_slice_that_are_off_are_caught_among_right_slices(dtype: str, wrong: int) -> None:
    """Every other row is 0.4 of a roundoff too large or too small: no mean shows it, nor all slices' rows together."""
    tensors, expected = inputs_of(Case("rows", Shape(batch=1, seq_len=256, n_heads=4, d_head=128)), dtype)
    factor = torch.ones(1, 256, 4, 1)
    factor[:, 0::2, wrong] += 0.4 * ROUNDOFF[dtype]
    factor[:, 1::2, wrong] -= 0.4 * ROUNDOFF[dtype]
    found = accuracy((right(tensors) * factor).to(tensors.q.dtype), expected)
    assert found.unbiased is False
    assert found.row_bias is not None
    assert found.row_bias == pytest.approx(0.4 * ROUNDOFF[dtype], rel=0.1)
    assert found.bias is not None
    assert found.bias_allowed is not None
    assert abs(found.bias) < found.bias_allowed


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_slices_of_few_rows_are_taken_together(dtype: str) -> None:
    """The RMS over one row is that row: it may lie beyond what many rows have in the mean."""
    tensors, expected = inputs_of(Case("short", Shape(batch=4, seq_len=2, n_heads=8, d_head=128)), dtype)
    factor = torch.ones(4, 2, 8, 1)
    factor[0, :, 0] += 0.4 * ROUNDOFF[dtype]
    found = accuracy((right(tensors) * factor).to(tensors.q.dtype), expected)
    assert found.row_bias is not None
    assert found.row_bias < 0.2 * ROUNDOFF[dtype]


def test_flushed_subnormal_weights_are_caught() -> None:
    tensors, expected = inputs_of(Case("peak", SMALL, contents=("first key, constant",)), "fp16")
    q, k, v = (one.float().transpose(1, 2) for one in (tensors.q, tensors.k, tensors.v))
    scores = q @ k.transpose(2, 3) / math.sqrt(128)
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    flushed = torch.where(p < 2.0**-14, 0.0, p.half().float())
    out = ((flushed @ v) / p.sum(-1, keepdim=True)).transpose(1, 2).half()
    assert accuracy(right(tensors).half(), expected).ok
    assert not accuracy(out, expected).ok


@pytest.mark.parametrize(("dtype", "roundoff"), ROUNDOFF.items())
def test_a_constant_comes_back_to_one_roundoff(dtype: str, roundoff: float) -> None:
    tensors, expected = inputs_of(Case("constant", SMALL, contents=("constant",)), dtype)
    truth = tensors.v.double()
    found = accuracy(right(tensors).to(tensors.q.dtype), expected)
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
    _, expected = inputs_of(Case("one", Shape(batch=1, seq_len=64, n_heads=1, d_head=128)), "bf16")
    expected = replace(expected, output=truth[:, :, 0], rounded=truth[:, :, 0], max_allowed=torch.ones(1))
    noise = 2.0**-9 * torch.randn(1, 64, 1, 128, generator=generator, dtype=torch.float64)
    floor = 2.0**-12 + 2.0**-22

    def margin(error: torch.Tensor) -> float:
        allowed = accuracy(truth + error * truth, expected).bias_allowed
        assert allowed is not None
        return allowed - floor

    independent = margin(noise)
    assert margin(noise[:, :1].expand_as(noise)) > 4 * independent
    assert margin(noise[..., :1].expand_as(noise)) > 4 * independent
    assert 6 * 2.0**-9 / math.sqrt(64 * 128) < independent < 4 * 6 * 2.0**-9 / math.sqrt(64 * 128)
