"""Where a sweep runs: GPUs by index or UUID, of one model, locked; what is installed; what is built, and where."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
import sys

import pytest

from flashladder.errors import FlashladderError
from flashladder.files import dump_json
from flashladder.ladder.grid import load_grid
from flashladder.problem import Problem
from flashladder.results.schema import PlannedCell
from flashladder.sweep import place
from flashladder.sweep.place import MOST_CPUS, Card, chosen, code_of, cpus, fitting, place_of
from flashladder.sweep.plan import cell_of
from tests.typed import error_line

H200 = [Card(0, "NVIDIA H200", "GPU-aaaa-1", "sm_90"), Card(1, "NVIDIA H200", "GPU-bbbb-2", "sm_90")]
A100 = Card(2, "NVIDIA A100-SXM4-80GB", "GPU-cccc-3", "sm_80")


@pytest.mark.parametrize(
    ("text", "indices"), [("all", [0, 1]), ("0", [0]), ("1,0", [1, 0]), ("GPU-bbbb", [1]), (" 0 , GPU-bbbb-2", [0, 1])]
)
def test_gpus_are_chosen_by_index_or_uuid(text: str, indices: list[int]) -> None:
    assert [card.index for card in chosen(H200, text)] == indices


@pytest.mark.parametrize(
    ("text", "message"),
    [("2", "no such GPU: expected all, or some of 0 (GPU-aaaa-1), 1 (GPU-bbbb-2), found '2'"),
     ("0,0", "a GPU is named twice"), ("GPU-", "no such GPU"), ("", "no such GPU"), ("0,,1", "no such GPU")],
)  # fmt: skip
def test_other_words_are_one_line(text: str, message: str) -> None:
    assert message in error_line(lambda: chosen(H200, text))


def test_a_grid_takes_the_gpus_of_its_model() -> None:
    assert fitting([*H200, A100], "a100", anyway=False) == ([A100], None)
    assert fitting([*H200, A100], "h200", anyway=True) == (H200, None)


def test_one_table_mixes_no_models() -> None:
    with pytest.raises(FlashladderError, match=r"different models.*NVIDIA H200, NVIDIA A100.*--gpus"):
        fitting([*H200, A100], "any", anyway=False)
    assert "hides every GPU" in error_line(fitting, [], "any", anyway=True)


def test_a_gpu_is_measured_on_by_one_process_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(0, "NVIDIA H200", "GPU-test-of-the-lock", "sm_90")
    monkeypatch.setattr(place, "cards", lambda: [card])
    options = argparse.Namespace(gpus="all", anyway=False, dry_run=False)
    with place_of(load_grid("smoke"), options, []) as found:
        assert [(one.name, one.backend, one.environment["CUDA_VISIBLE_DEVICES"]) for one in found.devices] == [
            ("gpu0", "gpu", card.uuid)
        ]
        again = place_of(load_grid("smoke"), options, [])
        with pytest.raises(FlashladderError, match="another flashladder process measures on this GPU"), again:
            pass
        plan = argparse.Namespace(gpus="all", anyway=False, dry_run=True)
        with place_of(load_grid("smoke"), plan, []) as planned:  # without the lock
            assert planned == found
    with place_of(load_grid("smoke"), options, []):
        pass


def test_a_task_of_slurm_has_a_lane_per_cpu_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    for given, count in (("3", 3), ("64", MOST_CPUS), ("", MOST_CPUS)):
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", given)
        assert len(cpus()) == count


CONFIG = "(FP16, 128, 128, 64, 4): async"
SHAPE = Problem(batch=16, seq_len=4096, n_heads=16, d_head=128)


def cell(subject: str, cuda: str = "", config: str = CONFIG) -> PlannedCell:
    return cell_of(subject, config, "fp16", SHAPE, cuda)


def wheel_in(folder: Path, package: str, text: str | None, arch: str = "sm_90") -> None:
    """A wheel's manifest as an installer leaves it in `folder`."""
    kernels = {CONFIG: {} if text is None else {arch: {"text_sha256": text}}}
    (folder / package).mkdir(parents=True, exist_ok=True)
    manifest = {"inputs_digest": f"inputs of {package}", "kernels": kernels}
    (folder / package / "manifest.json").write_text(dump_json(manifest))
    place.wheel_of.cache_clear()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Two folders in which this interpreter looks for packages; a checkout without environments."""
    monkeypatch.setattr(place, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    place.wheel_of.cache_clear()
    yield tmp_path / "first", tmp_path / "second"
    place.wheel_of.cache_clear()


def test_variants_are_told_apart_and_found_in_any_folder_of_the_environment(here: tuple[Path, Path]) -> None:
    wheel_in(here[0], "flashladder_16", "a")
    wheel_in(here[1], "flashladder_16_minus_swizzle", "b")
    wheel_in(here[1], "flashladder_16_minus_swizzle_cuda_13_1", "c")
    variants = [cell("16"), cell("16 - swizzle", "13.0"), cell("16 - swizzle", "13.1")]
    assert [code_of(one, "sm_90") for one in variants] == [(sys.executable, d) for d in "abc"]
    assert code_of(cell("16", "13.1"), "sm_90")[1] == ""
    assert code_of(cell("16", config=CONFIG.replace("64", "32")), "sm_90") == (sys.executable, "")
    assert "not a description" in error_line(code_of, cell("nosuch"), "sm_90")


def test_the_iterations_own_environment_comes_first(tmp_path: Path, here: tuple[Path, Path]) -> None:
    environment = tmp_path / ".nox" / "build-iteration-7"
    mine, python = environment / "lib" / "python3.11" / "site-packages", str(environment / "bin" / "python")
    wheel_in(here[0], "flashladder_07", "here")
    assert code_of(cell("7"), "sm_90") == (sys.executable, "here")
    wheel_in(mine, "flashladder_07", "own")
    assert code_of(cell("7"), "sm_90") == (python, "own")


@pytest.mark.parametrize(
    ("arch", "digest"),
    [("sm_90", "a"), ("sm_80", ""), ("sm_120", "inputs of flashladder_24")],
    ids=["for one architecture alone", "made but not here", "the driver compiles the PTX"],
)
def test_code_is_for_an_architecture(here: tuple[Path, Path], arch: str, digest: str) -> None:
    wheel_in(here[0], "flashladder_24", "a", "sm_90a")
    assert code_of(cell("24"), arch)[1] == digest


@pytest.mark.parametrize("text", ["{", "7", '{"inputs_digest": "d", "kernels": []}'])
def test_a_broken_manifest_is_no_wheel(here: tuple[Path, Path], text: str) -> None:
    wheel_in(here[0], "flashladder_16", "a")
    (here[0] / "flashladder_16" / "manifest.json").write_text(text)
    assert code_of(cell("16"), "sm_90") == (sys.executable, "")
