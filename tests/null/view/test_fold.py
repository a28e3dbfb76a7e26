"""The page of a kernel: short enough to read, nothing of its parts lost, and every folded thing named."""

from __future__ import annotations

import re

import pytest

from flashladder.ladder.iteration import (
    Iteration,
    included_files,
    load_all,
    load_iteration,
    part_files,
    sources,
    translation_unit,
)
from flashladder.ladder.selection import select_configs
from flashladder.paths import KERNELS
from flashladder.view import command as view
from flashladder.view.fold import WIDTH, compact, folded, kernel_text
from tests.typed import command

LONGEST = 520  # lines of a page
EACH = pytest.mark.parametrize("step", load_all(), ids=lambda step: step.slug)


def bare(text: str) -> str:
    """`text` without comments, white space and what a page leaves out of declarations."""
    text = re.sub(r"//.*|__device__|__forceinline__|(?<=\.)template |(?<=::)template ", "", text)
    return re.sub(r"\s", "", text)


@EACH
def test_a_page_is_short_and_its_lines_are(step: Iteration) -> None:
    for config in select_configs(step, "prog"):
        assert len(view.show_iteration(step, config).splitlines()) <= LONGEST
        assert max(map(len, kernel_text(step, config).splitlines())) <= WIDTH


@EACH
def test_no_statement_of_a_part_is_lost(step: Iteration) -> None:
    config = step.configs["a100"]
    page = bare(kernel_text(step, config))
    for name in part_files(step, config):
        text = re.sub(r"static_assert\(.*?\);", "", (KERNELS / name).read_text(encoding="utf-8"), flags=re.DOTALL)
        statements = [
            line
            for line in re.findall(r"^ {4,}[^\s/#].*(?:\(.*[;}]|[-+*/]?= .*;)(?=  //|$)", text, re.MULTILINE)
            if not re.search(r"\b(?:Layout|Gmem|KOrder|value_t|State|Kernel)\b", line)  # written out
            and ("(" in line or "constexpr" not in line)  # constants are written out, or joined
        ]
        assert statements or "struct Serpentine : RowMajor {" in text  # all of it is inherited
        for statement in statements:
            assert bare(statement) in page, f"{name}: {statement}"


@EACH
def test_every_instruction_that_a_kernel_uses_is_named(step: Iteration) -> None:
    config = step.configs["h200"]
    texts = sources(step, config)
    used = set(
        re.findall(r"\bptx::(\w+)", "".join(text for name, text in texts.items() if not name.startswith("ptx/")))
    )
    floor = kernel_text(step, config).partition("// == ptx/: ")[2].splitlines()[1:]
    named = [next(name for name in used if re.search(rf"\b{name}(<\w+>)?\(", line)) for line in floor]
    assert set(named) == used
    assert len(set(floor)) == len(floor)  # each once, and none that is not called


@EACH
def test_types_and_sizes_are_written_out(step: Iteration) -> None:
    text = kernel_text(step, step.configs["a100"])
    assert "Kernel::" not in text
    assert "<Kernel>" not in text
    assert re.search(r"^    \w+::run\(cta(, args.n_kv_blocks)?\);$", text, re.MULTILINE)
    assert "template update" not in text


def test_all_is_the_whole_text(capsys: pytest.CaptureFixture[str]) -> None:
    last = load_iteration(16)
    command("show", "16", "--all")
    page = capsys.readouterr().out
    for path in included_files(translation_unit(last, last.configs["a100"])):
        text = re.sub(r"^#(?:include|pragma once).*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert bare(text) in bare(page), path.name


UNIT = """\
struct Kernel {
    static constexpr int B_r = 64;
    using Layout = flashladder::Xor;
    template <int rows, int n>
    using Same = flashladder::Tiled<rows, n>;
    template <int rows, int n>
    using Moved = flashladder::Tiled<n, rows>;
};
"""


def test_an_alias_that_moves_its_arguments_stays() -> None:
    text = "void f() { Kernel::Layout::a<Kernel::B_r>(); typename Kernel::Same<1, 2> a; Kernel::Moved<1, 2> b; }\n"
    assert "void f() { Xor::a<64>(); Tiled<1, 2> a; Kernel::Moved<1, 2> b; }" in folded(UNIT, {"part.cuh": text}, set())


def test_an_alias_ends_with_its_braces() -> None:
    text = (
        "struct A {\n    using Layout = typename Kernel::Layout;\n    Layout a;\n    int c;\n};\n"
        "template <typename Layout>\nstruct B {\n    Layout b;\n    int c;\n};\n"
    )
    page = folded(UNIT, {"part.cuh": text}, set())
    assert "    Xor a;" in page
    assert "template <typename Layout> struct B {\n    Layout b;" in page


def test_what_all_kernels_share_is_folded_to_signatures() -> None:
    text = "// What it is.\n//\n// More.\nint f(int a) {\n    a += 1;  // one\n    a += 2;\n    return a;\n}\n"
    assert "// == base.cuh: What it is.\nint f(int a) { ... }" in folded(UNIT, {"base.cuh": text}, {"base.cuh"})
    assert "    a += 1;  // one\n" in folded(UNIT, {"base.cuh": text}, set())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("if (a) {\n    b();\n}\n", "if (a) { b(); }"),
        ("if (a) {\n    b();  // why\n}\n", "if (a) { b(); }  // why"),
        ("for (i) {\n    a();\n    b();\n}\n", "for (i) { a(); b(); }"),
        ("template <int n>\n__device__ int f(int a,\n      int b);\n", "template <int n> int f(int a, int b);"),
        ("static_assert(a,\n              b);\nint a, b;\n", "int a, b;"),
        ("if (a) {\n    b();\n} else {\n    c();\n}\n", "if (a) {\n    b();\n} else {\n    c();\n}"),
    ],
)  # fmt: skip
def test_what_fits_on_a_line_stands_on_one(text: str, line: str) -> None:
    assert compact(text) == line
