"""The host library beside torch, with empty fatbins: what it checks, takes and chooses; every check but a launch.

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
from flashladder.build.library import LIBRARY_NAME, WHEEL_INIT, TableRow, table_source, torch_root
from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import configs_for, tuned_from
from flashladder.ladder.iteration import load_iteration
from flashladder.ladder.selection import select_configs
from flashladder.paths import KERNELS
from flashladder.toolchain.wheels import host_compiler
from tests.nvcc.conftest import BY_MAPS, MAP_CONFIG

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

FP16 = "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
BF16 = "(BF16, 128, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax"
FREE, STATIC = "flashladder_95", "flashladder_96"  # any row stride; row stride 2048 as in iteration 16


def tensor(*shape: int, dtype: torch.dtype = torch.float16, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape or (2, 128, 16, 128), dtype=dtype, device=device)


@pytest.mark.nvcc
def test_schemas_are_the_contract(binding_site: Path) -> None:
    operators = torch.ops.flashladder_95
    tensors = "Tensor q, Tensor k, Tensor v"
    assert str(operators.forward.default._schema) == f'{FREE}::forward({tensors}, str config="") -> Tensor'
    assert (
        str(operators.forward_out.default._schema)
        == f'{FREE}::forward_out({tensors}, Tensor(a!) out, str config="") -> ()'
    )


@pytest.mark.nvcc
def test_two_libraries_keep_their_own_tables(binding_site: Path) -> None:
    """Same symbol names in both: exported ones would make the first library answer for the second."""
    q = tensor(2, 128, 8, 128)
    for name, stride_matters in ((FREE, False), (STATIC, True)):
        module = importlib.import_module(name)
        assert module.configurations() == (FP16, BF16)
        with pytest.raises(ValueError, match=rf"^{name}: ") as caught:
            getattr(torch.ops, name).forward(q, q, q)
        assert ("seq_len stride of 2048" in str(caught.value)) is stride_matters


@pytest.mark.nvcc
def test_nothing_of_ours_is_exported(binding_site: Path) -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", binding_site / FREE / LIBRARY_NAME], check=True, capture_output=True, text=True
    ).stdout
    assert "flashladder" not in listing
    assert "cudaLaunch" not in listing


@pytest.mark.nvcc
def test_library_asks_for_torch_but_not_for_cuda(binding_site: Path) -> None:
    listing = subprocess.run(
        ["readelf", "-d", binding_site / FREE / LIBRARY_NAME], check=True, capture_output=True, text=True
    ).stdout
    assert "libtorch.so" in listing
    assert "libcudart" not in listing
    assert "libcuda.so" not in listing


@pytest.mark.nvcc
def test_no_machine_path_inside(binding_site: Path) -> None:
    content = (binding_site / FREE / LIBRARY_NAME).read_bytes()
    assert str(KERNELS).encode() not in content
    assert os.fsencode(torch_root()) not in content


@pytest.mark.nvcc
def test_fake_output_is_contiguous_in_qs_shape_dtype_and_device(binding_site: Path) -> None:
    q = torch.empty(2, 128, 3, 16, 128, dtype=torch.bfloat16, device="meta")[:, :, 1]
    out = torch.ops.flashladder_95.forward(q, q, q)
    assert torch.ops.flashladder_95.forward_out(q, q, q, torch.empty_like(q)) is None
    assert (out.shape, out.dtype, str(out.device)) == (q.shape, torch.bfloat16, "meta")
    assert out.is_contiguous()


@pytest.mark.nvcc
def test_fake_tensors_on_the_cpu_are_refused_as_real_ones_are(binding_site: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), pytest.raises(ValueError, match="q: expected a CUDA tensor, found one on cpu"):
        torch.ops.flashladder_95.forward(tensor(), tensor(), tensor())


def trace(seq_len: int) -> torch.fx.GraphModule:
    """The operator traced for any batch and length, on tensors without memory."""
    from torch.fx.experimental.proxy_tensor import make_fx

    q = tensor(2, seq_len, 16, 128, device="meta")
    return make_fx(torch.ops.flashladder_95.forward, tracing_mode="symbolic")(q, q, q)


@pytest.mark.nvcc
def test_a_symbolic_length_is_checked_and_not_pinned(binding_site: Path) -> None:
    graph = trace(256)
    other = tensor(3, 512, 16, 128, device="meta")
    assert graph(other, other, other).shape == other.shape
    assert not re.search(r"\b(256|512)\b", graph.code)
    with pytest.raises(ValueError, match=r"seq_len divisible by B_r = 128, found 192"):
        trace(192)


@pytest.mark.nvcc
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


@pytest.mark.nvcc
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


@pytest.mark.nvcc
@pytest.mark.usefixtures("as_iteration_8")
@pytest.mark.parametrize("shape", [(0, 256, 16, 128), (2, 0, 16, 128), (2, 256, 0, 128), (0, 0, 0, 128)])
def test_python_forward_of_nothing_is_what_torch_gives(shape: tuple[int, ...]) -> None:
    q = tensor(*shape, device="meta")
    out, heads = flashladder.forward(q, q, q, iteration=8), torch.zeros(shape).transpose(1, 2)
    expected = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2)
    assert (out.shape, out.dtype, out.device) == (expected.shape, q.dtype, q.device)
    assert flashladder.forward(q, q, q, iteration=8, out=out) is out


@pytest.mark.nvcc
@pytest.mark.usefixtures("as_iteration_8")
def test_python_forward_ignores_strides_of_dimensions_of_one_element() -> None:
    q = torch.as_strided(tensor(1, 128, 1, 128, device="meta"), (1, 128, 1, 128), (2**62, 128, 2**40 + 1, 1))
    assert flashladder.forward(q, q, q, iteration=8).is_contiguous()


@pytest.mark.nvcc
def test_same_name_from_another_file_is_refused(binding_site: Path, tmp_path: Path) -> None:
    package = tmp_path / FREE
    shutil.copytree(binding_site / FREE, package)
    spec = importlib.util.spec_from_file_location(FREE, package / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=f"{FREE}: another library is already loaded under this name"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.nvcc
def test_missing_library_says_to_build(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_bytes(WHEEL_INIT.read_bytes())
    spec = importlib.util.spec_from_file_location("flashladder_94", tmp_path / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=r"flashladder_94: torch could not load the library .* build it again"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


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


@pytest.mark.nvcc
@pytest.mark.usefixtures("binding_site")
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


@pytest.mark.nvcc
@pytest.mark.usefixtures("binding_site")
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


@pytest.mark.nvcc
@pytest.mark.usefixtures("binding_site")
def test_rows_may_lie_farther_apart_than_32_bits_tell() -> None:
    assert [checked(elements) for elements in (2**31, 2**39 - 8)] == ["passes", "passes"]
    limit = "a seq_len stride of at most 549755813880 elements, found 549755813888; call .contiguous()"
    assert checked(2**39) == f"{BY_MAPS}: q: expected {limit}"


@pytest.mark.nvcc
@pytest.mark.usefixtures("binding_site")
def test_the_stride_of_a_single_row_may_be_anything() -> None:
    assert [checked(elements, 1) for elements in (2**40, 2**62, 3)] == ["passes"] * 3


@pytest.mark.nvcc
@pytest.mark.usefixtures("binding_site")
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


@pytest.mark.nvcc
@pytest.mark.usefixtures("binding_site")
def test_an_output_that_overlaps_is_refused_at_ragged_lengths_too() -> None:
    buffer = torch.zeros(1, 33, 3, 128, dtype=torch.float16)
    q = buffer[:, :17]
    assert "out: expected memory of its own, found elements shared with q" in answer(q, out=buffer[:, 16:])


CAPABILITIES = (80, 86, 87, 89, 90, 100, 103, 120, 999)
PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include "host/checks.h"

// A compute capability and a dtype, several times: what runs where nobody names a configuration.
int main(int argc, char **argv) {
    for (int at = 1; at + 1 < argc; at += 2) {
        flashladder::TensorFacts q{};
        q.dtype = argv[at + 1];
        try {
            std::puts(flashladder::select_row("", q, std::atoi(argv[at])).config);
        } catch (const std::exception &error) {
            std::puts(error.what());
        }
    }
}
"""


def taken(folder: Path, number: int, key: str, asked: list[tuple[int, str]]) -> list[str]:
    """What a library of an iteration, built with the configurations of a selection key, runs."""
    (folder / "empty.fatbin").write_bytes(bytes(64))
    step = load_iteration(number)
    rows = [
        TableRow(config, folder / "empty.fatbin", step.family, ("sm_80",), step.row_stride)
        for config in select_configs(step, key)
    ]
    source, program = folder / "main.cpp", folder / "program"
    source.write_text(PROGRAM + table_source("flashladder_97", rows, tuned_from(step.configs)), encoding="utf-8")
    command = [str(host_compiler()), "-std=c++17", "-Wno-unused-function", f"-I{KERNELS}", str(source)]
    subprocess.run([*command, "-o", str(program)], check=True)
    words = [str(word) for pair in asked for word in pair]
    return subprocess.run([str(program), *words], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.nvcc
@pytest.mark.parametrize("number", [7, 17, 19, 26])
def test_a_gpu_takes_the_configuration_that_the_iteration_gives_it(tmp_path: Path, number: int) -> None:
    """As `flashladder.forward` does, which knows the GPU's name too."""
    asked = [(capability, dtype) for capability in CAPABILITIES for dtype in ("fp16", "bf16")]
    configs = load_iteration(number).configs
    assert taken(tmp_path, number, "prog", asked) == [
        configs[configs_for(None, f"sm_{capability}")].with_dtype(dtype).short_form() for capability, dtype in asked
    ]


@pytest.mark.nvcc
def test_without_the_tuned_one_it_is_the_first_that_was_built(tmp_path: Path) -> None:
    a100 = load_iteration(19).configs["a100"].short_form()
    assert taken(tmp_path, 19, "a100", [(90, "fp16"), (80, "fp16"), (0, "fp16")]) == [a100] * 3


@pytest.mark.nvcc
def test_a_dtype_that_was_not_built_is_told(tmp_path: Path) -> None:
    short_form = load_iteration(19).configs["h200"].short_form()
    built, missing = taken(tmp_path, 19, short_form, [(90, "fp16"), (90, "bf16")])
    assert built == short_form
    assert missing == f"flashladder_97: q: expected a dtype that was built: {short_form}, found bf16"
