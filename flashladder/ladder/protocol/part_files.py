"""Which parts a concern has: files whose first line names them.

Why: a family's concerns take the values that lie in its folder below kernels/; a new file is a new value.
Try ``part_names(KERNELS / "ampere" / "layout")``.
"""

from __future__ import annotations

from pathlib import Path
import re

from flashladder.files import BOM, files_in, read_bytes

_HEAD = re.compile(rb"// [^`\r\n]+ `(?P<stem>\w+)` \(iteration (?P<number>\d+)\)")


def part_names(folder: Path) -> tuple[str, ...]:
    """The parts of a concern, in the order in which the ladder meets them.

    Args:
        folder: ``kernels/<family>/<concern>``; a part is a file ``<stem>.cuh`` whose first line names it:
            ``// Layout `xor` (iteration 2): ...``. The rest of it need not be UTF-8 here: whoever compiles or shows a
            part reads its text (`flashladder.ladder.compose`), and names the file. So does an empty file, which is a
            part that was lost: it stands last.

    Raises:
        FlashladderError: a file of that name cannot be read.
    """
    found, empty = [], []
    for path in files_in(folder, "*.cuh"):
        data = read_bytes(path).removeprefix(BOM)
        head = _HEAD.match(data)
        if not data.strip():
            empty.append(path.stem)
        elif head and head["stem"].decode() == path.stem:
            found.append((int(head["number"]), path.stem))
    return (*(stem for _, stem in sorted(found)), *empty)
