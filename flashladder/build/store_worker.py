"""Fills one entry of the store: lock, run the tool in a scratch folder, rename its output into place, write meta.json.

The scheduler runs it as ``python -S -m flashladder.build.store_worker <folder>``: standard library only, because it
runs hundreds of times in a full build. A build that is killed leaves nothing that looks finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
import errno
import fcntl
import json
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys
import time
from typing import Any

from flashladder.build.store import is_whole
from flashladder.errors import FlashladderError
from flashladder.files import (
    dump_json,
    escaped,
    load_json,
    make_folder,
    relative,
    require_file_or_nothing,
    sha256,
    unescaped,
    write_atomic,
)
from flashladder.machine_code.ptxas import parse_log, warnings_of
from flashladder.toolchain.environment import clean_environment
from flashladder.toolchain.errors import Failure, diagnose, disk_full

LOCK_TIMEOUT_S = 600.0
ERROR_MARK = "flashladder-error: "
# What would let the machine's own CUDA or headers leak into a build.
_FILE_LINE = re.compile(r'^(?P<head>\s*\.file\s+\d+\s+)"(?P<path>(?:[^"\\\n]|\\.)*)"', re.MULTILINE)

_NEXT = r"(?:,|\n\.b8 )"  # between two bytes of a string in a debug section
# What names a function of internal linkage, in code and in debug strings: nvcc hashes the absolute path of the source.
_HASHED = re.compile(r"(?<=_INTERNAL_)[0-9a-f]{8}(?=_)")
_HASHED_BYTES = re.compile(rf"({_NEXT.join(map(str, b'_INTERNAL_'))})((?:{_NEXT}\d+){{8}})(?={_NEXT}{ord('_')}\b)")
_BYTE = re.compile(r"(?<![b\d])\d+")


def fill(folder: Path, timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Runs the prepared job of the entry in `folder`, unless another process has filled it meanwhile.

    Raises:
        FlashladderError: the tool failed, the disk is full, or another process kept the entry for `timeout_s` seconds.
    """
    try:
        with entry_lock(folder, timeout_s):
            job = load_json((folder / "job.json").read_bytes())
            if not is_whole(folder, job["output"], job["log"]):
                _run(folder, job)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise disk_full(folder) from error
        raise FlashladderError(f"could not build the entry ({error})", where=relative(folder)) from error


def _run(folder: Path, job: Mapping[str, Any]) -> None:
    for leftover in folder.glob("tmp-*"):  # of a build that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    scratch = folder / f"tmp-{os.getpid()}"
    scratch.mkdir()
    try:
        started = time.monotonic()
        command = [*job["command"], "-o", f"{scratch.name}/{job['output']}"]
        done = subprocess.run(
            command,
            cwd=folder,
            env=clean_environment(scratch),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        wall_ms = round((time.monotonic() - started) * 1000, 1)
        text = done.stdout.decode(errors="replace")
        log = write_atomic(folder / job["log"], f"$ {' '.join(job['command'])} -o {job['output']}\n{text}")
        if done.returncode != 0:
            raise diagnose(Failure(job["tool"], done.returncode, text, log, folder))
        data = (scratch / job["output"]).read_bytes()
        if job["roots"]:
            data = portable_paths(data.decode(), job["roots"], folder).encode()
        write_atomic(folder / job["output"], data)
        facts = {"key": job["key"], "inputs": job["inputs"], "sha256": sha256(data), "wall_ms": wall_ms}
        usage = (
            asdict(parse_log(text, where=relative(log))) if job["tool"] == "ptxas" else {"warnings": warnings_of(text)}
        )
        write_atomic(folder / "meta.json", dump_json(facts | usage))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def portable_paths(ptx: str, roots: Iterable[tuple[str, str]], folder: Path) -> str:
    r"""`ptx` with its ``.file`` lines relative: "kernels/args.cuh" for a file under the root ("/x/kernels", "kernels").

    The hash of the source's path in internal names becomes zeros, so that two checkouts give the same bytes.
    nvcc makes them absolute whatever it is given (with ``\303`` for a byte that is not ASCII), which would make PTX and
    cubin differ between two checkouts; and a path that ptxas can open puts the file's time stamp into the cubin.
    """

    def replace(match: re.Match[str]) -> str:
        path = Path(os.path.realpath(folder / unescaped(match["path"])))
        for root, name in roots:
            if path.is_relative_to(root):
                return f'{match["head"]}"{escaped((Path(name) / path.relative_to(root)).as_posix())}"'
        return match[0]

    ptx = _HASHED.sub("0" * 8, _FILE_LINE.sub(replace, ptx))
    return _HASHED_BYTES.sub(lambda match: match[1] + _BYTE.sub(str(ord("0")), match[2]), ptx)


@contextmanager
def entry_lock(folder: Path, timeout_s: float = LOCK_TIMEOUT_S, poll_s: float = 0.1) -> Iterator[None]:
    """Holds the entry in `folder` against other processes; waits with a message while another one holds it.

    Raises:
        FlashladderError: another process still holds it after `timeout_s` seconds.
    """
    make_folder(folder)
    require_file_or_nothing(folder / ".lock")
    with (folder / ".lock").open("a+", encoding="utf-8") as stream:
        deadline = time.monotonic() + timeout_s
        waiting = False
        while not _try_lock(stream.fileno()):
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            if not waiting:
                print(f"waiting for process {holder}, which builds {relative(folder)}", file=sys.stderr)
            waiting = True
            if time.monotonic() >= deadline:
                raise FlashladderError(
                    f"another build has held this entry for {timeout_s:g} s",
                    where=relative(folder),
                    found=f"process {holder}",
                    hint="wait for that build or end it, then run the same command again",
                )
            time.sleep(poll_s)
        stream.truncate(0)
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield


def lock_holder(folder: Path) -> str | None:
    """The process that builds the entry in `folder` right now, as text; None when nobody does."""
    path = folder / ".lock"
    if not path.is_file():
        return None
    with path.open("r+", encoding="utf-8") as stream:
        return None if _try_lock(stream.fileno()) else stream.read().strip() or "unknown"


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main() -> None:
    """Fills the entry named on the command line; an error leaves as one marked JSON line, for the scheduler."""
    try:
        fill(Path(sys.argv[1]))
    except FlashladderError as error:
        names = ("what", "where", "expected", "found", "hint")
        facts = {name: str(getattr(error, name)) for name in names if getattr(error, name) is not None}
        print(ERROR_MARK + json.dumps(facts))
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
