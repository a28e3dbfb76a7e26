"""Question: what of a sweep is the ladder's own, without the libraries and the steps timed for comparison?

Writes the samples of the iterations named, and the A/A series of the run, as a timing of its own: ``bench_*.json.gz``,
which the ladder's tables are made from. Nothing is timed or computed anew: summaries, means and floors are the sweep's,
which the gate derives from its samples.

Run: python analysis/ladder_of_sweep.py results/h200/hopper.json.gz 20 21 22 23 24 --out build/bench_hopper.json.gz
"""

from __future__ import annotations

from collections.abc import Sequence

from flashladder.arguments import Parser, result_file, whole
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.results.files import load_as, write_result
from flashladder.results.schema import A_A, BenchResult


def part_of(result: BenchResult, numbers: Sequence[int]) -> BenchResult:
    """The groups of these iterations and of FA2 beside itself; `FlashladderError` if one of them was not timed."""
    timed = {kernel.iteration for kernel in result.kernels.values()}
    if missing := sorted(set(numbers) - timed):
        raise FlashladderError("not timed in this sweep", expected=f"some of {sorted(timed)}", found=missing[0])
    kernels = {key: kernel for key, kernel in result.kernels.items() if kernel.iteration in numbers}
    groups = tuple(one for one in result.groups if all(each.kernel in {A_A, *kernels} for each in one.series))
    if missing_floors := sorted({group.dtype for group in groups} - result.floors_pct.keys()):
        raise FlashladderError("no A/A series, so no noise floor", found=missing_floors[0])
    own = {
        name: tuple(one for one in getattr(result, name) if one.kernel in kernels) for name in ("summaries", "means")
    }
    return result.model_copy(update={"sweep": None, "references": {}, "kernels": kernels, "groups": groups, **own})


def main(argv: list[str] | None = None) -> None:
    example = "example: python analysis/ladder_of_sweep.py results/h200/hopper.json.gz 24 --out build/24.json.gz"
    parser = Parser(description=(__doc__ or "").partition("\n")[0], epilog=example)
    parser.add_argument("sweep", metavar="FILE", type=result_file, help="a timing (.json.gz)")
    parser.add_argument("numbers", metavar="N", type=whole, nargs="+", help="iterations that it holds")
    parser.add_argument("--out", metavar="FILE", type=result_file, required=True, help="the file to write (.json.gz)")
    options = parser.parse_args(argv)
    with one_line_errors():
        print(write_result(options.out, part_of(load_as(options.sweep, BenchResult), options.numbers)))


if __name__ == "__main__":
    main()
