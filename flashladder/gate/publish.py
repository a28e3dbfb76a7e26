"""Copies a finished sweep's document to ``results/<machine>/``, verified, with ``machine.json`` and the folder's seal.

Why: what is committed is what was packed, once it is proven to follow from its samples; a folder never mixes GPU
models, and cells that failed are published only by those who know of them.

Run:
    python -m flashladder.gate.publish build/sweep/h200/h200.json.gz [--machine h200]
Exit code: 0 done, 1 the document does not hold, 2 it could not be published. Nothing is written unless it is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flashladder.arguments import Parser, result_file
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.files import relative, write_atomic
from flashladder.gate import verify
from flashladder.ladder.manifest import NAME as MANIFEST
from flashladder.ladder.manifest import load_manifest
from flashladder.paths import RESULTS
from flashladder.results import machine
from flashladder.results.cells import Sweep
from flashladder.results.files import load_result, write_result
from flashladder.results.machine import machine_name
from flashladder.results.schema import AnyResult, BenchResult, EmulatedSweepResult

SOME = 3  # failures that a message names


def publish(
    path: Path, name: str = "", *, results: Path = RESULTS, with_failures: bool = False, replace: bool = False
) -> Path:
    """Writes the document at `path` to a machine's folder under `results` and seals that; returns the new file.

    Args:
        path: a packed sweep, or a benchmark; its file name is kept, a ``.json`` is compressed.
        name: of the folder (default: the key of the document's GPU, or ``cpu``).
        results: that holds the folders of machines.
        with_failures: publish it though cells failed.
        replace: a file of that name that holds another document.

    Raises:
        CheckFailed: the document does not hold.
        FlashladderError: it is of another kind, has failed cells, another GPU's folder was named, or a file of its name
            holds another document.
    """
    result = load_result(path)
    if not isinstance(result, BenchResult | EmulatedSweepResult):
        raise FlashladderError(
            "not a sweep", where=relative(path), expected="bench or emulated-sweep", found=result.kind
        )
    _require_no_failures(path, result.sweep, with_failures=with_failures)
    folder = results / (name or _folder_name(result))
    _require_own_folder(path, result, folder)
    (found,) = verify.verify(path)
    if found.details:
        more = f" ({len(found.details)} problems)" if len(found.details) > 1 else ""
        raise CheckFailed(f"not published: {found.details[0]}{more}", where=relative(path))
    out = folder / (path.name.removesuffix(".gz").removesuffix(".json") + ".json.gz")
    before = out.read_bytes() if out.is_file() else None
    if before is not None and not replace and load_result(out) != result:
        raise FlashladderError(
            "a file of this name holds another document", where=relative(out), expected="the same run, or no such file",
            found=f"{relative(path)} of another one", hint="rename it, or publish with --replace",
        )  # fmt: skip
    write_result(out, result)
    try:
        machine.write(folder)
    except FlashladderError:
        _put_back(out, before)
        raise
    return out


def _put_back(path: Path, before: bytes | None) -> None:
    if before is None:
        path.unlink()
    else:
        write_atomic(path, before)


def _folder_name(result: AnyResult) -> str:
    model = machine.model_of(result)
    return machine_name(model) if model else machine.CPU


def _require_no_failures(path: Path, sweep: Sweep | None, *, with_failures: bool) -> None:
    """Raises where cells failed and nobody said that this is known."""
    if sweep is None or not sweep.failures or with_failures:
        return
    first = ", ".join(f"{one.kind} ({one.message})" for one in sweep.failures[:SOME])
    raise FlashladderError(
        f"{len(sweep.failures)} of {len(sweep.planned)} cells failed: {first}",
        where=relative(path),
        hint="measure them again with --retry, or publish with --with-failures",
        exit_code=1,
    )


def _require_own_folder(path: Path, result: AnyResult, folder: Path) -> None:
    """Raises where the folder is another GPU's, by its name or by what lies in it."""
    model, own = machine.model_of(result), _folder_name(result)
    there = machine.derive(folder).gpu if folder.is_dir() and machine.result_files(folder) else model
    if there != model or (folder.name != own and machine.is_key(folder.name)):
        raise FlashladderError(
            "another machine's folder",
            where=relative(folder),
            expected=f"results of {there or machine.CPU}" if there != model else f"the folder {own}",
            found=f"{relative(path)} of {model or machine.CPU}",
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Publishes one document."""
    parser = Parser(
        prog="python -m flashladder.gate.publish",
        description="Copies a finished sweep to results/<machine>/, verified and sealed.",
        epilog="example: python -m flashladder.gate.publish build/sweep/h200/h200.json.gz",
    )
    parser.add_argument("packed", type=result_file, help="what the sweep packed (.json or .json.gz)")
    parser.add_argument("--machine", default="", help="folder under results/ (default: the document's GPU)")
    parser.add_argument("--with-failures", action="store_true", help="publish it though cells failed")
    parser.add_argument("--replace", action="store_true", help="instead of a file of that name with another document")
    options = parser.parse_args(argv)
    with one_line_errors():
        if options.machine and not options.machine.isidentifier():
            raise FlashladderError("not a folder's name", expected="such as h200", found=repr(options.machine))
        out = publish(options.packed, options.machine, with_failures=options.with_failures, replace=options.replace)
        print(f"published: {relative(out)}; {relative(out.parent / machine.NAME)} and the seal are of this state")
        owed = out.parent / MANIFEST
        if not owed.is_file() or out.name not in load_manifest(out.parent).files:
            print(f"next: say in {relative(owed)} what it holds, and in README.md how it was made; then seal again")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
