"""The ladder's kernels on the emulator, and their counters."""

from __future__ import annotations

from collections.abc import Callable
import csv
from dataclasses import replace
import io
import json
from pathlib import Path
import shutil
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from flashladder.cases.reference import UNIT_ROUNDOFF
from flashladder.emulate import command as emulate
from flashladder.emulate import reading as readings
from flashladder.emulate.command import Emulation, Errors
from flashladder.emulate.kernel import CopyOrder, attention_fp64, forward, make_inputs, make_tensors, require, version
from flashladder.emulate.reading import READING, EmulatedCounters, load_reading
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.gpu.ncu import SHAPE, read_peer, traffic_differences
from flashladder.ladder.iteration import begun, load_all, load_iteration
from flashladder.names import CONFLICTS, LDSM, SECTORS, TENSOR, WAVEFRONTS
from flashladder.paths import RESULTS, ROOT
from flashladder.problem import Problem
from flashladder.report.data import collect
from flashladder.results.files import load_as, write_result
from flashladder.results.schema import BenchResult, CounterResult
import ptxemu
from tests.null.ladder_fixture import Fixture, make
from tests.typed import command, error_line

SHORT = Problem(batch=1, seq_len=128, n_heads=1, d_head=128)
# Thread i stores to shared byte 8 i of one word (2-way conflicts) from three source lines, and reads its neighbour's.
PTX = """\
.version 9.0
.target sm_80
.address_size 64
.file 1 "kernels/ptx/store.cuh"
.file 2 "kernels/ampere/epilogue/offsets.cuh"
.visible .entry toy()
{
  .reg .b32 %r<5>;
  .shared .align 16 .b8 tile[1024];
  mov.u32 %r1, %tid.x;
  shl.b32 %r2, %r1, 3;
  mov.u32 %r3, tile;
  add.s32 %r2, %r2, %r3;
  .loc 2 29 1
  st.shared.b32 [%r2], %r1;
  xor.b32 %r4, %r2, 256;
  .loc 2 31 1
  ld.shared.b32 %r1, [%r4];
  ret;
}
"""


@pytest.fixture(scope="module")
def found() -> Emulation:
    """A right run of iteration 1, whose counters and hazards are those of the toy: 64 threads without a barrier."""
    iteration = load_iteration(1)
    counters, hazards = ptxemu.Counters(), ptxemu.Hazards()
    result = ptxemu.load(PTX, path="toy.ptx").kernel().launch((2,), (64,), observers=(counters, hazards))
    errors = Errors(1e-4, 4e-3, 2e-4, 5e-4)
    return Emulation(iteration, iteration.configs["a100"], SHORT, result, errors, counters, hazards)


@pytest.fixture(autouse=True)
def stored_ptx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kernel.ptx").write_text(PTX, encoding="utf-8")
    monkeypatch.setattr(emulate, "ptx_for", lambda *_: SimpleNamespace(ptx=tmp_path / "kernel.ptx"))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_rounded_attention_is_right_and_a_hole_or_a_shifted_row_is_not(dtype: str) -> None:
    shape, roundoff = Problem(batch=2, seq_len=64, n_heads=2, d_head=128), UNIT_ROUNDOFF[dtype]
    q, k, v = make_inputs(shape.q_shape, shape.kv_shape, dtype, seed=3)
    out = attention_fp64(q, k, v).astype(q.dtype)
    assert emulate.distance(q, k, v, out, roundoff, shape).right
    hole = out.copy()
    hole[1, 63, 1, 127] = np.nan
    assert not emulate.distance(q, k, v, hole, roundoff, shape).right
    shifted = out.copy()
    shifted[1, 5, 1] = out[1, 6, 1]
    assert not emulate.distance(q, k, v, shifted, roundoff, shape).right


@pytest.mark.parametrize(("queries", "keys"), [(64, 96), (96, 64)])
def test_heads_of_a_group_and_rows_under_a_mask_are_compared_piece_by_piece(
    queries: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulate, "SCORES", 10 * keys)  # ten rows at a time
    shape = Problem(batch=1, seq_len=queries, kv_len=keys, n_heads=4, n_kv_heads=2, d_head=128, mask="causal")
    q, k, v = make_inputs(shape.q_shape, shape.kv_shape, "fp16", seed=5)
    k_each, v_each = (np.repeat(one, 2, axis=2) for one in (k, v))
    out = np.zeros_like(q)
    for row in range(max(queries - keys, 0), queries):
        seen = row + keys - queries + 1
        out[:, [row]] = attention_fp64(q[:, [row]], k_each[:, :seen], v_each[:, :seen])
    assert emulate.distance(q, k, v, out, UNIT_ROUNDOFF["fp16"], shape).right
    assert not emulate.distance(q, k, v, out, UNIT_ROUNDOFF["fp16"], shape.varied(mask="none")).right
    apart = Problem.packing([queries // 2] * 2, [keys // 2] * 2, n_heads=4, n_kv_heads=2, d_head=128, mask="causal")
    assert not emulate.distance(q, k, v, out, UNIT_ROUNDOFF["fp16"], apart).right


def test_heads_that_are_no_groups_are_one_line() -> None:
    step = load_iteration(29)
    q, k, _ = make_inputs((1, 64, 5, 128), (1, 64, 2, 128), "fp16")
    message = error_line(lambda: require(step, step.configs["h200"], (q, k, k, q)))
    assert message == "k: expected a number of heads that divides 5, found 2"


def test_the_screen_shows_what_was_asked_for(found: Emulation) -> None:
    page = emulate.render(found, counters=True)
    for text in (
        "iteration 1: Base implementation",
        "batch 1, seq_len 128, heads 1, d_head 128: 2 CTAs of 4 warps, 48 KiB",
        "right: max error 0.0001 (allowed 0.004)",
        "shared_ld_conflicts",
        "executed most, by warps:",
        "2.0x  st.shared.b32, PTX line 15",
        "epilogue/offsets.cuh:29",
        "HAZARDS: 1",
        "RAW",
    ):
        assert text in page, text
    plain = emulate.render(replace(found, hazards=None), counters=False)
    assert "shared_ld" not in plain
    assert "hazards" not in plain.lower()
    assert "no hazards" in emulate.render(replace(found, hazards=ptxemu.Hazards()), counters=False)
    wrong = emulate.render(replace(found, errors=Errors(1.0, 4e-3, 0.5, 5e-4)), counters=False)
    assert "WRONG: max error 1 " in wrong


def test_json_holds_the_facts_of_the_screen(found: Emulation) -> None:
    facts = json.loads(emulate.as_json(found, counters=True))
    assert facts["schema_version"] == 2
    assert facts["right"] is True
    assert facts["counters"]["short"]["shared_ld_conflicts"] == 4
    assert facts["counters"]["opcodes"]["st.shared.b32"] == 4
    assert facts["counters"]["bank_conflicts"][0]["ptx_lines"] == [15]
    assert [hazard["level"] for hazard in facts["hazards"]] == ["error"]
    holes = replace(found, errors=Errors(float("nan"), 4e-3, float("nan"), 5e-4), hazards=None)
    facts = json.loads(emulate.as_json(holes, counters=False))
    assert (facts["right"], facts["errors"]["max_error"]) == (False, None)
    assert facts["counters"] is None
    assert facts["hazards"] is None


def test_the_exit_code_is_the_verdict(found: Emulation, monkeypatch: pytest.MonkeyPatch) -> None:
    for errors, race, code in ((0.0, False, 0), (1.0, False, 1), (float("nan"), False, 1), (0.0, True, 1)):
        seen = replace(found, errors=Errors(errors, 0.5, errors, 0.5), hazards=found.hazards if race else None)
        monkeypatch.setattr(emulate, "emulate", lambda *_, seen=seen, **__: seen)
        assert command("emulate", "1") == command("emulate", "1", "--json") == code


@pytest.mark.parametrize(
    ("kind", "is_failure"), [("out-of-bounds", True), ("deadlock", True), ("unsupported", False), ("syntax", False)]
)
def test_a_forbidden_access_fails_and_an_unknown_opcode_could_not_run(
    monkeypatch: pytest.MonkeyPatch, kind: str, is_failure: bool
) -> None:
    error = ptxemu.EmulationError(kind, "an address outside every buffer", path="kernel.ptx", line=7)
    monkeypatch.setattr(emulate, "emulate", Mock(side_effect=error))
    with pytest.raises((CheckFailed, ptxemu.PtxemuError), match=r"kernel\.ptx:7") as caught:
        command("emulate", "16 - swizzle")
    assert isinstance(caught.value, CheckFailed) == is_failure
    assert getattr(caught.value, "exit_code", None) == (1 if is_failure else 2)


def test_a_tile_for_a_larger_gpu_than_the_ptx_names_can_be_emulated() -> None:
    step = load_iteration(1)
    config = replace(step.configs["h200"], B_r=256, B_c=256, n_warps=8)  # 192 KiB: an H200 has them, an A100 has not
    assert 163 * 1024 < config.smem_bytes <= 227 * 1024
    text = PTX.partition(".visible")[0] + ".visible .entry k(.param .align 8 .b8 p[136]) { ret; }"
    kernel = ptxemu.load(text, path="k.ptx").kernel()
    tensors = make_tensors(step, config, Problem(batch=1, seq_len=256, n_heads=1, d_head=128))
    assert forward(step, config, tensors, kernel=kernel).blocks == 1


# Each of the first {threads} threads copies 16 bytes, {steps} + 1 times, {stride} bytes further each time.
WALK = (ROOT / "tests" / "data" / "walk.ptx").read_text(encoding="ascii")


@pytest.mark.parametrize(
    ("first", "stride", "steps", "threads", "upward", "downward"),
    [
        (0, 64, 3, 64, 6, 0),  # two warps, three steps each
        (512, -64, 3, 64, 0, 6),
        (512, -64, 3, 8, 0, 3),  # a quarter of a warp is a warp, and the second warp copies nothing
        (0, 0, 3, 64, 0, 0),  # the same address again is no step
        (0, 64, 0, 64, 0, 0),  # one run has none before it
    ],
)
def test_runs_of_a_copy_above_and_below_the_one_before(
    first: int, stride: int, steps: int, threads: int, upward: int, downward: int
) -> None:
    order = CopyOrder()
    kernel = ptxemu.load(WALK.format(first=first, stride=stride, steps=steps, threads=threads)).kernel()
    for launches in (1, 2):  # launches add up, and the first of the second has none before it
        kernel.launch((3,), (64,), (), shared_bytes=1024, observers=(order,))
        found = {"copies_upward": 3 * launches * upward, "copies_downward": 3 * launches * downward}
        assert order.as_dict() == found


LD, ST = WAVEFRONTS.format("ld"), WAVEFRONTS.format("st")


@pytest.fixture(scope="module")
def reading() -> EmulatedCounters:
    return load_reading()


def changed(reading: EmulatedCounters, number: int, **counters: int) -> EmulatedCounters:
    copy = reading.model_copy(deep=True)
    copy.of(number).counters.update(counters)
    return copy


def test_the_committed_bytes_are_what_the_reading_gives(reading: EmulatedCounters) -> None:
    assert readings.stale(reading) == []
    rows = list(csv.DictReader(io.StringIO(readings.to_csv(reading))))
    assert [int(row["iteration"]) for row in rows] == [step.number for step in load_all()]
    assert rows[0][CONFLICTS.format("ld")] == "29589504"
    assert {row["races_fp16"] + row["races_bf16"] for row in rows} == {"00"}


def test_a_reading_that_differs_or_races_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, reading: EmulatedCounters
) -> None:
    monkeypatch.setattr(readings, "read_all", lambda: reading)
    readings.check().show()
    readings.main([])
    racy = reading.model_copy(deep=True)
    racy.of(1).races["bf16"] = 3
    differs = r"differs .*emulate\.reading --write.*counters\.csv: differs"
    for wrong, says in ((changed(reading, 16, **{LDSM: 0}), differs), (racy, "iteration 1: races were found; invoke")):
        monkeypatch.setattr(readings, "read_all", lambda wrong=wrong: wrong)
        with pytest.raises(CheckFailed, match=says):
            readings.check().show()
        with pytest.raises(CheckFailed, match=says):
            readings.main([])


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [("races", 3, "3 races in bf16"), ("ptx_sha256", "0" * 64, "its PTX (bf16) is not the locked one")],
)
def test_a_committed_race_and_other_ptx_are_problems(tmp_path: Path, field: str, value: object, says: str) -> None:
    shutil.copytree(RESULTS / "locks", tmp_path / "locks")
    document = json.loads(READING.read_text(encoding="utf-8"))
    next(iter(document["kernels"].values()))[field]["bf16"] = value
    path = tmp_path / "emulator" / "counters.json"
    path.parent.mkdir()
    path.write_text(json.dumps(document), encoding="utf-8")
    assert readings.reading_problems(path)[0].endswith(says)
    next(iter(document["kernels"].values()))["iteration"] = 27
    path.write_text(json.dumps(document), encoding="utf-8")
    assert "its PTX (fp16) is not the locked one" in str(readings.reading_problems(path)), "no such kernel is locked"


def test_a_missing_or_malformed_reading_says_how_to_make_it(tmp_path: Path, reading: EmulatedCounters) -> None:
    with pytest.raises(FlashladderError, match=r"no emulated counters.*--write"):
        load_reading(tmp_path / "counters.json")
    (tmp_path / "counters.json").write_text('{"schema_version": 2}', encoding="utf-8")
    assert "schema_version" in error_line(load_reading, tmp_path / "counters.json")
    assert "no emulated counters of iteration 34" in error_line(reading.of, 34)


def test_the_emulator_agrees_with_all_hardware_and_one_sector_or_instruction_off_is_a_difference(
    reading: EmulatedCounters,
) -> None:
    for path in readings.hardware_files():
        assert readings.problems(path, reading) == []
        for name in (*SECTORS, LDSM, TENSOR):
            (problem,) = readings.problems(path, changed(reading, 9, **{name: reading.of(9).counters[name] + 1}))
            assert problem.startswith(f"iteration 9: {name}: ")


@pytest.mark.parametrize(("share", "agrees"), [(1.0, True), (0.75, True), (0.69, False), (1.0001, False)])
def test_stores_beside_products_of_a_warpgroup_are_counted_more_often_by_hardware(share: float, agrees: bool) -> None:
    hardware = {**read_peer()[9], LDSM: 0, ST: 40_000}
    found = traffic_differences(21, {**hardware, ST: round(40_000 * share)}, hardware, "hardware")
    assert (not found) == agrees, found
    with_ldmatrix = {**hardware, LDSM: 1}
    assert traffic_differences(20, {**with_ldmatrix, ST: 39_000}, with_ldmatrix, "hardware")


def test_claims_are_judged_but_for_those_about_machine_code(reading: EmulatedCounters) -> None:
    judged = readings.claims(reading)
    assert len(judged) > 40
    assert all(one.holds for one in judged)
    left = [c for i in load_all() for c in i.expect.counters if not readings.countable(c)]
    assert left
    assert all("inst_executed.sum" in claim.metric or "registers" in claim.metric for claim in left)
    broken = readings.claims(changed(reading, 8, **{CONFLICTS.format("ld"): 5}))
    assert [one.iteration for one in broken if not one.holds] == [8, 9]  # unlike 7, and 9 is unlike it
    upward = readings.claims(changed(reading, 13, copies_upward=110592, copies_downward=0))
    assert [(one.iteration, one.claim.metric) for one in upward if not one.holds] == [(13, "copies_upward")]


def test_a_kept_reading_is_void_when_the_emulators_code_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = version()
    package = Path(shutil.copytree(Path(ptxemu.__file__).parent, tmp_path / "emulator"))
    monkeypatch.setattr(ptxemu, "__file__", str(package / "__init__.py"))
    assert version() == before
    with (package / "observe" / "counters.py").open("a", encoding="utf-8") as file:
        file.write("# another rule\n")
    assert version() != before


LD_CONFLICTS = CONFLICTS.format("ld")


def write_readings(fixture: Fixture, edit: Callable[[dict[int, dict[str, int]]], None] = lambda _: None) -> Path:
    """The published kernels' counters, and an H200's of later steps, as if read from the fixture's kernels."""
    bench, h200 = load_as(fixture.bench, BenchResult), load_as(RESULTS / "h200" / "counters.json.gz", CounterResult)
    counts = {h200.kernels[key].iteration: dict(found) for key, found in h200.counters.items()} | read_peer()
    edit(counts)
    configs = {iteration.number: iteration.configs["a100"].short_form() for iteration in load_all()}
    kernels = {key: kernel for key, kernel in bench.kernels.items() if configs[kernel.iteration] == kernel.config}
    origin = {name: getattr(bench, name) for name in ("rung", "gpu", "host")}
    counters = {key: counts[kernel.iteration] for key, kernel in kernels.items()}
    result = CounterResult(**origin, kernels=kernels, shape=SHAPE, ncu="test", counters=counters)
    path = fixture.bench.parent / "counters.json.gz"
    write_result(path, result)
    return path


def make_fixture(folder: Path, stale: dict[int, str | None] | None = None) -> Fixture:
    return make(folder / "results", lambda number: 50.0 + number, configs_of="a100", lengths=[4096], stale=stale)


@pytest.fixture
def fixture(tmp_path: Path) -> Fixture:
    return make_fixture(tmp_path)


def test_every_claim_of_the_ladder_is_read(fixture: Fixture) -> None:
    judged = readings.hardware_claims(write_readings(fixture), fixture.folder / "locks")
    ladder = begun(load_all(), [1])  # the fixture has timed nothing of another family
    claimed = [claim for iteration in ladder for claim in iteration.expect.counters]
    assert [one.claim for one in judged] == [claim for claim in claimed if readings.on_hardware(claim)]
    assert {str(claim) for claim in claimed if not readings.on_hardware(claim)} == {
        "copies_upward is 0",
        "copies_upward+copies_downward is unchanged",
    }
    conflicts = [one for one in judged if one.claim.metric == LD_CONFLICTS and one.iteration >= 8]
    assert conflicts
    assert all(one.holds and one.after == 0 for one in conflicts)


@pytest.mark.parametrize(
    ("number", "metric", "count", "fails", "says"),
    [
        (9, LD_CONFLICTS, 7, 9, f"{LD_CONFLICTS} is unchanged: 0 -> 7; it does not hold"),
        (7, LD_CONFLICTS.replace("_ld.", "_st."), 0, 8, "is 0: 0 -> 0; it says nothing about the step"),
    ],
)
def test_a_claim_that_does_not_hold_or_held_before_fails_by_name(
    fixture: Fixture, capsys: pytest.CaptureFixture[str], number: int, metric: str, count: int, fails: int, says: str
) -> None:
    write_readings(fixture, lambda counts: counts[number].update({metric: count}))
    with pytest.raises(CheckFailed, match=f"iteration {fails}"):
        readings.check_hardware_claims(fixture.folder, fixture.folder / "locks").show()
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(f"FAILS  iteration {fails} on machine: ") and says in line]


def test_a_reading_of_other_machine_code_or_without_an_iteration_is_refused(tmp_path: Path) -> None:
    fixture = make_fixture(tmp_path, stale={5: "0" * 64})
    path = write_readings(fixture)
    assert len(collect(fixture.folder).refused) == 1  # the report refuses the same kernel
    with pytest.raises(FlashladderError, match="is of machine code that no lock holds"):
        readings.hardware_claims(path, fixture.folder / "locks")
    result = load_as(path, CounterResult)
    kept = {key for key, kernel in result.kernels.items() if kernel.iteration != 3}
    parts = {name: {key: getattr(result, name)[key] for key in kept} for name in ("kernels", "counters")}
    write_result(path, result.model_copy(update=parts))
    assert "no reading of iteration 3" in error_line(readings.hardware_claims, path, fixture.folder / "locks")
