"""What commands have in common that keep a GPU at work for minutes: options, the card held for them, and a budget.

`flashladder.bench.energy` and `flashladder.check.soak` measure; each has options and a table of its own. Nothing to run
here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from flashladder.arguments import result_file, seconds, whole
from flashladder.errors import FlashladderError
from flashladder.ladder.config import DTYPES
from flashladder.ladder.iteration import load_iteration
from flashladder.results.files import OTHER_FILE
from flashladder.results.schema import Kernel, Reference

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


def require_same(path: Path, facts: Iterable[tuple[str, str, str]]) -> None:
    """An earlier file is one that this run can go on with.

    Args:
        path: the file.
        facts: of each the name, what this run has and what the file has, as a person reads them.

    Raises:
        FlashladderError: it is of something else; says the first fact that differs.
    """
    for what, mine, theirs in facts:
        if mine != theirs:
            raise FlashladderError(
                f"the file holds another {what}", where=path, expected=mine, found=theirs, hint=OTHER_FILE
            )


def codes(kernels: Iterable[Kernel]) -> str:
    """Kernels with the beginning of the digest of their machine code."""
    named = sorted((one.key, one.arch, (one.text_sha256 or one.build or "unknown")[:12]) for one in kernels)
    return "; ".join(f"{key} {code} ({arch})" for key, arch, code in named) or "none"


def release(reference: Reference) -> str:
    """An operator with the versions that it comes from."""
    own = "" if reference.version is None else f" {reference.version}"
    return f"{reference.op}{own} of torch {reference.torch}"


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
