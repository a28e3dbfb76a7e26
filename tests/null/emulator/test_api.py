"""What a person meets who brings a PTX file: listings, sizes as numbers, budgets as text, tensors, limits."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

from flashladder.ladder.gpus import load_gpus
from ptxemu import Counters, EmulationError, Hazards, load
from ptxemu.errors import PtxemuError
from ptxemu.machine.arguments import Parameter
from ptxemu.targets import SHARED_KIB, shared_limit
from tests.null.emulator.programs import HEADER, program

COPY = """
ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd3, %r0, 2;
mul.wide.u32 %rd4, %r0, STRIDE; add.u64 %rd1, %rd1, %rd4; add.u64 %rd2, %rd2, %rd3;
ld.global.b16 %h1, [%rd1]; st.global.b16 [%rd2], %h1;
"""


def copy(a: Any, b: Any, stride: int = 2) -> None:
    """The first 32 elements of 16 bits, `stride` bytes apart in a."""
    program(COPY.replace("STRIDE", str(stride)), parameters=".param .u64 a, .param .u64 b").launch(1, 32, (a, b))


def test_a_program_lists_its_entries_and_their_parameters() -> None:
    entry = ".visible .entry {}(.param .u64 out, .param .f32 scale, .param .align 8 .b8 args[24]) {{ ret; }}\n"
    text = HEADER + ".func helper() { ret; }\n" + "".join(map(entry.format, "abcde"))
    loaded = load(text, path="five.ptx")
    parameters = (Parameter("out", "u64", 8), Parameter("scale", "f32", 4), Parameter("args", "b8[24]", 24))
    assert loaded.entries == dict.fromkeys("abcde", parameters)
    assert loaded.kernel("b").parameters == parameters
    assert repr(loaded.kernel("b")) == "<Kernel b(out: u64, scale: f32, args: b8[24]) of five.ptx, sm_80>"
    listed = "; ".join(f"{name}(out: u64, scale: f32, args: b8[24])" for name in "abc")
    assert repr(loaded) == f"<Program five.ptx, sm_80: {listed}; 2 more>"
    assert repr(load(HEADER, path="none.ptx")) == "<Program none.ptx, sm_80: no entries>"


@pytest.mark.parametrize("grid", [2, (2,), [2, 1], np.int64(2), np.array([2, 1, 1])])
def test_sizes_may_be_numbers(grid: Any) -> None:
    result = program("", parameters="").launch(grid, 32)
    assert result.blocks == 2


def test_a_budget_may_be_text() -> None:
    kernel = program("mov.u32 %r1, %tid.x;", parameters="")
    assert kernel.launch(64, 32, shared_bytes=1024, memory_budget="1GiB").slices == 1
    assert kernel.launch(64, 32, shared_bytes=1024, memory_budget="64 KiB").slices == 2
    with pytest.raises(PtxemuError, match=r"not a memory budget: expected for example 1GiB or 512MiB, found 'much'"):
        kernel.launch(64, 32, memory_budget="much")


def test_dynamic_shared_memory_may_be_text() -> None:
    kernel = program("", parameters="")
    assert kernel.launch(1, 1, shared_bytes="163KiB").blocks == 1
    with pytest.raises(EmulationError, match="expected at most 166912 bytes, found 167936"):
        kernel.launch(1, 1, shared_bytes="164 KiB")
    with pytest.raises(PtxemuError, match=r"not an amount of dynamic shared memory: .*found 'much'"):
        kernel.launch(1, 1, shared_bytes="much")


def test_one_observer_needs_no_tuple() -> None:
    counters, several = Counters(), [Counters(), Hazards()]
    kernel = program("", parameters="")
    kernel.launch(2, 32, observers=counters)
    kernel.launch(2, 32, observers=several)
    assert counters.as_dict() == several[0].as_dict()  # type: ignore[attr-defined]  # the first one is Counters
    assert counters.lane_instructions > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"memory_budget": 1e9},
            "not a memory budget: expected a whole number of .*, 1 or more.*found 1000000000",
        ),
        ({"memory_budget": -1}, "not a memory budget: expected a whole number of bytes, 1 or more.*found -1"),
        ({"memory_budget": None}, "not a memory budget: .*found None"),
        (
            {"shared_bytes": -1},
            "not an amount of dynamic shared memory: expected a whole number .*, 0 or more.*found -1",
        ),
        ({"shared_bytes": True}, "not an amount of dynamic shared memory: .*found True"),
        ({"observers": Counters}, "observers of a launch: expected observers such as Counters.*found <class"),
        ({"max_instructions": "many"}, "instruction budget of a launch: expected a whole number, found 'many'"),
        ({"first": 0}, "how many blocks run first: expected a whole number, 1 or more, or None, found 0"),
        ({"first": True}, "how many blocks run first: .*found True"),
        ({"first": "all"}, "how many blocks run first: .*found 'all'"),
        ({"cluster": "x"}, "cluster size: expected one to three positive numbers, found"),
        ({"observers": (None,)}, "observers of a launch: .*found None"),
        ({"args": None}, r"arguments of a launch: expected a tuple or a list of them, such as \(x,\), found NoneType"),
        ({"args": np.zeros(1)}, "arguments of a launch: .*found ndarray"),
    ],
)
def test_options_of_another_type_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(EmulationError, match="k.ptx: " + says) as caught:
        program("", parameters="").launch(1, 32, **options)
    assert caught.value.kind == "arguments"
    assert "\n" not in str(caught.value)


def test_a_tensors_memory_has_its_dtype_in_errors() -> None:
    with pytest.raises(EmulationError, match=r"`array 0: float32 \(4,\)`"):
        copy(torch.zeros(4), torch.zeros(64, dtype=torch.int16))
    odd = torch.zeros(9, dtype=torch.uint8)  # a storage that is no whole number of elements
    with pytest.raises(EmulationError, match=r"`array 0: uint8 \(9,\)`"):
        copy(odd[:8].view(torch.float32), torch.zeros(64, dtype=torch.int16))


@pytest.mark.parametrize("dtype", [torch.int16, torch.float16, torch.bfloat16, torch.uint16])
def test_torch_tensors_are_read_and_written_in_place(dtype: torch.dtype) -> None:
    source = torch.arange(32).to(dtype)
    target = torch.zeros(40, dtype=dtype)
    copy(source, target)
    assert target.dtype == dtype
    assert torch.equal(target[:32].view(torch.int16), source.view(torch.int16))
    assert not target[32:].view(torch.int16).any()


def test_strided_tensors_are_pointers_into_their_storage() -> None:
    whole = torch.arange(128, dtype=torch.int16).reshape(32, 4)
    target = torch.zeros(32, 2, dtype=torch.int16)
    copy(whole[:, 1], target.T[0], stride=8)  # a column: four elements apart
    assert target.flatten().tolist() == [*range(1, 128, 4), *[0] * 32]
    copy(whole[:, 3], whole[0], stride=8)  # both in one storage, of which the second one is written
    assert whole.flatten().tolist() == [*range(3, 128, 4), *range(32, 128)]


def test_tensors_inside_of_a_structure() -> None:
    kernel = program(
        "ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [p+8]; st.global.u32 [%rd1], %r1;",
        parameters=".param .align 8 .b8 p[16]",
    )
    out = torch.zeros(1, dtype=torch.int32)
    kernel.launch(1, 1, ((out, np.int32(7)),))
    assert out.item() == 7


def test_an_empty_tensor_is_a_pointer_to_nothing() -> None:
    assert program("").launch(1, 1, (torch.zeros(0),)).blocks == 1


class OnGpu:
    """A tensor as a GPU's library shows it."""

    device = "cuda:0"

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self) -> object:
        raise AssertionError("never asked for")


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(32)


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (OnGpu(), "expected a tensor on the CPU, found one on cuda:0; pass x.cpu()"),
        (torch.zeros(32, requires_grad=True), "found Can't export tensors that require gradient.*; pass x.detach()"),
        (
            torch.zeros(32, device="meta"),
            "expected a tensor with memory, found a meta or fake one.*; pass a real",
        ),
        (fake, "expected a tensor with memory, found a meta or fake one"),
        (torch.zeros(32).to_sparse(), "a tensor whose memory NumPy can share"),
    ],
)
def test_tensors_that_cannot_be_arguments(tensor: Any, says: str) -> None:
    with pytest.raises(EmulationError, match="k.ptx: a tensor among the arguments: .*" + says) as caught:
        copy(tensor() if tensor is fake else tensor, np.zeros(32, np.int16))
    assert caught.value.kind == "arguments"
    assert "\n" not in str(caught.value)


def test_the_table_of_limits_agrees_with_the_gpus() -> None:
    for gpu in load_gpus().values():
        limit = gpu.peaks["shared_memory_per_block"]
        assert (limit.value, limit.unit) == (SHARED_KIB[int(gpu.arch.removeprefix("sm_"))], "KiB")


@pytest.mark.parametrize(
    ("target", "kib"),
    [
        ("sm_80", 163),
        ("sm_86", 99),
        ("sm_89", 99),
        ("sm_90", 227),
        ("sm_90a", 227),
        ("sm_80, debug", 163),
        ("sm_75", 64),
    ],
)
def test_a_block_gets_no_more_shared_memory_than_the_files_target_has(target: str, kib: int) -> None:
    text = f".version 8.0\n.target {target}\n.address_size 64\n.shared .align 16 .b8 s[1024];\n"
    text += ".visible .entry k() { .reg .b32 %r1; mov.u32 %r1, s; ret; }\n"
    kernel = load(text, path="k.ptx").kernel()
    assert kernel.launch(1, 1, shared_bytes=(kib - 1) * 1024).blocks == 1
    says = f"expected at most {kib * 1024} bytes, found {kib * 1024 + 16}, 1024 of them static"
    with pytest.raises(EmulationError, match=re.escape(says)):
        kernel.launch(1, 1, shared_bytes=(kib - 1) * 1024 + 16)


def test_another_target_may_be_named() -> None:
    kernel = program("", parameters="")
    assert kernel.launch(1, 1, shared_bytes=227 * 1024, target="sm_90").blocks == 1
    with pytest.raises(EmulationError, match="shared memory of a block on sm_86: expected at most 101376 bytes"):
        kernel.launch(1, 1, shared_bytes=163 * 1024, target="sm_86")
    for target in ("sm_75", "sm_81", "hopper"):
        with pytest.raises(EmulationError, match=f"PTX for sm_80: expected one of sm_80, sm_86, .*, found {target}"):
            kernel.launch(1, 1, target=target)
    assert shared_limit("sm_999") == 227 * 1024


def test_ptx_for_one_architecture_alone_runs_on_no_other() -> None:
    text = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k() { ret; }\n"
    with pytest.raises(EmulationError, match="PTX for sm_90a: expected one of sm_90, found sm_100"):
        load(text).kernel().launch(1, 1, target="sm_100")
    assert load(text).kernel().launch(1, 1, target="sm_90").blocks == 1


@pytest.mark.parametrize(
    ("target", "text", "needed"),
    [
        ("sm_80", "barrier.cluster.arrive;", "sm_90 or newer"),
        ("sm_75", "mbarrier.inval.shared.b64 [s];", "sm_80 or newer"),
        ("sm_90", "setmaxnreg.dec.sync.aligned.u32 24;", "sm_90a"),
        ("sm_90", "wgmma.fence.sync.aligned;", "sm_90a"),
        ("sm_100a", "wgmma.fence.sync.aligned;", "sm_90a"),
    ],
)
def test_an_instruction_that_the_target_does_not_have(target: str, text: str, needed: str) -> None:
    module = f".version 8.0\n.target {target}\n.address_size 64\n.shared .align 8 .b64 s;\n"
    program = load(f"{module}.visible .entry k() {{ {text} ret; }}\n")
    with pytest.raises(EmulationError, match=f"in PTX for {target}, in .*expected .target {needed}") as caught:
        program.kernel()
    assert caught.value.kind == "unsupported"
