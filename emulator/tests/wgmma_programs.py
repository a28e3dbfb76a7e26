"""Small programs around one ``wgmma``: a warpgroup's matrices in shared memory, its registers set, a body to come.

A block's first 128 threads fill 4096 bytes, A at 0 and B at 2048, both K-major without swizzling; %rd10 and %rd11 are
their descriptors, %p0 is true, D and a second accumulator E are zero, A in registers is all ones.
"""

from __future__ import annotations

import numpy as np

from ptxemu.machine.observer import Observer
from ptxemu.run.launch import Kernel, load
from ptxemu.values import Array

MMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
D = "{%f0, %f1, %f2, %f3}"
E = "{%f4, %f5, %f6, %f7}"
WIDE = "{%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}"
A = "{%r10, %r11, %r12, %r13}"
FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
SS = f"{MMA} {D}, %rd10, %rd11, %p0, 1, 1, 0, 0;"
RS = f"{MMA} {D}, {A}, %rd11, %p0, 1, 1, 0;"
OTHER = f"{MMA} {E}, %rd10, %rd11, %p0, 1, 1, 0, 0;"
STORE = "st.global.v4.f32 [%rd0], {%f0, %f1, %f2, %f3};"
RETURN = "ret;"
HEAD = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 in)
{
.reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<16>; .reg .f32 %f<16>;
.shared .align 1024 .b8 image[MEMORY];
ld.param.u64 %rd0, [out];
ld.param.u64 %rd1, [in];
mov.u32 %r0, %tid.x;
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %ntid.x;
mad.lo.u32 %r3, %r1, %r2, %r0;
mul.wide.u32 %rd2, %r3, 16;
add.u64 %rd0, %rd0, %rd2;
mov.u32 %r4, image;
setp.ge.u32 %p1, %r0, 128;
mul.wide.u32 %rd3, %r1, 4096;
mul.wide.u32 %rd4, %r0, 16;
add.u64 %rd3, %rd3, %rd4;
add.u64 %rd1, %rd1, %rd3;
shl.b32 %r5, %r0, 4;
add.u32 %r5, %r4, %r5;
@%p1 bra filled;
ld.global.v4.u32 {%r6, %r7, %r8, %r9}, [%rd1];
st.shared.v4.b32 [%r5], {%r6, %r7, %r8, %r9};
ld.global.v4.u32 {%r6, %r7, %r8, %r9}, [%rd1+2048];
st.shared.v4.b32 [%r5+2048], {%r6, %r7, %r8, %r9};
filled:
fence.proxy.async.shared::cta;
bar.sync 0;
shr.u32 %r14, %r4, 4;
cvt.u64.u32 %rd10, %r14;
or.b64 %rd10, %rd10, 0x0000001000080000;  // no swizzle: 128 bytes to the next K, 256 to the next rows
add.u64 %rd11, %rd10, 128;  // B is 2048 bytes on
mov.b32 %r10, 0x3c003c00;
mov.b32 %r11, 0x3c003c00;
mov.b32 %r12, 0x3c003c00;
mov.b32 %r13, 0x3c003c00;
mov.f32 %f0, 0f00000000;
mov.f32 %f1, 0f00000000;
mov.f32 %f2, 0f00000000;
mov.f32 %f3, 0f00000000;
mov.f32 %f4, 0f00000000;
mov.f32 %f5, 0f00000000;
mov.f32 %f6, 0f00000000;
mov.f32 %f7, 0f00000000;
setp.eq.u32 %p0, %r0, %r0;
"""


def kernel(*body: str, memory: int = 4096, head: str = HEAD) -> Kernel:
    """A block's first 128 threads fill 4096 bytes: A at 0, B at 2048; then the body runs."""
    return load(head.replace("MEMORY", str(memory)) + "\n".join(body) + "\nret;\n}\n", path="k.ptx").kernel()


def memory(blocks: int = 1) -> Array:
    """What each block's shared memory is filled with: small f16 integers."""
    return np.random.default_rng(1).integers(-5, 6, (blocks, 2048)).astype(np.float16)


def run(
    *body: str, threads: int = 128, blocks: int = 1, memory_budget: int = 1 << 30, observers: tuple[Observer, ...] = ()
) -> Array:
    """(blocks, threads, 4): the four numbers that each thread stores."""
    out = np.zeros((blocks, threads, 4), np.float32)
    kernel(*body).launch((blocks,), (threads,), (out, memory(blocks)), memory_budget=memory_budget, observers=observers)
    return out


def matrices(image: Array) -> tuple[Array, Array]:
    """A (64, 16) and B (16, 8) of one block's memory, by the canonical layout without swizzling."""
    tiles = image[:1024].reshape(8, 2, 8, 8)  # rows / 8, K / 8, row, K
    a = tiles.transpose(0, 2, 1, 3).reshape(64, 16).astype(np.float64)
    b = image[1024:1152].reshape(2, 8, 8).transpose(1, 0, 2).reshape(8, 16).astype(np.float64)
    return a, b.T


def fragment(d: Array) -> Array:
    """(128, 4): a (64, 8) matrix as the threads of a warpgroup hold it."""
    thread = np.arange(128)
    row, column = 16 * (thread // 32) + thread % 32 // 4, 2 * (thread % 4)
    return np.stack([d[row, column], d[row, column + 1], d[row + 8, column], d[row + 8, column + 1]], axis=1)
