"""The configuration that a kernel's name holds: of FlashAttention-2's templates, and of this project's short forms.

Why: a library has hundreds of instances of one template, and a person asks for a tile. A name comes mangled (in a
cubin), demangled (c++filt), demangled with types (``(int)128, (bool)1``, as profilers print), or as the short form that
this module writes; all four give the same configuration. Template parameters are named as in FlashAttention's
``csrc/flash_attn/src/flash_{fwd,bwd}_launch_template.h`` and ``kernel_traits.h``, 2.6 to 2.8 and PyTorch's copy; an
instance with another number of them is not guessed at.

Try ``configuration("flash_fwd_kernel (FP16, 128, 128, 64, 4): even_MN+even_K")``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
import re
import shutil
import subprocess

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
    """What a kernel is an instance of.

    Attributes:
        kernel: the template's name, or the symbol.
        dtype: ``fp16`` or ``bf16``.
        d_head: head size in elements.
        B_r: query rows of a CTA.
        B_c: rows of K and V in one step.
        n_warps: of a CTA.
        words: switches that are on, and numbers as ``name=value``, in the order of the template's parameters.
    """

    kernel: str
    dtype: str
    d_head: int
    B_r: int
    B_c: int
    n_warps: int
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
