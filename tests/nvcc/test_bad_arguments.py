"""The host library with torch and empty fatbins: the arguments that it refuses and the kernels that it selects.

A bad argument of `torch.ops.flashladder_NN` gives one ValueError line: argument, expected, found, what to do. The
library checks the device last, so these tests use CPU tensors.
"""

from __future__ import annotations

from collections.abc import Callable
import importlib
import importlib.util
import os
from pathlib import Path
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from flashladder.build.library import LIBRARY_NAME, WHEEL_INIT, table_source, torch_root
from flashladder.ladder.gpus import configs_for, tuned_from
from flashladder.ladder.iteration import load_iteration
from flashladder.ladder.selection import select_configs
from flashladder.paths import KERNELS
from tests.nvcc.conftest import BY_MAPS, CONFIGS, MAP_CONFIG, compiled

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")
pytestmark = pytest.mark.nvcc

FP16, BF16 = map(str, CONFIGS)
UNBUILT = "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"
FREE, STATIC = "flashladder_95", "flashladder_96"  # any row stride; row stride 2048 as in iteration 16
SHAPE = (2, 128, 16, 128)  # batch, seq_len, n_heads, d_head


def tensor(*shape: int, dtype: torch.dtype = torch.float16, device: str | None = None) -> torch.Tensor:
    return torch.zeros(shape or SHAPE, dtype=dtype, device=device)


def wide(*shape: int) -> torch.Tensor:
    """A tensor of any shape (.., 128) that takes 256 bytes."""
    return tensor(1, 1, 1, 128).expand(shape)


def packed(n: int) -> list[torch.Tensor]:
    """n tensors of SHAPE interleaved in one buffer, as from a fused projection."""
    buffer = tensor(SHAPE[0], SHAPE[1], n, *SHAPE[2:])
    return [buffer[:, :, i] for i in range(n)]


def forward(
    q: object, k: object = None, v: object = None, config: str = "", name: str = FREE, out: object = None
) -> object:
    """Calls the operator, or with `out` the one with an output; k and v are q by default."""
    inputs = (q, q if k is None else k, q if v is None else v)
    operators = getattr(torch.ops, name)
    return operators.forward(*inputs, config) if out is None else operators.forward_out(*inputs, out, config)


def out_overlaps_k() -> object:
    """Same strides; 15 of 16 heads are shared."""
    buffer = tensor(2, 128, 40, 128)
    return forward(tensor(), buffer[:, :, :16], tensor(), out=buffer[:, :, 1:17])


BAD: dict[str, tuple[Any, ...]] = {  # a call, and pieces of its message
    "CPU tensors": (lambda: forward(tensor()), "q: expected a CUDA tensor, found one on cpu", "call .cuda()"),
    "rank 3": (
        lambda: forward(tensor(128, 16, 128)),
        "q: expected 4 dimensions (batch, seq_len, n_heads, d_head), found 3 dimensions with shape (128, 16, 128)",
    ),
    "float32": (
        lambda: forward(tensor(dtype=torch.float32)),
        "q: expected dtype fp16 or bf16, found float32",
        ".half()",
    ),
    "fp16 and bf16": (
        lambda: forward(tensor(), tensor(dtype=torch.bfloat16)),
        "k: expected q's dtype fp16, found bf16",
    ),
    "out of another dtype": (
        lambda: forward(tensor(), out=tensor(dtype=torch.bfloat16)),
        "out: expected q's dtype fp16, found bf16",
    ),
    "longer keys": (
        lambda: forward(tensor(), tensor(2, 256, 16, 128)),
        "k: expected q's shape (2, 128, 16, 128), found (2, 256, 16, 128)",
    ),
    "too large a batch": (lambda: forward(wide(65536, 128, 1, 128)), "batch of at most 65535, found 65536"),
    "too long": (lambda: forward(wide(1, 2**31, 1, 128)), "seq_len of at most 2147483647, found 2147483648"),
    "head size 64": (lambda: forward(tensor(2, 128, 16, 64)), "q: expected d_head 128, found 64"),
    "length not divisible by B_r": (
        lambda: forward(tensor(2, 192, 16, 128)),
        "q: expected seq_len divisible by B_r = 128, found 192",
        FP16,
    ),
    "last dimension strided": (
        lambda: forward(tensor(), tensor(2, 128, 128, 16).transpose(2, 3)),
        "k: expected a contiguous last dimension (stride 1), found stride 16",
        ".contiguous()",
    ),
    "head stride of 132": (
        lambda: forward(tensor(2, 128, 16, 132)[..., :128]),
        "q: expected the n_heads stride to be a multiple of 8 elements (16 bytes), found 132",
    ),
    "misaligned": (
        lambda: forward(tensor(), tensor(), tensor(2 * 128 * 16 * 128 + 4)[4:].view(SHAPE)),
        "v: expected data aligned to 16 bytes, found an address 8 bytes past it",
    ),
    "out is q": (
        lambda: forward(q := tensor(), tensor(), tensor(), out=q),
        "out: expected memory of its own, found elements shared with q",
        "separate tensor",
    ),
    "out overlaps k's heads": (out_overlaps_k, "found elements shared with k"),
    "out expanded": (
        lambda: forward(tensor(), out=tensor(1, 128, 16, 128).expand(SHAPE)),
        "out: expected one memory location per element, found strides (0, 2048, 128, 1)",
    ),
    "row stride of 8 heads": (
        lambda: forward(tensor(2, 128, 8, 128), name=STATIC),
        "q: expected a seq_len stride of 2048 elements, which this kernel is built for, found 1024",
        "use contiguous tensors with 16 heads, or iteration 15",
    ),
    "configuration not built": (
        lambda: forward(tensor(), config=UNBUILT),
        f"config: expected one that was built: {FP16} | {BF16}",
        f'found "{UNBUILT}"',
    ),
    "configuration of the other dtype": (
        lambda: forward(tensor(), config=BF16),
        f"config: expected one for q's dtype fp16, found {BF16}",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_one_clear_line_when_running_and_when_tracing(binding_site: Path, name: str) -> None:
    """The fake implementations, here on meta tensors, say the same from shapes, dtypes, strides and storages."""
    call, *pieces = BAD[name]
    for device in ("cpu", *(["meta"] if name != "CPU tensors" else [])):
        with torch.device(device), pytest.raises(ValueError, match=r"^flashladder_9[56]: ") as caught:
            call()
        message = str(caught.value)
        assert "\n" not in message
        assert [piece for piece in pieces if piece not in message] == [], message


@pytest.mark.parametrize(
    "views",
    [
        pytest.param(lambda: [tensor() for _ in range(4)], id="separate"),
        pytest.param(lambda: packed(4), id="packed in one buffer"),
        pytest.param(lambda: [tensor(), wide(*SHAPE), wide(*SHAPE), tensor()], id="expanded keys and values"),
        pytest.param(lambda: [tensor(2, 16, 128, 128).transpose(1, 2)] * 3 + [tensor()], id="heads before positions"),
        pytest.param(
            lambda: [tensor(1, 128, 1, 128).as_strided((1, 128, 1, 128), (2**62, 128, 2**61 + 1, 1))] * 3,
            id="one sample and one head",
        ),
        *(
            pytest.param(lambda shape=shape, out=out: [tensor(*shape)] * (3 + out), id=f"empty {shape}{' out' * out}")
            for shape, out in [((0, 128, 16, 128), 0), ((2, 0, 16, 128), 1), ((2, 128, 0, 128), 0), ((0, 0, 0, 128), 1)]
        ),
    ],
)
def test_good_arguments_pass_every_check_but_the_device_and_trace(
    binding_site: Path, views: Callable[[], list[torch.Tensor]]
) -> None:
    """The stride of a dimension of one element is never used, so a batch of one may have any."""
    q, k, v, *out = views()
    with pytest.raises(ValueError, match="q: expected a CUDA tensor, found one on cpu"):
        forward(q, k, v, out=out[0] if out else None)
    with torch.device("meta"):
        q, k, v, *out = views()
        result = forward(q, k, v, out=out[0] if out else None)
    if out:
        assert result is None
    else:
        assert isinstance(result, torch.Tensor)
        assert (result.shape, result.dtype, str(result.device)) == (q.shape, q.dtype, "meta")
        assert result.is_contiguous()


def test_the_library_exports_nothing_of_ours_asks_for_no_cuda_and_names_no_place(binding_site: Path) -> None:
    library = binding_site / FREE / LIBRARY_NAME
    content = library.read_bytes()
    exported = subprocess.check_output(["nm", "-D", "--defined-only", library], text=True)
    needed = subprocess.check_output(["readelf", "-d", library], text=True)
    assert not [name for name in ("flashladder", "cudaLaunch") if name in exported]
    assert "libtorch.so" in needed
    assert not [name for name in ("libcudart", "libcuda.so") if name in needed]
    assert str(KERNELS).encode() not in content
    assert os.fsencode(torch_root()) not in content


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's compiler imports torch's own old parts
@pytest.mark.usefixtures("binding_site")
def test_one_trace_without_a_graph_break_serves_all_lengths_and_checks_them() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        run: Callable[..., object] = graph.forward
        return run

    compiled = torch.compile(
        lambda q: torch.ops.flashladder_95.forward(q, q, q), backend=backend, fullgraph=True, dynamic=True
    )
    for shape in ((2, 256, 16, 128), (3, 512, 16, 128)):
        assert compiled(tensor(*shape, device="meta")).shape == shape
    assert len(graphs) == 1
    with pytest.raises(Exception, match="seq_len divisible by B_r = 128, found 130"):  # of torch's compiler's own types
        compiled(tensor(2, 130, 16, 128, device="meta"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (FREE, "another library is already loaded under this name"),
        ("flashladder_94", "torch could not load the library .* build it again"),
    ],
)
def test_a_name_that_is_taken_and_a_library_that_is_missing(
    binding_site: Path, tmp_path: Path, name: str, says: str
) -> None:
    (tmp_path / "__init__.py").write_bytes(WHEEL_INIT.read_bytes())
    spec = importlib.util.spec_from_file_location(name, tmp_path / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=f"{name}: {says}"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def answer(q: torch.Tensor, out: torch.Tensor | None = None) -> str:
    """The operator's error for tensors that are not on a GPU."""
    with pytest.raises(ValueError, match=BY_MAPS) as caught:
        forward(q, name=BY_MAPS, out=out)
    return str(caught.value)


PASSED = f"{BY_MAPS}: q: expected a CUDA tensor, found one on cpu; there is no CPU kernel; call .cuda()"


@pytest.mark.usefixtures("binding_site")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((lambda n=n: tensor(2, n, 3, 128), PASSED) for n in (1, 129, 4097)),  # any length will do
        (lambda: tensor(2, 3, 40, 128).transpose(1, 2), PASSED),
        (lambda: tensor(1, 41, 3, 128).as_strided((1, 40, 3, 128), (3, 384, 128, 1)), PASSED),
        (
            lambda: tensor(1, 40, 3, 129)[..., :128],
            "q: expected the seq_len stride to be a multiple of 8 elements (16 bytes), found 387; call .contiguous()",
        ),
        (
            lambda: tensor(1, 40, 3, 128, dtype=torch.bfloat16),
            f"q: expected a dtype that was built: {MAP_CONFIG}, found bf16",
        ),
    ],
)
def test_what_a_kernel_with_maps_takes(make: Callable[[], torch.Tensor], message: str) -> None:
    assert message in answer(make())


@pytest.mark.usefixtures("binding_site")
def test_an_output_that_overlaps_is_refused_at_ragged_lengths_too() -> None:
    buffer = tensor(1, 33, 3, 128)
    assert "out: expected memory of its own, found elements shared with q" in answer(buffer[:, :17], buffer[:, 16:])


def checked(seq_stride: int, seq_len: int = 2) -> str:
    """The result of the check for tensors (1, seq_len, 1, 128) whose rows are this many elements apart."""
    strides = [number for _ in range(4) for number in (128, seq_stride, 128, 1)]
    addresses = [0, 2**44, 2**45, 2**46]
    try:
        getattr(torch.ops, BY_MAPS).check(
            [4] * 4, [1, seq_len, 1, 128] * 4, strides, addresses, ["fp16"] * 4, ["cuda:0"] * 4, True, ""
        )
    except ValueError as error:
        return str(error)
    return "passes"


@pytest.mark.usefixtures("binding_site")
def test_rows_may_lie_farther_apart_than_32_bits_tell_and_a_single_one_anywhere() -> None:
    assert [checked(elements) for elements in (2**31, 2**39 - 8)] == ["passes", "passes"]
    assert [checked(elements, 1) for elements in (2**40, 2**62, 3)] == ["passes"] * 3
    limit = "a seq_len stride of at most 549755813880 elements, found 549755813888; call .contiguous()"
    assert checked(2**39) == f"{BY_MAPS}: q: expected {limit}"


CAPABILITIES = (80, 86, 87, 89, 90, 100, 103, 120, 999)
PROGRAM = Path(__file__).with_name("host") / "select.cpp"


def taken(folder: Path, number: int, key: str, asked: list[tuple[int, str]]) -> list[str]:
    """The default configurations of a library of an iteration, built with those of a selection key."""
    (folder / "empty.fatbin").write_bytes(bytes(64))
    step = load_iteration(number)
    kernels = [(config, folder / "empty.fatbin", ()) for config in select_configs(step, key)]
    table = table_source("flashladder_97", step.family, kernels, ("sm_80",), step.row_stride, tuned_from(step.configs))
    program = compiled(folder, PROGRAM.read_text(encoding="utf-8") + table, "-Wno-unused-function")
    words = [str(word) for pair in asked for word in pair]
    return subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("number", [7, 19, 26])
def test_a_gpu_takes_the_configuration_that_the_iteration_gives_it(tmp_path: Path, number: int) -> None:
    """As `flashladder.forward` does, which knows the GPU's name too."""
    asked = [(capability, dtype) for capability in CAPABILITIES for dtype in ("fp16", "bf16")]
    configs = load_iteration(number).configs
    assert taken(tmp_path, number, "prog", asked) == [
        configs[configs_for(None, f"sm_{capability}")].with_dtype(dtype).short_form() for capability, dtype in asked
    ]


def test_without_the_tuned_one_it_is_the_first_that_was_built_if_it_is_of_the_dtype(tmp_path: Path) -> None:
    short_form = load_iteration(19).configs["a100"].short_form()
    found = taken(tmp_path, 19, short_form, [(90, "fp16"), (80, "fp16"), (0, "fp16"), (90, "bf16")])
    refused = f"flashladder_97: q: expected a dtype that was built: {short_form}, found bf16"
    assert found == [short_form] * 3 + [refused]
