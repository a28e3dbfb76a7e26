"""The order in which basic blocks run: a weak topological one, loops contiguous; see `control` for what it is good for.

Source: F. Bourdoncle, "Efficient chaotic iteration strategies with widenings", 1993; strongly connected components by
Tarjan's algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def execution_order(successors: Sequence[Sequence[int]]) -> list[int]:
    """A weak topological order of the nodes reachable from node 0: loops stay contiguous, their headers first.

    ``~h`` stands for the latch of the loop with header h, behind all other blocks of the loop. A loop that goes back
    from its last block alone has none.
    """
    reachable, stack = {0}, [0]
    while stack:
        for to in successors[stack.pop()]:
            if to not in reachable:
                reachable.add(to)
                stack.append(to)
    order: list[int] = []
    _order_into(sorted(reachable), 0, successors, order)
    return order


def _order_into(nodes: Sequence[int], entry: int, successors: Sequence[Sequence[int]], order: list[int]) -> None:
    inside = set(nodes)
    for component in _components(nodes, entry, successors):
        if len(component) == 1:
            order.append(component[0])
            continue
        members = set(component)
        outside = inside - members
        entered = [node for node in component if node == entry or any(node in successors[old] for old in outside)]
        header = min(entered or component)
        order.append(header)
        rest = [node for node in component if node != header]
        _order_into(rest, min(rest), successors, order)
        if [node for node in component if header in successors[node]] != order[-1:]:
            order.append(~header)


def _components(nodes: Sequence[int], entry: int, successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Strongly connected components of the subgraph, each sorted, in topological order (Tarjan, without recursion)."""
    inside = set(nodes)
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    open_nodes: list[int] = []
    found: list[list[int]] = []
    for root in [entry, *nodes]:
        nothing: Iterator[int] = iter(())
        work = [(root, nothing)] if root in inside and root not in number else []
        while work:
            node, rest = work[-1]
            if node not in number:
                number[node] = low[node] = len(number)
                open_nodes.append(node)
                # Later text first: it is finished first, and so comes later in the order.
                rest = iter(sorted((to for to in successors[node] if to in inside), reverse=True))
                work[-1] = (node, rest)
            for to in rest:
                if to not in number:
                    work.append((to, nothing))
                    break
                if to in open_nodes:
                    low[node] = min(low[node], number[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    cut = open_nodes.index(node)
                    found.append(sorted(open_nodes[cut:]))
                    del open_nodes[cut:]
    return found[::-1]
