"""``invoke trace`` without a compiler: what is refused, and kernels that are no attention."""

from __future__ import annotations

import pytest

from flashladder.errors import FlashladderError
from flashladder.gpu import doctor, sanitize
from flashladder.ladder.iteration import load_iteration
from flashladder.problem import Shape
from flashladder.trace import command
from flashladder.trace.compare import trace
from flashladder.trace.recorder import UnknownForm
import ptxemu
from ptxemu.errors import EmulationError

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .align 8 .b8 p[136]) {\n"
MMA = "mma.sync.aligned.{}.f32 {{%f0, %f1, %f2, %f3}}, {{%r0, %r1{}}}, {{%r2{}}}, {{%f0, %f1, %f2, %f3}};"
SMALL = Shape(batch=1, seq_len=64, n_heads=1, d_head=128)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["99"], "no such iteration"),
        (["1", "--seq-len", "100"], "seq_len does not fit the tiles: expected a multiple of B_r = 64, found 100"),
        (["1", "--seq-len", "x"], "bad --seq-len"),
        (["1", "--seq-len", "4096"], "too large to trace: expected at most 4,194,304 scores, found 16,777,216"),
        (["16", "--heads", "17"], "too many heads"),
        (["1", "--block", "2"], "--block belongs to --show"),
        (["1", "--at", "2,3"], "--at belongs to --show"),
        (["1", "--show", "S", "--at", "2"], "bad --at: expected ROW,COLUMN such as 16,8, found '2'"),
        (["1", "--sanitize", "--json"], "--sanitize runs an iteration's build"),
        (["16 - swizzle", "--sanitize"], "--sanitize runs an iteration's build"),
    ],
)
def test_a_bad_command_line_is_one_line(words: list[str], says: str) -> None:
    with pytest.raises(FlashladderError) as refused:
        command.main(words)
    assert says in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("words", [["1", "--show", "T"], ["1", "--input", "zeros"]])
def test_a_word_that_is_no_choice_leaves_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        command.main(words)
    assert left.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


@pytest.mark.parametrize(("right", "code"), [(True, 0), (False, 1)])
def test_the_sanitizers_run_after_the_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], right: bool, code: int
) -> None:
    def tools(words: list[str]) -> int:
        print(f"tools of {words}")
        return 0

    monkeypatch.setattr(doctor, "require_gpu", lambda _: None)
    monkeypatch.setattr(sanitize, "main", tools)
    monkeypatch.setattr(command, "run", lambda _: ("traced", right))
    assert command.main(["7", "--sanitize", "--config", "h200"]) == code
    assert capsys.readouterr().out.splitlines() == ["traced", "tools of ['7', '--configs', 'h200']"]


def test_without_a_gpu_the_sanitizers_are_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "n_gpus", lambda: 0)
    with pytest.raises(FlashladderError, match=r"no GPU here.*invoke emulate N --hazards"):
        command.main(["7", "--sanitize"])


def kernel(body: str) -> ptxemu.Kernel:
    registers = ".reg .b32 %r<64>; .reg .f32 %f<64>;"
    return ptxemu.load(f"{HEAD}{registers}\n{body}\nret;\n}}\n", path="k.ptx").kernel()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "accumulators of S in a KV block: expected 8, found 0"),
        (MMA.format("m16n8k8.row.col.f32.f16.f16", "", ""), "another mma: expected mma.sync.aligned.m16n8k16"),
        (
            "mov.b32 %r0, 0; " + MMA.format("m16n8k16.row.col.f32.f16.f16", ", %r3, %r4", ", %r5"),
            "accumulators of S in a KV block: expected 8, found 0",
        ),
    ],
)
def test_another_form_of_kernel_is_refused_in_one_line(body: str, says: str) -> None:
    step = load_iteration(1)
    with pytest.raises(UnknownForm) as refused:
        trace(step, step.configs["a100"], SMALL, kernel=kernel(body))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_what_a_kernel_may_not_do_stays_the_emulators_error() -> None:
    step = load_iteration(1)
    with pytest.raises(EmulationError, match="trap"):
        trace(step, step.configs["a100"], SMALL, kernel=kernel("trap;"))
