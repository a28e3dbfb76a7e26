"""Round trips over generated modules: what is printed is read back equal; no text makes the parser crash."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
import hypothesis.strategies as st
from tests.module_parts import without_lines

from ptxemu.errors import EmulationError
from ptxemu.syntax.declarations import DIRECTIVES, TYPES
from ptxemu.syntax.lexer import SPECIALS
from ptxemu.syntax.parser import parse
from ptxemu.syntax.printer import to_ptx
from ptxemu.syntax.tree import (
    Address,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Variable,
    Vector,
)

TINY = (Path(__file__).parent / "data" / "tiny.ptx").read_text(encoding="utf-8")
SINK = Symbol("_")
# Each kind of name has a first letter of its own, so that no two declarations collide.
SUFFIXES = st.text("abcXYZ019_$", max_size=4)
REGISTERS = st.one_of(SUFFIXES.map(lambda s: f"r{s}"), st.integers(0, 12).map(lambda n: f"%r{n}"))
ALIGNMENTS = st.sampled_from([None, 1, 2, 4, 8, 16, 128])
INTEGERS = st.integers(-(1 << 63), (1 << 64) - 1).map(Immediate)
CONSTANTS = st.one_of(
    INTEGERS,
    st.integers(-3, 40).map(Immediate),
    st.integers(0, (1 << 32) - 1).map(lambda bits: Immediate(bits, "f32")),
    st.integers(0, (1 << 64) - 1).map(lambda bits: Immediate(bits, "f64")),
)
OFFSETS = st.one_of(st.just(0), st.integers(-(1 << 40), 1 << 40))
OPCODES = st.sampled_from(
    ["ret", "add.s32", "cp.async.cg.shared.global.L2::128B", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "bra"]
)


def names(prefix: str, most: int) -> st.SearchStrategy[list[str]]:
    return st.lists(SUFFIXES.map(lambda suffix: prefix + suffix), max_size=most, unique=True)


def sums(base: str) -> st.SearchStrategy[Operand]:
    """``name`` or ``name+4``, without brackets."""
    symbol = Symbol(base)
    return OFFSETS.map(lambda offset: Address(symbol, offset, brackets=False) if offset else symbol)


@st.composite
def variables(draw: st.DrawFn, name: str, spaces: tuple[str, ...], symbols: list[str]) -> Variable:
    space = draw(st.sampled_from(spaces))
    vector = draw(st.sampled_from([1, 1, 2, 4]))
    array = draw(st.booleans())
    count = draw(st.integers(0, 5)) if array else 1
    initial: tuple[Operand, ...] = ()
    if space in {"global", "const"} and count and draw(st.booleans()):
        elements = st.one_of(CONSTANTS, st.sampled_from(symbols).flatmap(sums)) if symbols else CONSTANTS
        given_count = vector * (draw(st.integers(1, count)) if array else 1)
        initial = tuple(draw(st.lists(elements, min_size=given_count, max_size=given_count)))
    linkage = draw(st.sampled_from(["", "visible", "weak", "common"])) if space == "global" else ""
    return Variable(space, draw(st.sampled_from(TYPES)), name, count, draw(ALIGNMENTS), vector, array, initial, linkage)


def operands(registers: list[str], symbols: list[str]) -> st.SearchStrategy[Operand]:
    """Every kind of operand over these names."""
    register = st.sampled_from(registers).map(Register)
    symbol = st.sampled_from(symbols).map(Symbol)
    special = st.sampled_from(sorted(SPECIALS)).map(Special)
    simple = st.one_of(register, special, CONSTANTS, symbol)
    address = st.builds(Address, st.one_of(register, symbol, INTEGERS), OFFSETS)
    items = st.lists(st.one_of(register, CONSTANTS, st.just(SINK)), min_size=1, max_size=8)
    ends = st.one_of(register, st.just(SINK))
    return st.one_of(
        *(simple, address, st.just(SINK), st.sampled_from(symbols).flatmap(sums)),
        *(items.map(lambda some: Vector(tuple(some))), st.builds(Pair, ends, ends), register.map(Negated)),
    )


@st.composite
def functions(draw: st.DrawFn, name: str, outside: list[str]) -> Function:
    is_entry = draw(st.booleans())
    spaces = ("shared", "local", "param")
    parameters = [draw(variables(each, ("param",), [])) for each in draw(names("p", 3))]
    returns = [] if is_entry else [draw(variables("q", ("param",), []))]
    registers = {
        each: draw(st.sampled_from([*TYPES, "pred"])) for each in ["r", *draw(st.lists(REGISTERS, max_size=6))]
    }
    inner = [draw(variables(each, spaces, [])) for each in draw(names("v", 3))]
    labels = draw(names("L", 3))
    known = [*outside, *labels, name, *(variable.name for variable in (*parameters, *returns, *inner))]
    guards = st.one_of(st.none(), st.builds(Guard, st.sampled_from(list(registers)).map(Register), st.booleans()))
    some = st.lists(operands(list(registers), known), max_size=5).map(tuple)
    body: list[Instruction | Label] = draw(st.lists(st.builds(Instruction, OPCODES, some, guards), max_size=12))
    if draw(st.booleans()):
        lists = st.lists(st.sampled_from(list(registers)).map(Register), max_size=3).map(
            lambda all_: Vector(tuple(all_))
        )
        body.append(Instruction("call.uni", (draw(lists), Symbol(name), draw(lists))))
    for label in labels:
        body.insert(draw(st.integers(0, len(body))), Label(label))
    directives = draw(
        st.lists(
            st.tuples(st.sampled_from(DIRECTIVES), st.lists(st.integers(0, 1024), max_size=3).map(tuple)), max_size=3
        )
    )
    return Function(
        name=name,
        parameters=tuple(parameters),
        registers=registers,
        variables=tuple(inner),
        body=tuple(body),
        directives=tuple(directives),
        is_entry=is_entry,
        linkage=draw(st.sampled_from(["", "visible", "weak"])),
        returns=tuple(returns),
    )


@st.composite
def modules(draw: st.DrawFn) -> Module:
    outside: list[str] = []
    held = []
    for name in draw(names("g", 4)):
        held.append(draw(variables(name, ("global", "const", "shared"), outside)))
        outside.append(name)
    return Module(
        version=draw(st.sampled_from(["7.0", "9.0"])),
        target=draw(st.sampled_from(["sm_80", "sm_90a", "sm_80, debug"])),
        address_size=draw(st.sampled_from([32, 64])),
        variables=tuple(held),
        functions=tuple([draw(functions(name, outside)) for name in draw(names("f", 2))]),
        files=draw(st.dictionaries(st.integers(0, 99), st.text("ab/.; {}", min_size=1, max_size=8), max_size=2)),
    )


@settings(deadline=None, max_examples=150)
@given(modules())
def test_round_trip(module: Module) -> None:
    assert without_lines(parse(to_ptx(module))) == module


def read_or_refuse(text: str) -> None:
    """A module that can be printed, or one `EmulationError` that names a line of the file."""
    try:
        module = parse(text)
    except EmulationError as error:
        refused = error
    else:
        assert without_lines(parse(to_ptx(module))) == without_lines(module)
        return
    assert refused.kind in {"syntax", "unsupported"}
    assert 0 <= refused.line <= text.count("\n") + 1


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_damaged_file(data: st.DataObject) -> None:
    """Characters cut out of real PTX, and others put in."""
    start = data.draw(st.integers(0, len(TINY)))
    length = data.draw(st.integers(0, 30))
    put = data.draw(st.text('{}[]();:,.@%!|"/*\n-+0x1fr _', max_size=6))
    read_or_refuse(TINY[:start] + put + TINY[start + length :])


@settings(deadline=None, max_examples=100)
@given(st.text('ret.u32 ;{}[]()%a0x,:@!|_\n"/*=<>+-', max_size=60))
def test_any_text(text: str) -> None:
    read_or_refuse(f".version 8.0\n.target sm_80\n.address_size 64\n.entry k {{ .reg .u32 a;\n{text}\n}}")
