"""ptxas' own words (13.0.88) become numbers, CSV and a table, and nothing is guessed."""

from __future__ import annotations

import pytest

from flashladder.errors import FlashladderError
from flashladder.machine_code.ptxas import (
    COLUMNS,
    PtxasRow,
    PtxasUsage,
    parse_log,
    to_csv,
    warnings_of,
)

LOG_SM_80 = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'flash_fwd_kernel' for 'sm_80'
ptxas info    : Function properties for flash_fwd_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 256 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 1.715 ms
"""
LOG_SM_90 = LOG_SM_80.replace("sm_80", "sm_90").replace(", 256 bytes smem, 360 bytes cmem[0]", "")
# From a debug build: a function that was not inlined comes first and has a stack and a time of its own.
LOG_DEBUG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Function properties for _Z5twicef
    16 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Compile time = 1.117 ms
ptxas info    : Compiling entry function 'flash_fwd_kernel' for 'sm_80'
ptxas info    : Function properties for flash_fwd_kernel
    88 bytes stack frame, 88 bytes spill stores, 92 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 88 bytes cumulative stack size, 388 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compile time = 812.944 ms
"""
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


@pytest.mark.parametrize("lost", ["Used 10", "0 bytes stack", "Compile time", "Compiling entry"])
def test_a_log_that_lacks_a_line_is_an_error(lost: str) -> None:
    log = "".join(line for line in LOG_SM_80.splitlines(keepends=True) if lost not in line)
    with pytest.raises(FlashladderError, match=r"b/ptxas\.log: the ptxas log does not describe the kernel"):
        parse_log(log, where="b/ptxas.log")


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("0 bytes gmem", "0 bytes gmem, 3 apples", "ptxas info : 0 bytes gmem, 3 apples"),
        (", 256 bytes smem", ", 256 bytes dsmem", "256 bytes dsmem"),
        (", 256 bytes smem", ", 256 bytes smem, 8 bytes smem", "8 bytes smem"),
        ("used 1 barriers", "used -1 barriers", "used -1 barriers"),
        ("Used 10 registers", "Used 10 uniform registers", "ptxas info : Used 10 uniform registers, used 1 barriers"),
        ("Used 10 reg", "Used 9999999999999 reg", "ptxas info : Used 9999999999999 registers, used 1 barriers"),
        ("0 bytes stack frame, ", "", "0 bytes spill stores, 0 bytes spill loads"),
        ("1.715 ms", "1.715 s", "ptxas info : Compile time = 1.715 s"),
        ("ptxas info    : Used", "ptxas note    : Used", "ptxas note : Used 10 registers"),
    ],
)
def test_a_line_that_is_not_known_is_an_error(old: str, new: str, found: str) -> None:
    assert old in LOG_SM_80
    with pytest.raises(FlashladderError) as caught:
        parse_log(LOG_SM_80.replace(old, new, 1), where="b/ptxas.log")
    assert str(caught.value).startswith(f"b/ptxas.log: unknown line of ptxas: found {found}")


def test_another_kernel_is_an_error() -> None:
    with pytest.raises(FlashladderError, match="does not describe the kernel other"):
        parse_log(LOG_SM_80, kernel="other")
    with pytest.raises(FlashladderError, match="an empty log"):
        parse_log("")


def _rows() -> list[PtxasRow]:
    config = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
    return [PtxasRow.of("07", config, 49152, USAGE), PtxasRow.of("07", config, 49152, parse_log(LOG_SM_90))]


def test_csv_has_a_row_per_kernel() -> None:
    text = to_csv(_rows())
    header = (
        "kernel,config,arch,registers,stack,spill_stores,spill_loads,barriers,smem_static,smem_dynamic,cmem,compile_ms"
    )
    assert text.splitlines()[0] == header == ",".join(COLUMNS)
    assert ",sm_80,255,88,88,92,1,0,49152,396,812.944" in text
    assert to_csv(_rows(), COLUMNS[:2]).splitlines()[0] == "kernel,config"
