"""Sweeps on a GPU: the smoke grid as it is; then a fault, a hang and a wrong answer, each of its cell alone.

Run: ``pytest tests/gpu/test_sweep_gpu.py`` where the wheels of iterations 1, 7, 8, 14, 15 and 16 are installed.
"""

from __future__ import annotations

from functools import partial
import json
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU that torch can use", allow_module_level=True)

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult
from flashladder.sweep import command
from flashladder.sweep.records import Records
from flashladder.sweep.workers import run
from tests.null.sweep_fixture import SMALL, grid

pytestmark = pytest.mark.gpu
PLANTED = {**SMALL, "iterations": [1, 7, 8, 16], "seq_lens": [{"seq_len": 512, "batch": 2}]}
PLANTS = {"1": "illegal", "7": "hang", "8": "wrong"}
TIMEOUT_S = 40


def skip_without_wheels(error: FlashladderError) -> None:
    """Skips where kernels are not built; any other error is one."""
    if "not built here" in str(error):
        pytest.skip(str(error))
    raise error


def test_the_smoke_grid_is_measured_and_measured_once(tmp_path: Path) -> None:
    options = ["--grid", "smoke", "--out", str(tmp_path / "records"), "--no-build"]
    try:
        assert command.main(options) == 0
    except FlashladderError as error:
        skip_without_wheels(error)
    records = Records(tmp_path / "records")
    before = {address: records.path(address).read_bytes() for address in records.addresses()}
    packed = load_as(tmp_path / "records.json.gz", BenchResult)
    assert packed.sweep
    assert not packed.sweep.failures
    assert {cell.address for cell in packed.sweep.planned} == before.keys()
    assert {kernel.iteration for kernel in packed.kernels.values()} == {1, 7, 8, 14, 15, 16}
    assert command.main(options) == 0
    assert {address: records.path(address).read_bytes() for address in records.addresses()} == before


def test_a_fault_a_hang_and_a_wrong_answer_are_failures_of_their_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one GPU, one after the other: every cell after a failure is measured by a new worker where it must be."""
    grid(tmp_path, PLANTED, "planted")
    monkeypatch.setenv("PLANTS", json.dumps(PLANTS))
    real = vars(command)["run"]
    monkeypatch.setattr(command, "run", partial(run, module="tests.gpu.planted_gpu"))
    options = ["--grid", str(tmp_path / "planted.yaml"), "--out", str(tmp_path / "records"), "--no-build"]
    options += ["--gpus", "0", "--timeout", str(TIMEOUT_S)]
    with pytest.raises(FlashladderError) as caught:
        command.main(options)
    if not isinstance(caught.value, CheckFailed):
        skip_without_wheels(caught.value)
    assert caught.value.what.startswith("3 of 5 cells failed")
    assert caught.value.exit_code == 1
    records = Records(tmp_path / "records")
    found = {record.cell.subject: record for record in map(records.read, records.addresses())}
    assert {subject: one.failure.kind for subject, one in found.items() if one.failure} == {
        "1": "illegal-address", "7": "timeout", "8": "wrong"
    }  # fmt: skip
    assert {subject for subject, one in found.items() if one.document} == {"16", "fa2"}

    monkeypatch.setattr(command, "run", real)
    assert command.main([*options, "--retry"]) == 0
    assert all(records.read(address).document for address in records.addresses())
