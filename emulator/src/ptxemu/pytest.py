"""A plugin of pytest: tests of CUDA code that fail when a race, a missing wait or a bad access is found.

Installed with ptxemu, it gives tests two fixtures:

    def test_reverse(hazards):                       # a kernel: fails if the observer has found something
        ptxemu.load("reverse.ptx").kernel().launch(1, 64, (out, x), observers=[hazards])
        assert (out == x[::-1]).all()

    def test_program(ptxemu_run):                    # a host program, or a CUDA file with a main function
        assert "passed" in ptxemu_run("./my_test", "--all").stdout

The baseline of known findings is that of the option ``ptxemu_baseline`` in pytest's configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
import json
from pathlib import Path
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ptxemu.observe.hazards import Hazards  # imported when a test asks for it: pytest starts no slower

BASELINE = "ptxemu_baseline"


@dataclass(frozen=True)
class Ran:
    """A host program that has run without a finding that counts.

    Attributes:
        returncode: its exit code.
        stdout, stderr: what it printed; stderr has the lines of ptxemu, too.
        launches: facts of each launch, as ``ptxemu run --json`` writes them.
    """

    returncode: int
    stdout: str
    stderr: str
    launches: list[dict[str, Any]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of the configuration file."""
    parser.addini(BASELINE, "file of known findings of ptxemu, which fail no test", default="")


def _baseline(config: pytest.Config) -> Path | None:
    name = str(config.getini(BASELINE))
    return config.rootpath / name if name else None


@pytest.fixture
def hazards(request: pytest.FixtureRequest) -> Iterator[Hazards]:
    """An observer for `Kernel.launch`; the test fails at its end if errors were found that the baseline lacks."""
    from ptxemu.errors import PtxemuError
    from ptxemu.findings import of_launch, read_baseline
    from ptxemu.observe.hazards import Hazards

    path, made = _baseline(request.config), Hazards()
    try:
        known = read_baseline(path) if path else frozenset()
    except PtxemuError as error:
        pytest.fail(str(error), pytrace=False)
    yield made
    findings = of_launch("", made.reports)
    new = [one.message for one in findings if one.level == "error" and one.fingerprint not in known]
    if new:
        pytest.fail("\n".join(new), pytrace=False)


@pytest.fixture
def ptxemu_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ran]:
    """``ptxemu_run(program, *arguments, options=(), timeout=None)`` runs a host program without a GPU.

    `options` are those of ``ptxemu run``. The test fails if ptxemu finds something or cannot run the program; the
    program's own exit code is for the test to judge.
    """

    def run(
        program: str | Path, *arguments: str | Path, options: tuple[str, ...] = (), timeout: float | None = None
    ) -> Ran:
        facts = tmp_path_factory.mktemp("ptxemu") / "launches.json"
        path = _baseline(request.config)
        words = [*options, *([f"--baseline={path}"] if path else []), f"--json={facts}", program, *arguments]
        command = [sys.executable, "-m", "ptxemu", "run", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, errors="replace")
        found = json.loads(facts.read_text(encoding="utf-8")) if facts.exists() else None
        if found is None or found["failed"] or found["refused"]:
            lines = [line for line in done.stderr.splitlines() if line.startswith(("ptxemu: ", "error: "))]
            pytest.fail("\n".join(lines or [f"ptxemu run ended with {done.returncode}"]), pytrace=False)
        return Ran(done.returncode, done.stdout, done.stderr, found["launches"])

    return run
