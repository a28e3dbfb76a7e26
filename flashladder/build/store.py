"""The content-addressed store of compiled kernels, ``build/store/<key>/``, and how its entries are filled.

One entry per translation unit holds its PTX; one per PTX and architecture holds its machine code. A key is the SHA-256
of everything that decides the content (text, included files, flags, versions) and of no path. So unchanged inputs find
their entry, and nothing is ever invalidated. ``meta.json`` is written last and holds the output's digest: an entry
whose output has another digest is filled again.

`fill_all` writes one build.ninja, and ninja runs ``python -S -m flashladder.build.store FOLDER`` for each entry. This
worker uses the standard library only, because it starts hundreds of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
import fcntl
import json
import os
from pathlib import Path
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, ClassVar

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
from flashladder.paths import BUILD, PACKAGE
from flashladder.tool_runs import FEWER_JOBS, diagnose, disk_full, file_errors, run_tool

SCHEMA = 1
STORE = BUILD / "store"
TOOLS_FILE = "tools.json"  # a bundle writes it into its store
NOWHERE = Path("not-here")  # in place of the programs of recorded tools: nothing runs them


@dataclass(frozen=True)
class Tools:
    """The programs, versions and flags of one way to compile (release or debug).

    `nvcc_flags` lack -ptx, -I and -ccbin; `ptxas_flags` lack -arch. `ptx_versions` decide the PTX. `recorded`: the
    programs are not on this machine, and a bundle's ``tools.json`` says which versions and flags filled the store.
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
        """``meta.json``: inputs, digests, warnings, times in milliseconds; `FlashladderError` if it is broken."""
        with self.broken_record():
            return dict(load_json(read_bytes(self.folder / "meta.json")))

    @contextmanager
    def broken_record(self) -> Iterator[None]:
        """Turns an error in the content of ``meta.json`` into one line."""
        try:
            yield
        except (ValueError, KeyError, TypeError) as error:
            what, hint = f"the record of a compiled kernel is broken ({error})", "run the same command again"
            raise FlashladderError(what, where=relative(self.folder / "meta.json"), hint=hint) from error

    @property
    def log(self) -> Path:
        """The tool's command line and all that it printed."""
        return self.folder / self.LOG


@dataclass(frozen=True)
class PtxEntry(Entry):
    """A translation unit and its PTX."""

    text: str
    roots: tuple[tuple[str, str], ...]  # (folder, the name that stands for it in .file lines)

    OUTPUT, TOOL, LOG = "kernel.ptx", "nvcc", "nvcc.log"

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
    roots: ClassVar[tuple[tuple[str, str], ...]] = ()

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
        with self.broken_record():
            return PtxasUsage.from_json(self.meta)


def is_whole(folder: Path, output: str, log: str) -> bool:
    """Whether `folder` has its `log`, its record, and the source and `output` with the recorded digests."""
    try:
        meta = load_json((folder / "meta.json").read_bytes())
        if output == CubinEntry.OUTPUT:
            PtxasUsage.from_json(meta)
        elif meta["inputs"]["text"] != sha256((folder / "kernel.cu").read_bytes()):
            return False
        whole: bool = meta["key"] == folder.name and meta["sha256"] == sha256((folder / output).read_bytes())
        return whole and (folder / log).is_file()
    except (OSError, ValueError, KeyError, TypeError, FlashladderError):
        return False


def outputs_of(folder: Path, paths: Iterable[Path]) -> dict[str, dict[str, str]]:
    """``{"outputs": ...}`` for a record: the digest of each file, by its path relative to `folder`."""
    return {"outputs": {path.relative_to(folder).as_posix(): sha256(path.read_bytes()) for path in sorted(paths)}}


def whole_record(path: Path) -> dict[str, Any] | None:
    """The record at `path`; None if one of its ``outputs`` beside it is missing or has another digest."""
    try:
        record: dict[str, Any] = load_json(path.read_bytes())
        outputs = record["outputs"].items()
        return record if all(sha256((path.parent / name).read_bytes()) == known for name, known in outputs) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def ptx_entry(text: str, include_dir: Path, includes: Iterable[Path], tools: Tools, store: Path = STORE) -> PtxEntry:
    """The entry for the PTX of the translation unit `text`, filled or not.

    `includes` are all the files in `include_dir`, the folder for nvcc's -I, that `text` includes, directly or not.

    Raises:
        FlashladderError: an included file cannot be read or lies outside `include_dir`.
    """
    include_dir, digests = include_dir.resolve(), dict[str, str]()
    for path in includes:
        if not path.resolve().is_relative_to(include_dir):
            what = "a kernel includes a file from outside the include folder"
            raise FlashladderError(what, where=relative(path), expected=f"a file of {relative(include_dir)}")
        digests[path.resolve().relative_to(include_dir).as_posix()] = sha256(read_bytes(path))
    inputs: dict[str, object] = {
        "schema": SCHEMA,
        "kind": "ptx",
        "text": sha256(text),
        "includes": digests,
        "flags": ["-ptx", *tools.nvcc_flags],
        "versions": dict(tools.ptx_versions),
    }
    key = sha256(dump_json(inputs))
    folder = store / key
    search = os.path.relpath(include_dir, folder.resolve())
    host = ("-ccbin", str(tools.host_compiler))
    command = (str(tools.nvcc), "-ptx", *tools.nvcc_flags, "-I", search, *host, "kernel.cu")
    roots = [(include_dir, "kernels"), (tools.root / "include", "cuda"), (folder, "")]
    # cuda-gdb needs the real paths, so a debug build keeps them and is not the same in two checkouts
    named = () if tools.debug else tuple((str(path.resolve()), name) for path, name in roots)
    return PtxEntry(key, folder, command, inputs, text, named)


def cubin_entry(ptx: PtxEntry, arch: str, tools: Tools, store: Path = STORE) -> CubinEntry:
    """The entry for the machine code of `ptx` on `arch` (for example ``sm_80``), filled or not.

    Its key derives from the key of the PTX, so one build graph can make the PTX and the machine code.
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
    return CubinEntry(key, folder, command, inputs, arch, ptx)


def prepare(entry: PtxEntry | CubinEntry) -> None:
    """Writes what `fill` needs into the entry's folder: the job and, for PTX, the translation unit."""
    names = ("key", "command", "inputs", "OUTPUT", "LOG", "TOOL", "roots")
    if isinstance(entry, PtxEntry):
        write_atomic(entry.source, entry.text)
    write_atomic(entry.folder / "job.json", dump_json({name.lower(): getattr(entry, name) for name in names}))


def read_recorded(store: Path) -> Tools | None:
    """The tools that filled the `store` of a bundle; None for another store. Raises `FlashladderError`."""
    path = store / TOOLS_FILE
    if not path.is_file():
        return None
    try:
        data = load_json(path.read_bytes())
        nvcc, ptxas = (tuple(map(str, data[f"{tool}_flags"])) for tool in ("nvcc", "ptxas"))
        versions = {str(name): str(version) for name, version in data["ptx_versions"].items()}
        version = str(data["ptxas_version"])
        return Tools(NOWHERE, NOWHERE, NOWHERE, NOWHERE, nvcc, ptxas, versions, version, recorded=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"the record of the tools that compiled these kernels is broken ({error})"
        raise FlashladderError(what, where=relative(path), hint="unpack the bundle again") from error


LOCK_TIMEOUT_S, POLL_S = 600.0, 0.1
ERROR_MARK = "flashladder-error: "
_FILE_LINE = re.compile(r'^(?P<head>\s*\.file\s+\d+\s+)"(?P<path>(?:[^"\\\n]|\\.)*)"', re.MULTILINE)

_NEXT = r"(?:,|\n\.b8 )"  # between two bytes of a string in a debug section
# The name of a function of internal linkage, in code and in debug strings, has a hash of the source's absolute path.
_HASHED = re.compile(r"(?<=_INTERNAL_)[0-9a-f]{8}(?=_)")
_HASHED_BYTES = re.compile(rf"({_NEXT.join(map(str, b'_INTERNAL_'))})((?:{_NEXT}\d+){{8}})(?={_NEXT}{ord('_')}\b)")
_BYTE = re.compile(r"(?<![b\d])\d+")


def fill(folder: Path, timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Runs the prepared job of the entry in `folder`, unless another process has filled it meanwhile.

    Raises:
        FlashladderError: the tool failed, the disk is full, or another process kept the entry for `timeout_s` seconds.
    """
    with file_errors(folder), entry_lock(folder, timeout_s):
        job = load_json((folder / "job.json").read_bytes())
        if not is_whole(folder, job["output"], job["log"]):
            _run(folder, job)


def _run(folder: Path, job: Mapping[str, Any]) -> None:
    for leftover in folder.glob("tmp-*"):  # of a build that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="tmp-", ignore_cleanup_errors=True) as scratch:
        made, started = Path(scratch) / job["output"], time.monotonic()
        code, text = run_tool([*job["command"], "-o", str(made.relative_to(folder))], folder, Path(scratch))
        wall_ms = round((time.monotonic() - started) * 1000, 1)
        log = write_atomic(folder / job["log"], f"$ {' '.join(job['command'])} -o {job['output']}\n{text}")
        if code:
            raise diagnose(job["tool"], code, text, log, folder)
        data = made.read_bytes()
        if job["roots"]:
            data = portable_paths(data.decode(), job["roots"], folder).encode()
        write_atomic(folder / job["output"], data)
        facts = {"key": job["key"], "inputs": job["inputs"], "sha256": sha256(data), "wall_ms": wall_ms}
        facts |= asdict(parse_log(text, where=relative(log))) if job["tool"] == "ptxas" else {}
        write_atomic(folder / "meta.json", dump_json({"warnings": warnings_of(text)} | facts))


def portable_paths(ptx: str, roots: Iterable[tuple[str, str]], folder: Path) -> str:
    r"""`ptx` with its ``.file`` lines relative: "kernels/args.cuh" for a file under the root ("/x/kernels", "kernels").

    nvcc always writes absolute paths (with ``\303`` for a byte that is not ASCII) and puts a hash of the source's path
    into internal names. Both would make PTX and cubin differ between two checkouts. If ptxas can open a path, it also
    puts the file's time stamp into the cubin.
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
def entry_lock(folder: Path, timeout_s: float = LOCK_TIMEOUT_S, refusal: str = "") -> Iterator[None]:
    """Locks `folder` against other processes; waits with a message while another process holds the lock.

    Raises:
        FlashladderError: another process still holds it after `timeout_s` seconds; the message begins with `refusal`.
    """
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
            if time.monotonic() >= deadline:
                what = refusal or f"another build has held this entry for {timeout_s:g} s"
                hint = "wait for that build or end it, then run the same command again"
                raise FlashladderError(what, where=relative(folder), found=f"process {holder}", hint=hint)
            if not waiting:
                print(f"waiting for process {holder}, which builds {relative(folder)}", file=sys.stderr)
            waiting = True
            time.sleep(POLL_S)
        stream.truncate(0)
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield


def default_jobs() -> int:
    """How many compilers to run at once: one per CPU that this process may use."""
    return len(os.sched_getaffinity(0))


AnyEntry = PtxEntry | CubinEntry
_STATUS = re.compile(r"^@(\d+)/(\d+)@ ")


def missing_entries(entries: Iterable[AnyEntry]) -> list[AnyEntry]:
    """The entries, and before them the PTX of all, that are not filled or are damaged, each once."""
    entries = list(entries)
    units = [entry.ptx_entry if isinstance(entry, CubinEntry) else entry for entry in entries]
    wanted = {entry.key: entry for entry in (*units, *entries)}
    return [entry for entry in wanted.values() if not entry.is_complete]


def fill_all(entries: Sequence[AnyEntry], n_jobs: int | None = None) -> None:
    """Fills every entry that is not filled, and the PTX of cubins first; needs no ninja when none is missing.

    `n_jobs`: compilers at once; None for one per CPU.

    Raises:
        FlashladderError: `n_jobs` is not positive, ninja is missing, or a tool failed: the first failure, diagnosed.
    """
    if n_jobs is not None and n_jobs < 1:
        raise FlashladderError("the number of jobs must be positive", expected="1 or more", found=n_jobs)
    if missing := missing_entries(entries):
        for entry in missing:
            prepare(entry)
        _run_ninja(missing, n_jobs or default_jobs())


def build_graph(missing: Sequence[AnyEntry]) -> str:
    """The text of build.ninja: one edge per missing entry; an edge's output is the entry's ``meta.json``."""
    worker = f"{shlex.quote(sys.executable)} -S -m flashladder.build.store"
    lines = ["ninja_required_version = 1.8", "rule fill", f"  command = {_ninja(worker)} $folder"]
    for entry in missing:
        made = _ninja(str(entry.folder / "meta.json"))
        needs = f" | {_ninja(str(entry.ptx_entry.folder / 'meta.json'))}" if isinstance(entry, CubinEntry) else ""
        lines += [f"build {made}: fill{needs}", f"  folder = {_ninja(shlex.quote(str(entry.folder)))}"]
    return "\n".join(lines) + "\n"


def _ninja(text: str) -> str:
    """`text` where ninja expects a path or a value."""
    return re.sub(r"[$ :\n]", lambda match: "$" + match[0], text)


def _run_ninja(missing: Sequence[AnyEntry], n_jobs: int) -> None:
    """Fills entries with a progress bar where a terminal is attached; raises the first failure."""
    from flashladder.parallel import Bar
    from flashladder.toolchain import find_ninja  # not for workers

    ninja, store, lines = find_ninja(), missing[0].folder.parent, list[str]()
    # a folder per run: two ninjas must not share one .ninja_log
    with file_errors(store), tempfile.TemporaryDirectory(prefix=".ninja-", dir=store) as folder:
        write_atomic(Path(folder) / "build.ninja", build_graph(missing))
        command = [str(ninja), "-C", folder, "-j", str(n_jobs)]
        environment = os.environ | {"NINJA_STATUS": "@%f/%t@ ", "PYTHONPATH": str(PACKAGE.parent)}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with (
            subprocess.Popen(command, env=environment, text=True, errors="replace", **pipes) as process,
            Bar(total=len(missing), desc="compiling", unit="step") as bar,
        ):
            for line in process.stdout or ():
                if status := _STATUS.match(line):
                    bar.update(int(status[1]) - bar.n)
                else:
                    lines.append(line.rstrip("\n"))
    if process.returncode != 0:
        raise _failure(lines, missing)


def _failure(output: Sequence[str], missing: Sequence[AnyEntry]) -> FlashladderError:
    """The error for the first failure that a worker reported, else for the last line that ninja printed."""
    for line in output:
        if line.startswith(ERROR_MARK):
            return FlashladderError(**json.loads(line.removeprefix(ERROR_MARK)))
    text = "\n".join(output)
    if re.search(r"no space left on device", text, re.IGNORECASE):
        return disk_full(missing[0].folder.parent)
    if re.search(r"\bKilled\b|signal 9|exited with code 137|\[code=137\]", text):
        return FlashladderError("a compiler was killed: the machine most likely ran out of memory", hint=FEWER_JOBS)
    said = [line for line in output if line.strip() and not line.startswith(("ninja: ", "FAILED:"))]
    return FlashladderError("the build stopped without a compiler's message", found=said[-1] if said else "no output")


def main() -> None:
    """Fills the entry named on the command line; prints an error as one marked JSON line, for `fill_all`."""
    try:
        fill(Path(sys.argv[1]))
    except FlashladderError as error:
        names = ("what", "where", "expected", "found", "hint")
        facts = {name: str(getattr(error, name)) for name in names if getattr(error, name) is not None}
        print(ERROR_MARK + json.dumps(facts))
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
