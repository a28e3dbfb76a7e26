"""What the parser does not understand: each is an `EmulationError` with the exact line, never skipped."""

from __future__ import annotations

import pytest
from tests.module_parts import HEADER, entry

from ptxemu.errors import EmulationError
from ptxemu.syntax.parser import parse


def inside(*lines: str) -> str:
    """An entry whose body begins on line 6."""
    return entry("\n".join(lines))


SYNTAX = [
    # statements
    ("missing-semicolon", inside("ret;", "mov.u32 a, 0", "ret;"), 7, "found `0 ret`"),
    ("never-a-semicolon", inside("ret;", "mov.u32 a, 0"), 7, "found `mov.u32 a, 0`"),
    (
        "no-instruction",
        inside("ret;", "@p;"),
        7,
        "instruction expected: expected [@[!]p] opcode operands;, found `@p;`",
    ),
    ("stray", inside("ret;", "", "= 3;"), 8, "found `= 3;`"),
    ("upper-case", inside("MOV.u32 a, 0;"), 6, "no statement begins or ends here"),
    ("open-function", inside("{ ret;"), 4, "k has no closing brace"),
    ("open-function-2", HEADER + "\n\n.entry k\n{\n", 6, "k has no closing brace"),
    ("closed-twice", inside("}"), 7, "a module holds directives, variables and functions only: found `}`"),
    ("code-outside", HEADER + "ret;\n", 4, "found `ret;`"),
    ("label-outside", HEADER + "L:\n", 4, "found `L:`"),
    ("comment", inside("ret;", "/* ret;"), 7, "comment without its end: found `/* ret;`"),
    ("string", inside("ret;", '.pragma "nounroll;'), 7, "string without its closing quote"),
    ("function-inside", inside(".entry f {", "}"), 6, "no statement of a function"),
    ("header-inside", inside(".version 8.0"), 6, "no statement of a function: found `.version 8.0`"),
    ("loc-file", inside("ret;", ".loc 9 5 3", "ret;"), 7, ".loc names file 9, which no .file declares"),
    # module
    ("version", ".target sm_80\n.address_size 64\n", 0, "no .version in the file"),
    ("target", ".version 8.0\n.address_size 64\n", 0, "no .target in the file"),
    ("address-size", ".version 8.0\n.target sm_80\n", 0, "no .address_size in the file"),
    ("twice", HEADER + ".target sm_90\n", 4, "second .target: found `.target sm_90`"),
    ("promise", HEADER + ".entry k {}\n.func f;\n", 5, "f is declared but has no body"),
    ("same-function", HEADER + ".entry k {}\n.entry k {}\n", 5, "k is declared twice"),
    ("same-name", HEADER + ".global .u32 k;\n.entry k {}\n", 5, "k is declared twice"),
    ("same-name-2", HEADER + ".entry k {}\n.global .u32 k;\n", 5, "k is declared twice"),
    ("extern-body", HEADER + ".extern .func k {}\n", 4, "k is .extern and has a body"),
    ("head", HEADER + ".entry k(.param .u32 x\n{}\n", 4, "head of a function"),
    # declarations
    ("variable-twice", HEADER + ".global .u32 x;\n.global .u32 x;\n", 5, "x is declared twice"),
    ("register-twice", inside(".reg .b32 d;", ".reg .b64 d;"), 7, "d is declared twice"),
    ("register-and-label", inside("d:", ".reg .b64 d;"), 7, "d is declared twice"),
    ("inner-twice", inside("{ .reg .b32 d;", ".reg .b64 d; }"), 7, "d is declared twice"),
    ("label-twice", inside("L:", "L:"), 7, "L is declared twice"),
    ("label-and-register", inside("ret;", "a:"), 7, "a is declared twice"),
    ("special", inside(".reg .b32 %laneid;"), 6, "%laneid is declared twice"),
    ("register-name", inside(".reg .b32 d e;"), 6, "name of a register"),
    ("many-registers", inside(".reg .b32 %r<99999999>;"), 6, "too many registers"),
    ("no-name", HEADER + ".global .u32 ;\n", 4, "variable without a type or a name"),
    ("no-type", HEADER + ".global x;\n", 4, "variable without a type or a name"),
    ("bad-name", HEADER + ".global .u32 3x;\n", 4, "name of a variable expected: expected name"),
    ("length", HEADER + ".global .u32 x[n];\n", 4, "length of an array"),
    ("inner-length", HEADER + ".global .u32 x[2][];\n", 4, "length of an array"),
    ("alignment", HEADER + ".global .align 3 .u32 x;\n", 4, "found `.align 3`"),
    (
        "initial-shared",
        HEADER + ".shared .u32 x = 3;\n",
        4,
        "only .global and .const variables may have an initialiser",
    ),
    ("initial-long", HEADER + ".global .u32 x[2] = {1, 2, 3};\n", 4, "initialiser is too long"),
    ("initial-flat", HEADER + ".global .u32 x[2] = 1;\n", 4, "initialiser of an array or vector"),
    (
        "initial-rows",
        HEADER + ".global .u32 x[2][2] = {1, 2};\n",
        4,
        "initialiser of an array or vector: expected {...}",
    ),
    ("initial-deep", HEADER + ".global .u32 x[2] = {{1}, 2};\n", 4, "element of an initialiser"),
    ("initial-sum", HEADER + ".global .u32 x = 1+2;\n", 4, "element of an initialiser"),
    ("initial-name", HEADER + "\n.global .u64 x = y;\n", 5, "y is not declared"),
    ("initial-wide", HEADER + ".global .u64 x = 0x10000000000000000;\n", 4, "needs more than 64 bits"),
    # operands
    ("empty", inside("mov.u32 a,, b;"), 6, "operand that is not understood"),
    ("last-empty", inside("mov.u32 a, b,;"), 6, "operand that is not understood"),
    ("two", inside("ret;", "mov.u32", "a b;"), 7, "found `a b`"),
    ("register", inside("mov.u32 %r7, 0;"), 6, "%r7 is neither a declared register nor a special one"),
    ("component", inside("mov.u32 a, %laneid.x;"), 6, "%laneid.x is neither a declared register nor a special one"),
    ("element", inside("mov.u32 a, b.x;"), 6, "found `b.x`"),
    ("label", inside("ret;", "@p bra L;"), 7, "L is not declared"),
    ("label-inner", inside("{ L: }", "{", "bra L; }"), 8, "L is not declared"),
    ("address-name", inside("{ ld.u32 a, [x]; }", "ld.u32 a, [x];"), 6, "x is not declared"),
    ("gone", inside("{ .reg .b32 %x; mov.u32 %x, 0; }", "mov.u32 %x, 0;"), 7, "%x is neither"),
    ("gone-label", inside("{ bra L; L: }", "bra L;"), 7, "L is not declared"),
    ("guard", inside("@r ret;"), 6, "predicate register expected"),
    ("guard-special", inside("@%laneid ret;"), 6, "predicate register expected"),
    ("negated", inside("mov.u32 a, !3;"), 6, "predicate register expected"),
    ("octal", inside("mov.u32 a, 09;"), 6, "found `09`"),
    ("short-float", inside("mov.u32 a, 0f12;"), 6, "found `0f12`"),
    ("wide", inside("mov.u32 a, 18446744073709551616;"), 6, "needs more than 64 bits"),
    ("wide-negative", inside("mov.u32 a, -9223372036854775809;"), 6, "needs more than 64 bits"),
    ("expression", inside("mov.u32 a, 1+2;"), 6, "found `1+2`"),
    ("register-sum", inside("mov.u32 a, b+2;"), 6, "found `b+2`"),
    ("address", inside("ld.u32 a, [b+c];"), 6, "found `[b+c]`"),
    ("address-float", inside("ld.u32 a, [0f00000000];"), 6, "found `[0f00000000]`"),
    ("address-special", inside("ld.u32 a, [%laneid+4];"), 6, "found `[%laneid+4]`"),
    ("address-special-2", inside("ld.u32 a, [%laneid];"), 6, "found `[%laneid]`"),
    ("address-sink", inside("ld.u32 a, [_];"), 6, "found `[_]`"),
    ("address-empty", inside("ld.u32 a, [];"), 6, "found `[]`"),
    ("address-open", inside("ld.u32 a, [b;"), 6, "found `[b`"),
    ("address-wide", inside("ld.u32 a, [b+18446744073709551616];"), 6, "needs more than 64 bits"),
    ("vector-empty", inside("mov.b64 %rd1, {};"), 6, "found `{}`"),
    ("vector-nested", inside("mov.b64 %rd1, {{a, b}};"), 6, "found `{{a, b}}`"),
    (
        "vector-deep",
        inside("mov.b64 %rd1, " + "{" * 5000 + "a" + "}" * 5000 + ";"),
        6,
        "operand that is not understood",
    ),
    ("vector-address", inside("ld.u32 a, [b];", "mov.b64 %rd1, {[b], a};"), 7, "found `{[b], a}`"),
    ("vector-hole", inside("mov.b64 %rd1, {a,};"), 6, "operand that is not understood"),
    ("pair", inside("setp.eq.u32 p|3, a, b;"), 6, "found `p|3`"),
]
UNSUPPORTED = [
    ("branch-targets", inside("ret;", "T: .branchtargets L1, L2;"), 7, ".branchtargets L1, L2"),
    ("call-targets", inside("T:", ".calltargets f;"), 7, ".calltargets f"),
    ("loc", inside("ret;", ".loc 1 x 3", "ret;"), 7, "directive that the emulator does not know"),
    ("alias", HEADER + ".alias f, g;\n", 4, ".alias f, g"),
    ("texture", HEADER + ".tex .u32 x;\n", 4, ".tex .u32 x"),
    ("surface", HEADER + ".global .surfref x;\n", 4, ".surfref"),
    ("managed", HEADER + ".global .attribute(.managed) .u32 x;\n", 4, ".attribute"),
    ("bank", HEADER + ".global .v8 .u32 x;\n", 4, ".v8"),
    ("predicate", HEADER + ".global .pred x;\n", 4, ".pred"),
    ("generic", HEADER + ".const .u32 y;\n.global .u64 x = generic(y);\n", 5, "generic(y)"),
    ("vector-register", inside(".reg .v2 .f32 v;"), 6, ".reg .v2 .f32 v;"),
    ("wide-register", inside(".reg .b128 v;"), 6, ".reg .b128 v;"),
    ("global-inside", inside("ret;", ".global .u32 x;"), 7, ".global .u32 x;"),
    ("const-inside", inside(".const .u32 x;"), 6, ".const .u32 x;"),
    ("directive", HEADER + ".entry k .maxnumber 3 {}\n", 4, ".maxnumber"),
    ("parameter", HEADER + ".func f(.param .u32 x,\n.reg .u32 y) {}\n", 5, ".reg .u32 y"),
]
CASES = [(*case, "syntax") for case in SYNTAX] + [(*case, "unsupported") for case in UNSUPPORTED]


@pytest.mark.parametrize(
    ("text", "line", "what", "kind"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_error(text: str, line: int, what: str, kind: str) -> None:
    with pytest.raises(EmulationError) as caught:
        parse(text, "some.ptx")
    message = str(caught.value)
    assert what in message
    assert (caught.value.kind, caught.value.line) == (kind, line)
    assert message.startswith(f"some.ptx:{line}: " if line else "some.ptx: ")
    assert "\n" not in message


def test_a_message_says_what_was_found_and_what_is_understood() -> None:
    with pytest.raises(EmulationError) as caught:
        parse(inside("ret;", "ld.u32 a, [b*4];"), "some.ptx")
    assert str(caught.value) == (
        "some.ptx:7: operand that is not understood: expected registers, %tid.x and its kin, constants, names, name+n, "
        "[base], [base+n], [base, {a, b}], {a, b}, p|q, !p and _, found `[b*4]`"
    )


def test_a_long_line_is_cut() -> None:
    with pytest.raises(EmulationError) as caught:
        parse(inside("ld.u32 a, [" + "b*" * 300 + "b];"))
    assert "..." in str(caught.value)
    assert len(str(caught.value)) < 300
