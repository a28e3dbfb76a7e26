"""The order of loads, tensor instructions and softmax work, in PTX and in machine code.

Some steps change no opcode count, only the order: a double buffer asks for the next fragments before it multiplies the
current ones, and a wgmma runs until somebody waits for its group, so that what stands between the two is hidden. A
group ends with the HGMMA that carries ``gsb0``; ``WARPGROUP.DEPBAR.LE gsb0, N`` waits until N groups are left. ptxas
moves exponentials and conversions over waits without a note: only the machine code shows whether they overlap.

Run: ``invoke sass 24 --order``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import itertools
import re
from typing import NamedTuple

from flashladder.machine_code.ptx import normalise
from flashladder.machine_code.sass import BYTES, Instruction

_REGISTER = re.compile(r"%\w+")
_GROUP = re.compile(r"\{([^{}]*)\}")


def mma_before_use(ptx: str) -> int:
    """For each ``ldmatrix`` the ``mma`` that stand between it and the first one that reads it, summed.

    A load that no ``mma`` reads adds nothing.
    """
    issued, found = 0, 0
    waiting: dict[str, tuple[int, int]] = {}  # register -> its load, and the mma issued before that load
    for load, line in enumerate(_statements(ptx)):
        if line.startswith("ldmatrix."):
            waiting |= dict.fromkeys(_REGISTER.findall(_GROUP.findall(line)[0]), (load, issued))
        elif line.startswith("mma."):
            _, left, right, _ = _GROUP.findall(line)  # results and addends are no fragments of Q, K, V
            read = {waiting[name] for name in _REGISTER.findall(left + right) if name in waiting}
            found += sum(issued - before for _, before in read)
            waiting = {name: load for name, load in waiting.items() if load not in read}
            issued += 1
    return found


def mma_same_a(ptx: str) -> int:
    """The ``mma`` whose A fragment is that of the ``mma`` before it, whatever stands between the two."""
    fragments = [_GROUP.findall(line)[1] for line in _statements(ptx) if line.startswith("mma.")]
    return sum(left == before for before, left in itertools.pairwise(fragments))


def _statements(ptx: str) -> Iterator[str]:
    return (statement.strip().rpartition("\n")[2] for statement in normalise(ptx).split(";"))


def hmma_after_ldsm(instructions: Iterable[Instruction]) -> int:
    """For each ``LDSM`` the ``HMMA`` that stand after it, summed: equal for equal orders of the two."""
    loads, found = 0, 0
    for instruction in instructions:
        loads += instruction.opcode_class == "LDSM"
        found += loads * (instruction.opcode_class == "HMMA")
    return found


WORK = ("MUFU", "F2FP", "FADD")  # exponentials, conversions to 16 bits, row sums
PRODUCT = "HGMMA"
WAIT = "WARPGROUP.DEPBAR"
RARE = (WAIT, "SHFL.", "VOTE.")  # products are waited for, or lanes ask each other
USUAL_PATH = "usual_path"  # the number of its instructions, in claims
Targets = Callable[[Instruction], Sequence[int]]
_LAST_OF_GROUP = re.compile(r"\bgsb0\b")
_LEFT = re.compile(r"gsb0, (0x[0-9a-f]+)")
_SHAPE = re.compile(r"\d+x\d+x\d+")
_EVENTS = (
    (re.compile(r"SYNCS\.PHASECHK\..*TRYWAIT"), "wait for an mbarrier"),
    (re.compile(r"SYNCS\.ARRIVE"), "arrive on an mbarrier"),
    (re.compile(r"BAR\.SYNC|BARRIER\.SYNC"), "wait at a barrier"),
    (re.compile(r"BAR\.ARV|BARRIER\.ARV"), "arrive at a barrier"),
    (re.compile(r"WARPGROUP\.ARRIVE"), "fence before products"),
    (re.compile(r"DEPBAR\.LE"), "wait for copies"),
)


class Stretch(NamedTuple):
    """The instructions from one event to the next."""

    address: int  # of the event; that of the first instruction where the code begins with none
    event: str  # what it is, in words; empty where the code begins with none
    pending: int  # groups of products that may be under way behind it
    work: Mapping[str, int]  # instructions of `WORK` up to the next event, by class


def steady(loop: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """A loop without the blocks that lie apart: later tries of a wait, and warps whose lanes have parted."""
    runs = [list[Instruction]()]
    for one in loop:
        if runs[-1] and one.address != runs[-1][-1].address + BYTES:
            runs.append([])
        runs[-1].append(one)
    heaviest = max(runs, key=_weight)
    return tuple(heaviest)


def _weight(run: Sequence[Instruction]) -> tuple[int, int]:
    return sum(one.opcode_class == PRODUCT for one in run), len(run)


def usual_path(loop: Sequence[Instruction], targets: Targets) -> tuple[Instruction, ...]:
    """A loop as most of its rounds run: the way through `steady` with the fewest of `RARE`, straight on if it is one.

    Args:
        loop: in address order.
        targets: where a branch may go, `flashladder.machine_code.sass.Sass.targets`.
    """
    code = steady(loop)
    places = {one.address: place for place, one in enumerate(code)}
    left, ways = [0] * (len(code) + 1), list[int]()  # from a place to the end: how many of RARE, and where to go first
    for place in reversed(range(len(code))):
        ahead = [places[one] for one in targets(code[place]) if places.get(one, -1) > place]
        onward = [] if ahead and not code[place].predicate else [place + 1]
        ways.append(min((*onward, *ahead), key=lambda one: left[one]))
        left[place] = left[ways[-1]] + code[place].opcode.startswith(RARE)
    path, place = list[Instruction](), 0
    while place < len(code):
        path.append(code[place])
        place = ways[-1 - place]
    return tuple(path)


def stretches(code: Sequence[Instruction]) -> list[Stretch]:
    """A main loop, `steady` or its `usual_path`, as it runs in its second round and later, from event to event."""
    pending, found = _behind(code, 0), []
    for (event, address), own in itertools.groupby(_placed(code), key=lambda item: item[:2]):
        instructions = [one for _, _, one in own]
        pending = _behind(instructions, pending)
        work = Counter(one.opcode_class for one in instructions if one.opcode_class in WORK)
        found.append(Stretch(address, event, pending, work))
    return found


def under_products(instructions: Sequence[Instruction]) -> dict[str, int]:
    """Instructions of each class of `WORK` while a group of products may be under way; empty without such products.

    A listing is gone through twice and its second round counted: what a loop leaves under way covers its beginning.
    """
    if not any(one.opcode_class == PRODUCT for one in instructions):
        return {}
    pending, found = _behind(instructions, 0), dict.fromkeys(WORK, 0)
    for one in instructions:
        pending = _behind([one], pending)
        if pending and one.opcode_class in found:
            found[one.opcode_class] += 1
    return {f"{name.lower()}_under_products": count for name, count in found.items()}


def _behind(instructions: Iterable[Instruction], pending: int) -> int:
    """Groups under way behind instructions that began with `pending` of them."""
    for one in instructions:
        if one.opcode_class == PRODUCT:
            pending += bool(_LAST_OF_GROUP.search(one.operands))
        elif left := _LEFT.search(one.operands) if one.opcode.startswith(WAIT) else None:
            pending = min(pending, int(left[1], 16))
    return pending


def _placed(code: Sequence[Instruction]) -> Iterator[tuple[str, int, Instruction]]:
    """Each instruction with the event before it and that one's address; consecutive products are one event."""
    event, address, products = "", code[0].address if code else 0, 0
    for place, one in enumerate(code):
        if one.opcode_class == PRODUCT:
            if not products:
                address, products, own = one.address, 1, [one for one in code[place:] if one.opcode_class == PRODUCT]
                last = next((n for n, one in enumerate(own, 1) if _LAST_OF_GROUP.search(one.operands)), len(own))
                shape = _SHAPE.search(one.opcode)
                event = f"{last} products {shape[0] if shape else one.opcode}, a group"
            products = 0 if _LAST_OF_GROUP.search(one.operands) else products
        elif text := _text(one):
            event, address, products = text, one.address, 0
        yield event, address, one


def _text(one: Instruction) -> str:
    """An event in words; empty for any other instruction."""
    if one.opcode.startswith(WAIT):
        left = _LEFT.search(one.operands)
        number = int(left[1], 16) if left else 0
        return f"wait until {number} group{'s are' if number != 1 else ' is'} left"
    return next((text for form, text in _EVENTS if form.match(one.opcode)), "")
