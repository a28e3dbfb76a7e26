"""What instructions of a warpgroup read: who executes, values that all threads share, matrices in shared memory.

Why checks here: the ISA leaves open what happens where the four warps of a warpgroup do not execute the same ``wgmma``
with the same descriptors; nothing on a GPU tells. Source: PTX ISA 9.0, 9.7.15.5 (wgmma.mma_async, its operands).
"""

from __future__ import annotations

import numpy as np

from flashladder.emulator.isa.warp import whole_warps
from flashladder.emulator.machine.state import Step
from flashladder.emulator.machine.warpgroup.descriptors import CHUNK, Shape, chunk_addresses, render
from flashladder.emulator.machine.warpgroup.warpgroup_fence import refuse_torn
from flashladder.emulator.machine.warpgroup.warpgroups import WARPS
from flashladder.emulator.values import Array, BoolArray


def whole_warpgroups(step: Step) -> BoolArray | None:
    """The warps that execute, (blocks|1, warps), in whole warpgroups; None for all warps of all blocks.

    Raises:
        EmulationError: ``divergent-warp``, some warps of a warpgroup are elsewhere, have exited or do not exist.
    """
    warps = executing_warps(step)
    count = step.machine.shape[1]
    if warps is None and count % WARPS == 0:
        return None
    here = np.broadcast_to(
        np.ones((1, 1), np.bool_) if warps is None else warps, (1 if warps is None else len(warps), count)
    )
    refuse_torn(step, here, here)
    return here


def executing_warps(step: Step) -> BoolArray | None:
    """The executing warps, (blocks|1, warps|1); None for all."""
    warps = whole_warps(step)
    return None if warps is None else warps[..., 0]


def executing_groups(step: Step, warps: BoolArray | None) -> Array:
    """The numbers of the warpgroups that execute in any block."""
    if warps is None:
        return np.arange(step.machine.shape[1] // WARPS)
    return np.flatnonzero(warps[:, ::WARPS].any(axis=0))


def agreed(step: Step, index: int, ptx_type: str, groups: Array, warps: BoolArray | None, what: str) -> Array:
    """An operand on which all threads of a warpgroup agree: (blocks|1, groups|1)."""
    value = step.source(index, ptx_type)
    if value.size == 1:
        return value[..., 0]
    if value.shape[1] > 1:
        value = value[:, (groups[:, None] * WARPS + np.arange(WARPS)).reshape(-1)]
    value = value.reshape(len(value), -1, WARPS if value.shape[1] > 1 else 1, value.shape[2])
    first = value[:, :, :1, :1]
    active = None if warps is None else warps[:, groups * WARPS][:, :, None, None]
    differs = value != first if active is None else (value != first) & active
    if differs.any():
        step.fail(
            "divergent-warp",
            f"{what} of a wgmma is not the same in all threads of the warpgroup",
            found=" and ".join(str(each) for each in np.unique(np.broadcast_to(value, differs.shape)[differs])[:2]),
        )
    found: Array = first[:, :, 0, 0]
    if active is not None and found.size > 1:  # a block without the warpgroup holds anything: take what another has
        present = np.broadcast_to(active[:, :, 0, 0], np.broadcast_shapes(active.shape[:2], found.shape))
        found = np.where(present, found, np.broadcast_to(found, present.shape)[present][0])
    return _smallest(found)


def _smallest(value: Array) -> Array:
    """(blocks|1, groups|1) with length 1 along an axis along which all agree."""
    for axis in (0, 1):
        first = value.take([0], axis=axis)
        if value.shape[axis] > 1 and (value == first).all():
            value = first
    return value


def matrix(step: Step, index: int, shape: Shape, groups: Array, warps: BoolArray | None) -> Array:
    """Chunk addresses of a matrix in shared memory: (blocks|1, groups|1, *shape.chunks), all in it and written."""
    raw = agreed(step, index, "b64", groups, warps, "a descriptor").view(np.uint64)
    address = chunk_addresses(raw, shape)
    room = step.machine.shared.nbytes
    if int(address.max()) + CHUNK > room:
        wrong = np.argwhere(address + CHUNK > room)[0]
        step.fail(
            "out-of-bounds",
            f"matrix {'AB'[index - 1]} of a wgmma reaches {int(address.max()) + CHUNK - room} bytes past the end of "
            f"the block's {room} bytes of shared memory",
            address=np.array(address[tuple(wrong)]).reshape(1, 1, 1),
            found=render(int(raw[tuple(wrong[:2])])),
        )
    blocks = np.arange(step.machine.shape[0])
    places = address.reshape(len(address), -1)
    missing = step.machine.shared.unwritten_chunks(blocks, places)
    if missing is not None:
        _unwritten(step, "AB"[index - 1], raw, address, np.broadcast_to(missing, (len(blocks), places.shape[1])), warps)
    return address


def _unwritten(
    step: Step, matrix: str, raw: Array, address: Array, missing: BoolArray, warps: BoolArray | None
) -> None:
    """Fails for the first chunk of a block that executes."""
    if warps is not None:
        missing = missing & warps.any(axis=1, keepdims=True)
    for block, place in np.argwhere(missing)[:1]:
        row = min(int(block), len(address) - 1)
        lanes = np.zeros((step.machine.shape[0], 1, 1), np.bool_)
        lanes[block] = True
        group = int(place) // (address.size // len(address) // address.shape[1])
        step.fail(
            "uninitialised",
            f"matrix {matrix} of a wgmma lies in shared memory not written before",
            lanes=lanes,
            address=np.array(address.reshape(len(address), -1)[row, place]).reshape(1, 1, 1),
            found=render(int(np.broadcast_to(raw, address.shape[:2])[row, group])),
            hint="wait for the copy that fills it, or check start and offsets of the descriptor",
        )
