"""Where a launch's data lie: shared, local and parameter offsets, register slots, blocks of the grid, slices of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import math

import numpy as np

from ptxemu.errors import EmulationError
from ptxemu.isa.matrix import OPERAND_BYTES
from ptxemu.isa.moves import specials
from ptxemu.machine.arguments import size_of
from ptxemu.machine.compiled import unwritten
from ptxemu.machine.memory import GlobalMemory
from ptxemu.machine.observer import Observer
from ptxemu.machine.register_pool import at_launch
from ptxemu.machine.state import FullMachine
from ptxemu.machine.warpgroups import PRODUCT_BYTES, STAMP_BYTES, registers_of_products
from ptxemu.syntax.tree import Address, Function, Instruction, Module, Symbol, Variable, Vector, kept
from ptxemu.table import CARRY
from ptxemu.targets import (
    BLOCK_LIMITS,
    FIRST_CLUSTERS,
    GRID_LIMITS,
    MAX_CLUSTER,
    MAX_THREADS,
    chosen,
    number_of,
    reserved_shared,
    shared_limit,
)
from ptxemu.values import DTYPES, WARP, Array, width


def alignment(variable: Variable) -> int:
    """Alignment of a variable in bytes: declared, or that of its type."""
    return variable.align or width(variable.type) * variable.vector


@kept
def symbols_in(instruction: Instruction) -> tuple[str, ...]:
    """Names of the variables (and labels) that an instruction mentions."""
    operands, found = list(instruction.operands), []
    while operands:
        operand = operands.pop()
        if isinstance(operand, Vector):
            operands += operand.items
        elif isinstance(operand, Address):
            operands.append(operand.base)
            operands += [] if operand.coordinates is None else operand.coordinates.items
        elif isinstance(operand, Symbol):
            found.append(operand.name)
    return tuple(found)


class Layout:
    """Where everything of a launch lies, apart from the arguments."""

    def __init__(
        self,
        module: Module,
        function: Function,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        dynamic: int,
        target: str | None = None,
        cluster: tuple[int, int, int] | None = None,
    ) -> None:
        self.module, self.function = module, function
        self.path = module.path
        self.grid, self.block = grid, block
        self.cluster = self._cluster(cluster)
        self.threads = block[0] * block[1] * block[2]
        self.warps = -(-self.threads // WARP)
        self.dynamic = dynamic
        self.mentioned = {name for item in function.body if isinstance(item, Instruction) for name in symbols_in(item)}
        self.opcodes = {item.opcode for item in function.body if isinstance(item, Instruction)}
        self.symbols: dict[str, int] = {}
        target = chosen(module.target, target, module.path)
        self.shared_bytes, self.shared_first = self._place_shared(dynamic, reserved_shared(target))
        self.local_bytes = self._place("local")
        registers = function.registers
        self.slots = {name: slot for slot, name in enumerate([*registers, CARRY])}
        self.types = [*registers.values(), "pred"]
        self.products = registers_of_products(function.body)
        self._check(target)

    def _cluster(self, wanted: tuple[int, int, int] | None) -> tuple[int, int, int] | None:
        """Blocks of a cluster, as the launch or the kernel's own ``.reqnctapercluster`` says; None: no clusters."""
        own = dict(self.function.directives).get("reqnctapercluster")
        if not own:
            return wanted
        required = (*own, 1, 1)[0], (*own, 1, 1)[1], (*own, 1, 1)[2]
        if wanted not in (None, required):
            what = "cluster (.reqnctapercluster)"
            raise EmulationError("arguments", what, path=self.path, expected=required, found=wanted)
        return required

    @property
    def cluster_size(self) -> int:
        """Blocks of a cluster; 1 without clusters."""
        return math.prod(self.cluster or (1,))

    def _variables(self, space: str) -> list[Variable]:
        """The function's own variables of a state space, after those of the module that it mentions."""
        module = [v for v in self.module.variables if v.name in self.mentioned]
        return [v for v in (*module, *self.function.variables) if v.space == space]

    def _place(self, space: str) -> int:
        """Places the variables of a space whose size is known one behind the other; returns where they end."""
        offset = 0
        for variable in self._variables(space):
            if variable.linkage == "extern" or (variable.array and variable.count == 0):
                continue
            align = alignment(variable)
            offset = -(-offset // align) * align
            self.symbols[variable.name] = offset
            offset += size_of(variable)
        return offset

    def _place_shared(self, dynamic: int, reserved: int) -> tuple[int, int]:
        """Static variables first; all ``extern`` arrays share the dynamic memory behind them.

        Returns the bytes, and where they begin: behind what the system keeps, unless there are none.
        """
        static = self._place("shared")
        outer = [v for v in self._variables("shared") if v.linkage == "extern" or (v.array and v.count == 0)]
        align = max([16, *(alignment(v) for v in outer)]) if outer or dynamic else 1
        begin = -(-static // align) * align
        self.symbols.update({variable.name: begin for variable in outer})
        names = {variable.name for variable in self._variables("shared")}
        first = reserved if begin + dynamic else 0
        self.symbols.update({name: self.symbols[name] + first for name in names & self.symbols.keys()})
        return begin + dynamic, first

    def _check(self, target: str) -> None:
        for holds, what, expected, found in self._limits(target):
            if not holds:
                raise EmulationError("arguments", what, path=self.path, expected=expected, found=found)

    def _limits(self, target: str) -> Iterator[tuple[bool, str, object, object]]:
        """What a launch has to fulfil: (whether it does, what, expected, found)."""
        yield self.threads <= MAX_THREADS, "threads of a block", f"at most {MAX_THREADS}", self.threads
        most, static = shared_limit(target), f"{self.shared_bytes}, {self.shared_bytes - self.dynamic} of them static"
        yield self.shared_bytes <= most, f"shared memory of a block on {target}", f"at most {most} bytes", static
        for what, sizes, limits in (("grid", self.grid, GRID_LIMITS), ("block", self.block, BLOCK_LIMITS)):
            yield all(n <= most for n, most in zip(sizes, limits, strict=True)), what, f"at most {limits}", sizes
        yield self.dynamic >= 0, "dynamic shared memory of a block", "0 bytes or more", self.dynamic
        if self.cluster is not None:
            number, size = number_of(target), self.cluster_size
            fits = all(n % size == 0 for n, size in zip(self.grid, self.cluster, strict=True))
            new = number is None or number >= FIRST_CLUSTERS
            yield new, "clusters", f"sm_{FIRST_CLUSTERS} or newer", target
            yield size <= MAX_CLUSTER, "blocks of a cluster", f"at most {MAX_CLUSTER}", size
            yield fits, "grid of a launch with clusters", f"a multiple of {self.cluster} along each axis", self.grid
        for name, given in self.function.directives:
            wanted = (*given, 1, 1, 1)[:3]
            if name == "reqntid":
                yield self.block == wanted, "block (.reqntid)", wanted, self.block
            if name == "maxntid":
                most = math.prod(wanted)
                yield self.threads <= most, "threads of a block (.maxntid)", f"at most {most}", self.threads
            if name == "maxclusterrank" and self.cluster is not None:
                most = given[0]
                yield self.cluster_size <= most, "cluster (.maxclusterrank)", f"at most {most}", self.cluster_size

    def block_ids(self) -> Array:
        """``%ctaid`` (x, y, z) of every block, x fastest, cluster by cluster: (blocks, 3)."""
        sizes = self.cluster or (1, 1, 1)
        clusters = _places([n // size for n, size in zip(self.grid, sizes, strict=True)]) * np.array(sizes)
        return np.asarray((clusters[:, None] + _places(sizes)).reshape(-1, 3))

    def slice_size(self, budget: int, live_registers: int) -> int:
        """Blocks that fit the budget at once.

        A register takes 8 bytes at most, most take 4; what is left is room for an instruction's temporary arrays.
        Shared and local memory have a map of written bytes. Matrices that `mma` keeps count as if none were shared.
        """
        per_warp = WARP * (8 * live_registers + 2 * self.local_bytes) + STAMP_BYTES * len(self.products)
        if any(isinstance(item, Instruction) and item.opcode.startswith("mma.") for item in self.function.body):
            per_warp += OPERAND_BYTES
        if self.products:
            per_warp += PRODUCT_BYTES
        blocks = budget // max(1, self.warps * per_warp + 2 * self.shared_bytes)
        return max(1, blocks // self.cluster_size) * self.cluster_size

    def machine(
        self,
        ids: Array,
        data: bytes,
        symbols: dict[str, int],
        memory: GlobalMemory,
        observers: tuple[Observer, ...],
        *,
        exited_arrive: bool = False,
    ) -> FullMachine:
        """A fresh machine for some blocks."""
        shape = (len(ids), self.warps, WARP)
        exists = np.broadcast_to((np.arange(self.warps * WARP) < self.threads).reshape(1, self.warps, WARP), shape)
        widths = [DTYPES[name].itemsize for name in self.types]
        blank = [unwritten(bytes_wide, name == "pred") for bytes_wide, name in zip(widths, self.types, strict=True)]
        return FullMachine(
            path=self.path,
            blocks=ids,
            shape=shape,
            exists=exists,
            live=exists,
            slots=self.slots,
            widths=widths,
            unwritten=blank,
            registers=list(blank),
            specials=specials(self.grid, self.block, ids, self.dynamic, self.shared_bytes - self.dynamic, self.cluster),
            symbols=symbols,
            parameters=data,
            memory=memory,
            shared_bytes=self.shared_first + self.shared_bytes,
            shared_first=self.shared_first,
            copies_in_bulk=any("async.bulk" in opcode for opcode in self.opcodes),
            orders_blocks=orders_blocks(self.opcodes),
            local_bytes=self.local_bytes,
            cluster_size=self.cluster_size,
            products=self.products,
            observers=observers,
            exited_arrive=exited_arrive,
            launch_registers=at_launch(self.threads, dict(self.function.directives)),
        )


def orders_blocks(opcodes: Iterable[str]) -> bool:
    """Whether there are fences, or releases and acquires, between blocks."""
    words = [frozenset(opcode.split(".")) for opcode in opcodes]
    fences = any({"membar", "fence"} & each and {"gl", "gpu", "sys"} & each for each in words)
    elsewhere = {"shared", "shared::cta", "shared::cluster", "barrier", "mbarrier", "fence", "cta"}
    return fences or any({"acquire", "release", "acq_rel"} & each and not elsewhere & each for each in words)


def _places(sizes: Sequence[int]) -> Array:
    """(x, y, z) of every place of a box, x fastest: (places, 3)."""
    nx, ny, nz = sizes
    linear = np.arange(nx * ny * nz, dtype=np.int64)
    return np.stack([linear % nx, linear // nx % ny, linear // (nx * ny)], axis=1)
