"""The limits that locked machine code must keep: architectures, spills, and the registers of the published kernels."""

from __future__ import annotations

import pytest

from flashladder.config import KernelConfig
from flashladder.counters import REGISTER_TOLERANCE, REGISTERS, read_peer
from flashladder.iteration import load_all
from flashladder.lock_schema import LOCK_ARCHES, read_lock
from flashladder.selection import select_configs

PUBLISHED_SPILLS = 88  # bytes of spill stores at 255 registers: the published (128, 64, 4) kernels


@pytest.mark.parametrize("arch", LOCK_ARCHES)
def test_every_configuration_of_every_gpu_is_locked_in_both_dtypes(arch: str) -> None:
    lock = read_lock(arch)
    assert sorted(lock.iterations) == list(range(1, 17))
    for iteration in load_all():
        expected = {config.short_form() for config in select_configs(iteration, "prog")}
        assert set(lock.iterations[iteration.number].kernels) == expected


@pytest.mark.parametrize("arch", LOCK_ARCHES)
def test_no_kernel_spills_more_than_the_published_ones(arch: str) -> None:
    for number, entry in read_lock(arch).iterations.items():
        for short_form, kernel in entry.kernels.items():
            config = KernelConfig.parse(short_form)
            tile = (config.B_r, config.B_c, config.n_warps)
            allowed = PUBLISHED_SPILLS if tile == (128, 64, 4) and kernel.registers == 255 else 0
            assert kernel.spill_stores <= allowed, f"iteration {number}, {short_form}, {arch}"


def test_registers_are_those_of_the_published_kernels_within_16() -> None:
    peer = read_peer()
    lock = read_lock("sm_90")
    for iteration in load_all():
        kernel = lock.iterations[iteration.number].kernels[iteration.configs["a100"].short_form()]
        assert abs(kernel.registers - peer[iteration.number][REGISTERS]) <= REGISTER_TOLERANCE, iteration.number
