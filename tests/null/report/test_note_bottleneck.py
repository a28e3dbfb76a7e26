"""The bottleneck table of a note: the committed predictions of the locked kernels, and nothing where there are none."""

from __future__ import annotations

from collections.abc import Mapping
import json
from pathlib import Path

import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder.iteration import load_iteration
from flashladder.names import GPUS
from flashladder.report.data import Ladder, collect
from flashladder.report.reasons import PREDICTIONS, bottleneck, locked


@pytest.fixture(scope="module")
def ladder() -> Ladder:
    """The committed results."""
    return collect()


def folder_of(folder: Path, **other: Mapping[str, object]) -> Path:
    """Results with predictions of iteration 8; `other` replaces facts by GPU."""
    gpus = {
        gpu: [
            {
                "iteration": 8,
                "text_sha256": locked(load_iteration(8), gpu).text_sha256,
                "clocks": 2000.0,
                "resources": {"tensor": 1000.0, "ALU": 100.0, "issue slots": 1500.0},
                "binding": "issue slots",
                "percent_of_fa2": 91.44,
            }
            | dict(other.get(gpu, {}))
        ]
        for gpu in GPUS
    }
    (folder / PREDICTIONS).parent.mkdir()
    (folder / PREDICTIONS).write_text(json.dumps({"gpus": gpus}), encoding="utf-8")
    return folder


def test_a_table_says_what_is_asked_what_binds_and_how_far_the_model_is_off(ladder: Ladder, tmp_path: Path) -> None:
    lines = list(bottleneck(ladder, 8, folder_of(tmp_path, rtx3090={"binding": "tensor", "clocks": 4000.0})))
    assert lines[0] == "## Bottleneck"
    assert lines[5:] == [
        "| | A100 | RTX 3090 | H200 |",
        "| --- | ---: | ---: | ---: |",
        "| issue slots | 75 % | 38 % | 75 % |",
        "| tensor | 50 % | 25 % | 50 % |",
        "| ALU | 5 % | 2 % | 5 % |",
        "| clocks | 2,000 | 4,000 | 2,000 |",
        "| binds | issue slots | tensor | issue slots |",
        "| predicted, of FA2 | 91.4 % | 91.4 % | 91.4 % |",
        "| published or measured | 87.8 % | 101.7 % | 97.5 % |",
        "",
    ]


def test_without_predictions_there_is_no_table(ladder: Ladder, tmp_path: Path) -> None:
    assert list(bottleneck(ladder, 8, tmp_path)) == []


def test_a_prediction_of_another_kernel_is_refused(ladder: Ladder, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, h200={"text_sha256": "0" * 64})
    with pytest.raises(FlashladderError, match=r"iteration 8 on h200 is not what was predicted: expected .*found 0000"):
        list(bottleneck(ladder, 8, folder))
    with pytest.raises(FlashladderError, match="no prediction of iteration 9 on a100"):
        list(bottleneck(ladder, 9, folder))


def test_a_malformed_prediction_is_named(ladder: Ladder, tmp_path: Path) -> None:
    (folder_of(tmp_path) / PREDICTIONS).write_text("{}", encoding="utf-8")
    with pytest.raises(FlashladderError, match=r"predictions.json: no prediction of iteration 8 on a100: found 'gpus'"):
        list(bottleneck(ladder, 8, tmp_path))
