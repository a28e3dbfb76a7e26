"""Control flow: basic blocks, the order in which divergent lanes run them, and where a register dies.

Lanes (of one warp or of different blocks) that stand at different basic blocks wait for each other by one rule: the
pending block that comes first in `Flow.blocks` runs first. The order is a weak topological one (every loop contiguous,
everything that can lead to a block before it, back edges aside), so lanes that diverged meet again at the immediate
post-dominator of the branch at the latest, and lanes that left a loop early wait behind it for the others. A loop that
goes back from several places gets an empty block at its end, the latch, through which all of them pass: lanes that
begin the next round early (``continue``) wait there for the others. The same rule groups all warps of the grid slice
into one NumPy call wherever they agree.

Source: "SIMD re-convergence at thread frontiers" (Diamos et al., MICRO 2011); the order is Bourdoncle's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ptxemu.errors import EmulationError
from ptxemu.syntax.tree import (
    Address,
    Function,
    Instruction,
    Label,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
    kept,
)
from ptxemu.table import CARRY, ROWS


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


ENDS = ("bra", "ret", "exit", "trap", "brkpt")  # first word of opcodes that end a basic block, with barriers
BARRIERS = ("bar", "barrier")
# They stand in a basic block alone, because threads that wait look again.
POLLS = ("mbarrier.try_wait", "mbarrier.test_wait")
WAITS = (*POLLS, "barrier.cluster.wait", "setmaxnreg.inc", "wgmma.fence")


@dataclass(frozen=True)
class Block:
    """A basic block: straight-line code that all its lanes run together.

    Attributes:
        index: its place in `Flow.blocks`, which is its priority: the lowest pending one runs first.
        instructions: everything, the terminator included.
        terminator: the branch, barrier or exit at its end; None where it falls through to the next block.
        target: index of the block that a taken branch goes to, None otherwise.
        following: index of the block after it in the text, of a latch the loop's header; None: the program ends.
        dying: for each instruction, registers that nothing reads after it.
    """

    index: int
    instructions: tuple[Instruction, ...]
    terminator: Instruction | None
    target: int | None
    following: int | None
    dying: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Flow:
    """The blocks of a kernel in execution order, entry first; `peak`: the largest number of registers alive at once."""

    blocks: tuple[Block, ...]
    peak: int

    @cached_property
    def unheard(self) -> frozenset[int]:
        """Polls of mbarriers, by id, whose answer reaches no guard, no store and nothing else but registers."""
        readers: dict[str, list[Instruction]] = {}
        polls = []
        for instruction in (one for block in self.blocks for one in block.instructions):
            if instruction.opcode.startswith(POLLS):
                polls.append(instruction)
            for name in uses_and_defines(instruction)[0]:
                readers.setdefault(name, []).append(instruction)
        found = set()
        for poll in polls:
            names = registers_in(poll.operands[0])
            seen = set(names)
            while names:
                uses = [uses_and_defines(one)[1] for one in readers.get(names.pop(), ()) if one is not poll]
                if not all(uses):
                    break
                new = {name for written in uses for name in written} - seen
                seen |= new
                names += new
            else:
                found.add(id(poll))
        return frozenset(found)

    @cached_property
    def retried(self) -> frozenset[int]:
        """Polls of mbarriers, by id, to which code leads back that changes nothing but registers: asked until true."""
        found = set()
        for block in self.blocks:
            last = block.instructions[-1] if block.instructions else None
            if last is None or not last.opcode.startswith(POLLS):
                continue
            ahead, seen = [block.following], set[int]()
            while ahead:
                index = ahead.pop()
                if index == block.index:
                    found.add(id(last))
                    break
                if index is None or index in seen or not all(map(_only_registers, self.blocks[index].instructions)):
                    continue
                seen.add(index)
                ahead += [self.blocks[index].target, self.blocks[index].following]
        return frozenset(found)


def _only_registers(instruction: Instruction) -> bool:
    row = ROWS.get(instruction.opcode)
    return word(instruction.opcode) in ("bra", "mov", "nanosleep") or (row is not None and row.kind == "lane")


def word(opcode: str) -> str:
    """The part of an opcode before the first dot: ``bar`` of ``bar.sync``."""
    return opcode.partition(".")[0]


def ends_block(instruction: Instruction) -> bool:
    """Whether control may leave, or wait, after this instruction."""
    first = word(instruction.opcode)
    meets = first in BARRIERS and not instruction.opcode.startswith(("bar.warp", "barrier.cluster.arrive"))
    return first in ENDS or meets or waits(instruction.opcode)


def waits(opcode: str) -> bool:
    """Whether threads are suspended at an instruction until a phase completes."""
    return opcode.startswith(WAITS)


def build_flow(function: Function, path: str) -> Flow:
    """Splits a kernel's body into blocks and orders them.

    Fails: (unsupported) a branch to a label that does not exist.
    """
    pieces, labels = _pieces(function)
    if not pieces:
        return Flow((), 0)
    edges = [_edges(piece, index, len(pieces), labels, path) for index, piece in enumerate(pieces)]
    successors = [[to for to in pair if to is not None] for pair in edges]
    order = execution_order(successors)
    place = {old: new for new, old in enumerate(order)}
    outputs = _live_out(pieces, successors, [old for old in order if old >= 0])
    blocks, peak = [], 0
    for new, old in enumerate(order):
        if old < 0:
            blocks.append(Block(new, (), None, None, place[~old], ()))
            continue
        piece = pieces[old]
        dying, most = _deaths(piece, outputs[old])
        peak = max(peak, most)
        target, following = (None if to is None else _through_latch(place, old, to) for to in edges[old])
        terminator = piece[-1] if piece and ends_block(piece[-1]) else None
        blocks.append(Block(new, tuple(piece), terminator, target, following, dying))
    return Flow(tuple(blocks), peak)


def _through_latch(place: Mapping[int, int], old: int, to: int) -> int:
    """Where an edge leads in the order: from within a loop to its header it goes by the latch, if there is one."""
    latch = place.get(~to)
    return latch if latch is not None and place[to] <= place[old] < latch else place[to]


def _pieces(function: Function) -> tuple[list[list[Instruction]], dict[str, int]]:
    """The body cut at labels and after terminators, and the piece at which each label stands."""
    pieces: list[list[Instruction]] = [[]]
    labels: dict[str, int] = {}
    for item in function.body:
        if isinstance(item, Label):
            if pieces[-1]:
                pieces.append([])
            labels[item.name] = len(pieces) - 1
            continue
        if pieces[-1] and waits(item.opcode):
            pieces.append([])
        pieces[-1].append(item)
        if ends_block(item):
            pieces.append([])
    if not pieces[-1] and len(pieces) - 1 not in labels.values():
        pieces.pop()
    return pieces, labels


def _edges(
    piece: Sequence[Instruction], index: int, count: int, labels: Mapping[str, int], path: str
) -> tuple[int | None, int | None]:
    """(piece that a taken branch goes to, piece that follows), None where there is none."""
    following = index + 1 if index + 1 < count else None
    last = piece[-1] if piece else None
    if last is None or not ends_block(last):
        return None, following
    first = word(last.opcode)
    if first == "bra":
        name = last.operands[0] if last.operands else None
        if not isinstance(name, Symbol) or name.name not in labels:
            raise EmulationError("unsupported", "branch to an unknown label", path=path, instruction=last)
        return labels[name.name], following if last.guard else None
    if first in BARRIERS or last.guard or waits(last.opcode):
        return None, following
    return None, None


def registers_in(operand: Operand) -> list[str]:
    """Names of the registers that an operand mentions."""
    if isinstance(operand, Register):
        return [operand.name]
    if isinstance(operand, Negated):
        return [operand.operand.name]
    if isinstance(operand, Address):
        return registers_in(operand.base) + ([] if operand.coordinates is None else registers_in(operand.coordinates))
    if isinstance(operand, Vector):
        return [name for item in operand.items for name in registers_in(item)]
    if isinstance(operand, Pair):
        return registers_in(operand.first) + registers_in(operand.second)
    return []


@kept
def uses_and_defines(instruction: Instruction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(registers read, registers surely written); a guarded write keeps the old value elsewhere: it reads it too.

    The first operand is the result, unless it is an address (``st [a], b``), a barrier's number or a time; a call's
    results are no registers, those of ``wgmma`` are written later.
    """
    row = ROWS.get(instruction.opcode)
    reduces = instruction.opcode.startswith(("bar.red", "barrier.red", "barrier.cta.red"))
    first = instruction.operands[0] if instruction.operands else None
    named = word(instruction.opcode) in (*BARRIERS, "nanosleep", "call", "wgmma")
    no_result = isinstance(first, Address) or (named and not reduces)
    split = 0 if no_result else 1
    written = [name for operand in instruction.operands[:split] for name in registers_in(operand)]
    read = [name for operand in instruction.operands[split:] for name in registers_in(operand)]
    if row is not None and row.reads_carry:
        read.append(CARRY)
    if row is not None and row.writes_carry:
        written.append(CARRY)
    if instruction.guard:
        read.append(instruction.guard.register.name)
        read += written
        written = []
    return tuple(read), tuple(written)


def _live_out(
    pieces: Sequence[Sequence[Instruction]], successors: Sequence[Sequence[int]], order: Sequence[int]
) -> dict[int, set[str]]:
    """Registers that are read after each piece before they are written again (backward data flow to a fixed point)."""
    needs: dict[int, set[str]] = {}
    kills: dict[int, set[str]] = {}
    for index in order:
        need: set[str] = set()
        kill: set[str] = set()
        for instruction in reversed(pieces[index]):
            read, written = uses_and_defines(instruction)
            need.difference_update(written)
            need.update(read)
            kill.update(written)
        needs[index], kills[index] = need, kill
    live_in = {index: set(needs[index]) for index in order}
    live_out: dict[int, set[str]] = {index: set() for index in order}
    changed = True
    while changed:
        changed = False
        for index in reversed(order):
            out = set().union(*(live_in[to] for to in successors[index]))
            if out != live_out[index]:
                live_out[index] = out
                live_in[index] = needs[index] | (out - kills[index])
                changed = True
    return live_out


def _deaths(piece: Sequence[Instruction], live_out: set[str]) -> tuple[tuple[tuple[str, ...], ...], int]:
    """For each instruction the registers that die with it, and the largest number alive at once."""
    alive = set(live_out)
    dying: list[tuple[str, ...]] = []
    peak = len(alive)
    for instruction in reversed(piece):
        read, written = uses_and_defines(instruction)
        dying.append(tuple(sorted({name for name in (*read, *written) if name not in alive})))
        alive.difference_update(written)
        alive.update(read)
        peak = max(peak, len(alive))
    return tuple(reversed(dying)), peak
