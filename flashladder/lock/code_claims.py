"""The claims of `iterations/*.yaml` about machine code and PTX: child against parent at equal tile, in every lock.

Why: "the address arithmetic leaves the main loop" is a sentence until an assembler agrees, and what one architecture's
assembler does, another's need not. Each claim compares counts of two kernels that differ in nothing but the step
(`flashladder.lock.step_counts`), on each architecture of its family; what makes a claim worth stating:
`flashladder.lock.verdict`.

Run: ``python -m flashladder.lock.code_claims [N ...]`` prints every claim with both counts; exit code 1 when one does
not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flashladder.arguments import Parser, whole
from flashladder.errors import Checked, CheckFailed, FlashladderError, one_line_errors
from flashladder.ladder.claim import LOCK_ARCHES, Claim
from flashladder.ladder.iteration import Iteration, claim_configs, load_all, load_iteration
from flashladder.lock.schema import LOCKS
from flashladder.lock.step_counts import COUNTS, StepCounts, StepKernel, lock_problems, read_counts, with_classes
from flashladder.lock.verdict import Counts, Sides, Verdict, checked, judge


def verify(
    numbers: Sequence[int] | None = None, counts: StepCounts | None = None, arches: Sequence[str] = LOCK_ARCHES
) -> list[Verdict]:
    """Every verdict on claims about machine code and PTX of iterations `numbers` (None: all).

    Args:
        numbers: of iterations.
        counts: of their kernels; the committed ones unless given.
        arches: the architectures to judge machine code on.

    Raises:
        FlashladderError: the counts are missing, malformed, or lack a kernel.
    """
    counts = counts or read_counts()
    ladder = load_all() if numbers is None else [load_iteration(number) for number in numbers]
    found = []
    for iteration in ladder:
        if not (iteration.expect.sass or iteration.expect.ptx):
            continue
        kernels = _kernels(iteration, counts)
        config = claim_configs(iteration)[0]
        tile = f" at ({config.tile.replace(',', ', ')})"
        for claim in (*iteration.expect.sass, *iteration.expect.ptx):
            made = [arch for arch in arches if arch in iteration.family.targets.arches]
            places = ["PTX"] if claim.scope == "ptx" else made
            sides = {place: _sides(claim, kernels, place) for place in places}
            found += judge(iteration.number, claim, sides, tile)
    return found


def next_step(iteration: Iteration) -> Iteration:
    """The step that follows an iteration, which stands in for a parent where there is none.

    Raises:
        FlashladderError: no iteration of its family has it as its parent.
    """
    if (found := follower(iteration)) is None:
        raise FlashladderError(
            f"no iteration follows {iteration.number}, whose claims are judged against the one that does",
            expected="one of its family whose parent it is",
        )
    return found


def follower(iteration: Iteration) -> Iteration | None:
    """The first iteration of its family that has it as its parent, if there is one."""
    return next((o for o in load_all() if o.parent == iteration.number and o.family is iteration.family), None)


def _kernels(iteration: Iteration, counts: StepCounts) -> tuple[StepKernel, StepKernel | None, StepKernel]:
    """The iteration's kernel, its parent's, and the one that stands in its place when the step is taken back."""
    config, parent_config = claim_configs(iteration)
    own = counts.of(iteration.number, config)
    if iteration.parent is None or parent_config is None:
        other = next_step(iteration)
        return own, None, counts.of(other.number, claim_configs(other)[0])
    parent = counts.of(iteration.parent, parent_config)
    return own, parent, parent


def _sides(claim: Claim, kernels: tuple[StepKernel, StepKernel | None, StepKernel], place: str) -> Sides:
    own, parent, null = kernels
    return Sides(
        scope_counts(claim, own, place),
        None if parent is None else scope_counts(claim, parent, place),
        scope_counts(claim, null, place),
    )


def scope_counts(claim: Claim, kernel: StepKernel, place: str) -> Counts:
    """The counts that a claim is about: of the PTX, the whole kernel or its main loop, on one architecture.

    Raises:
        FlashladderError: the kernel was not counted there.
    """
    if claim.scope == "ptx":
        return with_classes(kernel.ptx, of_sass=False)
    if place not in kernel.sass:
        raise FlashladderError(f"no counts of iteration {kernel.iteration} on {place}", found=", ".join(kernel.sass))
    code = kernel.sass[place]
    return with_classes(code.main_loop if claim.scope == "main_loop" else code.kernel, of_sass=True)


def check(
    numbers: Sequence[int] | None = None,
    arches: Sequence[str] = LOCK_ARCHES,
    path: Path = COUNTS,
    locks: Path = LOCKS,
) -> Checked:
    """Whether the claims hold, and what was counted is what is locked.

    Raises:
        FlashladderError: as `verify`.
    """
    counts = read_counts(path)
    if problems := list(lock_problems(counts, locks)):
        return Checked("", failure=CheckFailed(f"{len(problems)} counts do not fit the locks", found=problems[0]))
    return checked("machine code", verify(numbers, counts, arches), hint="compare with: invoke diff PARENT CHILD")


def main(argv: Sequence[str] | None = None) -> int:
    """Checks the claims of the iterations named, or of all."""
    parser = Parser(
        prog="python -m flashladder.lock.code_claims",
        description="Checks the claims of the iterations about machine code and PTX.",
        epilog="example: python -m flashladder.lock.code_claims 8 9",
    )
    parser.add_argument("iterations", type=whole, nargs="*", metavar="N", help="numbers (default: all)")
    parser.add_argument("--arch", action="append", choices=LOCK_ARCHES, help="only this architecture (default: all)")
    args = parser.parse_args(argv)
    with one_line_errors():
        check(args.iterations or None, args.arch or LOCK_ARCHES).show()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
