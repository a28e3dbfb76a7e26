"""Declarations of PTX: variables with their initialisers, register lists, and the heads of entries and functions.

Why apart from the parser: declarations are rare and rich, instructions are many and plain. Source: PTX ISA 9.0,
chapter 5 (state spaces, types, variables), 11.1 to 11.7 (directives).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
import math
import re
from typing import NamedTuple

from flashladder.emulator.syntax.lexer import IDENTIFIER, Place, Statement, number, split
from flashladder.emulator.syntax.tree import Address, Immediate, Operand, Symbol, Variable
from flashladder.emulator.values import DTYPES

SPACES = ("param", "shared", "global", "const", "local")
LINKAGES = ("extern", "visible", "weak", "common")
TYPES = tuple(name for name in DTYPES if name != "pred")  # of variables
# Performance directives of an entry; each takes integers or nothing.
DIRECTIVES = (
    *("maxntid", "reqntid", "minnctapersm", "maxnctapersm", "maxnreg", "noreturn"),
    *("explicitcluster", "reqnctapercluster", "maxclusterrank", "blocksareclusters"),
)
MOST_REGISTERS = 1 << 20  # of one %r<n>: more is a typing error, and would fill the memory
MOST_INITIAL = 1 << 22  # elements of an array with an initialiser; Python keeps each

_VARIABLE = re.compile(
    rf"""(?:\.(?P<linkage>{"|".join(LINKAGES)})\s+)?\.(?P<space>{"|".join(SPACES)})\b
    (?P<attributes>(?:\s*\.\w+(?:\s+\d+)?(?![\w$]))*)\s*(?P<rest>.*)""",
    re.VERBOSE | re.DOTALL,
)
_ATTRIBUTE = re.compile(r"\.(\w+)(?:\s+(\d+))?")
_DECLARATOR = re.compile(
    rf"(?P<name>{IDENTIFIER})\s*(?P<dimensions>(?:\[[^\]]*\]\s*)*)(?:=\s*(?P<initial>.+))?", re.DOTALL
)
_ELEMENT = re.compile(
    rf"(?:(?P<generic>generic\s*\(\s*)?(?P<name>{IDENTIFIER})\s*(?(generic)\))\s*(?:\+\s*|(?=-)|\Z))?"
    r"(?P<number>(?:-\s*)?[\d.]\S*)?"
)
_REGISTERS = re.compile(r"\.reg\s*\.(?P<type>\w+)\s+(?P<names>[^;]*);")
_REGISTER = re.compile(rf"(?P<name>{IDENTIFIER}|%)(?:\s*<\s*(?P<count>\d+)\s*>)?")
_HEAD = re.compile(
    rf"""(?:\.(?P<linkage>visible|extern|weak)\s+)?\.(?P<kind>entry|func)\b\s*
    (?:\((?P<returns>[^)]*)\)\s*)?(?P<name>{IDENTIFIER})\s*(?:\((?P<parameters>[^)]*)\))?\s*
    (?P<directives>(?:\.\w+(?:\s+\d+(?:\s*,\s*\d+)*)?\s*)*)(?P<end>[{{;])""",
    re.VERBOSE,
)
_DIRECTIVE = re.compile(r"\.(\w+)((?:\s+\d+(?:\s*,\s*\d+)*)?)")


class Head(NamedTuple):
    """What stands before the body of an entry or function; `defined` is False for a declaration that ends in ``;``."""

    name: str
    is_entry: bool
    linkage: str
    returns: tuple[Variable, ...]
    parameters: tuple[Variable, ...]
    directives: tuple[tuple[str, tuple[int, ...]], ...]
    defined: bool


def variables(text: str, at: Place, flat: Container[str] = ()) -> Iterator[Variable]:
    """The variables of one declaration.

    Args:
        text: ``.global .align 4 .u32 a[2] = {1, 2}, b``, without ``;``.
        at: where it begins.
        flat: names that ``generic(name)`` leaves alone: variables in .global, whose generic addresses are the same.
    """
    match = _VARIABLE.fullmatch(text.strip())
    if match is None:
        what = "directive that the emulator does not know"
        supported = ".entry, .func, .reg and variables in " + ", ".join(f".{space}" for space in SPACES)
        raise at.problem(what, kind="unsupported", found=text, supported=supported)
    space, linkage = match["space"], match["linkage"] or ""
    ptx_type, vector, align = _attributes(match["attributes"], at)
    pieces = split(match["rest"])
    if not pieces or not ptx_type:
        supported = ".space [.align n] [.v2|.v4] .type name"
        raise at.problem("variable without a type or a name", found=text, supported=supported)
    for piece in pieces:
        declarator = _DECLARATOR.fullmatch(piece)
        if declarator is None:
            raise at.problem("name of a variable expected", found=piece, supported="name, name[n] or name[n] = {...}")
        lengths = _dimensions(declarator["dimensions"], at)
        initial: tuple[Operand, ...] = ()
        if declarator["initial"] is not None:
            if space not in {"global", "const"}:
                raise at.problem("only .global and .const variables may have an initialiser", found=piece)
            zero = Immediate(0, "f64") if ptx_type.startswith("f") else Immediate(0)
            initial = tuple(_filled(declarator["initial"], lengths + [vector] * (vector > 1), zero, at, flat))
            if lengths and lengths[0] == 0:
                lengths[0] = len(initial) // (math.prod(lengths[1:]) * vector)
        count = math.prod(lengths)
        yield Variable(
            space, ptx_type, declarator["name"], count, align, vector, bool(lengths), initial, linkage, at.line
        )


def _attributes(text: str, at: Place) -> tuple[str, int, int | None]:
    """Type, vector length and alignment; ``.ptr .global .align 8`` says what a parameter points to: no meaning here."""
    ptx_type, vector, align, pointer = "", 1, None, False
    for name, value in _ATTRIBUTE.findall(text):
        if name == "align" and value:
            if int(value).bit_count() != 1:
                raise at.problem("alignment", found=f".align {value}", supported="a power of two")
            align = align if pointer else int(value)
        elif name == "ptr":
            pointer = True
        elif name in {"v2", "v4"} and not value:
            vector = int(name[1:])
        elif name in TYPES and not ptx_type and not value:
            ptx_type = name
        elif not (pointer and name in SPACES):
            supported = ".align n, .v2, .v4, .ptr and the types " + " ".join(TYPES)
            raise at.problem("attribute of a variable", kind="unsupported", found=f".{name}", supported=supported)
    return ptx_type, vector, align


def _dimensions(text: str, at: Place) -> list[int]:
    """Lengths of ``[2][3]``, outermost first; 0 for ``[]``, which only the first may be."""
    found: list[int] = []
    for piece in re.findall(r"\[([^\]]*)\]", text):
        try:
            length = number(piece.strip()) if piece.strip() else Immediate(0)
        except ValueError:  # more than 64 bits
            length = None
        if length is None or length.kind != "int" or length.value < 0 or (found and not length.value):
            raise at.problem("length of an array", found=f"[{piece}]", supported="a constant; [] for the first only")
        found.append(length.value)
    return found


def _filled(text: str, shape: Sequence[int], zero: Immediate, at: Place, flat: Container[str]) -> list[Operand]:
    """The elements of an initialiser, flattened; inner rows that are too short are filled with `zero`.

    Elements after the last one given are zero too (ISA 5.4.4).
    """
    if not shape:
        return [_element(text, at, flat)]
    if math.prod(shape) > MOST_INITIAL:
        raise at.problem("array with an initialiser", found=shape, supported=f"at most {MOST_INITIAL} elements")
    if not (text.startswith("{") and text.endswith("}")):
        raise at.problem("initialiser of an array or vector", found=text, supported="{...}")
    items: list[Operand] = []
    for piece in split(text[1:-1]):
        items += _filled(piece, shape[1:], zero, at, flat)
        items += [zero] * (-len(items) % math.prod(shape[1:]))
    if shape[0] and len(items) > math.prod(shape):
        found = f"{len(items)} elements"
        raise at.problem("initialiser is too long", found=found, supported=f"{math.prod(shape)} elements")
    return items


def _element(text: str, at: Place, flat: Container[str]) -> Operand:
    """A constant, ``name``, ``name+4``, ``generic(name)`` or ``generic(name)+4``."""
    match = _ELEMENT.fullmatch(text)
    try:
        constant = number(match["number"] or "0") if match else None
    except ValueError as error:
        raise at.problem(str(error), found=text) from None
    if match is None or constant is None or not text or (match["name"] and constant.kind != "int"):
        supported = "constants, name, name+n, generic(name)+n; no other expressions"
        raise at.problem("element of an initialiser", found=text, supported=supported)
    if match["name"] is None:
        return constant
    if match["generic"] and match["name"] not in flat:
        raise at.problem("generic address", kind="unsupported", found=text, supported="generic(name) for .global names")
    symbol = Symbol(match["name"])
    return Address(symbol, constant.value, brackets=False) if constant.value else symbol


def registers(statement: Statement, at: Place) -> Iterator[tuple[str, str]]:
    """Name and type of every register of ``.reg .b32 %r<10>, tmp;``."""
    match = _REGISTERS.fullmatch(statement.text)
    if match is None or match["type"] not in DTYPES:
        supported = ".reg .type names, with the types " + " ".join(DTYPES)
        raise at.problem("declaration of registers", kind="unsupported", found=statement.text, supported=supported)
    for piece in split(match["names"]):
        name = _REGISTER.fullmatch(piece)
        if name is None or (name["name"] == "%" and name["count"] is None):
            raise at.problem("name of a register", found=piece, supported="name or name<count>")
        if int(name["count"] or 0) > MOST_REGISTERS:
            raise at.problem("too many registers", found=piece, supported=f"at most {MOST_REGISTERS}")
        if name["count"] is None:
            yield name["name"], match["type"]
        else:
            for index in range(int(name["count"])):
                yield f"{name['name']}{index}", match["type"]


def head(statement: Statement, at: Place) -> Head:
    """The head of an ``.entry`` or ``.func``, up to its ``{`` or ``;``."""
    match = _HEAD.fullmatch(statement.text)
    if match is None:
        supported = "[.visible] .entry name(parameters) directives {"
        raise at.problem("head of a function", found=statement.text, supported=supported)
    directives = []
    for name, values in _DIRECTIVE.findall(match["directives"]):
        if name not in DIRECTIVES:
            supported = " ".join(f".{name}" for name in DIRECTIVES)
            raise at.problem("directive of a function", kind="unsupported", found=f".{name}", supported=supported)
        directives.append((name, tuple(int(value) for value in values.replace(",", " ").split())))
    return Head(
        match["name"],
        match["kind"] == "entry",
        match["linkage"] or "",
        _parameters(match, "returns", at),
        _parameters(match, "parameters", at),
        tuple(directives),
        match["end"] == "{",
    )


def _parameters(match: re.Match[str], group: str, at: Place) -> tuple[Variable, ...]:
    """The parameters in one group of a head, each with its own line."""
    found: list[Variable] = []
    position = match.start(group)
    for piece in split(match[group] or ""):
        position = match.string.index(piece, position)
        here = Place(at.path, at.line + match.string.count("\n", 0, position))
        if not piece.startswith(".param"):
            raise here.problem("parameter", kind="unsupported", found=piece, supported=".param .type name")
        found += variables(piece, here)
    return tuple(found)
