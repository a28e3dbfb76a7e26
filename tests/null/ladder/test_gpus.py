"""GPU descriptions: every committed file is valid, names lead to keys, and a malformed file is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import GPUS, gpu_key, load_gpus, require_fit

GOOD = """\
gpu: z9
title: Z9
names: ["Zeta Z9*"]
arch: sm_80
peaks:
  memory_bandwidth: {value: 10, unit: GB/s, source: a datasheet}
  threads_per_block: {value: 1024, unit: thread/block, source: a guide}
  shared_memory_per_block: {value: 64, unit: KiB, source: a guide}
  registers_per_thread: {value: 255, unit: register/thread, source: a guide}
  registers_per_block: {value: 65536, unit: register/block, source: a guide}
"""
LIMIT = "  threads_per_block: {value: 1024, unit: thread/block, source: a guide}\n"


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


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: Z9", "titel: Z9", "2: unknown key 'titel': expected one of gpu, title, names, arch, peaks"),
        ("title: Z9\n", "", "1: missing key 'title'"),
        (
            "value: 10,",
            "value: 0,",
            "6: bad value for 'peaks.memory_bandwidth.value': expected greater than 0, found 0",
        ),
        ("value: 10,", "value: .inf,", "6: bad value for 'peaks.memory_bandwidth.value': expected a finite number"),
        ("unit: GB/s", "unit: TB/s", "5: bad value for 'peaks': expected memory_bandwidth in GB/s, found TB/s"),
        ("value: 255,", "value: 25.5,", "5: bad value for 'peaks': expected registers_per_thread as a whole number"),
        (", source: a datasheet", "", "6: missing key 'peaks.memory_bandwidth.source'"),
        ('["Zeta Z9*"]', "[]", "3: 'names' is empty"),
        ("arch: sm_80", "arch: ampere", r"4: bad value for 'arch': expected text matching ^sm_\d+$, found 'ampere'"),
        ("arch: sm_80", "arch: 0200", "4: a value that programs read differently: expected a whole number in decimals"),
        ("gpu: z9", "gpu: z8", "1: key and file name differ: expected z9, found z8"),
        (LIMIT, "", "1: bad value for 'the file': expected threads_per_block, shared_memory_per_block, registers_per"),
        (GOOD, "[1, 2]", "1: wrong content: expected a mapping of keys to values, found list [1, 2]"),
        (GOOD, "a: [", "1: not valid YAML, "),
        (GOOD, f"gpu: {'[' * 500}{']' * 500}", "1: not valid YAML, it nests deeper than 24 levels"),
    ],
)
def test_a_malformed_file_is_one_clear_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    (tmp_path / "z9.yaml").write_text(GOOD.replace(old, new))
    with pytest.raises(FlashladderError) as caught:
        load_gpus(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'z9.yaml'}:{message}")
    assert "\n" not in str(caught.value)


SHORT = "(FP16, 128, {}, {}, {}): async+eager+swizzled+load_2_2_2_tiles"


@pytest.mark.parametrize(
    ("key", "tile", "message"),
    [
        ("a100", (256, 256, 8), "expected at most 166912 bytes of shared memory per CTA, as A100 has, found 196608"),
        ("rtx3090", (256, 128, 8), "at most 101376 bytes of shared memory per CTA, as RTX 3090 has, found 131072"),
        ("rtx3090", (128, 128, 4), None),
        ("h200", (256, 128, 8), None),
        ("h200", (256, 256, 8), "at most 65536 registers per CTA for O and S, as H200 has, found 98304"),
        ("h100", (256, 64, 4), "at most 255 registers per thread for O, as H100 has, found 256"),
        ("a100", (1024, 16, 64), "at most 1024 threads per CTA, as A100 has, found 2048"),
    ],
)  # fmt: skip
def test_a_configuration_fits_its_gpu(key: str, tile: tuple[int, int, int], message: str | None) -> None:
    config = KernelConfig.parse(SHORT.format(*tile))
    if message is None:
        require_fit(key, config)
        return
    with pytest.raises(FlashladderError) as caught:
        require_fit(key, config)
    assert str(caught.value).startswith(f"the configuration is too large for {key}: expected ")
    assert message in str(caught.value)


def test_the_gpu_of_a_configuration_is_described_and_compiled_for(tmp_path: Path) -> None:
    config = KernelConfig.parse(SHORT.format(64, 64, 4))
    (tmp_path / "z9.yaml").write_text(GOOD.replace("arch: sm_80", "arch: sm_70"))
    with pytest.raises(FlashladderError, match=r"no GPU z8 is described: expected z8\.yaml, found z9"):
        require_fit("z8", config, tmp_path)
    with pytest.raises(FlashladderError, match=r"no machine code is made for z9: expected sm_80, .*, found sm_70"):
        require_fit("z9", config, tmp_path)
