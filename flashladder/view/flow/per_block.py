"""``invoke cfg N --counts``: opcodes of the prologue, the peeled block, one round of the main loop and the epilogue.

Why: counts of a whole kernel (``invoke sass N --counts``) say little about its speed: a loop's instructions run for
each KV block, the others once. Classes stand under what they are for, with the sum of each kind.

Run: ``python -m flashladder.view.flow 16 --counts``.
"""

from __future__ import annotations

import textwrap

from flashladder.columns import table
from flashladder.machine_code.opcodes import KINDS, by_kind, kind_of
from flashladder.view.flow.outline import number
from flashladder.view.flow.picture import Picture, by_region


def per_block(picture: Picture, limit: int = 80) -> str:
    """The table of one kernel: kinds with their classes, the most frequent first; of one warp, or of the listing.

    Args:
        picture: the kernel.
        limit: columns of the title.
    """
    columns = by_region(picture)
    kinds = {name: by_kind(counts) for name, counts in columns.items()}
    rows = [["", *columns], ["total", *(number(sum(counts.values())) for counts in columns.values())]]
    present = sorted({name for counts in columns.values() for name in counts if counts[name]})
    for kind in KINDS:
        names = [name for name in present if kind_of(name) == kind]
        if names:
            rows.append([kind, *(number(found[kind]) for found in kinds.values())])
        names.sort(key=lambda name: -columns["all"].get(name, 0))
        rows += [[f"  {name}", *(number(counts.get(name, 0)) for counts in columns.values())] for name in names]
    return "\n".join([*textwrap.wrap(picture.title, limit), *table(rows, None, right=range(1, len(rows[0])))])
