"""How a tool of the toolchain is run, and what a failed run means: one line that says what to do (`diagnose`).

Standard library only, because the store's workers import it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
import errno
import os
from pathlib import Path
import re
import shutil
import signal
import subprocess
import tempfile
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.paths import ROOT

FOREIGN_ENV = (
    *("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"),
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "GCC_EXEC_PREFIX", "CCC_OVERRIDE_OPTIONS"),
)
FEWER_JOBS = "use fewer jobs (--jobs 1), or a machine with more memory"
FREE_SPACE = "free space there and run the same command again: finished entries are kept"
LEAST_FREE_BYTES = 16 * 2**20  # with less, a tool that fails most likely could not write, whatever it prints

_DISK_FULL = re.compile(r"no space left on device|disk quota exceeded|Internal error: writing file", re.IGNORECASE)

# What a compiler prints about a problem of the machine; the message; what to do.
_RULES = (
    (
        re.compile(r"died due to signal 9|Killed signal terminated program|\bKilled$", re.MULTILINE),
        "{tool} was killed (signal 9): the machine most likely ran out of memory",
        FEWER_JOBS,
    ),
    (
        re.compile(r"unsupported .*?(?:version|compiler|configuration)![^!\n]*", re.IGNORECASE),
        "the host C++ compiler is not one that nvcc supports",
        "install an older one and name it: CXX=/usr/bin/g++-14",
    ),
    (
        re.compile(
            r".*Failed to preprocess host compiler properties.*|.*cannot execute .*cc1plus.*|.*cc1plus: No such file.*"
            r"|nvcc fatal\s*: (?:Cannot find compiler|Host compiler targets unsupported OS).*"
        ),
        "nvcc could not run the host C++ compiler",
        "check that it works ({compiler} --version), reinstall it, or set CXX to another",
    ),
    (
        re.compile(r"undefined reference to [`'](?:std::|operator (?:new|delete)|vtable for (?:std|__cxxabiv1)).*"),
        "the host compiler does not link the C++ library",
        "set CXX to a C++ compiler, such as g++ or clang++, or unset it",
    ),
    (
        re.compile(
            r"Unsupported gpu architecture '[^']+'|Value '[^']+' is not defined for option 'gpu-name'"
            r"|SM version specified by \.target is higher than.*"
        ),
        "{tool} does not know this GPU architecture, or it is older than the PTX",
        "choose one of `arches` in configs/toolchain.yaml",
    ),
)
_ERROR_LINES = (
    re.compile(
        r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.+)$", re.MULTILINE
    ),
    re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+)(?::\d+)?: (?:fatal )?error: (?P<text>.+)$", re.MULTILINE),
    re.compile(r"^ptxas (?P<file>.+), line (?P<line>\d+); error\s*: (?P<text>.+)$", re.MULTILINE),
)
_PART = re.compile(r"\[with Part=(?P<part>.+?)\]\"?(?: at line|$)", re.MULTILINE)
_ANY_ERROR = re.compile(r"^.*\b(?:error|fatal)\b.*$", re.MULTILINE | re.IGNORECASE)


def clean_environment(scratch: Path) -> dict[str, str]:
    """The caller's environment without foreign CUDA settings, in English, with temporary files in `scratch`."""
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN_ENV}
    return kept | {"LC_ALL": "C", "TMPDIR": str(scratch.resolve())}


def run_tool(command: Sequence[str | Path], folder: Path, scratch: Path) -> tuple[int, str]:
    """Runs a compiler in `folder`, with its temporary files in `scratch`: exit code, and all that it printed."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=folder, env=clean_environment(scratch), check=False, **pipes)
    return done.returncode, done.stdout.decode(errors="replace")


def diagnose(tool: str, returncode: int, text: str, log: Path, folder: Path) -> FlashladderError:
    """The error to raise for a tool that failed: first a problem of the machine, else an error in the source.

    `returncode` is negative for a signal. The tool ran in `folder` and printed `text`, which the file `log` holds.
    """
    text = text.replace("\0", "")  # which no path can hold
    if _DISK_FULL.search(text) or _is_full(folder):
        return disk_full(folder)
    killed = returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}
    for pattern, what, remedy in _RULES:
        match = pattern.search(text)
        if match or (killed and remedy is FEWER_JOBS):
            found = match[0].strip() if match else None
            hint = remedy.format(compiler=os.environ.get("CXX", "").strip() or "g++")
            return FlashladderError(what.format(tool=tool), where=_shown(log), found=found, hint=hint)
    hint = f"the full log is {_shown(log)}"
    errors = [match for match in (pattern.search(text) for pattern in _ERROR_LINES) if match]
    if first := min(errors, key=lambda match: match.start(), default=None):
        where = f"{relative((folder / first['file']).resolve())}:{first['line']}"
        part = _part(folder, text[first.end() :])
        return FlashladderError(f"{tool}: {first['text'].strip()}", where=where, found=part, hint=hint)
    ended = f"exit code {returncode}" if returncode >= 0 else f"signal {-returncode}"
    said = _ANY_ERROR.search(text) or re.search(r"\S.*", text)
    found = said[0].strip() if said else "no output"
    return FlashladderError(f"{tool} failed with {ended}", found=found, hint=hint)


def _shown(log: Path) -> str:
    """A log's path as the user can open it: absolute, unless the working folder is the checkout's root."""
    return relative(log) if Path.cwd() == ROOT else str(log.resolve())


def disk_full(where: Path) -> FlashladderError:
    """The error for a full disk while building in `where`; it may be that of the folder for temporary files."""
    temporary = Path(os.environ.get("TMPDIR") or tempfile.gettempdir())  # gettempdir skips a folder that is full
    if _is_full(temporary) and not _is_full(where):
        hint = "free space there, or set TMPDIR to a folder on another disk"
        return FlashladderError("the disk of the folder for temporary files is full", where=temporary, hint=hint)
    return FlashladderError("the disk is full", where=relative(where), hint=FREE_SPACE)


@contextmanager
def file_errors(folder: Path) -> Iterator[None]:
    """Turns a full disk and other trouble with files of a build in `folder` into one line."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise disk_full(folder) from error
        what = f"the build could not use a file ({error.strerror or error})"
        hint = "fix its permissions, or set FLASHLADDER_BUILD to a folder that you can write"
        raise FlashladderError(what, where=relative(folder), found=error.filename, hint=hint) from error


def _is_full(folder: Path) -> bool:
    """Whether the disk of a folder, which may not exist yet, has less space than a compiler needs."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    return shutil.disk_usage(there).free < LEAST_FREE_BYTES


def _part(folder: Path, context: str) -> str | None:
    """The part of a kernel behind the alias in nvcc's first error, if that is a broken contract (contracts.cuh)."""
    match = _PART.search(context.partition("error:")[0])
    if match is None:
        return None
    unit = folder / "kernel.cu"
    text = unit.read_text(encoding="utf-8", errors="replace") if unit.is_file() else ""
    named = re.search(rf"using {re.escape(match['part'].removeprefix('Kernel::'))} = ([^;]+);", text)
    return named[1] if named else match["part"]
