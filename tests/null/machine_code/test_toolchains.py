"""The readers of tools' output on what the tools of CUDA 13.0 and 13.3 print, and on damaged copies of it.

A second source checks each figure. A damaged copy is an error, or every number of the answer is in the text and nothing
of the kernel is missing.
"""

from __future__ import annotations

from pathlib import Path
import re
import zipfile

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from flashladder.errors import FlashladderError
from flashladder.machine_code import cubin
from flashladder.machine_code.flow import LOOP, main_loop, regions_of
from flashladder.machine_code.ptx import normalise, opcodes
from flashladder.machine_code.ptxas import PtxasUsage, parse_log
from flashladder.machine_code.sass import BYTES, Sass, control_of, decoded, parse
from flashladder.names import KERNEL
from ptxemu.syntax.parser import parse as parse_ptx
from ptxemu.syntax.tree import Instruction

DATA = Path(__file__).parents[2] / "data" / "toolchains"
VERSIONS = ("13.0", "13.3")
STEMS = ("tiny", "variety")
ARCHES = ("sm_80", "sm_90")
KEPT = {version: zipfile.ZipFile(DATA / f"{version}.zip") for version in VERSIONS}
LOGS = [(version, name) for version, kept in KEPT.items() for name in kept.namelist() if name.endswith(".log")]
HEX = r"\s+/\* 0x([0-9a-f]{16}) \*/"
ROW = re.compile(rf"^\s*/\*([0-9a-f]{{4}})\*/\s+(.*?)\s*;{HEX}\n{HEX}", re.MULTILINE)
USAGE = re.compile(r"Function (\w+):\n\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)")
EACH = pytest.mark.parametrize(
    ("version", "stem", "arch"), [(v, s, a) for v in VERSIONS for s in STEMS for a in ARCHES]
)


def read(version: str, name: str) -> str:
    return KEPT[version].read(name).decode()


def kernel_of(version: str, stem: str, arch: str) -> tuple[bytes, cubin.CodeKernel]:
    data = KEPT[version].read(f"{stem}.{arch}.cubin")
    (found,) = cubin.kernels_of(data)
    return data, found


@pytest.mark.parametrize(("version", "name"), LOGS)
def test_every_log_is_read_whole(version: str, name: str) -> None:
    text = read(version, name)
    usage = parse_log(text, where=Path(name))
    require_said(usage, text)
    assert usage.arch == name.split(".")[1]


@EACH
def test_log_cubin_and_cuobjdump_say_the_same(version: str, stem: str, arch: str) -> None:
    usage = parse_log(read(version, f"{stem}.{arch}.release.log"))
    _, kernel = kernel_of(version, stem, arch)
    found = {name: tuple(map(int, rest)) for name, *rest in USAGE.findall(read(version, f"{stem}.{arch}.usage"))}
    registers, stack, shared = found[KERNEL]
    reserved = 1024 if arch == "sm_90" else 0  # of which cuobjdump makes a part of the kernel's
    assert kernel.registers == usage.registers == registers
    assert kernel.frame_bytes == stack
    assert kernel.shared_bytes == usage.smem_static == shared - reserved


@EACH
def test_a_listing_is_the_cubins_code(version: str, stem: str, arch: str) -> None:
    data, kernel = kernel_of(version, stem, arch)
    code, sass = cubin.code_of(data, KERNEL), parse(read(version, f"{stem}.{arch}.sass"))
    rows = ROW.findall(read(version, f"{stem}.{arch}.hex").partition(f".section\t.text.{KERNEL},")[2])
    assert len(sass.instructions) == len(code) // BYTES == len(rows) == kernel.code_bytes // BYTES
    for one, (address, text, low, high) in zip(sass.instructions, rows, strict=True):
        encoding = code[one.address : one.address + BYTES]
        assert one.address == int(address, 16)
        assert str(one).split() == text.split()
        assert encoding == int(low, 16).to_bytes(8, "little") + int(high, 16).to_bytes(8, "little")
    controls = decoded(code, sass.instructions, arch)
    assert [control_of(code[at : at + BYTES]) for at in range(0, len(code), BYTES)] == controls
    assert sass.counts()["total"] == len(rows)
    regions = regions_of(sass)
    flow = regions.flow
    assert flow.is_reducible
    assert regions.code(LOOP) == main_loop(sass)
    assert sum(len(regions.code(name)) for name in regions.present) == len(rows)
    assert {flow.code(i)[-1].opcode_class for i in flow.reachable if not flow.successors[i]} == {"EXIT"}


@EACH
def test_a_cubin_keeps_the_ptx_that_it_was_made_from(version: str, stem: str, arch: str) -> None:
    data, _ = kernel_of(version, stem, arch)
    text = read(version, f"{stem}.ptx")
    assert normalise(cubin.debug_ptx(data)) == normalise(text)
    bodies = (one for function in parse_ptx(text, f"{stem}.ptx").functions for one in function.body)
    assert opcodes(text) == [one.opcode for one in bodies if isinstance(one, Instruction)]
    assert cubin.names_in_front(data) == [kernel.symbol for kernel in cubin.kernels_of(data)] == [KERNEL]


def require_said(usage: PtxasUsage, text: str) -> None:
    """Every number of the answer is in the log, under its name, and no number of the kernel is missing."""
    after = text[text.index(f"Compiling entry function '{KERNEL}' for '{usage.arch}'") :]
    own = after[after.index(f"Function properties for {KERNEL}") :]
    used = next(line for line in own.splitlines() if "Used " in line)
    assert f"Used {usage.registers} registers" in used
    spills = f"{usage.spill_stores} bytes spill stores, {usage.spill_loads} bytes spill loads"
    assert f" {usage.stack} bytes stack frame, {spills}" in own
    for number, name in ((usage.barriers, "used {} barriers"), (usage.smem_static, "{} bytes smem")):
        assert (name.format(number) in used) == (name.format("").strip().removeprefix("used ") in used)
    assert (sum(map(int, re.findall(r"(\d+) bytes cmem", used))) or None) == (usage.cmem or None)
    assert float(re.findall(r"Compile time = (\S+) ms", own)[0]) == usage.compile_ms


def damaged(draw: st.DrawFn, text: str) -> str:
    """A copy with a line lost, doubled or moved, its end cut, or a few characters changed."""
    lines = text.splitlines(keepends=True)
    place = draw(st.integers(0, len(lines) - 1))
    kind = draw(st.sampled_from(("lose", "double", "move", "cut", "change", "change", "change")))
    if kind == "lose":
        return "".join(lines[:place] + lines[place + 1 :])
    if kind == "double":
        return "".join(lines[: place + 1] + lines[place:])
    if kind == "move":
        line, other = lines.pop(place), draw(st.integers(0, len(lines) - 1))
        return "".join([*lines[:other], line, *lines[other:]])
    at = draw(st.integers(0, len(text) - 1))
    if kind == "cut":
        return text[:at]
    new = draw(st.text("0123456789 abcxRL_.,:;/*@()'\n-", max_size=3))
    return text[:at] + new + text[at + draw(st.integers(0, 3)) :]


@st.composite
def a_damaged_log(draw: st.DrawFn) -> str:
    return damaged(draw, read(*draw(st.sampled_from(LOGS))))


@settings(max_examples=400, deadline=None)
@given(a_damaged_log())
def test_a_damaged_log_is_an_error_or_what_it_says(text: str) -> None:
    try:
        usage = parse_log(text)
    except FlashladderError:
        return
    require_said(usage, text)


@st.composite
def a_damaged_listing(draw: st.DrawFn) -> tuple[str, str]:
    version, arch = draw(st.sampled_from(VERSIONS)), draw(st.sampled_from(ARCHES))
    text = read(version, f"tiny.{arch}.sass")
    begin = text.index(f".section\t.text.{KERNEL},")
    return text, text[:begin] + damaged(draw, text[begin:])


def facts(sass: Sass) -> list[tuple[str, ...]]:
    return [(one.predicate, one.opcode, one.operands) for one in sass.instructions]


@settings(max_examples=400, deadline=None)
@given(a_damaged_listing())
def test_a_damaged_listing_is_an_error_or_has_every_instruction(texts: tuple[str, str]) -> None:
    """A changed text changes only its own instruction: none is lost, doubled or misplaced."""
    whole, changed = texts
    good = parse(whole)
    try:
        found = parse(changed)
    except FlashladderError:
        return
    assert [one.address for one in found.instructions] == [one.address for one in good.instructions]
    assert sum(a != b for a, b in zip(facts(found), facts(good), strict=True)) <= 2  # a change may span two lines
    assert sum(found.counts().values()) == 2 * len(good.instructions)
