"""Soaks kernels: launches beside other work, a million launches, rows of 2^18 positions and tensors far beyond 2^31.

A race that shows once in a hundred thousand launches, beside another kernel, or where a number leaves 32 bits, is in no
table of times.
`load`: every case of the check, with 50 runs that agree bit for bit while a second stream multiplies matrices.
`launches`: a million launches of each kernel at small shapes, by the host and by CUDA graphs; a kernel that hangs is
named.
`far`: rows of up to 262,144 positions and tensors of more than 2^32 elements, some rows of each against fp64.

Run on a machine with a GPU:
    python -m flashladder.check.soak 26 27 --out soak.json.gz       # resumes if the file exists
    python -m flashladder.check.soak 27 --parts launches --launches 4000000
    python -m flashladder.check.soak --show results/h200/soak.json.gz
Exit code: 0 all of it holds, 1 a kernel is wrong or hangs, 2 it could not run, or the budget was spent before its end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
import time

from flashladder.arguments import Parser, whole
from flashladder.bench.command import add_kernels, add_result, another, on_this_gpu, require_same
from flashladder.bench.references import reference_identity
from flashladder.build.installed import Installed, chosen_configs, load_installed
from flashladder.cases.inputs import Case, cases_for
from flashladder.cases.reference import References
from flashladder.check import soak_runs
from flashladder.check.command import check_iteration, rule
from flashladder.check.soak_runs import Load, Queue, Watchdog, described
from flashladder.columns import table
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.gpu.device import Device
from flashladder.ladder.config import DTYPES, KernelConfig
from flashladder.ladder.iteration import runnable
from flashladder.results.files import OTHER_FILE, load_as, write_result
from flashladder.results.schema import FarRows, Hammered, SoakResult

PARTS = ("load", "launches", "far")
REPEATS = 50
MILLION = 1_000_000
CASE_S = 120.0  # of one case with all its repeats, at most
RIGHT = {2, 3, 4, 5, 6}  # columns of numbers


@dataclass(frozen=True)
class Kernel:
    """One configuration of an installed iteration."""

    installed: Installed
    config: KernelConfig
    key: str


@dataclass
class Soak:
    """A run of this command: `result` is written to `out` after each entry; what it holds is not run again.

    Attributes:
        load: the second stream, made where it is first needed.
        queue: how launches are queued and waited for.
        device: torch's, of the tensors.
    """

    result: SoakResult
    out: Path | None
    load: Callable[[], Load]
    queue: Queue
    device: str = "cuda"
    dog: Watchdog = field(default_factory=Watchdog)

    def __post_init__(self) -> None:
        """A hang is written into the file before the process ends."""
        self.dog = Watchdog(lambda line: self.keep(hung=line), self.dog.end)

    def keep(self, **added: object) -> None:
        """Adds an entry to a list of the result, or says what hung; writes the file."""
        lists = {name: (*getattr(self.result, name), one) for name, one in added.items() if name != "hung"}
        self.result = self.result.model_copy(update={**added, **lists})
        if self.out:
            write_result(self.out, self.result)

    def require_enough(self, kernel: Kernel, what: str, found: int, asked: int) -> None:
        """Refuses a file that holds fewer than are asked for: it would not be run again."""
        if found < asked:
            raise FlashladderError(
                f"{kernel.key}: the file holds fewer {what} than are asked for",
                where=self.out,
                expected=f"at least {asked:,}",
                found=f"{found:,}",
                hint=OTHER_FILE,
            )

    def beside_load(self, kernel: Kernel, options: argparse.Namespace, references: References) -> None:
        """Every case of a kernel beside products."""
        load = self.load()
        done = {case.case: case for case in self.result.cases if case.kernel == kernel.key}
        for case in cases_for(kernel.config, quick=options.quick):
            if case.name in done:
                if done[case.name].status == "pass":
                    self.require_enough(kernel, "repeats", done[case.name].repeats, options.repeats)
                continue
            with self.dog.within(CASE_S, f"{kernel.key}, case {case.name}"):
                report = check_iteration(
                    kernel.installed.number,
                    configs=[kernel.config.short_form()],
                    dtypes=DTYPES,
                    references=references,
                    device=self.device,
                    run=load.around(kernel.installed.run),
                    cases=partial(_only, case),
                    repeats=options.repeats,
                    bar=False,
                )
                found = load.taken(kernel.key, case.name)
            self.keep(cases=report.cases[0], **({"beside": found} if found else {}))

    def many_launches(self, kernel: Kernel, launches: int) -> None:
        """All small shapes of a kernel, with so many launches in all."""
        done = {one.shape: one.launches for one in self.result.hammered if one.kernel == kernel.key}
        for shape, count in soak_runs.split(launches):
            if shape in done:
                self.require_enough(kernel, "launches of a shape", done[shape], count)
            else:
                run = kernel.installed.run
                found = soak_runs.hammer(
                    kernel.key, kernel.config, run, shape, count, self.queue, self.dog, self.device
                )
                self.keep(hammered=found)

    def long_rows(self, kernel: Kernel) -> None:
        """All long and large shapes that a kernel takes."""
        done = {one.shape for one in self.result.far if one.kernel == kernel.key}
        for shape in soak_runs.LONG_SHAPES:
            taken = not kernel.config.multiples or shape.seq_len % max(kernel.config.B_r, kernel.config.B_c) == 0
            if shape not in done and taken:
                run, wait = kernel.installed.run, self.queue.wait
                found = soak_runs.far(kernel.key, kernel.config, run, shape, wait, self.dog, self.device)
                self.keep(far=found)

    def all_parts(self, kernels: Sequence[Kernel], options: argparse.Namespace) -> bool:
        """All parts of all kernels; whether the budget sufficed."""
        start, references = time.monotonic(), References()
        for part in options.parts:
            for kernel in kernels:
                if options.budget and time.monotonic() - start > options.budget:
                    return False
                print(f"{part}: {kernel.key}", flush=True)
                if part == "load":
                    self.beside_load(kernel, options, references)
                elif part == "launches":
                    self.many_launches(kernel, options.launches)
                else:
                    self.long_rows(kernel)
        return True


def _only(case: Case, _: KernelConfig) -> tuple[Case, ...]:
    return (case,)


def earlier(path: Path | None, fresh: SoakResult) -> SoakResult:
    """`fresh` with what an earlier file holds, which must be of the same GPU, kernels, torch and rule; no hang.

    Raises:
        FlashladderError: it is of others.
    """
    if path is None or not path.is_file():
        return fresh
    old = load_as(path, SoakResult, hint=OTHER_FILE)
    mine, theirs = ((one.gpu.uuid, one.reference, one.rule) for one in (fresh, old))
    require_same(path, zip(("GPU", "FA2", "rule of correctness"), mine, theirs, strict=True))
    for key in sorted(old.kernels.keys() & fresh.kernels.keys()):
        both = (fresh.kernels[key], old.kernels[key])
        if not both[0].same_code(both[1]):
            expected, found = (one.text_sha256 or one.build or "unknown" for one in both)
            raise another(path, f"machine code of {key}", expected, found)
    return old.model_copy(update={"kernels": old.kernels | fresh.kernels, "hung": None})


def _kernels(options: argparse.Namespace, arch: str) -> Iterator[Kernel]:
    for number in runnable(options.numbers, arch):
        installed = load_installed(number)
        for config in chosen_configs(number, options.configs, options.dtypes):
            installed.require(config)
            yield Kernel(installed, config, installed.identity(config, arch).key)


def problems(result: SoakResult) -> list[str]:
    """One line per thing that went wrong."""
    found = [f"hung: {result.hung}"] if result.hung else []
    found += [f"{one.kernel}, case {one.case}: {one.reason}" for one in result.cases if one.status == "fail"]
    found += [
        f"{one.kernel} at {described(one.shape)}: {one.differing} of {one.looks} looks found other bits than the first"
        for one in result.hammered
        if one.differing
    ]
    found += [
        f"{one.kernel} at {described(one.shape)}: elements of O are NaN or infinite, or were not written"
        for one in result.hammered
        if not one.finite
    ]
    return [*found, *(f"{one.kernel} at {described(one.shape)}: {line}" for one in result.far for line in _far(one))]


def _far(one: FarRows) -> Iterator[str]:
    if one.differing:
        yield f"{one.differing} of {one.launches} launches wrote other bits than the first"
    if not one.finite:
        yield "elements of O are NaN or infinite, or were not written"
    for what, error, allowed in (
        ("max error", one.max_error, one.max_allowed),
        ("relative RMS", one.rms_error, one.rms_allowed),
    ):
        if error is None or not error <= allowed:
            yield f"{what} {'NaN' if error is None else f'{error:.3g}'} (allowed {allowed:.3g})"


def render(result: SoakResult) -> str:
    """A table of each part that was run."""
    lines = [f"{result.gpu.name}, torch {result.reference.torch}"]
    if result.cases:
        head = ("kernel", "cases", "passed", "refused", "runs of a case", "launches beside load", "of their time")
        rows = [head, *(_beside(result, key) for key in dict.fromkeys(one.kernel for one in result.cases))]
        lines += ["", "beside matrix products, bit for bit", *table(rows, None, right={1, 2, 3, 4, 5, 6})]
    if result.hammered:
        head = ("kernel", "shape", "by the host", "by graphs", "us each", "looks", "other bits")
        lines += ["", "launched again and again", *table([head, *map(_hammered, result.hammered)], None, right=RIGHT)]
    if result.far:
        head = ("kernel", "shape", "launches", "s each", "other bits", "max of allowed", "RMS of allowed")
        lines += ["", "long rows", *table([head, *map(_far_row, result.far)], None, right=RIGHT)]
    wrong = problems(result)
    return "\n".join([*lines, "", *(f"FAILED {line}" for line in wrong), f"{len(wrong)} problems"])


def _beside(result: SoakResult, key: str) -> Sequence[str]:
    own = [one for one in result.cases if one.kernel == key]
    load = [one for one in result.beside if one.kernel == key]
    spent = sum(one.seconds for one in load)
    counts = [sum(one.status == status for one in own) for status in ("pass", "not_applicable")]
    return (
        _short(key), str(len(own)), *map(str, counts), str(max(one.repeats for one in own)),
        f"{sum(one.launches for one in load):,}",
        f"{100 * sum(one.beside_s for one in load) / spent:.0f} %" if spent else "",
    )  # fmt: skip


def _hammered(one: Hammered) -> Sequence[str]:
    each = f"{one.seconds / one.launches * 1e6:.1f}"
    return (
        _short(one.kernel),
        described(one.shape),
        f"{one.plain:,}",
        f"{one.replayed:,}",
        each,
        str(one.looks),
        str(one.differing),
    )


def _far_row(one: FarRows) -> Sequence[str]:
    return (
        _short(one.kernel), described(one.shape), str(one.launches), f"{one.seconds:.3f}", str(one.differing),
        _share(one.max_error, one.max_allowed), _share(one.rms_error, one.rms_allowed),
    )  # fmt: skip


def _share(found: float | None, allowed: float) -> str:
    return "NaN" if found is None else f"{found / allowed:.0%}"


def _short(key: str) -> str:
    """``27 FP16`` of a kernel's key."""
    number, _, form = key.partition(" (")
    return f"{number} {form.partition(',')[0]}"


def measure(options: argparse.Namespace, device: Device) -> bool:
    """Soaks on this GPU, prints what came of it; whether the budget sufficed."""
    kernels = tuple(_kernels(options, device.gpu.arch))
    if not kernels:
        raise FlashladderError(
            "no kernel to soak on this GPU", expected="iterations that run here", found=list(options.numbers)
        )
    identities = {one.key: one.installed.identity(one.config, device.gpu.arch) for one in kernels}
    fresh = SoakResult(
        rung=device.rung, gpu=device.gpu, host=device.host, kernels=identities, reference=reference_identity({}),
        rule=rule(),
    )  # fmt: skip
    run = Soak(earlier(options.out, fresh), options.out, cache(soak_runs.on_gpu), soak_runs.cuda_queue())
    complete = run.all_parts(kernels, options)
    print(render(run.result))
    if found := problems(run.result):
        raise CheckFailed(f"{len(found)} problems, the first: {found[0]}", where=options.out)
    return complete


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m flashladder.check.soak",
        description="Runs kernels beside other work, a million times, and on long rows.",
        epilog="example: python -m flashladder.check.soak 26 27 --out soak.json.gz",
    )
    add_kernels(parser)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all three")
    parser.add_argument("--repeats", type=whole, default=REPEATS, help=f"of a case beside load (default: {REPEATS})")
    parser.add_argument("--launches", type=whole, default=MILLION, help="of each kernel (default: a million)")
    parser.add_argument("--quick", action="store_true", help="beside load short lengths only")
    add_result(parser, "kernel's part")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Soaks and prints the table, or prints that of a file."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.show:
        print(render(load_as(options.show, SoakResult)))
        return 0
    if not options.numbers or options.repeats < 2 or options.launches < 1:
        parser.error("expected iterations, at least 2 repeats and a launch")
    on_this_gpu(options, measure)
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
