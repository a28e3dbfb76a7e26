"""Broken kernels: those that an error ends (`BROKEN`), and those that end and are reported as races (`RACES`).

A kernel's defect is on the lines of its file that say ``BROKEN <kernel>``; of a race these hold the second access,
those that say ``FIRST <kernel>`` the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
import re

import numpy as np

from flashladder.build import compile as compiling
from flashladder.build.store import PtxEntry, fill_all, ptx_entry
import ptxemu
from ptxemu.machine.arguments import Argument
from ptxemu.syntax.tree import Instruction, SourceLine
from ptxemu.values import Array

KERNELS = Path(__file__).parent / "kernels"
HEADERS = tuple(sorted(KERNELS.glob("*.cuh")))
MAX_INSTRUCTIONS = 20_000  # far more than any of these kernels needs


def ramp(length: int) -> Array:
    """0, 1, 2, ... as floats."""
    return np.arange(length, dtype=np.float32)


def zeros(length: int) -> Array:
    """A result to be written, of 32-bit integers."""
    return np.zeros(length, dtype=np.int32)


def floats(length: int) -> Array:
    """A result to be written."""
    return np.zeros(length, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel of `file` and how it is launched; `result`: what the twin must leave in its first argument."""

    file: str
    kernel: str
    arguments: Callable[[], tuple[Argument, ...]]
    result: Array
    threads: int = 64
    blocks: int = 1
    shared_bytes: int = 0

    def __str__(self) -> str:
        return self.kernel

    def run(self, kernel: ptxemu.Kernel, *observers: ptxemu.Counters | ptxemu.Hazards) -> Array:
        """Launches the kernel and returns its first argument."""
        arguments = self.arguments()
        kernel.launch(
            (self.blocks,),
            (self.threads,),
            arguments,
            shared_bytes=self.shared_bytes,
            observers=observers,
            max_instructions=MAX_INSTRUCTIONS,
        )
        assert isinstance(arguments[0], np.ndarray)
        return arguments[0]


@dataclass(frozen=True)
class Broken:
    """A launch that must fail.

    Attributes:
        kind: of the `EmulationError`; `opcode`: how the offending instruction begins.
        at: thread of the first offender and address, as `block`; None where there is none to name. Addresses are bytes
            of the shared or local window; of global memory from the buffer that is named.
        says, also: what the message must say beside the place.
    """

    launch: Launch
    kind: str
    opcode: str
    says: str
    at: tuple[int | None, int | None]
    block: tuple[int, int, int] | None = (0, 0, 0)
    also: str = ""


@dataclass(frozen=True)
class Race:
    """A launch that ends and must be reported: kind, the two instructions, the threads and the address of the first."""

    launch: Launch
    kind: str
    space: str
    first: str
    second: str
    threads: tuple[int, int]
    address: int
    blocks: tuple[int, int] = (0, 0)
    numbers_right: bool = True  # whether the emulator's order of execution happens to give the right numbers


@cache
def entry(file: str) -> PtxEntry:
    """The store's entry of a CUDA file: its PTX, compiled as the iterations' is."""
    return ptx_entry(f'#include "{file}"\n', KERNELS, [KERNELS / file, *HEADERS], compiling.tools_of())


def compile_all(files: set[str]) -> None:
    """Compiles what the store lacks, all files at once.

    Raises:
        FlashladderError: no toolchain, or nvcc refused a file.
    """
    fill_all([entry(file) for file in sorted(files)])


@cache
def text_of(file: str) -> str:
    """The PTX of a file."""
    return (KERNELS / file if file.endswith(".ptx") else entry(file).ptx).read_text(encoding="utf-8")


@cache
def load(launch: Launch, *, fixed: bool) -> ptxemu.Kernel:
    """A launch's kernel, or its twin."""
    program = ptxemu.load(text_of(launch.file), path=launch.file.replace(".cu", ".ptx"))
    return kernel_of(program, launch.file, launch.kernel, fixed=fixed)


def kernel_of(program: ptxemu.Program, file: str, name: str, *, fixed: bool) -> ptxemu.Kernel:
    """The kernel `name` of a file's program, or its twin."""
    if file.endswith(".ptx"):
        return program.kernel(name + ("_fixed" if fixed else ""))
    (mangled,) = (one for one in program.entries if re.match(rf"_Z\d+{name}ILb{int(fixed)}E", one))
    return program.kernel(mangled)


def require_all_tried(folder: Path, tried: set[str]) -> None:
    """Each kernel of the folder's files is launched by a test, and its defect is marked."""
    for path in folder.iterdir():
        pattern = r"^(?:PAIR|DESCRIBED)\((\w+)[,)]|^\.visible \.entry (\w+)_fixed\("
        names = {first or second for first, second in re.findall(pattern, path.read_text(), re.MULTILINE)}
        assert names <= tried
        assert all(marked(path, "BROKEN", name) for name in names)


@cache
def marked(path: Path, mark: str, kernel: str) -> frozenset[int]:
    """The lines of a file that say ``<mark> <kernel>``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(number for number, line in enumerate(lines, 1) if re.search(rf"//.*\b{mark} {kernel}\b", line))


def lines_of(instruction: Instruction, file: str) -> frozenset[int]:
    """The lines of a file that an instruction comes from: its own, or those of the calls it was inlined into."""
    if file.endswith(".ptx"):
        return frozenset({instruction.line})
    found: set[int] = set()
    source: SourceLine | None = instruction.source
    while source is not None:
        if source.file.endswith(f"kernels/{file}"):
            found.add(source.line)
        source = source.inlined_at
    return frozenset(found)


def _addresses(kernel: str, arguments: Callable[[], tuple[Argument, ...]], result: Array, **options: int) -> Launch:
    return Launch("memory.cu", kernel, arguments, result, **options)


ADDRESSES = (
    Broken(_addresses("read_past_end", lambda: (floats(63), ramp(63), 63), 2 * ramp(63)), "out-of-bounds", "ld.global",
           "4 bytes past the end of the nearest buffer, `array 1: float32 (63,)`", at=(63, 252)),
    Broken(_addresses("negative_index", lambda: (floats(64), ramp(64)), np.maximum(ramp(64) - 1, 0)), "out-of-bounds",
           "ld.global", "4 bytes before the start of the nearest buffer, `array 1: float32 (64,)`", at=(0, -4)),
    Broken(_addresses("far_away", lambda: (floats(64), ramp(64), ramp(64)), ramp(64)), "out-of-bounds", "ld.global",
           "past the end of the nearest buffer, `array 1: float32 (64,)`", at=(1, 4 * 0x3F800000)),
    Broken(_addresses("neighbours_buffer", lambda: (floats(256), ramp(128), ramp(128), 1), 2 * np.tile(ramp(128), 2),
           threads=128, blocks=2), "out-of-bounds", "ld.global",
           "4 bytes past the end of the nearest buffer, `array 1: float32 (128,)`", at=(0, 512), block=(1, 0, 0)),
    Broken(_addresses("misaligned_global", lambda: (floats(256), ramp(260)), ramp(260)[4:]), "misaligned",
           "ld.global.v4",
           "16-byte access of global memory at an address that is not a multiple of 16, 4 bytes into `array 1: ",
           at=(0, 4)),
    Broken(_addresses("shared_static", lambda: (floats(64), ramp(64)), np.roll(ramp(64), -1)), "out-of-bounds",
           "ld.shared", "4 bytes past the end of the block's 256 bytes of shared memory", at=(63, 256)),
    Broken(_addresses("shared_dynamic", lambda: (floats(64), ramp(64), 48), ramp(64) % 48, shared_bytes=192),
           "out-of-bounds", "st.shared", "4 bytes past the end of the block's 192 bytes of shared memory",
           at=(48, 192)),
    Broken(_addresses("local_index", lambda: (zeros(4), np.array([3, 8, 9, 2], np.int32)), np.array([5, 140, 140, 1]),
           threads=4), "out-of-bounds", "st.local", "4 bytes past the end of the thread's 32 bytes of local memory",
           at=(2, 32)),
)  # fmt: skip

INITIAL = (
    Broken(Launch("memory.cu", "half_filled_tile", lambda: (floats(64), ramp(64)), ramp(64)[::-1]), "uninitialised",
           "ld.shared", "4-byte read of shared memory not written before", at=(0, 252)),
    Broken(Launch("races.cu", "no_wait", lambda: (floats(64), ramp(256)), ramp(256)[:191:-1]), "uninitialised",
           "ld.shared", "not written before, which the cp.async of line ", at=(0, 1020)),
)  # fmt: skip

BARRIERS = (
    Broken(Launch("warps.cu", "barrier_in_a_branch", lambda: (floats(32), ramp(32)), ramp(32) % 16, threads=32),
           "divergent-barrier", "bar.sync", "lane 16 of warp 0 took another path", at=(0, None)),
    Broken(Launch("warps.cu", "exit_before_barrier", lambda: (floats(64), ramp(64), 32),
           np.r_[ramp(32)[::-1], np.zeros(32)]), "deadlock", "bar.sync",
           "expected 64 threads, found 32 arrived, 32 exited", at=(0, None)),
    Broken(Launch("barriers.ptx", "guarded_barrier", lambda: (zeros(64),), np.arange(64)), "divergent-barrier",
           "bar.sync", "lane 1 of warp 0 took another path", at=(0, None)),
)  # fmt: skip

ENDLESS = (
    Broken(Launch("warps.cu", "stride_of_zero", lambda: (zeros(100), 100), np.arange(100), threads=32), "budget", "",
           "the instruction budget is spent", at=(0, None)),
    Broken(Launch("warps.cu", "spin_on_a_flag", lambda: (zeros(64), zeros(2)), np.arange(64) // 32, threads=32,
           blocks=2), "endless-loop", "", "nobody else can store anything", at=(0, None)),
)  # fmt: skip

WARPS = (
    Broken(Launch("warps.cu", "absent_lanes", lambda: (zeros(32),),
           np.where(np.arange(32) < 16, np.arange(32) + (np.arange(32) ^ 8), np.arange(32)), threads=32),
           "divergent-warp", "shfl.sync", "lanes that the membermask names are not there", at=(0, None),
           also="found lanes 0xffff0000"),
    Broken(Launch("warps.cu", "misaligned_row", lambda: (zeros(32),), np.arange(32) // 4 * 0x10001, threads=32),
           "misaligned", "ldmatrix", "16-byte access of shared memory at an address that is not a multiple of 16",
           at=(1, 20)),
    Broken(Launch("warps.cu", "matrix_in_a_branch", lambda: (zeros(32),),
           2 * np.arange(32) % 32 + (2 * np.arange(32) + 1) % 32 * 0x10000, threads=32), "divergent-warp", "ldmatrix",
           ".aligned: all 32 lanes of a warp execute it together", at=(0, None)),
)  # fmt: skip

UNDEFINED = (
    Broken(Launch("memory.cu", "partial_sums", lambda: (floats(8), ramp(8)), np.array([28] + 7 * [0]), threads=32),
           "undefined", "st.global", "an undefined value is stored", at=(1, None), also="what `shfl.sync.down.b32"),
    Broken(Launch("memory.cu", "chosen_by_nobody", lambda: (floats(8), ramp(8), np.arange(8, dtype=np.int32)),
           np.array([1, 2, 3, 4, 5, 6, 7, 0]), threads=32), "undefined", "ld.global",
           "an undefined value is an address", at=(7, None)),
)  # fmt: skip

REFUSED = (
    Broken(Launch("warps.cu", "binary_mma", lambda: (zeros(32),), np.full(32, 64), threads=32), "unsupported",
           "mma.sync.aligned.m8n8k128", "nearest supported: ", at=(None, None), block=None),
)  # fmt: skip

BROKEN = (*ADDRESSES, *INITIAL, *BARRIERS, *ENDLESS, *WARPS, *UNDEFINED, *REFUSED)

LOCAL_HOLE = Launch(  # not an error: unoptimised code copies whole structures, holes included
    "memory.cu",
    "local_hole",
    lambda: (zeros(4), np.array([0, 4, 5, 1], np.int32), 5),
    np.array([100, 104, 105, 101]),
    threads=4,
)

RACES = (
    Race(Launch("races.cu", "read_too_early", lambda: (floats(64), ramp(64)), ramp(64)[::-1]), "RAW", "shared",
         "st.shared", "ld.shared", (63, 0), 252),
    Race(Launch("races.cu", "overwritten_too_early", lambda: (floats(64), ramp(192), 3),
         ramp(192).reshape(3, 64).sum(0)[::-1]), "WAR", "shared", "ld.shared", "st.shared", (63, 0), 0),
    Race(Launch("races.cu", "two_writers", lambda: (zeros(64),), np.full(64, 11)), "WAW", "shared", "st.shared",
         "st.shared", (0, 32), 0),
    Race(Launch("races.cu", "no_syncwarp", lambda: (floats(32), ramp(32)), ramp(32).reshape(-1, 2)[:, ::-1].ravel(),
         32), "RAW", "shared", "st.shared", "ld.shared", (1, 0), 4),
    Race(Launch("races.cu", "shuffle_as_fence", lambda: (floats(32), ramp(32)), 2 * (np.arange(32) ^ 1), 32), "RAW",
         "shared", "st.shared", "ld.shared", (1, 0), 4),
    Race(Launch("races.cu", "matrix_of_others", lambda: (zeros(32), np.arange(32, dtype=np.int32)), np.arange(32), 32),
         "RAW", "shared", "st.shared", "ldmatrix", (1, 0), 4),
    Race(Launch("races.cu", "matrix_overwritten", lambda: (zeros(32), np.arange(32, dtype=np.int32)),
         np.arange(32) + 1, 32), "WAR", "shared", "ldmatrix", "st.shared", (0, 1), 4),
    Race(Launch("races.cu", "lanes_collide", lambda: (zeros(32), np.arange(32, dtype=np.int32)), np.full(32, 3), 32),
         "same-instruction write", "shared", "st.shared", "st.shared", (3, 4), 0, numbers_right=False),
    Race(Launch("races.cu", "stale_tile", lambda: (floats(64), ramp(256)), ramp(256)[:191:-1]), "in-flight read",
         "shared", "cp.async", "ld.shared", (63, 0), 1020, numbers_right=False),
    Race(Launch("races.cu", "wait_without_barrier", lambda: (floats(64), ramp(256)), ramp(256)[:191:-1]), "RAW",
         "shared", "cp.async", "ld.shared", (63, 0), 1020),
    Race(Launch("races.cu", "prefetch_too_early", lambda: (floats(64), ramp(768), 3),
         ramp(768).reshape(3, 256).sum(0)[:191:-1]), "WAR", "shared", "ld.shared", "cp.async", (63, 48), 768),
    Race(Launch("races.cu", "lost_update", lambda: (zeros(1),), np.array([10]), threads=32, blocks=4), "WAW", "global",
         "st.global", "st.global", (0, 0), 0, blocks=(3, 0), numbers_right=False),
    Race(Launch("races.cu", "neighbours_result", lambda: (zeros(64), zeros(64)), 2 * (np.arange(64) ^ 32), 32, 2),
         "RAW", "global", "st.global", "ld.global", (0, 0), 0, blocks=(1, 0)),
)  # fmt: skip
