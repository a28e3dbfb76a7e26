"""The Hopper family: its configurations and short form, what goes with what, its tuning space, unit and targets."""

from __future__ import annotations

from dataclasses import replace
import re
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder.config import MAX_SMEM_BYTES, KernelConfig
from flashladder.ladder.families.hopper import (
    FAMILY,
    HopperConfig,
    at_launch,
    parts_of,
)
from flashladder.ladder.family import Launch
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import (
    begun,
    load_all,
    load_iteration,
)
from flashladder.ladder.selection import one_config
from flashladder.machine_code.ptxas import PtxasUsage

LADDER = [step for step in load_all() if step.family is FAMILY]
SPACE = {c.with_dtype(d) for step in LADDER for c in FAMILY.legal_configs(step.parts) for d in ("fp16", "bf16")}
LAST = HopperConfig("fp16", 128, 128, 128, 2, 2, 2, 24, 240, overlap=True)
FIRST = HopperConfig("bf16", 128, 128, 64, 1, 2, 2)
EIGHTS = "a producer and its consumers have a multiple of 8 each, from 24 to 240"
LAZY = replace(LAST, v_stages=3, persistent=True, flattened=True)
SPLIT = replace(LAZY, split=True)


def test_round_trip_and_names_are_unique_over_the_whole_space() -> None:
    assert len(SPACE) > 400
    for config in SPACE:
        assert KernelConfig.parse(config.short_form()) == config
    slugs = {config.slug() for config in SPACE}
    assert len(slugs) == len(SPACE)
    assert all(re.fullmatch(r"[a-z0-9_]{1,120}", slug) for slug in slugs)


def test_what_a_cta_takes() -> None:
    assert (LAST.n_threads, FIRST.n_threads) == (384, 128)
    assert LAST.smem_bytes == 256 * (128 + 4 * 128) + 5 * 16
    assert FIRST.smem_bytes == 256 * (128 + 4 * 64) + 5 * 16
    assert (LAST.rows, FIRST.rows, LAST.q_stages) == (64, 128, 1)
    assert (LAZY.q_stages, LAZY.smem_bytes) == (2, 256 * (2 * 128 + 5 * 128) + 7 * 16)
    assert SPLIT.smem_bytes == LAZY.smem_bytes + 128 * 2 * 4, "m and l of each row"
    assert LAST.multiples == {}, "any length will do"
    assert LAST.needs()["registers_per_thread"][0] == 240
    assert [at_launch(one) for one in (LAST, FIRST, replace(LAST, n_consumers=3))] == [168, 512, 128]


@pytest.mark.parametrize(
    ("step", "wrong", "concerns"),
    [
        (24, {}, []),
        (24, {"roles": "together"}, ["mainloop roles"]),
        (24, {"mainloop": "mma_sync"}, ["mainloop roles"]),
        (24, {"roles": "together", "mainloop": "wgmma", "scheduler": "another"}, ["roles scheduler"]),
        (26, {"mainloop": "overlapped"}, ["mainloop softmax"]),
        (26, {"softmax": "exact"}, ["mainloop softmax"]),
        (26, {"mainloop": "overlapped", "softmax": "exact"}, []),
        (26, {"epilogue": "warpgroup_store"}, ["scheduler epilogue"]),
        (26, {"scheduler": "one_tile", "epilogue": "warpgroup_store"}, ["mainloop scheduler"]),
        (26, {"roles": "together"}, ["mainloop roles", "roles scheduler"]),
        (28, {"epilogue": "warp_store"}, ["scheduler epilogue"]),
        (28, {"scheduler": "persistent", "epilogue": "warp_store"}, []),
        (28, {"mainloop": "overlapped", "softmax": "exact"}, ["scheduler mainloop"]),
        (28, {"roles": "ping_pong"}, []),
    ],
)
def test_parts_that_exclude_each_other_are_named(step: int, wrong: dict[str, str], concerns: list[str]) -> None:
    parts = replace(load_iteration(step).parts, **wrong)
    assert [" ".join(found.concerns) for found in FAMILY.contradictions(parts)] == concerns


@pytest.mark.parametrize(
    ("step", "knobs", "reason"),
    [
        (24, {"overlap": False}, "overlap must be True: mainloop overlapped decides it"),
        (21, {"producer_registers": 24}, "producer_registers must be 0: roles together have no producer"),
        (24, {"n_consumers": 3, "B_r": 192}, "n_consumers 3: two warpgroups take turns in roles ping_pong"),
        (24, {"d_head": 64}, "d_head 64: the kernels are written for 128"),
        (22, {"n_consumers": 4, "B_r": 256}, "n_consumers 4: a CTA has at most 3 warpgroups that multiply"),
        (22, {"B_c": 120}, "B_c 120: must be a multiple of 16, the k of P V's product"),
        (22, {"B_c": 208}, "B_c 208: 64 to 192 columns of S fit a warpgroup's registers beside O"),
        (22, {"B_c": 272}, "B_c 272: one copy brings at most 256 rows"),
        (22, {"k_stages": 5}, "k_stages 5: a ring has at most 4 stages"),
        (22, {"k_stages": 4, "v_stages": 4}, f"bytes of shared memory: a CTA has at most {MAX_SMEM_BYTES}"),
        (22, {"B_r": 64}, "B_r 64 with 2 warpgroups: a wgmma has 64 query rows"),
        (20, {"B_r": 96}, "B_r 96 with 1 warpgroups: each has a multiple of 64 query rows"),
        (24, {"v_stages": 1}, "v_stages 1: the next tile is asked for while one is read, so that there are two"),
        (20, {"k_stages": 1}, "k_stages 1: the next tile is asked for while one is read, so that there are two"),
        (22, {"consumer_registers": 236}, f"consumer_registers 236: {EIGHTS}"),
        (22, {"producer_registers": 16}, f"producer_registers 16: {EIGHTS}"),
        (22, {"producer_registers": 0, "consumer_registers": 0}, f"no producer_registers: {EIGHTS}"),
        (
            24,
            {"consumer_registers": 160},
            "consumer_registers 160: the launch brings 168, and setmaxnreg.inc takes none away",
        ),
        (
            22,
            {"n_consumers": 1, "B_r": 64, "producer_registers": 40, "consumer_registers": 32},
            "producer_registers 40: a consumer, to whom it gives registers, would have 32",
        ),
        (25, {"persistent": False}, "persistent must be True: scheduler persistent decides it"),
        (25, {"flattened": True}, "flattened must be False: mainloop overlapped decides it"),
        (26, {"v_stages": 2}, "v_stages 2: two tiles are read while the next one lands, so that there are three"),
        (28, {"split": False}, "split must be True: scheduler split decides it"),
        (22, {"producer_registers": 40}, "consumer_registers 240: 520 are dealt out, the launch brings 504"),
    ],
)
def test_what_parts_cannot_express_says_why(step: int, knobs: dict[str, Any], reason: str) -> None:
    own = load_iteration(step)
    config = own.configs["h200"]
    assert FAMILY.conflicts(own.parts, config) == ()
    found = FAMILY.conflicts(own.parts, replace(config, **knobs))
    assert any(one == reason or one.endswith(reason) for one in found), found


def test_fit_sets_what_the_parts_decide_and_a_brief_is_read_back() -> None:
    older, newer = load_iteration(21), load_iteration(24)
    assert FAMILY.fit(older.parts, LAST) == replace(LAST, producer_registers=0, consumer_registers=0, overlap=False)
    assert FAMILY.fit(newer.parts, replace(LAST, overlap=False)) == LAST
    assert one_config(newer, "128,128,2 2_2 24_240") == LAST
    assert FAMILY.of_brief(newer.parts, "128,64,4 2_2_2") is None
    assert FAMILY.to_knobs(newer.parts, LAST) == {
        "B_r": "128", "B_c": "128", "n_consumers": "2", "k_stages": "2", "v_stages": "2",
        "producer_registers": "24", "consumer_registers": "240",
    }  # fmt: skip
    assert "producer_registers" not in FAMILY.to_knobs(older.parts, FAMILY.fit(older.parts, LAST))


def test_its_code_runs_on_one_architecture() -> None:
    targets = FAMILY.targets
    assert (targets.ptx, targets.arches, targets.alone) == ("compute_90a", ("sm_90a",), True)
    assert [targets.serving(arch) for arch in ("sm_90", "sm_90a", "sm_100")] == ["sm_90a", "sm_90a", None]
    assert [FAMILY.runs_on(arch) for arch in ("sm_80", "sm_90", "sm_90a", "sm_100")] == [False, True, True, False]
    ampere = load_iteration(1).family
    assert [ampere.targets.serving(arch) for arch in ("sm_80", "sm_90a")] == ["sm_80", None]
    assert ampere.runs_on("sm_100")
    assert load_gpus()["h200"].runs("sm_90a")
    assert not load_gpus()["a100"].runs("sm_90a")


def test_a_persistent_kernel_has_as_many_ctas_as_multiprocessors_or_tiles() -> None:
    once = Launch((5, 3, 2), (384,), (), 0)
    goes_on = replace(once, grid=(30, 1, 1), resident=True)
    assert [once.ctas(many) for many in (1, 132)] == [(5, 3, 2)] * 2
    assert [goes_on.ctas(many) for many in (1, 29, 30, 132)] == [(1, 1, 1), (29, 1, 1), (30, 1, 1), (30, 1, 1)]
    assert FAMILY.grid(LAZY, (2, 640, 3, 128)) == (5 * 3 * 2, 1, 1)
    assert FAMILY.grid(LAST, (2, 640, 3, 128)) == (5, 3, 2)


def test_shapes_of_few_tiles_are_those_that_an_h200_splits() -> None:
    assert [config.few_tiles for config in (LAST, LAZY)] == [(), ()]
    for config, wanted in ((SPLIT, {2, 3, 4, 5, 7}), (replace(SPLIT, B_c=96), {3, 4, 5, 7})):
        found = {
            parts_of(-(-length // config.B_r) * heads * batch, -(-length // config.B_c), 132)
            for batch, length, heads in config.few_tiles
        }
        assert found == wanted
    lengths = [length for _, length, _ in SPLIT.few_tiles]
    assert lengths == sorted(lengths)
    assert any(length % SPLIT.B_c for length in lengths)


def test_a_results_file_owes_the_steps_of_the_families_that_it_is_about() -> None:
    ladder = load_all()
    assert [step.number for step in begun(ladder, [3])] == list(range(1, 20))
    due = [step.number for step in LADDER if not step.unmeasured]
    assert [step.number for step in begun(ladder, [22, 99])] == due
    assert [step.number for step in begun(ladder, [1, 24])] == [*range(1, 20), *due]
    assert begun(ladder, []) == ()


def test_commands_that_follow_one_warp_for_all_refuse_it() -> None:
    message = "trace follows one warp for all: expected kernels whose warps run alike, found the family hopper"
    with pytest.raises(FlashladderError, match=message):
        FAMILY.require_alike("trace")
    load_iteration(1).family.require_alike("trace")


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({}, ""),
        ({"warnings": ("ptxas info    : (C7512) Potential Performance Loss: x",)}, "(C7512)"),
        ({"warnings": ("ptxas info    : (C7508) setmaxnreg ignored",)}, "(C7508)"),
        ({"warnings": ("ptxas warning : something else",)}, ""),
        ({"spill_stores": 4}, "0 bytes of stack, 4 stored and 0 loaded in spills"),
        ({"spill_loads": 8}, "8 loaded in spills"),
        ({"stack": 16}, "16 bytes of stack"),
    ],
)
def test_serialised_products_and_spills_are_not_fit_to_ship(found: dict[str, Any], problem: str) -> None:
    usage = replace(PtxasUsage("sm_90a", 168, 0, 0, 0, 16, 0, None, 1.0), **found)
    said = FAMILY.refuses(usage)
    assert problem in said
    assert bool(said) == bool(problem)
    assert load_iteration(16).family.refuses(usage) == ""
