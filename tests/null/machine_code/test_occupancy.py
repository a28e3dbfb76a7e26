"""CTAs per SM and the resource that limits them, on the GPUs of configs/gpus/."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from flashladder.ladder.gpus import load_gpus
from flashladder.machine_code.ptxas import occupancy

SM = load_gpus()["a100"].sm


@pytest.mark.parametrize(
    ("key", "registers", "threads", "shared", "ctas", "warps", "limited_by"),
    [
        ("a100", 255, 128, 64 * 1024, 2, 8, ("registers", "shared memory")),
        ("a100", 168, 128, 32 * 1024, 3, 12, ("registers",)),
        ("a100", 128, 128, 48 * 1024, 3, 12, ("shared memory",)),
        ("rtx3090", 255, 128, 64 * 1024, 1, 4, ("shared memory",)),
        ("h200", 255, 128, 64 * 1024, 2, 8, ("registers",)),
        ("rtx3090", 16, 1024, 0, 1, 32, ("warps",)),
        ("rtx3090", 16, 32, 0, 16, 16, ("CTAs",)),
        ("rtx4090", 16, 32, 0, 24, 24, ("CTAs",)),
        ("a100", 16, 32, 0, 32, 32, ("CTAs",)),
        ("a100", 16, 64, 0, 32, 64, ("warps", "CTAs")),
        ("a100", 0, 64, 0, 32, 64, ("warps", "CTAs")),
        ("a100", 200, 160, 0, 1, 5, ("registers",)),  # two warps of each partition, though the SM has room for ten
    ],
)  # fmt: skip
def test_ctas_of_an_sm(
    key: str, registers: int, threads: int, shared: int, ctas: int, warps: int, limited_by: tuple[str, ...]
) -> None:
    found = load_gpus()[key].occupancy(registers=registers, threads=threads, shared_bytes=shared)
    assert (found.ctas, found.warps, found.limited_by) == (ctas, warps, limited_by)
    assert found.fraction == warps / load_gpus()[key].sm.warps


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "limited_by"),
    [
        (256, 128, 0, ("registers",)),
        (192, 288, 0, ("registers",)),  # nine warps would fit, and are taken for twelve: three in each partition
        (32, 1056, 0, ("warps",)),
        (32, 128, 163 * 1024 + 1, ("shared memory",)),
    ],
)
def test_what_cannot_be_launched_says_why(
    registers: int, threads: int, shared: int, limited_by: tuple[str, ...]
) -> None:
    found = occupancy(SM, registers=registers, threads=threads, shared_bytes=shared)
    assert (found.ctas, found.warps, found.limited_by) == (0, 0, limited_by)


def test_barriers_limit_where_the_sm_counts_them() -> None:
    many = {"registers": 16, "threads": 32, "shared_bytes": 0, "barriers": 16}
    assert load_gpus()["h100"].occupancy(**many).limited_by == ("barriers",)
    assert "barriers" not in load_gpus()["a100"].occupancy(**many).limits
    assert "barriers" not in load_gpus()["h100"].occupancy(**{**many, "barriers": 0}).limits


@settings(max_examples=200, deadline=None)
@given(
    registers=st.integers(1, 255),
    threads=st.integers(1, 1024),
    shared=st.integers(0, 100 * 1024),
    key=st.sampled_from(sorted(load_gpus())),
)
def test_no_sm_holds_more_than_it_has_nor_one_cta_less(registers: int, threads: int, shared: int, key: str) -> None:
    sm = load_gpus()[key].sm
    found = occupancy(sm, registers=registers, threads=threads, shared_bytes=shared)
    assert found.warps <= sm.warps
    assert found.warps * 32 * registers <= sm.registers
    assert found.ctas * (shared + sm.shared_reserved) <= sm.shared_bytes
    assert found.ctas == min(found.limits[name] for name in found.limited_by)
    fewer = occupancy(sm, registers=max(1, registers - 8), threads=threads, shared_bytes=shared // 2)
    assert fewer.ctas >= found.ctas
