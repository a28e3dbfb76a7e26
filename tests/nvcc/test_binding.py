"""The torch binding, loaded on a machine without a GPU: schemas, fakes, tracing, two libraries at once, load errors.

Run: pytest tests/nvcc/test_binding.py  (compiles for 3 s the first time, see conftest.py)
"""

from __future__ import annotations

from collections.abc import Callable
import importlib
import importlib.util
import os
from pathlib import Path
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

import flashladder
from flashladder.build.library import LIBRARY_NAME, WHEEL_INIT, torch_root
from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.paths import KERNELS

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")
pytestmark = pytest.mark.nvcc

FP16 = "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
BF16 = "(BF16, 128, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax"
FREE, STATIC = "flashladder_95", "flashladder_96"  # any row stride; row stride 2048 as in iteration 16


def tensor(*shape: int, dtype: torch.dtype = torch.float16, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape or (2, 128, 16, 128), dtype=dtype, device=device)


def test_schemas_are_the_contract(binding_site: Path) -> None:
    operators = torch.ops.flashladder_95
    tensors = "Tensor q, Tensor k, Tensor v"
    assert str(operators.forward.default._schema) == f'{FREE}::forward({tensors}, str config="") -> Tensor'
    assert (
        str(operators.forward_out.default._schema)
        == f'{FREE}::forward_out({tensors}, Tensor(a!) out, str config="") -> ()'
    )


def test_two_libraries_keep_their_own_tables(binding_site: Path) -> None:
    """Same symbol names in both: exported ones would make the first library answer for the second."""
    q = tensor(2, 128, 8, 128)
    for name, stride_matters in ((FREE, False), (STATIC, True)):
        module = importlib.import_module(name)
        assert module.configurations() == (FP16, BF16)
        with pytest.raises(ValueError, match=rf"^{name}: ") as caught:
            getattr(torch.ops, name).forward(q, q, q)
        assert ("seq_len stride of 2048" in str(caught.value)) is stride_matters


def test_nothing_of_ours_is_exported(binding_site: Path) -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", binding_site / FREE / LIBRARY_NAME], check=True, capture_output=True, text=True
    ).stdout
    assert "flashladder" not in listing
    assert "cudaLaunch" not in listing


def test_library_asks_for_torch_but_not_for_cuda(binding_site: Path) -> None:
    listing = subprocess.run(
        ["readelf", "-d", binding_site / FREE / LIBRARY_NAME], check=True, capture_output=True, text=True
    ).stdout
    assert "libtorch.so" in listing
    assert "libcudart" not in listing
    assert "libcuda.so" not in listing


def test_no_machine_path_inside(binding_site: Path) -> None:
    content = (binding_site / FREE / LIBRARY_NAME).read_bytes()
    assert str(KERNELS).encode() not in content
    assert os.fsencode(torch_root()) not in content


def test_fake_output_is_contiguous_in_qs_shape_dtype_and_device(binding_site: Path) -> None:
    q = torch.empty(2, 128, 3, 16, 128, dtype=torch.bfloat16, device="meta")[:, :, 1]
    out = torch.ops.flashladder_95.forward(q, q, q)
    assert torch.ops.flashladder_95.forward_out(q, q, q, torch.empty_like(q)) is None
    assert (out.shape, out.dtype, str(out.device)) == (q.shape, torch.bfloat16, "meta")
    assert out.is_contiguous()


def test_fake_tensors_on_the_cpu_are_refused_as_real_ones_are(binding_site: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), pytest.raises(ValueError, match="q: expected a CUDA tensor, found one on cpu"):
        torch.ops.flashladder_95.forward(tensor(), tensor(), tensor())


def trace(seq_len: int) -> torch.fx.GraphModule:
    """The operator traced for any batch and length, on tensors without memory."""
    from torch.fx.experimental.proxy_tensor import make_fx

    q = tensor(2, seq_len, 16, 128, device="meta")
    return make_fx(torch.ops.flashladder_95.forward, tracing_mode="symbolic")(q, q, q)


def test_a_symbolic_length_is_checked_and_not_pinned(binding_site: Path) -> None:
    graph = trace(256)
    other = tensor(3, 512, 16, 128, device="meta")
    assert graph(other, other, other).shape == other.shape
    assert not re.search(r"\b(256|512)\b", graph.code)
    with pytest.raises(ValueError, match=r"seq_len divisible by B_r = 128, found 192"):
        trace(192)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's compiler imports torch's own old parts
def test_operator_traces_without_a_graph_break(binding_site: Path) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        run: Callable[..., object] = graph.forward
        return run

    compiled = torch.compile(lambda q: torch.ops.flashladder_95.forward(q, q, q) * 2, backend=backend, fullgraph=True)
    assert compiled(tensor(device="meta")).shape == (2, 128, 16, 128)
    assert any(node.target is torch.ops.flashladder_95.forward for node in graphs[0].graph.nodes)
    with pytest.raises(Exception, match="seq_len divisible by B_r = 128, found 130"):  # of torch's compiler's own types
        compiled(tensor(2, 130, 16, 128, device="meta"))


@pytest.fixture
def as_iteration_8(binding_site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library counts as that of iteration 8."""
    from flashladder import ops

    monkeypatch.setattr(ops, "LIBRARIES", (*ops.LIBRARIES[:8], FREE, *ops.LIBRARIES[9:]))


@pytest.mark.usefixtures("as_iteration_8")
def test_python_forward_lists_what_was_built() -> None:
    q, other = tensor(device="meta"), "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"
    with pytest.raises(FlashladderError) as caught:
        flashladder.forward(q, q, q, iteration=8, config=other)
    for piece in ("not built", FP16, BF16, f"found {other}", "nox -s build-iteration-8"):
        assert piece in str(caught.value)
    assert flashladder.configurations(8) == (KernelConfig.parse(FP16), KernelConfig.parse(BF16))
    with pytest.raises(ValueError, match="out: expected memory of its own"):
        flashladder.forward(q, q, q, iteration=8, config=KernelConfig.parse(FP16), out=q)


@pytest.mark.usefixtures("as_iteration_8")
@pytest.mark.parametrize("shape", [(0, 256, 16, 128), (2, 0, 16, 128), (2, 256, 0, 128), (0, 0, 0, 128)])
def test_python_forward_of_nothing_is_what_torch_gives(shape: tuple[int, ...]) -> None:
    q = tensor(*shape, device="meta")
    out, heads = flashladder.forward(q, q, q, iteration=8), torch.zeros(shape).transpose(1, 2)
    expected = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2)
    assert (out.shape, out.dtype, out.device) == (expected.shape, q.dtype, q.device)
    assert flashladder.forward(q, q, q, iteration=8, out=out) is out


@pytest.mark.usefixtures("as_iteration_8")
def test_python_forward_ignores_strides_of_dimensions_of_one_element() -> None:
    q = torch.as_strided(tensor(1, 128, 1, 128, device="meta"), (1, 128, 1, 128), (2**62, 128, 2**40 + 1, 1))
    assert flashladder.forward(q, q, q, iteration=8).is_contiguous()


def test_same_name_from_another_file_is_refused(binding_site: Path, tmp_path: Path) -> None:
    package = tmp_path / FREE
    shutil.copytree(binding_site / FREE, package)
    spec = importlib.util.spec_from_file_location(FREE, package / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=f"{FREE}: another library is already loaded under this name"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_missing_library_says_to_build(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_bytes(WHEEL_INIT.read_bytes())
    spec = importlib.util.spec_from_file_location("flashladder_94", tmp_path / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=r"flashladder_94: torch could not load the library .* build it again"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
