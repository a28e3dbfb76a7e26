"""Edits of the committed data, one at a time: the check of the gate that catches each, by one clear line.

Every edit is made in a tree of links to the checkout, in which one file is a changed copy. A folder of a GPU's results
is sealed anew after the edit, as someone would who knows of the seal: the check that is asked for has to catch it all
the same. Only that check is run; the whole gate on such a tree: ``FLASHLADDER_ROOT=TREE invoke gate``.
"""

from __future__ import annotations

from collections.abc import Callable
import csv
import gzip
import json
from pathlib import Path
import re
from typing import Any

import pytest

from flashladder.gate import command as gate
from flashladder.gate.outcome import Outcome, attempt
from flashladder.names import LDSM
from flashladder.paths import ROOT
from flashladder.results.files import SEAL, seal

Document = dict[str, Any]
Edit = Callable[[Path], object]
FOLDERS = ("docs", "emulator/docs", "results", "configs", "iterations", "kernels", "analysis")
LINKED = ("README.md", "CHANGELOG.md", *FOLDERS)
BENCH, SECOND, CHECK = (f"results/h200/{name}.json.gz" for name in ("bench", "second_card", "check"))
SANITIZER, COUNTERS = (f"results/h200/{name}.json.gz" for name in ("sanitizer", "counters"))
EMULATED, LOCK, YAML = (
    "results/emulator/counters.json",
    "results/locks/sm_90.json",
    "results/published/progression.yaml",
)
STEPS, STATEMENTS = "results/steps/counts.json", "configs/statements.yaml"
STEP = "14 (FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_0_tiles"
FIGURES, STALE, JOIN = "figures in texts", "tables and plot", "results make a report"
SAMPLES, PEAKS, LIMITS = "results follow", "peaks of GPUs", "locked kernels are complete"
MARKERS = "markers of the generated table"


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """Every file of the checkout by the path of its link in a tree for all edits."""
    root = tmp_path_factory.mktemp("tree")
    found = {}
    for name in LINKED:
        source = ROOT / name
        for path in [source] if source.is_file() else [one for one in sorted(source.rglob("*")) if one.is_file()]:
            if "__pycache__" not in path.parts:
                found[root / path.relative_to(ROOT)] = path
    for folder in {path.parent for path in found}:
        folder.mkdir(parents=True, exist_ok=True)
    return {root: ROOT, **found}


@pytest.fixture
def tree(links: dict[Path, Path], tmp_path: Path) -> Path:
    """The checkout as links: what the test before left otherwise is a link again, what it left besides is gone.

    Under a name of its own, as readers keep what they have read of a folder.
    """
    root, *paths = links
    for path in {one for one in root.rglob("*") if not one.is_dir()} - set(paths):
        path.unlink()
    for path in paths:
        if not path.is_symlink():
            path.unlink(missing_ok=True)
            path.symlink_to(links[path])
    (tmp_path / "tree").symlink_to(root)
    return tmp_path / "tree"


def edited(tree: Path, name: str, edit: Edit) -> None:
    """Replaces the link by a copy, changes that, and seals the folder anew where it has a seal."""
    path = tree / name
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    edit(path)
    assert not path.is_file() or path.read_bytes() != data, "the edit changed nothing"
    if (path.parent / SEAL).is_file():
        (path.parent / SEAL).unlink()
        seal(path.parent)


def asked(tree: Path, beginning: str) -> Outcome:
    """The outcome of the check whose name begins so."""
    outcomes = {}
    for check in gate.all_checks(tree):
        if check.name.startswith(beginning) or (check.name == JOIN and beginning not in NO_JOIN):
            outcomes[check.name] = attempt(check)
    (found,) = (outcome for name, outcome in outcomes.items() if name.startswith(beginning))
    return found


NO_JOIN = {SAMPLES, LIMITS, "checks passed", "every conf", "sanitizers", "tables of", "published fig", "the emulator c",
           "claims about counters", "emulated kernels", "the page on", "notes", "result files",
           "claims about machine", "words and", "a claim of"}  # fmt: skip


def j(change: Callable[[Document], object]) -> Edit:
    """Changes a JSON document, compressed or not."""

    def edit(path: Path) -> None:
        packed = path.suffix == ".gz"
        document = json.loads(gzip.decompress(path.read_bytes()) if packed else path.read_bytes())
        change(document)
        text = json.dumps(document).encode()  # neither indented nor packed tightly: both take longer than most checks
        path.write_bytes(gzip.compress(text, 1) if packed else text)

    return edit


def t(pattern: str, new: str) -> Edit:
    """Replaces the first match in a text."""

    def edit(path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(pattern, new, text, count=1, flags=re.MULTILINE), encoding="utf-8")

    return edit


def column(name: str, factor: float) -> Edit:
    """Scales the first number in a column of a CSV."""

    def edit(path: Path) -> None:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        row = next(row for row in rows if row[name])
        row[name] = f"{float(row[name]) * factor:.4f}"
        with path.open("w", encoding="utf-8", newline="") as out:
            writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    return edit


def cell(document: Document, iteration: int = 9) -> Document:
    """The summary of an iteration at S = 4096 in its first configuration."""
    found: Document = next(
        one for one in document["summaries"]
        if one["kernel"].startswith(f"{iteration:02d} ") and one["shape"]["seq_len"] == 4096
    )  # fmt: skip
    return found


def add(one: Document, points: float, *names: str) -> None:
    """Adds to values by name."""
    for name in names or ("pct", "pct_low", "pct_high"):
        one[name] += points


def pair(document: Document, at: int, factor: float) -> None:
    """Scales a value of a raw pair of iteration 9: 2 is the reference's time, 3 the kernel's."""
    series = next(one for one in document["groups"][0]["series"] if one["kernel"].startswith("09 "))
    series["pairs"][0][at] *= factor


def kernel(document: Document, number: int = 7) -> Document:
    """A locked kernel in the A100's configuration."""
    kernels: Document = document["iterations"][str(number)]["kernels"]
    return next(one for form, one in sorted(kernels.items()) if form.startswith("(FP16, 128, 64, 64, 4)"))


def step_code(document: Document) -> Document:
    """The machine code of step 14 on sm_80, in the counts that claims are judged on."""
    found: Document = document["kernels"][STEP]["sass"]["sm_80"]
    return found


def first(mapping: Document) -> Document:
    """The first value by key."""
    found: Document = mapping[min(mapping)]
    return found


def cut(path: Path) -> None:
    """Loses the second half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


EDITS: list[tuple[str, Edit, str, str]] = [
    (BENCH, j(lambda d: add(cell(d), 9, "pct")), SAMPLES, "is not within its interval"),
    (BENCH, j(lambda d: add(cell(d), 9, "pct")), JOIN, "bench.json.gz: bench.summaries."),
    (BENCH, j(lambda d: add(cell(d), -9, "pct_high")), JOIN, "is not within its interval"),
    (BENCH, j(lambda d: add(cell(d), 9)), SAMPLES, " pct: written "),
    (BENCH, j(lambda d: add(cell(d), 9)), STALE, "README.md: not what the committed results give"),
    (BENCH, j(lambda d: add(cell(d), -40, "kernel_us")), SAMPLES, " kernel_us: written "),
    (BENCH, j(lambda d: add(cell(d), 40, "tflops")), SAMPLES, " tflops: written "),
    (BENCH, j(lambda d: cell(d, 5).update(verdict="faster")), SAMPLES, " verdict: written faster, derived slower"),
    (BENCH, j(lambda d: cell(d).update(n_pairs=48)), SAMPLES, " n_pairs: written 48, derived 24"),
    (BENCH, j(lambda d: cell(d).update(dropped_share=0.5)), SAMPLES, " dropped_share: written "),
    (BENCH, j(lambda d: d["summaries"].remove(cell(d))), SAMPLES, ": not written"),
    (BENCH, j(lambda d: add(d["means"][3], 9)), SAMPLES, " all S pct: written "),
    (BENCH, j(lambda d: d["floors_pct"].update(fp16=0.1)), SAMPLES, "fp16: written 0.1, derived "),
    (BENCH, j(lambda d: pair(d, 3, 0.5)), SAMPLES, "09 (FP16"),
    (BENCH, j(lambda d: pair(d, 2, 0.001)), SAMPLES, "that the GPU's peaks allow"),
    (BENCH, j(lambda d: d["settings"].update(flush_bytes=2**24)), SAMPLES, "twice the L2, found 16777216"),
    (BENCH, j(lambda d: d["groups"][0]["blocks"][0].update(dropped="hot")), SAMPLES, "blocks.0.dropped: written hot"),
    (BENCH, j(lambda d: d["groups"][0]["series"][1]["after"].update(max_error=1.0)), SAMPLES, "not correct after"),
    (BENCH, j(lambda d: d["groups"][0]["series"][1].update(before=None)), SAMPLES, "not correct before"),
    (BENCH, j(lambda d: d["groups"].pop()), SAMPLES, ": written, not derived"),
    (BENCH, j(lambda d: first(d["kernels"]).update(text_sha256="0" * 64)), "results belong", "measured machine code 0"),
    (BENCH, j(lambda d: d["gpu"].update(name="NVIDIA H100")), JOIN, "another GPU in this folder"),
    (BENCH, j(lambda d: d["gpu"].update(n_sm=1)), PEAKS, "peaks.sms: expected 1, as the driver told, found 132"),
    (BENCH, j(lambda d: d.update(schema_version=3)), SAMPLES, "newer schema: expected schema_version 2 or older"),
    (BENCH, j(lambda d: cell(d).update(pct=float("nan"))), SAMPLES, "pct: Input should be a finite number"),
    (BENCH, cut, SAMPLES, "bench.json.gz: "),
    (BENCH, Path.unlink, STALE, "README.md: not what the committed results give"),
    (SECOND, j(lambda d: d["floors_pct"].update(fp16=0.1)), SAMPLES, "second_card.json.gz: floors_pct"),
    (SECOND, j(lambda d: add(cell(d), 2)), FIGURES, "results/h200/README.md: more than"),
    ("results/h200/tune.json.gz", j(lambda d: add(cell(d), 9)), SAMPLES, "tune.json.gz: summaries"),
    (CHECK, j(lambda d: d["cases"][3].update(status="fail", reason="NaN in O")), "checks passed", "failed: NaN in O"),
    (CHECK, j(lambda d: d["cases"][3]["accuracy"].update(max_error=1.0)), "checks passed", "not within what is"),
    (CHECK, j(lambda d: d["cases"].pop(3)), "checks passed", "case grid 16x4096x16 is missing"),
    (CHECK, j(lambda d: first(d["kernels"]).update(text_sha256="0" * 64)), "checks passed", "machine code 000000"),
    (CHECK, j(lambda d: d["kernels"].popitem()), "every conf", "was not checked"),
    (SANITIZER, j(lambda d: d["findings"][1].update(errors=3)), "sanitizers", "its errors are 3"),
    (SANITIZER, j(lambda d: d["findings"].pop()), "sanitizers", "once each"),
    (SANITIZER, j(lambda d: [one.update(iteration=2) for one in d["kernels"].values() if one["iteration"] == 1]),
     "sanitizers", "no kernel of iteration 1 was run"),
    (COUNTERS, j(lambda d: add(first(d["counters"]), 1, LDSM)), "tables of", "counters.csv: "),
    (COUNTERS, j(lambda d: add(first(d["counters"]), 1, LDSM)), "the emulator c", "ldsm.sum: "),
    ("results/h200/counters.csv", t(",0,", ",1,"), "tables of", "counters.csv: differs"),
    (EMULATED, j(lambda d: add(first(d["kernels"])["counters"], 1, LDSM)), "the emulator c", "ldsm"),
    (EMULATED, j(lambda d: first(d["kernels"])["races"].update(bf16=1)), "emulated kernels", "1 races in bf16"),
    (EMULATED, j(lambda d: first(d["kernels"])["ptx_sha256"].update(fp16="0" * 64)), "emulated kernels", "not the"),
    ("results/emulator/counters.csv", t(r",(\d)", r",9\1"), "emulated kernels", "counters.csv: differs"),
    ("results/emulator/speed.json", j(lambda d: d["runs"][0].update(seconds=[9.0])), "the page on", "speed.md: "),
    (LOCK, j(lambda d: kernel(d).update(text_sha256="0" * 64)), "results belong", "locked 000000"),
    (LOCK, j(lambda d: kernel(d).update(spill_stores=8)), LIMITS, "spills 8 bytes, at most 0"),
    (LOCK, j(lambda d: kernel(d, 1).update(registers=190)), LIMITS, "190 registers, expected "),
    (LOCK, j(lambda d: kernel(d, 1).update(registers=218)), STALE, "progression.md: not what"),
    (LOCK, j(lambda d: d["iterations"]["7"]["kernels"].popitem()), LIMITS, "is not locked"),
    (LOCK, j(lambda d: d["iterations"].pop("16")), LIMITS, "iteration 16, "),
    (LOCK, cut, LIMITS, "not a machine-code lock of schema 1"),
    ("results/published/published_progression.csv", t(r"99\.2", "109.2"), "published fig", "figures were edited"),
    ("results/published/anchors_h200.csv", Path.unlink, "published fig", "file is missing"),
    (YAML, t("sha256: 0", "sha256: 1"), "published fig", "figures were edited"),
    (YAML, t(r"default: 2\.0", "default: 20.0"), FIGURES, "expected 20, found 2;"),
    (YAML, t("at_least: 0.8", "at_least: 0.1"), FIGURES, "expected 0.1, found 0.8;"),
    (YAML, t("at_least: 0.8", "at_least: 0.9"), "progressions", "at least 0.9"),
    (YAML, t("4096: 16", "4096: 8"), "progressions", "only 0 iterations have a figure"),
    (YAML, t("hmean: 1.5", "hmean: -1"), JOIN, "tolerance.same_gpu_points.hmean"),
    ("README.md", t(r"\*\*104\.5\*\*", "**109.5**"), STALE, "README.md: not what"),
    ("README.md", t("<!-- progression:begin -->", ""), STALE, MARKERS),
    ("results/h200/README.md", t("more than 0.3", "more than 0.1"), FIGURES, "expected 0.3, found 0.1"),
    ("results/report/progression.csv", t(r"109\.", "119."), STALE, "progression.csv: not what"),
    ("results/report/progression.csv", column("pct_of_fa2_hmean", 1.05), STALE, "progression.csv: not what"),
    ("results/report/counters.md", t("0 |", "1 |"), STALE, "counters.md: not what"),
    ("results/report/cells.csv", Path.unlink, STALE, "cells.csv: missing"),
    ("results/report/progression.png", cut, STALE, "progression.png: not what"),
    ("configs/fastest.json", j(lambda d: d["h200"]["from_seq_len"].update({"512": 24})), STALE,
     "fastest.json: not what"),
    ("configs/fastest.json", Path.unlink, STALE, "fastest.json: missing"),
    ("results/durations.json", j(lambda d: d["reproduce"].update(seconds=3000)), FIGURES, "expected 50 minutes"),
    ("results/durations.json", j(lambda d: d["reproduce"].pop("seconds")), FIGURES, "bad record of durations"),
    ("configs/gpus/h200.yaml", t("value: 132", "value: 1320"), PEAKS, "h200.yaml: peaks.fp16_tensor: expected 9894.3"),
    ("configs/gpus/h200.yaml", t("value: 1980", "value: 1780"), PEAKS, "expected at most the max_clock 1780"),
    ("configs/gpus/a100.yaml", t("value: 312", "value: 31"), PEAKS, "a100.yaml: peaks.fp16_tensor: expected 311.9"),
    (STEPS, j(lambda d: step_code(d)["kernel"].update({"STG.E.NA.128": 15})), "claims about machine", "STG: 15, in"),
    (STEPS, j(lambda d: step_code(d).update(text_sha256="0" * 64)), "claims about machine", "is not what is locked"),
    (STEPS, j(lambda d: d["kernels"].pop(STEP)), "claims about machine", "no counts of 14 (FP16"),
    ("docs/null-step.md", t(r"27 to 34", "34 to 27"), "a claim of", "docs/null-step.md: not what the claims give"),
    (STATEMENTS, t(r"  - .*says: The price is paid.*\n", ""), "words and", "stands on: LOP3 rises by at least"),
    (STATEMENTS, t(r"LOP3: rises", "LOP3: falls"), "words and", "must claim LOP3 (sass): falls, and claims rises"),
    ("iterations/02_swizzle.yaml", t("LOP3: {rises: 1.2}", "LOP3: {falls: 0.8}"), "words and",
     "must claim LOP3 (sass): rises, and claims falls"),
    ("iterations/notes/07.md", t(r"(\d) % of FA2", r"\g<1>1 % of FA2"), "notes", "iterations/notes/07.md: stale note"),
    ("iterations/reasons/07.md", t("knobs Q stays", "knobs 2 of Q stay"), "notes",
     "iterations/reasons/07.md:3: a figure typed by hand"),
    ("iterations/reasons/07.md", t(r'falls\("LDSM", "a100"\)', 'rises("LDSM", "a100")'), "notes",
     "reasons/07.md:3: the data contradict the page about LDSM (a100): expected rises, found falls, 72 to 64"),
]  # fmt: skip


def may_join(name: str, check: str, line: str) -> bool:
    """Whether an edit can be made beside others: of a file that nothing is made from, told by the file's own line."""
    return check in (STALE, FIGURES) and name.endswith((".md", ".csv", ".png")) and line != MARKERS


def trees() -> dict[str, list[tuple[str, Edit, str, str]]]:
    """Edits that are made in one tree, by the first one's number and file: a look at all texts takes seconds."""
    found: dict[str, list[tuple[str, Edit, str, str]]] = {}
    for index, (name, edit, check, line) in enumerate(EDITS):
        others = (
            made for made in found.values()
            if may_join(name, check, line) and all(may_join(one[0], *one[2:]) for one in made)
            and {one[2] for one in made} == {check} and name not in [one[0] for one in made]
        )  # fmt: skip
        made = next(others, None) or found.setdefault(f"{index}-{name.rpartition('/')[2]}", [])
        made.append((name, edit, check, line))
    return found


@pytest.mark.parametrize("edits", trees().values(), ids=trees().keys())
def test_an_edit_is_caught_by_one_line(tree: Path, edits: list[tuple[str, Edit, str, str]]) -> None:
    (check,) = {one[2] for one in edits}
    if check == SAMPLES:  # the other files take seconds to derive
        for path in tree.glob("results/*/*.json.gz"):
            if path != tree / edits[0][0]:
                path.unlink()
    for name, edit, *_ in edits:
        edited(tree, name, edit)
    outcome = asked(tree, check)
    assert outcome.status == "failed"
    for *_, line in edits:
        assert any(line in detail for detail in outcome.details), outcome.details
    assert {len(detail.splitlines()) for detail in outcome.details} == {1}
    assert not any("Traceback" in detail or "Error: " in detail for detail in outcome.details), outcome.details


@pytest.mark.parametrize("name", [BENCH, SECOND, CHECK, SANITIZER, COUNTERS, "results/h200/pytest_gpu.log"])
def test_an_edit_of_a_sealed_file_is_caught_by_the_seal(tree: Path, name: str) -> None:
    path = tree / name
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data + b"\n")
    (line,) = asked(tree, "result files").details
    assert line.startswith(f"{path}: edited since it was sealed")


@pytest.mark.slow
def test_what_an_edit_is_caught_by_is_not_said_of_the_checkout_as_it_is(tree: Path) -> None:
    for name in sorted({check for _, _, check, _ in EDITS} - {"notes"}):
        outcome = asked(tree, name)
        told = [line for _, _, check, line in EDITS if check == name and any(line in one for one in outcome.details)]
        assert told == []
        assert re.search("[1-9]", outcome.summary), outcome  # it says how many it compared
