"""The folder of a sweep: which may be named, who writes into it, and what killed sweeps left there.

Why: two sweeps into one folder would measure every cell twice, on a machine that is busier than either knows; the
shards of one sweep may, each its own cells. The locks go with their process, however that ends. Used by
`flashladder.sweep.command`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
import errno
import fcntl
from pathlib import Path

from flashladder.errors import FlashladderError
from flashladder.files import relative, require_file_or_nothing
from flashladder.sweep.records import SUFFIX

WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what file systems say that have none


def out_folder(text: str) -> Path:
    """`text` as the path of a folder that is there or can be made, for argparse's ``type``."""
    path = Path(text).absolute() if text.strip() else None
    if path is None or not path.resolve().name:
        raise argparse.ArgumentTypeError(f"expected a folder, found {text!r}")
    for place in (path, *path.parents):
        try:
            is_file = place.exists() and not place.is_dir()
        except OSError as error:  # a name that is too long
            raise argparse.ArgumentTypeError(f"expected a folder, found {text[:60]!r} ({error.strerror})") from error
        if is_file:
            raise argparse.ArgumentTypeError(f"expected a folder, found the file {relative(place)}")
    return path.resolve() if path.name in ("", "..") else path


@contextmanager
def held(folder: Path, part: tuple[int, int] | None = None) -> Iterator[None]:
    """Keeps other sweeps out of `folder` while this lasts; other parts (index, count) of the same one may come in.

    Raises:
        FlashladderError: another sweep, or the same part of it, is there, or the folder cannot be written.
    """
    with _locked(folder, ".lock", shared=part is not None):
        if part is None:
            _tidy(folder)
            yield
            return
        with _locked(folder, f".lock-{part[0]}-of-{part[1]}", shared=False):
            yield


@contextmanager
def _locked(folder: Path, name: str, *, shared: bool) -> Iterator[None]:
    path = folder / name
    require_file_or_nothing(path)
    try:
        stream = path.open("a+b")
    except OSError as error:
        raise FlashladderError(
            f"could not write the file ({error.strerror})", where=relative(path), hint="free space or fix permissions"
        ) from error
    with stream:
        try:
            fcntl.flock(stream, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FlashladderError(
                "another sweep measures into this folder",
                where=relative(folder),
                hint="wait for it, or choose another folder with --out",
            ) from error
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
        yield


def _tidy(folder: Path) -> None:
    """Removes what killed sweeps began to write: temporary files, which no name of a record is."""
    for path in folder.glob(f".*{SUFFIX}.*"):
        with suppress(OSError):
            path.unlink()
