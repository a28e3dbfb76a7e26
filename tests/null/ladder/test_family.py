"""Families: how a kernel is composed, and the rules of ampere and hopper."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
import re
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from flashladder.bench import command as bench
from flashladder.check import command as check
from flashladder.errors import FlashladderError
from flashladder.ladder import family
from flashladder.ladder import iteration as iterations
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.families.ampere import FAMILY, Ampere, AmpereConfig
from flashladder.ladder.families.hopper import FAMILY as HOPPER
from flashladder.ladder.families.hopper import HopperConfig, parts_of
from flashladder.ladder.family import families, family_named, part_names
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import begun, flattened, included_files, load_all, load_iteration, translation_unit
from flashladder.ladder.selection import select_configs
from flashladder.machine_code.ptxas import PtxasUsage
from flashladder.names import EXAMPLE
from flashladder.paths import KERNELS
from tests.data_files import table_of
from tests.typed import error_line


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (Ampere(), "twin: the family cannot be loaded: .*of a name of its own, found <flashladder.*Ampere"),
        (FlashladderError("not UTF-8"), "twin: not UTF-8"),
    ],
)
def test_a_family_that_cannot_be_loaded_is_named(found: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(family.LOADED, "twin", found)
    assert re.search(message, error_line(families))


@pytest.mark.parametrize("name", ["hoper", 7, None, ["ampere"]])
def test_an_unknown_family_is_refused(name: object) -> None:
    message = error_line(lambda: family_named(name))
    assert message.startswith("no such family of kernels: expected ampere or hopper, found")


def test_a_short_form_is_parsed_by_its_own_family_and_an_iteration_expresses_no_other() -> None:
    assert isinstance(KernelConfig.parse(EXAMPLE), AmpereConfig)
    assert "not the short form of a kernel configuration" in error_line(AmpereConfig.parse, HopperConfig.example)
    with pytest.raises(FlashladderError, match=r"a configuration of the family ampere, .* found another family's"):
        select_configs(load_iteration(16), HopperConfig.example)


def test_a_gpu_runs_what_it_can() -> None:
    arches = ("sm_75", "sm_80", "sm_90a", "sm_103")
    runs = [[arch for arch in arches if one.runs_on(arch)] for one in (FAMILY, HOPPER)]
    assert runs == [["sm_80", "sm_90a", "sm_103"], ["sm_90a"]]
    assert [HOPPER.targets.serving(arch) for arch in ("sm_90", "sm_90a", "sm_100")] == ["sm_90a", "sm_90a", None]
    assert [FAMILY.targets.serving(arch) for arch in ("sm_80", "sm_90a")] == ["sm_80", None]
    assert [load_gpus()[gpu].runs("sm_90a") for gpu in ("h200", "a100")] == [True, False]


def test_what_a_gpu_cannot_run_is_neither_timed_nor_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FAMILY, "runs_on", lambda _: False)
    device: Any = SimpleNamespace(gpu=SimpleNamespace(arch="sm_90", uuid="GPU-0"))
    options = argparse.Namespace(numbers=[16], configs=["a100"], dtypes=["fp16"], tune=False, problems=[])
    assert "no kernel to run" in error_line(bench.choose, options, "sm_90")
    assert "no kernel to run" in error_line(check.run_checks, options, device)
    assert capsys.readouterr().out.count("iteration 16: not run here: needs compute capability 8.0 or later") == 2


XOR = KERNELS / "ampere" / "layout" / "xor.cuh"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (XOR.read_bytes() + b"// gr\xfcn", rf"not UTF-8 \(byte 0xfc at offset {XOR.stat().st_size + 5}\)"),
        (b"\n", "the file is empty: expected its header line"),
        (XOR.with_name("xor_static.cuh").read_bytes(), "line .*`xor` .*found xor_static; .*struct Xor$"),
        (b"\xef\xbb\xbf" + XOR.read_bytes(), ""),  # nvcc passes over a mark, too
    ],
    ids=["latin", "empty", "copy", "mark"],
)
def test_a_broken_part_is_listed_and_is_an_error_for_its_reader(tmp_path: Path, data: bytes, message: str) -> None:
    kernels = Path(shutil.copytree(KERNELS, tmp_path / "kernels"))
    part = kernels / XOR.relative_to(KERNELS)
    part.write_bytes(data)
    assert "xor" in part_names(part.parent)
    iteration = load_iteration(2)
    config = iteration.configs["a100"]
    for read in (iterations.sources, flattened):
        with pytest.raises(FlashladderError, match=rf"layout/xor\.cuh: .*{message}") if message else nullcontext():
            assert read(iteration, config, kernels) == read(iteration, config)


def test_what_editors_leave_is_no_part(tmp_path: Path) -> None:
    (tmp_path / "one.cuh").write_text("// Layout `one` (iteration 2): a part\n")
    (tmp_path / ".#one.cuh").symlink_to("somebody@nowhere.42:1")
    (tmp_path / "._one.cuh").write_bytes(b"\0\5\xff")
    assert part_names(tmp_path) == ("one",)
    (tmp_path / "two.cuh").mkdir()
    assert "two.cuh: not a regular file" in error_line(part_names, tmp_path)


def test_a_step_changes_only_what_its_yaml_says() -> None:
    parent, child = load_iteration(11), load_iteration(12)
    before, after = (set(translation_unit(one, child.configs["a100"]).splitlines()[3:]) for one in (parent, child))
    changed = re.findall(r"(?:gmem|normalize)/\w+|Gmem|Normalize", " ".join(before ^ after))
    parts = ["gmem/advance", "gmem/indexed", "normalize/divide", "normalize/reciprocal"]
    assert sorted(changed) == ["Gmem", "Gmem", "Normalize", "Normalize", *parts]
    assert len(before ^ after) == 8


def test_a_configuration_that_the_parts_cannot_express_is_refused() -> None:
    iteration = load_iteration(1)
    swizzled = replace(iteration.configs["a100"], swizzled=True)
    message = error_line(lambda: translation_unit(iteration, swizzled))
    assert message.startswith("iteration 1 cannot express this configuration")


def test_flattened_starts_with_the_composition_and_holds_every_included_file_once() -> None:
    iteration = load_iteration(8)
    config = iteration.configs["a100"]
    text = flattened(iteration, config)
    titles = [line for line in text.splitlines() if line.startswith("// ==== ")]
    first = ("the composition", "kernels/ampere/schedule/eager.cuh", "kernels/ampere/flash_fwd_static_offsets.cuh")
    assert titles[:3] == [f"// ==== {name} ====" for name in first]
    included = included_files(translation_unit(iteration, config))
    assert sorted(titles[1:]) == sorted(f"// ==== kernels/{p.relative_to(KERNELS).as_posix()} ====" for p in included)
    assert "#include" not in text


def test_a_missing_include_names_the_file_that_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text('#include "b.cuh"\n', encoding="utf-8")
    with pytest.raises(FlashladderError, match=r"a\.cuh: an included file is missing: expected .*b\.cuh, found no"):
        included_files('#include "a.cuh"\n', tmp_path)


LADDER = [step for step in load_all() if step.family is HOPPER]
LAST = HopperConfig("fp16", 128, 128, 128, 2, 2, 2, 24, 240, overlap=True)
FIRST = HopperConfig("bf16", 128, 128, 64, 1, 2, 2)
LAZY = replace(LAST, v_stages=3, persistent=True, flattened=True)
SPLIT = replace(LAZY, split=True)


def test_the_threads_and_shared_memory_of_a_cta() -> None:
    assert (LAST.n_threads, FIRST.n_threads) == (384, 128)
    assert LAST.smem_bytes == 256 * (128 + 4 * 128) + 5 * 16
    assert LAZY.smem_bytes == 256 * (2 * 128 + 5 * 128) + 7 * 16
    assert SPLIT.smem_bytes == LAZY.smem_bytes + 128 * 2 * 4, "m and l of each row"


@pytest.mark.parametrize(("step", "wrong", "concerns"), table_of("null/ladder/family", "contradictions"))
def test_parts_that_exclude_each_other_are_named(step: int, wrong: dict[str, str], concerns: list[str]) -> None:
    parts = replace(load_iteration(step).parts, **wrong)
    assert [" ".join(found) for _, found in HOPPER.contradictions(parts)] == concerns


@pytest.mark.parametrize(("step", "knobs", "reason"), table_of("null/ladder/family", "reasons"))
def test_what_parts_cannot_express_says_why(step: int, knobs: dict[str, Any], reason: str) -> None:
    own = load_iteration(step)
    config = own.configs["h200"]
    assert HOPPER.conflicts(own.parts, config) == ()
    found = HOPPER.conflicts(own.parts, replace(config, **knobs))
    assert any(reason in one for one in found), found


def test_fit_sets_what_the_parts_decide_and_knobs_are_the_others() -> None:
    older, newer = load_iteration(21), load_iteration(24)
    fitted = HOPPER.fit(older.parts, LAST)
    assert fitted == replace(LAST, producer_registers=0, consumer_registers=0, overlap=False)
    assert HOPPER.fit(newer.parts, replace(LAST, overlap=False)) == LAST
    knobs = {"B_r": "128", "B_c": "128", "n_consumers": "2", "k_stages": "2", "v_stages": "2"}
    assert HOPPER.to_knobs(older.parts, fitted) == knobs
    assert HOPPER.to_knobs(newer.parts, LAST) == knobs | {"producer_registers": "24", "consumer_registers": "240"}


def test_shapes_of_few_tiles_are_those_that_an_h200_splits() -> None:
    assert [config.few_tiles for config in (LAST, LAZY)] == [(), ()]
    for config, parts in ((SPLIT, {2, 3, 4, 5, 7}), (replace(SPLIT, B_c=96), {3, 4, 5, 7})):
        tiles = [(-(-length // config.B_r) * heads, -(-length // config.B_c)) for _, length, heads in config.few_tiles]
        assert {parts_of(*sizes, 132) for sizes in tiles} == parts
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


@pytest.mark.parametrize(("found", "problem"), table_of("null/ladder/family", "not_fit"))
def test_serialised_products_and_spills_are_not_fit_to_ship(found: dict[str, Any], problem: str) -> None:
    usage = replace(PtxasUsage("sm_90a", 168, 0, 0, 0, 16, 0, None, 1.0), **found)
    message = HOPPER.refuses(usage)
    assert problem in message
    assert bool(message) == bool(problem)
    assert FAMILY.refuses(usage) == ""
