"""The checker on a GPU: FA2 itself passes it as an operator, a wrong one fails, and every installed wheel is right."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU that torch can use", allow_module_level=True)

from flashladder.bench.references import reference_forward, reference_kernel
from flashladder.build.wheel import load_installed
from flashladder.cases.inputs import cases_for
from flashladder.cases.reference import References, Subject, check_case
from flashladder.check.command import check_iteration
from flashladder.errors import FlashladderError
from flashladder.gpu.device import open_device
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import load_all, load_iteration

pytestmark = pytest.mark.gpu
CONFIG = KernelConfig.parse("(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles")


def fa2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    out.copy_(reference_forward(q, k, v))


def no_softmax_scale(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    out.copy_(reference_forward(q * 2, k, v))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_fa2_itself_is_correct(dtype: str) -> None:
    subject = Subject(1, CONFIG.with_dtype(dtype), fa2)
    references = References()
    for case in cases_for(subject.config, quick=True):
        found = check_case(subject, case, references, repeats=2)
        assert found.status == "pass", f"{case.name}: {found.reason}"


def test_a_wrong_scale_is_caught() -> None:
    case = cases_for(CONFIG, quick=True)[0]
    assert check_case(Subject(1, CONFIG, no_softmax_scale), case, References(), repeats=2).status == "fail"


@pytest.mark.parametrize("number", [step.number for step in load_all()])
def test_every_installed_iteration_is_correct(number: int) -> None:
    here = "sm_{}{}".format(*torch.cuda.get_device_capability())
    if not load_iteration(number).family.runs_on(here):
        pytest.skip(f"iteration {number} needs {load_iteration(number).family.needs}")
    try:
        load_installed(number)
    except FlashladderError as error:
        pytest.skip(str(error))
    report = check_iteration(number, configs=["a100"], quick=True)
    assert report.passed, report.render()


def test_the_gpu_says_who_it_is() -> None:
    device = open_device()
    assert device.gpu.name == torch.cuda.get_device_name()
    assert device.gpu.uuid.startswith("GPU-")
    assert device.gpu.n_sm > 0
    assert device.telemetry.sample().sm_clock_mhz
    assert "flash" in (reference_kernel("fp16") or "flash: this profiler sees no kernels").lower()
