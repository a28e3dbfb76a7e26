"""PTX as data: what is not the program leaves the digest alone, what is the program changes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.errors import FlashladderError
from flashladder.machine_code.ptx import normalise, opcodes, ptx_sha256, read_ptx

TINY = (Path(__file__).parents[2] / "data" / "tiny.ptx").read_text(encoding="utf-8")
DEBUG_SECTION = """
\t.section\t.debug_str
\t{
$L__info_string0:
.b8 95,90,49,102,102,0

\t}
"""


@pytest.mark.parametrize(
    "text",
    [
        "// another comment\n" + TINY,
        TINY.replace("ret;", "ret; /* two\nlines */"),
        TINY.replace("\t.loc\t1 12 3\n", ""),
        TINY.replace("\t.loc\t1 12 3\n", "\t.loc\t1 99 3, function_name $L__info_string0, inlined_at 1 10 3\n"),
        TINY.replace("tests/data/tiny.cu", "elsewhere/tiny.cu"),
        TINY + DEBUG_SECTION,
        TINY.replace("\tbar.sync", "$L__tmp7:\n    bar.sync"),
        TINY.replace(".target sm_80", ".target sm_80, debug"),
        TINY.replace("\n\n", "\n"),
        TINY.replace("\n", "\r\n"),
    ],
    ids=["comment", "long", "no-loc", "inlined", "path", "section", "label", "target", "blank-lines", "crlf"],
)
def test_what_is_not_the_program_leaves_the_digest_alone(text: str) -> None:
    assert text != TINY
    assert ptx_sha256(text) == ptx_sha256(TINY)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("add.s32 \t%r39, %r39, 128", "add.s32 \t%r39, %r39, 64"),
        ("fma.rn.ftz.f32", "fma.rn.f32"),
        ("bar.sync \t0;", ""),
        (".target sm_80", ".target sm_90"),
        ('.pragma "nounroll";', ""),
        ("[512]", "[1024]"),
        ("bra \t$L__BB0_3", "bra \t$L__BB0_8"),
    ],
)
def test_a_change_of_the_program_changes_the_digest(old: str, new: str) -> None:
    assert old in TINY
    assert ptx_sha256(TINY.replace(old, new)) != ptx_sha256(TINY)


def test_names_that_nvcc_makes_from_the_path_are_neutral() -> None:
    name = "mov.u64 %rd8, _ZN34_INTERNAL_7bae6248_4_b_cu_7743d80c36_GLOBAL__N__7bae6248_4_b_cu_7743d80c2t2E;"
    other = name.replace("7bae6248", "00c0ffee").replace("7743d80c", "12345678")
    assert normalise(name) == normalise(other) != normalise(name.replace("2t2E", "2t3E"))


def test_operands_calls_and_labels_are_not_opcodes() -> None:
    text = """.version 9.0
    {
    call.uni (retval0),
    vprintf,
    (param0, param1);
    $L_a: @!%p1 bra.uni $L_a;
    { .reg .b16 lo; mov.b32 {lo, %h}, %r1; }
    st.shared.v4.b32 [%r1], {%r2, %r3, %r4, %r5};
    }"""
    assert opcodes(text) == ["call.uni", "bra.uni", "mov.b32", "st.shared.v4.b32"]


def test_refuses_what_is_not_ptx(tmp_path: Path) -> None:
    with pytest.raises(FlashladderError, match="no such PTX file"):
        read_ptx(tmp_path / "kernel.ptx")
    (tmp_path / "kernel.cu").write_text("int main() {}\n", encoding="utf-8")
    with pytest.raises(FlashladderError, match=r"expected \.version"):
        read_ptx(tmp_path / "kernel.cu")
    (tmp_path / "kernel.cubin").write_bytes(b"\x7fELF\xff")
    with pytest.raises(FlashladderError, match=r"not UTF-8 \(byte 0xff at offset 4\)"):
        read_ptx(tmp_path / "kernel.cubin")
