"""Inputs that fuzzing found (tests/data/found.json) are now read, or refused in one clear line.

A short run of every target (`tests.fuzz`) uses the same inputs each time; `nox -s fuzz` runs the long ones.
"""

from __future__ import annotations

from contextlib import suppress
import gzip
from itertools import islice
import time
from unittest.mock import Mock

import pytest

from flashladder import files
from flashladder.errors import FlashladderError
from flashladder.files import load_json, unpacked
from tests.fuzz import run as fuzzing
from tests.fuzz.target import Finding, Hang, Target, attempt, found_inputs, mutations, within
from tests.fuzz.targets import TARGETS

INPUTS = 40  # per target, the seeds first
KEPT = [(target, name, data) for target, inputs in found_inputs().items() for name, data in inputs.items()]


def told(finding: Finding | None) -> str:
    return "" if finding is None else f"{finding.place}: {finding.what}: {finding.data[:200]!r}"


@pytest.mark.parametrize(("target", "name", "data"), KEPT, ids=[f"{target}/{name}" for target, name, _ in KEPT])
def test_an_input_that_was_found_is_refused_or_read(target: str, name: str, data: bytes) -> None:
    assert told(attempt(TARGETS[target], data)) == ""


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run_finds_nothing(name: str) -> None:
    inputs = islice(mutations(TARGETS[name], seed=1, heavy=False), INPUTS)
    assert [message for data in inputs if (message := told(attempt(TARGETS[name], data)))] == []


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_are_read(name: str) -> None:
    """If every seed is refused, most of the reader is not tested."""
    if name in {"compiler-log", "command-line", "grid-name", "packed", "store-entry", "manifest", "cards", "argument"}:
        pytest.skip("its valid inputs are errors themselves, or name what is not there")
    target, accepted = TARGETS[name], 0
    for data in target.seeds():
        with suppress(*target.declared):
            target.run(data)
            accepted += 1
    assert accepted >= 1


def test_each_kind_of_failure_is_a_finding() -> None:
    def tried(error: Exception) -> str:
        target = Target("x", "x", Mock(side_effect=error), [b""], (), (FlashladderError, ValueError))
        return told(attempt(target, b""))

    assert tried(FlashladderError("no")) == ""
    assert "IndexError" in tried(IndexError("no"))
    assert "not one printable line" in tried(ValueError("one\ntwo"))
    with pytest.raises(Hang), within(0.05):
        time.sleep(5)


def test_the_page_is_what_the_figures_give() -> None:
    assert fuzzing.PAGE.read_text(encoding="utf-8") == fuzzing.render(fuzzing.load())


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b'{"a": 1, "b": {"x": 1, "x": 2}}', "the key 'x' stands twice in one object"),
        (b'\xef\xbb\xbf{"a": 1}', "it begins with a byte order mark"),
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "it nests too deep"),
        (b"1" * 5000, "an integer of more than 4300 digits"),
        (b"{", "Expecting property name"),
    ],
)
def test_json_is_read_strictly(raw: bytes, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        load_json(raw)


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert load_json(b'{"a": "\\ud83d\\ude00"}') == {"a": "😀"}


def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_JSON_BYTES", 1 << 20)
    assert len(unpacked(gzip.compress(b"0" * (1 << 20)))) == 1 << 20
    with pytest.raises(ValueError, match="it unpacks to more than 1 MiB"):
        unpacked(gzip.compress(b"0" * ((1 << 20) + 1)))
