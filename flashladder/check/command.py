"""Is a kernel correct? Every configuration on a list of shapes, layouts and logits, against an fp64 reference.

Why: a fast wrong kernel is worthless, and most checkers pass NaN. Here O and all memory around it start as NaN, every
comparison fails on NaN, nothing outside O may change, and 20 runs must agree bit for bit (rule 7 of the
measurement protocol). A kernel that cannot take a tensor (iteration 16 fixes its row stride) must refuse it.

Run on a machine with a GPU:
    python -m flashladder.check 7                        # one iteration, all its configurations, fp16 and bf16
    python -m flashladder.check --all --out check.json.gz      # resumes when the file exists
and on any other, small shapes on the PTX that ships (`flashladder.check.on_emulator`):
    python -m flashladder.check --all --backend emulator --out check.json.gz
Exit code: 0 all correct, 1 a check failed, 2 it could not run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
import time

from flashladder.arguments import SEVERAL_NUMBERS, add_all, parser_of, require_numbers, seconds
from flashladder.bench.references import reference_identity
from flashladder.build.installed import chosen_configs, load_installed
from flashladder.cases.reference import References
from flashladder.check.cases import CheckReport, check_iteration
from flashladder.check.results import earlier, earlier_emulated, emulated_identity, rule, tell_kept, write_emulated
from flashladder.commands import A_RESULT_FILE, COMMANDS, SEVERAL_DTYPES, SEVERAL_KEYS
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.gpu.device import Device, open_device
from flashladder.ladder.iteration import load_all, load_iteration, runnable
from flashladder.results.files import write_result
from flashladder.results.schema import CheckResult


def run_checks(numbers: Iterable[int], options: argparse.Namespace, device: Device) -> CheckReport:
    """Checks iterations one by one; after each, writes everything so far to `options.out`."""
    start = time.monotonic()
    numbers = runnable(numbers, device.gpu.arch)
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
    own = {"number": SEVERAL_NUMBERS, "configs": SEVERAL_KEYS, "dtype": SEVERAL_DTYPES, "out": A_RESULT_FILE}
    parser = parser_of(COMMANDS["check"], "check", "7 --configs a100", **own)
    add_all(parser)
    parser.add_argument("--budget", type=seconds, default=0.0, help="start no iteration after this many seconds")
    options = parser.parse_args(argv)
    require_numbers(parser, options)
    return options


def run_emulated(numbers: Sequence[int], options: argparse.Namespace) -> CheckReport:
    """Checks iterations on this CPU, several at a time; writes the result at the end to `options.out`.

    Raises:
        FlashladderError: an option that needs a GPU.
    """
    from flashladder.check.on_emulator import CONFIGS as EMULATED
    from flashladder.check.on_emulator import check_many

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
