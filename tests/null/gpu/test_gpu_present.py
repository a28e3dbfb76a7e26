"""Without a GPU, or beside one without CUDA in torch, a command says so at once and says what works instead."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flashladder.errors import FlashladderError
from flashladder.gpu import present as gpu_present
from flashladder.gpu.present import TorchBuild, n_gpus, require_gpu, torch_build

INSTEAD = "`invoke check N --backend emulator` checks the PTX on this CPU"
NO_GPU = "no GPU here: expected an NVIDIA GPU with its driver"
NO_TORCH = "no torch that can use the GPU here: expected a CUDA build, found "
CUDA = "`pip install torch` brings a CUDA build on Linux"


@pytest.mark.parametrize(
    ("gpus", "build", "message"),
    [
        (0, TorchBuild("2.11.0+cu130", "13.0"), f"{NO_GPU}; {INSTEAD}; beside a GPU, {CUDA}"),
        (1, TorchBuild("2.11.0+cpu", None), f"{NO_TORCH}torch 2.11.0+cpu, CPU only; {CUDA}; {INSTEAD}"),
        (1, None, f"{NO_TORCH}none; {CUDA}; {INSTEAD}"),
        (2, TorchBuild("2.11.0+cu130", "13.0"), None),
    ],
)  # fmt: skip
def test_what_is_missing_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, gpus: int, build: TorchBuild | None, message: str | None
) -> None:
    monkeypatch.setattr(gpu_present, "n_gpus", lambda: gpus)
    monkeypatch.setattr(gpu_present, "torch_build", lambda: build)
    if message is None:
        require_gpu()
        return
    with pytest.raises(FlashladderError) as caught:
        require_gpu()
    assert (str(caught.value), caught.value.exit_code) == (message, 2)


def test_torch_is_described_as_it_describes_itself() -> None:
    import torch

    assert torch_build() == TorchBuild(torch.__version__, torch.version.cuda)


def test_a_driver_that_cannot_be_loaded_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", load)
    assert n_gpus() == 0


@pytest.mark.skipif(n_gpus() > 0, reason="says what happens without a GPU")
@pytest.mark.parametrize("module", ["check", "bench"])
def test_without_a_gpu_no_second_is_spent_on_importing_torch(module: str) -> None:
    program = f"""
import sys
from flashladder.{module} import command
from flashladder.errors import FlashladderError
try:
    command.main(["7"])
except (FlashladderError, SystemExit) as error:
    print(error)
sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no GPU here" in done.stdout + done.stderr
