"""Raw samples in two places: of one run in two files they must be the same, of anything else they must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.gate.evidence import copies, cross
from flashladder.gate.evidence.inside import problems as inside
from flashladder.results.files import write_result
from flashladder.results.schema import BenchResult, Group, Pair, Reference
from tests.null.bench_fixture import FAST, GPU, SLOW, group, kernel, pairs, result

FIRST, SECOND = kernel(16, FAST).key, kernel(1, SLOW).key
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0"
FA3 = (
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
    "cute::tuple<cute::C<2>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<128>, cute::C<176>, cute::C<128> >, 128, "
    "cutlass::half_t, float, cutlass::arch::Sm90, false>"
)
FA4 = "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__tensor0000o1110"
TORCH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::half_t"
WHEEL = "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::half_t"


def with_samples(of: Group, key: str, samples: tuple[Pair, ...]) -> Group:
    """A group in which one series has these samples."""
    series = tuple(one.model_copy(update={"pairs": samples}) if one.kernel == key else one for one in of.series)
    return of.model_copy(update={"series": series})


def samples(of: BenchResult, key: str) -> tuple[Pair, ...]:
    return next(one.pairs for one in of.groups[0].series if one.kernel == key)


def later(of: BenchResult, **gpu: object) -> BenchResult:
    """The same document, of a run a day later, perhaps on another card."""
    process = of.processes[0].model_copy(update={"started_utc": "2026-01-02T00:00:00+00:00"})
    return of.model_copy(update={"processes": (process,), "gpu": GPU.model_copy(update=gpu)})


def told(folder: Path, **files: BenchResult) -> list[str]:
    folder.mkdir(exist_ok=True)
    held = [copies.cells(write_result(folder / f"{name}.json.gz", one)) for name, one in files.items()]
    return [line.partition(f"{folder.name}/")[2] for line in copies.problems(held)]


def test_a_cell_with_another_cells_samples_is_named(tmp_path: Path) -> None:
    made = result()
    assert told(tmp_path, whole=made) == []
    copied = result(with_samples(group(), SECOND, samples(made, FIRST)))
    line = f"cell {SECOND} fp16 S=4096 B=16: its raw samples are those of cell {FIRST} fp16 S=4096 B=16"
    assert told(tmp_path, copied=copied) == [f"copied.json.gz: {line}"]
    moved = tuple(one._replace(block=one.block + 1, input_set=0) for one in samples(made, FIRST))
    assert told(tmp_path, moved=result(with_samples(group(), SECOND, moved))) == [f"moved.json.gz: {line}"]
    few = samples(made, FIRST)[: copies.ENOUGH - 1]
    by_chance = result(with_samples(with_samples(group(), SECOND, few), FIRST, few))
    assert told(tmp_path, few=by_chance) == []


def test_two_files_of_one_run_hold_the_same_samples_and_no_others(tmp_path: Path) -> None:
    whole = result()
    part = result(group().model_copy(update={"series": group().series[:2]}))
    assert told(tmp_path, part=part, whole=whole) == []
    edited = result(with_samples(group(), FIRST, pairs(1.11, 2)))
    (line,) = told(tmp_path, part=part, whole=edited)
    assert line.startswith(f"whole.json.gz: cell {FIRST} fp16 S=4096 B=16: other raw samples than in ")
    assert line.endswith("/part.json.gz, which holds the same run")
    assert told(tmp_path, part=part, whole=later(result(group(process=7)))) == [], "another run has others"


@pytest.mark.parametrize("card", [{"uuid": "GPU-0"}, {"uuid": "GPU-1"}], ids=["another day", "another card"])
def test_another_runs_samples_are_named(tmp_path: Path, card: dict[str, object]) -> None:
    lines = told(tmp_path, first=result(), second=later(result(), **card))
    assert len(lines) == 3, "both kernels and the floor"
    assert all(line.startswith("second.json.gz: cell ") and "first.json.gz" in line for line in lines)


def test_another_machines_samples_are_named_between_folders_alone(tmp_path: Path) -> None:
    """Where the gate compares machines; each folder for itself has nothing to be compared with."""
    folders = [tmp_path / name for name in ("one", "other")]
    for folder, made in zip(folders, (result(), later(result(), uuid="GPU-1")), strict=True):
        folder.mkdir()
        write_result(folder / "bench.json.gz", made)
        assert cross.folder_problems(folder).problems == []
    lines = cross.machines_agree(folders).problems
    assert len(lines) == 3
    assert all("other/bench.json.gz: cell " in line and "one/bench.json.gz" in line for line in lines)


def test_a_folders_own_copies_are_named_with_its_other_contradictions(tmp_path: Path) -> None:
    copied = result(with_samples(group(), SECOND, samples(result(), FIRST)))
    write_result(tmp_path / "bench.json.gz", copied)
    (line,) = cross.folder_problems(tmp_path).problems
    assert "its raw samples are those of" in line


def arm(name: str, kernels: dict[str, str], op: str | None = None) -> list[str]:
    """What is said of a result in which this reference launched these kernels."""
    ops = {"fa2": "torch.ops.aten._flash_attention_forward", "fa4": "flash_attn.cute.flash_attn_func",
           "fa3": "flash_attn_interface.flash_attn_func",
           "cudnn": "scaled_dot_product_attention, SDPBackend.CUDNN_ATTENTION",
           "flash-attn": "flash_attn.flash_attn_func"}  # fmt: skip
    one = Reference(op=op or ops.get(name, "op"), torch="2.11", cuda="13.0", kernels=kernels)
    own = one if name == "fa2" else one.model_copy(update={"op": ops["fa2"], "kernels": {}})
    made = result().model_copy(update={"reference": own, "references": {} if name == "fa2" else {name: one}})
    return [line for line in inside(Path("results/x/bench.json.gz"), made) if line.startswith("reference ")]


@pytest.mark.parametrize("own", ["fa2", "cudnn", "fa3", "fa4", "flash-attn"])
@pytest.mark.parametrize("name", ["fa2", "cudnn", "fa3", "fa4", "flash-attn"])
def test_an_arm_that_launches_anothers_kernel_is_named(name: str, own: str) -> None:
    kernels = {"fa2": TORCH, "cudnn": CUDNN, "fa3": FA3, "fa4": FA4, "flash-attn": WHEEL}
    found = arm(name, {"fp16": kernels[name], "bf16": kernels[own]})
    assert found == ([] if own == name else [f"reference {name}: its kernel in bf16 is another's: {kernels[own][:80]}"])


def test_an_arm_that_was_called_otherwise_or_that_nobody_knows_is_named() -> None:
    told_ = "reference fa4: op: expected flash_attn.cute.flash_attn_func, found flash_attn.flash_attn_func"
    assert arm("fa4", {}, "flash_attn.flash_attn_func") == [told_]
    assert arm("fa5", {}) == ["reference fa5: expected one of fa2, cudnn, fa3, fa4, flash-attn"]
