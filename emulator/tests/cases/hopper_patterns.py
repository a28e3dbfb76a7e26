"""One kernel per way to use the tensor cores or ``stmatrix``, for which Nsight Compute and the emulator count the same.

Why apart from `patterns`: these need sm_90a, and were asked of the chip later. `analysis/emulator_hw_counters.py
--hopper` asks; tests/null/emulator/test_hw_hopper_counters.py compares.
"""

from __future__ import annotations

import numpy as np
from tests.cases.patterns import Pattern, entry_name

from flashladder import names
from ptxemu import Counters
from ptxemu.run.launch import load
from ptxemu.values import Array

TILE = 32768  # bytes of shared memory
METRICS = (
    names.CONFLICTS.format("ld"),
    names.CONFLICTS.format("st"),
    names.WAVEFRONTS.format("ld"),
    names.WAVEFRONTS.format("st"),
    names.TENSOR,
)
KERNEL = """
.visible .entry {name}(.param .u64 offsets, .param .u64 out)
{{
.reg .pred %p<4>; .reg .b32 %r<32>; .reg .b64 %rd<16>; .reg .b32 %d<128>;
.shared .align 1024 .b8 tile_{name}[{tile}];
ld.param.u64 %rd1, [offsets];
ld.param.u64 %rd2, [out];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd4, %r1, 4;
add.s64 %rd1, %rd1, %rd4;
add.s64 %rd2, %rd2, %rd4;
ld.global.u32 %r2, [%rd1];
mov.u32 %r3, tile_{name};
shl.b32 %r4, %r1, 4;
mov.b32 %r8, 0;
fill_{name}:
add.u32 %r5, %r3, %r4;
st.shared.v4.b32 [%r5], {{%r8, %r8, %r8, %r8}};
mov.u32 %r6, %ntid.x;
shl.b32 %r6, %r6, 4;
add.u32 %r4, %r4, %r6;
setp.lt.u32 %p2, %r4, {tile};
@%p2 bra fill_{name};
fence.proxy.async.shared::cta;
bar.sync 0;
add.u32 %r7, %r3, %r2;
mov.b32 %r10, %r1; mov.b32 %r11, %r1; mov.b32 %r12, %r1; mov.b32 %r13, %r1;
{body}
bar.sync 0;
xor.b32 %r10, %r10, %r8;
st.global.u32 [%rd2], %r10;
ret;
}}
"""


def patterns() -> tuple[Pattern, ...]:
    """Every pattern."""
    return (*_stores(), *_products())


def _stores() -> list[Pattern]:
    lanes = np.arange(32)
    rows = {f"rows of {step}": lanes * step for step in (16, 32, 64, 128, 144, 256, 272)}
    rows["swizzled rows of 256"] = (lanes % 16) * 256 + (((lanes // 16) ^ (lanes % 8)) * 16)
    rows["random rows"] = np.random.default_rng(7).permutation(TILE // 16)[:32] * 16
    found = []
    for count in (1, 2, 4):
        registers = "{" + ", ".join(f"%r{10 + i}" for i in range(count)) + "}"
        for suffix in ("", ".trans"):
            body = (
                f"stmatrix.sync.aligned.m8n8.x{count}{suffix}.shared.b16 [%r7], {registers};\nbar.sync 0;\n"
                "shl.b32 %r16, %r1, 2; add.u32 %r16, %r3, %r16; ld.shared.u32 %r10, [%r16];"
            )
            found += [Pattern(f"stmatrix x{count}{suffix}, {name}", body, offsets) for name, offsets in rows.items()]
    return found


def _products() -> list[Pattern]:
    """Chains of one to three products of several widths and types, A from shared memory or registers."""
    found = []
    for n in (8, 16, 64, 128, 256):
        for kinds, depth in (("f32.f16.f16", 16), ("f16.f16.f16", 16), ("f32.tf32.tf32", 8), ("s32.s8.s8", 32)):
            for left in ("shared memory", "registers"):
                for times in (1, 3):
                    name = f"{times} wgmma n{n} {kinds}, A in {left}"
                    found.append(Pattern(name, _body(n, kinds, depth, left, times), np.zeros(128, np.int64)))
    return found


def _body(n: int, kinds: str, depth: int, left: str, times: int) -> str:
    registers = n // 4 if kinds.startswith("f16") else n // 2
    d = "{" + ", ".join(f"%d{i}" for i in range(registers)) + "}"
    a = "%rd5" if left == "shared memory" else "{%r10, %r11, %r12, %r13}"
    tail = "" if kinds.startswith("s32") else ", 1, 1"
    if depth == 16:
        tail += ", 0, 0" if left == "shared memory" else ", 0"
    lines = [
        "and.b32 %r14, %r3, 0x3ffff; shr.u32 %r14, %r14, 4; cvt.u64.u32 %rd5, %r14;",
        "or.b64 %rd5, %rd5, 0x4000004000010000; add.s64 %rd6, %rd5, 0;",  # the swizzle of 128 bytes, rows 1024 apart
        *(f"mov.b32 %d{i}, 0;" for i in range(registers)),
        "setp.eq.u32 %p1, %r8, 0; wgmma.fence.sync.aligned;",
        *[f"wgmma.mma_async.sync.aligned.m64n{n}k{depth}.{kinds} {d}, {a}, %rd6, %p1{tail};"] * times,
        "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        *(f"xor.b32 %r8, %r8, %d{i};" for i in range(registers)),
    ]
    return "\n".join(lines)


def ptx_of(chosen: tuple[Pattern, ...]) -> str:
    """One module with a kernel per pattern."""
    kernels = [
        KERNEL.format(name=entry_name(index), tile=TILE, body=pattern.body) for index, pattern in enumerate(chosen)
    ]
    return ".version 8.6\n.target sm_90a\n.address_size 64\n" + "\n".join(kernels)


def arguments(pattern: Pattern) -> tuple[Array, Array]:
    """Offsets and output of one launch."""
    return pattern.offsets.astype(np.uint32), np.zeros(pattern.threads, np.uint32)


def emulate(chosen: tuple[Pattern, ...]) -> list[dict[str, int]]:
    """The emulator's counters of each pattern, under Nsight Compute's names."""
    program = load(ptx_of(chosen), path="hopper_patterns.ptx")
    readings = []
    for index, pattern in enumerate(chosen):
        counters = Counters()
        program.kernel(entry_name(index)).launch((1,), (pattern.threads,), arguments(pattern), observers=(counters,))
        found = counters.as_dict()
        readings.append({metric: int(found[metric]) for metric in METRICS})
    return readings
