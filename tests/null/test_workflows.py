"""Workflows and the action: as the published schema has them, pinned, with few rights and README's commands only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import os
from pathlib import Path
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from flashladder.located import read_yaml
from flashladder.paths import ROOT
from tests.typed import tasks

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION = ROOT / "action.yml"
PINNED = re.compile(r"^ *-? *uses: ([\w-]+/[\w./-]+@[0-9a-f]{40}) # v\d+\.\d+\.\d+$|^ *-? *uses: (\./)$")


PIPE = re.compile(r"(?<!\|)\|(?!\|)")


def document(path: Path) -> dict[Any, Any]:
    found = read_yaml(path)
    assert isinstance(found, dict)
    return found


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    return dict(document(path)["jobs"])


def steps(path: Path) -> Iterator[dict[str, Any]]:
    if path == ACTION:
        yield from document(path)["runs"]["steps"]
    else:
        yield from (step for job in jobs(path).values() for step in job["steps"])


def triggers(path: Path) -> set[str]:
    found = document(path)
    told = found["on"] if "on" in found else found[True]  # YAML 1.1 reads `on` as a truth value
    return {told} if isinstance(told, str) else set(told)


def unguarded(path: Path) -> list[str]:
    """Scripts with a pipe whose shell would not see that its left side failed: the default one has no pipefail."""
    own = [(document(path), step) for step in steps(path)] if path == ACTION else []
    own += [(job, step) for job in (jobs(path).values() if path != ACTION else ()) for step in job["steps"]]
    return [
        step["run"]
        for of, step in own
        if PIPE.search(step.get("run", ""))
        and "bash" not in {step.get("shell"), of.get("defaults", {}).get("run", {}).get("shell")}
    ]


def schema_says(kind: str, *files: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{kind}", *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# A nox whose first start makes an environment, and takes its time; a session that starts before that has ended fails.
FAKE_NOX = """#!/bin/sh
shift
case "$1" in
--list) sleep 0.3; touch "$MADE"; exit 0;;
esac
[ -e "$MADE" ] || { echo "no environment for $2" >&2; exit 1; }
echo "this is $2"
case " $FAILING " in *" $2 "*) exit 1;; esac
"""
SESSIONS = ("lint", "typecheck", "docs", "browser", "reproduce", "package", "tests")  # of .ci/run


def lanes_with(nox: Path, scratch: Path) -> list[str]:
    """The command that does what .ci/run does once it has its nox."""
    _, begin, lanes = (ROOT / ".ci" / "run").read_text(encoding="utf-8").partition('touch "$scratch/failed"')
    assert begin
    names = f"scratch={shlex.quote(str(scratch))}\nnox=({shlex.quote(str(nox))} --non-interactive)"
    return ["bash", "-c", f"set -euo pipefail\n{names}\n{begin}{lanes}"]


@pytest.mark.parametrize("failing", ["", *SESSIONS, "docs tests"])
def test_a_session_that_fails_fails_the_whole_run_and_is_named_and_the_others_run(failing: str, tmp_path: Path) -> None:
    """In either lane."""
    nox = tmp_path / "nox"
    nox.write_text(FAKE_NOX, encoding="utf-8")
    nox.chmod(0o755)
    environment = {**os.environ, "FAILING": failing, "MADE": str(tmp_path / "made")}
    done = subprocess.run(lanes_with(nox, tmp_path), env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1 if failing else 0, "")
    assert sorted(re.findall(r"^this is (\w+)$", done.stdout, re.MULTILINE)) == sorted(SESSIONS)
    assert re.search(rf"^=== total: \d+ s; failed: {failing or 'none'}$", done.stdout, re.MULTILINE)


def test_an_interrupted_run_ends_both_lanes(tmp_path: Path) -> None:
    """The second lane's session says once a tenth of a second that it is there; it stops when the run is ended."""
    nox, alive, scratch = tmp_path / "nox", tmp_path / "alive", tmp_path / "scratch"
    nox.write_text(
        '#!/bin/sh\ncase "$3" in\n'
        'lint) for _ in $(seq 300); do echo x >>"$ALIVE"; sleep 0.1; done;;\n'
        "reproduce) sleep 30;;\nesac\n",
        encoding="utf-8",
    )
    nox.chmod(0o755)
    scratch.mkdir()
    environment = {**os.environ, "ALIVE": str(alive)}
    with subprocess.Popen(
        lanes_with(nox, scratch), stdout=subprocess.DEVNULL, env=environment, start_new_session=True
    ) as run:
        assert eventually(alive.is_file)
        os.killpg(run.pid, signal.SIGTERM)  # as a service ends a run; the lane has a group of its own
        assert run.wait(20) != 0
        assert eventually(lambda: not grows(alive))
        assert not scratch.exists()


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether something comes true in that time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return False


def grows(path: Path) -> bool:
    """Whether somebody still writes to it."""
    before = path.stat().st_size
    time.sleep(1.0)
    return path.stat().st_size > before


def test_they_fit_their_schema_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    assert schema_says("github-workflows", *WORKFLOWS).returncode == 0
    assert schema_says("github-actions", ACTION).returncode == 0
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(
        WORKFLOWS[0].read_text(encoding="utf-8").replace("timeout-minutes", "timeout-minuts"), encoding="utf-8"
    )
    assert schema_says("github-workflows", wrong).returncode == 1


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not on PATH")
def test_actionlint_finds_nothing() -> None:
    done = subprocess.run(["actionlint"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_every_action_is_pinned_by_its_commit(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if re.match(r" *-? *uses:", line)]
    assert lines
    assert [line for line in lines if not PINNED.match(line)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_rights_time_and_concurrency_are_bounded(path: Path) -> None:
    assert document(path)["permissions"] == {"contents": "read"}
    assert document(path)["concurrency"]["group"]
    assert {name: job.get("permissions") for name, job in jobs(path).items() if "permissions" in job} == (
        {"tell": {"issues": "write"}} if path.stem == "nightly" else {}
    )
    assert all(5 <= job["timeout-minutes"] <= 300 for job in jobs(path).values())
    assert all(
        step["with"]["persist-credentials"] is False for step in steps(path) if "checkout" in step.get("uses", "")
    )


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_no_input_reaches_a_shell_as_code(path: Path) -> None:
    scripts = [step["run"] for step in steps(path) if "run" in step]
    assert scripts
    assert [script for script in scripts if "${{" in script] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_they_run_commands_that_exist(path: Path) -> None:
    script = "\n".join(step["run"] for step in steps(path) if "run" in step)
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    sessions = [
        name for found in re.findall(r"nox -s ([a-z -]+?)(?: --|$)", script, re.MULTILINE) for name in found.split()
    ]
    assert sessions
    assert [name for name in sessions if f"\ndef {name}(session" not in noxfile] == []
    assert set(re.findall(r"^ *invoke ([a-z]+)", script, re.MULTILINE)) <= set(tasks().namespace.tasks)
    assert "pip install" not in script.replace("pip install nox && nox -s", "")


def test_a_pull_request_never_reaches_a_runner_of_ones_own() -> None:
    for path in WORKFLOWS:
        own = [job for job in jobs(path).values() if "self-hosted" in job["runs-on"]]
        assert not (own and {"pull_request", "pull_request_target", "workflow_run"} & triggers(path))
        assert all(job["if"] == "vars.FLASHLADDER_GPU == 'true'" for job in own)


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_a_pipe_has_a_shell_that_sees_its_left_side_fail(path: Path) -> None:
    assert unguarded(path) == []
