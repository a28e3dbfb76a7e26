"""Edits of committed results by somebody who knows of digests, seals and tables: what still names the cell.

Every edit is made in a folder of links to one machine's files, of which one becomes a changed copy; ``machine.json``
and the seal are written anew, and so are the tables where the check reads them. The same edit without that is found by
the seal. Files that an edit does not concern are left out of the tree: deriving them takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
import gzip
import json
from pathlib import Path
import re
import shutil
from typing import Any

import pytest

from flashladder.cases.inputs import cases_for
from flashladder.errors import FlashladderError
from flashladder.gate import checks as gate_checks
from flashladder.gate import verify
from flashladder.gate.evidence import cross, manifest, proofs, repeats
from flashladder.gate.outcome import Outcome
from flashladder.gpu.ncu import csv_beside, to_csv
from flashladder.ladder.iteration import Iteration, load_iteration
from flashladder.ladder.manifest import NAME, Cases, Log, load_manifest
from flashladder.names import REGISTERS
from flashladder.paths import RESULTS
from flashladder.results import machine
from flashladder.results.derive import derive
from flashladder.results.files import SEAL, load_as, load_result, write_result
from flashladder.results.migrations import with_digest
from flashladder.results.schema import BenchResult, CounterResult

Document = dict[str, Any]
Edit = Callable[[Document], object]
COMPLETE, AGREE, WHOLE = gate_checks.results_complete, gate_checks.files_agree, gate_checks.documents_whole
CELL = "09 (BF16"
CARD = "GPU-f91cafd0-a85e-0404-ed3c-c291b2f2e415"  # of the table
SMALL = "sanitizer.json.gz"  # a document, so that machine.json has one
GRID = (512, 1024, 2048, 4096, 8192, 16384)
HELD = load_manifest(RESULTS / "h200").files
RUNS = next(one.repeats for one in HELD.values() if isinstance(one, Cases))
H100_RULE = json.loads(gzip.decompress((RESULTS / "h100" / "check.json.gz").read_bytes()))["rule"]
LOGGED = next(one for name, one in HELD.items() if isinstance(one, Log) and name == "pytest_gpu.log")
(FIRST_TEST,) = re.findall(r"^(tests/gpu/.+) PASSED", (RESULTS / "h200" / "pytest_gpu.log").read_text(), re.MULTILINE)[
    :1
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The committed results of both machines with the locks, as links."""
    for path in sorted(RESULTS.glob("h*/*")) + sorted(RESULTS.glob("locks/*")):
        (tmp_path / path.relative_to(RESULTS)).parent.mkdir(exist_ok=True)
        (tmp_path / path.relative_to(RESULTS)).symlink_to(path)
    return tmp_path


def only(folder: Path, *names: str) -> None:
    """Leaves nothing else of a machine's results than these."""
    keep = {NAME, machine.NAME, SEAL, *names}
    for path in folder.iterdir():
        if path.name not in keep:
            path.unlink()


def forge(path: Path, change: Edit, *, again: bool) -> None:
    """Changes a document; its digest, ``machine.json`` and the seal are written anew, and its tables where asked."""
    document: Document = json.loads(gzip.decompress(path.read_bytes()))
    before = json.dumps(document)
    change(document)
    text = json.dumps(with_digest(document) if "schema_version" in document else document)
    assert text != before, "the edit changed nothing"
    path.unlink()
    path.write_bytes(gzip.compress(text.encode(), 1))
    if again and document.get("kind") == "bench":
        made = load_result(path)
        assert isinstance(made, BenchResult)
        write_result(path, derive(made))
    if document.get("kind") == "counters":
        read = load_result(path)
        assert isinstance(read, CounterResult)
        csv_beside(path).unlink()
        csv_beside(path).write_text(to_csv(read), encoding="utf-8")
    resealed(path.parent)


def resealed(folder: Path) -> None:
    (folder / machine.NAME).unlink()
    (folder / SEAL).unlink()
    machine.write(folder)


def drop(document: Document, gone: Callable[[Document, Document], bool]) -> None:
    """Takes series out, with their turns."""
    for group in document["groups"]:
        names = {one["kernel"] for one in group["series"] if gone(group, one)}
        group["series"] = [one for one in group["series"] if one["kernel"] not in names]
        for block in group["blocks"]:
            block["order"] = [name for name in block["order"] if name not in names]
    document["groups"] = [group for group in document["groups"] if group["series"]]


def keep_blocks(document: Document, n: int) -> None:
    """The `n` best blocks of each group are left, and settings that ask for no more."""
    for group in document["groups"]:
        group["blocks"] = group["blocks"][:n]
        for one in group["series"]:
            one["pairs"] = [pair for pair in one["pairs"] if pair[0] < n]
    document["settings"].update(pairs=3 * n, blocks=n, min_pairs=min(3 * n, document["settings"]["min_pairs"]))


def faster(document: Document, factor: float, begins: str = "", seq_len: int = 0) -> None:
    """Scales the kernels' times."""
    for group in document["groups"]:
        for one in group["series"]:
            own = one["kernel"].startswith(begins) and one["kernel"] != "reference"
            if own and seq_len in (0, group["shape"]["seq_len"]):
                one["pairs"] = [[*pair[:3], pair[3] / factor] for pair in one["pairs"]]


def arm(document: Document, name: str, factor: float) -> None:
    """Scales the times of a library."""
    for group in document["groups"]:
        for one in group["series"]:
            if one["kernel"] == name:
                one["pairs"] = [[*pair[:3], pair[3] / factor] for pair in one["pairs"]]


def block(document: Document, factor: float, n: int) -> None:
    """Scales the first blocks of one cell of iteration 9 at S = 4096."""
    for group in document["groups"]:
        for one in group["series"]:
            if one["kernel"].startswith("09 (FP16") and group["shape"]["seq_len"] == 4096:
                one["pairs"] = [[*pair[:3], pair[3] / (factor if pair[0] < n else 1.0)] for pair in one["pairs"]]


def swap(document: Document) -> None:
    """Samples of one dtype are given out as the other's."""
    for group in document["groups"]:
        group["dtype"] = {"fp16": "bf16", "bf16": "fp16"}[group["dtype"]]


def cases(document: Document, change: Edit, text: str = "") -> None:
    for case in document["cases"]:
        if case["case"].startswith(text) and case["accuracy"]:
            change(case)


def kernels(document: Document, change: Edit, text: str = "") -> None:
    for name, kernel in document["kernels"].items():
        if name.startswith(text):
            change(kernel)


def one_kernel(document: Document) -> None:
    """A sanitizer run over the first kernel alone."""
    name = min(document["kernels"])
    document["kernels"] = {name: document["kernels"][name]}
    for one in document["findings"]:
        one["tail"] = one["tail"].replace("74 launches", "1 launches")


def looks(document: Document) -> Iterator[Document]:
    """Every look at the GPU of the first group."""
    for one in document["groups"][0]["blocks"]:
        yield from one["samples"]


def registers(document: Document) -> None:
    for found in document["counters"].values():
        found[REGISTERS] = int(found[REGISTERS] * 0.9)


def slightly_larger(document: Document) -> None:
    """Bounds a tenth larger, by the rule of the other machine's file: files of one rule are compared."""
    cases(document, lambda case: case["accuracy"].update(max_allowed=case["accuracy"]["max_allowed"] * 1.1))
    document["rule"] = H100_RULE


EDITS: dict[str, tuple[str, Edit, Callable[[Path], Outcome], str]] = {
    "a bf16 cell": (
        "bench", lambda d: drop(d, lambda g, s: s["kernel"].startswith(CELL) and g["shape"]["seq_len"] == 4096),
        COMPLETE, " bf16 S=4096 B=16 H=16: expected 1 measurement, found none"),
    "all of bf16": ("bench", lambda d: drop(d, lambda g, _: g["dtype"] == "bf16"), COMPLETE,
                    "bf16 S=16384: all of 23 cells are missing"),
    "the whole of S = 512": ("bench", lambda d: drop(d, lambda g, _: g["shape"]["seq_len"] == 512), COMPLETE,
                             "fp16 S=512: all of 23 cells are missing"),
    "the worst pairs": ("bench", lambda d: keep_blocks(d, 7), COMPLETE, "settings.pairs: expected 24, found 21"),
    "three pairs": ("bench", lambda d: keep_blocks(d, 1), COMPLETE, "settings.pairs: expected 24, found 3"),
    "no flush": ("bench", lambda d: (d["settings"].update(flush_bytes=0), d["gpu"].update(l2_bytes=0)), COMPLETE,
                 "twice the L2 of configs/gpus/h200.yaml, found 0"),
    "a smaller L2": ("second_card", lambda d: d["gpu"].update(l2_bytes=0), AGREE, "gpu.l2_bytes: expected 62914560"),
    "foreign processes": ("bench", lambda d: d["processes"][0].update(foreign_after=2), COMPLETE,
                          "process 0: expected no foreign processes after, found 2"),
    "another day": ("bench", lambda d: d["processes"][0].update(started_utc="2026-11-19T18:02:36+00:00"), COMPLETE,
                    "process 0: expected a start on 2026-11-20, found 2026-11-19T18"),
    "another mode": ("bench", lambda d: d.update(mode="event-locked"), COMPLETE, "mode: expected event-free, found ev"),
    "one run": ("check", lambda d: cases(d, lambda c: c.update(repeats=1), "odd 1"), COMPLETE,
                f"case odd 1x192x3: expected {RUNS} runs that agree, found 1"),
    "bounds of 1": ("check", lambda d: cases(d, lambda c: c["accuracy"].update(max_allowed=1.0)), COMPLETE,
                    "case grid 16x512x16: max_allowed: expected at most 0.0127, found 1"),
    "an RMS bound of 1": ("check", lambda d: cases(d, lambda c: c["accuracy"].update(rms_allowed=1.0)), COMPLETE,
                          "case grid 16x512x16: rms_allowed: expected 0.000488281, found 1"),
    "biases of 1": ("check", lambda d: cases(d, lambda c: c["accuracy"].update(bias_allowed=1.0, row_bias_allowed=1.0)),
                    COMPLETE, "case grid 16x512x16: bias_allowed: expected "),
    "slightly larger bounds": ("check", slightly_larger, AGREE, "case grid 16x512x16: max_allowed: found "),
    "bounds of a timed cell": (
        "bench", lambda d: d["groups"][3]["series"][2]["after"].update(max_allowed=1.0), COMPLETE,
        "fp16 S=4096 B=16 H=16: after timing: max_allowed: expected at most 0.0127, found 1"),
    "another shape": ("check", lambda d: cases(d, lambda c: c["shape"].update(seq_len=64), "grid 16x4096"), COMPLETE,
                      "case grid 16x4096x16: expected the shape 16x4096x16x128, found 16x64x16x128"),
    "a case": ("check", lambda d: d.update(cases=[c for c in d["cases"] if c["case"] != "sliced 2x512x16"]), COMPLETE,
               "case sliced 2x512x16: expected once, found 0"),
    "bf16 of the checks": (
        "check", lambda d: (d.update(cases=[c for c in d["cases"] if c["dtype"] == "fp16"]),
                            d.update(kernels={n: k for n, k in d["kernels"].items() if k["dtype"] == "fp16"})),
        COMPLETE, "kernel 07 (BF16, 128, 64, 64, 4): async+eager+swizzled+load_0_0_2_tiles+opt_softmax: is missing"),
    "55 sanitized kernels": ("sanitizer", one_kernel, COMPLETE, "tool memcheck: expected 74 launches, found 1"),
    "sanitized small grids": (
        "sanitizer", lambda d: d["findings"][1].update(tail=d["findings"][1]["tail"].replace("74 laun", "56 laun")),
        COMPLETE, "tool racecheck: expected 74 launches, found 56"),
    "55 kernels but for launches": (
        "sanitizer", lambda d: d["kernels"].pop(max(d["kernels"])), COMPLETE,
        "stages_2_3+registers_24_240+overlap+persistent+flattened+split: is missing"),
    "a tool": ("sanitizer", lambda d: d["findings"].pop(1), COMPLETE, "tool racecheck: expected once, found 0"),
    "registers of the counters": ("counters", registers, WHOLE, f"{REGISTERS}: expected 217, as locked, found 195"),
    "a counter": ("counters", lambda d: [one.pop(REGISTERS) for one in d["counters"].values()], COMPLETE,
                  f"counter {REGISTERS}: is missing"),
    "counters of an iteration": (
        "counters", lambda d: (d["kernels"].pop(max(d["kernels"])), d["counters"].pop(max(d["counters"]))), COMPLETE,
        "stages_2_3+registers_24_240+overlap+persistent+flattened+split: is missing"),
    "another card, 5 % faster": ("second_card", lambda d: faster(d, 1.05), AGREE,
                                 "second_card.json.gz: cell 01 (FP16, 128, 64, 64, 4): async+load_0_0_0_tiles fp16 S="),
    "one ratio of the table": ("bench", lambda d: faster(d, 1.05, "09 (FP16", 4096), AGREE,
                               "cell 09 (FP16, 128, 128, 64, 4): "),
    "most of a cell's blocks": ("bench", lambda d: block(d, 1.05, 7), AGREE, "cell 09 (FP16, 128, 128, 64, 4): "),
    "swapped dtypes": ("bench", swap, WHOLE, ": measured as bf16, a kernel for fp16"),
    "registers of a timed kernel": ("h200", lambda d: kernels(d, lambda k: k.update(registers=128), "07 (FP16"), WHOLE,
                                    ", as locked, found 128"),
    "another compiler": ("bench", lambda d: kernels(d, lambda k: k["toolchain"].update({"nvidia-nvvm": "13.9"})), WHOLE,
                         "nvidia-nvvm: expected 13.0.88, as locked, found 13.9"),
    "looks in another order": ("bench", lambda d: next(looks(d)).update(t_s=99.0), WHOLE,
                               "block 0: looked at after 2.4892 s, expected at least 99 s, as the one before"),
    "a look within the warm-up": ("bench", lambda d: next(looks(d)).update(t_s=0.5), WHOLE,
                                  "block 0: looked at after 0.5 s, within the warm-up of 1.609 s"),
    "a clock that there is not": ("bench", lambda d: [one.update(sm_clock_mhz=2400) for one in looks(d)], WHOLE,
                                  "block 0: sm_clock_mhz: expected at most 1980, found 2400"),
    "more power than it has": ("bench", lambda d: [one.update(power_w=900.0) for one in looks(d)], WHOLE,
                               "block 0: power_w: expected at most 770, found 900"),
    "a start of no time": ("bench", lambda d: d["processes"][0].update(started_utc="2026-11-20 noon"), WHOLE,
                           "process 0: expected a start in UTC, such as"),
    "an input set too many": ("bench", lambda d: d["groups"][0]["input_seeds"].pop(), WHOLE,
 "pairs on input set 2, of 2 seeds"),
    "a shorter run": (
        "second_card", lambda d: [s.update(t_s=s["t_s"] / 2) for g in d["groups"] for b in g["blocks"]
                                  for s in b["samples"]], WHOLE, "process 0: its pairs take "),
    "another power limit": ("second_card", lambda d: d["gpu"].update(power_limit_w=350.0), AGREE,
                            "second_card.json.gz: gpu.power_limit_w: expected 700.0, as in bench.json.gz, found 350.0"),
    "another FA2": ("second_card", lambda d: d["reference"].update(torch="2.9.0"), AGREE,
                    "reference.torch: expected 2.11.0+cu130, as in bench.json.gz, found 2.9.0"),
    "another cuDNN": ("bundle", lambda d: d["references"]["cudnn"].update(version="9.20.0"), AGREE,
                      "reference.cudnn.version: expected 9."),
    "cuDNN, 5 % faster": ("bundle", lambda d: arm(d, "cudnn", 1.05), AGREE, ".json.gz: cell cudnn fp16 S="),
    "the same card twice": (
        "second_card", lambda d: d["gpu"].update(uuid=CARD), AGREE,
        "second_card.json.gz: gpu.uuid: expected another card than that of bench.json.gz"),
    "another driver on that card": (
        "second_card", lambda d: d["gpu"].update(uuid=CARD, driver="570"), AGREE,
        "second_card.json.gz: gpu.driver: expected 580.159.04, as in bench.json.gz on the same card and day"),
    "the chip of the rates": ("rates", lambda d: d["gpu"].update(name="NVIDIA H100"), AGREE,
                              "rates.json.gz: gpu.name: expected NVIDIA H200, found NVIDIA H100"),
    "the driver of the rates": ("rates", lambda d: d["gpu"].update(driver="570"), AGREE,
                                "rates.json.gz: gpu.driver: expected 580.159.04, found 570"),
    "a run of rates": ("rates", lambda d: d["runs"].pop(0), COMPLETE, "runs: expected 232, found 231"),
    "an SM of rates": ("rates", lambda d: d["runs"][40]["spans"][0].pop(), COMPLETE, "spans, found [131, 132, 132"),
    "a time of rates": ("rates", lambda d: d["runs"][0]["spans"][0].__setitem__(0, 0), COMPLETE, "is not positive"),
    "a tool's samples": (
        "opinions", lambda d: [o["timings"][2].update(rounds=[0], us=[1.0], counters={}) for o in d["opinions"]],
        COMPLETE, "nvbench 07 (FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_0_2_tiles+opt_softmax fp16 S=4096: "),
    "a candidate": ("tune_07", lambda d: drop(d, lambda _, s: "128, 32" in s["kernel"]), COMPLETE, "fp16 S=4096 B=16"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_named_though_all_is_sealed_and_derived_anew(tree: Path, name: str) -> None:
    stem, change, check, line = EDITS[name]
    folder = tree / "h200"
    more: tuple[str, ...] = ("bench", "second_card", "counters") if check is AGREE else ()
    more += ("h200",) if stem == "bundle" else ()
    only(folder, "counters.csv", SMALL, *(f"{one}.json.gz" for one in dict.fromkeys((stem, *more))))
    if stem == "check" and check is AGREE:
        only(tree / "h100", "check.json.gz")
    else:
        shutil.rmtree(tree / "h100")
    sealed = (folder / SEAL).read_bytes()
    forge(folder / f"{stem}.json.gz", change, again=check is AGREE)
    outcome = check(tree)
    assert outcome.status == "failed"
    assert any(line in detail and f"{stem}.json.gz" in detail for detail in outcome.details), outcome.details[:9]
    assert {len(detail.splitlines()) for detail in outcome.details} == {1}
    assert sealed != (folder / SEAL).read_bytes()
    (folder / SEAL).write_bytes(sealed)
    told = gate_checks.results_sealed(tree).details
    assert any(f"{stem}.json.gz: edited since it was sealed" in one for one in told), "without the seal anew"


def text_edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    path.unlink()
    path.write_text(re.sub(old, new, text, count=1, flags=re.MULTILINE | re.DOTALL), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != text


TEXTS = [
    ("pytest_gpu.log", r"^tests/gpu/\S+ PASSED[^\n]*\n", "",
     f"found {LOGGED.passed} passed, {LOGGED.skipped} skipped, 0 failed, {LOGGED.passed - 1} listed"),
    ("pytest_gpu.log", f"{LOGGED.passed} passed", f"{LOGGED.passed + 5} passed",
     f"tests: expected {LOGGED.passed} passed, {LOGGED.skipped} skipped, found {LOGGED.passed + 5} passed"),
    ("pytest_gpu.log", r"^(tests/gpu/\S+ PASSED)[^\n]*\ntests/gpu/\S+ PASSED", r"\1 [  0%]\n\1",
     f"{FIRST_TEST}: expected once, found 2"),
    ("throughput.csv", r"^ablation_one_gpu,gpu0,03c2c7f3b01acd4e,[^\n]*\n", "", "03c2c7f3b01acd4e: is missing"),
    ("trials_addresses.json", r'"pairs_ms":\[\[[^\]]*\],', '"pairs_ms":[', "pairs: expected 192 in all, found 191"),
    ("manifest.yaml", "dtypes: .fp16, bf16.", "dtypes: [fp16]", "timings: bf16 is not asked for"),
    ("manifest.yaml", "(bench.json.gz:.*?seq_lens: .)512, ", r"\1", "timings: S=512: is not asked for"),
    ("manifest.yaml", "(bench.json.gz:.*?iterations: .)1, ", r"\1", "timings: iteration 1 is not asked for"),
    ("manifest.yaml", "(bench.json.gz:.*?pairs: )24", r"\g<1>3", "expected at least 20 pairs, found 3, 20 that count"),
    ("manifest.yaml", r"\[prog\]", "[a100]", "expected cases of all configurations of the ladder (prog), found none"),
    ("manifest.yaml", r"(check.json.gz:.*?repeats: )\d+", r"\g<1>2",
     f"expected at least {manifest.LEAST_REPEATS} runs that agree, found 2"),
    ("manifest.yaml", "memcheck, ", "", "sanitizers: memcheck is not asked for"),
    ("manifest.yaml", "machine: h200", "machine: h100", "machine: expected h200, as the folder, found h100"),
    ("manifest.yaml", "^  tune_07.json.gz:.*?(?=^  tuned)", "", "tune_07.json.gz is here, and not in it"),
    ("manifest.yaml", "  README.md:", "  WRITE.md:", "manifest.yaml: WRITE.md is in it, and missing"),
    ("manifest.yaml", "holds: text", "holds: nothing", "manifest.yaml:5: "),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "line"), TEXTS, ids=[f"{n}-{one[0]}" for n, one in enumerate(TEXTS)])
def test_an_edit_of_a_text_or_the_manifest_is_named(tree: Path, name: str, old: str, new: str, line: str) -> None:
    folder = tree / "h200"
    more = {"throughput.csv": ("ablation.json.gz", "ablation_one_gpu.json.gz"), NAME: ("tune_07.json.gz",)}
    only(folder, name, SMALL, *more.get(name, ()))
    shutil.rmtree(tree / "h100")
    text_edit(folder / name, old, new)
    resealed(folder)
    details = COMPLETE(tree).details
    assert any(line in detail for detail in details), details
    (found,) = verify.verify(folder / name)
    assert any(line in detail or f"{name}: {detail}".endswith(line) for detail in found.details), found.details


def test_a_file_that_is_gone_or_too_many_is_named(tree: Path) -> None:
    folder = tree / "h200"
    (folder / "second_card.json.gz").unlink()
    (folder / "more.log").write_text("", encoding="utf-8")
    resealed(folder)
    told = [line.partition("manifest.yaml: ")[2] for line in manifest.folder_lacks(folder)]
    assert told == ["more.log is here, and not in it", "second_card.json.gz is in it, and missing"]
    (folder / NAME).unlink()
    assert "is missing, so that nothing says" in manifest.folder_problems(folder).problems[0]


TABLES = "timings in the ladder's tables: iteration {} is not asked for"
LESS = [
    ("bench_beyond.json.gz", 17, TABLES.format(17)),
    ("bench_hopper.json.gz", 20, TABLES.format(20)),
    ("bench_persistent.json.gz", 27, TABLES.format(27)),
    ("hopper.json.gz", 20, "timings: iteration 20 of the grid hopper is not asked for"),
    ("check_persistent.json.gz", 28, "cases: iteration 28 is not asked for"),
]


def test_a_manifest_that_was_changed_is_read_anew(tmp_path: Path) -> None:
    """Same folder, other text; and same text in another folder is the same manifest."""
    text = (RESULTS / "h200" / "manifest.yaml").read_text(encoding="utf-8")
    path = tmp_path / "manifest.yaml"
    path.write_text(text, encoding="utf-8")
    assert load_manifest(tmp_path) == load_manifest(RESULTS / "h200")
    path.write_text(text + "  more.json.gz: 1\n", encoding="utf-8")
    for _ in range(2):  # what is refused is not kept either
        with pytest.raises(FlashladderError, match=f"^{re.escape(str(path))}:"):
            load_manifest(tmp_path)
    path.write_text(text + "# a remark\n", encoding="utf-8")
    assert load_manifest(tmp_path) == load_manifest(RESULTS / "h200")


@pytest.mark.parametrize(("name", "number", "line"), LESS, ids=[f"{name}-{number}" for name, number, _ in LESS])
def test_a_step_that_went_out_of_one_of_several_files_is_named(name: str, number: int, line: str) -> None:
    owed = load_manifest(RESULTS / "h200")
    of = owed.files[name].of  # type: ignore[union-attr]  # timings and cases have it
    less = of.model_copy(update={"iterations": [one for one in of.iterations if one != number]})  # type: ignore[union-attr]
    files = owed.files | {name: owed.files[name].model_copy(update={"of": less})}
    assert list(manifest.too_little(owed.model_copy(update={"files": files}), "h200")) == [line]


def few(name: str, kind: str) -> str:
    """The line of a machine that has one file of a kind less than it is known to have."""
    least = {**manifest.LEAST, **manifest.MORE[name]}[kind]
    return f"{kind}: expected at least {least} files that hold them, found {least - 1}"


GONE = [
    ("h200", ("sanitizer.json.gz",), few("h200", "sanitizers")),
    ("h200", ("opinions.json.gz",), few("h200", "opinions")),
    ("h200", ("counters.json.gz", "counters.csv"), few("h200", "counters")),
    ("h200", ("counters.csv",), few("h200", "table")),
    ("h200", ("second_card.json.gz",), few("h200", "timings of the ladder")),
    ("h200", ("ablation.json.gz",), few("h200", "timings")),
    ("h200", ("pytest_sweep_gpu.log",), few("h200", "tests")),
    ("h200", ("trials_addresses.json",), few("h200", "trials")),
    ("h200", ("accuracy.json.gz",), few("h200", "accuracy")),
    ("h200", ("bench_beyond.json.gz", "beyond.json.gz"), "timings: iteration 17 is not asked for"),
    ("h200", ("bench_hopper.json.gz", "hopper.json.gz"), "timings: iteration 20 is not asked for"),
    ("h100", ("hopper.json.gz",), "timings: iteration 20 is not asked for"),
    ("h100", ("bundle.json.gz",), few("h100", "timings of the ladder")),
    ("h100", ("persistent_second.json.gz",), few("h100", "timings of the ladder")),
    ("h100", ("opinions_doubt.json.gz",), few("h100", "opinions")),
    ("h100", ("rates.json.gz",), few("h100", "rates")),
    ("h100", ("check.json.gz",), few("h100", "cases")),
    ("h100", ("pytest_gpu.log",), few("h100", "tests")),
]


@pytest.mark.parametrize(("name", "gone", "line"), GONE, ids=[f"{one[0]}-{one[1][0]}" for one in GONE])
def test_a_file_that_went_together_with_its_entry_is_named(
    tree: Path, name: str, gone: tuple[str, ...], line: str
) -> None:
    folder = tree / name
    for one in gone:
        (folder / one).unlink()
        text_edit(folder / NAME, rf"^  {re.escape(one)}:\n(?:    [^\n]*\n)*", "")
    resealed(folder)
    assert not set(gone) & load_manifest(folder).files.keys()
    assert f"{folder / NAME}: {line}" in list(manifest.folder_lacks(folder))


def test_a_checker_that_makes_fewer_cases_than_the_manifest_says_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a list of cases that lost one would ask no file for it."""
    monkeypatch.setattr(proofs, "cases_for", lambda config: cases_for(config)[1:])
    found = manifest.file_problems(RESULTS / "h100" / "check.json.gz")
    told = [line.rpartition(": ")[2] for line in found if "the checker makes" in line]
    assert set(told) == {"expected 42 cases, the checker makes 41", "expected 40 cases, the checker makes 39"}


def test_a_step_that_says_it_is_not_measured_and_is_asked_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(number: int) -> Iteration:
        return replace(load_iteration(number), unmeasured="no GPU" * (number == 9))

    monkeypatch.setattr(manifest, "load_iteration", known)
    (told,) = manifest._measured_after_all({8, 9, 99})
    assert told.startswith("timings of iteration 9 are asked for: expected no 'unmeasured' in iterations/09_")


def test_each_kind_of_file_that_a_machine_has_is_asked_for() -> None:
    for name in ("h100", "h200"):
        held = {one.holds for one in load_manifest(RESULTS / name).files.values()} - {"text"}
        assert held <= {**manifest.LEAST, **manifest.MORE.get(name, {})}.keys()


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_what_the_edits_are_caught_by_is_not_said_of_the_committed_files(name: str) -> None:
    """And the manifests ask for what was measured: a row that is taken out of one is missed here."""
    folder = RESULTS / name
    assert manifest.folder_problems(folder).problems == []
    assert cross.folder_problems(folder).problems == []
    owed = load_manifest(folder).files
    held = sorted(one.holds for one in owed.values())
    by_kind = {kind: held.count(kind) for kind in sorted(set(held))}
    if name == "h100":
        assert by_kind == {
            "accuracy": 2, "cases": 2, "energy": 1, "opinions": 1, "rates": 1, "tests": 1, "text": 1, "timings": 8,
            "trials": 2,
        }  # fmt: skip
        return
    assert by_kind == {
        "accuracy": 2, "cases": 2, "counters": 1, "energy": 2, "opinions": 2, "rates": 1, "sanitizers": 1, "seconds": 1,
        "soak": 1, "table": 1, "tests": 2, "text": 2, "timings": 18, "trials": 6,
    }  # fmt: skip
    assert owed["second_card.json.gz"].beside == "bench.json.gz"  # type: ignore[union-attr]  # timings have it
    assert {tuple(owed[f"{one}.json.gz"].seq_lens) for one in ("bench", "h200", "second_card")} == {GRID}  # type: ignore[union-attr]


BESIDE_BEYOND = ("cudnn bf16 S=1024",)  # apart from the sweep of the further steps, which is not among these files


def test_cells_that_lie_apart_are_listed_with_a_reason_and_no_others_are() -> None:
    held = cross.timings(RESULTS / "h200")
    apart = held["bundle.json.gz"].apart
    assert apart is not None
    assert "lower" in apart.why
    files = {
        name: load_as(RESULTS / "h200" / name, BenchResult)
        for name in ("bench.json.gz", "h200.json.gz", "bundle.json.gz")
    }
    beside = {name: one.beside for name, one in held.items() if one.beside}
    apart = apart.model_copy(update={"cells": [one for one in apart.cells if one not in BESIDE_BEYOND]})
    assert list(repeats.disagreements(files, beside, {"bundle.json.gz": apart.cells})) == []
    unlisted = list(repeats.disagreements(files, beside))
    assert [line.partition(": expected")[0] for line in unlisted] == [f"bundle.json.gz: cell {c}" for c in apart.cells]
    assert apart.cells[-1] == "cudnn fp16 S=1024", "a library's arm counts"
    own, _ = apart.cells[:-1], files.pop("h200.json.gz")
    other = own[0].replace("S=1024", "S=4096")
    (told,) = repeats.disagreements(files, beside, {"bundle.json.gz": [*own, other]})
    assert told == f"bundle.json.gz: cell {other}: {repeats.AGREES}"
    for factor, n in ((1.0, 0), (1.04, 1)):  # twice as far, and no farther
        moved = {**files, "bundle.json.gz": scaled(files["bundle.json.gz"], own[0], factor)}
        assert len(list(repeats.disagreements(moved, beside, {"bundle.json.gz": own}))) == n


def scaled(result: BenchResult, cell: str, factor: float) -> BenchResult:
    """The ratio of one cell times a factor."""
    new = [
        one.model_copy(update={key: getattr(one, key) * factor for key in ("pct", "pct_low", "pct_high")})
        if repeats.cell_of(one) == cell
        else one
        for one in result.summaries
    ]
    return result.model_copy(update={"summaries": tuple(new)})
