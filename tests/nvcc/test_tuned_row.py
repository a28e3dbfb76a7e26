"""Which kernel the bare operator runs on which GPU: the generated table and the choice from it, as one program.

Why: nothing here has a GPU; the choice is a function of the compute capability.
"""

from __future__ import annotations

from pathlib import Path
import subprocess

import pytest

from flashladder.build.library import TableRow, table_source
from flashladder.ladder.gpus import configs_for, tuned_from
from flashladder.ladder.iteration import load_iteration
from flashladder.ladder.selection import select_configs
from flashladder.paths import KERNELS
from flashladder.toolchain.wheels import host_compiler

pytestmark = pytest.mark.nvcc

CAPABILITIES = (80, 86, 87, 89, 90, 100, 103, 120, 999)
PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include "host/checks.h"

// A compute capability and a dtype, several times: what runs where nobody names a configuration.
int main(int argc, char **argv) {
    for (int at = 1; at + 1 < argc; at += 2) {
        flashladder::TensorFacts q{};
        q.dtype = argv[at + 1];
        try {
            std::puts(flashladder::select_row("", q, std::atoi(argv[at])).config);
        } catch (const std::exception &error) {
            std::puts(error.what());
        }
    }
}
"""


def taken(folder: Path, number: int, key: str, asked: list[tuple[int, str]]) -> list[str]:
    """What a library of an iteration, built with the configurations of a selection key, runs."""
    (folder / "empty.fatbin").write_bytes(bytes(64))
    step = load_iteration(number)
    rows = [
        TableRow(config, folder / "empty.fatbin", step.family, ("sm_80",), step.row_stride)
        for config in select_configs(step, key)
    ]
    source, program = folder / "main.cpp", folder / "program"
    source.write_text(PROGRAM + table_source("flashladder_97", rows, tuned_from(step.configs)), encoding="utf-8")
    command = [str(host_compiler()), "-std=c++17", "-Wno-unused-function", f"-I{KERNELS}", str(source)]
    subprocess.run([*command, "-o", str(program)], check=True)
    words = [str(word) for pair in asked for word in pair]
    return subprocess.run([str(program), *words], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("number", [7, 17, 19, 26])
def test_a_gpu_takes_the_configuration_that_the_iteration_gives_it(tmp_path: Path, number: int) -> None:
    """As `flashladder.forward` does, which knows the GPU's name too."""
    asked = [(capability, dtype) for capability in CAPABILITIES for dtype in ("fp16", "bf16")]
    configs = load_iteration(number).configs
    assert taken(tmp_path, number, "prog", asked) == [
        configs[configs_for(None, f"sm_{capability}")].with_dtype(dtype).short_form() for capability, dtype in asked
    ]


def test_without_the_tuned_one_it_is_the_first_that_was_built(tmp_path: Path) -> None:
    a100 = load_iteration(19).configs["a100"].short_form()
    assert taken(tmp_path, 19, "a100", [(90, "fp16"), (80, "fp16"), (0, "fp16")]) == [a100] * 3


def test_a_dtype_that_was_not_built_is_told(tmp_path: Path) -> None:
    short_form = load_iteration(19).configs["h200"].short_form()
    built, missing = taken(tmp_path, 19, short_form, [(90, "fp16"), (90, "bf16")])
    assert built == short_form
    assert missing == f"flashladder_97: q: expected a dtype that was built: {short_form}, found bf16"
