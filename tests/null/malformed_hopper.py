"""Iteration files of the Hopper family that cannot be: the line that is named and what is said of it."""

from __future__ import annotations

ROOT = """\
iteration: 1
title: Base
family: hopper
why: >
  A producer and two consumers, with everything that a later step changes.
change:
  pipeline: rings
  roles: specialised
  mainloop: wgmma
  softmax: exact
  scheduler: one_tile
  epilogue: warpgroup_store
configs:
  any: {B_r: 128, B_c: 128, n_consumers: 2, k_stages: 2, v_stages: 2, producer_registers: 24, consumer_registers: 240}
"""
STEP = """\
iteration: 2
title: Turns
family: hopper
parent: 1
why: One warpgroup issues its products while the other computes exponentials.
change:
  roles: ping_pong
configs:
  any: {B_c: 144}
expect:
  main_loop: {BAR: 2}
"""
FORGOTTEN = "iteration 1, its parent, is of the family hopper: 'family: hopper' is missing"
AMPERE = "layout, schedule, operands, k_order, softmax, normalize, gmem, epilogue, store_policy, row_stride"
ILLEGAL = "illegal configuration for h200: expected a legal combination, found "
EIGHTS = "a producer and its consumers have a multiple of 8 each, from 24 to 240"


def step(old: str, new: str) -> str:
    """STEP with one edit."""
    assert STEP.count(old) == 1, old
    return STEP.replace(old, new)


def without_family(old: str, new: str) -> str:
    """STEP with one edit, and a comment where its family stood."""
    return step(old, new).replace("family: hopper", "# none")


def knobs(text: str) -> str:
    """STEP with these knobs on every GPU."""
    return step("{B_c: 144}", f"{{{text}}}")


# id: (content of 02_step.yaml, line, "what" with expected, found and hint as the message renders them)
HOPPER: dict[str, tuple[str, int, str]] = {
    "family_forgotten": (
        without_family("title: Turns", "title: Turns"),
        7,
        (f"unknown key 'change.roles': expected one of {AMPERE}, found 'roles'; {FORGOTTEN}"),
    ),
    "family_forgotten_beside_a_tile_of_any_family": (
        without_family("change:\n  roles: ping_pong\n", "").replace("  main_loop: {BAR: 2}", "  sass: {BAR: 2}"),
        1,
        (
            f"the first iteration of the family ampere must decide every concern: expected {AMPERE}, "
            f"found no {AMPERE}; {FORGOTTEN}"
        ),
    ),
    "family_forgotten_and_its_own_parent": (
        without_family("parent: 1", "parent: 2"),
        7,
        f"unknown key 'change.roles': expected one of {AMPERE}, found 'roles'",
    ),
    "no_such_family": (
        step("family: hopper", "family: hoper"),
        3,
        "no such family of kernels: expected ampere or hopper, found 'hoper'; did you mean 'hopper'?",
    ),
    "knob_of_another_family": (
        knobs("n_warps: 4"),
        9,
        (
            "unknown key 'configs.any.n_warps': expected one of B_r, B_c, n_consumers, k_stages, v_stages, "
            "producer_registers, consumer_registers, found 'n_warps'"
        ),
    ),
    "five_stages": (knobs("B_c: 64, k_stages: 5"), 9, f"{ILLEGAL}k_stages 5: a ring has at most 4 stages"),
    "two_and_a_half_stages": (
        knobs("v_stages: 2.5"),
        9,
        "bad value for 'configs.any.v_stages': expected an integer, found 2.5",
    ),
    "registers_not_in_eights": (knobs("producer_registers: 25"), 9, f"{ILLEGAL}producer_registers 25: {EIGHTS}"),
    "registers_beyond_an_instruction": (
        knobs("consumer_registers: 248"),
        9,
        f"{ILLEGAL}consumer_registers 248: {EIGHTS}",
    ),
    "registers_beyond_the_launch": (
        knobs("producer_registers: 40"),
        9,
        f"{ILLEGAL}consumer_registers 240: 520 are dealt out, the launch brings 504",
    ),
    "fewer_registers_than_at_launch": (
        knobs("consumer_registers: 24"),
        9,
        f"{ILLEGAL}consumer_registers 24: the launch brings 168, and setmaxnreg.inc takes none away",
    ),
    "turns_of_one": (
        knobs("B_r: 64, n_consumers: 1"),
        9,
        f"{ILLEGAL}n_consumers 1: two warpgroups take turns in roles ping_pong",
    ),
    "rows_of_a_product": (knobs("B_r: 64"), 9, f"{ILLEGAL}B_r 64 with 2 warpgroups: a wgmma has 64 query rows"),
    "mainloop_of_no_producer": (
        step("roles: ping_pong", "mainloop: mma_sync"),
        7,
        (
            "the parts contradict each other: expected parts that go together, found mainloop mma_sync with roles "
            "specialised (its fragments of K and V take the registers of a consumer)"
        ),
    ),
    "part_misspelt": (
        step("ping_pong", "pingpong"),
        7,
        (
            "bad value for 'change.roles': expected one of together, specialised, ping_pong, found 'pingpong'; "
            "did you mean 'ping_pong'?"
        ),
    ),
    "claim_for_another_architecture": (
        step("{BAR: 2}", "{BAR: {rises: 0.5, on: [sm_80]}}"),
        11,
        "a claim for machine code that the family hopper does not have: expected sm_90a, found sm_80",
    ),
}
