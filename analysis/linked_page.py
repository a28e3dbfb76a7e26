"""Question: which machine code did each CUDA line of the ladder become? Writes ``results/report/code.html``.

Why committed: the report's page leads to it, and whoever reads that has no compiler. It holds every iteration's kernel
at the A100's configuration for sm_80; the report refuses it when its digests are no longer those of the locks.

Run: ``python analysis/linked_page.py``; ``--check`` compares texts and lines with those of kernels compiled now, exit
code 1 when stale. A page of any kernel: ``invoke sass 8 --page build/8.html``.
"""

from __future__ import annotations

from collections.abc import Sequence

from flashladder.arguments import Parser
from flashladder.errors import CheckFailed, one_line_errors
from flashladder.files import relative, write_atomic
from flashladder.ladder.iteration import load_all
from flashladder.names import DEFAULT_ARCH, PUBLISHED_GPU
from flashladder.paths import RESULTS
from flashladder.view.linked import Linked, linked
from flashladder.view.linked_page import frame, page, read_document

PAGE = RESULTS / "report" / "code.html"
PROGRAM = "python analysis/linked_page.py"


def kernels() -> list[Linked]:
    """Every kernel of the page that is made for its architecture."""
    steps = [step for step in load_all() if DEFAULT_ARCH in step.family.targets.arches]
    return [linked(step, step.configs[PUBLISHED_GPU], DEFAULT_ARCH) for step in steps]


def main(argv: Sequence[str] | None = None) -> int:
    """Writes or compares the page."""
    parser = Parser(prog=PROGRAM, description="Writes the linked view of the ladder.")
    parser.add_argument("--check", action="store_true", help="compare with the committed page, write nothing")
    options = parser.parse_args(argv)
    with one_line_errors():
        text = page(kernels())
        found = PAGE.read_bytes() if PAGE.is_file() else b""
        if not options.check:
            print(relative(write_atomic(PAGE, text)))
        elif not found or frame(found) != frame(text) or read_document(found) != read_document(text):
            raise CheckFailed("stale linked view", where=relative(PAGE), hint=f"run: {PROGRAM}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
