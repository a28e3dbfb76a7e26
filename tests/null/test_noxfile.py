"""The noxfile and its pins: sessions with help, environments reused, requirements exact, hashed and free of places."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from flashladder.build.compile import PTX_PACKAGES
from flashladder.paths import ROOT

nox = pytest.importorskip("nox")
CommandFailed = pytest.importorskip("nox.command").CommandFailed
BUILDS = [f"build-iteration-{number}" for number in range(1, 29)]
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.fixture(scope="module")
def noxfile() -> ModuleType:
    spec = importlib.util.spec_from_file_location("noxfile_under_test", ROOT / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
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

    def log(self, *_: object) -> None:
        """Says something on the terminal."""

    def notify(self, name: str, posargs: tuple[str, ...]) -> None:
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


def test_tests_run_in_a_process_per_cpu(sessions: dict[str, Any], tmp_path: Path) -> None:
    session = FakeSession(tmp_path, "-n0", "-k", "lock")
    sessions["tests"].func(session)
    command = session.ran[-1]
    processes = str(len(os.sched_getaffinity(0)) + 1)
    assert command[:5] == ("python", "-m", "pytest", "-n", processes)
    assert command[-3:] == ("-n0", "-k", "lock")  # the last -n counts


def test_reproduce_runs_every_build_and_then_verifies(sessions: dict[str, Any], tmp_path: Path) -> None:
    session = FakeSession(tmp_path, "--arch", "sm_90")
    sessions["reproduce"].func(session)
    assert session.notified == [*((name, ("--arch", "sm_90")) for name in BUILDS), ("verify", ())]


def test_a_build_session_passes_its_arguments_on(sessions: dict[str, Any], tmp_path: Path) -> None:
    session = FakeSession(tmp_path, "--debug")
    sessions["build-iteration-7"].func(session)
    assert session.ran[0][:3] == ("uv", "pip", "install")
    assert session.ran[-1] == ("python", "-m", "flashladder.build", "7", "--debug")


def test_an_environment_that_is_right_is_left_alone(
    noxfile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    (root / "requirements").mkdir(parents=True)
    (root / "requirements" / "build.txt").write_text("a==1\n")
    (root / "emulator").mkdir()
    (root / "emulator" / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(noxfile, "ROOT", root)
    monkeypatch.setattr(noxfile, "REQUIREMENTS", root / "requirements")
    monkeypatch.setattr(noxfile, "pins", lambda: {"torch": "2.13.0"})
    venv = tmp_path / "venv"
    venv.mkdir()

    def n_installs() -> int:
        session = FakeSession(venv)
        noxfile.install(session, "build")
        return len(session.ran)

    assert [n_installs(), n_installs()] == [1, 0]
    (root / "requirements" / "build.txt").write_text("a==2\n")
    assert [n_installs(), n_installs()] == [1, 0]
    monkeypatch.setattr(noxfile, "pins", lambda: {"torch": "2.14.0"})
    assert [n_installs(), n_installs()] == [1, 0]


def test_without_a_network_wheels_come_from_uvs_cache(noxfile: ModuleType, tmp_path: Path) -> None:
    session = FakeSession(tmp_path)
    session.offline = True
    noxfile.install(session, "build", torch=False)
    first, second = session.ran
    assert second == (*first[:3], "--offline", *first[3:])
    assert (tmp_path / ".flashladder-stamp").is_file()


def test_where_the_cache_does_not_help_the_first_failure_is_told(noxfile: ModuleType, tmp_path: Path) -> None:
    session = FakeSession(tmp_path)
    session.offline, session.cached = True, False
    with pytest.raises(CommandFailed) as caught:
        noxfile.install(session, "build", torch=False)
    assert "--offline" not in str(caught.value)
    assert len(session.ran) == 2
    assert not (tmp_path / ".flashladder-stamp").exists()


def test_uvs_cache_moves_only_to_another_file_system(
    noxfile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(ROOT))
    session = FakeSession(tmp_path)
    noxfile.share_files(session)
    assert session.env == {}
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    noxfile.share_files(session)
    assert session.env == {"UV_CACHE_DIR": str(ROOT / ".nox" / ".uv-cache")}


def test_the_toolchain_is_pinned_once(noxfile: ModuleType) -> None:
    raw = yaml.safe_load((ROOT / "configs" / "toolchain.yaml").read_text(encoding="utf-8"))
    assert noxfile.pins() == {"torch": raw["torch"], **raw["packages"]}
    locked = dict(re.findall(r"^(\S+)==(\S+)", (ROOT / "requirements" / "build.txt").read_text(), re.MULTILINE))
    assert {name: locked.get(name) for name in raw["packages"]} == raw["packages"]


def test_other_toolchains_are_locked_at_their_pins(noxfile: ModuleType) -> None:
    pinned = noxfile.other_pins()
    assert "13.1" in pinned
    for cuda, packages in pinned.items():
        text = (ROOT / "requirements" / f"toolchain-{cuda}.txt").read_text(encoding="utf-8")
        assert dict(re.findall(r"^(\S+)==(\S+)", text, re.MULTILINE)) == packages
        assert set(packages) == set(PTX_PACKAGES)


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.stem)
def test_requirements_are_exact_hashed_and_name_no_place(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Generated by `nox -s relock`")
    entries = re.split(r"\n(?=[a-zA-Z])", text.partition("\n")[2])
    for entry in entries:
        assert re.match(r"[\w.-]+==[\w.+!]+( ;[^\\]*)? \\\n {4}--hash=sha256:[0-9a-f]{64}", entry), entry.splitlines()[
            0
        ]
    assert not re.search(r"https?://|file:|--find-links|--index|(?<![\w.])/\w+/", text)
    assert not re.search(r"^torch==", text, re.MULTILINE)


def test_versions_agree_between_lock_files() -> None:
    seen: dict[str, set[str]] = {}
    for path in (path for path in REQUIREMENTS if not path.stem.startswith("toolchain-")):
        for name, rest in re.findall(r"^([\w.-]+)==([^\\\n]*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            if ";" not in rest:
                seen.setdefault(name, set()).add(rest.strip())
    assert {name: versions for name, versions in seen.items() if len(versions) > 1} == {}
