"""``invoke sass N --order``: what a main loop waits for, and the softmax's work between the waits.

Why: whether exponentials run under products is decided by their order in the machine code, which ptxas chooses and does
not tell. Each line is an event with the instructions up to the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

from flashladder.columns import hanging, table
from flashladder.errors import FlashladderError
from flashladder.machine_code.order import WORK, steady, stretches, under_products, usual_path
from flashladder.machine_code.sass import Instruction, Sass

APART = "such as later tries of a wait, or the way of parted lanes"
LEGEND = "Behind each event: instructions up to the next one. Groups: of products that may be under way there."


def order(title: str, sass: Sass) -> str:
    """The table of a kernel's main loop, and how much of the work stands under products.

    Raises:
        FlashladderError: nothing in the kernel loops.
    """
    whole = sass.main_loop()
    code = usual_path(whole, sass.targets)
    if not code:
        raise FlashladderError("the kernel has no loop", where=title, expected="a main loop")
    inside = len(steady(whole))
    rare, others = inside - len(code), len(whole) - inside
    rows: list[tuple[str, ...]] = [("at", "event", "groups", *WORK)]
    for one in stretches(code):
        counts = (str(one.counts.get(name, "")) for name in WORK)
        rows.append((f"{one.address:x}", one.event or "the loop begins", str(one.pending or ""), *counts))
    text = "\n".join(table(rows, None, right={0, 2, *range(3, 3 + len(WORK))}))
    size = f"{len(code)} instructions"
    size += f", {rare} of rare blocks that wait for all products" if rare else ""
    size += f"{',' if rare else ''} and {others} apart, {APART}" if others else ""
    head, legend, verdict = hanging("", f"main loop, {size}"), hanging("", LEGEND), hanging("", _verdict(code))
    return f"{title}\n{head}\n\n{text}\n\n{legend}\n{verdict}"


def _verdict(code: Sequence[Instruction]) -> str:
    """How much of the work of a loop stands under products, in a line."""
    under = under_products(code)
    if not under:
        return "No products of a warpgroup (HGMMA) in it: mma are waited for where they stand."
    every = {name: sum(one.opcode_class == name for one in code) for name in WORK}
    parts = [f"{count} of {every[name]} {name}" for name, count in zip(WORK, under.values(), strict=True)]
    return f"Under products: {', '.join(parts)}."
