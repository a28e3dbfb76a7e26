"""The README.txt of a bundle: what it is, how it is run, what it leaves; plain text, for a person on a node."""

from __future__ import annotations

from collections.abc import Sequence
import textwrap

TEXT = """\
{name}

One file of flashladder, for a machine without network. It needs Linux on x86-64 with glibc 2.28 or newer, Python
{pythons}, and torch 2.10 or newer for that Python; for timings an NVIDIA GPU ({arches}) with a driver for CUDA 13 (580
or newer). It installs nothing: what is in it is checked against MANIFEST.json and unpacked into a folder beside it, and
only that folder and the one that --out names are written.

    python3 {name}.pyz                                  measures: the grid of the GPU here, `cpu` without one
    python3 {name}.pyz sweep --grid smoke --out results
    python3 {name}.pyz sweep --dry-run                  what would be measured, and for how long
    python3 {name}.pyz check 7                          is a kernel right on this GPU?
    python3 {name}.pyz bench 7                          one iteration in turn with FA2
    python3 {name}.pyz doctor                           what this machine can do
    python3 {name}.pyz --into /scratch/me check 7       unpacks elsewhere

A sweep leaves GRID.json.gz in the folder that --out names (default: flashladder-results). That file is all that must be
carried home: `invoke verify GRID.json.gz` there checks it. Run again, a sweep goes on where it stopped.

Grids that run from this bundle: {grids}.
Iterations: {numbers}.
What it is made of, with licences: sbom.cdx.json.
"""


def readme(
    name: str, arches: Sequence[str], pythons: Sequence[str], grids: Sequence[str], numbers: Sequence[int]
) -> str:
    """The text, of lines of at most 120 columns."""
    facts = {
        "name": name, "arches": ", ".join(arches), "pythons": " or ".join(pythons),
        "grids": ", ".join(grids) or "none of the committed ones", "numbers": ", ".join(map(str, numbers)),
    }  # fmt: skip
    lines = TEXT.format(**facts).splitlines()
    return (
        "\n".join(part for line in lines for part in textwrap.wrap(line, 120, subsequent_indent="    ") or [""]) + "\n"
    )
