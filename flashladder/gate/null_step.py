"""The null step: for every iteration, the claims that fail when its parent's kernel stands in its place.

Why: claims that would hold of any kernel explain nothing. Each iteration needs one that its parent refutes, in every
place where it is judged; the first has no parent, and the step that follows it takes its place. The table of them is
docs/null-step.md. Everything comes from committed files, so that nothing is compiled.

Run:
    python -m flashladder.gate.null_step            # compares docs/null-step.md with what the claims give
    python -m flashladder.gate.null_step --write    # writes it
Exit code: 0 current, 1 stale or a step without such a claim, 2 it could not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashladder.arguments import Parser
from flashladder.emulate import agreement as emulator_agreement
from flashladder.emulate.reading import NAME, load_reading
from flashladder.errors import Checked, CheckFailed, one_line_errors
from flashladder.files import relative, write_atomic
from flashladder.ladder.claim import COUNTERS, LOCK_ARCHES, Claim
from flashladder.ladder.iteration import Iteration, claim_configs, load_all
from flashladder.lock import code_claims as claims
from flashladder.lock.code_claims import follower
from flashladder.lock.schema import LOCKS
from flashladder.lock.step_counts import COUNTS, read_counts
from flashladder.lock.verdict import Verdict, plain
from flashladder.paths import RESULTS, ROOT

PAGE = ROOT / "docs" / "null-step.md"
HOW_TO_WRITE = "run: python -m flashladder.gate.null_step --write"
HEAD = """\
# The null step

Written by `python -m flashladder.gate.null_step --write` from committed counts; do not edit. `invoke gate` compares.

For every iteration, the claims of its `expect` that fail when the step is taken back, that is when the kernel of its
parent is judged in its place (for the first iteration, which has no parent: that of the step that follows it). A step
without such a claim would be explained by nothing that can be seen in its code, and the gate refuses it. Claims that
say `unchanged` hold either way and are not listed.

The columns hold the count of the parent (for the first iteration: of the one that follows) and of the iteration: of
machine code on each architecture that is locked (sm_80 is the A100's, sm_86 the RTX 3090's, sm_89 the RTX 4090's, sm_90
that of H100 and H200), of the PTX that ships, or of one launch, as a GPU's counters (Nsight Compute) and the emulator's
give it. In brackets: the claim is not made there, and does not hold there. Names that are no opcodes are measures of
`flashladder/machine_code/opcodes.py`.

"""


@dataclass(frozen=True)
class Row:
    """One claim with its verdicts, one per place."""

    claim: Claim
    verdicts: tuple[Verdict, ...]

    @property
    def refuted(self) -> bool:
        """Whether taking the step back refutes the claim wherever it is made."""
        made = [verdict for verdict in self.verdicts if verdict.claimed]
        return bool(made) and all(verdict.refuted for verdict in made)


def every_verdict(results: Path = RESULTS) -> list[Verdict]:
    """All verdicts that committed files give: machine code, PTX, GPUs' counters, the emulator's.

    Raises:
        FlashladderError: a file is missing or malformed.
    """
    files = emulator_agreement.counter_files(results)
    measured = [one for path in files for one in emulator_agreement.hardware_claims(path, results / LOCKS.name)]
    emulated = emulator_agreement.claims(load_reading(results / NAME))
    return [*claims.verify(counts=read_counts(results / COUNTS.relative_to(RESULTS))), *measured, *emulated]


def rows(iteration: Iteration, verdicts: Sequence[Verdict]) -> list[Row]:
    """The claims of an iteration, each with its verdicts."""
    own = [verdict for verdict in verdicts if verdict.iteration == iteration.number]
    return [Row(claim, tuple(v for v in own if v.claim == claim)) for claim in iteration.expect.claims]


def unrefuted(verdicts: Sequence[Verdict]) -> list[str]:
    """Iterations of which no claim is refuted by taking the step back."""
    return [
        f"iteration {iteration.number}: every claim holds without the step"
        for iteration in load_all()
        if not any(row.refuted for row in rows(iteration, verdicts)) and not _alone(iteration)
    ]


def _alone(iteration: Iteration) -> bool:
    """Whether there is no step to take back: nothing of its family before it, nothing after it, nothing claimed."""
    return not iteration.expect.claims and claim_configs(iteration)[1] is None and follower(iteration) is None


def short(claim: Claim) -> str:
    """A claim with the short names of counters."""
    text = str(claim)
    for name, full in COUNTERS.items():
        text = text.replace(full, name)
    return text


def render(verdicts: Sequence[Verdict]) -> str:
    """The page."""
    return HEAD + "\n".join(_lines(verdicts)) + "\n"


def _lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield f"| # | refuted by the null step | {' | '.join(LOCK_ARCHES)} | PTX | one launch |"
    yield "| --- | --- |" + " ---: |" * len(LOCK_ARCHES) + " ---: | --- |"
    for iteration in load_all():
        for row in rows(iteration, verdicts):
            if row.refuted:
                at = {verdict.place: _cell(verdict) for verdict in row.verdicts}
                launch = ", ".join(
                    f"{place}: {cell}" for place, cell in at.items() if place not in (*LOCK_ARCHES, "PTX")
                )
                cells = [at.get(place, "") for place in (*LOCK_ARCHES, "PTX")]
                yield f"| {iteration.number} | {short(row.claim)} | {' | '.join(cells)} | {launch} |"


def _cell(verdict: Verdict) -> str:
    """``76 to 30``; the number that takes the place of the first iteration's; brackets where it is not claimed."""
    first = verdict.null if verdict.before is None else verdict.before
    text = f"{plain(first)} to {plain(verdict.after)}"
    return text if verdict.claimed else f"({text})"


def problems(page: Path, verdicts: Sequence[Verdict]) -> list[str]:
    """Steps without a claim that the null step refutes, and a page that is not what the claims give."""
    found = unrefuted(verdicts)
    if not page.is_file() or page.read_bytes() != render(verdicts).encode():
        found.append(f"{relative(page)}: not what the claims give; {HOW_TO_WRITE}")
    return found


def check(page: Path = PAGE, results: Path = RESULTS) -> Checked:
    """Whether the null step refutes a claim of each step and the page is current, and how many it refutes.

    Raises:
        FlashladderError: as `every_verdict`.
    """
    verdicts = every_verdict(results)
    if found := problems(page, verdicts):
        return Checked("", failure=CheckFailed("; ".join(found)))
    n = sum(row.refuted for iteration in load_all() for row in rows(iteration, verdicts))
    return Checked(f"{n} claims fail without their steps, at least one of each step")


def main(argv: Sequence[str] | None = None) -> int:
    """Writes or compares the page."""
    parser = Parser(
        prog="python -m flashladder.gate.null_step",
        description="Which claims fail when a step is taken back.",
        epilog="example: python -m flashladder.gate.null_step --write",
    )
    parser.add_argument("--write", action="store_true", help="write docs/null-step.md")
    if parser.parse_args(argv).write:
        print(f"wrote {relative(write_atomic(PAGE, render(every_verdict())))}")
    check().show()
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
