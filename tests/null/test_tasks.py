"""Tasks for people: thin, with help and an example each, and one line instead of a traceback for bad input."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path
import re
import shlex
import subprocess
import sys
from types import ModuleType
from unittest.mock import Mock, call

import pytest

from flashladder import ops
from flashladder.arguments import NUMBER, first_line
from flashladder.bench import command as bench
from flashladder.bench.references import BACKENDS, FA2
from flashladder.build import command as build
from flashladder.check import command as check
from flashladder.files import last_iteration
from flashladder.gpu import doctor
from flashladder.ladder.iteration import load_all
from flashladder.names import REFERENCES
from flashladder.paths import ROOT
from flashladder.program import LineParser
from flashladder.sweep import command as sweep
from flashladder.view.binary import Wanted
from tests import typed
from tests.data_files import table_of


def invoke(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "invoke", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_every_task_has_an_example_and_help_for_every_argument() -> None:
    for name, found in typed.tasks().namespace.tasks.items():
        assert f"Example: `invoke {name}" in (found.__doc__ or ""), name
    for context in typed.contexts():
        for argument in context.args.values():
            assert argument.help, f"{context.name}: {argument.name}"


def test_examples_and_the_readmes_commands_name_real_tasks_and_flags() -> None:
    known = typed.tasks().namespace.tasks
    pages = "".join(
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md", "docs/reading-order.md")
    )
    helps = "".join(str(one.__doc__) for one in known.values())
    commands = re.findall(r"invoke [a-z]+[^`#\n]*", helps + pages)
    assert len(commands) > 20
    for command in commands:
        _, name, *words = shlex.split(command)
        flags = {flag.strip("-") for argument in known[name].get_arguments() for flag in argument.names}
        assert {word.strip("-") for word in words if word.startswith("--")} <= flags, command


def test_alone_it_shows_every_task_once_by_station_within_80_columns() -> None:
    stations = {
        heading: [(one.name, first_line(one)) for one in found] for heading, found in typed.tasks().STATIONS.items()
    }
    listed = [name for found in stations.values() for name, _ in found]
    assert sorted(listed) == sorted(typed.tasks().namespace.tasks)
    reply, asked = invoke(), invoke("help")
    assert (reply.returncode, reply.stderr, reply.stdout) == (0, "", asked.stdout)
    lines = reply.stdout.splitlines()
    for heading, found in stations.items():
        start = lines.index(heading) + 1
        assert [tuple(line.split(maxsplit=1)) for line in lines[start : start + len(found)]] == found
    assert max(map(len, lines)) <= 80
    lines = invoke("--list").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert {line.split()[0] for line in lines[2:] if line.strip()} >= set(listed)


def test_the_help_and_the_default_iteration_end_with_the_ladder(tmp_path: Path) -> None:
    last = load_all()[-1].number
    assert (f"iteration, 1 to {last}", last) == (NUMBER, ops.LAST_ITERATION)
    assert last_iteration(tmp_path) == 0
    for name in ("01_base.yaml", "17_next.yaml", "18_no.yml", "notes.txt"):
        (tmp_path / name).touch()
    assert last_iteration(tmp_path) == 17


def test_a_task_leaves_with_the_exit_code_of_what_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "doctor", lambda *, as_json: 1 + as_json)
    assert (typed.command("doctor"), typed.command("doctor", "--json")) == (1, 2)


Given = dict[str, object]
PARSED: list[tuple[str, ModuleType, Given]] = [
    ("build 7 --arch sm_90 --configs tune --debug", build, {"arch": "sm_90", "configs": "tune", "debug": True}),
    ("check 7 --backend emulator --dtype bf16 --quick", check,
     {"numbers": [7], "backend": "emulator", "dtypes": ["bf16"], "quick": True, "out": None}),
    ("bench 16 --tune --dtype fp16 --out a.json", bench,
     {"numbers": [16], "tune": True, "dtypes": ["fp16"], "out": Path("a.json"), "configs": ["tune"]}),
    ("bench 16 --references all --method nvbench,ncu", bench,
     {"numbers": [16], "references": ["all"], "methods": ["nvbench", "ncu"], "dtypes": ["fp16", "bf16"]}),
    ("sweep a100 --dry-run --shard 0/2 --slurm partition=p", sweep,
     {"grid": "a100", "dry_run": True, "shard": (0, 2), "slurm": "partition=p", "gpus": "all", "timeout": None}),
]  # fmt: skip
"""Commands whose package has a parser of its own, for other environments."""


@pytest.mark.parametrize(("line", "module", "meant"), PARSED, ids=[line for line, _, _ in PARSED])
def test_what_a_person_types_is_what_the_parser_understands(
    monkeypatch: pytest.MonkeyPatch, line: str, module: ModuleType, meant: Given
) -> None:
    parsed: list[argparse.Namespace] = []
    real = argparse.ArgumentParser.parse_args

    def parse(self: argparse.ArgumentParser, args: list[str] | None = None) -> argparse.Namespace:
        parsed.append(real(self, args))
        if module is bench:
            return parsed[-1]
        raise SystemExit(0)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    monkeypatch.setattr(bench, "on_this_gpu", lambda *_: None)
    monkeypatch.setattr(typed.tasks(), "need_gpu", lambda *_: None)
    with suppress(SystemExit):
        typed.command(*line.split())
    (understood,) = parsed
    assert {name: vars(understood).get(name, "no such option") for name in meant} == meant


@pytest.mark.parametrize(
    ("line", "called", "expected"),
    [
        ("cfg 16 --seq-len 512 --svg", "view.cfg.show_cfg", call("16", Wanted(), 512, ["svg"])),
        ("bundle --grid cpu", "bundle.make.bundle",
         call(arch="", python="", iterations="", grid="cpu", platform="", out="")),
        ("lock 7 --reason why", "lock.command.relock", call(7, "why")),
    ],
)  # fmt: skip
def test_what_a_person_types_is_what_the_task_passes_on(
    monkeypatch: pytest.MonkeyPatch, line: str, called: str, expected: object
) -> None:
    monkeypatch.setattr(f"flashladder.{called}", done := Mock())
    typed.command(*line.split())
    assert done.mock_calls == [expected]


def test_every_reference_has_its_backend() -> None:
    assert set(BACKENDS) == {FA2, *REFERENCES}


@pytest.mark.parametrize(("words", "iterations"), table_of("null/tasks", "ptxas_lines"))
def test_the_iteration_of_ptxas_needs_no_flag(words: list[str], iterations: list[str]) -> None:
    result = LineParser(contexts=typed.contexts()).parse_argv(words)
    assert [found.args["iteration"].value for found in result if found.name == "ptxas"] == iterations


@pytest.mark.parametrize(
    "words", [["show", "--help"], ["build", "-h"], ["--help", "lock"], ["diff", "7", "--help"], ["help", "show"]]
)
def test_help_shows_the_example(words: list[str]) -> None:
    reply = invoke(*words)
    (name,) = {word for word in words if word in ("show", "build", "lock", "diff")}
    assert reply.returncode == 0, reply.stderr
    assert f"Example: `invoke {name} " in " ".join(reply.stdout.split())
