"""hypothesis as an engine: grammars of JSON, YAML, tables and statements, and seeds cut and spliced by its choices.

Why beside our own mutations: hypothesis makes inputs from nothing, small ones first, and shrinks what it finds.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
import hypothesis.strategies as st

from tests.fuzz.mutate import NUMBERS, TEXTS
from tests.fuzz.target import Finding, Target, attempt


def _scalars(words: list[str]) -> st.SearchStrategy[Any]:
    numbers = st.one_of(st.integers(), st.floats(), st.integers(-2, 20))
    return st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8), st.sampled_from(words))


def documents(words: list[str]) -> st.SearchStrategy[bytes]:
    """JSON, which is YAML as well, with the language's words as keys and values."""
    keys = st.one_of(st.sampled_from(words), st.text(max_size=4))
    trees = st.recursive(
        _scalars(words),
        lambda below: st.lists(below, max_size=4) | st.dictionaries(keys, below, max_size=5),
        max_leaves=20,
    )
    return trees.map(lambda tree: json.dumps(tree).encode())


def statements(words: list[str]) -> st.SearchStrategy[bytes]:
    """Words of the language in any order, with blanks, commas and ends of lines between."""
    separators = st.sampled_from([" ", "\n", ", ", ";", ": ", "", "|", "\t", "="])
    pairs = st.tuples(st.one_of(st.sampled_from(words), st.text(max_size=6)), separators)
    return st.lists(pairs, max_size=12).map(lambda found: "".join(a + b for a, b in found).encode("utf-8", "replace"))


def edited(seeds: list[bytes], words: list[str]) -> st.SearchStrategy[bytes]:
    """A seed with a span replaced."""
    new = st.one_of(st.binary(max_size=6), st.sampled_from([word.encode("utf-8", "replace") for word in words]))
    place = st.floats(0, 1)

    def splice(found: tuple[bytes, float, int, bytes]) -> bytes:
        data, where, length, piece = found
        at = int(where * len(data))
        return data[:at] + piece + data[at + length :]

    return st.tuples(st.sampled_from(seeds), place, st.integers(0, 20), new).map(splice)


def inputs_for(target: Target) -> st.SearchStrategy[bytes]:
    """All of the above for one target."""
    seeds = [data for data in target.seeds() if len(data) < 1 << 16]
    found = {json_key for data in seeds for json_key in _keys(data)}
    words = sorted({*target.words, *NUMBERS[:12], *TEXTS[:12], *found}) or ["x"]
    return st.one_of(
        edited(seeds, words), edited(seeds, words), statements(words), documents(words), st.binary(max_size=40)
    )


def _keys(data: bytes) -> set[str]:
    """Words that occur in a seed."""
    words = data.decode("utf-8", "replace").replace('"', " ").replace(":", " ").replace(",", " ").split()
    return {word for word in words if word.isidentifier() and len(word) < 24}


def hypothesis_inputs(target: Target, inputs: int, number: int) -> Iterator[Finding]:
    """Runs that many inputs; what is found does not end the run."""
    findings: list[Finding] = []

    @seed(number)
    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs_for(target))
    def run(data: bytes) -> None:
        if found := attempt(target, data):
            findings.append(found)

    run()
    yield from findings
