"""``ptxemu FILE``: arguments as words, files in and out, bad input in one line, readers and disks that fail, nvcc."""

from __future__ import annotations

import importlib.util
import io
import json
import os
from pathlib import Path
import re
import signal
import stat
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from tests.programs import table_of, text_of

import ptxemu
from ptxemu import command, nvcc
from ptxemu.__main__ import main
from ptxemu.command import DTYPES, FILLS, Progress, parse_all, parser, save
from ptxemu.text import output_file

ADD = text_of("command", "add")
ARG = ["--block", "32", "--arg"]
WORDS = [*ARG, "out=int32:64:zeros", "--arg", "int32:64:arange", "--arg", "n=40"]


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on stderr, where nothing is on stdout."""
    out, err = capsys.readouterr()
    assert (out, err[:7], err.count("\n")) == ("", "error: ", 1)
    return err


@pytest.fixture(autouse=True)
def ptx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("add.ptx").write_text(ADD)


def test_the_screen_shows_what_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add.ptx", *WORDS, "--grid", "2", "--save", "out=o.npy", "--counters", "--hazards"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("add(out: u64, in: u64, n: u32) of add.ptx, sm_80\n2 CTAs of 32 threads, 0 bytes")
    assert "out   int32 64: 40 of 64 elements changed, saved to " in page
    assert "arg1  int32 64: unchanged; min 0, mean 31.5, max 63; 0 1 2 3 ..." in page
    assert "n     40\n" in page
    assert "global_st_sectors" in page
    assert page.endswith("no hazards in any schedule of this launch\n")
    assert np.load("o.npy").tolist() == [*range(1, 41), *[0] * 24]
    assert Path("o.npy").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("schedule", ["together", "reverse", "7"])
def test_clusters_and_orders(schedule: str) -> None:
    words = [*WORDS, "--grid", "2", "--cluster", "2", "--target", "sm_90", "--schedule", schedule]
    assert main(["add.ptx", *words, "--save", "out=o.npy"]) == 0
    assert np.load("o.npy").tolist() == [*range(1, 41), *[0] * 24]


def test_a_saved_array_is_an_argument_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add.ptx", *WORDS, "--save", "out=o.npy"]) == 0
    np.save("o.npy", np.load("o.npy").reshape(8, 8).T)  # in Fortran's order: its memory is as before
    words = [*WORDS[:4], "--arg", "in=@o.npy", "--arg", "n=0x20", "--json"]
    capsys.readouterr()
    assert main(["add.ptx", *words, "--save", "out=p.npy"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert np.load("p.npy").tolist() == [*range(2, 34), *[0] * 32]
    assert facts["arguments"][1]["shape"] == [8, 8]
    assert facts["hazards"] is facts["hazards_dropped"] is facts["counters"] is None
    assert facts["parameters"][2] == {"name": "n", "type": "u32", "size": 4}
    assert facts["arguments"][2] == {"name": "n", "value": 32.0}


def test_what_a_program_may_not_do_is_exit_code_one(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\ufeff" + ADD.replace("\n", "\r\n", 3).replace("64\r\n", "64\r")  # lines end in three ways
    Path("add.ptx").write_bytes(text.encode())
    assert main(["add.ptx", *WORDS[:-1], "n=65", "--grid", "3", "--save", "out=o.npy"]) == 1
    line = one_line(capsys)
    where = r"reaches 4 bytes past the end of the nearest buffer, `arg1: int32 \(64,\)`"  # under its name
    assert re.search(rf"this program may not do this: add.ptx:9: 4-byte access of global memory {where}", line)
    assert not Path("o.npy").exists()


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
    save(tmp_path / "b.npy", value.value)
    assert np.load(tmp_path / "b.npy").tolist() == [0, 0x3F80, 0x4000, 0x4040]


@pytest.mark.parametrize(("words", "says"), table_of("command", "bad_words"))
def test_bad_input_could_not_run(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add.ptx", *words.replace("WORDS", " ".join(WORDS)).split()]) == 2
    assert says in one_line(capsys)
    assert [path.name for path in Path().iterdir()] == ["add.ptx"]


@pytest.mark.parametrize(("words", "code", "says"), table_of("command", "runs"))
def test_what_a_run_tells(words: str, code: int, says: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("screen.ptx").write_text(text_of("screen"))
    Path("peers.ptx").write_text(text_of("command", "peers"))
    assert main(words.split()) == code
    told = "".join(capsys.readouterr())
    assert [each for each in says if not re.search(each, told)] == [], told


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        (np.zeros(4, bool), "an array of one of int8, .*, found x.npy: |b1"),
        (np.zeros(4, complex), "found x.npy: <c16"),
        (np.array(["a"]), "found x.npy: <U1"),
        (np.zeros(4, ">f4"), "found x.npy: >f4"),
        ({"q": np.zeros(4), "k": np.zeros(4)}, "expected one array, a .npy file, found x.npy: an archive of q, k"),
        (b"PK\x03\x04", "a file that numpy.save wrote, found x.npy: not such a file"),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '|O'", "found x.npy: an array of Python objects"),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'", "found x.npy: the file ends early"),
    ],
    ids=["bool", "complex", "text", "big-endian", "archive", "damaged archive", "objects", "cut"],
)
def test_files_that_hold_no_array_of_a_documented_dtype(
    contents: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("x.npy").open("wb") as file:
        if isinstance(contents, bytes):
            file.write(contents)
        elif isinstance(contents, dict):
            np.savez(file, **contents)
        else:
            np.save(file, contents)
    assert main(["add.ptx", *WORDS[:4], "--arg", "in=@x.npy", "--arg", "n=4"]) == 2
    assert re.search("in=@x.npy: bad --arg: .*" + says.replace("|", r"\|"), one_line(capsys))


def test_an_empty_file_is_named_in_errors_and_so_is_a_missing_package(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("empty.npy", np.zeros(0, np.uint32))
    assert main(["add.ptx", *WORDS[:4], "--arg", "in=@empty.npy", "--arg", "n=4"]) == 1
    assert "`in: uint32 (0,)`" in one_line(capsys)
    code = "import sys; sys.modules['ml_dtypes'] = None; from ptxemu.__main__ import main; sys.exit(main(['add.ptx']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n"), "pip install" in done.stderr) == (2, 1, True)


def test_an_infinity_may_be_asked_for_and_an_array_as_large_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command.LARGEST == 4 << 30
    monkeypatch.setattr(command, "LARGEST", 8)
    assert [np.size(value.value) for value in parse_all(["float32:2:ones", "int8:2x4:zeros"], 0)] == [2, 8]
    with pytest.raises(ptxemu.PtxemuError, match="found 12 bytes"):
        parse_all(["float32:3:ones"], 0)
    one, two = (float(np.asarray(value.value)) for value in parse_all(["float32:inf", "-INF"], 0))
    assert (one, two) == (float("inf"), -float("inf"))


def test_json_holds_infinities_and_whole_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--block", "32", "--arg", "float32:32:zeros", "--arg", "float32:2:nan", "--arg", "n=0", "--json"]
    assert main(["add.ptx", *words, "--counters", "--hazards", "--grid", "2", "--memory-budget", "1"]) == 0
    text = capsys.readouterr().out
    facts = json.loads(text, parse_constant=pytest.fail)
    assert (facts["slices"], facts["arguments"][1]["nan"]) == (2, 2)
    assert facts["arguments"][2]["value"] == 0
    assert facts["counters"]["short"]["global_st_sectors"] == 0
    assert set(facts["counters"]) == {"short", "nsight", "opcodes", "bank_conflicts"}
    assert (facts["hazards"], facts["hazards_dropped"]) == ([], 0)


REVERSED = text_of("programs", "reversed")
NO_FILE = ["no.ptx"]
RACE = REVERSED.replace("    bar.sync 0;\n", "", 1)
RACING = ["race.ptx", "--block", "64", "--arg", "int32:64:zeros", "--hazards"]


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_a_hazard_is_exit_code_one(json_too: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("race.ptx").write_text(RACE)
    assert main([*RACING, *json_too]) == 1
    out, err = capsys.readouterr()
    if json_too:
        (one,) = json.loads(out)["hazards"]
        assert (one["kind"], one["level"], one["space"]) == ("RAW", "error", "shared")
    assert json_too or "shared RAW" in out
    assert err == ""
    Path("race.ptx").write_text(REVERSED)
    assert main([*RACING, *json_too]) == 0


def test_hazards_beyond_the_limit_are_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "Hazards", lambda: ptxemu.Hazards(limit=3))
    Path("screen.ptx").write_text(text_of("screen"))
    words = "screen.ptx --kernel races --block 64 --arg int32:1:zeros --hazards --json"
    assert main(words.split()) == 1
    facts = json.loads(capsys.readouterr().out)
    assert (len(facts["hazards"]), facts["hazards_dropped"]) == (3, 9)


def test_several_entries_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("two.ptx").write_text(ADD + ADD.partition(".address_size 64\n")[2].replace("add(", "sub("))
    assert main(["two.ptx", *WORDS]) == 2
    assert "which kernel: expected one of add, sub, found no name" in one_line(capsys)
    assert main(["two.ptx", *WORDS, "--kernel", "su"]) == 0


@pytest.mark.parametrize(("name", "says"), table_of("command", "bad_files"))
def test_a_file_that_cannot_be_read(name: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("folder.ptx", "folder.cu"):
        Path(folder).mkdir()
    os.mkfifo("pipe.ptx")
    Path("binary.ptx").write_bytes(b"\x7fELF\xff\xfe\n")
    Path("latin.ptx").write_bytes(b"// \xfc\n")
    Path("empty.ptx").write_text("")
    Path("code.txt").write_text(CUDA)
    Path("head.ptx").write_text(".version 8.0\n.target sm_80\n.address_size 64\n")
    if name == "closed.ptx":
        Path(name).touch(0)
        if os.access(name, os.R_OK):
            pytest.skip("root reads everything")
    assert main([name, *WORDS]) == 2
    assert says in one_line(capsys)


@pytest.mark.parametrize("name", ["fifo.npy", "folder.npy"])
def test_an_argument_that_is_no_file(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("fifo.npy")
    Path("folder.npy").mkdir()
    assert main(["add.ptx", "--block", "32", "--arg", f"x=@{name}"]) == 2
    assert f"{name}: not a regular file" in one_line(capsys)
    assert main(["add.ptx", *WORDS, "--save", "out=folder.npy"]) == 2
    assert "bad --save: expected a .npy file, found 'folder.npy'" in one_line(capsys)
    assert main(["add.ptx", *WORDS, "--save", f"out={'o' * 300}.npy"]) == 2
    assert "File name too long" in one_line(capsys)


def test_what_could_not_be_saved_leaves_the_old_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("o.npy").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert main(["add.ptx", *WORDS, "--save", "out=o.npy"]) == 2
    assert "o.npy: cannot write the file: No space left on device" in one_line(capsys)
    assert Path("o.npy").read_text() == "old"
    assert sorted(path.name for path in Path().iterdir()) == ["add.ptx", "o.npy"]


def test_too_little_memory_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def huge(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ptxemu.Kernel, "launch", huge)
    assert main(["add.ptx", *WORDS]) == 2
    assert "smaller --memory-budget" in one_line(capsys)


def started(*words: str, **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "ptxemu", *words], **{"stderr": subprocess.PIPE, **streams})


def test_help_and_version_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ptxemu {ptxemu.__version__}\n"
    assert main(["--help"]) == 0
    assert re.search(r"example: ptxemu (.|\n)*130\s+interrupted", capsys.readouterr().out)


@pytest.mark.parametrize("words", [["--help"], ["add.ptx", *WORDS], ["add.ptx", *WORDS, "--json"], RACING, NO_FILE])
def test_a_reader_that_leaves_and_a_full_disk(words: list[str]) -> None:
    Path("race.ptx").write_text(RACE)
    err = subprocess.STDOUT if words is NO_FILE else subprocess.PIPE  # an error has no reader either
    with started(*words, stdout=subprocess.PIPE, stderr=err) as running:
        assert running.stdout is not None
        running.stdout.close()
        assert running.stderr is None or running.stderr.read() == b""
        assert running.wait(60) == (2 if words is NO_FILE else int(words is RACING))
    with Path("/dev/full").open("wb") as full, started(*words, stdout=full, stderr=err) as running:
        assert running.stderr is None or running.stderr.read() == b"error: No space left on device\n"
        assert running.wait(60) == 2


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_odd_names_and_a_home_that_cannot_be_written(locale: str, tmp_path: Path) -> None:
    kernel = tmp_path / "k é 'x'.ptx"
    kernel.write_text(ADD)
    environment = {"PATH": os.environ["PATH"], "HOME": "/proc", "LC_ALL": locale, "PYTHONCOERCECLOCALE": "0"}
    with started(str(kernel), *WORDS, stdout=subprocess.PIPE, cwd="/proc", env=environment) as running:
        out, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (0, b"")
    assert b"out   int32 64: 32 of 64 elements changed" in out


LEAVES = ".reg .pred %p; setp.lt.u32 %p, %r0, 32; @%p exit;"
ENDLESS = ADD.replace("st.global.u32 [%rd2], %r4;", "again: add.u32 %r4, %r4, 1; bra again;")


def test_options_of_a_launch_that_goes_on_and_on(capsys: pytest.CaptureFixture[str]) -> None:
    Path("endless.ptx").write_text(ENDLESS)
    assert main(["endless.ptx", *WORDS, "--max-instructions", "1000"]) == 1
    assert "at most 1000 instructions, found 1002; raise --max-instructions" in one_line(capsys)
    Path("exits.ptx").write_text(REVERSED.replace("bar.sync 0;", LEAVES + "bar.sync 0;", 1))
    for more, code in ((["--exited-arrive"], 0), ([], 1)):
        assert main(["exits.ptx", "--block", "64", "--arg", "int32:64:zeros", *more]) == code
    assert "unless --exited-arrive" in capsys.readouterr().err


def test_ctrl_c_is_one_word() -> None:
    Path("endless.ptx").write_text(ENDLESS)
    with started("endless.ptx", *WORDS, "--max-instructions", "9" * 15, stdout=subprocess.PIPE) as running:
        assert running.stderr is not None
        time.sleep(3)  # numpy is loaded, the loop runs
        running.send_signal(signal.SIGINT)
        assert running.stderr.read() == b"interrupted\n"
        assert running.wait(60) == 130


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_a_long_launch_shows_a_line_and_removes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["add.ptx", *WORDS]) == 0
    assert terminal.getvalue() == "", "a short launch"
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = Progress("add", 16)
    for now[0] in (1.0, 2.5, 2.6, 3.5):
        progress(1_000_000)
    progress.clear()
    written = terminal.getvalue()
    assert written.count("million warp instructions") == 2, "not before two seconds, nor twice in half a second"
    assert "\radd: 0 of 16 blocks, 4.0 million warp instructions, 4 s" in written
    assert written.endswith("\r\033[K")
    for name in ("QUIET", "EVERY"):
        monkeypatch.setattr(command, name, -1.0)
    small = ["--cluster", "2", "--target", "sm_90", "--memory-budget", "1"]
    assert main(["add.ptx", *WORDS, "--grid", "2,2", *small]) == 0
    assert "\radd: 2 of 4 blocks, 0.0 million warp instructions, 0 s" in terminal.getvalue()


def test_a_log_says_rarely_how_far_a_long_launch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now, log = [0.0], io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Progress, "per_block", {"add": 2_000_000.0})
    progress = Progress("add", 4)
    for now[0] in (9.0, 11.0, 40.0, 42.0):
        progress(1_000_000)
    progress.clear()
    first, second = log.getvalue().splitlines()
    assert first == "ptxemu: add: 0 of 4 blocks, 2.0 million warp instructions, 11 s, about 33 s left"
    assert second.endswith("4.0 million warp instructions, 42 s, about 42 s left")


def test_amounts_of_memory() -> None:
    amounts = {"2GB": 2 * 10**9, "2G": 2 << 30, "3 mib": 3 << 20, "1.5KiB": 1536, "4TB": 4 * 10**12, "7b": 7, "9": 9}
    assert {text: ptxemu.parse_bytes(text) for text in amounts} == amounts
    assert ptxemu.parse_bytes(parser().get_default("memory_budget")) == ptxemu.MEMORY_BUDGET


# --- ptxemu FILE.cu ---------------------------------------------------------------------------------------------------

CUDA = """
extern "C" __global__ void reversed(float *out, const float *in) {
    __shared__ float tile[64];
    tile[threadIdx.x] = in[threadIdx.x];
    BARRIER;
    out[threadIdx.x] = tile[63 - threadIdx.x];
}
"""
CUDA_WORDS = ["--block", "64", "--arg", "out=float32:64:zeros", "--arg", "in=float32:64:arange"]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("add.ptx").unlink()
    for name in ("CXX", "NVCC_CCBIN", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    Path("k.cu").write_text(CUDA.replace("BARRIER", "__syncthreads()"))


@pytest.mark.nvcc
@pytest.mark.usefixtures("cuda")
def test_a_cuda_file_runs_and_a_race_names_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["k.cu", *CUDA_WORDS, "--hazards", "--save", "out=o.npy"]) == 0
    out, err = capsys.readouterr()
    assert (np.load("o.npy") == np.arange(64)[::-1]).all()
    assert (out[:9], "of k.ptx, sm_80\n" in out, err) == ("reversed(", True, "")
    Path("k.cu").write_text(CUDA.replace("BARRIER", ""))
    assert main(["k.cu", *CUDA_WORDS, "--hazards", "--arch", "sm_90", "--ptx", "kept.ptx"]) == 1
    out, err = capsys.readouterr()
    assert re.search(r"of kept.ptx, sm_90\n(.|\n)*HAZARDS: 1\nkept.ptx:(.|\n)*k.cu:6", out)
    assert main(["kept.ptx", *CUDA_WORDS, "--hazards"]) == 1
    assert sorted(path.name for path in Path().iterdir()) == ["k.cu", "kept.ptx", "o.npy"]


@pytest.mark.nvcc
@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("text", "words", "told", "says"),
    [
        ("__global__ void k( {}\n", [], "k.cu(1): error", "k.cu: nvcc could not compile it for sm_80 (exit code"),
        ('#include "none.h"\n', [], "none.h: No such file", "k.cu: nvcc could not compile it"),
        ("", ["--arch", "sm_10"], "compute_10", "k.cu: nvcc could not compile it for sm_10"),
    ],
)
def test_what_nvcc_says_is_shown(
    text: str, words: list[str], told: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("k.cu").write_text(text)
    assert main(["k.cu", *CUDA_WORDS, *words, "--ptx", "k.ptx"]) == 2
    out, err = capsys.readouterr()
    assert (out, told in err, err.splitlines()[-1].startswith(f"error: {says}")) == ("", True, True)
    assert [path.name for path in Path().iterdir()] == ["k.cu"]


@pytest.mark.nvcc
@pytest.mark.usefixtures("cuda")
def test_a_warning_is_shown_and_options_come_from_nvccs_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("k.cu").write_text('extern "C" __global__ void k() { int unused = SIZE; }\n')
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DSIZE=5")
    monkeypatch.setenv("TMPDIR", "/no/such/folder")  # nvcc alone would fail
    assert main(["k.cu", "--block", "32"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("k() of k.ptx")
    assert "unused" in err
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "--dryrun")
    assert main(["k.cu", "--block", "32"]) == 2
    assert "error: k.cu: nvcc made nothing of it; see $NVCC_APPEND_FLAGS" in capsys.readouterr().err


@pytest.mark.usefixtures("cuda")
def test_bad_options_of_a_cuda_file(capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (["--arch", "ampere"], "bad --arch: expected for example sm_80, found 'ampere'"),
        (["--ptx", "k.txt"], "bad --ptx: expected a .ptx file, found 'k.txt'"),
        (["--ptx", "no/k.ptx"], "bad --ptx: expected a .ptx file in a folder that exists"),
    ):
        assert main(["k.cu", *CUDA_WORDS, *words]) == 2
        assert says in one_line(capsys)
    assert output_file("~/k.ptx", ".ptx", "--ptx") == Path.home() / "k.ptx"


def stand_in(path: Path, text: str) -> Path:
    """A program that does what a line of shell says."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.usefixtures("cuda")
def test_without_wheels_nvcc_of_path_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert main(["k.cu", *CUDA_WORDS]) == 2
    assert "there is no nvcc here to compile CUDA C++; run: pip install 'ptxemu[nvcc]'" in one_line(capsys)
    stand_in(tmp_path / "bin" / "nvcc", 'for word; do out=$word; done; echo "$@" >&2; echo "$PTX" > "$out"')
    monkeypatch.setenv("PTX", ".version 8.0\n.target sm_80\n.address_size 64")
    assert main(["k.cu", *CUDA_WORDS]) == 2
    assert "nvcc needs a C++ compiler: expected $CXX, or one of g++, c++, clang++ on PATH" in one_line(capsys)
    stand_in(tmp_path / "bin" / "clang++", "exit 0")
    assert nvcc.compile_file(Path("k.cu"), "sm_90").startswith(".version 8.0\n")
    told = capsys.readouterr().err
    assert f"-ccbin {tmp_path / 'bin' / 'clang++'} -ptx -std=c++17 -lineinfo -arch=compute_90 " in told
    with monkeypatch.context() as patched:
        patched.setenv("CXX", "no/g++")
        assert main(["k.cu", *CUDA_WORDS]) == 2
        assert "bad $CXX: expected the name or path of a C++ compiler, without options" in one_line(capsys)
        patched.setenv("CXX", "clang++")
        patched.setattr(sys, "stderr", terminal := Terminal())
        nvcc.compile_file(Path("k.cu"), "sm_90")
        assert re.match(r"compiling k.cu with nvcc\r\x1b\[K-ccbin .*/clang\+\+ ", terminal.getvalue())
    assert main(["k.cu", *CUDA_WORDS, "--arch", "sm_90a"]) == 2
    assert "k.cu: no __global__ function was compiled; define one, or instantiate" in capsys.readouterr().err
    for name in ("a$(b).cu", "`b`.cu", 'a"b".cu'):
        Path(name).write_text("")
        assert main([name, *CUDA_WORDS]) == 2
        assert "would run a part of this path as a shell command: expected a path without $" in one_line(capsys)
    monkeypatch.setenv("NVCC_CCBIN", "/usr/bin/g++")
    nvcc.compile_file(Path("k.cu"), "sm_80")
    assert "-ccbin" not in capsys.readouterr().err
    stand_in(tmp_path / "bin" / "nvcc", "kill -9 $$")
    assert main(["k.cu", *CUDA_WORDS]) == 2
    assert "(exit code -9)" in one_line(capsys)
