"""The doctor: each thing that can be lacking is recognised and comes with what to do about it."""

from __future__ import annotations

from contextlib import nullcontext
import json
from pathlib import Path
import re
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from flashladder.errors import FlashladderError
from flashladder.gpu import doctor
from flashladder.gpu.doctor import CUDA_TORCH, EMULATOR, TorchBuild, n_gpus, require_gpu
from flashladder.sweep import place
from tests.data_files import table_of, text_of
from tests.null.gpu.test_telemetry import FakeNvml
from tests.typed import command, error_line

NO_GPU = "no GPU here: expected an NVIDIA GPU with its driver"
NO_TORCH = "no torch that can use the GPU here: expected a CUDA build, found "


def test_this_machine_gets_a_finding_of_each_kind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = command("doctor", "--json")
    told = json.loads(capsys.readouterr().out)
    names = {finding["name"] for finding in told["findings"]}
    assert names >= {"python", "compiler", "toolchain", "torch", "uv", "disk", "gpu", "driver", "counters"}
    assert all(finding["ok"] or finding["remedy"] for finding in told["findings"])
    assert told["rung"] in doctor.RUNGS
    assert code == (0 if told["can"] else 2)
    monkeypatch.setattr(doctor, "diagnose", lambda: doctor.Diagnosis((), "CPU only", ()))
    assert command("doctor") == 2


def test_a_file_where_builds_go_is_lacking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build = tmp_path / "build"
    build.touch()
    monkeypatch.setattr(doctor, "BUILD", build)
    diagnosis = doctor.diagnose()
    (finding,) = [one for one in diagnosis.findings if one.name == "disk"]
    assert not finding.ok
    assert str(build) in finding.found
    assert finding.remedy == "remove it"
    assert not any("compile" in one or "build" in one or "emulate" in one for one in diagnosis.can)
    build.unlink()
    for needed, ok in ((1e9, False), (0.0, True)):
        monkeypatch.setattr(doctor, "DISK_GB", needed)
        assert (doctor.disk().ok, "free space" in doctor.disk().remedy) == (ok, True)


def test_a_broken_file_is_mended_and_not_installed() -> None:
    look = Mock(side_effect=FlashladderError("not valid YAML", where="configs/toolchain.yaml:37"))
    assert doctor._looked_for("toolchain", look, "run: nox -s dev").remedy == "correct or restore the file"


@pytest.mark.parametrize("package", ["ptxemu", "numpy", "ml_dtypes"])
def test_the_emulator_lacks_what_is_not_installed(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    assert doctor.emulator().ok
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else name)
    finding = doctor.emulator()
    assert (finding.ok, finding.found) == (False, f"{package} not installed")
    assert package.replace("_", "-") in finding.remedy


def test_a_cpu_torch_beside_a_gpu_is_lacking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text("cuda: Optional[str] = None\n")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    found = {gpu: doctor.torch(gpu) for gpu in (True, False)}
    assert {gpu: one.ok for gpu, one in found.items()} == {True: False, False: True}
    assert "CUDA build" in found[True].remedy
    assert "CPU only" in found[False].found


@pytest.mark.parametrize(("text", "admin", "ncu", "ok", "words"), table_of("null/gpu/doctor", "counter_rights"))
def test_counter_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, admin: bool, ncu: str | None, ok: bool, words: str
) -> None:
    params, status = tmp_path / "params", tmp_path / "status"
    params.write_text(text)
    status.write_text(f"CapPrm:\tffffffffffffffff\nCapEff:\t{'0000000000200000' if admin else '00000000a80425fb'}\n")
    assert doctor.privileged(status) is admin
    monkeypatch.setattr(doctor, "find_ncu", lambda: ncu)
    finding = doctor.counters(params, status)
    assert finding.ok is ok
    assert words in finding.found + finding.remedy


@pytest.mark.parametrize("module", [FakeNvml(refused=("nvmlInit",)), None])
def test_no_nvml_means_no_gpu(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    gpu, driver = doctor.gpus()
    assert (gpu.ok, gpu.found, driver.ok, bool(driver.remedy)) == (False, "none", False, True)


@pytest.mark.parametrize(("changes", "ok", "text"), table_of("null/gpu/doctor", "counts"))
@pytest.mark.parametrize("cuda", [13000, 12040])
def test_a_gpu_counts_when_it_is_whole_free_and_new_enough(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], ok: bool, text: str, cuda: int
) -> None:
    nvml = FakeNvml()
    nvml.answers |= {"nvmlSystemGetCudaDriverVersion": cuda, **changes}
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpu, driver = doctor.gpus()
    assert gpu.ok is ok
    assert text in gpu.found
    assert driver.ok is (cuda >= 13000)
    assert driver.found.startswith("580.1, up to CUDA 1")
    assert "580 or newer" in driver.remedy


@pytest.mark.parametrize(
    ("gpus", "build", "message"),
    [
        (0, TorchBuild("2.11.0+cu130", "13.0"), f"{NO_GPU}; {EMULATOR}; beside a GPU, {CUDA_TORCH}"),
        (1, TorchBuild("2.11.0+cpu", None), f"{NO_TORCH}torch 2.11.0+cpu, CPU only; {CUDA_TORCH}; {EMULATOR}"),
        (1, None, f"{NO_TORCH}none; {CUDA_TORCH}; {EMULATOR}"),
        (2, TorchBuild("2.11.0+cu130", "13.0"), None),
    ],
)
def test_what_is_missing_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, gpus: int, build: TorchBuild | None, message: str | None
) -> None:
    monkeypatch.setattr(doctor, "n_gpus", lambda: gpus)
    monkeypatch.setattr(doctor, "torch_build", lambda: build)
    with pytest.raises(FlashladderError, match=re.escape(message)) if message else nullcontext():
        require_gpu()


@pytest.mark.skipif(n_gpus() > 0, reason="says what happens without a GPU")
@pytest.mark.parametrize("module", ["check", "bench"])
def test_without_a_gpu_no_second_is_spent_on_importing_torch(module: str) -> None:
    program = text_of("null/gpu/doctor", "without_torch").replace("MODULE", module)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no GPU here" in done.stdout + done.stderr


def test_a_sweep_sees_each_card_with_its_name_uuid_and_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setattr(place, "require_gpu", lambda _: None)
    (card,) = place.cards({})
    assert (card.index, card.name, card.uuid, card.arch) == (0, "NVIDIA H200", "GPU-1", "sm_90")
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(refused=("nvmlInit",)))
    assert "no GPU answers through NVML" in error_line(place.cards, {})
