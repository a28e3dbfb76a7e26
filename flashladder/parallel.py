"""One function over many items, a process per CPU, in the items' order; and garbage collection for such processes.

The emulator is single-threaded Python, and iterations do not depend on each other. Processes are spawned and not
forked, because torch's threads do not survive a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
import gc
import multiprocessing
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
import os
import signal
import threading
from typing import TypeVar

from tqdm import tqdm

from flashladder.errors import FlashladderError, failures

Item = TypeVar("Item")
Answer = TypeVar("Answer")
POLL = 0.1  # seconds between two looks for Ctrl-C
MOST = 8  # processes: each may take a gigabyte
YOUNG = 50_000  # objects between two rounds of the garbage collector; Python's 700 is for little memory
ONE_PROCESS = "`taskset -c 0` before the command makes it use one process"


def tune_gc() -> None:
    """Takes all that exists now out of the garbage collector's rounds, and looks at new objects less often.

    The emulator makes closures by the ten thousand, and a result has as many pairs. Each round that they cause would
    walk over every object of torch, pydantic and the ladder, none of which is ever garbage: a fifth of a launch's time,
    a third of the page's.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 20)


def _start_worker() -> None:
    """Prepares a worker process: it ends when its parent ends or is killed, and collects garbage less often."""
    tune_gc()
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    """Ends this process with its parent. It holds both ends of the pipe of its work, and would wait for more."""
    parent.join()
    os._exit(1)


def over(
    function: Callable[[Item], Answer],
    items: Sequence[Item],
    what: str,
    tell: Callable[[Answer], object] = lambda _: None,
    stop: threading.Event | None = None,
) -> list[Answer]:
    """``[function(item) for item in items]``, with a progress bar on a terminal.

    After an error, or Ctrl-C, no process is left behind: those that still work are ended.

    Args:
        function: of a module's top level, so that another process can import it.
        items: what can be pickled; the answers too.
        what: the bar's title.
        tell: gets each answer, in order, as soon as it is known.
        stop: ends it as Ctrl-C does; for a caller in a thread of its own, which sees no Ctrl-C.

    Raises:
        FlashladderError: the first item's, in order, for which `function` raised one; or a process was killed.
    """
    found = list[Answer]()
    with (
        tqdm(total=len(items), desc=what, disable=None, leave=False) as bar,
        closing(_answers(function, items, what, stop)) as answers,
    ):
        for answer in answers:
            bar.update()
            tell(answer)
            found.append(answer)
    return found


def _answers(
    function: Callable[[Item], Answer], items: Sequence[Item], what: str, stop: threading.Event | None
) -> Generator[Answer, None, None]:
    n_processes = min(len(items), len(os.sched_getaffinity(0)), MOST)
    if n_processes < 2:
        yield from map(function, items)
        return
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with _interrupts_noted() as interrupts, ProcessPoolExecutor(n_processes, context, _start_worker) as pool:
        try:
            resource_tracker.ensure_running()  # it would let interrupts through again where it starts
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for the one that can end them all
            try:
                futures = [pool.submit(_portable, function, item) for item in items]
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            for future in futures:
                yield _result(future, interrupts, stop)
        except BrokenProcessPool as error:
            hint = f"most likely the machine ran out of memory; {ONE_PROCESS}"
            raise FlashladderError(f"{what}: a process was killed", hint=hint) from error
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()  # with them the pool gives up what is still waiting
            raise


def _result(future: Future[Answer], interrupts: Sequence[int], stop: threading.Event | None) -> Answer:
    while not wait([future], timeout=POLL).done:
        if interrupts or (stop is not None and stop.is_set()):
            raise KeyboardInterrupt
    return future.result()


@contextmanager
def _interrupts_noted() -> Iterator[Sequence[int]]:
    """Ctrl-C is noted, not raised: in the middle of the executor's code it can leave a lock behind, and a hang."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # where Python raises no KeyboardInterrupt
        yield seen
        return
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _portable(function: Callable[[Item], Answer], item: Item) -> Answer:
    """`function(item)`, whose error is one that every process can read."""
    try:
        return function(item)
    except failures() as error:
        raise FlashladderError(
            error.what,
            where=error.where,
            expected=None if error.expected is None else str(error.expected),
            found=None if error.found is None else str(error.found),
            hint=error.hint,
            exit_code=error.exit_code,
        ) from None
    except MemoryError:
        raise FlashladderError("not enough memory", hint=ONE_PROCESS) from None
