"""Dominators and natural loops of a directed graph: nodes are 0, 1, ..., node 0 is where it is entered.

Why: a loop of a program is not a range of addresses, since the assembler moves rare code behind the end and shares
code between paths. The algorithms know nothing of machine code. Dominators are found as by Cooper, Harvey and Kennedy,
"A Simple, Fast Dominance Algorithm" (2001).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Neighbours = Sequence[Sequence[int]]
"""For each node those that its edges lead to, or come from."""


@dataclass(frozen=True)
class Loop:
    """A natural loop: the nodes that reach one of its back edges without leaving through its header.

    Attributes:
        header: the only node through which it is entered.
        nodes: all of it, header included.
        latches: nodes whose edge back to the header closes it.
        parent: header of the next larger loop around it; None for an outermost one.
        depth: 1 for an outermost one.
    """

    header: int
    nodes: frozenset[int]
    latches: tuple[int, ...]
    parent: int | None = None
    depth: int = 1


def reverse_postorder(successors: Neighbours) -> list[int]:
    """The nodes that can be reached from node 0, each before those that it leads to, but for edges of loops."""
    order: list[int] = []
    seen = {0}
    stack = [(0, iter(successors[0]))]
    while stack:
        node, rest = stack[-1]
        fresh = next((target for target in rest if target not in seen), None)
        if fresh is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(fresh)
            stack.append((fresh, iter(successors[fresh])))
    return order[::-1]


def backward(successors: Neighbours) -> tuple[tuple[int, ...], ...]:
    """The same edges from their targets: the predecessors of each node."""
    found: list[list[int]] = [[] for _ in successors]
    for source, targets in enumerate(successors):
        for target in targets:
            found[target].append(source)
    return tuple(map(tuple, found))


def reached(starts: Iterable[int], neighbours: Neighbours, wall: frozenset[int] = frozenset()) -> frozenset[int]:
    """The nodes that edges lead to from `starts`, these included; none beyond the nodes of a `wall`."""
    seen = set(starts)
    todo = list(seen)
    while todo:
        node = todo.pop()
        fresh = [n for n in neighbours[node] if n not in seen] if node not in wall else []
        seen.update(fresh)
        todo.extend(fresh)
    return frozenset(seen)


def immediate_dominators(successors: Neighbours) -> tuple[int | None, ...]:
    """For each node the last one that all paths from node 0 pass before it; None for node 0 and what is not reached."""
    order = reverse_postorder(successors)
    place = {node: i for i, node in enumerate(order)}
    predecessors = backward(successors)
    found: dict[int, int] = {0: 0}

    def common(a: int, b: int) -> int:
        while a != b:
            while place[a] > place[b]:
                a = found[a]
            while place[b] > place[a]:
                b = found[b]
        return a

    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [p for p in predecessors[node] if p in found]
            best = known[0]
            for other in known[1:]:
                best = common(best, other)
            if found.get(node) != best:
                found[node] = best
                changed = True
    return tuple(found[node] if node and node in found else None for node in range(len(successors)))


def dominates(immediate: Sequence[int | None], first: int, second: int) -> bool:
    """Whether every path from node 0 to `second`, which can be reached, passes `first`; a node dominates itself."""
    node: int | None = second
    while node is not None and node != first:
        node = immediate[node]
    return node == first


def natural_loops(successors: Neighbours, immediate: Sequence[int | None]) -> tuple[Loop, ...]:
    """Every natural loop, in order of its header; back edges to one header make one loop."""
    alive = reached([0], successors)
    latches: dict[int, list[int]] = {}
    for source in sorted(alive):
        for target in successors[source]:
            if dominates(immediate, target, source):
                latches.setdefault(target, []).append(source)
    predecessors = [tuple(p for p in some if p in alive) for some in backward(successors)]
    bodies = {header: reached([header, *own], predecessors, frozenset({header})) for header, own in latches.items()}
    loops = []
    for header in sorted(bodies):
        around = [other for other, body in bodies.items() if other != header and header in body]
        parent = min(around, key=lambda other: len(bodies[other]), default=None)
        loops.append(Loop(header, bodies[header], tuple(sorted(latches[header])), parent, 1 + len(around)))
    return tuple(loops)


def is_reducible(successors: Neighbours, immediate: Sequence[int | None]) -> bool:
    """Whether natural loops are all the loops there are: without back edges, no node can be reached from itself."""
    alive = reached([0], successors)
    forward = [
        [target for target in targets if not dominates(immediate, target, source)] if source in alive else []
        for source, targets in enumerate(successors)
    ]
    place = {node: i for i, node in enumerate(reverse_postorder(forward))}
    return all(place[source] < place[target] for source in alive for target in forward[source])
