"""Tables that fit a terminal: `invoke list` and `invoke ptxas` at 80 columns and at others."""

from __future__ import annotations

import re

import pytest

from flashladder.build.compile import render
from flashladder.columns import hanging, table, terminal_width
from flashladder.gpu.doctor import Diagnosis, Finding
from flashladder.gpu.doctor import render as render_diagnosis
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.machine_code.ptxas import PtxasRow, PtxasUsage
from flashladder.names import GPUS
from flashladder.view import command as view

ROWS = [("#", "a thing", "b"), ("1", "some words more", "x"), ("10", "one", "longer than that")]
USAGE = PtxasUsage("sm_80", 255, 0, 0, 0, 1, 0, 488, 101.5)


def row(number: int, gpu: str, dtype: str, usage: PtxasUsage = USAGE) -> PtxasRow:
    config = load_iteration(number).configs[gpu].with_dtype(dtype)
    return PtxasRow.of(f"{number:02d}", config.short_form(), config.smem_bytes, usage)


def test_the_terminal_decides_then_columns_then_80(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, width in (("132", 132), ("1", 40), ("80", 80)):
        monkeypatch.setenv("COLUMNS", text)
        assert terminal_width() == width
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("sys.__stdout__", None)  # as behind a pipe: nothing knows a width
    assert terminal_width() == 80


@pytest.mark.parametrize("width", [60, 80])
def test_prose_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    finding = Finding("toolchain", False, "nvcc 13.0.88, crt 13.0.88, " * 6, "ask the administrator " * 9)
    for line in render_diagnosis(
        Diagnosis((finding,), "CPU only", ("compile kernels, verify locks",) * 4)
    ).splitlines():
        assert len(line) <= width
    assert hanging("head  ", "word " * 40).splitlines()[1].startswith("        word")
    assert hanging("", "word " * 40).splitlines()[1].startswith("word")


def test_narrower_is_one_blank_and_then_wrapped_cells() -> None:
    assert table(ROWS, 35, right={0})[0] == " # a thing         b"
    assert table(ROWS, 26, right={0}, wrapped={1, 2}) == [
        " #  a thing     b",
        " 1  some words  x",
        "    more",
        "10  one         longer",
        "                than that",
    ]


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_the_list_fits_and_loses_nothing(width: int) -> None:
    text = view.list_iterations(limit=width)
    assert max(map(len, text.splitlines())) <= width
    assert not any(line.endswith(" ") for line in text.splitlines())
    for step in load_all():
        words = map(re.escape, step.title.split())  # in order; a wrapped title goes on in its own column
        assert re.search(rf"^ ?{step.number} .*?" + r"[\s\S]{0,120}?".join(words), text, re.MULTILINE), step.number
        assert all(step.configs[gpu].brief() in text for gpu in GPUS)
    assert len(re.findall(r"^ ?\d+ ", text, re.MULTILINE)) == 2 * len(load_all())


def test_equal_columns_of_the_ptxas_table_move_below_it() -> None:
    rows = [row(7, gpu, dtype) for dtype in ("fp16", "bf16") for gpu in GPUS]
    lines = render(rows, ["warning: x", "warning: x"], 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["dtype", "configuration", "regs", "st", "ld", "ms"]
    assert [line.split()[:3] for line in lines[2:8]] == [
        [dtype, *load_iteration(7).configs[gpu].brief().split()] for dtype in ("fp16", "bf16") for gpu in GPUS
    ]
    assert lines[2].split()[3:] == ["255", "0", "0", "102"]
    assert " ".join(lines[9:11]) == (
        "In every row: iteration 07, arch sm_80, stack 0, barriers 1, smem static 0, smem dynamic 49152, cmem 488. "
        "Sizes in bytes."
    )
    assert lines[11:] == ["warning: x"]


def test_where_everything_differs_each_kernel_gets_a_heading() -> None:
    usages = [PtxasUsage("sm_80", 255, 88, 0, 0, 1, 10, 488, 1.0), PtxasUsage("sm_90", 9, 0, 8, 8, 2, 2, None, 2.0)]
    kernels = [(number, gpu, dtype) for number in (7, 16) for gpu in ("rtx3090", "h200") for dtype in ("fp16", "bf16")]
    lines = render([row(*kernel, usage) for kernel in kernels for usage in usages], [], 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 2 + len(kernels) * 3
    assert lines[2] == "07 fp16 128,32,4 2_2_2+buffer+opt"
    assert lines[4].split() == ["sm_90", "9", "0", "8", "8", "2", "2", "49152", "-", "2"]
    assert "In every row" not in lines[-1]
