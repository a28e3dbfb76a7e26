"""Calls one function for many items, in a process per CPU; and tunes the garbage collector of such processes.

The emulator is single-threaded Python, and iterations do not depend on each other. Processes are spawned and not
forked, because torch's threads do not survive a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
import gc
import io
import multiprocessing
from multiprocessing import resource_tracker
import os
import signal
import sys
import threading
import time
from typing import Any, TypeVar

from tqdm import tqdm

from flashladder.errors import FlashladderError, failures

Item = TypeVar("Item")
Answer = TypeVar("Answer")
LOG_S = 15.0  # time between two lines of progress in a log
POLL_S = 0.1  # time between two checks for Ctrl-C
MOST = 8  # processes; each may need 1 GB of memory
YOUNG = 50_000  # new objects until the next garbage collection; Python's default is 700
ONE_PROCESS = "`taskset -c 0` before the command makes it use one process"


class Bar(tqdm):  # type: ignore[type-arg]  # it is generic in its stubs alone
    """A progress bar on a terminal, which vanishes at its end; in a log, a line now and then with the time left."""

    monitor_interval = 0  # no thread

    def __init__(self, *items: Any, **options: Any) -> None:
        """As tqdm does. In a log the first line comes after `LOG_S` seconds, so that quick work prints none."""
        self.in_log = not sys.stderr.isatty()
        self.next_line = time.time() + LOG_S
        in_log = {"delay": LOG_S, "miniters": 1, "file": io.StringIO()} if self.in_log else {}
        super().__init__(*items, **{"leave": False, **in_log, **options})

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Draws the bar, or writes the line."""
        if not self.in_log:
            super().display(msg, pos)
        elif msg != "" and 0 < (done := int(self.n)) < (total := int(self.total or 0)) and time.time() > self.next_line:
            self.next_line = time.time() + LOG_S
            left = (total - done) * (time.time() - self.start_t) / done
            print(f"{self.desc}: {done} of {total}, about {left:.0f} s left", file=sys.stderr, flush=True)


def tune_gc() -> None:
    """Excludes all present objects from garbage collection, and collects new ones less often.

    The emulator creates tens of thousands of closures, and a result contains as many pairs. By default, they start many
    collections. Each one visits all objects of torch, pydantic and the ladder, of which none is garbage. Without this,
    a fifth of a launch's time is lost, and a third of the page's.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 20)


def _start_worker() -> None:
    """Prepares a worker process: it ends when its parent ends or is killed, and collects garbage less often."""
    tune_gc()
    if parent := multiprocessing.parent_process():

        def end_with_parent() -> None:  # this process holds both ends of its work's pipe, so it would wait forever
            parent.join()
            os._exit(1)

        threading.Thread(target=end_with_parent, daemon=True).start()


def over(
    function: Callable[[Item], Answer],
    items: Sequence[Item],
    what: str,
    tell: Callable[[Answer], object] = lambda _: None,
    stop: threading.Event | None = None,
) -> list[Answer]:
    """``[function(item) for item in items]``, with a progress bar on a terminal. Errors and Ctrl-C end all processes.

    `function` is a module's top-level function, so that other processes can import it. Items and answers can be
    pickled. `what` is the bar's title. `tell` gets each answer, in order, as soon as it is known. `stop` is an event
    that stops the work like Ctrl-C, for a caller in another thread than the main one.
    Raises `FlashladderError`: `function` raised it (the first item's error, in order), or a process was killed.
    """
    found = list[Answer]()
    with Bar(total=len(items), desc=what) as bar, closing(_answers(function, items, what, stop)) as answers:
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
            resource_tracker.ensure_running()  # its start unblocks SIGINT, so it must run already
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # workers inherit it and ignore Ctrl-C
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
                process.terminate()  # then the pool cancels the waiting items
            raise


def _result(future: Future[Answer], interrupts: Sequence[int], stop: threading.Event | None) -> Answer:
    while not wait([future], timeout=POLL_S).done:
        if interrupts or (stop is not None and stop.is_set()):
            raise KeyboardInterrupt
    return future.result()


@contextmanager
def _interrupts_noted() -> Iterator[Sequence[int]]:
    """Stores Ctrl-C instead of raising: an exception inside the executor's code may leave a locked lock, and a hang."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # Python raises KeyboardInterrupt only there
        yield seen
        return
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _portable(function: Callable[[Item], Answer], item: Item) -> Answer:
    """`function(item)`. Its errors can be pickled and unpickled by any process."""
    try:
        return function(item)
    except failures() as error:
        facts = {"where": error.where, "expected": error.expected, "found": error.found, "hint": error.hint}
        texts = {name: None if fact is None else str(fact) for name, fact in facts.items()}
        raise FlashladderError(error.what, **texts, exit_code=error.exit_code) from None
    except MemoryError:
        raise FlashladderError("not enough memory", hint=ONE_PROCESS) from None
