"""``invoke trace N``: every intermediate of an iteration's softmax beside plain PyTorch, and the first that differs.

Why: a wrong O says that something is wrong; S, m, P, l and O of each KV block say what, in which warp, row and column.
They are taken from the PTX that ships, on this CPU. On a GPU ``--sanitize`` adds compute-sanitizer's four tools.

Run:
    invoke trace 7
    python -m flashladder.trace 16 --dtype bf16 --input range --show S
Exit code: 0 all within rounding, 1 a difference, 2 it could not run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import re
from typing import TYPE_CHECKING

from flashladder.arguments import parser_of
from flashladder.commands.on_cpu import TRACE
from flashladder.emulate.command import AXIS, OUR_FAULT, number_of, require_fits
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import D_HEAD
from flashladder.ladder.selection import one_config
from flashladder.results.schema import Shape
import ptxemu

if TYPE_CHECKING:
    from flashladder.trace.findings import Comparison, Trace

_AT = re.compile(r"(\d{1,9}),(\d{1,9})", re.ASCII)


def run(options: argparse.Namespace) -> tuple[str, bool]:
    """Traces an iteration; the text to print, and whether all is within rounding.

    Raises:
        FlashladderError: bad options, or a kernel that cannot be read.
        EmulationError: the kernel does something it may not.
    """
    iteration = load_description(options.iteration)
    iteration.family.require_alike("trace")
    batch, n_heads = (number_of(options, name, default="1", most=AXIS) for name in ("batch", "heads"))
    seq_len, seed = number_of(options, "seq_len", default="256"), number_of(options, "seed", default="0", least=0)
    config = one_config(iteration, options.config, options.dtype)
    shape = Shape(batch=batch, seq_len=seq_len, n_heads=n_heads, d_head=D_HEAD)
    require_fits(iteration, config, shape)
    row, column = _place(options)
    from flashladder.trace import screen  # which brings torch: not for a command line that is wrong
    from flashladder.trace.compare import trace

    found = trace(iteration, config, shape, contents=options.input, seed=seed)
    if options.json:
        return screen.as_json(found, options.input, seed), found.passed
    text = screen.render(found)
    if options.show:
        chosen = _chosen(found, options)
        if chosen.first is not None and not options.at:
            row, column = (
                place // screen.WINDOW * screen.WINDOW for place in (chosen.first.row, chosen.first.column or 0)
            )
        require_within(chosen, row, column)
        text += f"\n\n{screen.values(found, chosen, row, column)}"
    return text, found.passed


def _place(options: argparse.Namespace) -> tuple[int, int]:
    """``--at``: the first row and column to show."""
    for name in ("at", "block"):
        if getattr(options, name) and not options.show:
            raise FlashladderError(f"--{name} belongs to --show", hint="name an intermediate: --show S")
    if options.show and options.json:
        raise FlashladderError("--show does not go with --json", hint="leave --show out: JSON tells every intermediate")
    match = _AT.fullmatch(options.at or "0,0")
    if match is None:
        raise FlashladderError("bad --at", expected="ROW,COLUMN such as 16,8", found=repr(options.at))
    return int(match[1]), int(match[2])


def require_within(chosen: Comparison, row: int, column: int) -> None:
    """Raises `FlashladderError` for a place that the intermediate does not have."""
    _, n_rows, n_columns = chosen.held.shape
    if row >= n_rows or column >= n_columns:
        expected = f"at most {n_rows - 1},{n_columns - 1}"
        raise FlashladderError(f"bad --at for {chosen.name}", expected=expected, found=f"{row},{column}")


def _chosen(found: Trace, options: argparse.Namespace) -> Comparison:
    """The intermediate of ``--show``, of the KV block that ``--block`` names: that of the first difference."""
    mine = [one for one in found.comparisons if one.name == options.show]
    if not mine:
        names = dict.fromkeys(one.name for one in found.comparisons)
        raise FlashladderError(
            f"iteration {found.iteration.description} has no {options.show}", expected=" or ".join(names)
        )
    if not options.block:
        return next((one for one in mine if one.first is not None), mine[0])
    block = number_of(options, "block", least=0)
    for one in mine:
        if one.block == block:
            return one
    blocks = ", ".join(str(one.block) for one in mine if one.block is not None)
    expected = f"one of {blocks}" if blocks else "none: it is stored once"
    raise FlashladderError(f"no such KV block of {options.show}", expected=expected, found=block)


def _sanitize(options: argparse.Namespace) -> None:
    """compute-sanitizer's four tools over the iteration, on this GPU.

    Raises:
        CheckFailed: a tool found something.
        FlashladderError: no GPU, no compute-sanitizer, or nothing installed to run.
    """
    from flashladder.gpu import sanitize

    sanitize.main([options.iteration, *(["--configs", options.config] if options.config else [])])


def _require_gpu(options: argparse.Namespace) -> None:
    """Refuses ``--sanitize`` where it cannot run, before anything slow."""
    from flashladder.gpu.doctor import require_gpu

    if options.json or not options.iteration.isdecimal():
        found = "--json" if options.json else repr(options.iteration)
        raise FlashladderError("--sanitize runs an iteration's build", expected="its number, no --json", found=found)
    require_gpu("`invoke emulate N --hazards` looks for races on this CPU")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs and prints; exit code 1 when a kernel's intermediate is wrong, or a tool of `--sanitize` finds something."""
    options = parser_of(TRACE, "trace", "7").parse_args(argv)
    if options.sanitize:
        _require_gpu(options)
    try:
        text, passed = run(options)
    except ptxemu.EmulationError as error:
        if error.kind in OUR_FAULT:
            raise
        raise CheckFailed(f"iteration {options.iteration} may not do this: {error}") from error
    except MemoryError as error:
        raise FlashladderError("not enough memory", hint="a smaller shape") from error
    print(text)
    if options.sanitize:
        _sanitize(options)
    return 0 if passed else 1
