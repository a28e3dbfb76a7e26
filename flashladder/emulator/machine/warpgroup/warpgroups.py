"""Matrix products of warpgroups in flight (``wgmma``), and what else was done to their registers.

Why: ``wgmma.mma_async`` returns at once. Until the ``wait_group`` that covers it, it may read its sources and write its
accumulators at any time; a ``wgmma.fence`` has to stand between it and whatever touched its registers before. On a GPU
most programs that forget one of them are right most of the time, and the assembler repairs what it sees at the price of
speed. Here a product happens at the wait, as late as it may, and the touch of a register in flight, or a product whose
registers were touched after the last fence, is an error that names both instructions.

A *warpgroup* is four warps whose first number is a multiple of four. Each warp counts its own groups of products.
Instructions that touch no register of any product cost nothing: they are found before the kernel runs (`watch`).
Source: PTX ISA 9.0, 9.7.15 (wgmma.mma_async, fence, commit_group, wait_group).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from flashladder.emulator.machine.control import registers_in, uses_and_defines
from flashladder.emulator.machine.state import Step
from flashladder.emulator.machine.warpgroup.same_order import SameOrder
from flashladder.emulator.syntax.tree import Instruction, Vector
from flashladder.emulator.values import Array, BoolArray, Shape3

if TYPE_CHECKING:
    from flashladder.emulator.machine.state import Machine

WARPS = 4  # of a warpgroup
PRODUCT_BYTES = 3 * 16 * 256 * 4  # of a warp's sums while a product happens: as a matrix and as registers, at most
STAMP_BYTES = 16  # kept per warp and register that takes part in products
SITE_BITS = 20  # of a stamp: which instruction; what is above them counts fences
NO_FENCE = -1  # in the place of a stamp: older than everything
OPCODE = "wgmma.mma_async."
HINT_FENCE = "put wgmma.fence between the instruction that touches the register and the wgmma.mma_async"
HINT_MOVES = (  # of a move, which nvcc puts where it likes
    '; in CUDA C++, asm volatile("" : "+f"(d) :: "memory") for each accumulator, as CUTLASS\'s warpgroup_fence_operand '
    "does, keeps what sets it before the fence"
)
HINT_WAIT = (
    "put wgmma.commit_group behind the wgmma.mma_async and a wgmma.wait_group that covers it before the register"
)


@dataclass(eq=False)
class Product:
    """One ``wgmma.mma_async`` of all warpgroups that executed it together.

    Attributes:
        step: the instruction and the lanes that issued it.
        groups: the warpgroups' numbers, ascending; some blocks may lack some of them (`warps`).
        warps: (blocks|1, warps) who issued it; None: all warps of all blocks.
        batch: how many groups each warp had committed before, (blocks|1, warps|1): the one that it belongs to.
        results, operands: names of the accumulators' registers and, where A is in registers, of A's.
        left: A: its registers' values when it was issued, or chunk addresses, int64, (blocks|1, groups|1, *chunks).
        right: B: chunk addresses.
        keeps: whether D is added to, by (blocks|1, groups|1).
        pending: warps for which it has not happened, as `warps`.
    """

    step: Step
    groups: Array
    warps: BoolArray | None
    batch: Array
    results: tuple[str, ...]
    operands: tuple[str, ...]
    left: Array | Sequence[Array]
    right: Array
    keeps: BoolArray
    pending: BoolArray | None = None

    def __post_init__(self) -> None:
        self.pending = self.warps
        self.result_names, self.operand_names = frozenset(self.results), frozenset(self.operands)

    @property
    def instruction(self) -> Instruction:
        """The ``wgmma.mma_async``."""
        return self.step.instruction

    @property
    def shape(self) -> str:
        """``m64n128k16``: products of one shape on the same accumulators follow each other without a fence."""
        return self.instruction.opcode.split(".")[4]


class Warpgroups:
    """The products in flight of a slice, and when each register that takes part in one was last touched.

    Attributes:
        in_flight: the products that have not happened for all of their warps, oldest first.
        same_order: whether the warps of each warpgroup execute the same.
    """

    def __init__(self, shape: Shape3, watched: Sequence[str]) -> None:
        """`watched`: the registers that some product of the kernel names, see `registers_of_products`."""
        self.in_flight: list[Product] = []
        self.same_order = SameOrder(shape)
        self._rows = {name: row for row, name in enumerate(watched)}
        size = (len(watched), *shape[:2]) if watched else (0, 1, 1)
        self._read = np.zeros(size, np.int64)  # stamps by register, block and warp
        self._written = np.zeros(size, np.int64)
        self._fenced = np.full(size[1:], NO_FENCE, np.int64)  # the last stamp that is before the warp's fence
        self._fences = 0
        self._sites: list[Instruction] = []
        self._committed = np.zeros((1, 1), np.int64)
        self._flying: set[str] = set()
        self._last: tuple[BoolArray | None, BoolArray | None] = (None, None)

    def watch(
        self, machine: Machine, instruction: Instruction, run: Callable[[BoolArray | None], None]
    ) -> Callable[[BoolArray | None], None]:
        """`run`, with a look at the products in flight if the instruction touches a register of any product."""
        if not self._rows or instruction.opcode.startswith("wgmma."):
            return run
        read, written = (
            [name for name in names if name in self._rows]
            for names in uses_and_defines(replace(instruction, guard=None))
        )
        if not read and not written:
            return run
        step, names = Step(machine, instruction), frozenset((*read, *written))
        site = len(self._sites)
        self._sites.append(instruction)
        tables = [
            (table, [self._rows[name] for name in touched])
            for table, touched in ((self._read, read), (self._written, written))
            if touched
        ]

        def run_watched(mask: BoolArray | None) -> None:
            warps = self.warps_of(mask)
            if not self._flying.isdisjoint(names):
                step.mask = mask
                self._refuse(step, names, frozenset(written), warps)
            stamp = self._fences << SITE_BITS | site
            for table, rows in tables:
                _stamp(table, rows, stamp, warps)
            run(mask)

        return run_watched

    def warps_of(self, mask: BoolArray | None) -> BoolArray | None:
        """Warps with any lane of a mask, (blocks|1, warps|1); None for all."""
        if mask is None:
            return None
        if self._last[0] is not mask:
            self._last = (mask, np.logical_or.reduce(mask, axis=-1))
        return self._last[1]

    def _refuse(self, step: Step, touched: frozenset[str], written: frozenset[str], warps: BoolArray | None) -> None:
        """Fails if registers of a product in flight for these warps are touched: A's may be read, nothing else."""
        for product in self.in_flight:
            for names, role in ((touched & product.result_names, "writes"), (written & product.operand_names, "reads")):
                both = _joined(warps, product.pending) if names else None
                if names and (both is None or both.any()):
                    how = "overwritten" if names & written else "read"
                    step.fail(
                        "in-flight",
                        f"register {min(names)} is {how} while a wgmma {role} it",
                        lanes=None if both is None else both[..., None],
                        found=f"{product.instruction.place}, not waited for",
                        hint=HINT_WAIT,
                    )

    def fence(self, warps: BoolArray | None) -> None:
        """``wgmma.fence`` of these warps, (blocks|1, warps|1): what touched registers before is ordered."""
        self._fences += 1
        limit = (self._fences << SITE_BITS) - 1
        if warps is None:
            self._fenced[...] = limit
        else:
            np.copyto(self._fenced, limit, where=warps)

    def issue(self, product: Product) -> None:
        """Puts a product in flight.

        Raises:
            EmulationError: "missing-fence", "in-flight".
        """
        self._check_fence(product)
        for earlier in self.in_flight:
            self._check_order(earlier, product)
        product.batch = self._committed
        self.in_flight.append(product)
        self._flying |= product.result_names | product.operand_names

    def _check_fence(self, product: Product) -> None:
        """No register of a product may have been touched since the fence; A's may have been read."""
        for names, tables in (
            (product.results, (self._read, self._written)),
            (product.operands, (self._written,)),
        ):
            rows = [self._rows[name] for name in names]
            for table in tables if rows else ():
                late = table[rows] > self._fenced
                if product.warps is not None:
                    late &= product.warps
                if late.any():
                    self._miss(product, names, table, late)

    def _miss(self, product: Product, names: tuple[str, ...], table: Array, late: BoolArray) -> None:
        which, block, warp = (int(axis) for axis in np.argwhere(late)[0])
        stamp = int(table[self._rows[names[which]], block, warp])
        lanes = np.zeros((*late.shape[1:], 1), np.bool_)
        lanes[block, warp] = True
        step = product.step
        if int(self._fenced[block, warp]) == NO_FENCE:
            step.fail("missing-fence", "wgmma before any wgmma.fence", lanes=lanes, hint=HINT_FENCE)
        how = "written" if table is self._written else "read"
        touched = self._sites[stamp & ((1 << SITE_BITS) - 1)]
        step.fail(
            "missing-fence",
            f"register {names[which]} of a wgmma was {how} after the last wgmma.fence",
            lanes=lanes,
            found=touched.place,
            hint=HINT_FENCE + (HINT_MOVES if touched.opcode.startswith("mov") else ""),
        )

    @staticmethod
    def _check_order(earlier: Product, product: Product) -> None:
        """Products in flight may share accumulators if they have one shape, and A's registers; nothing else."""
        clashes: list[tuple[frozenset[str], str]] = [
            (product.operand_names & earlier.result_names, "is A of a wgmma while another one writes it"),
            (product.result_names & earlier.operand_names, "is an accumulator while a wgmma reads it as A"),
        ]
        if earlier.shape != product.shape:
            clashes.append((product.result_names & earlier.result_names, "is an accumulator of two shapes at once"))
        for names, what in clashes:
            both = _joined(product.warps, earlier.pending) if names else None
            if names and (both is None or both.any()):
                product.step.fail(
                    "in-flight",
                    f"register {min(names)} {what}",
                    found=f"{earlier.instruction.place}, not waited for",
                    hint=HINT_WAIT,
                )

    def commit(self, warps: BoolArray | None) -> None:
        """``commit_group``: these warps' uncommitted products (perhaps none) become one group."""
        self._committed = self._committed + (1 if warps is None else warps)
        if self._committed.size > 1 and (self._committed == self._committed.flat[0]).all():
            self._committed = self._committed[:1, :1]

    def wait(self, warps: BoolArray | None, newest: int) -> list[tuple[Product, BoolArray | None]]:
        """The products of all committed groups of these warps but the `newest`, oldest first, each with its warps."""
        bound = self._committed - newest
        landing: list[tuple[Product, BoolArray | None]] = []
        kept: list[Product] = []
        for product in self.in_flight:
            due: BoolArray = product.batch < bound
            lands = _joined(_joined(None if due.all() else due, warps), product.pending)
            if lands is not None and not lands.any():
                kept.append(product)
                continue
            landing.append((product, lands))
            product.pending = _without(product.pending, lands)
            if product.pending.any():
                kept.append(product)
        self.in_flight = kept
        if landing:
            self._flying = set().union(*(each.result_names | each.operand_names for each in kept))
        return landing


def _stamp(table: Array, rows: Sequence[int], stamp: int, warps: BoolArray | None) -> None:
    for row in rows:
        if warps is None:
            table[row] = stamp
        else:
            np.copyto(table[row], stamp, where=warps)


def _joined(first: BoolArray | None, second: BoolArray | None) -> BoolArray | None:
    """Warps of both; None stands for all."""
    return second if first is None else first if second is None else first & second


def _without(everyone: BoolArray | None, some: BoolArray | None) -> BoolArray:
    """Warps that are left; None stands for all."""
    if some is None:
        return np.zeros((1, 1), np.bool_)
    return ~some if everyone is None else everyone & ~some


def registers_of_products(body: Iterable[object]) -> tuple[str, ...]:
    """The registers that products of a kernel accumulate in or take A from, each once."""
    found: dict[str, None] = {}
    for item in body:
        if isinstance(item, Instruction) and item.opcode.startswith(OPCODE):
            lists = [operand for operand in item.operands[:2] if isinstance(operand, Vector)]  # else A is a descriptor
            found.update(dict.fromkeys(name for operand in lists for name in registers_in(operand)))
    return tuple(found)
