"""The parser: what operands, declarations, statements and scopes mean, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
import struct

from hypothesis import given, settings
import hypothesis.strategies as st
import pytest
from tests.programs import HEADER, entry, refuses, table_of

from ptxemu.errors import EmulationError
from ptxemu.syntax.parser import parse
from ptxemu.syntax.tree import (
    Address,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Operand,
    Register,
    SourceLine,
    Symbol,
    Variable,
    Vector,
)

FILE = Path(__file__).parent / "data" / "tiny.ptx"
TINY = FILE.read_text(encoding="utf-8")
A, B, Q = Register("a"), Register("b"), Register("q")


def function(body: str, *, before: str = "") -> Function:
    return parse(entry(body, before=before)).functions[-1]


def double(value: float) -> Immediate:
    return Immediate(struct.unpack("<Q", struct.pack("<d", value))[0], "f64")


@pytest.mark.parametrize(("text", "operand"), table_of("parser", "operands"))
def test_operand(text: str, operand: str) -> None:
    (instruction,) = function(f"op.x c, {text}, {text};", before=".global .u32 data[4];\n").body
    assert isinstance(instruction, Instruction)
    assert [repr(one) for one in instruction.operands] == ["Register(name='c')", operand, operand]


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        ("ret;", Instruction("ret", ())),
        ("@p ret;", Instruction("ret", (), Guard(Register("p")))),
        ("@!p bra.uni k_end;\nk_end:", Instruction("bra.uni", (Symbol("k_end"),), Guard(Register("p"), negated=True))),
        ("@ ! p ret;", Instruction("ret", (), Guard(Register("p"), negated=True))),
        ("add.s32 a, b, 1;", Instruction("add.s32", (A, B, Immediate(1)))),
        ("add.s32\ta,\n\tb,\n1 ;", Instruction("add.s32", (A, B, Immediate(1)))),
        ("cp.async.cg.shared.global\n\t.L2::128B [a],\n [%rd1], 16;",
         Instruction("cp.async.cg.shared.global.L2::128B", (Address(A), Address(Register("%rd1")), Immediate(16)))),
        ("ldmatrix.sync.aligned.x1.trans.m8n8.shared.b16 {a}, [b];",
         Instruction("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16", (Vector((A,)), Address(B)))),
        ("red.and.release.cta.b32 [b], a;", Instruction("red.release.cta.and.b32", (Address(B), A))),
        ("mov.b64{a,b},%rd1;", Instruction("mov.b64", (Vector((A, B)), Register("%rd1")))),
    ],
)  # fmt: skip
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


def test_module_facts() -> None:
    text = '.version 8.7 .target sm_80 , texmode_independent\n.address_size 64 .file 1 "a b;{}//.cu", 17, 3'
    module = parse(text, "x.ptx")
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


def test_a_whole_file() -> None:
    module = parse(TINY, str(FILE))
    (kernel,) = module.functions
    assert [each.name for each in (*module.variables, *kernel.variables)] == ["dynamic", "_ZZ16flash_fwd_kernelE4seen"]
    assert kernel.registers["%f47"] == "f32"
    assert "%f48" not in kernel.registers
    barrier = next(item for item in kernel.body if isinstance(item, Instruction) and item.opcode == "bar.sync")
    assert barrier.operands == (Immediate(0),)
    assert TINY.splitlines()[barrier.line - 1].split() == ["bar.sync", "0;"]
    assert barrier.source is not None
    assert barrier.source.line == 12
    shown = [str(each) for each in (Address(A, -4), Immediate(1, "f32"), Immediate(1, "f64"))]
    assert shown == ["[a+-4]", "0f00000001", f"0d{1:016}"]  # as ptxas wants it


# --- declarations ---

V, N = Variable, Immediate


def plus(offset: int) -> Address:
    return Address(Symbol("x"), offset, brackets=False)


@pytest.mark.parametrize(("text", "parts"), table_of("parser", "modules"))
def test_what_a_module_declares(text: str, parts: list[str]) -> None:
    module = repr(parse(HEADER + text))
    assert [part for part in parts if part not in module] == []


def test_an_extern_declaration_and_its_definition_are_one() -> None:
    module = parse(HEADER + ".extern .global .u32 x;\n.visible .global .u32 x = 3;\n.extern .global .u32 x;")
    assert module.variables == (Variable("global", "u32", "x", initial=(Immediate(3),), linkage="visible", line=5),)


def test_parameters_and_directives() -> None:
    head = """.visible .entry k(
.param .u64 .ptr .global .align 16 k_0,
.param .align 8 .b8 k_1[136],
.param .f32 k_22,
.param .f32 k_2
)
.maxntid 128, 1, 1
.minnctapersm 2
.maxnreg 64"""
    kernel = parse(entry("ret;", head=head)).functions[0]
    assert kernel.parameters == (
        Variable("param", "u64", "k_0", line=5),
        Variable("param", "b8", "k_1", 136, 8, array=True, line=6),
        Variable("param", "f32", "k_22", line=7),
        Variable("param", "f32", "k_2", line=8),
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
    wide = dict.fromkeys(("%r0", "%r1", "%r2", "x"), "b32")
    assert kernel.registers == wide | {"%p0": "pred", "%0": "f16x2", "%1": "f16x2"}
    assert (kernel.parameters, kernel.linkage, kernel.body) == ((), "", ())


# --- scopes and source lines ---


def test_an_inner_scope_has_its_own_registers() -> None:
    kernel = function(
        "mov.u32 a, 0; { mov.u32 a, 1; .reg .b64 a; mov.u64 a, 2; { mov.u64 a, 3; .reg .b16 a; mov.u16 a, 4;"
        " .reg .b16 c; } mov.u64 a, 5; } mov.u32 a, 6; { .reg .pred a; @a ret; }"
    )
    instructions = [item for item in kernel.body if isinstance(item, Instruction)]
    written = [str(item.operands[0]) for item in instructions[:-1]]
    assert [kernel.registers[name] for name in written] == ["b32", "b32", "b64", "b64", "b16", "b64", "b32"]
    assert written[0] == written[1] == written[6] == "a"
    assert (written[2], len(set(written))) == (written[3], 3)
    assert kernel.registers[str(instructions[-1].guard).strip("@! ")] == "pred"
    # a name of an inner scope never meets one that looks like it
    kernel = function(".reg .b32 a$1; { .reg .b64 a; mov.u64 a, 2; } mov.u32 a$1, a;")
    first, second = (str(item) for item in kernel.body)
    assert kernel.registers[first.split()[1].strip(",")] == "b64"
    assert (second, kernel.registers["a$1"]) == ("mov.u32 a$1, a;", "b32")


def test_labels_and_variables_belong_to_their_scope() -> None:
    wait = "{ LAB: @p bra DONE; bra LAB; DONE: }"
    kernel = function(f"bra LAB; {wait} {wait} {{ bra LAB; {wait} }} LAB: ret;")
    labels = [item.name for item in kernel.body if isinstance(item, Label)]
    branches = [str(item.operands[0]) for item in kernel.body if isinstance(item, Instruction) and item.operands]
    assert len(set(labels)) == len(labels) == 7
    first, done, second, done2, third, done3, outer = labels
    assert outer == "LAB"
    assert branches == [outer, done, first, done2, second, outer, done3, third]
    sequence = "{ .param .b32 x; st.param.b32 [x+4], a; .shared .u32 s; mov.u32 a, s; mov.u32 a, s+4; }"
    kernel = function(f"{sequence} {sequence}")
    assert [(each.space, each.type) for each in kernel.variables] == [("param", "b32"), ("shared", "u32")] * 2
    names = [variable.name for variable in kernel.variables]
    assert len(set(names)) == 4
    expected = [f"st.param.b32 [{names[2]}+4], a;", f"mov.u32 a, {names[3]};", f"mov.u32 a, {names[3]}+4;"]
    assert [str(item) for item in kernel.body[3:]] == expected
    kernel = function("mov.u32 a, x; .shared .u32 x; mov.u32 a, x;", before=".global .u32 x;\n")  # hides the module's
    (inner,) = kernel.variables
    assert inner.name != "x"
    assert [str(item) for item in kernel.body] == ["mov.u32 a, x;", f"mov.u32 a, {inner.name};"]


def test_source_lines_and_chains_of_inlined_calls() -> None:
    def sources(body: str) -> list[SourceLine | None]:
        items = parse(entry(body) + '.file 1 "k.cu"\n.file 2 "part.cuh"\n').functions[0].body
        return [item.source for item in items if isinstance(item, Instruction)]

    line = SourceLine("k.cu", 5)
    found = sources("ret;\n.loc 1 5 3\nret; ret;\n.loc 2 7 1\nret;\n.loc 1 0 3\nret;")
    assert found == [None, line, line, SourceLine("part.cuh", 7), None]
    inlined = ".loc 2 7 9, function_name $L__info_string0, inlined_at 1 {} 3\n"
    deeper = ".loc 2 30 1, function_name $L__info_string1+4, inlined_at 2 7 9\nret;\n"
    beside = inlined.format(6).replace("7 9", "7 8")  # another column, another call
    found = sources(f".loc 1 5 3\n{inlined.format(5)}{beside}{deeper}{inlined.format(6)}ret;")
    assert found == [
        SourceLine("part.cuh", 30, SourceLine("part.cuh", 7, line)),
        SourceLine("part.cuh", 7, SourceLine("k.cu", 6)),
    ]


# --- errors ---


REFUSED = table_of("parser", "refused")
WHOLE: dict[str, Callable[[str], str]] = {"body": entry, "module": lambda text: HEADER + text, "file": str}


@pytest.mark.parametrize("kind", ["syntax", "unsupported"])
def test_what_is_not_understood_is_an_error_with_its_line(kind: str) -> None:
    """The texts are bodies of `entry`, which begin on line 6, modules behind `HEADER`, or whole files."""
    rows = [(WHOLE[part](text), line, what) for part, each in REFUSED[kind].items() for text, line, what in each]
    for text, line, what in rows:
        with pytest.raises(EmulationError) as caught:
            parse(text, "some.ptx")
        message = str(caught.value)
        assert (caught.value.kind, caught.value.line) == (kind, line), message
        assert what in message
        assert message.startswith(f"some.ptx:{line}: " if line else "some.ptx: ")
        assert "\n" not in message


def test_a_long_line_is_cut() -> None:
    shown = [str(EmulationError("trap", "w", lane=0, address=0, found="\u00e9" * n, expected=0)) for n in (2000, 2001)]
    head = "<ptx>: w, address 0x0, thread 0 (warp 0, lane 0): expected 0, found "
    assert shown == [head + "\u00e9" * 2000, head + "\u00e9" * 2000 + "... (2001 characters)"]
    for long in ("ld.u32 a, [" + "b*" * 300 + "b];", "mov.b64 %rd1, " + "{" * 5000 + "a" + "}" * 5000 + ";"):
        with refuses("syntax", r"operand that is not understood.*\.\.\.") as caught:
            parse(entry(long))
        assert (caught.value.line, len(str(caught.value)) < 300) == (6, True)


def read_or_refuse(text: str) -> None:
    """A module, or one `EmulationError` that names a line of the file."""
    kind, line = "syntax", 0
    try:
        parse(text)
    except EmulationError as error:
        kind, line = error.kind, error.line
    assert kind in {"syntax", "unsupported"}
    assert 0 <= line <= text.count("\n") + 1


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_damaged_file(data: st.DataObject) -> None:
    """Characters cut out of real PTX, and others put in."""
    start = data.draw(st.integers(0, len(TINY)))
    length = data.draw(st.integers(0, 30))
    put = data.draw(st.text('{}[]();:,.@%!|"/*\n-+0x1fr _', max_size=6))
    read_or_refuse(TINY[:start] + put + TINY[start + length :])


@settings(deadline=None, max_examples=60)
@given(st.text('ret.u32 ;{}[]()%a0x,:@!|_\n"/*=<>+-', max_size=60))
def test_any_text(text: str) -> None:
    read_or_refuse(f".version 8.0\n.target sm_80\n.address_size 64\n.entry k {{ .reg .u32 a;\n{text}\n}}")
