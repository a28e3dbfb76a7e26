"""The control flow of a kernel as SVG: one block under the other, edges in lanes beside them.

Why: a machine without Graphviz draws it too, and the same kernel always gives the same file. Blocks stand in the order
in which they run; a step to the next one is a short arrow, what skips blocks runs down on the right, what goes back to
a loop's header runs up on the left. The deeper the colour, the larger a block's share of the executed instructions.

Run: ``invoke cfg 16 --svg > cfg.svg``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from flashladder.machine_code.flow import EPILOGUE, LAST, LOOP, PEELED, PROLOGUE
from flashladder.view.flow.picture import Node, Picture, Way

WIDTH, HEIGHT, GAP, HEAD, LANE, MARGIN = 420, 38, 18, 24, 16, 16  # pixels
TINTS = {PROLOGUE: "#f1f3f5", PEELED: "#fff3d6", LOOP: "#e3f1e5", LAST: "#fff3d6", EPILOGUE: "#e8eaf6"}
DASHES = {"diverges": ' stroke-dasharray="5 3"', "calls": ' stroke-dasharray="1 3"'}
STYLE = (
    "text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#1b1f24}"
    ".small{font-size:10px;fill:#57606a}.box{stroke:#57606a}"
    "path{fill:none;stroke:#57606a;stroke-width:1.2}.back{stroke:#1a7f37;stroke-width:1.8}"
)
ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#57606a;stroke:none"/>'
    "</marker></defs>"
)


@dataclass(frozen=True)
class Edge:
    """An edge that is drawn beside the blocks: rows of its ends from the top, and its lane from the inside."""

    source: int
    target: int
    way: Way
    lane: int = 0

    @property
    def goes_back(self) -> bool:
        """Whether it closes a loop."""
        return self.target <= self.source


def svg(picture: Picture) -> str:
    """The drawing as a whole file."""
    beside = laid_out(picture)
    left, right = (
        max((edge.lane + 1 for edge in beside if edge.goes_back == side), default=0) for side in (True, False)
    )
    x = MARGIN + left * LANE + 10
    width = x + WIDTH + right * LANE + 2 * MARGIN
    tops = _tops(picture)
    height = tops[-1] + HEIGHT + MARGIN if tops else HEAD
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(picture.title)}</title><style>{STYLE}</style>{ARROW}",
        f'<rect {size} fill="#fff"/>',
        *_title(picture.title, width),
        *_bands(picture, tops, width),
        *(line for node, top in zip(picture.nodes, tops, strict=True) for line in _box(picture, node, x, top)),
        *_steps(picture, tops, x),
        *(line for edge in beside for line in _beside(edge, tops, x)),
    ]
    return "\n".join([*filter(None, parts), "</svg>"])


def _title(title: str, width: int) -> Iterator[str]:
    """On two lines: what it is, and the configuration behind its colon."""
    head, _, rest = title.partition(": ")
    for text, y in ((head, MARGIN + 2), (rest, MARGIN + 16)):
        room = f' textLength="{width - 2 * MARGIN}" lengthAdjust="spacingAndGlyphs"' if len(text) * 6.6 > width else ""
        yield f'<text x="{MARGIN}" y="{y}"{room}>{escape(text)}</text>' if text else ""


def laid_out(picture: Picture) -> list[Edge]:
    """Edges that are no step to the next block, each in the innermost lane that is free; short ones first."""
    found = [
        Edge(row, picture.row[way.target], way)
        for row, node in enumerate(picture.nodes)
        for way in node.ways
        if picture.row[way.target] != row + 1
    ]
    placed: list[Edge] = []
    for edge in sorted(found, key=lambda one: (abs(one.target - one.source), one.source, one.target)):
        taken = {one.lane for one in placed if one.goes_back == edge.goes_back and _overlap(one, edge)}
        lane = next(lane for lane in range(len(found)) if lane not in taken)
        placed.append(Edge(edge.source, edge.target, edge.way, lane))
    return placed


def _overlap(one: Edge, other: Edge) -> bool:
    (a, b), (c, d) = (sorted((edge.source, edge.target)) for edge in (one, other))
    return a <= d and c <= b


def _tops(picture: Picture) -> list[int]:
    """Where each block begins; a region's name stands over its first one."""
    tops, y, region = [], MARGIN + HEAD, ""
    for node in picture.nodes:
        y += HEAD if node.region != region else 0
        region = node.region
        tops.append(y)
        y += HEIGHT + GAP
    return tops


def _bands(picture: Picture, tops: list[int], width: int) -> Iterator[str]:
    """A ground behind each region, with its name."""
    for region in dict.fromkeys(node.region for node in picture.nodes):
        rows = [row for row, node in enumerate(picture.nodes) if node.region == region]
        top, size = tops[rows[0]] - HEAD + 3, sum(picture.nodes[row].instructions for row in rows)
        bottom = tops[rows[-1]] + HEIGHT + GAP // 2 - 2
        yield f'<rect x="4" y="{top}" width="{width - 8}" height="{bottom - top}" rx="4" fill="{TINTS[region]}"/>'
        yield f'<text x="12" y="{top + 14}">{region}: {size} instructions</text>'


def _box(picture: Picture, node: Node, x: int, top: int) -> Iterator[str]:
    share = _shares(picture)[node.name]
    yield f'<rect class="box" x="{x}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="3" fill="{_shade(share)}"/>'
    runs = "" if node.runs is None else f" × {node.runs}"
    yield f'<text x="{x + 8}" y="{top + 15}">{node.name} {escape(node.label)}</text>'
    facts = f"{node.address:#06x} · {node.instructions}{runs}"
    yield f'<text x="{x + WIDTH - 8}" y="{top + 15}" text-anchor="end">{facts}</text>'
    most = sorted((kind for kind in node.kinds if node.kinds[kind]), key=lambda kind: (-node.kinds[kind], kind))[:4]
    kinds = ", ".join(f"{node.kinds[kind]:.0f} {kind}" for kind in most)
    yield f'<text class="small" x="{x + 8}" y="{top + 30}">{kinds}</text>'
    away = [way for way in node.ways if way.when and way.kind != "falls"]
    text = ", ".join(f"{way.when} → {way.target}" for way in away)
    yield (
        f'<text class="small" x="{x + WIDTH - 8}" y="{top + 30}" text-anchor="end">{escape(text)}</text>'
        if text
        else ""
    )


def _shares(picture: Picture) -> Mapping[str, float]:
    """Each block's part of the executed instructions; of the listing, where nobody knows what runs."""
    weights = {node.name: node.instructions * (1 if node.runs is None else node.runs) for node in picture.nodes}
    return {name: weight / (sum(weights.values()) or 1) for name, weight in weights.items()}


def _shade(share: float) -> str:
    """White to orange."""
    red, green, blue = (round(255 - share * (255 - end)) for end in (247, 147, 60))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _steps(picture: Picture, tops: list[int], x: int) -> Iterator[str]:
    """Arrows to the next block."""
    middle = x + WIDTH // 2
    for row, node in enumerate(picture.nodes):
        for way in node.ways:
            if picture.row[way.target] == row + 1:
                yield f'<path d="M{middle} {tops[row] + HEIGHT}V{tops[row + 1]}" marker-end="url(#arrow)"/>'


def _beside(edge: Edge, tops: list[int], x: int) -> Iterator[str]:
    """An edge in its lane: out of the lower half of a block, into the upper half of another."""
    side = x if edge.goes_back else x + WIDTH
    lane = x - 8 - edge.lane * LANE if edge.goes_back else x + WIDTH + 10 + edge.lane * LANE
    begin, end = tops[edge.source] + 27, tops[edge.target] + 11
    kind = ' class="back"' if edge.goes_back else ""
    dashes = DASHES.get(edge.way.kind, "")
    yield f'<path{kind} d="M{side} {begin}H{lane}V{end}H{side}" marker-end="url(#arrow)"{dashes}/>'
