"""Memory access patterns whose counters are known from hardware: one kernel each, one access by one or more warps.

Why: the emulator's bank conflicts and sectors follow from rules that NVIDIA documents in words. Each pattern here runs
under Nsight Compute on a GPU (analysis/emulator_hw_counters.py) and on the emulator; the committed readings keep the
rules honest. A kernel reads each lane's offset from a table (a coalesced load, the same in all), does its one access,
and stores something that depends on it, so that no compiler drops it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ptxemu import Counters
from ptxemu.run.launch import load
from ptxemu.values import Array

TILE = 16384  # bytes of shared memory, and of the global buffer
OFF = 0xFFFFFFFF  # a lane with this offset does not take part
METRICS = (
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "smsp__inst_executed_op_ldsm.sum",
)

SUFFIX = {1: "u8", 2: "u16", 4: "b32", 8: "v2.b32", 16: "v4.b32"}
VALUES = {1: "%r10", 2: "%h1", 4: "%r10", 8: "{%r10, %r11}", 16: "{%r10, %r11, %r12, %r13}"}

KERNEL = """
.visible .entry {name}(.param .u64 offsets, .param .u64 data, .param .u64 out)
{{
.reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<32>; .reg .b64 %rd<16>;
.shared .align 128 .b8 tile_{name}[{tile}];
ld.param.u64 %rd1, [offsets];
ld.param.u64 %rd2, [data];
ld.param.u64 %rd3, [out];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd4, %r1, 4;
add.s64 %rd5, %rd1, %rd4;
ld.global.u32 %r2, [%rd5];
setp.ne.u32 %p1, %r2, 0xFFFFFFFF;
mov.u32 %r3, tile_{name};
shl.b32 %r4, %r1, 4;
mov.u32 %r10, %r1; mov.u32 %r11, %r1; mov.u32 %r12, %r1; mov.u32 %r13, %r1; cvt.u16.u32 %h1, %r1;
fill_{name}:
add.u32 %r5, %r3, %r4;
st.shared.v4.b32 [%r5], {{%r1, %r1, %r1, %r1}};
mov.u32 %r6, %ntid.x;
shl.b32 %r6, %r6, 4;
add.u32 %r4, %r4, %r6;
setp.lt.u32 %p2, %r4, {tile};
@%p2 bra fill_{name};
bar.sync 0;
cvt.u64.u32 %rd6, %r2;
add.s64 %rd7, %rd2, %rd6;
add.u32 %r7, %r3, %r2;
{body}
bar.sync 0;
add.s64 %rd8, %rd3, %rd4;
cvt.u32.u16 %r14, %h1;
xor.b32 %r10, %r10, %r11; xor.b32 %r10, %r10, %r12; xor.b32 %r10, %r10, %r13; xor.b32 %r10, %r10, %r14;
{last}
st.global.u32 [%rd8], %r10;
ret;
}}
"""
# What a store or a copy wrote is read back at one coalesced place.
READ_SHARED = "add.u32 %r15, %r3, 0; shl.b32 %r16, %r1, 2; add.u32 %r15, %r15, %r16; ld.shared.u32 %r10, [%r15];"


@dataclass(frozen=True)
class Pattern:
    """One access: `body` uses %rd7 (global address) or %r7 (shared); `offsets` in bytes per thread."""

    name: str
    body: str
    offsets: Array
    last: str = ""

    @property
    def threads(self) -> int:
        """Threads of the only block."""
        return len(self.offsets)


def _access(space: str, operation: str, width: int) -> tuple[str, str]:
    address = "%rd7" if space == "global" else "%r7"
    if operation == "ld":
        return f"@%p1 ld.{space}.{SUFFIX[width]} {VALUES[width]}, [{address}];", ""
    last = READ_SHARED if space == "shared" else ""
    return f"@%p1 st.{space}.{SUFFIX[width]} [{address}], {VALUES[width]};", last


def _lanes(threads: int = 32) -> Array:
    return np.arange(threads, dtype=np.int64)


def offset_sets(width: int) -> dict[str, Array]:
    """Offsets of 32 lanes (64 in one) that are multiples of `width` and stay inside the tile."""
    rng = np.random.default_rng(width)
    lanes = _lanes()
    sets = {f"stride {step}": lanes * width * step for step in (1, 2, 3, 4, 8, 16, 32) if 32 * width * step <= TILE}
    sets |= {
        "one address": lanes * 0,
        "two addresses": (lanes & 1) * 128,
        "pairs": (lanes >> 1) * width,
        "reversed": (31 - lanes) * width,
        "random": rng.integers(0, TILE // width, 32) * width,
        "random row": rng.permutation(32) * width,
        "two rows": rng.permutation(32) * width + 1024 * (lanes & 1),
        "quarters apart": (lanes % 8) * width + 2048 * (lanes // 8),
        "rows of 256": (lanes % 8) * 256 + (lanes // 8) * max(width, 16),
        "two warps": _lanes(64) * width,
        "xor 2 pairs": (lanes & ~2) * width,
        "xor 4 pairs": (lanes & ~4) * width,
        "pairs in the first half": np.where(lanes < 16, lanes & ~1, lanes) * width,
        "pairs in the last half": np.where(lanes < 16, lanes, lanes & ~1) * width,
        "pairs of both kinds": np.where(lanes < 16, lanes & ~1, lanes & ~2) * width,
        "pairs in the first quarter": np.where(lanes < 8, lanes & ~1, lanes) * width,
        "pairs, conflicting": (lanes >> 1) * 128,
        "xor 2 pairs, conflicting": (lanes & ~2) * 128,
    }
    return sets | {
        "even lanes": np.where(lanes % 2 == 0, lanes * width, OFF),
        "odd lanes of the last half": np.where((lanes >= 16) & (lanes % 2 == 1), lanes * width, OFF),
        "first half": np.where(lanes < 16, lanes * width * 2, OFF),
        "one lane": np.where(lanes == 5, 640, OFF),
    }


def patterns() -> tuple[Pattern, ...]:
    """Every pattern: shared and global, loads and stores of every width, ldmatrix, cp.async."""
    found = []
    for space in ("shared", "global"):
        for width in SUFFIX:
            for operation in ("ld", "st"):
                body, last = _access(space, operation, width)
                for name, offsets in offset_sets(width).items():
                    found.append(Pattern(f"{space} {operation} {width} bytes, {name}", body, offsets, last))
    return (*found, *_matrices(), *_copies())


def _matrices() -> list[Pattern]:
    rng = np.random.default_rng(7)
    lanes = _lanes()
    rows = {f"rows of {step}": lanes * step for step in (16, 32, 64, 128, 144, 256, 272)}
    rows["swizzled rows of 256"] = (lanes % 16) * 256 + (((lanes // 16) ^ (lanes % 8)) * 16)
    rows["one row"] = lanes * 0
    rows["random rows"] = rng.integers(0, TILE // 16, 32) * 16
    found = []
    for count in (1, 2, 4):
        registers = "{" + ", ".join(f"%r{10 + i}" for i in range(count)) + "}"
        for suffix in ("", ".trans"):
            body = f"ldmatrix.sync.aligned.m8n8.x{count}{suffix}.shared.b16 {registers}, [%r7];"
            found += [Pattern(f"ldmatrix x{count}{suffix}, {name}", body, offsets) for name, offsets in rows.items()]
    return found


def _copies() -> list[Pattern]:
    found = []
    for cache, width in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        body = (
            "shl.b32 %r16, %r1, 4; add.u32 %r17, %r3, %r16;\n"
            f"@%p1 cp.async.{cache}.shared.global [%r17], [%rd7], {width};\n"
            "cp.async.commit_group; cp.async.wait_group 0;"
        )
        for name, offsets in offset_sets(width).items():
            found.append(Pattern(f"cp.async.{cache} {width} bytes, {name}", body, offsets, READ_SHARED))
    return found


def entry_name(index: int) -> str:
    """The kernel of the n-th pattern."""
    return f"pattern_{index:03d}"


def ptx_of(chosen: tuple[Pattern, ...]) -> str:
    """One module with a kernel per pattern."""
    kernels = [
        KERNEL.format(name=entry_name(index), tile=TILE, body=pattern.body, last=pattern.last)
        for index, pattern in enumerate(chosen)
    ]
    return ".version 8.0\n.target sm_80\n.address_size 64\n" + "\n".join(kernels)


def arguments(pattern: Pattern) -> tuple[Array, Array, Array]:
    """Offsets, data and output of one launch."""
    data = np.arange(TILE // 4, dtype=np.uint32)
    return pattern.offsets.astype(np.uint32), data, np.zeros(pattern.threads, np.uint32)


def emulate(chosen: tuple[Pattern, ...]) -> list[dict[str, int]]:
    """The emulator's counters of each pattern, under Nsight Compute's names."""
    program = load(ptx_of(chosen), path="patterns.ptx")
    readings = []
    for index, pattern in enumerate(chosen):
        counters = Counters()
        program.kernel(entry_name(index)).launch((1,), (pattern.threads,), arguments(pattern), observers=(counters,))
        found = counters.as_dict()
        readings.append({metric: int(found[metric]) for metric in METRICS})
    return readings


def differences(chosen: tuple[Pattern, ...], readings: Sequence[Mapping[str, int]]) -> list[str]:
    """One line for each pattern whose readings on a GPU are not the emulator's."""
    return told(chosen, readings, emulate(chosen))


def told(
    chosen: tuple[Pattern, ...], readings: Sequence[Mapping[str, int]], emulated: Sequence[Mapping[str, int]]
) -> list[str]:
    """One line for each pattern whose readings on a GPU are not those that were emulated."""
    found = []
    for pattern, hardware, ours in zip(chosen, readings, emulated, strict=True):
        wrong = [
            f"{metric} {hardware[metric]} (emulator {ours[metric]})"
            for metric in ours
            if hardware[metric] != ours[metric]
        ]
        if wrong:
            found.append(f"{pattern.name}: {', '.join(wrong)}")
    return found
