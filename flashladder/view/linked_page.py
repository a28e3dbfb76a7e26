"""``--page``: CUDA, PTX and machine code of kernels side by side in one HTML file, with linked lines.

The file holds the texts as JSON, of which its script makes rows. Its content policy allows this script alone, by its
digest, and no requests. With more than two kernels the reader chooses one or two. ``results/report/code.html`` holds
the ladder.

Run: ``invoke sass 8 --page build/8.html``, ``invoke diff 8 9 --page build/8-9.html``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, groupby
import json
from pathlib import Path
import re
from typing import Any

from markupsafe import Markup

from flashladder.files import deflated, inflated
from flashladder.machine_code.sass import LONE_OPCODES
from flashladder.report.book import in_script
from flashladder.report.tables import environment
from flashladder.view.linked import Linked, Place

TEMPLATES = Path(__file__).with_name("templates")
TEXTS = {"cuda": "CUDA", "ptx": "PTX", "sass": "Machine code"}
BOOK = "The ladder, line by line"
SIDES = 2  # kernels that fit beside each other
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def page(kernels: Sequence[Linked]) -> bytes:
    """The page of one or more kernels; two begin without their PTX, as six columns are too narrow."""
    names = {kernel.key: f"Iteration {kernel.key}" for kernel in kernels}
    whole = environment(TEMPLATES).get_template("linked.html.j2").render(
        title=BOOK if len(kernels) > SIDES else f"Iteration {' and iteration '.join(kernel.key for kernel in kernels)}",
        slots=["Kernel", "beside it"][: min(SIDES, len(kernels))],
        choices=names.items() if len(kernels) > SIDES else (),
        texts=TEXTS.items(),
        shown=[name for name in TEXTS if len(kernels) != SIDES or name != "ptx"],
        data=Markup(in_script(document(kernels))),  # noqa: S704  # JSON that cannot end its element
    )  # fmt: skip
    return whole.encode()


def document(kernels: Sequence[Linked]) -> dict[str, Any]:
    """The input of the script.

    Returns:
        ``files``: (name, lines) of each CUDA file; ``lone``: opcodes that are their own class; ``texts``: titles of the
        columns; ``kernels``: the facts of each, and its ``data``. For more than two kernels ``files`` and ``data`` are
        deflated JSON in base64.
    """
    files: dict[tuple[str, tuple[str, ...]], int] = {}

    def form(value: Any) -> Any:
        return deflated(json.dumps(value, separators=(",", ":"))) if len(kernels) > SIDES else value

    return {
        "kernels": [
            {
                "key": kernel.key,
                "title": f"Iteration {kernel.key}",
                "config": kernel.config,
                "arch": kernel.arch,
                "ptx": len(kernel.ptx),
                "lost": len(kernel.ptx) - len(kernel.became),
                "sass": len(kernel.made_from),
                "loop": len(kernel.main_loop),
                "sha256": dict(kernel.digests),
                "data": form(_texts(kernel, files)),
            }
            for kernel in kernels
        ],
        "files": form([[name, list(lines)] for name, lines in files]),
        "lone": sorted(LONE_OPCODES),
        "texts": TEXTS,
    }


def frame(page: bytes) -> str:
    """A page without the input of its script: markup, style and script."""
    return DATA.sub("", page.decode("utf-8"), count=1)


def read_document(page: bytes) -> dict[str, Any]:
    """The input of a page's script, unpacked; raises `ValueError` if `page` has none."""
    found = DATA.search(page.decode("utf-8"))
    if found is None:
        raise ValueError("no data of a linked view")
    data = json.loads(found[1])
    for one in (data, *data["kernels"]):
        for name in ("files", "data"):
            if isinstance(one.get(name), str):
                one[name] = json.loads(inflated(one[name]))
    return dict(data)


def _texts(kernel: Linked, files: dict[tuple[str, tuple[str, ...]], int]) -> dict[str, Any]:
    """The texts of a kernel and their links; adds new files to `files`, which maps (name, lines) to a number.

    Returns:
        numbers of its ``files``; ``chains`` of (file, line), innermost first; ``ptx`` as (line, chain, text, label);
        ``sass`` as (index of its PTX or -1, text); ``blocks`` as (first, label, region, successors); ``loop``: ranges
        of the main loop.
    """
    numbers = {name: files.setdefault((name, kernel.sources.get(name, ())), len(files)) for name in kernel.files}
    chains: dict[tuple[Place, ...], int] = {}
    ptx = [[row.line, chains.setdefault(row.chain, len(chains)), row.text, row.label] for row in kernel.ptx]
    instructions, flow = kernel.sass.instructions, kernel.regions.flow
    blocks = zip(flow.blocks, kernel.regions.names, flow.successors, strict=True)
    counter = count()
    runs = [list(run) for _, run in groupby(sorted(kernel.main_loop), key=lambda index: index - next(counter))]
    return {
        "files": list(numbers.values()),
        "chains": [[[numbers[place.file], place.line] for place in chain] for chain in chains],
        "ptx": [row if row[-1] else row[:-1] for row in ptx],
        "sass": [[-1 if o is None else o, str(one)] for o, one in zip(kernel.made_from, instructions, strict=True)],
        "blocks": [[block.begin, block.label, region, list(after)] for block, region, after in blocks],
        "loop": [[run[0], run[-1]] for run in runs],
    }
