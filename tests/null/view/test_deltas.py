"""Registers, counters and speed under a diff: committed figures, and a mark where a tile changes, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashladder.columns import csv_records
from flashladder.errors import FlashladderError
from flashladder.ladder.ablation import load_description
from flashladder.ladder.iteration import load_iteration
from flashladder.lock.command import locked_kernel
from flashladder.names import LDSM, PUBLISHED_GPU
from flashladder.paths import RESULTS
from flashladder.results.published import load
from flashladder.view import command as view
from flashladder.view import diff as deltas
from flashladder.view.diff import Delta, equal_configs


def found(before: str, after: str) -> dict[str, list[Delta]]:
    both = load_description(before), load_description(after)
    return deltas.deltas(*both, equal_configs(*both))


def steps(before: str, after: str) -> deltas.Steps:
    return load_description(before), load_description(after)


def rows(name: str) -> list[dict[str, str]]:
    return csv_records((RESULTS / name).read_text(encoding="utf-8").splitlines())


def test_registers_and_spills_are_those_of_the_locks() -> None:
    step = load_iteration(9)
    kernel = locked_kernel(9, step.configs[PUBLISHED_GPU], "sm_90")
    assert kernel is not None
    by = {(row.source, row.name): row for row in found("8", "9")["registers"]}
    assert {source for source, _ in by} == {"sm_80", "sm_86", "sm_89", "sm_90"}
    assert by["sm_90", "registers"].after == kernel.registers
    assert by["sm_90", "spilled"].after == kernel.spill_stores + kernel.spill_loads > 0


def test_counters_are_the_committed_ones_by_who_counted() -> None:
    emulated = {row["iteration"]: row for row in rows("emulator/counters.csv")}
    on_gpu = {row["iteration"]: row for row in rows("h200/counters.csv")}
    by = {(row.source, row.name): row for row in found("3", "4")["counters"]}
    for source, read in (("emulator", emulated), ("H200, ncu", on_gpu)):
        row = by[source, "ldsm"]
        assert (row.before, row.after) == (float(read["3"][LDSM]), float(read["4"][LDSM]))
        assert row.alone
    assert ("emulator", "tensor") not in by  # equal in both
    assert not any(row.alone for row in found("7", "8")["counters"])  # another tile


def test_speeds_are_the_committed_ones_by_gpu() -> None:
    timed = {row["iteration"]: float(row["pct_of_fa2_seq4096"] or "nan") for row in rows("report/progression.csv")
             if (row["machine"], row["dtype"], row["configs_of"]) == ("h200", "fp16", PUBLISHED_GPU)}  # fmt: skip
    by = {(row.source, row.name): row for row in found("8", "9")["speed"]}
    row = by["H200", "A100's configurations"]
    assert [row.before, row.after] == pytest.approx([timed["8"], timed["9"]], abs=1e-3)
    assert by["H100", "A100's configurations"].after > 50
    cells = load()
    for gpu, title in (("a100", "A100"), ("rtx3090", "RTX 3090")):
        row = by[title, "published"]
        assert (row.before, row.after) == tuple(cells.cell(number, gpu, "seq4096").value for number in (8, 9))
    assert by["A100", "published"].alone
    assert not by["RTX 3090", "published"].alone  # its loads change, too


def test_nothing_is_known_of_an_ablation_and_nothing_differs_from_itself() -> None:
    assert found("16 - swizzle", "16") == {"registers": [], "counters": [], "speed": []}
    assert found("9", "9") == {}
    assert deltas.text_of(found("9", "9"), steps("9", "9")) == ""


def test_the_sections_name_sources_and_signs() -> None:
    text = deltas.text_of(
        {
            "registers": [Delta("sm_80", "registers", 200, 200), Delta("sm_80", "spilled", 0, 8)],
            "counters": [],
            "speed": [Delta("H200", "own configurations", 90.04, 95, alone=False)],
        },
        steps("8", "9"),
    )
    assert [" ".join(line.split()) for line in text.splitlines()] == [
        deltas.HEADINGS["registers"], "sm_80 registers 200 200", "sm_80 spilled 0 8 new", "",
        deltas.HEADINGS["speed"], "H200 own configurations * 90.0 95.0 +5.0 points",
    ]  # fmt: skip


def test_a_diff_ends_with_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert view.main(["diff", "8", "9"]) == 0
    out = capsys.readouterr().out
    assert out.index("opcode counts") < out.index("registers per thread") < out.index("speed in percent of FA2")
    assert max(map(len, out[out.index("registers per thread") :].splitlines())) <= 80
    assert view.main(["diff", "8", "9", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {row["source"] for row in data["speed"]} == {"H200", "H100", "A100", "RTX 3090"}


def test_a_broken_result_hides_no_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise FlashladderError("not a result", where=str(tmp_path))

    monkeypatch.setattr(deltas, "committed", broken)
    assert view.main(["diff", "8", "9"]) == 0
    out = capsys.readouterr().out
    assert "k_order" in out
    assert f"registers, counters and speed are not shown: {tmp_path}: not a result" in out
