"""A library whose kernels see tensors through maps: any length, wide strides, and the same checks for the rest.

On CPU tensors: every check but the device's is tried, and one that passes them all ends at the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.nvcc.conftest import BY_MAPS, MAP_CONFIG

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.nvcc, pytest.mark.usefixtures("binding_site")]


def answer(q: torch.Tensor, k: torch.Tensor | None = None, out: torch.Tensor | None = None) -> str:
    """What the operator says of tensors that are on no GPU."""
    operators = getattr(torch.ops, BY_MAPS)
    with pytest.raises(ValueError, match=BY_MAPS) as caught:
        if out is None:
            operators.forward(q, q if k is None else k, q, "")
        else:
            operators.forward_out(q, q, q, out, "")
    return str(caught.value)


PASSED = f"{BY_MAPS}: q: expected a CUDA tensor, found one on cpu; there is no CPU kernel; call .cuda()"


@pytest.mark.parametrize("seq_len", [1, 17, 128, 129, 1000, 4097])
@pytest.mark.parametrize("heads", [1, 3])
def test_any_length_and_any_number_of_heads_will_do(seq_len: int, heads: int) -> None:
    assert answer(torch.zeros(2, seq_len, heads, 128, dtype=torch.float16)) == PASSED


VIEWS: dict[str, Callable[[], torch.Tensor]] = {
    "heads first": lambda: torch.zeros(2, 3, 40, 128, dtype=torch.float16).transpose(1, 2),
    "a slice of heads": lambda: torch.zeros(2, 40, 9, 128, dtype=torch.float16)[:, :, 3:6],
    "packed with K and V": lambda: torch.zeros(2, 40, 3, 3, 128, dtype=torch.float16)[:, :, 1],
    "expanded": lambda: torch.zeros(1, 40, 1, 128, dtype=torch.float16).expand(2, 40, 3, 128),
    "one sample with an odd stride": lambda: torch.zeros(40 * 3 * 128 + 3, dtype=torch.float16).as_strided(
        (1, 40, 3, 128), (3, 3 * 128, 128, 1)
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_strides_that_a_map_can_express_pass(name: str) -> None:
    assert answer(VIEWS[name]()) == PASSED


def checked(seq_stride: int, seq_len: int = 2) -> str:
    """What the check of facts alone says of tensors (1, seq_len, 1, 128) with this many elements from row to row."""
    strides = [number for _ in range(4) for number in (128, seq_stride, 128, 1)]
    addresses = [0, 2**44, 2**45, 2**46]
    try:
        getattr(torch.ops, BY_MAPS).check(
            [4] * 4, [1, seq_len, 1, 128] * 4, strides, addresses, ["fp16"] * 4, ["cuda:0"] * 4, True, ""
        )
    except ValueError as error:
        return str(error)
    return "passes"


def test_rows_may_lie_farther_apart_than_32_bits_tell() -> None:
    assert [checked(elements) for elements in (2**31, 2**39 - 8)] == ["passes", "passes"]
    limit = "a seq_len stride of at most 549755813880 elements, found 549755813888; call .contiguous()"
    assert checked(2**39) == f"{BY_MAPS}: q: expected {limit}"


def test_the_stride_of_a_single_row_may_be_anything() -> None:
    assert [checked(elements, 1) for elements in (2**40, 2**62, 3)] == ["passes"] * 3


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: torch.zeros(1, 40, 3, 129, dtype=torch.float16)[..., :128],
            "q: expected the seq_len stride to be a multiple of 8 elements (16 bytes), found 387; call .contiguous()",
        ),
        (lambda: torch.zeros(1, 40, 3, 128, dtype=torch.float32), "q: expected dtype fp16 or bf16, found float32"),
        (lambda: torch.zeros(1, 40, 3, 64, dtype=torch.float16), "q: expected d_head 128, found 64"),
        (
            lambda: torch.zeros(1, 40, 3, 128, dtype=torch.bfloat16),
            f"q: expected a dtype that was built: {MAP_CONFIG}, found bf16",
        ),
        (
            lambda: torch.zeros(40 * 128 + 4, dtype=torch.float16)[4:].view(1, 40, 1, 128),
            "q: expected data aligned to 16 bytes, found an address 8 bytes past it",
        ),
    ],
)
def test_everything_else_is_checked_as_ever(make: Callable[[], torch.Tensor], told: str) -> None:
    assert told in answer(make())


def test_an_output_that_overlaps_is_refused_at_ragged_lengths_too() -> None:
    buffer = torch.zeros(1, 33, 3, 128, dtype=torch.float16)
    q = buffer[:, :17]
    assert "out: expected memory of its own, found elements shared with q" in answer(q, out=buffer[:, 16:])
