"""A part that breaks its concern's contract (kernels/ampere/contracts.cuh) fails with one line: concern, member, part."""

from __future__ import annotations

from pathlib import Path
import shutil

import pytest

from flashladder.build.compile import compile_many
from flashladder.errors import FlashladderError
from flashladder.ladder.iteration import load_iteration
from flashladder.paths import KERNELS

pytestmark = pytest.mark.nvcc


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (
            "gmem/static_stride.cuh", "void seek(", "void seeks(",
            "\"Gmem must have 'void seek<rows>(int block)': before a tile is copied\": found flashladder::StaticStride<2048>",
        ),
        (
            "layout/xor_tiled.cuh", "half_bytes(", "half_size(",
            "\"Layout must have 'static constexpr int half_bytes(int rows)'\": found flashladder::XorTiled",
        ),
        (
            "operands/whole.cuh", "tile(int t)", "tile()",
            "\"Operand must have 'const uint32_t (&tile(int t) const)[x4s][4]'\": found flashladder::Whole<4, 8>",
        ),
    ],
)  # fmt: skip
def test_a_part_without_a_member_is_named(tmp_path: Path, file: str, old: str, new: str, says: str) -> None:
    kernels = shutil.copytree(KERNELS, tmp_path / "kernels")
    part = kernels / "ampere" / file
    text = part.read_text(encoding="utf-8")
    assert old in text
    part.write_text(text.replace(old, new), encoding="utf-8")
    last = load_iteration(16)
    with pytest.raises(FlashladderError) as caught:
        compile_many([(last, last.configs["a100"], "sm_80")], kernels=kernels)
    assert f"nvcc: static assertion failed with {says}; the full log is " in str(caught.value)
    assert "ampere/contracts.cuh:" in str(caught.value)
