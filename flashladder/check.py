"""Is a kernel correct? Every configuration on a list of shapes, layouts and logits, against an fp64 reference.

Why: a fast wrong kernel is worthless, and most checkers pass NaN. Here O and all memory around it start as NaN, every
comparison fails on NaN, nothing outside O may change, and ten repeats must agree bit for bit (rule 7 of the
measurement protocol). A kernel that cannot take a tensor (iteration 16 fixes its row stride) must refuse it.

Run on a machine with a GPU:
    python -m flashladder.check 7                        # one iteration, all its configurations, fp16 and bf16
    python -m flashladder.check --all --out check.json.gz      # resumes when the file exists
and on any other, small shapes on the PTX that ships (`flashladder.check_emulator`):
    python -m flashladder.check --all --backend emulator --out check.json.gz
Exit code: 0 all correct, 1 a check failed, 2 it could not run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
import time

from tqdm import tqdm

from flashladder.arguments import CONFIGS, Parser, result_file, seconds, whole
from flashladder.check_case import REPEATS, Run, Subject, cases_for, check_case
from flashladder.check_results import earlier, earlier_emulated, emulated_identity, rule, tell_kept, write_emulated
from flashladder.config import DTYPES, KernelConfig
from flashladder.device import Device, open_device
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.inputs import Case
from flashladder.installed import chosen_configs, load_installed
from flashladder.iteration import load_all, load_iteration
from flashladder.reference import References
from flashladder.references import reference_identity
from flashladder.result_schema import Accuracy, CaseResult, CheckResult
from flashladder.results import write_result

BACKENDS = ("gpu", "emulator")


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
        number: 1 to 16.
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
    row_stride = load_iteration(number).parts.row_stride
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


def run_checks(numbers: Iterable[int], options: argparse.Namespace, device: Device) -> CheckReport:
    """Checks iterations one by one; after each, writes everything so far to `options.out`."""
    start = time.monotonic()
    chosen = {number: chosen_configs(number, options.configs, options.dtypes) for number in numbers}
    kernels = {
        kernel.key: kernel
        for number, configs in chosen.items()
        for kernel in (load_installed(number).identity(config, device.gpu.arch) for config in configs)
    }
    cases = earlier(options.out, kernels, device.gpu.uuid)
    tell_kept(options.out, cases)
    references = References()
    for number in chosen:
        if options.budget and time.monotonic() - start > options.budget:
            print(CheckReport(cases).render())
            raise FlashladderError(
                f"not finished: the budget of {options.budget:.0f} s was spent before iteration {number}",
                hint="run it again with the same --out to go on",
            )
        cases += check_iteration(
            number,
            configs=options.configs,
            dtypes=options.dtypes,
            quick=options.quick,
            references=references,
            done=frozenset((case.kernel, case.case) for case in cases),
        ).cases
        if options.out:
            result = CheckResult(
                rung=device.rung,
                gpu=device.gpu,
                host=device.host,
                kernels={key: kernels[key] for key in dict.fromkeys(case.kernel for case in cases)},
                reference=reference_identity({}),
                rule=rule(),
                cases=cases,
            )
            write_result(options.out, result)
    return CheckReport(cases)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as a namespace."""
    parser = Parser(
        prog="python -m flashladder.check",
        description="Checks kernels against an fp64 reference: shapes, layouts, large logits, NaN poison, repeats.",
        epilog="example: python -m flashladder.check 7 --configs a100",
    )
    parser.add_argument("numbers", nargs="*", type=whole, metavar="N", help="iterations, 1 to 16")
    parser.add_argument("--all", action="store_true", help="all sixteen")
    parser.add_argument("--configs", nargs="+", metavar="KEY", help=f"{CONFIGS} (default: prog; on the emulator a100)")
    parser.add_argument("--dtype", dest="dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--quick", action="store_true", help="short lengths only")
    parser.add_argument("--out", type=result_file, help="result file (.json or .json.gz); resumes when it exists")
    parser.add_argument("--budget", type=seconds, default=0.0, help="start no iteration after this many seconds")
    parser.add_argument(
        "--backend", choices=BACKENDS, default="gpu", help="emulator: the PTX on this CPU, small shapes (default: gpu)"
    )
    options = parser.parse_args(argv)
    if bool(options.numbers) == options.all:
        parser.error("give iterations, or --all")
    return options


def run_emulated(numbers: Sequence[int], options: argparse.Namespace) -> CheckReport:
    """Checks iterations on this CPU, several at a time; writes the result at the end to `options.out`.

    Raises:
        FlashladderError: an option that needs a GPU.
    """
    from flashladder.check_emulator import CONFIGS as EMULATED
    from flashladder.check_emulator import check_many

    if options.budget:
        raise FlashladderError("--budget needs a GPU", hint="leave it out, or use --backend gpu")
    configs = options.configs or EMULATED
    if not options.out:
        return check_many(numbers, configs, options.dtypes, quick=options.quick)
    pairs = [
        (iteration, config)
        for iteration in map(load_iteration, numbers)
        for config in chosen_configs(iteration.number, configs, options.dtypes)
    ]
    kernels = {kernel.key: kernel for kernel in (emulated_identity(*pair) for pair in pairs)}
    cases = earlier_emulated(options.out, kernels)
    tell_kept(options.out, cases)
    done = frozenset((case.kernel, case.case) for case in cases)
    cases += check_many(numbers, configs, options.dtypes, quick=options.quick, done=done).cases
    write_emulated(options.out, kernels, cases)
    return CheckReport(cases)


def main(argv: Sequence[str] | None = None) -> int:
    """Checks and prints a table; raises `CheckFailed` (exit code 1) when a case failed."""
    options = parse_arguments(argv)
    numbers = [iteration.number for iteration in load_all()] if options.all else options.numbers
    for number in numbers:
        load_iteration(number)  # a wrong number is answered before a GPU is looked for
    if options.backend == "emulator":
        report = run_emulated(numbers, options)
    else:
        options.configs = options.configs or ["prog"]
        report = run_checks(numbers, options, open_device())
    print(report.render())
    if not report.passed:
        raise CheckFailed(f"{len(report.failures)} of {len(report.cases)} cases failed")
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
