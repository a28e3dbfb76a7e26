"""Continuous integration: nox sessions, workflows and the action."""

from __future__ import annotations

from contextlib import nullcontext
import os
from pathlib import Path
import re
import shlex
import shutil
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from analysis import gate_action
from analysis.gate_action import Done, Inputs, escaped, expectations, publish, tell
from flashladder.build.compile import PTX_PACKAGES
from flashladder.errors import FlashladderError
from flashladder.files import last_iteration
from flashladder.located import read_yaml
from flashladder.paths import ROOT
from tests.data_files import text_of
from tests.typed import module_of, tasks

nox = pytest.importorskip("nox")
CommandFailed = pytest.importorskip("nox.command").CommandFailed
BUILDS = [f"build-iteration-{number}" for number in range(1, last_iteration() + 1)]
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.fixture(scope="session")  # a second import would register each session again
def noxfile() -> ModuleType:
    return module_of(ROOT / "noxfile.py", "noxfile_under_test")


@pytest.fixture(scope="session")
def sessions(noxfile: ModuleType) -> dict[str, Any]:
    from nox import registry

    return dict(registry.get())


class FakeSession:
    """Records what a session would run."""

    def __init__(self, venv: Path, *posargs: str) -> None:
        self.virtualenv = SimpleNamespace(location=str(venv))
        self.posargs = list(posargs)
        self.env: dict[str, str] = {}
        self.offline = False
        self.cached = True
        self.ran: list[tuple[str, ...]] = []
        self.notified: list[tuple[str, tuple[str, ...]]] = []

    def run(self, *command: str, **_: object) -> None:
        self.ran.append(command)
        if self.offline and command[:3] == ("uv", "pip", "install") and not (self.cached and "--offline" in command):
            raise CommandFailed(" ".join(command))

    def error(self, *words: str) -> None:
        raise CommandFailed(*words)

    def log(self, *_: object) -> None:
        """Says something on the terminal."""

    def notify(self, name: str, posargs: tuple[str, ...] = ()) -> None:
        self.notified.append((name, tuple(posargs)))


def test_a_new_iteration_gets_its_session_and_a_broken_file_does_no_harm(
    noxfile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "iterations").mkdir()
    (tmp_path / "iterations" / "17_lazy.yaml").write_text("iteration: 17\ntitle: Lazy rescale\n")
    (tmp_path / "iterations" / "18_broken.yaml").write_bytes(b"\xff{")
    (tmp_path / "iterations" / "19_nowhere.yaml").symlink_to("gone")
    (tmp_path / "iterations" / ".#17_lazy.yaml").symlink_to("somebody@nowhere")
    (tmp_path / "iterations" / "notes.yaml").write_text("title: no iteration\n")
    monkeypatch.setattr(noxfile, "ROOT", tmp_path)
    assert noxfile.titles() == {17: "Lazy rescale", 18: "18_broken.yaml", 19: "19_nowhere.yaml"}


def test_reproduce_builds_all_at_once_installs_each_apart_then_checks(
    noxfile: ModuleType, sessions: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        failed = broken and f"build-iteration-{broken}" in command
        return subprocess.CompletedProcess(command, 1 if failed else 0, "no such wheel\n", "")

    broken = 0
    monkeypatch.setattr(noxfile.subprocess, "run", run)
    session = FakeSession(tmp_path, "--arch", "sm_90")
    sessions["reproduce"].func(session)
    assert [command for command in session.ran if command[0] == "python"] == [
        ("python", "-m", "flashladder.build", "--all", "--arch", "sm_90"),
        ("python", "-c", "import torch"),
        ("python", "-m", "flashladder.build.wheel"),
        ("python", "-m", "flashladder.gate.reproduce"),
    ]
    assert sorted(command[-4] for command in commands) == sorted(BUILDS)
    assert all(command[-3:] == ["--", "--arch", "sm_90"] for command in commands)
    broken, session = 7, FakeSession(tmp_path)
    with pytest.raises(CommandFailed, match=r"iteration 7 .*:\nno such wheel"):
        sessions["reproduce"].func(session)
    assert ("python", "-m", "flashladder.gate.reproduce") not in session.ran, "nothing is checked after that"


@pytest.mark.parametrize(
    ("words", "chosen"),
    [((), True), (("-k", "lock"), True), (("tests/null",), False), (("-x", "tests/null/test_ci.py::test_x"), False)],
)
def test_of_a_path_that_is_named_all_tests_run(
    sessions: dict[str, Any], tmp_path: Path, words: tuple[str, ...], chosen: bool
) -> None:
    session = FakeSession(tmp_path, *words)
    sessions["tests"].func(session)
    assert ("not exhaustive" in session.ran[-1]) == chosen
    assert session.ran[-1][len(session.ran[-1]) - len(words) :] == words


@pytest.mark.parametrize(("words", "more"), [((), ["browser", "package"]), (("--fifth", "abc"), [])])
def test_exhaustive_is_all_tests_and_without_a_fifth_more(
    sessions: dict[str, Any], tmp_path: Path, words: tuple[str, ...], more: list[str]
) -> None:
    session = FakeSession(tmp_path, *words)
    sessions["exhaustive"].func(session)
    tests = ("tests", ("tests", "emulator/tests", *words))
    assert session.notified == [tests, *((name, ()) for name in more)]


def test_sessions_pass_their_arguments_on(sessions: dict[str, Any], tmp_path: Path) -> None:
    session = FakeSession(tmp_path, "--arch", "sm_90")
    sessions["build-iteration-7"].func(session)
    assert session.ran[0][:3] == ("uv", "pip", "install")
    assert session.ran[-1] == ("python", "-m", "flashladder.build", "7", "--arch", "sm_90")


def installs(noxfile: ModuleType, venv: Path, *, torch: bool = False) -> list[tuple[str, ...]]:
    """What a session with this environment runs to install the group `build`."""
    session = FakeSession(venv)
    noxfile.install(session, "build", torch=torch)
    return session.ran


def test_an_environment_is_installed_anew_after_a_change_and_otherwise_left_alone(
    noxfile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements, emulator, venv = (tmp_path / name for name in ("requirements", "emulator", "venv"))
    for folder in (requirements, emulator, venv):
        folder.mkdir()
    (requirements / "build.txt").write_text("a==1\n")
    (emulator / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(noxfile, "ROOT", tmp_path)
    monkeypatch.setattr(noxfile, "REQUIREMENTS", requirements)
    monkeypatch.setattr(noxfile, "pins", lambda: {"torch": "2.13.0"})
    for change in (
        lambda: None,
        lambda: (requirements / "build.txt").write_text("a==2\n"),
        lambda: monkeypatch.setattr(noxfile, "pins", lambda: {"torch": "2.14.0"}),
    ):
        change()
        assert [len(installs(noxfile, venv, torch=True)) for _ in range(2)] == [1, 0]


def test_an_environment_that_lost_a_package_or_was_moved_is_installed_anew(noxfile: ModuleType, tmp_path: Path) -> None:
    venv, moved = tmp_path / "venv", tmp_path / "moved"
    package = venv / "lib" / "python3.11" / "site-packages" / "numpy"
    package.mkdir(parents=True)
    assert [len(installs(noxfile, venv)) for _ in range(2)] == [1, 0]
    (package.parent / "flashladder_07").mkdir()  # a wheel that was built here
    assert not installs(noxfile, venv)
    package.rmdir()
    assert "--reinstall" in installs(noxfile, venv)[0]
    assert not installs(noxfile, venv)
    venv.rename(moved)
    assert "--reinstall" in installs(noxfile, moved)[0]
    assert not installs(noxfile, moved)


def test_compiled_modules_are_shared_where_the_files_are_the_same(
    noxfile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noxfile, "ROOT", tmp_path)
    place = Path("lib", "python3.11", "site-packages", "torch")
    theirs, venv = tmp_path / ".nox" / "reproduce" / place, tmp_path / "venv"
    (theirs / "__pycache__").mkdir(parents=True)
    (venv / place).mkdir(parents=True)
    for name in ("same", "other", "gone"):
        (theirs / f"{name}.py").write_text("x = 1\n")
        (theirs / "__pycache__" / f"{name}.cpython-311.pyc").write_text(name)
    (venv / place / "same.py").hardlink_to(theirs / "same.py")
    (venv / place / "other.py").write_text("x = 2\n")
    for _ in range(2):
        noxfile.share_bytecode(venv)
        assert [path.name for path in (venv / place).glob("*/*.pyc")] == ["same.cpython-311.pyc"]


@pytest.mark.parametrize("cached", [True, False])
def test_without_a_network_wheels_come_from_uvs_cache_or_the_first_failure_is_told(
    noxfile: ModuleType, tmp_path: Path, cached: bool
) -> None:
    session = FakeSession(tmp_path)
    session.offline, session.cached = True, cached
    with nullcontext() if cached else pytest.raises(CommandFailed) as caught:
        noxfile.install(session, "build", torch=False)
    assert cached or "--offline" not in str(caught)
    first, second = session.ran
    assert second == (*first[:3], "--offline", *first[3:])
    assert (tmp_path / ".flashladder-stamp").is_file() == cached


def test_toolchains_are_locked_at_their_pins(noxfile: ModuleType) -> None:
    raw = yaml.safe_load((ROOT / "configs" / "toolchain.yaml").read_text(encoding="utf-8"))
    assert noxfile.pins() == {"torch": raw["torch"], **raw["packages"]}
    others = noxfile.other_pins()
    assert {frozenset(packages) for packages in others.values()} == {frozenset(PTX_PACKAGES)}
    files = {"build": raw["packages"], **{f"toolchain-{cuda}": packages for cuda, packages in others.items()}}
    for name, packages in files.items():
        text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
        assert packages.items() <= dict(re.findall(r"^(\S+)==(\S+)", text, re.MULTILINE)).items(), name


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.stem)
def test_requirements_are_exact_hashed_and_name_no_place(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Generated by `nox -s relock`")
    entries = re.split(r"\n(?=[a-zA-Z])", text.partition("\n")[2])
    for entry in entries:
        assert re.match(r"[\w.-]+==[\w.+!]+( ;[^\\]*)? \\\n {4}--hash=sha256:[0-9a-f]{64}", entry), entry[:80]
    assert not re.search(r"https?://|file:|--find-links|--index|(?<![\w.])/\w+/", text)
    assert not re.search(r"^torch==", text, re.MULTILINE)


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION = ROOT / "action.yml"
PINNED = re.compile(r"^ *-? *uses: ([\w-]+/[\w./-]+@[0-9a-f]{40}) # v\d+\.\d+\.\d+$|^ *-? *uses: (\./)$")
PIPE = re.compile(r"(?<!\|)\|(?!\|)")


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    """The jobs of a workflow by name; of an action its one list of steps."""
    found: Any = read_yaml(path)
    return {"": found["runs"]} if path == ACTION else found["jobs"]


# A nox whose first start makes an environment, and takes its time; a session that starts before that has ended fails.
FAKE_NOX = text_of("null/ci", "fake_nox")
SESSIONS = ("lint", "typecheck", "docs", "browser", "reproduce", "package", "tests", "exhaustive")  # of .ci/run


def lanes_with(nox: Path, scratch: Path) -> list[str]:
    """The command that does what .ci/run does once it has its nox."""
    _, begin, lanes = (ROOT / ".ci" / "run").read_text(encoding="utf-8").partition('touch "$scratch/failed"')
    assert begin
    names = f"scratch={shlex.quote(str(scratch))}\nnox=({shlex.quote(str(nox))} --non-interactive)"
    return ["bash", "-c", f"set -euo pipefail\n{names}\n{begin}{lanes}"]


@pytest.mark.parametrize("failing", ["", "lint", "docs tests"])
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


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_actions_are_pinned_and_scripts_are_safe(path: Path) -> None:
    """No input reaches a shell as code; a pipe has a shell that sees its left side fail: the default one does not."""
    uses = [line for line in path.read_text(encoding="utf-8").splitlines() if re.match(r" *-? *uses:", line)]
    assert uses
    assert [line for line in uses if not PINNED.match(line)] == []
    for job in jobs(path).values():
        default = job.get("defaults", {}).get("run", {}).get("shell")
        for step in (step for step in job["steps"] if "run" in step):
            assert "${{" not in step["run"]
            assert not PIPE.search(step["run"]) or step.get("shell", default) == "bash", step["run"]


@pytest.mark.parametrize(("kind", "files"), [("workflows", WORKFLOWS), ("actions", [ACTION])])
def test_they_fit_their_schema(kind: str, files: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.github-{kind}", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_alone_and_a_pull_request_reaches_no_runner_of_ones_own(path: Path) -> None:
    found: Any = read_yaml(path)
    assert found["permissions"] == {"contents": "read"}
    rights = {name: job["permissions"] for name, job in jobs(path).items() if "permissions" in job}
    assert rights == ({"tell": {"issues": "write"}} if path.stem == "nightly" else {})
    events = found["on"] if "on" in found else found[True]  # YAML 1.1 reads `on` as a truth value
    own = [job for job in jobs(path).values() if "self-hosted" in job["runs-on"]]
    assert not own or not {"pull_request", "pull_request_target", "workflow_run"} & set(events)
    assert all(job["if"] == "vars.FLASHLADDER_GPU == 'true'" for job in own)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_they_run_commands_that_exist(sessions: dict[str, Any], path: Path) -> None:
    script = "\n".join(step["run"] for job in jobs(path).values() for step in job["steps"] if "run" in step)
    named = set(" ".join(re.findall(r"nox -s ([a-z -]+?)(?: --|$)", script, re.MULTILINE)).split())
    assert named
    assert named <= set(sessions)
    assert set(re.findall(r"^ *invoke ([a-z]+)", script, re.MULTILINE)) <= set(tasks().namespace.tasks)
    assert "pip install" not in script.replace("pip install nox && nox -s", "")


ARGS = "out=float32:32x32:zeros\nin=@in.npy"
DATA = ROOT / "tests" / "data"


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """A workspace with a Python where the step `Install` leaves one, an input, and what it is transposed."""
    python = tmp_path / "flashladder" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    source = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    np.save(tmp_path / "in.npy", source)
    np.save(tmp_path / "expected.npy", source.T)
    np.save(tmp_path / "wrong.npy", source.T + np.float32(0.5))
    return tmp_path


def gate(runner: Path, **inputs: str) -> tuple[int, str, str]:
    """Exit code, log, and outputs of the step `Gate` with the action's defaults and these inputs."""
    action: Any = read_yaml(ROOT / "action.yml")
    (step,) = (one for one in action["runs"]["steps"] if one.get("id") == "gate")
    given = {name: one["default"] for name, one in action["inputs"].items()} | inputs
    environment = {"RUNNER_TEMP": str(runner), "GITHUB_OUTPUT": str(runner / "out"), "PYTHONPATH": str(ROOT)}
    for variable, value in step["env"].items():
        name = value.strip("${} ")
        environment[variable] = str(ROOT) if name == "github.action_path" else given[name.removeprefix("inputs.")]
    assert step["shell"] == "bash"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=runner, env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, (runner / "out").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("file", "expected", "code", "said"), [
    ("transpose.ptx", "expected.npy", 0, "largest difference 0, allowed 1e-06"),
    ("transpose.ptx", "wrong.npy", 1, "]: expected a difference of at most 1e-06, found 0.5"),
    ("transpose_without_barrier.ptx", "expected.npy", 1, "shared RAW (read after write by another thread)"),
])  # fmt: skip
def test_a_kernel_passes_or_is_stopped(runner: Path, file: str, expected: str, code: int, said: str) -> None:
    found, log, outputs = gate(
        runner, ptx=str(DATA / file), block="32,32", args=ARGS, expected=f"out={expected}", tolerance="1e-6"
    )
    assert (found, outputs) == (code, f"passed={'false' if code else 'true'}\n"), log
    assert said in log
    assert ("::error title=" in log) == bool(code)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_inputs_are_words_and_nothing_to_gate_is_an_error(runner: Path) -> None:
    code, log, outputs = gate(runner)
    assert (code, outputs) == (2, "passed=false\n")
    assert "error: nothing to gate: expected one of the inputs ptx, cuda, program, iteration, result" in log
    code, log, _ = gate(runner, ptx="$(touch broken); touch broken.ptx", block="`touch broken`")
    assert code == 2
    assert not list(runner.glob("broken*"))


@pytest.mark.parametrize(("given", "message"), [
    ({"GATE_EXPECTED": "y", "GATE_ARGS": "y=1"}, "bad input `expected`"),
    ({"GATE_EXPECTED": f"y={__file__}", "GATE_ARGS": "x=1\n2"}, "each name once, of x, arg1, found y="),
    ({"GATE_EXPECTED": f"arg1={__file__}\narg1={__file__}", "GATE_ARGS": "x=1\n2"}, "bad input `expected`"),
    ({"GATE_TOLERANCE": "0.5"}, "bad input `tolerance`: .*beside the input `expected`"),
    ({"GATE_TOLERANCE": "nan"}, "bad input `tolerance`"),
])  # fmt: skip
def test_a_bad_input_is_one_line(given: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FlashladderError, match=message):
        expectations(Inputs(given))
    monkeypatch.setenv("GATE_PTX", "a.ptx")
    monkeypatch.setenv("GATE_ARCH", "sm_90")
    with pytest.raises(FlashladderError, match="the input `arch` is for `cuda` and `program`: found sm_90"):
        gate_action.main()
    monkeypatch.setenv("GATE_CUDA", "a.cu")
    with pytest.raises(FlashladderError, match="two kernels to gate"):
        gate_action.main()


def test_what_a_kernel_prints_is_no_command_of_the_runner(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tell(Done("a: b,\nc", 1, "::add-mask::x\nlast % line"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "::group::failed: a: b,%0Ac"
    token = lines[1].removeprefix("::stop-commands::")
    assert lines[2:5] == ["::add-mask::x", "last % line", f"::{token}::"]
    assert lines[6] == "::error title=a%3A b%2C%0Ac::last %25 line"
    assert escaped("\r") == "%0D"
    publish({"GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}, [Done("x|y", 0, "")])
    assert (tmp_path / "summary").read_text(encoding="utf-8").endswith("| x\\|y | holds |\n")
