"""Every instruction on its edge values: the emulator computes what an independent reference and a GPU say.

One test for each group of instructions runs all of its cases and names each that fails. With `--hw` the cases run on
this machine's GPU. `tests/data/emulator_cases.json.gz` has what an H200 answered.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.cases.harness import Case, collect, compare, entry_name, launch_case, pairs, ptx_of, run_case
from tests.cases.replay import Record, agree, digest, read

import ptxemu
from ptxemu.chip import Gpu
from ptxemu.table import ROWS
from ptxemu.values import BFLOAT16, Array

MODULES = collect()
ANSWERS = Path(__file__).parent / "data" / "emulator_cases.json.gz"
FLOAT = {"f16": np.dtype(np.float16), "bf16": BFLOAT16, "f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}


@cache
def emulated(module: str) -> list[dict[str, Array] | str]:
    """The outputs of each case of a group, or the error; the group is one PTX module that is parsed once."""
    found: list[dict[str, Array] | str] = []
    program = ptxemu.load(ptx_of(MODULES[module]))
    for index, case in enumerate(MODULES[module]):
        try:
            found.append(launch_case(case, program.kernel(entry_name(index))))
        except ptxemu.PtxemuError as error:
            found.append(str(error))
    return found


def differs(case: Case, outputs: dict[str, Array] | str) -> str | None:
    return f"{case.opcode}: {outputs}" if isinstance(outputs, str) else compare(case, outputs)


def on(gpu: Gpu, case: Case) -> dict[str, Array] | str:
    try:
        return run_case(case, gpu.load)
    except ptxemu.PtxemuError as error:
        gpu.reset()
        return str(error)


@pytest.mark.parametrize("module", MODULES)
def test_cases(module: str, hardware: Gpu | None) -> None:
    cases = MODULES[module]
    results = emulated(module) if hardware is None else [on(hardware, case) for case in cases]
    told = [(index, differs(case, result)) for index, (case, result) in enumerate(zip(cases, results, strict=True))]
    failed = [f"{module}[{index}] {what}" for index, what in told if what is not None]
    assert not failed, f"{len(failed)} of {len(cases)} cases:\n" + "\n".join(failed)


@cache
def answers() -> dict[str, Record]:
    """What the hardware answered, by digest of the case, text and inputs."""
    if not ANSWERS.is_file():
        pytest.skip(f"tests/data/{ANSWERS.name} is not there: measure with tools/hw_cases.py")
    return {record.digest: record for record in read(ANSWERS)[1]}


@pytest.mark.parametrize("module", MODULES)
def test_the_hardware_agrees(module: str) -> None:
    """With the expectations, and with the emulator; cases that have changed since are left out."""
    told = []
    for case, outputs in zip(MODULES[module], emulated(module), strict=True):
        record = answers().get(digest(case))
        if record is not None:
            assert record.error is None
            hardware = record.arrays(case)
            told += [compare(case, hardware), outputs if isinstance(outputs, str) else agree(case, hardware, outputs)]
    assert [difference for difference in told if difference] == []


def test_every_lane_row_has_a_case_and_most_forms_an_answer() -> None:
    covered = {case.opcode for cases in MODULES.values() for case in cases}
    assert covered <= set(ROWS)
    assert sorted(row.form for row in ROWS.values() if row.kind == "lane" and row.form not in covered) == []
    current = {digest(case) for cases in MODULES.values() for case in cases}
    answered = {record.opcode for record in answers().values() if record.digest in current}
    assert len(answered) > 0.9 * len(covered)


# --- the harness itself ----------------------------------------------------------------------------------------------


def adding(wrong: int = 0) -> Case:
    a, b = pairs("s32")
    with np.errstate(over="ignore"):
        expected = a + b
    expected[3] += wrong
    return Case("add.s32", "add.s32 d, a, b;", {"a": ("s32", a), "b": ("s32", b)}, {"d": "s32"}, {"d": expected})


def test_a_wrong_expectation_and_a_wrong_instruction_are_reported() -> None:
    outputs = run_case(adding(), ptxemu.load)
    assert compare(adding(), outputs) is None
    told = compare(adding(wrong=1), outputs)
    assert told is not None
    assert "add.s32: 1 of 1024 elements differ, first 3: a = 0 (0x00000000), b = -2147483648 (0x80000000)" in told
    assert told.endswith("d expected -2147483647 (0x80000001), found -2147483648 (0x80000000)")
    assert compare(adding(), run_case(replace(adding(), text="sub.s32 d, a, b;"), ptxemu.load)) is not None
    for n in (1, 31, 33, 128, 1000):  # any length is padded to whole warps
        values = np.arange(n, dtype=np.int32)
        case = Case("add.s32", "add.s32 d, a, 1;", {"a": ("s32", values)}, {"d": "s32"}, {"d": values + np.int32(1)})
        assert case.ctas * case.threads >= n
        assert compare(case, run_case(case, ptxemu.load)) is None


def judged(ptx_type: str, expected: float, found: float, tolerance: float = 0.0, absolute: float = 0.0) -> bool:
    dtype = FLOAT[ptx_type]
    zero, wanted = np.zeros(1, dtype), np.array([expected]).astype(dtype)
    case = Case("x", "", {"a": (ptx_type, zero)}, {"d": ptx_type}, {"d": wanted}, tolerance, "", absolute)
    return compare(case, {"d": np.array([found]).astype(dtype)}) is None


def test_how_floats_are_compared() -> None:
    """Bit by bit but for NaN; a tolerance is relative and never hides infinities or signs."""
    inf, nan = np.inf, np.nan
    for ptx_type in FLOAT:
        assert judged(ptx_type, nan, -nan)
        assert judged(ptx_type, inf, inf)
        for expected, found in ((nan, 1.0), (1.0, nan), (0.0, -0.0), (inf, -inf), (1.0, 1.0078125)):
            assert not judged(ptx_type, expected, found)
    assert judged("f32", 1.0, 1.0001, 1e-3)
    assert judged("f32", 0.0, -1e-7, 1e-3, absolute=1e-6)
    for expected, found, tolerance in (
        *((1.0, 1.01, 1e-3), (0.0, -0.0, 1e-3), (0.0, 1e-30, 1e-3)),
        *((3e38, inf, 10.0), (inf, 3e38, 10.0), (nan, 1.0, 10.0)),
    ):
        assert not judged("f32", expected, found, tolerance)
    wanted = np.array([0x7E003C00], np.uint32)
    for ptx_type, bits, good in (("f16x2", 0xFE013C00, True), ("f16x2", 0x7E003C01, False), ("b32", 0xFE013C00, False)):
        case = Case("x", "", {"a": (ptx_type, wanted)}, {"d": ptx_type}, {"d": wanted})
        assert (compare(case, {"d": np.array([bits], np.uint32)}) is None) == good
