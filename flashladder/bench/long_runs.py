"""What commands have in common that keep a GPU at work for minutes: options, the card held for them, and a budget.

`flashladder.bench.energy` and `flashladder.check.soak` measure; each has options and a table of its own. Nothing to run
here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from flashladder.arguments import result_file, seconds, whole
from flashladder.errors import FlashladderError
from flashladder.ladder.config import DTYPES
from flashladder.ladder.iteration import load_iteration
from flashladder.results.files import OTHER_FILE

if TYPE_CHECKING:
    from flashladder.gpu.device import Device


def add_kernels(parser: argparse.ArgumentParser) -> None:
    """Which kernels: iterations, configurations, dtypes."""
    parser.add_argument("numbers", nargs="*", type=whole, metavar="N", help="iterations")
    parser.add_argument("--configs", nargs="+", metavar="KEY", help="selection keys (default: those of this GPU)")
    parser.add_argument("--dtype", dest="dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help="default: both")


def add_result(parser: argparse.ArgumentParser, begun: str) -> None:
    """How long, where to, and a file to show instead; `begun`: what is not begun once the budget is spent."""
    parser.add_argument("--budget", type=seconds, default=0.0, help=f"begin no {begun} after this many seconds")
    parser.add_argument("--out", type=result_file, help="result file, .json.gz; what it holds is not run again")
    parser.add_argument(
        "--show", type=result_file, metavar="FILE", help="print the table of a result file and do nothing else"
    )


def another(path: Path, what: str, expected: object, found: object) -> FlashladderError:
    """An earlier file, which this run was to go on with, is of something else."""
    return FlashladderError(
        f"the file holds another {what}", where=path, expected=expected, found=found, hint=OTHER_FILE
    )


def require_same(path: Path, facts: Iterable[tuple[str, object, object]]) -> None:
    """An earlier file is one that this run can go on with.

    Args:
        path: the file.
        facts: of each the name, what this run has and what the file has.

    Raises:
        FlashladderError: it is of something else; says the first thing that differs, of mappings and models inside.
    """
    for what, mine, theirs in facts:
        if mine != theirs:
            raise another(path, *_first_difference(what, mine, theirs))


def _first_difference(what: str, mine: object, theirs: object) -> tuple[str, object, object]:
    a, b = (one.model_dump() if isinstance(one, BaseModel) else one for one in (mine, theirs))
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        return what, a, b
    if a.keys() != b.keys():
        return f"set of {what}", "; ".join(sorted(a)) or "none", "; ".join(sorted(b)) or "none"
    key = next(key for key in a if a[key] != b[key])
    return _first_difference(f"{what}, {key}", a[key], b[key])


def on_this_gpu(options: argparse.Namespace, measure: Callable[[argparse.Namespace, Device], bool]) -> None:
    """Measures with the GPU held for it; `measure` tells whether all was done.

    Raises:
        FlashladderError: an iteration that there is not, no GPU, one that is taken, or the budget was spent before the
            end.
    """
    for number in options.numbers:
        load_iteration(number)  # a wrong number is answered before a GPU is looked for
    from flashladder.bench.command import default_key
    from flashladder.gpu.device import exclusive, open_device

    device = open_device()
    options.configs = options.configs or [default_key(device.gpu.name)]
    with exclusive(device.gpu.uuid):
        complete = measure(options, device)
    if not complete:
        raise FlashladderError(
            f"not finished: the budget of {options.budget:.0f} s is spent", hint="run it again with the same --out"
        )
