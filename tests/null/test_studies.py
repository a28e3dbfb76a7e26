"""Scripts of analysis/ that measure or simulate: odd arguments end with one line, the simulation is an attention."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from analysis import accuracy, stale_maximum
from flashladder.errors import FlashladderError

ODD = (
    (("--seq-len", "0"), "expected a number above 0, found '0'"),
    (("--seq-len", "100"), "expected a multiple of 512, found '100'"),
    (("--heads", "1.5"), "expected a whole number, found '1.5'"),
    (("--seeds", "0"), "expected a number above 0, found '0'"),
    (("--scale", "nan"), "expected a number above 0, found 'nan'"),
    (("--scale", "wide"), "expected a number above 0, found 'wide'"),
)


@pytest.mark.parametrize(("words", "says"), ODD, ids=[" ".join(words) for words, _ in ODD])
def test_the_simulation_refuses(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        stale_maximum.main(words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("slack", [None, 1.5, 8.0])
def test_the_simulation_is_an_attention(slack: float | None) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(256, stale_maximum.D_HEAD, generator=generator) for _ in range(3))
    scores = q @ k.T
    used = stale_maximum.maxima(scores, stale_maximum.ROWS, slack)
    above = scores.view(256, -1, stale_maximum.ROWS).amax(2) * stale_maximum.SCALE - used
    assert above.max() <= (slack or 0.0)
    if slack is not None:
        assert above.max() > 0, "no maximum is stale"
    got = stale_maximum.output(scores, v, torch.float16, stale_maximum.ROWS, slack)
    want = torch.softmax(scores.double() / stale_maximum.D_HEAD**0.5, 1) @ v.double()
    assert torch.allclose(got.double(), want, atol=2e-3, rtol=2e-3)


def test_errors_are_not_measured_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit) as ended:
        accuracy.main(["--wheels", str(tmp_path), "--out", str(tmp_path / "out.json.gz")])
    assert ended.value.code == 2
    assert "no GPU that torch can use" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_errors_are_those_of_unpacked_wheels(tmp_path: Path) -> None:
    with pytest.raises(FlashladderError, match="no unpacked wheel of iteration 16"):
        accuracy.kernels(tmp_path)
