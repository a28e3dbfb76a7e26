"""The kernels of a file: names, configurations, registers and sizes, and which of them are meant.

Names come from the first kilobytes of each cubin, so that a library with a hundred thousand kernels answers in seconds;
registers, shared memory and sizes need whole cubins, and only those that a question is about are unpacked. A name holds
the configuration of FlashAttention-2's templates (`flashladder.binaries.names`), and the table of
a library of this project (`flashladder.build.kernel_table`), whose kernels all have one symbol.

``invoke sass FILE`` lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
import os
import re
from typing import Literal

from flashladder.binaries import cubins
from flashladder.binaries.images import Image, library
from flashladder.binaries.names import configuration, demangled, shortened
from flashladder.errors import FlashladderError, printable

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
    """One kernel for one architecture.

    Attributes:
        symbol: its name in the file, mangled.
        name: demangled; the symbol where no demangler is here.
        config: the short form of what it is an instance of; empty where the name holds none.
        arch: ``sm_80``, or ``compute_80`` of PTX.
        kind: machine code or PTX.
        image: where it lies.
        facts: what its cubin says; None of PTX, and until `with_facts` has read it.
    """

    symbol: str
    name: str
    config: str
    arch: str
    kind: Kind
    image: Image
    facts: cubins.CodeKernel | None = None

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
    if len(chosen) < 64 or library("zstd") is None:
        listed = list(map(_symbols, chosen))
    else:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # threads, as unpacking holds no lock
            listed = list(pool.map(_symbols, chosen))
    found = list(zip(chosen, listed, strict=True))
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
        if (names := cubins.names_in_front(image.read(most))) is not None:
            return names
        most *= 4
    return [kernel.symbol for kernel in cubins.kernels_of(image.read())]


def with_facts(kernels: Iterable[Kernel]) -> list[Kernel]:
    """The kernels with what their cubins say of them; device functions, which are none, are left out.

    Raises:
        FlashladderError: a cubin is damaged.
    """
    found: list[Kernel] = []
    image, arch, facts = None, "", dict[str, cubins.CodeKernel]()
    for kernel in kernels:
        if kernel.kind == "PTX":
            found.append(kernel)
            continue
        if kernel.image is not image:
            image = kernel.image
            data = image.read()
            facts, arch = {one.symbol: one for one in cubins.kernels_of(data)}, cubins.arch_of(data)
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
