"""Scripts of analysis/ that measure or simulate: odd arguments end with one line, the simulation is an attention."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from analysis import accuracy, stale_maximum
from flashladder.build.installed import Installed
from flashladder.gate.verify import verify_file
from flashladder.ladder.iteration import load_all
from flashladder.lock.schema import read_lock
from flashladder.report.accuracy import render
from flashladder.trace.reference import SLACK

ODD = (
    (("--seq-len", "0"), "expected numbers above 0, --seq-len a multiple of 512"),
    (("--seq-len", "100"), "expected numbers above 0, --seq-len a multiple of 512"),
    *(
        (("--scale", scale, "--seq-len", "512", "--heads", "1", "--seeds", "1"), "FA2's errors cannot be divided by")
        for scale in ("nan", "1e300")
    ),
)


@pytest.mark.parametrize(("words", "says"), ODD, ids=[" ".join(words) for words, _ in ODD])
def test_the_simulation_refuses(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        stale_maximum.main(words)
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert says in told.err
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert not told.out


@pytest.mark.parametrize("slack", [None, 1.5, 8.0, stale_maximum.HEAVY])
def test_the_simulation_is_an_attention(slack: stale_maximum.Rule) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(256, stale_maximum.D_HEAD, generator=generator) for _ in range(3))
    scores = q @ k.T
    used = stale_maximum.maxima(scores, stale_maximum.ROWS, slack)
    above = scores.view(256, -1, stale_maximum.ROWS).amax(2) * stale_maximum.SCALE - used
    most = SLACK + 1e-5 if isinstance(slack, str) else slack
    assert above.max() <= (most or 0.0)
    if slack is not None:
        assert above.max() > 0, "no maximum is stale"
    got = stale_maximum.output(scores, v, torch.float16, stale_maximum.ROWS, slack)
    want = torch.softmax(scores.double() / stale_maximum.D_HEAD**0.5, 1) @ v.double()
    assert torch.allclose(got.double(), want, atol=2e-3, rtol=2e-3)


def test_a_heavy_row_follows_its_maximum_and_a_light_one_has_slack() -> None:
    scores = torch.zeros(16, 256)
    scores[:8, 100] = 40 / stale_maximum.SCALE  # far above all others
    scores[:8, 150] = 41 / stale_maximum.SCALE
    scores[8:, :64] = 5 / stale_maximum.SCALE  # sixty-four alike, and then one a little above them
    scores[8:, 100] = 5.5 / stale_maximum.SCALE
    scores[8:, 150] = 7 / stale_maximum.SCALE
    used = stale_maximum.maxima(scores, 64, stale_maximum.HEAVY)
    assert used[0].tolist() == pytest.approx([-2, 38, 39, 39])
    assert used[8].tolist() == pytest.approx([3, 5.5, 5.5, 5.5])
    assert stale_maximum.maxima(scores, 64, 2.0)[0].tolist() == pytest.approx([0, 40, 40, 40])


def test_errors_are_not_measured_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit) as ended:
        accuracy.main(["--wheels", str(tmp_path), "--out", str(tmp_path / "out.json.gz")])
    assert ended.value.code == 2
    assert "no GPU that torch can use" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draws of the study on this CPU, each at a length that takes no time."""
    monkeypatch.setattr(accuracy, "DEVICE", "cpu")
    monkeypatch.setattr(accuracy, "HEADS", 2)
    seeds = [seeds for *_, seeds in accuracy.NORMAL]
    monkeypatch.setattr(accuracy, "NORMAL", [(8 + n, 1, count) for n, count in enumerate(seeds)])
    monkeypatch.setattr(accuracy, "OTHERS", (64, 96, 128))


@pytest.mark.usefixtures("small")
def test_rows_with_one_key_and_rows_with_all_of_them() -> None:
    made = {
        inputs: accuracy.tensors(accuracy.Case(inputs, 128, 1, 0), torch.float64) for inputs in ("one-hot", "equal")
    }
    weights = {}
    for inputs, (q, k, _) in made.items():
        scores = q.transpose(1, 2) @ k.transpose(1, 2).mT / accuracy.D_HEAD**0.5
        weights[inputs] = torch.softmax(scores, -1)
    assert torch.equal(weights["one-hot"].argmax(-1), (torch.arange(128) - 64).remainder(128).expand(1, 2, 128))
    most = weights["one-hot"].amax(-1)
    assert most.median() > 0.999
    assert most.max() < 1
    assert torch.allclose(weights["equal"], torch.full_like(weights["equal"], 1 / 128), rtol=1e-5)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """In fp32, with P rounded as the kernels round it."""
    scores = q.float().transpose(1, 2) @ k.float().transpose(1, 2).mT / accuracy.D_HEAD**0.5
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    out = p.to(q.dtype).float() @ v.float().transpose(1, 2) / p.sum(-1, keepdim=True)
    return out.transpose(1, 2).to(q.dtype)


def moody(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A library that refuses one length."""
    if q.shape[1] == 96:
        raise ValueError("96 is not for me")
    return attention(q, k, v)


@pytest.fixture
def measured(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with FA2, cuDNN, an FA4 that fails now and then and the locked kernels of the Hopper family."""
    properties = SimpleNamespace(name="NVIDIA H200", uuid="0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    beside = {"fa2": attention, "cudnn": attention, "fa4": moody}
    monkeypatch.setattr(accuracy, "libraries", lambda _: (beside, {"cudnn": "9.19.0", "fa4": "4.0"}))
    monkeypatch.setattr(accuracy, "kernels", lambda _, numbers: {str(number): attention for number in numbers})
    lock = read_lock("sm_90a")

    def installed(number: int) -> Installed:
        forms = lock.iterations[number].kernels.items()
        own = {form: {"sm_90a": {"text_sha256": locked.text_sha256}} for form, locked in forms}
        return Installed(number, attention, {"kernels": own})

    monkeypatch.setattr("flashladder.build.installed.load_installed", installed)


@pytest.mark.usefixtures("measured")
def test_a_family_is_measured_beside_libraries_and_the_gate_takes_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "h200" / "accuracy_hopper.json.gz"
    path.parent.mkdir()
    line = ["--wheels", str(tmp_path), "--family", "hopper", "--references", "all", "--out", str(path)]
    assert accuracy.main(line) == 0
    numbers = [step.number for step in load_all() if step.family.name == "hopper"]
    assert accuracy.steps("hopper") == tuple(numbers)
    assert min(accuracy.steps("ampere")) == 16
    told = capsys.readouterr().out
    assert "left out: fa4 fails at Case(inputs='scale 2', seq_len=96, batch=1, seed=1): 96 is not for me" in told
    assert f"equal      cudnn: 1.00 {numbers[0]}: 1.00" in told
    assert [line for line in verify_file(path).details if "locked" not in line] == []
    (made,) = render(tmp_path).items()
    assert made[0] == "accuracy_hopper_h200.md"
    page = made[1].decode()
    assert f"| {numbers[-1]}: max | {numbers[-1]}: RMS | cudnn: max | cudnn: RMS | FA2's max |" in page
    assert "is held for other libraries: cudnn 9.19.0." in page
    assert page.count("| one key has all weight ") == page.count("| equal logits ") == 2
