"""Calls of device functions: the body of every called function is copied into its caller before a kernel runs.

nvcc inlines nearly everything in a release build and nearly nothing in a debug build (``-G -O0``), where even ``sinf``
is a function. Copies need no stack of frames in the engine: a ``ret`` of the callee is a branch to the end of its
copy, where diverged lanes meet again. Parameters and results live in local memory, one place per call, so that the
``ld.param`` and ``st.param`` of a call sequence become ``ld.local`` and ``st.local``. A call through a pointer becomes
a comparison with each function whose address the module takes. A call that cannot be copied (a function without a
body, such as printf's ``vprintf``; recursion) stays and is an error once it is executed, not before: an ``assert``
that holds does no harm.

Source: PTX ISA 9.0, 5.1.6.4 (function parameters), 7.1 (calling conventions), 9.7.12.5 (call).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ptxemu.errors import EmulationError
from ptxemu.machine.arguments import size_of
from ptxemu.machine.state import FullStep
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
    SourceLine,
    Symbol,
    Variable,
    Vector,
)
from ptxemu.table import machine
from ptxemu.values import Array, constant

MARK = "#"  # between a name and the number of the call whose copy it belongs to; no name of a PTX file contains it
MOST_ITEMS = 2_000_000  # instructions and labels that a kernel may have with all copies
FUNCTIONS = 1 << 60  # address of a module's first function; the others follow 16 bytes apart
ASSERTION = "__assertfail"  # (message, file, line, function, size of a character)


@dataclass
class _Body:
    """A function's body with the copies of all that it calls."""

    items: list[Instruction | Label] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)


def addresses(module: Module) -> dict[str, int]:
    """Address of every function, which may be compared and called, not read."""
    return {function.name: FUNCTIONS + 16 * place for place, function in enumerate(module.functions)}


def inlined(module: Module, entry: Function) -> Function:
    """The entry with the functions that it calls copied into it; itself if it calls none.

    Fails: (unsupported) the copies would make it larger than `MOST_ITEMS`.
    """
    if not any(_is_call(item) for item in entry.body):
        return entry
    body = _Inliner(module).body(entry, ())
    return replace(entry, body=tuple(body.items), registers=body.registers, variables=tuple(body.variables.values()))


def _is_call(item: Instruction | Label) -> bool:
    return isinstance(item, Instruction) and item.opcode in {"call", "call.uni"}


class _Inliner:
    """One kernel being put together."""

    def __init__(self, module: Module) -> None:
        self.path = module.path
        self.functions = {function.name: function for function in module.functions if function.body}
        self.addresses = addresses(module)
        named = [item for variable in module.variables for item in variable.initial]
        items = [item for function in module.functions for item in function.body if isinstance(item, Instruction)]
        named += [operand for item in items if not _is_call(item) for operand in item.operands]
        self.pointed = sorted({each.name for each in named if isinstance(each, Symbol)} & self.functions.keys())
        self.known: dict[str, _Body] = {}
        self.copies = 0

    def body(self, function: Function, callers: tuple[str, ...]) -> _Body:
        """The function with what it calls; `callers` are the functions on the way to it."""
        if function.name in self.known:
            return self.known[function.name]
        parameters = {parameter.name for parameter in function.parameters} if function.is_entry else set()
        variables = {v.name: replace(v, space="local") if v.space == "param" else v for v in function.variables}
        result = _Body([], dict(function.registers), variables)
        for item in function.body:
            chain = (*callers, function.name)
            if not (isinstance(item, Instruction) and _is_call(item) and self._call(result, item, chain)):
                result.items.append(_in_local_memory(item, parameters))
            if len(result.items) > MOST_ITEMS:
                what = f"{function.name} has more than {MOST_ITEMS} instructions with all that it calls"
                raise EmulationError("unsupported", what, path=self.path, line=function.line)
        self.known[function.name] = result
        return result

    def _call(self, caller: _Body, call: Instruction, callers: tuple[str, ...]) -> bool:
        """Appends what a call does, True; or False where it has to stay."""
        given = list(call.operands)
        results = _items(given.pop(0)) if isinstance(given[0], Vector) else ()
        target = given.pop(0)
        passed = (*results, *(_items(given.pop(0)) if given and isinstance(given[0], Vector) else ()))
        if not all(isinstance(item, Symbol) for item in passed):
            return False
        if isinstance(target, Register):
            self._through_pointer(caller, call, callers, target, passed)
            return True
        callee = self.functions.get(target.name) if isinstance(target, Symbol) else None
        if callee is None or callee.name in callers:
            return False
        formal = (*callee.returns, *callee.parameters)
        if len(formal) != len(passed):
            what = f"call of {callee.name} with another number of parameters and results"
            found = len(passed)
            raise EmulationError("syntax", what, path=self.path, instruction=call, expected=len(formal), found=found)
        names = {variable.name: item for variable, item in zip(formal, passed, strict=True)}
        self._copy(caller, call, self.body(callee, callers), names)
        return True

    def _through_pointer(
        self, caller: _Body, call: Instruction, callers: tuple[str, ...], target: Register, passed: Sequence[Operand]
    ) -> None:
        """Appends a comparison and a copy for each function that may be meant; then the call, for any other address."""
        sizes = [size_of(caller.variables[item.name]) for item in passed if isinstance(item, Symbol)]
        self.copies += 1
        end = Label(f"$called{MARK}{self.copies}", call.line)
        caller.items += _skipping(call, end)
        for name in self.pointed:
            callee = self.functions[name]
            formal = (*callee.returns, *callee.parameters)
            if name in callers or [size_of(variable) for variable in formal] != sizes:
                continue
            other = Register(f"$other{MARK}{self.copies + 1}")
            caller.registers[other.name] = "pred"
            compared = (other, target, Immediate(self.addresses[name]))
            caller.items.append(replace(call, opcode="setp.ne.u64", operands=compared, guard=None))
            names = {variable.name: item for variable, item in zip(formal, passed, strict=True)}
            self._copy(caller, replace(call, guard=Guard(other, negated=True)), self.body(callee, callers), names)
            caller.items.append(_branch(call, end, Guard(other, negated=True)))
        caller.items += [replace(call, guard=None), end]

    def _copy(self, caller: _Body, call: Instruction, callee: _Body, passed: Mapping[str, Operand]) -> None:
        """Appends a copy of a function's body, under names of its own."""
        self.copies += 1
        suffix = f"{MARK}{self.copies}"
        caller.registers |= {name + suffix: ptx_type for name, ptx_type in callee.registers.items()}
        names: dict[str, Operand] = {name: Register(name + suffix) for name in callee.registers}
        for name, variable in callee.variables.items():
            own = name + suffix if variable.space == "local" else name + MARK  # a shared variable exists once
            names[name] = Symbol(own)
            caller.variables[own] = replace(variable, name=own)
        names |= {item.name: Symbol(item.name + suffix) for item in callee.items if isinstance(item, Label)}
        names |= passed
        end = Label(f"$end{suffix}", call.line)
        caller.items += _skipping(call, end)
        for item in callee.items:
            if isinstance(item, Label):
                caller.items.append(Label(item.name + suffix, item.line))
                continue
            guard = item.guard and replace(item.guard, register=_register(item.guard.register, names))
            operands = tuple([renamed(operand, names) for operand in item.operands])
            copied = replace(item, operands=operands, guard=guard, source=_called_from(item.source, call.source))
            if item.opcode in {"ret", "ret.uni"}:
                copied = _branch(copied, end, copied.guard)
            caller.items.append(copied)
        caller.items.append(end)


def _skipping(call: Instruction, end: Label) -> list[Instruction]:
    """A branch past what a call does, for the lanes that its guard leaves out."""
    if call.guard is None:
        return []
    return [_branch(call, end, Guard(call.guard.register, not call.guard.negated))]


def _branch(instruction: Instruction, end: Label, guard: Guard | None) -> Instruction:
    """A branch in the place of an instruction."""
    return replace(instruction, opcode="bra", operands=(Symbol(end.name),), guard=guard)


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else ()


def _in_local_memory(item: Instruction | Label, parameters: set[str]) -> Instruction | Label:
    """``ld.param`` and ``st.param`` of a function's or a call's parameters; a kernel's own stay what they are."""
    if isinstance(item, Label) or not item.opcode.startswith(("ld.param", "st.param")):
        return item
    bases = [operand.base for operand in item.operands if isinstance(operand, Address)]
    if any(isinstance(base, Symbol) and base.name in parameters for base in bases):
        return item
    if parameters and not any(isinstance(base, Symbol) for base in bases):
        return item  # a computed address in the kernel's parameters
    return replace(item, opcode=item.opcode.replace(".param::func", ".param").replace(".param", ".local", 1))


@lru_cache(maxsize=4096)
def _called_from(source: SourceLine | None, call: SourceLine | None) -> SourceLine | None:
    """A place in a function that was called at `call`."""
    if source is None or call is None:
        return source
    return replace(source, inlined_at=_called_from(source.inlined_at, call) or call)


def _register(register: Register, names: Mapping[str, Operand]) -> Register:
    found = names.get(register.name, register)
    return found if isinstance(found, Register) else register


def renamed(operand: Operand, names: Mapping[str, Operand]) -> Operand:
    """An operand with the registers, variables and labels in it replaced."""
    match operand:
        case Register() | Symbol():
            return names.get(operand.name, operand)
        case Negated():
            return Negated(_register(operand.operand, names))
        case Vector():
            return Vector(tuple([renamed(item, names) for item in operand.items]))
        case Pair():
            return Pair(renamed(operand.first, names), renamed(operand.second, names))
        case Address():
            base, box = renamed(operand.base, names), operand.coordinates and renamed(operand.coordinates, names)
            known = base if isinstance(base, Register | Symbol) else operand.base
            return replace(operand, base=known, coordinates=box if isinstance(box, Vector) else None)
        case _:
            return operand


@machine("call{,.uni}", "calls a function of the module, by a copy of its body; printf and recursion are errors")
def call(step: FullStep) -> None:
    """What is left of calls: those that `inlined` could not copy (PTX ISA 9.7.12.5)."""
    operands = step.instruction.operands
    target = next((operand for operand in operands if not isinstance(operand, Vector)), None)
    if target == Symbol(ASSERTION):
        step.fail("trap", f"assertion failed: {_text(step, operands[-1])}")
    expected = "a function that has a body in this module and does not call itself"
    hint = "printf, malloc and such are the driver's; write recursion as a loop"
    step.fail("unsupported", f"the call of {target} is not supported", expected=expected, hint=hint)


def _text(step: FullStep, arguments: Operand) -> str:
    """The string that the first argument of a call points to, for the first executing lane."""
    local, first = step.machine.local, _items(arguments)[0]
    if not isinstance(first, Symbol):
        return "?"
    lane = tuple(int(axis[0]) for axis in step.lanes().nonzero())
    pointer = int(step.machine.full(local.load(step, constant(step.symbol(first), "u64"), 8))[lane])
    text = bytearray()
    while not text.endswith(b"\0"):
        character: Array = step.machine.memory.load(step, constant(pointer + len(text), "u64"), 1)
        text.append(int(character.flat[0]))
    return text[:-1].decode(errors="replace")
