"""Loads and stores: ld, st, ldu, prefetch, and the fences.

Every form is one row; its state space, vector length and type are read from the opcode. Caching and eviction
qualifiers are performance hints without effect on values. The emulator executes one instruction of a warp at a time
and memory holds one value per byte, so that memory is sequentially consistent: ``.relaxed``, ``.acquire``,
``.release``, ``.volatile``, ``membar`` and ``fence`` change nothing. (What a program may rely on without them is for
the race detector to judge.)

Source: PTX ISA 9.0, 9.7.9.8 (ld), 9.7.9.9 (ld.global.nc), 9.7.9.10 (ldu), 9.7.9.11 (st), 9.7.9.15 (prefetch), 9.7.13.4
(membar, fence).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from ptxemu.machine.memory import LOCAL_WINDOW, SHARED_WINDOW, GlobalMemory, per_address
from ptxemu.machine.observer import Access, RemoteAccess
from ptxemu.machine.shared import SPACE, Cluster, LocalMemory, Parameters, SharedMemory
from ptxemu.machine.state import FullStep
from ptxemu.table import machine
from ptxemu.values import DTYPES, Array, BoolArray, as_type, width

SPACES = ("global", "shared", "local", "const", "param")
_WINDOWS = {"global": 0, "shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": SHARED_WINDOW | LOCAL_WINDOW}
_TAGS = {0: "global", 1: "shared", 2: "local", 3: "param"}  # bits 56 and up of a generic address


@dataclass(frozen=True)
class Form:
    """What an opcode says about memory: `space` ("" is generic), elements per lane, PTX type, bytes per lane."""

    space: str
    count: int
    type: str
    width: int


@cache
def form_of(opcode: str) -> Form:
    """Reads a form such as ``st.global.L1::no_allocate.v4.b32``; the type is last."""
    parts = opcode.split(".")
    spaces = [part.partition("::")[0] for part in parts[1:] if part.partition("::")[0] in SPACES]
    count = 4 if "v4" in parts else 2 if "v2" in parts else 1
    return Form(spaces[0] if spaces else "", count, parts[-1], count * width(parts[-1]))


def read(step: FullStep, space: str, address: Array, nbytes: int, kind: str | None = "ld") -> Array:
    """Reads `nbytes` per executing lane and tells the observers, unless the `kind` of access is None.

    Returns:
        Unsigned integers of the address's shape, or of a larger one that broadcasts with it; 16 bytes: (..., 4) of u32.

    Raises:
        EmulationError: "out-of-bounds", "misaligned", "uninitialised".
    """
    result: Array | None = None
    for where, offset, mask in places(step, space, address):
        values = _state(step, where).load(step, offset, nbytes, mask)
        if kind is not None:
            report(step, where, kind, offset, nbytes, mask)
        if result is None or mask is None:
            result = values
        else:
            result = np.where(mask[..., None] if nbytes == 16 else mask, values, result)
    if result is None:  # no lane executes
        return np.zeros((1, 1, 1, 4), np.uint32) if nbytes == 16 else np.zeros((1, 1, 1), f"u{nbytes}")
    return result


def write(step: FullStep, space: str, address: Array, nbytes: int, values: Array) -> None:
    """Writes `nbytes` per executing lane (values as `read` returns them) and tells the observers."""
    for where, offset, mask in places(step, space, address):
        if where == "param":
            step.fail("unsupported", "store to the kernel's parameters", lanes=mask, hint="they can only be read")
        _state(step, where).store(step, offset, nbytes, values, mask)
        report(step, where, "st", offset, nbytes, mask)


def places(step: FullStep, space: str, address: Array) -> list[tuple[str, Array, BoolArray | None]]:
    """What an access of `space` ("" is generic) means, as `split` lists it, with ``shared::cluster`` on its own."""
    found: list[tuple[str, Array, BoolArray | None]]
    found = split(step, address) if space == "" else [(space, address, None)]
    if not step.machine.cluster.mapped_any:
        return found
    return [
        (SPACE if where == "shared" and step.machine.cluster.reaches(step, offset, mask) else where, offset, mask)
        for where, offset, mask in found
    ]


def split(step: FullStep, address: Array) -> list[tuple[str, Array, BoolArray | None]]:
    """Generic addresses by state space: (space, offset in it, lanes; None: all that execute)."""
    if int(address.max()) < SHARED_WINDOW:
        return [("global", address, None)]
    tags = address >> np.uint64(56)
    active = np.ones_like(tags, dtype=np.bool_) if step.mask is None else per_address(step.mask, tags.shape)
    active = np.broadcast_to(active, tags.shape)
    present = [int(tag) for tag in np.unique(tags[active])]
    found: list[tuple[str, Array, BoolArray | None]] = []
    for tag in present:
        space = _TAGS.get(tag, "global")  # a wild pointer: global memory names the nearest buffer
        chosen = tags == np.uint64(tag)
        mask = None if len(present) == 1 else chosen if step.mask is None else chosen & step.mask
        found.append((space, address - np.uint64(_WINDOWS[space]), mask))
    return found


def report(step: FullStep, space: str, kind: str, address: Array, nbytes: int, mask: BoolArray | None) -> None:
    """Tells the observers of an access to shared or global memory that was found valid."""
    if step.machine.observers and space in {"shared", "global"}:
        access = Access(space, kind, address, nbytes, step.mask if mask is None else mask)
        for observer in step.machine.observers:
            observer.access(step, access)
    elif step.machine.observers and space == SPACE:
        lanes, blocks, offsets = step.machine.cluster.places(step, address, nbytes, mask)
        for observer in step.machine.observers:
            observer.remote(step, RemoteAccess(kind, lanes, blocks, offsets, nbytes))


@lru_cache(maxsize=4)
def _parameters(contents: bytes) -> Parameters:
    return Parameters(contents)


def _state(step: FullStep, space: str) -> GlobalMemory | SharedMemory | LocalMemory | Parameters | Cluster:
    """What holds a state space; constants are buffers of global memory."""
    match space:
        case "shared":
            return step.machine.shared
        case "shared::cluster":
            return step.machine.cluster
        case "local":
            return step.machine.local
        case "param":
            return _parameters(step.machine.parameters)
        case _:
            return step.machine.memory


def unpacked(raw: Array, count: int, ptx_type: str) -> list[Array]:
    """The elements of a vector access: `count` values of `ptx_type` from what `read` returned."""
    if count == 1:
        return [as_type(raw, ptx_type)]
    joined = np.ascontiguousarray(raw)
    elements = (joined if raw.ndim == 4 else joined[..., None]).view(DTYPES[ptx_type])
    return list(np.ascontiguousarray(np.moveaxis(elements, -1, 0)))


def packed(elements: list[Array], nbytes: int) -> Array:
    """The inverse of `unpacked`: what `write` takes."""
    if len(elements) == 1:
        return elements[0].view(f"u{nbytes}")
    joined = np.stack(np.broadcast_arrays(*elements), axis=-1)
    return joined.view(np.uint32) if nbytes == 16 else joined.view(f"u{nbytes}")[..., 0]


_SCALARS = [f"{kind}{bits}" for kind in "bus" for bits in (8, 16, 32, 64)] + ["f32", "f64"]
_SHAPES = [*_SCALARS, *(f"v{count}.{kind}" for count in (2, 4) for kind in _SCALARS if count * width(kind) <= 16)]
_TYPE = "{" + ",".join(_SHAPES) + "}"
_L1 = "{,.L1::evict_normal,.L1::evict_unchanged,.L1::evict_first,.L1::evict_last,.L1::no_allocate}"
_L2 = "{,.L2::64B,.L2::128B,.L2::256B}"
_SHARED = ".shared,.shared::cta,.shared::cluster"
_WHERE = f"{{,.global,{_SHARED}}}"
_SCOPE = "{.cta,.cluster,.gpu,.sys}"


@machine(f"ld{{,{_SHARED},.local,.const,.param}}.{_TYPE}", "load from a state space, or by generic address")
@machine(f"ld.global{_L1}{_L2}.{_TYPE}", "load from global memory")
@machine(f"ld.global{{.ca,.cg,.cs,.lu,.cv}}.{_TYPE}", "load from global memory, with a cache operator")
@machine(f"ld.global.nc{_L1}{_L2}.{_TYPE}", "load from global memory through the read-only cache")
@machine(f"ld.global{{.ca,.cg,.cs}}.nc.{_TYPE}", "load from global memory through the read-only cache")
@machine(f"ld.weak{{,.global,{_SHARED},.local,.const,.param}}.{_TYPE}", "load, without an order between threads")
@machine(f"ld.volatile{_WHERE}.{_TYPE}", "load that is never cached or removed")
@machine(f"ld{{.relaxed,.acquire}}{_SCOPE}{_WHERE}.{_TYPE}", "load with a memory order")
@machine(f"ldu{{,.global}}.{_TYPE}", "load of an address that is the same for all lanes of the warp")
def load(step: FullStep) -> None:
    """``ld d, [a]``: elements narrower than their register are extended, by sign for ``.s8`` to ``.s32``."""
    form = form_of(step.instruction.opcode)
    raw = read(step, form.space, step.address(1), form.width)
    step.write_vector(0, unpacked(raw, form.count, form.type))


@machine(f"st{{,{_SHARED},.local}}.{_TYPE}", "store to a state space, or by generic address")
@machine(f"st.global{_L1}.{_TYPE}", "store to global memory")
@machine(f"st.global{{.wb,.cg,.cs,.wt}}.{_TYPE}", "store to global memory, with a cache operator")
@machine(f"st.weak{{,.global,{_SHARED},.local}}.{_TYPE}", "store, without an order between threads")
@machine(f"st.volatile{_WHERE}.{_TYPE}", "store that is never delayed or removed")
@machine(f"st{{.relaxed,.release}}{_SCOPE}{_WHERE}.{_TYPE}", "store with a memory order")
def store(step: FullStep) -> None:
    """``st [a], b``: the low bits of a register that is wider than the type."""
    form = form_of(step.instruction.opcode)
    values = step.vector(1, form.type)
    if len(values) != form.count:
        step.fail("syntax", "registers of the source", expected=form.count, found=len(values))
    write(step, form.space, step.address(0), form.width, packed(values, form.width))


@machine("prefetch{,.global,.local}{.L1,.L2}", "nothing: there is no cache")
@machine("prefetch.global{.L2::evict_last,.L2::evict_normal}", "nothing: there is no cache")
@machine("prefetchu.L1", "nothing: there is no cache")
@machine("membar{.cta,.gl,.sys}", "nothing: memory is sequentially consistent")
@machine("fence{,.sc,.acq_rel}{.cta,.gpu,.sys}", "nothing: memory is sequentially consistent")
def nothing(_step: FullStep) -> None:
    """Prefetches and fences; a prefetch of an invalid address is no error on hardware either (9.7.9.15)."""
