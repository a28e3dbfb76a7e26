"""What people read of compiled kernels: listings, counts, linked lines, the tour."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
import re
import subprocess
from typing import Any

import pytest

from analysis.linked_page import PAGE
from flashladder import __main__ as program
from flashladder.build.compile import cubin_for, tools_of
from flashladder.build.store import cubin_entry, fill_all, ptx_entry
from flashladder.errors import FlashladderError
from flashladder.ladder.iteration import load_iteration
from flashladder.lock.command import locked_kernel
from flashladder.machine_code.cubin import TEXT, read_cubin, read_ptx_lines
from flashladder.machine_code.flow import main_loop
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.machine_code.sass import disassemble, disassemble_many, parse
from flashladder.toolchain import find_toolchain
from flashladder.view.binary import Wanted, clean_sass
from flashladder.view.code import show_linked
from flashladder.view.linked import Linked, linked, of_line, of_opcode
from flashladder.view.linked_page import page, read_document
from flashladder.view.tour import STATIONS, Station
from tests.typed import command

pytestmark = pytest.mark.nvcc


def test_diff_7_8_bears_the_title_out(capsys: pytest.CaptureFixture[str]) -> None:
    command("diff", "7", "8")
    shown = capsys.readouterr().out
    table = shown[shown.index("opcode counts (sm_80), (FP16, 128, 64, 64, 4)") :].partition("\n\n")[0].splitlines()
    assert "-> (FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles" in table[0]
    rows = {row.split()[0]: row for row in table[1:]}
    for opcode in ("IADD3", "LOP3", "SHF"):
        assert " -" in rows[opcode]
    assert "HMMA" not in rows  # the same tile does the same products


DATA = Path(__file__).parent.parent / "data"


def test_nvdisasm_prints_what_the_reader_was_tested_with() -> None:
    kept = parse((DATA / "tiny.sm_80.sass").read_text(encoding="utf-8"))
    assert [str(i) for i in disassemble(DATA / "tiny.sm_80.cubin").instructions] == [str(i) for i in kept.instructions]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_read_together_are_those_read_one_by_one(arch: str) -> None:
    cubin = DATA / f"tiny.{arch}.cubin"
    text, one = read_cubin(cubin).text, disassemble(cubin, lines=False)
    loop = [i.address for i in main_loop(one)]
    assert len(loop) > 10
    for many in disassemble_many([text, text, text], arch, find_toolchain().nvdisasm):
        assert clean_sass(many) == clean_sass(one)
        assert [i.address for i in many.instructions] == [i.address for i in one.instructions]
        assert [i.address for i in main_loop(many)] == loop


def test_code_that_nvdisasm_reads_otherwise_is_refused(tmp_path: Path) -> None:
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\necho '        /*0000*/                   NOP ;'\n", encoding="utf-8")
    tool.chmod(0o755)
    assert len(disassemble_many([bytes(16)], "sm_80", tool)) == 1
    with pytest.raises(FlashladderError, match="nvdisasm read other code: expected 2 instructions, found 1"):
        disassemble_many([bytes(32)], "sm_80", tool)
    assert disassemble_many([], "sm_80", tool) == []


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_toolchain_makes_the_kept_machine_code(arch: str, tmp_path: Path) -> None:
    tools = tools_of()
    unit = ptx_entry((DATA / "tiny.cu").read_text(encoding="utf-8"), DATA, [], tools, tmp_path)
    entry = cubin_entry(unit, arch, tools, tmp_path)
    fill_all([entry])
    assert read_cubin(entry.cubin).text_sha256 == read_cubin(DATA / f"tiny.{arch}.cubin").text_sha256
    assert ptx_sha256(read_ptx(entry.ptx)) == ptx_sha256(read_ptx(DATA / "tiny.ptx"))


@pytest.mark.parametrize(
    ("words", "arch", "key"),
    [
        (["8"], "sm_80", "a100"),
        (["8", "--arch", "sm_90"], "sm_90", "a100"),
        (["8", "--config", "h100"], "sm_80", "h200"),
    ],
)
def test_counts_say_of_which_kernel_they_are(
    words: list[str], arch: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("sass", *words, "--counts") == command("sass", *words) == 0
    title, _, header, total, *lines = capsys.readouterr().out.splitlines()
    assert title == f"iteration 8, {arch}: {load_iteration(8).configs[key].brief()}, fp16"
    assert title in lines  # of the listing
    assert (header.split(), total.split()[0]) == (["opcode", "whole", "kernel", "main", "loop"], "total")


def test_both_kernels_of_a_step_with_a_mask_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    step = load_iteration(31)
    for mask, words, told in (("none", [], "no mask"), ("causal", ["--causal"], "causal")):
        config = step.configs["h200"].with_mask(mask)
        locked = locked_kernel(31, config, "sm_90a")
        assert locked is not None
        assert command("sass", "31", "--counts", *words) == 0
        title, _, _, total, *_ = capsys.readouterr().out.splitlines()
        assert title == f"iteration 31, sm_90a: {config.brief()}, fp16, {told}"
        assert int(total.split()[1]) == locked.counts["total"]
        assert command("ptx", "31", *words) == 0
        assert ptx_sha256(capsys.readouterr().out) == locked.ptx_sha256
        assert command("cfg", "31", "--json", *words) == 0
        assert config.short_form() in json.loads(capsys.readouterr().out)["title"]


@pytest.mark.parametrize("station", STATIONS, ids=lambda one: one.title)
def test_a_station_shows_what_it_is_about(station: Station, capsys: pytest.CaptureFixture[str]) -> None:
    first, *words = station.typed.split()
    if first == "invoke":
        with pytest.raises(SystemExit) as left:
            program.main(words)
        assert left.value.code in (None, 0)
    else:
        assert importlib.import_module(words[1]).main(words[2:]) in (None, 0)
    assert station.past in capsys.readouterr().out


STEP = load_iteration(8)
CONFIG = STEP.configs["a100"]
NVDISASM = re.compile(rf'//## File "\{TEXT}", line (\d+)|/\*([0-9a-f]{{4,}})\*/ +\S.*;')


@pytest.fixture(scope="module")
def kernel() -> Linked:
    return linked(STEP, CONFIG, "sm_80")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_every_line_is_the_one_that_nvdisasm_reads(arch: str) -> None:
    cubin = cubin_for(STEP, CONFIG, arch).cubin
    lines = read_ptx_lines(cubin)
    words = [str(find_toolchain().nvdisasm), "-c", "-gp", "-ndf", str(cubin)]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    line, theirs = "", {}
    for of_next, address in NVDISASM.findall(text):
        line = of_next or line
        if address:
            theirs[int(address, 16)] = int(line)
    assert len(theirs) * 16 == lines.end
    assert theirs == {address: lines.at(address) for address in theirs}


def test_nearly_all_machine_code_has_its_ptx_and_one_to_one_classes_match(kernel: Linked) -> None:
    assert kernel.made_from.count(None) <= 4
    for ptx, name in (("mma", "HMMA"), ("ldmatrix", "LDSM"), ("ex2", "MUFU.EX2"), ("cp.async.cg", "LDGSTS")):
        forward, backward = of_opcode(kernel, ptx), of_opcode(kernel, name)
        assert backward.sass <= forward.sass, name
        assert backward.ptx == forward.ptx, name
        assert len(backward.sass) == len(backward.ptx) > 0, name


def test_a_chain_leads_from_the_instruction_to_the_kernel(kernel: Linked) -> None:
    found = of_line(kernel, "mma.cuh")
    assert found.ptx > of_opcode(kernel, "mma").ptx
    for row in found.ptx:
        chain = kernel.ptx[row].chain
        assert chain[0].file == "kernels/ptx/mma.cuh"
        assert chain[-1].file == "kernels/entry.cuh"
        assert all(kernel.source(place) for place in chain)
    schedule = next(file for file in kernel.files if file.startswith("kernels/ampere/schedule/"))
    assert of_line(kernel, schedule).sass > found.sass


def test_the_commands_print_both_ways(capsys: pytest.CaptureFixture[str], kernel: Linked) -> None:
    n = len(of_opcode(kernel, "LDSM").sass)
    assert command("sass", "8", "--opcode", "LDSM", "--config", "a100") == 0
    shown = capsys.readouterr().out
    assert shown.count("  LDSM.16.") == shown.count("  ldmatrix.sync.") == n
    assert shown.splitlines()[-1] == f"PTX lines {n}, machine instructions {n}: {n} LDSM; {n} in the main loop"
    assert show_linked("8", Wanted(config="a100", arch="sm_80", opcode="LDSM", json=True), ptx_first=True)
    assert len(json.loads(capsys.readouterr().out)["ptx"]) == n


def test_pages_are_written_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str], kernel: Linked) -> None:
    one, two = tmp_path / "8.html", tmp_path / "7-8.html"
    assert command("sass", "8", "--page", str(one)) == 0
    assert command("diff", "7", "8", "--page", str(two)) == 0
    assert capsys.readouterr().out.split() == [str(one), str(two)]
    assert 100_000 < one.stat().st_size < two.stat().st_size < 2_000_000
    text = two.read_text(encoding="utf-8")
    assert text.count('class="kernel"') == 2
    assert kernel.digests["machine code"] in one.read_text(encoding="utf-8")


def resolved(page: bytes) -> dict[str, Any]:
    """Iteration 8 of a page with its files in place of their numbers."""
    data = read_document(page)
    (one,) = (kernel for kernel in data["kernels"] if kernel["key"] == "8")
    texts, files = one["data"], data["files"]
    texts["chains"] = [[[files[file][0], line] for file, line in chain] for chain in texts["chains"]]
    texts["files"] = [files[number] for number in texts["files"]]
    return dict(one)


def test_the_committed_page_shows_this_very_kernel(kernel: Linked) -> None:
    assert resolved(PAGE.read_bytes()) == resolved(page([kernel]))
