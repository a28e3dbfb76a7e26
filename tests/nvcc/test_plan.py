"""A family's plan in C++ hands over, byte for byte, what its launch in Python does.

Why: the emulator runs what `Family.launch` says, a GPU what `plan.cpp` says; here both are asked for one problem.
"""

from __future__ import annotations

import json
from pathlib import Path
import subprocess
from typing import Any

import numpy as np
import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder.families.ampere import FAMILY as AMPERE
from flashladder.ladder.family import Family
from flashladder.ladder.iteration import load_iteration
from flashladder.paths import KERNELS
from flashladder.toolchain.wheels import host_compiler
from tests.nvcc.row_family import rows

pytestmark = pytest.mark.nvcc

PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include "host/launch.h"

using namespace flashladder;

int main(int argc, char **argv) {
    long long n[32] = {};
    for (int i = 1; i < argc; ++i)
        n[i - 1] = std::atoll(argv[i]);
    const auto view = [&](int i) { return View{reinterpret_cast<void *>(n[i]), n[i + 1], n[i + 2], n[i + 3]}; };
    const KernelRow row{"", "fp16", static_cast<int>(n[0]), static_cast<int>(n[1]), 128, 128, 0, 80, 0, nullptr};
    const Launch found = plan(row, Problem{view(2), view(6), view(10), view(14), n[18], n[19], n[20]});
    std::printf("{\"grid\": [%u, %u, %u], \"cluster\": [%u, %u, %u], \"bytes\": \"", found.grid.x, found.grid.y,
                found.grid.z, found.cluster.x, found.cluster.y, found.cluster.z);
    for (const unsigned char byte : found.arguments)
        std::printf("%02x", byte);
    std::printf("\"}\n");
}
"""


def packed(value: Any, padding: bytes) -> tuple[bytes, int]:
    """A member as C lays it out, and its alignment: a tuple is a structure, an array its address."""
    if isinstance(value, np.ndarray):
        value = np.uint64(value.ctypes.data)
    if not isinstance(value, tuple):
        return value.tobytes(), value.itemsize
    found, widest = b"", 1
    for data, align in (packed(one, padding) for one in value):
        found += padding * (-len(found) % align) + data
        widest = max(widest, align)
    return found + padding * (-len(found) % widest), widest


def tensors() -> list[np.ndarray[Any, np.dtype[np.float16]]]:
    """Q, K, V and O, (2, 256, 3, 128): equal shapes, four layouts."""
    packed_heads = np.zeros((2, 256, 9, 128), np.float16)
    by_head = np.zeros((2, 3, 256, 128), np.float16)
    return [
        packed_heads[:, :, :3],
        packed_heads[:, :, 6:],
        by_head.transpose(0, 2, 1, 3),
        np.zeros((2, 256, 3, 128), np.float16),
    ]


@pytest.mark.parametrize(
    ("family", "plan", "config"),
    [
        (AMPERE, KERNELS / AMPERE.plan, load_iteration(16).configs["rtx3090"]),
        (rows.FAMILY, Path(rows.__file__).with_name("plan.cpp"), rows.RowConfig("fp16", 8)),
    ],
    ids=["ampere", "rows"],
)
def test_both_sides_hand_over_the_same(tmp_path: Path, family: Family, plan: Path, config: Any) -> None:
    try:
        compiler = host_compiler()
    except FlashladderError as error:
        pytest.skip(str(error))
    (tmp_path / "rows").symlink_to(Path(rows.__file__).parent)
    (tmp_path / "main.cpp").write_text(PROGRAM, encoding="utf-8")
    program = tmp_path / "plan"
    includes = [f"-I{KERNELS}", f"-I{tmp_path}"]
    command: list[str | Path] = [
        compiler,
        "-std=c++17",
        "-Wall",
        "-Werror",
        *includes,
        tmp_path / "main.cpp",
        plan,
        "-o",
        program,
    ]
    subprocess.run(command, check=True)
    given = tensors()
    views = [number for one in given for number in (one.ctypes.data, one.strides[0], one.strides[1], one.strides[2])]
    words = [config.B_r, config.B_c, *views, *given[0].shape[:3]]
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    wanted = family.launch(config, given)
    (arguments,) = wanted.arguments
    expected, other = (packed(arguments, padding)[0] for padding in (b"\0", b"\xff"))
    counted = [place for place in range(len(expected)) if expected[place] == other[place]]  # not what lies between
    handed = bytes.fromhex(found["bytes"])
    assert [handed[place] for place in counted] == [expected[place] for place in counted]
    assert not any(handed[len(expected) :])
    assert len(counted) > 100
    assert (tuple(found["grid"]), tuple(found["cluster"])) == (wanted.grid, wanted.cluster)
