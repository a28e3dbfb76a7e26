"""Where elements lie in shared memory: boxes of tensors as TMA lays them out, operands as wgmma reads them.

References, independent of the emulator: every element's byte offset is computed one by one. Sources: PTX ISA 9.0, 5.5
(tensors), 9.7.16.5 (wgmma's operands in shared memory and their descriptors).
"""

from dataclasses import dataclass
import itertools

import numpy as np

from ptxemu.machine.tensor_map import TensorMap
from ptxemu.values import Array

SPANS = {"none": 16, "32B": 32, "64B": 64, "128B": 128}
MODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}  # of a descriptor
NANS = {"f16": 0x7FF7, "bf16": 0x7FF7, "f32": 0x7FF77FF7}  # what an H200 fills in
GROUP = 8  # rows of a core matrix


def swizzled(offset: Array, swizzle: str) -> Array:
    """Byte offsets, from a multiple of 1024, after the exchange of 16-byte units within eight rows of the span."""
    return np.asarray(offset ^ (offset >> 3 & SPANS[swizzle] - 16))


def small(rng: np.random.Generator, *shape: int, most: int = 4) -> Array:
    """Whole numbers from -most to most: their products and sums are exact in every type."""
    return rng.integers(-most, most + 1, shape)


def strided(map_: TensorMap) -> Array:
    assert isinstance(map_.tensor, np.ndarray)
    strides = (*reversed(map_.strides), map_.itemsize)
    return np.lib.stride_tricks.as_strided(map_.tensor.reshape(-1), map_.dims[::-1], strides)


def box_of(map_: TensorMap, corner: tuple[int, ...]) -> tuple[Array, Array]:
    """A box's elements in the order of a copy, innermost first, and which of them lie inside the tensor."""
    tensor = strided(map_)
    steps = (1, *map_.element_strides[1:])
    counts = [-(-size // step) for size, step in zip(map_.box, steps, strict=True)]
    values = np.zeros(int(np.prod(counts)), tensor.dtype)
    inside = np.zeros(len(values), np.bool_)
    if map_.fill == "nan":
        values.view(f"u{values.itemsize}")[:] = NANS[map_.dtype]
    for place, index in enumerate(itertools.product(*(range(count) for count in counts[::-1]))):
        at = [start + i * step for start, i, step in zip(corner[::-1], index, steps[::-1], strict=True)]
        inside[place] = all(0 <= each < size for each, size in zip(at, tensor.shape, strict=True))
        if inside[place]:
            values[place] = tensor[tuple(at)]
    return values, inside


def box_offsets(map_: TensorMap) -> Array:
    """The byte offset in shared memory of each element of a box, in the order of `box_of`."""
    steps = (1, *map_.element_strides[1:])
    elements = int(np.prod([-(-size // step) for size, step in zip(map_.box, steps, strict=True)]))
    rows, column = np.divmod(np.arange(elements), map_.box[0])
    row_bytes = map_.box[0] * map_.itemsize
    pitch = row_bytes if map_.swizzle == "none" else SPANS[map_.swizzle]
    linear = rows * pitch + column * map_.itemsize
    return linear if map_.swizzle == "none" else swizzled(linear, map_.swizzle)


def place(image: Array, offsets: Array, values: Array) -> Array:
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.itemsize)
    image[offsets[:, None] + np.arange(values.itemsize)] = raw
    return image


def box_image(map_: TensorMap, corner: tuple[int, ...]) -> Array:
    values, _ = box_of(map_, corner)
    offsets = box_offsets(map_)
    return place(np.zeros(int(offsets.max()) + map_.itemsize, np.uint8), offsets, values)


@dataclass(frozen=True)
class Operand:
    """A matrix as wgmma reads it."""

    image: Array  # the bytes of shared memory
    bits: int  # of the descriptor, without the address
    steps: tuple[int, ...]  # where each k-step of 32 bytes begins, in bytes


def _bits(leading: int, stride: int, swizzle: str) -> int:
    return leading >> 4 << 16 | stride >> 4 << 32 | MODES[swizzle] << 62


def k_major(matrix: Array, swizzle: str) -> Operand:
    """An operand of shape (rows, k) whose rows are contiguous, in chunks as wide as the swizzle's span."""
    rows, k = matrix.shape
    size, span = matrix.itemsize, SPANS[swizzle]
    row, column = (index.reshape(-1) for index in np.indices((rows, k)))
    chunk, within = np.divmod(column * size, span)
    offsets = chunk * rows * span + row * span + within
    if swizzle != "none":
        offsets = swizzled(offsets, swizzle)
    image = place(np.zeros(matrix.nbytes, np.uint8), offsets, matrix.reshape(-1))
    steps = tuple(step * 32 // span * rows * span + step * 32 % span for step in range(k * size // 32))
    return Operand(image, _bits(rows * span if swizzle == "none" else 16, GROUP * span, swizzle), steps)


def mn_major(matrix: Array, swizzle: str) -> Operand:
    """An operand of shape (rows, k), of 2-byte elements, whose columns are contiguous."""
    rows, k = matrix.shape
    span = SPANS[swizzle]
    row, column = (index.reshape(-1) for index in np.indices((rows, k)))
    chunk, within = np.divmod(row * 2, span)
    group, line = np.divmod(column, GROUP)
    if swizzle == "none":  # core matrices one after another along the rows, then along k
        stride, leading = GROUP * span, rows // GROUP * GROUP * span
        offsets = within + line * span + chunk * stride + group * leading
        step = 2 * leading
    else:
        stride, leading = GROUP * span, k * span
        offsets = swizzled(within + line * span + chunk * leading + group * stride, swizzle)
        step = 2 * stride
    image = place(np.zeros(matrix.nbytes, np.uint8), offsets, matrix.reshape(-1))
    return Operand(image, _bits(leading, stride, swizzle), tuple(step * i for i in range(k // 16)))
