"""The inputs of the checks: which memory each tensor has, how far apart, and which logits the contents make."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
import math
import mmap

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
    far_stride,
    make_tensors,
)
from flashladder.errors import FlashladderError
from flashladder.problem import Shape

SMALL = Shape(batch=2, seq_len=64, n_heads=3, d_head=128)


def logits(content: str, seq_len: int = 256) -> torch.Tensor:
    """(seq_len, seq_len) scores of one slice with this content."""
    shape = Shape(batch=1, seq_len=seq_len, n_heads=1, d_head=128)
    tensors = make_tensors(Case(content, shape, contents=(content,)), "bf16", "cpu")
    q, k = tensors.q[0, :, 0].double(), tensors.k[0, :, 0].double()
    return q @ k.T / math.sqrt(128)


def test_inputs_repeat_with_their_seed_and_are_normal() -> None:
    case = Case("inputs", Shape(batch=2, seq_len=256, n_heads=4, d_head=128), seed=5)
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
    shape = Shape(batch=2, seq_len=128, n_heads=heads, d_head=128)
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
    size = Shape(batch=batch, seq_len=length, n_heads=heads, d_head=128)
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
    def full(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", full)
    case = Case("far", Shape(batch=1, seq_len=64, n_heads=2, d_head=128), "far_heads", far_bytes=far_stride(2))
    with pytest.raises(FlashladderError, match="address space for a sparse tensor") as caught:
        make_tensors(case, "fp16", "cpu")
    assert caught.value.exit_code == 2


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


def test_an_expanded_case_has_one_head_of_k_and_one_sample_of_v() -> None:
    tensors = make_tensors(Case("expanded", SMALL, expanded=True), "fp16", "cpu")
    assert (tensors.k.stride(2), tensors.v.stride(0)) == (0, 0)
    assert tensors.k.shape == tensors.v.shape == tensors.q.shape


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
    shape = Shape(batch=2, seq_len=64, n_heads=2, d_head=128)
    tensors = make_tensors(Case("contents", shape, contents=contents), "fp16", "cpu")
    for number in range(4):
        b, h = divmod(number, 2)
        k, v = tensors.k[b, :, h], tensors.v[b, :, h]
        assert torch.equal(k[0], k[1]) == (contents[number % 3] == "equal")
        assert torch.equal(v[0], v[1]) == (contents[number % 3] == "constant")
    assert {"normal", *CONSTANT, *LOGITS, *EDGES, *HEAVY, *LONE, *BESIDE, *ENDING} == set(CONTENTS)
    assert len(LOGITS) == 12


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_lone_weight_is_of_eight_rows_of_sixteen_and_one_key(dtype: str) -> None:
    """Each slice has other rows and another half of a block of 128 keys; the rest is no heavier than usual."""
    shape = Shape(batch=1, seq_len=640, n_heads=4, d_head=128)
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
    ("contents", "length", "keys"),
    [(BESIDE, 512, ((496, 128), (496, 192)) * 2), (ENDING, 641, ((640, 621), (640, 601), (640, 581), (640, 541)))],
    ids=["beside", "ending"],
)
def test_heavy_rows_of_a_half_and_those_that_the_last_key_begins(
    dtype: str, contents: tuple[str, ...], length: int, keys: tuple[tuple[int, int], ...]
) -> None:
    """Of those beside flat rows eight of 16 have two heavy keys; of the others all, one of them the very last."""
    tensors = make_tensors(
        Case("two", Shape(batch=1, seq_len=length, n_heads=4, d_head=128), contents=contents), dtype, "cpu"
    )
    for head, (first, second) in enumerate(keys):
        logits = tensors.q[0, :, head].double() @ tensors.k[0, :, head].double().T / 128**0.5
        weights = torch.softmax(logits, 1)
        own = torch.arange(length) // 8 % 2 == head // 2 if contents is BESIDE else torch.ones(length, dtype=torch.bool)
        apart = (weights[own, second] / weights[own, first]).log2()
        assert 0.7 < float(apart.min()) < float(apart.max()) < 1.7
        assert float((weights[own, first] + weights[own, second]).min()) > 0.5
        assert float(weights[~own].amax(1).max() if contents is BESIDE else 0) < 20 / length


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_row_has_one_heavy_key_and_then_a_heavier_one(dtype: str) -> None:
    tensors = make_tensors(
        Case("heavy", Shape(batch=1, seq_len=256, n_heads=4, d_head=128), contents=HEAVY), dtype, "cpu"
    )
    for head, (first, second) in enumerate(((96, 160), (160, 96), (0, 128), (248, 96))):
        logits = tensors.q[0, :, head].double() @ tensors.k[0, :, head].double().T / 128**0.5
        weights = torch.softmax(logits, 1)
        apart = (weights[:, second] / weights[:, first]).log2()
        assert 0.75 < float(apart.min()) < float(apart.max()) < 1.6, "within a slack of 2, and hardly a power of two"
        assert float((weights[:, first] + weights[:, second]).min()) > 0.6
        rest = weights.clone()
        rest[:, [first, second]] = 0
        assert float((weights[:, first] / rest.amax(1)).quantile(0.1)) > 4
