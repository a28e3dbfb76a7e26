"""Cases of moves, loads and atomics.

Copies keep bits, vectors are packed lowest first, addresses come back. What a thread stores it loads, at every width,
in every space; each thread has 16 bytes of its own, and loads begin inside them, so that the order of bytes shows. Of
atomics: what one thread finds and leaves at an address that nobody else uses. How threads that meet at one address take
turns is left open by PTX; sums over a whole CTA are the same in any order. The harness leaves the global address of the
thread's element of the last input in %at2.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tests.cases.harness import Case, edge, given, named, pairs, plain, sample, text_of, triples
from tests.cases.reference_float import flush
from tests.cases.reference_int import column

from ptxemu.values import DTYPES, Array

SCALARS = ("u16", "s16", "u32", "s32", "f32", "u64", "s64", "f64", "b16", "b32", "b64")
LITERALS = (
    ("f32", "0f3FC00000", 0x3FC00000), ("b32", "0f3FC00000", 0x3FC00000), ("b32", "-2", 0xFFFFFFFE),
    ("u16", "65535", 0xFFFF), ("s64", "-9223372036854775808", 1 << 63),
    ("f64", "0d7FF0000000000000", 0x7FF0000000000000), ("b64", "0x0123456789ABCDEF", 0x0123456789ABCDEF),
)  # fmt: skip


def copies() -> Iterator[Case]:
    for kind in SCALARS:
        yield plain(f"mov.{kind}", named(kind, edge(kind, 64)), kind, edge(kind, 64))
    yield plain("mov.pred", named("pred", sample("pred", 64)), "pred", sample("pred", 64))
    for kind, literal, bits in LITERALS:
        wanted = np.full(64, bits, np.uint64).astype(f"u{DTYPES[kind].itemsize}").view(DTYPES[kind])
        inputs, text = named("u32", np.zeros(64, np.uint32)), f"mov.{kind} d, {literal};"
        yield given(f"mov.{kind}", text, inputs, {"d": (kind, wanted)}, note="immediate")


def vectors() -> Iterator[Case]:
    for kind, part, count in (("b32", "b16", 2), ("b64", "b32", 2), ("b64", "b16", 4)):
        parts = named(part, *(np.roll(edge(part, 64), 11 * place) for place in range(count)))
        rows, bits = zip(*(array for _, array in parts.values()), strict=True), int(part[1:])
        joined = [sum(int(x) << (bits * i) for i, x in enumerate(row)) for row in rows]
        whole, vector = {"w": (kind, np.array(joined, DTYPES[kind]))}, "{" + ", ".join(parts) + "}"
        yield given(f"mov.{kind}", f"mov.{kind} w, {vector};", parts, whole)
        yield given(f"mov.{kind}", f"mov.{kind} {vector}, w;", whole, parts)
    a, text = edge("f32", 64), ".reg .b16 low;\nmov.b32 {low, d}, a;\nmov.b32 {_, d}, a;"
    wanted = (a.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    yield given("mov.b32", text, named("f32", a), {"d": ("b16", wanted)}, note="bits of a float; a sink")
    a, text = edge("f64", 64), ".reg .b32 low;\nmov.b64 {low, d}, a;"
    wanted = (a.view(np.uint64) >> np.uint64(32)).astype(np.uint32)
    yield given("mov.b64", text, named("f64", a), {"d": ("b32", wanted)}, note="bits of a float")


def special_registers() -> Iterator[Case]:
    lanes = np.arange(256, dtype=np.uint32)  # two CTAs of 128 threads
    equal = np.uint64(1) << (lanes % 32).astype(np.uint64)
    below, every = equal - np.uint64(1), np.uint64(0xFFFFFFFF)
    values: dict[str, Array | int] = {
        "%tid.x": lanes % 128, "%tid.y": 0, "%ntid.x": 128, "%ntid.z": 1, "%ctaid.x": lanes // 128, "%ctaid.z": 0,
        "%nctaid.x": 2, "%nctaid.y": 1, "%laneid": lanes % 32, "%lanemask_eq": equal, "%lanemask_lt": below,
        "%lanemask_le": below | equal, "%lanemask_gt": every ^ below ^ equal, "%lanemask_ge": every ^ below,
        "%dynamic_smem_size": 0, "WARP_SZ": 32,
    }  # fmt: skip
    for name, value in values.items():
        wanted = np.broadcast_to(value, 256).astype(np.uint32)
        yield given("mov.u32", f"mov.u32 d, {name};", named("u32", lanes), {"d": ("u32", wanted)}, note=name)


def addresses() -> Iterator[Case]:
    offset = np.arange(64, dtype=np.uint64) * 4
    inputs, zero = named("u64", offset), {"d": ("u64", offset * 0)}
    for space in ("shared", "local"):
        text = (
            f".{space} .align 16 .b8 box[512];\n.reg .b64 start, generic, back;\n.reg .pred yes;\n"
            f"mov.u64 start, box;\nadd.u64 start, start, a;\ncvta.{space}.u64 generic, start;\n"
            f"cvta.to.{space}.u64 back, generic;\nsub.u64 d, back, start;\n"
        )
        for opcode in (f"cvta.{space}.u64", f"cvta.to.{space}.u64"):
            yield given(opcode, text, inputs, zero)
        for asked in ("shared", "local", "global"):
            query = f"{text}isspacep.{asked} p, generic;\nmov.u64 d, 0;"
            yield given(f"isspacep.{asked}", query, inputs, zero | {"p": ("pred", np.full(64, asked == space))})
    text = (
        ".shared .align 4 .b32 word;\n.reg .b64 generic;\ncvta.shared::cta.u64 generic, word;\n"
        "isspacep.shared::cta p, generic;\ncvta.to.shared::cta.u64 generic, generic;"
    )
    for opcode in ("cvta.shared::cta.u64", "cvta.to.shared::cta.u64", "isspacep.shared::cta"):
        yield given(opcode, text, inputs, {"p": ("pred", np.full(64, True))})
    for space in ("global", "const"):
        text = f".reg .b64 generic, back;\ncvta.{space}.u64 generic, %at2;\ncvta.to.{space}.u64 back, generic;\n"
        for opcode in (f"cvta.{space}.u64", f"cvta.to.{space}.u64"):
            yield given(opcode, f"{text}sub.u64 d, back, %at2;", inputs, zero)
    text = ".reg .b64 generic;\ncvta.param.u64 generic, a;\ncvta.to.param.u64 d, generic;"
    for opcode in ("cvta.param.u64", "cvta.to.param.u64"):
        yield given(opcode, text, inputs, {"d": ("u64", offset)})


N = 256  # two CTAs of 128 threads
# Leaves the address of the thread's 16 bytes in mine: in its own space, or generic.
PLACES = {
    "shared": """.shared .align 16 .b8 box[2048]; .reg .b32 mine, turn;
        mov.u32 turn, %tid.x; mov.u32 mine, box; mad.lo.u32 mine, turn, 16, mine;""",
    "local": ".local .align 16 .b8 box[32]; .reg .b64 mine; mov.u64 mine, box; add.u64 mine, mine, 16;",
    "": """.shared .align 16 .b8 box[2048]; .reg .b64 mine; .reg .b32 turn, low;
        mov.u32 turn, %tid.x; mov.u32 low, box; mad.lo.u32 low, turn, 16, low;
        cvt.u64.u32 mine, low; cvta.shared.u64 mine, mine;""",
    "generic local": ".local .align 16 .b8 box[16]; .reg .b64 mine; mov.u64 mine, box; cvta.local.u64 mine, mine;",
}
WORDS = [np.roll(edge("u32", N), 37 * place) for place in range(4)]  # four 32-bit words per thread
LOADED = {("u8", 5): "s32", ("s8", 7): "s32", ("s8", 0): "s32", ("u16", 6): "u16", ("s16", 10): "s32",
           ("u32", 12): "u32", ("s64", 8): "s64", ("f32", 4): "f32", ("f64", 0): "f64"}  # fmt: skip
VECTORS = (("u16", 4, 8), ("s16", 2, 4), ("u32", 2, 8), ("b32", 4, 0), ("b64", 2, 0), ("f32", 2, 0), ("f64", 2, 0))


def number(start: int, kind: str) -> Array:
    """The number of a type at byte `start` of each thread's words, by Python's own reading of bytes."""
    size = DTYPES[kind].itemsize
    whole = (b"".join(int(word).to_bytes(4, "little") for word in row) for row in zip(*WORDS, strict=True))
    raw = [each[start : start + size] for each in whole]
    if kind[0] == "f":
        return np.frombuffer(b"".join(raw), DTYPES[kind])
    return np.array([int.from_bytes(piece, "little", signed=kind[0] == "s") for piece in raw], DTYPES[kind])


def loads() -> Iterator[Case]:
    for place, prologue in PLACES.items():
        space = f".{place}" if place in {"shared", "local"} else ""
        for (kind, start), register in LOADED.items():
            text = f"{prologue}\nst{space}.v4.u32 [mine], {{a, b, c, d}};\nld{space}.{kind} x, [mine+{start}];"
            wanted = number(start, kind).astype(DTYPES[register])
            results = {"x": (register, wanted)}
            yield given(f"ld{space}.{kind}", text, named("u32", *WORDS), results, note=place or "generic")
    store = "st.shared.v2.u32 [mine+8], {c, d};\nst.shared.v2.u32 [mine], {a, b};"
    for kind, count, start in VECTORS:
        results = {f"x{i}": (kind, number(start + i * DTYPES[kind].itemsize, kind)) for i in range(count)}
        opcode = f"ld.shared.v{count}.{kind}"
        text = f"{PLACES['shared']}\n{store}\n{opcode} {{{', '.join(results)}}}, [mine+{start}];"
        yield given(opcode, text, named("u32", *WORDS), results)
    first, value = edge("u32", N), np.roll(edge("u32", N), 91)
    narrow = ("u8", 1), ("s8", 3), ("b16", 2), ("u16", 0)
    for kind, start in narrow:  # takes the low bits, leaves its neighbours alone
        left = first.copy()
        size = DTYPES[kind].itemsize
        left.view(np.uint8).reshape(N, 4)[:, start : start + size] = value.view(np.uint8).reshape(N, 4)[:, :size]
        text = f"\nst.shared.u32 [mine], a;\nst.shared.{kind} [mine+{start}], b;\nld.shared.u32 x, [mine];"
        inputs, results = named("u32", first, value), {"x": ("u32", left)}
        yield given(f"st.shared.{kind}", PLACES["shared"] + text, inputs, results)


BOX = """.shared .align 16 .b8 box[1024]; .reg .b32 mine, turn;
    mov.u32 turn, %tid.x; mov.u32 mine, box; mad.lo.u32 mine, turn, 8, mine;"""
RULES: dict[str, Callable[[int, int], int]] = {
    "add": lambda old, b: old + b,
    "min": min,
    "max": max,
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "exch": lambda _, b: b,
    "inc": lambda old, b: 0 if old >= b else old + 1,
    "dec": lambda old, b: b if old == 0 or old > b else old - 1,
}  # also of reductions by bulk copies and of ``red.async``
KINDS = {"add": "u32 s32 u64", "min": "u32 s32 u64 s64", "max": "u32 s32 u64 s64", "inc": "u32", "dec": "u32",
         "and": "b32 b64", "or": "b32 b64", "xor": "b32 b64", "exch": "b32 b64"}  # fmt: skip


def case(operation: str, kind: str, space: str, left: Array, m: Array, *operands: Array, returns: bool = True) -> Case:
    """`operands` are b (and c), `m` is what memory holds; `left` is what it holds afterwards."""
    inputs = {name: (kind, array) for name, array in zip("bc", operands, strict=False)}
    register = kind.replace("f16x2", "b32").replace("f16", "b16")
    opcode = f"{'atom' if returns else 'red'}.{space}.{operation}.{kind}"
    at = "mine" if space == "shared" else "%at2"
    begin = f"{BOX}\nst.shared.{register} [mine], m;\n" if space == "shared" else ""
    text = f"{begin}{opcode} {'old, ' * returns}[{at}], {', '.join(inputs)};\nld.{space}.{register} new, [{at}];"
    results = {"old": (kind, m), "new": (kind, left)} if returns else {"new": (kind, left)}
    return given(opcode, text, inputs | {"m": (kind, m)}, results)


def integers() -> Iterator[Case]:
    for name, kinds in KINDS.items():
        for kind in kinds.split():
            m, b = pairs(kind, limit=512)
            left = column([RULES[name](int(x), int(y)) for x, y in zip(m, b, strict=True)], kind)
            yield case(name, kind, "shared", left, m, b)
            yield case(name, kind, "global", left, m, b)
            if name != "exch":
                yield case(name, kind, "global", left, m, b, returns=False)
    for kind in ("b16", "b32", "b64"):
        m, b, c = triples(kind, limit=512)
        b = np.where(np.arange(len(b)) % 3 == 0, m, b)
        for space in ("shared", "global"):
            yield case("cas", kind, space, np.where(m == b, c, m), m, b, c)


def added(kind: str, m: Any, b: Any) -> Array:
    with np.errstate(all="ignore"):
        return np.array([x + y for x, y in zip(m, b, strict=True)], DTYPES[kind])


def floats() -> Iterator[Case]:
    for kind in ("f32", "f64", "f16"):
        m, b = pairs(kind, limit=512)
        operation = "add.noftz" if kind == "f16" else "add"
        sums = added(kind, m, b)
        yield case(operation, kind, "shared", sums, m, b)
        if kind == "f32":  # in global memory subnormal numbers are flushed
            flat = [np.array([flush(x) for x in each.tolist()], np.float32) for each in (m, b)]
            sums = np.array([flush(x) for x in added(kind, *flat).tolist()], np.float32)
        yield case(operation, kind, "global", sums, m, b)
    m, b = pairs("f16x2", limit=512)
    sums = added("f16", m.view(np.float16), b.view(np.float16)).view(np.uint32)
    for space in ("shared", "global"):
        yield case("add.noftz", "f16x2", space, sums, m, b)


def whole_cta() -> Case:
    """Every thread of a CTA of 128 adds to one word, which all read after a barrier."""
    a = edge("u32", 256)
    totals = [sum(int(x) for x in a[first : first + 128]) % 2**32 for first in (0, 128)]
    text = text_of("whole_cta")
    results = {"total": ("u32", np.repeat(np.array(totals, np.uint32), 128))}
    return given("red.shared.add.u32", text, named("u32", a), results)


CASES = {
    "atomics": [*integers(), *floats(), whole_cta()],
    "loads": [*loads()],
    "moves": [*copies(), *vectors(), *special_registers(), *addresses()],
}
