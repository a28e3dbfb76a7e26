"""Words of the pages of reasons beside the calls in them: the GPU that is named, and the direction that is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import re

import pytest

from flashladder.report.reasons.page import FOLDER

PAGES = sorted(FOLDER.glob("*.md"))
CALL = re.compile(r'\{\{ (?P<name>\w+)\("(?P<first>[^"]*)"(?P<rest>[^}]*)\) \}\}')
GPUS = {"A100": "a100", "H200": "h200", "RTX 3090": "rtx3090"}
GPU = re.compile(rf"(?:{'|'.join(GPUS)})(?!'s)\b")  # the A100's knobs are no subject
DIRECTION = re.compile(
    r"\b(?:(?P<rises>more|ris(?:es?|ing)|gr(?:ows?|ew)|gains?|rose|longer|larger)"
    r"|(?P<falls>fewer|less|fall(?:s|ing)?|fell|loses?|lost|(?<!not )shrinks?|shorter|smaller|without|drops?))\b"
)


def calls(text: str, *names: str) -> Iterator[tuple[re.Match[str], str]]:
    """Calls of these names, each with what stands before it in its paragraph; other calls are blank there."""
    for paragraph in text.split("\n\n"):
        for call in CALL.finditer(paragraph):
            if call["name"] in names:
                yield call, CALL.sub("", paragraph[: call.start()])


def wrong_gpus(text: str) -> list[str]:
    """Speeds of another GPU than the one that the sentence is about."""
    return [
        call[0]
        for call, before in calls(text, "gains", "loses", "keeps")
        if [GPUS[name] for name in GPU.findall(before)][-1:] != [call["first"]]
    ]


def wrong_directions(text: str) -> list[str]:
    """Changes whose nearest word of direction, in their part of the sentence, is the opposite one."""
    found = []
    for call, before in calls(text, "falls", "rises"):
        words = [match.lastgroup for match in DIRECTION.finditer(re.split(r"[.;:] ", before)[-1])]
        if words and words[-1] != call["name"]:
            found.append(call[0])
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_words_name_the_gpu_and_the_direction_of_their_figures(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert wrong_gpus(text) == []
    assert wrong_directions(text) == []


def test_a_turned_sentence_is_noticed() -> None:
    assert wrong_gpus('The A100 {{ gains("a100") }}, the H200 {{ loses("h200", at=512) }}.') == []
    assert wrong_gpus('The H200 {{ gains("a100") }}.') == ['{{ gains("a100") }}']
    assert wrong_directions('It issues more, from {{ rises("total", "h200") }}.') == []
    assert wrong_directions('It issues fewer, from {{ rises("total", "h200") }}.') == ['{{ rises("total", "h200") }}']
