"""Reads S, m, P, l and O of every KV block from a kernel while the emulator runs its PTX.

Layout of a matrix (PTX ISA 9.0, 9.7.14.5.8): a warp owns consecutive rows. A 16 x 8 accumulator is four registers over
32 lanes: lane 4 g + t has rows g (registers 0, 1) and g + 8 (2, 3), columns 2 t and 2 t + 1. P as the A operand of the
next product has the same shape with two columns per register. Each lane t of a quad has a copy of its row statistics.

The role of a value follows from how it was computed, not from its register's name. So kernels with mistakes can be
read, too:
- An mma whose A operand came from `ldmatrix` belongs to S = Q K^T; one whose A operand was computed, to O += P V. Each
  16 x 8 accumulator is a chain of mma. The first mma of S after those of O begins a KV block.
- P is found from the A operand of P V back to `ex2`. m is the maximum that all `ex2` of a row depend on, or the value
  that they subtract if the kernel keeps a maximum from block to block. l is the sum with most of these `ex2`.
- Operands identify tiles: all n-tiles of an m-tile share A, all m-tiles of an n-tile share B. Tiles count in the order
  of execution, which is the order of the source.
A kernel that these rules do not fit raises `UnknownForm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.machine_code.ptxas import WARP
from ptxemu import Access, Array, Dataflow, Event, Instruction, Machine, Step, Value

TILE_M, TILE_N, TILE_K = 16, 8, 16
QUAD = 4  # lanes that share a row
STATISTICS = ("m", "l")  # one number per row, with a copy in each lane of a quad
SCALED = "exp"  # the softmax that scales S before it takes the maximum
STALE = "exp2_stale"  # the softmax that keeps a row's maximum until a score is far above it


@dataclass(frozen=True)
class Geometry:
    """The division of a CTA's tile among its warps."""

    ctas: int  # of the launch
    warps: int  # of a CTA
    rows: int  # of Q and O in a CTA, B_r
    keys: int  # rows of K and V in a block, B_c
    d_head: int  # columns of Q, K, V and O

    @classmethod
    def of(cls, config: KernelConfig) -> Geometry:
        """That of one CTA of a kernel."""
        return cls(1, config.n_threads // WARP, config.B_r, config.B_c, config.d_head)

    @property
    def m_tiles(self) -> int:
        """Accumulators of a warp from top to bottom."""
        return self.rows // self.warps // TILE_M

    def place(self, row: int, column: int, *, statistic: bool = False) -> Place:
        """The place of an element of the CTA's tile; for a row statistic `column` is the lane within the quad."""
        per_warp = self.rows // self.warps
        warp, inside = divmod(row, per_warp)
        m, in_tile = divmod(inside, TILE_M)
        half, g = divmod(in_tile, TILE_N)
        n, in_row = (0, 2 * column) if statistic else divmod(column, TILE_N)
        t, odd = divmod(in_row, 2)
        return Place(warp, QUAD * g + t, m, n, 2 * half + odd)


class Place(NamedTuple):
    """The holder of an element."""

    warp: int
    lane: int
    m: int  # m-tile
    n: int  # n-tile
    element: int  # of the accumulator, 0 to 3; for a row statistic 0 or 2


def matrix(registers: Sequence[Sequence[Sequence[Array]]], geometry: Geometry) -> Array:
    """The CTA's matrix in these registers, (CTAs, B_r, 8 x n-tiles).

    `registers` is [m-tile][n-tile][element]: the value of a register over the lanes, (CTAs|1, warps|1, 32|1).
    """
    shape = (geometry.ctas, geometry.warps, WARP)
    stacked = np.stack([[[np.broadcast_to(a, shape) for a in four] for four in across] for across in registers])
    m, n = stacked.shape[:2]
    split = stacked.reshape(m, n, 2, 2, *shape[:2], TILE_N, QUAD)  # m, n, half, odd, CTA, warp, g, t
    return split.transpose(4, 5, 0, 2, 6, 1, 7, 3).reshape(geometry.ctas, geometry.rows, TILE_N * n)


PRODUCT = "mma.sync.aligned.m16n8k16.row.col.f32."
A, B, C = slice(0, 4), slice(4, 6), slice(6, 10)  # among the registers that it reads
ADDS = ("add", "fma", "sub")
CARRIES = (*ADDS, "mul", "cvt", "selp")  # their results are still sums
MADE_ANEW = ("mma", "ldmatrix", "ld", "cp")  # a search for origins ends at them

Chain = tuple[Event, ...]
Grid = Sequence[Sequence[Chain]]  # [m-tile][n-tile]
Registers = Sequence[Sequence[Sequence[Value]]]  # [m-tile][n-tile][element]


class UnknownForm(FlashladderError):
    """The kernel computes attention in a way that the rules above do not cover."""

    def __init__(self, what: str, event: Event | None = None, **facts: object) -> None:
        where = event.instruction.place if event else None
        hint = "its intermediates cannot be read; `invoke check` still judges its output"
        super().__init__(f"not a form of kernel that trace knows: {what}", where=where, hint=hint, **facts)  # type: ignore[arg-type]  # expected, found


def makes_scores(product: Event) -> bool:
    """Whether an mma belongs to S = Q K^T; else it belongs to O += P V."""
    source = product.sources[0].event
    return source is not None and source.word == "ldmatrix"


class Window:
    """The events of one KV block in order: from the first mma of its S to before that of the next block.

    Its methods raise `UnknownForm` for a value that they do not find, or find more than once.
    """

    def __init__(self, events: Sequence[Event], geometry: Geometry) -> None:
        self.events = events
        self.geometry = geometry
        self.first = next((event.number for event in events if event.word == "mma"), 0)
        self.consumers: dict[int, list[Event]] = {}
        for event in events:
            for source in event.sources:
                self.consumers.setdefault(id(source), []).append(event)

    def maker(self, value: Value) -> Event | None:
        """The event that made a value, unless that was before the first mma of this window."""
        event = value.event
        return event if event is not None and event.number >= self.first else None

    def ancestors(self, value: Value, found: Callable[[Event], bool]) -> list[Event]:
        """The nearest events behind a value for which `found` holds; the search ends at these."""
        hits: list[Event] = []
        seen: set[int] = set()
        work = [value]
        while work:
            event = self.maker(work.pop())
            if event is None or event.number in seen:
                continue
            seen.add(event.number)
            if found(event):
                hits.append(event)
            elif event.word not in MADE_ANEW:
                work.extend(event.sources)
        return hits

    def products(self) -> tuple[Grid, Grid]:
        """The mma of S and those of O, by accumulator."""
        products = [event for event in self.events if event.word == "mma"]
        for event in products:
            if not event.instruction.opcode.startswith(PRODUCT):
                raise UnknownForm("another mma", event, expected=f"{PRODUCT}*")
            if not event.whole:
                raise UnknownForm("its warps take different paths to the tensor cores", event)
        keys, d_head = self.geometry.keys, self.geometry.d_head
        scores = [event for event in products if makes_scores(event)]
        of_scores = self._grid("S", scores, keys // TILE_N, d_head // TILE_K)
        output = [event for event in products if not makes_scores(event)]
        return of_scores, self._grid("O", output, d_head // TILE_N, keys // TILE_K)

    def _grid(self, name: str, products: Sequence[Event], n_tiles: int, k_tiles: int) -> Grid:
        """The mma of a matrix by m-tile and n-tile, each a chain over the k-tiles."""
        m_tiles, chains = self.geometry.m_tiles, self._chains(products)
        if len(chains) != m_tiles * n_tiles:
            where, n = chains[0][0] if chains else None, m_tiles * n_tiles
            raise UnknownForm(f"accumulators of {name} in a KV block", where, expected=n, found=len(chains))
        lengths = {len(chain) for chain in chains}
        if lengths != {k_tiles}:
            what, expected = f"{name} is not summed over its k-tiles", f"{k_tiles} mma"
            raise UnknownForm(what, chains[0][0], expected=expected, found=sorted(lengths))
        left = _ranks(tuple(map(id, chain[0].sources[A])) for chain in chains)
        right = _ranks(tuple(map(id, chain[0].sources[B])) for chain in chains)
        by_tile = {(m, n): chain for m, n, chain in zip(left, right, chains, strict=True)}
        if len(by_tile) != len(chains) or max(left) + 1 != m_tiles:  # tiles share other operands: m runs fastest
            by_tile = {(place % m_tiles, place // m_tiles): chain for place, chain in enumerate(chains)}
        return [[by_tile[m, n] for n in range(n_tiles)] for m in range(m_tiles)]

    def _chains(self, products: Sequence[Event]) -> list[Chain]:
        """The mma that add to one accumulator, in order; rounding between them does not end a chain."""
        numbers = {event.number for event in products}
        chains: dict[int, Chain] = {}
        for event in products:
            before = self.ancestors(event.sources[6], lambda other: other.number in numbers)
            chain = chains.pop(before[0].number, ()) if len(before) == 1 else ()
            chains[event.number] = (*chain, event)
        return sorted(chains.values(), key=lambda chain: chain[0].number)

    def exponentials(self, packed: Value, dtype: str) -> list[Value]:
        """The results of the `ex2` behind the low and the high half of a register of P."""
        event = packed.event
        converts = event is not None and event.word == "cvt"
        sources = event.sources[::-1] if event and converts else [packed]  # cvt d, a, b: a becomes the upper half
        found = [one for source in sources for one in self.ancestors(source, lambda one: one.word == "ex2")]
        if len(found) != 2:
            raise UnknownForm("a register of P without two ex2 behind it", event, found=len(found))
        both = [one.results[0] for one in found]
        low = packed.halves(f"{dtype}x2")[..., 0].astype(np.float64)  # for halves joined by bit operations
        first, second = (float(np.abs(low - one.array).sum()) for one in both)
        return both[::-1] if not converts and second < first else both

    def maximum(self, elements: Sequence[Value]) -> Value:
        """The last maximum that all these exponentials depend on."""
        marks, maxima = self._maxima
        common = -1
        for element in elements:
            assert element.event is not None
            common &= marks[element.event.number]
        if not common:
            raise UnknownForm("the exponentials of a row have no maximum in common", elements[0].event)
        return maxima[common.bit_length() - 1].results[0]

    @cached_property
    def _maxima(self) -> tuple[Mapping[int, int], Sequence[Event]]:
        """For each event a bit for every maximum behind it, and the maxima in order."""
        maxima = [event for event in self.events if event.word == "max"]
        own = {event.number: 1 << place for place, event in enumerate(maxima)}
        return self._marks(own, lambda event: event.word not in MADE_ANEW), maxima

    def _marks(self, own: Mapping[int, int], passes: Callable[[Event], bool]) -> Mapping[int, int]:
        """The bits of each event by its number: its `own`, and those of its sources if it `passes` them on."""
        marks: dict[int, int] = {}
        for event in self.events:
            mark = own.get(event.number, 0)
            for source in event.sources if passes(event) else ():
                mark |= marks.get(source.event.number, 0) if source.event else 0
            marks[event.number] = mark
        return marks

    def total(self, elements: Sequence[Value]) -> Value:
        """The sum with most of a row's exponentials, including the sum of earlier blocks."""
        bits = {one.event.number: 1 << place for place, one in enumerate(elements) if one.event}
        marks = self._marks(bits, lambda event: event.word in CARRIES)
        sums = [event for event in self.events if event.word in ADDS and marks[event.number].bit_count() > 1]
        if not sums:
            raise UnknownForm("nothing adds the exponentials of a row", elements[0].event)
        total = max(sums, key=lambda event: marks[event.number].bit_count()).results[0]
        while True:  # more terms may follow until the lanes of a row exchange the sum
            users = self.consumers.get(id(total), [])
            more = [event for event in users if event.word in ADDS]
            if len(more) != 1 or any(event.word == "shfl" for event in users):
                return total
            total = more[0].results[0]

    def multiplied(self, value: Value) -> Value:
        """The nearest product of an element of S."""
        work = [value]
        while work:
            for user in self.consumers.get(id(work.pop(0)), []):
                if user.word == "mul":
                    return user.results[0]
                if user.word not in ("max", "ex2", *MADE_ANEW):
                    work.extend(user.results)
        raise UnknownForm("an element of S that is not scaled", value.event)


def _ranks(keys: Iterable[tuple[int, ...]]) -> list[int]:
    """For each key the number of different keys before its first appearance."""
    ranks: dict[tuple[int, ...], int] = {}
    return [ranks.setdefault(key, len(ranks)) for key in keys]


def subtracted(rows: Sequence[Sequence[Value]]) -> list[Value]:
    """For each of two or more rows of `ex2` results, the value in all exponents of that row and of no other row."""
    exponents = [[_exponent(element) for element in row] for row in rows]
    shared = [set.intersection(*({id(value) for value in one.sources} for one in row)) for row in exponents]
    of_all = set.intersection(*shared)
    found = []
    for row, names in zip(exponents, shared, strict=True):
        own = {id(value): value for value in row[0].sources if id(value) in names - of_all}
        if len(own) != 1:
            raise UnknownForm("the exponents of a row do not subtract one value", row[0], found=len(own))
        found.append(_positive(next(iter(own.values())), row[0]))
    return found


def _exponent(element: Value) -> Event:
    """The event that made the exponent of an `ex2`."""
    event = element.event.sources[0].event if element.event else None
    if event is None or event.word not in ("fma", "sub"):
        raise UnknownForm("an exponent that is no fma or sub", event or element.event)
    return event


def _positive(value: Value, user: Event) -> Value:
    """The value that a ``sub`` subtracts, or the negative of what an ``fma`` adds, with the event that made it."""
    if user.word == "sub":
        return value
    event = value.event
    if event is not None and event.word == "neg":
        event = event.sources[0].event if event.sources else event
    return Value(-value.as_type("f32"), event)


K_BUFFER = 1  # Q, K, V and O are allocated in this order


@dataclass(frozen=True)
class Held:
    """One intermediate of one KV block."""

    array: Array  # (CTAs, B_r, columns) float32; for m and l the columns are the quad's four lanes
    makers: Mapping[tuple[int, int, int], Instruction]  # of the values, by (m-tile, n-tile, element)


KvStep = Mapping[str, Held]
"""The values of one KV block, by the names of `INTERMEDIATES`, in the order of computation."""


@dataclass(kw_only=True)
class Recorder(Dataflow):
    """Observes a launch in one slice; read `steps`, `ctas` and `backward` after it."""

    geometry: Geometry  # of one CTA, then of the launch
    dtype: str  # of P as an operand, ``f16`` or ``bf16``
    softmax: str  # the part: `SCALED`, `STALE` or another one
    steps: list[KvStep] = field(default_factory=list)  # the KV blocks in the order in which they ran
    ctas: list[tuple[int, int, int]] = field(default_factory=list)  # ``%ctaid`` of each CTA, in the order of arrays
    k_addresses: list[int] = field(default_factory=list)  # from which the first thread copied K, in order
    _after_output: bool = False

    @property
    def backward(self) -> bool:
        """Whether the KV blocks were fetched from the last to the first."""
        return bool(self.k_addresses) and self.k_addresses[0] > self.k_addresses[-1]

    def start(self, machine: Machine) -> None:
        """Notes the CTAs of the grid."""
        super().start(machine)
        self.geometry = replace(self.geometry, ctas=machine.shape[0])
        self.ctas += [(int(x), int(y), int(z)) for x, y, z in machine.blocks]

    def finish(self, machine: Machine) -> None:  # noqa: ARG002 - the observer's signature
        """Reads the last KV block."""
        self._close(self.events)

    def access(self, step: Step, access: Access) -> None:  # noqa: ARG002 - the observer's signature
        """Notes the addresses of K."""
        if (access.space, access.kind, access.buffer) == ("global", "cp.async", K_BUFFER):
            self.k_addresses.append(int(access.address.flat[0]))

    def happened(self, event: Event) -> None:
        """Reads a KV block when the S of the next one begins."""
        if event.word != "mma":
            return
        scores = makes_scores(event)
        if scores and self._after_output:
            self._close(self.events[:-1])
            self.forget(event)
        self._after_output = not scores

    def _close(self, events: Sequence[Event]) -> None:
        self.steps.append(read_step(Window(events, self.geometry), self.dtype, self.softmax))


def read_step(window: Window, dtype: str, softmax: str) -> KvStep:
    """The intermediates of a KV block."""
    of_scores, of_output = window.products()
    scores = [[chain[-1].results for chain in row] for row in of_scores]
    packed = _packed(of_output)
    p = [[[one for both in halves for one in window.exponentials(both, dtype)] for halves in row] for row in packed]
    rows = [[four[2 * half + odd] for four in row for odd in (0, 1)] for row in p for half in (0, 1)]
    found: dict[str, Registers] = {"S": scores}
    if softmax == SCALED:
        found["S_scaled"] = [[[window.multiplied(value) for value in four] for four in row] for row in scores]
    found["m"] = _as_tiles(subtracted(rows) if softmax == STALE else [window.maximum(one) for one in rows])
    found["P"] = p
    found["P16"] = [[[halves[0]] * 2 + [halves[1]] * 2 for halves in row] for row in packed]  # two share a register
    found["l"] = _as_tiles([window.total(one) for one in rows])
    found["O_rescaled"] = [[chain[0].sources[6:] for chain in row] for row in of_output]
    found["O"] = [[chain[-1].results for chain in row] for row in of_output]
    return {name: _held(name, values, window.geometry, dtype) for name, values in found.items()}


def _packed(output: Grid) -> list[list[list[Value]]]:
    """P's registers by [m-tile][8 columns][half of the rows]: the A operands of O's products."""
    found = []
    for row in output:
        for chain in row[1:]:
            for event, first in zip(chain, row[0], strict=True):
                if event.sources[:4] != first.sources[:4]:
                    raise UnknownForm("column tiles of O that multiply different registers of P", event)
        pieces = [event.sources[:4] for event in row[0]]
        found.append([[a[khalf * 2], a[khalf * 2 + 1]] for a in pieces for khalf in (0, 1)])
    return found


def _as_tiles(rows: Sequence[Value]) -> Registers:
    """A row statistic, of which an m-tile has two, as an accumulator with two equal columns per lane."""
    return [[[upper, upper, lower, lower]] for upper, lower in zip(rows[::2], rows[1::2], strict=True)]


def _held(name: str, values: Registers, geometry: Geometry, dtype: str) -> Held:
    arrays = [
        [
            [
                one.halves(f"{dtype}x2")[..., place % 2].astype(np.float32) if name == "P16" else one.as_type("f32")
                for place, one in enumerate(four)
            ]
            for four in row
        ]
        for row in values
    ]
    makers = {
        (m, n, element): one.event.instruction
        for m, row in enumerate(values)
        for n, four in enumerate(row)
        for element, one in enumerate(four)
        if one.event is not None
    }
    return Held(matrix(arrays, geometry)[..., :: 2 if name in STATISTICS else 1], makers)
