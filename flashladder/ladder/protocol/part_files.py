"""Which parts a concern has: files whose first line names them.

Why: a family's concerns take the values that lie in its folder below kernels/; a new file is a new value.
Try ``part_names(KERNELS / "ampere" / "layout")``.
"""

from __future__ import annotations

from pathlib import Path
import re

_HEAD = re.compile(r"// [\w ]+ `(?P<stem>\w+)` \(iteration (?P<number>\d+)\)")


def part_names(folder: Path) -> tuple[str, ...]:
    """The parts of a concern, in the order in which the ladder meets them.

    Args:
        folder: ``kernels/<family>/<concern>``; a part is a file ``<stem>.cuh`` whose first line names it:
            ``// Layout `xor` (iteration 2): ...``.
    """
    found = []
    for path in folder.glob("*.cuh"):
        with path.open(encoding="utf-8") as file:
            head = _HEAD.match(file.readline())
        if head and head["stem"] == path.stem:
            found.append((int(head["number"]), path.stem))
    return tuple(stem for _, stem in sorted(found))
