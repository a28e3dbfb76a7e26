"""Kernels in files that others built: wheel, library, object, fatbin, cubin or PTX, told by its content.

`images` gives the cubins and PTX of a file, `kernels_of` their kernels. ``invoke sass FILE`` and
``invoke ptx FILE`` use it (`flashladder.view.binary`).

A fatbin is a header of 16 bytes and entries, each with a header of its own; the format has no public description, what
is read here is what fatbinary 12 and 13 write and cuobjdump reads. An entry is unpacked on demand, as far as it is
asked for, by the system's zstd and LZ4. Members of a wheel are inflated into files without a name: no name in the
archive is ever a path here. Sizes are bounded before anything is read.

Names come from the first kilobytes of each cubin, so that a library with a hundred thousand kernels answers in seconds;
registers, shared memory and sizes need whole cubins, and only those that a question is about are unpacked. A name of
FlashAttention-2's templates holds a configuration. Template parameters are named as in FlashAttention's
``csrc/flash_attn/src/flash_{fwd,bwd}_launch_template.h`` and ``kernel_traits.h``, 2.6 to 2.8 and PyTorch's copy; an
instance with another number of them is not guessed at. All kernels of this project have one symbol: a table in their
library names their configurations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
import ctypes
from dataclasses import dataclass, replace
from functools import cache, lru_cache
import lzma
import mmap
import os
from pathlib import Path, PurePosixPath
import re
import shutil
import struct
import subprocess
import tempfile
from typing import IO, Literal
import zipfile
import zlib

from flashladder.errors import FlashladderError, printable
from flashladder.files import BOM, relative
from flashladder.machine_code import cubin
from flashladder.machine_code.cubin import Data
from flashladder.machine_code.ptx import is_ptx, target

MAGIC = struct.pack("<I", 0xBA55ED50)
CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of all entries
# kind, version, bytes of this header, bytes of the payload with padding, bytes of it as stored where it is compressed,
# place of options, PTX version (minor, major), architecture, place and length of the name, flags, 0, bytes unpacked
ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
Kind = Literal["SASS", "PTX"]
_KINDS: Mapping[int, Kind] = {1: "PTX", 2: "SASS"}  # others (LTO-IR) are passed over
_LZ4, _ZSTD, _ALONE = 0x2000, 0x8000, 0x100000  # flags
MOST_UNPACKED = 256 << 20  # bytes of an entry; the largest of PyTorch has 34 MiB
MOST_RATIO = 4096  # of unpacked to stored bytes: what a bomb would need more of
MOST_BYTES = 8 << 30  # of a member of a wheel, inflated; the largest of PyTorch has 1.3 GiB
MOST_TEXT = 64 << 20  # bytes of a PTX file
MOST_FACTS = 1 << 30  # bytes of cubins that a listing unpacks for registers and sizes
_FRONT = 1 << 16  # bytes of a cubin that are read for names at first, and four times as many each time it is too little
_CODE = (".so", ".pyd", ".dll", ".cubin", ".fatbin", ".ptx", ".o", ".a", ".bin")
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, IndexError, NotImplementedError, OverflowError, RuntimeError),
)  # what zipfile lets through of an archive that it cannot read
LIBRARIES = {"zstd": "libzstd.so.1", "lz4": "liblz4.so.1"}
_RELATIVE = 8
_RELA = struct.Struct("<QQq")
_SHORT_FORM = re.compile(rb"\((?:FP16|BF16)(?:, \d{1,9}){4}\): [\w+.-]{1,300}(?=\0)")
MOST_RELOCATIONS = 1 << 16  # a library of ours has a few hundred; PyTorch's have millions, and no such table


@dataclass(frozen=True)
class Image:
    """One cubin or one PTX: a whole file, or an entry of a fatbin in one."""

    kind: Kind
    arch: str  # ``sm_80`` of machine code, ``compute_80`` of PTX, ``sm_90a`` of what is for one architecture alone
    place: str  # where it lies, for people: the file's name, or the member of the wheel
    data: Data  # of the file
    size: int  # bytes unpacked
    begin: int = 0  # where its bytes begin in the file
    stored: int = 0  # how many bytes there are
    # whether and how they are compressed; ``damaged`` where their size cannot be true
    form: Literal["plain", "lz4", "zstd", "damaged"] = "plain"
    container: int = 0  # where the fatbin begins that holds it
    config: str = ""  # short form of its configuration, by the table of a library of this project

    def read(self, most: int | None = None) -> bytes:
        """Its bytes, or the first `most` of them.

        Raises:
            FlashladderError: they are damaged, or the system has no library that unpacks them.
        """
        wanted = self.size if most is None else min(most, self.size)
        if self.form == "damaged":
            raise self._damaged("a size that can be true", self.size)
        if self.form == "plain":
            return bytes(self.data[self.begin : self.begin + wanted])
        own = library(self.form)
        if own is None:
            raise FlashladderError(
                f"the kernels are packed with {self.form}", where=self.place, expected=LIBRARIES[self.form],
                found="no such library here", hint="install it, or unpack the kernels: cuobjdump -xelf all FILE",
            )  # fmt: skip
        stored = self.data[self.begin : self.begin + self.stored]
        found = (_zstd if self.form == "zstd" else _lz4)(own, stored, wanted)
        if len(found) != wanted:
            raise self._damaged(f"{wanted} bytes of {self.form}", len(found))
        return found

    def _damaged(self, expected: str, found: object) -> FlashladderError:
        where = f"{self.place}: entry at byte {self.begin}"
        return FlashladderError("the fatbin is damaged", where=where, expected=expected, found=found)


@contextmanager
def images(path: Path) -> Iterator[list[Image]]:
    """The images of a file, in its order, while the context lasts.

    Raises:
        FlashladderError: no such file, one that holds no kernels, or an image turns out to be damaged.
    """
    with ExitStack() as stack:
        try:
            try:
                found = list(_images(path, stack))
            except _DAMAGED as error:
                raise FlashladderError("the archive is damaged", found=str(error) or "its end") from error
            except (OSError, ValueError) as error:
                what = getattr(error, "strerror", None) or str(error)
                raise FlashladderError(f"the file cannot be read ({what})") from error
            if not found:
                expected = "a wheel, library, object, fatbin, cubin or PTX file"
                hint = "link-time code (LTO) becomes code when it is linked"
                raise FlashladderError("no GPU code in the file", expected=expected, hint=hint)  # noqa: TRY301 - named below
            yield found
        except FlashladderError as error:
            error.where = error.where or relative(path)
            raise


def _images(path: Path, stack: ExitStack) -> Iterator[Image]:
    if not path.is_file():
        what = "not a regular file" if path.exists() else "no such file"
        raise FlashladderError(what, expected="a file that holds kernels")
    stream = stack.enter_context(path.open("rb"))
    if stream.read(4) != b"PK\x03\x04":
        yield from _of_file(stream, path.name, stack)
        return
    archive = stack.enter_context(zipfile.ZipFile(stream))
    for member in archive.infolist():
        name = PurePosixPath(member.filename).name
        if not (name.endswith(_CODE) or ".so." in name) or member.is_dir():
            continue
        if member.file_size > MOST_BYTES:
            raise FlashladderError(
                "a member of the archive is too large", where=f"{relative(path)}: {name}",
                expected=f"at most {MOST_BYTES >> 30} GiB", found=f"{member.file_size >> 30} GiB",
            )  # fmt: skip
        inflated = stack.enter_context(tempfile.TemporaryFile(prefix="flashladder-"))  # noqa: SIM115 - the stack closes it
        with archive.open(member) as source:
            shutil.copyfileobj(source, inflated, 1 << 20)
        inflated.flush()
        yield from _of_file(inflated, name, stack)


def _of_file(stream: IO[bytes], name: str, stack: ExitStack) -> Iterator[Image]:
    stream.seek(0)
    head = stream.read(1 << 16)  # bytes that tell what a file is
    if not head:
        return
    data = stack.enter_context(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    if cubin.is_cubin(head):
        yield Image("SASS", cubin.arch_of(head), name, data, len(data))
    elif is_ptx(head.removeprefix(BOM).decode("utf-8", "replace")):
        if len(data) > MOST_TEXT:
            raise FlashladderError("the PTX file is too long", where=name, expected=f"{MOST_TEXT >> 20} MiB at most")
        text = data[:].removeprefix(BOM)
        arch = target(text.decode("utf-8", "replace")).replace("sm_", "compute_")
        yield Image("PTX", arch, name, text, len(text))
    else:
        found = list(entries(data, name))
        configs = _table_of(data, {entry.container for entry in found})
        yield from (replace(entry, config=configs.get(entry.container, "")) for entry in found)


def entries(data: Data, place: str = "") -> Iterator[Image]:
    """Every PTX and cubin of every fatbin in a file, wherever it lies.

    A place that only looks like a fatbin is passed over: its header or its first entry does not hold together.
    """
    at = data.find(MAGIC)
    while at >= 0:
        end = 0
        if at + CONTAINER.size <= len(data):
            _, version, header, size = CONTAINER.unpack_from(data, at)
            first, behind = at + CONTAINER.size, at + CONTAINER.size + size
            if version == 1 and header == CONTAINER.size and behind <= len(data):
                end = behind if not size or _entry_end(data, first, behind) else 0
                yield from _entries_of(data, place, at, end)
        at = data.find(MAGIC, max(end, at + len(MAGIC)))


def _entry_end(data: Data, at: int, end: int) -> int:
    """Where the entry ends whose header begins at `at`, in a fatbin that ends at `end`; 0 when there is none."""
    if at + ENTRY.size > end:
        return 0
    header, payload = struct.unpack_from("<IQ", data, at + 4)
    after: int = at + header + payload
    return after if header >= ENTRY.size and after <= end else 0


def _entries_of(data: Data, place: str, container: int, end: int) -> Iterator[Image]:
    at = container + CONTAINER.size
    while after := _entry_end(data, at, end):
        kind, _, header, payload, stored, _, _, _, number, _, _, flags, _, size = ENTRY.unpack_from(data, at)
        if kind in _KINDS:
            form: Literal["plain", "lz4", "zstd", "damaged"]
            form = "lz4" if flags & _LZ4 else "zstd" if flags & _ZSTD else "plain"
            if form == "plain":
                stored = size = payload
            if stored > payload or size > min(MOST_UNPACKED, MOST_RATIO * stored):
                form = "damaged"
            arch = f"{'compute' if kind == 1 else 'sm'}_{number}{'a' if flags & _ALONE else ''}"
            yield Image(_KINDS[kind], arch, place, data, size, at + header, stored, form, container)
        at = after


def _table_of(data: Data, containers: Collection[int]) -> Mapping[int, str]:
    """Place of a fatbin in a library to the short form that the library's table of kernels gives it; empty without one.

    A row of the table begins with pointers to the short form and to the dtype and ends with one to the fatbin; in a
    shared library each pointer is a relocation ``R_X86_64_RELATIVE``, whose addend is where it points.
    """
    try:
        sections = cubin.sections_of(data)
        relocations = sections.get(".rela.dyn")
        if relocations is None or relocations.size > MOST_RELOCATIONS * _RELA.size or relocations.size % _RELA.size:
            return {}
        rows = _RELA.iter_unpack(cubin.bytes_of(data, relocations))
    except FlashladderError:
        return {}  # a table that cannot be read names nothing: the kernels are there without it
    pointers = [addend for _, addend in sorted((at, to) for at, info, to in rows if info & 0xFFFFFFFF == _RELATIVE)]
    loaded = [one for one in sections.values() if one.address]

    def place(address: int) -> int:
        return next((one.begin + address - one.address for one in loaded if 0 <= address - one.address < one.size), -1)

    found = {}
    for short_form, fatbin in zip(pointers, pointers[2:], strict=False):
        if (container := place(fatbin)) in containers:
            name = _SHORT_FORM.match(data, max(0, place(short_form)))
            if name:
                found[container] = name[0].decode("ascii")
    return found


class _Buffer(ctypes.Structure):
    """``ZSTD_inBuffer`` and ``ZSTD_outBuffer``: address, bytes, how many of them are done."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t), ("done", ctypes.c_size_t))


@cache
def library(form: str) -> ctypes.CDLL | None:
    """The system's library for ``zstd`` or ``lz4``; None where it has none."""
    try:
        found = ctypes.CDLL(LIBRARIES[form])
    except OSError:
        return None
    if form == "zstd":
        found.ZSTD_createDStream.restype = ctypes.c_void_p
        found.ZSTD_decompressStream.restype = ctypes.c_size_t
        found.ZSTD_decompressStream.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Buffer), ctypes.POINTER(_Buffer)]
        found.ZSTD_freeDStream.argtypes = [ctypes.c_void_p]
        found.ZSTD_isError.argtypes = [ctypes.c_size_t]
    return found


def _zstd(own: ctypes.CDLL, stored: bytes, wanted: int) -> bytes:
    """As many of the `wanted` bytes as there are: none where the stream is none."""
    out = (ctypes.c_char * wanted)()
    source = ctypes.c_char_p(stored)
    given = _Buffer(ctypes.cast(source, ctypes.c_void_p), len(stored), 0)
    made = _Buffer(ctypes.cast(out, ctypes.c_void_p), wanted, 0)
    stream = own.ZSTD_createDStream()
    try:
        while made.done < wanted:
            before = (given.done, made.done)
            left = own.ZSTD_decompressStream(stream, ctypes.byref(made), ctypes.byref(given))
            if own.ZSTD_isError(left) or (given.done, made.done) == before:
                return b""
    finally:
        own.ZSTD_freeDStream(stream)
    return out.raw


def _lz4(own: ctypes.CDLL, stored: bytes, wanted: int) -> bytes:
    """As many of the `wanted` bytes as there are: none where the block is none."""
    out = (ctypes.c_char * wanted)()
    done = own.LZ4_decompress_safe_partial(ctypes.c_char_p(stored), out, len(stored), wanted, wanted)
    return out.raw[:done] if done > 0 else b""


_FORWARD = ("causal", "local", "alibi", "even_MN", "even_K", "softcap")
TRAITS = {
    "Flash_fwd_kernel_traits": ("Q_in_regs", "share_Q_K_smem"),
    "Flash_bwd_kernel_traits": ("layout_MSdP", "layout_NdKV", "layout_MdQ", "V_in_regs", "no_double_buffer"),
}
"""What a traits type has between the number of warps and the element type."""
KERNELS = {
    "flash_fwd_kernel": ("dropout", *_FORWARD, "return_softmax"),
    "flash_fwd_splitkv_kernel": (*_FORWARD, "split", "append_KV"),
    "flash_fwd_splitkv_combine_kernel": ("rows", "log_max_splits", "even_K"),
    "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel": ("dropout", *_FORWARD),
    "flash_bwd_dot_do_o_kernel": ("clear_dQaccum",),
    "flash_bwd_convert_dq_kernel": (),
}
"""What a kernel has beside its traits."""
_NUMBERS = {"layout_MSdP", "layout_NdKV", "layout_MdQ", "rows", "log_max_splits"}  # the others are switches
_DTYPES = {"half_t": "FP16", "bfloat16_t": "BF16"}
_TEMPLATE = re.compile(
    r"\b(?P<kernel>flash_(?:fwd|bwd)_(?:\w+_)?kernel)<(?P<before>(?:[01],)*)"
    r"(?:\w+::)*(?P<traits>Flash_(?:fwd|bwd)_kernel_traits)<(?P<sizes>(?:\d{1,6},){4})(?P<own>(?:\d{1,6},){0,12})"
    r"cutlass::(?P<dtype>half_t|bfloat16_t),(?:\w+::)*Flash_kernel_traits<(?:\d{1,6},){4}cutlass::\w+>>"
    r"(?P<after>(?:,\d{1,6})*)>",
    re.ASCII,
)
_TYPES_AND_BLANKS = re.compile(r"\((?:int|bool)\)|(?<=[,<>])\s+|\s+(?=[,<>])")
_TRUTH = re.compile(r"\b(?:true|false)\b")
_VALUES = re.compile(r"\d+")
LONGEST = 72  # characters of a shortened name
_NESTING = re.compile(r"[<>(]")
_RETURNS = re.compile(r"^(?:void|std::enable_if<.*?>::type)\s+")


@lru_cache(maxsize=1 << 16)
def configuration(name: str) -> str:
    """What a demangled name is an instance of: kernel, dtype, d_head, B_r, B_c, warps: switches; empty where unknown.

    Switches that are on, and numbers as ``name=value``, stand in the order of the template's parameters. Types
    (``(int)128, (bool)1``, as profilers print) do not matter.
    """
    if "_kernel_traits" not in name:
        return ""
    found = _TEMPLATE.search(_TRUTH.sub(lambda word: str(int(word[0] == "true")), _TYPES_AND_BLANKS.sub("", name)))
    if found is None or found["kernel"] not in KERNELS:
        return ""
    named = ((TRAITS[found["traits"]], found["own"]), (KERNELS[found["kernel"]], found["before"] + found["after"]))
    words = []
    for names, text in named:
        values = _VALUES.findall(text)
        if len(values) != len(names):
            return ""
        pairs = zip(names, values, strict=True)
        words += [f"{one}={value}" if one in _NUMBERS else one for one, value in pairs if one in _NUMBERS or int(value)]
    sizes = ", ".join(_VALUES.findall(found["sizes"]))
    return f"{found['kernel']} ({_DTYPES[found['dtype']]}, {sizes}){': ' if words else ''}{'+'.join(words)}"


@lru_cache(maxsize=1 << 16)
def shortened(name: str) -> str:
    """A demangled name for a line of a table: its configuration, or the name without types of arguments, cut."""
    if found := configuration(name):
        return found
    text = _RETURNS.sub("", name[: 4 * LONGEST].replace("(anonymous namespace)", "{}"))
    depth, end = 0, len(text)
    for found_at in _NESTING.finditer(text):
        depth += {"<": 1, ">": -1}.get(found_at[0], 0)
        if found_at[0] == "(" and depth <= 0:
            end = found_at.start()
            break
    text = re.sub(r"\b(?:\w+::)+", "", text[:end]).replace("{}::", "")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def demangled(symbols: Iterable[str]) -> dict[str, str]:
    """Symbol to its C++ name, by one run of the host's c++filt; to itself where there is none or it gives up."""
    listed = sorted(symbols)
    given = [symbol for symbol in listed if symbol.startswith("_Z") and symbol.isprintable()]
    names, program = {symbol: symbol for symbol in listed}, shutil.which("c++filt")
    if not given or program is None:
        return names
    done = subprocess.run([program], input="\n".join(given), capture_output=True, text=True, check=False)
    found = done.stdout.splitlines()
    return names | dict(zip(given, found, strict=True)) if len(found) == len(given) else names


_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_BLANKS = re.compile(r"\s+")


@lru_cache(maxsize=1 << 17)
def _bare(text: str) -> str:
    return _BLANKS.sub("", text)


@dataclass(frozen=True)
class Kernel:
    """One kernel for one architecture."""

    symbol: str  # its name in the file, mangled
    name: str  # demangled; the symbol where no demangler is here
    config: str  # the short form of what it is an instance of; empty where the name holds none
    arch: str  # ``sm_80``, or ``compute_80`` of PTX
    kind: Kind  # machine code or PTX
    image: Image  # where it lies
    facts: cubin.CodeKernel | None = None  # what its cubin says; None of PTX, and until `with_facts` has read it

    @property
    def title(self) -> str:
        """Its name for people, short."""
        return printable(self.config or shortened(self.name))

    def matches(self, wanted: str) -> bool:
        """Whether `wanted` is a part of one of its spellings; blanks do not matter."""
        part = _bare(wanted)
        return any(part in text for text in self.without_blanks)

    @property
    def without_blanks(self) -> tuple[str, ...]:
        """Its spellings: the symbol, demangled, the configuration, both of them, and what a listing prints."""
        named = f"{self.symbol} {self.config}" if self.config else ""  # of our own kernels, as others' are listed
        return tuple(map(_bare, (self.symbol, self.name, self.config, named, self.title)))


def kernels_of(images: Sequence[Image], kind: Kind, arch: str = "") -> list[Kernel]:
    """The kernels of `kind` in a file, for every architecture or for one, without their facts.

    Raises:
        FlashladderError: an image is damaged.
    """
    number = _number(arch)
    chosen = [one for one in images if one.kind == kind and (not arch or _number(one.arch) == number)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # threads, as unpacking holds no lock
        found = list(zip(chosen, pool.map(_symbols, chosen), strict=True))
    names = demangled({symbol for _, symbols in found for symbol in symbols})
    return [
        Kernel(symbol, names[symbol], image.config or configuration(names[symbol]), image.arch, kind, image)
        for image, symbols in found
        for symbol in symbols
    ]


def _number(arch: str) -> str:
    """``90`` of ``sm_90``, ``sm_90a`` and ``compute_90a``."""
    return arch.removeprefix("sm_").removeprefix("compute_").rstrip("af")


def _symbols(image: Image) -> list[str]:
    if image.kind == "PTX":
        return list(dict.fromkeys(_ENTRY.findall(image.read().decode("utf-8", "replace"))))
    most = _FRONT
    while most < image.size:
        if (names := cubin.names_in_front(image.read(most))) is not None:
            return names
        most *= 4
    return [kernel.symbol for kernel in cubin.kernels_of(image.read())]


def with_facts(kernels: Iterable[Kernel]) -> list[Kernel]:
    """The kernels with what their cubins say of them; device functions, which are none, are left out.

    Raises:
        FlashladderError: a cubin is damaged.
    """
    found: list[Kernel] = []
    image, arch, facts = None, "", dict[str, cubin.CodeKernel]()
    for kernel in kernels:
        if kernel.kind == "PTX":
            found.append(kernel)
            continue
        if kernel.image is not image:
            image = kernel.image
            data = image.read()
            facts, arch = {one.symbol: one for one in cubin.kernels_of(data)}, cubin.arch_of(data)
        if kernel.symbol in facts:
            own = kernel.arch if _number(kernel.arch) == _number(arch) else arch  # a cubin tells no suffix
            found.append(replace(kernel, facts=facts[kernel.symbol], arch=own))
    return found


def bytes_of(kernels: Iterable[Kernel]) -> int:
    """Bytes of all images that hold these kernels, unpacked."""
    return sum({id(kernel.image): kernel.image.size for kernel in kernels}.values())


def chosen(kernels: Sequence[Kernel], wanted: str) -> list[Kernel]:
    """Those that `wanted` names: all where it is empty, one where it is the whole of a name, else those it is part of.

    Raises:
        FlashladderError: none.
    """
    part = _bare(wanted)
    found = [one for one in kernels if not part or one.matches(part)]
    if not found:
        n = len({one.symbol for one in kernels})
        expected = f"a part of one of {n} names" if n else "a file that has some"
        raise FlashladderError("no such kernel in the file", expected=expected, found=wanted, hint="--list shows them")
    return [one for one in found if part and part in one.without_blanks] or found
