"""A part that breaks its contract (kernels/*/contracts.cuh) fails with one line: concern, member, part."""

from __future__ import annotations

from pathlib import Path
import re
import shutil
import subprocess

import pytest

from flashladder.build.compile import compile_many, tools_of
from flashladder.ladder.iteration import load_iteration
from flashladder.names import PUBLISHED_GPU
from flashladder.paths import KERNELS
from flashladder.tool_runs import clean_environment
from tests.data_files import table_of
from tests.typed import error_line

pytestmark = pytest.mark.nvcc


@pytest.mark.parametrize(("number", "file", "old", "new", "says"), table_of("nvcc/contracts", "members"))
def test_a_part_without_a_member_is_named(
    tmp_path: Path, number: int, file: str, old: str, new: str, says: str
) -> None:
    kernels = shutil.copytree(KERNELS, tmp_path / "kernels")
    step = load_iteration(number)
    part = kernels / step.family.name / file
    text = part.read_text(encoding="utf-8")
    assert old in text
    part.write_text(text.replace(old, new), encoding="utf-8")
    job = step, step.configs[PUBLISHED_GPU], step.family.targets.arches[0]
    line = error_line(compile_many, [job], kernels=kernels)
    assert f"nvcc: static assertion failed with {says}; the full log is " in line
    assert f"{step.family.name}/contracts.cuh:" in line


@pytest.mark.parametrize(
    ("family", "space", "n_contracts", "least"),
    [("ampere", "flashladder::contract", 10, 21), ("hopper", "flashladder::hopper::contract", 9, 27)],
)
def test_a_part_with_nothing_breaks_every_promise_of_every_contract(
    tmp_path: Path, family: str, space: str, n_contracts: int, least: int
) -> None:
    """Each message of the page appears for a part that is empty, so that none of them asserts nothing.

    Those of a lazy softmax do for one that has nothing but its first step.
    """
    text = (KERNELS / family / "contracts.cuh").read_text(encoding="utf-8")
    contracts = re.findall(r"^template <typename Part>\nstruct (\w+)", text, re.MULTILINE)
    promised = set(re.findall(r'"([\w\' ]+ must have [^"]+)"', text))
    assert len(contracts) == n_contracts
    asserted = re.findall(r"static_assert\(((?:!?lazy|packed) \|\| )?has_", text)
    assert len(promised) == len(asserted) >= least
    assert asserted.count("!lazy || ") == (5 if family == "hopper" else 0)
    unit = tmp_path / "nothing.cu"
    made = "".join(f"template struct {space}::{name}<Nothing>;\n" for name in contracts)
    begun = "struct Begun { template <typename... T> static void weigh(T &&...); };\n"
    made += f"template struct {space}::Softmax<Begun>;\n"
    parts = f"struct Nothing {{}};\n{begun}"
    unit.write_text(f'#include "{family}/contracts.cuh"\n{parts}{made}', encoding="utf-8")
    tools = tools_of()
    command = [tools.nvcc, "-ptx", *tools.nvcc_flags, f"-I{KERNELS}", "-ccbin", tools.host_compiler, unit]
    done = subprocess.run(
        [*map(str, command), "-o", str(tmp_path / "nothing.ptx")],
        env=clean_environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    log = done.stdout + done.stderr
    assert {message for message in promised if message not in log} == set()
