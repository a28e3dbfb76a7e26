"""Files: paths of the checkout, contents of folders, texts, digests, atomic writes, and strict JSON.

`read_text` reads every text file that a person may edit, and `files_in` lists every folder that a person may put files
into. So a byte that is not UTF-8 has one message, and every command ignores an editor's lock files.

Python's JSON reader takes the last of two equal keys and recurses as deep as a document nests, and a gzip file of a
hundred kilobytes can hold a hundred megabytes. Here each is a `ValueError` that says what is wrong. The readers of
results, locks and records show it as one line. `flashladder.located` does the same for YAML.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
import gzip
import hashlib
import io
import json
import os
from pathlib import Path
import re
import stat
import sys
import tempfile
from typing import Any
import zlib

from flashladder.errors import FlashladderError
from flashladder.paths import ITERATIONS, PACKAGE, ROOT, path_of

MOST_HEADER_BYTES = 64 * 1024  # the start of a file that shows its kind
KIND_OF_OUTPUT = {".cubin": b"\x7fELF", ".ptx": b".version", ".html": b"<"}  # ending to bytes that such a file holds
MOST_JSON_BYTES = 256 * 1024**2  # of an unpacked document; the longest of the project has 8 MB
BOM = b"\xef\xbb\xbf"
_LEFTOVER = re.compile(r"[.#].*|.*(~|#|\.(orig|rej|bak|swp|tmp))", re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:([0-3][0-7]{2})|([\"\\]))")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def last_iteration(folder: Path = ITERATIONS) -> int:
    """The highest iteration number in the file names of `folder`, 0 if there is none; reads no file."""
    return max((int(path.name[:2]) for path in folder.glob("[0-9][0-9]_*.yaml")), default=0)


def relative(path: Path) -> str:
    """`path` relative to the checkout, or to an installed package's parent; a link keeps its own name."""
    try:
        found = path.parent.resolve() / path.name
    except (OSError, RuntimeError, ValueError):  # links in a circle, or a name that no file can have
        return str(path)
    if found.is_relative_to(ROOT):
        return found.relative_to(ROOT).as_posix()
    return found.relative_to(PACKAGE.parent).as_posix() if found.is_relative_to(PACKAGE) else str(path)


def files_in(folder: Path, pattern: str = "**/*") -> list[Path]:
    """The paths below `folder` that match `pattern`, sorted, without dot-files and editors' locks and backups.

    Folders and dangling links are in the list too: their reader raises an error that says that they are no files.
    """
    found = (path for path in folder.glob(pattern) if not any(map(is_leftover, path.relative_to(folder).parts)))
    return sorted(found)


def is_leftover(name: str) -> bool:
    """Whether a file is hidden (``.x``), or an editor or a merge left it: ``#x#``, ``x~``, ``x.orig``, ``x.swp``."""
    return _LEFTOVER.fullmatch(name) is not None


def unreadable(path: Path, error: OSError) -> FlashladderError:
    """The error for a file that the system cannot read."""
    dangling = isinstance(error, FileNotFoundError) and path.is_symlink()
    what = "a link to a file that does not exist" if dangling else error.strerror
    return FlashladderError(f"cannot read the file ({what})", where=relative(path))


def read_bytes(path: Path, most: int = MOST_JSON_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes; `FlashladderError`: it is not one."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)  # a FIFO without a writer would block

    try:
        with open(path, "rb", opener=opener) as stream:
            data = stream.read(most + 1) if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) else None
    except IsADirectoryError:
        data = None
    except OSError as error:
        raise unreadable(path, error) from error
    if data is None:
        raise FlashladderError("not a regular file", where=relative(path), hint="put a file there")
    if len(data) > most:
        expected = f"at most {most // 1024} KiB"
        raise FlashladderError("the file is too large", where=relative(path), expected=expected, found="more")
    return data


def read_text(path: Path, most: int = MOST_JSON_BYTES) -> str:
    r"""The text of a regular file: ``\n`` ends lines, no byte-order mark. Raises as `read_bytes` and `utf8`."""
    text = utf8(read_bytes(path, most), path)
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def utf8(data: bytes, path: Path) -> str:
    """`data` of the file `path` as text; `FlashladderError` names the first byte that is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"not UTF-8 (byte {data[error.start]:#04x} at offset {error.start})"
        raise FlashladderError(what, where=relative(path), hint="save the file as UTF-8") from error


def make_folder(path: Path) -> Path:
    """Makes `path` and the folders above it; `FlashladderError` names a file that is in the way."""
    require_folder_or_nothing(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def require_folder_or_nothing(path: Path) -> None:
    """Raises `FlashladderError` if `path`, or a path above it, is not a folder; the message names it."""
    for one in (path, *path.parents):
        if one.is_dir():
            return
        if one.is_symlink() or one.exists():
            found = "a file" if one.exists() else "a link to something that does not exist"
            hint = "remove it, or choose another folder"
            raise FlashladderError("not a folder", where=relative(one), expected="a folder", found=found, hint=hint)


def require_writable(folder: Path) -> None:
    """Raises `FlashladderError` if no file can be made in `folder`, or, before it exists, in the folder above it."""
    require_folder_or_nothing(folder)
    existing = next(one for one in (folder, *folder.parents) if one.is_dir())
    try:
        tempfile.TemporaryFile(dir=existing).close()  # permission bits do not tell: /proc has those of a usual folder
    except OSError as error:
        what = f"no file can be made in this folder ({error.strerror})"
        raise FlashladderError(what, where=relative(existing), hint="choose another folder") from error


def require_file_or_nothing(path: Path) -> None:
    """Raises `FlashladderError` if a file cannot replace what is at `path`, such as a folder."""
    if path.exists() and not path.is_file():
        what = "is a directory" if path.is_dir() else "not a regular file, so that it is not replaced"
        raise FlashladderError(what, where=relative(path), hint="remove it")


def unescaped(path: str) -> str:
    r"""The path behind one in PTX or a line table: nvcc writes ``\303\274`` for ``ü`` and a backslash before quotes."""
    data = _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]) if match[1] else match[2], os.fsencode(path))
    return os.fsdecode(data)


def escaped(path: str) -> str:
    """A path as nvcc writes it into PTX, because ptxas accepts only ASCII."""
    return "".join(
        f"\\{c:03o}" if not 31 < c < 127 else f"\\{c:c}" if c in b'"\\' else chr(c) for c in os.fsencode(path)
    )


def sha256(data: bytes | str) -> str:
    """SHA-256 of bytes or of UTF-8 text, in lower-case hex."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def output_file(name: str, ending: str, option: str = "--out") -> Path:
    """`name` as the path of a file to write; `FlashladderError`: bad ending, not writable, or another kind there."""
    path = path_of(name)
    if not path.name.endswith(ending) or path.name == ending:
        raise FlashladderError(f"bad {option}", expected=f"a file that ends in {ending}", found=repr(name))
    if path.exists() and not path.is_file():
        raise FlashladderError(f"bad {option}", expected=f"a file that ends in {ending}", found=f"no file: {name!r}")
    require_writable(path.parent)
    if (mark := KIND_OF_OUTPUT.get(ending)) and path.exists():
        with path.open("rb") as stream:
            start = stream.read(MOST_HEADER_BYTES)
        if start and mark not in start:
            found = f"{name!r}, which is there and none"
            raise FlashladderError(f"bad {option}", expected=f"a new file, or a {ending} file to replace", found=found)
    return path


def write_atomic(path: Path, data: bytes | str) -> Path:
    """Writes `data` beside `path`, then renames it: no reader sees half a file. `FlashladderError`: it cannot."""
    require_file_or_nothing(path)
    raw = data.encode() if isinstance(data, str) else data
    try:
        make_folder(path.parent)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(raw)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        what, hint = f"could not write the file ({error.strerror})", "free space, fix permissions, or name another file"
        raise FlashladderError(what, where=relative(path), hint=hint) from error
    return path


def dump_json(value: object) -> str:
    """JSON as this project commits it: sorted keys, two spaces, one final newline."""
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def unpacked(raw: bytes) -> bytes:
    """The content of a gzip file; `ValueError`: damaged or above `MOST_JSON_BYTES`; `OSError`: no gzip file."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
            data = stream.read(MOST_JSON_BYTES + 1)
    except (EOFError, zlib.error) as error:
        raise ValueError(str(error)) from error
    if len(data) > MOST_JSON_BYTES:
        raise ValueError(f"it unpacks to more than {MOST_JSON_BYTES >> 20} MiB")
    return data


def load_json(raw: bytes) -> Any:
    """The document in `raw`, which must be UTF-8. Accepts NaN: the models reject it and name its key.

    Raises `ValueError`: empty, not JSON, not UTF-8, a byte order mark, a key twice in one object, an integer that is
    too long, half of a surrogate pair, or nested too deep.
    """
    if raw.startswith(BOM):
        raise ValueError("it begins with a byte order mark")
    if not raw.strip():
        raise ValueError("an empty file")
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {raw[error.start]:#04x} at offset {error.start})") from error
    except ValueError as error:
        if "integer string conversion" in str(error):  # Python's message ends with advice for programmers
            raise ValueError(f"an integer of more than {sys.get_int_max_str_digits()} digits") from error
        raise
    except RecursionError as error:
        raise ValueError("it nests too deep") from error
    if _SURROGATE.search(raw):
        json.dumps(document, ensure_ascii=False).encode("utf-8")  # raises an error for half of a pair
    return document


def checked_json(raw: bytes) -> bytes:
    """`raw` itself, after `load_json` accepted it; for a reader that parses it again. Raises as `load_json`."""
    load_json(raw)
    return raw


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's keys and values, each key once."""
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise ValueError(f"the key {twice[:60]!r} stands twice in one object")
    return found


def digest_files(paths: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of each file's bytes, keyed by its path from the checkout's root."""
    return {relative(path): sha256(path.read_bytes()) for path in sorted(paths)}


def deflated(text: str) -> str:
    """A text, compressed and in base64, for a page's script to inflate. Other zlib versions may give other bytes."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def inflated(packed: str) -> str:
    """The text that `deflated` compressed. Raises `ValueError`: `packed` is not compressed text."""
    try:
        return zlib.decompress(base64.b64decode(packed, validate=True)).decode("utf-8")
    except zlib.error as error:
        raise ValueError(f"not deflated: {error}") from error
