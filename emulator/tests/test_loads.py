"""ld and st: every space, type and vector, generic addresses, and what observers hear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.stepping import Bench, at, number

from ptxemu.errors import EmulationError
from ptxemu.isa.loads import form_of, packed, unpacked
from ptxemu.machine.memory import LOCAL_WINDOW, SHARED_WINDOW, GlobalMemory
from ptxemu.machine.shared import LocalMemory, SharedMemory
from ptxemu.syntax.tree import Address, Register, Symbol, Vector
from ptxemu.table import ROWS
from ptxemu.values import DTYPES, Array, width
from tests import programs

TYPES = [f"{kind}{bits}" for kind in "bus" for bits in (8, 16, 32, 64)] + ["f32", "f64"]
VECTORS = [f"v{count}.{kind}" for count in (2, 4) for kind in TYPES if count * width(kind) <= 16]
REGISTER = {1: np.uint16, 2: np.uint16, 4: np.uint32, 8: np.uint64}  # bytes of a type -> its usual register


def bench(blocks: int = 2, warps: int = 2) -> Bench:
    made = Bench(blocks, warps)
    made.machine.memory = GlobalMemory()
    made.machine.shared = SharedMemory(blocks, 1024)
    made.machine.local = LocalMemory(made.shape, 1024)
    return made


def lanes(step: int) -> Array:
    """Offsets 0, step, 2 step, ... of the lanes of a warp."""
    return np.arange(32, dtype=np.uint64).reshape(1, 1, 32) * np.uint64(step)


def registers(made: Bench, name: str, count: int, bytes_each: int) -> Any:
    items = tuple(made.destination(f"{name}{i}", REGISTER[bytes_each]) for i in range(count))
    return Vector(items) if count > 1 else items[0]


@pytest.mark.parametrize("shape", TYPES + VECTORS)
@pytest.mark.parametrize("space", ["global", "shared", "local", ""])
def test_a_store_and_a_load_return_each_element(space: str, shape: str) -> None:
    made = bench()
    kind, count = shape.rpartition(".")[2], {"v2": 2, "v4": 4}.get(shape.partition(".")[0], 1)
    each = width(kind)
    base = made.machine.memory.allocate(1024, "x") if space in {"global", ""} else 0
    made.set("a", lanes(count * each) + np.uint64(base))
    payload = np.random.default_rng(7).integers(0, 2 ** (8 * each), (count, 1, 1, 32), dtype=np.uint64)
    wide = REGISTER[each]
    source = made.fragment("s", [item.astype(wide) | (wide(0xAB00) if each == 1 else wide(0)) for item in payload])
    dotted = f".{space}" if space else ""
    made.run(f"st{dotted}.{shape}", at(Register("a")), source if count > 1 else source.items[0])
    made.run(f"ld{dotted}.{shape}", registers(made, "d", count, each), at(Register("a")))
    for index in range(count):
        found = made.get(f"d{index}")
        signed = payload[index].astype(f"u{each}").view(f"i{each}").astype(np.int64)
        expected = signed if kind[0] == "s" else payload[index]
        assert (found.view(f"u{found.dtype.itemsize}") == expected.astype(wide)).all(), "extended by the type's sign"


@pytest.mark.parametrize("opcode", ["ld.global.s8", "ld.global.u8", "ld.global.s16", "ld.global.b16"])
@pytest.mark.parametrize("register", [np.uint32, np.uint64])
def test_narrow_loads_extend_into_wide_registers(opcode: str, register: Any) -> None:
    made = bench()
    kind = opcode.rpartition(".")[2]
    data = np.array([0, 1, 0x7F, 0x80, 0xFF], dtype=np.uint8).repeat(2).view(DTYPES[kind])
    made.set("a", np.full((1, 1, 1), made.machine.memory.allocate(data, "x"), np.uint64))
    for index, value in enumerate(data.tolist()):
        made.set("d", np.zeros((1, 1, 1), register))
        made.run(opcode, Register("d"), at(Register("a"), index * data.itemsize))
        assert int(made.get("d").view(register)[0, 0, 0]) == value % 2 ** (8 * np.dtype(register).itemsize)


def test_a_load_of_one_address_stays_one_value() -> None:
    made = bench()
    base = made.machine.memory.allocate(np.arange(4, dtype=np.float32), "x")
    made.set("a", np.full((1, 1, 1), base, np.uint64))
    made.run("ld.global.v4.f32", registers(made, "d", 4, 4), at(Register("a")))
    assert [made.get(f"d{i}").item() for i in range(4)] == [0.0, 1.0, 2.0, 3.0]


def test_inactive_lanes_keep_their_register() -> None:
    made = bench(1, 1)
    base = made.machine.memory.allocate(np.arange(8, dtype=np.uint32), "x")
    address = np.full((1, 1, 32), 1, np.uint64)
    address[0, 0, :8] = base + 4 * np.arange(8)
    made.set("a", address)
    mask = np.arange(32).reshape(1, 1, 32) < 8
    made.run("ld.global.u32", made.destination("d"), at(Register("a")), mask=mask)
    assert made.get("d")[0, 0].tolist() == [*range(8), *[0xFFFFFFFF] * 24]


def test_a_generic_access_may_reach_every_space_at_once() -> None:
    made = bench()
    base = made.machine.memory.allocate(np.full(32, 7, np.uint64), "x")
    which = np.arange(32) % 4  # 3: inactive, with a wild address
    windows = np.array([base, SHARED_WINDOW, LOCAL_WINDOW, 3 << 60], dtype=np.uint64)
    made.set(
        "a", (windows[which] + np.uint64(16) * np.arange(32, dtype=np.uint64)).reshape(1, 1, 32) % np.uint64(2**63)
    )
    made.machine.memory = memory = GlobalMemory()
    base = memory.allocate(512, "y")
    made.set("a", np.where(which == 0, lanes(16) + np.uint64(base), made.get("a")))
    thread = np.arange(128, dtype=np.uint64).reshape(2, 2, 32)
    source = made.fragment("s", [thread, thread + np.uint64(1000)])
    active = (which != 3) & (np.arange(32) != 4) & (np.arange(32) != 5)
    mask = active.reshape(1, 1, 32)
    made.run("st.v2.u64", at(Register("a")), source, mask=mask)
    made.run("ld.v2.u64", registers(made, "d", 2, 8), at(Register("a")), mask=mask)
    block = thread // 64 * 64
    owner = [thread % 32 + 96, thread % 32 + 32 + block, thread]  # the last warp of the grid, of the block; the thread
    expected = np.choose(np.where(active, which, 0), owner)
    for index in range(2):
        found = np.broadcast_to(made.get(f"d{index}"), made.shape)
        assert (found == np.where(active, expected + np.uint64(1000 * index), np.uint64(0xFFFFFFFF))).all()
    heard = [(access.space, access.kind) for access in made.ears.accesses]
    assert heard == [("global", "st"), ("shared", "st"), ("global", "ld"), ("shared", "ld")]
    for access in made.ears.accesses:
        assert access.mask is not None
        assert (access.mask == mask & (which == (0 if access.space == "global" else 1))).all()


def test_generic_accesses_of_no_lane() -> None:
    made = bench()
    made.set("a", np.full((1, 1, 1), 5 << 60, np.uint64))
    nobody = np.zeros((1, 1, 1), np.bool_)
    made.run("ld.v4.u32", registers(made, "d", 4, 4), at(Register("a")), mask=nobody)
    made.run("ld.u16", registers(made, "e", 1, 2), at(Register("a")), mask=nobody)
    made.run("st.u8", at(Register("a")), number(1), mask=nobody)
    assert int(np.ravel(made.get("d0"))[0]) == 0xFFFFFFFF
    assert made.ears.accesses == []


@pytest.mark.parametrize("address", [SHARED_WINDOW + 1024, LOCAL_WINDOW + 1024, 3 << 58, 0])
def test_a_generic_address_outside_its_window(address: int) -> None:
    made = bench()
    made.set("a", np.full((1, 1, 1), address, np.uint64))
    with pytest.raises(EmulationError) as caught:
        made.run("ld.u32", made.destination("d"), at(Register("a")))
    assert caught.value.kind == "out-of-bounds"


def test_observers_hear_of_global_and_shared_memory_only() -> None:
    made = bench()
    base = made.machine.memory.allocate(1024, "x")
    made.machine.parameters, made.machine.symbols = bytes(16), {"p": 8}
    made.set("a", lanes(16) + np.uint64(base))
    made.set("b", lanes(16))
    mask = np.arange(32).reshape(1, 1, 32) < 5
    source = made.fragment("s", [np.zeros((1, 1, 1), np.uint32)] * 4)
    made.run("st.global.L1::no_allocate.v4.b32", at(Register("a")), source, mask=mask)
    made.run("st.shared.v4.b32", at(Register("b")), source)
    made.run("st.local.v4.b32", at(Register("b")), source)
    made.run("ld.local.v2.b32", registers(made, "d", 2, 4), at(Register("b")))
    made.run("ld.const.b32", made.destination("e"), at(Register("a")))
    made.run("ld.param.u32", made.destination("e"), Address(Symbol("p"), 4))
    made.run("ld.shared.v2.b32", registers(made, "d", 2, 4), at(Register("b"), 8))
    heard = [(a.space, a.kind, a.width, int(a.address.min()), a.mask is mask) for a in made.ears.accesses]
    assert heard == [("global", "st", 16, base, True), ("shared", "st", 16, 0, False), ("shared", "ld", 8, 8, False)]


def test_an_access_that_fails_is_not_heard() -> None:
    made = bench()
    made.set("a", np.full((1, 1, 1), 1 << 40, np.uint64))
    for opcode in ("ld.global.u32", "ld.shared.u32", "ld.local.u32"):
        with pytest.raises(EmulationError):
            made.run(opcode, made.destination("d"), at(Register("a")))
    assert made.ears.accesses == []


def test_parameters() -> None:
    made = bench()
    made.machine.parameters = np.array([11, 22, 33, 44], np.uint32).tobytes()
    made.machine.symbols = {"p": 4}
    made.run("ld.param.u32", made.destination("d"), Address(Symbol("p")))
    assert made.get("d").tolist() == [[[22]]]
    made.set("a", np.full((1, 1, 1), 4, np.uint64))
    made.run("ld.param.v2.u32", registers(made, "e", 2, 4), at(Register("a"), 4))
    assert (made.get("e0").item(), made.get("e1").item()) == (33, 44)
    with pytest.raises(EmulationError, match="8 bytes past the end of the kernel's 16 bytes of param memory") as caught:
        made.run("ld.param.u64", made.destination("d"), Address(Symbol("p"), 12))
    assert caught.value.kind == "out-of-bounds"
    with pytest.raises(EmulationError, match="multiple of 8"):
        made.run("ld.param.u64", made.destination("d"), Address(Symbol("p")))


def test_a_vector_store_mixes_shapes_and_constants() -> None:
    made = bench()
    made.set("a", lanes(16))
    items = (made.set("x", np.full((1, 1, 1), 9, np.uint32)), number(-1), made.set("y", lanes(1)), number(3))
    made.run("st.shared.v4.u32", at(Register("a")), Vector(items))
    made.run("ld.shared.v4.u32", registers(made, "d", 4, 4), at(Register("a")))
    found = [np.broadcast_to(made.get(f"d{i}"), made.shape) for i in range(4)]
    assert (found[0] == 9).all()
    assert (found[1] == 0xFFFFFFFF).all()
    assert (found[2] == np.arange(32)).all()
    assert (found[3] == 3).all()


def test_the_sink_of_a_vector_load_takes_nothing() -> None:
    made = bench()
    made.set("a", np.full((1, 1, 1), made.machine.memory.allocate(np.arange(2, dtype=np.uint32), "x"), np.uint64))
    made.run("ld.global.v2.u32", Vector((Symbol("_"), made.destination("d"))), at(Register("a")))
    assert made.get("d").item() == 1


@pytest.mark.parametrize(
    "opcode", ["membar.gl", "fence.acq_rel.gpu", "fence.sc.cta", "prefetch.global.L2", "prefetchu.L1"]
)
def test_fences_and_prefetches_change_nothing(opcode: str) -> None:
    made = bench()
    made.set("a", np.full((1, 1, 1), 12345, np.uint64))
    operands = (at(Register("a")),) if opcode.startswith("prefetch") else ()
    made.run(opcode, *operands)
    assert made.ears.accesses == []
    assert made.get("a").tolist() == [[[12345]]]


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("ld.global.nc.L1::no_allocate.L2::128B.v4.f32", ("global", 4, "f32", 16)),
        ("ld.relaxed.gpu.shared::cta.v2.b64", ("shared", 2, "b64", 16)),
        ("ld.acquire.sys.u8", ("", 1, "u8", 1)),
        ("st.weak.local.v4.u16", ("local", 4, "u16", 8)),
        ("st.global.wt.f64", ("global", 1, "f64", 8)),
        ("ldu.global.s32", ("global", 1, "s32", 4)),
    ],
)
def test_forms(opcode: str, expected: tuple[Any, ...]) -> None:
    form = form_of(opcode)
    assert (form.space, form.count, form.type, form.width) == expected
    assert ROWS[opcode].group == "loads"


@pytest.mark.parametrize(
    "opcode", ["ld.global.v4.b64", "st.const.u32", "ld.global.L2::cache_hint.u32", "ld.global.f16"]
)
def test_forms_that_do_not_exist(opcode: str) -> None:
    assert opcode not in ROWS


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_packed_is_the_inverse_of_unpacked(kind: str, count: int) -> None:
    each = width(kind)
    if count * each > 16:
        return
    parts = [np.arange(6, dtype=f"u{each}").reshape(2, 1, 3) + np.array(10 * i, f"u{each}") for i in range(count)]
    raw = packed([part.view(DTYPES[kind]) for part in parts], count * each)
    assert raw.shape == ((2, 1, 3, 4) if count * each == 16 else (2, 1, 3))
    for part, back in zip(parts, unpacked(raw, count, kind), strict=True):
        assert back.dtype == DTYPES[kind]
        assert (back.view(f"u{each}") == part).all()


def test_a_whole_program() -> None:
    """Constants, an initialised variable, local memory at an index of the thread, and shared memory of the block."""
    body = """
    { .local .align 4 .b8 box[64];
      mov.u64 %rd2, box; and.b32 %r1, %r0, 15; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd2, %rd2, %rd3;
      add.u32 %r2, %r0, 100; st.local.u32 [%rd2], %r2; cvta.local.u64 %rd4, %rd2; ld.u32 %r3, [%rd4]; }
    mov.u64 %rd5, table; add.s64 %rd5, %rd5, %rd3; ld.const.u32 %r4, [%rd5];
    ld.global.u32 %r5, [seven]; add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, %r5;
    mov.u32 %r6, mail; mad.lo.s32 %r7, %r0, 4, %r6; st.shared.u32 [%r7], %r3; bar.sync 0;
    xor.b32 %r8, %r0, 1; mad.lo.s32 %r7, %r8, 4, %r6; ld.shared.u32 %r9, [%r7]; st.global.u32 [%rd0], %r9;
    """
    module = """.const .align 4 .u32 table[16] = {0,10,20,30,40,50,60,70,80,90,100,110,120,130,140,150};
    .global .align 4 .u32 seven = 7;"""
    found = programs.run(body, threads=64, blocks=2, declarations=".shared .align 4 .b8 mail[256];", module=module)
    thread = np.arange(64) ^ 1
    assert (found == thread + 100 + thread % 16 * 10 + 7).all()


def test_uninitialised_local_memory_has_all_bits_set() -> None:
    body = "mov.u64 %rd2, box; st.local.u16 [%rd2+4], 0; ld.local.u32 %r1, [%rd2+4]; st.global.u32 [%rd0], %r1;"
    assert (programs.run(body, declarations=".local .align 4 .b8 box[64];") == 0xFFFF0000).all()


def test_parameters_have_generic_addresses_and_cannot_be_written() -> None:
    body = "mov.u64 %rd2, out; cvta.param.u64 %rd3, %rd2; ld.u64 %rd4, [%rd3]; cvt.u32.u64 %r1, %rd4;"
    body += "ld.param.u32 %r2, [out]; sub.u32 %r1, %r1, %r2; nanosleep.u32 %r2; add.u32 %r1, %r1, %r0;"
    assert (programs.run(body + "st.global.u32 [%rd0], %r1;") == np.arange(32)).all()
    with pytest.raises(EmulationError, match="store to the kernel's parameters"):
        programs.run(body + "st.u32 [%rd3], %r1;")


def test_initialisers_hold_addresses_of_variables_and_functions() -> None:
    module = """.global .align 4 .u32 numbers[4] = {1, 20, 300, 4000};
    .global .align 8 .u64 places[3] = {numbers+8, generic(numbers)+4, skip};
    .func skip() { ret; }"""
    body = """mov.u64 %rd2, places; ld.global.u64 %rd3, [%rd2]; ld.global.u32 %r1, [%rd3]; ld.global.u64 %rd3, [%rd2+8];
    ld.global.u32 %r2, [%rd3]; add.u32 %r1, %r1, %r2; ld.global.u64 %rd3, [%rd2+16]; mov.u64 %rd4, skip;
    setp.eq.u64 %p1, %rd3, %rd4; @%p1 add.u32 %r1, %r1, 1; st.global.u32 [%rd0], %r1;"""
    assert (programs.run(body, module=module) == 321).all()
