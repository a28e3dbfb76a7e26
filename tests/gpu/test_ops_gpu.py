"""The operators on a GPU: opcheck, torch.compile, CUDA graphs, streams, devices, views, out=, and refusals.

Every installed iteration is tried. Here a result only has to be attention; `flashladder.check` judges its accuracy.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
import math
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import flashladder
from flashladder.build.wheel import load_installed
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import configs_for, load_gpus
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.problem import Problem

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("no CUDA GPU, or a torch without CUDA", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")]  # of torch itself
SHAPE = (2, 512, 16, 128)  # batch, seq_len, n_heads, d_head
TOLERANCE = 2e-2  # absolute, for N(0, 1) inputs in 16 bits: rounding of P and O, some 10 times below a wrong tile
DTYPES = [pytest.param("float16", id="fp16"), pytest.param("bfloat16", id="bf16")]


CAPTURE_FIRST = """
import sys, torch, flashladder
q, k, v = (torch.randn(1, 128, 16, 128, device="cuda", dtype=torch.float16) for _ in range(3))
out = torch.full_like(q, float("nan"))
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    flashladder.forward(q, k, v, iteration=int(sys.argv[1]), out=out)
torch.cuda.synchronize()
assert bool(out.isnan().all()), "the capture ran the kernel"
graph.replay()
expected = torch.nn.functional.scaled_dot_product_attention(*(t.float().transpose(1, 2) for t in (q, k, v)))
assert (out.float() - expected.transpose(1, 2)).abs().max().item() < 2e-2
print("ok")
"""


CALL_TWICE = """
import sys, torch, flashladder
q = torch.zeros(1, 512, 16, 128, device="cuda", dtype=torch.float16)
for config in flashladder.configurations(int(sys.argv[1])):
    if config.mask != "none" or config.is_packed:  # another operator's
        continue
    flashladder.forward(*[q.to(getattr(torch, {"fp16": "float16", "bf16": "bfloat16"}[config.dtype]))] * 3,
                        iteration=int(sys.argv[1]), config=config)
torch.cuda.synchronize()
print("ok")
"""


HERE = "sm_{}{}".format(*torch.cuda.get_device_capability())
LADDER = [step for step in load_all() if step.family.runs_on(HERE)]
INSTALLED = [step.number for step in LADDER if find_spec(f"flashladder_{step.number:02d}") is not None]
LAST = {step.family.name: step.number for step in LADDER if step.number in INSTALLED}  # of each family
ANY_LENGTH = [
    step.number
    for step in LADDER
    if step.number in INSTALLED and not any(config.multiples for config in step.configs.values())
]
OF_ANY_LENGTH = pytest.mark.parametrize("number", ANY_LENGTH)
OF_EACH_FAMILY = pytest.mark.parametrize("family", sorted(LAST))
LENGTHS = (1, 17, 129, 1000, 4097)  # the last two with a ragged block of keys behind many whole ones


@pytest.fixture(params=INSTALLED)
def iteration(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


Triple = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]


def inputs(dtype: str = "float16", device: str = "cuda", shape: tuple[int, int, int, int] = SHAPE) -> Triple:
    """q, k, v: N(0, 1) from a fixed seed."""
    generator = torch.Generator(device).manual_seed(20)

    def draw() -> torch.Tensor:
        return torch.randn(shape, dtype=getattr(torch, dtype), device=device, generator=generator)

    return draw(), draw(), draw()


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention in fp32, of (batch, seq_len, n_heads, d_head)."""
    heads = [t.float().transpose(1, 2) for t in (q, k, v)]
    scores = heads[0] @ heads[1].transpose(2, 3) / q.shape[3] ** 0.5
    out: torch.Tensor = scores.softmax(dim=-1) @ heads[2]
    return out.transpose(1, 2)


def is_attention(out: torch.Tensor, tensors: Triple) -> bool:
    """NaN anywhere is a no."""
    difference = (out.float() - reference(*tensors)).abs().max().item()
    return out.dtype == tensors[0].dtype and difference <= TOLERANCE


def operators(iteration: int) -> Any:
    flashladder.forward(*inputs(), iteration=iteration)  # imports the library
    return getattr(torch.ops, f"flashladder_{iteration:02d}")


def built_for(iteration: int, dtype: str, *, causal: bool = False, packed: bool = False) -> list[KernelConfig]:
    """The built configurations of a dtype, for samples or for packed sequences."""
    wanted = (dtype, "causal" if causal else "none", packed)
    return [one for one in flashladder.configurations(iteration) if (one.dtype, one.mask, one.is_packed) == wanted]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_built_configuration_is_attention_and_contiguous(iteration: int, dtype: str) -> None:
    tensors, short = inputs(dtype), {"float16": "fp16", "bfloat16": "bf16"}[dtype]
    built = built_for(iteration, short)
    assert built
    for config in (None, *built):
        out = flashladder.forward(*tensors, iteration=iteration, config=config)
        assert is_attention(out, tensors), config
        assert (out.is_contiguous(), out.device) == (True, tensors[0].device)


def test_views_of_one_packed_buffer(iteration: int) -> None:
    """q, k, v and out interleaved, 16 heads each; what is built for another row stride must say so."""
    tensors = inputs()
    buffer = torch.stack([*tensors, torch.full_like(tensors[0], float("nan"))], dim=2)
    views = (buffer[:, :, 0], buffer[:, :, 1], buffer[:, :, 2])
    out = buffer[:, :, 3]
    if load_iteration(iteration).row_stride:
        with pytest.raises(ValueError, match=r"q: expected a seq_len stride of 2048 elements.*found 8192"):
            flashladder.forward(*views, iteration=iteration, out=out)
        return
    flashladder.forward(*views, iteration=iteration, out=out)
    assert is_attention(out, tensors)
    assert all(torch.equal(view, tensor) for view, tensor in zip(views, tensors, strict=True))


@OF_ANY_LENGTH
def test_tensors_that_come_and_go_at_one_address_have_maps_of_their_own(number: int) -> None:
    """The allocator hands the same bytes out again, for other shapes and strides."""
    for length in (512, 200, 512, 72, 200):
        tensors = inputs(shape=(1, length, 4, 128))
        assert is_attention(flashladder.forward(*tensors, iteration=number), tensors)
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors)
        assert is_attention(flashladder.forward(q, k, v, iteration=number), tensors)
        del tensors, q, k, v


@pytest.mark.parametrize("shape", [(0, 512, 16, 128), (2, 0, 16, 128), (2, 512, 0, 128), (0, 0, 0, 128)])
def test_nothing_gives_what_torch_gives(iteration: int, shape: tuple[int, int, int, int]) -> None:
    tensors = inputs(shape=shape)
    out = flashladder.forward(*tensors, iteration=iteration)
    # as torch on the CPU gives (tests/nvcc/test_bad_arguments.py); on CUDA torch 2.11 returns None or divides by zero
    assert (out.shape, out.dtype, out.device) == (tensors[0].shape, tensors[0].dtype, tensors[0].device)
    assert flashladder.forward(*tensors, iteration=iteration, out=out) is out
    torch.cuda.synchronize()
    assert is_attention(flashladder.forward(*inputs(), iteration=iteration), inputs())


def test_the_stride_of_a_single_sample_row_or_head_may_be_anything(iteration: int) -> None:
    cases = [((1, 512, 16, 128), (2**61, 2048, 128, 1)), ((1, 512, 16, 128), (3, 2048, 128, 1))]
    if iteration in ANY_LENGTH:
        cases += [
            ((1, 1, 16, 128), (2048, 2**40, 128, 1)), ((2, 1, 3, 128), (384, 5, 128, 1)),
            ((1, 40, 1, 128), (2**62, 128, 2**61 + 1, 1)),
        ]  # fmt: skip
    for shape, strides in cases:
        q, k, v = inputs(shape=shape)
        strange = (torch.as_strided(q, shape, strides), torch.as_strided(k, shape, strides), v)
        assert is_attention(flashladder.forward(*strange, iteration=iteration), (q, k, v))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bare_operator_runs_the_tuned_configuration(iteration: int, dtype: str) -> None:
    """Bit for bit what that gives; of configurations that give other bits none has run."""
    tensors, library = inputs(dtype), operators(iteration)
    configs = load_iteration(iteration).configs
    short = {"float16": "fp16", "bfloat16": "bf16"}[dtype]
    tuned = configs[configs_for(None, HERE)].with_dtype(short).short_form()
    if KernelConfig.parse(tuned) not in flashladder.configurations(iteration):
        pytest.skip(f"iteration {iteration} was built without {tuned}")
    expected, out = library.forward(*tensors, tuned), torch.empty_like(tensors[0])
    library.forward_out(*tensors, out)
    assert torch.equal(library.forward(*tensors), expected)
    assert torch.equal(out, expected)


def errors_of(program: str, number: int) -> str:
    """What a process of its own prints on stderr; on stdout it prints "ok"."""
    done = subprocess.run([sys.executable, "-c", program, str(number)], capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr
    return done.stderr


@OF_EACH_FAMILY
def test_the_first_call_says_whether_the_driver_compiles(family: str) -> None:
    """One line on stderr where the wheel has no machine code for this GPU, and none where it has."""
    number = LAST[family]
    arches = load_installed(number).manifest["arches"]
    runs = any(gpu.arch == HERE and gpu.runs(arch) for gpu in load_gpus().values() for arch in arches)
    stderr = errors_of(CALL_TWICE, number)
    warnings = [line for line in stderr.splitlines() if f"no machine code for {HERE}" in line]
    assert len(warnings) == int(not runs), stderr


def test_opcheck(iteration: int) -> None:
    library, tensors = operators(iteration), inputs()
    torch.library.opcheck(library.forward.default, tuple(tensors))
    torch.library.opcheck(library.forward_out.default, (*tensors, torch.empty_like(tensors[0])))


def test_compile_without_a_graph_break(iteration: int) -> None:
    tensors, library = inputs(), operators(iteration)

    def thrice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = flashladder.forward(q + 0, k, v, iteration=iteration) + library.forward(q, k, v)
        return flashladder.forward(q, k, v, iteration=iteration, out=torch.empty_like(q)) + out

    torch.compiler.reset()
    compiled: Callable[..., torch.Tensor] = torch.compile(thrice, fullgraph=True, backend="aot_eager")
    assert is_attention(compiled(*tensors) / 3, tensors)


@OF_ANY_LENGTH
def test_compiled_once_for_any_length(number: int) -> None:
    """A length that torch traces as a symbol is not pinned to the first that came."""
    graphs: list[Any] = []

    def counted(graph: Any, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flashladder.forward(q, k, v, iteration=number)

    torch.compiler.reset()
    compiled: Callable[..., torch.Tensor] = torch.compile(forward, fullgraph=True, dynamic=True, backend=counted)
    for length in LENGTHS[:0:-1]:
        tensors = inputs(shape=(2, length, 3, 128))
        assert is_attention(compiled(*tensors), tensors)
    assert len(graphs) == 1


@OF_ANY_LENGTH
def test_graphs_of_two_lengths_keep_their_own_maps(number: int) -> None:
    """Captured one after the other in the same memory, replayed in another order, behind launches of other shapes."""
    memory = inputs(shape=(1, 512, 4, 128))
    captured = []
    for length in (512, 200):
        q, k, v = (tensor.view(-1)[: length * 4 * 128].view(1, length, 4, 128) for tensor in memory)
        out = torch.empty_like(q)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            flashladder.forward(q, k, v, iteration=number, out=out)
        captured.append((graph, (q, k, v), out))
    flashladder.forward(*inputs(shape=(3, 72, 2, 128)), iteration=number)
    for graph, tensors, out in reversed(captured):
        out.fill_(math.nan)
        graph.replay()
        assert is_attention(out, tensors)


def test_cuda_graph_replays_on_new_inputs(iteration: int) -> None:
    tensors, fresh = inputs(), inputs()
    out = torch.full_like(tensors[0], float("nan"))
    flashladder.forward(*tensors, iteration=iteration, out=out)  # loads and warms up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flashladder.forward(*tensors, iteration=iteration, out=out)
    for tensor, new in zip(tensors, fresh, strict=True):
        tensor.copy_(new.flip(1))
    out.fill_(float("nan"))
    graph.replay()
    assert is_attention(out, tensors)


@OF_EACH_FAMILY
def test_cuda_graph_at_the_first_use_of_a_process(family: str) -> None:
    """Neither loading a kernel nor making its maps may disturb a capture. A process takes 7 s: the last of a family."""
    errors_of(CAPTURE_FIRST, LAST[family])


def test_work_goes_to_the_current_stream(iteration: int) -> None:
    """q is still zero when the call returns: on any stream but this one the kernel would read zeros."""
    q, k, v = inputs()
    late, out = torch.zeros_like(q), torch.full_like(q, float("nan"))
    flashladder.forward(q, k, v, iteration=iteration)
    cuda: Any = torch.cuda  # untyped in torch
    stream = cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        cuda._sleep(50_000_000)  # clock cycles: some 30 ms
        late.copy_(q)
        flashladder.forward(late, k, v, iteration=iteration, out=out)
    stream.synchronize()
    assert is_attention(out, (q, k, v))


def test_first_use_from_several_threads(iteration: int) -> None:
    tensors = inputs()
    results: dict[int, torch.Tensor] = {}

    def work(index: int) -> None:
        results[index] = flashladder.forward(*tensors, iteration=iteration)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(8))
    assert all(torch.equal(result, results[0]) for result in results.values())
    assert is_attention(results[0], tensors)


def test_tensors_decide_the_device_and_the_current_one_is_kept(iteration: int) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"one GPU of two: {torch.cuda.get_device_name()}")
    tensors = inputs(device="cuda:1")
    assert torch.cuda.current_device() == 0
    out = flashladder.forward(*tensors, iteration=iteration)
    assert torch.cuda.current_device() == 0
    assert out.device == torch.device("cuda:1")
    assert is_attention(out, tensors)
    with pytest.raises(ValueError, match="k: expected q's device cuda:1, found cuda:0"):
        flashladder.forward(tensors[0], tensors[1].to("cuda:0"), tensors[2], iteration=iteration)


def test_mixed_devices_are_refused(iteration: int) -> None:
    q, k, v = inputs()
    with pytest.raises(ValueError, match="v: expected q's device cuda:0, found cpu"):
        operators(iteration).forward(q, k, v.cpu())


GENERAL = [step for step in LADDER if step.number in INSTALLED and step.family.general(step.parts)]
Kernel = tuple[int, bool]  # an iteration, and whether under a causal mask


@pytest.fixture(params=[(step.number, mask == "causal") for step in GENERAL for mask in step.family.masks(step.parts)])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """`flashladder.attention` takes this iteration."""
    found: Kernel = request.param
    monkeypatch.setattr("flashladder.ops._general_steps", lambda device, causal: ((1, found[0]),))
    return found


Shape = tuple[int, int, int]
PROBLEMS: list[tuple[Shape, Shape]] = [  # of queries and keys: batch, length, heads
    ((2, 512, 16), (2, 512, 16)),
    ((2, 1000, 12), (2, 77, 3)),  # with a mask most rows have no key
    ((2, 130, 6), (2, 1111, 2)),
    ((1, 1, 8), (1, 4097, 1)),
    ((3, 385, 5), (3, 385, 5)),  # an odd number of row blocks
    ((5, 2, 3), (5, 1, 1)),
    ((70_000, 1, 1), (70_000, 3, 1)),  # more samples than a grid has in y and z
]


def general_inputs(queries: Shape, keys: Shape, dtype: str = "float16") -> Triple:
    """q, k, v: N(0, 1) from a fixed seed."""
    q = inputs(dtype, shape=(*queries, 128))[0]
    return q, *inputs(dtype, shape=(*keys, 128))[1:]


def reference64(tensors: Triple, causal: bool, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """O and the log-sum-exp in fp64; a row without keys has 0 and -inf."""
    q, k, v = (tensor.double().transpose(1, 2) for tensor in tensors)
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
    scores = q @ k.transpose(2, 3) * (scale or q.shape[3] ** -0.5)
    if causal:
        seen = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).tril(k.shape[2] - q.shape[2])
        scores = scores.masked_fill(~seen, -math.inf)
    lse = scores.logsumexp(dim=-1)
    out = (scores - lse.unsqueeze(-1)).exp().nan_to_num(0) @ v
    return out.transpose(1, 2), lse


def require_attention(
    found: tuple[torch.Tensor, torch.Tensor], tensors: Triple, causal: bool, scale: float | None = None
) -> None:
    out, lse = reference64(tensors, causal, scale)
    torch.testing.assert_close(found[0].double(), out, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(found[1].double(), lse, atol=1e-3, rtol=1e-4)
    assert not found[0][lse.transpose(1, 2).isneginf()].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("queries", "keys"), PROBLEMS)
def test_general_problems(kernel: Kernel, queries: Shape, keys: Shape, dtype: str) -> None:
    tensors = general_inputs(queries, keys, dtype)
    out, lse = flashladder.attention(*tensors, causal=kernel[1], return_lse=True)
    assert (out.is_contiguous(), lse.is_contiguous()) == (True, True)
    require_attention((out, lse), tensors, kernel[1])
    again = flashladder.attention(*tensors, causal=kernel[1], return_lse=True, out=torch.full_like(out, math.nan))
    assert torch.equal(again[0], out)
    assert torch.equal(again[1], lse)


def test_a_scale_of_ones_own(kernel: Kernel) -> None:
    tensors = general_inputs((2, 300, 4), (2, 200, 2))
    for scale in (0.01, 0.3):
        require_attention(
            flashladder.attention(*tensors, causal=kernel[1], scale=scale, return_lse=True), tensors, kernel[1], scale
        )


def test_every_built_general_configuration_is_attention(kernel: Kernel) -> None:
    number, causal = kernel
    tensors, library = general_inputs((2, 300, 4), (2, 500, 2)), operators(number)
    built = built_for(number, "fp16", causal=causal)
    assert built
    for config in ("", *map(str, built)):
        require_attention(library.attention(*tensors, causal, None, True, config), tensors, causal)


def test_without_keys_or_queries(kernel: Kernel) -> None:
    q, k, v = general_inputs((2, 300, 4), (2, 0, 2))
    for out in (None, torch.full_like(q, math.nan)):
        found, lse = flashladder.attention(q, k, v, causal=kernel[1], return_lse=True, out=out)
        assert (found.shape, lse.shape) == (q.shape, (2, 4, 300))
        assert not found.any()
        assert lse.isneginf().all()
    for queries, keys in (((0, 3, 4), (0, 5, 2)), ((2, 0, 4), (2, 5, 2)), ((2, 3, 0), (2, 5, 0))):
        found, lse = flashladder.attention(*general_inputs(queries, keys), causal=kernel[1], return_lse=True)
        assert (found.shape, lse.shape) == ((*queries, 128), (queries[0], queries[2], queries[1]))


def test_views_and_expanded_keys(kernel: Kernel) -> None:
    """Heads before positions, one sample of keys for all, out in a wider tensor."""
    q, k, v = general_inputs((3, 200, 4), (1, 333, 2))
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    keys = (k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1))
    wide = torch.full((3, 200, 9, 128), math.nan, dtype=q.dtype, device=q.device)
    out, lse = flashladder.attention(q, *keys, causal=kernel[1], return_lse=True, out=wide[:, :, 2:6])
    require_attention((out, lse), (q, *keys), kernel[1])
    assert wide[:, :, [0, 1, 6, 7, 8]].isnan().all()
    one_head = (k[:, :, :1].expand(3, -1, 4, -1), v[:, :, :1].expand(3, -1, 4, -1))
    require_attention(flashladder.attention(q, *one_head, causal=kernel[1], return_lse=True), (q, *one_head), kernel[1])


def test_opcheck_of_attention(kernel: Kernel) -> None:
    library, tensors = operators(kernel[0]), general_inputs((2, 300, 4), (2, 200, 2))
    lse = torch.empty(2, 4, 300, device="cuda")
    for return_lse in (False, True):
        torch.library.opcheck(library.attention.default, (*tensors, kernel[1], 0.1, return_lse))
        outputs = (torch.empty_like(tensors[0]), lse if return_lse else None)
        torch.library.opcheck(library.attention_out.default, (*tensors, *outputs, kernel[1]))


def test_attention_is_compiled_once_for_any_lengths(kernel: Kernel) -> None:
    graphs: list[Any] = []

    def counted(graph: Any, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return flashladder.attention(q, k, v, causal=kernel[1], return_lse=True)

    torch.compiler.reset()
    compiled: Any = torch.compile(attention, fullgraph=True, dynamic=True, backend=counted)
    for q_len, kv_len in ((300, 200), (1000, 77), (5, 4097)):
        tensors = general_inputs(
            (
                2,
                q_len,
                6,
            ),
            (2, kv_len, 3),
        )
        require_attention(compiled(*tensors), tensors, kernel[1])
    assert len(graphs) == 1


def test_attention_in_a_cuda_graph(kernel: Kernel) -> None:
    tensors = general_inputs((2, 300, 4), (2, 500, 2))
    flashladder.attention(*tensors, causal=kernel[1], return_lse=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = flashladder.attention(*tensors, causal=kernel[1], return_lse=True)
        without = flashladder.attention(tensors[0], *(t[:, :0] for t in tensors[1:]), causal=kernel[1])
    for tensor in tensors:
        tensor.copy_(tensor.flip(1))
    for tensor in (*found, without):
        tensor.fill_(math.nan)
    graph.replay()
    require_attention(found, tensors, kernel[1])
    assert not without.any()


def test_attention_on_two_streams_at_once(kernel: Kernel) -> None:
    problems = [general_inputs((2, 1000, 12), (2, 777, 3)), general_inputs((1, 2000, 8), (1, 3000, 8))]
    cuda: Any = torch.cuda  # untyped in torch
    streams, found = [cuda.Stream(), cuda.Stream()], [list[Any](), list[Any]()]
    torch.cuda.synchronize()
    for _ in range(5):
        for stream, tensors, results in zip(streams, problems, found, strict=True):
            with torch.cuda.stream(stream):
                results.append(flashladder.attention(*tensors, causal=kernel[1], return_lse=True))
    torch.cuda.synchronize()
    for tensors, results in zip(problems, found, strict=True):
        require_attention(results[0], tensors, kernel[1])
        assert all(torch.equal(out, results[0][0]) and torch.equal(lse, results[0][1]) for out, lse in results)


def require_packed(
    found: tuple[torch.Tensor, torch.Tensor], tensors: Triple, problem: Problem, scale: float | None = None
) -> None:
    """Each sequence is attention to its own keys."""
    for rows, keys in problem.sequences:
        own = (tensors[0][None, rows], tensors[1][None, keys], tensors[2][None, keys])
        require_attention((found[0][None, rows], found[1][None, :, rows]), own, problem.mask == "causal", scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("number", [step.number for step in GENERAL if step.family.packs(step.parts)])
def test_packed_sequences(number: int, mask: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every built configuration, compiled, and in a graph that is replayed on sequences of other lengths."""
    monkeypatch.setattr("flashladder.ops._packed_step", lambda device, causal: number)
    lengths, kv_lengths, causal = (300, 0, 1, 129, 64), (200, 40, 0, 1000, 64), mask == "causal"
    sizes: dict[str, Any] = {"n_heads": 6, "n_kv_heads": 3, "d_head": 128, "mask": mask}
    problem, other = (Problem.packing(lengths[::step], kv_lengths[::step], **sizes) for step in (1, -1))
    q, k, v = (one[0] for one in general_inputs((1, problem.seq_len, 6), (1, problem.kv_len, 3), dtype))
    bounds, others = (torch.tensor(one.bounds, dtype=torch.int32, device="cuda").unbind() for one in (problem, other))

    def attention(*given: torch.Tensor, out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        queries, keys, values, cu_q, cu_k = given
        varlen = flashladder.attention_varlen
        return varlen(queries, keys, values, cu_q, cu_k, causal=causal, return_lse=True, out=out)

    found, library = attention(q, k, v, *bounds), operators(number)
    require_packed(found, (q, k, v), problem)
    built = built_for(number, {"float16": "fp16", "bfloat16": "bf16"}[dtype], causal=causal, packed=True)
    assert built
    for config in ("", *map(str, built)):
        given = (q, k, v, *bounds, causal, 0.1, True, config)
        require_packed(library.attention_varlen(*given), (q, k, v), problem, 0.1)
    torch.library.opcheck(library.attention_varlen.default, (q, k, v, *bounds, causal, 0.1, True))
    torch.compiler.reset()
    compiled: Any = torch.compile(attention, fullgraph=True, backend="aot_eager")
    for one, expected in zip(compiled(q, k, v, *bounds), found, strict=True):
        assert torch.equal(one, expected)
    graph, out = torch.cuda.CUDAGraph(), torch.full_like(q, math.nan)
    with torch.cuda.graph(graph):
        captured = attention(q, k, v, *bounds, out=out)
    for one, new in zip((q, k, v, *bounds), (q.flip(0), k.flip(0), v.flip(0), *others), strict=True):
        one.copy_(new)
    captured[1].fill_(math.nan)
    graph.replay()
    require_packed(captured, (q, k, v), other)
