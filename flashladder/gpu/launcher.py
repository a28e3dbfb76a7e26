"""Launches kernels once each on a small shape and ends: what ncu and compute-sanitizer look at.

Why a program of its own: profilers and sanitizers watch a process, and must see no kernel but ours. Inputs are drawn on
the CPU and copied, so that nothing of torch runs on the GPU and every byte counts as initialised.

Run on a machine with a GPU:
    python -m flashladder.gpu.launcher 7 8 --configs a100 --dtype fp16 --seq-len 1024
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import sys

from flashladder.arguments import SEVERAL_NUMBERS, Parser, add_options, whole
from flashladder.build.installed import chosen_configs, load_installed
from flashladder.cases.inputs import Case, make_tensors
from flashladder.commands import DTYPE, KEYS, ONE_NUMBER, PUBLISHED_KEYS, SEVERAL_DTYPES
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.ladder.config import KernelConfig
from flashladder.problem import Shape
from flashladder.results.schema import kernel_key


@dataclass(frozen=True)
class Launches:
    """Which kernels to launch, in order: iterations, then their configurations, on one shape.

    Attributes:
        rare: launch a kernel that takes other ways at some shapes on those, too: grids of few tiles, warps that part.
    """

    numbers: tuple[int, ...]
    configs: tuple[str, ...]
    dtypes: tuple[str, ...]
    shape: Shape
    rare: bool = False

    def command(self) -> list[str]:
        """The command line that launches them in a new process."""
        shape = self.shape
        return [
            sys.executable, "-m", "flashladder.gpu.launcher", *map(str, self.numbers),
            "--configs", *self.configs, "--dtype", *self.dtypes,
            "--batch", str(shape.batch), "--seq-len", str(shape.seq_len), "--n-heads", str(shape.n_heads),
            *(["--rare"] if self.rare else []),
        ]  # fmt: skip

    def shapes(self, config: KernelConfig) -> tuple[Shape, ...]:
        """What a configuration is launched on, in order."""
        rare = (*config.few_tiles, *config.parting) if self.rare else ()
        return (self.shape, *(Shape(batch=b, seq_len=s, n_heads=h, d_head=config.d_head) for b, s, h in rare))

    def keys(self) -> tuple[str, ...]:
        """Names of the kernels in launch order."""
        return tuple(
            kernel_key(number, config.short_form())
            for number in self.numbers
            for config in chosen_configs(number, self.configs, self.dtypes)
        )


def launch(launches: Launches) -> int:
    """Runs every kernel once per shape and waits; returns how many launches that were.

    Raises:
        FlashladderError: a wheel is missing, or the operator or the GPU refused.
    """
    import torch

    count = 0
    for number in launches.numbers:
        installed = load_installed(number)
        chosen = chosen_configs(number, launches.configs, launches.dtypes)
        for config, shape in ((one, shape) for one in chosen for shape in launches.shapes(one)):
            drawn = make_tensors(Case("launch", shape, seed=number), config.dtype, "cpu")
            q, k, v, out = (tensor.to("cuda") for tensor in (drawn.q, drawn.k, drawn.v, drawn.out))
            try:
                installed.run(q, k, v, out, config.short_form())
                torch.cuda.synchronize()
            except (ValueError, RuntimeError) as error:
                raise FlashladderError(
                    f"iteration {number} did not run",
                    where=config.short_form(),
                    found=str(error).splitlines()[0],
                    exit_code=1,
                ) from error
            count += 1
    return count


def parse_arguments(argv: Sequence[str] | None = None) -> Launches:
    """The command line as `Launches`."""
    parser = Parser(
        prog="python -m flashladder.gpu.launcher",
        description="Launches kernels once each, for profilers and sanitizers.",
        epilog="example: python -m flashladder.gpu.launcher 7 --configs a100 --dtype fp16",
    )
    own = {
        "number": {**SEVERAL_NUMBERS, "nargs": "+"},
        "configs": PUBLISHED_KEYS,
        "dtype": {**SEVERAL_DTYPES, "default": ["fp16"], "help": "fp16, bf16 or both (default: fp16)"},
    }
    add_options(parser, (ONE_NUMBER, KEYS, DTYPE), **own)
    parser.add_argument("--batch", type=whole, default=1)
    parser.add_argument("--seq-len", type=whole, default=1024)
    parser.add_argument("--n-heads", type=whole, default=16)
    parser.add_argument("--rare", action="store_true", help="also shapes at which a kernel takes other ways")
    found = parser.parse_args(argv)
    if min(found.batch, found.seq_len, found.n_heads) < 1:
        parser.error("--batch, --seq-len and --n-heads: expected at least 1")
    shape = Shape(batch=found.batch, seq_len=found.seq_len, n_heads=found.n_heads, d_head=128)
    return Launches(tuple(found.numbers), tuple(found.configs), tuple(found.dtypes), shape, found.rare)


if __name__ == "__main__":
    with one_line_errors():
        print(f"{launch(parse_arguments())} launches")
