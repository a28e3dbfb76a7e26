"""Loads, stores and atomics: any sequence of them against a model that goes lane by lane and byte by byte; errors."""

from __future__ import annotations

from collections.abc import Callable
import mmap
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.cases.reference_float import flush
from tests.programs import HEADER, program, refuses, run, table_of, text_of

import ptxemu
from ptxemu import Access, Observer, Step
from ptxemu.machine.memory import SHARED_WINDOW
from ptxemu.values import Array

BLOCKS, WARPS = 3, 2
SHAPE = (BLOCKS, WARPS, 32)
THREADS = WARPS * 32
# How a number depends on its thread: the index into a table, and the shape of what differs.
INDICES = {"%zero": (1, 1, 1), "%lane": (1, 1, 32), "%t": (1, WARPS, 32), "%b": (BLOCKS, 1, 1), "%g": SHAPE}
START = f"""
.reg .b32 %zero, %lane, %t, %b, %g, %i, %sel, %m; .reg .b64 %table, %out, %buf<2>, %at, %a, %base, %addr;
.reg .b32 %v<4>; .reg .b64 %w; .reg .pred %on, %where; .reg .b16 %s;
.shared .align 16 .b8 tile[88]; .local .align 16 .b8 frame[88];
ld.param.u64 %table, [table]; ld.param.u64 %out, [out]; ld.param.u64 %buf0, [one]; ld.param.u64 %buf1, [two];
mov.u32 %zero, 0; mov.u32 %lane, %laneid; mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mad.lo.u32 %g, %b, {THREADS}, %t;
mul.wide.u32 %a, %g, 16; add.u64 %out, %out, %a;
"""
PARAMETERS = ".param .u64 table, .param .u64 out, .param .u64 one, .param .u64 two"
SIZES = {"global": 512, "shared": 88, "local": 88}  # bytes; the last two end within a 16-byte piece
VALUES = {
    1: ("u8", "%s"),
    2: ("u16", "%s"),
    4: ("u32", "%v0"),
    8: ("u64", "%w"),
    16: ("v4.u32", "{%v0, %v1, %v2, %v3}"),
}


class Sequence:
    """A random sequence of accesses: PTX, the tables that it reads, and what must come of it."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.text: list[str] = []
        self.tables: list[Array] = []
        self.error: tuple[str, int, int, int] | None = None  # kind, block, thread, address
        self.contents = {"global": np.zeros((2, 512), np.uint8), "shared": np.zeros((BLOCKS, 88), np.uint8)}
        self.contents["local"] = np.full((BLOCKS * THREADS, 88), 0xFF, np.uint8)  # before anything is stored
        self.written = {space: np.full(each.shape, space != "shared") for space, each in self.contents.items()}
        self.wanted: list[Array] = []
        if self.rng.random() < 0.7:  # a window that is written everywhere
            self.text += [f"st.shared.u64 [{start}], {start * 0x01010101};" for start in range(0, 88, 8)]
            self.contents["shared"][:] = (np.arange(0, 88, 8) * 0x01010101).view(np.uint8)
            self.written["shared"][:] = True
        for _ in range(10):
            if self.error is None:
                self.access()

    def choose(self, *options: Any) -> Any:
        return options[self.rng.integers(len(options))]

    def table(self, numbers: Array, index: str, width: int) -> str:
        """Text that leaves the address of the thread's number in %a."""
        at = sum(each.size for each in self.tables)
        self.tables.append(np.ascontiguousarray(numbers).view(np.uint8).reshape(-1))
        self.tables[-1] = np.resize(self.tables[-1], -(-self.tables[-1].size // 16) * 16)
        return f"mul.wide.u32 %a, {index}, {width}; add.u64 %a, %a, %table; add.u64 %a, %a, {at};"

    def spread(self, make: Callable[[tuple[int, ...]], Array], width: int) -> tuple[Array, str, bool]:
        """Numbers for all threads, the text that finds a thread's, and whether each thread has one of its own."""
        index = self.choose(*INDICES)
        numbers = make(INDICES[index])
        return np.broadcast_to(numbers, SHAPE).copy(), self.table(numbers, index, width), index == "%g"

    def access(self) -> None:
        width, store = int(self.choose(*VALUES)), bool(self.rng.random() < 0.5)
        instruction = str(self.choose("global", "shared", "local", ""))
        spaces = [instruction] if instruction else ["global", "shared", "local"]
        active = np.ones(SHAPE, np.bool_)
        guard = ""
        if self.rng.random() < 0.7:
            chance = self.choose(0.1, 0.5, 0.95)
            active, find, _ = self.spread(lambda shape: self.rng.random(shape) < chance, 1)
            self.text.append(f"{find} ld.global.u8 %m, [%a]; setp.ne.u32 %on, %m, 0;")
            guard = "@%on "
        which, find_which, _ = self.spread(lambda shape: self.rng.integers(0, 4, shape).astype(np.uint8), 1)
        offset, find, own = self.spread(
            lambda shape: (
                self.rng.integers(0, min(SIZES[space] for space in spaces) // width, shape).astype(np.uint64) * width
            ),
            8,
        )
        if own:
            table = self.tables[-1].view(np.uint64).reshape(SHAPE)
            table[~active] = self.rng.integers(0, 2**60, (~active).sum(), dtype=np.uint64)  # garbage that is not used
        self.text.append(f"{find_which} ld.global.u8 %sel, [%a]; {find} ld.global.u64 %at, [%a]; mov.u64 %base, 0;")
        space_of = np.full(SHAPE, spaces[0], object)
        if "global" in spaces:  # in either of two buffers
            self.text.append("and.b32 %m, %sel, 1; setp.ne.u32 %where, %m, 0; selp.u64 %base, %buf1, %buf0, %where;")
        if not instruction:  # 2: shared, 3: local memory
            space_of = np.array(["global", "global", "shared", "local"], object)[which]
            for number, name in ((2, "shared"), (3, "local")):
                self.text.append(
                    f"setp.eq.u32 %where, %sel, {number}; mov.u64 %addr, {'tile' if number == 2 else 'frame'};"
                )
                self.text.append(f"cvta.{name}.u64 %addr, %addr; selp.u64 %base, %addr, %base, %where;")
        self.text.append("add.u64 %addr, %base, %at;")
        kind, register = VALUES[width]
        dotted = f".{instruction}" if instruction else ""
        lanes = [tuple(int(i) for i in lane) for lane in np.argwhere(active)]
        places = {lane: self.place(space_of[lane], lane, which[lane], int(offset[lane]), width) for lane in lanes}
        if store:
            values, find, _ = self.values()
            self.text.append(
                f"{find} ld.global.{kind} {register}, [%a];\n{guard}st{dotted}.{kind} [%addr], {register};"
            )
            for lane in lanes:
                space, place = places[lane]
                self.contents[space][place] = values[lane][:width]
                self.written[space][place] = True
            return
        for lane in lanes:
            space, place = places[lane]
            if not self.written[space][place].all():
                address = int(offset[lane]) + (0 if instruction else SHARED_WINDOW)
                self.error = ("uninitialised", lane[0], lane[1] * 32 + lane[2], address % SHARED_WINDOW)
                break
        at = len(self.wanted) * 16 * BLOCKS * THREADS
        self.text.append(
            f"{guard}ld{dotted}.{kind} {register}, [%addr];\n{guard}st.global.{kind} [%out+{at}], {register};"
        )
        found = np.zeros((*SHAPE, 16), np.uint8)
        for lane in lanes:
            space, place = places[lane]
            found[lane][:width] = self.contents[space][place]
        self.wanted.append(found)

    def values(self) -> tuple[Array, str, bool]:
        index = self.choose(*INDICES)
        numbers = self.rng.integers(0, 256, (*INDICES[index], 16), dtype=np.uint8)
        return np.broadcast_to(numbers, (*SHAPE, 16)), self.table(numbers, index, 16), False

    def place(self, space: str, lane: tuple[int, ...], which: int, offset: int, width: int) -> tuple[str, Any]:
        row = {"global": which & 1, "shared": lane[0], "local": (lane[0] * WARPS + lane[1]) * 32 + lane[2]}[space]
        return space, (row, slice(offset, offset + width))


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_sequence_of_accesses_is_that_of_the_model(seed: int) -> None:
    made = Sequence(seed)
    text = f"{HEADER}.visible .entry k({PARAMETERS}) {{{START}" + "\n".join(made.text) + "\nret;\n}\n"
    out, buffers = np.zeros((10, *SHAPE, 16), np.uint8), [np.zeros(512, np.uint8) for _ in range(2)]
    kernel = ptxemu.load(text).kernel()
    arguments = (np.concatenate([np.zeros(0, np.uint8), *made.tables]), out, *buffers)
    if made.error is not None:
        kind, block, thread, address = made.error
        with refuses(kind) as caught:
            kernel.launch(BLOCKS, THREADS, arguments)
        assert (caught.value.block, caught.value.lane) == ((block, 0, 0), thread)
        assert caught.value.address == address
        return
    kernel.launch(BLOCKS, THREADS, arguments)
    for number, wanted in enumerate(made.wanted):
        assert (out[number] == wanted).all(), f"load {number} of\n{text}"
    assert (np.array(buffers) == made.contents["global"]).all()


# --- atomics ----------------------------------------------------------------------------------------------------------

CELLS = 10
# Each case of tests.cases has an address of its own; here many lanes share one.
ATOMICS = table_of("memory", "atomics")
# Sums that depend on their order, subnormal numbers among them; cells begin as such, too.
WORDS = {
    "add.f32": [0x3F800000, 0x4B800000, 0xBF800001, 0x3DCCCCCD, 0x200000, 0x80200000, 0x800000, 0x80C00000, 1 << 31]
}
WORDS["add.f64"] = [0x3FF00000, 0x43400000, 0xBFF00000, 0xC3500001, 1]  # of both halves of a word
WORDS["add.noftz.f16x2"] = [0x3C006800, 0x68003C01, 0xB8000001, 0x80018400, 0x0400A800]


def summed(old: int, b: int, kind: str, flat: Callable[[float], float] = float) -> int:
    """A sum of floats, or of pairs, in their words."""
    word = np.uint64 if kind == "f8" else np.uint32
    x, y = ([flat(each) for each in np.array([given], word).view(kind).tolist()] for given in (old, b))
    total = (np.array(x, kind) + np.array(y, kind)).tolist()
    return int(np.array([flat(each) for each in total], kind).view(word)[0])


def rule_of(operation: str, space: str) -> Callable[[int, int, int], int]:
    """What an atomic leaves of a word, by the ISA: (what was there, its operands) -> what is there then."""
    name, *_, kind = operation.split(".")
    if "f" in kind:
        flat = flush if (kind, space) == ("f32", "global") else float
        return lambda old, b, c: summed(old, b, {"f64": "f8", "f32": "f4", "f16x2": "f2"}[kind], flat)
    top = (1 << int(kind[1:])) - 1

    def signed(word: int) -> int:
        return word - (top + 1) * (kind[0] == "s" and word > top >> 1)

    return {
        "add": lambda old, b, c: old + b & top,
        "exch": lambda old, b, c: b,
        "cas": lambda old, b, c: c if old == b else old,
        "inc": lambda old, b, c: 0 if old >= b else old + 1,
        "dec": lambda old, b, c: old - 1 if 0 < old <= b else b,
        "min": lambda old, b, c: min(old, b, key=signed),
        "max": lambda old, b, c: max(old, b, key=signed),
        "and": lambda old, b, c: old & b,
        "or": lambda old, b, c: old | b,
        "xor": lambda old, b, c: old ^ b,
    }[name]


ATOMIC = text_of("memory", "atomics")


@pytest.mark.parametrize("operation", ATOMICS)
@pytest.mark.parametrize(("space", "generic", "returns"), [("global", False, True), ("shared", False, True),
                                                          ("shared", True, True), ("global", True, False)])  # fmt: skip
def test_lanes_that_share_an_address_are_served_in_order(
    operation: str, space: str, generic: bool, returns: bool
) -> None:
    rng, shape, size = np.random.default_rng(len(operation)), (2, 64), 8 if "64" in operation else 4
    cells, which = rng.integers(0, 6, CELLS, dtype=f"u{size}"), rng.integers(0, int(rng.choice([2, CELLS])), shape)
    returns = returns or operation[:2] in {"ex", "ca"}
    mask = rng.random(shape) < 0.7
    operands = rng.choice(WORDS.get(operation, [0, 1, 2, 3, 5, 2**31, 2**32 - 1]), (2, *shape)).astype(np.uint32)
    rule = rule_of(operation, space)
    base = "mov.u64 %rd6, %rd3;" if space == "global" else "mov.u64 %rd6, tile;"
    base += "cvta.shared.u64 %rd6, %rd6;" if generic and space == "shared" else ""
    first, second, found, held = ("%rd10", "%rd11", "%rd12", "%rd13") if size == 8 else ("%r4", "%r5", "%r7", "%r6")
    opcode = f"{'atom' if returns else 'red'}{'' if generic else '.' + space}.{operation}"
    opcode += f" {found}, [%rd5], {first}" if returns else f" [%rd5], {first}"
    text = ATOMIC.replace("BASE", base).replace("OPCODE", opcode + f", {second}" * operation.startswith("cas"))
    text = text.replace("SAVE", f"@%p1 st.global.BITS [%rd2], {found};" * returns).replace("CELL", held)
    text = text.replace("BITS", f"b{8 * size}").replace("SIZE", str(size)).replace("LATER", str(128 * size))
    table = np.stack([which, mask, *operands], axis=-1).astype(np.uint32)
    if size == 8:
        operands = operands.astype(np.uint64) | operands[::-1].astype(np.uint64) << np.uint64(32)
    old, given_cells = np.zeros(256, cells.dtype), cells.copy()
    parameters = ".param .u64 table, .param .u64 old, .param .u64 cells"
    kernel = program(text, declarations=".shared .align 16 .b8 tile[256];", parameters=parameters)
    kernel.launch(2, 64, (table, old, given_cells))
    memory, wanted = np.tile(cells, (2 if space == "shared" else 1, 1)), np.zeros(shape, cells.dtype)
    for place in zip(*np.nonzero(mask), strict=True):
        cell = (place[0] if space == "shared" else 0, which[place])
        wanted[place] = memory[cell]
        memory[cell] = rule(int(memory[cell]), *(int(each[place]) for each in operands))
    assert not returns or (old[:128].reshape(shape) == wanted).all()
    left = given_cells[None] if space == "global" else old[128:].reshape(shape)[:, :CELLS]
    assert (left == memory).all()


def test_sums_in_global_memory_flush_subnormal_numbers() -> None:
    body = "mov.u32 %r1, 0x00200000; st.shared.u32 [tile], %r1; st.global.u32 [%rd0], %r1; mov.b32 %f1, %r1;"
    shared = body + "atom.shared.add.f32 %f2, [tile], %f1; ld.shared.u32 %r2, [tile]; st.global.u32 [%rd0], %r2;"
    tile = ".shared .align 4 .b8 tile[4];"
    assert run(body + "red.add.f32 [%rd0], %f1;", 1, declarations=tile)[0, 0] == 0  # a generic address
    assert run(shared, 1, declarations=tile)[0, 0] == 0x00400000
    sums = [(0xC00000, 0x200000, 0xC00000), (0xC00000, 0x80800000, 0x80800000), (0x200000, 0x800000, 0x1000000)]
    for old, term, total in sums:  # two lanes at one address: of what was there, the term and the sum one is subnormal
        several = f"ld.param.u64 %rd1, [out]; st.global.u32 [%rd1], {old}; mov.b32 %f1, {term};"
        assert run(several + "red.global.add.f32 [%rd1], %f1;", 2)[0, 0] == total


# --- what observers hear, and buffers ---------------------------------------------------------------------------------


WORD = ".const .u32 word = 7;"


class Heard(Observer):
    """(space, kind, bytes, number of active lanes or None) of each access."""

    def __init__(self) -> None:
        self.accesses: list[tuple[str, str, int, int | None]] = []

    def access(self, step: Step, access: Access) -> None:
        lanes = None if access.mask is None else int(np.broadcast_to(access.mask, (1, 1, 32)).sum())
        self.accesses.append((access.space, access.kind, access.width, lanes))


def test_observers_hear_of_global_and_shared_memory_only() -> None:
    heard = Heard()
    body = """mov.u32 %r1, tile; mov.u64 %rd2, frame; setp.lt.u32 %p1, %r0, 5;
    mov.u64 %rd5, tile; cvta.shared.u64 %rd5, %rd5; selp.u64 %rd5, %rd0, %rd5, %p1; st.b32 [%rd5], 7;
    atom.add.u32 %r7, [%rd5], 1; st.shared.b64 [%r1], %rd5; @%p1 atom.shared.add.u64 %rd6, [%r1], 1;
    @%p1 st.global.L1::no_allocate.b32 [%rd0], %r0; st.shared.v4.b32 [%r1], {%r0, %r0, 7, -1}; st.local.b32 [%rd2], %r0;
    ld.local.b32 %r3, [%rd2]; ld.param.u32 %r4, [out+4]; ld.shared.v2.b32 {_, %r5}, [%r1+8]; ld.const.b32 %r6, [word];
    atom.shared.add.u32 %r7, [%r1], 1; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r8}, [%r1]; st.global.u32 [%rd0], %r5;
    membar.gl; fence.acq_rel.gpu; prefetch.global.L2 [%rd0]; prefetchu.L1 [%rd0]; @%p2 ld.global.u32 %r9, [%rd0];"""
    declarations = ".shared .align 16 .b8 tile[64]; .local .align 8 .b8 frame[16];"
    found = run("setp.lt.u32 %p2, %r0, 0;" + body, declarations=declarations, module=WORD, observers=heard)
    assert (found == 0xFFFFFFFF).all()
    mixed = [(space, kind, 4, lanes) for kind in ("st", "atom") for space, lanes in (("global", 5), ("shared", 27))]
    assert heard.accesses == [
        *(*mixed, ("shared", "st", 8, None), ("shared", "atom", 8, 5)),
        *(("global", "st", 4, 5), ("shared", "st", 16, None), ("shared", "ld", 8, None), ("shared", "atom", 4, None)),
        *(("shared", "ldmatrix", 16, None), ("global", "st", 4, None)),
    ]


def test_a_large_array_is_worked_in_and_a_sparse_one_stays_sparse() -> None:
    size = 1 << 38  # 256 GiB of address space, which copying would fill
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    array = np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=np.uint8)
    array[5 << 30] = 7
    text = f"ld.param.u64 %rd0, [out]; add.s64 %rd1, %rd0, {5 << 30}; ld.global.u8 %r1, [%rd1];"
    text += f"add.s64 %rd2, %rd0, {size - 4}; st.global.u32 [%rd2], %r1;"
    program(text).launch(1, 1, (array,))
    assert array[-4:].tolist() == [7, 0, 0, 0]
    with refuses("out-of-bounds", "4 bytes past the end of the nearest buffer, `array 0: uint8"):
        program(text + "ld.global.u32 %r1, [%rd2+4];").launch(1, 1, (array,))


def test_a_program_that_uses_every_space() -> None:
    """Constants, initialised variables with addresses, local memory at an index of the thread, shared memory."""
    body = text_of("memory", "every_space")
    module = """.const .align 4 .u32 table[16] = {0,10,20,30,40,50,60,70,80,90,100,110,120,130,140,150};
    .global .align 4 .u32 seven = 7;"""
    found = run(body, 64, 2, declarations=".shared .align 4 .b8 mail[256];", module=module)
    thread = np.arange(64) ^ 1
    assert (found == thread + 100 + thread % 16 * 10 + 7).all()
    module = """.global .align 4 .u32 numbers[4] = {1, 20, 300, 4000};
    .global .align 8 .u64 places[3] = {numbers+8, generic(numbers)+4, skip};
    .func skip() { ret; }"""
    body = """mov.u64 %rd2, places; ld.global.u64 %rd3, [%rd2]; ld.global.u32 %r1, [%rd3]; ld.global.u64 %rd3, [%rd2+8];
    ld.global.u32 %r2, [%rd3]; add.u32 %r1, %r1, %r2; ld.global.u64 %rd3, [%rd2+16]; mov.u64 %rd4, skip;
    setp.eq.u64 %p1, %rd3, %rd4; @%p1 add.u32 %r1, %r1, 1; st.global.u32 [%rd0], %r1;"""
    assert (run(body, module=module) == 321).all()
    body = "mov.u64 %rd2, out; cvta.param.u64 %rd3, %rd2; ld.u64 %rd4, [%rd3]; cvt.u32.u64 %r1, %rd4;"
    body += "ld.param.u32 %r2, [out]; sub.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r0;"
    assert (run(body + "st.global.u32 [%rd0], %r1;") == np.arange(32)).all()
    with refuses("unsupported", "store to the kernel's parameters"):
        run(body + "st.u32 [%rd3], %r1;")


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("body", "kind", "says"), table_of("memory", "bad_addresses"))
def test_addresses_that_may_not_be(body: str, kind: str, says: str) -> None:
    declarations = ".shared .align 16 .b8 tile[256]; .local .align 8 .b8 own[16];"
    with refuses(kind, says):
        run("mov.u32 %r9, tile; mov.u64 %rd9, own;" + body, declarations=declarations)


def test_a_launch_without_arrays_has_no_buffer() -> None:
    with refuses("out-of-bounds", "no buffer"):
        program("ld.global.u32 %r1, [64];", parameters="").launch(1, 1)


COPY = "mov.b32 %r10, tile; ld.param.u64 %rd5, [out]; @%p1 cp.async.cg.shared.global [%r10+16], [%rd5], 16;"


@pytest.mark.parametrize(("offset", "copied"), [(12, False), (16, True), (28, True), (32, False)])
def test_a_read_of_bytes_in_flight_names_the_copy(offset: int, copied: bool) -> None:
    body = "setp.eq.u32 %p2, %r60, 1; setp.eq.and.u32 %p1, %r0, 3, %p2;"  # in the second block alone
    body += f"\n{COPY}\n@%p2 ld.shared.u32 %r11, [%r10+{offset}];"
    with refuses("uninitialised", "4-byte read of shared memory not written before") as caught:
        run(body, 32, 2, declarations=".shared .align 16 .b8 tile[256];")
    line = caught.value.line
    assert (f"which the cp.async of line {line - 1} is still to write" in str(caught.value)) == copied
    assert ("wait for the copy with cp.async.wait_group" in str(caught.value)) == copied
