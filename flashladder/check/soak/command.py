"""Kernels for longer than a check: beside other work, a million launches, rows of 2^18 positions and far beyond 2^31.

Why: a claim to be the fastest must stand up to doubt, and so must the kernel behind it: a race that shows once in a
hundred thousand launches, beside another kernel, or where a number leaves 32 bits, is in no table of times.
`load`: every case of the check, with 50 runs that agree bit for bit while a second stream multiplies matrices.
`launches`: a million launches of each kernel at small shapes, by the host and by CUDA graphs; whoever hangs is named.
`far`: rows of up to 262,144 positions and tensors of more than 2^32 elements, some rows of each against fp64.

Run on a machine with a GPU:
    python -m flashladder.check.soak 26 27 --out soak.json.gz       # goes on where it stopped when the file exists
    python -m flashladder.check.soak 27 --parts launches --launches 4000000
    python -m flashladder.check.soak --show results/h200/soak.json.gz
Exit code: 0 all of it holds, 1 a kernel is wrong or hangs, 2 it could not run, or the budget was spent before its end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
import time
from typing import TYPE_CHECKING

from flashladder.arguments import Parser, whole
from flashladder.bench.long_runs import add_kernels, add_result, another, on_this_gpu, require_same
from flashladder.build.installed import Installed, chosen_configs, load_installed
from flashladder.cases.case import cases_for
from flashladder.cases.inputs import Case
from flashladder.cases.reference import References
from flashladder.check.cases import check_iteration
from flashladder.check.results import rule
from flashladder.check.soak import far as far_rows
from flashladder.check.soak import launches as many
from flashladder.check.soak.outcome import problems, render
from flashladder.check.soak.watchdog import Watchdog
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.ladder.config import DTYPES, KernelConfig
from flashladder.ladder.iteration import runnable
from flashladder.results.files import OTHER_FILE, load_as, write_result
from flashladder.results.schema import SoakResult

if TYPE_CHECKING:
    from pathlib import Path

    from flashladder.check.soak.load import Load
    from flashladder.gpu.device import Device

PARTS = ("load", "launches", "far")
REPEATS = 50
MILLION = 1_000_000
CASE_S = 120.0  # of one case with all its repeats, at most


@dataclass
class Place:
    """What is soaked and where; `result` grows, and is written to `out` after each entry.

    Attributes:
        load: the second stream, made where it is first needed.
        queue: how launches are queued and waited for.
        device: torch's, of the tensors.
    """

    result: SoakResult
    out: Path | None
    load: Callable[[], Load]
    queue: many.Queue
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


@dataclass(frozen=True)
class Kernel:
    """One configuration of an installed iteration."""

    installed: Installed
    config: KernelConfig
    key: str


def beside_load(place: Place, kernel: Kernel, options: argparse.Namespace, references: References) -> None:
    """Every case of a kernel beside products, that the file does not hold yet."""
    load = place.load()
    done = {case.case: case for case in place.result.cases if case.kernel == kernel.key}
    for case in cases_for(kernel.config, quick=options.quick):
        if case.name in done:
            if done[case.name].status == "pass":
                _enough(place, kernel, "repeats", done[case.name].repeats, options.repeats)
            continue
        with place.dog.within(CASE_S, f"{kernel.key}, case {case.name}"):
            report = check_iteration(
                kernel.installed.number, configs=[kernel.config.short_form()], dtypes=DTYPES, references=references,
                device=place.device, run=load.around(kernel.installed.run), cases=_only(case),
                repeats=options.repeats, bar=False,
            )  # fmt: skip
            found = load.taken(kernel.key, case.name)
        place.keep(cases=report.cases[0], **({"beside": found} if found else {}))


def _enough(place: Place, kernel: Kernel, what: str, found: int, asked: int) -> None:
    """What a file holds is not run again: it must be as much as is asked for now."""
    if found < asked:
        raise FlashladderError(
            f"{kernel.key}: the file holds fewer {what} than are asked for", where=place.out,
            expected=f"at least {asked:,}", found=f"{found:,}", hint=OTHER_FILE,
        )  # fmt: skip


def _only(case: Case) -> Callable[[KernelConfig], tuple[Case, ...]]:
    return lambda _: (case,)


def launched(place: Place, kernel: Kernel, options: argparse.Namespace) -> None:
    """All small shapes of a kernel that the file does not hold yet."""
    done = {one.shape: one.launches for one in place.result.hammered if one.kernel == kernel.key}
    for shape, count in many.split(options.launches):
        if shape in done:
            _enough(place, kernel, "launches of a shape", done[shape], count)
        else:
            run, on = kernel.installed.run, place.device
            found = many.hammer(kernel.key, kernel.config, run, shape, count, place.queue, place.dog, on)
            place.keep(hammered=found)


def long_rows(place: Place, kernel: Kernel) -> None:
    """All long and large shapes of a kernel that the file does not hold yet and that it takes."""
    done = {one.shape for one in place.result.far if one.kernel == kernel.key}
    for shape in far_rows.SHAPES:
        taken = not kernel.config.multiples or shape.seq_len % max(kernel.config.B_r, kernel.config.B_c) == 0
        if shape not in done and taken:
            run, wait = kernel.installed.run, place.queue.wait
            place.keep(far=far_rows.far(kernel.key, kernel.config, run, shape, wait, place.dog, place.device))


def soak(place: Place, kernels: Sequence[Kernel], options: argparse.Namespace) -> bool:
    """All parts of all kernels; whether the budget sufficed."""
    start, references = time.monotonic(), References()
    for part in options.parts:
        for kernel in kernels:
            if options.budget and time.monotonic() - start > options.budget:
                return False
            print(f"{part}: {kernel.key}", flush=True)
            if part == "load":
                beside_load(place, kernel, options, references)
            elif part == "launches":
                launched(place, kernel, options)
            else:
                long_rows(place, kernel)
    return True


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


def measure(options: argparse.Namespace, device: Device) -> bool:
    """Soaks on this GPU, prints what came of it; whether the budget sufficed."""
    from flashladder.bench.references import reference_identity
    from flashladder.check.soak.load import on_gpu

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
    made: list[Load] = []

    def load() -> Load:
        if not made:
            made.append(on_gpu())
        return made[0]

    place = Place(earlier(options.out, fresh), options.out, load, many.cuda_queue())
    complete = soak(place, kernels, options)
    print(render(place.result))
    if found := problems(place.result):
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
