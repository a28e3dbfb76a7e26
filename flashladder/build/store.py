"""The content-addressed store of compiled kernels, ``build/store/<key>/``, and how its entries are filled.

One entry per translation unit holds its PTX, one per PTX and architecture its machine code. A key is the SHA-256 of
everything that decides the content (text, included files, flags, versions) and of no path, so unchanged inputs find
their entry and nothing is ever invalidated. ``meta.json`` is written last and holds the output's digest: an entry is
whole when its bytes still have it, and a damaged one is filled again.

`ptx_entry` and `cubin_entry` say where an entry is and what fills it. `fill_all` fills many, a compiler per CPU: lock,
run the tool in a scratch folder, rename its output into place. A build that is killed leaves nothing that looks
finished.

A bundle writes ``tools.json`` into its store (`read_recorded`): on a node without a compiler the versions that keys are
made of cannot be asked, yet the kernels that came along are to be found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
import errno
import fcntl
import os
from pathlib import Path
import re
import shutil
import sys
import threading
import time
from typing import Any, ClassVar

from tqdm import tqdm

from flashladder.errors import FlashladderError
from flashladder.files import (
    dump_json,
    escaped,
    load_json,
    make_folder,
    read_bytes,
    relative,
    require_file_or_nothing,
    sha256,
    unescaped,
    write_atomic,
)
from flashladder.machine_code.ptxas import PtxasUsage, parse_log, warnings_of
from flashladder.paths import BUILD
from flashladder.toolchain import diagnose, disk_full, run_tool

SCHEMA = 1
STORE = BUILD / "store"
TOOLS_FILE = "tools.json"  # which a bundle writes into its store
NOWHERE = Path("not-here")  # in place of programs that were written down: nothing runs them


@dataclass(frozen=True)
class Tools:
    """The programs, versions and flags of one way to compile (release or debug).

    `nvcc_flags` are without -ptx, -I, -ccbin, `ptxas_flags` without -arch. `ptx_versions` decide the PTX. `recorded`:
    the tools are not here; a store that was filled elsewhere says what filled it.
    """

    root: Path
    nvcc: Path
    ptxas: Path
    host_compiler: Path
    nvcc_flags: tuple[str, ...]
    ptxas_flags: tuple[str, ...]
    ptx_versions: Mapping[str, str]
    ptxas_version: str
    debug: bool = False
    recorded: bool = False

    def record(self) -> str:
        """What decides the output of a release build, flags and versions, as the text of ``tools.json``."""
        names = ("nvcc_flags", "ptxas_flags", "ptx_versions", "ptxas_version")
        return dump_json({name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class Entry:
    """One entry of the store: where it is, and the command (run in `folder`) that fills it."""

    key: str
    folder: Path
    command: tuple[str, ...]
    inputs: Mapping[str, object]

    OUTPUT: ClassVar[str]
    TOOL: ClassVar[str]
    LOG: ClassVar[str]

    @property
    def is_complete(self) -> bool:
        """Whether everything is there, undamaged."""
        return is_whole(self.folder, self.OUTPUT, self.LOG)

    @property
    def meta(self) -> dict[str, Any]:
        """``meta.json``: inputs, digests, warnings, times in milliseconds; read anew each time.

        Raises:
            FlashladderError: it is missing or broken.
        """
        path = self.folder / "meta.json"
        try:
            return dict(load_json(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            what, hint = f"the record of a compiled kernel is missing or broken ({error})", "run the same command again"
            raise FlashladderError(what, where=relative(path), hint=hint) from error

    @property
    def log(self) -> Path:
        """What the tool was asked and all that it printed."""
        return self.folder / self.LOG


@dataclass(frozen=True)
class PtxEntry(Entry):
    """A translation unit and its PTX."""

    text: str
    roots: tuple[tuple[str, str], ...]  # (folder, the name that stands for it in .file lines)

    OUTPUT, TOOL, LOG = "kernel.ptx", "nvcc", "nvcc.log"

    @property
    def is_complete(self) -> bool:
        """Whether everything is there, undamaged, the translation unit included."""
        try:
            return self.source.read_bytes() == self.text.encode() and super().is_complete
        except OSError:
            return False

    @property
    def source(self) -> Path:
        """The translation unit."""
        return self.folder / "kernel.cu"

    @property
    def ptx(self) -> Path:
        """The PTX."""
        return self.folder / self.OUTPUT


@dataclass(frozen=True)
class CubinEntry(Entry):
    """The machine code of one PTX for one architecture."""

    arch: str
    ptx_entry: PtxEntry

    OUTPUT, TOOL, LOG = "kernel.cubin", "ptxas", "ptxas.log"

    @property
    def ptx(self) -> Path:
        """The PTX that it was made from."""
        return self.ptx_entry.ptx

    @property
    def cubin(self) -> Path:
        """The machine code."""
        return self.folder / self.OUTPUT

    @property
    def usage(self) -> PtxasUsage:
        """Registers, spills, shared memory, as ptxas reported them."""
        return PtxasUsage.from_json(self.meta)


def is_whole(folder: Path, output: str, log: str) -> bool:
    """Whether the entry in `folder` is as it was filled: its `log`, its record, and `output` with the digest it had."""
    try:
        meta = load_json((folder / "meta.json").read_bytes())
        if output == CubinEntry.OUTPUT:
            PtxasUsage.from_json(meta)
        whole: bool = meta["key"] == folder.name and meta["sha256"] == sha256((folder / output).read_bytes())
        return whole and (folder / log).is_file()
    except (OSError, ValueError, KeyError, TypeError, FlashladderError):
        return False


def outputs_of(folder: Path, paths: Iterable[Path]) -> dict[str, dict[str, str]]:
    """Digest of each of the files under `folder`, by its path there, under the key ``outputs`` of a record."""
    return {"outputs": {path.relative_to(folder).as_posix(): sha256(path.read_bytes()) for path in sorted(paths)}}


def whole_record(path: Path) -> dict[str, Any] | None:
    """The record at `path`, if all its ``outputs``, which lie beside it, have the digests they had; else None."""
    try:
        record: dict[str, Any] = load_json(path.read_bytes())
        outputs = record["outputs"].items()
        return record if all(sha256((path.parent / name).read_bytes()) == known for name, known in outputs) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def ptx_entry(text: str, include_dir: Path, includes: Iterable[Path], tools: Tools, store: Path = STORE) -> PtxEntry:
    """The entry for the PTX of translation unit `text`, whether or not it is filled yet.

    Args:
        text: the CUDA C++ source.
        include_dir: the folder given to nvcc with -I.
        includes: every file under it that `text` includes, directly or not.
        tools: programs, versions and flags.
        store: the folder of all entries.

    Raises:
        FlashladderError: an included file cannot be read or lies outside `include_dir`.
    """
    inputs: dict[str, object] = {
        "schema": SCHEMA,
        "kind": "ptx",
        "text": sha256(text),
        "includes": dict(sorted(_include_digest(path, include_dir.resolve()) for path in includes)),
        "flags": ["-ptx", *tools.nvcc_flags],
        "versions": dict(tools.ptx_versions),
    }
    key = sha256(dump_json(inputs))
    folder = store / key
    search = os.path.relpath(include_dir.resolve(), folder.resolve())
    host = ("-ccbin", str(tools.host_compiler))
    command = (str(tools.nvcc), "-ptx", *tools.nvcc_flags, "-I", search, *host, "kernel.cu")
    roots = [(include_dir, "kernels"), (tools.root / "include", "cuda"), (folder, "")]
    return PtxEntry(
        key=key,
        folder=folder,
        command=command,
        inputs=inputs,
        text=text,
        # cuda-gdb wants the real paths, so a debug build keeps them and is not the same in two checkouts
        roots=() if tools.debug else tuple((str(path.resolve()), name) for path, name in roots),
    )


def _include_digest(path: Path, include_dir: Path) -> tuple[str, str]:
    try:
        return path.resolve().relative_to(include_dir).as_posix(), sha256(read_bytes(path))
    except ValueError as error:
        what = "a kernel includes a file from outside the include folder"
        raise FlashladderError(what, where=relative(path), expected=f"a file of {relative(include_dir)}") from error


def cubin_entry(ptx: PtxEntry, arch: str, tools: Tools, store: Path = STORE) -> CubinEntry:
    """The entry for the machine code of `ptx` on `arch` (for example ``sm_80``), whether or not it is filled yet.

    Its key derives from the key of the PTX, so it is known before the PTX is, and one build graph does both.
    """
    inputs: dict[str, object] = {
        "schema": SCHEMA,
        "kind": "cubin",
        "ptx": ptx.key,
        "arch": arch,
        "flags": list(tools.ptxas_flags),
        "versions": {"ptxas": tools.ptxas_version},
    }
    key = sha256(dump_json(inputs))
    folder = store / key
    source = os.path.relpath(ptx.ptx, folder)
    command = (str(tools.ptxas), f"-arch={arch}", *tools.ptxas_flags, source)
    return CubinEntry(key=key, folder=folder, command=command, inputs=inputs, arch=arch, ptx_entry=ptx)


def read_recorded(store: Path) -> Tools | None:
    """The tools that filled `store`, where it came with a record of them; None where it did not.

    Raises:
        FlashladderError: the record is broken.
    """
    path = store / TOOLS_FILE
    try:
        data = load_json(path.read_bytes())
        return Tools(
            NOWHERE,
            NOWHERE,
            NOWHERE,
            NOWHERE,
            nvcc_flags=tuple(map(str, data["nvcc_flags"])),
            ptxas_flags=tuple(map(str, data["ptxas_flags"])),
            ptx_versions={str(name): str(version) for name, version in data["ptx_versions"].items()},
            ptxas_version=str(data["ptxas_version"]),
            recorded=True,
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"the record of what compiled these kernels is broken ({error})"
        raise FlashladderError(what, where=relative(path), hint="unpack the bundle again") from error


LOCK_TIMEOUT_S, POLL_S = 600.0, 0.1
_FILE_LINE = re.compile(r'^(?P<head>\s*\.file\s+\d+\s+)"(?P<path>(?:[^"\\\n]|\\.)*)"', re.MULTILINE)

_NEXT = r"(?:,|\n\.b8 )"  # between two bytes of a string in a debug section
# What names a function of internal linkage, in code and in debug strings: nvcc hashes the absolute path of the source.
_HASHED = re.compile(r"(?<=_INTERNAL_)[0-9a-f]{8}(?=_)")
_HASHED_BYTES = re.compile(rf"({_NEXT.join(map(str, b'_INTERNAL_'))})((?:{_NEXT}\d+){{8}})(?={_NEXT}{ord('_')}\b)")
_BYTE = re.compile(r"(?<![b\d])\d+")


def fill(entry: PtxEntry | CubinEntry, timeout_s: float = LOCK_TIMEOUT_S, stop: threading.Event | None = None) -> None:
    """Runs the tool of an entry, unless another process has filled it meanwhile.

    Raises:
        FlashladderError: the tool failed, the disk is full, or another process kept the entry until `stop` or for
            `timeout_s` seconds.
    """
    try:
        with entry_lock(entry.folder, timeout_s, stop=stop):
            if not entry.is_complete:
                _run(entry)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise disk_full(entry.folder) from error
        raise FlashladderError(f"could not write to the store ({error})", where=relative(entry.folder)) from error


def _run(entry: PtxEntry | CubinEntry) -> None:
    folder, output, log = entry.folder, entry.folder / entry.OUTPUT, entry.log
    for leftover in folder.glob("tmp-*"):  # of a build that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    scratch = folder / f"tmp-{os.getpid()}"
    scratch.mkdir()
    try:
        if isinstance(entry, PtxEntry):
            write_atomic(entry.source, entry.text)
        started = time.monotonic()
        code, text = run_tool([*entry.command, "-o", f"{scratch.name}/{entry.OUTPUT}"], folder, scratch)
        wall_ms = round((time.monotonic() - started) * 1000, 1)
        write_atomic(log, f"$ {' '.join(entry.command)} -o {entry.OUTPUT}\n{text}")
        if code:
            raise diagnose(entry.TOOL, code, text, log, folder)
        data = (scratch / entry.OUTPUT).read_bytes()
        facts: dict[str, object] = {"key": entry.key, "inputs": entry.inputs, "wall_ms": wall_ms}
        if isinstance(entry, CubinEntry):
            facts |= asdict(parse_log(text, where=relative(log)))
        elif entry.roots:
            data = portable_paths(data.decode(), entry.roots, folder).encode()
        write_atomic(output, data)
        record = {"warnings": warnings_of(text)} | facts | {"sha256": sha256(data)}
        write_atomic(folder / "meta.json", dump_json(record))
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
def entry_lock(
    folder: Path, timeout_s: float = LOCK_TIMEOUT_S, refusal: str = "", stop: threading.Event | None = None
) -> Iterator[None]:
    """Holds `folder` against other processes; waits with a message while another one holds it.

    Raises:
        FlashladderError: another process still holds it after `timeout_s` seconds, or when the caller, which is a
            thread that sees no Ctrl-C, is to `stop`; the message begins with `refusal`.
    """
    stop = stop or threading.Event()
    make_folder(folder)
    require_file_or_nothing(folder / ".lock")
    with (folder / ".lock").open("a+", encoding="utf-8") as stream:
        deadline, waiting = time.monotonic() + timeout_s, False
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                stream.seek(0)
                holder = stream.read().strip() or "unknown"
            if stop.is_set() or time.monotonic() >= deadline:
                raise FlashladderError(
                    refusal or f"another build has held this entry for {timeout_s:g} s",
                    where=relative(folder),
                    found=f"process {holder}",
                    hint="wait for that build or end it, then run the same command again",
                )
            if not waiting:
                print(f"waiting for process {holder}, which builds {relative(folder)}", file=sys.stderr)
            waiting = True
            stop.wait(POLL_S)
        stream.truncate(0)
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield


def default_jobs() -> int:
    """How many compilers to run at once: one per CPU that this process may use."""
    return len(os.sched_getaffinity(0))


def missing_entries(entries: Iterable[PtxEntry | CubinEntry]) -> list[PtxEntry | CubinEntry]:
    """Those of `entries` that are not filled or are damaged, each once, and before them the PTX of all."""
    entries = list(entries)
    units = [entry.ptx_entry if isinstance(entry, CubinEntry) else entry for entry in entries]
    wanted = {entry.key: entry for entry in (*units, *entries)}
    return [entry for entry in wanted.values() if not entry.is_complete]


def fill_all(entries: Iterable[PtxEntry | CubinEntry], n_jobs: int | None = None) -> None:
    """Fills every entry that is not filled, with a progress bar on a terminal.

    Args:
        entries: the entries wanted; the PTX of a wanted cubin need not be named.
        n_jobs: compilers at once; None for one per CPU.

    Raises:
        FlashladderError: `n_jobs` is not positive, or a tool failed: the first failure, diagnosed.
    """
    if n_jobs is not None and n_jobs < 1:
        raise FlashladderError("the number of jobs must be positive", expected="1 or more", found=n_jobs)
    missing = missing_entries(entries)
    if not missing:
        return
    started, stop = dict[str, Future[None]](), threading.Event()
    with (
        tqdm(total=len(missing), desc="compiling", unit="step", disable=None, leave=False) as bar,
        ThreadPoolExecutor(n_jobs or default_jobs()) as pool,
    ):
        try:
            for entry in missing:
                unit = started.get(entry.ptx_entry.key) if isinstance(entry, CubinEntry) else None
                started[entry.key] = pool.submit(_fill_after, unit, entry, stop)
            for done in as_completed(started.values()):
                done.result()
                bar.update()
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _fill_after(unit: Future[None] | None, entry: PtxEntry | CubinEntry, stop: threading.Event) -> None:
    """Fills an entry once its PTX, which began before, is there."""
    if unit is not None:
        unit.result()
    fill(entry, stop=stop)
