"""Copies of a tensor's boxes (``cp.async.bulk.tensor``), and tensor maps that a program changes in memory.

A tensor map (`machine.tensor_map`) is read where its address points, when the instruction is issued. Where the box's
elements lie and when they move is decided in `machine.bulk_copies`. There are no im2col modes, and no gather and
scatter forms of later architectures.

A kernel that learns its tensors' addresses and sizes on the device (grouped products, what Triton makes of a
descriptor) copies a map to shared memory, changes fields of it, and copies it to global memory, where copies name it.
The fields lie where `tensor_map` puts them, not where a GPU does: programs may not look at them.

Source: PTX ISA 9.0, 5.5 (tensors), 9.7.9.25.5 (cp.async.bulk.tensor, cp.reduce.async.bulk.tensor, prefetch), 9.7.9.28
(tensormap.replace), 9.7.13.16 (tensormap.cp_fenceproxy).
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from ptxemu.errors import EmulationError
from ptxemu.isa.convert import to_tf32_rounded
from ptxemu.isa.copies import HINT, TX, reduction
from ptxemu.isa.loads import read, write
from ptxemu.machine.bulk_copies import Boxes, Issue, boxes, into_shared, out_of_shared, swizzled
from ptxemu.machine.memory import LOCAL_WINDOW, SHARED_WINDOW, WORDS
from ptxemu.machine.observer import Global, Places, Shared
from ptxemu.machine.state import FullStep
from ptxemu.machine.tensor_map import MAP_ALIGNMENT, MAP_BYTES, UNIT, Decoded, decoded, replaced
from ptxemu.syntax.tree import Address, Immediate
from ptxemu.table import machine
from ptxemu.values import Array

BOX_ALIGNMENT = 128  # bytes, of a box in shared memory
DIMENSIONS = "{1d,2d,3d,4d,5d}"
# What elements outside of a tensor of floating-point numbers become on request: no document says which NaN; an H200
# fills every two bytes with the same.
NAN_BITS = {
    **dict.fromkeys(("f16", "bf16"), 0x7FF7),
    **dict.fromkeys(("f32", "f32.ftz", "tf32", "tf32.ftz"), 0x7FF77FF7),
    "f64": 0x7FF77FF77FF77FF7,
}

_TAG_SHIFT = SHARED_WINDOW.bit_length() - 1  # of a generic address: which window it lies in
_PARAMETERS = (SHARED_WINDOW | LOCAL_WINDOW) >> _TAG_SHIFT

known_map = lru_cache(maxsize=64)(decoded)


def _contents(step: FullStep, issue: Issue, operand: int) -> tuple[Places, list[bytes]]:
    """(which of several maps each thread names, their bytes)."""
    address = step.address(operand)
    hint = "pass the map as a __grid_constant__ CUtensorMap, which is aligned"
    named = issue.take(address)
    wanted = f"a multiple of {MAP_ALIGNMENT}"
    issue.refuse(named % MAP_ALIGNMENT != 0, "misaligned", "a tensor map", expected=wanted, hint=hint)
    if named.size and (named == named[0]).all() and int(named[0]) >> _TAG_SHIFT == _PARAMETERS:  # nearly always
        begin = int(named[0]) & ((1 << _TAG_SHIFT) - 1)
        contents = step.machine.parameters[begin : begin + MAP_BYTES]
        if len(contents) == MAP_BYTES:
            return np.zeros(len(named), dtype=np.int64), [contents]
    space = "param" if step.instruction.opcode.startswith("prefetch.param") else ""
    words = [read(step, space, address + np.uint64(place), 8, kind=None) for place in range(0, MAP_BYTES, 8)]
    table = np.stack([np.asarray(step.machine.full(word)[issue.lanes]) for word in words], axis=1)
    if not len(table) or (table == table[0]).all():
        return np.zeros(len(table), dtype=np.int64), [row.tobytes() for row in table[:1]]
    different, which = np.unique(table, axis=0, return_inverse=True)
    return which.reshape(-1).astype(np.int64), [row.tobytes() for row in different]


def _tensors(step: FullStep, operand: int) -> list[tuple[Issue, Decoded]]:
    """The executing threads, apart by the tensor map that they name.

    Fails: "tensor map": what lies there is none, or has another number of dimensions.
    """
    everyone = step.machine.bulk.issue(step)
    which, contents = _contents(step, everyone, operand)
    found = []
    for number, content in enumerate(contents):
        issue = everyone if len(contents) == 1 else everyone.some(which == number)
        try:
            tensor = known_map(content)
        except EmulationError as error:  # put together on the device, where nothing checked it
            issue.step.fail("tensor map", str(error).partition(": ")[2], address=step.address(operand))
        if tensor is None:
            hint = "pass a TensorMap as the argument of a kernel's CUtensorMap; nothing may write into it"
            issue.step.fail("tensor map", "the address names no tensor map", address=step.address(operand), hint=hint)
        rank = step.instruction.opcode.split(".tensor.")[1][0] if ".tensor." in step.instruction.opcode else ""
        if rank and int(rank) != tensor.map.rank:
            expected = f"{rank}, as the instruction says"
            issue.step.fail("tensor map", "dimensions of a tensor", expected=expected, found=tensor.map.rank)
        found.append((issue, tensor))
    return found


def _boxes(issue: Issue, operand: int, tensor: Decoded, *, whole: bool = False, stored: bool = False) -> Boxes:
    """The boxes that an operand ``[map, {x, y}]`` names.

    They have to begin at a multiple of 16 bytes along their rows; boxes that are stored must not begin before their
    tensor (CUDA C++ Programming Guide, 7.29.2). An H200 stopped with an illegal instruction in both cases.
    """
    address = issue.step.instruction.operands[operand]
    given = address.coordinates.items if isinstance(address, Address) and address.coordinates is not None else ()
    if len(given) != tensor.map.rank:
        issue.step.fail("syntax", "coordinates of a box", expected=tensor.map.rank, found=len(given))
    corner = np.stack([issue.take(issue.step.value(item, "s32")) for item in given], axis=1)
    if stored:
        what, expected = "a stored box that begins before its tensor", "coordinates of 0 or more"
        issue.refuse(np.asarray((corner < 0).any(axis=1)), "tensor map", what, expected=expected)
    first, what = corner[:, 0] * tensor.map.itemsize, "bytes along its row at which a box begins"
    issue.refuse(first % UNIT != 0, "tensor map", what, expected=f"a multiple of {UNIT}", found=first)
    return boxes(tensor, corner, whole=whole)


def _places(issue: Issue, operand: int, tensor: Decoded, box: Boxes) -> tuple[Places, Places, Places]:
    """(block, offset, places (n, pieces)) of the boxes in shared memory."""
    end = int(box.places[-1]) + 16
    span = tensor.map.span if tensor.map.swizzle != "none" else 16
    room = np.full(len(issue.lanes[0]), -(-end // span) * span, dtype=np.int64)
    block, offset = issue.shared(operand, room, BOX_ALIGNMENT)
    return block, offset, swizzled(offset[:, None] + box.places, tensor.map.swizzle)


@machine(
    f"cp.async.bulk.tensor.{DIMENSIONS}.{{shared::cluster,shared::cta}}.global{{,.tile}}.{TX}"
    f"{{,.multicast::cluster}}{HINT}",
    "copies a box of a tensor into shared memory",
)
def load_box(step: FullStep) -> None:
    """``cp.async.bulk.tensor.2d [shared], [map, {x, y}], [mbarrier]{, mask}{, policy}``.

    Of a map of tf32 an H200 rounds each f32 to the nearest, ties to even; ``.ftz`` flushes nothing in a copy.
    """
    for issue, tensor in _tensors(step, 1):
        box = _boxes(issue, 1, tensor)
        block, offset, places = _places(issue, 0, tensor, box)
        nbytes = np.full(len(block), tensor.map.box_bytes, dtype=np.int64)
        rounds = partial(to_tf32_rounded, mode="rn") if tensor.map.dtype.startswith("tf32") else None
        source = Global(box.unit, box.addresses, box.inside, rounds)
        fill: Array | None = None
        if tensor.map.fill == "nan":
            one = NAN_BITS[tensor.map.dtype].to_bytes(tensor.map.itemsize, "little")
            fill = np.frombuffer(one * (box.unit // len(one)), dtype=WORDS[box.unit])
        tile = (tensor.map, box.places)
        into_shared(issue, source, (block, offset), places, 2, nbytes=nbytes, fill=fill, tile=tile)


@machine(
    f"cp.async.bulk.tensor.{DIMENSIONS}.global.shared::cta{{,.tile}}.bulk_group{HINT}", "copies a box into a tensor"
)
@machine(
    f"cp.reduce.async.bulk.tensor.{DIMENSIONS}.global.shared::cta.{{add,min,max,inc,dec,and,or,xor}}{{,.tile}}"
    f".bulk_group{HINT}",
    "combines a box with what the tensor holds",
)
def store_box(step: FullStep) -> None:
    """``cp.async.bulk.tensor.2d [map, {x, y}], [shared]{, policy}``, and the same as a reduction.

    An H200 writes whole units of 16 bytes: where rows end within one, it writes on behind the tensor's last element.
    """
    opcode = step.instruction.opcode
    for issue, tensor in _tensors(step, 0):
        box = _boxes(issue, 0, tensor, whole=not opcode.startswith("cp.reduce"), stored=True)
        block, _, places = _places(issue, 1, tensor, box)
        reduce = None
        if opcode.startswith("cp.reduce"):
            reduce = reduction(issue.step, opcode.split("shared::cta.")[1].partition(".")[0], tensor.map.element)
        target = Global(box.unit, box.addresses, box.inside)
        out_of_shared(issue, Shared(block, places), target, reduce, box=True)


@machine(f"cp.async.bulk.prefetch.tensor.{DIMENSIONS}.L2.global{{,.tile}}{HINT}", "nothing: there is no cache")
def prefetch_box(step: FullStep) -> None:
    """``cp.async.bulk.prefetch.tensor.2d.L2.global [map, {x, y}]``: the map and the coordinates are checked."""
    for issue, tensor in _tensors(step, 0):
        _boxes(issue, 0, tensor)


@machine("prefetch{,.param,.const}.tensormap", "nothing: there is no cache")
def prefetch_map(step: FullStep) -> None:
    """``prefetch.tensormap [a]``: only a map may lie there."""
    _tensors(step, 0)


_SPACES = "{,.global,.shared::cta}"
_SCALARS = "rank,elemtype,interleave_layout,swizzle_mode,fill_mode"


def _words(step: FullStep, space: str, operand: int) -> list[Array]:
    """The 128 bytes at an address, as sixteen values of 64 bits."""
    issue, address = step.machine.bulk.issue(step), step.address(operand)
    issue.refuse_odd(issue.take(address), "a tensor map", MAP_ALIGNMENT)
    return [read(step, space, address + np.uint64(place), 8) for place in range(0, MAP_BYTES, 8)]


def _store(step: FullStep, space: str, operand: int, words: list[Array]) -> None:
    address = step.address(operand)
    for place, word in enumerate(words):
        write(step, space, address + np.uint64(8 * place), 8, word)


@machine(f"tensormap.replace.tile.global_address{_SPACES}.b1024.b64", "another address in a tensor map")
@machine(f"tensormap.replace.tile.{{{_SCALARS}}}{_SPACES}.b1024.b32", "another choice in a tensor map")
@machine(f"tensormap.replace.tile.{{box_dim,global_dim,element_stride}}{_SPACES}.b1024.b32", "another size of axis b")
@machine(f"tensormap.replace.tile.global_stride{_SPACES}.b1024.b64", "another stride of axis b + 1")
def replace(step: FullStep) -> None:
    """``tensormap.replace.tile.field [map]{, axis}, value``."""
    opcode, operands = step.instruction.opcode, step.instruction.operands
    axis = operands[1] if len(operands) == 3 else Immediate(0)
    if not isinstance(axis, Immediate):
        step.fail("unsupported", "axis of a field of a tensor map", expected="a constant", found=str(axis))
    issue, field = step.machine.bulk.issue(step), opcode.split(".")[3]
    space = "shared" if ".shared" in opcode else "global" if ".global." in opcode else ""
    words = _words(step, space, 0)
    values = issue.take(step.source(len(operands) - 1, opcode.rpartition(".")[2]))
    table = np.stack([step.machine.full(word)[issue.lanes] for word in words], axis=1).astype(np.uint64)
    try:
        for row, value in enumerate(values):
            contents = replaced(table[row].tobytes(), field, axis.value, int(value))
            table[row] = np.frombuffer(contents, dtype=np.uint64)
    except EmulationError as error:
        step.fail("tensor map", str(error).partition(": ")[2])
    changed = np.zeros((len(words), *step.machine.shape), dtype=np.uint64)
    changed[(slice(None), *issue.lanes)] = table.T
    _store(step, space, 0, list(changed))


@machine(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release{.cta,.cluster,.gpu,.sys}.sync.aligned",
    "copies a tensor map from shared to global memory, where copies may name it",
)
def publish(step: FullStep) -> None:
    """``tensormap.cp_fenceproxy... [global], [shared], 128``."""
    if step.instruction.operands[2] != Immediate(MAP_BYTES):
        step.fail("syntax", "size of a tensor map", expected=MAP_BYTES, found=str(step.instruction.operands[2]))
    _store(step, "global", 0, _words(step, "shared", 1))
