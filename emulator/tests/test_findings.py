"""What a run found, for other tools: SARIF, JUnit, the baseline, levels, and the plugin of pytest."""

from __future__ import annotations

import gzip
from importlib.metadata import entry_points
import json
from pathlib import Path
import subprocess
import sys
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from tests.programs import text_of

import ptxemu
from ptxemu.__main__ import main
from ptxemu.errors import PtxemuError
from ptxemu.findings import Case, Finding, Place, as_junit, as_sarif, read_baseline, write_baseline
from ptxemu.host.device import Launch
from ptxemu.host.program import Report
from ptxemu.observe.hazards import KINDS, WARNINGS, level_of

RACE = text_of("programs", "reversed").replace("    bar.sync 0;\n", "", 1)
WORDS = ["race.ptx", "--block", "64", "--arg", "int32:64:zeros", "--hazards"]
VERDICTS = json.loads(gzip.decompress((Path(__file__).parent / "data" / "verdicts.json.gz").read_bytes()))["cases"]
BEYOND = RACE.replace("st.global.u32 [%rd1], %r3", "st.global.u32 [%rd1+4096], %r3")
UNFENCED = VERDICTS["init_fence"]["variants"]["3"]["ptx"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("race.ptx").write_text(RACE)
    return tmp_path


def finding(rule: str = "RAW", line: int = 2, file: str = "k.cu", kernel: str = "k", level: str = "error") -> Finding:
    return Finding(
        rule, level, kernel, "a message", (Place(file, line, "ld.shared.u32"), Place(file, 1, "st.shared.u32"))
    )


def test_every_race_is_a_result_with_both_places() -> None:
    assert main([*WORDS, "--sarif", "a.sarif"]) == 1
    (run,) = json.loads(Path("a.sarif").read_text())["runs"]
    (result,) = run["results"]
    lines = RACE.splitlines()
    for location, opcode in zip(
        (*result["locations"], *result["relatedLocations"]), ("ld.shared", "st.shared"), strict=True
    ):
        place = location["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "race.ptx"
        assert opcode in lines[place["region"]["startLine"] - 1]
    rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
    assert (rule["id"], result["ruleId"], result["level"]) == ("raw", "raw", "error")
    assert run["invocations"] == [{"executionSuccessful": True, "toolExecutionNotifications": []}]


def test_rules_are_named_once_and_every_kind_has_one() -> None:
    rules = json.loads(as_sarif([]))["runs"][0]["tool"]["driver"]["rules"]
    names = [rule["id"] for rule in rules]
    assert len(names) == len(set(names))
    assert {kind.lower().replace(" ", "-") for kind in KINDS} < set(names)
    levels = {rule["id"]: rule["defaultConfiguration"]["level"] for rule in rules}
    assert {name for name in names if levels[name] == "warning"} == {"mbarrier-fence", "elect", "ignored"}


def test_what_could_not_be_run_is_no_success() -> None:
    run = json.loads(as_sarif([], refused=["cudaGraphLaunch is not supported"]))["runs"][0]
    assert not run["invocations"][0]["executionSuccessful"]
    (suite,) = ET.fromstring(as_junit("program", [Case("k", 1.0, ())], refused=["no PTX"]))
    assert suite.attrib | {"time": ""} == {"name": "program", "tests": "2", "failures": "0", "errors": "1", "time": ""}


def test_a_kernel_is_a_test_case() -> None:
    cases = [
        Case("k<int>", 0.25, (finding(), finding(), finding("mbarrier fence", level="warning"))),
        Case("right", 1.5, ()),
    ]
    root = ET.fromstring(as_junit("a & b", cases))
    (suite,) = root
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("a & b", "2", "1")
    first, second = suite
    assert (first.get("name"), first.get("time"), len(second)) == ("k<int>", "0.250", 0)
    assert [(one.tag, one.get("type")) for one in first] == [("failure", "raw"), ("system-out", None)]
    known = ET.fromstring(as_junit("a", cases, known={finding().fingerprint}))
    assert not known.findall(".//failure")
    assert len(ET.fromstring(as_junit("a", cases, strict=True)).findall(".//failure")) == 2


def test_a_fingerprint_follows_its_line(here: Path) -> None:
    file = here / "k.cu"
    file.write_text("store;\nload;\n")
    first = finding(file=str(file))
    file_below = here / "below" / "k.cu"
    file_below.parent.mkdir()
    file_below.write_text("// new\nstore;\n   load;\n")
    moved = Finding("RAW", "error", "k", "other", (Place(str(file_below), 3, "x"), Place(str(file_below), 2, "y")))
    assert moved.fingerprint == first.fingerprint
    others = [finding("WAR", file=str(file)), finding(line=1, file=str(file))]
    assert len({one.fingerprint for one in (first, *others)}) == 3
    assert finding(kernel="k<int>", file=str(file)).fingerprint == first.fingerprint


def test_known_findings_do_not_count() -> None:
    assert main([*WORDS, "--baseline", "known.json", "--update-baseline"]) == 0
    assert main([*WORDS, "--baseline", "known.json", "--sarif", "a.sarif", "--junit", "a.xml"]) == 0
    assert (
        main([*WORDS, "--baseline", "known.json", "--update-baseline", "--sarif", "b.sarif", "--junit", "b.xml"]) == 0
    )
    assert "suppressions" in json.loads(Path("b.sarif").read_text())["runs"][0]["results"][0]
    assert ET.parse("b.xml").getroot()[0].get("failures") == "0"
    (result,) = json.loads(Path("a.sarif").read_text())["runs"][0]["results"]
    assert result["suppressions"] == [{"kind": "external", "justification": "in the baseline"}]
    assert ET.parse("a.xml").getroot()[0].get("failures") == "0"
    Path("race.ptx").write_text(RACE.replace("[%r3+252]", "[%r3+ 252]"))
    assert main([*WORDS, "--baseline", "known.json"]) == 1


def test_an_error_that_ends_a_launch_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    Path("race.ptx").write_text(BEYOND)
    assert main([*WORDS, "--sarif", "a.sarif", "--junit", "a.xml"]) == 1
    assert "may not do this" in capsys.readouterr().err
    results = json.loads(Path("a.sarif").read_text())["runs"][0]["results"]
    assert [one["ruleId"] for one in results] == ["raw", "out-of-bounds"]
    assert len(ET.parse("a.xml").getroot().findall(".//failure")) == 2


def test_a_warning_counts_only_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    Path("race.ptx").write_text(UNFENCED)
    words = ["race.ptx", "--block", "256", "--arg", "float32:256:zeros", "--arg", "float32:256:arange", "--hazards"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "warnings: 1" in text
    assert "warning: shared mbarrier fence" in text
    assert "HAZARDS" not in text
    assert main([*words, "--strict"]) == 1


def test_whoever_asks_for_findings_asks_for_hazards() -> None:
    for words in (["--sarif", "a.sarif"], ["--junit", "a.xml"], ["--strict"]):
        assert main([*WORDS[:-1], *words]) == 1
    assert main(WORDS[:-1]) == 0


def test_a_run_that_fails_leaves_no_files_of_an_earlier_one() -> None:
    words = [*WORDS, "--sarif", "a.sarif", "--junit", "a.xml", "--baseline", "known.json"]
    assert main([*words, "--update-baseline"]) == 0
    known = Path("known.json").read_text()
    Path("race.ptx").write_text("nonsense")
    for more in ([], ["--update-baseline"]):
        assert main([*words, *more]) == 2
        run = json.loads(Path("a.sarif").read_text())["runs"][0]
        assert (run["results"], run["invocations"][0]["executionSuccessful"]) == ([], False)
        assert ET.parse("a.xml").getroot()[0].get("errors") == "1"
        assert Path("known.json").read_text() == known


def test_a_program_that_fails_is_a_failed_test_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--junit", "a.xml", "--baseline", "b.json", "--update-baseline", "false"]) == 2
    assert "the baseline is not written: not everything was run: found no launch" in capsys.readouterr().err
    assert main(["run", "--junit", "a.xml", "false"]) == 1
    suite = ET.parse("a.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    said = capsys.readouterr().err
    assert "nothing was launched, so nothing was checked; the program's exit code is 1" in said
    assert main(["run", "--junit", "a.xml", "--no-hazards", "false"]) == 2


def test_places_are_those_of_the_repository(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / ".git").mkdir()
    (here / "a <b>").mkdir()
    monkeypatch.chdir(here / "a <b>")
    Path("é.cu").write_text("x")
    found = finding(file=str(Path("é.cu").resolve()))
    (result,) = json.loads(as_sarif([found]))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%20%3Cb%3E/%C3%A9.cu"
    assert result["relatedLocations"][0]["id"] == 1
    assert "(1)" in result["message"]["text"]


def test_all_launches_of_a_kernel_are_one_case() -> None:
    hazards = ptxemu.Hazards()
    ptxemu.load(RACE).kernel().launch(1, 64, (np.zeros(64, np.int32),), observers=[hazards])
    report = Report()
    for found in (hazards.reports, ()):
        report.launched(Launch("k", (1, 1, 1), (64, 1, 1), None, 0, hazards=found))
    assert len(report.cases["k"].findings) == 1
    unwatched = Report()
    unwatched.launched(Launch("k", (1, 1, 1), (64, 1, 1), None, 0, watched=False))
    assert "no hazards were looked for" in unwatched.summary()
    assert '"any_schedule": false' in unwatched.as_json(0)


def test_levels() -> None:
    assert {level_of(kind) for kind in KINDS} == {"error", "warning"}
    assert KINDS.keys() > WARNINGS


@pytest.mark.parametrize(("text", "what"), [
    ("{", "not a baseline"), ("[]", "not a baseline"), ("[" * 200_000, "not a baseline"),
    ('{"schema_version": 1}', "not a baseline"),
    ('{"schema_version": 1, "findings": [1]}', "not a baseline"),
    ('{"schema_version": 1, "findings": [{"fingerprint": []}]}', "not a baseline"),
    ('{"schema_version": 2, "findings": []}', "a baseline of another version: expected 1, found 2"),
    (None, "cannot read the file"),
])  # fmt: skip
def test_a_file_that_is_no_baseline(text: str | None, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    if text is not None:
        Path("known.json").write_text(text)
    assert main([*WORDS, "--baseline", "known.json"]) == 2
    error = capsys.readouterr().err
    assert what in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", [
    ["--update-baseline"], ["--sarif", "a.json"], ["--junit", "missing/a.xml"], ["--baseline", "known"],
])  # fmt: skip
def test_bad_options_write_nothing(words: list[str], here: Path) -> None:
    assert main([*WORDS, *words]) == 2
    assert [path.name for path in here.iterdir()] == ["race.ptx"]


def test_a_baseline_is_sorted_and_read_back() -> None:
    path = Path("known.json")
    findings = [finding("WAR", kernel="b"), finding(kernel="a"), finding("WAR", kernel="b")]
    write_baseline(path, findings)
    assert [one["kernel"] for one in json.loads(path.read_text())["findings"]] == ["a", "b"]
    assert read_baseline(path) == {one.fingerprint for one in findings}
    with pytest.raises(PtxemuError):
        read_baseline(Path("none.json"))


PLUGIN = """
import numpy as np
import ptxemu

def launch(hazards):
    ptxemu.load("race.ptx").kernel().launch(1, 64, (np.zeros(64, np.int32),), observers=[hazards])

def test_race(hazards):
    launch(hazards)

def test_not_watched():
    launch(ptxemu.Hazards())

def test_program(ptxemu_run):
    assert ptxemu_run("echo", "hello").stdout == "hello\\n"

def test_no_program(ptxemu_run):
    ptxemu_run("./none")

def test_too_long(ptxemu_run):
    import pytest, subprocess
    with pytest.raises(subprocess.TimeoutExpired):
        ptxemu_run("sleep", "60", timeout=1)
"""


def pytest_in(folder: Path) -> str:
    (folder / "test_kernels.py").write_text(PLUGIN)
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    words += [] if entry_points(group="pytest11", name="ptxemu") else ["-p", "ptxemu.pytest"]
    command = [sys.executable, "-m", "pytest", *words, "test_kernels.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_the_plugin_fails_tests_that_race(here: Path) -> None:
    said = pytest_in(here)
    assert "ERROR test_kernels.py::test_race" in said
    assert "race.ptx:" in said
    assert "error: ./none: no such program" in said
    assert "1 failed, 4 passed, 1 error" in said


def test_the_plugin_knows_a_baseline(here: Path) -> None:
    assert main([*WORDS, "--baseline", "known.json", "--update-baseline"]) == 0
    (here / "pytest.ini").write_text("[pytest]\nptxemu_baseline = known.json\n")
    assert "ERROR" not in pytest_in(here)
