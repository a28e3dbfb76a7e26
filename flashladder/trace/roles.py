"""What a value of the kernel is: S, m, P, l or O, told by what it was made of and not by its register's name.

A product whose A operand came from `ldmatrix` is S = Q K^T; one whose A operand was computed is O += P V. The two are
chains of mma, one per 16 x 8 accumulator. From the A operand of P V back to `ex2` is P; the maximum that all of a row's
`ex2` depend on is m, or what they subtract where a maximum is kept from block to block; the sum that has taken up most
of them is l. Names, parts and source lines are not looked at, so that a kernel with a mistake in it is read as well as
one without. A form that these rules do not fit is an error.

Fragments are told apart by the operands that they share: all n-tiles of an m-tile have one A, all m-tiles of an n-tile
one B; tiles count in the order of execution, which is that of the source (NVPTX keeps it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from flashladder.errors import FlashladderError
from flashladder.trace.fragments import TILE_K, TILE_N, Geometry
from ptxemu import Event, Value

PRODUCT = "mma.sync.aligned.m16n8k16.row.col.f32."
A, B, C = slice(0, 4), slice(4, 6), slice(6, 10)  # of the registers that it reads
ADDS = ("add", "fma", "sub")
CARRIES = (*ADDS, "mul", "cvt", "selp")  # a sum is still one behind these
MADE_ANEW = ("mma", "ldmatrix", "ld", "cp")  # what they give is not made of what they read, as a search goes

Chain = tuple[Event, ...]
Grid = Sequence[Sequence[Chain]]  # [m-tile][n-tile]


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


@dataclass(frozen=True)
class Products:
    """The mma of one KV block: S's and O's chains by tile."""

    scores: Grid
    output: Grid


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

    def products(self) -> Products:
        """S's and O's accumulators.

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
            chains = self._chains([event for event in all_products if makes_scores(event) is scores])
            grids.append(_grid(chains, g.m_tiles, n_tiles, name))
            lengths = {len(chain) for chain in chains}
            if lengths != {k_tiles}:
                raise UnknownForm(
                    f"{name} is not summed over its k-tiles",
                    chains[0][0],
                    expected=f"{k_tiles} mma",
                    found=sorted(lengths),
                )
        return Products(*grids)

    def _chains(self, products: Iterable[Event]) -> list[Chain]:
        """Products that add to one accumulator, in order; rounding in between does not part them."""
        chains: dict[int, list[Event]] = {}
        for event in products:
            kind = makes_scores(event)
            before = self.ancestors(
                event.sources[6],
                lambda other, kind=kind: other.word == "mma" and makes_scores(other) is kind,  # type: ignore[misc]  # a lambda's default
            )
            chain = chains.pop(before[0].number, None) if len(before) == 1 else None
            chains[event.number] = [*(chain or ()), event]
        return sorted((tuple(chain) for chain in chains.values()), key=lambda chain: chain[0].number)

    def exponentials(self, packed: Value) -> tuple[Value, Value]:
        """The `ex2` behind the low and the high half of a register of P.

        Raises:
            UnknownForm: there are not two.
        """
        event = packed.event
        if event is not None and event.word == "cvt" and len(event.sources) == 2:
            high, low = event.sources  # cvt.rn.f16x2.f32 d, a, b: a is the upper half
            return self._exponential(low, event), self._exponential(high, event)
        found = sorted(self.ancestors(packed, _is_exponential), key=lambda one: one.number)
        if len(found) != 2:
            raise UnknownForm("a register of P without two ex2 behind it", event, found=len(found))
        return found[0].results[0], found[1].results[0]

    def _exponential(self, value: Value, user: Event) -> Value:
        found = self.ancestors(value, _is_exponential)
        if len(found) != 1:
            raise UnknownForm("an element of P without one ex2 behind it", user, found=len(found))
        return found[0].results[0]

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
        marks: dict[int, int] = {}
        maxima: list[Event] = []
        for event in self.events:
            marks[event.number] = 0 if event.word in MADE_ANEW else self._joined(marks, event)
            if event.word == "max":
                marks[event.number] |= 1 << len(maxima)
                maxima.append(event)
        return marks, maxima

    @staticmethod
    def _joined(marks: Mapping[int, int], event: Event) -> int:
        joined = 0
        for source in event.sources:
            if source.event is not None:
                joined |= marks.get(source.event.number, 0)
        return joined

    def total(self, elements: Sequence[Value]) -> Value:
        """The sum that has taken up most of a row's exponentials, with the sum of the blocks before.

        Raises:
            UnknownForm: nothing adds them.
        """
        bits = {one.event.number: 1 << place for place, one in enumerate(elements) if one.event}
        marks: dict[int, int] = {}
        best: Event | None = None
        for event in self.events:
            number = event.number
            marks[number] = bits.get(number) or (self._joined(marks, event) if event.word in CARRIES else 0)
            if event.word in ADDS and marks[number].bit_count() > (marks[best.number].bit_count() if best else 1):
                best = event
        if best is None:
            raise UnknownForm("nothing adds the exponentials of a row", elements[0].event)
        return self._grown(best.results[0])

    def _grown(self, total: Value) -> Value:
        """A sum to which more is added before the lanes of a row exchange it."""
        while True:
            users = self._users(total)
            more = [event for event in users if event.word in ADDS]
            if len(more) != 1 or any(event.word == "shfl" for event in users):
                return total
            total = more[0].results[0]

    def scaled(self, scores: Sequence[Value]) -> list[Value] | None:
        """S times the scale, where the kernel multiplies before it takes the maximum; None where it does not.

        Raises:
            UnknownForm: it multiplies some elements only.
        """
        factors = [self._users(value) for value in scores]
        if sum([one.word for one in users] == ["mul"] for users in factors) * 2 <= len(factors):
            return None
        return [self._multiplied(value) for value in scores]

    def _users(self, value: Value) -> list[Event]:
        return self.consumers.get(id(value), [])

    def _multiplied(self, value: Value) -> Value:
        """The nearest product that a value goes into."""
        work = [value]
        while work:
            one = work.pop(0)
            for user in self._users(one):
                if user.word == "mul":
                    return user.results[0]
                if user.word not in ("max", "ex2", *MADE_ANEW):
                    work.extend(user.results)
        raise UnknownForm("an element of S that is not scaled, where most are", value.event)


def _is_exponential(event: Event) -> bool:
    return event.word == "ex2"


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
