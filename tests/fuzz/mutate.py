"""Inputs made from valid ones: bytes, words and lines of a seed exchanged, JSON values replaced; the same for one seed.

Why our own beside hypothesis and atheris: it is quick enough for a hundred thousand inputs of everything, knows words
and documents, and an input follows from (target, number) alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import copy
from functools import cached_property
import gzip
import json
import random
import re
from typing import Any

from tests.fuzz.target import Target

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
_WORD = re.compile(rb"[A-Za-z0-9_]+|\s+|.", re.DOTALL)
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


class Mutator:
    """Inputs for one target, in an order that `seed` fixes; the seeds themselves and the bombs come first."""

    def __init__(self, target: Target, seed: int = 0) -> None:
        self._target = target
        self._seeds = list(target.seeds())
        self._random = random.Random(f"{target.name} {seed}")
        self._words = [*NUMBERS, *TEXTS, *target.words]
        self._plain = [*self._seeds, b"", *BYTES]
        self._kinds: list[Callable[[bytes], bytes]] = [self._bytes, self._token, self._token, self._lines, self._splice]
        self._documents = [found for found in map(_document, self._seeds) if found is not None]

    @cached_property
    def _first(self) -> list[bytes]:
        return [*self._plain, *bombs(), *self._target.heavy()]

    def input(self, number: int, *, bombs: bool = True) -> bytes:
        """The next input; `number` counts from 0. Without `bombs` those are left out, which take a second each."""
        first = self._first if bombs else self._plain
        if number < len(first):
            return first[number]
        pick = self._random
        if self._documents and pick.random() < 0.6:
            return self._rewritten()
        data = pick.choice(self._seeds)
        for _ in range(pick.choice((1, 1, 1, 2, 3, 5))):
            data = pick.choice(self._kinds)(data)
        return data[:MOST]

    def _span(self, data: bytes, longest: int = 64) -> tuple[int, int]:
        start = self._random.randrange(len(data) + 1)
        return start, min(len(data), start + self._random.randrange(longest))

    def _bytes(self, data: bytes) -> bytes:
        start, end = self._span(data, 8)
        new = self._random.choice((b"", *BYTES, self._random.randbytes(self._random.randrange(1, 5))))
        return data[:start] + new + data[end:]

    def _token(self, data: bytes) -> bytes:
        """One word exchanged, left out, doubled, or put elsewhere."""
        tokens = _WORD.findall(data)
        if not tokens:
            return self._word()
        at = self._random.randrange(len(tokens))
        new = self._random.choice((self._word(), self._word(), b"", tokens[at] * 2, self._random.choice(tokens)))
        return b"".join((*tokens[:at], new, *tokens[at + 1 :]))

    def _word(self) -> bytes:
        return self._random.choice(self._words).encode("utf-8", "surrogateescape")

    def _lines(self, data: bytes) -> bytes:
        """A line left out, doubled, moved, indented, cut or ended otherwise."""
        lines = data.splitlines(keepends=True) or [b""]
        at, other = self._random.randrange(len(lines)), self._random.randrange(len(lines))
        line = lines.pop(at)
        cut = line[: self._random.randrange(len(line) + 1)]
        new = self._random.choice(
            ([], [line, line], [b"  " + line], [b"\t" + line], [cut], [line.rstrip(b"\n") + b"\r\n"], [b"\n", line])
        )
        place = other if self._random.random() < 0.3 else at
        return b"".join((*lines[:place], *new, *lines[place:]))

    def _splice(self, data: bytes) -> bytes:
        other = self._random.choice(self._seeds)
        start, end = self._span(other, 200)
        at = self._random.randrange(len(data) + 1)
        return data[:at] + other[start:end] + data[at + self._random.choice((0, 0, end - start)) :]

    def _rewritten(self) -> bytes:
        """A JSON seed with one to three values replaced, keys lost, renamed or written twice."""
        pick = self._random
        whole: dict[str, Any] = {"": json.loads(pick.choice(self._documents))}
        for _ in range(pick.choice((1, 1, 2, 3))):
            holder: Any = whole
            key: Any = ""
            while isinstance(holder[key], dict | list) and holder[key] and pick.random() < 0.8:
                holder = holder[key]
                key = pick.choice(list(holder)) if isinstance(holder, dict) else pick.randrange(len(holder))
            _edit(pick, holder, key, self._words)
        text = json.dumps(whole[""])
        return text.replace('"kind"', '"kind": 1, "kind"', 1).encode() if pick.random() < 0.02 else text.encode()


def _edit(pick: random.Random, holder: Any, key: Any, words: Sequence[str]) -> None:
    """One change in a mapping or a list of a document."""
    action = pick.random()
    if action < 0.6 or key == "":
        old = holder[key]
        near = [old + 1, -old, old * 1000] if isinstance(old, int | float) and not isinstance(old, bool) else [[old]]
        holder[key] = copy.deepcopy(pick.choice((pick.choice(_ANY), pick.choice(words), *near)))
    elif action < 0.8 or isinstance(holder, list):
        del holder[key]
    elif action < 0.9:
        holder[pick.choice(words)] = holder.pop(key)
    else:
        holder[pick.choice(words)] = copy.deepcopy(holder[key])


def _document(seed: bytes) -> str | None:
    """A seed that is a JSON object or list, as text."""
    try:
        found = json.loads(seed)
    except (ValueError, RecursionError):
        return None
    return json.dumps(found) if isinstance(found, dict | list) else None
