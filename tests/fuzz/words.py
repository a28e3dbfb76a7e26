"""Targets that read words of a person: descriptions, selection keys, short forms, arguments, options, variables.

Nothing to run here; `tests.fuzz.targets` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
from functools import cache
import io
from typing import Any

from flashladder import program
from flashladder.arguments import seconds, whole
from flashladder.bench import command as bench
from flashladder.check import command as check
from flashladder.errors import FlashladderError
from flashladder.ladder.ablation import load_description, parse_subject, split_description
from flashladder.ladder.config import EXAMPLE, KernelConfig
from flashladder.ladder.grid import grid_file
from flashladder.ladder.iteration import load_iteration
from flashladder.ladder.selection import select_configs
from flashladder.sweep import command as sweep
from flashladder.sweep.place import Card, chosen, visible
from flashladder.sweep.slurm import free, parse_options
from ptxemu.command import parse_all
from ptxemu.text import parse_bytes
from tests import typed
from tests.fuzz.target import Target, spoken
from tests.null.command_lines import CASES


def _description(text: str) -> None:
    """An ablation's description leads back to the same ablation."""
    found = load_description(text)
    assert load_description(found.description) == found


def _subject(text: str) -> None:
    subject = parse_subject(text)
    assert parse_subject(subject.text) == subject
    assert split_description(subject.text) == (subject.number, subject.sign, subject.change)


def _short_form(text: str) -> None:
    config = KernelConfig.parse(text)
    assert config.short_form() == text
    assert KernelConfig.parse(config.with_dtype("bf16").short_form()).slug().startswith("bf16")


def _selection(text: str) -> None:
    iteration = load_iteration(16)
    for config in select_configs(iteration, text, ("fp16",)):
        assert select_configs(iteration, config.short_form()) == (config,)


def _argument(text: str) -> None:
    """No array of more than a megabyte is made here: the limit has a test of its own."""
    digits = sum(one.isdigit() for one in text)
    if digits < 7:
        parse_all(text.split("\n"), seed=1)


def _cards(text: str) -> None:
    cards = [Card(index, "NVIDIA H200", f"GPU-{index}{index}aa-bb", "sm_90") for index in range(4)]
    assert set(visible(cards, text)) <= set(cards)
    picked = chosen(cards, text)
    assert len(set(picked)) == len(picked)


def _sinfo(text: str) -> None:
    """Slurm's answer is a program's: lines of another form are skipped, never a failure."""
    assert min(free(text)) >= 0


def _numbers(text: str) -> None:
    import argparse

    for read in (whole, seconds):
        with contextlib.suppress(argparse.ArgumentTypeError):
            assert read(text) >= 0


PARSERS: Mapping[str, Callable[[Sequence[str]], object]] = {
    "bench": bench.parse_arguments,
    "check": check.parse_arguments,
    "sweep": sweep.parse_arguments,
}


@cache
def _contexts() -> tuple[Any, Any]:
    """What `invoke` parses a command line with, tasks of the checkout and its own flags."""
    from invoke.program import Program

    return Program(version="0").initial_context, typed.contexts()


def _command_line(text: str) -> None:
    """One word per line, read by `invoke` and, where the first is a command with a parser, by that; nothing runs."""
    words = [word.replace("\x00", "") for word in text.split("\n")]  # no argument of a process can hold a NUL
    initial, contexts = _contexts()
    with contextlib.suppress(program.UsageError):
        program.LineParser(contexts=contexts, initial=initial).parse_argv(words)
    if words[0] not in PARSERS:
        return
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            PARSERS[words[0]](words[1:])
    except SystemExit as left:
        code = left.code
    else:
        return
    lines = err.getvalue().splitlines()
    assert code == 0 or (code == 2 and len(lines) == 1 and lines[0].startswith("error: ")), lines


def _encoded(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in texts]


DESCRIPTIONS = ("16", "16 - swizzle", "7 + xor_static", "16 - double buffer", "16-swizzle", "1 + tuned", "12 - eager")
KEYS = ("a100", "prog", "prog:h200", "prog-all", "64,64", "128, 64", "64,64,4 2_2_2+buffer", EXAMPLE)
SINFO = "node1|idle|gpu:h100:8(S:0-1),nic:2|gpu:h100:2(IDX:0-1)|8/56/0/64\nnode2|mix-|gpu:4|gpu:1|1/3/0/4\n"

TARGETS = (
    Target(
        "description",
        "ladder.ablation.load_description",
        spoken(_description),
        lambda: _encoded(DESCRIPTIONS),
        ("swizzle", "xor_static", "eager", "tuned", "- ", "+ ", "exp2_folded"),
    ),
    Target("subject", "ladder.ablation.parse_subject", spoken(_subject), lambda: _encoded(DESCRIPTIONS)),
    Target(
        "short-form",
        "ladder.config.KernelConfig.parse",
        spoken(_short_form),
        lambda: _encoded((EXAMPLE, "(BF16, 128, 128, 64, 4): async+load_0_2_0_tiles")),
        ("async+", "eager+", "swizzled+", "load_", "_tiles", "+buffer", "+opt_softmax", "(FP16, ", "): "),
    ),
    Target("selection", "ladder.selection.select_configs", spoken(_selection), lambda: _encoded(KEYS), KEYS),
    Target("grid-name", "ladder.grid.grid_file", spoken(grid_file), lambda: _encoded(("smoke", "a100", "x.yaml"))),
    Target(
        "argument",
        "ptxemu.command.parse_all",
        spoken(_argument),
        lambda: _encoded(("n=1000", "y=float32:10:ones", "float16:6x12:randn", "int32:5", "1e-3", "a=@x.npy", "0x1f")),
        ("float32:", "bfloat16:", "uint8:", ":zeros", ":arange", ":nan", "x", "=", "@", "inf", "nan", "int64:"),
    ),
    Target(
        "bytes",
        "ptxemu.text.parse_bytes",
        spoken(parse_bytes),
        lambda: _encoded(("1GiB", "512 MiB", "2G", "1000", "1.5TB")),
        ("KiB", "MB", "G", "T", "B", "."),
    ),
    Target("numbers", "arguments.whole, seconds", spoken(_numbers), lambda: _encoded(("7", "1.5", "0"))),
    Target(
        "slurm-options",
        "sweep.slurm.parse_options",
        spoken(parse_options),
        lambda: _encoded(("partition=gpu,account=me,array=8,time=2:00:00", "gpu=h200,cpus=4", "time=1-0", "")),
        ("partition=", "time=", "array=", "gpu=", "gres=", ",", "1-2:3:4"),
    ),
    Target(
        "sinfo",
        "sweep.slurm.free",
        spoken(_sinfo),
        lambda: [SINFO.encode()],
        ("gpu:", "idle", "|", "(S:0-1)", "8/56/0/64"),
    ),
    Target(
        "cards",
        "sweep.place.visible, chosen",
        spoken(_cards),
        lambda: _encoded(("0,1", "all", "GPU-11", "3", "GPU-22aa-bb,0")),
        ("GPU-", ",", "all"),
    ),
    Target(
        "command-line",
        "invoke's parser, and those of bench, check, emulate, sweep",
        spoken(_command_line),
        lambda: _encoded(["\n".join(words) for words, _ in CASES if len("\n".join(words)) < 200]),
        (
            "\n--json",
            "\n--config",
            "\n--configs=",
            "\n--help",
            "\n--arch",
            "sweep\n",
            "bench\n7",
            "--",
            "-c",
            "\n--grid",
        ),
        (FlashladderError, SystemExit),
    ),
)
