"""Variables, initialisers, parameters, directives and registers: what each declaration means, and its printed form."""

from __future__ import annotations

from dataclasses import replace
import struct

import pytest
from tests.module_parts import HEADER, entry, without_lines

from ptxemu.syntax.parser import parse
from ptxemu.syntax.printer import to_ptx
from ptxemu.syntax.tree import Address, Immediate, Symbol, Variable


def double(value: float) -> Immediate:
    return Immediate(struct.unpack("<Q", struct.pack("<d", value))[0], "f64")


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        (".global .u32 x;", [Variable("global", "u32", "x")]),
        (".global .u32 x, y[2];", [Variable("global", "u32", "x"), Variable("global", "u32", "y", 2, array=True)]),
        (
            ".extern .shared .align 16 .b8 x[];",
            [Variable("shared", "b8", "x", 0, align=16, array=True, linkage="extern")],
        ),
        (".shared .align 4 .b8 x[4][0x10];", [Variable("shared", "b8", "x", 64, align=4, array=True)]),
        (".visible .const .v4 .f32 x[2];", [Variable("const", "f32", "x", 2, None, 4, True, (), "visible")]),
        (
            ".weak .global .f64 x = 0d3FF0000000000000;",
            [Variable("global", "f64", "x", initial=(Immediate(0x3FF0000000000000, "f64"),), linkage="weak")],
        ),
        (".common .global .b8 x[4];", [Variable("global", "b8", "x", 4, array=True, linkage="common")]),
        (".local .align 8 .b8 x[24];", [Variable("local", "b8", "x", 24, 8, array=True)]),
        (
            ".const .s32 x[] = {-1, 0x2U, 3};",
            [Variable("const", "s32", "x", 3, array=True, initial=(Immediate(-1), Immediate(2), Immediate(3)))],
        ),
        (
            ".global .u32 x[4] = {1, 2};",
            [Variable("global", "u32", "x", 4, array=True, initial=(Immediate(1), Immediate(2)))],
        ),
        (
            ".global .u32 x[][2] = {{1}, {2, 3}};",
            [Variable("global", "u32", "x", 4, array=True, initial=tuple(map(Immediate, (1, 0, 2, 3))))],
        ),
        (
            ".global .v2 .u32 x = {1, 2};",
            [Variable("global", "u32", "x", vector=2, initial=(Immediate(1), Immediate(2)))],
        ),
        (
            ".global .v2 .f32 x[] = {{1.0}, {0f3F800000, 2.0}};",
            [
                Variable(
                    "global",
                    "f32",
                    "x",
                    2,
                    None,
                    2,
                    True,
                    (double(1.0), double(0.0), Immediate(0x3F800000, "f32"), double(2.0)),
                )
            ],
        ),
        (
            ".global .b32 x; .global .b64 y[6] = {x, x+4, generic(x), generic( x )+8, x-4, x + -0x4};",
            [
                Variable("global", "b32", "x"),
                Variable(
                    "global",
                    "b64",
                    "y",
                    6,
                    array=True,
                    initial=(
                        Symbol("x"),
                        Address(Symbol("x"), 4, brackets=False),
                        Symbol("x"),
                        Address(Symbol("x"), 8, brackets=False),
                        Address(Symbol("x"), -4, brackets=False),
                        Address(Symbol("x"), -4, brackets=False),
                    ),
                ),
            ],
        ),
    ],
)
def test_variable(text: str, variables: list[Variable]) -> None:
    module = parse(HEADER + text)
    assert module.variables == tuple(replace(variable, line=4) for variable in variables)
    assert without_lines(parse(to_ptx(module))) == without_lines(module)


def test_an_extern_declaration_and_its_definition_are_one() -> None:
    module = parse(HEADER + ".extern .global .u32 x;\n.visible .global .u32 x = 3;\n.extern .global .u32 x;")
    assert module.variables == (Variable("global", "u32", "x", initial=(Immediate(3),), linkage="visible", line=5),)


def test_parameters_and_directives() -> None:
    head = """.visible .entry k(
.param .u64 .ptr .global .align 16 k_0,
.param .align 8 .b8 k_1[136],
.param .f32 k_2
)
.maxntid 128, 1, 1
.minnctapersm 2
.maxnreg 64"""
    kernel = parse(entry("ret;", head=head)).functions[0]
    assert kernel.parameters == (
        Variable("param", "u64", "k_0", line=5),
        Variable("param", "b8", "k_1", 136, 8, array=True, line=6),
        Variable("param", "f32", "k_2", line=7),
    )
    assert kernel.directives == (("maxntid", (128, 1, 1)), ("minnctapersm", (2,)), ("maxnreg", (64,)))
    assert (kernel.name, kernel.is_entry, kernel.linkage, kernel.line) == ("k", True, "visible", 4)


def test_a_device_function_keeps_what_it_returns() -> None:
    text = HEADER + (
        ".func (.param .b32 r) f (.param .b32 x);\n"
        ".weak .func (.param .b32 r) f (.param .b32 x) .noreturn\n"
        "{ .reg .b32 a; ld.param.b32 a, [x]; st.param.b32 [r], a; ret; }"
    )
    (device,) = parse(text).functions
    assert (device.is_entry, device.linkage, device.directives) == (False, "weak", (("noreturn", ()),))
    assert device.returns == (Variable("param", "b32", "r", line=5),)
    assert device.parameters == (Variable("param", "b32", "x", line=5),)


def test_registers() -> None:
    kernel = parse(HEADER + ".entry k { .reg .b32 %r<3>, x; .reg .pred %p<1>; .reg .f16x2 %<2>; }").functions[0]
    assert kernel.registers == {
        "%r0": "b32",
        "%r1": "b32",
        "%r2": "b32",
        "x": "b32",
        "%p0": "pred",
        "%0": "f16x2",
        "%1": "f16x2",
    }
    assert (kernel.parameters, kernel.linkage, kernel.body) == ((), "", ())
