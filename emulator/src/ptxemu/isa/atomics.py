"""Atomic operations on global and shared memory: atom (which returns the old value) and red (which does not).

Lanes of one instruction that access one address are served in the order of block, warp and lane: any order is a legal
one, and this one makes every run alike. Each lane's old value is what the lane before it left. Lanes are sorted by
address; then all addresses are served at once, one lane of each per round, or, where few addresses have many lanes, by
the running minimum, bitwise result or rounded sum of each address. Integer sums need one running sum for all.

Source: PTX ISA 9.0, 9.7.13.5 (atom), 9.7.13.7 (red).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import numpy as np

from ptxemu.isa.loads import places, report
from ptxemu.machine.shared import SPACE
from ptxemu.machine.state import FullStep
from ptxemu.table import machine
from ptxemu.values import WARP, Array, BoolArray, as_type, halves, pack_halves, width

TINY = np.finfo(np.float32).tiny  # the smallest normal number: below it atom.global.add.f32 flushes to zero


@dataclass(frozen=True)
class Operation:
    """How an atomic changes memory.

    Attributes:
        new: (old values, operands...) -> new values, elementwise.
        chain: (memory's value, as an array of one; operands of n lanes, ...) -> n + 1 values: memory before and after
            each lane in turn.
    """

    new: Callable[..., Array]
    chain: Callable[..., Array]


def _running(ufunc: np.ufunc) -> Operation:
    """An operation of one operand, which NumPy can accumulate; floating-point sums are rounded at each lane."""
    return Operation(ufunc, lambda old, values: ufunc.accumulate(np.concatenate([old, values]), dtype=old.dtype))


def _one_by_one(new: Callable[[int, int], int]) -> Callable[[Array, Array], Array]:
    """The chain of a rule over Python integers."""

    def chain(old: Array, values: Array) -> Array:
        return np.array(list(accumulate([*old.tolist(), *values.tolist()], new)), dtype=old.dtype)

    return chain


def _swap(old: Array, expected: Array, new: Array) -> Array:
    """``cas``: new where memory holds what was expected."""
    return np.where(old == expected, new, old)


def _compare_and_swap(old: Array, expected: Array, new: Array) -> Array:
    """The chain of ``cas``: jumps from one lane that changes memory to the next."""
    running = np.repeat(old, len(expected) + 1)
    place = 0
    while (hits := np.flatnonzero((expected[place:] == running[-1]) & (new[place:] != running[-1]))).size:
        place += int(hits[0]) + 1
        running[place:] = new[place - 1]
    return running


def _flushed(value: Array) -> Array:
    """Subnormal numbers as zeros of the same sign."""
    return np.where(np.abs(value) < TINY, np.copysign(np.float32(0), value), value)


def _add_flushing(old: Array, value: Array) -> Array:
    """The sum as ``atom.global.add.f32`` forms it: subnormal inputs and results are zeros."""
    return _flushed(_flushed(old) + _flushed(value))


def _chain_flushing(old: Array, values: Array) -> Array:
    """The chain of `_add_flushing`: an ordinary one unless it meets a subnormal number."""
    running = np.add.accumulate(np.concatenate([old, values]))
    if (_flushed(values) == values).all() and (_flushed(running) == running).all():
        return running
    steps = accumulate([old, *values[:, None]], _add_flushing)
    return np.concatenate(list(steps))


OPERATIONS = {
    "add": _running(np.add),
    "min": _running(np.minimum),
    "max": _running(np.maximum),
    "and": _running(np.bitwise_and),
    "or": _running(np.bitwise_or),
    "xor": _running(np.bitwise_xor),
    "exch": Operation(lambda _old, new: new, lambda old, new: np.concatenate([old, new])),
    "cas": Operation(_swap, _compare_and_swap),
    "inc": Operation(
        lambda old, top: np.where(old >= top, np.uint32(0), old + np.uint32(1)),
        _one_by_one(lambda old, top: 0 if old >= top else old + 1),
    ),
    "dec": Operation(
        lambda old, top: np.where((old == 0) | (old > top), top, old - np.uint32(1)),
        _one_by_one(lambda old, top: top if old == 0 or old > top else old - 1),
    ),
}
FLUSHING_ADD = Operation(_add_flushing, _chain_flushing)


@dataclass(frozen=True)
class Form:
    """What an opcode says: operation, number of its operands, state space ("" is generic) and PTX type."""

    operation: str
    operands: int
    space: str
    type: str


@cache
def form_of(opcode: str) -> Form:
    """Reads a form such as ``atom.relaxed.gpu.global.add.u32``; the qualifiers' order varies, the type is last."""
    parts = [part.partition("::")[0] for part in opcode.split(".")]
    operation = next(part for part in parts if part in OPERATIONS)
    space = next((part for part in parts if part in {"global", "shared"}), "")
    return Form(operation, 2 if operation == "cas" else 1, space, parts[-1])


def serve(operation: Operation, initial: Array, operands: list[Array], starts: Array) -> tuple[Array, Array]:
    """Serves lanes one after another within each address: what each found, (lanes, ...), and what is left there.

    `initial` is what memory holds at each address, (addresses, ...); `operands` are those of each lane, (lanes, ...),
    sorted by address and in order of service; `starts` is the index of the first lane of each address.
    """
    lanes = len(operands[0])
    counts = np.diff(starts, append=lanes)
    if operation is OPERATIONS["add"] and initial.dtype.kind in "iu":
        # Sums that wrap may be taken in any order: one running sum over all addresses, less what it was at each one.
        operand, last = operands[0], starts + counts - 1
        before = np.cumsum(operand, dtype=operand.dtype) - operand
        old = before + np.repeat(initial - before[starts], counts)
        return old, old[last] + operand[last]
    if int(counts.max()) > len(starts):  # few addresses, many lanes: the running result of each address
        old, left = np.empty_like(operands[0]), np.empty_like(initial)
        for number, (first, end) in enumerate(zip(starts, [*starts[1:], lanes], strict=True)):
            running = operation.chain(initial[number : number + 1], *(operand[first:end] for operand in operands))
            old[first:end], left[number] = running[:-1], running[-1]
        return old, left
    return _by_round(operation.new, initial, operands, starts, counts)


def _by_round(
    new: Callable[..., Array], initial: Array, operands: list[Array], starts: Array, counts: Array
) -> tuple[Array, Array]:
    """Many addresses: round r serves the r-th lane of every address that has one."""
    old, left = np.empty_like(operands[0]), initial.copy()
    turn = np.arange(len(old)) - np.repeat(starts, counts)
    owner = np.repeat(np.arange(len(starts)), counts)
    order = np.argsort(turn, kind="stable")
    ends = np.cumsum(np.bincount(turn))
    for chosen in np.split(order, ends[:-1]):
        address = owner[chosen]
        old[chosen] = left[address]
        left[address] = new(left[address], *(operand[chosen] for operand in operands))
    return old, left


def _queue(step: FullStep, space: str, address: Array, mask: BoolArray | None) -> tuple[Array, Array]:
    """The lanes to serve (flat indices, by address and then in order) and where each address's lanes begin."""
    machine = step.machine
    active = step.lanes() if mask is None else machine.full(mask)
    lanes = np.flatnonzero(active)
    place = machine.full(address).reshape(-1)[lanes]
    if space == "shared":  # one address is another byte in every block
        place = place + (lanes // (machine.shape[1] * WARP)).astype(np.uint64) * np.uint64(1 << 40)
    elif space == SPACE:
        block, offset = machine.cluster.resolve(address)
        place = machine.full(block + (offset << 24)).reshape(-1)[lanes]
    order = np.argsort(place, kind="stable")
    place = place[order]
    return lanes[order], np.flatnonzero(np.append(place.size > 0, place[1:] != place[:-1]))


def _perform(step: FullStep, form: Form, where: tuple[str, Array, BoolArray | None], old: Array) -> None:
    """Serves the lanes of one state space; writes what each found into `old`, bits in the full shape."""
    space, address, mask = where
    if space == "local":
        step.fail("unsupported", "an atomic on local memory, undefined in PTX, is not supported", lanes=mask)
    near = step.machine.shared if space == "shared" else step.machine.memory
    memory = step.machine.cluster if space == SPACE else near
    nbytes = width(form.type)
    found = memory.load(step, address, nbytes, mask)
    lanes, starts = _queue(step, space, address, mask)
    if lanes.size == 0:
        return

    def served_lanes(value: Array) -> Array:
        return _elements(step.machine.full(value).reshape(-1)[lanes], form.type)

    last = len(step.instruction.operands)
    operands = [served_lanes(step.source(i, form.type)) for i in range(last - form.operands, last)]
    flushing = form.type == "f32" and space == "global"
    operation = FLUSHING_ADD if flushing else OPERATIONS[form.operation]
    initial = served_lanes(found)[starts]
    each, left = serve(operation, initial, operands, starts)
    old.reshape(-1)[lanes] = _bits(each, nbytes)
    final, words = np.zeros_like(old), _bits(left, nbytes)
    step.machine.swaps += bool((words != _bits(initial, nbytes)).any())
    final.reshape(-1)[lanes] = np.repeat(words, np.diff(starts, append=len(lanes)))
    memory.store(step, address, nbytes, final, mask)
    report(step, space, "atom", address, nbytes, mask)


def _elements(values: Array, ptx_type: str) -> Array:
    """Values as numbers to compute with: packed halves get an axis of their own."""
    return halves(values, ptx_type) if ptx_type == "f16x2" else as_type(values, ptx_type)


def _bits(values: Array, nbytes: int) -> Array:
    """The inverse of `_elements`, as unsigned integers."""
    return pack_halves(values) if values.ndim > 1 else values.view(f"u{nbytes}")


def _execute(step: FullStep, address_operand: int) -> Array:
    """Performs the atomic for the executing lanes; the old values, in the full shape."""
    form = form_of(step.instruction.opcode)
    address = step.address(address_operand)
    old = np.zeros(step.machine.shape, dtype=f"u{width(form.type)}")
    for where in places(step, form.space, address):
        _perform(step, form, where, old)
    return as_type(old, form.type)


_SPACE = "{,.global,.shared,.shared::cta,.shared::cluster}"
_ORDER = "{.relaxed,.acquire,.release,.acq_rel}{.cta,.cluster,.gpu,.sys}"
_REDUCTIONS = [
    *("add.u32", "add.s32", "add.u64", "add.f32", "add.f64", "add.noftz.f16", "add.noftz.f16x2"),
    *(f"{name}.{kind}" for name in ("min", "max") for kind in ("u32", "s32", "u64", "s64")),
    *(f"{name}.{kind}" for name in ("and", "or", "xor") for kind in ("b32", "b64")),
    *("inc.u32", "dec.u32"),
]
_EXCHANGES = ["exch.b32", "exch.b64", "cas.b16", "cas.b32", "cas.b64"]
_RED = "{" + ",".join(_REDUCTIONS) + "}"
_ATOM = "{" + ",".join(_REDUCTIONS + _EXCHANGES) + "}"


@machine(f"atom{{,.cta,.cluster,.gpu,.sys}}{_SPACE}.{_ATOM}", "atomic operation that returns the old value")
@machine(f"atom{_ORDER}{_SPACE}.{_ATOM}", "atomic operation with a memory order")
def atom(step: FullStep) -> None:
    """``atom d, [a], b{, c}``: d is what this lane found; lanes take turns by block, warp and lane."""
    step.write(0, _execute(step, 1))


@machine(f"red{{,.cta,.cluster,.gpu,.sys}}{_SPACE}.{_RED}", "atomic operation")
@machine(f"red{{.relaxed,.release}}{{.cta,.cluster,.gpu,.sys}}{_SPACE}.{_RED}", "atomic operation with a memory order")
def red(step: FullStep) -> None:
    """``red [a], b``: `atom` without its result."""
    _execute(step, 0)


for _operation in _REDUCTIONS + _EXCHANGES:  # other orders of qualifiers, which nvcc and libcu++ write
    _name, _, _kind = _operation.partition(".")
    machine(f"atom{{.global,.shared}}{{.cta,.sys}}.{_operation}", "atomic operation in a scope")(atom)
    machine(f"atom.{_name}{_ORDER}.{_kind}", "atomic operation with a memory order")(atom)
