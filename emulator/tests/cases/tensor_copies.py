"""Cases of `ptxemu.isa.tensor_copies`: boxes of tensors into shared memory and back, as bytes.

Each CTA of 128 threads copies one box, whose coordinates are inputs; then every thread shows some words of shared
memory (or of the tensor). `Shape.elements` is the reference: plain Python that walks the box element by element, with
the rules of PTX ISA 9.0, 5.5: bounds, strides between the elements that are taken, swizzling.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from tests.cases.harness import CTA, Case, Typed, given, text_of
from tests.cases.memory import RULES

from ptxemu.values import DTYPES, Array

CTAS = 4
N = CTAS * CTA
ROUND = 4 * CTA  # bytes that all threads of a CTA show at once
NAN = {2: 0x7FF7, 4: 0x7FF77FF7, 8: 0x7FF77FF77FF77FF7}
Places = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Shape:
    """A tensor of at most 2 KiB and a box of it, at most 4 KiB in shared memory; fields as of a `TensorMap`."""

    kind: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    starts: Places  # the box's coordinates in each CTA
    note: str  # what is special about it
    swizzle: str = "none"
    steps: tuple[int, ...] = ()
    fill: str = "zeros"
    size: int = field(init=False)
    taken: tuple[int, ...] = field(init=False)
    counts: tuple[int, ...] = field(init=False)
    nbytes: int = field(init=False)
    pitch: int = field(init=False)
    shared: int = field(init=False)

    def __post_init__(self) -> None:
        """What follows: bytes of an element, elements along each axis, bytes copied, from row to row, of all rows."""
        steps = (1, *(self.steps or (1,) * len(self.box))[1:])
        size = DTYPES[self.kind].itemsize
        counts = tuple(-(-extent // step) for extent, step in zip(self.box, steps, strict=True))
        pitch = self.box[0] * size if self.swizzle == "none" else int(self.swizzle[:-1])
        shared = -(-prod(counts[1:]) * pitch // ROUND) * ROUND
        derived = {"size": size, "taken": steps, "counts": counts, "nbytes": prod(counts) * size, "pitch": pitch}
        self.__dict__.update(derived, shared=shared)

    @property
    def map(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in ("dims", "strides", "box", "swizzle", "fill")}
        return {"map": ("words", {"dtype": self.kind, "element_strides": self.steps, **fields})}

    def elements(self, cta: int, *, whole: bool = False) -> Iterator[tuple[int | None, int]]:
        """(byte in the tensor, None outside of it; byte in shared memory) of every element of a CTA's box.

        `whole`: 16 bytes of a row of which a part lies in the tensor all do, as an H200 stores them.
        """
        size, start = self.size, self.starts[cta % len(self.starts)]
        dims = (-(-self.dims[0] * size // 16) * 16 // size if whole else self.dims[0], *self.dims[1:])
        for index in product(*map(range, reversed(self.counts))):
            place = index[::-1]
            at = [first + step * each for first, step, each in zip(start, self.taken, place, strict=True)]
            inside = all(0 <= each < extent for each, extent in zip(at, dims, strict=True))
            tensor = at[0] * size + sum(each * stride for each, stride in zip(at[1:], self.strides, strict=True))
            row = 0
            for each, count in zip(index[:-1], reversed(self.counts[1:]), strict=True):
                row = row * count + each
            yield tensor if inside else None, self._swizzled(row * self.pitch + place[0] * size)

    def _swizzled(self, byte: int) -> int:
        """Rows of 128 bytes: the 16-byte unit is exchanged by the row's number, within the swizzle's span."""
        line, rest = divmod(byte, 128)
        unit, rest = divmod(rest, 16)
        change = line % {"none": 1, "32B": 2, "64B": 4, "128B": 8}[self.swizzle]
        return line * 128 + (unit ^ change) * 16 + rest

    def operand(self) -> str:
        return "[map, {" + ", ".join(f"c{axis}" for axis in range(len(self.dims))) + "}]"

    def inputs(self) -> Typed:
        starts = np.array(self.starts, dtype=np.int32)[np.arange(CTAS) % len(self.starts)]
        along: Typed = {f"c{axis}": ("s32", np.repeat(column, CTA)) for axis, column in enumerate(starts.T)}
        return {**along, "words": ("u32", tensor())}


def tensor() -> Array:
    """The tensor's words: every byte depends on its place, and no word is a NaN or an infinity of any type."""
    words = (np.arange(N, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(97)) & np.uint64(0xFFFFFFFF)
    return (words & np.uint64(0x3BFF3BFF)).astype(np.uint32)


WAIT = "again: mbarrier.try_wait.parity.shared::cta.b64 ok, [mb], 0;\n@!ok bra again;\n"


def case(opcode: str, text: str, shape: Shape, inputs: Typed, results: Typed) -> Case:
    fields: dict[str, Any] = {"note": shape.note, "target": "sm_90", "version": "8.6", "maps": shape.map}
    return given(opcode, text_of("tensor_copies", size=shape.shared) + "\n" + text, inputs, results, **fields)


def load(shape: Shape, destination: str = "shared::cluster", tile: str = ".tile", hint: str = "") -> Case:
    """Every thread shows the words of shared memory at 4 times its number, 512 bytes apart; unfilled ones are 5."""
    opcode = f"cp.async.bulk.tensor.{len(shape.dims)}d.{destination}.global{tile}.mbarrier::complete_tx::bytes{hint}"
    rounds = range(0, shape.shared, ROUND)
    fill = "\n".join(f"st.shared.u32 [to+{place}], 5;" for place in rounds)
    policy = "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;" if hint else ""
    text = (
        f".reg .b64 policy; {policy}\n{fill}\nfence.proxy.async;\nbar.sync 0;\n"
        f"@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [mb], {shape.nbytes};\n"
        f"@one {opcode} [at], {shape.operand()}, [mb]{', policy' if hint else ''};\n{WAIT}"
        + "\n".join(f"ld.shared.u32 d{place}, [to+{place}];" for place in rounds)
    )
    content, size = tensor().tobytes(), shape.size
    nothing = (NAN[size] if shape.fill == "nan" else 0).to_bytes(size, "little")
    image = np.full((CTAS, shape.shared // 4), 5, np.uint32)
    for cta in range(CTAS):
        raw = image[cta].view(np.uint8)
        for source, target in shape.elements(cta):
            found = nothing if source is None else content[source : source + size]
            raw[target : target + size] = np.frombuffer(found, np.uint8)
    shown = image.reshape(CTAS, -1, CTA)
    results: Typed = {f"d{place}": ("u32", shown[:, place // ROUND].reshape(-1)) for place in rounds}
    return case(opcode, text, shape, shape.inputs(), results)


def combined(name: str, shape: Shape, old: bytes, new: bytes) -> bytes:
    """What a reduction leaves, in Python's own arithmetic (of halfs: NumPy's, rounded once)."""
    if shape.kind in {"f16", "f32"}:
        a, b = (np.frombuffer(each, DTYPES[shape.kind])[0] for each in (old, new))
        return bytes(np.array(RULES[name](a, b), DTYPES[shape.kind]).tobytes())
    a, b = (int.from_bytes(each, "little", signed=shape.kind[0] == "s") for each in (old, new))
    return (RULES[name](a, b) % (1 << 8 * shape.size)).to_bytes(shape.size, "little")


def store(shape: Shape, name: str = "", tile: str = ".tile") -> Case:
    """Shared memory goes into the tensor (`name`: is combined with it); every thread shows its word of the tensor.

    Each CTA's box must lie in its own quarter of the tensor, whose words its threads show.
    """
    reduce, dims = ("reduce." if name else ""), f"{len(shape.dims)}d"
    opcode = f"cp.{reduce}async.bulk.tensor.{dims}.global.shared::cta{f'.{name}' * bool(name)}{tile}.bulk_group"
    rounds = range(0, shape.shared, ROUND)
    values: Typed = {f"v{place}": ("u32", np.roll(tensor(), 131 + place)) for place in rounds}
    text = (
        "\n".join(f"st.shared.u32 [to+{place}], v{place};" for place in rounds)
        + f"\nfence.proxy.async.shared::cta;\nbar.sync 0;\n@one {opcode} {shape.operand()}, [at];\n"
        "@one cp.async.bulk.commit_group;\n@one cp.async.bulk.wait_group 0;\nbar.sync 0;\nmov.u32 d, 0;\n"
        "ld.global.u32 d, [%at2];"  # the address of the thread's element of the last input
    )
    image, size = bytearray(tensor().tobytes()), shape.size
    for cta in range(CTAS):
        mine = np.concatenate([array[cta * CTA : (cta + 1) * CTA] for _, array in values.values()]).tobytes()
        for target, source in shape.elements(cta, whole=not name):
            if target is not None:
                assert target // ROUND == cta, f"{shape.note}: byte {target} is not CTA {cta}'s"
                new, old = mine[source : source + size], bytes(image[target : target + size])
                image[target : target + size] = combined(name, shape, old, new) if name else new
    results: Typed = {"d": ("u32", np.frombuffer(bytes(image), dtype=np.uint32))}
    return case(opcode, text, shape, values | shape.inputs(), results)


def quarters(*starts: int, by: Sequence[int] = (0, 16)) -> Places:
    """The coordinates of a box in each quarter of a tensor: of 64 rows the last axis moves on by 16."""
    return tuple(tuple(start + cta * step for start, step in zip(starts, by, strict=True)) for cta in range(CTAS))


def tupled(value: Any) -> Any:
    return tuple(map(tupled, value)) if isinstance(value, list) else value


def shapes() -> dict[str, list[Shape]]:
    """The shapes by group, a row each: kind, dims, strides, box, starts, note, and what is not as usual."""
    table = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")).items()
    split = {name: [(row, {} if len(row) == 6 else row[6]) for row in rows] for name, rows in table}
    return {
        name: [
            Shape(*map(tupled, row[:6]), **{key: tupled(value) for key, value in more.items()}) for row, more in rows
        ]
        for name, rows in split.items()
    }


REDUCED = {"u32": "add min max and or xor inc dec", "s32": "add min max", "u64": "add min max and xor",
           "s64": "min max", "f16": "add min max", "f32": "add"}  # fmt: skip


SHAPES = shapes()


def cases() -> Iterator[Case]:
    stored = SHAPES.pop("STORED")
    yield from map(load, chain(*SHAPES.values()))
    yield load(SHAPES["ROWS"][0], tile="")
    yield load(SHAPES["ROWS"][2], destination="shared::cta")
    yield load(SHAPES["SWIZZLED"][0], hint=".L2::cache_hint")
    yield from map(store, stored)
    yield store(stored[2], tile="")
    for kind, names in REDUCED.items():
        dims = 32 // DTYPES[kind].itemsize
        shape = Shape(kind, (dims, 64), (32,), (dims, 8), quarters(0, 5), f"reduction of {kind}")
        yield from (store(shape, name) for name in names.split())
    yield store(replace(stored[8], kind="f16"), "add")
    yield store(stored[5], "add")
    ends = Shape("s32", (8, 62), (32,), (8, 8), ((0, 2), (4, 20), (0, 40), (0, 58)), "reduction behind the end")
    yield store(ends, "max")


CASES = list(cases())
