"""Loading and launching: listings, arguments as bytes, arrays and tensors, sizes, budgets, targets; what is refused."""

from __future__ import annotations

import ast
from contextlib import nullcontext
import ctypes
import importlib
from pathlib import Path
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from tests.programs import HEADER, OUT, REGISTERS, program, refuses, run, table_of

import ptxemu
from ptxemu import Counters, EmulationError, Hazards, PtxemuError, TensorMap, load
from ptxemu.isa.matrix import OPERAND_BYTES
from ptxemu.machine.arguments import Argument, Parameter
from ptxemu.syntax.tree import SourceLine
from ptxemu.targets import lacks
from ptxemu.values import Array
from tests import programs

EMPTY = program("", parameters="")
COPY = """
ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd3, %r0, 2;
mul.wide.u32 %rd4, %r0, STRIDE; add.u64 %rd1, %rd1, %rd4; add.u64 %rd2, %rd2, %rd3;
ld.global.b16 %h1, [%rd1]; st.global.b16 [%rd2], %h1;
"""
INCREMENT = """
ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd3, %r0, 4;
add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3; ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, 1;
st.global.u32 [%rd2], %r1;
"""
TWO = ".param .u64 a, .param .u64 b"


def copy(a: Any, b: Any, stride: int = 2) -> None:
    """The first 32 elements of 16 bits, `stride` bytes apart in a."""
    program(COPY.replace("STRIDE", str(stride)), parameters=TWO).launch(1, 32, (a, b))


def increment(a: Array, b: Array) -> None:
    """b = a + 1, 32 elements."""
    program(INCREMENT, parameters=TWO).launch(1, 32, (a, b))


def test_public_names_are_those_that_type_checkers_read_and_load_from_their_homes() -> None:
    tree = ast.parse(Path(ptxemu.__file__).read_text(encoding="utf-8"))
    typed = {f"ptxemu.{home}.{name}" for home, names in ptxemu._HOMES.items() for name in names}
    imports = [
        node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ptxemu.")
    ]
    assert {f"{node.module}.{name.name}" for node in imports for name in node.names} == typed
    assert sorted(one.rpartition(".")[2] for one in typed) == ptxemu.__all__
    for name in ptxemu.__all__:
        assert getattr(ptxemu, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ptxemu.nothing  # noqa: B018 - asking for it is the test


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
    with pytest.raises(EmulationError, match="which kernel"):
        loaded.kernel()


# --- arguments as bytes -----------------------------------------------------------------------------------------------


def packed(parameters: str, *arguments: Argument) -> bytes:
    """The parameters' bytes as a kernel finds them; an array's address counts from 0x1000000000."""
    out = np.zeros(16, np.uint64)
    body = "ld.param.u64 %rd0, [out];" + "".join(
        f"ld.param.u8 %r1, [out+{at}]; st.global.u8 [%rd0+{at}], %r1;" for at in range(64)
    )
    program(body, parameters=f".param .u64 out, {parameters}, .param .align 64 .b8 end[64]").launch(
        1, 1, (out, *arguments, bytes(64))
    )
    return out.tobytes()[8:64]


class Inner(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int64), ("b", ctypes.c_int32))


class Outer(ctypes.Structure):
    _fields_ = (("h", ctypes.c_uint16), ("i", Inner), ("n", ctypes.c_int32), ("c", ctypes.c_int8))


@pytest.mark.parametrize(
    ("parameters", "arguments", "expected"),
    [
        (".param .u8 a, .param .f64 b, .param .u16 c, .param .align 4 .b8 d[12], .param .u64 e",
         (1, 2.5, 3, bytes(range(12)), 5), struct.pack("<B7xdH2x12sQ", 1, 2.5, 3, bytes(range(12)), 5)),
        (".param .u32 a", (-1,), b"\xff\xff\xff\xff"),
        (".param .u32 a, .param .v2 .u32 b", (1, bytes(range(8))), struct.pack("<I4x8s", 1, bytes(range(8)))),
        (".param .align 8 .b8 a[8]", ((-(1 << 31), (1 << 31) - 1),), struct.pack("<ii", -(1 << 31), (1 << 31) - 1)),
        (".param .u32 a", (0xFFFFFFFF,), b"\xff\xff\xff\xff"),
        (".param .s64 a", (np.int32(-2),), b"\xfe" + b"\xff" * 7),
        (".param .u8 a, .param .s8 b, .param .u16 c", (-128, 255, -32768), b"\x80\xff\x00\x80"),
        (".param .u64 a, .param .s64 b", (-(1 << 63), (1 << 64) - 1), bytes(7) + b"\x80" + b"\xff" * 8),
        (".param .u8 a", (True,), b"\x01"),
        (".param .f32 a", (1,), struct.pack("<f", 1.0)),
        (".param .f32 a", (np.float64(0.1),), struct.pack("<f", 0.1)),
        (".param .f64 a", (0.1,), struct.pack("<d", 0.1)),
        (".param .f16 a", (1.5,), b"\x00\x3e"),
        (".param .b32 a", (np.float32(1.5),), struct.pack("<f", 1.5)),
        (".param .b16 a", (np.float16(1.5),), b"\x00\x3e"),
        (f".param .align 8 .b8 a[{ctypes.sizeof(Outer)}]",
         ((np.uint16(7), (np.int64(-1), np.int32(2)), 9, np.int8(-3)),), bytes(Outer(7, Inner(-1, 2), 9, -3))),
    ],
)  # fmt: skip
def test_arguments_lie_as_c_lays_them_out(parameters: str, arguments: tuple[Argument, ...], expected: bytes) -> None:
    assert packed(parameters, *arguments).startswith(expected)


@pytest.mark.parametrize(
    ("parameter", "argument", "says"),
    [
        (".u32 p", 1 << 32, "a number of 32 bits, found 4294967296"),
        (".u8 p", -129, "a number of 8 bits"),
        (".u32 p", 1.5, "expected an integer, found 1.5"),
        (".s32 p", np.float32(1.5), "expected an integer, found 1.5"),
        (".align 64 .b8 p[128]", (1,), "found 4 bytes; a CUtensorMap takes"),
        (".align 32 .b8 p[128]", (1,), "found 4 bytes; pass a structure"),
        (".u64 p", np.float32(512), "expected an integer, or an array for a pointer, found 512.0"),
        (".u32 p", np.zeros(3), "expected 4 bytes, found 8 bytes, an array's address: float64"),
        (".align 8 .b8 p[16]", (np.int64(1),),
         r"p \(a structure of 16 bytes\): expected 16 bytes, found 8 bytes; pass a structure from Python"),
        (".align 8 .b8 p[8]", (1.5,), "arrays, NumPy numbers, 32-bit integers or tuples"),
        (".u64 p", 1 << 64, "a number of 64 bits"), (".s16 p", -32769, "a number of 16 bits"),
        (".f32 p", 1e39, "a number that fits f32, or inf, found 1e"), (".f64 p", 10**400, "a number that fits f64"),
        (".align 8 .b8 p[8]", (1, True), "arrays, NumPy numbers, 32-bit integers or tuples as members, found True"),
        (".align 8 .b8 p[8]", (1, -(1 << 31) - 1), "arrays, NumPy numbers, 32-bit integers or tuples"),
        (".align 8 .b8 p[8]", (1 << 31, 1), "arrays, NumPy numbers, 32-bit integers or tuples"),
        (".u64 p", b"1234", "expected 8 bytes, found 4 bytes"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(parameter: str, argument: Any, says: str) -> None:
    with refuses("arguments", f"^k.ptx:5: .*{says}"):
        program("", parameters=f".param {parameter}").launch(1, 1, (argument,))
    with refuses("arguments", r"expected 1: p \(.*\), found 2"):
        program("", parameters=f".param {parameter}").launch(1, 1, (1.0, 2.0))


# --- arrays and tensors -----------------------------------------------------------------------------------------------


def test_arrays_that_share_memory() -> None:
    both = np.arange(64, dtype=np.uint32)
    increment(both[:32], both[32:])  # views keep their distance
    assert (both == [*range(32), *range(1, 33)]).all()
    increment(both, both)  # one array may be two arguments
    assert (both[:32] == np.arange(1, 33)).all()
    memory = bytearray(256)  # arrays on one memory without a common owner are one
    a, b, c = (np.frombuffer(memory, np.uint32, 32, offset) for offset in (0, 0, 128))
    whole = np.frombuffer(memory, np.uint32)
    increment(whole[:32], whole[32:])
    increment(a, b)
    assert (whole == 1).all()
    increment(a, c)  # neighbours
    increment(whole, c)
    assert (whole == [1] * 32 + [2] * 32).all()
    with refuses("arguments", "an array around another one"):
        increment(np.frombuffer(memory, np.uint32, 32, 64), whole)


def test_arrays_that_are_not_written_or_not_taken() -> None:
    a, b = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    b.flags.writeable = False
    increment(a, b)
    assert (b == 0).all()
    view, a.flags.writeable = a[:], False
    with refuses("arguments", "expected writable as the view of it is"):
        increment(view, view)
    with refuses("arguments", "dtype object"):
        increment(a.astype(object), a)
    with refuses("arguments", "byte order"):
        increment(a, a.astype(a.dtype.newbyteorder()))
    with refuses("arguments", "C-contiguous"):
        increment(a, np.asfortranarray(np.zeros((8, 4), np.uint32)))
    assert program("ld.param.u64 %rd0, [out];").launch(1, 32, (np.zeros(0, np.uint32),)).blocks == 1
    with refuses("out-of-bounds", "0 bytes at"):
        program("ld.param.u64 %rd0, [out]; ld.global.u8 %r1, [%rd0];").launch(1, 32, (np.zeros(0),))


def test_tensors_are_read_and_written_in_place() -> None:
    torch = pytest.importorskip("torch")
    assert program("ld.param.u64 %rd0, [out];").launch(1, 32, (torch.zeros(0),)).blocks == 1
    for dtype in (torch.int16, torch.float16, torch.bfloat16, torch.uint16):
        source, target = torch.arange(32).to(dtype), torch.zeros(40, dtype=dtype)
        copy(source, target)
        assert target.dtype == dtype
        assert torch.equal(target[:32].view(torch.int16), source.view(torch.int16))
        assert not target[32:].view(torch.int16).any()
    whole, target = torch.arange(128, dtype=torch.int16).reshape(32, 4), torch.zeros(32, 2, dtype=torch.int16)
    copy(whole[:, 1], target.T[0], stride=8)  # a column: four elements apart
    assert target.flatten().tolist() == [*range(1, 128, 4), *[0] * 32]
    copy(whole[:, 3], whole[0], stride=8)  # both in one storage, of which the second one is written
    assert whole.flatten().tolist() == [*range(3, 128, 4), *range(32, 128)]
    body = "ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [p+8]; st.global.u32 [%rd1], %r1;"
    matrix: Any = torch.zeros(64, 64, dtype=torch.float16)
    given = TensorMap(matrix, "f16", (64, 64), (128,), (64, 8))
    program("", parameters=".param .align 64 .b8 map[128]").launch(1, 1, (given,))
    out = torch.zeros(1, dtype=torch.int32)
    program(body, parameters=".param .align 8 .b8 p[16]").launch(1, 1, ((out, np.int32(7)),))
    assert out.item() == 7


class OnGpu:
    """A tensor as a GPU's library shows it."""

    device = "cuda:0"

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self) -> object:
        raise AssertionError("never asked for")


def test_tensors_that_cannot_be_arguments() -> None:
    torch = pytest.importorskip("torch")
    with importlib.import_module("torch._subclasses").FakeTensorMode():
        fake = torch.zeros(32)
    for tensor, says in (
        (OnGpu(), "expected a tensor on the CPU, found one on cuda:0; pass x.cpu()"),
        (torch.zeros(32, requires_grad=True), "found Can't export tensors that require gradient.*; pass x.detach()"),
        (torch.zeros(32, device="meta"), "expected a tensor with memory, found a meta or fake one.*; pass a real"),
        (fake, "expected a tensor with memory, found a meta or fake one"),
        (torch.zeros(32).to_sparse(), "a tensor whose memory NumPy can share"),
    ):
        with refuses("arguments", "k.ptx: a tensor among the arguments: .*" + says):
            copy(tensor, np.zeros(32, np.int16))
    with refuses("out-of-bounds", r"`array 0: float32 \(4,\)`"):  # a tensor's memory has its dtype in errors
        copy(torch.zeros(4), torch.zeros(64, dtype=torch.int16))
    odd = torch.zeros(9, dtype=torch.uint8)  # a storage that is no whole number of elements
    with refuses("out-of-bounds", r"`array 0: uint8 \(9,\)`"):
        copy(odd[:8].view(torch.float32), torch.zeros(64, dtype=torch.int16))


# --- options ----------------------------------------------------------------------------------------------------------


def test_sizes_and_amounts_in_several_forms() -> None:
    grids: list[Any] = [2, (2,), [2, 1], np.int64(2), np.array([2, 1, 1])]
    for grid in grids:
        assert EMPTY.launch(grid, 32).blocks == 2
    kernel = program("mov.u32 %r1, %tid.x;", parameters="")
    assert kernel.launch(64, 32, shared_bytes=1024, memory_budget="1GiB").slices == 1
    numpys: Any = np.int64(1024)
    assert kernel.launch(64, 32, shared_bytes=numpys, memory_budget="64 KiB").slices == 2
    assert EMPTY.launch(1, 1, shared_bytes="163KiB").blocks == 1
    counters, several = Counters(), (Counters(), Hazards())
    EMPTY.launch(2, 32, observers=counters)  # one observer needs no tuple
    EMPTY.launch(2, 32, observers=several)
    assert counters.as_dict() == several[0].as_dict()
    assert counters.lane_instructions > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"memory_budget": 1e9}, "not a memory budget: expected a whole number of .*, 1 or more.*found 1000000000"),
        ({"memory_budget": -1}, "not a memory budget: expected a whole number of bytes, 1 or more.*found -1"),
        ({"memory_budget": None}, "not a memory budget: .*found None"),
        ({"memory_budget": "much"}, "not a memory budget: expected for example 1GiB or 512MiB, found 'much'"),
        ({"shared_bytes": -1}, "not an amount of dynamic shared memory: .*, 0 or more.*found -1"),
        ({"shared_bytes": True}, "not an amount of dynamic shared memory: .*found True"),
        ({"shared_bytes": "much"}, "not an amount of dynamic shared memory: .*found 'much'"),
        ({"shared_bytes": "164 KiB"}, "expected at most 166912 bytes, found 167936"),
        ({"observers": Counters}, "observers of a launch: expected observers such as Counters.*found <class"),
        ({"observers": (None,)}, "observers of a launch: .*found None"),
        ({"max_instructions": "many"}, "instruction budget of a launch: expected a whole number, found 'many'"),
        *(({"first": wrong}, f"how many blocks run first: expected a whole number.*found {wrong!r}")
          for wrong in (0, True, "all")),
        ({"cluster": "x"}, "cluster size: expected one to three positive whole numbers, found"),
        ({"schedule": "sideways"}, "'together', 'reverse', 'elect-last' or a seed"),
        ({"args": None}, r"arguments of a launch: expected a tuple or a list of them, such as \(x,\), found NoneType"),
        ({"args": np.zeros(1)}, "arguments of a launch: .*found ndarray"),
        *(({"grid": wrong}, "k.ptx: grid size: expected one to three positive whole numbers, found")
          for wrong in ((0,), (1, 1, 1, 1), (1.5,), "a", None)),
        *(({"block": wrong}, "k.ptx: block size") for wrong in (float("nan"), float("inf"), "12", ())),
        ({"grid": (1, 65536)}, "grid"),
        ({"block": (1025,)}, "threads of a block"),
        ({"block": (1, 1, 65)}, "block"),
        *(({"target": wrong}, f"PTX for sm_80: expected one of sm_80, sm_86, .*, found {wrong}")
          for wrong in ("sm_75", "sm_81", "hopper", 90)),
        ({"target": "sm_86", "shared_bytes": 163 * 1024}, "shared memory of a block on sm_86: .*at most 101376 bytes"),
    ],
)  # fmt: skip
def test_options_that_no_launch_takes(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PtxemuError, match=says) as caught:
        EMPTY.launch(**{"grid": 1, "block": 32, **options})
    assert not isinstance(caught.value, EmulationError) or caught.value.kind == "arguments"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("target", "kib"), table_of("launch", "shared_kib"))
def test_a_block_gets_no_more_shared_memory_than_the_files_target_has(target: str, kib: int) -> None:
    text = f".version 8.0\n.target {target}\n.address_size 64\n.shared .align 16 .b8 s[1024];\n"
    kernel = load(text + ".visible .entry k() { .reg .b32 %r1; mov.u32 %r1, s; ret; }\n", path="k.ptx").kernel()
    assert kernel.launch(1, 1, shared_bytes=(kib - 1) * 1024).blocks == 1
    with refuses("arguments", f"expected at most {kib * 1024} bytes, found {kib * 1024 + 16}, 1024 of them static"):
        kernel.launch(1, 1, shared_bytes=(kib - 1) * 1024 + 16)


def test_what_each_opcode_needs() -> None:
    targets = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a")
    for opcode, enough, needed in table_of("launch", "since"):
        wanted = [None if target in enough else needed for target in targets]
        assert [lacks(target, opcode) for target in targets] == wanted, opcode
        assert lacks("sm_90a, debug", opcode) is lacks("hopper", opcode) is None


def test_targets() -> None:
    assert EMPTY.launch(1, 1, shared_bytes=227 * 1024, target="sm_90").blocks == 1
    alone = load(".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k() { ret; }\n").kernel()
    assert alone.launch(1, 1, target="sm_90").blocks == 1
    with refuses("arguments", "PTX for sm_90a: expected one of sm_90, found sm_100"):
        alone.launch(1, 1, target="sm_100")
    for target, text, needed in (
        ("sm_80", "barrier.cluster.arrive;", "sm_90 or newer"),
        ("sm_75", "mbarrier.inval.shared.b64 [s];", "sm_80 or newer"),
        ("sm_90", "setmaxnreg.dec.sync.aligned.u32 24;", "sm_90a"),
        ("sm_90", "wgmma.fence.sync.aligned;", "sm_90a"),
        ("sm_100a", "wgmma.fence.sync.aligned;", "sm_90a"),
    ):
        module = f".version 8.0\n.target {target}\n.address_size 64\n.shared .align 8 .b64 s;\n"
        with refuses("unsupported", f"^<ptx>:5: .*in PTX for {target}, in .*expected .target {needed}"):
            load(f"{module}.visible .entry k() {{ {text}\n{text} ret; }}\n").kernel()


@pytest.mark.parametrize(("directives", "block", "cluster", "says"), table_of("launch", "directives"))
def test_directives_bound_a_launch(directives: str, block: Any, cluster: int | None, says: str | None) -> None:
    text = HEADER.replace("sm_80", "sm_90") + f".visible .entry k() {directives} {{ ret; }}\n"
    with refuses("arguments", says) if says else nullcontext():
        load(text).kernel().launch(16, block, cluster=cluster)


def test_shared_variables_belong_to_the_kernels_that_mention_them() -> None:
    """Together they would not fit: 100 KiB of `first` belong to another kernel. Dynamic memory lies behind."""
    text = HEADER + ".shared .align 4 .b8 first[102400]; .shared .align 4 .b8 second[150000];"
    size = "mov.u32 %r1, %total_smem_size; st.global.u32 [%rd0], %r1;"
    for name, shared in (("k", "first"), ("l", "second"), ("m", "0")):
        text += (
            f".visible .entry {name}(.param .u64 out)\n{{\n{REGISTERS}\n{OUT}\nmov.u32 %r2, {shared}; {size} ret;\n}}\n"
        )
    for name, expected in (("k", 102400), ("l", 150000), ("m", 0)):
        out = np.zeros(1, np.uint32)
        load(text).kernel(name).launch(1, 1, (out,), shared_bytes=64)
        assert out[0] == expected + 64
    body = """mov.u32 %r1, bytes; mov.u32 %r2, wide; mov.u32 %r3, %dynamic_smem_size; mov.u32 %r4, %total_smem_size;
    mad.lo.u32 %r1, %r1, 100, %r2; mov.u32 %r5, last; mad.lo.u32 %r1, %r4, 10000, %r1;
    mad.lo.u32 %r1, %r3, 10000000, %r1; st.global.u32 [%rd0], %r1;"""
    module = "".join(f".extern .shared .align {a} .b8 {b}[];" for a, b in ((16, "bytes"), (64, "wide"), (32, "last")))
    out = run(body, module=module, declarations=".shared .b8 odd[3];", shared_bytes=8)
    assert (out == 8 * 10_000_000 + (64 + 8) * 10_000 + 64 * 100 + 64).all()
    sizes = "mov.u32 %r1, two; mov.u32 %r2, %total_smem_size; mad.lo.u32 %r1, %r1, 100, %r2; st.global.u32 [%rd0], %r1;"
    assert (run(sizes, declarations=".shared .b8 one[5]; .shared .align 8 .b8 two[3];") == 8 * 100 + 11).all()
    module = ".extern .shared .align 4 .b8 two[];"
    assert (run(sizes, declarations=".shared .b8 one[5];", module=module, shared_bytes=8) == 16 * 100 + 24).all()
    sizes = "mov.u32 %r1, %total_smem_size; st.global.u32 [%rd0], %r1;"
    assert (run(sizes, declarations=".shared .b8 one[5];", shared_bytes=8) == 16 + 8).all()
    assert (run("mov.u32 %r2, two;" + sizes, declarations=".shared .b8 one[5];", module=module) == 16).all()
    with refuses("unsupported", "elsewhere"):
        run("mov.u64 %rd1, elsewhere;", module=".extern .global .align 4 .b8 elsewhere[4];")


# --- what a launch returns, and its errors ----------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [None, (2, 1, 2)])
def test_every_block_of_a_grid_runs(cluster: tuple[int, int, int] | None) -> None:
    body = "ld.param.u64 %rd0, [out]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z;"
    body += "mad.lo.u32 %r2, %r3, 3, %r2; mad.lo.u32 %r1, %r2, 4, %r1; mul.wide.u32 %rd1, %r1, 4;"
    out = np.zeros(24, np.uint32)
    kernel = program(f"{body} add.u64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], %r1;")
    kernel.launch((4, 3, 2), 1, (out,), cluster=cluster, target="sm_90")
    assert out.tolist() == list(range(24))
    body = "ld.global.u64 %rd1, [y]; st.global.u32 [%rd1], 5; ld.global.u32 %r1, [x+28]; st.global.u32 [%rd0], %r1;"
    assert (run(body, module=".global .v2 .u32 x[4]; .global .b64 y = x+28;") == 5).all()
    module = ".global .u32 x[4] = {7, 8}; .global .v2 .u32 z; .global .u32 y; .const .u32 w[2];"
    for place, value in (("x+4", 8), ("x+8", 0), ("x+12", 0), ("z+4", 0), ("y", 0), ("w+4", 0)):
        assert (run(f"ld.u32 %r1, [{place}]; st.global.u32 [%rd0], %r1;", module=module) == value).all()
    for place in ("x+16", "x-4", "y+4", "z+8", "w+8"):
        with refuses("out-of-bounds", "nearest buffer, `[xyzw]`"):
            run(f"ld.u32 %r1, [{place}];", module=module)


def test_an_error_names_the_block_of_a_later_slice_and_the_thread_of_a_3d_block() -> None:
    body = "ld.param.u64 %rd0, [out]; mov.u32 %r1, %ctaid.z; setp.eq.u32 %p1, %r1, 1;"
    for name, value in (("ctaid.y", 2), ("tid.z", 3), ("tid.x", 4)):
        body += f"mov.u32 %r1, %{name}; setp.eq.and.u32 %p1, %r1, {value}, %p1;"
    kernel = program(body + "@%p1 st.global.u32 [%rd0+64], %r1;")
    for budget in (1, 1 << 30):
        with refuses("out-of-bounds") as caught:
            kernel.launch((2, 3, 2), (5, 2, 4), (np.zeros(16, np.uint32),), memory_budget=budget)
        assert (caught.value.block, caught.value.lane) == ((0, 2, 1), 4 + 5 * 2 * 3)
        assert caught.value.address == (1 << 36) + 64


def test_an_error_in_an_inlined_function_names_the_caller() -> None:
    text = f"""{HEADER}
    .visible .entry k() {{
    .loc 1 7 5
    .loc 2 3 9, function_name $L__info_string0, inlined_at 1 7 5
    trap;
    }}
    .file 1 "caller.cu"
    .file 2 "callee.cuh"
    """
    with refuses("trap", r"in `trap;` from callee\.cuh:3 < caller\.cu:7"):
        load(text, path="k.ptx").kernel().launch(1, 32)
    place = SourceLine("d.cuh", 4, SourceLine("c.cuh", 3, SourceLine("b.cuh", 2, SourceLine("a.cu", 1))))
    assert place.chain == "d.cuh:4 < c.cuh:3 < b.cuh:2"
    outer = SourceLine("/a/targets/x/include/cccl/c.h", 2, SourceLine("/a/cuda-13/include/b.h", 3, place))
    assert SourceLine("/opt/cuda/include/fp16.h", 1, outer).chain == "fp16.h:1 < d.cuh:4 < c.cuh:3"


def test_result_and_progress_count_what_ran() -> None:
    told: list[int] = []
    kernel, out = program(OUT + "st.global.u32 [%rd0], 1;"), np.zeros((6, 64), np.uint32)
    result = kernel.launch(6, 64, (out,), memory_budget=1, progress=told.append)
    assert (result.blocks, result.slices) == (6, 6)
    assert result.instructions == 6 * (OUT.count(";") + 2)
    assert sum(told) == 2 * result.instructions
    whole = kernel.launch(6, 64, (out,))
    assert (whole.slices, whole.instructions) == (1, result.instructions // 6)


@pytest.mark.parametrize("schedule", ["together", "reverse"])
@pytest.mark.parametrize("round_", ["", "ld.volatile.global.u32 %r1, [%rd0];", "atom.global.cas.b32 %r1, [%rd0], 0, 1;",
                                    "neg.f32 %f1, %f1;", "add.f32 %f1, %f1, 0f7FFFFFFF;"])  # fmt: skip
def test_a_loop_that_changes_nothing_ends_early(round_: str, schedule: str) -> None:
    with refuses("endless-loop", r"^k\.ptx:17: .*thread \d+ \(.* in `@!%p1 bra again"):
        run(f"setp.eq.u32 %p1, %r0, 0; mov.f32 %f1, 0f00000000; again: {round_} @!%p1 bra again;", schedule=schedule)


@pytest.mark.parametrize("round_", ["add.u32 %r1, %r1, 1;", "atom.global.xor.b32 %r2, [%rd0], 1; add.u32 %r1, %r1, 0;",
    *(f"atom.global.add.u32 %r2, [%rd0], {by}; mov.u32 %r2, 0;" for by in (1, -1))])  # fmt: skip
def test_a_loop_that_changes_something_goes_on(round_: str) -> None:
    with refuses("budget", r"found 2500\d;"):  # not a look later
        run(f"mov.u32 %r1, 0; again: {round_} bra again;", max_instructions=25_000)


def test_a_kernel_is_chosen_by_a_part_of_its_name() -> None:
    names = ("_Z3addIfLi32EEvPT_", "_Z3addIdLi32EEvPT_", "_ZN2ns5innerEPi", "adder", "_Z3mulIjbcdiEvv")
    single, _, inner, adder, many = names
    loaded = ptxemu.load(HEADER + "".join(f".entry {each}() {{ ret; }}\n" for each in names))
    meant = {single: single, "add<float, 32>": single, "ns::inner": inner, "inner": inner, "dder": adder}
    meant |= {"mul<unsigned, bool, char, double, int>": many, "mul": many}
    assert {name: loaded.kernel(name).name for name in meant} == meant
    wrong: list[Any] = ["add", "", None, 3]
    for name in wrong:
        with refuses("arguments", "which kernel: expected one of .*_Z3addIfLi32EEvPT_.*--kernel NAME"):
            loaded.kernel(name)


def test_messages_name_arrays_as_a_dictionary_does() -> None:
    kernel = program("ld.param.u64 %rd1, [b]; ld.global.u32 %r1, [%rd1+32];", parameters=".param .u32 a, .param .u64 b")
    values = np.zeros(12, np.float32)
    with refuses("out-of-bounds", "reaches 4 bytes past the end of the nearest buffer, `second: float32"):
        kernel.launch(1, 1, {"first": 1, "second": values[:8].copy()})
    kernel.launch(1, 1, {"first": 1, "second": values[2:]})
    body, hazards = "mov.u32 %r1, %ctaid.x; ld.param.u64 %rd1, [b]; st.global.u16 [%rd1+6], %r1;", Hazards()
    program(body, parameters=TWO).launch(2, 1, {"x": values, "y": np.zeros(8, np.uint16)}, observers=hazards)
    assert ", element 3 of `y: uint16 (8,)`, block" in hazards.render()


def test_the_budget_of_instructions_is_for_each_slice() -> None:
    body = "mov.u32 %r1, 0; loop: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 50; @%p1 bra loop;"
    run(body, 32, 5, memory_budget=1, max_instructions=200)
    with refuses("budget"):
        run(body, 32, 5, memory_budget=1, max_instructions=100)


def test_a_slice_holds_the_blocks_whose_registers_and_memory_fit() -> None:
    """8 bytes for a lane's register, each byte of shared and local memory twice; what `mma` keeps of matrices."""
    head, zero = OUT + "mov.u32 %r1, a; mov.u64 %rd3, b;", "".join(f"mov.f32 %f{i}, 0f00000000;" for i in range(4))
    mma = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {D}, {%r1, %r1}, {%r1}, {D};".replace(
        "D", "%f0, %f1, %f2, %f3"
    )
    for body, kept in ((head, 0), (head + zero + mma, OPERAND_BYTES)):
        kernel = program(body, declarations=".shared .b8 a[500]; .local .b8 b[1000];")
        cost = 3 * (32 * (8 * kernel.flow.peak + 2 * 1000) + kept) + 2 * (512 + 64)
        for budget, slices in ((4 * cost, 2), (4 * cost - 1, 3), (cost, 8), (1, 8)):
            out = np.zeros((8, 96), np.uint32)
            assert kernel.launch(8, 96, (out,), shared_bytes=64, memory_budget=budget).slices == slices
            wide = kernel.launch(8, 96, (out,), shared_bytes=64, memory_budget=budget, cluster=2, target="sm_90")
            assert wide.slices == min(slices + slices % 2, 4)


@pytest.mark.parametrize(("threads", "matrices"), [(128, False), (100, False), (128, True)])
def test_the_memory_budget_is_kept(threads: int, matrices: bool) -> None:
    """24 registers alive at once, each another array for every lane; `mma` keeps matrices of them."""
    fill = "".join(f"mad.lo.u32 %r{i}, %r0, {i}, %r60;" for i in range(1, 25))
    use = "".join(f"xor.b32 %r40, %r40, %r{i};" for i in range(1, 25))
    mma = "".join(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, "
        f"{{%r{i}, %r{i + 1}, %r{i + 2}, %r{i + 3}}}, {{%r{i + 4}, %r{i + 5}}}, {{%f0, %f1, %f2, %f3}};"
        for i in range(1, 20)
    )
    zero = "".join(f"mov.f32 %f{i}, 0f00000000;" for i in range(4))
    kernel = program(f"{OUT} {zero} {fill} {mma * matrices} mov.u32 %r40, 0; {use} st.global.u32 [%rd0], %r40;")
    out, budget = np.zeros((600, threads), np.uint32), 8 << 20
    tracemalloc.start()
    try:
        result = kernel.launch(600, threads, (out,), memory_budget=budget)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.slices > 1
    assert budget / 8 < peak - out.nbytes < budget


SPINS = {
    "one after the other": """
    @%p1 bra second;
    first: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p2, %r1, 0; @%p2 bra first;
    mov.u32 %r1, 1; st.volatile.global.u32 [%rd0+4], %r1; bra over;
    second: mov.u32 %r1, 1; st.volatile.global.u32 [%rd0], %r1;
    back: ld.volatile.global.u32 %r1, [%rd0+4]; setp.eq.u32 %p2, %r1, 0; @%p2 bra back;
    over:""",
    "until a copy has landed": """
    @%p1 bra second;
    first: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p2, %r1, 0; @%p2 bra first;
    bra over;
    second: setp.ne.u32 %p2, %r0, 32; @%p2 bra over;
    mov.u32 %r1, 1; st.shared.v4.u32 [words], {%r1, %r1, %r1, %r1}; mov.u32 %r2, words; fence.proxy.async;
    cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r2], 16; cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
    over:""",
}


@pytest.mark.parametrize("schedule", ["together", "reverse", 1])
@pytest.mark.parametrize("name", SPINS)
def test_threads_that_spin_go_on_when_another_has_stored(
    name: str, schedule: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "HEADER", programs.HEADER.replace("sm_80", "sm_90"))
    body = "setp.ge.u32 %p1, %r0, 32; and.b64 %rd0, %rd0, -256;" + SPINS[name]
    declarations = ".shared .align 16 .b8 words[16];"
    out = run(body, threads=64, declarations=declarations, schedule=schedule, max_instructions=200_000)
    assert out[0, 0] == 1
