"""The identity of PTX, the resources that ptxas reports, and occupancy."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder.gpus import load_gpus
from flashladder.machine_code.ptx import normalise, opcodes, ptx_sha256, read_ptx
from flashladder.machine_code.ptxas import PtxasUsage, parse_log, warnings_of
from tests.data_files import table_of, text_of
from tests.typed import error_line

TINY = (Path(__file__).parents[2] / "data" / "tiny.ptx").read_text(encoding="utf-8")
DEBUG_SECTION = "\n\t.section\t.debug_str\n\t{\n$L__info_string0:\n.b8 95,90,49,102,102,0\n\n\t}\n"


@pytest.mark.parametrize(
    "text",
    [
        "// another comment\n" + TINY,
        TINY.replace("ret;", "ret; /* two\nlines */"),
        TINY.replace("\t.loc\t1 12 3\n", ""),
        TINY.replace("\t.loc\t1 12 3\n", "\t.loc\t1 99 3, function_name $L__info_string0, inlined_at 1 10 3\n"),
        TINY.replace("tests/data/tiny.cu", "elsewhere/tiny.cu"),
        TINY + DEBUG_SECTION,
        TINY.replace("\tbar.sync", "$L__tmp7:\n    bar.sync"),
        TINY.replace(".target sm_80", ".target sm_80, debug"),
        TINY.replace("\n\n", "\n"),
        TINY.replace("\n", "\r\n"),
    ],
    ids=["comment", "long", "no-loc", "inlined", "path", "section", "label", "target", "blank-lines", "crlf"],
)
def test_what_is_not_the_program_leaves_the_digest_alone(text: str) -> None:
    assert text != TINY
    assert ptx_sha256(text) == ptx_sha256(TINY)


@pytest.mark.parametrize(("old", "new"), table_of("null/machine_code/ptx", "changes"))
def test_a_change_of_the_program_changes_the_digest(old: str, new: str) -> None:
    assert old in TINY
    assert ptx_sha256(TINY.replace(old, new)) != ptx_sha256(TINY)


def test_names_that_nvcc_makes_from_the_path_are_neutral() -> None:
    name = "mov.u64 %rd8, _ZN34_INTERNAL_7bae6248_4_b_cu_7743d80c36_GLOBAL__N__7bae6248_4_b_cu_7743d80c2t2E;"
    other = name.replace("7bae6248", "00c0ffee").replace("7743d80c", "12345678")
    assert normalise(name) == normalise(other) != normalise(name.replace("2t2E", "2t3E"))


def test_operands_calls_and_labels_are_not_opcodes() -> None:
    text = text_of("null/machine_code/ptx", "other_words")
    assert opcodes(text) == ["call.uni", "bra.uni", "mov.b32", "st.shared.v4.b32"]


def test_refuses_what_is_not_ptx(tmp_path: Path) -> None:
    assert "no such PTX file" in error_line(read_ptx, tmp_path / "kernel.ptx")
    (tmp_path / "kernel.cu").write_text("int main() {}\n", encoding="utf-8")
    assert "expected .version" in error_line(read_ptx, tmp_path / "kernel.cu")
    (tmp_path / "kernel.cubin").write_bytes(b"\x7fELF\xff")
    assert "not UTF-8 (byte 0xff at offset 4)" in error_line(read_ptx, tmp_path / "kernel.cubin")


LOG_SM_80 = text_of("null/machine_code/ptx", "log_sm_80")
LOG_SM_90 = LOG_SM_80.replace("sm_80", "sm_90").replace(", 256 bytes smem, 360 bytes cmem[0]", "")
# From a debug build: a function that was not inlined comes first and has a stack and a time of its own.
LOG_DEBUG = text_of("null/machine_code/ptx", "log_debug")
WARNING = "ptxas warning : Registers are spilled to local memory in function 'flash_fwd_kernel', 88 bytes spill stores"
USAGE = PtxasUsage("sm_80", 255, 88, 88, 92, 1, 0, 396, 812.944)


def test_other_functions_do_not_count_and_banks_add_up() -> None:
    assert parse_log(LOG_DEBUG) == USAGE


def test_warnings_are_kept_once_wherever_they_stand() -> None:
    log = LOG_DEBUG.replace("    88 bytes stack", f"{WARNING}\n    88 bytes stack") + WARNING + "\n"
    usage = parse_log(log)
    assert usage.warnings == (WARNING,)
    assert usage.spill_stores == 88
    assert warnings_of("x.cu(3): warning #177-D: unused\nfine\n") == ("x.cu(3): warning #177-D: unused",)


@pytest.mark.parametrize("lost", ["Used 10", "0 bytes stack", "Compile time", "Compiling entry", ""])
def test_a_log_that_lacks_a_line_is_an_error(lost: str) -> None:
    log = "".join(line for line in LOG_SM_80.splitlines(keepends=True) if lost not in line)
    says = "the ptxas log does not describe the kernel" + ("" if lost else ".*an empty log")
    with pytest.raises(FlashladderError, match=rf"b/ptxas\.log: {says}"):
        parse_log(log, where="b/ptxas.log")


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (", 256 bytes smem", ", 256 bytes dsmem", "256 bytes dsmem"),
        (", 256 bytes smem", ", 256 bytes smem, 8 bytes smem", "8 bytes smem"),
        ("Used 10 reg", "Used 9999999999999 reg", "ptxas info : Used 9999999999999 registers, used 1 barriers"),
        ("0 bytes stack frame, ", "", "0 bytes spill stores, 0 bytes spill loads"),
    ],
)
def test_a_line_that_is_not_known_is_an_error(old: str, new: str, found: str) -> None:
    assert old in LOG_SM_80
    line = error_line(parse_log, LOG_SM_80.replace(old, new, 1), where="b/ptxas.log")
    assert line.startswith(f"b/ptxas.log: unknown line of ptxas: found {found}")


@pytest.mark.parametrize(
    ("key", "registers", "threads", "shared", "ctas", "warps", "limited_by"),
    [
        ("a100", 255, 128, 64 * 1024, 2, 8, ("registers", "shared memory")),
        ("a100", 0, 64, 0, 32, 64, ("warps", "CTAs")),
        # what cannot be launched
        ("a100", 256, 128, 0, 0, 0, ("registers",)),
        ("a100", 32, 1056, 0, 0, 0, ("warps",)),
    ],
)
def test_ctas_of_an_sm(
    key: str, registers: int, threads: int, shared: int, ctas: int, warps: int, limited_by: tuple[str, ...]
) -> None:
    found = load_gpus()[key].occupancy(registers=registers, threads=threads, shared_bytes=shared)
    assert (found.ctas, found.warps, found.limited_by) == (ctas, warps, limited_by)
    assert found.fraction == warps / load_gpus()[key].whole("warps_per_sm")
