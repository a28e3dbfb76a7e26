"""An installed wheel is loaded only when its library is the one that its manifest names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import shutil
import sys
import types

import pytest

from flashladder.build.installed import load_installed
from flashladder.errors import FlashladderError
from flashladder.files import dump_json, sha256
from flashladder.ladder.config import KernelConfig
from tests.null.bench_fixture import FAST

LIBRARY = b"\x7fELF"
LOADS = """import torch
from pathlib import Path
Path(__file__).with_name("loaded").touch()
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """flashladder_76 as an installer leaves it, with a torch that has its operator."""
    torch = types.ModuleType("torch")
    operators = types.SimpleNamespace(flashladder_76=types.SimpleNamespace(forward_out=print))
    torch.__dict__["ops"] = operators
    monkeypatch.setitem(sys.modules, "torch", torch)
    folder = tmp_path / "flashladder_76"
    folder.mkdir()
    (folder / "__init__.py").write_text(LOADS)
    (folder / "_C.abi3.so").write_bytes(LIBRARY)
    (folder / "manifest.json").write_text(dump_json({"inputs_digest": "d", "library_sha256": sha256(LIBRARY)}))
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    sys.modules.pop("flashladder_76", None)


def test_a_whole_wheel_is_loaded(package: Path) -> None:
    found = load_installed(76)
    assert found.manifest["inputs_digest"] == "d"
    assert found.run is print
    assert (package / "loaded").exists()


def test_a_variant_is_loaded_beside_it_and_names_its_kernels(package: Path) -> None:
    name = "flashladder_76_minus_swizzle_cuda_13_1"
    variant = package.with_name(name)
    shutil.copytree(package, variant)
    kernels = {FAST: {"sm_90": {"text_sha256": "t", "registers": 255, "spill_stores": 40, "spill_loads": 44}}}
    manifest = {"inputs_digest": "v", "library_sha256": sha256(LIBRARY), "kernels": kernels}
    (variant / "manifest.json").write_text(dump_json(manifest))
    operators = sys.modules["torch"].__dict__["ops"]
    setattr(operators, name, types.SimpleNamespace(forward_out=repr))
    found = load_installed("76 - swizzle", "13.1")
    assert found.run is repr
    kernel = found.identity(KernelConfig.parse(FAST), "sm_90")
    assert (kernel.iteration, kernel.variant, kernel.text_sha256) == (76, " - swizzle cuda 13.1", "t")
    assert (kernel.registers, kernel.spill_stores, kernel.spill_loads) == (255, 40, 44)
    assert found.identity(KernelConfig.parse(FAST), "sm_86").registers is None
    assert kernel.key == f"76 - swizzle cuda 13.1 {FAST}"
    assert load_installed("76", "13.0").run is print
    sys.modules.pop(name)
    with pytest.raises(
        FlashladderError,
        match=r"iteration 76 \+ swizzle \(CUDA 13\.2\) is not installed here \(no module flashladder_76_plus_swizzle"
        r"_cuda_13_2\); nox -s build-iteration-76 -- \+ swizzle --toolchain 13\.2,",
    ):
        load_installed("76 + swizzle", "13.2")
    with pytest.raises(FlashladderError, match=r"iteration 76 - swizzle \(CUDA 13\.1\) was not built") as caught:
        found.require(KernelConfig.parse(FAST.replace("FP16", "BF16")))
    assert str(caught.value.hint).startswith('invoke build "76 - swizzle" --toolchain 13.1 --configs')


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("_C.abi3.so", "\x7fELG", "library is damaged: its digest is not the manifest's: expected .*, found "),
        ("_C.abi3.so", None, "cannot read the wheel's library"),
        ("manifest.json", "{}", "older than the digest of its library"),
        ("manifest.json", "{", "cannot read the wheel's manifest"),
        ("manifest.json", "7", "cannot read the wheel's manifest"),
        ("manifest.json", None, "cannot read the wheel's manifest"),
        ("__init__.py", "raise ImportError('undefined symbol')", "cannot be loaded: found undefined symbol"),
    ],
)
def test_a_damaged_wheel_is_one_line_before_it_is_loaded(
    package: Path, name: str, content: str | None, message: str
) -> None:
    if content is None:
        (package / name).unlink()
    else:
        (package / name).write_text(content)
    with pytest.raises(FlashladderError, match=f"{message}.*nox -s build-iteration-76") as caught:
        load_installed(76)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert not (package / "loaded").exists()
