"""``invoke emulate``: arguments that cannot be, errors that must be noticed, the screen, and counters of copies."""

from __future__ import annotations

from dataclasses import replace
import json
from pathlib import Path
import re
from types import SimpleNamespace

import numpy as np
import pytest

from flashladder.cases.reference import UNIT_ROUNDOFF
from flashladder.emulate import command as emulate
from flashladder.emulate.command import Emulation, Errors
from flashladder.emulate.kernel import CopyOrder, attention_fp64, forward, make_inputs, make_tensors
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.ladder.ablation import load_description
from flashladder.ladder.iteration import load_iteration
from flashladder.problem import Shape
import ptxemu
from tests.typed import command

SHAPE = Shape(batch=1, seq_len=128, n_heads=1, d_head=128)
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
    return Emulation(iteration, iteration.configs["a100"], SHAPE, result, errors, counters, hazards)


@pytest.fixture(autouse=True)
def stored_ptx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kernel.ptx").write_text(PTX, encoding="utf-8")
    monkeypatch.setattr(emulate, "ptx_for", lambda *_: SimpleNamespace(ptx=tmp_path / "kernel.ptx"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["29"], "no such iteration"),
        (["1", "--batch", "-1"], "--batch needs a whole number, found '-1'"),
        (["1", "--heads", "two"], "--heads needs a whole number"),
        (["1", "--batch", "65536"], "bad --batch: expected a whole number from 1 to 65535, found '65536'"),
        (["1", "--seq-len", "9" * 10], "bad --seq-len: expected a whole number from 1 to 2147483647"),
        (["1", "--seed", "1.5"], "--seed needs a whole number"),
        (
            ["26", "--multiprocessors", "0"],
            "bad --multiprocessors: expected a whole number from 1 to 2147483647, found '0'",
        ),
        (
            ["26", "--multiprocessors=-1"],
            "bad --multiprocessors: expected a whole number from 1 to 2147483647, found '-1'",
        ),
        (["26", "--multiprocessors", "two"], "bad --multiprocessors"),
        (
            ["24", "--multiprocessors", "2"],
            "--multiprocessors: expected a kernel whose CTAs compute tile after tile, found iteration 24",
        ),
        (["1", "--seq-len", "96"], "seq_len does not fit the tiles: expected a multiple of B_r = 64, found 96"),
        (["16", "--seq-len", "192"], "expected a multiple of B_r = 128"),
        (["16", "--heads", "17"], "row stride of 2048 is compiled in: expected at most 16, found 17"),
        (["1", "--seq-len", "64000000"], "too large to emulate: expected at most 4 GiB"),
        (["1", "--config", "b100"], "no such configuration: expected one of a100, h100, h200, rtx3090, rtx4090, prog"),
        (["1", "--config", "(FP16"], "not the short form"),
    ],
)
def test_bad_arguments_could_not_run(argv: list[str], message: str) -> None:
    with pytest.raises(FlashladderError, match=re.escape(message)) as caught:
        command("emulate", *argv)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_rounded_attention_is_right_and_a_hole_or_a_shifted_row_is_not(dtype: str) -> None:
    q, k, v = make_inputs((2, 64, 2, 128), dtype, seed=3)
    roundoff = UNIT_ROUNDOFF[dtype]
    out = attention_fp64(q, k, v).astype(q.dtype)
    assert emulate.distance(q, k, v, out, roundoff).right
    hole = out.copy()
    hole[1, 63, 1, 127] = np.nan
    assert not emulate.distance(q, k, v, hole, roundoff).right
    shifted = out.copy()
    shifted[1, 5, 1] = out[1, 6, 1]
    assert not emulate.distance(q, k, v, shifted, roundoff).right


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
    assert facts["schema_version"] == 1
    assert facts["right"] is True
    assert facts["counters"]["short"]["shared_ld_conflicts"] == 4
    assert facts["counters"]["opcodes"]["st.shared.b32"] == 4
    assert facts["counters"]["bank_conflicts"][0]["ptx_lines"] == [15]
    assert len(facts["hazards"]) == 1
    holes = replace(found, errors=Errors(float("nan"), 4e-3, float("nan"), 5e-4), hazards=None)
    facts = json.loads(emulate.as_json(holes, counters=False))
    assert (facts["right"], facts["errors"]["max_error"]) == (False, None)
    assert facts["counters"] is None
    assert facts["hazards"] is None


@pytest.mark.parametrize(
    ("errors", "race", "code"), [(0.0, False, 0), (1.0, False, 1), (float("nan"), False, 1), (0.0, True, 1)]
)
def test_the_exit_code_is_the_verdict(
    found: Emulation, monkeypatch: pytest.MonkeyPatch, errors: float, race: bool, code: int
) -> None:
    seen = replace(found, errors=Errors(errors, 0.5, errors, 0.5), hazards=found.hazards if race else None)
    monkeypatch.setattr(emulate, "emulate", lambda *_, **__: seen)
    assert command("emulate", "1") == code
    assert command("emulate", "1", "--json") == code


@pytest.mark.parametrize(("kind", "kinder"), [("out-of-bounds", 1), ("deadlock", 1), ("unsupported", 2), ("syntax", 2)])
def test_a_forbidden_access_fails_and_an_unknown_opcode_could_not_run(
    monkeypatch: pytest.MonkeyPatch, kind: str, kinder: int
) -> None:
    def broken(*_: object, **__: object) -> Emulation:
        raise ptxemu.EmulationError(kind, "an address outside every buffer", path="kernel.ptx", line=7)

    monkeypatch.setattr(emulate, "emulate", broken)
    with pytest.raises((FlashladderError, ptxemu.PtxemuError), match=r"kernel\.ptx:7") as caught:
        command("emulate", "16 - swizzle")
    assert isinstance(caught.value, FlashladderError | ptxemu.PtxemuError)
    assert caught.value.exit_code == kinder
    assert isinstance(caught.value, CheckFailed) == (kinder == 1)


def test_a_tile_for_a_larger_gpu_than_the_ptx_names_can_be_emulated() -> None:
    step = load_iteration(1)
    config = replace(step.configs["h200"], B_r=256, B_c=256, n_warps=8)  # 192 KiB: an H200 has them, an A100 has not
    assert 163 * 1024 < config.smem_bytes <= 227 * 1024
    text = PTX.partition(".visible")[0] + ".visible .entry k(.param .align 8 .b8 p[136]) { ret; }"
    kernel = ptxemu.load(text, path="k.ptx").kernel()
    tensors = make_tensors(step, config, Shape(batch=1, seq_len=256, n_heads=1, d_head=128))
    assert forward(step, config, tensors, kernel=kernel).blocks == 1


def test_heads_of_a_fixed_row_stride_are_cut_from_a_wider_tensor() -> None:
    step = load_description("16")
    shape = Shape(batch=1, seq_len=128, n_heads=2, d_head=128)
    q, _, _, out = make_tensors(step, step.configs["a100"], shape)
    assert q.shape == out.shape == (1, 128, 2, 128)
    assert out.strides[1] == 2 * 2048
    assert np.isnan(out.astype(np.float32)).all()


# Each of the first {threads} threads copies 16 bytes, {steps} + 1 times, {stride} bytes further each time.
WALK = """
.version 8.0
.target sm_80
.address_size 64
.global .align 16 .b8 buffer[2048];
.visible .entry walk()
{{
.reg .pred %p<3>;
.reg .b32 %r<7>;
.reg .b64 %rd<8>;
mov.u32 %r0, %tid.x;
mov.u64 %rd5, buffer;
cvta.global.u64 %rd5, %rd5;
add.s64 %rd5, %rd5, {first};
mul.wide.u32 %rd7, %r0, 16;
cvt.u32.u64 %r5, %rd7;
mov.u32 %r6, 0;
setp.ge.u32 %p2, %r0, {threads};
@%p2 bra DONE;
AGAIN:
cp.async.cg.shared.global [%r5], [%rd5], 16;
add.s64 %rd5, %rd5, {stride};
add.u32 %r6, %r6, 1;
setp.le.u32 %p1, %r6, {steps};
@%p1 bra AGAIN;
DONE:
cp.async.wait_all;
ret;
}}
"""


@pytest.mark.parametrize(
    ("first", "stride", "steps", "threads", "upward", "downward"),
    [
        (0, 64, 3, 64, 6, 0),  # two warps, three steps each
        (512, -64, 3, 64, 0, 6),
        (512, -64, 3, 32, 0, 3),  # the second warp copies nothing
        (512, -64, 3, 8, 0, 3),  # a quarter of a warp is a warp
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
