"""flashladder.forward without a GPU and without a compiler: what it picks, and what it answers when it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import importlib
from pathlib import Path
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

import flashladder
from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.ladder.selection import choices

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

from flashladder import ops
from flashladder.ops import LAST_ITERATION
from tests.data_files import table_of
from tests.typed import error_line

# torch's compiler imports torch's own old parts
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
NAME = "flashladder_78"  # what iteration 8 is called here, and the others likewise: real ones may be loaded
BUILT = [load_iteration(8).configs["a100"].with_dtype(dtype).short_form() for dtype in ("fp16", "bf16")]
PACKAGE = f"def configurations():\n    return {tuple(BUILT)!r}\n"
LAST_MEASURED = max(step.number for step in load_all() if not step.unmeasured)
OTHER = "(FP16, 128, 64, 32, 4): async+load_0_0_0_tiles"


def rename_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "LIBRARIES", tuple(name.replace("_0", "_7").replace("_1", "_8") for name in ops.LIBRARIES))


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Iteration 8 "installed": operators on tensors without memory that keep the configuration they were given."""
    (tmp_path / f"{NAME}.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    rename_libraries(monkeypatch)
    ops._built.cache_clear()
    seen: list[str] = []
    make_library: Any = torch.library.Library  # untyped in torch
    library = make_library(NAME, "DEF")
    library.define('forward(Tensor q, Tensor k, Tensor v, str config="") -> Tensor')
    library.define('forward_out(Tensor q, Tensor k, Tensor v, Tensor(a!) out, str config="") -> ()')

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, config: str = "") -> torch.Tensor:
        seen.append(config)
        return torch.empty_like(v)

    def forward_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str = "") -> None:
        seen.append(f"out: {config}")

    library.impl("forward", forward, "Meta")
    library.impl("forward_out", forward_out, "Meta")
    yield seen
    library._destroy()
    sys.modules.pop(NAME, None)
    ops._built.cache_clear()


def tensor(device: str = "meta") -> torch.Tensor:
    return torch.zeros((1, 128, 1, 128), dtype=torch.float16, device=device)


def forward(iteration: Any = 8, config: Any = None, out: Any = None, q: Any = None) -> torch.Tensor:
    return flashladder.forward(tensor() if q is None else q, tensor(), tensor(), iteration, config, out)


def test_without_torch_forward_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import flashladder\n"
        "try: flashladder.forward\n"
        "except flashladder.errors.FlashladderError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "flashladder.forward needs torch 2.10 or later; pip install torch\n"


def test_its_names_are_listed_before_they_are_loaded_and_nothing_else_is() -> None:
    code = (
        "import flashladder as f, sys; print(*dir(f)); print('torch' in sys.modules)\n"
        "for name in dir(f): getattr(f, name)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["__version__ attention attention_varlen configurations forward", "False"]
    assert set(dir(flashladder)) == set(flashladder.__all__)


@pytest.mark.parametrize("iteration", [0, LAST_ITERATION + 1, -1, True, 8.0, "8", [8]])
def test_there_is_no_such_iteration(calls: list[str], iteration: object) -> None:
    expected = f"bad argument iteration: expected an integer from 1 to {LAST_ITERATION}, found"
    assert expected in error_line(forward, iteration)
    assert calls == []


def test_an_iteration_that_is_not_installed_names_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    ops._built.cache_clear()
    monkeypatch.setattr(ops, "find_spec", lambda name: None)
    with pytest.raises(FlashladderError) as caught:
        forward(9)
    assert str(caught.value) == (
        "iteration 9: this iteration is not installed here: expected the package flashladder_09; "
        "build it into this environment: invoke build 9"
    )


def test_a_library_that_does_not_load_is_one_line(calls: list[str], tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.py").write_text("raise ImportError('the library needs torch 2.10')")
    importlib.invalidate_caches()
    assert error_line(forward) == "iteration 8: the library needs torch 2.10"


@pytest.mark.parametrize("config", [BUILT[1], KernelConfig.parse(BUILT[1])], ids=["short form", "KernelConfig"])
def test_a_configuration_goes_to_the_operator_by_its_short_form(calls: list[str], config: object) -> None:
    assert forward(config=config).shape == tensor().shape
    assert forward(config=config, out=(out := tensor())) is out
    assert calls == [BUILT[1], f"out: {BUILT[1]}"]


def test_an_unbuilt_configuration_lists_those_that_were_built(calls: list[str]) -> None:
    with pytest.raises(FlashladderError) as caught:
        forward(config=OTHER)
    expected = f"iteration 8: this configuration is not built: expected one of {' | '.join(BUILT)}, found {OTHER}; "
    assert str(caught.value).startswith(expected)
    assert "nox -s build-iteration-8" in str(caught.value)
    assert calls == []


@pytest.mark.parametrize("config", ["fast", 3, BUILT[0] + " "])
def test_what_is_no_configuration_is_shown_an_example(calls: list[str], config: object) -> None:
    assert "not the short form of a kernel configuration: expected for example" in error_line(forward, config=config)
    assert calls == []


@pytest.mark.parametrize(("q", "found"), [([1.0], "list"), (None, "NoneType"), (1.0, "float")])
def test_an_argument_that_is_no_tensor_is_named(q: Any, found: str) -> None:
    with pytest.raises(FlashladderError, match=f"^bad argument q: expected a torch.Tensor, found {found}$"):
        flashladder.forward(q, tensor(), tensor())
    if q is not None:
        with pytest.raises(FlashladderError, match=f"^bad argument out: expected a torch.Tensor, found {found}$"):
            flashladder.forward(tensor(), tensor(), tensor(), out=q)


def test_a_tangent_is_refused(calls: list[str]) -> None:
    with pytest.raises(FlashladderError, match=r"bad argument q: .*no forward-mode derivative"):
        torch.func.jvp(lambda q: forward(config=BUILT[0], q=q), (tensor(),), (tensor(),))


@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiled_code_refuses_arguments_in_the_same_words(calls: list[str], fullgraph: bool) -> None:
    """Where a graph may break the very error comes; where it must not, torch's error that quotes it."""

    def twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, iteration: int) -> torch.Tensor:
        return flashladder.forward(q, k, v, iteration=iteration, config=BUILT[0]) * 2

    needs_gradient = tensor().requires_grad_()
    torch.compiler.reset()
    compiled: Any = torch.compile(twice, backend="eager", fullgraph=fullgraph)
    for arguments, message in (
        ((needs_gradient, tensor(), tensor(), 8), "argument q: .*no backward kernel.* call it under torch.no_grad"),
        ((tensor(), tensor(), needs_gradient, 8), "argument v: "),
        ((tensor(), tensor("cpu"), tensor(), 8), "argument k: "),
        ((tensor(), tensor(), tensor(), 77), "argument iteration: "),
    ):
        with pytest.raises(FlashladderError, match=message) as eager:
            twice(*arguments)
        with pytest.raises(Exception, match=re.escape(str(eager.value))):  # torch wraps it in a class of its own
            compiled(*arguments)
    assert calls == []
    with torch.no_grad():
        for function in (compiled, twice):
            assert function(needs_gradient, tensor(), tensor(), 8).shape == tensor().shape


@pytest.mark.parametrize("iteration", [None, 8, 9])
def test_cpu_tensors_are_told_that_there_is_no_kernel_before_any_build_is_asked_for(
    iteration: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "find_spec", lambda name: None)
    with pytest.raises(FlashladderError, match=r"bad argument q: expected a CUDA tensor, found one on cpu; .*no CPU"):
        forward(iteration, q=tensor("cpu"))
    with pytest.raises(FlashladderError, match="bad argument out: expected a CUDA tensor, found one on cpu"):
        forward(iteration, out=tensor("cpu"))


@pytest.mark.parametrize(("gpu", "arch", "key"), table_of("null/ops", "tuned"))
def test_the_tuned_configuration_follows_the_gpus_name_or_architecture(gpu: str, arch: str, key: str) -> None:
    assert ops._tuned(7, "bf16", gpu, arch) == load_iteration(7).configs[key].with_dtype("bf16").short_form()


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[int] | range], None]]:
    """Makes the wheels of these steps, and no others, count as installed."""

    def only(steps: list[int] | range) -> None:
        names = {ops.library_name(step) for step in steps}
        monkeypatch.setattr(ops, "find_spec", lambda name: name if name in names else None)
        for answers in (ops._installed_choices, ops._general_step_on, ops._measured):
            answers.cache_clear()

    yield only
    for answers in (ops._installed_choices, ops._general_step_on, ops._measured):
        answers.cache_clear()


@pytest.fixture
def every_step_installed(installs: Callable[[list[int] | range], None]) -> None:
    installs(range(1, LAST_ITERATION + 1))


@pytest.mark.usefixtures("every_step_installed")
@pytest.mark.parametrize(("gpu", "arch", "steps"), table_of("null/ops", "fastest"))
def test_the_default_is_the_fastest_step_at_this_length(
    gpu: str, arch: str, steps: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "_gpu", lambda _: (gpu, arch))
    found = {length: ops._step_for(torch.empty(1, length, 1, 1), 0) for length in steps}
    assert found == steps


@pytest.mark.parametrize(("installed", "choices"), table_of("null/ops", "fastest_installed"))
def test_the_fastest_of_the_installed_steps_is_taken(
    installed: list[int], choices: list[list[int]], installs: Callable[[list[int] | range], None]
) -> None:
    installs(installed)
    assert ops._installed_choices("NVIDIA H200", "sm_90") == tuple(map(tuple, choices))


@pytest.mark.parametrize(("installed", "step"), [([7, 16], 16), ([], LAST_MEASURED)])
def test_tensors_without_memory_ask_for_the_last_installed_step(
    installed: list[int], step: int, installs: Callable[[list[int] | range], None]
) -> None:
    installs(installed)
    assert ops._step_for(torch.empty(1, 512, 1, 1, device="meta"), None) == step


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a torch that finds no GPU")
def test_fake_tensors_of_a_gpu_that_is_not_here_ask_for_a_step_that_is(
    installs: Callable[[list[int] | range], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename_libraries(monkeypatch)
    installs([7, 16])
    with torch._subclasses.FakeTensorMode(), pytest.raises(FlashladderError, match=r"flashladder_86"):
        q = torch.empty(1, 512, 1, 128, dtype=torch.float16, device="cuda")
        ops.forward(q, q, q)


def test_forward_asks_for_the_step_of_qs_length_and_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the library: what a tensor says of its device is all that is asked of a GPU."""

    class OnGpu(torch.Tensor):
        """A tensor that says it lies on the second GPU."""

        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return torch.device("cuda", 1)

    monkeypatch.setattr(ops, "_steps_on", lambda device: {1: ((1, 22), (256, 24))}[device])
    monkeypatch.setattr(ops, "_resolve", resolve := Mock(side_effect=FlashladderError("enough")))
    for length, iteration in ((128, None), (256, None), (256, 7)):
        q = torch.zeros(1, length, 1, 128, dtype=torch.float16).as_subclass(OnGpu)
        assert "enough" in error_line(flashladder.forward, q, q, q, iteration=iteration)
    asked = [(library, device) for (library, _, _, device), _ in resolve.call_args_list]
    assert asked == [("flashladder_22", 1), ("flashladder_24", 1), ("flashladder_07", 1)]


@pytest.mark.usefixtures("every_step_installed")
def test_the_default_traces_whole_at_lengths_that_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A length that varies becomes a symbol in torch.compile: the step is chosen by a guard, not by a graph break."""
    monkeypatch.setattr(ops, "_gpu", lambda _: ("NVIDIA H200", "sm_90"))

    def marked(q: torch.Tensor) -> torch.Tensor:
        return q + ops._step_for(q, 0)

    torch.compiler.reset()
    compiled: Any = torch.compile(marked, backend="eager", fullgraph=True, dynamic=True)
    found = [compiled(torch.zeros(1, length, 1, 1)).unique().item() for length in (512, 1000, 8192, 20000, 640)]
    assert found == [32, 32, 30, 30, 32]


def test_the_gpus_configuration_is_the_default(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert ops._resolve(NAME, None, "float16", None) == ""  # of no GPU in particular
    monkeypatch.setattr(ops, "_gpu", lambda device: (f"NVIDIA Tomorrow {device}", "sm_100"))
    assert ops._resolve(NAME, None, "bfloat16", 1) == BUILT[1]
    assert ops._resolve(NAME, None, "float32", 1) == ""  # the operator refuses float32 by name


@pytest.mark.parametrize("config", [BUILT[0], KernelConfig.parse(BUILT[0])], ids=["short form", "KernelConfig"])
def test_it_traces_whole_even_when_the_iteration_varies(calls: list[str], config: object) -> None:
    """An int that varies from call to call becomes a symbol in torch.compile, which names no library."""

    def twice(q: torch.Tensor, v: torch.Tensor, iteration: Any) -> torch.Tensor:
        return flashladder.forward(q, q, v, iteration=iteration, config=config) * 2  # type: ignore[arg-type]  # object

    torch.compiler.reset()
    compiled: Any = torch.compile(twice, backend="eager", fullgraph=True)
    seen = []
    for iteration in (8, 9, 10):
        try:
            seen.append(compiled(tensor(), tensor(), iteration).shape == tensor().shape)
        except Exception as error:  # noqa: BLE001  # torch wraps what is raised while tracing in its own classes
            seen.append(f"invoke build {iteration}" in str(error))
    assert seen == [True, True, True]
    assert set(calls) == {BUILT[0]}  # in the trace, and in the call


KEYS = (1, 200, 1, 128)  # of a shape that `tensor` does not have


@pytest.mark.parametrize(
    ("installed", "mask", "packed", "step"),
    [
        ([26, 29, 30], "none", False, 30),
        ([28, 29], "none", False, 29),
        ([29, 30, 31], "causal", False, 31),
        (range(1, 32), "none", False, 31),
        ([31, 32, 33], "none", True, 33),
        ([7, 33], "causal", True, 33),
    ],
)
def test_the_newest_installed_step_that_computes_it_is_taken(
    installed: list[int], mask: Any, packed: bool, step: int, installs: Callable[[list[int] | range], None]
) -> None:
    installs(installed)
    assert {ops._general_step_on(arch, mask, packed=packed) for arch in (None, "sm_90")} == {step}


def test_a_negative_scale_is_not_taken_for_the_usual_one(calls: list[str]) -> None:
    q = torch.empty(1, 8, 1, 128, dtype=torch.float16, device="meta")
    message = error_line(lambda: ops.attention(q, q, q, scale=-(128**-0.5)))
    assert message == "bad argument scale: expected a finite number above 0, found -0.0884"
    assert not calls


def test_with_a_mask_the_measured_steps_are_taken_by_length_if_all_are_installed(
    installs: Callable[[list[int] | range], None],
) -> None:
    measured = tuple((start, steps[0]) for start, steps in choices("NVIDIA H100 80GB HBM3", mask="causal"))
    assert measured[0][0] == 1
    installs([step for _, step in measured])
    assert ops._general_steps(None, causal=True) == measured
    assert ops._general_step(torch.empty(1, measured[-1][0], 1, 128), None, causal=True) == measured[-1][1]
    assert ops._general_step(torch.empty(1, 1, 1, 128), None, causal=True) == measured[0][1]
    installs([measured[-1][1]])
    assert ops._general_steps(None, causal=True) == ((1, measured[-1][1]),)


@pytest.mark.parametrize(("installed", "arch", "mask", "packed", "says"), table_of("null/ops", "not_computed"))
def test_without_a_step_that_computes_it_the_error_says_which_to_build(
    installed: list[int],
    arch: str,
    mask: Any,
    packed: bool,
    says: list[str],
    installs: Callable[[list[int] | range], None],
) -> None:
    installs(installed)
    message = error_line(lambda: ops._general_step_on(arch, mask, packed=packed))
    assert [piece for piece in says if piece not in message] == [], message


Calls = list[tuple[Any, ...]]


@pytest.fixture
def general(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """Iteration 8 "installed" and said to take general problems, too; the arguments behind the tensors are kept."""
    monkeypatch.setattr(ops, "_general_steps", lambda device, causal: ((1, 8),))
    monkeypatch.setattr(ops, "_packed_step", lambda device, causal: 8)
    seen: Calls = []
    make_library: Any = torch.library.Library
    library = make_library(NAME, "FRAGMENT")
    library.define(
        "attention(Tensor q, Tensor k, Tensor v, bool causal, float? scale, bool lse, str config) -> (Tensor, Tensor)"
    )
    library.define(
        "attention_out(Tensor q, Tensor k, Tensor v, Tensor(a!) out, Tensor(b!)? lse, bool causal, float? scale, "
        "str config) -> ()"
    )
    library.define(
        "attention_varlen(Tensor q, Tensor k, Tensor v, Tensor cu_q, Tensor cu_k, bool causal, float? scale, bool lse, "
        "str config) -> (Tensor, Tensor)"
    )
    library.define(
        "attention_varlen_out(Tensor q, Tensor k, Tensor v, Tensor cu_q, Tensor cu_k, Tensor(a!) out, Tensor(b!)? lse, "
        "bool causal, float? scale, str config) -> ()"
    )

    def attention(q: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(rest[2:])
        return torch.empty_like(q), q.new_empty(0)

    library.impl("attention", attention, "Meta")
    library.impl("attention_out", lambda *given: seen.append(given[4:]), "Meta")
    library.impl("attention_varlen", attention, "Meta")
    library.impl("attention_varlen_out", lambda *given: seen.append(given[3:]), "Meta")
    yield seen
    library._destroy()


def test_attention_asks_a_general_step_only_if_it_has_to(calls: list[str], general: Calls, monkeypatch: Any) -> None:
    monkeypatch.setattr(ops, "_step_for", lambda q, device: 8)
    q, k, out = tensor(), torch.empty(KEYS, dtype=torch.float16, device="meta"), tensor()
    for scale in (None, 128**-0.5, 1 / 128**0.5):
        assert flashladder.attention(q, q, q, scale=scale).shape == q.shape
        assert flashladder.attention(q, q, q, scale=scale, out=out) is out
    assert (calls, general) == (["", "out: "] * 3, [])
    assert flashladder.attention(q, k, k).shape == q.shape
    assert flashladder.attention(q, q, q, causal=True, scale=2, out=out) is out
    pair = flashladder.attention(q, q, q, return_lse=True)
    assert (len(pair), pair[0].shape) == (2, q.shape)
    found, lse = flashladder.attention(q, k, k, return_lse=True, out=out)
    assert (found is out, lse.shape, lse.dtype) == (True, (1, 1, 128), torch.float32)
    assert general[:3] == [(False, None, False, ""), (None, True, 2.0, ""), (False, None, True, "")]
    assert (general[3][0].shape, *general[3][1:]) == (lse.shape, False, None, "")
    assert len(calls) == 6
    monkeypatch.setattr(ops, "_general_steps", lambda device, causal: ((1, 9), (KEYS[1], 8)))  # 9 is not installed
    assert flashladder.attention(q, k, k, causal=True).shape == q.shape, "the keys choose the step"


@pytest.mark.parametrize(("rest", "message"), table_of("null/ops", "another_type"))
def test_attention_names_an_argument_of_another_type(rest: dict[str, Any], message: str) -> None:
    with pytest.raises(FlashladderError, match=f"^{message}$"):
        flashladder.attention(tensor(), tensor(), tensor(), **rest)


def packed(rows: int = 9, heads: int = 4, sequences: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of all sequences, and where each begins; both without memory."""
    bounds = torch.empty(sequences + 1, dtype=torch.int32, device="meta")
    return torch.empty(rows, heads, 128, dtype=torch.float16, device="meta"), bounds


def test_packed_sequences_go_to_their_own_operators(general: Calls) -> None:
    (q, cu_q), (k, cu_k) = packed(), packed(700, 2)
    assert (
        flashladder.attention_varlen(q, k, k, cu_q, cu_k, 9, max_seqlen_k=None, causal=True, scale=2).shape == q.shape
    )
    pair = flashladder.attention_varlen(q, k, k, cu_q, cu_k, return_lse=True)
    assert (len(pair), pair[0].shape) == (2, q.shape)
    out = torch.empty_like(q)
    assert flashladder.attention_varlen(q, k, k, cu_q, cu_k, out=out) is out
    found, lse = flashladder.attention_varlen(q, k, k, cu_q, cu_k, return_lse=True, out=out)
    assert (found is out, lse.shape, lse.dtype) == (True, (4, 9), torch.float32)
    assert [one[2:] for one in general[:2]] == [(True, 2.0, False, ""), (False, None, True, "")]
    assert [(one[3] is None, *one[4:]) for one in general[2:]] == [(True, False, None, ""), (False, False, None, "")]
    assert {(one[0].shape, one[1].shape, one[0].dtype) for one in general} == {(cu_q.shape, cu_k.shape, torch.int32)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"causal": 1}, "causal: expected True or False, found int"),
        ({"return_lse": None}, "return_lse: expected True or False, found NoneType"),
        ({"scale": 0.0}, "scale: expected a finite number above 0, found 0"),
        ({"out": 3}, "out: expected a torch.Tensor, found int"),
        ({"cu_seqlens_q": [0, 9]}, "cu_seqlens_q: expected a torch.Tensor, found list"),
        ({"cu_seqlens_k": torch.zeros(3)}, "cu_seqlens_k: expected a CUDA tensor, found one on cpu; .*"),
        ({"max_seqlen_q": 9.0}, "max_seqlen_q: expected an integer or None, found float"),
        ({"max_seqlen_k": True}, "max_seqlen_k: expected an integer or None, found bool"),
        ({"max_seqlen_k": packed()[1]}, "max_seqlen_k: expected an integer or None, found torch.Tensor"),
    ],
)
def test_attention_varlen_names_a_wrong_argument(general: Calls, change: dict[str, Any], message: str) -> None:
    q, bounds = packed()
    given: dict[str, Any] = {"q": q, "k": q, "v": q, "cu_seqlens_q": bounds, "cu_seqlens_k": bounds} | change
    with pytest.raises(FlashladderError, match=f"^bad argument {message}$"):
        flashladder.attention_varlen(**given)
    assert not general


def test_attention_traces_whole_at_lengths_that_vary(general: Calls) -> None:
    graphs: list[Any] = []

    def counted(graph: Any, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    def both(q: torch.Tensor, k: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        causal = flashladder.attention(q, k, k, causal=True, scale=0.5, out=torch.empty_like(q))
        rows, keys, longest = q[0], k[0], q.shape[1]
        out = flashladder.attention_varlen(rows, keys, keys, cu_q, cu_k, longest, out=torch.empty_like(rows))
        pair = flashladder.attention_varlen(rows, keys, keys, cu_q, cu_k, longest, causal=True, return_lse=True)
        return flashladder.attention(q, k, k) + causal, *flashladder.attention(q, k, k, return_lse=True), out, *pair

    torch.compiler.reset()
    compiled: Any = torch.compile(both, backend=counted, fullgraph=True, dynamic=True)
    for q_len, kv_len, sequences in ((16, 77, 6), (300, 5, 2), (9, 1000, 5)):
        q, k = (torch.empty(2, n, 4, 128, dtype=torch.float16, device="meta") for n in (q_len, kv_len))
        bounds = packed(sequences=sequences)[1]
        assert compiled(q, k, bounds, bounds.clone())[0].shape == q.shape
    assert len(graphs) == 1


def test_attention_that_no_installed_step_computes_is_one_line_in_compiled_code(
    installs: Callable[[list[int] | range], None],
) -> None:
    installs([7])

    def attention(q: torch.Tensor) -> torch.Tensor:
        return flashladder.attention(q, q, q, causal=True)

    torch.compiler.reset()
    compiled: Any = torch.compile(attention, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="no installed iteration computes attention with a causal mask"):
        compiled(tensor())
