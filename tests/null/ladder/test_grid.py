"""Grids and the GPUs that they are for: committed files, what they select, and malformed ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder import grid as grids
from flashladder.ladder.grid import load_grid, runnable

GRID = """\
why: A grid that is only there to be wrong.
gpu: any
iterations:
  - 1
  - "16 - swizzle"
configs: prog
dtypes: [fp16]
seq_lens:
  - {seq_len: 512, batch: 1}
n_heads: 16
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (
            "gpu: any",
            "gpu: b200",
            2,
            ("bad value for 'gpu': expected one of any, a100, h100, h200, rtx3090, rtx4090, found 'b200'"),
        ),
        ("  - 1\n", "  - 29\n", 4, "no such iteration"),
        ("16 - swizzle", "16 - swizle", 5, "nothing named 'swizle' can be taken back from iteration 16"),
        (
            "  - 1\n",
            "  - [1]\n",
            4,
            ("bad value for 'iterations.0': expected a number or an ablation such as '16 - swizzle', found [1]"),
        ),
        ("  - 1\n", '  - "16-swizzle"\n', 5, "duplicate item in 'iterations': expected each once, found 16 - swizzle"),
        (
            "gpu: any",
            'toolchains: ["13.1", "9.9"]\ngpu: any',
            2,
            "no toolchain of this CUDA version is pinned: expected one of 13.0, 13.1, ",
        ),
        ("gpu: any", "gpu: any\nbudget_minutes: .inf", 3, "bad value for 'budget_minutes'"),
        (
            "n_heads: 16",
            "n_heads: 16\nexclude:\n  - {dtypes: [fp16], why: It leaves nothing at all.}",
            11,
            "the exclusions leave no cell: expected at least one cell, found all 3 left out",
        ),
        ("configs: prog", "configs: porg", 6, "no such configuration"),
        ("[fp16]", "[fp16, fp16]", 7, "duplicate item in 'dtypes': expected each once, found fp16"),
        (
            "[fp16]",
            "[fp32]",
            7,
            "bad value for 'dtypes.0': expected one of fp16, bf16, found 'fp32'",
        ),
        (
            "seq_len: 512",
            "seq_len: 520",
            9,
            (
                "seq_len is not a multiple of B_r of (FP16, 128, 64, 64, 4): "
                "async+load_0_0_0_tiles: expected a multiple of 64, found 520"
            ),
        ),
        ("batch: 1", "batch: 0", 9, "bad value for 'seq_lens.0.batch': expected greater than 0, found 0"),
        ("batch: 1", "bacth: 1", 9, "unknown key 'seq_lens.0.bacth': expected one of seq_len, batch, found 'bacth'"),
        ("n_heads: 16", "n_heads: 8", 5, "iteration 16 - swizzle has a fixed row stride: expected n_heads 16, found 8"),
        ("n_heads: 16", "heads: 16", 10, "unknown key 'heads'"),
        ("n_heads: 16", "n_heads: 020", 10, "a value that programs read differently: expected a whole number"),
        ("n_heads: 16", f"n_heads: {'[' * 500}{']' * 500}", 10, "not valid YAML, it nests deeper than 24 levels"),
    ],
)
def test_malformed_grids(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert GRID.count(old) == 1
    (tmp_path / "g.yaml").write_text(GRID.replace(old, new), encoding="utf-8")
    with pytest.raises(FlashladderError) as caught:
        load_grid("g", tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'g.yaml'}:{line}: {message}")
    assert caught.value.exit_code == 2


def test_a_configuration_of_a_grid_fits_the_grids_gpu(tmp_path: Path) -> None:
    tall = "(FP16, 128, 256, 128, 8): async+load_0_0_0_tiles"
    text = GRID.replace('  - "16 - swizzle"\n', "").replace("prog", f'"{tall}"')
    (tmp_path / "large.yaml").write_text(text.replace("any", "rtx3090"), encoding="utf-8")
    (tmp_path / "fits.yaml").write_text(text.replace("any", "h200"), encoding="utf-8")
    assert len(load_grid("fits", tmp_path).cells) == 1
    with pytest.raises(FlashladderError) as caught:
        load_grid("large", tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'large.yaml'}:5: the configuration is too large for rtx3090: expected at most 101376 bytes of "
        "shared memory per CTA, as RTX 3090 has, found 131072"
    )


def test_a_step_that_the_grids_gpu_cannot_run_need_not_fit_it(tmp_path: Path) -> None:
    """It is left out, with a line, where the grid is swept."""
    text = GRID.replace('  - "16 - swizzle"\n', "  - 28\n").replace("any", "a100").replace("prog", "a100")
    (tmp_path / "both.yaml").write_text(text, encoding="utf-8")
    grid = load_grid("both", tmp_path)
    assert {cell.iteration.number for cell in grid.cells} >= {28}
    assert {cell.iteration.number for cell in runnable(grid, "sm_80").cells} == {
        cell.iteration.number for cell in grid.cells
    } - {28}


def test_a_grid_that_nobody_reads(tmp_path: Path) -> None:
    (tmp_path / "g.yml").write_text(GRID, encoding="utf-8")
    with pytest.raises(FlashladderError, match=r"g\.yml: the file is not read; rename it to g\.yaml, or remove it$"):
        load_grid("g", tmp_path)


def test_unknown_grid() -> None:
    with pytest.raises(
        FlashladderError, match=r"unknown grid: expected one of a100, .*, found 'smok'; did you mean 'smoke'"
    ):
        load_grid("smok")


def test_a_broken_file_that_a_grid_needs_is_told_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise FlashladderError("not UTF-8", where="iterations/07_tuned.yaml:3")

    monkeypatch.setattr(grids, "load_description", broken)
    with pytest.raises(FlashladderError, match=r"^iterations/07_tuned\.yaml:3: not UTF-8$"):
        load_grid("cpu")
