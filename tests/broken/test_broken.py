"""Kernels that must be caught: each defect with its kind, place and words; its correct twin passes."""

from __future__ import annotations

import re

import numpy as np
import pytest

import ptxemu
from tests.broken import defects
from tests.broken.defects import BROKEN, KERNELS, LOCAL_HOLE, RACES, Broken, Launch, lines_of, load, marked, text_of

pytestmark = pytest.mark.nvcc
LAUNCHES = (*(case.launch for case in (*BROKEN, *RACES)), LOCAL_HOLE)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    defects.compile_all({launch.file for launch in LAUNCHES if launch.file.endswith(".cu")})


def base_of(address: int, message: str) -> int:
    """The address of the buffer that a message about global memory names; buffers begin at multiples of 512."""
    found = re.search(r"\(\d+ bytes at (0x[0-9a-f]+)\)", message)
    return int(found[1], 16) if found else address - address % 512


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: str(case.launch))
def test_the_defect_is_caught(case: Broken) -> None:
    with pytest.raises(ptxemu.EmulationError) as raised:
        case.launch.run(load(case.launch, fixed=False), ptxemu.Counters(), ptxemu.Hazards())
    error, message = raised.value, str(raised.value)
    assert error.kind == case.kind, message
    assert case.says in message
    assert case.also in message
    assert isinstance(error.instruction, ptxemu.Instruction)
    assert error.instruction.opcode.startswith(case.opcode)
    assert error.instruction.opcode in text_of(case.launch.file).splitlines()[error.line - 1]
    assert lines_of(error.instruction, case.launch.file) & marked(
        KERNELS / case.launch.file, "BROKEN", case.launch.kernel
    )
    thread, address = case.at
    assert (error.lane, error.block) == (thread, case.block)
    if address is None:
        assert error.address is None
    else:
        assert error.address is not None
        base = base_of(error.address, message) if "global" in case.says or "buffer" in case.says else 0
        assert error.address - base == address
    file = case.launch.file
    assert message.startswith(f"{file.replace('.cu', '.ptx')}:{error.line}: ")
    assert "\n" not in message
    assert f"`{error.instruction}`" in message
    if file.endswith(".cu"):
        assert any(f"kernels/{file}:{line}" in message for line in marked(KERNELS / file, "BROKEN", case.launch.kernel))
    if thread is not None:
        assert f"thread {thread} (warp {thread // 32}, lane {thread % 32})" in message
        assert f"block {case.block}" in message


@pytest.mark.parametrize("case", RACES, ids=lambda case: str(case.launch))
def test_the_race_is_reported(case: defects.Race) -> None:
    hazards, launch = ptxemu.Hazards(), case.launch
    numbers = launch.run(load(launch, fixed=False), hazards)
    hazard = next(report for report in hazards.reports if report.kind == case.kind)
    assert (hazard.space, hazard.count > 0) == (case.space, True)
    for instruction, opcode, mark in ((hazard.first, case.first, "FIRST"), (hazard.second, case.second, "BROKEN")):
        assert instruction.opcode.startswith(opcode)
        assert instruction.opcode in text_of(launch.file).splitlines()[instruction.line - 1]
        assert lines_of(instruction, launch.file) & marked(KERNELS / launch.file, mark, launch.kernel)
        assert f"line {instruction.line} from kernels/" in hazard.render()
    assert (hazard.first_thread, hazard.second_thread) == case.threads
    assert (hazard.first_block[0], hazard.block[0]) == case.blocks
    if case.space == "shared":
        assert hazard.address == case.address
    assert bool((numbers == launch.result).all()) == case.numbers_right


def test_local_memory_that_nobody_wrote_has_all_bits_set() -> None:
    numbers = LOCAL_HOLE.run(load(LOCAL_HOLE, fixed=False))
    assert numbers.tolist() == [100, 104, -1, 101]


@pytest.mark.parametrize("launch", LAUNCHES, ids=str)
def test_the_correct_twin_is_clean(launch: Launch) -> None:
    counters, hazards = ptxemu.Counters(), ptxemu.Hazards()
    numbers = launch.run(load(launch, fixed=True), counters, hazards)
    np.testing.assert_array_equal(numbers, launch.result)
    assert hazards.render() == ""
    assert counters.lane_instructions > 0


def test_every_kernel_of_the_folder_is_tried() -> None:
    defects.require_all_tried(KERNELS, {launch.kernel for launch in LAUNCHES})
