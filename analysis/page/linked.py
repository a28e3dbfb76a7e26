"""Question: which part of the kernel is the machine code of the main loop made from, and what did each line become?

Why: a step changes one part of the source; where its instructions went, counts by opcode do not tell. The numbers are
those of ``results/report/code.html``, which shows the three texts with linked lines (``python analysis/linked_page.py``
makes it) and is refused here when its digests are not those of the locks.

Run: ``python analysis/page/linked.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.report.page.alone import alone
from flashladder.report.page.book import Book
from flashladder.report.page.cells import Cell, Column, Table, heat, number
from flashladder.report.page.sections import Content
from flashladder.view.linked_page import read_document

ORDER, TITLE = 55, "CUDA, PTX and machine code"
FILE = "code.html"
FLOOR = "kernels/ptx/"  # one instruction per function: who calls them says more
BODY, OWN = "body", "the compilers' own"


def of_page(book: Book) -> list[dict[str, Any]]:
    """The kernels of the linked view, and its files beside each.

    Raises:
        FlashladderError: it shows other machine code or PTX than is locked.
    """
    path = book.results / "report" / FILE
    if not path.is_file():
        return []
    document = read_document(path.read_bytes())
    for kernel in document["kernels"]:
        lock = book.ladder.locks.get(kernel["arch"])
        entry = lock.iterations.get(int(kernel["key"])) if lock else None
        locked = entry.kernels.get(kernel["config"]) if entry else None
        digests = {"PTX": locked.ptx_sha256, "machine code": locked.text_sha256} if locked else None
        if kernel["sha256"] != digests:
            raise FlashladderError(
                f"the linked view shows another kernel of iteration {kernel['key']} than is locked",
                where=relative(path), hint="run: python analysis/linked_page.py",
            )  # fmt: skip
    return [{**kernel, "names": [name for name, _ in document["files"]]} for kernel in document["kernels"]]


def part(chain: list[tuple[int, int]], names: list[str]) -> str:
    """The part of the kernel that a chain of calls ends in: its concern, or the body that calls the parts."""
    for file, _ in chain:
        folders = names[file].split("/")
        if names[file].startswith("kernels/") and not names[file].startswith(FLOOR):
            return folders[2] if len(folders) > 3 else BODY if "flash_fwd" in folders[-1] else folders[-1]
    return OWN


def by_part(kernel: Mapping[str, Any]) -> Counter[str]:
    """Machine instructions of the main loop by the part that they were made from."""
    data, found = kernel["data"], Counter[str]()
    for first, last in data["loop"]:
        for origin, _ in data["sass"][first : last + 1]:
            chain = data["chains"][data["ptx"][origin][1]] if origin >= 0 else []
            found[part(chain, kernel["names"])] += 1
    return found


def table(kernels: list[dict[str, Any]]) -> Table:
    """Parts by iteration, coloured by share of the row's largest; below them what is not there line by line."""
    counts = [by_part(kernel) for kernel in kernels]
    names = sorted({name for one in counts for name in one}, key=lambda name: (-max(one[name] for one in counts), name))
    rows = [[Cell("total"), *(number(one.total(), 0) for one in counts)]]
    for name in names:
        most = max(one[name] for one in counts)
        heats = [heat(one[name], most) for one in counts]
        rows.append([Cell(name), *(Cell(f"{one[name]:,}", heat=h) for one, h in zip(counts, heats, strict=True))])
    for title, key in (("lines of PTX", "ptx"), ("of them without machine code", "lost"), ("machine code", "sass")):
        rows.append([Cell(f"whole kernel: {title}"), *(number(kernel[key], 0) for kernel in kernels)])
    columns = [Column("made from", "text"), *(Column(kernel["key"]) for kernel in kernels)]
    caption = "sm_80, the A100's configurations: machine instructions of the main loop by the part they were made from"
    return Table("linked-parts", caption, columns, rows)


def content(book: Book) -> Content:
    kernels = of_page(book)
    return {"table": table(kernels) if kernels else None, "keys": [kernel["key"] for kernel in kernels], "file": FILE}


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
