"""The latency chain of one warp: the longest path of dependences through a KV block.

Why: a warp cannot be faster than this, whatever the pipes can do; other warps have to fill what it leaves of them. A
path goes from the instruction that writes a register to those that read it, and over barriers: what stands behind one
starts when all before it is done. It is measured over several rounds of the loop, so that what one KV block hands to
the next counts once.

Try ``chain(kernel.block, steps)``.
"""

from __future__ import annotations

from collections.abc import Sequence
import re

from flashladder.explain.steps import Step
from flashladder.machine_code.executions import operands, written_by
from flashladder.machine_code.sass import Instruction

ROUNDS = 3  # of which the first fills the registers
FIXED = 4.0  # clocks from an instruction of a fixed-latency pipe to one that reads its result, as ptxas spaces them
_NAMES = re.compile(r"\b(?P<bank>U?[RP])(?P<number>\d+)")


def chain(block: Sequence[Instruction], steps: Sequence[Step]) -> float:
    """Clocks of the longest path of dependences through one KV block.

    Args:
        block: instructions of a round of the loop.
        steps: the same ones.
    """
    there: dict[str, float] = {}
    floor = last = 0.0
    ends = []
    for _ in range(ROUNDS):
        for one, step in zip(block, steps, strict=True):
            start = max([floor, *(there.get(name, 0.0) for name in _reads(one, step))])
            done = start + _latency(step)
            if step.kind in ("barrier", "wait"):
                floor = done = max(last, done)
            last = max(last, done)
            for name in written_by(one, operands(one)) or ():
                there[name] = done
            for register in step.makes:
                there[f"R{register}"] = done
        ends.append(last)
    return (ends[-1] - ends[0]) / (ROUNDS - 1)


def _latency(step: Step) -> float:
    """Clocks to the result where nothing else is in the way."""
    if step.kind == "mma":
        return step.latency
    if step.kind in ("shared", "copy") or step.written is not None:
        return step.latency + step.returns
    return FIXED


def _reads(one: Instruction, step: Step) -> list[str]:
    """Names of registers and predicates that it reads, perhaps a few more."""
    texts = f"{one.predicate} {one.operands if step.kind in ('copy', 'wait') else one.operands.partition(',')[2]}"
    return [match["bank"] + match["number"] for match in _NAMES.finditer(texts)] + [f"R{n}" for n in step.after]
