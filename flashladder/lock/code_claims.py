"""The claims of `iterations/*.yaml` about machine code and PTX: child against parent at equal tile, in every lock.

Each claim compares counts of two kernels that differ only by the step (`flashladder.lock.step_counts`), on each
architecture of its family. A claim that is not ``unchanged`` is refused if it also holds with the parent's kernel in
the child's place. A claim is also refused if it holds on an architecture that its `on` omits.

Run: ``python -m flashladder.lock.code_claims [N ...]`` prints every claim with both counts; exit code 1 when one does
not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flashladder.arguments import module_parser, whole
from flashladder.errors import Checked, CheckFailed, FlashladderError, run_main
from flashladder.ladder.claim import LOCK_ARCHES, PLACES, Claim
from flashladder.ladder.iteration import Iteration, claim_configs, load_all, load_iteration
from flashladder.lock.step_counts import COUNTS, StepCounts, StepKernel, lock_problems, read_counts, with_classes

Counts = Mapping[str, float]


@dataclass(frozen=True)
class Sides:
    """The counts for a claim: the iteration's own, and its parent's (None for the first iteration).

    `null` are the counts without the step: the parent's or, for the first iteration, those of the step after it.
    """

    own: Counts
    parent: Counts | None
    null: Counts


@dataclass(frozen=True)
class Verdict:
    """One claim of an iteration at one place: an architecture, ``PTX``, ``emulator`` or a folder of results.

    `before` is the parent's count of the metric (None without a parent), `after` the iteration's. `claimed`: its `on`
    includes the place. `refuted`: it is false without the step. `problem` says why it fails; empty if it does not.
    """

    iteration: int
    claim: Claim
    place: str
    tile: str
    before: float | None
    after: float
    claimed: bool
    refuted: bool
    problem: str

    @property
    def holds(self) -> bool:
        """Whether the claim has no problem here."""
        return not self.problem

    @property
    def counts(self) -> str:
        """``4 -> 1 (-75.0 %)``."""
        if self.before is None:
            return plain(self.after)
        text = f"{plain(self.before)} -> {plain(self.after)}"
        return text + (f" ({100 * (self.after - self.before) / self.before:+.1f} %)" if self.before else "")

    def __str__(self) -> str:
        where = f"iteration {self.iteration}{self.tile} on {self.place}"
        claim = str(self.claim) if self.claimed else f"not claimed here: {self.claim}"
        line = f"{'holds' if self.holds else 'FAILS'}  {where}: {claim}: {self.counts}"
        return f"{line}; {self.problem}" if self.problem else line


def plain(count: float) -> str:
    """A count for texts: whole numbers with a comma after thousands, others with four digits."""
    return f"{count:,.0f}" if float(count).is_integer() else f"{count:.4g}"


def judge(
    number: int, claim: Claim, places: Mapping[str, Sides], tile: str = "", *, confirms: bool = False
) -> list[Verdict]:
    """The verdict on one claim of iteration `number` at each place; `tile` is the lines' text for the configuration.

    With `confirms`, it judges only whether the claim holds, and not whether it says something about the step.
    """
    found = [_judge(number, claim, place, sides, tile) for place, sides in places.items()]
    claimed = [verdict for verdict in found if verdict.claimed]
    if confirms or any(verdict.problem for verdict in claimed):
        return found
    absent = [claim.absent(places[verdict.place].own, places[verdict.place].parent) for verdict in claimed]
    if never := [name for name in claim.names if all(name in names for names in absent)]:
        problem = f"no {never[0]} in either kernel"
    elif claim.form != "unchanged" and not all(verdict.refuted for verdict in claimed):
        problem = "it says nothing about the step, for it holds without it: write 'unchanged'"
    else:
        return found
    return [replace(verdict, problem=problem) if verdict.claimed else verdict for verdict in found]


def _judge(number: int, claim: Claim, place: str, sides: Sides, tile: str) -> Verdict:
    holds, holds_without = claim.holds(sides.own, sides.parent), claim.holds(sides.null, sides.parent)
    claimed = not claim.on or place in claim.on
    problem = ""
    if not claimed:
        problem = "it holds here too, which its 'on' denies" if holds else ""
    elif not holds:
        missing = claim.absent(sides.own, sides.parent)
        problem = f"no {missing[0]} in either kernel" if len(missing) == len(claim.names) else "it does not hold"
    return Verdict(
        iteration=number,
        claim=claim,
        place=place,
        tile=tile,
        before=None if sides.parent is None else claim.measure(sides.parent),
        after=claim.measure(sides.own),
        claimed=claimed,
        refuted=claimed and holds and not holds_without,
        problem=problem,
    )


def checked(about: str, verdicts: Sequence[Verdict], hint: str | None = None) -> Checked:
    """The result of a check that all `verdicts` hold; `about` names the subject of the claims."""
    lines = tuple(map(str, verdicts))
    broken = [verdict for verdict in verdicts if not verdict.holds]
    if not broken:
        return Checked(f"{len(verdicts)} claims hold", lines)
    first = broken[0]
    what = f"{len(broken)} of {len(verdicts)} claims about {about} do not hold"
    where = ", ".join(sorted({f"iteration {verdict.iteration}" for verdict in broken}))
    found = f"{first.claim.metric}{PLACES.get(first.claim.scope, '')} on {first.place}: {first.problem}"
    failure = CheckFailed(what, where=where, found=found, hint=hint)
    return Checked("", lines, problems=tuple(map(str, broken)), failure=failure)


def verify(
    numbers: Sequence[int] | None = None, counts: StepCounts | None = None, arches: Sequence[str] = LOCK_ARCHES
) -> list[Verdict]:
    """Every verdict on claims of iterations `numbers` (None: all), about PTX and, on `arches`, about machine code.

    `counts` are by default the committed ones; an error if these are missing or malformed, or if they lack a kernel.
    """
    counts, found = counts or read_counts(), []
    for iteration in load_all() if numbers is None else map(load_iteration, numbers):
        claims = (*iteration.expect.sass, *iteration.expect.ptx)
        if not claims:
            continue
        config, parent_config = claim_configs(iteration)
        own, parent = counts.of(iteration.number, config), None
        if iteration.parent is None or parent_config is None:
            other = next_step(iteration)
            null = counts.of(other.number, claim_configs(other)[0])
        else:
            null = parent = counts.of(iteration.parent, parent_config)
        made = [arch for arch in arches if arch in iteration.family.targets.arches]
        for claim in claims:
            sides = {
                place: Sides(
                    scope_counts(claim, own, place),
                    scope_counts(claim, parent, place) if parent else None,
                    scope_counts(claim, null, place),
                )
                for place in (["PTX"] if claim.scope == "ptx" else made)
            }
            found += judge(iteration.number, claim, sides, f" at ({config.tile.replace(',', ', ')})")
    return found


def next_step(iteration: Iteration) -> Iteration:
    """The step of the same family that follows an iteration; claims of a first iteration are compared with it."""
    for step in load_all():
        if step.parent == iteration.number and step.family is iteration.family:
            return step
    what = f"no iteration follows {iteration.number}, whose claims are judged against the one that does"
    raise FlashladderError(what, expected="one of its family whose parent it is")


def scope_counts(claim: Claim, kernel: StepKernel, place: str) -> Counts:
    """The counts for a claim: of the PTX, the whole kernel or its main loop, on one architecture."""
    if claim.scope == "ptx":
        return with_classes(kernel.ptx, of_sass=False)
    if place not in kernel.sass:
        raise FlashladderError(f"no counts of iteration {kernel.iteration} on {place}", found=", ".join(kernel.sass))
    code = kernel.sass[place]
    return with_classes(code.main_loop if claim.scope == "main_loop" else code.kernel, of_sass=True)


def check(numbers: Sequence[int] | None = None, arches: Sequence[str] = LOCK_ARCHES, path: Path = COUNTS) -> Checked:
    """Whether the claims hold, and the counted kernels are the locked ones; errors as of `verify`."""
    counts = read_counts(path)
    if problems := list(lock_problems(counts)):
        return Checked("", failure=CheckFailed(f"{len(problems)} counts do not fit the locks", found=problems[0]))
    return checked("machine code", verify(numbers, counts, arches), hint="compare with: invoke diff PARENT CHILD")


def main(argv: Sequence[str] | None = None) -> None:
    """Checks the claims of the named iterations, or of all."""
    parser = module_parser("lock.code_claims", "Checks the claims of the iterations about machine code and PTX.", "8 9")
    parser.add_argument("iterations", type=whole, nargs="*", metavar="N", help="numbers (default: all)")
    parser.add_argument("--arch", action="append", choices=LOCK_ARCHES, help="only this architecture (default: all)")
    args = parser.parse_args(argv)
    check(args.iterations or None, args.arch or LOCK_ARCHES).show()


if __name__ == "__main__":
    run_main(main)
