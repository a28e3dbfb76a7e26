"""GPU descriptions: every committed file is valid, names lead to keys, and a malformed file is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.errors import FlashladderError
from flashladder.gpus import GPUS, gpu_key, load_gpus

GOOD = """\
gpu: z9
title: Z9
names: ["Zeta Z9*"]
arch: sm_80
peaks: {memory_bandwidth: {value: 10, unit: GB/s, source: a datasheet}}
"""


def test_every_committed_file_is_valid_and_named_after_its_gpu() -> None:
    assert {path.stem for path in GPUS.glob("*.yaml")} == set(load_gpus()) >= {"a100", "rtx3090", "h200"}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-PCIE-40GB", "a100"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("nvidia geforce rtx 4090", "rtx4090"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce GTX 1080", None),
        ("", None),
    ],
)
def test_a_drivers_name_leads_to_a_key(name: str, key: str | None) -> None:
    assert gpu_key(name) == key


def test_no_name_is_claimed_by_two_files() -> None:
    for gpu in load_gpus().values():
        for pattern in gpu.names:
            owners = [other.gpu for other in load_gpus().values() if other.matches(pattern.replace("*", ""))]
            assert owners == [gpu.gpu]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: Z9", "titel: Z9", "bad GPU description, title: expected Field required"),
        (
            "title: Z9",
            "title: Z9\ncolour: green",
            "bad GPU description, colour: expected Extra inputs are not permitted",
        ),
        (
            "value: 10",
            "value: 0",
            "bad GPU description, peaks.memory_bandwidth.value: expected Input should be greater",
        ),
        (", source: a datasheet", "", "bad GPU description, peaks.memory_bandwidth.source: expected Field required"),
        ('["Zeta Z9*"]', "[]", "bad GPU description, names: expected Tuple should have at least 1 item"),
        ("arch: sm_80", "arch: ampere", "bad GPU description, arch: expected String should match pattern"),
        ("gpu: z9", "gpu: z8", "key and file name differ: expected z9, found z8"),
        (GOOD, "[1, 2]", "bad GPU description, the whole file: expected Input should be a valid dictionary"),
        (GOOD, "a: [", "not YAML: found"),
    ],
)
def test_a_malformed_file_is_one_clear_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    (tmp_path / "z9.yaml").write_text(GOOD.replace(old, new))
    with pytest.raises(FlashladderError) as caught:
        load_gpus(tmp_path)
    assert message in str(caught.value)
    assert "z9.yaml: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_good_file_is_good(tmp_path: Path) -> None:
    (tmp_path / "z9.yaml").write_text(GOOD)
    assert gpu_key("Zeta Z9 PCIe", tmp_path) == "z9"
    assert load_gpus(tmp_path)["z9"].peaks["memory_bandwidth"].value == 10
