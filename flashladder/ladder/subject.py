"""What is built and measured, by name: an iteration or an ablation of one, through one CUDA version's compiler.

Why: a wheel, its torch namespace, its build folder, its kernels in results and its virtual environment all follow from
this name; and a plan of thousands of cells asks for them without reading an iteration.

    >>> parse_subject("16 - swizzle", "13.1").package
    'flashladder_16_minus_swizzle_cuda_13_1'
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
import re

from flashladder.errors import FlashladderError
from flashladder.toolchain.wheels import load_pins

_DESCRIPTION = re.compile(r"\s*(\d{1,9})\s*(?:([+-])\s*([A-Za-z0-9_ -]*?)\s*)?", re.ASCII)
_WORDS = {"-": "minus", "+": "plus", "": ""}


@dataclass(frozen=True)
class Subject:
    """One iteration with at most one change, through one CUDA version's compiler.

    Attributes:
        number: of the iteration, or of the one that an ablation varies.
        sign: ``-`` for a change taken back, ``+`` for one added, else empty.
        change: its name, ``double_buffer``; else empty.
        cuda: version of the compiler's wheels, ``13.1``; empty for the pinned one.
    """

    number: int
    sign: str = ""
    change: str = ""
    cuda: str = ""

    @property
    def text(self) -> str:
        """What `flashladder.ladder.iteration.load_description` takes: ``16``, ``16 - swizzle``."""
        return f"{self.number} {self.sign} {self.change}".strip()

    @property
    def variant(self) -> str:
        """What follows the number in a kernel's key: `` - swizzle cuda 13.1``; empty for the ladder's own kernels."""
        return f" {self.sign} {self.change}" * bool(self.sign) + f" cuda {self.cuda}" * bool(self.cuda)

    @property
    def label(self) -> str:
        """How messages name it: ``iteration 16 - swizzle (CUDA 13.1)``."""
        return f"iteration {self.text}" + f" (CUDA {self.cuda})" * bool(self.cuda)

    @property
    def tag(self) -> str:
        """The name in files: ``16_minus_swizzle_cuda_13_1``."""
        words = [f"{self.number:02d}", _WORDS[self.sign], self.change]
        words += ["cuda", self.cuda.replace(".", "_")] if self.cuda else []
        return "_".join(word for word in words if word)

    @property
    def package(self) -> str:
        """Import name of its wheel, and torch namespace: ``flashladder_16_minus_swizzle_cuda_13_1``."""
        return f"flashladder_{self.tag}"

    @property
    def options(self) -> str:
        """What ``invoke build`` takes: ``"16 - swizzle" --toolchain 13.1``."""
        return (f'"{self.text}"' if self.sign else self.text) + f" --toolchain {self.cuda}" * bool(self.cuda)

    @property
    def session(self) -> str:
        """The command that builds it in the environment of its iteration."""
        words = f"{self.sign} {self.change}" * bool(self.sign) + f" --toolchain {self.cuda}" * bool(self.cuda)
        return f"nox -s build-iteration-{self.number}" + f" -- {words.strip()}" * bool(words)


def split_description(text: str) -> tuple[int, str, str] | None:
    """``16 - double buffer`` as number, sign and name (16, "-", "double_buffer"); None where it is no such thing."""
    match = _DESCRIPTION.fullmatch(text)
    if match is None:
        return None
    return int(match[1]), match[2] or "", re.sub(r"[ -]+", "_", (match[3] or "").lower())


@lru_cache(maxsize=4096)
def parse_subject(subject: int | str, cuda: str = "") -> Subject:
    """The subject that a person or a grid names; whether there is such an iteration or change is not asked here.

    Args:
        subject: ``16``, or an ablation such as ``16 - swizzle``.
        cuda: the compiler's CUDA version; empty, or the pinned version, for the pinned one.

    Raises:
        FlashladderError: not a description, or no toolchain of that version is pinned.
    """
    found = split_description(str(subject))
    if found is None:
        raise not_a_description(str(subject))
    return Subject(*found, load_pins().axis(cuda))


def not_a_description(text: str) -> FlashladderError:
    """The error that `text` names no iteration and no ablation."""
    return FlashladderError(
        "not a description of an iteration",
        expected="a number, or one change to one, such as '16 - swizzle' or '7 + xor_static'",
        found=repr(text),
    )
