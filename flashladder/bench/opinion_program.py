"""Launches FA2, kernels and references in rounds: the program that NVBench times and that Nsight Compute watches.

Why a program of its own: NVBench runs once in a process, and ncu must see these launches alone. The tensors are those
of the paired timer's first input set. In every round each subject has its turn, so that a card which slows down slows
all of them.

Run, on a machine with a GPU: ``python -m flashladder.bench 7 --seq-lens 4096 --method nvbench ncu``, which starts it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
import importlib
import sys
from typing import Any

from flashladder.arguments import Parser, whole
from flashladder.bench.references import BACKENDS, reference_subject
from flashladder.bench.run import FIRST_SEED
from flashladder.bench.subject import Subject, kernel_subject
from flashladder.build.installed import load_installed
from flashladder.cases.inputs import Case, Tensors, make_tensors
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.ladder.config import DTYPES, KernelConfig
from flashladder.problem import Shape

WARM_UPS = 3  # launches of each subject before its first sample: compilers, plans and allocations are behind it then


@dataclass(frozen=True)
class Rounds:
    """What is launched: `subjects` (references by name, kernels by key) in this order, `rounds` times."""

    subjects: tuple[str, ...]
    dtype: str
    shape: Shape
    rounds: int

    def turns(self) -> Iterator[tuple[int, str]]:
        """Round and subject of each turn, in launch order."""
        for number in range(self.rounds):
            for subject in self.subjects:
                yield number, subject


def command(cells: Sequence[Rounds], *more: str) -> list[str]:
    """The command line that launches cells of the same subjects, dtype and heads in a new process, one by one."""
    first, shapes = cells[0], [cell.shape for cell in cells]
    return [
        sys.executable, "-m", "flashladder.bench.opinion_program", *first.subjects, "--dtype", first.dtype,
        "--batch", *(str(shape.batch) for shape in shapes), "--seq-len", *(str(shape.seq_len) for shape in shapes),
        "--n-heads", str(first.shape.n_heads), "--rounds", str(first.rounds), *more,
    ]  # fmt: skip


def load(key: str, dtype: str) -> Subject:
    """The reference or the installed kernel with this name.

    Raises:
        FlashladderError: no such kernel, or its wheel is not installed.
    """
    if key in BACKENDS:
        return reference_subject(key, dtype)
    number, _, form = key.partition(" ")
    if not (number.isascii() and number.isdigit()):
        raise FlashladderError("no such subject", expected=f"{', '.join(BACKENDS)} or a kernel's key", found=key)
    installed, config = load_installed(int(number)), KernelConfig.parse(form)
    installed.require(config)
    return kernel_subject(int(number), config, installed.run)


def first_tensors(rounds: Rounds) -> Tensors:
    """Those of the paired timer's first input set, on the GPU."""
    case = Case("second opinion", rounds.shape, seed=FIRST_SEED + rounds.shape.seq_len)
    return make_tensors(case, rounds.dtype, "cuda")


def launch_rounds(
    rounds: Rounds, subjects: Sequence[Subject], tensors: Tensors, wait: Callable[[], object], window: Any
) -> None:
    """Warms every subject up, then launches all rounds between ``window.start()`` and ``window.stop()``."""
    by_key = {subject.key: subject for subject in subjects}
    for subject in subjects:
        for _ in range(WARM_UPS):
            subject.launch(tensors)
    wait()
    window.start()
    for _, key in rounds.turns():
        by_key[key].launch(tensors)
    wait()
    window.stop()


def nvbench_rounds(
    bench: Any,
    stream: Callable[[Any], Any],
    cells: Sequence[tuple[Rounds, Tensors]],
    subjects: Sequence[Subject],
    *,
    samples: int,
    out: str,
) -> None:
    """One NVBench benchmark per turn, named ``CELL ROUND INDEX``; cold L2, isolated, at NVBench's own throttle rule.

    Args:
        bench: the module `cuda.bench`.
        stream: makes a context manager of a launch; what is queued inside goes to NVBench's stream.
        cells: how many turns, and what subjects are launched on.
        subjects: in the order of each cell's subjects.
        samples: of each turn.
        out: JSON file to write; the samples go into files beside it.
    """
    turns = ((cell, number) for cell, (rounds, _) in enumerate(cells) for number in range(rounds.rounds))
    for cell, number in turns:
        for index, subject in enumerate(subjects):

            def benchmark(state: Any, subject: Subject = subject, tensors: Tensors = cells[cell][1]) -> None:
                def launch(how: Any) -> None:
                    with stream(how):
                        subject.launch(tensors)

                state.exec(launch, batched=False)

            bench.register(benchmark).set_name(f"{cell} {number} {index}").set_cold_warmup_runs(WARM_UPS)
    bench.run_all_benchmarks(
        [
            "flashladder", "--devices", "0", "--stopping-criterion", "sample-count", "--target-samples", str(samples),
            "--min-samples", str(samples), "--jsonbin", out,
        ]
    )  # fmt: skip


def parse_arguments(argv: Sequence[str] | None = None) -> tuple[list[Rounds], argparse.Namespace]:
    """The command line as cells, and how they are to be launched."""
    parser = Parser(
        prog="python -m flashladder.bench.opinion_program",
        description="Launches FA2, kernels and references in rounds, for NVBench or under ncu.",
        epilog="example: python -m flashladder.bench.opinion_program fa2 cudnn --dtype fp16 --rounds 3",
    )
    parser.add_argument("subjects", nargs="+", metavar="SUBJECT", help=f"{', '.join(BACKENDS)}, or a kernel's key")
    parser.add_argument("--dtype", choices=DTYPES, default="fp16")
    parser.add_argument("--batch", nargs="+", type=whole, default=[1])
    parser.add_argument("--seq-len", nargs="+", type=whole, default=[1024], help="one for each --batch")
    parser.add_argument("--n-heads", type=whole, default=16)
    parser.add_argument("--rounds", type=whole, default=1)
    parser.add_argument("--nvbench", metavar="FILE", help="let NVBench time them and write this JSON file")
    parser.add_argument("--samples", type=whole, default=12, help="of each turn, with --nvbench")
    found = parser.parse_args(argv)
    if min(*found.batch, *found.seq_len, found.n_heads, found.rounds, found.samples) < 1:
        parser.error("--batch, --seq-len, --n-heads, --rounds and --samples: expected at least 1")
    if len(found.batch) != len(found.seq_len):
        parser.error(f"--seq-len: expected one for each of {len(found.batch)} --batch, found {len(found.seq_len)}")
    shapes = [
        Shape(batch=batch, seq_len=seq_len, n_heads=found.n_heads, d_head=128)
        for batch, seq_len in zip(found.batch, found.seq_len, strict=True)
    ]
    return [Rounds(tuple(found.subjects), found.dtype, shape, found.rounds) for shape in shapes], found


def main(argv: Sequence[str] | None = None) -> int:
    """Launches them on the current GPU."""
    asked, how = parse_arguments(argv)
    import torch

    subjects = [load(key, how.dtype) for key in how.subjects]
    cells = [(rounds, first_tensors(rounds)) for rounds in asked]
    torch.cuda.synchronize()
    if not how.nvbench:
        from torch.cuda import profiler

        for rounds, tensors in cells:
            launch_rounds(rounds, subjects, tensors, torch.cuda.synchronize, profiler)
        return 0
    bench = importlib.import_module("cuda.bench")  # optional package

    def on_stream(launch: Any) -> Any:
        external: Any = torch.cuda.ExternalStream
        return torch.cuda.stream(external(launch.get_stream().addressof()))

    nvbench_rounds(bench, on_stream, cells, subjects, samples=how.samples, out=how.nvbench)
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
