"""Cases of `ptxemu.isa.tensor_copies`: boxes of tensors into shared memory and back, as bytes.

Each CTA of 128 threads copies one box, whose coordinates are inputs; then every thread shows some words of shared
memory (or of the tensor). The reference, `boxes`, walks the box element by element.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.cases.boxes import SIZES, Shape
from tests.cases.harness import CTA, Case

from ptxemu.values import DTYPES, Array

CASES: list[Case] = []
CTAS = 4
N = CTAS * CTA
TENSOR_BYTES = 4 * N
NAN = {2: 0x7FF7, 4: 0x7FF77FF7, 8: 0x7FF77FF77FF77FF7}


def tensor() -> Array:
    """The tensor's words: every byte depends on its place, and no word is a NaN or an infinity of any type."""
    place = np.arange(N, dtype=np.uint64)
    words = (place * np.uint64(2654435761) + np.uint64(97)) & np.uint64(0xFFFFFFFF)
    return (words & np.uint64(0x3BFF3BFF)).astype(np.uint32)


def _inputs(shape: Shape, words: Array) -> dict[str, tuple[str, Array]]:
    starts = np.array(shape.starts, dtype=np.int32)
    along = {
        f"c{axis}": ("s32", np.repeat(starts[np.arange(CTAS) % len(starts), axis], CTA))
        for axis in range(len(shape.dims))
    }
    return {**along, "words": ("u32", words)}


SETUP = """.shared .align 1024 .b8 box[{bytes}]; .shared .align 8 .b64 bar;
.reg .b32 at, to, mb, turn; .reg .pred one, ok;
mov.u32 at, box; mov.u32 mb, bar; mov.u32 turn, %tid.x; setp.eq.u32 one, turn, 0; mad.lo.u32 to, turn, 4, at;
@one mbarrier.init.shared::cta.b64 [mb], 1;
@one fence.mbarrier_init.release.cluster;
"""
WAIT = """again: mbarrier.try_wait.parity.shared::cta.b64 ok, [mb], 0;
@!ok bra again;
"""


def _coordinates(shape: Shape) -> str:
    return "{" + ", ".join(f"c{axis}" for axis in range(len(shape.dims))) + "}"


def load(shape: Shape, destination: str = "shared::cluster", tile: str = ".tile", hint: str = "") -> Case:
    """Every thread shows the words of shared memory at 4 times its number, 512 bytes apart; unfilled ones are 5."""
    opcode = f"cp.async.bulk.tensor.{len(shape.dims)}d.{destination}.global{tile}.mbarrier::complete_tx::bytes{hint}"
    rounds = range(0, shape.shared, 4 * CTA)
    fill = "\n".join(f"st.shared.u32 [to+{place}], 5;" for place in rounds)
    policy = "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;" if hint else ""
    text = (
        f"{SETUP.format(bytes=shape.shared)}.reg .b64 policy; {policy}\n{fill}\nfence.proxy.async;\nbar.sync 0;\n"
        f"@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [mb], {shape.nbytes};\n"
        f"@one {opcode} [at], [map, {_coordinates(shape)}], [mb]{', policy' if hint else ''};\n{WAIT}"
        + "\n".join(f"ld.shared.u32 d{place}, [to+{place}];" for place in rounds)
    )
    words = tensor()
    content, images = words.tobytes(), []
    for cta in range(CTAS):
        image = bytearray(np.full(shape.shared // 4, 5, dtype=np.uint32).tobytes())
        for source, target in shape.elements(shape.starts[cta % len(shape.starts)]):
            nothing = (NAN[shape.size] if shape.fill == "nan" else 0).to_bytes(shape.size, "little")
            image[target : target + shape.size] = nothing if source is None else content[source : source + shape.size]
        images.append(np.frombuffer(bytes(image), dtype=np.uint32).reshape(-1, CTA))
    outputs = {f"d{place}": "u32" for place in rounds}
    expected = {f"d{place}": np.concatenate([image[place // (4 * CTA)] for image in images]) for place in rounds}
    return Case(
        opcode,
        text,
        _inputs(shape, words),
        outputs,
        expected,
        note=shape.note,
        target="sm_90",
        version="8.6",
        maps={"map": ("words", shape.fields())},
    )


def combined(name: str, shape: Shape, old: bytes, new: bytes) -> bytes:
    """What a reduction leaves, in Python's own arithmetic (of halfs: NumPy's, rounded once)."""
    if shape.kind in {"f16", "f32"}:
        dtype = DTYPES[shape.kind]
        a, b = np.frombuffer(old, dtype)[0], np.frombuffer(new, dtype)[0]
        value = {"add": a + b, "min": min(a, b), "max": max(a, b)}[name]
        return bytes(np.array(value, dtype=dtype).tobytes())
    signed = shape.kind[0] == "s"
    a, b = (int.from_bytes(each, "little", signed=signed) for each in (old, new))
    value = {
        "add": lambda: a + b,
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
        "and": lambda: a & b,
        "or": lambda: a | b,
        "xor": lambda: a ^ b,
        "inc": lambda: 0 if a >= b else a + 1,
        "dec": lambda: b if a == 0 or a > b else a - 1,
    }[name]()
    return (value % (1 << 8 * shape.size)).to_bytes(shape.size, "little")


def store(shape: Shape, name: str = "", tile: str = ".tile") -> Case:
    """Shared memory goes into the tensor (`name`: is combined with it); every thread shows its word of the tensor.

    Each CTA's box must lie in its own quarter of the tensor, whose words its threads show.
    """
    dims = f"{len(shape.dims)}d"
    opcode = f"cp.async.bulk.tensor.{dims}.global.shared::cta{tile}.bulk_group"
    if name:
        opcode = f"cp.reduce.async.bulk.tensor.{dims}.global.shared::cta.{name}{tile}.bulk_group"
    rounds = range(0, shape.shared, 4 * CTA)
    values = {place: np.roll(tensor(), 131 + place) for place in rounds}
    text = (
        f"{SETUP.format(bytes=shape.shared)}"
        + "\n".join(f"st.shared.u32 [to+{place}], v{place};" for place in rounds)
        + f"\nfence.proxy.async.shared::cta;\nbar.sync 0;\n@one {opcode} [map, {_coordinates(shape)}], [at];\n"
        "@one cp.async.bulk.commit_group;\n@one cp.async.bulk.wait_group 0;\nbar.sync 0;\nmov.u32 d, 0;\n"
    )
    words = tensor()
    image = bytearray(words.tobytes())
    for cta in range(CTAS):
        mine = np.concatenate([values[place][cta * CTA : (cta + 1) * CTA] for place in rounds]).tobytes()
        for target, source in shape.elements(shape.starts[cta % len(shape.starts)], whole=not name):
            if target is not None:
                if target // (4 * CTA) != cta:
                    raise ValueError(f"{shape.note}: byte {target} is not CTA {cta}'s")
                new = mine[source : source + shape.size]
                old = bytes(image[target : target + shape.size])
                image[target : target + shape.size] = combined(name, shape, old, new) if name else new
    text += "ld.global.u32 d, [%at2];"  # the address of the thread's element of the last input
    inputs = {f"v{place}": ("u32", value) for place, value in values.items()} | _inputs(shape, words)
    return Case(
        opcode,
        text,
        inputs,
        {"d": "u32"},
        {"d": np.frombuffer(bytes(image), dtype=np.uint32)},
        note=shape.note,
        target="sm_90",
        version="8.6",
        maps={"map": ("words", shape.fields())},
    )


def quarters(*starts: int) -> tuple[tuple[int, ...], ...]:
    """The coordinates of a box in each quarter of a tensor of 64 rows: the last axis moves on by 16."""
    return tuple((*starts[:-1], starts[-1] + 16 * cta) for cta in range(CTAS))


# 2 KiB as 64 rows of 32 bytes, unless the shape says otherwise.
FLAT = [
    Shape("u32", (512,), (), (128,), ((0,), (4,), (100,), (384,)), "one axis"),
    Shape("u8", (2048,), (), (256,), ((0,), (16,), (48,), (1792,)), "one axis of bytes"),
    Shape("u16", (500,), (), (64,), ((-64,), (-8,), (472,), (504,)), "one axis, before and behind the tensor"),
    Shape("u64", (256,), (), (32,), ((0,), (6,), (-2,), (250,)), "one axis of 64-bit numbers"),
    Shape("f32", (510,), (), (64,), ((-4,), (480,), (1000,), (-2147483648,)), "NaN outside", fill="nan"),
]
ROWS = [
    Shape("u32", (8, 64), (32,), (8, 16), quarters(0, 0), "two axes, whole rows"),
    Shape("u32", (8, 64), (32,), (4, 16), quarters(4, 0), "a part of the rows"),
    Shape("u16", (16, 64), (32,), (8, 8), ((8, 60), (-8, -4), (8, 30), (16, 0)), "corners outside"),
    Shape("f16", (13, 60), (32,), (16, 8), ((0, 0), (8, 56), (-8, 3), (8, -7)), "rows longer than the tensor's"),
    Shape("bf16", (16, 64), (32,), (16, 8), ((-8, 0), (0, 60), (8, -8), (0, 8)), "NaN outside, bf16", fill="nan"),
    Shape("f16", (16, 64), (32,), (8, 16), ((8, 50), (-8, 0), (0, 64), (16, 4)), "NaN outside, f16", fill="nan"),
    Shape("f64", (4, 64), (32,), (4, 8), ((-2, 0), (2, 60), (0, -1), (0, 8)), "NaN outside, f64", fill="nan"),
    Shape("u8", (30, 60), (32,), (32, 8), ((0, 0), (16, 8), (-16, 56), (16, 1)), "bytes, dims no multiple of 16"),
    Shape("s64", (4, 64), (32,), (2, 16), ((0, 0), (2, 16), (2, 60), (-2, -3)), "64-bit numbers"),
    Shape("u32", (8, 32), (64,), (8, 16), ((0, 0), (4, 16), (0, 24), (-4, 8)), "rows apart by more than their length"),
    Shape("u32", (8, 32), (0,), (8, 4), ((0, 0), (0, 8), (4, 16), (0, 31)), "one row again and again: stride 0"),
    Shape("s32", (64, 8), (256,), (64, 4), ((0, 0), (0, 4), (32, 2), (-32, 6)), "long rows"),
]
DEEP = [
    Shape("u16", (8, 16, 8), (16, 256), (8, 4, 4), ((0, 0, 0), (0, 12, 4), (0, -2, 6), (-8, 3, -1)), "three axes"),
    Shape("u32", (4, 8, 8), (256, 16), (4, 4, 4), ((0, 0, 0), (0, 4, 4), (4, 6, 1), (0, 0, -3)), "axes exchanged"),
    Shape(
        "f16", (8, 4, 8, 4), (16, 64, 512), (8, 2, 4, 2),
        ((0, 0, 0, 0), (0, 2, 4, 2), (0, 3, 6, 3), (-8, -1, -1, -1)), "four axes",
    ),
    Shape(
        "u8", (16, 2, 4, 4, 4), (16, 32, 128, 512), (16, 2, 2, 2, 2),
        ((0, 0, 0, 0, 0), (0, 1, 2, 3, 2), (0, 0, -1, 2, 3), (-16, 0, 1, 1, 1)), "five axes",
    ),
    Shape(
        "bf16", (64, 16, 1, 1, 1), (128, 2048, 2048, 2048), (64, 8, 1, 1, 1),
        ((0, 0, 0, 0, 0), (0, 8, 0, 0, 0), (0, 4, 0, 0, 0), (0, 12, 0, 0, 0)), "five axes, three of length 1",
    ),
]  # fmt: skip
STEPS = [
    Shape("u32", (8, 64), (32,), (8, 16), quarters(0, 0), "every second row", steps=(1, 2)),
    Shape("u16", (16, 64), (32,), (16, 15), ((0, 0), (0, 3), (8, 50), (0, -7)), "every fourth row", steps=(1, 4)),
    Shape(
        "u32", (4, 8, 16), (16, 128), (4, 8, 6),
        ((0, 0, 0), (0, 1, 3), (0, -1, 12), (0, 5, 1)), "steps along two axes", steps=(1, 3, 2),
    ),
    Shape("u32", (8, 64), (32,), (8, 8), quarters(0, 3), "the first step does not count", steps=(2, 8)),
]  # fmt: skip
SWIZZLED = [
    Shape("u16", (64, 16), (128,), (64, 16), ((0, 0), (0, 4), (0, -5), (32, 8)), "128 bytes", swizzle="128B"),
    Shape("f16", (32, 32), (64,), (32, 16), ((0, 0), (0, 16), (8, 20), (-8, 3)), "64 bytes", swizzle="64B"),
    Shape("u32", (8, 64), (32,), (8, 32), ((0, 0), (0, 32), (4, 40), (-4, 1)), "32 bytes", swizzle="32B"),
    Shape("u8", (128, 16), (128,), (128, 8), ((0, 0), (0, 8), (16, 3), (-16, 12)), "128 of bytes", swizzle="128B"),
    Shape("u64", (16, 16), (128,), (16, 12), ((0, 0), (0, 4), (4, 8), (-2, -1)), "12 rows", swizzle="128B"),
    Shape(
        "f16", (64, 8, 2), (128, 1024), (64, 4, 2), ((0, 0, 0), (0, 4, 0), (0, 2, 0), (32, 0, 1)),
        "three axes, 128 bytes", swizzle="128B",
    ),
    Shape(
        "bf16", (32, 16, 2), (64, 1024), (32, 8, 2), ((0, 0, 0), (0, 8, 0), (0, 12, 1), (0, -3, -1)),
        "three axes, 64 bytes", swizzle="64B",
    ),
    Shape(
        "f32", (32, 4, 2, 2), (128, 512, 1024), (32, 2, 2, 2), ((0, 0, 0, 0), (0, 2, 0, 0), (0, 1, 1, 0), (8, 0, 0, 1)),
        "four axes, 128 bytes", swizzle="128B",
    ),
]  # fmt: skip
NARROW = [  # rows shorter than the swizzle's span: each begins a new span
    Shape("u16", (64, 16), (128,), (32, 16), ((0, 0), (32, 4), (16, -5), (48, 8)), "rows of 64 in 128", swizzle="128B"),
    Shape("u32", (8, 64), (32,), (4, 16), ((0, 0), (4, 32), (4, 50), (-4, 1)), "rows of 16 in 32", swizzle="32B"),
    Shape("f16", (32, 32), (64,), (16, 16), ((0, 0), (16, 16), (8, 20), (24, 3)), "rows of 32 in 64", swizzle="64B"),
]
STORED = [
    Shape("u32", (512,), (), (128,), ((0,), (128,), (256,), (384,)), "one axis"),
    Shape("u8", (2040,), (), (256,), ((0,), (528,), (1040,), (1792,)), "one axis of bytes, past the end"),
    Shape("u16", (16, 64), (32,), (16, 16), quarters(0, 0), "whole quarters"),
    Shape("u16", (16, 64), (32,), (16, 8), ((8, 2), (0, 20), (16, 40), (8, 60)), "corners outside"),
    Shape("f16", (13, 60), (32,), (16, 8), ((0, 0), (8, 16), (8, 40), (0, 56)), "rows longer than the tensor's"),
    Shape("u32", (4, 4, 16), (16, 64), (4, 2, 4), ((0, 0, 0), (0, 1, 8), (0, 3, 16), (0, 0, 24)), "one axis outside"),
    Shape("u64", (2, 4, 4, 8), (16, 64, 256), (2, 4, 2, 2), tuple((0, 0, 1, 2 * c) for c in range(CTAS)), "four axes"),
    Shape(
        "u8", (16, 2, 4, 4, 4), (16, 32, 128, 512), (16, 2, 2, 2, 1),
        tuple((0, 0, 1, c, c) for c in range(CTAS)), "five axes",
    ),
    Shape("u16", (64, 16), (128,), (64, 4), tuple((0, 4 * c) for c in range(CTAS)), "128 bytes", swizzle="128B"),
    Shape("f16", (32, 32), (64,), (32, 8), tuple((0, 8 * c) for c in range(CTAS)), "64 bytes", swizzle="64B"),
    Shape("u32", (8, 64), (32,), (8, 16), quarters(0, 0), "32 bytes", swizzle="32B"),
    Shape("f16", (32, 30), (64,), (32, 8), ((0, 0), (8, 8), (16, 16), (24, 24)), "64 bytes, outside", swizzle="64B"),
]  # fmt: skip
REDUCED = {
    "u32": ("add", "min", "max", "and", "or", "xor", "inc", "dec"),
    "s32": ("add", "min", "max"),
    "u64": ("add", "min", "max", "and", "xor"),
    "s64": ("min", "max"),
    "f16": ("add", "min", "max"),
    "f32": ("add",),
}


def _add_cases() -> None:
    CASES.extend(load(shape) for shape in (*FLAT, *ROWS, *DEEP, *STEPS, *SWIZZLED, *NARROW))
    CASES.append(load(ROWS[0], tile=""))
    CASES.append(load(ROWS[2], destination="shared::cta"))
    CASES.append(load(SWIZZLED[0], hint=".L2::cache_hint"))
    CASES.extend(store(shape) for shape in STORED)
    CASES.append(store(STORED[2], tile=""))
    for kind, names in REDUCED.items():
        dims = {2: 16, 4: 8, 8: 4}[SIZES[kind]]
        shape = Shape(kind, (dims, 64), (32,), (dims, 8), quarters(0, 5), f"reduction of {kind}")
        CASES.extend(store(shape, name) for name in names)
    CASES.append(store(replace(STORED[8], kind="f16"), "add"))
    CASES.append(store(STORED[5], "add"))
    ends = Shape("s32", (8, 62), (32,), (8, 8), ((0, 2), (4, 20), (0, 40), (0, 58)), "reduction behind the end")
    CASES.append(store(ends, "max"))


_add_cases()
