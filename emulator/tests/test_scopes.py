"""Names in nested scopes, and the source line of each instruction."""

from __future__ import annotations

from tests.module_parts import entry

from ptxemu.syntax.parser import parse
from ptxemu.syntax.tree import Function, Instruction, Label, Register, SourceLine, Symbol

A = Register("a")


def function(body: str, *, before: str = "") -> Function:
    return parse(entry(body, before=before)).functions[-1]


# --- scopes


def test_an_inner_scope_has_its_own_registers() -> None:
    kernel = function(
        "mov.u32 a, 0; { mov.u32 a, 1; .reg .b64 a; mov.u64 a, 2; { mov.u64 a, 3; .reg .b16 a; mov.u16 a, 4; }"
        " mov.u64 a, 5; } mov.u32 a, 6; { .reg .pred a; @a ret; }"
    )
    instructions = [item for item in kernel.body if isinstance(item, Instruction)]
    written = [item.operands[0].name for item in instructions[:-1] if isinstance(item.operands[0], Register)]
    assert [kernel.registers[name] for name in written] == ["b32", "b32", "b64", "b64", "b16", "b64", "b32"]
    assert written[0] == written[1] == written[6] == "a"
    assert (written[2], len(set(written))) == (written[3], 3)
    guard = instructions[-1].guard
    assert guard is not None
    assert kernel.registers[guard.register.name] == "pred"


def test_a_name_of_an_inner_scope_never_meets_one_that_looks_like_it() -> None:
    kernel = function(".reg .b32 a$1; { .reg .b64 a; mov.u64 a, 2; } mov.u32 a$1, a;")
    first, second = kernel.body
    assert isinstance(first, Instruction)
    assert isinstance(second, Instruction)
    assert kernel.registers[str(first.operands[0])] == "b64"
    assert second.operands == (Register("a$1"), A)


def test_labels_belong_to_their_scope() -> None:
    wait = "{ LAB: @p bra DONE; bra LAB; DONE: }"
    kernel = function(f"bra LAB; {wait} {wait} {{ bra LAB; {wait} }} LAB: ret;")
    labels = [item.name for item in kernel.body if isinstance(item, Label)]
    branches = [str(item.operands[0]) for item in kernel.body if isinstance(item, Instruction) and item.operands]
    assert len(set(labels)) == len(labels) == 7
    first, done, second, done2, third, done3, outer = labels
    assert outer == "LAB"
    assert branches == [outer, done, first, done2, second, outer, done3, third]


def test_variables_of_call_sequences_are_kept_apart() -> None:
    sequence = "{ .param .b32 x; st.param.b32 [x+4], a; .shared .u32 s; mov.u32 a, s; mov.u32 a, s+4; }"
    kernel = function(f"{sequence} {sequence}")
    assert [(variable.space, variable.type) for variable in kernel.variables] == [
        ("param", "b32"),
        ("shared", "u32"),
    ] * 2
    assert len({variable.name for variable in kernel.variables}) == 4
    names = [variable.name for variable in kernel.variables]
    assert [str(item) for item in kernel.body[3:]] == [
        f"st.param.b32 [{names[2]}+4], a;",
        f"mov.u32 a, {names[3]};",
        f"mov.u32 a, {names[3]}+4;",
    ]


def test_a_variable_of_a_function_hides_one_of_the_module() -> None:
    kernel = function("mov.u32 a, x; .shared .u32 x; mov.u32 a, x;", before=".global .u32 x;\n")
    (inner,) = kernel.variables
    first, second = kernel.body
    assert isinstance(first, Instruction)
    assert isinstance(second, Instruction)
    assert inner.name != "x"
    assert (first.operands[1], second.operands[1]) == (Symbol("x"), Symbol(inner.name))


# --- source lines


def sources(body: str, files: str = '.file 1 "k.cu"\n.file 2 "part.cuh"\n') -> list[SourceLine | None]:
    items = parse(entry(body) + files).functions[0].body
    return [item.source for item in items if isinstance(item, Instruction)]


def test_source_lines_with_the_files_at_the_end() -> None:
    assert sources("ret;\n.loc 1 5 3\nret; ret;\n.loc 2 7 1\nret;\n.loc 1 0 3\nret;") == [
        None,
        SourceLine("k.cu", 5),
        SourceLine("k.cu", 5),
        SourceLine("part.cuh", 7),
        None,
    ]


def test_a_chain_of_inlined_calls() -> None:
    found = sources(
        ".loc 1 5 3\n"
        ".loc 2 7 9, function_name $L__info_string0, inlined_at 1 5 3\n"
        ".loc 2 30 1, function_name $L__info_string1+4, inlined_at 2 7 9\nret;\n"
        ".loc 2 7 9, function_name $L__info_string0, inlined_at 1 6 3\nret;"
    )
    assert found == [
        SourceLine("part.cuh", 30, SourceLine("part.cuh", 7, SourceLine("k.cu", 5))),
        SourceLine("part.cuh", 7, SourceLine("k.cu", 6)),
    ]
