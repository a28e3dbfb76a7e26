"""atom and red against a model that serves one lane after another with Python numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.stepping import Bench, at

from ptxemu.errors import EmulationError
from ptxemu.isa.atomics import form_of
from ptxemu.machine.memory import LOCAL_WINDOW, SHARED_WINDOW, GlobalMemory
from ptxemu.machine.shared import LocalMemory, SharedMemory
from ptxemu.syntax.tree import Register
from ptxemu.table import ROWS
from ptxemu.values import DTYPES, Array, pack_halves

BLOCKS, WARPS = 2, 2
SHAPE = (BLOCKS, WARPS, 32)
CELLS = 40  # 16 bytes apart


def flushed(value: np.float32) -> np.float32:
    return np.float32(np.copysign(0, value)) if abs(value) < np.finfo(np.float32).tiny else value


def add_f16x2(old: int, value: int) -> int:
    pair = np.array([old, value], np.uint32).view(np.float16).reshape(2, 2)
    return int((pair[0] + pair[1]).view(np.uint32)[0])


RULES: dict[str, Callable[..., Any]] = {
    "add": lambda old, b: old + b,
    "min": min,
    "max": max,
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "exch": lambda old, b: b,
    "cas": lambda old, b, c: c if old == b else old,
    "inc": lambda old, b: 0 if old >= b else old + 1,
    "dec": lambda old, b: b if old == 0 or old > b else old - 1,
}
OPERATIONS = [
    *("add.u32", "add.s32", "add.u64", "add.f32", "add.f64", "add.noftz.f16", "add.noftz.f16x2", "inc.u32", "dec.u32"),
    *(f"{name}.{kind}" for name in ("min", "max") for kind in ("u32", "s32", "u64", "s64")),
    *(f"{name}.{kind}" for name in ("and", "or", "xor") for kind in ("b32", "b64")),
    *("exch.b32", "exch.b64", "cas.b16", "cas.b32", "cas.b64"),
]


def sequential(operation: str, space: str, old: Any, *operands: Any) -> Any:
    """What one lane leaves in memory, as a number of the operation's type."""
    name, _, kind = operation.replace(".noftz", "").partition(".")
    dtype = DTYPES[kind]
    if kind == "f16x2":
        return np.uint32(add_f16x2(int(old), int(operands[0])))
    if dtype.kind == "f":
        a, b = dtype.type(old), dtype.type(operands[0])
        if kind == "f32" and space == "global":
            return flushed(flushed(a) + flushed(b))
        return a + b
    number = RULES[name](int(old), *(int(operand) for operand in operands))
    return np.array(number % 2 ** (8 * dtype.itemsize), f"u{dtype.itemsize}").view(dtype)[()]


def random_numbers(rng: Any, kind: str, shape: tuple[int, ...]) -> Array:
    """Numbers of a type with many equal ones; floats of all magnitudes with subnormal ones."""
    dtype: np.dtype[Any] = DTYPES[kind]
    if kind == "f16x2":
        pair = random_numbers(rng, "f16", (*shape, 2))
        return pack_halves(pair)
    if dtype.kind == "f":
        scale = np.exp2(rng.integers(*{2: (-20, 4), 4: (-149, -120), 8: (-40, 40)}[dtype.itemsize], shape))
        return np.asarray(rng.standard_normal(shape) * scale).astype(dtype)
    small = rng.integers(0, 6, shape, dtype=np.int64)
    large = rng.integers(-(2**62), 2**62, shape, dtype=np.int64)
    mixed: Array = np.where(rng.random(shape) < 0.8, small, large)
    return mixed.astype(f"u{dtype.itemsize}").view(dtype)


class Case:
    """Random cells, operands, addresses and mask for one operation in one space; the model's answer."""

    def __init__(self, operation: str, space: str, rng: Any, cells: int) -> None:
        self.operation, self.space = operation, space
        self.kind = operation.rpartition(".")[2]
        self.dtype = DTYPES[self.kind]
        self.bench = Bench(BLOCKS, WARPS)
        self.bench.machine.memory = GlobalMemory()
        self.bench.machine.shared = SharedMemory(BLOCKS, CELLS * 16)
        self.cells = random_numbers(rng, self.kind, (BLOCKS if space == "shared" else 1, CELLS))
        self.which = rng.integers(0, cells, [SHAPE, (1, 1, 32), (1, 1, 1), (1, 2, 32)][rng.integers(4)])
        shape = [SHAPE, (1, 1, 1), (1, 1, 32)][rng.integers(3)]
        count = 2 if operation.startswith("cas") else 1
        self.operands = [random_numbers(rng, self.kind, shape) for _ in range(count)]
        self.mask = rng.random(SHAPE) < 0.6 if rng.random() < 0.6 else None
        self._place()

    def _place(self) -> None:
        memory, index = (
            self.bench.machine.memory,
            np.arange(CELLS, dtype=np.uint64).reshape(1, 1, CELLS) * np.uint64(16),
        )
        storage = np.zeros((CELLS, 16), np.uint8)
        storage[:, : self.dtype.itemsize] = self.cells[0].view(np.uint8).reshape(CELLS, -1)
        self.base = memory.allocate(storage, "cells") if self.space == "global" else 0
        if self.space == "shared":
            values = self.cells.view(f"u{self.dtype.itemsize}")[:, None]
            self.bench.machine.shared.store(self.bench.step("st"), index, self.dtype.itemsize, values)

    def run(self, opcode: str, generic: bool, returns: bool) -> Array:
        address = self.which.astype(np.uint64) * np.uint64(16) + np.uint64(self.base)
        if generic and self.space == "shared":
            address = address + np.uint64(SHARED_WINDOW)
        if self.mask is not None and self.which.shape == SHAPE:
            address[~self.mask] = 3 << 61
        self.bench.set("a", address)
        registers = [self.bench.set(f"b{i}", value) for i, value in enumerate(self.operands)]
        destination = [self.bench.set("d", np.zeros((1, 1, 1), self.dtype))] if returns else []
        self.bench.run(opcode, *destination, at(Register("a")), *registers, mask=self.mask)
        return np.broadcast_to(self.bench.get("d"), SHAPE) if returns else np.zeros(SHAPE)

    def expected(self) -> tuple[Array, Array]:
        """Each lane's old value, and the cells afterwards."""
        old, cells = np.zeros(SHAPE, self.dtype), self.cells.copy()
        which = np.broadcast_to(self.which, SHAPE)
        operands = [np.broadcast_to(operand, SHAPE) for operand in self.operands]
        for place in np.ndindex(SHAPE):
            if self.mask is None or self.mask[place]:
                cell = (place[0] if self.space == "shared" else 0, which[place])
                old[place] = cells[cell]
                cells[cell] = sequential(self.operation, self.space, old[place], *(value[place] for value in operands))
        return old, cells

    def found(self) -> Array:
        each = self.dtype.itemsize
        if self.space == "global":
            storage = np.zeros((CELLS, 16), np.uint8)
            self.bench.machine.memory.read_back("cells", storage)
            return np.ascontiguousarray(storage[:, :each]).view(self.dtype).reshape(1, CELLS)
        index = np.arange(CELLS, dtype=np.uint64).reshape(1, 1, CELLS) * np.uint64(16)
        return self.bench.machine.shared.load(self.bench.step("ld"), index, each).view(self.dtype)[:, 0]


def same(left: Array, right: Array) -> bool:
    unsigned = f"u{left.dtype.itemsize}"
    return bool((left.view(unsigned) == right.view(unsigned)).all())


@pytest.mark.parametrize("operation", OPERATIONS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_lanes_are_served_one_after_another(operation: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    space = str(rng.choice(["global", "shared"]))
    case = Case(operation, space, rng, cells=int(rng.choice([1, 2, CELLS])))
    generic = bool(rng.random() < 0.3)
    returns = operation[:2] in {"ex", "ca"} or rng.random() < 0.7
    opcode = f"{'atom' if returns else 'red'}{'' if generic else '.' + space}.{operation}"
    with np.errstate(all="ignore"):
        old, cells = case.expected()
    found = case.run(opcode, generic, bool(returns))
    if returns:
        assert same(np.ascontiguousarray(found), old), opcode
    assert same(case.found(), cells), opcode
    (access,) = case.bench.ears.accesses
    assert (access.space, access.kind, access.width, access.mask is case.mask) == (
        space,
        "atom",
        case.dtype.itemsize,
        True,
    )


def test_a_block_counts_in_its_own_shared_memory_and_the_grid_in_global() -> None:
    for space, expected in (("shared", np.arange(128) % 64), ("global", np.arange(128))):
        made = Bench(BLOCKS, WARPS)
        made.machine.shared, made.machine.memory = SharedMemory(BLOCKS, 16), GlobalMemory()
        base = made.machine.memory.allocate(16, "x")
        made.machine.shared.store(made.step("st"), np.zeros((1, 1, 1), np.uint64), 4, np.zeros((1, 1, 1), np.uint32))
        made.set("a", np.full((1, 1, 1), base if space == "global" else 0, np.uint64))
        made.set("one", np.ones((1, 1, 1), np.uint32))
        made.run(f"atom.{space}.add.u32", made.destination("d"), at(Register("a")), Register("one"))
        assert made.get("d").ravel().tolist() == expected.tolist()


def test_subnormal_sums_are_flushed_in_global_memory_only() -> None:
    tiny = np.array([2**-130], np.float32).reshape(1, 1, 1)
    one_lane = np.arange(32).reshape(1, 1, 32) == 0
    results = {}
    for space in ("global", "shared"):
        made = Bench()
        made.machine.shared, made.machine.memory = SharedMemory(1, 16), GlobalMemory()
        base = made.machine.memory.allocate(np.array([-(2.0**-131)], np.float32), "x") if space == "global" else 0
        made.machine.shared.store(made.step("st"), np.zeros((1, 1, 1), np.uint64), 4, (-tiny / 2).view(np.uint32))
        made.set("a", np.full((1, 1, 1), base, np.uint64))
        made.set("b", tiny)
        made.run(f"atom.{space}.add.f32", made.destination("d"), at(Register("a")), Register("b"), mask=one_lane)
        assert made.get("d").view(np.float32)[0, 0, 0] == np.float32(-(2.0**-131)), "the old value is as it was"
        made.run(f"ld.{space}.f32", made.destination("e"), at(Register("a")))
        results[space] = float(made.get("e").view(np.float32).ravel()[0])
    assert results == {"global": 0.0, "shared": 2.0**-131}


def test_lanes_may_reach_shared_and_global_memory_at_once() -> None:
    made = Bench(BLOCKS, WARPS)
    made.machine.shared, made.machine.memory = SharedMemory(BLOCKS, 16), GlobalMemory()
    base = made.machine.memory.allocate(16, "x")
    made.machine.shared.store(made.step("st"), np.zeros((1, 1, 1), np.uint64), 4, np.zeros((1, 1, 1), np.uint32))
    even = np.arange(32).reshape(1, 1, 32) % 2 == 0
    made.set("a", np.where(even, np.uint64(base), np.uint64(SHARED_WINDOW)))
    made.set("one", np.ones((1, 1, 1), np.uint32))
    made.run("atom.add.u32", made.destination("d"), at(Register("a")), Register("one"))
    number = np.arange(128).reshape(SHAPE) // 2
    assert (made.get("d") == np.where(even, number, number % 32)).all()


def test_no_lane_does_nothing() -> None:
    made = Bench()
    made.machine.memory = GlobalMemory()
    made.set("a", np.full((1, 1, 1), 99, np.uint64))
    made.set("one", np.ones((1, 1, 1), np.uint32))
    nobody = np.zeros((1, 1, 1), np.bool_)
    for opcode in ("atom.global.add.u32", "atom.add.u32"):
        made.run(opcode, made.destination("d"), at(Register("a")), Register("one"), mask=nobody)
        assert (made.get("d") == 0xFFFFFFFF).all()
    assert made.ears.accesses == []


@pytest.mark.parametrize(
    ("opcode", "address", "kind"),
    [
        ("atom.shared.add.u32", 0, "uninitialised"),
        ("atom.shared.add.u32", 64, "out-of-bounds"),
        ("red.shared.add.u64", 4, "misaligned"),
        ("atom.global.add.u32", 0, "out-of-bounds"),
        ("atom.add.u32", LOCAL_WINDOW, "unsupported"),
    ],
)
def test_errors(opcode: str, address: int, kind: str) -> None:
    made = Bench()
    made.machine.shared, made.machine.memory, made.machine.local = (
        SharedMemory(1, 64),
        GlobalMemory(),
        LocalMemory((1, 1, 32), 16),
    )
    made.set("a", np.full((1, 1, 1), address, np.uint64))
    made.set("b", np.ones((1, 1, 1), np.uint64 if opcode.endswith("64") else np.uint32))
    destination = [] if opcode.startswith("red") else [made.destination("d")]
    with pytest.raises(EmulationError) as caught:
        made.run(opcode, *destination, at(Register("a")), Register("b"))
    assert caught.value.kind == kind
    assert made.ears.accesses == []


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("atom.relaxed.gpu.global.add.u32", ("add", 1, "global", "u32")),
        ("atom.add.acq_rel.cta.u32", ("add", 1, "", "u32")),
        ("atom.global.sys.add.u32", ("add", 1, "global", "u32")),
        ("atom.cas.acquire.gpu.b32", ("cas", 2, "", "b32")),
        ("red.release.sys.shared::cta.max.s64", ("max", 1, "shared", "s64")),
        ("atom.global.add.noftz.f16x2", ("add", 1, "global", "f16x2")),
    ],
)
def test_forms(opcode: str, expected: tuple[Any, ...]) -> None:
    form = form_of(opcode)
    assert (form.operation, form.operands, form.space, form.type) == expected
    assert ROWS[opcode].group == "atomics"


@pytest.mark.parametrize("opcode", ["red.global.exch.b32", "atom.add.f16", "atom.global.add.b32", "red.cas.b32"])
def test_forms_that_do_not_exist(opcode: str) -> None:
    assert opcode not in ROWS
