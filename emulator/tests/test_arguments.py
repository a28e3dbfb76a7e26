"""Arguments as parameter bytes: pointers, numbers by the parameter's type, structures as C lays them out, refusals."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest

from ptxemu.errors import EmulationError
from ptxemu.machine.arguments import AddressOf, Argument, offsets, pack
from ptxemu.syntax.tree import Function, Variable
from ptxemu.values import Array


def shelf() -> tuple[list[Array], AddressOf]:
    """Arrays that were asked for, and a memory that hands out addresses."""
    held: list[Array] = []

    def address_of(array: Array) -> int:
        held.append(array)
        return 0x1000 * len(held)

    return held, address_of


def entry(parameters: list[Variable]) -> Function:
    return Function("k", tuple(parameters), {}, (), (), line=3)


def scalar(ptx_type: str, name: str = "p") -> Variable:
    return Variable("param", ptx_type, name, line=7)


def structure(count: int, align: int = 8) -> Variable:
    return Variable("param", "b8", "args", count=count, align=align, array=True, line=7)


def packed(parameters: list[Variable], args: list[Argument]) -> bytes:
    return pack(entry(parameters), args, shelf()[1], "k.ptx")


def test_each_parameter_lies_at_its_alignment() -> None:
    parameters = [scalar("u8", "a"), scalar("f64", "b"), scalar("u16", "c"), structure(12, 4), scalar("u64", "e")]
    args: list[Argument] = [1, 2.5, 3, bytes(range(12)), 5]
    assert offsets(entry(parameters)) == ({"a": 0, "b": 8, "c": 16, "args": 20, "e": 32}, 40)
    assert packed(parameters, args) == struct.pack("<B7xdH2x12sQ", 1, 2.5, 3, bytes(range(12)), 5)


def test_an_array_is_a_pointer() -> None:
    held, address_of = shelf()
    one, two = np.zeros(4), np.zeros(2, np.float16)
    data = pack(entry([scalar("u64", "x"), scalar("b64", "y")]), [one, two], address_of)
    assert struct.unpack("<2Q", data) == (0x1000, 0x2000)
    assert [known is array for known, array in zip(held, (one, two), strict=True)] == [True, True]


@pytest.mark.parametrize(
    ("ptx_type", "number", "expected"),
    [
        ("u32", -1, b"\xff\xff\xff\xff"),
        ("u32", 0xFFFFFFFF, b"\xff\xff\xff\xff"),
        ("s64", np.int32(-2), b"\xfe" + b"\xff" * 7),
        ("u8", True, b"\x01"),
        ("f32", 1, struct.pack("<f", 1.0)),
        ("f32", np.float64(0.1), struct.pack("<f", 0.1)),
        ("f64", 0.1, struct.pack("<d", 0.1)),
        ("f16", 1.5, b"\x00\x3e"),
        ("b32", np.float32(1.5), struct.pack("<f", 1.5)),
        ("b16", np.float16(1.5), b"\x00\x3e"),
    ],
)
def test_a_number_takes_its_parameters_type(ptx_type: str, number: Any, expected: bytes) -> None:
    assert packed([scalar(ptx_type)], [number]) == expected


class Inner(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int64), ("b", ctypes.c_int32))


class Outer(ctypes.Structure):
    _fields_ = (
        ("p", ctypes.c_uint64),
        ("h", ctypes.c_uint16),
        ("i", Inner),
        ("n", ctypes.c_int32),
        ("c", ctypes.c_int8),
    )


def test_a_tuple_is_laid_out_as_c_does() -> None:
    args: Argument = (np.zeros(1), np.uint16(7), (np.int64(-1), np.int32(2)), 9, np.int8(-3))
    expected = Outer(0x1000, 7, Inner(-1, 2), 9, -3)
    assert packed([structure(ctypes.sizeof(Outer))], [args]) == bytes(expected)


@pytest.mark.parametrize(
    ("parameter", "argument", "told"),
    [
        (scalar("u32"), 1 << 32, "a number of 32 bits, found 4294967296"),
        (scalar("u8"), -129, "a number of 8 bits"),
        (scalar("u32"), 1.5, "expected an integer, found 1.5"),
        (scalar("u64"), np.float32(512), "expected an integer, or an array for a pointer, found 512.0"),
        (scalar("u32"), np.zeros(3), "expected 4 bytes, found 8 bytes"),
        (structure(16), (np.int64(1),), r"args \(16 bytes\): expected 16 bytes, found 8 bytes"),
        (structure(8), (1.5,), "arrays, NumPy numbers, 32-bit integers or tuples"),
        (structure(8), (1 << 31, 1), "arrays, NumPy numbers, 32-bit integers or tuples"),
        (scalar("u64"), b"1234", "expected 8 bytes, found 4 bytes"),
    ],
)
def test_what_does_not_fit_is_refused(parameter: Variable, argument: Argument, told: str) -> None:
    with pytest.raises(EmulationError, match=told) as caught:
        packed([parameter], [argument])
    assert caught.value.kind == "arguments"
    assert str(caught.value).startswith("k.ptx:7: ")


def test_another_number_of_arguments_is_refused() -> None:
    with pytest.raises(EmulationError, match=r"expected 1: p \(f32\), found 2"):
        packed([scalar("f32")], [1.0, 2.0])
