"""Loading PTX and launching its kernels on the CPU: the public face of the emulator.

import ptxemu
kernel = ptxemu.load("vector_add.ptx").kernel()
counters = ptxemu.Counters()
kernel.launch((4,), (256,), (x, y, out, np.int32(1000)), observers=(counters,))
# `out` holds the result; counters.as_dict() what Nsight Compute would count
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
import re
import sys
import time
from typing import Any, Literal

import numpy as np

from ptxemu.errors import EmulationError
from ptxemu.isa.calls import addresses, inlined
from ptxemu.machine.arguments import (
    Argument,
    Parameter,
    Pointers,
    Tensor,
    as_arrays,
    offsets,
    pack,
    parameters_of,
    three,
)
from ptxemu.machine.control import Flow, build_flow
from ptxemu.machine.core import immediate
from ptxemu.machine.memory import GlobalMemory
from ptxemu.machine.observer import Observer
from ptxemu.run.engine import Engine, Progress
from ptxemu.run.placement import Layout
from ptxemu.syntax.parser import parse, text_of
from ptxemu.syntax.tree import Address, Function, Immediate, Instruction, Label, Module, Symbol, Variable
from ptxemu.targets import lacks
from ptxemu.text import parse_bytes
from ptxemu.values import DTYPES, Array

MEMORY_BUDGET = 1 << 30  # bytes that registers and shared memory of a slice may take
SHOWN_ENTRIES = 3  # of a program, in its repr
MANGLED = {"<": "I", ">": "E", "float": "f", "double": "d", "int": "i", "unsigned": "j", "bool": "b", "char": "c"}
MAX_INSTRUCTIONS = 5_000_000  # instructions that a slice issues in lockstep before it counts as endless


@dataclass(frozen=True)
class Result:
    """How a launch went.

    Attributes:
        blocks: thread blocks that ran.
        slices: parts into which the memory budget cut the grid.
        instructions: issued in lockstep, summed over slices.
        seconds: wall-clock time.
    """

    blocks: int
    slices: int
    instructions: int
    seconds: float


@dataclass(frozen=True, repr=False)
class Kernel:
    """An entry of a module, ready to be launched any number of times; `Program.kernel` makes it.

    Attributes:
        module: the module that it belongs to.
        function: its parameters, registers and instructions, device functions copied in.
        flow: its basic blocks in execution order.
    """

    module: Module
    function: Function
    flow: Flow

    def __repr__(self) -> str:
        signature = _signature(self.name, self.parameters)
        return f"<Kernel {signature} of {self.module.path}, {self.module.target}>"

    @property
    def name(self) -> str:
        """The entry's name."""
        return self.function.name

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Name, type and size of each parameter: what `launch` takes."""
        return parameters_of(self.function)

    def with_body(self, body: Sequence[Instruction | Label]) -> Kernel:
        """The same kernel with other instructions, for example `function.body` without one of them.

        Raises:
            EmulationError: a branch of `body` leads to a label that it lacks.
        """
        function = replace(self.function, body=tuple(body))
        return Kernel(self.module, function, build_flow(function, self.module.path))

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Argument | Tensor | tuple[Any, ...]] | Mapping[str, Argument | Tensor | tuple[Any, ...]] = (),
        *,
        shared_bytes: int | str = 0,
        observers: Observer | Sequence[Observer] = (),
        memory_budget: int | str = MEMORY_BUDGET,
        max_instructions: int = MAX_INSTRUCTIONS,
        progress: Progress | None = None,
        exited_arrive: bool = False,
        undefined: Literal["track", "error"] = "track",
        target: str | None = None,
        cluster: int | Sequence[int] | None = None,
        schedule: str | int = "together",
        first: int | None = None,
    ) -> Result:
        """Runs the kernel on a grid and writes what it stored back into the arrays among `args`.

        Args:
            grid: blocks along x, y, z; missing axes count 1, a number stands for x.
            block: threads along x, y, z.
            args: one per parameter: NumPy arrays and torch's CPU tensors (pointers; updated in place unless read-only),
                numbers of the parameter's type, tuples (by-value structures of arrays, NumPy numbers and tuples) or
                bytes. Of a dictionary, in the same order, messages show the names.
            shared_bytes: dynamic shared memory per block, bytes or text such as ``48KiB``.
            observers: `Counters()`, `Hazards()`, one or several; they see everything and change nothing.
            memory_budget: for registers and shared memory, bytes or text such as ``512MiB``; a larger grid is run in
                several slices.
            max_instructions: instructions that one slice may issue, all of its lanes together counting once.
            progress: told the number of warp instructions after each basic block.
            exited_arrive: whether threads that have exited count as arrived at a barrier of the whole block, as they
                do on GPUs from sm_70 on; the ISA does not say so, and by default they are missed.
            undefined: what becomes of a value that ``shfl`` reads from a lane outside its membermask. ``track``: it is
                followed, and an error where it is stored, is an address or decides a branch; ``error``: one at once.
            target: the architecture whose limits hold, such as ``sm_90``; None: the ``.target`` of the PTX.
            cluster: blocks of a cluster along x, y, z; None: what the kernel itself requires, else no clusters.
            schedule: the order of warps that could go on: all ``together``, the last one first and alone (``reverse``),
                or by chance and alone, from a seed; ``elect-last`` is ``together``, with the last lane elected. A
                result that depends on it is wrong.
            first: how many clusters (without them blocks) of the grid run, in the order of their numbers; None: all.

        Returns:
            How many blocks, slices and instructions ran, and for how long.

        Raises:
            EmulationError: the launch does not fit the kernel, or the program does something it may not.
        """
        start, path = time.perf_counter(), self.module.path
        if undefined not in ("track", "error"):
            found = repr(undefined)
            raise EmulationError("arguments", "undefined", path=path, expected="'track' or 'error'", found=found)
        dynamic = _amount(shared_bytes, "an amount of dynamic shared memory", 0, path)
        budget = _amount(memory_budget, "a memory budget", 1, path)
        watching = _observers(observers, path)
        most = _whole_number(max_instructions, "instruction budget of a launch", "a whole number", path)
        count = sys.maxsize  # of clusters
        if first is not None:
            count = _whole_number(first, "how many blocks run first", "a whole number, 1 or more, or None", path, 1)
        clusters = None if cluster is None else three(cluster, "cluster", path)
        sizes = three(grid, "grid", path), three(block, "block", path)
        layout = Layout(self.module, self.function, *sizes, dynamic, target, clusters)
        memory, names = GlobalMemory(), list(args) if isinstance(args, Mapping) else []
        values = as_arrays(list(args.values()) if isinstance(args, Mapping) else args, path)

        def allocate(owner: Array, number: int) -> int:
            given = zip(names, values, strict=False)
            mine = [  # an empty array shares no memory, not even with itself
                name
                for name, value in given
                if isinstance(value, np.ndarray)
                and (owner is value or owner is value.base or np.may_share_memory(value, owner))
            ]
            return memory.allocate(owner, f"{[*mine, f'array {number}'][0]}: {owner.dtype} {owner.shape}")

        arrays = Pointers(allocate, path)
        data = pack(self.function, values, arrays.address_of, path)
        globals_ = allocate_globals(self.module, memory.allocate)
        result = self.execute(
            layout, data, memory, globals_, watching, budget, most, progress,
            exited_arrive=exited_arrive, track_undefined=undefined == "track", schedule=schedule, first=count,
        )  # fmt: skip
        for address, owner in arrays.changed():
            memory.read_back(address, owner)
        return replace(result, seconds=time.perf_counter() - start)

    def execute(
        self,
        layout: Layout,
        data: bytes,
        memory: GlobalMemory,
        globals_: Mapping[str, int],
        observers: tuple[Observer, ...] = (),
        memory_budget: int = MEMORY_BUDGET,
        max_instructions: int = MAX_INSTRUCTIONS,
        progress: Progress | None = None,
        *,
        exited_arrive: bool = False,
        track_undefined: bool = True,
        schedule: str | int = "together",
        first: int = sys.maxsize,
    ) -> Result:
        """Runs the kernel where its data lie already; the arguments are those of `launch`, or made of them.

        Args:
            layout: of this kernel and launch.
            data: the bytes of the parameters, as `offsets` places them.
            memory: what the kernel reads and writes.
            globals_: addresses of the module's variables and functions, as `allocate_globals` makes them.
            observers: they see everything.
            memory_budget: bytes of registers and shared memory at a time.
            max_instructions: that a slice may issue.
            progress: told the number of warp instructions after each basic block.
            exited_arrive: whether threads that have exited count as arrived.
            track_undefined: whether undefined values of ``shfl`` are followed; else one is an error at once.
            schedule: the order of warps.
            first: how many clusters (without them blocks) of the grid run.

        Returns:
            How many blocks, slices and instructions ran, and for how long.

        Raises:
            EmulationError: the program does something that it may not.
        """
        start = time.perf_counter()
        symbols = {**layout.symbols, **globals_, **offsets(self.function)[0]}
        ids = layout.block_ids()[: first * layout.cluster_size]
        size = layout.slice_size(memory_budget, self.flow.peak)
        parts = [ids[at : at + size] for at in range(0, len(ids), size)]
        issued = 0
        for part in parts:
            machine = layout.machine(part, data, symbols, memory, observers, exited_arrive=exited_arrive)
            for observer in observers:
                observer.start(machine)
            Engine(
                machine, self.flow, max_instructions, progress, track_undefined=track_undefined, schedule=schedule
            ).run()
            for observer in observers:
                observer.finish(machine)
            issued += machine.issued
        return Result(len(ids), len(parts), issued, time.perf_counter() - start)


@dataclass(frozen=True, repr=False)
class Program:
    """A parsed module (`load` makes it); `module` holds its variables and functions as data."""

    module: Module

    def __repr__(self) -> str:
        shown = [_signature(name, parameters) for name, parameters in self.entries.items()]
        more = [f"{len(shown) - SHOWN_ENTRIES} more"] if len(shown) > SHOWN_ENTRIES else []
        entries = "; ".join([*shown[:SHOWN_ENTRIES], *more]) or "no entries"
        return f"<Program {self.module.path}, {self.module.target}: {entries}>"

    @property
    def entries(self) -> dict[str, tuple[Parameter, ...]]:
        """The kernels of the module and their parameters, in the order of the file."""
        return {each.name: parameters_of(each) for each in self.module.functions if each.is_entry}

    def kernel(self, name: str | None = None) -> Kernel:
        """An entry by its name or a unique part of it, as in PTX or in C++ (``axpy<float, 32>``); None: the only one.

        Raises:
            EmulationError: (arguments) no such entry, or several.
        """
        entries = {function.name: function for function in self.module.functions if function.is_entry}
        if not entries:
            raise EmulationError(
                "arguments", "no kernel is in the file; PTX marks one with .entry", path=self.module.path
            )
        meant = _meant(name, sorted(entries))
        if len(meant) != 1:
            expected, found = f"one of {', '.join(meant or sorted(entries))}", name or "no name"
            path, hint = self.module.path, "--kernel NAME (in Python: kernel(NAME)) takes a name or a unique part of it"
            raise EmulationError("arguments", "which kernel", path=path, expected=expected, found=found, hint=hint)
        function = inlined(self.module, entries[meant[0]])
        _refuse_newer(self.module, function)
        return Kernel(self.module, function, build_flow(function, self.module.path))


def _meant(name: str | None, names: list[str]) -> list[str]:
    """The names that `name` stands for: itself, else those of that C++ name, else those that it is a part of."""
    if name is None or name in names:
        return names if name is None else [name]
    words = re.findall(r"\w+|[<>]", str(name))
    codes = [MANGLED.get(word) or (rf"L[a-z]{word}E" if word.isdecimal() else f"{len(word)}{word}") for word in words]
    return [each for each in names if re.search("".join(codes), each)] or [each for each in names if str(name) in each]


def load(source: str | Path, *, path: str | None = None) -> Program:
    """Reads a PTX file, or PTX text (recognised by its newlines); `path` is its name in messages.

    Raises:
        EmulationError: (syntax) the text is not understood.
        PtxemuError: the file cannot be read.
    """
    text, name = text_of(source)
    return Program(parse(text, path or name))


def _refuse_newer(module: Module, function: Function) -> None:
    """Fails if the module's target is too old for an instruction, as ptxas does."""
    instructions = {item.opcode: item for item in reversed(function.body) if isinstance(item, Instruction)}
    for opcode, first in instructions.items():
        needed = lacks(module.target, opcode)
        if needed is not None:
            what = f"{opcode} in PTX for {module.target}"
            raise EmulationError("unsupported", what, path=module.path, instruction=first, expected=f".target {needed}")


def _amount(amount: object, what: str, least: int, path: str) -> int:
    """Bytes, given as a whole number or as text."""
    if isinstance(amount, str):
        return parse_bytes(amount, what, *([] if least else ["48KiB"]))
    if isinstance(amount, bool) or not isinstance(amount, int | np.integer) or amount < least:
        expected = f"a whole number of bytes, {least} or more, or text such as 48KiB"
        raise EmulationError("arguments", f"not {what}", path=path, expected=expected, found=repr(amount))
    return int(amount)


def _whole_number(given: object, what: str, expected: str, path: str, least: int | None = None) -> int:
    """A number of at least `least`, for what only counts."""
    wrong = least is not None and (isinstance(given, bool) or not isinstance(given, int | np.integer) or given < least)
    if wrong or not isinstance(given, int | np.integer):
        raise EmulationError("arguments", what, path=path, expected=expected, found=repr(given))
    return int(given)


def _observers(observers: object, path: str) -> tuple[Observer, ...]:
    """One observer, or several."""
    several = tuple(observers) if isinstance(observers, Sequence) else (observers,)
    for each in several:
        if not isinstance(each, Observer):
            expected = "observers such as Counters() and Hazards()"
            raise EmulationError("arguments", "observers of a launch", path=path, expected=expected, found=repr(each))
    return several


def _signature(name: str, parameters: Sequence[Parameter]) -> str:
    return f"{name}({', '.join(map(str, parameters))})"


def allocate_globals(module: Module, allocate: Callable[[Array, str], int]) -> dict[str, int]:
    """Addresses of the module's functions, and of its ``.global`` and ``.const`` variables with their initialisers.

    `allocate` puts contents into memory under a name, and returns their address.
    """
    found = addresses(module)
    for variable in module.variables:
        if variable.space not in ("global", "const") or variable.linkage == "extern":  # defined in another module
            continue
        dtype = DTYPES[variable.type]
        contents = np.zeros(max(variable.count * variable.vector, len(variable.initial), 1), dtype=dtype)
        for index, item in enumerate(variable.initial):
            contents[index] = _initial(item, variable, found, module.path)
        found[variable.name] = allocate(contents, variable.name)
    return found


def _initial(item: object, variable: Variable, known: dict[str, int], path: str) -> object:
    if isinstance(item, Immediate):
        return immediate(item, variable.type)[0, 0, 0]
    base, offset = (item.base, item.offset) if isinstance(item, Address) else (item, 0)
    if isinstance(base, Symbol) and base.name in known:
        return known[base.name] + offset
    raise EmulationError(
        "unsupported", f"initialiser {item} of {variable.name} is not supported", path=path, line=variable.line
    )
