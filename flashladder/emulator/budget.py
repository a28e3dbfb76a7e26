"""Amounts of memory as people write them: ``1GiB``, ``512 MiB``, ``2G`` or a number of bytes."""

from __future__ import annotations

import re

from flashladder.errors import FlashladderError

_BYTES = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*(?:([KMGT])(i?)B?|B)?", re.ASCII | re.IGNORECASE)


def parse_bytes(text: str, what: str = "a memory budget") -> int:
    """``1GiB``, ``512 MiB``, ``2G`` or a plain number of bytes.

    Raises:
        FlashladderError: something else, or less than one byte.
    """
    match = _BYTES.fullmatch(text.strip())
    if match is None or (size := _size(match)) < 1:
        raise FlashladderError(f"not {what}", expected="for example 1GiB or 512MiB", found=repr(text))
    return size


def _size(match: re.Match[str]) -> int:
    """``GB`` is 1000^3; ``GiB`` and a bare ``G`` are 1024^3."""
    letter, binary = (match[2] or "").upper(), bool(match[3]) or not match[0].upper().endswith("B")
    return int(float(match[1]) * (1024 if binary else 1000) ** " KMGT".index(letter or " "))
