"""`syntax.Module` -> PTX text: what the parser reads back as the same module.

A mutation test changes a body (deletes a barrier) and needs a file again, for ptxas or a person. What the parser drops
(comments, debug data, ``.pragma "nounroll"``) is gone and ``.loc`` is not written: source lines are lost, and a target
with ``debug`` is no longer one that ptxas takes. Source: PTX ISA 9.0, chapters 5 and 11.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import re

from ptxemu.syntax.tree import Function, Instruction, Label, Module, Variable, Vector
from ptxemu.text import escaped

_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d*)")


def to_ptx(module: Module) -> str:
    """The module as PTX text: ``parse(to_ptx(m), m.path) == m`` but for line numbers and `Instruction.source`."""
    lines = [f".version {module.version}", f".target {module.target}", f".address_size {module.address_size}", ""]
    lines += [f"{_variable(variable)};" for variable in module.variables]
    for function in module.functions:
        if not (function.is_entry or function.linkage == "extern"):  # may be called before its body
            lines += ["", *_head(function), ";"]
    for function in module.functions:
        lines += ["", *_head(function), *([";"] if function.linkage == "extern" else _body(function))]
    lines += [f'\t.file\t{index} "{escaped(name)}"' for index, name in module.files.items()]
    return "\n".join(lines) + "\n"


def _variable(variable: Variable) -> str:
    words = [f".{variable.linkage}"] if variable.linkage else []
    words.append(f".{variable.space}")
    if variable.align is not None:
        words.append(f".align {variable.align}")
    if variable.vector > 1:
        words.append(f".v{variable.vector}")
    words += [f".{variable.type}", variable.name]
    text = " ".join(words)
    if variable.array:
        text += f"[{variable.count or ''}]"
    return text + _initial(variable)


def _initial(variable: Variable) -> str:
    """`` = {...}``, with braces around each vector of an array of vectors."""
    if not variable.initial:
        return ""
    items = [str(item) for item in variable.initial]
    if not variable.array and variable.vector == 1:
        return f" = {items[0]}"
    if variable.array and variable.vector > 1:
        rows = range(0, len(items), variable.vector)
        items = ["{" + ", ".join(items[row : row + variable.vector]) + "}" for row in rows]
    return " = {" + ", ".join(items) + "}"


def _head(function: Function) -> Iterator[str]:
    head = f".{function.linkage} " if function.linkage else ""
    head += ".entry " if function.is_entry else ".func "
    if function.returns:
        head += f"({', '.join(map(_variable, function.returns))}) "
    parameters = ",\n".join(f"\t{_variable(parameter)}" for parameter in function.parameters)
    yield f"{head}{function.name}(" + (f"\n{parameters}\n)" if parameters else ")")
    for name, values in function.directives:
        yield f".{name} {', '.join(map(str, values))}".rstrip()


def _body(function: Function) -> Iterator[str]:
    yield "{"
    yield from _registers(function.registers)
    for variable in function.variables:
        yield f"\t{_variable(variable)};"
    for item in function.body:
        yield str(item) if isinstance(item, Label) else f"\t{_instruction(item)}"
    yield "}"


def _registers(registers: Mapping[str, str]) -> Iterator[str]:
    """``.reg`` lines: ``%r<n>`` where the names are %r0 ... %r(n-1) of one type, else lists of names."""
    families: dict[str, dict[int, str]] = {}
    for name, ptx_type in registers.items():
        match = _NUMBERED.fullmatch(name)
        if match:
            families.setdefault(match[1], {})[int(match[2])] = ptx_type
    whole = {
        family: types
        for family, types in families.items()
        if family and len(set(types.values())) == 1 and max(types) == len(types) - 1
    }
    for family, types in whole.items():
        yield f"\t.reg .{types[0]} {family}<{len(types)}>;"
    for name, ptx_type in registers.items():
        match = _NUMBERED.fullmatch(name)
        if not (match and match[1] in whole):
            yield f"\t.reg .{ptx_type} {name};"


def _instruction(instruction: Instruction) -> str:
    """As `str(instruction)`; the lists of a call get parentheses, which the parser reads as a vector too."""
    if instruction.opcode.split(".", 1)[0] != "call":
        return str(instruction)
    guard = f"{instruction.guard} " if instruction.guard else ""
    operands = ("(" + str(item)[1:-1] + ")" if isinstance(item, Vector) else str(item) for item in instruction.operands)
    return f"{guard}{instruction.opcode} {', '.join(operands)};"
