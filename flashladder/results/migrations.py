"""Result documents of earlier schema versions, made into those of today: a chain of steps, one per version.

Why: raw samples outlive the code that wrote them. Every file is migrated when it is read (`flashladder.results.files`),
so that the rest of the package knows one schema; each step is a pure function on the JSON document, and a document of
every old version is kept under tests/data/ to prove it.

Versions:
    1  the first.
    2  whole: what was left out because it had no value yet is written (``variant`` of a kernel, ``references``,
       ``sweep``, ``tile`` of a reference, biases of an error ...), so that a lost key is seen; and ``content_sha256``,
       the digest of everything else in the document (`with_digest`), which an edit breaks though its folder was
       sealed anew.

Run:
    python -m flashladder.results --migrate results/h200/bench.json.gz    # rewrites a file of an older version, whole
    or not
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import copy
import json
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.files import sha256
from flashladder.results.origin import SCHEMA_VERSION

Document = dict[str, Any]
DIGEST = "content_sha256"  # the one key that is about the document's text and in no model
VERSION = "schema_version"


def with_digest(document: Mapping[str, Any]) -> Document:
    """`document` with the digest of its own content."""
    return {**document, DIGEST: digest_of(document)}


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of everything in a document but the digest itself, as JSON with sorted keys and without blanks."""
    content = {key: value for key, value in document.items() if key != DIGEST}
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")))


def version_of(document: object) -> int | None:
    """The schema version that a document says it has; None for what is no result of any version."""
    found = document.get(VERSION) if isinstance(document, Mapping) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


def migrate(document: Document) -> Document:
    """The document as the newest version writes it, without its digest; the argument is left as it is.

    Raises:
        FlashladderError: it is no result document, or newer than this package.
    """
    version = version_of(document)
    if version is None or version > SCHEMA_VERSION:
        newer = version is not None
        raise FlashladderError(
            "result of a newer schema" if newer else "result of another schema",
            expected=f"{VERSION} {SCHEMA_VERSION}" + (" or older" if newer else ""),
            found=_told(document),
            hint="update flashladder: git pull" if newer else None,
        )
    content = {key: value for key, value in document.items() if key != DIGEST}
    if version < SCHEMA_VERSION:
        content = copy.deepcopy(content)
    for step in range(version, SCHEMA_VERSION):
        content = {**STEPS[step](content), VERSION: step + 1}
    return content


def _told(document: object) -> str:
    """What stands in the place of the version."""
    found = document.get(VERSION, "none") if isinstance(document, Mapping) else type(document).__name__
    return str(found)[:40]


def _whole(document: Document) -> Document:
    """1 to 2: keys that had a default are written."""
    for kernel in _values(document.get("kernels")):
        _fill(kernel, variant="", build=None, registers=None, spill_stores=None, spill_loads=None)
    if isinstance(reference := document.get("reference"), dict):
        _fill(reference, version=None, tile=None)
    match document.get("kind"):
        case "bench":
            _fill(document, purpose="report", mode="event-free", references={}, sweep=None)
            _fill(document, summaries=[], means=[], floors_pct={})
            for group in _values(document.get("groups")):
                for series in _values(group.get("series")):
                    _fill(series, before=None, after=None)
                    _unbiased(series["before"], series["after"])
                for block in _values(group.get("blocks")):
                    _fill(block, dropped=None, late=None)
            for process in _values(document.get("processes")):
                _fill(process, foreign_after=None)
        case "check":
            _fill(document, rule=None)
            _cases(document)
        case "emulated-check":
            _cases(document)
        case "counters":
            _fill(document, mode="ncu-base")
    return document


def _cases(document: Document) -> None:
    for case in _values(document.get("cases")):
        _fill(case, reason=None, accuracy=None, repeats=0)
        _unbiased(case["accuracy"])


def _unbiased(*errors: object) -> None:
    """Errors from before their mean was looked at."""
    for one in errors:
        if isinstance(one, dict):
            _fill(one, bias=None, bias_allowed=None, row_bias=None, row_bias_allowed=None)


def _fill(one: Document, **defaults: object) -> None:
    for name, value in defaults.items():
        one.setdefault(name, value)


def _values(part: object) -> list[Document]:
    """The objects in a list or in a mapping; what is malformed is left to the schema, which names it."""
    found = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return [one for one in found if isinstance(one, dict)]


STEPS: Mapping[int, Callable[[Document], Document]] = {1: _whole}
"""Version to the function that makes a document of the next one."""
