"""The content-addressed store of compiled kernels: ``build/store/<key>/``, shared by every session and every test.

One entry per translation unit holds its PTX, one per PTX and architecture its machine code. A key is the SHA-256 of
everything that decides the content (text, included files, flags, versions) and of no path, so unchanged inputs find
their entry and nothing is ever invalidated. ``meta.json`` is written last and holds the output's digest: an entry is
whole when its bytes still have it, and a damaged one is filled again.

`ptx_entry` and `cubin_entry` say where an entry is and what would fill it; `prepare` writes that down in the entry;
`flashladder.build.store_worker.fill` does it. People use ``python -m flashladder.build.compile``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
import os
from pathlib import Path
from typing import Any, ClassVar

from flashladder.errors import FlashladderError
from flashladder.files import dump_json, load_json, relative, sha256, write_atomic
from flashladder.machine_code.ptxas import PtxasUsage
from flashladder.paths import BUILD

SCHEMA = 1
STORE = BUILD / "store"


@dataclass(frozen=True)
class Tools:
    """The programs, versions and flags of one way to compile (release or debug).

    Attributes:
        root: the toolchain's folder, of which the headers are part.
        nvcc_flags: without -ptx, -I, -ccbin; `ptxas_flags` without -arch.
        ptx_versions: package -> version of all that decides the PTX; `ptxas_version` of all that decides machine code.
        recorded: they are not here: a store that was filled elsewhere says what filled it.
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


@dataclass(frozen=True)
class Entry:
    """One entry of the store: where it is, and the command (run in `folder`) that fills it."""

    key: str
    folder: Path
    command: tuple[str, ...]
    inputs: Mapping[str, object]

    OUTPUT: ClassVar[str]
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
            data: dict[str, Any] = dict(load_json(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise FlashladderError(
                f"the record of a compiled kernel is missing or broken ({error})",
                where=relative(path),
                hint="run the same command again: a damaged entry is compiled again",
            ) from error
        return data

    @property
    def log(self) -> Path:
        """What the tool was asked and all that it printed."""
        return self.folder / self.LOG


@dataclass(frozen=True)
class PtxEntry(Entry):
    """A translation unit and its PTX."""

    text: str
    roots: tuple[tuple[str, str], ...]  # (folder, the name that stands for it in .file lines)

    OUTPUT = "kernel.ptx"
    LOG = "nvcc.log"

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

    OUTPUT = "kernel.cubin"
    LOG = "ptxas.log"

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


def ptx_entry(text: str, include_dir: Path, includes: Iterable[Path], tools: Tools, store: Path = STORE) -> PtxEntry:
    """The entry for the PTX of translation unit `text`, whether or not it is filled yet.

    Args:
        text: the CUDA C++ source; its quoted includes are relative to `include_dir`.
        include_dir: the folder given to nvcc with -I.
        includes: every file under `include_dir` that `text` includes, directly or not.
        tools: programs, versions and flags.
        store: the folder of all entries.

    Raises:
        FlashladderError: an included file cannot be read or lies outside `include_dir`.
    """
    inputs: dict[str, object] = {
        "schema": SCHEMA,
        "kind": "ptx",
        "text": sha256(text),
        "includes": dict(sorted(_include_digest(path, include_dir) for path in includes)),
        "flags": ["-ptx", *tools.nvcc_flags],
        "versions": dict(tools.ptx_versions),
    }
    key = sha256(dump_json(inputs))
    folder = store / key
    search = os.path.relpath(include_dir.resolve(), folder.resolve())
    command = (
        str(tools.nvcc),
        "-ptx",
        *tools.nvcc_flags,
        "-I",
        search,
        "-ccbin",
        str(tools.host_compiler),
        "kernel.cu",
    )
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
        return path.resolve().relative_to(include_dir.resolve()).as_posix(), sha256(path.read_bytes())
    except ValueError as error:
        raise FlashladderError(
            "a kernel includes a file from outside the include folder",
            where=relative(path),
            expected=relative(include_dir),
        ) from error
    except OSError as error:
        raise FlashladderError(f"could not read an included file ({error.strerror})", where=relative(path)) from error


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


def prepare(entry: PtxEntry | CubinEntry) -> None:
    """Writes what `fill` needs into the entry's folder: the job and, for PTX, the translation unit."""
    job: dict[str, object] = {"key": entry.key, "command": entry.command, "inputs": entry.inputs}
    job |= {"output": entry.OUTPUT, "log": entry.LOG}
    if isinstance(entry, PtxEntry):
        write_atomic(entry.source, entry.text)
        job |= {"tool": "nvcc", "roots": entry.roots}
    else:
        job |= {"tool": "ptxas", "roots": ()}
    write_atomic(entry.folder / "job.json", dump_json(job))
