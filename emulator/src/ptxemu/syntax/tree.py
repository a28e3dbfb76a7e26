"""The parts of a PTX module as frozen data: what the parser makes and everything else reads.

`str()` of an operand or an instruction is PTX again, for messages. Source: PTX ISA 9.0, chapters 4 (syntax) and 5
(state spaces, types, variables).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
import re
from typing import TypeAlias, TypeVar

Fact = TypeVar("Fact")
_TOOLKIT = re.compile(r".*/(?:bin/\.\./+|cu\d+/|cuda[^/]*/|targets/[^/]+/)include/(?:cccl/)?")  # before a header's name
SHOWN_CALLS = 3  # CUDA lines that a message shows of an inlined call chain, the innermost first


@dataclass(frozen=True)
class _Named:
    name: str

    def __str__(self) -> str:
        return self.name


class Register(_Named):
    """A declared register such as ``%r1``."""


class Special(_Named):
    """A special register such as ``%tid.x`` or ``%laneid``; also ``WARP_SZ``."""


class Symbol(_Named):
    """The name of a variable, parameter, label or function."""


@dataclass(frozen=True)
class Immediate:
    """A constant. `kind` is ``int`` (`value`: the number), ``f32`` or ``f64`` (the bits of ``0f…``, ``0d…``)."""

    value: int
    kind: str = "int"

    def __str__(self) -> str:
        if self.kind == "int":
            return str(self.value)
        return f"0f{self.value:08X}" if self.kind == "f32" else f"0d{self.value:016X}"


@dataclass(frozen=True)
class Negated:
    """A predicate operand read as its complement: ``!%p1``."""

    operand: Register

    def __str__(self) -> str:
        return f"!{self.operand}"


@dataclass(frozen=True)
class Vector:
    """``{%r1, %r2}``; an item may be the sink ``_``, which is Symbol("_")."""

    items: tuple[Operand, ...]

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.items)) + "}"


@dataclass(frozen=True)
class Address:
    """``[%rd1+16]``, ``[smem+4]``, ``[param_0]``: base and offset in bytes; without brackets ``smem+4`` as a value.

    `coordinates` are those of a box in the tensor whose map lies at the address: ``[%rd1, {%r1, %r2}]``.
    """

    base: Register | Symbol | Immediate
    offset: int = 0
    brackets: bool = True
    coordinates: Vector | None = None

    def __str__(self) -> str:
        text = f"{self.base}" + (f"+{self.offset}" if self.offset else "")
        text += "" if self.coordinates is None else f", {self.coordinates}"
        return f"[{text}]" if self.brackets else text


@dataclass(frozen=True)
class Pair:
    """Two destinations, ``%p1|%p2`` (setp, shfl, match); either may be the sink ``_``."""

    first: Operand
    second: Operand

    def __str__(self) -> str:
        return f"{self.first}|{self.second}"


Operand: TypeAlias = Register | Special | Immediate | Symbol | Negated | Vector | Address | Pair


@dataclass(frozen=True)
class SourceLine:
    """Where an instruction comes from, by ``.loc``: file as ``.file`` names it, and the call it was inlined into."""

    file: str
    line: int
    inlined_at: SourceLine | None = None

    def __str__(self) -> str:
        return f"{_TOOLKIT.sub('', self.file)}:{self.line}"

    @property
    def chain(self) -> str:
        """The place, then those of the calls that it was inlined through: ``copy.cuh:12 < kernel.cu:40``.

        Calls within the toolkit's headers are left out.
        """
        places: list[str] = []
        place: SourceLine | None = self
        while place is not None and len(places) < SHOWN_CALLS:
            if not (places and _TOOLKIT.match(place.file)):
                places.append(str(place))
            place = place.inlined_at
        return " < ".join(places)


@dataclass(frozen=True)
class Guard:
    """``@%p1`` or ``@!%p1``."""

    register: Register
    negated: bool = False

    def __str__(self) -> str:
        return f"@{'!' if self.negated else ''}{self.register}"


@dataclass(frozen=True)
class Instruction:
    """One statement. `opcode` is the full dotted text (``mma.sync.aligned…``); `line` counts from 1 in the PTX file."""

    opcode: str
    operands: tuple[Operand, ...] = ()
    guard: Guard | None = None
    line: int = 0
    source: SourceLine | None = field(default=None, compare=False)

    def __str__(self) -> str:
        guard = f"{self.guard} " if self.guard else ""
        operands = " " + ", ".join(map(str, self.operands)) if self.operands else ""
        return f"{guard}{self.opcode}{operands};"

    @property
    def place(self) -> str:
        """The instruction with its PTX line and its CUDA lines, innermost call first."""
        where = f" from {self.source.chain}" if self.source else ""
        return f"`{self}` (line {self.line}{where})"


def kept(function: Callable[[Instruction], Fact]) -> Callable[[Instruction], Fact]:
    """`function`, whose answer an instruction keeps: mutants and launches of a kernel share their instructions."""
    name = f"_{function.__name__}"

    @wraps(function)
    def remembered(instruction: Instruction) -> Fact:
        facts = vars(instruction)  # a frozen dataclass guards its fields alone
        if name not in facts:
            facts[name] = function(instruction)
        fact: Fact = facts[name]
        return fact

    return remembered


@dataclass(frozen=True)
class Label:
    """A branch target."""

    name: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.name}:"


@dataclass(frozen=True)
class Variable:
    """A declared variable or parameter: state space, type, length in elements (0: ``[]``, of unknown length), contents.

    `count` is 1 for a scalar; `vector` 2 or 4 for ``.v2``/``.v4``; `initial` the initialiser's elements, flattened.
    """

    space: str  # param, shared, global, const, local
    type: str  # b8, u32, f32, ...
    name: str
    count: int = 1
    align: int | None = None
    vector: int = 1
    array: bool = False
    initial: tuple[Operand, ...] = ()
    linkage: str = ""  # "", "extern", "visible", "weak"
    line: int = 0


@dataclass(frozen=True)
class Function:
    """An ``.entry`` (kernel) or ``.func``: parameters, registers (name -> type), variables and body."""

    name: str
    parameters: tuple[Variable, ...]
    registers: Mapping[str, str]
    variables: tuple[Variable, ...]
    body: tuple[Instruction | Label, ...]
    directives: tuple[tuple[str, tuple[int, ...]], ...] = ()  # ("maxntid", (128, 1, 1))
    is_entry: bool = True
    linkage: str = "visible"
    line: int = 0
    returns: tuple[Variable, ...] = ()  # of a .func


@dataclass(frozen=True)
class Module:
    """A whole PTX file."""

    version: str
    target: str
    address_size: int
    variables: tuple[Variable, ...]
    functions: tuple[Function, ...]
    files: Mapping[int, str] = field(default_factory=dict)  # the index in `.loc` -> path
    path: str = "<ptx>"
