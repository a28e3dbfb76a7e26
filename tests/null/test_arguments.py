"""Usage errors of ``python -m flashladder.X`` and of `flashladder` itself: one line that looks like every other one."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
import runpy
import subprocess
import sys

import pytest

from flashladder import arguments, paths
from flashladder.arguments import Parser, seconds, whole
from flashladder.bench import command as bench
from flashladder.build import command as build
from flashladder.check import command as check
from flashladder.errors import FlashladderError
from flashladder.lock import code_claims as claims
from flashladder.paths import ROOT
from flashladder.sweep import command as sweep


@pytest.mark.parametrize(
    ("main", "argv", "message"),
    [
        (check.main, ["7", "--dtype", "fp8"], "invalid choice: 'fp8'"),
        (sweep.main, ["--gird", "cpu"], "--gird; did you mean '--grid'?"),
        (check.main, ["--bakcend", "emulator", "7"], "--bakcend; did you mean '--backend'?"),
        (sweep.main, ["--grid", "cpu", "--shrad", "1/x"], "did you mean '--shard'?"),
        (check.main, ["7", "--gpu", "3090"], "unrecognized arguments: --gpu 3090; python -m flashladder.check --help"),
        (
            check.main,
            ["seven"],
            "argument N: expected a whole number from 0 to 999999999, found 'seven'; python -m flashladder",
        ),
        (check.main, ["٧"], "argument N: expected a whole number from 0 to 999999999, found '٧'"),
        (check.main, ["-7"], "-7"),
        (check.main, ["7" * 5000], "expected a whole number from 0 to 999999999, found '777"),
        (check.main, ["7", "--budget", "nan"], "argument --budget: expected a number of seconds, found 'nan'"),
        (check.main, ["7", "--budget", "-1"], "--budget"),
        (check.main, ["7", "--out", "c.txt"], "--out: expected a name that ends in .json or .json.gz, found 'c.txt'"),
        (bench.main, ["7", "--out", "c.gz"], "--out: expected a name that ends in .json or .json.gz, found 'c.gz'"),
        (check.main, [], "give iterations, or --all"),
        (bench.main, ["7", "--pairs", "3"], "--pairs: expected at least 20, found 3"),
        (bench.main, ["7", "--seq-lens", "100"], "invalid choice: 100"),
        (build.main, ["7.0"], "not a description of an iteration: expected a number, or one change"),
        (build.main, ["7", "--configs"], "argument --configs: expected one argument"),
        (claims.main, ["１"], "expected a whole number from 0 to 999999999, found '１'"),
    ],
)
def test_a_usage_error_is_one_line(
    capsys: pytest.CaptureFixture[str], main: object, argv: list[str], message: str
) -> None:
    assert callable(main)
    with pytest.raises(SystemExit) as caught:
        main(argv)
    out, err = capsys.readouterr()
    assert caught.value.code == 2
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert message in err


def test_every_command_uses_this_parser() -> None:
    sources = [*(ROOT / "flashladder").rglob("*.py")]
    assert len(sources) > 80
    own = ROOT / "flashladder" / "arguments.py"
    assert [path.name for path in sources if path != own and "argparse.ArgumentParser(" in path.read_text()] == []


@pytest.mark.parametrize("text", ["", " 7", "+7", "-7", "7.0", "7e0", "0x7", "٧", "７", "1_0", "1" * 10])
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number from 0 to 999999999, found "):
        whole(text)
    assert whole("007") == 7


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "1e3", "٧", "1.2.3"])
def test_what_is_no_number_of_seconds(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a number of seconds, found "):
        seconds(text)
    assert (seconds("90"), seconds("0.5")) == (90.0, 0.5)


def test_a_hint_comes_from_the_options_of_every_verb() -> None:
    parser = Parser(prog="p")
    parser.add_subparsers().add_parser("list").add_argument("--json")
    assert arguments._words(parser)[-1] == "--json"


def test_several_values_are_words_or_have_commas_between() -> None:
    for words in (["fa3", "cudnn"], ["fa3,cudnn"]):
        assert bench.parse_arguments(["7", "--references", *words]).references == ["fa3", "cudnn"]
    assert bench.parse_arguments(["7"]).references == []
    with pytest.raises(FlashladderError, match="found 'cudn'; did you mean 'cudnn'"):
        bench.parse_arguments(["7", "--references", "fa4,cudn"])


def flashladder(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flashladder", *words]
    env = os.environ | {"PYTHONPATH": str(ROOT)}  # where the package is not installed
    return subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, check=False, timeout=120)


def test_the_package_by_itself_runs_the_tasks_from_any_folder() -> None:
    alone, listed, wrong = flashladder(), flashladder("show", "7", "--json"), flashladder("shwo")
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout.startswith("flashladder TASK ARGUMENTS")
    assert listed.returncode == 0
    assert '"iteration": 7' in listed.stdout
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "error: no such task: found 'shwo'; did you mean 'show'?\n"


def test_core_options_are_answered_too() -> None:
    done = flashladder("-T", "x", "list")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_help_lists_no_file_that_an_editor_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gpus").mkdir()
    for name in ("a100.yaml", ".#a100.yaml", ".x.yaml"):
        (tmp_path / "gpus" / name).touch()
    monkeypatch.setattr(paths, "CONFIGS", tmp_path)
    reloaded = runpy.run_path(arguments.__file__)
    assert reloaded["GPU_KEYS"] == "a100"
