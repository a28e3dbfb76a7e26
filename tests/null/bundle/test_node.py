"""What a bundle does on a node: the grid that fits, what did not come along, and the document that is carried home."""

from __future__ import annotations

from importlib import metadata
import json
from pathlib import Path
import sys

import pytest

from flashladder.bundle import make as node
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.ladder.grid import load_grid
from flashladder.sweep import command
from flashladder.sweep import place as devices
from tests.typed import error_line

CAME = {"name": ["flashladder-0.1.0-sm_90-cp312"], "arches": ["sm_90"], "grids": ["cpu", "h200"], "iterations": ["1"]}


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle's folder of builds, on a node with torch and without a GPU."""
    build = tmp_path / "build"
    build.mkdir()
    (build / node.FACTS).write_text(json.dumps(CAME), encoding="utf-8")
    monkeypatch.setattr(node, "BUILD", build)
    monkeypatch.setattr(node.facts, "__defaults__", (build,))
    monkeypatch.setattr(node, "n_gpus", lambda: 0)
    monkeypatch.chdir(tmp_path)
    return build


def with_card(monkeypatch: pytest.MonkeyPatch, name: str, arch: str) -> None:
    monkeypatch.setattr(node, "n_gpus", lambda: 1)
    monkeypatch.setattr(devices, "cards", lambda: [devices.Card(0, name, "GPU-0", arch)])


def swept(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> list[list[str]]:
    """A sweep that leaves a document, and ends in an error, or does not; what it was asked."""
    asked: list[list[str]] = []

    def main(words: list[str]) -> int:
        asked.append(words)
        records = Path(words[words.index("--out") + 1])
        records.mkdir(parents=True, exist_ok=True)
        records.with_name(f"{records.name}.json.gz").write_bytes(b"document")
        if error:
            raise error
        return 0

    monkeypatch.setattr(command, "main", main)
    return asked


@pytest.mark.parametrize(
    ("name", "arch", "grid"),
    [("NVIDIA H200", "sm_90", "h200"), ("NVIDIA A100-SXM4-80GB", "sm_80", "a100"), ("NVIDIA L4", "sm_89", "smoke")],
)
def test_the_grid_is_that_of_the_gpu(name: str, arch: str, grid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_card(monkeypatch, name, arch)
    assert node.grid_here() == grid


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, 0), (CheckFailed("1 of 64 cells failed"), 1), (FlashladderError("the budget is spent"), 2)],
)
def test_a_sweep_leaves_one_document_also_if_cells_failed_and_no_older_one(
    unpacked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    error: Exception | None, code: int,
) -> None:  # fmt: skip
    asked = swept(monkeypatch, error)
    with pytest.raises(SystemExit, match=str(code)):
        sys.exit(node.main(["sweep", "--out", "results", "--json"]))
    assert asked == [["--grid", "cpu", "--no-build", "--out", str(unpacked / "sweep" / "cpu"), "--json"]]
    out = unpacked.parent / "results"
    assert sorted(path.name for path in out.iterdir()) == ["cpu.bundle.json", "cpu.json.gz"] * (code < 2)
    if code < 2:
        assert (out / "cpu.json.gz").read_bytes() == b"document"
        about = json.loads((out / "cpu.bundle.json").read_text(encoding="utf-8"))
        assert (about["bundle"], about["sweep"]) == (CAME["name"][0], ["cpu", "--json"])
        assert "invoke verify cpu.json.gz" in capsys.readouterr().err


def test_what_did_not_come_along_is_told(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        "expected one of cpu, h200, found smoke; where there is a checkout: invoke bundle --grid smoke"
        in error_line(node.main, ["--grid", "smoke"])
    )
    with pytest.raises(FlashladderError, match=r"expected a bundle with a grid \(this one has none\), found smoke"):
        node.require_along(load_grid("smoke"), {**CAME, "grids": []}, own=False)
    assert "unknown grid" in error_line(node.main, ["--grid", "smok"])
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", lambda _: "2.9.1")
        assert "torch is missing or too old: expected 2.10 or later, found 2.9.1" in error_line(node.main, [])
    with_card(monkeypatch, "NVIDIA H200", "sm_90")
    node.require_along(load_grid("h200"), CAME, own=False)
    with_card(monkeypatch, "NVIDIA A100-SXM4-80GB", "sm_80")
    assert "found sm_80 (NVIDIA A100-SXM4-80GB); where there is a checkout: invoke bundle --arch sm_80" in error_line(
        node.main, ["--grid", "h200"]
    )
    with_card(monkeypatch, "NVIDIA B200", "sm_100")  # whose driver compiles the PTX
    node.require_along(load_grid("h200"), CAME, own=False)


def test_a_dry_run_asks_for_nothing(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = swept(monkeypatch)
    assert node.main(["--grid", "ablation", "--dry-run"]) == 0
    assert asked[0][-1] == "--dry-run"
    assert not (unpacked.parent / node.DEFAULT_OUT).exists()


def test_what_is_no_bundle_is_told(tmp_path: Path) -> None:
    (tmp_path / node.FACTS).write_text('{"name": 1}', encoding="utf-8")
    with pytest.raises(FlashladderError, match="not an unpacked bundle"):
        node.facts(tmp_path)
