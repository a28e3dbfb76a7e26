"""Memory access patterns whose counters are known from hardware: one kernel each, one access by one or more warps.

The emulator's bank conflicts and sectors follow from rules that NVIDIA documents in words. Each pattern here runs under
Nsight Compute on a GPU (tools/hw_counters.py) and on the emulator. A kernel reads each lane's offset from a table, does
its one access, and stores something that depends on it. `AMPERE` runs everywhere, `HOPPER` needs sm_90a.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import hashlib
from pathlib import Path
from string import Template

import numpy as np

from ptxemu import Counters, load
from ptxemu.values import Array

TILE = 16384  # bytes of shared memory, and of the global buffer
HOPPER_TILE = 32768
OFF = 0xFFFFFFFF  # a lane with this offset does not take part
KINDS = ("bank_conflicts_pipe_lsu", "pipe_lsu_wavefronts")
BANKS = tuple(f"l1tex__data_{each}_mem_shared_op_{op}.sum" for each in KINDS for op in ("ld", "st"))
L1 = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
GLOBAL = tuple(L1.format(each, op) for each in ("sectors", "requests") for op in ("ld", "st"))
SUFFIX = {1: "u8", 2: "u16", 4: "b32", 8: "v2.b32", 16: "v4.b32"}
VALUES = {1: "%r10", 2: "%h1", 4: "%r10", 8: "{%r10, %r11}", 16: "{%r10, %r11, %r12, %r13}"}
LANES = np.arange(32, dtype=np.int64)

# What a store or a copy wrote is read back at one coalesced place.
READ_SHARED = "add.u32 %r15, %r3, 0; shl.b32 %r16, %r1, 2; add.u32 %r15, %r15, %r16; ld.shared.u32 %r10, [%r15];"
READ_STORED = "\nbar.sync 0;\nshl.b32 %r16, %r1, 2; add.u32 %r16, %r3, %r16; ld.shared.u32 %r10, [%r16];"


@dataclass(frozen=True)
class Pattern:
    """One access: `body` uses %rd7 (global address) or %r7 (shared); `offsets` in bytes per thread."""

    name: str
    body: str
    offsets: Array
    last: str = ""

    @property
    def threads(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True)
class Patterns:
    """A list of patterns with the kernel that does them, the counters that are compared and the committed readings."""

    file: str
    patterns: tuple[Pattern, ...]
    metrics: tuple[str, ...]
    head: str
    kernel: str  # a template beside this file
    tile: int
    data: tuple[Array, ...] = ()  # further arguments

    def ptx(self, chosen: Sequence[Pattern] | None = None) -> str:
        every = enumerate(self.patterns if chosen is None else chosen)
        kernel = Template((Path(__file__).parent / self.kernel).read_text(encoding="utf-8"))
        fields = ({"name": entry_name(i), "body": each.body, "last": each.last} for i, each in every)
        texts = (kernel.substitute(tile=self.tile, **each) for each in fields)
        return f".version {self.head}\n.address_size 64\n" + "\n".join(texts)

    def digest(self) -> str:
        return hashlib.sha256(self.ptx().encode()).hexdigest()

    def arguments(self, pattern: Pattern) -> tuple[Array, ...]:
        return pattern.offsets.astype(np.uint32), *(each.copy() for each in self.data), np.zeros(pattern.threads, "u4")

    def emulate(self, chosen: Sequence[Pattern] | None = None) -> list[dict[str, int]]:
        """The emulator's counters of each pattern, under Nsight Compute's names."""
        program, readings = load(self.ptx(chosen), path="patterns.ptx"), []
        for index, pattern in enumerate(self.patterns if chosen is None else chosen):
            counters = Counters()
            kernel = program.kernel(entry_name(index))
            kernel.launch((1,), (pattern.threads,), self.arguments(pattern), observers=(counters,))
            readings.append({metric: int(counters.as_dict()[metric]) for metric in self.metrics})
        return readings

    def differences(self, readings: Sequence[Mapping[str, int]], chosen: Sequence[Pattern] | None = None) -> list[str]:
        """One line for each pattern whose readings on a GPU are not the emulator's."""
        every = self.patterns if chosen is None else chosen
        found = []
        for pattern, chip, ours in zip(every, readings, self.emulate(chosen), strict=True):
            wrong = [f"{name} {chip[name]} (emulator {n})" for name, n in ours.items() if chip[name] != n]
            found += [f"{pattern.name}: {', '.join(wrong)}"] if wrong else []
        return found


def entry_name(index: int) -> str:
    return f"pattern_{index:03d}"


def _access(space: str, operation: str, width: int) -> tuple[str, str]:
    address = "%rd7" if space == "global" else "%r7"
    if operation == "ld":
        return f"@%p1 ld.{space}.{SUFFIX[width]} {VALUES[width]}, [{address}];", ""
    last = READ_SHARED if space == "shared" else ""
    return f"@%p1 st.{space}.{SUFFIX[width]} [{address}], {VALUES[width]};", last


def offset_sets(width: int) -> dict[str, Array]:
    """Offsets of 32 lanes (64 in one) that are multiples of `width` and stay inside the tile."""
    rng, lanes = np.random.default_rng(width), LANES
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
        "two warps": np.arange(64) * width,
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


def _ampere() -> tuple[Pattern, ...]:
    """Shared and global, loads and stores of every width, ldmatrix, cp.async."""
    found = []
    for space in ("shared", "global"):
        for width in SUFFIX:
            for operation in ("ld", "st"):
                body, last = _access(space, operation, width)
                for name, offsets in offset_sets(width).items():
                    found.append(Pattern(f"{space} {operation} {width} bytes, {name}", body, offsets, last))
    rows = _rows() | {"one row": LANES * 0, "random rows": np.random.default_rng(7).integers(0, TILE // 16, 32) * 16}
    found += _matrices("ldmatrix x{}{}, {}", "ldmatrix.sync.aligned.m8n8.x{}{}.shared.b16 {}, [%r7];", rows)
    for cache, width in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        body = (
            "shl.b32 %r16, %r1, 4; add.u32 %r17, %r3, %r16;\n"
            f"@%p1 cp.async.{cache}.shared.global [%r17], [%rd7], {width};\n"
            "cp.async.commit_group; cp.async.wait_group 0;"
        )
        for name, offsets in offset_sets(width).items():
            found.append(Pattern(f"cp.async.{cache} {width} bytes, {name}", body, offsets, READ_SHARED))
    return tuple(found)


def _rows() -> dict[str, Array]:
    rows = {f"rows of {step}": LANES * step for step in (16, 32, 64, 128, 144, 256, 272)}
    return rows | {"swizzled rows of 256": (LANES % 16) * 256 + (((LANES // 16) ^ (LANES % 8)) * 16)}


def _matrices(name: str, body: str, rows: Mapping[str, Array]) -> list[Pattern]:
    """One, two or four matrices, plain and transposed, over some rows."""
    found = []
    for count in (1, 2, 4):
        registers = "{" + ", ".join(f"%r{10 + i}" for i in range(count)) + "}"
        for suffix in ("", ".trans"):
            text = body.format(count, suffix, registers)
            found += [Pattern(name.format(count, suffix, each), text, offsets) for each, offsets in rows.items()]
    return found


def _hopper() -> tuple[Pattern, ...]:
    """``stmatrix``; chains of one to three products of several widths and types, A from shared memory or registers."""
    rows = _rows() | {"random rows": np.random.default_rng(7).permutation(HOPPER_TILE // 16)[:32] * 16}
    body = "stmatrix.sync.aligned.m8n8.x{}{}.shared.b16 [%r7], {};" + READ_STORED
    found = _matrices("stmatrix x{}{}, {}", body, rows)
    for n in (8, 16, 64, 128, 256):
        for kinds, depth in (("f32.f16.f16", 16), ("f16.f16.f16", 16), ("f32.tf32.tf32", 8), ("s32.s8.s8", 32)):
            for left in ("shared memory", "registers"):
                for times in (1, 3):
                    name = f"{times} wgmma n{n} {kinds}, A in {left}"
                    found.append(Pattern(name, _products(n, kinds, depth, left, times), np.zeros(128, np.int64)))
    return tuple(found)


def _products(n: int, kinds: str, depth: int, left: str, times: int) -> str:
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


AMPERE = Patterns(
    "emulator_patterns.json.gz", _ampere(), (*BANKS, *GLOBAL, "smsp__inst_executed_op_ldsm.sum"),
    "8.0\n.target sm_80", "pattern.ptx", TILE, (np.arange(TILE // 4, dtype=np.uint32),),
)  # fmt: skip
HOPPER = Patterns(
    "hopper_patterns.json.gz", _hopper(), (*BANKS, "smsp__inst_executed_pipe_tensor.sum"),
    "8.6\n.target sm_90a", "hopper_pattern.ptx", HOPPER_TILE,
)  # fmt: skip
