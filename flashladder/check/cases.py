"""All cases of a kernel, one after the other, and what came of them; on a GPU or on whatever `run` is.

Why apart from the command: the emulator's check runs the same cases by the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from flashladder.build.installed import chosen_configs, load_installed
from flashladder.cases.case import REPEATS, Run, Subject, cases_for, check_case
from flashladder.cases.inputs import Case
from flashladder.cases.reference import References
from flashladder.errors import FlashladderError
from flashladder.ladder.config import DTYPES, KernelConfig
from flashladder.ladder.iteration import load_iteration
from flashladder.results.schema import Accuracy, CaseResult


@dataclass(frozen=True)
class CheckReport:
    """The outcome of all cases of some kernels."""

    cases: tuple[CaseResult, ...]

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        """Cases that failed."""
        return tuple(case for case in self.cases if case.status == "fail")

    @property
    def passed(self) -> bool:
        """Whether at least one case passed and none failed."""
        return not self.failures and any(case.status == "pass" for case in self.cases)

    def render(self) -> str:
        """One line per kernel, one per failure, and a verdict."""
        lines = []
        for kernel in dict.fromkeys(case.kernel for case in self.cases):
            mine = [case for case in self.cases if case.kernel == kernel]
            count = {
                status: sum(case.status == status for case in mine) for status in ("pass", "fail", "not_applicable")
            }
            worst = max((_used(case.accuracy) for case in mine), default=0.0)
            lines.append(
                f"{kernel:88s} {count['pass']:3d} passed {count['fail']:3d} failed "
                f"{count['not_applicable']:2d} refused as it must; worst error {worst:4.0%} of what is allowed"
            )
        lines += [f"FAILED {case.kernel} {case.case}: {case.reason}" for case in self.failures]
        lines.append(f"{len(self.cases)} cases, {len(self.failures)} failed")
        return "\n".join(lines)


def _used(found: Accuracy | None) -> float:
    """The larger error as a share of what is allowed."""
    if found is None or found.max_error is None or found.rms_error is None:
        return 0.0
    return max(found.max_error / found.max_allowed, found.rms_error / found.rms_allowed)


def check_iteration(
    number: int,
    *,
    configs: Sequence[str] = ("prog",),
    dtypes: Sequence[str] = DTYPES,
    quick: bool = False,
    references: References | None = None,
    device: str = "cuda",
    run: Run | None = None,
    done: frozenset[tuple[str, str]] = frozenset(),
    cases: Callable[[KernelConfig], Sequence[Case]] | None = None,
    repeats: int = REPEATS,
    bar: bool = True,
) -> CheckReport:
    """Checks every selected configuration of an iteration.

    Args:
        number: of a step of the ladder.
        configs: selection keys (`prog`, `a100`, `all`, ...) or short forms.
        dtypes: ``fp16``, ``bf16`` or both.
        quick: short lengths only.
        references: share one over several calls, so that each reference is computed once.
        device: torch device of the tensors.
        run: the operator; None for the installed wheel's.
        done: (kernel key, case name) pairs to skip, from an earlier run.
        cases: the cases of a configuration; None for the GPU's.
        repeats: runs that must agree bit for bit.
        bar: show progress on a terminal.

    Raises:
        FlashladderError: no such iteration, wheel or configuration.
    """
    row_stride = load_iteration(number).row_stride
    chosen = chosen_configs(number, configs, dtypes)
    if run is None:
        installed = load_installed(number)
        for config in chosen:
            installed.require(config)
        run = installed.run
    subjects = [Subject(number, config, run, row_stride) for config in chosen]
    listed = cases or (lambda config: cases_for(config, quick=quick))
    work = [(s, case) for s in subjects for case in listed(s.config) if (s.key, case.name) not in done]
    references = references or References()
    progress = tqdm(work, desc=f"check {number:02d}", unit="case", disable=None if bar else True, leave=False)
    return CheckReport(tuple(_outcomes(progress, references, device, repeats)))


def _outcomes(
    work: Iterable[tuple[Subject, Case]], references: References, device: str, repeats: int
) -> Iterator[CaseResult]:
    """The result of each case; ends early when a failed launch has broken the CUDA context for those after it."""
    failed = False
    for subject, case in work:
        try:
            outcome = check_case(subject, case, references, device, repeats)
        except FlashladderError:
            if not failed:
                raise
            return
        failed = failed or outcome.status == "fail"
        yield outcome
