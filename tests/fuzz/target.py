"""What a fuzzing target is, inputs made from its valid ones, and the judgement of one input.

A reader must accept an input or refuse it in one clear line. It may raise only the declared errors, each one printable
line of bounded length. It must answer within `SECONDS` and with the memory of `limit_memory`. If the data has a
printer, the target asserts that the reader reads it back equal. `mutations` changes bytes, words and lines of a seed,
and replaces JSON values. It makes a hundred thousand inputs quickly; (target, number, seed) determine each.
"""

from __future__ import annotations

import atexit
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
import copy
from dataclasses import dataclass
from functools import cache, partial
import gzip
import json
from pathlib import Path
import random
import re
import resource
import shutil
import signal
import tempfile
import traceback
from types import FrameType
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.paths import PACKAGE, ROOT
from ptxemu import PtxemuError

SECONDS = 5.0  # for one input
LONGEST = 12_000  # characters of a message
MEMORY = 3 << 30  # bytes of address space beyond what the process has when the run begins
DECLARED = (FlashladderError, PtxemuError)
FOUND = ROOT / "tests" / "data" / "found.json"  # target to name to input, in base64


def found_inputs() -> dict[str, dict[str, bytes]]:
    """Inputs that were found and mended, by target and name."""
    found = json.loads(FOUND.read_bytes())
    return {target: {name: b64decode(text) for name, text in inputs.items()} for target, inputs in found.items()}


class Hang(BaseException):
    """An input took longer than `SECONDS`; no Exception, so that no reader catches it."""


@dataclass(frozen=True)
class Target:
    """A parser or loader."""

    name: str  # for the command line, the figures and the found inputs
    what: str  # the function, for people
    run: Callable[[bytes], object]  # reads one input; AssertionError where a round trip does not hold
    made: Sequence[str | bytes] | Callable[[], Sequence[bytes]]  # valid inputs, the smaller the better
    words: tuple[str, ...] = ()  # what the language is made of beside the words of its seeds
    declared: tuple[type[BaseException], ...] = DECLARED  # what it may raise
    heavy: Callable[[], Sequence[bytes]] = tuple  # inputs of its own that long runs begin with

    def seeds(self) -> list[bytes]:
        """Its valid inputs."""
        made = self.made() if callable(self.made) else self.made
        return [one.encode() if isinstance(one, str) else one for one in made]


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


@cache
def scratch() -> Path:
    """A folder of this process, removed at its end."""
    folder = tempfile.mkdtemp(prefix="flashladder-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def filed(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A target's function for a reader of files: the input is the content of the file `name` in `scratch`."""

    def run(data: bytes) -> object:
        path = scratch() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(path)

    return run


def decoded(read: Callable[[str], object], errors: str = "replace") -> Callable[[bytes], object]:
    """A target's function for a reader of text: of a tool's output, or of words (`errors` as a command line has it)."""
    return lambda data: read(data.decode("utf-8", errors))


spoken = partial(decoded, errors="surrogateescape")


MOST = 1 << 16  # bytes of an input, but for bombs
NUMBERS = (
    "0", "-1", "1", "2", "7", "16", "00", "-0", "0x10", "1e3", "1e999", "NaN", "Infinity", "-Infinity", ".5", "5.",
    "4294967296", "18446744073709551616", "9" * 30, "1" * 5000, "٧", "７", "1_000", "0b1", "1/2", "²",
)  # fmt: skip
TEXTS = (
    "", " ", "\n", "\t", "\r\n", "\x00", "\x1b[31m", "\x7f", "\x85", "\u2028", "\ufeff", "\u202e", "é", "😀", "'", '"',
    "\\", "`", "|", "<b>", "&amp;", "=1", "@A1", "../../etc/passwd", "/", "%s", "%n", "{}", "{0}", "$(id)", "null",
    "true", "yes", "on", "~", "&a", "*a", "!!python/object:os.system", "<<", "---", "...", "#", "//", "/*", "*/", ";",
    "[", "]", "{", "}", "(", ")", ":", ",", "-", "+", "a" * 3000,
)  # fmt: skip
BYTES = (b"\xff", b"\xfe\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x00" * 8, b"\x1f\x8b\x08", b"\x80")
_BYTE, _WORD = re.compile(rb".", re.DOTALL), re.compile(rb"[A-Za-z0-9_]+|\s+|.", re.DOTALL)
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_ANY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 10**20, 10**400, 1.5, -0.0, 1e308, float("nan"), float("inf"), "", "x", "\x00",
    "\x1b[2J", "\ud800", "|", "=1", "é", "1", [], {}, [[]], [None], {"": None}, {"x": [1]}, [1, 2, 3], "9" * 400,
)  # fmt: skip


def bombs() -> tuple[bytes, ...]:
    """What is small and becomes large, or deep, to a reader that does not look."""
    deep = 20_000
    aliases = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    return (
        b"[" * deep + b"]" * deep, b'{"a":' * deep + b"1" + b"}" * deep, b"{" * deep, b"(" * deep, b"- " * deep,
        aliases.encode(), b"1" * 100_000, b"a: " * deep, b"x" * 300_000, b"\n" * 200_000, b"," * 50_000,
        b"/*" * deep, b'"' * 9999, b"{}" * deep, b"\x00" * 100_000, b"<" * deep, b" " * 200_000 + b"x",
    )  # fmt: skip


def packed_bombs() -> tuple[bytes, ...]:
    """Gzip files that hold far more than they are long."""
    zeros = gzip.compress(b"0" * (320 << 20), compresslevel=9, mtime=0)
    return (zeros, gzip.compress(gzip.compress(b"[" * (1 << 20)), mtime=0), gzip.compress(b"", mtime=0) * 2000)


def mutations(target: Target, seed: int = 0, *, heavy: bool = True) -> Iterator[bytes]:
    """Inputs for one target, in an order that `seed` fixes; the seeds and, where `heavy`, the bombs come first."""
    seeds, pick = target.seeds(), random.Random(f"{target.name} {seed}")
    yield from (*seeds, b"", *BYTES, *(bombs() if heavy else ()), *(target.heavy() if heavy else ()))
    words = [word.encode("utf-8", "surrogateescape") for word in (*NUMBERS, *TEXTS, *target.words)]
    documents = [found for found in map(_document, seeds) if found is not None]
    while True:
        if documents and pick.random() < 0.6:
            yield _rewritten(pick, pick.choice(documents), [word.decode("utf-8", "surrogateescape") for word in words])
            continue
        data = pick.choice(seeds)
        for _ in range(pick.choice((1, 1, 1, 2, 3, 5))):
            data = _edited(pick, data, [*words, *BYTES, pick.randbytes(3), _piece(pick, pick.choice(seeds))])
        yield data[:MOST]


def _piece(pick: random.Random, data: bytes) -> bytes:
    start = pick.randrange(len(data) + 1)
    return data[start : start + pick.randrange(200)]


def _edited(pick: random.Random, data: bytes, words: Sequence[bytes]) -> bytes:
    """One byte, word or line left out, doubled, cut, exchanged, indented, or with a word or a piece before it."""
    parts = pick.choice((_BYTE, _WORD, _WORD, _LINE)).findall(data) or [b""]
    at = pick.randrange(len(parts))
    own, word = parts[at], pick.choice((pick.choice(words), words[-1]))
    cut = own[: pick.randrange(len(own) + 1)]
    parts[at] = pick.choice((b"", own * 2, cut, pick.choice(parts), word, word, word + own, b"  " + own))
    return b"".join(parts)


def _rewritten(pick: random.Random, document: Any, words: Sequence[str]) -> bytes:
    """A document of JSON with one to three values replaced, keys lost, renamed or written twice."""
    whole = {"": copy.deepcopy(document)}
    for _ in range(pick.choice((1, 1, 2, 3))):
        holder: Any = whole
        key: Any = ""
        while isinstance(holder[key], dict | list) and holder[key] and pick.random() < 0.8:
            holder = holder[key]
            key = pick.choice(list(holder)) if isinstance(holder, dict) else pick.randrange(len(holder))
        action, old = pick.random(), holder[key]
        if action < 0.6 or key == "":
            near = (
                [old + 1, -old, old * 1000] if isinstance(old, int | float) and not isinstance(old, bool) else [[old]]
            )
            holder[key] = copy.deepcopy(pick.choice((pick.choice(_ANY), pick.choice(words), *near)))
        elif action < 0.8 or isinstance(holder, list):
            del holder[key]
        else:
            holder[pick.choice(words)] = copy.deepcopy(old) if action < 0.9 else holder.pop(key)
    text = json.dumps(whole[""])
    return text.replace('"kind"', '"kind": 1, "kind"', 1).encode() if pick.random() < 0.02 else text.encode()


def _document(seed: bytes) -> Any:
    """A seed that is a JSON object or list; None for another."""
    try:
        found = json.loads(seed)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None
