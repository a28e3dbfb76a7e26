"""What a bundle does on a node, once it is unpacked: a sweep of the grid that fits, packed; or any other command.

Why: a person on a GPU node has one file, and wants one file back that ``invoke verify`` takes at home. The sweep's
records stay beside the bundle, so that the same command goes on where it stopped; its document is copied out.
Started by a bundle's runner (`flashladder.bundle.runner`); ``python3 BUNDLE.pyz sweep --help`` shows the options.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
import runpy
import sys

from flashladder.arguments import Parser
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.files import dump_json, load_json, sha256, write_atomic
from flashladder.gpu.doctor import OLDEST_TORCH, n_gpus, torch_build
from flashladder.ladder.gpus import gpu_key
from flashladder.ladder.grid import Grid, grid_names, load_grid
from flashladder.paths import BUILD
from flashladder.toolchain import load_pins

FACTS = "bundle.json"  # in the folder of builds: what came along
DEFAULT_OUT = "flashladder-results"
CPU, SMOKE = "cpu", "smoke"  # grids for a machine without a GPU, and for a GPU that has no grid of its own
USAGE = """\
python3 BUNDLE.pyz [--into FOLDER] [sweep] [--grid GRID] [--out FOLDER]   measures, and packs what was measured
python3 BUNDLE.pyz [--into FOLDER] TASK ARGUMENTS                         any other task, such as check 7, or help"""


def facts(build: Path = BUILD) -> dict[str, list[str]]:
    """What came along: lists ``arches``, ``grids``, ``iterations``, and ``name``, a list of one.

    Raises:
        FlashladderError: this is no unpacked bundle.
    """
    path = build / FACTS
    try:
        data = load_json(path.read_bytes())
        return {key: list(map(str, data[key])) for key in ("name", "arches", "grids", "iterations")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FlashladderError(
            "not an unpacked bundle", where=path, found=error, hint="a bundle is run as `python3 BUNDLE.pyz`"
        ) from error


def grid_here() -> str:
    """The name of the grid that fits: of the first GPU here, ``smoke`` on one without a grid, ``cpu`` without a GPU."""
    if not n_gpus():
        return CPU
    from flashladder.sweep.place import cards

    found = cards()
    key = gpu_key(found[0].name) if found else None
    return key if key in grid_names() else SMOKE


def require_torch() -> None:
    """Raises `FlashladderError` where torch is missing or too old for the libraries that came along."""
    build, expected = torch_build(), "2.10 or newer"
    if build is None:
        raise FlashladderError("torch is not installed for this Python", where=sys.executable, expected=expected)
    if tuple(int(part) for part in build.version.split(".")[:2]) < OLDEST_TORCH:
        raise FlashladderError("torch is too old", expected=expected, found=build.version)


def require_along(grid: Grid, came: dict[str, list[str]], *, own: bool) -> None:
    """Raises `FlashladderError` where the kernels of a grid, or those of the GPU here, did not come along.

    `came`: `facts`. `own`: the grid is a file of the user's, whose kernels the sweep itself asks for.
    """
    if not own and grid.name not in came["grids"]:
        known = f"one of {', '.join(came['grids'])}" if came["grids"] else "a bundle with a grid (this one has none)"
        hint = f"where there is a checkout: invoke bundle --grid {grid.name}"
        what = "not all kernels of this grid are in the bundle"
        raise FlashladderError(what, expected=known, found=grid.name, hint=hint)
    if grid.mode == "emulator":
        return
    from flashladder.sweep.place import cards

    for card in cards():
        if card.arch in load_pins().arches and card.arch not in came["arches"]:
            raise FlashladderError(
                "the bundle has no machine code for the GPU here",
                expected=", ".join(came["arches"]),
                found=f"{card.arch} ({card.name})",
                hint=f"where there is a checkout: invoke bundle --arch {card.arch}",
            )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="BUNDLE.pyz sweep",
        description="Measures a grid and packs what was measured into one file; other options are those of "
        "`flashladder sweep`, such as --dry-run, --gpus, --retry and --anyway.",
        epilog="example: python3 BUNDLE.pyz sweep --grid smoke --out results",
    )
    parser.add_argument("--grid", help="a grid, or a file that ends in .yaml (default: the one of the GPU here)")
    parser.add_argument("--out", type=Path, default=Path(DEFAULT_OUT), help=f"folder (default: {DEFAULT_OUT})")
    return parser


def sweep(words: Sequence[str]) -> int:
    """Measures, and copies the document to the folder ``--out``, also where cells failed; the sweep's exit code.

    Raises:
        FlashladderError: it could not run.
        CheckFailed: cells failed.
    """
    options, more = _parser().parse_known_args(words)
    name = options.grid or grid_here()
    grid = load_grid(name)
    records = BUILD / "sweep" / grid.name
    given = ["--grid", name, "--no-build", "--out", str(records), *more]
    from flashladder.sweep import command

    if {"--dry-run", "--help", "-h"} & set(more):
        return command.main(given)
    require_along(grid, came=facts(), own=name.endswith(".yaml"))
    require_torch()
    write_atomic(options.out / ".writable", "").unlink()
    document = records.with_name(f"{grid.name}.json.gz")
    try:
        code = command.main(given)
    except CheckFailed:
        _copy_out(document, options.out, [name, *more])
        raise
    _copy_out(document, options.out, [name, *more])
    return code


def _copy_out(document: Path, out: Path, words: Sequence[str]) -> None:
    """Copies a packed sweep into a folder, with a line about the bundle that made it beside it."""
    if not document.is_file():
        return
    data = document.read_bytes()
    made = write_atomic(out / document.name, data)
    about = {
        "bundle": facts()["name"][0],
        "document": document.name,
        "document_sha256": sha256(data),
        "sweep": list(words),
        "python": sys.version.split()[0],
        "torch": metadata.version("torch"),
    }
    write_atomic(out / f"{document.name.removesuffix('.json.gz')}.bundle.json", dump_json(about))
    print(f"{made}: at home, `invoke verify {made.name}` checks it", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """The command of a bundle: ``sweep`` where only options are given, else what a checkout's tasks do."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["--help"], ["-h"]):
        print(USAGE)
        return 0
    if words and words[0] != "sweep" and not words[0].startswith("-"):
        sys.argv = ["flashladder", *words]
        runpy.run_module("flashladder", run_name="__main__")  # which leaves with the task's code
        return 0
    with one_line_errors():
        return sweep(words[1:] if words[:1] == ["sweep"] else words)


if __name__ == "__main__":
    raise SystemExit(main())
