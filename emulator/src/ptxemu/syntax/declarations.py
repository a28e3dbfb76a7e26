"""Declarations of PTX (variables, registers, entries, functions) and the operands that name them.

A name means something only in its scope, and an operand only through its names: each function has one `Names`, which
reads each spelling of an operand once.

Source: PTX ISA 9.0, 4.4 (identifiers), 4.5 (constants), 5 (state spaces, types, variables), 6 (operands), 11.1 to 11.7
(directives).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
import math
import re
from typing import NamedTuple

from ptxemu.errors import EmulationError
from ptxemu.syntax.lexer import IDENTIFIER, SPECIALS, Place, Statement, number, split
from ptxemu.syntax.tree import (
    Address,
    Immediate,
    Instruction,
    Label,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Variable,
    Vector,
)
from ptxemu.values import DTYPES

SUPPORTED = (
    "registers, %tid.x and its kin, constants, names, name+n, [base], [base+n], [base, {a, b}], {a, b}, p|q, !p and _"
)

_NAME = re.compile(IDENTIFIER)
_SPECIAL = re.compile(r"%\w+\.\w+")
_NESTED = re.compile(r"[\[\]{}()!|]")  # what the items of a list are not made of
_CONSTANT = r"(?:-\s*)?\d\w*"
_SUM = re.compile(rf"(?P<base>{IDENTIFIER}|{_CONSTANT})\s*(?:\+\s*|(?=-))(?P<offset>{_CONSTANT})")


@dataclass
class Scope:
    """One ``{ ... }`` of a body: what was declared in it, where its code begins, its labels, names yet unknown."""

    start: int = 0
    renamed: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)  # name -> line of its first use
    cache: dict[str, Operand] | None = None  # the enclosing scope's, kept aside by the first declaration


class Names:
    """The names of one function while it is read.

    Attributes:
        registers: name -> type of all registers, those of inner scopes under names of their own.
        variables: likewise.
        cache: text of an operand -> operand, for the names now in scope; read it before calling `operand`.
    """

    def __init__(self, path: str, mark: str, parameters: Collection[str], outside: Collection[str]) -> None:
        """`mark` joins a name and the number that makes it unique; `outside` are the module's variables."""
        self.path = path
        self.mark = mark
        self.parameters = parameters
        self.outside = outside
        self.registers: dict[str, str] = {}
        self.variables: dict[str, Variable] = {}
        self.cache: dict[str, Operand] = {}
        self.scopes = [Scope()]
        self._made = 0  # unique names so far
        self._unknown = 0  # uses so far of names that were not declared before

    def add_register(self, name: str, ptx_type: str, line: int) -> None:
        """Declares a register in the innermost scope."""
        self.registers[self._new(name, line)] = ptx_type

    def add_variable(self, variable: Variable) -> None:
        """Declares a variable in the innermost scope."""
        name = self._new(variable.name, variable.line)
        self.variables[name] = replace(variable, name=name)

    def declared(self) -> None:
        """After declarations: what operands meant before may have changed."""
        scope = self.scopes[-1]
        if len(self.scopes) > 1 and scope.cache is None:
            scope.cache = self.cache
        self.cache = {}

    def add_label(self, name: str, line: int) -> Label:
        """Declares a label, which may be used anywhere in its scope."""
        self._refuse_second(name, line)
        self.scopes[-1].labels[name] = name if len(self.scopes) == 1 else self._unique(name)
        return Label(name, line)

    def _new(self, name: str, line: int) -> str:
        """The name under which a declaration is known to the function."""
        self._refuse_second(name, line)
        if len(self.scopes) == 1 and name not in self.outside:
            return name
        renamed = self.scopes[-1].renamed
        renamed[name] = self._unique(name)
        return renamed[name]

    def _refuse_second(self, name: str, line: int) -> None:
        """Fails if the innermost scope has declared the name already."""
        scope = self.scopes[-1]
        known = name in scope.labels or name in scope.renamed
        if len(self.scopes) == 1:
            known |= any(name in each for each in (self.registers, self.variables, self.parameters, SPECIALS))
        if known:
            raise Place(self.path, line).problem(f"{name} is declared twice")

    def _unique(self, name: str) -> str:
        self._made += 1
        return f"{name}{self.mark}{self._made}"

    def open(self, start: int) -> None:
        """Enters a scope whose first statement will be item `start` of the body."""
        self.scopes.append(Scope(start))

    def close(self, body: list[Instruction | Label]) -> dict[str, int]:
        """Leaves the innermost scope: its labels get unique names in `body`.

        Returns:
            The names used in it that are still unknown, with the lines: empty unless it was the outermost one.
        """
        scope = self.scopes.pop()
        if scope.cache is not None:
            self.cache = scope.cache
        unknown = {name: line for name, line in scope.unknown.items() if name not in scope.labels}
        if not self.scopes:
            return unknown
        if scope.labels:
            body[scope.start :] = [_relabelled(item, scope.labels) for item in body[scope.start :]]
        for name, line in unknown.items():
            self.scopes[-1].unknown.setdefault(name, line)
        return {}

    def operand(self, text: str, line: int) -> Operand:
        """One operand; kept in `cache` unless it holds a name that is unknown so far, which may be a later label."""
        before = self._unknown
        operand = self._read(text.strip(), line)
        if self._unknown == before:
            self.cache[text] = operand
        return operand

    def register(self, text: str, line: int) -> Register:
        """A register, where nothing else makes sense: a guard, what ``!`` negates."""
        operand = self._simple(text, line)
        if not isinstance(operand, Register):
            supported = "a register declared with .reg"
            raise Place(self.path, line).problem("predicate register expected", found=text, supported=supported)
        return operand

    def _read(self, text: str, line: int) -> Operand:
        ends = text[:1] + text[-1:]
        if ends == "[]":
            return self._address(text, line)
        if ends in {"{}", "()"}:
            items = split(text[1:-1])
            if _NESTED.search(text, 1, len(text) - 1) or (not items and ends == "{}"):
                raise self._bad(text, line)
            return Vector(tuple([self.cache.get(item) or self.operand(item, line) for item in items]))
        if text.startswith("!"):
            return Negated(self.register(text[1:].strip(), line))
        if "|" in text:
            left, _, right = text.partition("|")
            return Pair(self._member(left, text, line), self._member(right, text, line))
        return self._simple(text, line) or self._sum(text, line)

    def _address(self, text: str, line: int) -> Address:
        """``[base]`` or ``[base+offset]``; of a tensor with the coordinates of a box: ``[base, {a, b}]``."""
        inner = text[1:-1].strip()
        parts = split(inner) if "{" in inner else []
        if len(parts) == 2 and parts[1].startswith("{"):
            coordinates = self._read(parts[1], line)
            if isinstance(coordinates, Vector):
                return replace(self._address(f"[{parts[0]}]", line), coordinates=coordinates)
        base = self._simple(inner, line)
        if base is None:
            return replace(self._sum(inner, line, text), brackets=True)
        if isinstance(base, Special) or (isinstance(base, Immediate) and base.kind != "int") or base == Symbol("_"):
            raise self._bad(text, line)
        return Address(base)

    def _sum(self, text: str, line: int, whole: str = "") -> Address:
        """``base+offset``: without brackets (then `whole` is empty) the base must be a symbol."""
        match = _SUM.fullmatch(text)
        base = self._simple(match["base"], line) if match else None
        offset = self._number(match["offset"], line) if match else None
        bases = (Register, Symbol, Immediate) if whole else (Symbol,)
        if not isinstance(base, bases) or offset is None:
            raise self._bad(whole or text, line)
        return Address(base, offset.value, brackets=False)

    def _member(self, text: str, whole: str, line: int) -> Operand:
        member = self._simple(text.strip(), line)
        if not isinstance(member, Register) and member != Symbol("_"):
            raise self._bad(whole, line)
        return member

    def _simple(self, text: str, line: int) -> Register | Special | Symbol | Immediate | None:
        """A name or a constant, None when the text is neither."""
        if _NAME.fullmatch(text) or _SPECIAL.fullmatch(text):
            return self._name(text, line)
        return Symbol("_") if text == "_" else self._number(text, line)

    def _number(self, text: str, line: int) -> Immediate | None:
        try:
            return number(text)
        except ValueError as error:
            raise Place(self.path, line).problem(str(error), found=text) from None

    def _name(self, name: str, line: int) -> Register | Special | Symbol:
        for scope in reversed(self.scopes):
            if name in scope.renamed:
                name = scope.renamed[name]
                break
        if name in self.registers:
            return Register(name)
        if name in SPECIALS:
            return Special(name)
        if name.startswith("%"):
            what = f"{name} is neither a declared register nor a special one"
            raise Place(self.path, line).problem(what, found=name)
        if not (name in self.variables or name in self.parameters or name in self.outside):
            self.scopes[-1].unknown.setdefault(name, line)
            self._unknown += 1
        return Symbol(name)

    def _bad(self, text: str, line: int) -> EmulationError:
        return Place(self.path, line).problem("operand that is not understood", found=text, supported=SUPPORTED)


def _relabelled(item: Instruction | Label, labels: dict[str, str]) -> Instruction | Label:
    """The item with the labels of its scope replaced by their unique names."""
    if isinstance(item, Label):
        return Label(labels.get(item.name, item.name), item.line)
    if not any(isinstance(operand, Symbol) and operand.name in labels for operand in item.operands):
        return item
    operands = [
        Symbol(labels.get(each.name, each.name)) if isinstance(each, Symbol) else each for each in item.operands
    ]
    return replace(item, operands=tuple(operands))


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
_MANAGED = re.compile(r"\.attribute\s*\(\s*\.managed\s*\)")  # the host may use it: no meaning here
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
    match = _VARIABLE.fullmatch(_MANAGED.sub("", text.strip()))
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
    returns, parameters = (_parameters(match, group, at) for group in ("returns", "parameters"))
    is_entry, defined, linkage = match["kind"] == "entry", match["end"] == "{", match["linkage"] or ""
    return Head(match["name"], is_entry, linkage, returns, parameters, tuple(directives), defined)


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
        position += len(piece)
    return tuple(found)
