"""ncu's CSV, the comparison with the published kernels, sanitizer summaries and the GPU session, without a GPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path
import sys

import pytest

from flashladder.build.wheel import chosen_configs
from flashladder.errors import FlashladderError
from flashladder.gpu import ncu as counters
from flashladder.gpu import sanitize
from flashladder.gpu.ncu import SPEC, Launches, differences, read_launches, read_peer
from flashladder.names import CONFLICTS, LDSM, REGISTERS, SECTORS, TENSOR, WAVEFRONTS
from flashladder.problem import Problem
from tests.data_files import table_of
from tests.null.bench_fixture import HEADER


def ncu_text(*rows: tuple[int, str, str]) -> str:
    lines = [f'"{n}","1","python3","flash_fwd_kernel","metrics","{m}","","{v}"' for n, m, v in rows]
    return "\n".join(["==PROF== Connected to process 1", HEADER, *lines, "==PROF== Disconnected"])


def test_launches_come_in_order_with_their_numbers() -> None:
    text = ncu_text((10, "a", "3"), (10, "b", "4"), (9, "a", "1,056,768"), (9, "b", "2.000000"))
    found = [counted for _, counted in read_launches(text, ["a", "b"])]
    assert found == [{"a": 1056768, "b": 2}, {"a": 3, "b": 4}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("==ERROR== something else", "no table: found ==ERROR== something else"),
        ("", "no table: found nothing"),
        (ncu_text((0, "a", "n/a")), "no value for a: found n/a"),
        (ncu_text((0, "a", "1")), "did not measure a metric: expected b"),
    ],
)
def test_what_ncu_cannot_say_is_one_line(text: str, message: str) -> None:
    with pytest.raises(FlashladderError, match=message):
        read_launches(text, ["a", "b"])


@pytest.mark.parametrize(
    ("metric", "off", "fails"),
    [*((name, 1, True) for name in (*SECTORS, LDSM, TENSOR)), (REGISTERS, 16, False), (REGISTERS, -17, True)],
)
def test_counters_are_exact_and_registers_within_sixteen(metric: str, off: int, fails: bool) -> None:
    peer = read_peer()[16]
    found = differences(16, peer | {metric: peer[metric] + off}, peer)
    assert [metric in line for line in found] == [True] * fails


@pytest.mark.parametrize(
    ("iteration", "loads", "stores", "problems"),
    [
        (5, 0.0009, 0.19, []),
        (5, 0.0011, 0, [WAVEFRONTS.format("ld")]),
        (5, 0, 0.21, [WAVEFRONTS.format("st")]),
        (8, 0, 0.0001, [WAVEFRONTS.format("st")]),  # as exact as the emulator is held to be
    ],
)
def test_noise_of_conflicts_is_allowed_where_the_published_kernels_have_it(
    iteration: int, loads: float, stores: float, problems: list[str]
) -> None:
    peer = read_peer()[iteration]
    ours = dict(peer)
    for operation, share in (("ld", loads), ("st", stores)):
        for metric in (WAVEFRONTS, CONFLICTS):
            ours[metric.format(operation)] += round(share * peer[WAVEFRONTS.format(operation)])
    assert [line.partition(":")[0] for line in differences(iteration, ours, peer)] == problems
    ours[WAVEFRONTS.format("ld")] += 1
    assert any("ld.sum without conflicts" in line for line in differences(iteration, ours, peer))


def test_kernels_are_launched_where_they_take_other_ways_besides() -> None:
    """Small grids of the one that splits their tiles, and long ones of those whose warps part."""
    launches = Launches((25, 27, 28), ("a100",), ("fp16",), sanitize.SHAPE, rare=True)
    exact, lazy, split = (chosen_configs(number, ("a100",), ("fp16",))[0] for number in launches.numbers)
    part = Problem(batch=1, seq_len=1791, n_heads=4, d_head=128)
    assert launches.shapes(exact) == (sanitize.SHAPE,)
    assert launches.shapes(lazy) == (sanitize.SHAPE, part)
    one, *few, last = launches.shapes(split)
    assert (one, last) == (sanitize.SHAPE, part)
    assert [(shape.batch, shape.seq_len, shape.n_heads) for shape in few] == list(split.few_tiles)
    assert few
    assert dataclasses.replace(launches, rare=False).shapes(split) == (sanitize.SHAPE,)


@pytest.mark.parametrize(("script", "clean", "errors"), table_of("null/gpu/counters", "sanitizer"))
def test_only_a_clean_summary_and_exit_is_clean(tmp_path: Path, script: str, clean: bool, errors: int | None) -> None:
    launches = Launches((1,), ("a100",), ("fp16",), sanitize.SHAPE)
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    tool.chmod(0o755)
    found = sanitize.run_tool(tool, "memcheck", launches, timeout_s=1.0)
    assert (found.clean, found.errors) == (clean, errors)


def fake_ncu(folder: Path, text: str, code: int = 0) -> Path:
    """An ncu that writes `text` to its log, notes its words in argv.txt and ends with `code`."""
    (folder / "table.csv").write_text(text, encoding="utf-8")
    path = folder / "ncu"
    path.write_text(
        f"#!/bin/sh\n[ $1 = --version ] && echo Version 2025.3 && exit\nprintf '%s\\n' \"$@\" > '{folder}/argv.txt'\n"
        'while [ $# -gt 0 ]; do [ "$1" = --log-file ] && log=$2; shift; done\n'
        f'cp "{folder}/table.csv" "$log"\nexit {code}\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


def test_counters_are_given_to_the_kernels_in_launch_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ncu = fake_ncu(tmp_path, ncu_text((0, "a", "1"), (1, "a", "2")))
    monkeypatch.setattr(counters, "find_ncu", lambda: ncu)
    launches = Launches((2, 1), ("a100",), ("fp16",), counters.SHAPE)
    found, version = counters.read_counters(launches, ["a"], timeout_s=10)
    assert [(key[:2], own["a"]) for key, own in found.items()] == [("02", 1), ("01", 2)]
    assert version == "Version 2025.3"
    argv = (tmp_path / "argv.txt").read_text(encoding="utf-8").splitlines()
    for option, value in (("--clock-control", "none"), ("--metrics", "a"), ("--kernel-name", "regex:flash_fwd_kernel")):
        assert argv[argv.index(option) + 1] == value
    *program, spec = argv[argv.index(sys.executable) :]
    assert program == [sys.executable, "-m", "flashladder.gpu.ncu", "--launch"]
    assert SPEC.validate_json(spec) == launches


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (ncu_text((0, "a", "1")), 0, "another number of launches: expected 2, found 1"),
        ("==ERROR== boom", 9, "ncu ended with exit code 9: found ==ERROR== boom"),
        ("==ERROR== ERR_NVGPUCTRPERM", 9, "refuses hardware counters .*GPU without counters"),
    ],
)
def test_an_ncu_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int, message: str
) -> None:
    ncu = fake_ncu(tmp_path, text, code)
    monkeypatch.setattr(counters, "find_ncu", lambda: ncu)
    with pytest.raises(FlashladderError, match=message):
        counters.read_counters(Launches((2, 1), ("a100",), ("fp16",), counters.SHAPE), ["a"], timeout_s=10)
