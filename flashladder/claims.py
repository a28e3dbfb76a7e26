"""The claims of `iterations/*.yaml` about machine code, checked in our own: child against parent at equal tile.

Why: "the address arithmetic leaves the main loop" is a sentence until an assembler agrees. Each claim compares opcode
counts of two cubins that differ in nothing but the step; the smallest fall asked for is 60 % of the published one.

Run: ``python -m flashladder.claims [N ...]`` prints every claim with both counts; exit code 1 when one does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flashladder.arguments import Parser, whole
from flashladder.compile import compile_many
from flashladder.config import KernelConfig
from flashladder.errors import CheckFailed, one_line_errors
from flashladder.iteration import Claim, Iteration, claim_configs, load_all, load_iteration
from flashladder.sass import Sass, count, disassemble

ARCH = "sm_80"  # the architecture of the published listings


@dataclass(frozen=True)
class Verdict:
    """One claim beside what the machine code says.

    Attributes:
        iteration: the child's number.
        config: the child's configuration; `parent_config` the parent's (None without one).
        before: the parent's count (of the claim's metric), None without a parent.
        after: the child's count.
        holds: whether the claim holds.
    """

    iteration: int
    claim: Claim
    config: KernelConfig
    parent_config: KernelConfig | None
    before: float | None
    after: float
    holds: bool

    def __str__(self) -> str:
        """One line: verdict, claim, counts, tile."""
        counts = f"{self.after:g}" if self.before is None else f"{self.before:g} -> {self.after:g}"
        if self.before:
            counts += f" ({100 * (self.after - self.before) / self.before:+.1f} %)"
        tile = f"({self.config.B_r}, {self.config.B_c}, {self.config.n_warps})"
        return f"{'holds' if self.holds else 'FAILS'}  iteration {self.iteration} at {tile}: {self.claim}: {counts}"


def verify(numbers: Sequence[int] | None = None, arch: str = ARCH) -> list[Verdict]:
    """Compiles (cached in the store) and checks every machine-code claim of iterations `numbers` (None: all).

    Raises:
        FlashladderError: a kernel does not compile, or its cubin cannot be read.
    """
    ladder = load_all() if numbers is None else [load_iteration(number) for number in numbers]
    pairs = [(iteration, *claim_configs(iteration)) for iteration in ladder if iteration.expect.sass]
    kernels: dict[tuple[Iteration, KernelConfig], Sass | None] = {}
    for iteration, config, parent_config in pairs:
        kernels[iteration, config] = None
        if iteration.parent is not None and parent_config is not None:
            kernels[load_iteration(iteration.parent), parent_config] = None
    entries = compile_many([(iteration, config, arch) for iteration, config in kernels])
    code = {kernel: disassemble(entry.cubin) for kernel, entry in zip(kernels, entries, strict=True)}
    found = []
    for iteration, config, parent_config in pairs:
        parent = None
        if iteration.parent is not None and parent_config is not None:
            parent = code[load_iteration(iteration.parent), parent_config]
        child = (config, code[iteration, config])
        found += [judge(iteration.number, claim, child, (parent_config, parent)) for claim in iteration.expect.sass]
    return found


def judge(
    number: int,
    claim: Claim,
    child: tuple[KernelConfig, Sass],
    parent: tuple[KernelConfig | None, Sass | None],
) -> Verdict:
    """The verdict on one claim of iteration `number`, from both kernels' machine code."""
    after = scope_counts(claim, child[1])
    before = None if parent[1] is None else scope_counts(claim, parent[1])
    return Verdict(
        iteration=number,
        claim=claim,
        config=child[0],
        parent_config=parent[0],
        before=None if before is None else claim.measure(before),
        after=claim.measure(after),
        holds=claim.holds(after, before),
    )


def scope_counts(claim: Claim, sass: Sass) -> dict[str, int]:
    """The counts that a claim is about: of the whole kernel or of its main loop."""
    return count(sass.main_loop()) if claim.scope == "main_loop" else sass.counts()


def check(numbers: Sequence[int] | None = None, arch: str = ARCH) -> None:
    """Prints every verdict.

    Raises:
        CheckFailed: a claim does not hold.
    """
    tell("machine code", verify(numbers, arch), hint="compare with: invoke diff PARENT CHILD")


class Told(Protocol):
    """What `tell` needs of a verdict on a claim, whose text is its line."""

    @property
    def iteration(self) -> int:
        """The number of the iteration that claims it."""

    @property
    def holds(self) -> bool:
        """Whether the claim holds."""


def tell(about: str, verdicts: Sequence[Told], hint: str | None = None) -> None:
    """Prints every verdict on claims `about` something.

    Raises:
        CheckFailed: a claim does not hold.
    """
    for verdict in verdicts:
        print(verdict)
    broken = [verdict for verdict in verdicts if not verdict.holds]
    if broken:
        raise CheckFailed(
            f"{len(broken)} of {len(verdicts)} claims about {about} do not hold",
            where=", ".join(sorted({f"iteration {verdict.iteration}" for verdict in broken})),
            hint=hint,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Checks the claims of the iterations named, or of all."""
    parser = Parser(
        prog="python -m flashladder.claims",
        description="Checks the machine-code claims of the iterations.",
        epilog="example: python -m flashladder.claims 8 9",
    )
    parser.add_argument("iterations", type=whole, nargs="*", metavar="N", help="numbers (default: all)")
    parser.add_argument("--arch", default=ARCH, help=f"architecture (default: {ARCH})")
    args = parser.parse_args(argv)
    with one_line_errors():
        check(args.iterations or None, args.arch)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
