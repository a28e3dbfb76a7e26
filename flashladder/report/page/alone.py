"""One section as a page of its own: what a section's script does when it is run.

Why: whoever writes a section looks at it alone, in a second. Run: ``python analysis/page/progression.py --out FILE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flashladder.arguments import Parser, named
from flashladder.errors import one_line_errors
from flashladder.files import output_file, relative, write_atomic
from flashladder.paths import BUILD
from flashladder.report.data import collect
from flashladder.report.page.frame import page
from flashladder.report.page.sections import load


def alone(script: str, argv: Sequence[str] | None = None) -> int:
    """Writes the section of a script as a page of its own: what ``python analysis/page/NAME.py`` does."""
    path = Path(script).resolve()
    parser = Parser(
        prog=f"python analysis/page/{path.name}",
        description=f"Writes the section {path.stem} of the page as a page of its own.",
        epilog=f"example: python analysis/page/{path.name} --out /tmp/{path.stem}.html",
    )
    default = BUILD / "report" / f"{path.stem}.html"
    parser.add_argument("--out", metavar="FILE", type=named, default=default, help=f"default: {relative(default)}")
    options = parser.parse_args(argv)
    with one_line_errors():
        out = output_file(str(options.out), ".html")
        print(write_atomic(out, page(collect(), sections=[load(path)])))
    return 0
