"""Launches of ``kernels/tensors.cu``: boxes of tensors of one to five axes, in and out."""

from collections.abc import Callable, Iterator
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from tests.hopper_programs.layouts import box_image, box_of, box_offsets, place, small, strided
from tests.hopper_programs.program import FOUND, Program, Run

from ptxemu.machine.tensor_map import TensorMap
from ptxemu.values import Array

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "u8": np.uint8, "s32": np.int32,
          "u32": np.uint32, "u16": np.uint16}  # fmt: skip
PLAIN = (96, 40)  # most tensors' dims


def map_of(dtype: str, dims: tuple[int, ...], box: tuple[int, ...], **options: Any) -> TensorMap:
    """A map of a dense tensor of distinct small numbers, dims innermost first; the array's shape is outermost first."""
    array = (np.arange(int(np.prod(dims))) * 7 % 509).astype(DTYPES[dtype]).reshape(dims[::-1])
    return TensorMap(array, dtype, dims, array.strides[-2::-1], box, **options)


def _load(name: str, corner: tuple[int, ...], *fields: Any, **options: Any) -> Program:
    """One box and the image that it makes; the fields are those of `map_of`, or a name."""

    def make() -> Run:
        given = WINDOWS[fields[0]] if len(fields) == 1 else map_of(*fields, **options)
        image = box_image(given, corner)
        out = np.full_like(image, 0xEE)
        return Run((out, given, len(image), *(*corner, 0, 0, 0, 0)[:5]), ((out, image),))

    return Program("tensors", f"load_{len(corner)}d", make, name=name)


def _narrow() -> Run:
    """Rows of a quarter of the swizzle's span, over memory that was written before."""
    given = map_of("f16", (64, 64), (16, 24), swizzle="128B")
    old = np.repeat(np.arange(2048, dtype=np.uint32), 4).view(np.uint8)
    values, _ = box_of(given, (32, 8))
    image = place(old.copy(), box_offsets(given), values)
    out = np.zeros_like(image)
    return Run((out, given, values.nbytes, 32, 8), ((out, image),))


def _places(given: TensorMap, corner: tuple[int, ...]) -> tuple[Array, Array]:
    """Which elements of the whole tensor a box touches, and which of the box's elements those are."""
    numbers = np.arange(strided(given).size).reshape(given.dims[::-1])
    found, inside = box_of(TensorMap(numbers, "s64", given.dims, numbers.strides[-2::-1], given.box), corner)
    return found[inside], inside


def _changed(given: TensorMap, boxes: Any, combine: Callable[[Array, Array], Array] = lambda _, new: new) -> Any:
    """The map's tensor, and what it is after each (corner, values) was combined with it; what is outside is dropped."""
    after = strided(given).copy()
    for corner, values in boxes:
        places, inside = _places(given, corner)
        after.reshape(-1)[places] = combine(after.reshape(-1)[places], values[inside])
    return given.tensor, after


def _store(name: str, swizzle: str, dtype: str, corner: tuple[int, int], step: int) -> Program:

    def make() -> Run:
        width = 64 if dtype == "f16" else 16
        given = map_of(dtype, PLAIN, (width, 8), swizzle=swizzle)
        values = small(np.random.default_rng(11), width * 8, most=90).astype(DTYPES[dtype])
        image = place(np.zeros(values.nbytes, np.uint8), box_offsets(given), values)
        boxes = (((corner[0], corner[1] + step * i), values) for i in range(3))
        return Run((given, image, image.nbytes, *corner, step), (_changed(given, boxes),))

    return Program("tensors", "store_2d", make, grid=(3, 1, 1), name=name)


def _store_3d() -> Run:
    given = map_of("f32", (32, 7, 4), (16, 8, 1))
    values = small(np.random.default_rng(12), 128, most=90).astype(np.float32)
    changed = _changed(given, (((0, 2, z), values) for z in range(5)))
    return Run((given, values.view(np.uint8), values.nbytes), (changed,))


def _reduction(kernel: str, dtype: str, combine: str, corner: tuple[int, int], name: str = "") -> Program:
    """Three blocks combine their boxes with the same place of the tensor, part of it outside."""

    def make() -> Run:
        given = map_of(dtype, (64, 20), (16, 8))
        values = small(np.random.default_rng(13), 3, 128, most=300)
        values = (values % 251 if dtype.startswith("u") else values).astype(DTYPES[dtype])
        changed = _changed(given, ((corner, row) for row in values), getattr(np, combine))
        return Run((given, values.view(np.uint8), values[0].nbytes, *corner), (changed,))

    return Program("tensors", kernel, make, grid=(3, 1, 1), name=name)


def _mirror() -> Run:
    source, out = map_of("f16", (96, 48), (32, 16)), np.zeros((48, 96), np.float16)
    tiles = strided(source).reshape(3, 16, 3, 32)[::-1, :, ::-1, :].reshape(48, 96).copy()
    target = TensorMap(out, "f16", source.dims, source.strides, source.box)
    return Run((source, target, 3, 3), ((out, tiles),))


def _four_boxes() -> Run:
    given, out = map_of("f16", (128, 40), (32, 16)), np.zeros((4, 1024), np.uint8)
    return Run((out, given), ((out, np.stack([box_image(given, (32 * i, 8 * i)) for i in range(4)])),))


# Rows of which 40 of 64 elements belong to the tensor; overlapping windows of 64 elements that begin 16 bytes apart.
WINDOWS = {
    "PADDED": TensorMap(strided(map_of("f16", (64, 32), (32, 8))), "f16", (40, 32), (128,), (32, 8)),
    "WINDOWS": TensorMap(strided(map_of("f32", (256,), (64,))), "f32", (64, 40), (16,), (32, 8)),
}


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def _listed(group: str) -> Iterator[Program]:
    """Programs of ``tensors.json``: the arguments of `_load`, `_store` and `_reduction`, the last ones by name."""
    makers: dict[str, Any] = {"load": _load, "store": _store, "reduction": _reduction}
    for kind, rows in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))[group].items():
        for row in rows:
            more = row.pop() if isinstance(row[-1], dict) else {}
            yield makers[kind](*_tupled(row), **{key: _tupled(value) for key, value in more.items()})


FOUND += [
    *_listed("programs"),
    Program("tensors", "load_2d_over", _narrow, name="narrow_rows"),
    Program("tensors", "store_3d", _store_3d, grid=(5, 1, 1)),
    Program("tensors", "mirror", _mirror, threads=32),
    Program("tensors", "four_boxes", _four_boxes),
]
# An H200 stops at these with an illegal instruction: boxes off the 16-byte units of rows, stores before the start.
REFUSED = (*_listed("refused"),)
