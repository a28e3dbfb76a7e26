"""Prints machine code and PTX, also of kernels that others built: `invoke sass FILE`, `invoke ptx FILE`.

A file is a wheel, library, object, fatbin, cubin or PTX file. If it holds several kernels and ``--kernel`` names none,
the command lists them. ``--kernel`` takes a part of a name, mangled or not, or a configuration. Both commands raise
`FlashladderError` for a missing file, an unknown kernel, and options that do not go together.

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

from flashladder.binaries import MOST_FACTS, Image, Kernel, Kind, chosen, images, kernels_of, with_facts
from flashladder.columns import grouped, table
from flashladder.errors import FlashladderError, printable
from flashladder.files import output_file, relative, write_atomic
from flashladder.machine_code.cubin import code_of, debug_ptx
from flashladder.machine_code.flow import main_loop
from flashladder.machine_code.ptx import normalise, opcode_counts
from flashladder.machine_code.sass import LEGEND, Control, Sass, count, decoded, parse, run_nvdisasm
from flashladder.names import DEFAULT_ARCH

SUFFIXES = (".whl", ".so", ".pyd", ".o", ".a", ".fatbin", ".cubin", ".ptx")
COLUMNS = [
    *("total", "IADD3", "LOP3", "SHF", "IMAD.MOV.U32", "MOV", "CS2R", "FMUL", "FFMA", "FADD"),
    *("MUFU", "HMMA", "LDSM", "LDGSTS", "FMNMX", "IMAD", "SHFL", "BAR", "LDL", "STL"),
]
"""Opcode classes of the published tables, in their order."""


def kernel_counts(sass: Sass) -> str:
    """Opcode counts of a kernel and its main loop: the published classes first, then the others by count."""
    whole, loop = sass.counts(), count(main_loop(sass))
    others = sorted(whole.keys() - set(COLUMNS), key=lambda name: (-whole[name], name))
    rows = [("opcode", "whole kernel", "main loop")]
    rows += [(name, str(whole.get(name, 0)), str(loop.get(name, 0))) for name in [*COLUMNS, *others]]
    return "\n".join(table(rows, None, right={1, 2}))


def listing(sass: Sass, controls: Sequence[Control] = ()) -> str:
    """The machine code of a kernel under its source lines; ``|`` marks the main loop.

    `controls` has the control code of each instruction, which stands beside its address; empty leaves them out.
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
def _source_lines(file: str) -> Sequence[str]:
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # the cubin outlived its source
        return ()


_SASS_LABEL = re.compile(r"\.L_\w+")
_PTX_LABEL = re.compile(r"\$L_+\w+")
_TOKEN = re.compile(
    r'[{}]|//[^\n]*|/\*.*?\*/|"[^"\n]*"|^[ \t]*(?:\.(?:visible|weak|extern)\s+)?\.entry\s+(?P<entry>[\w$]+)',
    re.DOTALL | re.MULTILINE,
)


def clean_sass(sass: Sass, symbol: str = "", title: str = "", controls: Sequence[Control] = ()) -> str:
    """The instructions for a diff: without addresses, source lines and final padding; labels are ``L1``, ``L2``.

    `title` replaces the kernel's `symbol`. `controls` is as in `listing`.
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
    """The normal form for a diff: labels are ``$L1``, ``$L2`` in order of mention; `title` replaces `symbol`."""
    text = normalise(text)
    numbers = {label: f"$L{n}" for n, label in enumerate(dict.fromkeys(_PTX_LABEL.findall(text)), 1)}
    return _named(_PTX_LABEL.sub(lambda found: numbers[found[0]], text), symbol, title)


def _named(text: str, symbol: str, title: str) -> str:
    """`text` with `title` in place of `symbol`, also where a word begins with it (``SYMBOL_param_0``)."""
    if not symbol:
        return text
    local = f"_ZZ{symbol[2:]}E" if symbol.startswith("_Z") else f"_ZZ{len(symbol)}{symbol}E"  # its static variables
    names = {local: f"{title}::", symbol: title}
    pattern = rf"(?<![\w$])(?:{re.escape(local)}|{re.escape(symbol)})"
    return re.sub(pattern, lambda found: names[found[0]], text)


def only_entry(text: str, symbol: str) -> str | None:
    """A PTX module without its other entries than `symbol`; None if a brace is not closed: the file was cut off."""
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
    """The options of ``invoke sass`` and ``invoke ptx``; tasks.py explains each."""

    config: str | None = None
    causal: bool = False
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
        """Raises `FlashladderError` for any option beside `taken`, the only ones that go with `what`."""
        for name, value in vars(self).items():
            if value and name not in taken:
                raise FlashladderError(f"--{name} does not go with {what}")


def is_file(text: str) -> bool:
    """Whether a word names a file rather than an iteration or an ablation."""
    return not text.strip().isdigit() and ("/" in text or text.endswith(SUFFIXES) or Path(text).is_file())


def file_named(word: str, wanted: Wanted) -> Path | None:
    """The file that a word names; None for an iteration. Raises `FlashladderError` for options of the other."""
    if is_file(word):
        if wanted.config or wanted.causal:
            what, hint = f"--{'config' if wanted.config else 'causal'} is for iterations", "--kernel chooses in a file"
            raise FlashladderError(what, found=relative(Path(word)), hint=hint)
        return Path(word)
    if wanted.kernel or wanted.list:
        option = "--kernel" if wanted.kernel else "--list"
        raise FlashladderError(f"{option} is for files", expected="a library, cubin or PTX file", found=word)
    return None


def output_of(wanted: Wanted, ending: str) -> Path | None:
    """The file of ``--out``, or None; raises `FlashladderError` for a bad name or an option that it would ignore."""
    if not wanted.out:
        return None
    wanted.require_only("--out", "out", "config", "causal", "kernel", "arch")
    return output_file(wanted.out, ending)


def show_sass(path: Path, wanted: Wanted, title: str = "") -> None:
    """Prints the machine code of one kernel of a file under `title`, or lists the kernels."""
    out = output_of(wanted, ".cubin")
    with images(path) as found:
        if (kernel := _chosen_or_listed(found, "SASS", wanted)) is None:
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
        facts = {"counts": sass.counts(), "labels": dict(sass.labels), "instructions": rows}
        print(json.dumps({**_data(kernel), **facts}, indent=2))
    elif wanted.clean:
        print(clean_sass(sass, kernel.symbol, kernel.title, controls), end="")
    elif wanted.counts:
        print(f"{title or f'{kernel.title}, {kernel.arch}'}\n\n{kernel_counts(sass)}")
    else:
        registers, shared, _, size = ("?" if fact is None else fact for fact in _facts(kernel).values())
        uses = f"{registers} registers, {shared} B static shared memory, {size} B code"
        legend = f"// {LEGEND}\n" if controls else ""
        print(f"{title or f'// {kernel.title}, {kernel.arch}, {uses}'}\n{legend}{listing(sass, controls)}")
        print(kernel_counts(sass))


def sass_of(path: Path, name: str, arch: str) -> tuple[str, Sass]:
    """The title and the machine code of the only kernel of a file whose name has `name` as a part.

    Without `arch`, a kernel for `DEFAULT_ARCH` is preferred. Raises `FlashladderError` if there is none or several.
    """
    with images(path) as found:
        kernel, sass = _disassembled(_only(_matching(found, "SASS", Wanted(kernel=name, arch=arch)), arch))
        return f"{relative(path)}: {kernel.title}, {kernel.arch}", sass


def _disassembled(kernel: Kernel) -> tuple[Kernel, Sass]:
    (kernel,) = with_facts([kernel]) or [kernel]
    assert kernel.facts is not None  # `with_facts` has read the cubin
    with tempfile.TemporaryDirectory(prefix="flashladder-") as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(kernel.image.read())
        return kernel, parse(run_nvdisasm(cubin, symbol=kernel.facts.index), kernel.symbol)


def show_ptx_of_file(path: Path, wanted: Wanted) -> None:
    """Prints the PTX of one kernel of a file, else what ptxas kept in a cubin (``-lineinfo``), or lists the kernels."""
    out = output_of(wanted, ".ptx")
    with images(path) as found:
        kind: Kind = "PTX" if any(image.kind == "PTX" for image in found) else "SASS"
        if (kernel := _chosen_or_listed(found, kind, wanted)) is None:
            return
        data = kernel.image.read()
        module = data.decode("utf-8", "replace").rstrip("\0") if kind == "PTX" else debug_ptx(data)
        if not module:
            hint = "ptxas keeps it in the cubin with -lineinfo"
            raise FlashladderError("no PTX in the file, nor in its cubins", hint=hint)
        if (text := only_entry(module, kernel.symbol)) is None:
            raise FlashladderError("the PTX is damaged", expected="a } for each {", found="fewer")
    if out:
        print(write_atomic(out, text))
    elif wanted.json:
        print(json.dumps({**_data(kernel), "counts": opcode_counts(text), "text": text}, indent=2))
    elif wanted.counts:
        for opcode, n in sorted(opcode_counts(text).items(), key=lambda item: (-item[1], item[0])):
            print(f"{n:6d}  {opcode}")
    elif wanted.clean:
        print(clean_ptx(text, kernel.symbol, kernel.title), end="")
    else:
        print((normalise(text) if wanted.normalised else text).removesuffix("\n"))


def _matching(found: Sequence[Image], kind: Kind, wanted: Wanted) -> list[Kernel]:
    """The kernels that fit ``--kernel`` and ``--arch``; at least one."""
    kernels = kernels_of(found, kind, wanted.arch)
    if wanted.arch and not kernels and (others := kernels_of(found, kind)):
        arches = ", ".join(dict.fromkeys(one.arch for one in others))
        raise FlashladderError("no code for this architecture", expected=arches, found=wanted.arch)
    if not kernels and not (wanted.list or wanted.kernel):
        other: Kind = "PTX" if kind == "SASS" else "SASS"
        hint = f"`invoke {other.lower()} FILE` reads its {other}" if kernels_of(found, other) else "no kernel is in it"
        raise FlashladderError(f"no {kind} of a kernel in the file", hint=hint)
    return chosen(kernels, wanted.kernel)


def _only(kernels: Sequence[Kernel], arch: str) -> Kernel:
    """The only one of these kernels; without `arch`, one for `DEFAULT_ARCH` is preferred."""
    if not arch:
        kernels = [one for one in kernels if one.arch == DEFAULT_ARCH] or kernels
    distinct = {(one.symbol, one.config, one.arch) for one in kernels}
    if len(distinct) > 1:
        some = "; ".join(dict.fromkeys(f"{one.title} {one.arch}" for one in kernels[:4]))
        hint = "`invoke sass FILE --list` shows them; narrow with --kernel and --arch"
        raise FlashladderError(f"{len(distinct)} kernels of the file are meant", expected="one", found=some, hint=hint)
    if len(kernels) > 1:
        print(f"{len(kernels)} equal names in the file; the first is shown", file=sys.stderr)
    return kernels[0]


def _chosen_or_listed(found: Sequence[Image], kind: Kind, wanted: Wanted) -> Kernel | None:
    """The one kernel that fits `wanted`; None if all that fit have been listed instead."""
    if wanted.json and (wanted.clean or wanted.normalised):
        raise FlashladderError(f"--{'clean' if wanted.clean else 'normalised'} does not go with --json")
    kernels = _matching(found, kind, wanted)
    if not wanted.list and (len(kernels) == 1 or wanted.kernel):
        return _only(kernels, wanted.arch)
    wanted.require_only("a list of kernels; --kernel chooses one", "kernel", "arch", "list", "json")
    other = kernels_of(found, "PTX" if kind == "SASS" else "SASS", wanted.arch)
    print(_list([*kernels, *(one for one in other if one.matches(wanted.kernel))], as_json=wanted.json))
    return None


def _list(kernels: Sequence[Kernel], *, as_json: bool) -> str:
    """The kernels as a table or as JSON, with the facts of their cubins unless these are too large."""
    whole = sum({id(one.image): one.image.size for one in kernels}.values()) <= MOST_FACTS
    rows = with_facts(kernels) if whole else list(kernels)
    if as_json:
        return json.dumps([_data(one) for one in rows], indent=2)
    if not whole:  # one row for all architectures of a kernel, as the list is long
        arches = grouped(rows, lambda one: (one.symbol, one.config, one.image.place, one.kind))
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
    names = ("registers", "shared_bytes", "frame_bytes", "code_bytes")
    return {name: getattr(kernel.facts, name, None) for name in names}


def _data(kernel: Kernel) -> dict[str, object]:
    named = {"symbol": kernel.symbol, "name": kernel.name, "config": kernel.config or None, "arch": kernel.arch}
    return {**named, "kind": kernel.kind, **_facts(kernel), "file": kernel.image.place}
