"""Is a kernel correct? Compares every configuration with an fp64 reference, on shapes, memory layouts and input values.

Both backends use the rule of `flashladder.cases.reference`. The emulator gets NumPy views of torch's CPU tensors. So
strided views, NaN padding around O and rejected tensors are tested as on a GPU. A kernel that lacks a barrier may give
right numbers in the emulator's order of threads. Therefore the race detector watches each kernel's first launch, and
later ones with more KV blocks; a race or a missing wait fails the case.

Run on a machine with a GPU:
    python -m flashladder.check 7                        # one iteration, all its configurations, fp16 and bf16
    python -m flashladder.check --all --out check.json.gz      # resumes if the file exists
and on any other, small shapes on the emulator:
    python -m flashladder.check --all --backend emulator --out check.json.gz
Exit code: 0 all correct, 1 a check failed, 2 it could not run.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
import sys
import threading
import time

import numpy as np

from flashladder import parallel
from flashladder.arguments import BACKENDS, module_parser, require_numbers
from flashladder.bench.command import add_kernels, add_result, installed_kernels, require_same
from flashladder.bench.references import reference_identity
from flashladder.build.compile import ptx_for, ptx_many
from flashladder.build.wheel import chosen_configs, load_installed
from flashladder.cases import inputs, reference
from flashladder.cases.inputs import EMULATED_REPEATS, Case, cases_for, emulator_cases
from flashladder.cases.reference import REPEATS, References, Run, Subject, check_case
from flashladder.emulate.kernel import FEW, MULTIPROCESSORS, forward, kernel_of, require, version
from flashladder.errors import CheckFailed, FlashladderError, failures
from flashladder.files import relative, sha256
from flashladder.gpu.device import Device, open_device, origin
from flashladder.gpu.doctor import rung
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration, load_iteration
from flashladder.lazy_torch import Tensor, torch
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.names import DTYPES, PUBLISHED_GPU
from flashladder.results.files import OTHER_FILE, load_as, this_host, write_result
from flashladder.results.schema import Accuracy, CaseResult, CheckResult, EmulatedCheckResult, Kernel
import ptxemu
from ptxemu import Array

MOST_TILES = 3  # per CTA of a persistent kernel, so that launches stay short; test_hopper_tiles.py covers eight
# Kinds of the emulator's errors that say nothing about the kernel. A wrong launch argument (the kind "arguments") says
# something: the step's own code computes it.
NO_VERDICT = ("syntax", "unsupported")
EMULATED_CONFIGS = (PUBLISHED_GPU,)  # the configurations that the emulator checks by default
WATCHED = "the race detector watched each kernel's first launch and longer ones after it; a race fails its case"
ELEMENT = np.dtype(np.uint16)  # the bits of fp16 or bf16

_REFERENCES = References()  # shared by all iterations of this process: equal tiles have equal cases

Done = frozenset[tuple[str, str]]  # (kernel, case name) of cases that need not run again


@dataclass(frozen=True)
class CheckReport:
    """The outcome of all cases that ran."""

    cases: tuple[CaseResult, ...]

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        """Cases that failed."""
        return tuple(case for case in self.cases if case.status == "fail")

    @property
    def passed(self) -> bool:
        """Whether at least one case passed and none failed."""
        return not self.failures and any(case.status == "pass" for case in self.cases)

    @property
    def done(self) -> Done:
        """(kernel, case name) of each case that ran."""
        return frozenset((case.kernel, case.case) for case in self.cases)

    def render(self) -> str:
        """One line per kernel, one per failure, and a verdict."""
        lines = []
        for kernel in dict.fromkeys(case.kernel for case in self.cases):
            mine = [case for case in self.cases if case.kernel == kernel]
            status = Counter(case.status for case in mine)
            worst = max(share_of_tolerance(case.accuracy) for case in mine)
            lines.append(
                f"{kernel:88s} {status['pass']:3d} passed, {status['fail']:3d} failed, {status['not_applicable']:2d} "
                f"correctly rejected; largest max or RMS error {worst:4.0%} of the tolerance"
            )
        lines += [f"FAILED {case.kernel} {case.case}: {case.reason}" for case in self.failures]
        return "\n".join([*lines, f"{len(self.cases)} cases, {len(self.failures)} failed"])


def share_of_tolerance(found: Accuracy | None) -> float:
    """The max error or the RMS error, whichever is the larger share of its tolerance. Biases are not included."""
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
    done: Done = frozenset(),
    cases: Callable[[KernelConfig], Sequence[Case]] | None = None,
    repeats: int = REPEATS,
    bar: bool = True,
) -> CheckReport:
    """Checks every selected configuration of an iteration; stops if a failed launch broke the CUDA context.

    `configs`: short forms or selection keys; `prog` means the iteration's configurations for all GPUs
    (`flashladder.ladder.selection`). `references`: share them between calls to compute each once. `device`: torch
    device of the tensors. `run`: the operator; None: the installed wheel's. `done`: cases to skip. `cases`: returns the
    cases of a configuration; None: the GPU's cases. `repeats`: runs that must agree bit for bit. `bar`: show progress.

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
    progress = parallel.Bar(work, desc=f"check {number:02d}", unit="case", disable=not bar)
    shared, found = references or References(), list[CaseResult]()
    for subject, case in progress:
        try:
            found.append(check_case(subject, case, shared, device, repeats))
        except FlashladderError:
            if not any(result.status == "fail" for result in found):
                raise
            break
    return CheckReport(tuple(found))


def as_arrays(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> tuple[Array, Array, Array, Array]:
    """CPU tensors of 16-bit elements as arrays of their bits, with the same shapes, strides and surrounding memory.

    Tensors of one storage become views of one array, as the emulator expects of arrays that share memory.
    """
    storages: dict[int, Array] = {}  # address of a storage to all its elements

    def view(tensor: Tensor) -> Array:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            flat = torch.empty(0, dtype=torch.int16).set_(storage).numpy().view(ELEMENT)
            while isinstance(flat.base, np.ndarray):
                flat = flat.base
            storages[storage.data_ptr()] = flat
        strides = tuple(2 * stride for stride in tensor.stride())
        base = storages[storage.data_ptr()]
        return np.ndarray(tuple(tensor.shape), ELEMENT, base, 2 * tensor.storage_offset(), strides)

    return view(q), view(k), view(v), view(out)


def emulated_run(iteration: Iteration, *, already_watched: Collection[str] = ()) -> Run:
    """The iteration as an operator on CPU tensors, ``run(q, k, v, out, short_form)``, like its wheel's on a GPU.

    The race detector watches the first launch of each configuration, and each later launch with more KV blocks than any
    before. Split-KV launches (several CTAs per tile) are counted separately. The race detector skips the configurations
    in `already_watched` (short forms).

    The operator raises `ValueError` for a tensor that violates the kernel's contract, and `RuntimeError` for a race or
    a forbidden operation. It raises `FlashladderError` if no compiler for it is available, or if the emulator does
    not support its PTX.
    """
    longest = dict[tuple[str, int], int]()  # (short form, CTAs per tile) to the most KV blocks of a watched launch

    def run(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, short_form: str,
        lse: Tensor | None = None, bounds: Sequence[Tensor] = (),
    ) -> None:  # fmt: skip
        config = KernelConfig.parse(short_form)
        kernel = kernel_of(iteration, config)
        tensors = as_arrays(q, k, v, out)
        try:
            require(iteration, config, tensors)
        except FlashladderError as error:
            raise ValueError(str(error)) from error
        hazards = ptxemu.Hazards()
        ctas_per_tile = prod(iteration.family.launch(config, tensors, MULTIPROCESSORS).cluster)
        blocks, tiles = -(-k.shape[1] // config.B_c), q.shape[0] * q.shape[2] * -(-q.shape[1] // config.B_r)
        known = sys.maxsize if short_form in already_watched else longest.get((short_form, ctas_per_tile), 0)
        observers = (hazards,) if blocks > known else ()
        longest[short_form, ctas_per_tile] = max(blocks, known)
        try:
            multiprocessors = max(FEW, -(-tiles // MOST_TILES)) if ctas_per_tile == 1 else MULTIPROCESSORS
            sums, places = None if lse is None else lse.numpy(), [one.numpy() for one in bounds]
            forward(
                iteration, config, tensors, lse=sums, bounds=places, kernel=kernel, observers=observers,
                multiprocessors=multiprocessors,
            )  # fmt: skip
        except failures() as error:
            if getattr(error, "kind", "") in NO_VERDICT:
                where = f"iteration {iteration.description}"
                raise FlashladderError("the emulator cannot run it", where=where, found=error) from error
            raise RuntimeError(str(error)) from error
        if hazards.reports:
            more = f" ({len(hazards.reports) - 1 + hazards.dropped} more)" if len(hazards.reports) > 1 else ""
            raise RuntimeError(f"{hazards.reports[0].render()}{more}")

    return run


@dataclass(frozen=True)
class Emulated:
    """How the emulator checks an iteration's PTX."""

    configs: tuple[str, ...] = EMULATED_CONFIGS
    dtypes: tuple[str, ...] = DTYPES
    cases: Callable[[KernelConfig, int], Sequence[Case]] = emulator_cases  # of a configuration, with its row stride
    done: Done = frozenset()  # cases to skip

    def check(self, number: int, *, bar: bool = True) -> CheckReport:
        """Checks one iteration.

        Raises:
            FlashladderError: no such iteration or configuration, or no compiler for it is available.
        """
        iteration = load_iteration(number)
        return check_iteration(
            number, configs=self.configs, dtypes=self.dtypes, references=_REFERENCES, device="cpu",
            run=emulated_run(iteration), repeats=EMULATED_REPEATS, done=self.done, bar=bar,
            cases=lambda config: self.cases(config, iteration.row_stride),
        )  # fmt: skip

    def check_in_worker(self, kernel: Kernel) -> CheckReport:
        """Checks one kernel in a worker process."""
        torch.set_num_threads(1)  # there is a process per CPU already
        return replace(self, configs=(kernel.config,), dtypes=(kernel.dtype,)).check(kernel.iteration, bar=False)

    def identities(self, numbers: Sequence[int]) -> list[Kernel]:
        """The identity of each chosen kernel of some iterations; what is missing is compiled."""
        chosen = ((load_iteration(one), chosen_configs(one, self.configs, self.dtypes)) for one in numbers)
        pairs = [(iteration, config) for iteration, configs in chosen for config in configs]
        ptx_many(pairs)  # compiles each once, with all CPUs
        return [emulated_identity(*pair) for pair in pairs]

    def check_many(self, kernels: Sequence[Kernel], stop: threading.Event | None = None) -> CheckReport:
        """Checks `identities` of several iterations, with one worker process per CPU; `stop` ends them.

        Kernels with the same PTX, configuration and row stride have the same launches, so one of them runs for all.
        """
        numbers = {kernel.iteration for kernel in kernels}
        if len(numbers) == 1:
            return self.check(*numbers)
        alike: dict[tuple[object, ...], list[Kernel]] = {}
        for kernel in kernels:
            done = frozenset(case for key, case in self.done if key == kernel.key)
            row_stride = load_iteration(kernel.iteration).row_stride
            alike.setdefault((kernel.build, kernel.arch, kernel.config, row_stride, done), []).append(kernel)
        first = [same[0] for same in alike.values()]
        reports = parallel.over(self.check_in_worker, first[::-1], "check", stop=stop)  # the last take longest
        found = {
            kernel.key: [case.model_copy(update={"kernel": kernel.key}) for case in report.cases]
            for same, report in zip(alike.values(), reports[::-1], strict=True)
            for kernel in same
        }
        return CheckReport(tuple(case for kernel in kernels for case in found[kernel.key]))


def rule_digest() -> str:
    """A digest of the sources that decide whether a case passes: cases, inputs and bounds."""
    return sha256("".join(sha256(Path(str(module.__file__)).read_bytes()) for module in (reference, inputs)))


def emulated_identity(iteration: Iteration, config: KernelConfig) -> Kernel:
    """Identity of an emulated kernel in a result file; `build` is a digest of the PTX, the emulator and the rule.

    Raises:
        FlashladderError: no compiler for it is available.
    """
    entry = ptx_for(iteration, config)
    ptx = ptx_sha256(read_ptx(entry.ptx))
    return Kernel(
        iteration=iteration.number, config=config.short_form(), dtype=config.dtype, arch=iteration.family.targets.ptx,
        text_sha256=None, build=sha256(version() + rule_digest() + ptx),
        toolchain=dict(entry.versions),
    )  # fmt: skip


Result = CheckResult | EmulatedCheckResult


def resumed(path: Path | None, result: Result) -> tuple[Result, tuple[CaseResult, ...]]:
    """Reads the file at `path`, if there is one, and returns two things.

    First, `result` with the file's kernels and the cases of kernels that this run does not check. Second, the kept
    cases, which need not run again: those of this run's kernels that did not fail, if kernel code, GPU, rule and FA2
    are the same (FA2's error sets the bounds). On the emulator a kernel's identity covers the rule.

    Raises:
        FlashladderError: the file has kernels that this run does not check, of another GPU, rule or FA2.
    """
    if path is None or not path.is_file():
        return result, ()
    old = load_as(path, type(result), hint=OTHER_FILE)
    others = tuple(case for case in old.cases if case.kernel not in result.kernels)
    facts: list[tuple[str, object, object]] = [("FA2", result.reference, old.reference)]  # name, this run, the file
    if isinstance(result, CheckResult) and isinstance(old, CheckResult):
        facts += [("GPU", result.gpu.uuid, old.gpu.uuid), ("rule of correctness", result.rule, old.rule)]
    if others:
        require_same(path, facts)
    comparable = all(mine == theirs for _, mine, theirs in facts)
    same = {key for key, kernel in result.kernels.items() if key in old.kernels and kernel.same_code(old.kernels[key])}
    kept = tuple(case for case in old.cases if comparable and case.kernel in same and case.status != "fail")
    if kept:
        print(f"{len(kept)} case{'s' if len(kept) > 1 else ''} kept from {path}, not run again")
    return result.model_copy(update={"kernels": {**old.kernels, **result.kernels}, "cases": others}), kept


def write(path: Path, result: Result, cases: Sequence[CaseResult]) -> None:
    """Adds `cases` to a resumed result and writes it, with the identities of those kernels that have a case."""
    every = (*result.cases, *cases)
    kernels = {key: result.kernels[key] for key in dict.fromkeys(case.kernel for case in every)}
    write_result(path, result.model_copy(update={"kernels": kernels, "cases": every}))


def run_checks(options: argparse.Namespace, device: Device) -> CheckReport:
    """Checks iterations one by one on a GPU; writes all cases so far to `options.out` after each."""
    start = time.monotonic()
    kernels = [kernel for *_, kernel in installed_kernels(options, device.gpu.arch)]
    result = CheckResult(
        **origin(device), kernels={one.key: one for one in kernels}, reference=reference_identity({}), cases=(),
        rule=rule_digest(),
    )  # fmt: skip
    references, (base, kept) = References(), resumed(options.out, result)
    report = CheckReport(kept)
    for number in dict.fromkeys(one.iteration for one in kernels):
        if options.budget and time.monotonic() - start > options.budget:
            print(report.render())
            what = f"not finished: the budget of {options.budget:.0f} s was spent before iteration {number}"
            raise FlashladderError(what, hint="run it again with the same --out to continue")
        asked = {"configs": options.configs, "dtypes": options.dtypes, "quick": options.quick}
        more = check_iteration(number, references=references, done=report.done, **asked)
        report = CheckReport((*report.cases, *more.cases))
        if options.out:
            write(options.out, base, report.cases)
    return report


def run_emulated(options: argparse.Namespace) -> CheckReport:
    """Checks iterations on this CPU, several at a time; writes the result at the end to `options.out`.

    Raises:
        FlashladderError: an option that needs a GPU.
    """
    if options.budget:
        raise FlashladderError("--budget needs a GPU", hint="leave it out, or use --backend gpu")
    torch.get_num_threads()  # without torch this is an error of one line, before anything is compiled
    cases = partial(emulator_cases, quick=options.quick)
    asked = Emulated(tuple(options.configs or EMULATED_CONFIGS), tuple(options.dtypes), cases)
    return checked(asked, options.numbers, options.out)


def checked(
    asked: Emulated, numbers: Sequence[int], out: Path | None, stop: threading.Event | None = None
) -> CheckReport:
    """Checks iterations on the emulator. If there is a file `out`, what it proves already is kept; it gets the rest.

    `stop` ends the check, for a caller in another thread than the main one.
    """
    kernels = asked.identities(numbers)
    if not out:
        return asked.check_many(kernels, stop)
    result = EmulatedCheckResult(
        rung=rung(gpu=False, counted=False, clocks=False), host=this_host(), kernels={one.key: one for one in kernels},
        reference=reference_identity({}), cases=(),
    )  # fmt: skip
    base, kept = resumed(out, result)
    more = replace(asked, done=CheckReport(kept).done).check_many(kernels, stop)
    report = CheckReport((*kept, *more.cases))
    write(out, base, report.cases)
    return report


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as a namespace."""
    parser = module_parser("check", "Checks numerics.", "7 --configs a100", is_task=True)
    add_kernels(parser, "prog")
    add_result(parser, "iteration")
    parser.add_argument("--quick", action="store_true", help="short lengths only")
    parser.add_argument("--backend", choices=BACKENDS, default="gpu", help="where the kernels run (default: gpu)")
    options = parser.parse_args(argv)
    require_numbers(parser, options)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Checks and prints a table; raises `CheckFailed` (exit code 1) if a case failed or none passed."""
    options = parse_arguments(argv)
    for number in options.numbers:
        load_iteration(number)  # reports an unknown iteration before it looks for a GPU
    if options.backend == "emulator":
        report = run_emulated(options)
    else:
        options.configs = options.configs or ["prog"]
        report = run_checks(options, open_device())
    print(report.render())
    if options.backend == "emulator":
        print(WATCHED)
    if options.out:
        print(f"result: {relative(options.out)}")
    if not report.passed:
        n_failed = len(report.failures)
        raise CheckFailed(f"{n_failed} of {len(report.cases)} cases failed" if n_failed else "no case passed")
