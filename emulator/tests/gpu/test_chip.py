"""This machine's GPU computes what is expected and emulated; `tools/hw_*.py` do the same and keep the raw answers."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tests.cases.harness import collect
from tests.cases.replay import records
from tests.compile import NEEDS, root
from tests.hopper_programs.answers import ask
from tests.hopper_programs.program import programs

import ptxemu
from ptxemu.chip import Gpu, open_gpu
from ptxemu.errors import PtxemuError

pytestmark = pytest.mark.gpu
MODULES = collect()
STRUCTURE = Path(__file__).parents[1] / "data" / "structure.ptx"


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(open_gpu())
        except PtxemuError as error:
            pytest.skip(str(error))
        yield opened


@pytest.mark.parametrize("module", list(MODULES))
def test_the_hardware_agrees(gpu: Gpu, module: str) -> None:
    found = list(records(module, MODULES[module], gpu.load, gpu.reset, ptxemu.load))
    problems = [text for record in found for text in (record.error, record.against_expected, record.against_emulator)]
    assert [text for text in problems if text] == []


@pytest.mark.parametrize("machine", ["emulator", "gpu"])
def test_structures_and_dynamic_shared_memory(gpu: Gpu, machine: str) -> None:
    values = np.arange(4, dtype=np.float32)
    load = gpu.load if machine == "gpu" else ptxemu.load
    load(STRUCTURE).kernel().launch((1,), (1,), ((np.int64(7), values, 3), np.float32(0.5)), shared_bytes=65536)
    assert values.tolist() == [0, 1, 2, 1.5]


@pytest.mark.skipif(not root(), reason=NEEDS)
@pytest.mark.parametrize("name", programs())
def test_the_hopper_programs(gpu: Gpu, name: str) -> None:
    if not any(chip in gpu.name for chip in ("H100", "H200", "GH200")):
        pytest.skip(f"needs a Hopper GPU, found {gpu.name}")
    found = ask(gpu, programs()[name])
    assert (found["error"], found["against_expected"], found["distinct"]) == (None, None, 1)
