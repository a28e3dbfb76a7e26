"""Tensor-core instructions: shapes that broadcast, masks, events, errors, exact conversions and what is kept.

What the instructions compute is in tests/emulator_cases/matrix.py, whose reference places every element by the ISA's
formulas; here it is used on many blocks and warps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import gc
import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.stepping import Bench, at

from ptxemu.errors import EmulationError
from ptxemu.isa import matrix
from ptxemu.values import Array

MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
LDMATRIX = "ldmatrix.sync.aligned.m8n8.{}.shared.b16"


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Each test begins without converted operands."""
    matrix.LEFT.clear()
    matrix.RIGHT.clear()
    with np.errstate(all="ignore"):
        yield


def tile(values: Array) -> Array:
    """(blocks, warps, 8, 8) of 16-bit numbers as a register: two neighbours of a row per lane."""
    words = np.ascontiguousarray(values).view(np.uint32)
    return words.reshape(*values.shape[:2], 32)


def tiles_of_a(a: Array) -> list[Array]:
    return [tile(a[..., rows : rows + 8, k : k + 8]) for k in range(0, a.shape[-1], 8) for rows in (0, 8)]


def tiles_of_b(b: Array) -> list[Array]:
    columns = b.swapaxes(-1, -2)
    return [tile(columns[..., k : k + 8]) for k in range(0, columns.shape[-1], 8)]


def numbers(shape: tuple[int, ...], seed: int, dtype: Any = np.float16) -> Array:
    """Small integers: products and sums are exact."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


def result(bench: Bench, blocks: int, warps: int) -> Array:
    """D as (blocks, warps, 16, 8), read lane by lane."""
    d = np.zeros((blocks, warps, 16, 8), np.float32)
    for register in range(4):
        value = np.broadcast_to(bench.get(f"d{register}"), (blocks, warps, 32))
        for lane in range(32):
            d[..., (lane >> 2) + 8 * (register >> 1), 2 * (lane & 3) + (register & 1)] = value[..., lane]
    return d


def multiply(bench: Bench, a: list[Array], b: list[Array], c: list[Array], opcode: str = MMA, **options: Any) -> None:
    d = bench.fragment("d", [np.full((1, 1, 1), 0xFFFFFFFF, np.uint32) for _ in c])
    bench.run(opcode, d, bench.fragment("a", a), bench.fragment("b", b), bench.fragment("c", c), **options)


ZERO = [np.zeros((1, 1, 1), np.float32)] * 4


@pytest.mark.parametrize("a_shape", [(1, 1), (3, 1), (1, 4), (3, 4)])
@pytest.mark.parametrize("b_shape", [(1, 1), (3, 1), (1, 4), (3, 4)])
def test_mma_broadcasts_and_stays_as_small_as_its_inputs(a_shape: tuple[int, int], b_shape: tuple[int, int]) -> None:
    a, b = numbers((*a_shape, 16, 16), 1), numbers((*b_shape, 16, 8), 2)
    bench = Bench(3, 4)
    multiply(bench, tiles_of_a(a), tiles_of_b(b), ZERO)
    assert bench.get("d0").shape == (*np.broadcast_shapes(a_shape, b_shape), 32)
    expected = np.broadcast_to(a.astype(np.float32) @ b.astype(np.float32), (3, 4, 16, 8))
    assert np.array_equal(result(bench, 3, 4), expected)
    assert bench.ears.synced == []


def test_mma_takes_one_number_for_all_lanes() -> None:
    bench = Bench(2, 2)
    ones = [np.full((1, 1, 1), 0x3C003C00, np.uint32)] * 4
    multiply(bench, ones, ones[:2], [np.full((1, 1, 1), 0.5, np.float32)] * 4)
    assert (result(bench, 2, 2) == 16.5).all()


def test_mma_takes_registers_whose_lanes_are_not_side_by_side() -> None:
    a, b = numbers((2, 2, 16, 16), 3), numbers((2, 2, 16, 8), 4)
    apart = [np.repeat(register, 2, axis=-1)[..., ::2] for register in tiles_of_a(a)]
    outer = [np.ascontiguousarray(register.swapaxes(0, 1)).swapaxes(0, 1) for register in tiles_of_b(b)]
    bench = Bench(2, 2)
    multiply(bench, apart, outer, ZERO)
    assert np.array_equal(result(bench, 2, 2), a.astype(np.float32) @ b.astype(np.float32))


def test_mma_under_a_mask_leaves_other_warps_alone() -> None:
    a, b = numbers((1, 3, 16, 16), 5), numbers((1, 3, 16, 8), 6)
    bench = Bench(1, 3)
    mask = np.zeros((1, 3, 32), np.bool_)
    mask[0, 1] = True
    multiply(bench, tiles_of_a(a), tiles_of_b(b), ZERO, mask=mask)
    assert np.array_equal(result(bench, 1, 3)[0, 1], a[0, 1].astype(np.float32) @ b[0, 1].astype(np.float32))
    assert (bench.get("d0").view(np.uint32)[0, [0, 2]] == 0xFFFFFFFF).all()
    assert bench.ears.synced == []


@pytest.mark.parametrize("opcode", [MMA, LDMATRIX.format("x4"), "movmatrix.sync.aligned.m8n8.trans.b16"])
def test_aligned_instructions_refuse_part_of_a_warp(opcode: str) -> None:
    bench = Bench(1, 2)
    a = bench.fragment("a", [np.zeros((1, 1, 1), np.uint32)] * 4)
    d = bench.fragment("d", [np.zeros((1, 1, 1), np.uint32)] * 4)
    b = bench.fragment("b", [np.zeros((1, 1, 1), np.uint32)] * 2)
    operands = {
        "mma": (d, a, b, d),
        "ldm": (d, at(bench.set("p", np.zeros((1, 1, 1), np.uint32)))),
        "mov": (d.items[0], a.items[0]),
    }
    mask = np.ones((1, 2, 32), np.bool_)
    mask[0, 1, 20:] = False
    with pytest.raises(EmulationError, match="all 32 lanes") as caught:
        bench.run(opcode, *operands[opcode[:3]], mask=mask)
    assert (caught.value.kind, caught.value.lane) == ("divergent-warp", 32)
    assert bench.ears.synced == []


def test_mma_with_registers_that_do_not_make_up_k_is_an_error() -> None:
    zero = [np.zeros((1, 1, 1), np.uint32)] * 4
    with pytest.raises(EmulationError, match="registers of A, B, C") as caught:
        multiply(Bench(), zero[:3], zero[:2], zero)
    assert caught.value.kind == "syntax"


def test_sums_of_f16_are_rounded_once() -> None:
    """2048 + 1 + 1: each addition alone would be rounded back to 2048."""
    a, b = np.zeros((1, 1, 16, 16), np.float16), np.zeros((1, 1, 16, 8), np.float16)
    a[..., :2], b[..., :2, :] = 1, 1
    bench = Bench()
    multiply(
        bench,
        tiles_of_a(a),
        tiles_of_b(b),
        [np.full((1, 1, 1), 0x68006800, np.uint32)] * 2,
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
    )
    assert (bench.get("d1").view(np.float16) == 2050).all()


# --- conversions ------------------------------------------------------------------------------------------------------


def every_pattern() -> Array:
    return np.arange(1 << 16, dtype=np.uint16)


def as_rows(patterns: Array) -> Array:
    return np.ascontiguousarray(patterns).view(matrix.ROW).reshape(1, 1, -1, 1)


def same(found: Array, expected: Array) -> bool:
    """Equal bits; NaN equals NaN."""
    nan = np.isnan(found) & np.isnan(expected)
    return bool((nan | (found.view(np.uint32) == expected.view(np.uint32))).all())


@pytest.mark.parametrize("finite", [True, False])
def test_f16_is_widened_exactly(finite: bool) -> None:
    """With infinities and NaN beside them, and without: two different ways."""
    patterns = every_pattern()
    if finite:
        patterns = patterns[patterns & 0x7C00 != 0x7C00]
    found = matrix.widened(as_rows(patterns), "f16")
    assert same(found.reshape(-1), patterns.view(np.float16).astype(np.float32))


@pytest.mark.parametrize("special", [0x7C00, 0xFC00, 0x7E00, 0xFE01])
def test_one_infinity_or_nan_is_noticed(special: int) -> None:
    patterns = np.zeros(64, np.uint16)
    patterns[17] = special
    found = matrix.widened(as_rows(patterns), "f16")
    assert not np.isfinite(found.reshape(-1)[17])


def test_other_types_are_widened_exactly() -> None:
    patterns = every_pattern()
    brain = matrix.widened(as_rows(patterns), "bf16").reshape(-1)
    assert same(brain, patterns.view(ml_dtypes.bfloat16).astype(np.float32))
    signed = matrix.widened(as_rows(patterns), "s8").reshape(-1)
    assert np.array_equal(signed, patterns.view(np.int8))
    assert np.array_equal(matrix.widened(as_rows(patterns), "u8").reshape(-1), patterns.view(np.uint8))
    tf32 = np.array([1.0, 1 + 2**-10, 1 + 2**-11, -3.99999], np.float32)
    assert matrix.widened(tf32.view(matrix.ROW), "tf32").tolist() == [1.0, 1 + 2**-10, 1.0, -(4 - 2**-9)]


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_an_operand_is_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[str] = []
    original: Callable[[Array, str], Array] = matrix.widened

    def counted(raw: Array, kind: str) -> Array:
        converted.append(kind)
        return original(raw, kind)

    monkeypatch.setattr(matrix, "widened", counted)
    bench = Bench()
    a = tiles_of_a(numbers((1, 1, 16, 16), 7))
    for seed in (8, 9):
        multiply(bench, a, tiles_of_b(numbers((1, 1, 16, 8), seed)), ZERO)
    assert len(converted) == 3  # A, and two different B


def test_new_registers_are_never_taken_for_old_ones() -> None:
    """Arrays come and go, so that identities are used again: only what is kept alive may be recognised."""
    bench = Bench()
    for seed in range(200):
        a, b = numbers((1, 1, 16, 16), seed), numbers((1, 1, 16, 8), seed + 1000)
        multiply(bench, tiles_of_a(a), tiles_of_b(b), ZERO)
        assert np.array_equal(result(bench, 1, 1), a.astype(np.float32) @ b.astype(np.float32))


def test_the_same_bits_in_another_type_are_another_operand() -> None:
    bench = Bench()
    a, b = tiles_of_a(numbers((1, 1, 16, 16), 1)), tiles_of_b(numbers((1, 1, 16, 8), 2))
    multiply(bench, a, b, ZERO)
    first = result(bench, 1, 1)
    multiply(bench, a, b, ZERO, MMA.replace("f16.f16", "bf16.bf16"))
    assert not np.array_equal(first, result(bench, 1, 1))


def test_only_so_many_operands_are_kept_and_none_outlives_its_machine() -> None:
    kept = matrix.Operands(height=1, limit=3)
    bench = Bench()
    machine = bench.machine
    first = tiles_of_b(numbers((1, 1, 16, 8), 0))
    found = kept.matrix(machine, first, "f16")
    for seed in range(1, 4):
        kept.matrix(machine, tiles_of_b(numbers((1, 1, 16, 8), seed)), "f16")
        assert kept.matrix(machine, first, "f16") is found  # used again and again: not the one to go
    assert len(kept) == 3
    del bench, machine
    gc.collect()
    assert len(kept) == 0
    kept.matrix(Bench().machine, first, "f16")
    other = Bench()
    kept.matrix(other.machine, first, "f16")
    assert len(kept) == 1


# --- one place ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [matrix.ldmatrix, matrix.mma])
def test_a_reader_finds_the_semantics_in_one_place(function: Callable[..., None]) -> None:
    source = inspect.getsource(function).splitlines()
    begin = next(index for index, line in enumerate(source) if line.startswith("def "))
    assert len(source) - begin <= 40
    assert "4 g + t" in (function.__doc__ or "")
