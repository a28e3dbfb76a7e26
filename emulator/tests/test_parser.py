"""The parser: each kind of operand, declaration and statement means what the PTX ISA says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
import struct

import pytest
from tests.module_parts import HEADER, entry, without_lines

from ptxemu.syntax.parser import parse
from ptxemu.syntax.printer import to_ptx
from ptxemu.syntax.tree import (
    Address,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
)

TINY = Path(__file__).parent / "data" / "tiny.ptx"
A, B, Q = Register("a"), Register("b"), Register("q")


def function(body: str, *, before: str = "") -> Function:
    return parse(entry(body, before=before)).functions[-1]


def only(body: str, *, before: str = "") -> Instruction:
    (item,) = function(body, before=before).body
    assert isinstance(item, Instruction)
    return item


def double(value: float) -> Immediate:
    return Immediate(struct.unpack("<Q", struct.pack("<d", value))[0], "f64")


@pytest.mark.parametrize(
    ("text", "operand"),
    [
        ("a", A),
        ("%rd3", Register("%rd3")),
        ("%tid.x", Special("%tid.x")),
        ("%ctaid.y", Special("%ctaid.y")),
        ("%nctaid.z", Special("%nctaid.z")),
        ("%laneid", Special("%laneid")),
        ("%lanemask_lt", Special("%lanemask_lt")),
        ("%clock64", Special("%clock64")),
        ("%globaltimer", Special("%globaltimer")),
        ("%envreg31", Special("%envreg31")),
        ("WARP_SZ", Special("WARP_SZ")),
        ("0", Immediate(0)),
        ("42", Immediate(42)),
        ("-42", Immediate(-42)),
        ("- 42", Immediate(-42)),
        ("42U", Immediate(42)),
        ("0x1fU", Immediate(31)),
        ("0XFF", Immediate(255)),
        ("017", Immediate(15)),
        ("0b101", Immediate(5)),
        ("0xffffffffffffffff", Immediate((1 << 64) - 1)),
        ("-9223372036854775808", Immediate(-(1 << 63))),
        ("0f3F800000", Immediate(0x3F800000, "f32")),
        ("0F3f800000", Immediate(0x3F800000, "f32")),
        ("-0f3F800000", Immediate(0xBF800000, "f32")),
        ("0d3FF0000000000000", Immediate(0x3FF0000000000000, "f64")),
        ("-0d3FF0000000000000", Immediate(0xBFF0000000000000, "f64")),
        ("0.5", double(0.5)),
        ("-1.5e-3", double(-1.5e-3)),
        (".25", double(0.25)),
        ("2.", double(2.0)),
        ("1e10", double(1e10)),
        ("-0.0", double(-0.0)),
        ("_", Symbol("_")),
        ("data", Symbol("data")),
        ("data+4", Address(Symbol("data"), 4, brackets=False)),
        ("data + -4", Address(Symbol("data"), -4, brackets=False)),
        ("[a]", Address(A)),
        ("[ %rd1 + 16 ]", Address(Register("%rd1"), 16)),
        ("[%rd1+-16]", Address(Register("%rd1"), -16)),
        ("[%rd1-16]", Address(Register("%rd1"), -16)),
        ("[%rd1+0x10]", Address(Register("%rd1"), 16)),
        ("[%rd1+0]", Address(Register("%rd1"))),
        ("[data]", Address(Symbol("data"))),
        ("[data+8]", Address(Symbol("data"), 8)),
        ("[64]", Address(Immediate(64))),
        ("[64+4]", Address(Immediate(64), 4)),
        ("[-64]", Address(Immediate(-64))),
        ("[%rd1, {a, b}]", Address(Register("%rd1"), coordinates=Vector((A, B)))),
        ("[data+64,{a,7}]", Address(Symbol("data"), 64, coordinates=Vector((A, Immediate(7))))),
        ("{a, b}", Vector((A, B))),
        ("{a,_}", Vector((A, Symbol("_")))),
        ("{ a }", Vector((A,))),
        ("{a, b, 1, 0f00000000}", Vector((A, B, Immediate(1), Immediate(0, "f32")))),
        ("p|q", Pair(Register("p"), Q)),
        ("p | _", Pair(Register("p"), Symbol("_"))),
        ("_|q", Pair(Symbol("_"), Q)),
        ("!q", Negated(Q)),
        ("! q", Negated(Q)),
    ],
)
def test_operand(text: str, operand: Operand) -> None:
    instruction = only(f"op.x c, {text}, {text};", before=".global .u32 data[4];\n")
    assert instruction.operands == (Register("c"), operand, operand)


def test_an_operand_that_prints_differently_is_read_the_same() -> None:
    """A negative offset is printed as ptxas wants it: `+-4`, never `-4`."""
    assert str(Address(A, -4)) == "[a+-4]"


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        ("ret;", Instruction("ret", ())),
        ("@p ret;", Instruction("ret", (), Guard(Register("p")))),
        ("@!p bra.uni k_end;\nk_end:", Instruction("bra.uni", (Symbol("k_end"),), Guard(Register("p"), negated=True))),
        ("@ ! p ret;", Instruction("ret", (), Guard(Register("p"), negated=True))),
        ("add.s32 a, b, 1;", Instruction("add.s32", (A, B, Immediate(1)))),
        ("add.s32\ta,\n\tb,\n1 ;", Instruction("add.s32", (A, B, Immediate(1)))),
        (
            "cp.async.cg.shared.global\n\t.L2::128B [a],\n [%rd1], 16;",
            Instruction("cp.async.cg.shared.global.L2::128B", (Address(A), Address(Register("%rd1")), Immediate(16))),
        ),
        ("mov.b64 {a,b},%rd1;", Instruction("mov.b64", (Vector((A, B)), Register("%rd1")))),
        ("mov.b64{a,b},%rd1;", Instruction("mov.b64", (Vector((A, B)), Register("%rd1")))),
        ("ld.global.u32 a,[%rd1];", Instruction("ld.global.u32", (A, Address(Register("%rd1"))))),
    ],
)
def test_instruction(text: str, instruction: Instruction) -> None:
    assert function(text).body[0] == replace(instruction, line=6)


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("call.uni (r), f, (x, a);", (Vector((Symbol("r"),)), Symbol("f"), Vector((Symbol("x"), A)))),
        ("call.uni\n(r),\nf,\n(\nx\n);", (Vector((Symbol("r"),)), Symbol("f"), Vector((Symbol("x"),)))),
        ("call f, (x);", (Symbol("f"), Vector((Symbol("x"),)))),
        ("call (r), f, ();", (Vector((Symbol("r"),)), Symbol("f"), Vector(()))),
        ("call f;", (Symbol("f"),)),
    ],
)
def test_a_call_is_read_with_its_lists_as_vectors(text: str, operands: tuple[Operand, ...]) -> None:
    before = ".extern .func (.param .b32 v) f (.param .b32 w);\n"
    module = parse(entry(f".param .b32 r; .param .b32 x; {text}", before=before))
    (call,) = module.functions[1].body
    assert isinstance(call, Instruction)
    assert call.operands == operands
    assert without_lines(parse(to_ptx(module))) == without_lines(module)


def test_module_facts() -> None:
    module = parse(
        '.version 8.7 .target sm_80 , texmode_independent\n.address_size 64 .file 1 "a b;{}//.cu", 17, 3', "x.ptx"
    )
    assert (module.version, module.target, module.address_size) == ("8.7", "sm_80, texmode_independent", 64)
    assert (module.files, module.path, module.functions) == ({1: "a b;{}//.cu"}, "x.ptx", ())


def test_what_is_no_program_is_left_out() -> None:
    body = '/* mov.u32 a, 1;\n*/ ret; // ret;\n.pragma "nounroll";\n$L__tmp0:'
    after = '.section .debug_str\n{\n$L__info_string0:\n.b8 95,90,0\n}\n.pragma "used_bytes_mask 1", "x";\n'
    assert parse(entry(body) + after).functions[0].body == (Instruction("ret", (), None, 7), Label("$L__tmp0", 9))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lines_are_those_of_the_file(newline: str) -> None:
    text = entry("\n\nmov.u32\na,\n1;\n\nL:\n\n\nret; ret;\n{\nret;\n}").replace("\n", newline)
    assert [item.line for item in parse(text).functions[0].body] == [8, 12, 15, 15, 17]


# --- a whole file


def test_tiny() -> None:
    module = parse(TINY.read_text(encoding="utf-8"), str(TINY))
    (kernel,) = module.functions
    assert [variable.name for variable in (*module.variables, *kernel.variables)] == [
        "dynamic",
        "_ZZ16flash_fwd_kernelE4seen",
    ]
    assert kernel.registers["%f47"] == "f32"
    assert "%f48" not in kernel.registers
    barrier = next(item for item in kernel.body if isinstance(item, Instruction) and item.opcode == "bar.sync")
    assert barrier.operands == (Immediate(0),)
    assert TINY.read_text(encoding="utf-8").splitlines()[barrier.line - 1].split() == ["bar.sync", "0;"]
    assert barrier.source is not None
    assert barrier.source.line == 12
    assert without_lines(parse(to_ptx(module), str(TINY))) == without_lines(module)


def test_the_printer_numbers_registers_again() -> None:
    module = parse(HEADER + ".entry k { .reg .b32 %r<3>; .reg .b64 x, %x1; .reg .pred %p0, %p2; .reg .s16 %r01; }")
    text = to_ptx(module)
    assert ".reg .b32 %r<3>;" in text
    assert parse(text).functions[0].registers == module.functions[0].registers
