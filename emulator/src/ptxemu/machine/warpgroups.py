"""Matrix products of warpgroups (``wgmma``): descriptors, fences, products in flight, order of the four warps.

**Descriptors** say where a matrix lies in shared memory. Its 16-byte *chunks* are what swizzling moves. Along K an
instruction is two chunks wide where K is contiguous ("K-major"), and eight rows of 16 elements high where the other
axis is ("MN-major").

| bits | field |
| --- | --- |
| 0 to 13 | start address / 16 |
| 16 to 29 | leading dimension byte offset / 16 (LBO) |
| 32 to 45 | stride dimension byte offset / 16 (SBO) |
| 49 to 51 | base offset: (address >> 7) & 7 of the start of the swizzle's pattern where that is not aligned to it |
| 62 to 63 | swizzle: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes |

With T the chunks of a swizzle's span (8, 4, 2; 1 without), chunk addresses before swizzling are

- K-major: row m, chunk c: (m % 8) 16 T + (m / 8) SBO + c (16 if swizzled, else LBO);
- MN-major: row k of K, chunk c (8 columns): (k % 8) 16 T + (c % T) 16, and then (c / T) LBO + (k / 8) SBO if swizzled,
  else c SBO + (k / 8) LBO.

Swizzling combines address bits 4 and up by exclusive or with as many bits from bit 7 up, counted from the base offset.

**Products in flight**: until the ``wait_group`` that covers it, a ``wgmma.mma_async`` may read its sources and write
its accumulators at any time; a ``wgmma.fence`` has to stand between it and whatever used its registers before. Here a
product happens at the wait, as late as it may. Use of a register in flight, or a product whose registers were used
after the last fence, is an error that names both instructions. Each warp counts its own groups of products.

**Order**: a *warpgroup* is four warps whose first number is a multiple of four. Its warps wait for each other at
mma_async and fence, which orders no memory. They also have to execute the same commit_group and wait_group: what a
warp has executed beyond the others is kept until they have done the same, and another instruction in its place is an
error. A warp that can no longer come to a fence (it has exited, or does not exist) is an error at once.

Source: PTX ISA 9.0, 9.7.15 (wgmma), 9.7.15.5.1 (descriptors), 9.7.15.7 (fence, commit_group, wait_group).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NoReturn

import numpy as np

from ptxemu.machine.control import registers_in, uses_and_defines
from ptxemu.machine.core import Machine, Step
from ptxemu.machine.observer import Product
from ptxemu.syntax.tree import Instruction, Vector
from ptxemu.values import Array, BoolArray

WARPS = 4  # of a warpgroup
CHUNK = 16  # bytes
SPANS = (1, 8, 4, 2)  # chunks of a row of the swizzle's pattern, by the field of bits 62 and 63
SWIZZLES = ("none", "128B", "64B", "32B")
REMEMBERED = 8  # descriptors of an operand, all blocks and warpgroups together, whose addresses are kept


@dataclass(frozen=True)
class Shape:
    """What a descriptor does not say: an operand's rows (M or N), its bytes along K, which axis is contiguous.

    Attributes:
        rows: M or N.
        k_major: whether elements that follow each other along K lie side by side.
    """

    rows: int
    k_major: bool

    @property
    def chunks(self) -> tuple[int, int]:
        """(rows, chunks of a row) K-major: (M or N, 2); MN-major, 16-bit elements: (16, M / 8 or N / 8)."""
        return (self.rows, 2) if self.k_major else (16, self.rows // 8)


def field(raw: Array, first: int, bits: int) -> Array:
    """Some bits of descriptors, as int64."""
    return np.asarray(((raw >> np.uint64(first)) & np.uint64((1 << bits) - 1)).astype(np.int64))


def render(raw: int) -> str:
    """A descriptor in words, for messages."""
    number = np.array(raw, np.uint64)
    start, leading, stride = (CHUNK * int(field(number, first, 14)) for first in (0, 16, 32))
    return (
        f"start {start:#x}, leading offset {leading}, stride offset {stride}, base offset "
        f"{int(field(number, 49, 3))}, swizzle {SWIZZLES[int(field(number, 62, 2))]}"
    )


def chunk_addresses(raw: Array, shape: Shape) -> Array:
    """The addresses of an operand's chunks, int64, (*raw.shape, *shape.chunks), from descriptors, u64, of any shape.

    They are bytes of the block's shared window, in it or not.
    """
    if raw.size > REMEMBERED:
        return _addresses(raw, shape)
    return _remembered(raw.tobytes(), raw.shape, shape)


@lru_cache(maxsize=512)
def _remembered(raw: bytes, size: tuple[int, ...], shape: Shape) -> Array:
    return _addresses(np.frombuffer(raw, np.uint64).reshape(size), shape)


def _addresses(raw: Array, shape: Shape) -> Array:
    raw = raw[..., None, None]
    leading, stride = CHUNK * field(raw, 16, 14), CHUNK * field(raw, 32, 14)
    span = np.array(SPANS)[field(raw, 62, 2)]
    high, wide = shape.chunks
    row, chunk = np.arange(high)[:, None], np.arange(wide)[None, :]
    within = row % 8 * CHUNK * span
    if shape.k_major:
        beyond = row // 8 * stride + chunk * np.where(span > 1, CHUNK, leading)
    else:
        swizzled = chunk % span * CHUNK + chunk // span * leading + row // 8 * stride
        beyond = np.where(span > 1, swizzled, chunk * stride + row // 8 * leading)
    address = CHUNK * field(raw, 0, 14) + within + beyond
    turned = ((address >> 7) - field(raw, 49, 3)) & (span - 1)
    return np.asarray(address ^ (turned << 4))


WHAT = "the four warps of a warpgroup execute the same wgmma instructions in the same order"
HINT = (
    "let no branch around a wgmma instruction depend on what is not the same in all four warps of the warpgroup, such "
    "as a vote of one warp"
)
NOBODY = 0  # in the place of an instruction's number


class SameOrder:
    """What warps of a slice have executed that others of their warpgroup have not: (blocks, warpgroups, 4) arrays."""

    def __init__(self, machine: Machine) -> None:
        """No warp has executed any ``wgmma`` instruction."""
        self.machine = machine
        blocks, self._warps = machine.shape[:2]
        # How many instructions each warp has executed since all four had done the same.
        self._ahead = np.zeros((blocks, -(-self._warps // WARPS), WARPS), np.int64)
        self._log: list[Array] = []  # (blocks, warpgroups): the number of the first, second, ... of them
        self._instructions: list[Instruction] = []
        self._numbers: dict[int, int] = {}  # of instructions, from 1, by their identity

    def executed(self, step: Step, warps: BoolArray | None) -> None:
        """These warps, (blocks|1, warps|1), None for all, execute a ``wgmma`` instruction.

        Fails: ``divergent-warp``: another warp of a warpgroup has executed something else in its place.
        """
        if warps is None and not self._log and self._warps % WARPS == 0:
            return
        here = self._by_group(warps)
        some = np.logical_or.reduce(here, axis=2)
        if not self._log and not (some & ~np.logical_and.reduce(here, axis=2)).any():
            return
        number = self._number(step.instruction)
        for place in np.unique(self._ahead[here]):
            if place == len(self._log):
                self._log.append(np.full(some.shape, NOBODY))
            now = here & (self._ahead == place)
            groups = np.logical_or.reduce(now, axis=2)
            before = self._log[place]
            wrong = groups & (before != NOBODY) & (before != number)
            if wrong.any():
                self._refuse(step, int(place), now, wrong)
            before[groups] = number
        self._ahead += here
        self._forget()

    def finish(self) -> None:
        """When all threads have exited. Fails: ``divergent-warp``: a warp has executed what another one has not."""
        if not self._log:
            return
        block, group = (int(axis) for axis in np.argwhere(np.logical_or.reduce(self._ahead, axis=2))[0])
        place = int(self._ahead[block, group].min())
        step = Step(self.machine, self._instructions[int(self._log[place][block, group]) - 1])
        first, who = group * WARPS, self._ahead[block, group] > place
        self._fail(step, block, group, who, f"warps {first} to {first + WARPS - 1}", f"only {_warps(first, who)}")

    def _fail(self, step: Step, block: int, group: int, who: BoolArray, expected: str, found: str) -> NoReturn:
        lanes = self._lanes(block, group, who)
        step.fail("divergent-warp", WHAT, lanes=lanes, expected=expected, found=found, hint=HINT)

    def _refuse(self, step: Step, place: int, now: BoolArray, wrong: BoolArray) -> None:
        block, group = (int(axis) for axis in np.argwhere(wrong)[0])
        other = self._instructions[int(self._log[place][block, group]) - 1]
        first, who = group * WARPS, now[block, group]
        expected = f"{other.place}, which {_warps(first, self._ahead[block, group] > place)} executed"
        self._fail(step, block, group, who, expected, f"{step.instruction.place} in {_warps(first, who)}")

    def _forget(self) -> None:
        """What all four warps have executed is no difference any more."""
        same: BoolArray = (self._ahead == self._ahead[:, :, :1]).all(axis=2)
        self._ahead[same] = 0
        if not self._ahead.any():
            self._log.clear()
        for numbers in self._log:
            numbers[same] = NOBODY

    def _by_group(self, warps: BoolArray | None) -> BoolArray:
        size = (len(self._ahead), self._warps)
        everyone = np.broadcast_to(np.ones((1, 1), np.bool_) if warps is None else warps, size)
        return np.pad(everyone, ((0, 0), (0, -self._warps % WARPS))).reshape(self._ahead.shape)

    def _number(self, instruction: Instruction) -> int:
        if id(instruction) not in self._numbers:
            self._instructions.append(instruction)
            self._numbers[id(instruction)] = len(self._instructions)
        return self._numbers[id(instruction)]

    def _lanes(self, block: int, group: int, who: BoolArray) -> BoolArray:
        """A mask of the lanes of these of a warpgroup's warps."""
        warps = np.zeros(self._ahead.shape, np.bool_)
        warps[block, group] = who
        return warps.reshape(len(warps), -1)[:, : self._warps, None]


def _warps(first: int, who: Sequence[bool] | BoolArray) -> str:
    """``warps 0, 2``: those of a warpgroup's warps that are set."""
    found = [str(first + int(place)) for place in np.flatnonzero(who)]
    return f"warp{'s' if len(found) > 1 else ''} {', '.join(found)}"


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


class Warpgroups:
    """The products in flight of a slice, and when each register that takes part in one was last touched.

    Attributes:
        in_flight: the products that have not happened for all of their warps, oldest first.
        same_order: whether the warps of each warpgroup execute the same.
    """

    def __init__(self, machine: Machine, watched: Sequence[str]) -> None:
        """`watched`: the registers that some product of the kernel names, see `registers_of_products`."""
        self.in_flight: list[Product] = []
        self.machine, self.same_order = machine, SameOrder(machine)
        self._rows = {name: row for row, name in enumerate(watched)}
        size = (len(watched), *machine.shape[:2]) if watched else (0, 1, 1)
        self._read = np.zeros(size, np.int64)  # stamps by register, block and warp
        self._written = np.zeros(size, np.int64)
        self._fenced = np.full(size[1:], NO_FENCE, np.int64)  # the last stamp that is before the warp's fence
        self._fences = 0
        self._sites: list[Instruction] = []
        self._committed = np.zeros((1, 1), np.int64)
        self._flying: set[str] = set()
        self._last: tuple[BoolArray | None, BoolArray | None] = (None, None)

    def watch(
        self, instruction: Instruction, run: Callable[[BoolArray | None], None]
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
        step, names = Step(self.machine, instruction), frozenset((*read, *written))
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
                for row in rows:
                    np.copyto(table[row], stamp, where=True if warps is None else warps)
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
        """Fails if registers of a product in flight for these warps are used: A's may be read, nothing else."""
        for product in self.in_flight:
            for names, role in ((touched & product.result_names, "writes"), (written & product.operand_names, "reads")):
                how = "overwritten" if names & written else "read"
                what = f"is {how} while a wgmma {role} it"
                _refuse_both(step, names, _joined(warps, product.pending), what, product)

    def fence(self, warps: BoolArray | None) -> None:
        """``wgmma.fence`` of these warps, (blocks|1, warps|1): what touched registers before is ordered."""
        self._fences += 1
        limit = (self._fences << SITE_BITS) - 1
        np.copyto(self._fenced, limit, where=True if warps is None else warps)

    def issue(self, product: Product) -> None:
        """Puts a product in flight. Fails: "missing-fence", "in-flight"."""
        self._check_fence(product)
        for earlier in self.in_flight:
            self._check_order(earlier, product)
        product.batch = self._committed
        self.in_flight.append(product)
        self._flying |= product.result_names | product.operand_names

    def _check_fence(self, product: Product) -> None:
        """No register of a product may have been touched since the fence; A's may have been read."""
        for names, tables in ((product.results, (self._read, self._written)), (product.operands, (self._written,))):
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
        what = f"register {names[which]} of a wgmma was {how} after the last wgmma.fence"
        hint = HINT_FENCE + (HINT_MOVES if touched.opcode.startswith("mov") else "")
        step.fail("missing-fence", what, lanes=lanes, found=touched.place, hint=hint)

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
            _refuse_both(product.step, names, _joined(product.warps, earlier.pending), what, earlier)

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


def _refuse_both(step: Step, names: frozenset[str], warps: BoolArray | None, what: str, other: Product) -> None:
    """Fails if registers of another product in flight are used by any of the warps."""
    if names and (warps is None or warps.any()):
        lanes, found = None if warps is None else warps[..., None], f"{other.instruction.place}, not waited for"
        step.fail("in-flight", f"register {min(names)} {what}", lanes=lanes, found=found, hint=HINT_WAIT)


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


class WarpgroupFence:
    """Who has come to which ``wgmma.fence`` of a slice, by instruction: (blocks, warps) who came, and who went on."""

    def __init__(self, machine: Machine, warpgroups: Warpgroups) -> None:
        self.machine, self.warpgroups = machine, warpgroups
        self._came: dict[int, BoolArray] = {}
        self._left: dict[int, BoolArray] = {}

    def completed(self, step: Step) -> BoolArray:
        """Lanes of the step, of the full shape, whose warpgroup is complete.

        Fails: ``divergent-warp``: part of a warp, or of a warpgroup whose other warps cannot come.
        """
        if step.mask is None and self.machine.shape[1] % WARPS == 0:
            return np.ones(self.machine.shape, np.bool_)
        lanes = step.lanes()
        warps = np.logical_or.reduce(lanes, axis=2)
        torn = warps & ~np.logical_and.reduce(lanes, axis=2)
        if torn.any():
            step.fail(
                "divergent-warp", "wgmma.fence is .aligned: all 32 lanes of a warp execute it", lanes=torn[..., None]
            )
        alive = np.logical_or.reduce(self.machine.live, axis=2)
        refuse_torn(step, warps | alive & groups_of(warps, any_of=True), warps)
        came, left = self._tables(step)
        came |= warps & ~left
        whole: BoolArray = groups_of(came, any_of=False) & warps & ~left
        return np.broadcast_to(whole[..., None], self.machine.shape) & lanes

    def leave(self, step: Step, lanes: BoolArray) -> None:
        """These lanes go on: the fence has happened for their warps."""
        if step.mask is None and lanes.all():
            self.warpgroups.same_order.executed(step, None)
            self.warpgroups.fence(None)
            return
        warps = np.logical_or.reduce(lanes, axis=2)
        self.warpgroups.same_order.executed(step, warps)
        self.warpgroups.fence(warps)
        came, left = self._tables(step)
        left |= warps
        gone = groups_of(left, any_of=False)
        came &= ~gone
        left &= ~gone
        self.machine.arrivals += 1

    def story(self, step: Step) -> str:
        """Who is missing, for the report of a deadlock."""
        warps = np.logical_or.reduce(step.lanes(), axis=2)
        block = int(np.argwhere(warps)[0][0])
        missing = np.flatnonzero((groups_of(warps, any_of=True) & ~self._tables(step)[0])[block])
        return f"without warp{'s' if missing.size > 1 else ''} {', '.join(map(str, missing))} of the warpgroup"

    def _tables(self, step: Step) -> tuple[BoolArray, BoolArray]:
        key = id(step.instruction)
        if key not in self._came:
            self._came[key], self._left[key] = (np.zeros(self.machine.shape[:2], np.bool_) for _ in range(2))
        return self._came[key], self._left[key]


def groups_of(warps: BoolArray, *, any_of: bool) -> BoolArray:
    """(blocks, warps): the warps of all warpgroups of which any (or all four) are set."""
    blocks, count = warps.shape
    four = np.pad(warps, ((0, 0), (0, -count % WARPS))).reshape(blocks, -1, WARPS)
    chosen = np.logical_or.reduce(four, axis=2) if any_of else np.logical_and.reduce(four, axis=2)
    return np.repeat(chosen, WARPS, axis=1)[:, :count]


def refuse_torn(step: Step, present: BoolArray, warps: BoolArray) -> None:
    """Fails where `warps`, (blocks|1, warps), belong to a warpgroup of which not all four are `present`."""
    torn = groups_of(warps, any_of=True) & ~groups_of(present, any_of=False)
    if not torn.any():
        return
    block, warp = (int(axis) for axis in np.argwhere(torn)[0])
    first = warp - warp % WARPS
    lanes = np.zeros((len(warps), step.machine.shape[1], 1), np.bool_)
    lanes[block, first : first + WARPS] = True
    expected, found = f"warps {first} to {first + WARPS - 1}", _warps(first, present[block, first : first + WARPS])
    what = "wgmma takes all four warps of a warpgroup together"
    step.fail("divergent-warp", what, lanes=lanes, expected=expected, found=found)
