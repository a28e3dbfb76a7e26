"""What a run found, as other tools take it: SARIF for code scanning, JUnit for CI, a baseline of known findings.

A finding is a hazard or an error that ended a launch. Its fingerprint holds no line number: it stays the same when
other lines of the file change, so a baseline outlives ordinary edits.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
import hashlib
import json
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree as ET

from ptxemu import __version__
from ptxemu.errors import KINDS as ERRORS
from ptxemu.errors import EmulationError, Located, PtxemuError, printable
from ptxemu.observe.hazards import KINDS as HAZARDS
from ptxemu.observe.hazards import Hazard, level_of
from ptxemu.text import output_file, read_text, write_whole

SCHEMA_VERSION = 1
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "ptxemu/v1"


@dataclass(frozen=True)
class Place:
    """A line of a CUDA file, or of PTX where CUDA lines are not known."""

    file: str
    line: int
    opcode: str

    @classmethod
    def of(cls, instruction: Located, path: str) -> Place:
        """Where an instruction comes from; `path` is the PTX file."""
        source = instruction.source
        file, line = (source.file, source.line) if source else (path, instruction.line)
        return cls(file, line, instruction.opcode)

    @property
    def text(self) -> str:
        """The line itself, without what surrounds it; the opcode where the file cannot be read."""
        try:
            lines = _lines(self.file, Path(self.file).stat().st_mtime_ns)
        except OSError:
            lines = ()
        return " ".join(lines[self.line - 1].split()) if 0 < self.line <= len(lines) else self.opcode


@lru_cache(maxsize=64)
def _lines(file: str, changed: int) -> tuple[str, ...]:  # noqa: ARG001 - part of the cache's key
    try:
        return tuple(read_text(Path(file)).split("\n"))
    except PtxemuError:
        return ()


@dataclass(frozen=True)
class Finding:
    """A hazard, or an error that ended a launch.

    Attributes:
        rule: a key of `observe.hazards.KINDS`, or of `errors.KINDS`.
        level: ``error`` or ``warning``.
        kernel: its name.
        message: one line, with both instructions.
        places: where it happened, and then what it collides with.
        ended: whether the launch ended there.
    """

    rule: str
    level: str
    kernel: str
    message: str
    places: tuple[Place, ...]
    ended: bool = False

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same lines, wherever they stand in their files, and in whatever instance of a template."""
        places = [f"{Path(place.file).name}\0{place.text}" for place in self.places]
        return hashlib.sha256("\0".join((self.rule, *places)).encode()).hexdigest()[:32]


def of_launch(kernel: str, hazards: Iterable[Hazard], error: EmulationError | None = None) -> list[Finding]:
    """The findings of one launch."""
    found = [
        Finding(
            one.kind, level_of(one.kind), kernel, one.render(),
            (Place.of(one.second, one.path), Place.of(one.first, one.path)),
        )
        for one in hazards
    ]  # fmt: skip
    if error is not None:
        path = (error.where or "").rpartition(":")[0] or error.where or ""
        places = (Place.of(error.instruction, path),) if error.instruction else ()
        found.append(Finding(error.kind, "error", kernel, str(error), places, ended=True))
    return found


def differing(findings: Iterable[Finding]) -> list[Finding]:
    """The first of each fingerprint."""
    return list({one.fingerprint: one for one in reversed(list(findings))}.values())[::-1]


def read_baseline(path: Path) -> frozenset[str]:
    """The fingerprints of a baseline.

    Raises:
        PtxemuError: no such file, or no baseline.
    """
    try:
        facts = json.loads(read_text(path))
        version, entries = facts["schema_version"], facts["findings"]
        found = frozenset(entry["fingerprint"].lower() for entry in entries)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        hint = "--update-baseline writes one"
        raise PtxemuError("not a baseline", where=path, hint=hint) from error
    if version != SCHEMA_VERSION:
        raise PtxemuError("a baseline of another version", where=path, expected=SCHEMA_VERSION, found=repr(version))
    return found


def write_baseline(path: Path, findings: Sequence[Finding]) -> None:
    """Writes all findings as known ones, for `read_baseline`."""
    entries = sorted(
        {one.fingerprint: (one.kernel, one.rule, one.message, one.fingerprint) for one in findings}.values()
    )
    names = ("kernel", "rule", "message", "fingerprint")
    facts = {"schema_version": SCHEMA_VERSION, "findings": [dict(zip(names, one, strict=True)) for one in entries]}
    write_whole(path, (json.dumps(facts, indent=2) + "\n").encode())


def rule_id(kind: str) -> str:
    """A kind without spaces, as SARIF's rules are named."""
    return kind.lower().replace(" ", "-")


def as_sarif(findings: Iterable[Finding], known: Collection[str] = (), refused: Sequence[str] = ()) -> str:
    """SARIF 2.1.0: each finding once, those in `known` as suppressed.

    `refused`: what could not be run, a line each; then the run counts as not successful.
    """
    rules = [
        {
            "id": rule_id(kind),
            "shortDescription": {"text": meaning},
            "defaultConfiguration": {"level": level_of(kind)},
        }
        for kind, meaning in (HAZARDS | {kind: ERRORS[kind] for kind in ERRORS if kind not in HAZARDS}).items()
    ]
    number = {rule["id"]: at for at, rule in enumerate(rules)}
    results = []
    for one in differing(findings):
        places = [_location(place) for place in one.places]
        result: dict[str, object] = {
            "ruleId": rule_id(one.rule),
            "ruleIndex": number[rule_id(one.rule)],
            "level": one.level,
            "message": {"text": f"{one.kernel}: {one.message}"},
            "locations": places[:1],
            "partialFingerprints": {FINGERPRINT: one.fingerprint},
        }
        if places[1:]:
            other = {"id": 1, "message": {"text": "what it collides with"}}
            result["relatedLocations"] = [place | other for place in places[1:]]
            result["message"] = {"text": f"{one.kernel}: {one.message} [What it collides with](1)"}
        if one.fingerprint in known:
            result["suppressions"] = [{"kind": "external", "justification": "in the baseline"}]
        results.append(result)
    notes = [{"level": "error", "message": {"text": line}} for line in refused]
    invocation = {"executionSuccessful": not refused, "toolExecutionNotifications": notes}
    driver = {"name": "ptxemu", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _location(place: Place) -> dict[str, object]:
    """Relative to the repository in which it runs, or to the folder where there is none."""
    path, here = Path(place.file).resolve(), Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    inside = path.is_relative_to(root) and (path.exists() or not Path(place.file).is_absolute())
    uri = quote(path.relative_to(root).as_posix()) if inside else path.as_uri()
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": max(1, place.line)}}}


@dataclass(frozen=True)
class Case:
    """A kernel as a test case of JUnit: all its launches."""

    kernel: str
    seconds: float
    findings: tuple[Finding, ...]


def as_junit(
    suite: str,
    cases: Sequence[Case],
    known: Collection[str] = (),
    refused: Sequence[str] = (),
    *,
    code: int = 0,
    strict: bool = False,
) -> str:
    """JUnit's XML: a test case for each kernel, which fails with its findings of level ``error`` not in `known`.

    `code`: the program's exit code; another one than 0 is a failure of one more test case. `strict`: with warnings,
    too. What else was found stands in the test case's output. `refused`: what could not be run, a line each, as errors
    of one more test case.
    """
    root = ET.Element("testsuites")
    made = ET.SubElement(root, "testsuite", name=printable(suite))
    failures = 0
    for case in cases:
        own = differing(case.findings)
        bad = [one for one in own if (strict or one.level == "error") and one.fingerprint not in known]
        test = ET.SubElement(
            made, "testcase", classname=printable(suite), name=printable(case.kernel), time=f"{case.seconds:.3f}"
        )
        failures += bool(bad)
        for one in bad:
            failure = ET.SubElement(test, "failure", type=rule_id(one.rule), message=printable(one.message))
            failure.text = printable(one.message)
        rest = [f"{one.level}: {printable(one.message)}" for one in own if one not in bad]
        if rest:
            ET.SubElement(test, "system-out").text = "\n".join(rest)
    if refused:
        test = ET.SubElement(made, "testcase", classname=printable(suite), name="could be run", time="0.000")
        for line in refused:
            ET.SubElement(test, "error", message=printable(line)).text = printable(line)
    if code:
        test = ET.SubElement(made, "testcase", classname=printable(suite), name="exit code", time="0.000")
        ET.SubElement(test, "failure", message=f"the program's exit code is {code}")
    failures += bool(code)
    counts = {"tests": len(cases) + bool(refused) + bool(code), "failures": failures, "errors": int(bool(refused))}
    for name, count in counts.items():
        made.set(name, str(count))
    made.set("time", f"{sum(case.seconds for case in cases):.3f}")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


@dataclass(frozen=True)
class Outputs:
    """Where findings go, and which of them count, as the command line says.

    Attributes:
        sarif, junit, baseline: files; None: none.
        update: whether the baseline is written, not read.
        strict: whether warnings count, too.
        known: fingerprints of the baseline.
    """

    sarif: Path | None = None
    junit: Path | None = None
    baseline: Path | None = None
    update: bool = False
    strict: bool = False
    known: frozenset[str] = frozenset()

    @classmethod
    def of(cls, options: argparse.Namespace) -> Outputs:
        """From the options of `add`; everything that can be wrong with them is found before anything runs.

        Raises:
            PtxemuError: a file that cannot be written, or a baseline that cannot be read.
        """
        made = (
            output_file(text, ending, option) if text else None
            for text, ending, option in (
                (options.sarif, ".sarif", "--sarif"),
                (options.junit, ".xml", "--junit"),
                (options.baseline, ".json", "--baseline"),
            )
        )
        sarif, junit, baseline = made
        if options.update_baseline and baseline is None:
            raise PtxemuError("--update-baseline", expected="--baseline FILE.json beside it", found="none")
        known = read_baseline(baseline) if baseline and not options.update_baseline else frozenset()
        for old in filter(None, (sarif, junit)):
            old.unlink(missing_ok=True)  # nobody takes it for this run's
        return cls(sarif, junit, baseline, options.update_baseline, options.strict, known)

    @staticmethod
    def add(parser: argparse.ArgumentParser) -> None:
        """The options."""
        for name, metavar, text in (
            ("sarif", "FILE.sarif", "write the findings for code scanning"),
            ("junit", "FILE.xml", "write a test case for each kernel, which fails with its findings"),
            ("baseline", "FILE.json", "known findings, which do not count"),
        ):
            parser.add_argument(f"--{name}", default="", metavar=metavar, help=text)
        update = "write --baseline with what this run finds, instead of reading it"
        parser.add_argument("--update-baseline", action="store_true", help=update)
        parser.add_argument("--strict", action="store_true", help="warnings count as errors")

    def counts(self, finding: Finding) -> bool:
        """Whether it makes the run fail."""
        return not (self.update or finding.fingerprint in self.known) and (self.strict or finding.level == "error")

    def refuse(self, suite: str, error: PtxemuError) -> None:
        """Writes that nothing could be run, where a file was asked for; a baseline stays as it is."""
        replace(self, update=False).write(suite, [], [str(error)])

    @property
    def wanted(self) -> bool:
        """Whether findings are to be written or to count more than usually."""
        return bool(self.sarif or self.junit or self.baseline or self.strict)

    def write(self, suite: str, cases: Sequence[Case], refused: Sequence[str] = (), code: int = 0) -> None:
        """Writes what was asked for; `refused`: what could not be run; `code`: the program's exit code.

        Raises:
            PtxemuError: a file cannot be written; or no baseline is, as not everything was run.
        """
        findings = [one for case in cases for one in case.findings]
        known = {one.fingerprint for one in findings} if self.update else self.known
        if self.sarif:
            write_whole(self.sarif, as_sarif(findings, known, refused).encode())
        if self.junit:
            write_whole(self.junit, as_junit(suite, cases, known, refused, code=code, strict=self.strict).encode())
        if self.update and self.baseline:
            if refused or not cases:
                what = "the baseline is not written: not everything was run"
                raise PtxemuError(what, where=self.baseline, found=refused[0] if refused else "no launch")
            write_baseline(self.baseline, findings)
