"""What a fuzzing target is, and the judgement of one input: it is read, refused in one clear line, or it is a bug.

Why apart from the list of targets: both engines, the short run of the test suite and the replay of what was found ask
the same question. Rules: no error but the declared ones, each one printable line of bounded length; an answer within
`SECONDS`; no more memory than `watch` allows; what has a printer is read back equal (the target asserts it).
"""

from __future__ import annotations

import atexit
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
import json
from pathlib import Path
import resource
import shutil
import signal
import tempfile
import threading
import traceback
from types import FrameType

from flashladder.errors import FlashladderError
from flashladder.paths import PACKAGE, ROOT
from ptxemu import PtxemuError

SECONDS = 5.0  # for one input
LONGEST = 12_000  # characters of a message
MEMORY = 3 << 30  # bytes of address space beyond what the process has when the run begins
FOUND = ROOT / "tests" / "data" / "found.json"  # target to name to input, in base64


def found_inputs() -> dict[str, dict[str, bytes]]:
    """Inputs that were found and mended, by target and name."""
    found = json.loads(FOUND.read_bytes())
    return {target: {name: b64decode(text) for name, text in inputs.items()} for target, inputs in found.items()}


class Hang(BaseException):
    """An input took longer than `SECONDS`; no Exception, so that no reader catches it."""


@dataclass(frozen=True)
class Target:
    """A parser or loader.

    Attributes:
        name: for the command line, the figures and the found inputs.
        what: the function, for people.
        run: reads one input; it raises a declared error, or AssertionError where a round trip does not hold.
        seeds: valid inputs, the smaller the better.
        words: what the language is made of, for mutations.
        declared: what it may raise.
        heavy: inputs of its own that long runs begin with.
    """

    name: str
    what: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    words: tuple[str, ...] = ()
    declared: tuple[type[BaseException], ...] = (FlashladderError, PtxemuError)
    heavy: Callable[[], Sequence[bytes]] = tuple


@dataclass(frozen=True)
class Finding:
    """An input that a target got wrong; `place` tells causes apart."""

    target: str
    data: bytes
    what: str
    place: str


def attempt(target: Target, data: bytes) -> Finding | None:
    """Runs one input; None where it was read, or refused as declared."""
    try:
        with within(SECONDS):
            try:
                target.run(data)
            except target.declared as error:
                _require_clear(error)
    except (Exception, Hang) as error:  # noqa: BLE001 - whatever it is, it is a finding
        return Finding(target.name, data, f"{type(error).__name__}: {error}"[:300], _place(error))
    return None


def _require_clear(error: BaseException) -> None:
    """One line that a terminal can show."""
    text = str(error)
    assert text, "an error without a message"
    assert text.isprintable(), f"a message that is not one printable line: {text[:200]!r}"
    assert len(text) <= LONGEST, f"a message of {len(text)} characters: {text[:80]!r}"


def _place(error: BaseException) -> str:
    """Kind of the error and the last line of the project that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(str(PACKAGE))] or frames
    return f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else type(error).__name__


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises `Hang` after this time, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_: int, __: FrameType | None) -> None:
        raise Hang(f"no answer after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def limit_memory() -> None:
    """From now on this process gets `MEMORY` more address space and no more: a bomb is a MemoryError, which is one."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


_SCRATCH: list[Path] = []


def scratch() -> Path:
    """A folder of this process, removed at its end."""
    if not _SCRATCH:
        _SCRATCH.append(Path(tempfile.mkdtemp(prefix="flashladder-fuzz-")))
        atexit.register(shutil.rmtree, _SCRATCH[0], ignore_errors=True)
    return _SCRATCH[0]


def filed(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A target's function for a reader of files: the input is the content of the file `name` in `scratch`."""

    def run(data: bytes) -> object:
        path = scratch() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(path)

    return run


def spoken(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """A target's function for a reader of text; bytes that are no UTF-8 arrive as the command line would give them."""
    return lambda data: read(data.decode("utf-8", "surrogateescape"))


def decoded(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """A target's function for a reader of a tool's output, which is decoded with replacement characters."""
    return lambda data: read(data.decode("utf-8", "replace"))
