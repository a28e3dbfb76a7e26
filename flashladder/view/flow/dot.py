"""The control flow of a kernel as DOT, for Graphviz and whatever else reads it.

Why: large graphs are laid out better by a program made for it; nothing here needs it. Regions are clusters, conditions
stand at their edges, edges back to a loop's header do not pull it down.

Run: ``invoke cfg 16 --dot | dot -Tpdf > cfg.pdf``, where Graphviz is installed.
"""

from __future__ import annotations

from itertools import groupby

from flashladder.view.flow.picture import Node, Picture, Way

_STYLES = {"falls": "", "jumps": "", "branches": "", "diverges": "style=dashed", "calls": "style=dotted"}


def dot(picture: Picture) -> str:
    """The graph in the DOT language; the same kernel always gives the same text."""
    lines = [
        f"digraph {_quoted(picture.title)} {{",
        f"  label={_quoted(picture.title)}; labelloc=t;",
        '  node [shape=box, fontname="monospace", fontsize=10]; edge [fontname="monospace", fontsize=9];',
    ]
    for number, (region, nodes) in enumerate(groupby(picture.nodes, key=lambda node: node.region)):
        lines.append(f"  subgraph cluster_{number} {{ label={_quoted(region)};")
        lines += [f"    {node.name} [label={_quoted(_label(node))}];" for node in nodes]
        lines.append("  }")
    lines += [f"  {node.name} -> {way.target}{_attributes(picture, node, way)};" for node in picture.nodes
              for way in node.ways]  # fmt: skip
    return "\n".join([*lines, "}"])


def _label(node: Node) -> str:
    most = sorted((kind for kind in node.kinds if node.kinds[kind]), key=lambda kind: (-node.kinds[kind], kind))[:4]
    runs = "" if node.runs is None else f" x {node.runs}"
    kinds = ", ".join(f"{node.kinds[kind]:.0f} {kind}" for kind in most)
    return "\n".join([f"{node.name} {node.label}".rstrip(), f"{node.address:#06x}: {node.instructions}{runs}", kinds])


def _attributes(picture: Picture, node: Node, way: Way) -> str:
    back = picture.row[way.target] <= picture.row[node.name]
    parts = [_STYLES[way.kind], f"label={_quoted(way.when)}" if way.when else "", "constraint=false" if back else ""]
    found = ", ".join(part for part in parts if part)
    return f" [{found}]" if found else ""


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
