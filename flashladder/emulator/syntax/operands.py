"""Operands of PTX instructions, and the names that they may use: registers, variables, labels, in nested scopes.

Why apart from the parser: a name means something only in its scope, and an operand only through its names. Each
function has one `Names`, which reads each spelling of an operand once. Source: PTX ISA 9.0, 4.4 (identifiers),
4.5 (constants), 6 (operands).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
import re

from flashladder.emulator.errors import EmulationError
from flashladder.emulator.syntax.lexer import IDENTIFIER, SPECIALS, Place, number, split
from flashladder.emulator.syntax.tree import (
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
        scope = self.scopes[-1]
        if name in scope.labels or self._taken(name):
            raise Place(self.path, line).problem(f"{name} is declared twice")
        scope.labels[name] = name if len(self.scopes) == 1 else self._unique(name)
        return Label(name, line)

    def _new(self, name: str, line: int) -> str:
        """The name under which a declaration is known to the function."""
        scope = self.scopes[-1]
        if name in scope.labels or self._taken(name):
            raise Place(self.path, line).problem(f"{name} is declared twice")
        if len(self.scopes) == 1 and name not in self.outside:
            return name
        scope.renamed[name] = self._unique(name)
        return scope.renamed[name]

    def _taken(self, name: str) -> bool:
        if len(self.scopes) > 1:
            return name in self.scopes[-1].renamed
        known = name in self.registers or name in self.variables or name in self.parameters
        return known or name in SPECIALS or name in self.scopes[0].renamed

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
    operands = (
        Symbol(labels.get(operand.name, operand.name)) if isinstance(operand, Symbol) else operand
        for operand in item.operands
    )
    return replace(item, operands=tuple(operands))
