"""What texts count: where one says how many steps the ladder has, in words or as a range, that many there are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import re

import pytest

from flashladder.ladder.iteration import load_all
from flashladder.paths import ROOT
from flashladder.results.published import load

ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ("sixteen", "seventeen", "eighteen", "nineteen")
WORDS = {word: n for n, word in enumerate(TEENS, 16)} | {
    word: value + n
    for ten, value in (("twenty", 20), ("thirty", 30), ("forty", 40))
    for n, word in enumerate((ten, *(f"{ten}-{one}" for one in ONES)))
}
_WORD = "|".join(sorted(WORDS, key=len, reverse=True))
WHOLE = re.compile(rf"\b({_WORD})\s+(?:YAML deltas|iterations|steps)\b", re.IGNORECASE)
RANGE = re.compile(r"(?:\biterations? |\bsteps? |\bNN = |\bnumber: )0?1 to (\d\d)\b", re.IGNORECASE)
HISTORY = {"CHANGELOG.md", "transcript.md"}  # what was measured or printed then
TEXTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "mkdocs.yml", "noxfile.py", "tasks.py")),
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in HISTORY),
    *sorted((ROOT / "flashladder").rglob("*.py")),
    *sorted((ROOT / "analysis").rglob("*.py")),
]


def wrong(text: str) -> Iterator[str]:
    """What a text counts otherwise than the ladder has it: all of it, the published part, or up to a family's last."""
    ladder = load_all()
    published = [step.number for step in ladder if load().find(step.number, "a100", "seq4096")]
    ends = {step.family: step.number for step in ladder}
    for found in WHOLE.finditer(text):
        if WORDS[found[1].lower()] not in {len(ladder), len(published)}:
            yield found[0]
    for found in RANGE.finditer(text):
        if int(found[1]) not in {len(published), *ends.values()}:
            yield found[0]


def test_texts_count_the_steps_that_there_are() -> None:
    found = {path.relative_to(ROOT).as_posix(): list(wrong(path.read_text(encoding="utf-8"))) for path in TEXTS}
    assert {path: counts for path, counts in found.items() if counts} == {}


@pytest.mark.parametrize(
    "text",
    ["Nineteen iterations from a naive kernel", "twenty-nine\nYAML deltas", "iteration 1 to 27", "number: 1 to 31"],
)
def test_a_stale_count_is_found(text: str) -> None:
    assert len(list(wrong(text))) == 1


@pytest.mark.parametrize("path", [Path("README.md"), Path("mkdocs.yml")], ids=str)
def test_the_count_of_all_steps_is_found_where_it_stands(path: Path) -> None:
    assert WHOLE.search((ROOT / path).read_text(encoding="utf-8"))
