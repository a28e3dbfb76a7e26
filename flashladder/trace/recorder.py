"""Takes S, m, P, l and O of every KV block out of a kernel while the emulator runs its PTX.

Where a warp keeps a matrix (PTX ISA 9.0, 9.7.14.5.8): a warp owns consecutive rows. A 16 x 8 accumulator is four
registers over 32 lanes: lane 4 g + t has rows g (registers 0, 1) and g + 8 (2, 3), columns 2 t and 2 t + 1. P as the
next product's A operand has the same shape, two columns to a register. Row statistics have a copy in each lane t of the
quad that shares a row.

What a value is follows from what it was made of, not from its register's name, so that a kernel with a mistake in it is
read as well as one without:
- A product whose A operand came from `ldmatrix` is S = Q K^T; one whose A operand was computed is O += P V. The two are
  chains of mma, one per 16 x 8 accumulator. The first product with K after products with V begins a KV block.
- From the A operand of P V back to `ex2` is P. The maximum that all of a row's `ex2` depend on is m, or what they
  subtract where a maximum is kept from block to block. The sum that has taken up most of them is l.
- Fragments are told apart by the operands that they share: all n-tiles of an m-tile have one A, all m-tiles of an
  n-tile one B; tiles count in the order of execution, which is that of the source (NVPTX keeps it).
A form that these rules do not fit is an error (`UnknownForm`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from ptxemu import Access, Array, Dataflow, Event, Instruction, Machine, Step, Value

TILE_M, TILE_N, TILE_K = 16, 8, 16
QUAD = 4  # lanes that share a row

WARP = 32  # lanes
STATISTICS = ("m", "l")  # intermediates with a number a row, of which each lane of a quad has its own
SCALED = "exp"  # softmax of kernels that multiply S by the scale before they take the maximum
STALE = "exp2_stale"  # of those in which a row keeps its maximum until a score is far above it


@dataclass(frozen=True)
class Geometry:
    """How a CTA's tile is shared out."""

    ctas: int  # of the launch
    warps: int  # of a CTA
    rows: int  # of Q and O in a CTA, B_r
    keys: int  # rows of K and V in a block, B_c
    d_head: int  # columns of Q, K, V and O

    @classmethod
    def of(cls, config: KernelConfig, ctas: int = 1) -> Geometry:
        """That of a kernel's configuration."""
        return cls(ctas, config.n_threads // WARP, config.B_r, config.B_c, config.d_head)

    @property
    def m_tiles(self) -> int:
        """Accumulators of a warp from top to bottom."""
        return self.rows // self.warps // TILE_M

    def place(self, row: int, column: int, *, statistic: bool = False) -> Place:
        """Who holds an element of the CTA's tile; of a row statistic `column` counts the lanes of the quad."""
        per_warp = self.rows // self.warps
        warp, inside = divmod(row, per_warp)
        m, in_tile = divmod(inside, TILE_M)
        half, g = divmod(in_tile, TILE_N)
        n, in_row = (0, 2 * column) if statistic else divmod(column, TILE_N)
        t, odd = divmod(in_row, 2)
        return Place(warp, QUAD * g + t, m, n, 2 * half + odd)


class Place(NamedTuple):
    """Warp, lane, m-tile, n-tile and element of an accumulator (0 to 3; of a row statistic 0 or 2)."""

    warp: int
    lane: int
    m: int
    n: int
    element: int


def matrix(registers: Sequence[Sequence[Sequence[Array]]], geometry: Geometry) -> Array:
    """The CTA's matrix that registers hold, (CTAs, B_r, 8 x n-tiles).

    Args:
        registers: [m-tile][n-tile][element]: a register's value over the lanes, (CTAs|1, warps|1, 32|1).
        geometry: of the CTA's tile.
    """
    shape = (geometry.ctas, geometry.warps, WARP)
    stacked = np.stack([[[np.broadcast_to(a, shape) for a in four] for four in across] for across in registers])
    m, n = stacked.shape[:2]
    split = stacked.reshape(m, n, 2, 2, *shape[:2], TILE_N, QUAD)  # m, n, half, odd, CTA, warp, g, t
    return split.transpose(4, 5, 0, 2, 6, 1, 7, 3).reshape(geometry.ctas, geometry.rows, TILE_N * n)


PRODUCT = "mma.sync.aligned.m16n8k16.row.col.f32."
A, B, C = slice(0, 4), slice(4, 6), slice(6, 10)  # of the registers that it reads
ADDS = ("add", "fma", "sub")
CARRIES = (*ADDS, "mul", "cvt", "selp")  # a sum is still one behind these
MADE_ANEW = ("mma", "ldmatrix", "ld", "cp")  # what they give is not made of what they read, as a search goes

Chain = tuple[Event, ...]
Grid = Sequence[Sequence[Chain]]  # [m-tile][n-tile]
Registers = Sequence[Sequence[Sequence[Value]]]  # [m-tile][n-tile][element]


class UnknownForm(FlashladderError):
    """The kernel computes attention in a way that these rules do not know."""

    def __init__(self, what: str, event: Event | None = None, **facts: object) -> None:
        where = event.instruction.place if event else None
        hint = "its intermediates cannot be read; `invoke check` still judges its output"
        super().__init__(f"not a form of kernel that trace knows: {what}", where=where, hint=hint, **facts)  # type: ignore[arg-type]  # expected, found


def makes_scores(product: Event) -> bool:
    """Whether an mma belongs to S = Q K^T, not to O += P V."""
    source = product.sources[0].event
    return source is not None and source.word == "ldmatrix"


class Window:
    """What ran for one KV block: from the first mma of its S to before that of the next.

    Args:
        events: in order.
        geometry: of the CTA's tile.
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
        """What made a value, if that was in this window and not before its first product."""
        event = value.event
        return event if event is not None and event.number >= self.first else None

    def ancestors(self, value: Value, found: Callable[[Event], bool]) -> list[Event]:
        """The nearest events behind a value for which `found` holds; nothing is sought behind those."""
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
        """The mma of S and those of O, by accumulator.

        Raises:
            UnknownForm: another instruction, warps that part, or other numbers of tiles than the configuration has.
        """
        all_products = [event for event in self.events if event.word == "mma"]
        for event in all_products:
            if not event.instruction.opcode.startswith(PRODUCT):
                raise UnknownForm("another mma", event, expected=f"{PRODUCT}*")
            if not event.whole:
                raise UnknownForm("its warps take different paths to the tensor cores", event)
        g = self.geometry
        both = (
            (True, g.keys // TILE_N, g.d_head // TILE_K, "S"),
            (False, g.d_head // TILE_N, g.keys // TILE_K, "O"),
        )
        grids = []
        for scores, n_tiles, k_tiles, name in both:
            chains = self._chains([event for event in all_products if makes_scores(event) is scores], scores=scores)
            grids.append(_grid(chains, g.m_tiles, n_tiles, name))
            lengths = {len(chain) for chain in chains}
            if lengths != {k_tiles}:
                what, expected = f"{name} is not summed over its k-tiles", f"{k_tiles} mma"
                raise UnknownForm(what, chains[0][0], expected=expected, found=sorted(lengths))
        return grids[0], grids[1]

    def _chains(self, products: Iterable[Event], *, scores: bool) -> list[Chain]:
        """Products that add to one accumulator, in order; rounding in between does not part them."""

        def adds(other: Event) -> bool:
            return other.word == "mma" and makes_scores(other) is scores

        chains: dict[int, list[Event]] = {}
        for event in products:
            before = self.ancestors(event.sources[6], adds)
            chain = chains.pop(before[0].number, None) if len(before) == 1 else None
            chains[event.number] = [*(chain or ()), event]
        return sorted((tuple(chain) for chain in chains.values()), key=lambda chain: chain[0].number)

    def exponentials(self, packed: Value, dtype: str) -> list[Value]:
        """The results of the `ex2` behind the low and the high half of a register of P.

        Raises:
            UnknownForm: there are not two.
        """
        event = packed.event
        converts = event is not None and event.word == "cvt"
        sources = event.sources[::-1] if event and converts else [packed]  # cvt d, a, b: a becomes the upper half
        found = [one for source in sources for one in self.ancestors(source, lambda one: one.word == "ex2")]
        if len(found) != 2:
            raise UnknownForm("a register of P without two ex2 behind it", event, found=len(found))
        both = [one.results[0] for one in found]
        low = packed.halves(f"{dtype}x2")[..., 0].astype(np.float64)  # put together by bits: the values tell
        first, second = (float(np.abs(low - one.array).sum()) for one in both)
        return both[::-1] if not converts and second < first else both

    def maximum(self, elements: Sequence[Value]) -> Value:
        """The last maximum that all these exponentials depend on.

        Raises:
            UnknownForm: there is none.
        """
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
        """For each event the set of maxima behind it, as bits, and the maxima in order."""
        maxima = [event for event in self.events if event.word == "max"]
        own = {event.number: 1 << place for place, event in enumerate(maxima)}
        return self._marks(own, lambda event: event.word not in MADE_ANEW), maxima

    def _marks(self, own: Mapping[int, int], passes: Callable[[Event], bool]) -> Mapping[int, int]:
        """For each event, by its number, its `own` bits and those of all events behind it that pass them on."""
        marks: dict[int, int] = {}
        for event in self.events:
            mark = own.get(event.number, 0)
            for source in event.sources if passes(event) else ():
                mark |= marks.get(source.event.number, 0) if source.event else 0
            marks[event.number] = mark
        return marks

    def total(self, elements: Sequence[Value]) -> Value:
        """The sum that has taken up most of a row's exponentials, with the sum of the blocks before.

        Raises:
            UnknownForm: nothing adds them.
        """
        bits = {one.event.number: 1 << place for place, one in enumerate(elements) if one.event}
        marks = self._marks(bits, lambda event: event.word in CARRIES)
        sums = [event for event in self.events if event.word in ADDS and marks[event.number].bit_count() > 1]
        if not sums:
            raise UnknownForm("nothing adds the exponentials of a row", elements[0].event)
        return self._with_later_terms(max(sums, key=lambda event: marks[event.number].bit_count()).results[0])

    def _with_later_terms(self, total: Value) -> Value:
        """A sum to which more is added before the lanes of a row exchange it."""
        while True:
            users = self._users(total)
            more = [event for event in users if event.word in ADDS]
            if len(more) != 1 or any(event.word == "shfl" for event in users):
                return total
            total = more[0].results[0]

    def _users(self, value: Value) -> list[Event]:
        return self.consumers.get(id(value), [])

    def multiplied(self, value: Value) -> Value:
        """The nearest product that an element of S goes into.

        Raises:
            UnknownForm: it goes into none.
        """
        work = [value]
        while work:
            one = work.pop(0)
            for user in self._users(one):
                if user.word == "mul":
                    return user.results[0]
                if user.word not in ("max", "ex2", *MADE_ANEW):
                    work.extend(user.results)
        raise UnknownForm("an element of S that is not scaled", value.event)


def _grid(chains: Sequence[Chain], m_tiles: int, n_tiles: int, name: str) -> Grid:
    """Chains by m-tile and n-tile.

    Raises:
        UnknownForm: there are more or fewer.
    """
    if len(chains) != m_tiles * n_tiles:
        where = chains[0][0] if chains else None
        raise UnknownForm(f"accumulators of {name} in a KV block", where, expected=m_tiles * n_tiles, found=len(chains))
    left = _ranks(tuple(map(id, chain[0].sources[A])) for chain in chains)
    right = _ranks(tuple(map(id, chain[0].sources[B])) for chain in chains)
    by_tile = {(m, n): chain for m, n, chain in zip(left, right, chains, strict=True)}
    if len(by_tile) != len(chains) or max(left) + 1 != m_tiles:  # operands shared otherwise: m runs fastest
        by_tile = {(place % m_tiles, place // m_tiles): chain for place, chain in enumerate(chains)}
    return [[by_tile[m, n] for n in range(n_tiles)] for m in range(m_tiles)]


def _ranks(keys: Iterable[tuple[int, ...]]) -> list[int]:
    """For each key how many different ones came before its first appearance."""
    ranks: dict[tuple[int, ...], int] = {}
    return [ranks.setdefault(key, len(ranks)) for key in keys]


def subtracted(rows: Sequence[Sequence[Value]]) -> list[Value]:
    """What all exponents of a row were made of, and none of another row's.

    Args:
        rows: of two or more rows the results of their `ex2`.

    Raises:
        UnknownForm: there is no such value, or more than one.
    """
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
    """What made the exponent of an `ex2`."""
    event = element.event.sources[0].event if element.event else None
    if event is None or event.word not in ("fma", "sub"):
        raise UnknownForm("an exponent that is no fma or sub", event or element.event)
    return event


def _positive(value: Value, user: Event) -> Value:
    """What a ``sub`` subtracts, or the opposite of what an ``fma`` adds, with what made it."""
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

    array: Array  # (CTAs, B_r, columns) float32; of m and l the columns are the quad's four lanes
    # the instruction that made the values of an accumulator's element, by (m-tile, n-tile, element)
    makers: Mapping[tuple[int, int, int], Instruction]


KvStep = Mapping[str, Held]
"""What a kernel held for one KV block, by the names of `INTERMEDIATES`, in the order in which it is computed."""


@dataclass
class Recorder(Dataflow):
    """Listens to a launch in one slice; read `steps`, `ctas` and `backward` after it."""

    geometry: Geometry = field(default_factory=lambda: Geometry(1, 1, 16, 16, 16))  # of one CTA, then of the launch
    dtype: str = "f16"  # of P as an operand, ``f16`` or ``bf16``
    softmax: str = ""  # the part: `SCALED`, `STALE` or another one
    steps: list[KvStep] = field(default_factory=list)  # the KV blocks in the order in which they ran
    # ``%ctaid`` (x, y, z) of each CTA, in the order of the arrays
    ctas: list[tuple[int, int, int]] = field(default_factory=list)
    k_addresses: list[int] = field(default_factory=list)  # what the first thread copied of K, in order
    _after_output: bool = False

    @property
    def backward(self) -> bool:
        """Whether the KV blocks were fetched from the last to the first."""
        return bool(self.k_addresses) and self.k_addresses[0] > self.k_addresses[-1]

    def start(self, machine: Machine) -> None:
        """The grid begins."""
        super().start(machine)
        self.geometry = replace(self.geometry, ctas=machine.shape[0])
        self.ctas += [(int(x), int(y), int(z)) for x, y, z in machine.blocks]

    def finish(self, machine: Machine) -> None:  # noqa: ARG002 - the observer's signature
        """The last block is complete."""
        self._close(self.events)

    def access(self, step: Step, access: Access) -> None:  # noqa: ARG002 - the observer's signature
        """Notes where K is read."""
        if (access.space, access.kind, access.buffer) == ("global", "cp.async", K_BUFFER):
            self.k_addresses.append(int(access.address.flat[0]))

    def happened(self, event: Event) -> None:
        """Ends a KV block where the next one's S begins."""
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
    """The intermediates of a KV block.

    Raises:
        UnknownForm: the kernel computes them in another way than `Window` knows.
    """
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
    """P's registers by [m-tile][8 columns][half of the rows]: the A operands of O's products.

    Raises:
        UnknownForm: the column tiles of O multiply different P.
    """
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
    """A row statistic, of which there are two for each m-tile, as an accumulator of two equal columns a lane."""
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
