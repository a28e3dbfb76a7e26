"""Takes S, m, P, l and O of every KV block out of a kernel while the emulator runs it.

Why from the PTX that ships: a debug build that stores its intermediates is another program. The tensor cores' operands
say where one KV block ends (the first product with K after products with V), `roles` what the values between are.
Nothing to run here; `flashladder.trace.compare` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from flashladder.trace.fragments import Fragments, Geometry, Place, matrix, statistics
from flashladder.trace.roles import Products, UnknownForm, Window, makes_scores
from flashladder.trace.subtracted import subtracted
from ptxemu import Access, Array, Dataflow, Event, Instruction, Machine, Step, Value

K_BUFFER = 1  # Q, K, V and O are allocated in this order


@dataclass(frozen=True)
class Held:
    """One intermediate of one KV block.

    Attributes:
        array: (CTAs, B_r, columns) float32; of m and l the columns are the quad's four lanes.
        makers: the instruction that made the values of an accumulator's element, by (m-tile, n-tile, element).
    """

    array: Array
    makers: Mapping[tuple[int, int, int], Instruction]

    def maker(self, place: Place) -> Instruction | None:
        """What made an element; None where nothing did."""
        return self.makers.get((place.m, place.n, place.element))


@dataclass(frozen=True)
class KvStep:
    """What a kernel held for one KV block; `scaled` is None where the scale is folded into the exponent."""

    scores: Held
    scaled: Held | None
    m: Held
    p: Held
    p16: Held
    l: Held  # noqa: E741 - the paper's name
    rescaled: Held
    o: Held


@dataclass
class Recorder(Dataflow):
    """Listens to a launch; read `steps`, `ctas` and `backward` after it.

    Attributes:
        geometry: of one CTA.
        dtype: of P as an operand, ``f16`` or ``bf16``.
        stale: whether a row may keep its maximum from one KV block to the next.
        steps: for each slice of the grid the KV blocks in the order in which they ran.
        ctas: ``%ctaid`` (x, y, z) of each CTA, in the order of the arrays.
        k_addresses: what the first thread copied of K, in order.
    """

    geometry: Geometry = field(default_factory=lambda: Geometry(1, 1, 16, 16, 16))
    dtype: str = "f16"
    stale: bool = False
    steps: list[list[KvStep]] = field(default_factory=list)
    ctas: list[tuple[int, int, int]] = field(default_factory=list)
    k_addresses: list[int] = field(default_factory=list)
    _slice: Geometry | None = None
    _after_output: bool = False

    @property
    def backward(self) -> bool:
        """Whether the KV blocks were fetched from the last to the first."""
        return bool(self.k_addresses) and self.k_addresses[0] > self.k_addresses[-1]

    def start(self, machine: Machine) -> None:
        """A slice of the grid begins."""
        super().start(machine)
        g = self.geometry
        self._slice = Geometry(machine.shape[0], g.warps, g.rows, g.keys, g.d_head)
        self._after_output = False
        self.steps.append([])
        self.ctas += [(int(x), int(y), int(z)) for x, y, z in machine.blocks]

    def finish(self, machine: Machine) -> None:  # noqa: ARG002 - the observer's signature
        """The last block of the slice is complete."""
        self._close(self.events)

    def access(self, step: Step, access: Access) -> None:  # noqa: ARG002 - the observer's signature
        """Notes where K is read."""
        of_first_slice = (access.space, access.kind) == ("global", "cp.async") and len(self.steps) == 1
        if of_first_slice and access.buffer == K_BUFFER:
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
        assert self._slice is not None
        self.steps[-1].append(read_step(Window(events, self._slice), self.dtype, stale=self.stale))


def read_step(window: Window, dtype: str, *, stale: bool = False) -> KvStep:
    """The intermediates of a KV block.

    Raises:
        UnknownForm: see `roles`.
    """
    products, geometry = window.products(), window.geometry
    scores = [[list(chain[-1].results) for chain in row] for row in products.scores]
    flat = [value for row in scores for four in row for value in four]
    scaled = window.scaled(flat)
    packed = _packed(products)
    p = [[_opened(window, four) for four in row] for row in packed]
    m, total = _statistics(window, p, stale=stale)
    before = [[list(chain[0].sources[6:]) for chain in row] for row in products.output]
    after = [[list(chain[-1].results) for chain in row] for row in products.output]
    p16 = [[_halves(four, dtype) for four in row] for row in packed]
    return KvStep(
        scores=_matrix(scores, geometry),
        scaled=None if scaled is None else _matrix(_like(scores, scaled), geometry),
        m=_rows(m, geometry),
        p=_matrix(p, geometry),
        p16=Held(matrix(p16, geometry), _p16_makers(packed)),
        l=_rows(total, geometry),
        rescaled=_matrix(before, geometry),
        o=_matrix(after, geometry),
    )


def _packed(products: Products) -> list[list[list[Value]]]:
    """P's registers by [m-tile][8 columns][half of the rows]: the A operands of O's products.

    Raises:
        UnknownForm: the column tiles of O multiply different P.
    """
    found = []
    for row in products.output:
        for chain in row[1:]:
            for event, first in zip(chain, row[0], strict=True):
                if event.sources[:4] != first.sources[:4]:
                    raise UnknownForm("column tiles of O that multiply different registers of P", event)
        pieces = [event.sources[:4] for event in row[0]]
        found.append([[a[khalf * 2], a[khalf * 2 + 1]] for a in pieces for khalf in (0, 1)])
    return found


def _opened(window: Window, halves_of_rows: Sequence[Value]) -> list[Value]:
    """The four exponentials of an accumulator of P, rows g first."""
    pairs = [window.exponentials(packed) for packed in halves_of_rows]
    opened = []
    for (low, high), packed in zip(pairs, halves_of_rows, strict=True):
        swapped = packed.event is not None and packed.event.word != "cvt" and _are_swapped(low, high, packed)
        opened += [high, low] if swapped else [low, high]
    return opened


def _are_swapped(low: Value, high: Value, packed: Value) -> bool:
    """Whether a register put together by bits holds `high` in its low half; told by the values."""
    half = packed.halves("bf16x2")[..., 0].astype(np.float64)
    return bool(np.abs(half - high.array).sum() < np.abs(half - low.array).sum())


def _statistics(
    window: Window, p: Sequence[Sequence[Sequence[Value]]], *, stale: bool
) -> tuple[list[list[Value]], list[list[Value]]]:
    """Of each row m and l, by [m-tile][half]."""
    rows = [[four[2 * half + odd] for four in row for odd in (0, 1)] for row in p for half in (0, 1)]
    m = subtracted(rows) if stale else [window.maximum(one) for one in rows]
    return _by_half(m), _by_half([window.total(one) for one in rows])


def _by_half(values: Sequence[Value]) -> list[list[Value]]:
    return [list(values[place : place + 2]) for place in range(0, len(values), 2)]


def _halves(registers: Sequence[Value], dtype: str) -> list[Array]:
    """The four elements of an accumulator of P as the tensor cores take them, float32."""
    opened = [value.halves(f"{dtype}x2").astype(np.float32) for value in registers]
    return [pair[..., odd] for pair in opened for odd in (0, 1)]


def _p16_makers(packed: Sequence[Sequence[Sequence[Value]]]) -> Mapping[tuple[int, int, int], Instruction]:
    """The instruction behind each element of P in 16 bits: two share a register."""
    return {
        (m, n, 2 * half + odd): value.event.instruction
        for m, row in enumerate(packed)
        for n, both in enumerate(row)
        for half, value in enumerate(both)
        if value.event is not None
        for odd in (0, 1)
    }


def _like(shape: Sequence[Sequence[Sequence[Value]]], values: Sequence[Value]) -> list[list[list[Value]]]:
    rest = iter(values)
    return [[[next(rest) for _ in four] for four in row] for row in shape]


def _matrix(values: Sequence[Sequence[Sequence[Value]]], geometry: Geometry) -> Held:
    registers: Fragments = [[[one.as_type("f32") for one in four] for four in row] for row in values]
    makers = {
        (m, n, element): one.event.instruction
        for m, row in enumerate(values)
        for n, four in enumerate(row)
        for element, one in enumerate(four)
        if one.event is not None
    }
    return Held(matrix(registers, geometry), makers)


def _rows(values: Sequence[Sequence[Value]], geometry: Geometry) -> Held:
    makers = {
        (m, 0, 2 * half): one.event.instruction
        for m, both in enumerate(values)
        for half, one in enumerate(both)
        if one.event is not None
    }
    return Held(statistics([[one.as_type("f32") for one in both] for both in values], geometry), makers)
