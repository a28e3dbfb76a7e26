"""Malformed iteration files as data: what is edited, the line that is named, and the one line that is said of it."""

from __future__ import annotations

import pytest

from tests.null import malformed_hopper
from tests.null.malformed_configs import CONFIGS
from tests.null.malformed_templates import HOPPER_ROOT, ROOT, root, step
from tests.null.malformed_yaml import YAML

APART = "the parts contradict each other: expected parts that go together, found "
CLAIM_FORMS = (
    "falls, rises, unchanged, a number, {falls: fraction}, {rises: fraction} or {equals: number, within: fraction}"
)
WITH_ARCHES = f"{CLAIM_FORMS}, the last three of machine code with on: [sm_80, ...], which names some architectures"
OPCODES = (
    "an opcode of configs/opcodes.yaml, or one of total, registers, hmma_after_ldsm, mufu_under_products, "
    "usual_path, f2fp_under_products, fadd_under_products"
)
ON = "some of sm_80, sm_86, sm_89, sm_90 under 'on', in this order (without it: all)"

# id: (content of 02_step.yaml, line, "what" with expected, found and hint as the message renders them)
STEPS: dict[str, tuple[str, int, str]] = {
    "unknown_key": (
        step("title:", "titel:"),
        2,
        (
            "unknown key 'titel': expected one of iteration, title, parent, family, why, unmeasured, change, "
            "configs, expect, found 'titel'; did you mean 'title'?"
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
        "unknown key 'configs.a1000': expected one of any, a100, rtx3090, h200, found 'a1000'",
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
        (f"{APART}softmax exp2_peeled with schedule lazy (no first block of its own in this schedule)"),
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
        f"bad value for 'expect.sass.lop3': expected {OPCODES}, found 'lop3'; did you mean 'LOP3'?",
    ),
    "claim_about_a_misspelt_opcode": (
        step("LOP3: rises", "IADDD3+LOP3: rises"),
        10,
        f"bad value for 'expect.sass.IADDD3+LOP3': expected {OPCODES}, found 'IADDD3'; did you mean 'IADD3'?",
    ),
    "claim_about_a_misspelt_opcode_with_modifiers": (
        step("sass: {LOP3: rises}", "main_loop: {LDSSM.16.M88.4: 4}"),
        10,
        (
            f"bad value for 'expect.main_loop.LDSSM.16.M88.4': expected {OPCODES}, found 'LDSSM.16.M88.4'; "
            "did you mean 'LDSM.16.M88.4'?"
        ),
    ),
    "claim_about_misspelt_ptx": (
        step("sass: {LOP3: rises}", "ptx: {setpp.gt.s32: unchanged}"),
        10,
        (
            "bad value for 'expect.ptx.setpp.gt.s32': expected an opcode of configs/opcodes.yaml, or one of total, "
            "mma_before_use, mma_same_a, found 'setpp.gt.s32'; did you mean 'setp.gt.s32'?"
        ),
    ),
    "claim_about_no_name": (
        step("LOP3: rises", "'LOP3 IADD3': rises"),
        10,
        (
            "bad value for 'expect.sass.LOP3 IADD3': expected opcodes such as LOP3 or IADD3+LOP3, or total, "
            "found 'LOP3 IADD3'"
        ),
    ),
    "claim_on_an_unknown_architecture": (
        step("LOP3: rises", "LOP3: {rises: 1, on: [sm_87]}"),
        10,
        f"bad value for 'expect.sass.LOP3': expected {ON}, found ['sm_87']",
    ),
    "claim_on_every_architecture": (
        step("LOP3: rises", "LOP3: {rises: 1, on: [sm_80, sm_86, sm_89, sm_90]}"),
        10,
        f"bad value for 'expect.sass.LOP3': expected {ON}, found ['sm_80', 'sm_86', 'sm_89', 'sm_90']",
    ),
    "claim_on_one_architecture_twice": (
        step("LOP3: rises", "LOP3: {rises: 1, on: [sm_80, sm_80]}"),
        10,
        f"bad value for 'expect.sass.LOP3': expected {ON}, found ['sm_80', 'sm_80']",
    ),
    "claim_on_no_list": (
        step("LOP3: rises", "LOP3: {rises: 1, on: sm_80}"),
        10,
        f"bad value for 'expect.sass.LOP3': expected {ON}, found sm_80",
    ),
    "claim_on_without_an_amount": (
        step("LOP3: rises", "LOP3: {on: [sm_80]}"),
        10,
        f"bad value for 'expect.sass.LOP3': expected {WITH_ARCHES}, found {{'on': ['sm_80']}}",
    ),
    "claim_about_counters_on_an_architecture": (
        step("sass: {LOP3: rises}", "counters: {ldsm: {rises: 1, on: [sm_80]}}"),
        10,
        f"bad value for 'expect.counters.ldsm': expected {CLAIM_FORMS}, found {{'rises': 1, 'on': ['sm_80']}}",
    ),
    "claim_about_no_counter": (
        step("sass: {LOP3: rises}", "counters: {shared_ld_conflict: 0}"),
        10,
        (
            "bad value for 'expect.counters.shared_ld_conflict': expected one of shared_ld_conflicts, "
            "shared_st_conflicts, "
            "shared_ld_wavefronts, shared_st_wavefronts, global_ld_sectors, global_st_sectors, registers, "
            "instructions, "
            "ldsm, tensor, copies_upward, copies_downward, found 'shared_ld_conflict'; "
            "did you mean 'shared_ld_conflicts'?"
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
            "the first iteration of the family ampere must decide every concern: expected layout, schedule, "
            "operands, k_order, softmax, normalize, "
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
    "claim_on_an_architecture_of_another_family": (
        HOPPER_ROOT,
        15,
        "a claim for machine code that the family hopper does not have: expected sm_90a, found sm_80, sm_90",
    ),
}

CASES = [
    *(pytest.param({"01_base.yaml": ROOT, "02_step.yaml": text}, "02_step.yaml", line, what, id=f"step-{name}")
      for name, (text, line, what) in (YAML | STEPS | CONFIGS).items()),
    *(pytest.param({"01_base.yaml": malformed_hopper.ROOT, "02_step.yaml": text}, "02_step.yaml", line, what,
                   id=f"hopper-{name}")
      for name, (text, line, what) in malformed_hopper.HOPPER.items()),
    *(pytest.param({"01_base.yaml": text}, "01_base.yaml", line, what, id=f"root-{name}")
      for name, (text, line, what) in ROOTS.items()),
    pytest.param(
        {"01_base.yaml": ROOT, "05_step.yaml": step("iteration: 2", "iteration: 5").replace("parent: 1", "parent: 4")},
        "05_step.yaml", 3, "the parent does not exist: expected one of 1, found 4", id="files-no_such_parent",
    ),
]  # fmt: skip
