"""``invoke sass FILE`` and ``invoke ptx FILE``: kernels of a wheel, library, object, fatbin, cubin or PTX file.

Why: a step is judged beside what others ship, and that comes as libraries. Where a file holds several kernels and none
is named they are listed; ``--kernel`` takes a part of a name, mangled or not, or a configuration.

Run: ``invoke sass libtorch_cuda.so --kernel "flash_fwd_kernel (FP16, 128, 128, 64, 4)"``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
import json
from pathlib import Path
import sys
import tempfile

from flashladder.binaries.cubins import code_of, debug_ptx
from flashladder.binaries.kernels import MOST_FACTS, Kernel, Kind, bytes_of, chosen, kernels_of, with_facts
from flashladder.binaries.sources import Image, images
from flashladder.columns import table
from flashladder.errors import FlashladderError, printable
from flashladder.files import output_file, relative, write_atomic
from flashladder.machine_code.ptx import normalise, opcode_counts
from flashladder.machine_code.sass import LEGEND, Control, Sass, count, decoded, parse, run_nvdisasm
from flashladder.names import DEFAULT_ARCH
from flashladder.view.clean import clean_ptx, clean_sass, is_whole, only_entry
from flashladder.view.listing import WHOLE_AND_LOOP, count_table, listing

CUBIN, PTX = ".cubin", ".ptx"  # what --out of `sass` and `ptx` writes
SUFFIXES = (".whl", ".so", ".pyd", ".o", ".a", ".fatbin", ".cubin", ".ptx")


@dataclass(frozen=True)
class Wanted:
    """What of a file is asked for, as on the command line; see `flashladder.arguments.OF_FILES`."""

    kernel: str = ""
    arch: str = ""
    list: bool = False
    counts: bool = False
    clean: bool = False
    control: bool = False
    normalised: bool = False
    json: bool = False
    out: str = ""
    nvdisasm: Path | None = None


def is_file(text: str) -> bool:
    """Whether a word names a file rather than an iteration or an ablation."""
    return not text.strip().isdigit() and ("/" in text or text.endswith(SUFFIXES) or Path(text).is_file())


def refuse_of_files(description: str, wanted: Mapping[str, object]) -> None:
    """Refuses, for an iteration, options that choose among the kernels of a file.

    Raises:
        FlashladderError: one was given.
    """
    for name in ("kernel", "list"):
        if wanted.get(name):
            raise FlashladderError(f"--{name} is for files", expected="a library, cubin or PTX file", found=description)


def output_of(wanted: Wanted, ending: str) -> Path | None:
    """The file of ``--out``; None without it.

    Raises:
        FlashladderError: a bad name, or a form of printing beside it, which would be ignored.
    """
    if not wanted.out:
        return None
    for name in ("list", "counts", "clean", "control", "normalised", "json"):
        if getattr(wanted, name):
            raise FlashladderError(f"--{name} does not go with --out", hint="--out writes the whole file, unchanged")
    return output_file(wanted.out, ending)


def refuse_config(config: str | None, path: Path) -> None:
    """Refuses ``--config`` for a file, whose kernels --kernel chooses.

    Raises:
        FlashladderError: it was given.
    """
    if config:
        raise FlashladderError("--config is for iterations", found=relative(path), hint="--kernel chooses in a file")


def show_sass(path: Path, wanted: Wanted) -> None:
    """Prints the machine code of one kernel of a file, or the kernels that there are.

    Raises:
        FlashladderError: no such file or kernel, or several where one is needed.
    """
    out = output_of(wanted, CUBIN)
    with images(path) as found:
        kernels = _listed_or_one(found, "SASS", wanted, relative(path))
        if kernels is None:
            return
        (kernel,) = with_facts([kernels]) or [kernels]
        data = kernel.image.read()
        if out:
            print(relative(write_atomic(out, data)))
            return
        sass = _disassembled(data, kernel, wanted.nvdisasm)
        controls = decoded(code_of(data, kernel.symbol), sass.instructions, kernel.arch) if wanted.control else []
        print(_sass_text(sass, kernel, controls, wanted), end="")


def sass_of(path: Path, kernel: str, arch: str) -> tuple[str, Sass]:
    """The title and the machine code of the one kernel of a file that is meant.

    Args:
        path: the file.
        kernel: a part of the kernel's name; empty for the only one.
        arch: the architecture; empty for the usual one where there are several.

    Raises:
        FlashladderError: no such file or kernel, none for `arch`, or several.
    """
    with images(path) as found:
        where = relative(path)
        every = kernels_of(found, "SASS")
        if not every:
            raise FlashladderError("no SASS of a kernel in the file", where=where, hint="nvcc, ptxas turn PTX into it")
        meant = chosen(every, kernel)
        titles = dict.fromkeys(f"{one.title} {one.arch}" for one in meant)
        if arch or len(titles) > 1:
            meant = [one for one in meant if one.arch == (arch or DEFAULT_ARCH)]
        if arch and not meant:
            arches = ", ".join(dict.fromkeys(one.arch for one in chosen(every, kernel)))
            raise FlashladderError("no code for this architecture", where=where, expected=arches, found=arch)
        if len({one.symbol for one in meant}) != 1:
            some = "; ".join(list(titles)[:4])
            raise FlashladderError(
                f"{len(titles)} kernels of the file are meant",
                where=where,
                expected="one",
                found=some,
                hint="invoke sass --list shows them; narrow with --kernel and --arch",
            )
        (one,) = with_facts(meant[:1]) or meant[:1]
        return f"{one.title}, {one.arch}", _disassembled(one.image.read(), one, None)


def _disassembled(data: bytes, kernel: Kernel, nvdisasm: Path | None) -> Sass:
    assert kernel.facts is not None  # it is a kernel of a cubin that was read
    with tempfile.TemporaryDirectory(prefix="flashladder-") as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(data)
        return parse(run_nvdisasm(cubin, nvdisasm, symbol=kernel.facts.index), kernel.symbol)


def _sass_text(sass: Sass, kernel: Kernel, controls: Sequence[Control], wanted: Wanted) -> str:
    if wanted.json:
        return f"{json.dumps(_sass_data(sass, kernel, controls), indent=2)}\n"
    if wanted.clean:
        return clean_sass(sass, {kernel.symbol: kernel.title}, controls)
    table_of = count_table(dict(zip(WHOLE_AND_LOOP, (sass.counts(), count(sass.main_loop())), strict=True)))
    if wanted.counts:
        return f"{kernel.title}, {kernel.arch}\n\n{table_of}\n"
    head = f"// {kernel.title}, {kernel.arch}, {_resources(kernel)}\n"
    legend = f"// {LEGEND}\n" if controls else ""
    return f"{head}{legend}{listing(sass, controls)}\n{table_of}\n"


def _sass_data(sass: Sass, kernel: Kernel, controls: Sequence[Control]) -> dict[str, object]:
    rows = []
    for index, one in enumerate(sass.instructions):
        row = {"address": one.address, "predicate": one.predicate, "opcode": one.opcode, "operands": one.operands}
        rows.append({**row, **({"control": str(controls[index])} if controls else {})})
    return {**_data(kernel), "counts": sass.counts(), "labels": dict(sass.labels), "instructions": rows}


def show_ptx(path: Path, wanted: Wanted) -> None:
    """Prints the PTX of one kernel of a file, or the kernels that there are.

    PTX that ptxas kept in a cubin (``-lineinfo``) stands for it where the file holds no other.

    Raises:
        FlashladderError: no such file or kernel, no PTX, or several kernels where one is needed.
    """
    out = output_of(wanted, PTX)
    with images(path) as found:
        kind: Kind = "PTX" if any(image.kind == "ptx" for image in found) else "SASS"
        kernel = _listed_or_one(found, kind, wanted, relative(path))
        if kernel is None:
            return
        data = kernel.image.read()
        text = data.decode("utf-8", "replace").rstrip("\0") if kind == "PTX" else debug_ptx(data)
        if not text:
            raise FlashladderError(
                "no PTX in the file, nor in its cubins",
                where=relative(path),
                hint="ptxas keeps it in the cubin with -lineinfo",
            )
        if not is_whole(text):
            raise FlashladderError(
                "the PTX is damaged", where=relative(path), expected="a } for each {", found="an end within a block"
            )
        text = only_entry(text, kernel.symbol)
        if out:
            print(relative(write_atomic(out, text)))
        else:
            print(_ptx_text(text, kernel, wanted), end="")


def _ptx_text(text: str, kernel: Kernel, wanted: Wanted) -> str:
    counts = opcode_counts(text) if wanted.counts or wanted.json else {}
    if wanted.json:
        return f"{json.dumps({**_data(kernel), 'counts': counts, 'text': text}, indent=2)}\n"
    if wanted.counts:
        rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return "".join(f"{n:6d}  {opcode}\n" for opcode, n in rows)
    if wanted.clean:
        return clean_ptx(text, {kernel.symbol: kernel.title})
    return normalise(text) if wanted.normalised else text if text.endswith("\n") else f"{text}\n"


def _listed_or_one(found: Sequence[Image], kind: Kind, wanted: Wanted, where: str) -> Kernel | None:
    """The one kernel that is meant; None after all that may be meant were listed."""
    kernels = kernels_of(found, kind, wanted.arch or _usual_arch(found, wanted, kind))
    if wanted.arch and not kernels:
        arches = ", ".join(dict.fromkeys(image.arch for image in found))
        raise FlashladderError("no code for this architecture", where=where, expected=arches, found=wanted.arch)
    if not kernels and not (wanted.list or wanted.kernel):
        raise FlashladderError(f"no {kind} of a kernel in the file", where=where, hint=_hint(found, kind))
    try:
        meant = chosen(kernels, wanted.kernel)
    except FlashladderError as error:
        error.where = where
        raise
    if wanted.list or (len(meant) > 1 and not wanted.kernel):
        other = kernels_of(found, "PTX" if kind == "SASS" else "SASS", wanted.arch)
        print(_listing([*meant, *(one for one in other if one.matches(wanted.kernel))], as_json=wanted.json), end="")
        return None
    distinct = {(one.symbol, one.config, one.arch) for one in meant}
    if len(distinct) > 1:
        some = "; ".join(dict.fromkeys(f"{one.title} {one.arch}" for one in meant[:4]))
        raise FlashladderError(
            f"{len(distinct)} kernels of the file are meant",
            where=where,
            expected="one",
            found=some,
            hint="--list shows them; narrow with --kernel and --arch",
        )
    if len(meant) > 1:
        print(f"{len(meant)} equal names in the file; the first is shown", file=sys.stderr)
    return meant[0]


def _usual_arch(found: Sequence[Image], wanted: Wanted, kind: Kind) -> str:
    """The architecture that is meant where only a kernel is named: the usual one, if the file has code for it."""
    has = any(image.arch == DEFAULT_ARCH for image in found)
    return DEFAULT_ARCH if has and kind == "SASS" and wanted.kernel and not wanted.list else ""


def _hint(found: Sequence[Image], kind: Kind) -> str:
    other: Kind = "PTX" if kind == "SASS" else "SASS"
    others = len(kernels_of(found, other))
    if not others:
        return "no kernel is in it; PTX marks one with .entry"
    return f"`invoke {other.lower()} FILE` reads its {other}, {others} kernel{'s' if others > 1 else ''}"


def _listing(kernels: Sequence[Kernel], *, as_json: bool) -> str:
    """The kernels as a table, or as JSON; with their facts unless that takes too long."""
    whole = bytes_of(kernels) <= MOST_FACTS
    rows = with_facts(kernels) if whole else list(kernels)
    if as_json:
        return f"{json.dumps([_data(one) for one in rows], indent=2)}\n"
    if not whole:
        rows = _joined(rows)
    cells: list[tuple[str, ...]] = [("kernel", "arch", "kind", "regs", "shared", "stack", "bytes", "in")]
    for one in rows:
        facts = one.facts
        numbers = facts and (facts.registers, facts.shared_bytes, facts.frame_bytes, facts.code_bytes)
        texts = ("-" if number is None else str(number) for number in numbers or (None,) * 4)
        cells.append((one.title, one.arch, one.kind, *texts, printable(one.image.place)))
    lines = [*table(cells, None, right=range(3, 7)), "", f"{len(rows)} kernels"]
    if not whole:
        lines.append("registers and sizes need whole cubins, more than 1 GiB: narrow with --kernel or --arch")
    return "".join(f"{line}\n" for line in lines)


def _joined(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Each kernel once, with all its architectures: of a large file the rows are too many otherwise."""
    arches: dict[tuple[str, str, str, Kind], dict[str, None]] = {}
    first: dict[tuple[str, str, str, Kind], Kernel] = {}
    for one in kernels:
        key = (one.symbol, one.config, one.image.place, one.kind)
        arches.setdefault(key, {})[one.arch] = None
        first.setdefault(key, one)
    return [replace(one, arch=",".join(arches[key])) for key, one in first.items()]


def _data(kernel: Kernel) -> dict[str, object]:
    """A kernel for scripts; what is not known is null."""
    facts = kernel.facts
    return {
        "symbol": kernel.symbol,
        "name": kernel.name,
        "config": kernel.config or None,
        "arch": kernel.arch,
        "kind": kernel.kind,
        "registers": facts and facts.registers,
        "shared_bytes": facts and facts.shared_bytes,
        "frame_bytes": facts and facts.frame_bytes,
        "code_bytes": facts and facts.code_bytes,
        "file": kernel.image.place,
    }


def _resources(kernel: Kernel) -> str:
    facts = kernel.facts
    if facts is None:
        return "PTX"
    registers = "? registers" if facts.registers is None else f"{facts.registers} registers"
    return f"{registers}, {facts.shared_bytes} B static shared memory, {facts.code_bytes} B code"
