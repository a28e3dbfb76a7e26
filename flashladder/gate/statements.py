"""Every sentence about a step that can be checked has its claims, and every claim its sentence.

Why: the bound of a claim is held to what is measured (`flashladder.lock.verdict`), but nothing measured tells that a
claim is missing. ``configs/statements.yaml`` names, apart from the iterations, the words of each step and the claims
that stand for them: deleting a claim, turning it around, or rewriting the words without the claims is an error.

Run: ``python -m flashladder.gate.statements``; exit code 1 when words and claims do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from flashladder.errors import Checked, CheckFailed, one_line_errors
from flashladder.files import relative
from flashladder.ladder.claim import Claim, CounterName, PtxName, SassName
from flashladder.ladder.iteration import Iteration, load_all
from flashladder.located import read_located, validate
from flashladder.paths import CONFIGS, ITERATIONS

STATEMENTS = CONFIGS / "statements.yaml"
SCOPES = {"kernel": "sass", "main_loop": "main_loop", "ptx": "ptx", "counters": "counters"}
Form = Literal["falls", "rises", "unchanged", "number"]


class Statement(BaseModel):
    """Words of a step, and the form of each claim that stands for them.

    Attributes:
        iterations: that make the claims.
        of: the iteration whose `why` holds the words; the first of `iterations` unless given.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    iterations: Annotated[tuple[int, ...], Field(strict=False, min_length=1)]
    says: Annotated[str, Field(min_length=5)]
    of: int | None = None
    sass: dict[SassName, Form] = {}
    main_loop: dict[SassName, Form] = {}
    ptx: dict[PtxName, Form] = {}
    counters: dict[CounterName, Form] = {}

    def claims(self) -> Iterator[tuple[str, str, str]]:
        """Scope, metric and form of each."""
        for scope in SCOPES.values():
            yield from ((scope, metric, form) for metric, form in getattr(self, scope).items())


class StatementsFile(BaseModel):
    """``configs/statements.yaml``."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    statements: Annotated[tuple[Statement, ...], Field(strict=False)]


def read_statements(path: Path = STATEMENTS) -> tuple[Statement, ...]:
    """The committed statements.

    Raises:
        FlashladderError: the file is missing or malformed.
    """
    return validate(StatementsFile, read_located(path)).statements


def problems(path: Path = STATEMENTS, folder: Path = ITERATIONS) -> list[str]:
    """Where words and claims do not fit, a line each."""
    ladder = {iteration.number: iteration for iteration in load_all(folder)}
    statements = read_statements(path)
    found = [line for statement in statements for line in _unbacked(statement, ladder)]
    named = {(n, scope, metric) for one in statements for n in one.iterations for scope, metric, _ in one.claims()}
    for number, iteration in ladder.items():
        unnamed = [claim for claim in iteration.expect.claims if (number, *_key(claim)) not in named]
        found += [f"{relative(iteration.path)}: no statement in {relative(path)} stands on: {one}" for one in unnamed]
    return found


def _unbacked(statement: Statement, ladder: Mapping[int, Iteration]) -> Iterator[str]:
    author = statement.of or statement.iterations[0]
    says = f"iteration {author} says {statement.says!r}"
    if author not in ladder or statement.says not in ladder[author].why:
        yield f"{says}: its 'why' does not"
    if not any(statement.claims()):
        yield f"{says}: no claim stands for it"
    for number in statement.iterations:
        made = {_key(claim): claim.form for claim in ladder[number].expect.claims} if number in ladder else {}
        for scope, metric, form in statement.claims():
            if made.get((scope, metric)) != form:
                claimed = made.get((scope, metric), "nothing")
                yield f"{says}: iteration {number} must claim {metric} ({scope}): {form}, and claims {claimed}"


def _key(claim: Claim) -> tuple[str, str]:
    return SCOPES[claim.scope], claim.metric


def check(path: Path = STATEMENTS, folder: Path = ITERATIONS) -> Checked:
    """Whether words and claims fit, and how many statements there are.

    Raises:
        FlashladderError: as `read_statements`.
    """
    if not (found := tuple(problems(path, folder))):
        return Checked(f"{len(read_statements(path))} statements have their claims, every claim its statement")
    what = f"{len(found)} statements and claims do not fit"
    return Checked("", found, problems=found, failure=CheckFailed(what, where=relative(path), found=found[0]))


if __name__ == "__main__":
    with one_line_errors():
        check().show()
