"""What ``invoke list``, ``invoke show`` and ``invoke diff`` print, and the tour."""

from __future__ import annotations

from dataclasses import replace
import json
from pathlib import Path
import re
import subprocess
import sys
import textwrap
from unittest.mock import Mock

import pytest

from flashladder.columns import csv_records
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.ladder.ablation import load_description
from flashladder.ladder.claim import COUNTERS, Claim
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration, claim_configs, load_all, load_iteration
from flashladder.lock.command import locked_kernel
from flashladder.names import LDSM, PUBLISHED_GPU
from flashladder.paths import RESULTS
from flashladder.results.published import load
from flashladder.view import command as view
from flashladder.view import diff, tour
from flashladder.view.diff import Delta, equal_configs
from flashladder.view.tour import STATIONS, walk
from tests.typed import error_line, printed

SIXTEEN = load_iteration(16)
NUMBERS = [step.number for step in load_all()]


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    error = FlashladderError("no compiler", hint="install it")
    monkeypatch.setattr("flashladder.build.compile.cubin_for", Mock(side_effect=error))


def test_list_is_an_aligned_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = printed("list").splitlines()
    head, *rows = lines[: 1 + len(NUMBERS)]
    assert [row[:2] for row in rows] == [f"{n:2d}" for n in NUMBERS]
    starts = [head.index(word) for word in ("title", "changes", "a100", "rtx3090", "h200")]
    for row, step in zip(rows, load_all(), strict=True):
        assert all(re.fullmatch(r"  \S", row[start - 2 : start + 1]) for start in starts)
        assert row[starts[0] :].startswith(step.title)
    assert "layout: xor_static" in rows[7]
    assert "configurations only" in rows[6]
    assert not any(line.endswith(" ") for line in lines)


def test_list_as_json_holds_every_field() -> None:
    data = json.loads(printed("list", "--json"))
    assert [item["iteration"] for item in data] == NUMBERS
    assert data[7]["change"] == {"layout": "xor_static"}
    assert data[7]["parent"] == 7
    assert data[12]["expect"]["ptx"] == ["setp.gt.s32 in the PTX is 1"]
    assert data[7]["file"] == f"iterations/{load_iteration(8).path.name}"
    assert "LOP3 falls by at least 50 %" in data[7]["expect"]["sass"]
    for item in data:
        for config in filter(None, item["configs"].values()):
            assert KernelConfig.parse(config).short_form() == config


def test_show_tells_why_then_what_then_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    page = printed("show", "8")
    order = [
        "Iteration 8: Reducing IADD3, LOP3 and SHF instructions (from iteration 7)",
        "The swizzled address of every ldmatrix",
        "changes:\n  layout  xor_static",
        "parts:",
        "configurations:\n  a100     (FP16, 128, 128, 64, 4)",
        "expected:\n  SASS: IADD3 falls by at least 20 % (on sm_80, sm_86, sm_89 only)\n",
        "  main loop: LEA falls by at least 100 % (on sm_90 only)\n",
        f"  counter shared_ld_conflicts ({COUNTERS['shared_ld_conflicts']}) is unchanged\n",
        "// (FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles",
        "flash_fwd_kernel",
    ]
    places = [page.index(text) for text in order]
    assert places == sorted(places)
    assert "  layout        xor_static  *\n  schedule      eager\n" in page


def test_show_has_the_kernel_with_a_mask_too() -> None:
    plain, masked = (json.loads(printed("show", "31", "--json", *words)) for words in ([], ["--causal"]))
    assert masked["config"] == f"{plain['config']}+causal"
    assert masked["kernel"] != plain["kernel"]
    assert json.loads(printed("show", "31", "--json", "--causal", "--config", plain["config"])) == masked
    assert json.loads(printed("show", "31", "--json", "--config", masked["config"])) == masked


def test_a_diff_says_which_kernel_of_a_step_with_two_it_compares() -> None:
    step = load_iteration(32)
    plain, masked = (step.configs["h200"].with_mask(mask) for mask in step.family.masks(step.parts))
    without = printed("diff", "31", "32", "--config", plain.short_form())
    assert without.startswith("--- iteration 31, no mask\n+++ iteration 32, no mask\n")
    assert "counters of a launch, own configurations; " in without
    found = printed("diff", "31", "32", "--config", masked.short_form())
    assert found.startswith("--- iteration 31, causal\n+++ iteration 32, causal\n")
    assert "counters of a launch, own configurations, without a mask; " in found
    assert printed("diff", "30", "31").startswith("--- iteration 30\n+++ iteration 31, causal\n")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_head_of_the_page_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for step in load_all():
        head = view.header(step)
        assert textwrap.fill(step.why, width) in head
        for line in head.splitlines():
            assert len(line) <= width or " " not in line.strip()  # a word alone, such as a counter's name
        for config in filter(None, view.on_gpus(step).values()):
            assert config.short_form() in " ".join(head.split())


def test_a_gpu_on_which_the_family_does_not_run_has_no_configuration() -> None:
    assert "a100     (FP16" in view.header(load_iteration(19))
    assert "a100     -\n" in view.header(load_iteration(26))
    row = next(line for line in view.list_iterations(limit=300).splitlines() if line.startswith("26 "))
    assert re.search(r" {2,}- +- +128,128,2 ", row)
    assert json.loads(printed("show", "26", "--json"))["configs"]["a100"] is None


RATIO = f"{COUNTERS['registers']}/{COUNTERS['ldsm']}"


@pytest.mark.parametrize(
    ("claim", "line"),
    [
        (Claim("total", "kernel", "equals"), "SASS: total instructions unchanged"),
        (Claim("IMAD.MOV.U32+MOV", "kernel", "equals", value=0), "SASS: IMAD.MOV.U32+MOV is 0"),
        (Claim("LEA", "main_loop", "falls", at_least=0.192), "main loop: LEA falls by at least 19.2 %"),
        (Claim(RATIO, "counters", "equals", within=0.01), f"counter registers/ldsm ({RATIO}) is unchanged within 1 %"),
    ],
)
def test_expectations_need_no_legend(claim: Claim, line: str) -> None:
    assert view.expectation(claim) == line


def test_diff_is_at_the_configuration_of_the_childs_claims() -> None:
    lines = printed("diff", "7", "8").splitlines()
    assert lines[:2] == ["--- iteration 7", "+++ iteration 8"]
    config = "configuration: (FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles"
    changed = {"-  layout        xor", "+  layout        xor_static", f"-{config}+opt_softmax", f"+{config}"}
    assert changed <= {*lines}
    assert any(line.startswith("opcode counts: not locked") and line.endswith("install it") for line in lines)


@pytest.mark.parametrize("step", load_all()[1:], ids=lambda step: step.slug)
def test_every_step_is_compared_with_its_parent_at_one_configuration(step: Iteration) -> None:
    assert step.parent is not None
    parent = load_iteration(step.parent)
    pair = diff.equal_configs(parent, step)
    if parent.family is step.family and step.change:
        child, fitted = claim_configs(step)
        assert pair == (fitted, child)
        assert diff.equal_configs(step, parent) == pair[::-1]
        assert diff.caveat(parent, step, pair) == ""
    else:
        assert pair == (parent.configs["a100"], step.configs["a100"])
        says = "the parts are equal" if parent.family is step.family else "different"
        assert diff.caveat(parent, step, pair).startswith(says)


def test_a_named_configuration_is_that_of_both_sides() -> None:
    text = load_iteration(8).configs["rtx3090"].with_dtype("bf16").short_form()
    data = json.loads(printed("diff", "7", "8", f"--config={text}", "--json"))
    assert data["after"]["config"] == text
    assert data["before"]["config"] == f"{text}+opt_softmax"
    assert data["caveat"] == ""


def test_what_is_not_the_effect_of_the_step_alone_comes_first() -> None:
    tiled, whole, tuned = load_iteration(4), load_iteration(3), load_iteration(7)
    config = replace(tuned.configs["a100"], Q_mma_load_K_tiles=0, K_mma_load_K_tiles=0, V_mma_load_K_tiles=0)
    text = printed("diff", "4", "7", f"--config={config}")  # iteration 4 cannot load everything up front
    assert text.startswith("different loads: not the effect of this step alone\n\n--- iteration 4\n")
    tall = replace(whole.configs["a100"], B_r=128, dtype="bf16")
    assert diff.equal_configs(tiled, whole, str(tall)) == (tiled.configs["a100"].with_dtype("bf16"), tall)
    text = printed("diff", "4", "3", f"--config={tall}")
    assert text.startswith("different tiles: not the effect of this step alone\n\n")


def test_counts_table() -> None:
    table = diff.count_changes(
        {"LOP3": 140, "MOV": 5, "HMMA": 128, "total": 273}, {"LOP3": 81, "HMMA": 128, "SHF": 5, "total": 214}
    )
    assert table.splitlines() == [
        "total  273  214   -21.6 %",
        "LOP3   140   81   -42.1 %",
        "MOV      5    0  -100.0 %",
        "SHF      0    5       new",
    ]
    assert diff.count_changes({"A": 1}, {"A": 1}) == "no opcode class changes its count"


def test_an_ablation_is_never_locked() -> None:
    ablation = load_description("16 - store_policy")
    assert diff.opcode_counts(SIXTEEN, SIXTEEN.configs["a100"])
    assert "no compiler" in error_line(diff.opcode_counts, ablation, ablation.configs["a100"])
    assert found("16 - store_policy", "16") == {"registers": [], "counters": [], "speed": []}
    assert found("9", "9") == {}


def found(before: str, after: str) -> dict[str, list[Delta]]:
    both = load_description(before), load_description(after)
    return diff.deltas(*both, equal_configs(*both))


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
    by = {(row.source, row.name): row for row in found("3", "4")["counters"]}
    for source, folder in (("emulator", "emulator"), ("H200, ncu", "h200")):
        read = {row["iteration"]: float(row[LDSM]) for row in rows(f"{folder}/counters.csv")}
        assert by[source, "ldsm"] == Delta(source, "ldsm", read["3"], read["4"], alone=True)
    assert ("emulator", "tensor") not in by  # equal in both
    assert not any(row.alone for row in found("7", "8")["counters"])  # another tile


def test_speeds_are_the_committed_ones_by_gpu() -> None:
    timed = {row["iteration"]: float(row["pct_of_fa2_seq4096"] or "nan") for row in rows("report/progression.csv")
             if (row["machine"], row["dtype"], row["configs_of"]) == ("h200", "fp16", PUBLISHED_GPU)}  # fmt: skip
    by = {(row.source, row.name): row for row in found("8", "9")["speed"]}
    row = by["H200", "A100's configurations"]
    assert [row.before, row.after] == pytest.approx([timed["8"], timed["9"]], abs=1e-3)
    assert by["H100", "A100's configurations"].after > 50
    own = {row.source for row in found("7", "8")["speed"] if row.name == "own configurations"}
    assert own == {"H200", "H100"}, "an H100 runs an H200's"
    for gpu, title, alone in (("a100", "A100", True), ("rtx3090", "RTX 3090", False)):  # whose loads change, too
        before, after = (load().cell(number, gpu, "seq4096").value for number in (8, 9))
        assert by[title, "published"] == Delta(title, "published", before, after, alone)


def test_a_diff_ends_with_what_was_measured() -> None:
    before, _, measured = printed("diff", "8", "9").partition("registers per thread")
    assert "opcode counts" in before
    assert "speed in percent of FA2" in measured
    assert max(map(len, measured.splitlines())) <= 80
    data = json.loads(printed("diff", "8", "9", "--json"))
    assert {row["source"] for row in data["speed"]} == {"H200", "H100", "A100", "RTX 3090"}


def test_a_broken_result_hides_no_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(diff, "committed", Mock(side_effect=FlashladderError("not a result", where=tmp_path)))
    out = printed("diff", "8", "9")
    assert "k_order" in out
    assert f"registers, counters and speed are not shown: {tmp_path}: not a result" in out


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that the tour ran; each seems to print 60 times the text that its station looks for."""
    commands: list[list[str]] = []

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(words)
        (station,) = (one for one in STATIONS if one.command == words)
        return subprocess.CompletedProcess(words, 0, f"before\n{station.past} {'x ' * 100}\n" * 60, "")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_without_a_terminal_it_runs_through_within_80_columns(
    ran: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    walk()
    out = capsys.readouterr().out
    assert ran == [station.command for station in STATIONS]
    for number, station in enumerate(STATIONS, 1):
        assert f"{number}/{len(STATIONS)}  {station.title}\n" in out
        assert f"\n$ {station.typed}\n" in out
    assert max(map(len, out.splitlines())) <= 80
    assert f"({120 - STATIONS[-1].shown} more lines)" in out
    assert textwrap.fill(tour.GOODBYE, 80) in out


def test_on_a_terminal_it_waits_and_q_leaves_with_the_way_back(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("builtins.input", Mock(side_effect=["", " ", "q"]))
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    walk(4)
    assert ran == [station.command for station in STATIONS[3:5]]
    assert capsys.readouterr().out.endswith("go on with: invoke tour --start 6\n")


@pytest.mark.parametrize(("code", "says"), [
    (2, "could not be shown: expected exit code 0, found 2: a reason; `invoke show 8` says more; go on with"),
    (0, "`invoke show 8` shows nothing: expected 'Iteration 8'; `invoke show 8` says more; go on with"),
])  # fmt: skip
def test_a_command_that_fails_or_shows_nothing_is_one_line(
    monkeypatch: pytest.MonkeyPatch, code: int, says: str
) -> None:
    ends = subprocess.CompletedProcess([], code, "", "error: a reason\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ends)
    with pytest.raises(CheckFailed, match=re.escape(says)):
        walk(3)
