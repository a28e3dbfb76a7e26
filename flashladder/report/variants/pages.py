"""Writes tables and plot of a packed sweep of ablations or toolchains: what ``analysis/ablation.py`` and its like call.

Nothing to run here: ``python analysis/ablation.py FILE``, ``python analysis/toolchain.py FILE``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flashladder.arguments import Parser, named, result_file
from flashladder.files import write_atomic
from flashladder.names import HEADLINE_LENGTH
from flashladder.paths import BUILD
from flashladder.report.tables import plain
from flashladder.report.variants.plot import Label, render
from flashladder.report.variants.tables import ablation_markdown, to_csv, toolchain_markdown
from flashladder.report.variants.worth import Comparison, ablations, toolchains
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult

TITLES = {
    "ablation": ("What each change is worth", "speed with the change over speed without"),
    "toolchain": ("The same source through other compilers", "speed over that through the pinned compiler"),
}
Compare = Callable[[BenchResult], list[Comparison]]
Render = Callable[[BenchResult, Sequence[Comparison]], str]


def _change(one: Comparison) -> str:
    """``swizzle``."""
    return one.variant.subject.change


def _compiler(one: Comparison) -> str:
    """``CUDA 13.1``, marked where it is the pinned compiler's machine code."""
    return f"CUDA {one.variant.subject.cuda}" + " (same code)" * one.same_code


KINDS: Mapping[str, tuple[Compare, Render, Label]] = {
    "ablation": (ablations, ablation_markdown, _change),
    "toolchain": (toolchains, toolchain_markdown, _compiler),
}
"""Grid to what is compared in it, the Markdown of that, and the name of a bar."""


def arguments(doc: str | None, argv: Sequence[str] | None) -> argparse.Namespace:
    """``FILE [--out FOLDER]``; `doc` is the script's docstring, whose first line says what it answers."""
    parser = Parser(description=(doc or "").partition("\n")[0], epilog=(doc or "").strip().rpartition("\n")[2])
    parser.add_argument("result", metavar="FILE", type=result_file, help="packed result of the sweep (.json.gz)")
    parser.add_argument("--out", metavar="FOLDER", type=named, default=BUILD / "report", help="default: build/report")
    return parser.parse_args(argv)


def pages(name: str, result: BenchResult) -> dict[str, bytes]:
    """The files of a packed sweep of `name` (key of `TITLES`) by their suffix: md, csv, svg, png.

    Raises:
        FlashladderError: it holds no such cells.
    """
    compare, text, label = KINDS[name]
    found = compare(result)
    lengths = sorted({one.shape.seq_len for one in found})
    length = HEADLINE_LENGTH if HEADLINE_LENGTH in lengths else lengths[-1]
    title, shown = TITLES[name]
    subtitle = f"{plain(result.gpu.name)}, S = {length}: {shown}; whiskers: 95 % intervals, band: noise"
    drawn = render([one for one in found if one.shape.seq_len == length], title, subtitle, label)
    return {"md": text(result, found).encode(), "csv": to_csv(found).encode(), **drawn}


def write(name: str, file: Path, out: Path) -> list[Path]:
    """Writes ``<name>.md``, ``.csv``, ``.svg`` and ``.png`` of the packed result in `file` into `out`, in that order.

    Raises:
        FlashladderError: the file is no such result, or a file cannot be written.
    """
    files = pages(name, load_as(file, BenchResult))
    return [write_atomic(out / f"{name}.{suffix}", data) for suffix, data in files.items()]
