"""Global memory: named buffers far apart, so that an overrun and a wild pointer are both errors.

On a GPU a store past the end of a buffer usually lands in another one, silently. Here each buffer has a base address
of its own, 512-byte aligned as ``cudaMalloc``'s are, and tens of gigabytes of unmapped addresses on both sides: an
index that is off by one, off by a tile or wrong by any 32-bit number leaves the buffer and is named with it.

All lanes of a slice access memory at once. Usually they are in one buffer, which two reductions show; otherwise each
lane is looked up. Source: PTX ISA 9.0, 5.1 (state spaces), 6.4.1 (addresses as operands, alignment).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from ptxemu.machine.core import Step
from ptxemu.values import Array, BoolArray

SHARED_WINDOW = 1 << 56  # generic addresses of the block's shared memory begin here: cvta adds it, ld/st recognise it
LOCAL_WINDOW = 1 << 57  # the same for the thread's local memory

ALIGNMENT = 512  # bytes, of every buffer's base address
IN_PLACE = 1 << 30  # bytes from which an array is not copied: the program works in it, and may be sparse
RED_ZONE = 1 << 36  # bytes without a buffer between two buffers: more than any 32-bit index times 16 bytes

# One element per access. 16 bytes travel as complex128, the only 16-byte type that NumPy gathers at full speed; only
# its bits are moved, never its value.
WORDS: dict[int, np.dtype[np.generic]] = {
    **{width: np.dtype(f"u{width}") for width in (1, 2, 4, 8)},
    16: np.dtype(np.complex128),
}
SHIFTS = {width: np.uint64(width.bit_length() - 1) for width in WORDS}


def words_of(values: Array, width: int) -> Array:
    """Values as `load` returns them ((..., 4) of u32 for 16 bytes, else unsigned) as one word per access; no copy."""
    if width != 16:
        return values.view(WORDS[width])
    return np.ascontiguousarray(values).view(np.complex128)[..., 0]


def values_of(words: Array, width: int) -> Array:
    """The inverse of `words_of`."""
    return np.ascontiguousarray(words)[..., None].view(np.uint32) if width == 16 else words


def per_address(mask: BoolArray, shape: tuple[int, ...]) -> BoolArray:
    """Whether any of the lanes that share an address (an axis of length 1 in `shape`) is in the mask."""
    axes = tuple(axis for axis, length in enumerate(shape) if length == 1 and mask.shape[axis] != 1)
    return np.asarray(mask.any(axis=axes, keepdims=True)) if axes else mask


def scatter(view: Array, index: Array, words: Array, mask: BoolArray | None) -> None:
    """``view[index] = words`` where the mask holds; of several lanes at one index the last in C order wins."""
    shape = np.broadcast_shapes(index.shape, words.shape, () if mask is None else mask.shape)
    index, words = np.broadcast_to(index, shape), np.broadcast_to(words, shape)
    if mask is None:
        view[index.ravel()] = words.ravel()
    else:
        chosen = np.broadcast_to(mask, shape)
        view[index[chosen]] = words[chosen]


@dataclass(frozen=True)
class Buffer:
    """One allocation: `nbytes` at address `base`; `storage` is padded to whole 16-byte words."""

    name: str
    base: int
    nbytes: int
    storage: Array
    itemsize: int = 1

    def view(self, width: int) -> Array:
        """The storage as words of `width` bytes."""
        return self.storage.view(WORDS[width])

    def index(self, address: Array, width: int) -> Array:
        """Addresses inside this buffer as indices into `view(width)`."""
        return ((address - np.uint64(self.base)) >> SHIFTS[width]).view(np.int64)


class GlobalMemory:
    """The global (and constant) state space, shared by all blocks and all slices of a launch.

    Global memory is never uninitialised here: variables without an initialiser begin as zeros, as PTX says.
    """

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []
        self._bases: list[int] = []

    def allocate(self, contents: Array, name: str) -> int:
        """Copies an array (C order) into a new buffer, whose name errors and hazards show.

        A writable array of `IN_PLACE` bytes or more becomes the buffer itself: stores change it at once, also those of
        a program that fails later. Copying would touch every page of a sparse one.

        Returns:
            The base address, in bytes.
        """
        nbytes = contents.nbytes
        if (
            nbytes >= IN_PLACE
            and contents.flags.c_contiguous
            and contents.flags.writeable
            and (nbytes % 16 == 0 and contents.ctypes.data % 16 == 0)
        ):  # it is large, and lies in memory as a buffer does
            storage = contents.reshape(-1).view(np.uint8)
        else:
            storage = np.zeros(max(16, -(-nbytes // 16) * 16), dtype=np.uint8)
            storage[:nbytes] = np.ascontiguousarray(contents).reshape(-1).view(np.uint8)
        end = self._buffers[-1].base + self._buffers[-1].nbytes if self._buffers else 0
        base = (end + RED_ZONE + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self._buffers.append(Buffer(name, base, nbytes, storage, contents.itemsize))
        self._bases.append(base)
        return base

    def read_back(self, base: int, array: Array) -> None:
        """Copies the buffer at a base address into a C-contiguous array of the same size."""
        found = self._buffers[self._bases.index(base)]
        if array.ctypes.data != found.storage.ctypes.data:
            array.reshape(-1).view(np.uint8)[...] = found.storage[: found.nbytes]

    def load(self, step: Step, address: Array, width: int, mask: BoolArray | None = None) -> Array:
        """Reads `width` bytes (1, 2, 4, 8, 16) at each address, a multiple of the width.

        Args:
            step: the instruction, for its mask and for errors.
            address: bytes, u64, (blocks|1, warps|1, 32|1); those of inactive lanes are ignored.
            width: bytes per lane.
            mask: the lanes that read, a part of the step's; None: all of the step's.

        Returns:
            Unsigned integers of the address's shape, for 16 bytes (..., 4) of u32; inactive lanes hold garbage.

        Raises:
            EmulationError: "out-of-bounds", "misaligned".
        """
        mask = step.mask if mask is None else mask
        buffer, address = self._only_buffer(address, width, mask)
        if buffer is not None:
            return values_of(buffer.view(width).take(buffer.index(address, width)), width)
        owner, active = self._owners(step, address, width, mask)
        words = np.zeros(address.shape, dtype=WORDS[width])
        for number in np.unique(owner[active]):
            buffer, chosen = self._buffers[number], active & (owner == number)
            words[chosen] = buffer.view(width)[buffer.index(address[chosen], width)]
        return values_of(words, width)

    def store(self, step: Step, address: Array, width: int, values: Array, mask: BoolArray | None = None) -> None:
        """Writes `width` bytes at each address; arguments and errors are those of `load`.

        `values` are what `load` returns, in any shape that broadcasts with the addresses. Of several lanes that write
        one address the highest (by block, warp, lane) wins; PTX leaves it open.
        """
        mask = step.mask if mask is None else mask
        words = words_of(values, width)
        buffer, address = self._only_buffer(address, width, mask)
        if buffer is not None:
            scatter(buffer.view(width), buffer.index(address, width), words, mask)
            return
        owner, active = self._owners(step, address, width, mask)
        for number in np.unique(owner[active]):
            buffer, chosen = self._buffers[number], active & (owner == number)
            index = buffer.index(np.where(chosen, address, np.uint64(buffer.base)), width)
            scatter(buffer.view(width), index, words, chosen if mask is None else chosen & mask)

    def _only_buffer(self, address: Array, width: int, mask: BoolArray | None) -> tuple[Buffer | None, Array]:
        """The buffer that holds the accesses of all active lanes, and addresses of which all lie in it.

        The buffer is None if there is none or one access is misaligned; the addresses are then as they were.
        """
        buffer = self.holding(address, width)
        if buffer is None and mask is not None:
            active = np.broadcast_to(per_address(mask, address.shape), address.shape)
            harmless = np.where(active, address, address.flat[int(active.argmax())])
            buffer = self.holding(harmless, width)
            address = address if buffer is None else harmless
        return buffer, address

    def holding(self, address: Array, width: int) -> Buffer | None:
        """The buffer that holds all of these accesses, aligned."""
        low, high = int(address.min()), int(address.max())
        number = bisect_right(self._bases, low) - 1
        if number < 0 or int(np.bitwise_or.reduce(address, axis=None)) & (width - 1):
            return None
        buffer = self._buffers[number]
        return buffer if high + width <= buffer.base + buffer.nbytes else None

    def _owners(self, step: Step, address: Array, width: int, mask: BoolArray | None) -> tuple[Array, BoolArray]:
        """The buffer number of each address and which addresses are active, once all active ones are found valid."""
        active = np.ones_like(address, dtype=np.bool_)
        if mask is not None:
            active &= per_address(mask, address.shape)
        owner = np.zeros(address.shape, dtype=np.int64)
        inside = np.zeros(address.shape, dtype=np.bool_)
        if self._buffers:
            bases = np.array(self._bases, dtype=np.uint64)
            room = np.array([max(0, buffer.nbytes - width + 1) for buffer in self._buffers], dtype=np.uint64)
            owner = np.searchsorted(bases, address, side="right") - 1
            inside = (owner >= 0) & (address - bases[owner] < room[owner])
        odd = (address & np.uint64(width - 1)) != 0
        for kind, wrong in (("out-of-bounds", active & ~inside), ("misaligned", active & odd)):
            if not wrong.any():
                continue
            lanes = step.lanes() & (wrong if mask is None else wrong & mask)
            first = int(step.machine.full(address)[lanes][0])
            what = self.nearest(first, width)
            hint = "check the index against the array's size, and the launch's grid against the shape it expects"
            if kind == "misaligned":
                buffer = self._buffers[bisect_right(self._bases, first) - 1]
                what = f"{width}-byte access of global memory at an address that is not a multiple of {width}, "
                what += f"{first - buffer.base} bytes into `{buffer.name}`"
                hint = f"align the pointer and every stride of it to {width} bytes, or use a narrower access"
            step.fail(kind, what, lanes=lanes, address=address, hint=hint)
        return owner, active

    def nearest(self, address: int, width: int) -> str:
        """What is wrong with an access outside of every buffer, for messages: it names the nearest one."""
        if not self._buffers:
            return f"{width}-byte access of global memory, which has no buffer"
        nearest = min(self._buffers, key=lambda buffer: _outside(buffer, address, width))
        verb, side = ("begins", "before the start") if address < nearest.base else ("reaches", "past the end")
        return (
            f"{width}-byte access of global memory {verb} {_outside(nearest, address, width)} bytes {side} of the "
            f"nearest buffer, `{nearest.name}` ({nearest.nbytes} bytes at {nearest.base:#x})"
        )

    def element(self, address: int) -> str:
        """What lies at an address inside a buffer: ``element 15 of `out: float32 (64,)```."""
        buffer = self._buffers[bisect_right(self._bases, address) - 1]
        unit = "byte" if buffer.itemsize == 1 else "element"
        return f"{unit} {(address - buffer.base) // buffer.itemsize} of `{buffer.name}`"


def _outside(buffer: Buffer, address: int, width: int) -> int:
    """Bytes by which an access leaves the buffer: before its start, or from its end to the access's last byte."""
    return buffer.base - address if address < buffer.base else address + width - (buffer.base + buffer.nbytes)
