"""The doctor: each thing that can be lacking is recognised and comes with what to do about it."""

from __future__ import annotations

import json
from pathlib import Path
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from flashladder.gpu import doctor, doctor_gpu
from flashladder.gpu.doctor_gpu import Finding
from flashladder.paths import ROOT
from flashladder.toolchain import wheels
from flashladder.toolchain.wheels import load_pins


def test_this_machine_gets_a_finding_of_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor.main(["--json"])
    told = json.loads(capsys.readouterr().out)
    names = {finding["name"] for finding in told["findings"]}
    assert names >= {"python", "compiler", "toolchain", "ninja", "torch", "uv", "disk", "gpu", "driver", "counters"}
    assert told["rung"] in doctor_gpu.RUNGS
    assert code == (0 if told["can"] else 2)


def test_everything_lacking_has_a_remedy() -> None:
    diagnosis = doctor.diagnose()
    assert [finding.name for finding in diagnosis.findings if not finding.ok and not finding.remedy] == []


def test_a_missing_compiler_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    finding = doctor.compiler()
    assert not finding.ok
    assert "install" in finding.remedy


def test_a_missing_program_of_the_toolchain_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "NVCC_RUNS", ("nvvm/bin/no_cicc",))
    finding = doctor.toolchain()
    assert not finding.ok
    assert "nvvm/bin/no_cicc" in finding.found
    assert "install" in finding.remedy


def test_a_file_of_pins_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pins = tmp_path / "toolchain.yaml"
    pins.write_bytes(b"cuda: \xfc\n")
    monkeypatch.setattr(wheels, "load_pins", lambda: load_pins(pins))
    finding = doctor.toolchain()
    assert not finding.ok
    assert finding.found.startswith(f"{pins}: not UTF-8")
    assert "UTF-8" in finding.remedy


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


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    finding = doctor.disk(tmp_path, needed_gb=1e9)
    assert not finding.ok
    assert "free space" in finding.remedy
    assert doctor.disk(tmp_path, needed_gb=0.0).ok


def test_a_cpu_torch_beside_a_gpu_is_lacking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text("cuda: Optional[str] = None\n")
    (tmp_path / "torch-2.13.0.dist-info").mkdir()
    (tmp_path / "torch-2.13.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n"
    )
    ask = "from flashladder.gpu import doctor; print(doctor.torch(True)); print(doctor.torch(False))"
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    reply = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    with_gpu, without = reply.stdout.splitlines()
    assert "ok=False" in with_gpu
    assert "CUDA build" in with_gpu
    assert "ok=True" in without
    assert "CPU only" in without


@pytest.mark.parametrize(
    ("text", "admin", "ncu", "ok", "words"),
    [
        ("RmProfilingAdminOnly: 1\n", False, "ncu", False, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("RmProfilingAdminOnly: 1\n", True, "ncu", True, "allowed to administrators"),
        ("RmProfilingAdminOnly: 0\n", False, "ncu", True, "allowed"),
        ("RmProfilingAdminOnly: 0\n", False, None, False, "install Nsight Compute"),
        ("Something: 0\n", False, "ncu", False, "ERR_NVGPUCTRPERM"),
    ],
)
def test_counter_rights(tmp_path: Path, text: str, admin: bool, ncu: str | None, ok: bool, words: str) -> None:
    params = tmp_path / "params"
    params.write_text(text)
    finding = doctor_gpu.counters(Path(ncu) if ncu else None, params, admin=admin)
    assert finding.ok is ok
    assert words in finding.found + finding.remedy


def test_no_driver_means_no_counters(tmp_path: Path) -> None:
    assert not doctor_gpu.counters(Path("ncu"), tmp_path / "absent", admin=True).ok


@pytest.mark.parametrize(("mask", "expected"), [("0000000000200000", True), ("00000000a80425fb", False)])
def test_privilege_is_read_from_the_effective_capabilities(tmp_path: Path, mask: str, expected: bool) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tx\nCapPrm:\tffffffffffffffff\nCapEff:\t{mask}\n")
    assert doctor_gpu.privileged(status) is expected


@pytest.mark.parametrize(
    ("gpu", "counted", "clocks", "expected"),
    [
        (False, True, True, "CPU only"),
        (True, False, True, "GPU without counters"),
        (True, True, False, "GPU"),
        (True, True, True, "GPU with clock rights"),
    ],
)
def test_rungs(gpu: bool, counted: bool, clocks: bool, expected: str) -> None:
    assert doctor_gpu.rung(gpu, counted, clocks) == expected


@pytest.mark.parametrize(
    ("changes", "ok"), [({}, True), ({"arch": "sm_75"}, False), ({"mig": True}, False), ({"processes": 2}, False)]
)
def test_a_gpu_counts_when_it_is_whole_free_and_new_enough(changes: dict[str, object], ok: bool) -> None:
    facts: dict[str, object] = {
        "index": 0, "name": "NVIDIA H200", "arch": "sm_90", "memory_gib": 140.0, "power_w": 700.0, "mig": False,
        "processes": 0,
    }  # fmt: skip
    gpu = doctor_gpu.Gpu(**{**facts, **changes})  # type: ignore[arg-type]  # facts of mixed types
    assert doctor_gpu.gpu_finding([gpu]).ok is ok
    assert "NVIDIA H200" in doctor_gpu.gpu_finding([gpu]).found


class FakeNvml(ModuleType):
    """NVML as pynvml offers it, with one H200 that does not know MIG."""

    class NVMLError(Exception):
        """As pynvml's."""

    def __init__(self, cuda: int = 13000, *, works: bool = True) -> None:
        super().__init__("pynvml")
        self.cuda, self.works = cuda, works

    def nvmlInit(self) -> None:
        if not self.works:
            raise self.NVMLError("driver not loaded")

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return self.cuda

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.95.05"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return (9, 0)

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=140 * 2**30)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 700_000

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        raise self.NVMLError("not supported")

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[object]:
        return []


def test_a_gpu_is_described_as_nvml_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    found, gpu, driver = doctor_gpu.gpus()
    assert [(one.name, one.arch, one.memory_gib, one.power_w, one.mig) for one in found] == [
        ("NVIDIA H200", "sm_90", 140.0, 700.0, False)
    ]
    assert gpu.ok
    assert gpu.found == "0: NVIDIA H200 (sm_90, 140 GiB, 700 W)"
    assert driver.ok
    assert driver.found == "580.95.05, up to CUDA 13.0, NVML answers"


def test_an_old_driver_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(12040))
    _, _, driver = doctor_gpu.gpus()
    assert not driver.ok
    assert "580 or newer" in driver.remedy


@pytest.mark.parametrize("module", [FakeNvml(works=False), None])
def test_no_nvml_means_no_gpu(monkeypatch: pytest.MonkeyPatch, module: FakeNvml | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    found, gpu, driver = doctor_gpu.gpus()
    assert found == []
    assert not gpu.ok
    assert not driver.ok
    assert driver.remedy


def test_render_puts_remedies_under_what_is_lacking() -> None:
    findings = (Finding("uv", False, "not found", "run: pip install nox"), Finding("disk", True, "9 GB", "unused"))
    text = doctor.render(doctor.Diagnosis(findings, "CPU only", ()))
    assert "lacking  uv" in text
    assert "-> run: pip install nox" in text
    assert "unused" not in text
    assert "nothing until" in text


def test_a_useless_machine_exits_with_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda: doctor.Diagnosis((), "CPU only", ()))
    assert doctor.main([]) == 2
