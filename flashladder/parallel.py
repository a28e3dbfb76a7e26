"""One function over many items, a process per CPU, in the items' order.

Why: the emulator is single-threaded Python; iterations do not depend on each other. Processes are started anew and not
forked, because torch's threads do not survive a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
import multiprocessing
import os
from typing import TypeVar

from tqdm import tqdm

from flashladder.errors import FlashladderError

Item = TypeVar("Item")
Answer = TypeVar("Answer")
MOST = 8  # processes: each may take a gigabyte


def over(function: Callable[[Item], Answer], items: Sequence[Item], what: str) -> list[Answer]:
    """``[function(item) for item in items]``, with a progress bar on a terminal.

    Args:
        function: of a module's top level, so that another process can import it.
        items: what can be pickled; the answers too.
        what: the bar's title.

    Raises:
        FlashladderError: the first item's, in order, for which `function` raised one.
    """
    n_processes = min(len(items), len(os.sched_getaffinity(0)), MOST)
    bar = tqdm(total=len(items), desc=what, disable=None, leave=False)
    if n_processes < 2:
        with bar:
            return list(_ticking(map(function, items), bar.update))
    context = multiprocessing.get_context("spawn")
    with bar, ProcessPoolExecutor(n_processes, mp_context=context) as pool:
        futures = [pool.submit(_portable, function, item) for item in items]
        try:
            return list(_ticking((future.result() for future in futures), bar.update))
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def _ticking(answers: Iterable[Answer], tick: Callable[[], object]) -> Iterator[Answer]:
    """`answers`, with a tick after each."""
    for answer in answers:
        tick()
        yield answer


def _portable(function: Callable[[Item], Answer], item: Item) -> Answer:
    """`function(item)`, whose error is one that every process can read."""
    try:
        return function(item)
    except FlashladderError as error:
        raise FlashladderError(
            error.what,
            where=error.where,
            expected=None if error.expected is None else str(error.expected),
            found=None if error.found is None else str(error.found),
            hint=error.hint,
            exit_code=error.exit_code,
        ) from None
