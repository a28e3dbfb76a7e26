"""The kernels of a file: names, configurations, registers and sizes, and which of them are meant.

Names come from the first kilobytes of each cubin, so that a library with a hundred thousand kernels answers in seconds;
registers, shared memory and sizes need whole cubins, and only those that a question is about are unpacked.

A name of FlashAttention-2's templates holds a configuration. It comes mangled (in a cubin), demangled (c++filt),
demangled with types (``(int)128, (bool)1``, as profilers print), or as the short form that this module writes; all four
give the same configuration. Template parameters are named as in FlashAttention's
``csrc/flash_attn/src/flash_{fwd,bwd}_launch_template.h`` and ``kernel_traits.h``, 2.6 to 2.8 and PyTorch's copy; an
instance with another number of them is not guessed at. All kernels of this project have one symbol: a table in their
library names their configurations (`flashladder.binaries.images.table_of`).

Try ``configuration("flash_fwd_kernel (FP16, 128, 128, 64, 4): even_MN+even_K")``; ``invoke sass FILE`` lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
import os
import re
import shutil
import subprocess
from typing import Literal

from flashladder.binaries.images import Image
from flashladder.errors import FlashladderError, printable
from flashladder.machine_code import cubin
from flashladder.names import KERNEL

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
_DTYPES = {"half_t": "fp16", "bfloat16_t": "bf16"}
_TILE = r"\((?P<dtype>FP16|BF16), (?P<tile>\d{1,6}, \d{1,6}, \d{1,6}, \d{1,6})\)"
_SHORT = re.compile(rf"(?:(?P<kernel>\w+) )?{_TILE}(?:: (?P<words>[\w=]+(?:\+[\w=]+)*))?", re.ASCII)
_MANGLED = re.compile(
    r"\d+(?P<kernel>flash_(?:fwd|bwd)_(?:[a-zA-Z_]+?_)?kernel)I(?P<before>(?:Lb[01]E)*)"
    r"(?:NS_)?\d+(?P<traits>Flash_(?:fwd|bwd)_kernel_traits)I(?P<args>(?:L[ib]\d{1,6}E){4,16})"
    r"N7cutlass\d+(?P<dtype>half_t|bfloat16_t)E(?:NS_)?\d+Flash_kernel_traitsI(?:Li\d{1,6}E){4}S[0-9A-Z]*_EE"
    r"(?P<after>(?:L[ib]\d{1,6}E)*)E",
    re.ASCII,
)
_DEMANGLED = re.compile(
    r"\b(?P<kernel>flash_(?:fwd|bwd)_(?:\w+_)?kernel)<(?P<before>(?:[01],)*)"
    r"(?:\w+::)*(?P<traits>Flash_(?:fwd|bwd)_kernel_traits)<(?P<args>(?:\d{1,6},){4,16})"
    r"cutlass::(?P<dtype>half_t|bfloat16_t),(?:\w+::)*Flash_kernel_traits<(?:\d{1,6},){4}cutlass::\w+>>"
    r"(?P<after>(?:,\d{1,6})*)>",
    re.ASCII,
)
_AROUND = re.compile(r"\s*([,<>])\s*")
_TRUTH = re.compile(r"\b(?:true|false)\b")
_VALUES = re.compile(r"\d+")


@dataclass(frozen=True)
class Configuration:
    """What a kernel is an instance of."""

    kernel: str  # the template's name, or the symbol
    dtype: str  # ``fp16`` or ``bf16``
    d_head: int  # head size in elements
    B_r: int  # query rows of a CTA
    B_c: int  # rows of K and V in one step
    n_warps: int  # of a CTA
    # switches that are on, and numbers as ``name=value``, in the order of the template's parameters
    words: tuple[str, ...] = ()

    def short_form(self) -> str:
        """On one line; `configuration` is its inverse."""
        sizes = ", ".join(map(str, (self.d_head, self.B_r, self.B_c, self.n_warps)))
        tail = f": {'+'.join(self.words)}" if self.words else ""
        return f"{self.kernel} ({self.dtype.upper()}, {sizes}){tail}"


@lru_cache(maxsize=1 << 16)
def configuration(name: str) -> Configuration | None:
    """The configuration that a name holds, in any of the four forms; None where it holds none.

    A short form without a kernel's name is one of this project's.
    """
    if match := _SHORT.fullmatch(name):
        words = tuple(match["words"].split("+")) if match["words"] else ()
        d_head, B_r, B_c, n_warps = _numbers(match["tile"])
        return Configuration(match["kernel"] or KERNEL, match["dtype"].lower(), d_head, B_r, B_c, n_warps, words)
    if "_kernel_traits" not in name:
        return None
    found = _MANGLED.search(name) or _DEMANGLED.search(_plain(name))
    return _of_template(found) if found else None


def _plain(name: str) -> str:
    """A demangled name with numbers in place of ``true``, ``(bool)1`` and ``(int)128``, without blanks."""
    bare = _AROUND.sub(r"\1", name.replace("(int)", "").replace("(bool)", ""))
    return _TRUTH.sub(lambda found: str(int(found[0] == "true")), bare)


def _numbers(text: str) -> list[int]:
    return [int(value) for value in _VALUES.findall(text)]


def _of_template(found: re.Match[str]) -> Configuration | None:
    kernel, of_traits = found["kernel"], TRAITS[found["traits"]]
    named = KERNELS.get(kernel)
    sizes, own = _numbers(found["args"])[:4], _numbers(found["args"])[4:]
    values = _numbers(found["before"]) + _numbers(found["after"])
    if named is None or len(own) != len(of_traits) or len(values) != len(named):
        return None
    words = (*_words(of_traits, own), *_words(named, values))
    return Configuration(kernel, _DTYPES[found["dtype"]], sizes[0], sizes[1], sizes[2], sizes[3], words)


def _words(names: Sequence[str], values: Sequence[int]) -> list[str]:
    return [
        f"{name}={value}" if name in _NUMBERS else name
        for name, value in zip(names, values, strict=True)
        if value or name in _NUMBERS
    ]


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


LONGEST = 72  # characters of a shortened name
_NESTING = re.compile(r"[<>(]")
_RETURNS = re.compile(r"^(?:void|std::enable_if<.*?>::type)\s+")


@lru_cache(maxsize=1 << 16)
def shortened(name: str) -> str:
    """A demangled name for a line of a table: its configuration, or the name without types of arguments, cut."""
    if found := configuration(name):
        return found.short_form()
    text = _RETURNS.sub("", name[: 4 * LONGEST].replace("(anonymous namespace)", "{}"))
    depth, end = 0, len(text)
    for found_at in _NESTING.finditer(text):
        depth += {"<": 1, ">": -1}.get(found_at[0], 0)
        if found_at[0] == "(" and depth <= 0:
            end = found_at.start()
            break
    text = re.sub(r"\b(?:\w+::)+", "", text[:end]).replace("{}::", "")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


Kind = Literal["SASS", "PTX"]
MOST_FACTS = 1 << 30  # bytes of cubins that a listing unpacks for registers and sizes
_FRONT = 1 << 16  # bytes of a cubin that are read for names at first, and four times as many each time it is too little
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
    wanted = "cubin" if kind == "SASS" else "ptx"
    number = _number(arch)
    chosen = [one for one in images if one.kind == wanted and (not arch or _number(one.arch) == number)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # threads, as unpacking holds no lock
        found = list(zip(chosen, pool.map(_symbols, chosen), strict=True))
    names = demangled({symbol for _, symbols in found for symbol in symbols})
    return [
        Kernel(symbol, names[symbol], image.config or _config(names[symbol]), image.arch, kind, image)
        for image, symbols in found
        for symbol in symbols
    ]


def _number(arch: str) -> str:
    """``90`` of ``sm_90``, ``sm_90a`` and ``compute_90a``."""
    return arch.removeprefix("sm_").removeprefix("compute_").rstrip("af")


def _config(name: str) -> str:
    found = configuration(name)
    return found.short_form() if found else ""


def _symbols(image: Image) -> list[str]:
    if image.kind == "ptx":
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
