"""The order of loads, tensor instructions and softmax work, in PTX and in machine code.

Some steps change no opcode count, only the order. A double buffer loads the next fragments before it multiplies the
current ones. A wgmma runs until a wait for its group, so that the instructions between the two are hidden. A group ends
with the HGMMA that carries ``gsb0``; ``WARPGROUP.DEPBAR.LE gsb0, N`` waits until N groups are left. ptxas moves
exponentials and conversions across waits without a note: only the machine code shows whether they overlap.

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
    """The number of ``mma`` between each ``ldmatrix`` and its first reader, summed; 0 for a load without a reader."""
    issued, found = 0, 0
    waiting: dict[str, tuple[int, int]] = {}  # register -> its load, and the mma issued before that load
    for load, line in enumerate(_statements(ptx)):
        if line.startswith("ldmatrix."):
            waiting |= dict.fromkeys(_REGISTER.findall(_GROUP.findall(line)[0]), (load, issued))
        elif line.startswith("mma."):
            _, left, right, _ = _GROUP.findall(line)  # only A and B are fragments of Q, K and V
            read = {waiting[name] for name in _REGISTER.findall(left + right) if name in waiting}
            found += sum(issued - before for _, before in read)
            waiting = {name: load for name, load in waiting.items() if load not in read}
            issued += 1
    return found


def mma_same_a(ptx: str) -> int:
    """The number of ``mma`` with the same A fragment as the previous ``mma``."""
    fragments = [_GROUP.findall(line)[1] for line in _statements(ptx) if line.startswith("mma.")]
    return sum(left == before for before, left in itertools.pairwise(fragments))


def _statements(ptx: str) -> Iterator[str]:
    return (statement.strip().rpartition("\n")[2] for statement in normalise(ptx).split(";"))


def hmma_after_ldsm(instructions: Iterable[Instruction]) -> int:
    """The number of ``HMMA`` after each ``LDSM``, summed: equal for equal orders of the two."""
    loads, found = 0, 0
    for instruction in instructions:
        loads += instruction.opcode_class == "LDSM"
        found += loads * (instruction.opcode_class == "HMMA")
    return found


WORK = ("MUFU", "F2FP", "FADD")  # exponentials, conversions to 16 bits, row sums
PRODUCT = "HGMMA"
WAIT = "WARPGROUP.DEPBAR"
RARE = (WAIT, "SHFL.", "VOTE.", "FSEL")  # waits for products, exchanges between lanes, masks
USUAL_PATH = "usual_path"  # the claims' name for its number of instructions
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

    address: int  # of the event, or of the first instruction if the code begins without one
    event: str  # in words; empty if the code begins without one
    pending: int  # groups of products that may be in flight at the end of the stretch
    work: Mapping[str, int]  # instructions of `WORK` up to the next event, by class


def steady(loop: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """A loop without its out-of-line blocks (retries of a wait, diverged warps): the run with the most products."""
    runs = itertools.groupby(enumerate(loop), lambda item: item[1].address - BYTES * item[0])
    blocks = [tuple(one for _, one in run) for _, run in runs]
    return max(blocks, key=lambda run: (sum(one.opcode_class == PRODUCT for one in run), len(run)), default=())


def usual_path(loop: Sequence[Instruction], targets: Callable[[Instruction], Sequence[int]]) -> tuple[Instruction, ...]:
    """The path through `steady` with the fewest `RARE` instructions, which most rounds take; a tie falls through.

    `targets` says where a branch may go, as `flashladder.machine_code.sass.Sass.targets` does.
    """
    code = steady(loop)
    places = {one.address: place for place, one in enumerate(code)}
    n_rare, following = [0] * (len(code) + 1), [0] * len(code)  # from a place to the end; the next place on the path
    for place in reversed(range(len(code))):
        ahead = [places[one] for one in targets(code[place]) if places.get(one, -1) > place]
        onward = [] if ahead and not code[place].predicate else [place + 1]
        following[place] = min((*onward, *ahead), key=lambda one: n_rare[one])
        n_rare[place] = n_rare[following[place]] + code[place].opcode.startswith(RARE)
    path, place = list[Instruction](), 0
    while place < len(code):
        path.append(code[place])
        place = following[place]
    return tuple(path)


def stretches(code: Sequence[Instruction]) -> list[Stretch]:
    """The events of a main loop (`steady` or its `usual_path`) in its second round."""
    pending, found = _pending_after(code, 0), []
    for (event, address), group in itertools.groupby(_placed(code), key=lambda item: item[:2]):
        instructions = [one for _, _, one in group]
        pending = _pending_after(instructions, pending)
        work = Counter(one.opcode_class for one in instructions if one.opcode_class in WORK)
        found.append(Stretch(address, event, pending, work))
    return found


def under_products(instructions: Sequence[Instruction]) -> dict[str, int]:
    """Instructions of each class of `WORK` while a group of products may be in flight; empty without such products.

    This counts the second round of a loop: products that a round leaves in flight cover the beginning of the next.
    """
    if not any(one.opcode_class == PRODUCT for one in instructions):
        return {}
    pending, found = _pending_after(instructions, 0), dict.fromkeys(WORK, 0)
    for one in instructions:
        pending = _pending_after([one], pending)
        if pending and one.opcode_class in found:
            found[one.opcode_class] += 1
    return {f"{name.lower()}_under_products": count for name, count in found.items()}


def _pending_after(instructions: Iterable[Instruction], pending: int) -> int:
    """Groups in flight after some instructions that began with `pending` groups."""
    for one in instructions:
        if one.opcode_class == PRODUCT:
            pending += bool(_LAST_OF_GROUP.search(one.operands))
        elif left := _LEFT.search(one.operands) if one.opcode.startswith(WAIT) else None:
            pending = min(pending, int(left[1], 16))
    return pending


def _placed(code: Sequence[Instruction]) -> Iterator[tuple[str, int, Instruction]]:
    """Each instruction with the last event and its address; consecutive products are one event."""
    event, address, products = "", code[0].address if code else 0, 0
    for place, one in enumerate(code):
        if one.opcode_class == PRODUCT:
            if not products:
                address, products, rest = one.address, 1, [one for one in code[place:] if one.opcode_class == PRODUCT]
                last = next((n for n, one in enumerate(rest, 1) if _LAST_OF_GROUP.search(one.operands)), len(rest))
                shape = _SHAPE.search(one.opcode)
                event = f"{last} products {shape[0] if shape else one.opcode}, a group"
            products = 0 if _LAST_OF_GROUP.search(one.operands) else products
        elif text := _event(one):
            event, address, products = text, one.address, 0
        yield event, address, one


def _event(one: Instruction) -> str:
    """An event in words; empty for other instructions."""
    if one.opcode.startswith(WAIT):
        left = _LEFT.search(one.operands)
        number = int(left[1], 16) if left else 0
        return f"wait until {number} group{'s are' if number != 1 else ' is'} left"
    return next((text for form, text in _EVENTS if form.match(one.opcode)), "")
