"""Malformed iteration files as data: what is edited, the line that is named, and the one line that is said of it."""

from __future__ import annotations

import pytest

ROOT = """\
iteration: 1
title: Base
why: >
  A kernel with everything that a tensor core needs and nothing that makes it fast.
change:
  layout: linear
  schedule: lazy
  operands: whole
  k_order: column_major
  softmax: exp
  normalize: divide
  gmem: advance
  epilogue: offsets
  store_policy: write_back
  row_stride: 0
configs:
  any: {B_r: 64, B_c: 64, n_warps: 4}
"""
STEP = """\
iteration: 2
title: Swizzling
parent: 1
why: Units of sixteen bytes are permuted, so that rows spread over the banks.
change:
  layout: xor
configs:
  a100: {B_r: 128}
expect:
  sass: {LOP3: rises}
"""


def step(old: str, new: str) -> str:
    """STEP with one edit."""
    assert STEP.count(old) == 1, old
    return STEP.replace(old, new)


def root(old: str, new: str) -> str:
    """ROOT with one edit."""
    assert ROOT.count(old) == 1, old
    return ROOT.replace(old, new)


APART = "the parts contradict each other: expected parts that go together, found "
ILLEGAL = "illegal configuration for a100: expected a legal combination, found "
CLAIM_FORMS = (
    "falls, rises, unchanged, a number, {falls: fraction}, {rises: fraction} or {equals: number, within: fraction}"
)

# id: (content of 02_step.yaml, line, "what" with expected, found and hint as the message renders them)
STEPS: dict[str, tuple[str, int, str]] = {
    "empty": ("", 1, "wrong content: expected a mapping of keys to values, found an empty file"),
    "only_a_comment": ("# nothing\n", 1, "wrong content: expected a mapping of keys to values, found an empty file"),
    "a_list": ("- 1\n- 2\n", 1, "wrong content: expected a mapping of keys to values, found list [1, 2]"),
    "a_word": ("\nswizzle\n", 2, "wrong content: expected a mapping of keys to values, found 'swizzle'"),
    "tab": (
        step("  layout: xor", "\tlayout: xor"),
        6,
        "not valid YAML, found character '\\t' that cannot start any token; indent with spaces, one key per line",
    ),
    "unclosed_brace": (step("{B_r: 128}", "{B_r: 128"), 9, "not valid YAML, expected ',' or '}', but got ':'"),
    "bad_indent": (step("title: Sw", " title: Sw"), 2, "not valid YAML, mapping values are not allowed here"),
    "two_documents": (STEP + "---\na: 1\n", 11, "not valid YAML, but found another document"),
    "alias": (step("rises}", "&r rises, SHF: *r}"), 10, "not valid YAML, an alias (*name) is not allowed"),
    "tag": (
        step("title: Swizzling", "title: !!python/object:os.system x"),
        2,
        "not valid YAML, could not determine a constructor for the tag 'tag:yaml.org,2002:python/object:os.system'",
    ),
    "duplicate_key": (
        STEP + "title: Again\n",
        11,
        "duplicate key 'title': expected each key once, found it already on line 2",
    ),
    "duplicate_nested": (
        step("  layout: xor\n", "  layout: xor\n  layout: linear\n"),
        7,
        "duplicate key 'layout': expected each key once, found it already on line 6",
    ),
    "number_as_key": (step("change:\n", "3: 4\nchange:\n"), 5, "bad key: expected text, found 3"),
    "truth_value_as_key": (step("change:\n", "on: 4\nchange:\n"), 5, "bad key: expected text, found on"),
    "unknown_key": (
        step("title:", "titel:"),
        2,
        (
            "unknown key 'titel': expected one of iteration, title, parent, why, change, configs, expect, "
            "found 'titel'; "
            "did you mean 'title'?"
        ),
    ),
    "unknown_concern": (
        step("layout:", "layuot:"),
        6,
        (
            "unknown key 'change.layuot': expected one of layout, schedule, operands, k_order, softmax, "
            "normalize, gmem, "
            "epilogue, store_policy, row_stride, found 'layuot'; did you mean 'layout'?"
        ),
    ),
    "unknown_gpu": (
        step("a100:", "a1000:"),
        8,
        "unknown key 'configs.a1000': expected one of any, a100, rtx3090, h200, found 'a1000'; did you mean 'a100'?",
    ),
    "unknown_knob": (
        step("{B_r: 128}", "{B_R: 128}"),
        8,
        (
            "unknown key 'configs.a100.B_R': expected one of B_r, B_c, n_warps, load_tiles, double_buffer, "
            "optimized_softmax, "
            "found 'B_R'; did you mean 'B_r'?"
        ),
    ),
    "merge_key": (
        step("  a100:", "  <<: 1\n  a100:"),
        8,
        "bad key: expected text, found <<",
    ),
    "missing_title": (
        step("title: Swizzling\n", ""),
        1,
        "missing key 'title': expected a value for 'title', found none",
    ),
    "missing_why": (
        "iteration: 2\ntitle: Swizzling\nparent: 1\nchange: {layout: xor}\n",
        1,
        "missing key 'why': expected a value for 'why', found none",
    ),
    "missing_iteration": (
        step("iteration: 2\n", ""),
        1,
        "missing key 'iteration': expected a value for 'iteration', found none",
    ),
    "missing_parent": (step("parent: 1\n", ""), 1, "missing key 'parent': expected an iteration before 2, found none"),
    "null_title": (step("title: Swizzling", "title:"), 2, "bad value for 'title': expected text, found nothing"),
    "title_is_a_number": (step("Swizzling", "12"), 2, "bad value for 'title': expected text, found 12"),
    "title_too_short": (step("Swizzling", "X"), 2, "bad value for 'title': expected at least 3 characters, found 'X'"),
    "why_too_short": (
        step("Units of sixteen bytes are permuted, so that rows spread over the banks.", "Faster."),
        4,
        "bad value for 'why': expected at least 40 characters, found 'Faster.'",
    ),
    "number_as_text": (
        step("iteration: 2", 'iteration: "2"'),
        1,
        "bad value for 'iteration': expected an integer, found '2'",
    ),
    "number_as_fraction": (
        step("parent: 1", "parent: 1.5"),
        3,
        "bad value for 'parent': expected an integer, found 1.5",
    ),
    "number_as_truth_value": (
        step("parent: 1", "parent: yes"),
        3,
        "bad value for 'parent': expected an integer, found true",
    ),
    "number_zero": (
        step("iteration: 2", "iteration: 0"),
        1,
        "bad value for 'iteration': expected greater than or equal to 1, found 0",
    ),
    "not_the_number_of_the_name": (
        step("iteration: 2", "iteration: 3"),
        1,
        "bad value for 'iteration': expected 2, as the file name says, found 3",
    ),
    "own_parent": (
        step("parent: 1", "parent: 2"),
        3,
        "bad value for 'parent': expected an iteration before 2, found 2",
    ),
    "later_parent": (
        step("parent: 1", "parent: 9"),
        3,
        "bad value for 'parent': expected an iteration before 2, found 9",
    ),
    "bad_value": (
        step("layout: xor", "layout: xor_statik"),
        6,
        (
            "bad value for 'change.layout': expected one of linear, xor, xor_static, xor_tiled, found 'xor_statik'; "
            "did you mean 'xor_static'?"
        ),
    ),
    "value_of_another_type": (
        step("layout: xor", "layout: [xor]"),
        6,
        (
            "bad value for 'change.layout': expected one of linear, xor, xor_static, xor_tiled, found list ['xor']; "
            "did you mean 'xor'?"
        ),
    ),
    "change_is_a_list": (
        step("change:\n  layout: xor", "change:\n  - layout"),
        5,
        "bad value for 'change': expected a mapping, found list ['layout']",
    ),
    "same_as_the_parent": (
        step("layout: xor", "layout: linear"),
        6,
        "'layout' does not change: expected not the parent's linear, found linear",
    ),
    "changes_nothing": (
        step("change:\n  layout: xor\nconfigs:\n  a100: {B_r: 128}\n", ""),
        1,
        "the iteration differs in nothing from its parent: expected a 'change' or 'configs', found neither",
    ),
    "negative_stride": (
        step("layout: xor", "layout: xor\n  row_stride: -8"),
        7,
        "bad value for 'change.row_stride': expected greater than or equal to 0, found -8",
    ),
    "stride_too_long": (
        step("layout: xor", "gmem: static_stride\n  row_stride: 4194304"),
        7,
        "bad value for 'change.row_stride': expected less than 4194304, found 4194304",
    ),
    "title_that_would_swallow_a_line": (
        step("Swizzling", "Swizzling \\"),
        2,
        r"bad value for 'title': expected text matching ^[^\\\n]+$, found 'Swizzling \\'",
    ),
    "stride_without_static_stride": (
        step("layout: xor", "row_stride: 2048"),
        6,
        (f"{APART}gmem advance with row_stride 2048 (static_stride and a row_stride other than 0 come together)"),
    ),
    "odd_stride": (
        step("layout: xor", "gmem: static_stride\n  row_stride: 2044"),
        7,
        (f"{APART}row_stride 2044 (rows start on 16 bytes, so the stride is a multiple of 8 elements)"),
    ),
    "stride_below_a_head": (
        step("layout: xor", "gmem: static_stride\n  row_stride: 64"),
        7,
        (f"{APART}row_stride 64 (a row holds at least one head of 128 elements)"),
    ),
    "peeled_softmax_alone": (
        step("layout: xor", "softmax: exp2_peeled"),
        6,
        (f"{APART}softmax exp2_peeled with schedule lazy (only peeled and backward have a first block of its own)"),
    ),
    "backward_with_advance": (
        step("layout: xor", "layout: xor\n  schedule: backward"),
        7,
        (f"{APART}schedule backward with gmem advance (an advancing pointer only walks forwards)"),
    ),
    "encoded_at_run_time": (
        step("layout: xor", "layout: xor\n  epilogue: encoded"),
        7,
        (f"{APART}epilogue encoded with layout xor (the encoding reuses a lane's static copy offset)"),
    ),
    "row_major_at_run_time": (
        step("layout: xor", "k_order: row_major"),
        6,
        (f"{APART}k_order row_major with layout linear (row-major fragments come with static offsets)"),
    ),
    "loads_with_whole_operands": (
        step("{B_r: 128}", "{load_tiles: [2, 2, 2]}"),
        8,
        (
            "the parts contradict 'load_tiles' on a100: expected load_tiles must be 0, 0, 0: operands whole "
            "load everything "
            "before the first mma, found 2"
        ),
    ),
    "buffer_with_whole_operands": (
        step("{B_r: 128}", "{double_buffer: true}"),
        8,
        (
            "the parts contradict 'double_buffer' on a100: expected mma_double_buffer_loads must be False: "
            "operands whole "
            "have no second buffer, found True"
        ),
    ),
    "softmax_decided_by_parts": (
        step("{B_r: 128}", "{optimized_softmax: true}"),
        8,
        (
            "the parts contradict 'optimized_softmax' on a100: expected optimized_softmax must be False: "
            "softmax exp in era "
            "runtime_offsets decides it, found True"
        ),
    ),
    "tiled_without_a_load_size": (
        step("layout: xor", "operands: tiled"),
        8,
        (f"{ILLEGAL}load_tiles must not all be 0: operands tiled load at least one operand by k-tile"),
    ),
    "q_and_k_apart": (
        step("layout: xor", "operands: tiled").replace("a100: {B_r: 128}", "any: {load_tiles: [2, 0, 0]}"),
        8,
        (f"{ILLEGAL}load size 2 of Q: must be 0 or K's, 0, since both walk along d_head together"),
    ),
    "load_size_of_three": (
        step("layout: xor", "operands: tiled").replace("a100: {B_r: 128}", "any: {load_tiles: [3, 3, 2]}"),
        8,
        f"{ILLEGAL}load size 3 of Q: must be 0 or 2",
    ),
    "two_load_sizes": (
        step("{B_r: 128}", "{load_tiles: [0, 0]}"),
        8,
        "missing key 'configs.a100.load_tiles.2': expected a value for 'configs.a100.load_tiles.2', found none",
    ),
    "load_sizes_as_text": (
        step("{B_r: 128}", '{load_tiles: "222"}'),
        8,
        "bad value for 'configs.a100.load_tiles': expected a list, found '222'",
    ),
    "rows_per_warp": (
        step("{B_r: 128}", "{B_r: 96}"),
        8,
        (f"{ILLEGAL}B_r 96 with 4 warps: each warp needs a multiple of 16 query rows"),
    ),
    "three_warps": (
        step("{B_r: 128}", "{n_warps: 3}"),
        8,
        f"{ILLEGAL}n_warps 3: a CTA has 1, 2, 4, 8 or 16 warps",
    ),
    "shared_memory": (
        step("{B_r: 128}", "{B_r: 256, B_c: 512}"),
        8,
        (f"{ILLEGAL}327680 bytes of shared memory: a CTA has at most 232448"),
    ),
    "negative_tile": (
        step("{B_r: 128}", "{B_r: -64}"),
        8,
        "bad value for 'configs.a100.B_r': expected greater than 0, found -64",
    ),
    "buffer_as_number": (
        step("{B_r: 128}", "{double_buffer: 1}"),
        8,
        "bad value for 'configs.a100.double_buffer': expected true or false, found 1",
    ),
    "claim_misspelt": (
        step("LOP3: rises", "LOP3: raises"),
        10,
        (f"bad value for 'expect.sass.LOP3': expected {CLAIM_FORMS}, found raises"),
    ),
    "claim_above_one": (
        step("LOP3: rises", "LOP3: {falls: 40}"),
        10,
        (f"bad value for 'expect.sass.LOP3': expected {CLAIM_FORMS}, found {{'falls': 40}}"),
    ),
    "claim_about_no_opcode": (
        step("LOP3: rises", "lop3: rises"),
        10,
        "bad value for 'expect.sass.lop3': expected opcodes such as LOP3 or IADD3+LOP3, or total, found 'lop3'",
    ),
    "claim_about_no_counter": (
        step("sass: {LOP3: rises}", "counters: {shared_ld_conflict: 0}"),
        10,
        (
            "bad value for 'expect.counters.shared_ld_conflict': expected one of shared_ld_conflicts, "
            "shared_st_conflicts, "
            "shared_ld_wavefronts, shared_st_wavefronts, global_ld_sectors, global_st_sectors, registers, "
            "instructions, "
            "ldsm, tensor, found 'shared_ld_conflict'; did you mean 'shared_ld_conflicts'?"
        ),
    ),
    "claims_at_an_illegal_tile": (
        step("sass: {LOP3: rises}", "at: {B_r: 96}\n  sass: {LOP3: rises}"),
        10,
        (
            "claims at an illegal configuration: expected a legal one, found B_r 96 with 4 warps: each warp "
            "needs a multiple "
            "of 16 query rows"
        ),
    ),
    "several_mistakes": (
        step("layout: xor", "layout: 1").replace("parent: 1", "parent: x"),
        3,
        "bad value for 'parent': expected an integer, found 'x'; 1 more mistake in this file",
    ),
}

# id: (content of 01_base.yaml, line, message)
ROOTS: dict[str, tuple[str, int, str]] = {
    "open_concern": (
        root("  gmem: advance\n", ""),
        5,
        (
            "the first iteration must decide every concern: expected layout, schedule, operands, k_order, "
            "softmax, normalize, "
            "gmem, epilogue, store_policy, row_stride, found no gmem"
        ),
    ),
    "incomplete_configuration": (
        root("{B_r: 64, B_c: 64, n_warps: 4}", "{B_r: 64, n_warps: 4}"),
        17,
        "incomplete configuration for a100: expected B_r, B_c and n_warps, found no B_c",
    ),
    "configuration_for_one_gpu_only": (
        root("any:", "a100:"),
        5,
        "incomplete configuration for rtx3090: expected B_r, B_c and n_warps, found no B_r",
    ),
    "claim_against_nobody": (
        ROOT + "expect:\n  sass: {LOP3: falls}\n",
        18,
        "a claim against a parent that does not exist: expected {equals: number}, found LOP3 falls",
    ),
}

CASES = [
    *(pytest.param({"01_base.yaml": ROOT, "02_step.yaml": text}, "02_step.yaml", line, what, id=f"step-{name}")
      for name, (text, line, what) in STEPS.items()),
    *(pytest.param({"01_base.yaml": text}, "01_base.yaml", line, what, id=f"root-{name}")
      for name, (text, line, what) in ROOTS.items()),
    pytest.param(
        {"01_base.yaml": ROOT, "05_step.yaml": step("iteration: 2", "iteration: 5").replace("parent: 1", "parent: 4")},
        "05_step.yaml", 3, "the parent does not exist: expected one of 1, found 4", id="files-no_such_parent",
    ),
]  # fmt: skip
