"""PTX text -> `syntax.Module`: every statement is understood or is an error with its line; nothing is skipped silently.

    module = parse(Path("kernel.ptx").read_text(), path="kernel.ptx")

What is left out on purpose because it is no part of the program: comments, ``.section`` blocks (debug data),
``.pragma`` (hints) and ``.callprototype`` (calls through pointers know their parameters themselves). ``.loc`` and
``.file`` become each instruction's `SourceLine`, with the calls it was inlined into. Nested ``{ ... }`` scopes (inline
asm opens them) are flattened: what they declare gets a name of its own. Source: PTX ISA 9.0, chapters 4, 5, 11.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
import re

from ptxemu.errors import EmulationError, PtxemuError
from ptxemu.syntax.declarations import Head, Names, head, registers, variables
from ptxemu.syntax.lexer import IDENTIFIER, Place, Statement, split, statements, without_comments
from ptxemu.syntax.tree import Function, Guard, Instruction, Label, Module, SourceLine, Symbol, Variable
from ptxemu.text import read_text, unescaped

_INSTRUCTION = re.compile(
    rf"(?:@\s*(?P<negated>!?)\s*(?P<guard>{IDENTIFIER})\s+)?"
    r"(?P<opcode>[a-z]\w*(?:\.[\w:]+|\s+\.[A-Za-z][\w:]*)*)(?P<operands>[^;]*);"
)
_FILE = re.compile(r'\.file\s+(\d+)\s+"((?:[^"\\\n]|\\.)*)"')
_CUDA = re.compile(r"\b__(?:global|device|host)__\b|^\s*#\s*include\b", re.MULTILINE)
_BRACED = re.compile(r"[{(\[]")
_COUNT_FIRST = re.compile(r"\.(x[124](?:\.trans)?)\.m8n8\b")  # as ptxas also takes it in ldmatrix and stmatrix
# Headers of CUDA have `red.and.release.cta.b32` for `red.release.cta.and.b32`.
_OPERATION_FIRST = re.compile(
    r"^((?:red|atom))(\.(?:and|or|xor|add|inc|dec|min|max|exch|cas))(\.(?:relaxed|acquire|release|acq_rel)\.\w+)(?=\.)"
)


def parse(text: str, path: str = "<ptx>") -> Module:
    """Reads a PTX module.

    Args:
        text: the file's text.
        path: what messages call the file.

    Raises:
        EmulationError: kind ``syntax`` (not PTX, or PTX that is written in a way not understood) or ``unsupported``
            (a directive that the emulator has no meaning for), with the line.
    """
    if ".version" not in text and _CUDA.search(text):
        hint = "the name of a CUDA file ends in .cu; in Python, compile it first: nvcc -ptx"
        raise EmulationError("syntax", "CUDA C++, not PTX", path=path, hint=hint)
    return _Parser(without_comments(text, path), path).module()


class _Parser:
    """One file being read."""

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self.files = {int(index): unescaped(name) for index, name in _FILE.findall(text)}  # nvcc writes them last
        self.mark = "$"  # between a name and the number that makes it unique; occurs nowhere in the text
        while re.search(re.escape(self.mark) + r"\d", text):
            self.mark += "$"
        self.statements = statements(text, path)
        self.header: dict[str, str] = {}
        self.variables: dict[str, Variable] = {}
        self.functions: dict[str, Function] = {}
        self.promised: dict[str, int] = {}  # functions without a body so far -> line

    def module(self) -> Module:
        """Reads the whole file."""
        for statement in self.statements:
            self._statement(statement)
        for name in ("version", "target", "address_size"):
            if name not in self.header:
                supported = ".version, .target and .address_size"
                raise Place(self.path, 0).problem(f"no .{name} in the file", supported=supported)
        for variable in self.variables.values():
            for item in variable.initial:
                base = getattr(item, "base", item)
                if isinstance(base, Symbol) and not self.knows(base.name):
                    raise Place(self.path, variable.line).problem(f"{base} is not declared")
        for name, line in self.promised.items():
            raise Place(self.path, line).problem(f"{name} is declared but has no body")
        content = tuple(self.variables.values()), tuple(self.functions.values())
        header = self.header["version"], self.header["target"], int(self.header["address_size"])
        return Module(*header, *content, self.files, self.path)

    def _statement(self, statement: Statement) -> None:
        kind, text, line, _ = statement
        if kind in {"version", "target", "address_size"}:
            if kind in self.header:
                raise Place(self.path, line).problem(f"second .{kind}", found=text)
            self.header[kind] = ", ".join(split(text.split(None, 1)[1]))
        elif kind == "function":
            self._function(statement)
        elif kind == "declaration":
            self._variables(text[:-1], line)
        elif kind not in {"file", "section", "pragma", "loc"}:
            raise Place(self.path, line).problem("a module holds directives, variables and functions only", found=text)

    def _variables(self, text: str, line: int) -> None:
        flat = {name for name, variable in self.variables.items() if variable.space == "global"}
        for variable in variables(text, Place(self.path, line), flat):
            known = self.variables.get(variable.name)
            if variable.name in self.functions or (known and "extern" not in {known.linkage, variable.linkage}):
                raise Place(self.path, line).problem(f"{variable.name} is declared twice")
            if not (known and variable.linkage == "extern"):
                self.variables[variable.name] = variable

    def knows(self, name: str) -> bool:
        """Whether the module has declared the name so far."""
        return name in self.variables or name in self.functions or name in self.promised

    def _function(self, statement: Statement) -> None:
        front = head(statement, Place(self.path, statement.line))
        known = self.functions.get(front.name)
        if front.name in self.variables or (front.defined and known and known.linkage != "extern"):
            raise Place(self.path, statement.line).problem(f"{front.name} is declared twice")
        if front.defined:
            if front.linkage == "extern":
                raise Place(self.path, statement.line).problem(f"{front.name} is .extern and has a body")
            self.promised.setdefault(front.name, statement.line)  # it may name itself
            self.functions[front.name] = _Body(self, front, statement.line).read()
            del self.promised[front.name]
        elif known is None and front.linkage == "extern":
            self.functions[front.name] = _Body(self, front, statement.line).function()
        elif known is None:
            self.promised.setdefault(front.name, statement.line)


class _Body:
    """The body of one function being read."""

    def __init__(self, parser: _Parser, front: Head, line: int) -> None:
        self.parser = parser
        self.path = parser.path
        self.front = front
        self.line = line
        parameters = {variable.name for variable in (*front.returns, *front.parameters)}
        self.names = Names(parser.path, parser.mark, parameters, parser.variables.keys())
        self.items: list[Instruction | Label] = []
        self.source: SourceLine | None = None
        self.places: dict[tuple[str, str, str], SourceLine] = {}  # file, line, column -> what .loc last said of it

    def function(self) -> Function:
        """The function with what was read of its body."""
        front, names = self.front, self.names
        variables, body = tuple(names.variables.values()), tuple(self.items)
        made = Function(front.name, front.parameters, names.registers, variables, body, front.directives)
        made = replace(made, is_entry=front.is_entry, linkage=front.linkage)
        return replace(made, line=self.line, returns=front.returns)

    def read(self) -> Function:
        """Reads up to the closing brace."""
        for statement in self.parser.statements:
            kind, text, line, match = statement
            if kind == "instruction":
                self.items.append(self._instruction(text, line))
            elif kind == "loc":
                self._location(match, line)
            elif kind == "label":
                self.items.append(self.names.add_label(text[:-1].rstrip(), line))
            elif kind == "open":
                self.names.open(len(self.items))
            elif kind == "close":
                for name, used in self.names.close(self.items).items():
                    if not self.parser.knows(name):
                        raise Place(self.path, used).problem(f"{name} is not declared")
                if not self.names.scopes:  # it was the function's own
                    return self.function()
            elif kind == "declaration":
                self._declare(statement)
            elif kind not in {"file", "pragma"}:
                raise Place(self.path, line).problem("no statement of a function", found=text)
        raise Place(self.path, self.line).problem(f"{self.front.name} has no closing brace")

    def _declare(self, statement: Statement) -> None:
        at = Place(self.path, statement.line)
        if statement.text.startswith(".callprototype"):
            return
        if statement.text.startswith(".reg"):
            for name, ptx_type in registers(statement, at):
                self.names.add_register(name, ptx_type, statement.line)
        else:
            for variable in variables(statement.text[:-1], at):
                if variable.space in {"global", "const"}:
                    what, supported = f".{variable.space} variable in a function", "such variables at module level"
                    raise at.problem(what, kind="unsupported", found=statement.text, supported=supported)
                self.names.add_variable(variable)
        self.names.declared()

    def _location(self, match: re.Match[str], line: int) -> None:
        """``.loc file line column[, function_name f, inlined_at file line column]`` (ISA 11.5.2)."""
        file, row, column, *outer = match.groups()[match.re.groupindex["loc"] :][:6]
        parent = None
        if outer[0]:
            parent = self.places.get((outer[0], outer[1], outer[2])) or self._place(outer[0], outer[1], line, None)
        place = self._place(file, row, line, parent)
        self.places[file, row, column] = place
        self.source = place if place.line else None  # line 0: the compiler made it up

    def _place(self, file: str, row: str, line: int, parent: SourceLine | None) -> SourceLine:
        if int(file) not in self.parser.files:
            raise Place(self.path, line).problem(f".loc names file {file}, which no .file declares")
        return SourceLine(self.parser.files[int(file)], int(row), parent)

    def _instruction(self, text: str, line: int) -> Instruction:
        match = _INSTRUCTION.fullmatch(text)
        if match is None:
            supported = "[@[!]p] opcode operands;"
            raise Place(self.path, line).problem("instruction expected", found=text, supported=supported)
        negated, name, opcode, rest = match.groups()
        guard = Guard(self.names.register(name, line), bool(negated)) if name else None
        if len(opcode.split(None, 1)) > 1:  # modifiers on a line of their own
            opcode = "".join(opcode.split())
        if "matrix.sync.aligned.x" in opcode:
            opcode = _COUNT_FIRST.sub(r".m8n8.\1", opcode)
        opcode = _OPERATION_FIRST.sub(r"\1\3\2", opcode)
        pieces = split(rest) if _BRACED.search(rest) else rest.split(",")
        if len(pieces) == 1 and not pieces[0].strip():
            pieces = []
        known, operand = self.names.cache.get, self.names.operand
        operands = tuple([known(piece) or operand(piece, line) for piece in pieces])
        return Instruction(opcode, operands, guard, line, self.source)


def text_of(source: str | Path) -> tuple[str, str]:
    """PTX text and what to call it in messages: a string with a line break is the text itself, anything else a path.

    Raises:
        PtxemuError: the file cannot be read, or none is named.
    """
    if isinstance(source, str) and "\n" in source:
        return source, "<ptx>"
    if not str(source).strip():
        raise PtxemuError("no file is named", expected="PTX, or the path of its file", found=repr(source))
    return read_text(Path(source)), str(source)
