"""Result files on a command line: validate some, rewrite those of older schema versions.

Run:
    python -m flashladder.results results/h200/bench.json.gz             # exit code 1 when it does not hold
    python -m flashladder.results --migrate results/h200/bench.json.gz   # rewrites it as today's schema writes it
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flashladder.arguments import Parser
from flashladder.errors import CheckFailed, one_line_errors
from flashladder.files import relative
from flashladder.results.files import DIGEST, digest_of, load_result, read_json, version_of, with_digest, write_result
from flashladder.results.schema import SCHEMA_VERSION, Result


def rewrite(path: Path) -> bool:
    """Writes a result file anew as today's schema writes it; whether it was written otherwise.

    Raises:
        FlashladderError: it cannot be read, is newer, or does not follow its schema.
        CheckFailed: it was edited since it was written.
    """
    document, result = read_json(path), load_result(path)
    if version_of(document) == SCHEMA_VERSION and document.get(DIGEST) != digest_of(document):
        raise CheckFailed("edited since it was written, and not written anew", where=relative(path))
    if document == with_digest(result.model_dump(mode="json")):
        return False
    write_result(path, result)
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Validates or rewrites what is named."""
    parser = Parser(
        prog="python -m flashladder.results",
        description="Validates result files; rewrites those of older versions.",
        epilog="example: python -m flashladder.results results/h200/bench.json.gz",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="result files")
    parser.add_argument("--migrate", action="store_true", help="rewrite, atomically, as today's schema writes them")
    options = parser.parse_args(argv)
    for path in options.paths:
        if options.migrate:
            told = "rewritten" if rewrite(path) else "left, as it is so already"
            print(f"{relative(path)}: {told}: as schema {SCHEMA_VERSION} writes it")
        else:
            result = load_result(path)
            host = result.gpu.name if isinstance(result, Result) else result.host.cpu
            print(f"{path}: {result.kind}, {len(result.kernels)} kernels on {host}")
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
