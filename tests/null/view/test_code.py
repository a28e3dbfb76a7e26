"""Cleaned listings, occupancy beside the ptxas table, and the folded page of a kernel, which loses nothing."""

from __future__ import annotations

from dataclasses import asdict
import json
from pathlib import Path
import re

import pytest

from flashladder.columns import csv_records
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import Iteration, included_files, load_all, load_iteration, sources, translation_unit
from flashladder.machine_code.ptx import normalise, opcode_counts
from flashladder.machine_code.ptxas import COLUMNS, PtxasRow, PtxasUsage
from flashladder.machine_code.sass import Instruction, Sass, parse
from flashladder.names import EXAMPLE
from flashladder.paths import KERNELS
from flashladder.view import code
from flashladder.view.binary import clean_ptx, clean_sass, listing, only_entry
from flashladder.view.code import FACTS, occupancy_of, occupancy_table, ptxas_csv
from flashladder.view.command import compact, folded, kernel_text
from tests.data_files import table_of, text_of
from tests.typed import printed

DATA = Path(__file__).parents[2] / "data"
LISTING = (DATA / "tiny.sm_80.sass").read_text(encoding="utf-8")
PTX = (DATA / "tiny.ptx").read_text(encoding="utf-8")


def test_machine_code_without_addresses_paths_and_padding() -> None:
    text = clean_sass(parse(LISTING))
    assert not re.search(r"/\*|//|tests/|\.L_|^ *[0-9a-f]{4} ", text, re.MULTILINE)
    assert text.count("NOP") == 1  # the one that the assembler put between instructions, not those at the end
    assert text.splitlines()[0] == "  IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28]"
    labels = re.findall(r"^(L\d+):$", text, re.MULTILINE)
    assert labels == [f"L{n}" for n in range(1, len(labels) + 1)]
    assert set(re.findall(r"`\((\w+)\)", text)) == set(labels)
    code = [line for line in text.splitlines() if not line.endswith(":")]
    assert len(code) == len([one for one in parse(LISTING).instructions if one.opcode != "NOP"]) + 1
    other = re.sub(r"\.L_x_(\d+)", lambda found: f".L_x_{int(found[1]) + 40}", LISTING).replace("tests/data", "/a/b")
    assert clean_sass(parse(other)) == text
    renamed = LISTING.replace("flash_fwd_kernel", "_Z3foov")
    assert clean_sass(parse(renamed, "_Z3foov"), "_Z3foov", "k") == clean_sass(parse(LISTING), "flash_fwd_kernel", "k")


def test_a_listing_shows_source_lines_of_any_encoding_and_none_of_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "k.cu").write_bytes(b"// coding: none\n  x = '\xe4';\n")
    places = (str(tmp_path / "k.cu"), 2), (str(tmp_path / "k.cu"), 3), ("k.cu", 2)
    code = tuple(Instruction(16 * n, "", "NOP", "", *place) for n, place in enumerate(places))
    heads = [line.partition("k.cu:")[2] for line in listing(Sass(code, {})).splitlines() if "//" in line]
    assert heads == ["2  x = '\ufffd';", "3", "2"]


def test_ptx_with_other_labels_and_another_name_too() -> None:
    text = clean_ptx(PTX, "flash_fwd_kernel", "k")
    other = PTX.replace("$L__BB0_", "$L__BB7_1").replace("16flash_fwd_kernel", "3foov")
    assert clean_ptx(other.replace("flash_fwd_kernel", "_Z3foov"), "_Z3foov", "k") == text
    assert "k_param_0" in text
    assert "k::4seen" in text
    assert "flash_fwd_kernel" not in text
    assert opcode_counts(text) == opcode_counts(PTX)
    assert re.findall(r"^(\$L\d+):$", text, re.MULTILINE)
    assert clean_ptx(text) == text


def test_one_entry_of_several_with_the_functions_it_may_call() -> None:
    text = (
        ".version 9.0\n.func f() { ret; }\n.visible .entry a(.param .u64 p)\n{ // }\n { ret; } }\n"
        ".global .b8 s[2] = {1, 2};\n.entry b() { call f; }\n.entry c() { /* } */ exit; }\n"
    )  # fmt: skip
    found = only_entry(text, "b") or ""
    kept = ".version 9.0 .func f() { ret; } .global .b8 s[2] = {1, 2}; .entry b() { call f; }"
    assert " ".join(found.split()) == kept
    assert only_entry(PTX, "flash_fwd_kernel") == PTX
    assert normalise(only_entry(text, "a") or "").count("}") == 4
    for cut in (".entry k(){ mov.u32 %r1, %r2;", ".entry k(){ ret; // }", '.entry k(){ .file 1 "}"'):
        assert only_entry(cut, "k") is None


def row(arch: str, registers: int = 255, kernel: str = "16", config: str = EXAMPLE, barriers: int = 1) -> PtxasRow:
    usage = PtxasUsage(arch, registers, 0, 0, 0, barriers, 0, None, 1.5)
    smem = KernelConfig.parse(config).smem_bytes
    return PtxasRow(**asdict(usage), kernel=kernel, config=config, smem_dynamic=smem)


def test_a_gpu_runs_the_code_for_its_own_architecture_else_the_latest_that_it_can() -> None:
    rows = [row("sm_80"), row("sm_86"), row("sm_90")]
    assert [set(occupancy_of(one, rows)) for one in rows] == [{"a100"}, {"rtx3090", "rtx4090"}, {"h100", "h200"}]
    assert set(occupancy_of(rows[0], rows[:1])) == {"a100", "rtx3090", "rtx4090"}
    many = row("sm_90", 32, barriers=16)
    assert occupancy_of(many, [many])["h200"].limited_by == ("shared memory", "barriers")
    assert set(occupancy_of(rows[1], [row("sm_89", kernel="15"), rows[1]])) == {"rtx3090", "rtx4090"}


def test_the_csv_has_a_column_for_every_fact_of_every_gpu() -> None:
    rows = [row("sm_80"), row("sm_90", 128)]
    first, second = csv_records(ptxas_csv(rows).splitlines())
    assert list(first)[: len(COLUMNS)] == list(COLUMNS)
    assert len(first) == len(COLUMNS) + 4 * len(load_gpus())
    assert [first[f"a100_{fact}"] for fact in FACTS] == ["2", "8", "0.125", "registers"]
    assert first["h200_ctas"] == second["a100_ctas"] == ""
    assert (second["h200_ctas"], second["h200_limited_by"]) == ("4", "registers+shared memory")
    assert (second["registers"], second["config"], second["cmem"]) == ("128", EXAMPLE, "")


@pytest.mark.parametrize("limit", [80, 200])
def test_the_table_fits_and_names_what_it_lacks(limit: int) -> None:
    text = occupancy_table([row("sm_80"), row("sm_86"), row("sm_80", 128, "15")], limit)
    lines = text.splitlines()
    assert max(map(len, lines)) <= limit
    for words in ("2x4 12.5% R", "RTX 3090", "No code for h100, h200: --arch."):
        assert words in text
    assert len([line for line in lines if line.startswith(("15 ", "16 "))]) == 2


def test_the_tables_tell_the_kernel_with_a_mask_from_the_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    step = load_iteration(31)
    configs = [step.configs["h200"].with_mask(mask).short_form() for mask in step.family.masks(step.parts)]
    rows = [row("sm_90a", 168, "31", config) for config in configs]
    monkeypatch.setattr(code, "compile_many", lambda jobs: [])
    monkeypatch.setattr(code, "table_rows", lambda jobs, found: (rows, []))
    lines = printed("ptxas", "31").splitlines()
    assert [line[:14].split() for line in lines if "128,128,2" in line] == [["31", "fp16"], ["31", "mask", "fp16"]] * 2
    assert lines[-1].endswith("mask: the kernel with the causal mask.")
    assert [one["config"] for one in json.loads(printed("ptxas", "31", "--json"))] == configs
    del rows[1]
    assert "mask" not in printed("ptxas", "31")


EACH = pytest.mark.parametrize("step", load_all(), ids=lambda step: step.slug)


def bare(text: str) -> str:
    """`text` without comments, white space and what a page leaves out of declarations."""
    text = re.sub(r"//.*|__device__|__forceinline__|(?<=\.)template |(?<=::)template ", "", text)
    return re.sub(r"\s", "", text)


@EACH
def test_no_statement_of_a_part_is_lost(step: Iteration) -> None:
    config = step.configs["a100"]
    page = bare(kernel_text(step, config))
    for name in step.family.part_files(step, config):
        text = re.sub(r"static_assert\(.*?\);", "", (KERNELS / name).read_text(encoding="utf-8"), flags=re.DOTALL)
        statements = [
            line
            for line in re.findall(r"^ {4,}[^\s/#].*(?:\(.*[;}]|[-+*/]?= .*;)(?=  //|$)", text, re.MULTILINE)
            if not re.search(r"\b(?:Layout|Gmem|KOrder|value_t|State|Kernel)\b", line)  # written out
            and ("(" in line or "constexpr" not in line)  # constants are written out, or joined
        ]
        assert statements or re.search(r"^struct \w+ : [\w<>]+ \{", text, re.MULTILINE)  # all of it is inherited
        for statement in statements:
            assert bare(statement) in page, f"{name}: {statement}"


@EACH
def test_every_instruction_that_a_kernel_uses_is_named(step: Iteration) -> None:
    config = step.configs["h200"]
    texts = "".join(text for name, text in sources(step, config).items() if not name.startswith("ptx/"))
    used = set(re.findall(r"\bptx::(\w+)", texts))
    floor = kernel_text(step, config).partition("// == ptx/: ")[2].splitlines()[1:]
    named = [next(name for name in used if re.search(rf"\b{name}(<\w+>)?\(", line)) for line in floor]
    assert set(named) == used
    assert len(set(floor)) == len(floor)  # each once, and none that is not called


def test_all_is_the_whole_text() -> None:
    last = load_iteration(16)
    page = printed("show", "16", "--all")
    for path in included_files(translation_unit(last, last.configs["a100"])):
        text = re.sub(r"^#(?:include|pragma once).*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert bare(text) in bare(page), path.name
    assert json.loads(printed("show", "16", "--all", "--json"))["kernel"] in page


UNIT = text_of("null/view/code", "unit")


def test_an_alias_that_moves_its_arguments_stays() -> None:
    text = "void f() { Kernel::Layout::a<Kernel::B_r>(); typename Kernel::Same<1, 2> a; Kernel::Moved<1, 2> b; }\n"
    assert "void f() { Xor::a<64>(); Tiled<1, 2> a; Kernel::Moved<1, 2> b; }" in folded(UNIT, {"part.cuh": text}, set())


def test_an_alias_ends_with_its_braces() -> None:
    of_a = "struct A {\n    using Layout = typename Kernel::Layout;\n    Layout a;\n    int c;\n};\n"
    of_b = "template <typename Layout>\nstruct B {\n    Layout b;\n    int c;\n};\n"
    page = folded(UNIT, {"part.cuh": of_a + of_b}, set())
    assert "    Xor a;" in page
    assert "template <typename Layout> struct B {\n    Layout b;" in page


def test_what_all_kernels_share_is_folded_to_signatures() -> None:
    text = "// What it is.\n//\n// More.\nint f(int a) {\n    a += 1;  // one\n    a += 2;\n    return a;\n}\n"
    assert "// == part.cuh: What it is.\nint f(int a) { ... }" in folded(UNIT, {"part.cuh": text}, {"part.cuh"})


@pytest.mark.parametrize(("text", "line"), table_of("null/view/code", "folded"))
def test_what_fits_on_a_line_stands_on_one(text: str, line: str) -> None:
    assert compact(text) == line
