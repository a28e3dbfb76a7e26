"""Machine code and PTX as text, and `invoke sass FILE` and `invoke ptx FILE`: kernels that others built.

A file is a wheel, library, object, fatbin, cubin or PTX file. Where it holds several kernels and none is named they are
listed; ``--kernel`` takes a part of a name, mangled or not, or a configuration.

Run: ``invoke sass libtorch_cuda.so --kernel "flash_fwd_kernel (FP16, 128, 128, 64, 4)"``;
``diff <(invoke sass 7 --clean) <(invoke sass 8 --clean)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
import json
from pathlib import Path
import re
import sys
import tempfile

from flashladder.binaries import (
    MOST_FACTS,
    Image,
    Kernel,
    Kind,
    bytes_of,
    chosen,
    images,
    kernels_of,
    with_facts,
)
from flashladder.columns import table
from flashladder.errors import FlashladderError, printable
from flashladder.files import output_file, relative, write_atomic
from flashladder.machine_code.cubin import code_of, debug_ptx
from flashladder.machine_code.flow import main_loop
from flashladder.machine_code.ptx import normalise, opcode_counts
from flashladder.machine_code.sass import LEGEND, Control, Sass, count, decoded, parse, run_nvdisasm
from flashladder.names import DEFAULT_ARCH

CUBIN, PTX = ".cubin", ".ptx"  # what --out of `sass` and `ptx` writes
SUFFIXES = (".whl", ".so", ".pyd", ".o", ".a", ".fatbin", ".cubin", ".ptx")
COLUMNS = [
    *("total", "IADD3", "LOP3", "SHF", "IMAD.MOV.U32", "MOV", "CS2R", "FMUL", "FFMA", "FADD"),
    *("MUFU", "HMMA", "LDSM", "LDGSTS", "FMNMX", "IMAD", "SHFL", "BAR", "LDL", "STL"),
]
"""Opcode classes of the published tables, in their order."""


def kernel_counts(sass: Sass) -> str:
    """The table of a kernel and its main loop: the published classes of opcodes first, then the others by size."""
    whole, loop = sass.counts(), count(main_loop(sass))
    others = sorted(whole.keys() - set(COLUMNS), key=lambda name: (-whole[name], name))
    rows = [("opcode", "whole kernel", "main loop")]
    rows += [(name, str(whole.get(name, 0)), str(loop.get(name, 0))) for name in [*COLUMNS, *others]]
    return "\n".join(table(rows, None, right={1, 2}))


def listing(sass: Sass, controls: Sequence[Control] = ()) -> str:
    """The machine code with the source line over the instructions that came from it; ``|`` marks the main loop.

    Args:
        sass: a kernel's machine code.
        controls: of each instruction, to stand beside its address; none where there are none.
    """
    inside = {instruction.address for instruction in main_loop(sass)}
    names = {address: label for label, address in sass.labels.items()}
    lines: list[str] = []
    last: tuple[str, int] | None = None
    for index, one in enumerate(sass.instructions):
        if one.address in names:
            lines.append(f"{names[one.address]}:")
        if one.file is not None and one.line is not None and (one.file, one.line) != last:
            last = one.file, one.line
            text = "".join(_source_lines(one.file)[one.line - 1 : one.line]).strip()
            lines.append(f"      // {relative(Path(one.file))}:{one.line}  {text}".rstrip())
        control = f"{controls[index]}  " if controls else ""
        lines.append(f"{'|' if one.address in inside else ' '} {one.address:04x}  {control}{one}")
    return "\n".join(lines)


@cache
def _source_lines(file: str) -> tuple[str, ...]:
    try:
        return tuple(Path(file).read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:  # a cubin outlives its source: the listing then has the name and the number alone
        return ()


_SASS_LABEL = re.compile(r"\.L_\w+")
_PTX_LABEL = re.compile(r"\$L_+\w+")
_TOKEN = re.compile(
    r'[{}]|//[^\n]*|/\*.*?\*/|"[^"\n]*"|^[ \t]*(?:\.(?:visible|weak|extern)\s+)?\.entry\s+(?P<entry>[\w$]+)',
    re.DOTALL | re.MULTILINE,
)


def clean_sass(sass: Sass, symbol: str = "", title: str = "", controls: Sequence[Control] = ()) -> str:
    """The instructions for a diff: no addresses, source lines and padding at the end; labels as ``L1``, in order.

    Args:
        sass: a kernel's machine code.
        symbol: of the kernel; `title` stands for it.
        title: a name for people.
        controls: of each instruction, to stand before it; none where there are none.
    """
    last = len(sass.instructions)
    while last and sass.instructions[last - 1].opcode == "NOP":
        last -= 1
    used = {name for one in sass.instructions for name in _SASS_LABEL.findall(one.operands)} & sass.labels.keys()
    places = sorted({sass.labels[name] for name in used})
    numbers = {name: f"L{places.index(sass.labels[name]) + 1}" for name in used}
    lines = []
    for index, one in enumerate(sass.instructions[:last]):
        if one.address in places:
            lines.append(f"L{places.index(one.address) + 1}:")
        text = _SASS_LABEL.sub(lambda found: numbers.get(found[0], found[0]), str(one))
        lines.append(f"  {f'{controls[index]}  ' if controls else ''}{_named(text, symbol, title)}")
    return "".join(f"{line}\n" for line in lines)


def clean_ptx(text: str, symbol: str = "", title: str = "") -> str:
    """The normal form for a diff: labels as ``$L1``, in order of first mention, and `title` in place of `symbol`."""
    text = normalise(text)
    numbers = {label: f"$L{n}" for n, label in enumerate(dict.fromkeys(_PTX_LABEL.findall(text)), 1)}
    return _named(_PTX_LABEL.sub(lambda found: numbers[found[0]], text), symbol, title)


def _named(text: str, symbol: str, title: str) -> str:
    """`text` with a title in place of a symbol, also where it begins a word (``SYMBOL_param_0``)."""
    if not symbol:
        return text
    local = f"_ZZ{symbol[2:]}E" if symbol.startswith("_Z") else f"_ZZ{len(symbol)}{symbol}E"  # its static variables
    names = {local: f"{title}::", symbol: title}
    pattern = rf"(?<![\w$])(?:{re.escape(local)}|{re.escape(symbol)})"
    return re.sub(pattern, lambda found: names[found[0]], text)


def only_entry(text: str, symbol: str) -> str | None:
    """A PTX module with the entry `symbol` alone: declarations and functions stay, the other entries go.

    None if a brace that opens does not close: the file was cut off within a kernel.
    """
    kept, at, depth, entry = list[str](), 0, 0, None
    for token in _TOKEN.finditer(text):
        if token["entry"] and not depth:
            entry = token
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if token[0] == "}" and not depth and entry:
            if entry["entry"] != symbol:
                kept.append(text[at : entry.start()])
                at = token.end()
            entry = None
    return None if depth else "".join([*kept, text[at:]])


@dataclass(frozen=True)
class Wanted:
    """What ``invoke sass`` and ``invoke ptx`` are asked for; tasks.py says what each option is."""

    config: str | None = None
    kernel: str = ""
    arch: str = ""
    list: bool = False
    counts: bool = False
    clean: bool = False
    control: bool = False
    normalised: bool = False
    order: bool = False
    line: str = ""
    opcode: str = ""
    page: str = ""
    json: bool = False
    out: str = ""

    def require_only(self, what: str, *taken: str) -> None:
        """Raises `FlashladderError` for an option that does not go with `what`, which takes the options `taken`."""
        if wrong := [name for name, value in vars(self).items() if value and name not in taken]:
            raise FlashladderError(f"--{wrong[0]} does not go with {what}")


def is_file(text: str) -> bool:
    """Whether a word names a file rather than an iteration or an ablation."""
    return not text.strip().isdigit() and ("/" in text or text.endswith(SUFFIXES) or Path(text).is_file())


def file_named(word: str, wanted: Wanted) -> Path | None:
    """The file that a word names; None where it names an iteration.

    Raises:
        FlashladderError: an option that goes with the other of the two.
    """
    if is_file(word):
        if wanted.config:
            hint = "--kernel chooses in a file"
            raise FlashladderError("--config is for iterations", found=relative(Path(word)), hint=hint)
        return Path(word)
    if name := next((name for name in ("kernel", "list") if getattr(wanted, name)), None):
        raise FlashladderError(f"--{name} is for files", expected="a library, cubin or PTX file", found=word)
    return None


def output_of(wanted: Wanted, ending: str) -> Path | None:
    """The file of ``--out``; None without it.

    Raises:
        FlashladderError: a bad name, or a form of printing beside it, which would be ignored.
    """
    if not wanted.out:
        return None
    wanted.require_only("--out", "out", "config", "kernel", "arch")
    return output_file(wanted.out, ending)


def show_sass(path: Path, wanted: Wanted, title: str = "") -> None:
    """Prints the machine code of one kernel of a file, or the kernels that there are.

    Args:
        path: the file.
        wanted: what of it, and how it is printed.
        title: of the kernel; empty for what the file says of it.

    Raises:
        FlashladderError: no such file or kernel, or several where one is needed.
    """
    out = output_of(wanted, CUBIN)
    with images(path) as found:
        kernel = _listed_or_one(found, "SASS", wanted, relative(path))
        if kernel is None:
            return
        data = kernel.image.read()
        if out:
            print(write_atomic(out, data))
            return
        kernel, sass = _disassembled(kernel)
    controls = decoded(code_of(data, kernel.symbol), sass.instructions, kernel.arch) if wanted.control else []
    if wanted.json:
        parts = ("address", "predicate", "opcode", "operands")
        rows = [{name: getattr(one, name) for name in parts} for one in sass.instructions]
        for row, control in zip(rows, controls, strict=False):
            row["control"] = str(control)
        told = {"counts": sass.counts(), "labels": dict(sass.labels), "instructions": rows}
        print(json.dumps({**_data(kernel), **told}, indent=2))
    elif wanted.clean:
        print(clean_sass(sass, kernel.symbol, kernel.title, controls), end="")
    elif wanted.counts:
        print(f"{title or f'{kernel.title}, {kernel.arch}'}\n\n{kernel_counts(sass)}")
    else:
        registers, shared, _, size = ("?" if fact is None else fact for fact in _facts(kernel).values())
        takes = f"{registers} registers, {shared} B static shared memory, {size} B code"
        legend = f"// {LEGEND}\n" if controls else ""
        print(f"{title or f'// {kernel.title}, {kernel.arch}, {takes}'}\n{legend}{listing(sass, controls)}")
        print(kernel_counts(sass))


def sass_of(path: Path, name: str, arch: str) -> tuple[str, Sass]:
    """The title and the machine code of the one kernel of a file that is meant.

    Args:
        path: the file.
        name: a part of the kernel's name; empty for the only one.
        arch: the architecture; empty for the usual one where there are several.

    Raises:
        FlashladderError: no such file or kernel, none for `arch`, or several.
    """
    with images(path) as found:
        meant = _meant(found, "SASS", Wanted(kernel=name, arch=arch), relative(path))
        kernel, sass = _disassembled(_only(meant, relative(path), arch))
        return f"{relative(path)}: {kernel.title}, {kernel.arch}", sass


def _disassembled(kernel: Kernel) -> tuple[Kernel, Sass]:
    """A kernel with what its cubin says of it, and its machine code."""
    (kernel,) = with_facts([kernel]) or [kernel]
    assert kernel.facts is not None  # its cubin has been read
    with tempfile.TemporaryDirectory(prefix="flashladder-") as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(kernel.image.read())
        return kernel, parse(run_nvdisasm(cubin, symbol=kernel.facts.index), kernel.symbol)


def show_ptx_of_file(path: Path, wanted: Wanted) -> None:
    """Prints the PTX of one kernel of a file, or the kernels that there are.

    PTX that ptxas kept in a cubin (``-lineinfo``) stands for it where the file holds no other.

    Raises:
        FlashladderError: no such file or kernel, no PTX, or several kernels where one is needed.
    """
    out, where = output_of(wanted, PTX), relative(path)
    with images(path) as found:
        kind: Kind = "PTX" if any(image.kind == "PTX" for image in found) else "SASS"
        kernel = _listed_or_one(found, kind, wanted, where)
        if kernel is None:
            return
        data = kernel.image.read()
        text = data.decode("utf-8", "replace").rstrip("\0") if kind == "PTX" else debug_ptx(data)
        if not text:
            hint = "ptxas keeps it in the cubin with -lineinfo"
            raise FlashladderError("no PTX in the file, nor in its cubins", where=where, hint=hint)
        own = only_entry(text, kernel.symbol)
        if own is None:
            raise FlashladderError("the PTX is damaged", where=where, expected="a } for each {", found="fewer")
    if out:
        print(write_atomic(out, own))
    elif wanted.json:
        print(json.dumps({**_data(kernel), "counts": opcode_counts(own), "text": own}, indent=2))
    elif wanted.counts:
        for opcode, n in sorted(opcode_counts(own).items(), key=lambda item: (-item[1], item[0])):
            print(f"{n:6d}  {opcode}")
    elif wanted.clean:
        print(clean_ptx(own, kernel.symbol, kernel.title), end="")
    else:
        print((normalise(own) if wanted.normalised else own).removesuffix("\n"))


def _meant(found: Sequence[Image], kind: Kind, wanted: Wanted, where: str) -> list[Kernel]:
    """The kernels that may be meant, at least one unless they are to be listed."""
    kernels = kernels_of(found, kind, wanted.arch)
    if wanted.arch and not kernels and (others := kernels_of(found, kind)):
        arches = ", ".join(dict.fromkeys(one.arch for one in others))
        raise FlashladderError("no code for this architecture", where=where, expected=arches, found=wanted.arch)
    if not kernels and not (wanted.list or wanted.kernel):
        other: Kind = "PTX" if kind == "SASS" else "SASS"
        hint = f"`invoke {other.lower()} FILE` reads its {other}" if kernels_of(found, other) else "no kernel is in it"
        raise FlashladderError(f"no {kind} of a kernel in the file", where=where, hint=hint)
    try:
        return chosen(kernels, wanted.kernel)
    except FlashladderError as error:
        error.where = where
        raise


def _only(meant: Sequence[Kernel], where: str, arch: str) -> Kernel:
    """The one that is meant: of several architectures the usual one, unless `arch` names another."""
    if not arch:
        meant = [one for one in meant if one.arch == DEFAULT_ARCH] or meant
    distinct = {(one.symbol, one.config, one.arch) for one in meant}
    if len(distinct) > 1:
        some = "; ".join(dict.fromkeys(f"{one.title} {one.arch}" for one in meant[:4]))
        hint = "`invoke sass FILE --list` shows them; narrow with --kernel and --arch"
        what = f"{len(distinct)} kernels of the file are meant"
        raise FlashladderError(what, where=where, expected="one", found=some, hint=hint)
    if len(meant) > 1:
        print(f"{len(meant)} equal names in the file; the first is shown", file=sys.stderr)
    return meant[0]


def _listed_or_one(found: Sequence[Image], kind: Kind, wanted: Wanted, where: str) -> Kernel | None:
    """The one kernel that is meant; None after all that may be meant were listed.

    Raises:
        FlashladderError: an option that goes with one kernel, where there are several, or with text, beside --json.
    """
    if wanted.json and (wanted.clean or wanted.normalised):
        raise FlashladderError(f"--{'clean' if wanted.clean else 'normalised'} does not go with --json")
    meant = _meant(found, kind, wanted, where)
    if not wanted.list and (len(meant) == 1 or wanted.kernel):
        return _only(meant, where, wanted.arch)
    wanted.require_only("a list of kernels; --kernel chooses one", "kernel", "arch", "list", "json")
    other = kernels_of(found, "PTX" if kind == "SASS" else "SASS", wanted.arch)
    print(_list([*meant, *(one for one in other if one.matches(wanted.kernel))], as_json=wanted.json))
    return None


def _list(kernels: Sequence[Kernel], *, as_json: bool) -> str:
    """The kernels as a table, or as JSON; with their facts unless that takes too long."""
    whole = bytes_of(kernels) <= MOST_FACTS
    rows = with_facts(kernels) if whole else list(kernels)
    if as_json:
        return json.dumps([_data(one) for one in rows], indent=2)
    if not whole:  # each kernel once, with all its architectures: the rows would be too many
        arches: dict[tuple[str, str, str, Kind], list[Kernel]] = {}
        for one in rows:
            arches.setdefault((one.symbol, one.config, one.image.place, one.kind), []).append(one)
        rows = [replace(some[0], arch=",".join(dict.fromkeys(one.arch for one in some))) for some in arches.values()]
    cells: list[tuple[str, ...]] = [("kernel", "arch", "kind", "regs", "shared", "stack", "bytes", "in")]
    for one in rows:
        texts = ("-" if number is None else str(number) for number in _facts(one).values())
        cells.append((one.title, one.arch, one.kind, *texts, printable(one.image.place)))
    lines = [*table(cells, None, right=range(3, 7)), "", f"{len(rows)} kernels"]
    if not whole:
        lines.append("registers and sizes need whole cubins, more than 1 GiB: narrow with --kernel or --arch")
    return "\n".join(lines)


def _facts(kernel: Kernel) -> dict[str, int | None]:
    """What a kernel takes, as its cubin says; None where that is not known."""
    names = ("registers", "shared_bytes", "frame_bytes", "code_bytes")
    return {name: getattr(kernel.facts, name, None) for name in names}


def _data(kernel: Kernel) -> dict[str, object]:
    """A kernel for scripts; what is not known is null."""
    named = {"symbol": kernel.symbol, "name": kernel.name, "config": kernel.config or None, "arch": kernel.arch}
    return {**named, "kind": kernel.kind, **_facts(kernel), "file": kernel.image.place}
