"""Loops of a control flow graph: the outermost ones, and within a loop over tiles the loop over blocks.

Instructions are places here, numbered in address order, and branches are edges: what they compute is said by those who
ask. Nothing to run here; `flashladder.machine_code.sass.Sass.main_loop` does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

Graph = Sequence[Sequence[int]]  # where control may go from each place


def outermost(graph: Graph) -> list[list[int]]:
    """Every outermost loop, in address order: the places that can be reached from themselves."""
    backward: dict[int, list[int]] = defaultdict(list)
    for source, targets in enumerate(graph):
        for target in targets:
            backward[target].append(source)
    found: set[frozenset[int]] = set()
    for source, targets in enumerate(graph):
        for target in targets:
            if target <= source:  # a backward branch
                ahead = _reachable(target, graph.__getitem__)
                if source in ahead and target != source:  # BRA to itself is the trap after the end of a kernel
                    found.add(frozenset(ahead & _reachable(source, backward.__getitem__)))
    return [sorted(body) for body in sorted(found, key=min)]


def innermost(graph: Graph, body: Iterable[int], products: Collection[int]) -> list[int]:
    """The loop over blocks in a loop over tiles: the one with a header of its own and the most `products`; else all."""
    places = set(body)

    def weight(loop: Iterable[int]) -> int:
        return sum(place in products for place in loop)

    found = [
        frozenset(_natural(graph, target, source, places))
        for source in places
        for target in graph[source]
        if target <= source and target in places and target != source
    ]
    inner = [loop for loop in found if min(loop) != min(places) and weight(loop)]
    return sorted(max(inner, key=lambda loop: (weight(loop), len(loop)), default=places))


def _natural(graph: Graph, header: int, source: int, places: set[int]) -> set[int]:
    """What reaches a backward branch without its target in between, and the target."""
    before: dict[int, list[int]] = defaultdict(list)
    for one in places - {header}:
        for target in graph[one]:
            before[target].append(one)
    return _reachable(source, lambda place: before[place] if place != header else ()) | {header}


def _reachable(start: int, neighbours: Callable[[int], Sequence[int]]) -> set[int]:
    seen, todo = {start}, [start]
    while todo:
        fresh = [n for n in neighbours(todo.pop()) if n not in seen]
        seen.update(fresh)
        todo.extend(fresh)
    return seen
