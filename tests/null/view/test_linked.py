"""What belongs together in a kernel: selections by line and by opcode, listings, the page, what is refused."""

from __future__ import annotations

from dataclasses import replace
import re

import pytest

from flashladder.machine_code.sass import parse
from flashladder.paths import ROOT
from flashladder.view.linked import Linked, Place, PtxRow, as_data, listing, of_line, of_opcode, ptx_rows, select
from flashladder.view.linked_page import document, page, read_document
from tests.data_files import table_of, text_of
from tests.typed import error_line

UNIT = (
    "// </script><script>window.hacked = 1</script>",
    "#include \"twice.cuh\"  // <b>bold</b> & 'quoted'",
    "void kernel(float* out) {",
    "    do { a = twice(b, c);",
    "    d = twice(a, c); }",
    "    while (more());",
    "}",
)
TWICE = ("float twice(float x, float y) {", "    return x * y;", "}")
PTX = (ROOT / "tests" / "data" / "linked.ptx").read_text(encoding="ascii")
SASS = text_of("null/view/linked", "sass")
MADE_FROM = (None, 1, 2, 3, 3, 4, 5, 6)


def toy(key: str = "8", unit: tuple[str, ...] = UNIT) -> Linked:
    """The kernel, as if compiled."""
    return Linked(
        key=key,
        config="<i>(FP16)</i>",
        arch="sm_80",
        sources={"kernel.cu": unit, "kernels/twice.cuh": TWICE},
        ptx=ptx_rows(PTX, "toy.ptx"),
        sass=parse(SASS),
        made_from=MADE_FROM,
        digests={"PTX": "ab" * 32, "machine code": "cd" * 32},
    )


KERNEL = toy()


def test_a_row_has_its_line_its_text_its_label_and_the_calls_that_it_was_inlined_through() -> None:
    rows, twice = KERNEL.ptx, Place("kernels/twice.cuh", 2)
    opcodes = ["ld.param.u64", "mov.u32", "mul.f32", "mul.f32", "setp.eq.u32", "bra", "ret"]
    assert [row.opcodes for row in rows] == [(opcode,) for opcode in opcodes]
    assert rows[2] == PtxRow(
        18, ("mul.f32",), "mul.f32 %f1, %f2, %f3;", (twice, Place("kernel.cu", 4)), label="$L__BB0_1"
    )
    assert (rows[3].chain, rows[3].label) == ((twice, Place("kernel.cu", 5)), "")
    assert rows[6].chain == ()  # line 0: the compiler made it up


@pytest.mark.parametrize(("line", "opcode", "ptx", "sass"), table_of("null/view/linked", "selections"))
def test_a_line_and_an_opcode_name_ptx_and_machine_code(line: str, opcode: str, ptx: set[int], sass: set[int]) -> None:
    assert select(KERNEL, line, opcode) == (frozenset(ptx), frozenset(sass))


@pytest.mark.parametrize(("line", "opcode", "message"), table_of("null/view/linked", "refused"))
def test_what_names_nothing_is_one_line(line: str, opcode: str, message: str) -> None:
    assert message in error_line(select, KERNEL, line, opcode)


def test_an_absolute_path_of_the_checkout_is_the_kernels_file_and_a_name_of_two_files_is_refused() -> None:
    sources = {**KERNEL.sources, "kernels/ptx/ldmatrix.cuh": (), "kernels/other/twice.cuh": ("x",)}
    kernel = replace(KERNEL, sources=sources)
    assert "no code was made" in error_line(select, kernel, f"{ROOT}/kernels/ptx/ldmatrix.cuh:1", "")
    assert "several files of this kernel have that name: expected one of" in error_line(of_line, kernel, "twice.cuh:2")
    assert of_line(kernel, "kernels/twice.cuh:2").sass == {2, 3, 4}
    assert "no such file" in error_line(of_line, kernel, "ce.cuh:2")


def test_the_listing_by_address_has_cuda_ptx_and_machine_code() -> None:
    assert listing(KERNEL, select(KERNEL, "kernel.cu:5", "")).splitlines() == [
        "// kernels/twice.cuh:2 < kernel.cu:5",
        "//   return x * y;",
        f"{KERNEL.ptx[3].line:6d}  mul.f32 %f4, %f1, %f3;",
        "|       0030  FMUL.FTZ R5, R4, R3",
        "|       0040  MOV R6, R5",
        "",
        "PTX lines 1, machine instructions 2: 1 FMUL, 1 MOV; 2 in the main loop",
    ]
    assert listing(KERNEL, of_opcode(KERNEL, "MOV")).splitlines()[:2] == [
        "      // the assembler's own",
        "        0000  MOV R1, c[0x0][0x28]",
    ]


def test_the_listing_by_ptx_tells_what_became_nothing() -> None:
    lines = listing(KERNEL, select(KERNEL, "kernel.cu:3", ""), ptx_first=True).splitlines()
    assert lines[2:6] == [
        f"{KERNEL.ptx[0].line:6d}  ld.param.u64 %rd1, [p0];",
        "        (no instruction of its own: removed, or one with another's)",
        f"{KERNEL.ptx[1].line:6d}  mov.u32 %r1, 0;",
        "        0010  IMAD.MOV.U32 R2, RZ, RZ, RZ",
    ]
    assert lines[-1] == (
        "PTX lines 2 (1 without machine code of their own), machine instructions 1: 1 IMAD.MOV.U32; 0 in the main loop"
    )


def test_json_holds_both_directions() -> None:
    data = as_data(KERNEL, of_opcode(KERNEL, "MOV"))
    assert data["sha256"] == {"PTX": "ab" * 32, "machine code": "cd" * 32}
    code = [(one["address"], one["ptx"], one["main_loop"]) for one in data["sass"]]
    assert code == [(0, None, False), (64, 21, True)]
    cuda = ["kernels/twice.cuh:2", "kernel.cu:5"]
    assert data["ptx"] == [{"line": 21, "text": "mul.f32 %f4, %f1, %f3;", "cuda": cuda, "sass": [48, 64]}]


ONE = page([toy()]).decode()


def test_no_text_ends_its_element_and_no_value_is_markup() -> None:
    assert ONE.count("<script") == 2
    assert "<b>bold" not in ONE
    assert "<i>(FP16)" not in ONE
    data = read_document(ONE.encode())
    assert data["kernels"][0]["config"] == "<i>(FP16)</i>"
    assert data["files"][0] == ["kernel.cu", list(UNIT)]


def test_the_policy_forbids_every_request_and_nothing_is_asked_for() -> None:
    """tests/browser runs the script, whose digest the policy names."""
    assert """http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'sha256-""" in ONE
    assert not re.search(r"""https?:|\bsrc=|@import|url\(|innerHTML|insertAdjacentHTML""", ONE)


def test_two_kernels_share_the_files_that_are_equal() -> None:
    other = ("// another unit", *UNIT[1:])
    data = document([toy("7", other), toy()])
    assert [name for name, _ in data["files"]] == ["kernel.cu", "kernels/twice.cuh", "kernel.cu"]
    assert data["files"][1] == ["kernels/twice.cuh", list(TWICE)]
    assert [one["data"]["files"] for one in data["kernels"]] == [[0, 1], [2, 1]]
    text = page([toy("7", other), toy()]).decode()
    assert "<title>Iteration 7 and iteration 8: CUDA, PTX and machine code" in text
    assert re.findall(r'data-text="(\w+)" checked', text) == ["cuda", "sass"]


def test_more_kernels_are_packed_and_read_again() -> None:
    several = [toy(key) for key in ("7", "8", "16 - swizzle")]
    assert isinstance(document(several)["files"], str)
    found = read_document(page(several))
    assert [one["key"] for one in found["kernels"]] == ["7", "8", "16 - swizzle"]
    assert [one["data"] for one in found["kernels"]] == [document([toy()])["kernels"][0]["data"]] * 3
