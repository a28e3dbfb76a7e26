"""Chains of wgmma: each product has its own scale-d and rounding, each warpgroup its own groups of products.

Run: pytest tests/null/emulator/test_wgmma_chains.py
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.wgmma_programs import (
    COMMIT,
    FENCE,
    RS,
    SS,
    STORE,
    WAIT,
    A,
    fragment,
    kernel,
    matrices,
    memory,
    run,
)

from ptxemu import EmulationError
from ptxemu.values import Array

AB = fragment(np.matmul(*matrices(memory()[0])))
ONES_B = fragment(np.ones((64, 16)) @ matrices(memory()[0])[1])
NEVER = "setp.ne.u32 %p4, %r0, %r0;"


def test_a_chain_may_begin_anew() -> None:
    """What the first product left is dropped by the second."""
    anew = RS.replace("%p0", "%p4")
    assert np.array_equal(run(NEVER, FENCE, SS, anew, SS, COMMIT, WAIT, STORE)[0], ONES_B + AB)


def test_each_warpgroup_has_its_own_scale_d() -> None:
    later = "setp.lt.u32 %p0, %r0, 128;"
    found = run(FENCE, SS, COMMIT, WAIT, later, FENCE, SS, COMMIT, WAIT, STORE, threads=256)
    assert np.array_equal(found[0], np.concatenate([2 * AB, AB]))


def test_blocks_that_issued_different_products_wait_together() -> None:
    apart = "setp.eq.u32 %p3, %r1, 0; @%p3 bra one;"
    found = run(apart, FENCE, SS, "bra both; one:", FENCE, RS, "both:", COMMIT, WAIT, STORE, blocks=2)
    (_, b), (a, later) = map(matrices, memory(2))
    assert np.array_equal(found, [fragment(np.ones((64, 16)) @ b), fragment(a @ later)])


@pytest.mark.parametrize(("value", "chained"), [(2048, 2048), (1024, 1026)])
def test_half_sums_are_rounded_after_each_product(value: int, chained: int) -> None:
    """2048 + 1 is 2048 in f16, and so is that plus 1."""
    image = np.zeros((1, 2048), np.float16)
    image[0, 1024:1088:8] = 1  # of B's first row alone, so that every product adds 1
    bits = int(np.array(value, np.float16).view(np.uint16)) * 0x10001
    half = f"wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {{%r20, %r21}}, {A}, %rd11, %p0, 1, 1, 0;"
    load = f"mov.b32 %r20, {bits}; mov.b32 %r21, {bits};"
    show = "mov.b32 %f0, %r20; mov.b32 %f1, %r21;"
    out = launched(load, FENCE, half, half, COMMIT, WAIT, show, STORE, image=image)
    assert (out[:, :2].copy().view(np.float16) == chained).all()


@pytest.mark.parametrize(
    ("clamp", "start", "a", "wanted"),
    [
        (".satfinite", 2**31 - 40, 1, 2**31 - 1),
        (".satfinite", 40 - 2**31, -1, -(2**31)),
        ("", 2**31 - 40, 1, 24 - 2**31),
        ("", 40 - 2**31, -1, 2**31 - 24),
    ],
)
def test_integer_sums_wrap_or_are_clamped(clamp: str, start: int, a: int, wanted: int) -> None:
    """Twice 32 products of 1 or -1."""
    image = np.full((1, 4096), 1, np.int8).view(np.float16)
    d, left = "{%r20, %r21, %r22, %r23}", "{%r24, %r25, %r26, %r27}"
    whole = f"wgmma.mma_async.sync.aligned.m64n8k32{clamp}.s32.s8.s8 {d}, {left}, %rd11, %p0;"
    load = " ".join(f"mov.b32 %r{20 + i}, {start & 0xFFFFFFFF};" for i in range(4))
    load += " ".join(f"mov.b32 %r{24 + i}, {0x01010101 * (a & 0xFF)};" for i in range(4))
    show = " ".join(f"mov.b32 %f{i}, %r{20 + i};" for i in range(4))
    out = launched(load, FENCE, whole, whole, COMMIT, WAIT, show, STORE, image=image)
    assert (out.view(np.int32) == wanted).all()


@pytest.mark.parametrize("left_out", [COMMIT, WAIT], ids=["commit", "wait"])
def test_one_warpgroup_neither_commits_nor_waits_for_another(left_out: str) -> None:
    skip = f"setp.ge.u32 %p2, %r0, 128; @%p2 bra skip; {left_out} skip:"
    body = [skip if part == left_out else part for part in (FENCE, SS, COMMIT, WAIT)]
    with pytest.raises(EmulationError, match="register %f0 is read while a wgmma writes it") as caught:
        run(*body, STORE, threads=256)
    assert (caught.value.kind, caught.value.lane) == ("in-flight", 128)


def launched(*body: str, image: Array) -> Array:
    """(128, 4) of what each thread stores, from shared memory of one's own."""
    out = np.zeros((1, 128, 4), np.float32)
    kernel(*body).launch((1,), (128,), (out, image))
    return np.asarray(out[0])
