"""Launching: arrays as pointers, what belongs to a kernel, memory budget and slices, errors of a launch."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from tests.programs import HEADER, OUT, REGISTERS, launch, program, run

from ptxemu.errors import EmulationError
from ptxemu.run.launch import load
from ptxemu.values import Array

TWO = """
ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd3, %r0, 4;
add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3; ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, 1;
st.global.u32 [%rd2], %r1;
"""


def increment(a: Array, b: Array) -> None:
    """b = a + 1, 32 elements."""
    program(TWO, parameters=".param .u64 a, .param .u64 b").launch((1,), (32,), (a, b))


def refused(*arrays: Array) -> str:
    with pytest.raises(EmulationError) as caught:
        increment(*arrays)
    assert caught.value.kind == "arguments"
    return str(caught.value)


def test_one_array_may_be_two_arguments() -> None:
    a = np.arange(32, dtype=np.uint32)
    increment(a, a)
    assert (a == np.arange(1, 33)).all()


def test_views_of_one_array_keep_their_distance() -> None:
    both = np.arange(64, dtype=np.uint32)
    increment(both[:32], both[32:])
    assert (both == [*range(32), *range(1, 33)]).all()


def test_arrays_on_one_memory_without_a_common_owner_are_one() -> None:
    memory = bytearray(256)
    a, b, c = (np.frombuffer(memory, np.uint32, 32, offset) for offset in (0, 0, 128))
    whole = np.frombuffer(memory, np.uint32)
    increment(whole[:32], whole[32:])
    increment(a, b)
    assert (whole == 1).all()
    increment(whole, c)
    assert (whole == [1] * 32 + [2] * 32).all()


def test_an_array_around_another_argument_is_refused() -> None:
    memory = bytearray(256)
    inner, outer = np.frombuffer(memory, np.uint32, 32, 64), np.frombuffer(memory, np.uint32)
    assert "an array around another one" in refused(inner, outer)


def test_a_read_only_array_is_not_written() -> None:
    a, b = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    b.flags.writeable = False
    increment(a, b)
    assert (b == 0).all()


def test_memory_that_cannot_be_a_buffer_is_refused() -> None:
    a = np.arange(32, dtype=np.uint32)
    assert "dtype object" in refused(a.astype(object), a)
    owner = np.asfortranarray(np.zeros((8, 4), np.uint32))
    assert "C-contiguous" in refused(a, owner)


def test_an_empty_array_is_a_pointer_to_nothing() -> None:
    empty = np.zeros(0, np.uint32)
    kernel = program("ld.param.u64 %rd0, [out];")
    assert kernel.launch((1,), (32,), (empty,)).blocks == 1
    with pytest.raises(EmulationError, match="0 bytes at"):
        program("ld.param.u64 %rd0, [out]; ld.global.u8 %r1, [%rd0];").launch((1,), (32,), (empty,))


@pytest.mark.parametrize(
    ("grid", "block", "what"),
    [
        ((0,), (32,), "grid size"),
        ((1, 1, 1, 1), (32,), "grid size"),
        ((1.5,), (32,), "k.ptx: grid size"),
        ("a", (32,), "k.ptx: grid size: expected one to three positive numbers, found"),
        (None, (32,), "k.ptx: grid size"),
        ((1,), float("nan"), "k.ptx: block size"),
        ((1,), float("inf"), "k.ptx: block size"),
        ((1,), "12", "k.ptx: block size"),
        ((1, 65536), (32,), "grid"),
        ((1,), (1025,), "threads of a block"),
        ((1,), (1, 1, 65), "block"),
        ((1,), (), "block size"),
    ],
)
def test_sizes_that_no_gpu_takes(grid: Any, block: Any, what: str) -> None:
    with pytest.raises(EmulationError, match=what) as caught:
        program("", parameters="").launch(grid, block)
    assert caught.value.kind == "arguments"


def test_negative_shared_memory_is_refused() -> None:
    with pytest.raises(EmulationError, match="dynamic shared memory"):
        program("", parameters="").launch((1,), (1,), shared_bytes=-4)


def test_a_kernel_has_the_shared_variables_that_it_mentions() -> None:
    # Together they would not fit: 100 KiB of `first` belong to the other kernel alone.
    module = ".shared .align 4 .b8 first[102400]; .shared .align 4 .b8 second[150000];"
    size = "mov.u32 %r1, %total_smem_size; st.global.u32 [%rd0], %r1;"
    text = HEADER + module
    for name, shared in (("k", "first"), ("l", "second"), ("m", "0")):
        text += (
            f".visible .entry {name}(.param .u64 out)\n{{\n{REGISTERS}\n{OUT}\nmov.u32 %r2, {shared}; {size} ret;\n}}\n"
        )
    loaded = load(text)
    found = {}
    for name in "klm":
        out = np.zeros((1, 32), np.uint32)
        launch(loaded.kernel(name), out, 32, 1, shared_bytes=64)
        found[name] = int(out[0, 0])
    assert found == {"k": 102400 + 64, "l": 150000 + 64, "m": 64}
    with pytest.raises(EmulationError, match="which kernel"):
        loaded.kernel()


def test_dynamic_shared_memory_lies_aligned_behind_the_static() -> None:
    out = run(
        """
        mov.u32 %r1, bytes; mov.u32 %r2, wide; mov.u32 %r3, %dynamic_smem_size; mov.u32 %r4, %total_smem_size;
        mad.lo.u32 %r1, %r1, 1000, %r2; mad.lo.u32 %r1, %r4, 1000000, %r1; mad.lo.u32 %r1, %r3, 10000000, %r1;
        st.global.u32 [%rd0], %r1;
        """,
        module=".extern .shared .align 64 .b8 wide[]; .extern .shared .align 16 .b8 bytes[];",
        declarations=".shared .b8 odd[3];",
        shared_bytes=8,
    )
    assert (out == (8 * 10_000_000 + (64 + 8) * 1_000_000 + 64 * 1000 + 64) % (1 << 32)).all()


def test_an_external_variable_is_unknown() -> None:
    with pytest.raises(EmulationError, match="elsewhere") as caught:
        run("mov.u64 %rd1, elsewhere; st.global.u64 [%rd0], %rd1;", module=".extern .global .align 4 .b8 elsewhere[4];")
    assert caught.value.kind == "unsupported"


def test_an_error_names_the_block_of_a_later_slice_and_the_thread_of_a_3d_block() -> None:
    kernel = program(
        """
        ld.param.u64 %rd0, [out];
        mov.u32 %r1, %ctaid.z; setp.eq.u32 %p1, %r1, 1;
        mov.u32 %r1, %ctaid.y; setp.eq.and.u32 %p1, %r1, 2, %p1;
        mov.u32 %r1, %tid.z; setp.eq.and.u32 %p1, %r1, 3, %p1;
        mov.u32 %r1, %tid.x; setp.eq.and.u32 %p1, %r1, 4, %p1;
        @%p1 st.global.u32 [%rd0+64], %r1;
        """
    )
    for budget in (1, 1 << 30):
        with pytest.raises(EmulationError) as caught:
            kernel.launch((2, 3, 2), (5, 2, 4), (np.zeros(16, np.uint32),), memory_budget=budget)
        assert caught.value.kind == "out-of-bounds"
        assert caught.value.block == (0, 2, 1)
        assert caught.value.lane == 4 + 5 * 2 * 3
        assert caught.value.address == (1 << 36) + 64


def test_result_and_progress_count_what_ran() -> None:
    told: list[int] = []
    out = np.zeros((6, 64), np.uint32)
    result = launch(program(OUT + "st.global.u32 [%rd0], 1;"), out, 64, 6, memory_budget=1, progress=told.append)
    assert (result.blocks, result.slices) == (6, 6)
    assert result.instructions == 6 * (OUT.count(";") + 2)
    assert sum(told) == 2 * result.instructions
    whole = launch(program(OUT + "st.global.u32 [%rd0], 1;"), out, 64, 6)
    assert (whole.slices, whole.instructions) == (1, result.instructions // 6)


def test_the_budget_is_for_each_slice() -> None:
    body = "mov.u32 %r1, 0; loop: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 50; @%p1 bra loop;"
    run(body, blocks=5, memory_budget=1, max_instructions=200)
    with pytest.raises(EmulationError) as caught:
        run(body, blocks=5, memory_budget=1, max_instructions=100)
    assert caught.value.kind == "budget"


@pytest.mark.parametrize(("threads", "matrices"), [(128, False), (100, False), (128, True)])
def test_the_memory_budget_is_kept(threads: int, matrices: bool) -> None:
    # 24 registers alive at once, each another array for every lane; `mma` keeps matrices of them.
    fill = "".join(f"mad.lo.u32 %r{i}, %r0, {i}, %r60;" for i in range(1, 25))
    use = "".join(f"xor.b32 %r40, %r40, %r{i};" for i in range(1, 25))
    mma = "".join(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, "
        f"{{%r{i}, %r{i + 1}, %r{i + 2}, %r{i + 3}}}, {{%r{i + 4}, %r{i + 5}}}, {{%f0, %f1, %f2, %f3}};"
        for i in range(1, 20)
    )
    zero = "".join(f"mov.f32 %f{i}, 0f00000000;" for i in range(4))
    kernel = program(
        f"{OUT} {zero} {fill} {mma if matrices else ''} mov.u32 %r40, 0; {use} st.global.u32 [%rd0], %r40;"
    )
    out = np.zeros((600, threads), np.uint32)
    budget = 8 << 20
    tracemalloc.start()
    try:
        result = launch(kernel, out, threads, 600, memory_budget=budget)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.slices > 1
    assert budget / 8 < peak - out.nbytes < budget
