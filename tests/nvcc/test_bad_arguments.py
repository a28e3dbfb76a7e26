"""Bad arguments of `torch.ops.flashladder_NN`: each gives one ValueError line: argument, expected, found, what to do.

The device is checked last, so all of them are tried with CPU tensors. Run: pytest tests/nvcc/test_bad_arguments.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")
pytestmark = pytest.mark.nvcc

FP16 = "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
BF16 = "(BF16, 128, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax"
UNBUILT = "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"
FREE, STATIC = "flashladder_95", "flashladder_96"  # any row stride; row stride 2048 as in iteration 16
SHAPE = (2, 128, 16, 128)  # batch, seq_len, n_heads, d_head


def tensor(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.zeros(shape or SHAPE, dtype=dtype)  # on the default device


def wide(*shape: int) -> torch.Tensor:
    """A tensor of any shape (.., 128) that takes 256 bytes."""
    return tensor(1, 1, 1, 128).expand(shape)


def packed(n: int) -> list[torch.Tensor]:
    """n tensors of SHAPE interleaved in one buffer, as a fused projection gives them."""
    buffer = tensor(SHAPE[0], SHAPE[1], n, *SHAPE[2:])
    return [buffer[:, :, i] for i in range(n)]


def forward(
    q: object, k: object = None, v: object = None, config: str = "", name: str = FREE, out: object = None
) -> object:
    """k, v: as q where None. The operator with an output is called where there is one."""
    inputs = (q, q if k is None else k, q if v is None else v)
    operators = getattr(torch.ops, name)
    return operators.forward(*inputs, config) if out is None else operators.forward_out(*inputs, out, config)


def out_is_q() -> object:
    q = tensor()
    return forward(q, tensor(), tensor(), out=q)


def out_overlaps_v_by_one_row() -> object:
    buffer = tensor(2 * 256 - 1, 16, 128)
    return forward(tensor(), tensor(), buffer[:256].view(SHAPE), out=buffer[255:].view(SHAPE))


def out_is_packed_with_k_one_head_on() -> object:
    """Same strides, interleaved, and sharing 15 of 16 heads."""
    buffer = tensor(2, 128, 40, 128)
    return forward(tensor(), buffer[:, :, :16], tensor(), out=buffer[:, :, 1:17])


Case = tuple[Callable[[], object], tuple[str, ...]]


def case(call: Callable[[], object], *pieces: str) -> Case:
    return call, pieces


BAD: dict[str, Case] = {
    "CPU tensors": case(lambda: forward(tensor()), "q: expected a CUDA tensor, found one on cpu", "call .cuda()"),
    "rank 3": case(
        lambda: forward(tensor(128, 16, 128)),
        "q: expected 4 dimensions (batch, seq_len, n_heads, d_head), found 3 dimensions with shape (128, 16, 128)",
    ),
    "rank 5": case(
        lambda: forward(tensor(), tensor(1, *SHAPE)), "k: expected 4 dimensions", "found 5", "(1, 2, 128, 16, 128)"
    ),
    "rank 0": case(lambda: forward(torch.tensor(1.0)), "q: expected 4 dimensions", "found 0 dimensions with shape ()"),
    "float32": case(
        lambda: forward(tensor(dtype=torch.float32)), "q: expected dtype fp16 or bf16, found float32", ".half()"
    ),
    "integers": case(lambda: forward(tensor(dtype=torch.int8)), "q: expected dtype fp16 or bf16, found int8"),
    "complex numbers": case(lambda: forward(tensor(dtype=torch.complex64)), "q: expected dtype", "found another one"),
    "fp16 and bf16": case(
        lambda: forward(tensor(), tensor(dtype=torch.bfloat16)), "k: expected q's dtype fp16, found bf16"
    ),
    "out of another dtype": case(
        lambda: forward(tensor(), out=tensor(dtype=torch.bfloat16)), "out: expected q's dtype fp16, found bf16"
    ),
    "longer keys": case(
        lambda: forward(tensor(), tensor(2, 256, 16, 128)),
        "k: expected q's shape (2, 128, 16, 128), found (2, 256, 16, 128)",
    ),
    "fewer value heads": case(
        lambda: forward(tensor(), tensor(), tensor(2, 128, 8, 128)), "v: expected q's shape", "found (2, 128, 8, 128)"
    ),
    "out of another shape": case(
        lambda: forward(tensor(), out=tensor(1, 128, 16, 128)), "out: expected q's shape", "found (1, 128, 16, 128)"
    ),
    "too large a batch": case(lambda: forward(wide(65536, 128, 1, 128)), "batch of at most 65535, found 65536"),
    "too many heads": case(lambda: forward(wide(1, 128, 65536, 128)), "n_heads of at most 65535, found 65536"),
    "too long": case(lambda: forward(wide(1, 2**31, 1, 128)), "seq_len of at most 2147483647, found 2147483648"),
    "empty, head size 64": case(lambda: forward(tensor(0, 128, 16, 64)), "q: expected d_head 128, found 64"),
    "empty, other keys": case(
        lambda: forward(tensor(0, 128, 16, 128), tensor()), "k: expected q's shape (0, 128, 16, 128), found (2, 128, "
    ),
    "head size 64": case(lambda: forward(tensor(2, 128, 16, 64)), "q: expected d_head 128, found 64"),
    "length not divisible by B_r": case(
        lambda: forward(tensor(2, 192, 16, 128)), "q: expected seq_len divisible by B_r = 128, found 192", FP16
    ),
    "bf16 length not divisible by B_r": case(
        lambda: forward(tensor(2, 100, 16, 128, dtype=torch.bfloat16)),
        "seq_len divisible by B_r = 64, found 100",
        "pad the sequence",
    ),
    "last dimension strided": case(
        lambda: forward(tensor(), tensor(2, 128, 128, 16).transpose(2, 3)),
        "k: expected a contiguous last dimension (stride 1), found stride 16",
        ".contiguous()",
    ),
    "head stride of 132": case(
        lambda: forward(tensor(2, 128, 16, 132)[..., :128]),
        "q: expected the n_heads stride to be a multiple of 8 elements (16 bytes), found 132",
    ),
    "misaligned": case(
        lambda: forward(tensor(), tensor(), tensor(2 * 128 * 16 * 128 + 4)[4:].view(SHAPE)),
        "v: expected data aligned to 16 bytes, found an address 8 bytes past it",
    ),
    "out is q": case(out_is_q, "out: expected memory of its own, found elements shared with q", "separate tensor"),
    "out overlaps v": case(out_overlaps_v_by_one_row, "found elements shared with v"),
    "out overlaps k's heads": case(out_is_packed_with_k_one_head_on, "found elements shared with k"),
    "out expanded": case(
        lambda: forward(tensor(), out=tensor(1, 128, 16, 128).expand(SHAPE)),
        "out: expected one memory location per element, found strides (0, 2048, 128, 1)",
    ),
    "row stride of 8 heads": case(
        lambda: forward(tensor(2, 128, 8, 128), name=STATIC),
        "q: expected a seq_len stride of 2048 elements, which this kernel is built for, found 1024",
        "use contiguous tensors with 16 heads, or iteration 15",
    ),
    "row stride of packed keys": case(
        lambda: forward(tensor(), packed(3)[1], name=STATIC), "k: expected a seq_len stride of 2048", "found 6144"
    ),
    "row stride of the new output": case(
        lambda: forward(tensor()[:, :, :8], name=STATIC), "out: expected a seq_len stride of 2048", "found 1024"
    ),
    "configuration not built": case(
        lambda: forward(tensor(), config=UNBUILT),
        "config: expected one that was built: ",
        f"{FP16} | {BF16}",
        f'found "{UNBUILT}"',
    ),
    "configuration that is none": case(lambda: forward(tensor(), config="fast"), "config: expected", 'found "fast"'),
    "configuration of the other dtype": case(
        lambda: forward(tensor(), config=BF16), f"config: expected one for q's dtype fp16, found {BF16}"
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_one_clear_line(binding_site: Path, name: str) -> None:
    call, pieces = BAD[name]
    with pytest.raises(ValueError, match=r"^flashladder_9[56]: ") as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert [piece for piece in pieces if piece not in message] == [], message


@pytest.mark.parametrize("name", [name for name in BAD if name != "CPU tensors"])
def test_tracing_fails_as_running_would(binding_site: Path, name: str) -> None:
    """The fake implementations, here on meta tensors: the same line from shapes, dtypes, strides and storages."""
    call, pieces = BAD[name]
    with torch.device("meta"), pytest.raises(ValueError, match=r"^flashladder_9[56]: ") as caught:
        call()
    wanted = [piece for piece in pieces if piece != "found another one"]  # here torch's name of the dtype is known
    assert [piece for piece in wanted if piece not in str(caught.value)] == [], str(caught.value)


def test_row_stride_that_overflows_an_int(binding_site: Path, tmp_path: Path) -> None:
    try:  # a sparse file of 256 GiB takes no space
        buffer = torch.from_file(str(tmp_path / "sparse"), shared=True, size=128 * 2**30, dtype=torch.float16)
    except RuntimeError as error:
        pytest.skip(f"no sparse file of 256 GiB here: {error}")
    q = buffer.as_strided((1, 128, 1, 128), (8, 2**30, 128, 1))
    with pytest.raises(
        ValueError, match="q: expected a seq_len stride of at most 1073741823 elements, found 1073741824"
    ):
        forward(q)


def every_second_row() -> list[torch.Tensor]:
    row = tensor(2, 256, 16, 128)[:, ::2]
    return [row, row, row, tensor()]


GOOD = pytest.mark.parametrize(
    "views",
    [
        pytest.param(lambda: [tensor() for _ in range(4)], id="separate"),
        pytest.param(lambda: packed(4), id="packed in one buffer"),
        pytest.param(lambda: [*packed(3), tensor()], id="packed inputs"),
        pytest.param(every_second_row, id="every second row, all the same"),
        pytest.param(lambda: [tensor(), wide(*SHAPE), wide(*SHAPE), tensor()], id="expanded keys and values"),
        pytest.param(lambda: [tensor(2, 16, 128, 128).transpose(1, 2)] * 3 + [tensor()], id="heads before positions"),
        pytest.param(
            lambda: [tensor(1, 128, 16, 128).as_strided((1, 128, 16, 128), (3, 2048, 128, 1))] * 3, id="batch of one"
        ),
        pytest.param(
            lambda: [tensor(1, 128, 1, 128).as_strided((1, 128, 1, 128), (2**62, 128, 2**61 + 1, 1))] * 3,
            id="one sample and one head",
        ),
        *(
            pytest.param(lambda shape=shape, out=out: [tensor(*shape)] * (3 + out), id=f"empty {shape}{' out' * out}")
            for shape in [(0, 128, 16, 128), (2, 0, 16, 128), (2, 128, 0, 128), (0, 100, 3, 128), (0, 0, 0, 128)]
            for out in (0, 1)
        ),
        pytest.param(lambda: [tensor(0, 128, 16, 131)[..., 3:]] * 3, id="empty with strides of any kind"),
    ],
)


@GOOD
def test_good_arguments_pass_every_check_but_the_device(
    binding_site: Path, views: Callable[[], list[torch.Tensor]]
) -> None:
    """The stride of a dimension of one element is never used, so a batch of one may have any."""
    q, k, v, *out = views()
    with pytest.raises(ValueError, match="q: expected a CUDA tensor, found one on cpu"):
        forward(q, k, v, out=out[0] if out else None)


@GOOD
def test_good_arguments_trace(binding_site: Path, views: Callable[[], list[torch.Tensor]]) -> None:
    with torch.device("meta"):
        q, k, v, *out = views()
        result = forward(q, k, v, out=out[0] if out else None)
    assert (result is None) if out else (isinstance(result, torch.Tensor) and result.shape == q.shape)
