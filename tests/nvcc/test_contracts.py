"""A part that breaks its contract (kernels/ampere/contracts.cuh) fails with one line: concern, member, part."""

from __future__ import annotations

from pathlib import Path
import re
import shutil
import subprocess

import pytest

from flashladder.build.compile import compile_many, tools_of
from flashladder.errors import FlashladderError
from flashladder.ladder.iteration import load_iteration
from flashladder.paths import KERNELS
from flashladder.toolchain.environment import clean_environment

pytestmark = pytest.mark.nvcc


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (
            "gmem/static_stride.cuh", "void next(", "void nexts(",
            "\"Gmem must have 'void next<rows>()': after a tile was copied\": found flashladder::StaticStride<2048>",
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


def test_a_part_with_nothing_breaks_every_promise_of_every_contract(tmp_path: Path) -> None:
    """Each message of the page appears for a part that is empty, so that none of them asserts nothing."""
    text = (KERNELS / "ampere" / "contracts.cuh").read_text(encoding="utf-8")
    contracts = re.findall(r"^template <typename Part>\nstruct (\w+)", text, re.MULTILINE)
    promised = set(re.findall(r'"(\w+ must have [^"]+)"', text))
    assert len(contracts) == 10
    assert len(promised) == text.count("static_assert(") > 20
    unit = tmp_path / "nothing.cu"
    made = "".join(f"template struct flashladder::contract::{name}<Nothing>;\n" for name in contracts)
    unit.write_text(f'#include "ampere/contracts.cuh"\nstruct Nothing {{}};\n{made}', encoding="utf-8")
    tools = tools_of()
    command = [tools.nvcc, "-ptx", *tools.nvcc_flags, f"-I{KERNELS}", "-ccbin", tools.host_compiler, unit]
    done = subprocess.run(
        [*map(str, command), "-o", str(tmp_path / "nothing.ptx")],
        env=clean_environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    log = done.stdout + done.stderr
    assert {message for message in promised if message not in log} == set()
