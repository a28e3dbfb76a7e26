"""The sentences of errors and races: distance, buffer, copy in flight, chain of calls, warps that write one element."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.programs import HEADER, program, run

from ptxemu.errors import EmulationError
from ptxemu.observe.hazards import Hazards
from ptxemu.syntax.tree import SourceLine

SHARED = ".shared .align 16 .b8 tile[256];"


def message(body: str, *, threads: int = 32, declarations: str = SHARED) -> str:
    with pytest.raises(EmulationError) as caught:
        run(body, threads=threads, declarations=declarations)
    return str(caught.value)


def test_a_place_comes_with_the_calls_that_it_was_inlined_through() -> None:
    place = SourceLine("d.cuh", 4, SourceLine("c.cuh", 3, SourceLine("b.cuh", 2, SourceLine("a.cu", 1))))
    assert place.chain == "d.cuh:4 < c.cuh:3 < b.cuh:2"
    assert SourceLine("a.cu", 1).chain == str(SourceLine("a.cu", 1)) == "a.cu:1"


def test_an_error_in_an_inlined_function_names_the_caller() -> None:
    text = f"""{HEADER}
    .visible .entry k(.param .u64 out)
    {{
    .loc 1 7 5
    .loc 2 3 9, function_name $L__info_string0, inlined_at 1 7 5
    trap;
    }}
    .file 1 "caller.cu"
    .file 2 "callee.cuh"
    """
    from ptxemu import load

    with pytest.raises(EmulationError, match=r"in `trap;` from callee\.cuh:3 < caller\.cu:7"):
        load(text, path="k.ptx").kernel().launch((1,), (32,), (np.zeros(1),))


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("256", "4-byte access 4 bytes past the end of the block's 256 bytes of shared memory, address 0x100"),
        ("260", "4-byte access 8 bytes past the end of the block's 256 bytes of shared memory, address 0x104"),
        ("-4", "4-byte access 4 bytes before the start of the block's 256 bytes of shared memory, address 0xfffffffc"),
        ("6", "4-byte access of shared memory at an address that is not a multiple of 4, address 0x6"),
    ],
)
def test_shared_memory(address: str, says: str) -> None:
    assert says in message(f"mov.b32 %r10, {address}; st.shared.u32 [%r10], %r0;")


def test_an_access_of_local_memory_past_its_end() -> None:
    found = message("mov.b64 %rd5, own; st.local.u64 [%rd5+16], %rd5;", declarations=".local .align 8 .b8 own[16];")
    assert "8-byte access 8 bytes past the end of the thread's 16 bytes of local memory, address 0x10" in found


def test_a_misaligned_access_names_the_buffer_and_the_place_in_it() -> None:
    found = message("setp.lt.u32 %p1, %r0, 4; @%p1 st.global.u64 [%rd0+4], %rd0;")
    assert "8-byte access of global memory at an address that is not a multiple of 8, 4 bytes into `array 0: " in found
    assert "`array 0: uint32 (1, 32)`, address " in found


COPY = "mov.b32 %r10, tile; ld.param.u64 %rd5, [out]; @%p1 cp.async.cg.shared.global [%r10+16], [%rd5], 16;"


@pytest.mark.parametrize(("offset", "copied"), [(12, False), (16, True), (28, True), (32, False)])
def test_a_read_of_bytes_in_flight_names_the_copy(offset: int, copied: bool) -> None:
    found = message(f"setp.eq.u32 %p1, %r0, 3;\n{COPY}\nld.shared.u32 %r11, [%r10+{offset}];")
    line = int(re.findall(r"k\.ptx:(\d+)", found)[0])
    assert (f"which the cp.async of line {line - 1} is still to write" in found) == copied
    assert ("wait for the copy with cp.async.wait_group" in found) == copied
    assert "4-byte read of shared memory not written before" in found


def test_a_divergent_barrier_names_a_thread_of_the_warp_that_is_torn() -> None:
    found = message("setp.eq.u32 %p1, %r0, 40; @%p1 bra past; bar.sync 0; past:", threads=96)
    assert "lane 8 of warp 1 took another path, thread 32 (warp 1, lane 0)" in found


def test_a_deadlock_says_where_the_others_wait() -> None:
    found = message("shr.u32 %r10, %r0, 5; bar.sync %r10, 64;", threads=64)
    assert re.search(r"expected 64 threads, found 32 arrived, 0 exited, 32 at barrier 1 \(line \d+\)", found)


@pytest.mark.parametrize(
    ("guard", "kinds"),
    [
        ("setp.lt.u32 %p1, %r0, 2;", ["same-instruction write"]),
        ("and.b32 %r10, %r0, 31; setp.eq.u32 %p1, %r10, 0;", ["WAW"]),
        ("setp.lt.u32 %p1, %r0, 64;", ["same-instruction write", "WAW"]),
    ],
)
def test_lanes_and_warps_that_write_one_element_are_told_apart(guard: str, kinds: list[str]) -> None:
    hazards = Hazards()
    kernel = program(f"mov.u32 %r0, %tid.x; {guard} @%p1 st.shared.u32 [tile], %r0;", declarations=SHARED)
    kernel.launch((1,), (64,), (np.zeros(1),), observers=(hazards,))
    assert [report.kind for report in hazards.reports] == kinds
    for report in hazards.reports:
        same_warp = report.first_thread // 32 == report.second_thread // 32
        assert same_warp == (report.kind == "same-instruction write")
    assert all(line.endswith(("; once", " times")) for line in hazards.render().splitlines())
