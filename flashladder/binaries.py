"""Finds the kernels in files that others built: wheels, libraries, objects, fatbins, cubins and PTX.

`images` gives the cubins and PTX of a file, `kernels_of` their kernels. The content tells the kind of a file. ``invoke
sass FILE`` and ``invoke ptx FILE`` use both (`flashladder.view.binary`).

A fatbin is a header of 16 bytes and entries, each with its own header. The format has no public description: this
module reads what fatbinary 12 and 13 write. The system's zstd and LZ4 unpack an entry on demand, as far as needed.
Members of a wheel are inflated into unnamed files, so no name in the archive becomes a path.

Names come from the first kilobytes of each cubin, so a library with 100,000 kernels answers in seconds. Registers and
sizes need whole cubins. A kernel name of FlashAttention-2 holds its configuration: template parameters are named as in
``csrc/flash_attn/src/flash_{fwd,bwd}_launch_template.h`` and ``kernel_traits.h`` of versions 2.6 to 2.8. All kernels of
this project have one symbol; a table in their library names their configurations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
import ctypes
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import groupby
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
MOST_RATIO = 4096  # of unpacked to stored bytes; a compression bomb has more
MOST_BYTES = 8 << 30  # of a member of a wheel, inflated; the largest of PyTorch has 1.3 GiB
MOST_TEXT = 64 << 20  # bytes of a PTX file
MOST_FACTS = 1 << 30  # bytes of cubins that a listing unpacks for registers and sizes
_FRONT = 1 << 16  # bytes of a cubin to read for names first; then four times as many, until they suffice
_CODE = (".so", ".pyd", ".dll", ".cubin", ".fatbin", ".ptx", ".o", ".a", ".bin")
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, IndexError, NotImplementedError, OverflowError, RuntimeError),
)  # what zipfile raises for an archive that it cannot read
LIBRARIES = {"zstd": "libzstd.so.1", "lz4": "liblz4.so.1"}
_RELATIVE = 8
_RELA = struct.Struct("<QQq")
_SHORT_FORM = re.compile(rb"\((?:FP16|BF16)(?:, \d{1,9}){4}\): [\w+.-]{1,300}(?=\0)")
MOST_RELOCATIONS = 1 << 16  # a library of ours has a few hundred; PyTorch's have millions, and no such table


@dataclass(frozen=True)
class Image:
    """One cubin or one PTX: a whole file, or an entry of a fatbin in one."""

    kind: Kind
    arch: str  # ``sm_80`` for machine code, ``compute_80`` for PTX, ``sm_90a`` for architecture-specific code
    place: str  # for people: the name of the file, or of the wheel's member
    data: Data  # of the file
    size: int  # bytes, unpacked
    begin: int = 0  # offset of its bytes in the file
    stored: int = 0  # bytes in the file
    form: Literal["plain", "lz4", "zstd", "damaged"] = "plain"  # compression; ``damaged`` if its size cannot be true
    container: int = 0  # offset of its fatbin in the file
    config: str = ""  # short form of its configuration, from the table in a library of this project

    def read(self, most: int | None = None) -> bytes:
        """Its bytes, or the first `most`; `FlashladderError` if they are damaged or the system cannot unpack them."""
        wanted = self.size if most is None else min(most, self.size)
        if self.form == "plain":
            return bytes(self.data[self.begin : self.begin + wanted])
        where = f"{self.place}: entry at byte {self.begin}"
        if self.form == "damaged":
            expected = "a size that can be true"
            raise FlashladderError("the fatbin is damaged", where=where, expected=expected, found=self.size)
        if (unpacker := library(self.form)) is None:
            raise FlashladderError(
                f"the kernels are packed with {self.form}", where=self.place, expected=LIBRARIES[self.form],
                found="no such library here", hint="install it, or unpack the kernels: cuobjdump -xelf all FILE",
            )  # fmt: skip
        stored = self.data[self.begin : self.begin + self.stored]
        unpacked = (_zstd if self.form == "zstd" else _lz4)(unpacker, stored, wanted)
        if len(unpacked) != wanted:
            expected = f"{wanted} bytes of {self.form}"
            raise FlashladderError("the fatbin is damaged", where=where, expected=expected, found=len(unpacked))
        return unpacked


@contextmanager
def images(path: Path) -> Iterator[list[Image]]:
    """A file's images in order, while the context lasts; `FlashladderError` names the file: no kernels, or damaged."""
    with ExitStack() as stack:
        try:
            yield _all_images(path, stack)
        except FlashladderError as error:
            error.where = error.where or relative(path)
            raise


def _all_images(path: Path, stack: ExitStack) -> list[Image]:
    if not path.is_file():
        what = "not a regular file" if path.exists() else "no such file"
        raise FlashladderError(what, expected="a file that holds kernels")
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
        raise FlashladderError("no GPU code in the file", expected=expected, hint=hint)
    return found


def _images(path: Path, stack: ExitStack) -> Iterator[Image]:
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
    """PTX and cubins of every fatbin in a file, at any offset; skips bytes that only look like a fatbin's header."""
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
    """The end of the entry whose header begins at `at`, in a fatbin that ends at `end`; 0 if there is none."""
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
    """Maps the offset of a fatbin to the short form of its configuration, by the table in a library of this project.

    A row of the table begins with pointers to the short form and the dtype, and ends with one to the fatbin. In a
    shared library each pointer is a relocation ``R_X86_64_RELATIVE``, whose addend is its target.
    """
    try:
        sections = cubin.sections_of(data)
        relocations = sections.get(".rela.dyn")
        if relocations is None or relocations.size > MOST_RELOCATIONS * _RELA.size or relocations.size % _RELA.size:
            return {}
        rows = _RELA.iter_unpack(cubin.bytes_of(data, relocations))
    except FlashladderError:
        return {}  # the kernels can be listed without the table
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
    """``ZSTD_inBuffer`` and ``ZSTD_outBuffer``: address, bytes, bytes done."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t), ("done", ctypes.c_size_t))


@cache
def library(form: str) -> ctypes.CDLL | None:
    """The system's library for ``zstd`` or ``lz4``; None if it is not installed."""
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


def _zstd(zstd: ctypes.CDLL, stored: bytes, wanted: int) -> bytes:
    """The first `wanted` unpacked bytes; empty if the stream is damaged."""
    out = (ctypes.c_char * wanted)()
    source = _Buffer(ctypes.cast(ctypes.c_char_p(stored), ctypes.c_void_p), len(stored), 0)
    target = _Buffer(ctypes.cast(out, ctypes.c_void_p), wanted, 0)
    stream = zstd.ZSTD_createDStream()
    try:
        while target.done < wanted:
            before = (source.done, target.done)
            left = zstd.ZSTD_decompressStream(stream, ctypes.byref(target), ctypes.byref(source))
            if zstd.ZSTD_isError(left) or (source.done, target.done) == before:
                return b""
    finally:
        zstd.ZSTD_freeDStream(stream)
    return out.raw


def _lz4(lz4: ctypes.CDLL, stored: bytes, wanted: int) -> bytes:
    """The first `wanted` unpacked bytes, or fewer; empty if the block is damaged."""
    out = (ctypes.c_char * wanted)()
    done = lz4.LZ4_decompress_safe_partial(ctypes.c_char_p(stored), out, len(stored), wanted, wanted)
    return out.raw[:done] if done > 0 else b""


_FORWARD = ("causal", "local", "alibi", "even_MN", "even_K", "softcap")
TRAITS = {
    "Flash_fwd_kernel_traits": ("Q_in_regs", "share_Q_K_smem"),
    "Flash_bwd_kernel_traits": ("layout_MSdP", "layout_NdKV", "layout_MdQ", "V_in_regs", "no_double_buffer"),
}
"""Parameters of a traits type between the number of warps and the element type."""
KERNELS = {
    "flash_fwd_kernel": ("dropout", *_FORWARD, "return_softmax"),
    "flash_fwd_splitkv_kernel": (*_FORWARD, "split", "append_KV"),
    "flash_fwd_splitkv_combine_kernel": ("rows", "log_max_splits", "even_K"),
    "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel": ("dropout", *_FORWARD),
    "flash_bwd_dot_do_o_kernel": ("clear_dQaccum",),
    "flash_bwd_convert_dq_kernel": (),
}
"""Parameters of a kernel beside its traits."""
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
LONGEST = 72  # characters of a shortened name


@lru_cache(maxsize=1 << 16)
def configuration(name: str) -> str:
    """Kernel, dtype, d_head, B_r, B_c, warps and switches that a demangled name holds; empty if it holds none.

    Switches that are on, and numbers as ``name=value``, follow the order of the template's parameters. Types that
    profilers print (``(int)128, (bool)1``) are ignored.
    """
    if "_kernel_traits" not in name:
        return ""
    found = _TEMPLATE.search(_TRUTH.sub(lambda word: str(int(word[0] == "true")), _TYPES_AND_BLANKS.sub("", name)))
    if found is None or found["kernel"] not in KERNELS:
        return ""
    named = ((TRAITS[found["traits"]], found["own"]), (KERNELS[found["kernel"]], found["before"] + found["after"]))
    words = []
    for names, text in named:
        values = re.findall(r"\d+", text)
        if len(values) != len(names):
            return ""
        pairs = zip(names, values, strict=True)
        words += [f"{one}={value}" if one in _NUMBERS else one for one, value in pairs if one in _NUMBERS or int(value)]
    sizes = ", ".join(re.findall(r"\d+", found["sizes"]))
    return f"{found['kernel']} ({_DTYPES[found['dtype']]}, {sizes}){': ' if words else ''}{'+'.join(words)}"


@lru_cache(maxsize=1 << 16)
def shortened(name: str) -> str:
    """A demangled name for a line of a table: its configuration, or the name without argument types, cut."""
    if found := configuration(name):
        return found
    text = name[: 4 * LONGEST].replace("(anonymous namespace)", "{}")
    text = re.sub(r"^(?:void|std::enable_if<.*?>::type)\s+", "", text)
    depth = 0
    for place, letter in enumerate(text):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth <= 0:
            text = text[:place]
            break
    text = re.sub(r"\b(?:\w+::)+", "", text).replace("{}::", "")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def demangled(symbols: Iterable[str]) -> dict[str, str]:
    """Maps each symbol to its C++ name by one run of the host's c++filt, or to itself if that is not possible."""
    listed = sorted(symbols)
    given = [symbol for symbol in listed if symbol.startswith("_Z") and symbol.isprintable()]
    names, program = {symbol: symbol for symbol in listed}, shutil.which("c++filt")
    if not given or program is None:
        return names
    done = subprocess.run([program], input="\n".join(given), capture_output=True, text=True, check=False)
    found = done.stdout.splitlines()
    return names | dict(zip(given, found, strict=True)) if len(found) == len(given) else names


_ENTRY = re.compile(r"\.entry\s+([\w$]+)")


def _without_blanks(text: str) -> str:
    return "".join(text.split())


@dataclass(frozen=True)
class Kernel:
    """One kernel for one architecture."""

    symbol: str  # its name in the file, mangled
    name: str  # demangled; the symbol if this machine has no demangler
    config: str  # the short form of its configuration; empty if unknown
    arch: str  # ``sm_80``, or ``compute_80`` for PTX
    kind: Kind
    image: Image  # which holds it
    facts: cubin.CodeKernel | None = None  # from its cubin; None for PTX, and until `with_facts` has read the cubin

    @property
    def title(self) -> str:
        """Its short name for people."""
        return printable(self.config or shortened(self.name))

    def matches(self, wanted: str) -> bool:
        """Whether `wanted` is a part of one of its spellings, blanks ignored."""
        part = _without_blanks(wanted)
        return any(part in spelling for spelling in self.spellings)

    @property
    def spellings(self) -> tuple[str, ...]:
        """Its names without blanks: symbol, demangled name, configuration, both of them, and title."""
        both = f"{self.symbol} {self.config}" if self.config else ""  # for this project's kernels, listed as others'
        return tuple(map(_without_blanks, (self.symbol, self.name, self.config, both, self.title)))


def kernels_of(images: Sequence[Image], kind: Kind, arch: str = "") -> list[Kernel]:
    """The kernels of `kind` without facts, of all architectures or `arch`; `FlashladderError` for a damaged image."""
    chosen = [one for one in images if one.kind == kind and (not arch or _number(one.arch) == _number(arch))]
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
    """The kernels with the facts of their cubins, without device functions; `FlashladderError` for a damaged cubin."""
    found: list[Kernel] = []
    for _, group in groupby(kernels, key=lambda kernel: id(kernel.image)):
        same_image = list(group)
        if same_image[0].kind == "PTX":
            found += same_image
            continue
        data = same_image[0].image.read()
        facts, arch = {one.symbol: one for one in cubin.kernels_of(data)}, cubin.arch_of(data)
        for kernel in same_image:
            if kernel.symbol in facts:
                full = kernel.arch if _number(kernel.arch) == _number(arch) else arch  # a cubin's has no suffix
                found.append(replace(kernel, facts=facts[kernel.symbol], arch=full))
    return found


def chosen(kernels: Sequence[Kernel], wanted: str) -> list[Kernel]:
    """Kernels named `wanted`, else those with it as a part; all if empty. `FlashladderError`: there is none."""
    part = _without_blanks(wanted)
    found = [one for one in kernels if not part or one.matches(part)]
    if not found:
        n = len({one.symbol for one in kernels})
        expected = f"a part of one of {n} names" if n else "a file that has some"
        raise FlashladderError("no such kernel in the file", expected=expected, found=wanted, hint="--list shows them")
    return [one for one in found if part and part in one.spellings] or found
