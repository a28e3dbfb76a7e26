"""Small sections and results for tests of the page; never committed, always in a tmp_path."""

from __future__ import annotations

from pathlib import Path

TOY = '''"""A toy."""
from flashladder.report.page.cells import Cell, Column, Table
from flashladder.report.page.figure import draw

ORDER, TITLE = {order}, "{title}"


def content(book):
    columns = [Column("name", "text"), Column("value")]
    table = Table("toy", "A caption", columns, [[Cell("one"), Cell("1.0", sort=1.0)]])
    record = book.records.fact(book.results / "published" / "progression.yaml", "A fact", {{"what": "that"}})

    def fill(plot):
        plot.dots([1, 2], [3, 4], [plot.url(record, "first"), plot.url("", "second")], 0)

    panel = draw("toy-panel", "A panel", "It rises.", fill)
    return {{"table": table, "panels": [panel], "name": "<b>bold</b> & co"}}
'''
TEMPLATE = """{% import "macros.html.j2" as set %}
{{ set.panels(panels, plot) }}
{{ set.table(table) }}
<p class="toy">{{ name }}</p>
"""


def add(
    folder: Path, name: str = "toy", title: str = "A toy", order: float = 5, script: str = "", template: str = ""
) -> Path:
    """Writes the two files of a section; returns the script."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(script or TOY.format(order=order, title=title), encoding="utf-8")
    (folder / f"{name}.html.j2").write_text(template or TEMPLATE, encoding="utf-8")
    return path
