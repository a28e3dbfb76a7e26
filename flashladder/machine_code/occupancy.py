"""How many CTAs of a kernel one SM holds at once, and which resource says so.

Why: warps that wait hide behind warps that run, so that registers and shared memory, which decide how many there are,
decide speed as well. The rules are those of NVIDIA's own calculator, ``cuda_occupancy.h`` of the CUDA runtime's wheel,
for compute capability 8.0 to 9.0 (`tests/nvcc/test_occupancy.py` runs it beside this one); the numbers come from
configs/gpus/ by way of `flashladder.ladder.gpus.Gpu.sm`.

Try ``load_gpus()["a100"].occupancy(registers=255, threads=128, shared_bytes=65536)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

WARP = 32  # threads


@dataclass(frozen=True)
class Sm:
    """What one streaming multiprocessor has, and in which pieces it gives it away.

    Attributes:
        warps: resident at once.
        ctas: resident at once.
        registers: of 32 bits.
        partitions: of the SM; each has its share of the registers, and a warp lives in one of them.
        register_unit: registers, in multiples of which a warp gets its own.
        registers_per_cta: the most that one CTA may have.
        registers_per_thread: the most that one thread may have.
        threads_per_cta: the most that one CTA may have.
        shared_bytes: shared memory, at its largest share of the L1.
        shared_unit: bytes, in multiples of which a CTA gets shared memory.
        shared_reserved: bytes that every CTA takes for the system.
        barriers: named barriers; None where they are no limit (before compute capability 9.0).
    """

    warps: int
    ctas: int
    registers: int
    partitions: int
    register_unit: int
    registers_per_cta: int
    registers_per_thread: int
    threads_per_cta: int
    shared_bytes: int
    shared_unit: int
    shared_reserved: int
    barriers: int | None = None


@dataclass(frozen=True)
class Occupancy:
    """What one SM holds of a kernel.

    Attributes:
        limits: CTAs that each resource alone would allow, by its name: ``warps``, ``CTAs``, ``registers``, ``shared
            memory``, ``barriers``; a resource that the kernel does not use is not listed.
        warps_per_cta: warps of one CTA.
        most_warps: warps that the SM can hold.
    """

    limits: Mapping[str, int]
    warps_per_cta: int
    most_warps: int

    @cached_property
    def ctas(self) -> int:
        """CTAs that are resident at once; 0 when the kernel cannot be launched."""
        return min(self.limits.values())

    @property
    def warps(self) -> int:
        """Warps that are resident at once."""
        return self.ctas * self.warps_per_cta

    @property
    def fraction(self) -> float:
        """Resident warps of those that the SM can hold, 0 to 1: what profilers call the theoretical occupancy."""
        return self.warps / self.most_warps

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that allow no more CTAs than there are, in the order of `limits`; at least one."""
        return tuple(name for name, ctas in self.limits.items() if ctas == self.ctas)


def occupancy(sm: Sm, *, registers: int, threads: int, shared_bytes: int, barriers: int = 1) -> Occupancy:
    """What one SM holds of a kernel.

    Args:
        sm: the streaming multiprocessor.
        registers: of 32 bits, per thread, as ptxas tells.
        threads: of a CTA, at least 1.
        shared_bytes: of a CTA, static and dynamic.
        barriers: named barriers of a CTA, as ptxas tells.
    """
    warps = up(threads, WARP) // WARP
    limits = {
        "registers": _by_registers(sm, registers, warps),
        "shared memory": _by_shared_memory(sm, shared_bytes),
        "warps": sm.warps // warps if threads <= sm.threads_per_cta else 0,
        "CTAs": sm.ctas,
    }
    if not registers:
        del limits["registers"]
    if sm.barriers is not None and barriers:
        limits["barriers"] = sm.barriers // barriers
    return Occupancy(limits, warps, sm.warps)


def _by_registers(sm: Sm, registers: int, warps: int) -> int:
    """A warp's registers are rounded up to the unit and lie in one partition.

    A launch is refused, as the hardware does, by what its CTA would take if each partition had as many warps of it.
    """
    per_warp = up(registers * WARP, sm.register_unit)
    if registers > sm.registers_per_thread or per_warp * up(warps, sm.partitions) > sm.registers_per_cta:
        return 0
    return sm.registers // sm.partitions // per_warp * sm.partitions // warps if per_warp else 0


def _by_shared_memory(sm: Sm, shared_bytes: int) -> int:
    """Every CTA takes what is reserved besides its own; both together are rounded up to the unit."""
    return sm.shared_bytes // up(shared_bytes + sm.shared_reserved, sm.shared_unit)


def up(number: int, unit: int) -> int:
    """`number` rounded up to a multiple of `unit`."""
    return -(-number // unit) * unit
