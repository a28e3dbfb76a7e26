"""What is installed where, from manifests alone: the iteration's own environment first, and ten thousand questions."""

from __future__ import annotations

from pathlib import Path
import sys
import time

import pytest

from flashladder.errors import FlashladderError
from flashladder.files import dump_json, load_json
from flashladder.sweep.measure import inventory
from flashladder.sweep.measure.inventory import Code, Inventory, Place

CONFIG = "(FP16, 128, 128, 64, 4): async"


def wheel_in(folder: Path, package: str, text: str | None, arch: str = "sm_90") -> None:
    """A wheel's manifest as an installer leaves it in `folder`."""
    kernels = {CONFIG: {} if text is None else {arch: {"text_sha256": text}}}
    (folder / package).mkdir(parents=True, exist_ok=True)
    manifest = {"inputs_digest": f"inputs of {package}", "kernels": kernels}
    (folder / package / "manifest.json").write_text(dump_json(manifest))


@pytest.fixture
def here(tmp_path: Path) -> Place:
    return Place(Path("/here/python"), (tmp_path / "first", tmp_path / "second"))


def own(root: Path, number: int) -> Path:
    """The site-packages of the environment of an iteration, made."""
    folder = root / ".nox" / f"build-iteration-{number}" / "lib" / "python3.11" / "site-packages"
    folder.mkdir(parents=True)
    return folder


def test_variants_are_told_apart_and_found_in_any_folder_of_the_environment(tmp_path: Path, here: Place) -> None:
    wheel_in(here.folders[0], "flashladder_16", "a")
    wheel_in(here.folders[1], "flashladder_16_minus_swizzle", "b")
    wheel_in(here.folders[1], "flashladder_16_minus_swizzle_cuda_13_1", "c")
    found = Inventory(tmp_path, here)
    assert found.find(16, "", CONFIG, "sm_90") == Code(here, "a", compiled=True)
    assert found.find("16 - swizzle", "13.0", CONFIG, "sm_90") == Code(here, "b", compiled=True)
    assert found.find("16 - swizzle", "13.1", CONFIG, "sm_90") == Code(here, "c", compiled=True)
    assert found.find("16", "13.1", CONFIG, "sm_90") is None
    assert found.find("16", "", CONFIG.replace("64", "32"), "sm_90") is None
    with pytest.raises(FlashladderError, match="not a description"):
        found.find("cudnn", "", CONFIG, "sm_90")


def test_code_for_one_architecture_alone_is_that_gpus(tmp_path: Path, here: Place) -> None:
    wheel_in(here.folders[0], "flashladder_24", "a", "sm_90a")
    found = Inventory(tmp_path, here)
    assert found.find(24, "", CONFIG, "sm_90") == Code(here, "a", compiled=True)
    assert found.find(24, "", CONFIG, "sm_100") == Code(here, "inputs of flashladder_24", compiled=False)


def test_the_iterations_own_environment_comes_first(tmp_path: Path, here: Place) -> None:
    mine = own(tmp_path, 7)
    place = Place(tmp_path / ".nox" / "build-iteration-7" / "bin" / "python", (mine,))
    assert Inventory(tmp_path, here).place(7) is None
    wheel_in(here.folders[0], "flashladder_07", "here")
    assert Inventory(tmp_path, here).find(7, "", CONFIG, "sm_90") == Code(here, "here", compiled=True)
    wheel_in(mine, "flashladder_07", "own")
    assert Inventory(tmp_path, here).find(7, "", CONFIG, "sm_90") == Code(place, "own", compiled=True)
    assert Inventory(tmp_path, here).place(7) == place
    wheel_in(mine, "flashladder_07", "own", "sm_80")
    found = Inventory(tmp_path, here).find(7, "", CONFIG, "sm_90")
    assert found == Code(place, "inputs of flashladder_07", compiled=False)


@pytest.mark.parametrize("text", ["{", "7", "{}", '{"inputs_digest": 1}', '{"inputs_digest": "d", "kernels": []}'])
def test_a_broken_manifest_is_no_wheel(tmp_path: Path, here: Place, text: str) -> None:
    wheel_in(here.folders[0], "flashladder_16", "a")
    (here.folders[0] / "flashladder_16" / "manifest.json").write_text(text)
    assert Inventory(tmp_path, here).find(16, "", CONFIG, "sm_90") is None


def test_ten_thousand_questions_read_each_manifest_once(
    tmp_path: Path, here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 17):
        wheel_in(own(tmp_path, number), f"flashladder_{number:02d}", str(number))
    read: list[str] = []
    loads = load_json

    def counted(raw: bytes) -> object:
        read.append(raw.decode())
        return loads(raw)

    monkeypatch.setattr(inventory, "load_json", counted)
    found = Inventory(tmp_path, here)
    started = time.monotonic()
    codes = [found.find(str(1 + n % 16), ("", "13.1")[n % 3 == 2], CONFIG, "sm_90") for n in range(10_000)]
    assert time.monotonic() - started < 1  # second; 0.1 on an idle machine
    assert {code.code for code in codes if code} == {str(number) for number in range(1, 17)}
    assert len(read) == 16


def test_the_current_environment_is_this_interpreters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel_in(tmp_path, "flashladder_16", "a")
    monkeypatch.syspath_prepend(tmp_path)
    found = Inventory(tmp_path / "no checkout").find(16, "", CONFIG, "sm_90")
    assert found is not None
    assert (found.code, found.place.python) == ("a", Path(sys.executable))
