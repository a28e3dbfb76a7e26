"""Every parser and loader as a row of data, for both engines, the short run of the tests and the replay of findings.

Run: ``python -m tests.fuzz.run --list``.
"""

from __future__ import annotations

from tests.fuzz import documents, outputs, words
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {one.name: one for one in (*documents.TARGETS, *outputs.TARGETS, *words.TARGETS)}
