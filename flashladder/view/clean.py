"""Listings that diff well: machine code and PTX without what changes from file to file and says nothing.

Why: two kernels are compared by their text; addresses, labels' numbers, paths, hashes and mangled names would make
every line differ. Registers keep their numbers: they are the assembler's work.

Run: ``diff <(invoke sass 7 --clean) <(invoke sass 8 --clean)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import re

from flashladder.machine_code.ptx import normalise
from flashladder.machine_code.sass import Control, Sass

_SASS_LABEL = re.compile(r"\.L_\w+")
_PTX_LABEL = re.compile(r"\$L_+\w+")
_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_PADDING = "NOP"


def clean_sass(sass: Sass, names: Mapping[str, str] | None = None, controls: Sequence[Control] = ()) -> str:
    """The instructions without addresses, source lines and the padding at the end; labels as ``L1``, in order.

    Args:
        sass: a kernel's machine code.
        names: symbol to what stands for it.
        controls: of each instruction, to stand before it; none where there are none.
    """
    last = len(sass.instructions)
    while last and sass.instructions[last - 1].opcode == _PADDING:
        last -= 1
    used = {name for one in sass.instructions for name in _SASS_LABEL.findall(one.operands)}
    at: dict[int, list[str]] = {}
    for name, address in sass.labels.items():
        if name in used:
            at.setdefault(address, []).append(name)
    numbers = {name: f"L{n}" for n, address in enumerate(sorted(at), 1) for name in at[address]}
    lines = []
    for index, one in enumerate(sass.instructions[:last]):
        if one.address in at:
            lines.append(f"{numbers[at[one.address][0]]}:")
        text = _SASS_LABEL.sub(lambda found: numbers.get(found[0], found[0]), str(one))
        lines.append(f"  {f'{controls[index]}  ' if controls else ''}{_named(text, names or {})}")
    return "".join(f"{line}\n" for line in lines)


def clean_ptx(text: str, names: Mapping[str, str] | None = None) -> str:
    """The normal form with labels as ``$L1``, in order of first mention, and `names` (symbol to what stands for it)."""
    text = normalise(text)
    numbers: dict[str, str] = {}
    for label in _PTX_LABEL.findall(text):
        numbers.setdefault(label, f"$L{len(numbers) + 1}")
    return _named(_PTX_LABEL.sub(lambda found: numbers[found[0]], text), names or {})


def _named(text: str, names: Mapping[str, str]) -> str:
    """`text` with short names in place of symbols, also where a symbol begins a word (``SYMBOL_param_0``)."""
    if not names:
        return text
    names = {**names, **{_local(symbol): f"{short}::" for symbol, short in names.items()}}
    longest = sorted(names, key=len, reverse=True)

    def short(found: re.Match[str]) -> str:
        word = found[0]
        symbol = next((one for one in longest if word.startswith(one)), None)
        return word if symbol is None else names[symbol] + word[len(symbol) :]

    return _WORD.sub(short, text)


def _local(symbol: str) -> str:
    """How the names of a kernel's static variables begin."""
    return f"_ZZ{symbol[2:]}E" if symbol.startswith("_Z") else f"_ZZ{len(symbol)}{symbol}E"


def is_whole(text: str) -> bool:
    """Whether every brace of PTX that opens also closes: a file that was cut off within a kernel has one left."""
    tokens = [token[0] for token in _BRACE.finditer(text)]
    return tokens.count("{") == tokens.count("}")


def only_entry(text: str, symbol: str) -> str:
    """A PTX module with one of its entries: declarations and functions stay, the other entries go.

    Args:
        text: of the module.
        symbol: the entry's name.
    """
    bodies = list(_entries(text))
    if len(bodies) < 2:
        return text
    kept, at = [], 0
    for name, begin, end in bodies:
        kept.append(text[at:begin])
        if name == symbol:
            kept.append(text[begin:end])
        at = end
    return "".join([*kept, text[at:]])


_ENTRY = re.compile(r"^[ \t]*(?:\.(?:visible|weak|extern)\s+)?\.entry\s+([\w$]+)", re.MULTILINE)
_BRACE = re.compile(r'[{}]|//[^\n]*|/\*.*?\*/|"[^"\n]*"', re.DOTALL)


def _entries(text: str) -> Iterable[tuple[str, int, int]]:
    """Name, begin and end of each entry with its body."""
    for found in _ENTRY.finditer(text):
        depth, end = 0, len(text)
        for token in _BRACE.finditer(text, found.end()):
            depth += {"{": 1, "}": -1}.get(token[0], 0)
            if token[0] == "}" and depth == 0:
                end = token.end()
                break
        yield found[1], found.start(), end
