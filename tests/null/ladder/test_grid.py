"""Grids, GPUs and the selection of configurations: what is read, what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
import re
from unittest.mock import Mock

import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder import grid as grids
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.families.ampere import FAMILY
from flashladder.ladder.gpus import GPUS, gpu_key, load_gpus, require_fit
from flashladder.ladder.grid import PackedFile, load_grid
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
from flashladder.ladder.selection import one_config, select_configs
from flashladder.names import EXAMPLE
from flashladder.problem import Problem
from tests.data_files import table_of, text_of
from tests.typed import error_line

GRID = text_of("null/ladder/grid", "grid")
ALL = "exclude: [{dtypes: [fp16], why: It leaves nothing at all.}]"


@pytest.mark.parametrize(("old", "new", "line", "message"), table_of("null/ladder/grid", "malformed_grids"))
def test_malformed_grids(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert GRID.count(old) == 1
    (tmp_path / "g.yaml").write_text(GRID.replace(old, new), encoding="utf-8")
    assert error_line(lambda: load_grid("g", tmp_path)).startswith(f"{tmp_path / 'g.yaml'}:{line}: {message}")


@pytest.mark.parametrize("name", ["causal", "cross", "cross_short", "general", "grouped", "grouped_causal"])
def test_cells_of_a_grid_are_the_kernels_that_compute_its_problems(name: str) -> None:
    grid = load_grid(name)
    assert {cell.iteration.number for cell in grid.cells} == {*grid.iterations}
    assert {cell.shape for cell in grid.cells} == {*grid.shapes}
    assert not any(cell.config.refuses(cell.shape) for cell in grid.cells)
    assert len(grid.cells) == len(grid.iterations) * len(grid.dtypes) * len(grid.shapes)
    kinds = {"causal": "causal", "cross": "kv_len 512", "cross_short": "kv_len 77", "general": "",
             "grouped": "heads 32:8", "grouped_causal": "heads 32:8, causal"}  # fmt: skip
    assert {shape.kind for shape in grid.shapes} == {kinds[name]}


def test_lengths_of_packed_sequences_make_up_the_tokens_and_come_from_the_seed() -> None:
    lengths = PackedFile(shortest=128, longest=8192, seed=0).lengths(65536)
    assert sum(lengths) == 65536
    assert min(lengths[:-1]) >= 128
    assert max(lengths) <= 8192
    assert PackedFile(shortest=128, longest=8192, seed=0).lengths(65536) == lengths
    assert PackedFile(shortest=128, longest=8192, seed=1).lengths(65536) != lengths
    assert PackedFile(shortest=7, longest=7, seed=0).lengths(20) == (7, 7, 6)
    for name, mask in (("packed", "none"), ("packed_causal", "causal")):
        grid = load_grid(name)
        assert grid.shapes == (Problem.packing(lengths, n_heads=16, d_head=128, mask=mask),)
        assert {(cell.config.is_packed, cell.config.mask) for cell in grid.cells} == {(True, mask)}


def test_a_configuration_of_a_grid_fits_the_grids_gpu(tmp_path: Path) -> None:
    tall = "(FP16, 128, 256, 128, 8): async+load_0_0_0_tiles"
    text = GRID.replace('  - "16 - swizzle"\n', "").replace("prog", f'"{tall}"')
    (tmp_path / "large.yaml").write_text(text.replace("any", "rtx3090"), encoding="utf-8")
    (tmp_path / "fits.yaml").write_text(text.replace("any", "h200\npairs: 20"), encoding="utf-8")
    assert len(load_grid("fits", tmp_path).cells) == 1
    limit = "large.yaml:5: the configuration is too large for rtx3090: expected at most 101376 bytes of shared memory"
    assert limit in error_line(load_grid, "large", tmp_path)


def test_an_error_in_a_file_that_a_grid_needs_names_that_file(monkeypatch: pytest.MonkeyPatch) -> None:
    error = FlashladderError("not UTF-8", where="iterations/07_tuned.yaml:3")
    monkeypatch.setattr(grids, "load_description", Mock(side_effect=error))
    assert error_line(load_grid, "cpu") == "iterations/07_tuned.yaml:3: not UTF-8"


GOOD = text_of("null/ladder/grid", "good")
LIMIT = "  threads_per_block: {value: 1024, unit: thread/block, source: a guide}\n"


def test_a_drivers_name_leads_to_the_key_of_its_longest_pattern(tmp_path: Path) -> None:
    drivers = ("NVIDIA A100-SXM4-80GB", "nvidia geforce rtx 4090", "NVIDIA H200", "NVIDIA GeForce GTX 1080", "")
    assert [gpu_key(name) for name in drivers] == ["a100", "rtx4090", "h200", None, None]
    text = (GPUS / "h100.yaml").read_text()
    (tmp_path / "h100.yaml").write_text(text)
    own = text.replace("gpu: h100", "gpu: h100nvl").replace("NVIDIA H100*", "NVIDIA H100 NVL*")
    (tmp_path / "h100nvl.yaml").write_text(own)
    names = ("NVIDIA H100 NVL", "NVIDIA H100 80GB HBM3")
    assert [gpu_key(name, tmp_path) for name in names] == ["h100nvl", "h100"]
    (tmp_path / "h100pcie.yaml").write_text(text.replace("gpu: h100", "gpu: h100pcie").replace("H100*", "h100*"))
    load_gpus.cache_clear()
    assert "h100.yaml and h100pcie.yaml: two files name the same GPU" in error_line(gpu_key, "NVIDIA A100", tmp_path)


@pytest.mark.parametrize(("old", "new", "message"), table_of("null/ladder/grid", "malformed_gpus"))
def test_a_malformed_file_is_one_clear_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    (tmp_path / "z9.yaml").write_text(GOOD.replace(old, new))
    assert error_line(lambda: load_gpus(tmp_path)).startswith(f"{tmp_path / 'z9.yaml'}:{message}")


SHORT = "(FP16, 128, {}, {}, {}): async+eager+swizzled+load_2_2_2_tiles"


@pytest.mark.parametrize(
    ("key", "tile", "message"),
    [
        ("rtx3090", (128, 128, 4), None),
        ("h100", (256, 64, 4), "at most 255 registers per thread, as H100 has, found 256"),
        ("a100", (1024, 16, 64), "at most 1024 threads per CTA, as A100 has, found 2048"),
    ],
)  # fmt: skip
def test_a_configuration_fits_its_gpu(key: str, tile: tuple[int, int, int], message: str | None) -> None:
    config = KernelConfig.parse(SHORT.format(*tile))
    refused = pytest.raises(FlashladderError, match=f"too large for {key}: .*{message}")
    with refused if message else nullcontext():
        require_fit(key, config)


def test_the_gpu_of_a_configuration_is_described_and_compiled_for(tmp_path: Path) -> None:
    config = KernelConfig.parse(SHORT.format(64, 64, 4))
    (tmp_path / "z9.yaml").write_text(GOOD.replace("arch: sm_80", "arch: sm_70"))
    assert "no GPU z8 is described: expected z8.yaml, found z9" in error_line(require_fit, "z8", config, tmp_path)
    with pytest.raises(FlashladderError, match=r"no machine code is made for z9: expected sm_80, .*, found sm_70"):
        require_fit("z9", config, tmp_path)


LADDER = load_all()


@pytest.mark.parametrize("step", LADDER, ids=lambda step: step.slug)
def test_tune_is_all_minus_the_exclusions_and_holds_the_winners(step: Iteration) -> None:
    """Of iterations 18 and 19 only an A100's: those of the other GPUs fill an SM that the rules do not describe."""
    tune = set(select_configs(step, "tune", ("fp16",), mask="none", packed=False))
    legal, family = step.family.legal_configs(step.parts), step.family
    assert tune == {config for config in legal if not any(rule.excludes(config) for rule in family.exclusions)}
    assert tune >= {config for gpu, config in step.configs.items() if gpu == "a100" or step.number not in (18, 19)}
    assert tune < set(legal)


def test_a_tile_is_a_slice_of_tune() -> None:
    step = load_iteration(16)
    space = FAMILY.tuning_space(step.parts)
    for key in ("128,64", "128, 64"):
        assert set(select_configs(step, key, ("fp16",))) == {one for one in space if (one.B_r, one.B_c) == (128, 64)}


@pytest.mark.parametrize(("number", "key", "pieces"), table_of("null/ladder/grid", "bad_keys"))
def test_bad_keys(number: int, key: str, pieces: list[str]) -> None:
    message = error_line(lambda: one_config(load_iteration(number), key))
    assert all(piece in message for piece in pieces), message


@pytest.mark.parametrize(
    ("keys", "brief"),
    [
        (("h200", "prog:h200", "prog:h100", "64,64,4 0_0_2+opt"), "64,64,4 0_0_2+opt"),
        (("(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_0_2_tiles+opt_softmax",), "64,64,4 0_0_2+opt"),
        (("rtx3090", "rtx4090"), "128,32,4 2_2_2+buffer+opt"),  # runs what its neighbour does
        (("", "a100"), "64,64,4 0_2_2+opt"),
    ],
)
def test_one_spelling_in_every_command(keys: tuple[str, ...], brief: str) -> None:
    step = load_iteration(7)
    for key in keys:
        assert one_config(step, key).brief() == brief
        assert one_config(step, key, "bf16") == one_config(step, key).with_dtype("bf16")
        assert select_configs(step, key or "a100", ("fp16",)) == (one_config(step, key),)


def test_every_configuration_has_a_name_a_file_name_and_a_spelling_of_its_own() -> None:
    slugs = dict[str, KernelConfig]()
    for step in LADDER:
        for config in step.family.legal_configs(step.parts):
            assert one_config(step, config.brief()) == config
            for one in (config, config.with_dtype("bf16")):
                assert KernelConfig.parse(one.short_form()) == one
                assert slugs.setdefault(one.slug(), one) == one
    assert all(re.fullmatch(r"[a-z0-9_]{1,120}", slug) for slug in slugs)


@pytest.mark.parametrize(
    "text",
    [
        *("", "prog", EXAMPLE + "\n", EXAMPLE.lower(), EXAMPLE.replace("FP16", "FP32")),
        *(EXAMPLE.replace("64, 64", other) for other in ("64", "0, 64", "064, 64")),
        *(EXAMPLE.replace("load_2_2_2_tiles", other) for other in ("load_2_2_tiles", "load_2_02_2_tiles")),
        EXAMPLE.replace("eager+swizzled", "swizzled+eager"),
        EXAMPLE.replace("4)", "\N{ARABIC-INDIC DIGIT FOUR})"),
        "(FP16, 128, 128, 128, 2): stages_2_2+registers_0_0",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    assert "expected" in error_line(lambda: KernelConfig.parse(text))
