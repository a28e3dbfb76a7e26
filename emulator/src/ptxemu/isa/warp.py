"""Instructions that look across a warp: shfl, vote, match, redux, elect; and setmaxnreg and dependent grids.

All of them bring lanes together first. A membermask names the lanes that take part; each lane that executes must be in
its own mask, and each named lane that has not exited must be executing the same instruction with the same mask.
Hardware leaves the outcome open otherwise, here it is the error ``divergent-warp``. One consequence is stricter than
Volta and its successors: the two sides of a divergent branch cannot meet at two different ``bar.warp.sync``.

Only ``bar.warp.sync`` orders the memory accesses of those lanes, and it alone is told to the observers. "These
intrinsics do not imply a memory barrier" (CUDA C++ Programming Guide, Warp Vote, Match, Reduce and Shuffle Functions).

Sets of lanes are 32-bit numbers, bit i for lane i, as in PTX itself. A result that is the same for all lanes of a warp
has a last axis of length 1.

Source: PTX ISA 9.0, 9.7.9.6 (shfl), 9.7.13 (vote, match, redux, activemask, elect, griddepcontrol), 9.7.20.5
(setmaxnreg).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ptxemu.machine.state import FullStep
from ptxemu.table import machine
from ptxemu.values import WARP, Array, BoolArray

ALL = np.uint32(0xFFFFFFFF)
LANE = np.arange(WARP, dtype=np.uint32).reshape(1, 1, WARP)
EVERYONE = np.full((1, 1, 1), ALL)


def bits(flags: BoolArray) -> Array:
    """Bools of shape (blocks, warps, 32 or 1) as one ``u32`` per warp, (blocks, warps, 1), bit i for lane i."""
    if flags.shape[-1] == 1:
        return np.where(flags, ALL, np.uint32(0))
    return np.ascontiguousarray(np.packbits(flags, axis=-1, bitorder="little")).view(np.uint32)


def whole_warps(step: FullStep) -> BoolArray | None:
    """Which warps execute an ``.aligned`` instruction, (blocks|1, warps|1, 1); None for all.

    Fails: ``divergent-warp``, when a warp executes it with some of its 32 lanes elsewhere or exited.
    """
    mask = step.mask
    if mask is None or mask.shape[-1] == 1:
        return mask
    warps: BoolArray = np.logical_or.reduce(mask, axis=-1, keepdims=True)
    torn: BoolArray = warps & ~np.logical_and.reduce(mask, axis=-1, keepdims=True)
    if torn.any():
        where = tuple(np.argwhere(torn)[0])
        what = f"{step.instruction.opcode} is .aligned: all 32 lanes of a warp execute it together"
        found = f"lanes {int(bits(mask)[where]):#010x}"
        step.fail("divergent-warp", what, lanes=torn, expected="lanes 0xffffffff", found=found)
    return warps


def meet(step: FullStep, index: int) -> Array:
    """Brings the lanes of a membermask (operand `index`) together; orders no memory.

    Returns:
        For each lane the set of lanes that it meets (named, executing), ``u32`` of shape (blocks|1, warps|1, 32|1).

    Raises:
        EmulationError: ``divergent-warp``, naming the lanes that are not there.
    """
    named, mask = step.source(index, "b32"), step.mask
    if (mask is None or mask.shape[-1] == 1) and named.size == 1 and named.item() == ALL:
        return EVERYONE
    active = step.lanes()
    present = bits(active)
    _refuse(step, active & (((named >> LANE) & 1) == 0), named, "the membermask does not name the executing lane")
    missing = named & bits(step.machine.live) & ~present
    _refuse(step, active & (missing != 0), missing, "lanes that the membermask names are not there")
    together = named & present
    if named.shape[-1] > 1:
        for lane in range(WARP):  # each pair of lanes that is to meet has to agree on who does
            differs = active & (((together >> lane) & 1) == 1) & (named[..., lane : lane + 1] != named)
            _refuse(step, differs, named, f"lane {lane} is there with another membermask")
    return together


def _refuse(step: FullStep, bad: BoolArray, lanes: Array, what: str) -> None:
    if bad.any():
        first = tuple(np.argwhere(bad)[0])
        found = int(np.broadcast_to(lanes, bad.shape)[first])
        step.fail("divergent-warp", what, lanes=bad, found=f"lanes {found:#010x}")


@dataclass(frozen=True)
class Route:
    """A ``shfl`` that is the same for all warps.

    Attributes:
        lane: the source lane of each lane, (1, 1, 32).
        valid: p, (1, 1, 32).
        index, piece: the same in pieces of 1, 2 or 4 lanes (of 4 bytes each) that move together.
    """

    lane: Array
    valid: BoolArray
    index: Array
    piece: np.dtype[Any]


def source_lanes(mode: str, b: Array, c: Array) -> tuple[Array, BoolArray]:
    """The source lane j and predicate p of ``shfl``, by the ISA's pseudocode (PTX ISA 9.0, 9.7.9.6); any shapes.

    `c` packs the clamp value (bits 0 to 4) and the segment mask (bits 8 to 12): lanes that agree in the bits of the
    segment mask form a segment, within which the clamp bounds the source.
    """
    lane = np.arange(WARP).reshape(1, 1, WARP)
    offset = (b & 31).astype(np.int64)
    clamp = (c & 31).astype(np.int64)
    segment = ((c >> 8) & 31).astype(np.int64)
    first = lane & segment
    last = first | (clamp & ~segment)
    if mode == "up":
        j = lane - offset
        valid = j >= last
    else:
        j = {"down": lane + offset, "bfly": lane ^ offset, "idx": first | (offset & ~segment)}[mode]
        valid = j <= last
    return np.where(valid, j, lane), valid


@lru_cache(maxsize=256)
def route(mode: str, b: int, c: int) -> Route:
    """The route of a ``shfl`` whose b and c are the same for all lanes."""
    lane, valid = source_lanes(mode, np.uint32(b).reshape(1, 1, 1), np.uint32(c).reshape(1, 1, 1))
    flat = lane.reshape(WARP).astype(np.intp)
    for size, name in ((4, "c16"), (2, "u8"), (1, "u4")):
        pieces = flat.reshape(-1, size)
        if (pieces[:, 0] % size == 0).all() and (pieces == pieces[:, :1] + np.arange(size)).all():
            return Route(lane, valid, pieces[:, 0] // size, np.dtype(name))
    raise AssertionError(flat)  # single lanes always fit


@machine("shfl.sync.{up,down,bfly,idx}.b32", "d = a of another lane of the warp; p: that lane is in range")
def shfl(step: FullStep) -> None:
    """``shfl.sync.mode.b32 d|p, a, b, c, membermask`` (PTX ISA 9.0, 9.7.9.6).

    A lane whose p is false keeps its own a. Where p is true but the source lane is not among the lanes that meet, the
    ISA leaves d open: all bits set here, and `Undefined` follows the value; without it the error ``divergent-warp``.
    """
    together = meet(step, 4)
    mode = step.instruction.opcode.split(".")[2]
    a, b, c = step.source(1, "b32"), step.source(2, "b32"), step.source(3, "b32")
    if b.size == 1 and c.size == 1:
        known = route(mode, b.item(), c.item())
        lane, valid = known.lane, known.valid
        moved = a
        if a.shape[-1] > 1:
            a = a if a.strides[-1] == a.itemsize else np.ascontiguousarray(a)
            moved = a.view(known.piece).take(known.index, axis=-1, mode="clip").view(np.uint32)
    else:
        lane, valid = source_lanes(mode, b, c)
        a, lane = np.broadcast_arrays(a, lane) if a.shape[-1] > 1 else (a, lane)
        moved = a if a.shape[-1] == 1 else np.take_along_axis(a, lane, -1)
    if together is not EVERYONE:
        absent = valid & (((together >> lane.astype(np.uint32)) & 1) == 0) & step.lanes()
        follow = step.machine.undefined
        if follow is None:
            _refuse(step, absent, np.uint32(1) << lane.astype(np.uint32), "shfl reads a lane that does not take part")
        elif absent.any():
            step.write_pair(0, np.where(absent, ALL, moved), valid)
            follow(step, absent)
            return
    step.write_pair(0, moved, valid)


@machine("vote.{all,any,uni}.sync.pred", "as vote.sync, in CUB's spelling")
@machine("vote.sync.{all,any,uni}.pred", "whether the predicate holds for all / any lanes, or is the same for all")
def vote(step: FullStep) -> None:
    """``vote.sync.mode.pred p, a, membermask`` (PTX ISA 9.0, 9.7.13.9)."""
    together = meet(step, 2)
    true = bits(step.source(1, "pred")) & together
    mode = step.instruction.opcode.removesuffix(".pred").replace(".sync", "").removeprefix("vote.")
    some, every = true != 0, true == together
    step.write(0, {"all": every, "any": some, "uni": every | ~some}[mode])


@machine("vote.ballot.sync.b32", "as vote.sync.ballot.b32, in CUB's spelling")
@machine("vote.sync.ballot.b32", "the set of lanes whose predicate holds")
def ballot(step: FullStep) -> None:
    """``vote.sync.ballot.b32 d, a, membermask``: lanes outside the membermask count as false."""
    together = meet(step, 2)
    step.write(0, bits(step.source(1, "pred")) & together)


@machine("activemask.b32", "the set of lanes that execute this instruction now")
def activemask(step: FullStep) -> None:
    """``activemask.b32 d`` (PTX ISA 9.0, 9.7.13.11): a snapshot, it synchronises nobody."""
    step.write(0, EVERYONE if step.mask is None else bits(step.mask))


def _same(a: Array) -> Array:
    """For each lane the set of lanes of its warp whose value equals its own, ``u32``."""
    if a.shape[-1] == 1:
        return EVERYONE
    found = np.zeros(a.shape, np.uint32)
    for lane in range(WARP):
        found |= (a == a[..., lane : lane + 1]).astype(np.uint32) << np.uint32(lane)
    return found


@machine("match.any.sync.{b32,b64}", "the set of lanes with the same value")
def match_any(step: FullStep) -> None:
    """``match.any.sync.type d, a, membermask`` (PTX ISA 9.0, 9.7.13.10)."""
    together = meet(step, 2)
    step.write(0, _same(step.source(1, step.instruction.opcode[-3:])) & together)


@machine("match.all.sync.{b32,b64}", "the set of lanes if all have the same value, else 0; p: they have")
def match_all(step: FullStep) -> None:
    """``match.all.sync.type d|p, a, membermask`` (PTX ISA 9.0, 9.7.13.10)."""
    together = meet(step, 2)
    agree = (_same(step.source(1, step.instruction.opcode[-3:])) & together) == together
    step.write_pair(0, np.where(agree, together, np.uint32(0)), agree)


REDUCTIONS: dict[str, tuple[np.ufunc, Callable[[np.dtype[Any]], int]]] = {
    "add": (np.add, lambda _: 0),
    "min": (np.minimum, lambda dtype: int(np.iinfo(dtype).max)),
    "max": (np.maximum, lambda dtype: int(np.iinfo(dtype).min)),
    "and": (np.bitwise_and, lambda _: 0xFFFFFFFF),
    "or": (np.bitwise_or, lambda _: 0),
    "xor": (np.bitwise_xor, lambda _: 0),
}


@machine("redux.sync.{add,min,max}.{u32,s32}", "the sum (wrapping), minimum or maximum over the lanes")
@machine("redux.sync.{and,or,xor}.b32", "the bitwise and, or, xor over the lanes")
def redux(step: FullStep) -> None:
    """``redux.sync.op.type d, a, membermask`` (PTX ISA 9.0, 9.7.13.12)."""
    together = meet(step, 2)
    _, _, operation, ptx_type = step.instruction.opcode.split(".")
    a = step.source(1, ptx_type)
    ufunc, neutral = REDUCTIONS[operation]
    fill, values = a.dtype.type(neutral(a.dtype)), np.broadcast_to(a, (*a.shape[:2], WARP))
    result = np.zeros((1, 1, 1), a.dtype)
    for group in (ALL,) if together is EVERYONE else np.unique(together):
        members = ((group >> LANE) & 1) == 1
        reduced = ufunc.reduce(np.where(members, values, fill), axis=-1, dtype=a.dtype, keepdims=True)
        result = np.where(together == group, reduced, result)
    step.write(0, result)


@machine("bar.warp.sync", "waits for the lanes of the membermask; orders their memory accesses")
def bar_warp_sync(step: FullStep) -> None:
    """``bar.warp.sync membermask`` (PTX ISA 9.0, 9.7.13.2): each set of lanes that meets knows of each other's past."""
    together, mask = meet(step, 0), step.mask
    groups: list[BoolArray | None] = [mask]
    if together.shape[-1] > 1:  # lanes of one warp that meet in several groups
        active = step.lanes()
        groups = [active & (together == group) for group in np.unique(np.broadcast_to(together, active.shape)[active])]
    for lanes in groups:
        for observer in step.machine.observers:
            observer.warp_sync(step, lanes)


@machine("setmaxnreg.dec.sync.aligned.u32", "the warpgroup gives registers back")
def decrease(step: FullStep) -> None:
    """``setmaxnreg.dec.sync.aligned.u32 n``."""
    step.machine.register_pool.decrease(step)


@machine("setmaxnreg.inc.sync.aligned.u32", "the warpgroup takes registers, and waits for them", kind="control")
def increase(step: FullStep) -> None:
    """``setmaxnreg.inc.sync.aligned.u32 n``: `Waits` carries it out."""
    step.fail("unsupported", "a wait inside a basic block")


@machine("elect.sync", "elects one lane of those in the membermask: p is true for it, d its number")
def elect(step: FullStep) -> None:
    """``elect.sync d|p, membermask``: any lane may be elected, always the same for the same mask.

    Here it is the lowest, as on an H200, and the highest where the last ones go first.
    """
    together = meet(step, 1)
    chosen = together if step.machine.elects_last else together & (~together + np.uint32(1))
    leader = np.log2(chosen.astype(np.float64)).astype(np.uint32)
    step.write_pair(0, leader, leader == LANE)


@machine("griddepcontrol.{launch_dependents,wait}", "nothing: the launches of a program run one after another")
def dependents(_step: FullStep) -> None:
    """Between launches everything is complete: there is nothing to wait for (9.7.13.13)."""
