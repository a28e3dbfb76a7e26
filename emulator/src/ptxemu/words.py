"""Arguments of a kernel as words of a command line: ``x=float32:1024:randn``, ``n=int32:5``, ``a=@in.npy``.

A PTX file says how wide a parameter is, not what it points to. Arguments come in the order of the kernel's parameters;
their names are free, for the screen and for ``--save``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
import re
from tokenize import TokenError
from typing import NoReturn, TypeVar
from zipfile import BadZipFile

import ml_dtypes
import numpy as np

from ptxemu.errors import PtxemuError
from ptxemu.text import output_file, write_whole
from ptxemu.values import Array

FORMS = "DTYPE:SHAPE:FILL (float32:64x128:randn), DTYPE:NUMBER (int32:5), a number, or @FILE.npy"
DTYPES = {
    **{f"{kind}{bits}": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
FILLS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "zeros": lambda _, shape: np.zeros(shape),
    "ones": lambda _, shape: np.ones(shape),
    "arange": lambda _, shape: np.arange(np.prod(shape, dtype=np.int64)).reshape(shape),
    "randn": lambda rng, shape: rng.standard_normal(shape),
    "rand": lambda rng, shape: rng.random(shape),
    "nan": lambda _, shape: np.full(shape, np.nan),
}
FRACTIONS = ("randn", "rand", "nan")  # fills that integers cannot hold
Number = TypeVar("Number", np.generic, int | float)
LARGEST = 4 << 30  # bytes of one array
_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_SHAPE = re.compile(r"\d{1,10}(x\d{1,10})*", re.ASCII)


@dataclass(frozen=True)
class Named:
    """One argument: its name, and an array (a pointer) or a number."""

    name: str
    value: Array | np.generic | int | float


def parse_all(texts: Sequence[str], seed: int) -> list[Named]:
    """The arguments in order; random ones differ from each other and depend on `seed` alone.

    Raises:
        PtxemuError: a text that is none of `FORMS`, a name twice, or a file that cannot be read.
    """
    rng = np.random.default_rng(seed)
    values = [_parse(text, f"arg{index}", rng) for index, text in enumerate(texts)]
    names = [value.name for value in values]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PtxemuError("two arguments of one name", where="--arg", found=twice)
    return values


def _parse(text: str, name: str, rng: np.random.Generator) -> Named:
    named = _NAMED.fullmatch(text)
    name, body = (named[1], named[2]) if named else (name, text)
    if body.startswith("@"):
        return Named(name, _loaded(Path(body[1:]), text))
    dtype, *rest = body.split(":")
    try:
        if not rest:
            return Named(name, _finite(text, _number(body), body))
        if dtype not in DTYPES:
            _refuse(text, f"one of {', '.join(DTYPES)} as the dtype", dtype)
        if len(rest) == 1:
            return Named(name, _typed(text, DTYPES[dtype], rest[0]))
        if len(rest) == 2:
            return Named(name, _array(text, DTYPES[dtype], (rest[0], rest[1]), rng))
    except (ValueError, OverflowError) as error:
        raise PtxemuError("bad --arg", where=text, expected=FORMS, found=body) from error
    except MemoryError as error:
        raise PtxemuError("not enough memory", where=text, found=error, hint="a smaller array") from error
    return _refuse(text, FORMS, body)


def _number(text: str) -> int | float:
    """A number: ``5``, ``0x1f``, ``-2``, ``1e-3``, ``inf``."""
    try:
        return int(text, 0)
    except ValueError:
        return float(text)


def _finite(text: str, number: Number, word: str, dtype: str = "float64") -> Number:
    """The number that `word` stands for; an infinity has to be asked for by name."""
    if np.isinf(float(number)) and "inf" not in word.lower():
        _refuse(text, f"a number that fits {dtype}, or inf", word)
    return number


def _typed(text: str, dtype: np.dtype, word: str) -> np.generic:
    """A number of a dtype.

    Raises:
        PtxemuError: the dtype cannot hold it.
        ValueError, OverflowError: it is no number.
    """
    number = _number(word)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if not isinstance(number, int) or not info.min <= number <= info.max:
            _refuse(text, f"a whole number that fits {dtype}, {info.min} to {info.max}", word)
        return dtype.type(number)  # type: ignore[no-any-return]  # of a dtype that is not known here
    with np.errstate(over="ignore"):
        return _finite(text, dtype.type(number), word, dtype.name)


def _array(text: str, dtype: np.dtype, shape_and_fill: tuple[str, str], rng: np.random.Generator) -> Array:
    shape, fill = shape_and_fill
    if not _SHAPE.fullmatch(shape):
        _refuse(text, "a shape such as 1024 or 64x128", shape)
    sizes = tuple(map(int, shape.split("x")))
    nbytes = dtype.itemsize
    for size in sizes:
        nbytes *= size
    if nbytes > LARGEST:
        _refuse(text, f"at most {LARGEST >> 30} GiB", f"{nbytes} bytes")
    if fill not in FILLS:
        return np.full(sizes, _typed(text, dtype, fill))
    if fill in FRACTIONS and dtype.kind in "iu":
        _refuse(text, "integers: zeros, ones, arange or a number", fill)
    with np.errstate(over="ignore"):  # arange beyond the largest float16 is inf
        array: Array = FILLS[fill](rng, sizes).astype(dtype)
    return array


def _loaded(path: Path, text: str) -> Array:
    if path.exists() and not path.is_file():  # a FIFO without a writer would wait for one
        _refuse(text, "a file that numpy.save wrote", f"{path}: not a regular file")
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, BadZipFile, TokenError) as error:
        reason = getattr(error, "strerror", None) or "not such a file"
        _refuse(text, "a file that numpy.save wrote", f"{path}: {reason}")
    if not isinstance(found, np.ndarray):
        _refuse(text, "one array, a .npy file", f"{path}: an archive of {', '.join(found.files) or 'nothing'}")
    if found.dtype not in DTYPES.values():
        _refuse(text, f"an array of one of {', '.join(DTYPES)}", f"{path}: {found.dtype.str}")
    return np.ascontiguousarray(found)


def parse_saves(texts: Sequence[str], values: Sequence[Named]) -> dict[str, Path]:
    """Where arrays go after the launch, by the argument's name; nothing is written yet.

    Raises:
        PtxemuError: not ``NAME=FILE.npy``, no array of that name, a name or a file twice, or a file that cannot be
            written.
    """
    arrays = [value.name for value in values if isinstance(value.value, np.ndarray)]
    found: dict[str, Path] = {}
    for text in texts:
        name, _, target = text.partition("=")
        if name not in arrays:
            expected = f"NAME=FILE.npy, NAME one of {', '.join(arrays) or 'no arrays'}"
            raise PtxemuError("bad --save", expected=expected, found=repr(text))
        path = output_file(target, ".npy", "--save")
        if name in found or path.resolve() in {other.resolve() for other in found.values()}:
            raise PtxemuError("bad --save", expected="each array once, each in a file of its own", found=repr(text))
        found[name] = path
    return found


def save(path: Path, array: Array) -> None:
    """Writes an array as ``.npy``, whole or not at all; bfloat16, which the format does not know, as its bits.

    Raises:
        PtxemuError: the file cannot be written.
    """
    buffer = BytesIO()
    np.save(buffer, array.view(np.uint16) if array.dtype == DTYPES["bfloat16"] else array, allow_pickle=False)
    write_whole(path, buffer.getvalue())


def _refuse(text: str, expected: str, found: str) -> NoReturn:
    raise PtxemuError("bad --arg", where=text, expected=expected, found=found)
