"""The host library with torch and empty fatbins: the arguments that it refuses and the kernels that it selects.

A bad argument of `torch.ops.flashladder_NN` gives one ValueError line: argument, expected, found, what to do. The
library checks the device last, so these tests use CPU tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
import importlib
import importlib.util
from itertools import product
import math
import os
from pathlib import Path
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from flashladder.build.library import LIBRARY_NAME, WHEEL_INIT, table_source, torch_root
from flashladder.ladder.gpus import configs_for, tuned_from
from flashladder.ladder.iteration import load_iteration
from flashladder.ladder.selection import select_configs
from flashladder.names import DTYPES
from flashladder.paths import KERNELS
from tests.data_files import table_of
from tests.nvcc.conftest import BY_MAPS, CONFIGS, GENERAL, GENERAL_CONFIGS, MAP_CONFIG, compiled

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")
pytestmark = pytest.mark.nvcc

FP16, BF16 = map(str, CONFIGS)
PLAIN, CAUSAL, PACKED, PACKED_CAUSAL = map(str, GENERAL_CONFIGS)
UNBUILT = "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"
FREE, STATIC = "flashladder_95", "flashladder_96"  # any row stride; row stride 2048 as in iteration 16
SHAPE = (2, 128, 16, 128)  # batch, seq_len, n_heads, d_head
ROWS = SHAPE[1:]  # of packed sequences


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


def attention(
    q: object, k: object = None, v: object = None, *, name: str = GENERAL, out: object = None, **rest: Any
) -> Any:
    """Calls `attention`, or with `out` the operator with outputs; v is k by default, and that q."""
    k = q if k is None else k
    inputs = (q, k, k if v is None else v)
    operators = getattr(torch.ops, name)
    if out is None:
        return operators.attention(*inputs, **rest)
    return operators.attention_out(*inputs, out, rest.pop("lse", None), **rest)


def varlen(
    q: torch.Tensor | None = None,
    k: torch.Tensor | None = None,
    /,
    *bounds: torch.Tensor,
    name: str = GENERAL,
    out: object = None,
    **rest: Any,
) -> Any:
    """Calls `attention_varlen` as `attention` does; two sequences of rows of ROWS by default."""
    q = tensor(*ROWS) if q is None else q
    k = q if k is None else k
    bounds = bounds or (begins(3), begins(3))
    operators = getattr(torch.ops, name)
    if out is None:
        return operators.attention_varlen(q, k, k, *bounds, **rest)
    return operators.attention_varlen_out(q, k, k, *bounds, out, rest.pop("lse", None), **rest)


def begins(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Where packed sequences begin."""
    return torch.zeros(shape, dtype=dtype)


def lse(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """For a q of SHAPE, by default."""
    return tensor(*(shape or (2, 16, 128)), dtype=dtype)


def out_overlaps_k() -> object:
    """Same strides; 15 of 16 heads are shared."""
    buffer = tensor(2, 128, 40, 128)
    return forward(tensor(), buffer[:, :, :16], tensor(), out=buffer[:, :, 1:17])


OPERATORS: dict[str, Callable[..., object]] = {"forward": forward, "attention": attention, "varlen": varlen}
BUILT = {"FP16": FP16, "BF16": BF16, "PLAIN": PLAIN, "CAUSAL": CAUSAL, "PACKED": PACKED, "UNBUILT": UNBUILT}
SPELLED = BUILT | {"FREE": FREE, "STATIC": STATIC, "GENERAL": GENERAL}


def read(value: Any) -> Any:
    """An argument or a piece of a message as tables.yaml has it: a tensor is its dtype and its shape."""
    if isinstance(value, list):
        dtype, *shape = value
        return torch.zeros(shape, dtype=getattr(torch, dtype))
    return value.format(**SPELLED) if isinstance(value, str) else value


def call_plain(operator: str, given: list[Any], named: dict[str, Any]) -> object:
    return OPERATORS[operator](*map(read, given), **{key: read(value) for key, value in named.items()})


BAD: dict[str, tuple[Any, ...]] = {  # a call, and pieces of its message
    "CPU tensors": (lambda: forward(tensor()), "q: expected a CUDA tensor, found one on cpu", "call .cuda()"),
    "too large a batch": (lambda: forward(wide(65536, 128, 1, 128)), "batch of at most 65535, found 65536"),
    "too many heads for a grid of three dimensions": (
        lambda: forward(wide(1, 1, 65536, 128), name=BY_MAPS),
        "n_heads of at most 65535, found 65536",
    ),
    "too long": (lambda: forward(wide(1, 2**31, 1, 128)), "seq_len of at most 2147483647, found 2147483648"),
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
    "packed out that is expanded": (
        lambda: varlen(out=tensor(1, *ROWS[1:]).expand(ROWS)),
        "out: expected one memory location per element, found strides (0, 128, 1) for shape (128, 16, 128)",
    ),
    "out overlaps k's heads": (out_overlaps_k, "found elements shared with k"),
    "out expanded": (
        lambda: forward(tensor(), out=tensor(1, 128, 16, 128).expand(SHAPE)),
        "out: expected one memory location per element, found strides (0, 2048, 128, 1)",
    ),
    "too many keys": (
        lambda: attention(wide(1, 1, 1, 128), wide(1, 2**31, 1, 128)),
        "k: expected seq_len of at most 2147483647, found 2147483648",
    ),
    "scale nan": (  # not in tables.yaml, whose .nan is read with a sign
        lambda: attention(tensor(), scale=math.nan),
        "scale: expected a finite number above 0 that fp32 holds, found nan",
    ),
    "lse strided": (
        lambda: attention(tensor(), out=tensor(), lse=lse(2, 128, 16).transpose(1, 2)),
        "lse: expected a contiguous tensor, found strides (2048, 1, 16)",
    ),
    "lse in q": (
        lambda: attention(
            q := tensor(), tensor(), out=tensor(), lse=q.view(-1)[:8192].view(torch.float32).view(2, 16, 128)
        ),
        "lse: expected memory of its own, found bytes between q's first and last; pass a separate tensor",
    ),
    "too many packed keys": (
        lambda: varlen(tensor(1, 1, 128), tensor(1, 1, 128).expand(2**30 + 1, 1, 128)),
        "k: expected seq_len of at most 1073741824, found 1073741825",
    ),
    "bounds strided": (
        lambda: varlen(None, None, begins(3), begins(6)[::2]),
        "cu_seqlens_k: expected a contiguous tensor, found stride 2; call .contiguous()",
    ),
    "lse of packed sequences strided": (
        lambda: varlen(out=tensor(*ROWS), lse=lse(128, 16).t()),
        "lse: expected a contiguous tensor, found strides (1, 16)",
    ),
    "packed out is q": (
        lambda: varlen(q := tensor(*ROWS), tensor(*ROWS), out=q),
        "out: expected memory of its own, found elements shared with q",
    ),
    **{
        name: (partial(call_plain, *call), *map(read, pieces))
        for name, *call, pieces in ((*row[:4], row[4:]) for row in table_of("nvcc/bad_arguments", "plain"))
    },
}


@pytest.mark.parametrize("name", BAD)
def test_one_clear_line_when_running_and_when_tracing(binding_site: Path, name: str) -> None:
    """The fake implementations, here on meta tensors, say the same from shapes, dtypes, strides and storages."""
    call, *pieces = BAD[name]
    for device in ("cpu", *(["meta"] if name != "CPU tensors" else [])):
        with torch.device(device), pytest.raises(ValueError, match=r"^flashladder_9[2356]: ") as caught:
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


GROUPS = {  # shapes of q and k
    "group of heads": ((2, 77, 16, 128), (2, 300, 2, 128)),
    "more samples and heads than a grid has in y and z": ((70_000, 1, 1, 128), (70_000, 1, 1, 128)),
    "no queries": ((2, 0, 16, 128), (2, 77, 4, 128)),
    "no keys": ((2, 77, 16, 128), (2, 0, 4, 128)),
    "no samples": ((0, 77, 16, 128), (0, 77, 4, 128)),
    "no heads": ((2, 77, 0, 128), (2, 77, 0, 128)),
}


@pytest.mark.usefixtures("binding_site")
@pytest.mark.parametrize("rest", [{}, {"causal": True, "scale": 0.3}], ids=["plain", "causal"])
@pytest.mark.parametrize("name", GROUPS)
def test_good_general_arguments_pass_every_check_but_the_device_and_trace(name: str, rest: dict[str, Any]) -> None:
    (batch, q_len, heads, d_head), keys = GROUPS[name]
    q, k = wide(batch, q_len, heads, d_head), wide(*keys)
    calls: tuple[Callable[[], object], ...] = (
        lambda: attention(q, k, return_lse=True, **rest),
        lambda: attention(q, k, out=tensor(*q.shape), lse=torch.empty(batch, heads, q_len), **rest),
    )
    for call in calls:
        with pytest.raises(ValueError, match="q: expected a CUDA tensor, found one on cpu"):
            call()
    with torch.device("meta"):
        q, k = wide(batch, q_len, heads, d_head), wide(*keys)
        assert attention(q, k, out=tensor(*q.shape), lse=torch.empty(batch, heads, q_len), **rest) is None
        for return_lse, shape in ((True, (batch, heads, q_len)), (False, (0,))):
            out, found = attention(q, k, return_lse=return_lse, **rest)
            assert (out.shape, out.dtype, out.is_contiguous()) == (q.shape, q.dtype, True)
            assert (found.shape, found.dtype) == (shape, torch.float32)


@pytest.mark.usefixtures("binding_site")
@pytest.mark.parametrize("rest", [{}, {"causal": True, "scale": 0.3, "config": PACKED_CAUSAL}], ids=["plain", "causal"])
@pytest.mark.parametrize(
    ("rows", "keys", "sequences"),
    [((77, 16, 128), (300, 2, 128), 2), ((77, 16, 128), (0, 4, 128), 1), ((0, 16, 128), (9, 4, 128), 0)],
)
def test_good_packed_arguments_pass_every_check_but_the_device_and_trace(
    rows: Any, keys: Any, sequences: int, rest: dict[str, Any]
) -> None:
    for device in ("cpu", "meta"):
        with torch.device(device):
            given = (tensor(*rows), tensor(*keys), begins(sequences + 1), begins(sequences + 1))
            written: dict[str, Any] = {"out": tensor(*rows), "lse": lse(rows[1], rows[0])}
        if device == "cpu":
            for more in ({"return_lse": True}, written):
                with pytest.raises(ValueError, match="q: expected a CUDA tensor, found one on cpu"):
                    varlen(*given, **more, **rest)
            continue
        assert varlen(*given, **written, **rest) is None
        for return_lse, shape in ((True, (rows[1], rows[0])), (False, (0,))):
            out, found = varlen(*given, return_lse=return_lse, **rest)
            assert (out.shape, out.dtype, out.is_contiguous()) == (rows, torch.float16, True)
            assert (found.shape, found.dtype) == (shape, torch.float32)


@pytest.mark.usefixtures("binding_site")
def test_no_keys_may_lie_anywhere() -> None:
    """Nothing is read, as of a cache that is empty yet."""
    with torch.device("meta"):
        q, cache = tensor(2, 77, 16, 128), tensor(2, 9, 4, 132)
        out, _ = attention(q, cache[:, :0, :, 2:130])
        assert out.shape == q.shape
        with pytest.raises(ValueError, match="k: expected the n_heads stride to be a multiple of 8 elements"):
            attention(q, cache[:, :, :, 2:130])


@pytest.mark.usefixtures("binding_site")
def test_a_kernel_that_is_not_general_takes_what_is_as_usual() -> None:
    with torch.device("meta"):
        attention(tensor(), name=FREE, scale=128**-0.5)
        attention(tensor(), name=FREE, out=tensor())


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

    whole: dict[str, Any] = {"backend": backend, "fullgraph": True, "dynamic": True}
    compiled = torch.compile(lambda q: torch.ops.flashladder_95.forward(q, q, q), **whole)
    for shape in ((2, 256, 16, 128), (3, 512, 16, 128)):
        assert compiled(tensor(*shape, device="meta")).shape == shape
    assert len(graphs) == 1
    with pytest.raises(Exception, match="seq_len divisible by B_r = 128, found 130"):  # of torch's compiler's own types
        compiled(tensor(2, 130, 16, 128, device="meta"))

    def general(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, lse = torch.ops.flashladder_93.attention(q, k, k, True, 0.1, True)
        torch.ops.flashladder_93.attention_out(q, k, k, out := torch.empty_like(q), lse, True, 0.1)
        return first + out, lse

    two: Any = torch.compile(general, **whole)
    graphs.clear()
    for batch, q_len, kv_len in ((7, 77, 300), (3, 512, 129), (5, 20, 3)):
        q, k = tensor(batch, q_len, 8, 128, device="meta"), tensor(batch, kv_len, 2, 128, device="meta")
        out, lse = two(q, k)
        assert (out.shape, lse.shape) == (q.shape, (batch, 8, q_len))
    assert len(graphs) == 1
    with pytest.raises(Exception, match="k: expected a number of heads that divides q's 8, found 3"):
        two(tensor(7, 77, 8, 128, device="meta"), tensor(7, 300, 3, 128, device="meta"))

    def packed(q: torch.Tensor, k: torch.Tensor, bounds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, lse = varlen(q, k, bounds, bounds, causal=True, scale=0.1, return_lse=True)
        varlen(q, k, bounds, bounds, out=(out := torch.empty_like(q)), lse=lse, causal=True)
        return first + out, lse

    three: Any = torch.compile(packed, **whole)
    graphs.clear()
    for rows, keys, sequences in ((77, 300, 6), (512, 129, 2), (20, 3, 40)):
        q, k = tensor(rows, 8, 128, device="meta"), tensor(keys, 2, 128, device="meta")
        out, lse = three(q, k, begins(sequences).to("meta"))
        assert (out.shape, lse.shape) == (q.shape, (8, rows))
    assert len(graphs) == 1


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


def taken(folder: Path, number: int, key: str, asked: Sequence[tuple[int, str, int, int]]) -> list[str]:
    """The default configurations of a library of an iteration, built with those of a selection key."""
    (folder / "empty.fatbin").write_bytes(bytes(64))
    step = load_iteration(number)
    kernels = [(config, folder / "empty.fatbin", ()) for config in select_configs(step, key)]
    table = table_source("flashladder_97", step.family, kernels, ("sm_80",), step.row_stride, tuned_from(step.configs))
    program = compiled(folder, PROGRAM.read_text(encoding="utf-8") + table, "-Wno-unused-function")
    words = [str(word) for one in asked for word in one]
    return subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("number", [7, 19, 26, 31, 33])
def test_a_gpu_takes_the_configuration_that_the_iteration_gives_it(tmp_path: Path, number: int) -> None:
    """As `flashladder.forward` does, which knows the GPU's name too."""
    step = load_iteration(number)
    masks, packs = step.family.masks(step.parts), range(1 + step.family.packs(step.parts))
    asked = [(*one, i, packed) for one in product(CAPABILITIES, DTYPES) for i in range(len(masks)) for packed in packs]
    assert taken(tmp_path, number, "prog", asked) == [
        step.configs[configs_for(None, f"sm_{capability}")]
        .with_dtype(dtype)
        .with_mask(masks[i])
        .with_packed(bool(packed))
        .short_form()
        for capability, dtype, i, packed in asked
    ]


def test_without_the_tuned_one_it_is_the_first_that_was_built_if_it_is_of_the_dtype(tmp_path: Path) -> None:
    short_form = load_iteration(19).configs["a100"].short_form()
    asked = [(90, "fp16", 0, 0), (80, "fp16", 0, 0), (0, "fp16", 0, 0), (90, "bf16", 0, 0)]
    refused = f"flashladder_97: q: expected a dtype that was built: {short_form}, found bf16"
    assert taken(tmp_path, 19, short_form, asked) == [short_form] * 3 + [refused]


@pytest.mark.parametrize("causal", [0, 1])
def test_a_mask_that_no_kernel_was_built_for_is_refused(tmp_path: Path, causal: int) -> None:
    step = load_iteration(31)
    short_form = step.configs["h200"].with_mask("none" if causal else "causal").short_form()
    (message,) = taken(tmp_path, 31, short_form, [(90, "fp16", causal, 0)])
    found = f"found {bool(causal)}; "
    assert message.startswith(f"flashladder_97: causal: expected what a kernel was built for: {short_form}, {found}")


@pytest.mark.parametrize(("packed", "found"), [(0, "q: {} samples of one"), (1, "cu_seqlens_q: {} packed sequences")])
def test_samples_or_packed_sequences_that_no_kernel_was_built_for_are_refused(
    tmp_path: Path, packed: int, found: str
) -> None:
    short_form = load_iteration(33).configs["h200"].with_packed(not packed).short_form()
    (message,) = taken(tmp_path, 33, short_form, [(90, "fp16", 0, packed)])
    built = f"expected what a kernel was built for: {short_form}, found"
    assert message.startswith(f"flashladder_97: {found.format(built)}")
