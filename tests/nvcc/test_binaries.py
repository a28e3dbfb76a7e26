"""Kernels are extracted from what the toolchain packs: object, library, wheel, fatbins in every form, cubins."""

from __future__ import annotations

from itertools import product
import json
from pathlib import Path
import subprocess
import zipfile

import pytest

from flashladder.binaries import entries
from flashladder.build.compile import cubin_for
from flashladder.errors import FlashladderError
from flashladder.ladder.iteration import load_iteration
from flashladder.machine_code.cubin import read_cubin
from flashladder.machine_code.ptx import normalise
from flashladder.machine_code.sass import decoded, disassemble
from flashladder.tool_runs import clean_environment
from flashladder.toolchain import find_toolchain, host_compiler, load_pins
from flashladder.view.binary import Wanted, show_ptx_of_file, show_sass
from tests.data_files import text_of
from tests.null.binaries.fatbin_fixture import DATA
from tests.null.binaries.test_binaries import FORWARD
from tests.typed import command

pytestmark = pytest.mark.nvcc

# The names of FlashAttention-2's forward kernel, around other code.
LIBRARY = text_of("nvcc/binaries", "library")
TILE_128 = "flash_fwd_kernel (FP16, 128, 128, 64, 4): causal+even_MN+even_K"
TILE_64 = "flash_fwd_kernel (FP16, 128, 64, 64, 4): even_MN+even_K"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``lib.o``, ``lib.so`` and ``lib.whl`` of LIBRARY for sm_80 and sm_90, and PTX for compute_80."""
    folder, tools = tmp_path_factory.mktemp("binaries"), find_toolchain()
    (folder / "lib.cu").write_text(LIBRARY)
    codes = ["-gencode=arch=compute_80,code=[sm_80,compute_80]", "-gencode=arch=compute_90,code=sm_90"]
    compiler = ["-ccbin", str(host_compiler()), "-Xcompiler", "-fPIC", "-lineinfo", f"-I{tools.root}/include"]
    environment = clean_environment(folder)
    subprocess.run([tools.nvcc, *codes, *compiler, "-c", "lib.cu"], cwd=folder, env=environment, check=True)
    link = [str(host_compiler()), "-shared", "-o", "lib.so", "lib.o", f"-L{tools.root}/lib", "-lcudart_static"]
    subprocess.run(link, cwd=folder, check=True)
    with zipfile.ZipFile(folder / "lib.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "lib.so", "pkg/lib.so")
    return folder


@pytest.mark.parametrize("name", ["lib.o", "lib.so", "lib.whl"])
def test_a_library_lists_its_kernels_by_configuration(
    made: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_sass(made / name, Wanted(list=True, json=True))
    rows = json.loads(capsys.readouterr().out)
    kinds = {("sm_80", "SASS"), ("sm_90", "SASS"), ("compute_80", "PTX")}
    found = {(row["config"], (row["arch"], row["kind"])) for row in rows}
    assert found == {*product((TILE_128, TILE_64), kinds)}
    assert {row["shared_bytes"] for row in rows if row["config"] == TILE_128} == {512, None}
    assert FORWARD[0] in {row["symbol"] for row in rows}


@pytest.mark.parametrize("wanted", [FORWARD[0], FORWARD[1], TILE_128, "(FP16,128,128,64,4)", "Li128ELi128ELi64"])
def test_one_kernel_is_chosen_by_a_part_of_its_name(
    made: Path, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_sass(made / "lib.so", Wanted(kernel=wanted, control=True))
    out = capsys.readouterr().out
    assert out.startswith(f"// {TILE_128}, sm_80, ")
    assert "BAR.SYNC" in out
    assert "`(.L_x_" in out
    show_ptx_of_file(made / "lib.so", Wanted(kernel=wanted, clean=True))
    text = capsys.readouterr().out
    assert text.count(".entry") == 1
    assert "bar.sync" in text


def test_the_cubin_that_is_extracted_is_the_one_that_cuobjdump_extracts(made: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.cubin"
    show_sass(made / "lib.so", Wanted(kernel=TILE_64, arch="sm_90", out=str(own)))
    words = [str(find_toolchain().cuobjdump), "-xelf", "sm_90", str(made / "lib.so")]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    (theirs,) = {*tmp_path.iterdir()} - {own}
    assert own.read_bytes() == theirs.read_bytes()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``sm_XX.cubin`` for every architecture."""
    folder, tools = tmp_path_factory.mktemp("tiny"), find_toolchain()
    for arch in load_pins().arches:
        subprocess.run([tools.ptxas, f"-arch={arch}", DATA / "tiny.ptx", "-o", folder / f"{arch}.cubin"], check=True)
    return folder


@pytest.mark.parametrize("mode", ["none", "speed", "balance", "size"])
def test_fatbins_of_every_form_are_unpacked(tiny: Path, tmp_path: Path, mode: str) -> None:
    cubin, path = tiny / "sm_80.cubin", tmp_path / "x.fatbin"
    options = [f"--create={path}", "--compress-all", f"--compress-mode={mode}"]
    inputs = [f"--image3=kind=elf,sm=80,file={cubin}", f"--image3=kind=ptx,sm=80,file={DATA / 'tiny.ptx'}"]
    subprocess.run([find_toolchain().fatbinary, "--64", *options, *inputs], check=True)
    code, text = entries(path.read_bytes())
    assert code.form == text.form == {"none": "plain", "speed": "lz4"}.get(mode, "zstd")
    assert code.read() == cubin.read_bytes()
    ptx = text.read().rstrip(b"\0").decode()  # without its comments
    assert normalise(ptx) == normalise((DATA / "tiny.ptx").read_text())


@pytest.mark.parametrize("arch", load_pins().arches)
def test_control_codes_of_every_architecture(tiny: Path, arch: str) -> None:
    """`decoded` compares the reuse flags with those that nvdisasm prints; fixed latencies set no barrier."""
    path = tiny / f"{arch}.cubin"
    code = disassemble(path).instructions
    for one, control in zip(code, decoded(read_cubin(path).text, code, arch), strict=True):
        if one.opcode_class in {"LDG", "LDS", "S2R"}:
            assert control.write is not None, str(one)
        if one.opcode_class in {"FFMA", "FADD", "IADD3", "LOP3"}:
            assert (control.write, control.read) == (None, None), str(one)


def test_control_flow_of_a_librarys_kernel(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("lib.so", "lib.whl"):
        assert command("cfg", str(made / word), "--kernel", TILE_64, "--arch", "sm_90") == 0
        assert f"{TILE_64}, sm_90 " in " ".join(capsys.readouterr().out.split())
    with pytest.raises(FlashladderError, match="kernels of the file are meant: expected one"):
        command("cfg", str(made / "lib.so"))


def test_a_form_of_one_kernel_is_not_ignored_where_there_are_several(made: Path) -> None:
    with pytest.raises(FlashladderError, match="--clean does not go with --json"):
        show_ptx_of_file(made / "lib.so", Wanted(kernel=TILE_64, clean=True, json=True))
    for wanted in (Wanted(counts=True), Wanted(control=True), Wanted(clean=True), Wanted(clean=True, list=True)):
        with pytest.raises(FlashladderError, match=r"--\w+ does not go with a list of kernels; --kernel chooses"):
            show_sass(made / "lib.so", wanted)


def test_a_steps_cubin_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("sass", "8", "--out", str(tmp_path / "k.cubin")) == 0
    step = load_iteration(8)
    cubin = cubin_for(step, step.configs["a100"], step.shown_arch).cubin
    assert (tmp_path / "k.cubin").read_bytes() == cubin.read_bytes()
    assert capsys.readouterr().out.endswith("k.cubin\n")


def test_ptx_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    text = (DATA / "tiny.ptx").read_text(encoding="utf-8")
    (tmp_path / "cut.ptx").write_text(text[: len(text) // 2], encoding="utf-8")
    with pytest.raises(FlashladderError, match="the PTX is damaged: expected a"):
        show_ptx_of_file(tmp_path / "cut.ptx", Wanted(counts=True))


def test_cleaned_listings_of_equal_code_are_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same kernel from a folder of another name, with other lines before it."""
    tools, texts, environment = find_toolchain(), [], clean_environment(tmp_path)
    for folder, front in (("a", ""), ("b", "\n" * 7)):
        (tmp_path / folder).mkdir()
        source = tmp_path / folder / f"{folder}.cu"
        source.write_text(front + (DATA / "tiny.cu").read_text())
        compiler = [str(tools.nvcc), "-ccbin", str(host_compiler()), f"-I{tools.root}/include"]
        words = [*compiler, "-arch=sm_80", "-cubin", "-lineinfo", "-O1", source.name]
        subprocess.run(words, cwd=source.parent, env=environment, check=True)
        show_sass(source.with_suffix(".cubin"), Wanted(clean=True))
        show_ptx_of_file(source.with_suffix(".cubin"), Wanted(clean=True))
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert "HMMA" in texts[0]
