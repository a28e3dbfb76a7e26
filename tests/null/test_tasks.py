"""Tasks for people: thin, with help and an example each, and one line instead of a traceback for bad input."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from pathlib import Path
import re
import subprocess
import sys
from types import ModuleType
from typing import get_args

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.parser.context import ParserContext
from invoke.tasks import Task
import pytest

from flashladder import ops
from flashladder.arguments import Command, Option
from flashladder.bench import command as bench
from flashladder.bench.references import BACKENDS, FA2
from flashladder.build import command as build
from flashladder.check import command as check
from flashladder.commands import COMMANDS, STATIONS
from flashladder.emulate import command as emulate
from flashladder.explain import command as explain
from flashladder.files import last_iteration
from flashladder.gate import command as gate
from flashladder.gate import verify
from flashladder.gpu import doctor
from flashladder.ladder import iteration
from flashladder.ladder.config import EXAMPLE
from flashladder.ladder.grid import ReferenceName
from flashladder.ladder.iteration import load_all
from flashladder.names import REFERENCES
from flashladder.paths import ROOT
from flashladder.program import LineParser
from flashladder.report import command as report
from flashladder.sweep import command as sweep
from flashladder.usage import LEFT_OUT, task_of, words_of
from flashladder.view import cfg, code
from flashladder.view import command as view
from ptxemu import MEMORY_BUDGET, parse_bytes

EXPECTED = {
    "list", "show", "diff", "build", "check", "emulate", "nvcc", "bench", "ptxas", "sass", "ptx", "lock", "report",
    "gate", "sweep", "verify", "doctor", "bundle", "help", "tour", "trace", "cfg", "explain",
}  # fmt: skip


PARSERS = {
    bench: "bench", build: "build", check: "check", doctor: "doctor", emulate: "emulate", gate: "gate",
    cfg: "cfg", explain: "explain", report: "report", code: "sass", sweep: "sweep", verify: "verify",
    view: "show",
}  # fmt: skip


@pytest.fixture(scope="module")
def tasks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flashladder_tasks", ROOT / "tasks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def all_tasks(module: ModuleType) -> dict[str, Task]:  # type: ignore[type-arg]  # generic in the stub only
    return dict(module.namespace.tasks)


def invoke(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "invoke", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_there_is_a_task_for_every_verb(tasks: ModuleType) -> None:
    assert set(all_tasks(tasks)) == EXPECTED


def test_every_task_has_an_example_and_help_for_every_argument(tasks: ModuleType) -> None:
    for name, found in all_tasks(tasks).items():
        assert f"Example: `invoke {name}" in (found.__doc__ or ""), name
        for argument in found.get_arguments():
            assert argument.help, f"{name}: {argument.name}"


def examples() -> list[str]:
    return [f"invoke {example}" for command in COMMANDS.values() for example in command.examples]


def test_examples_and_the_readmes_commands_name_real_tasks_and_flags(tasks: ModuleType) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8") + (ROOT / "docs" / "reading-order.md").read_text()
    commands = examples() + re.findall(r"invoke [a-z]+[^`#\n]*", text)
    known = all_tasks(tasks)
    assert len(commands) > 20
    for command in commands:
        _, name, *words = command.split()
        flags = {flag.strip("-") for argument in known[name].get_arguments() for flag in argument.names}
        assert {word.strip("-") for word in words if word.startswith("--")} <= flags, command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["build", "29"], "no such iteration: expected a number from 1 to 28, found 29"),
        (["build", "0"], "found 0"),
        (["build", "16 - nothing"], "nothing named 'nothing' can be taken back from iteration 16"),
        (["build", "16", "--toolchain", "12.0"], "no toolchain of this CUDA version is pinned: expected one of 13.0"),
        (["check", "x"], "found 'x'"),
        (["check", "7", "--backend", "cuda"], "no such backend: expected gpu or emulator, found 'cuda'"),
        (["emulate", "29"], "expected a number from 1 to 28, found 29"),
        (["emulate", "1", "--heads", "0"], "bad --heads: expected a whole number from 1 to 65535, found '0'"),
        (["emulate", "1", "--seq-len", "100"], "expected a multiple of B_r = 64, found 100"),
        (["emulate", "1", "--memory-budget", "much"], "not a memory budget"),
        (["emulate", "1", "--dtype", "fp8"], "no such dtype"),
        (["bench", "-7"], "-7"),
        (["bench", "7", "--dtype", "fp32"], "no such dtype: expected fp16 or bf16, found 'fp32'"),
        (["show", "29"], "expected a number from 1 to 28, found 29"),
        (["show", "x"], "x"),
        (["diff", "7"], "'after'"),
        (["lock", "7"], "a lock needs a reason"),
        (["lock", "7", "--reason", " "], "a lock needs a reason"),
        (["ptxas", "--arch", "sm_12"], "unknown GPU architecture"),
        (["ptxas", "--iteration", "99"], "no such iteration"),
        (["ptxas", "99"], "no such iteration: expected a number from 1 to 28, found 99"),
        (["ptxas", "7", "8"], "ptxas takes no further argument: found '8'"),
        (["ptxas", "7", "shwo"], "found 'shwo'; did you mean 'show'?"),
        (["show", "7", "--config"], "--config needs a value"),
        (["show", "7", "--config", "prog"], "'prog' names 3 configurations of iteration 7, and one is needed"),
        (["bench", "7", "--dtpye", "fp16"], "found --dtpye; did you mean '--dtype'?"),
        (["shwo", "7"], "no such task: found 'shwo'; did you mean 'show'?"),
        (["ptx", "7", "--config", "wrong"], "no such configuration: expected one of a100"),
        (["sass", "7", "--arch", "sm_12"], "unknown GPU architecture"),
        (["build"], "'iteration'"),
        (["bench", "7", "--nosuch"], "--nosuch"),
        (["nosuch"], "nosuch"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(words: list[str], message: str) -> None:
    reply = invoke(*words)
    assert reply.returncode == 2, reply.stderr
    assert message in reply.stderr
    assert len(reply.stderr.strip().splitlines()) == 1, reply.stderr
    assert reply.stderr.startswith("error: ")


def test_alone_it_shows_every_task_once_by_station_within_80_columns(tasks: ModuleType) -> None:
    known = all_tasks(tasks)
    assert sorted(command.name for commands in STATIONS.values() for command in commands) == sorted(known)
    reply, asked = invoke(), invoke("help")
    assert (reply.returncode, reply.stderr, reply.stdout) == (0, "", asked.stdout)
    lines = reply.stdout.splitlines()
    for heading, commands in STATIONS.items():
        start = lines.index(heading) + 1
        told = [line.split(maxsplit=1) for line in lines[start : start + len(commands)]]
        assert told == [[command.name, command.does] for command in commands]
    assert max(map(len, lines)) <= 80


def test_the_list_of_tasks_has_one_line_each_within_80_columns(tasks: ModuleType) -> None:
    lines = invoke("--list").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for name, task in all_tasks(tasks).items():
        first = (task.__doc__ or "").partition("\n")[0]
        assert sum(line.split()[:1] == [name] and line.endswith(first) for line in lines) == 1, name


def test_the_help_and_the_default_iteration_end_with_the_ladder(tasks: ModuleType, tmp_path: Path) -> None:
    last = load_all()[-1].number
    assert (f"iteration, 1 to {last}", last) == (COMMANDS["check"].options[0].help, ops.LAST_ITERATION)
    assert last_iteration(tmp_path) == 0
    for name in ("01_base.yaml", "17_next.yaml", "18_no.yml", "notes.txt"):
        (tmp_path / name).touch()
    assert last_iteration(tmp_path) == 17


def test_a_word_for_a_number_is_answered_with_the_numbers_there_are(
    tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("01_base.yaml", "02_next.yaml"):
        (tmp_path / name).touch()
    monkeypatch.setattr(iteration.no_such_iteration, "__defaults__", (tmp_path,))
    with pytest.raises(SystemExit):
        tasks.step("x")
    assert capsys.readouterr().err == "error: no such iteration: expected a number from 1 to 2, found 'x'\n"


def test_a_command_line_has_what_is_set_and_no_more() -> None:
    options = (
        Option("path", "", form="word"), Option("min-pairs", ""), Option("out", ""), Option("json", "", form="flag"),
        Option("quick", "", form="flag"), Option("arg", "", form="again"), Option("method", "", form="several"),
    )  # fmt: skip
    command = Command("x", "", (), options)
    given = {
        "path": "7",
        "min_pairs": "3",
        "out": None,
        "json": True,
        "quick": False,
        "arg": ["a", "b=1"],
        "method": "n,m",
    }
    assert words_of(command, given) == ["7", "--min-pairs=3", "--json", "--arg=a", "--arg=b=1", "--method", "n", "m"]
    nothing = dict.fromkeys(given) | {"path": LEFT_OUT, "json": False, "quick": False, "arg": []}
    assert words_of(command, nothing) == []
    assert words_of(command, nothing | {"out": ""}) == ["--out="]  # typed, though empty


def test_call_leaves_with_the_packages_exit_code(tasks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("flashladder.gpu.doctor")
    monkeypatch.setattr(module, "main", len)
    with pytest.raises(Exit) as left:
        tasks.call("gpu.doctor", "x")
    assert left.value.code == 1


MEANT: list[tuple[str, dict[str, object]]] = [
    ("list --json", {"verb": "list", "json": True}),
    ("show 7 --config 128,64 --all", {"verb": "show", "config": "128,64", "all": True, "json": False}),
    ("diff 7 8 --json", {"before": "7", "after": "8", "config": None, "json": True}),
    ("build 16-swizzle --toolchain 13.1", {"subject": ["16-swizzle"], "toolchain": "13.1"}),
    ("build 7 --arch sm_90 --configs tune --debug", {"arch": "sm_90", "configs": "tune", "debug": True}),
    ("check 7 --backend emulator --dtype bf16 --quick",
     {"numbers": [7], "backend": "emulator", "dtypes": ["bf16"], "quick": True, "out": None}),
    ("bench 16 --tune --dtype fp16 --out a.json",
     {"numbers": [16], "tune": True, "dtypes": ["fp16"], "out": Path("a.json"), "configs": None}),
    ("sweep a100 --dry-run --shard 0/2 --slurm partition=p",
     {"grid": "a100", "dry_run": True, "shard": (0, 2), "slurm": "partition=p", "gpus": "all", "timeout": None}),
    ("cfg 16 --seq-len 512 --svg", {"iteration": "16", "seq_len": 512, "svg": True, "dot": False, "arch": ""}),
    ("sass 8", {"targets": ["8"], "config": None, "arch": "", "kernel": "", "control": False}),
    ("verify", {"path": None, "json": False}),
    ("check 7", {"backend": "gpu"}),
    ("build 7", {"configs": "prog"}),
    ("bench 16 --references cudnn,fa4 --method nvbench,ncu",
     {"numbers": [16], "references": ["cudnn", "fa4"], "methods": ["nvbench", "ncu"], "dtypes": ["fp16", "bf16"]}),
    ("emulate 1 --seq-len 512 --heads 2 --counters --hazards",
     {"iteration": "1", "seq_len": "512", "heads": "2", "batch": "", "counters": True, "hazards": True}),
    ("sass 8 --arch sm_90 --counts", {"arch": "sm_90", "counts": True}),
    ("report --check", {"check": True, "json": False}),
    ("gate --json", {"json": True}),
    ("doctor --json", {"json": True}),
]  # fmt: skip


def typed_in(context: ParserContext) -> dict[str, object]:
    return {argument.attr_name or str(argument.name): argument.value for argument in context.args.values()}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_task_and_its_command_agree_on_every_option(name: str) -> None:
    """Names, help, flags and what may be left out: of the task as invoke reads it, beside the table."""
    made = task_of(COMMANDS[name], lambda _: None).get_arguments()
    arguments = {argument.attr_name or argument.name: argument for argument in made}
    options = {option.attribute: option for option in COMMANDS[name].options}
    assert set(arguments) == set(options)
    for attribute, option in options.items():
        argument = arguments[attribute]
        assert (argument.help, argument.kind is bool) == (option.help, option.form == "flag")
        assert argument.positional == (option.required or option.form == "word")


@pytest.mark.parametrize("module", PARSERS, ids=lambda module: module.__name__)
def test_a_packages_parser_has_the_help_and_choices_of_the_table(
    module: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS[PARSERS[module]]
    with pytest.raises(SystemExit):
        module.main([*(["show"] if module is view else []), "--help"])
    told = "".join(capsys.readouterr().out.split())
    for option in command.options:
        assert "".join(option.help.split()) in told
        assert option.form == "word" or f"--{option.name}" in told


@pytest.mark.parametrize("words", [("own.ptx", "--grid", "4"), ("own.cu",), ("--counters", "own.ptx")])
def test_emulate_names_the_command_that_runs_a_file(words: tuple[str, ...]) -> None:
    done = invoke("emulate", *words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "`ptxemu own." in done.stderr


def test_defaults_in_the_table_are_those_of_the_packages() -> None:
    budget = next(option for option in COMMANDS["emulate"].options if option.name == "memory-budget")
    assert parse_bytes(str(budget.default)) == MEMORY_BUDGET
    assert {name for name in BACKENDS if name != FA2} == set(REFERENCES) == set(get_args(ReferenceName))


@pytest.mark.parametrize(("words", "meant"), MEANT, ids=[words for words, _ in MEANT])
def test_what_a_person_types_is_what_the_command_understands(
    tasks: ModuleType, monkeypatch: pytest.MonkeyPatch, words: str, meant: dict[str, object]
) -> None:
    parsed: list[argparse.Namespace] = []
    real = argparse.ArgumentParser.parse_args

    def parse(self: argparse.ArgumentParser, args: list[str] | None = None) -> argparse.Namespace:
        parsed.append(real(self, args))
        raise SystemExit(0)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    monkeypatch.setattr(tasks, "need_gpu", lambda: None)
    contexts = [ParserContext(name, args=task.get_arguments()) for name, task in all_tasks(tasks).items()]
    (typed,) = LineParser(contexts=contexts).parse_argv(words.split())
    task = all_tasks(tasks)[words.split(maxsplit=1)[0]]
    with pytest.raises(SystemExit):
        task(Context(), **typed_in(typed))
    (understood,) = parsed
    assert {name: vars(understood).get(name, "no such option") for name in meant} == meant


@pytest.mark.parametrize(
    ("words", "iterations"),
    [
        (["ptxas", "7"], ["7"]),
        (["ptxas", "--arch", "sm_80", "16 - swizzle", "--json"], ["16 - swizzle"]),
        (["ptxas", "--iteration", "7"], ["7"]),
        (["ptxas", "-i=7"], ["7"]),
        (["ptxas"], [LEFT_OUT]),
        (["ptxas", "doctor"], [LEFT_OUT]),
        (["ptxas", "7", "ptxas", "8"], ["7", "8"]),
    ],
)
def test_the_iteration_of_ptxas_needs_no_flag(tasks: ModuleType, words: list[str], iterations: list[str]) -> None:
    contexts = [ParserContext(name, args=task.get_arguments()) for name, task in all_tasks(tasks).items()]
    result = LineParser(contexts=contexts).parse_argv(words)
    assert [found.args["iteration"].value for found in result if found.name == "ptxas"] == iterations


def test_help_of_config_shows_a_short_form_and_whose_it_is() -> None:
    for name in ("show", "diff", "ptx", "sass"):
        assert EXAMPLE.replace(" ", "") in "".join(invoke(name, "--help").stdout.split()), name
    assert "a configuration of AFTER" in " ".join(invoke("diff", "--help").stdout.split())


@pytest.mark.parametrize(
    "words", [["show", "--help"], ["build", "-h"], ["--help", "lock"], ["diff", "7", "--help"], ["help", "show"]]
)
def test_help_shows_the_example(words: list[str]) -> None:
    reply = invoke(*words)
    (name,) = {word for word in words if word in EXPECTED - {"help"}}
    assert reply.returncode == 0, reply.stderr
    assert f"Example: `invoke {name} " in " ".join(reply.stdout.split())


def test_a_reader_that_goes_away_is_no_error() -> None:
    words = [sys.executable, "-m", "invoke", "show", "16"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(timeout=120) == 0


def test_the_modules_behind_the_commands_exist(tasks: ModuleType) -> None:
    """Commands name them in text, which neither mypy nor an import looks at."""
    text = (ROOT / "tasks.py").read_text(encoding="utf-8")
    named = {*re.findall(r'(?:understood_by|on_gpu)\("([a-z_.]+)"', text)}
    each = re.findall(r'f"\{name\}\.command", name\)\s*for name in \(([^)]*)\)', text)
    named |= {f"{name}.command" for names in each for name in re.findall(r'"([a-z]+)"', names)}
    assert {"view.command", "bench.command", "sweep.command", "bundle.make"} <= named
    for module in named:
        assert callable(importlib.import_module(f"flashladder.{module}").main), module
