"""``invoke emulate FILE.ptx``: arguments as words, files in and out, and bad input in one line."""

from __future__ import annotations

import json
from pathlib import Path
import re
from typing import Any

import numpy as np
import pytest

from flashladder.emulate import arguments as emulate_arguments
from flashladder.emulate import command as emulate
from flashladder.emulate.arguments import DTYPES, FILLS, parse_all
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.toolchain import own_cuda

ADD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 out, .param .u64 in, .param .u32 n)
{
    .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %rd<4>;
    mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r0, %r1, %r2, %r0;
    ld.param.u32 %r3, [n]; setp.ge.u32 %p, %r0, %r3; @%p ret;
    mul.wide.u32 %rd0, %r0, 4; ld.param.u64 %rd1, [in]; add.u64 %rd1, %rd1, %rd0; ld.global.u32 %r4, [%rd1];
    add.u32 %r4, %r4, 1; ld.param.u64 %rd2, [out]; add.u64 %rd2, %rd2, %rd0; st.global.u32 [%rd2], %r4; ret;
}
"""
WORDS = ["--block", "32", "--arg", "out=int32:64:zeros", "--arg", "int32:64:arange", "--arg", "n=40"]


@pytest.fixture(autouse=True)
def ptx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("add.ptx").write_text(ADD)


def test_the_screen_shows_what_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert emulate.main(["add.ptx", *WORDS, "--grid", "2", "--save", "out=o.npy", "--counters", "--hazards"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("add(out: u64, in: u64, n: u32) of add.ptx, sm_80\n2 CTAs of 32 threads, 0 bytes")
    assert "out   int32 64: 40 of 64 elements changed, saved to " in page
    assert "arg1  int32 64: unchanged; min 0, mean 31.5, max 63; 0 1 2 3 ..." in page
    assert "n     40\n" in page
    assert "global_st_sectors" in page
    assert page.endswith("no hazards\n")
    assert np.load("o.npy").tolist() == [*range(1, 41), *[0] * 24]


@pytest.mark.parametrize("schedule", ["together", "reverse", "7"])
def test_clusters_and_orders(schedule: str) -> None:
    words = [*WORDS, "--grid", "2", "--cluster", "2", "--target", "sm_90", "--schedule", schedule]
    assert emulate.main(["add.ptx", *words, "--save", "out=o.npy"]) == 0
    assert np.load("o.npy").tolist() == [*range(1, 41), *[0] * 24]


def test_a_saved_array_is_an_argument_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert emulate.main(["add.ptx", *WORDS, "--save", "out=o.npy"]) == 0
    words = [*WORDS[:4], "--arg", "in=@o.npy", "--arg", "n=0x20", "--json"]
    capsys.readouterr()
    assert emulate.main(["add.ptx", *words, "--save", "out=p.npy"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert np.load("p.npy").tolist() == [*range(2, 34), *[0] * 32]
    assert facts["counters"] is None
    assert facts["hazards"] is None
    assert facts["parameters"][2] == {"name": "n", "type": "u32", "size": 4}
    assert facts["arguments"][2] == {"name": "n", "value": 32.0}


def test_what_a_program_may_not_do_is_exit_code_one() -> None:
    with pytest.raises(CheckFailed, match=r"this program may not do this: add.ptx:\d+: 4-byte access") as caught:
        emulate.main(["add.ptx", *WORDS[:-1], "n=65", "--grid", "3"])
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_and_numbers_have_the_dtype_that_is_named(dtype: str) -> None:
    texts = [f"{dtype}:2x3:{fill}" for fill in ("zeros", "ones", "arange", "7")]
    *arrays, number = [value.value for value in parse_all([*texts, f"{dtype}:5"], seed=0)]
    assert [np.asarray(array).dtype for array in arrays] == [DTYPES[dtype]] * 4
    expected = [np.zeros((2, 3)), np.ones((2, 3)), np.arange(6).reshape(2, 3), np.full((2, 3), 7)]
    assert all((np.asarray(array, float) == wanted).all() for array, wanted in zip(arrays, expected, strict=True))
    assert (np.asarray(number).dtype, float(number)) == (DTYPES[dtype], 5.0)


def test_random_arrays_differ_and_depend_on_the_seed_alone() -> None:
    one, two, again, other = (
        [np.asarray(value.value) for value in parse_all(["float32:1000:randn", "float64:1000:rand"], seed)]
        for seed in (1, 2, 1, 3)
    )
    assert abs(one[0].std() - 1) < 0.1
    assert 0 <= one[1].min() < one[1].max() < 1
    assert (one[0] == again[0]).all()
    assert (one[0] != two[0]).any()
    assert (two[0] != other[0]).any()
    first, second = (np.asarray(value.value) for value in parse_all(["float32:9:randn"] * 2, 0))
    assert (first != second).any()
    assert set(FILLS) == {"zeros", "ones", "arange", "randn", "rand", "nan"}


def test_bfloat16_is_saved_as_its_bits(tmp_path: Path) -> None:
    (value,) = parse_all(["bfloat16:4:arange"], 0)
    assert isinstance(value.value, np.ndarray)
    emulate_arguments.save(tmp_path / "b.npy", value.value)
    assert np.load(tmp_path / "b.npy").tolist() == [0, 0x3F80, 0x4000, 0x4040]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--block", "32", "--arg", "x=float31:4:zeros"], "x=float31:4:zeros: bad --arg: expected one of int8,"),
        (["--block", "32", "--arg", "float32:4:sevens"], "bad --arg: expected DTYPE:SHAPE:FILL"),
        (
            ["--block", "32", "--arg", "float32:4x:zeros"],
            "bad --arg: expected a shape such as 1024 or 64x128, found 4x",
        ),
        (["--block", "32", "--arg", "int8:4:randn"], "expected integers: zeros, ones, arange or a number, found randn"),
        (["--block", "32", "--arg", "int8:300"], "a whole number that fits int8, -128 to 127, found 300"),
        (
            ["--block", "32", "--arg", "a=int8:256:300"],
            "a=int8:256:300: bad --arg: expected a whole number that fits int8, -128 to 127, found 300",
        ),
        (["--block", "32", "--arg", "int32:1.5"], "a whole number that fits int32, "),
        (["--block", "32", "--arg", "float32:256:1e400"], "a number that fits float32, or inf, found 1e400"),
        (["--block", "32", "--arg", "float16:70000"], "a number that fits float16, or inf, found 70000"),
        (["--block", "32", "--arg", "bfloat16:4:1e39"], "a number that fits bfloat16, or inf, found 1e39"),
        (["--block", "32", "--arg", "n=1e400"], "a number that fits float64, or inf, found 1e400"),
        (["--block", "32", "--arg", "float32:9999999999x9:zeros"], "expected at most 4 GiB"),
        (["--block", "32", "--arg", "x=@no.npy"], "a file that numpy.save wrote, found no.npy: No such file"),
        (["--block", "32", "--arg", "x=@add.ptx"], "a file that numpy.save wrote, found add.ptx: this is none"),
        (["--block", "32", "--arg", "x=1", "--arg", "x=2"], "--arg: two arguments of one name: found x"),
        (["--block", "32", "--arg", "1:2:3:4"], "bad --arg"),
        (["--arg", "1"], "--block is missing: expected one to three numbers"),
        (["--block", "32,x"], "bad --block"),
        (["--block", "32,64", *WORDS[2:]], "threads of a block: expected at most 1024, found 2048"),
        (["--block", "2048", *WORDS[2:]], "bad --block: expected at least 1 and at most 1024,1024,64 along x,y,z"),
        (["--block", "32,0"], "bad --block: expected at least 1 and at most 1024,1024,64 along x,y,z, found '32,0'"),
        ([*WORDS, "--grid", "0"], "bad --grid: expected at least 1 and at most 2147483647,65535,65535 along x,y,z"),
        ([*WORDS, "--grid", "1,65536"], "65535 along x,y,z, found '1,65536'"),
        (["--block", "32", "--grid", "1,2,3,4"], "bad --grid"),
        (["--block", "32", "--arg", "1"], "number of arguments of add: expected 3"),
        ([*WORDS, "--kernel", "sub"], "which kernel: expected one of add, found sub"),
        ([*WORDS, "--save", "n=n.npy"], "bad --save: expected NAME=FILE.npy, NAME one of out, arg1, found 'n=n.npy'"),
        ([*WORDS, "--save", "out=o.txt"], "bad --save: expected a .npy file in a folder that exists, found 'o.txt'"),
        ([*WORDS, "--save", "out=no/o.npy"], "bad --save"),
        ([*WORDS, "--shared", "lots"], "not an amount of shared memory"),
        ([*WORDS, "--shared", "1MiB"], "shared memory of a block on sm_80: expected at most 166912 bytes"),
        ([*WORDS, "--target", "sm_70"], "target of a launch of PTX for sm_80"),
        ([*WORDS, "--memory-budget", "x"], "not a memory budget"),
        ([*WORDS, "--cluster", "2"], "clusters: expected sm_90 or newer, found sm_80"),
        ([*WORDS, "--cluster", "0"], "bad --cluster: expected at least 1 and at most 16,16,16 along x,y,z"),
        ([*WORDS, "--cluster", "3", "--target", "sm_90", "--grid", "4"], "grid of a launch with clusters"),
        ([*WORDS, "--schedule", "sideways"], "bad --schedule: expected together, reverse or a seed, found 'sideways'"),
        ([*WORDS, "--seq-len", "512"], "--seq-len belongs to an iteration: found emulate add.ptx"),
    ],
)
def test_bad_input_could_not_run(words: list[str], says: str) -> None:
    with pytest.raises(FlashladderError, match=re.escape(says)) as caught:
        emulate.main(["add.ptx", *words])
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert [path.name for path in Path().iterdir()] == ["add.ptx"]


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        (np.zeros(4, bool), "an array of one of int8, .*, found x.npy: |b1"),
        (np.zeros(4, complex), "found x.npy: <c16"),
        (np.array(["a"]), "found x.npy: <U1"),
        (np.zeros(4, ">f4"), "found x.npy: >f4"),
        ({"q": np.zeros(4), "k": np.zeros(4)}, "expected one array, a .npy file, found x.npy: an archive of q, k"),
        (b"PK\x03\x04", "a file that numpy.save wrote, found x.npy: this is none"),
    ],
    ids=["bool", "complex", "text", "big-endian", "archive", "damaged archive"],
)
def test_files_that_hold_no_array_of_a_documented_dtype(contents: Any, says: str) -> None:
    with Path("x.npy").open("wb") as file:
        if isinstance(contents, bytes):
            file.write(contents)
        elif isinstance(contents, dict):
            np.savez(file, **contents)
        else:
            np.save(file, contents)
    with pytest.raises(FlashladderError, match="in=@x.npy: bad --arg: .*" + says.replace("|", r"\|")) as caught:
        emulate.main(["add.ptx", *WORDS[:4], "--arg", "in=@x.npy", "--arg", "n=4"])
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_an_infinity_may_be_asked_for() -> None:
    one, two = (float(np.asarray(value.value)) for value in parse_all(["float32:inf", "-inf"], 0))
    assert (one, two) == (float("inf"), -float("inf"))


@pytest.mark.parametrize("exists", [True, False])
def test_a_cuda_file_has_to_be_compiled_first(exists: bool) -> None:
    if exists:
        Path("my.cu").write_text("")
    with pytest.raises(FlashladderError, match=r"^my\.cu: .*compile it first: `invoke nvcc my\.cu`, then") as caught:
        emulate.main(["my.cu", *WORDS])
    assert caught.value.exit_code == 2


def test_a_name_in_capitals_is_ptx_too() -> None:
    Path("ADD.PTX").write_bytes(Path("add.ptx").read_bytes())
    assert emulate.main(["ADD.PTX", *WORDS]) == 0


def test_a_library_holds_ptx_that_another_command_takes_out() -> None:
    hint = r"`invoke ptx 'my lib\.so' --out own\.ptx`"
    with pytest.raises(FlashladderError, match=rf"^my lib\.so: not a PTX file: .*{hint}") as caught:
        emulate.main(["my lib.so", *WORDS])
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("name", "word"), [("-a.ptx", "./-a.ptx"), ("a b.ptx", "'a b.ptx'"), ("a.ptx", "a.ptx")])
def test_a_path_in_a_hint_can_be_typed(name: str, word: str) -> None:
    assert own_cuda.as_word(Path(name)) == word


def test_a_cuda_file_without_a_kernel_has_nothing_to_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("none.ptx").write_text(".version 9.0\n.target sm_80\n")
    for made, says in (("none.ptx", "no kernel is in it"), ("add.ptx", "run it with `invoke emulate add.ptx --grid")):
        monkeypatch.setattr(own_cuda, "compile_file", lambda *_, made=made: Path(made))
        own_cuda.compile_and_tell("own.cu", "sm_80")
        assert says in capsys.readouterr().out


@pytest.mark.parametrize("exists", [True, False])
def test_ptx_is_not_compiled(exists: bool) -> None:
    name = "add.ptx" if exists else "none.ptx"
    with pytest.raises(FlashladderError, match=rf"^{name}: PTX is compiled already.*`invoke emulate {name}`") as caught:
        own_cuda.compile_file(Path(name))
    assert "--out" not in str(caught.value)


def test_options_of_a_file_are_refused_beside_an_iteration() -> None:
    with pytest.raises(FlashladderError, match="--block belongs to a PTX file: found emulate 7"):
        emulate.main(["7", "--block", "32"])
    with pytest.raises(FlashladderError, match=r"none\.ptx"):
        emulate.main(["none.ptx", *WORDS])
