"""Question: what is each change worth, what does another compiler make of a kernel, and which configuration won?

Reads the packed result of a sweep and writes a table (Markdown, CSV) and a plot (SVG, PNG) of it:
ablation: each change, taken back from the last iteration or added to the first; toolchain: the same source through
other CUDA versions' compilers; tune: every candidate of a tuning run, whose finals lie beside the file.

Run: python analysis/sweep_tables.py ablation results/h200/ablation.json.gz --out build/report
"""

from __future__ import annotations

from flashladder.arguments import Parser, result_file
from flashladder.errors import one_line_errors
from flashladder.files import write_atomic
from flashladder.paths import BUILD, path_of
from flashladder.report import sweeps, variants
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult


def main(argv: list[str] | None = None) -> None:
    example = "example: python analysis/sweep_tables.py tune results/h200/tune.json.gz"
    parser = Parser(description=(__doc__ or "").partition("\n")[0], epilog=example)
    parser.add_argument("kind", choices=("ablation", "toolchain", "tune"), help="what the sweep compares")
    parser.add_argument("result", metavar="FILE", type=result_file, help="packed result of the sweep (.json.gz)")
    parser.add_argument("--out", metavar="FOLDER", type=path_of, default=BUILD / "report", help="default: build/report")
    options = parser.parse_args(argv)
    with one_line_errors():
        if options.kind == "tune":
            files = sweeps.tuning_pages(options.result)
        else:
            files = variants.pages(options.kind, load_as(options.result, BenchResult))
        for suffix, data in files.items():
            print(write_atomic(options.out / f"{options.kind}.{suffix}", data))


if __name__ == "__main__":
    main()
