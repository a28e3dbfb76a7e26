"""What the model knows of a GPU: rates and latencies of one SM, in clocks.

Why apart from the files: ``configs/gpus/`` has rates per clock and SM, as they are measured and documented, each with
its source; the model needs the clocks for which one of four schedulers and its pipes are taken. What neither a document
nor a measurement gives is in `ASSUMED`, one number for all GPUs, fitted to none.

Try ``chip_of(load_gpus()["h200"])``.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashladder.ladder.gpus import Gpu

SCHEDULERS = 4  # of an SM, from compute capability 7.0 on
DRAM_UNIT = 1e9  # GB/s


@dataclass(frozen=True)
class Assumed:
    """Clocks and sizes that nobody documents, the same for every GPU.

    Attributes:
        queue: instructions of one scheduler that may wait for shared memory before the next one cannot be issued.
        to_shared: clocks from issue to the pipe of shared memory.
        operands_read: clocks until the address of a memory instruction may be overwritten.
        branch: clocks from a branch that is taken to the next instruction.
        launch: clocks from a CTA's end to the first instruction of the next one in its place.
        copy_wavefronts: wavefronts that a cp.async of 16 bytes per lane takes when its data are written.
        variable: clocks of an instruction that sets a scoreboard and has no latency of its own here.
        store: clocks until a store's data may be overwritten.
    """

    queue: int = 8
    to_shared: int = 2
    operands_read: int = 6
    branch: int = 8
    launch: int = 500
    copy_wavefronts: int = 4
    variable: int = 14
    store: int = 20


ASSUMED = Assumed()


@dataclass(frozen=True)
class Chip:
    """One SM in clocks; of a pipe, those for which an instruction of a warp holds it on one of four schedulers.

    Attributes:
        mma: tensor pipe; `mma_issue` of those clocks the scheduler can issue nothing else.
        fma, imad, alu, mufu: the other pipes; an imad, and a conversion to 16
            bit, hold the FMA pipe for longer than an fma: mixed rounds on the chip take the sum of both.
        l2: bytes per clock and SM from L2; `dram` from memory, at the boost clock.
        mma_latency, shared_latency, shuffle_latency, mufu_latency, barrier_latency, l2_latency: from issue to result.
        shared_return: clocks for which each wavefront of a load holds the way back into a scheduler's registers.
        sms: of the GPU.
    """

    mma: float
    mma_issue: float
    fma: float
    imad: float
    alu: float
    mufu: float
    l2: float
    dram: float
    mma_latency: float
    shared_latency: float
    shared_return: float
    shuffle_latency: float
    mufu_latency: float
    barrier_latency: float
    l2_latency: float
    sms: int


def chip_of(gpu: Gpu) -> Chip:
    """One SM of a GPU.

    Raises:
        FlashladderError: the GPU's file lacks a rate.
    """
    pipes = {name: SCHEDULERS / gpu.rate(name) for name in ("mma", "fma", "imad", "alu", "mufu")}
    latencies = ("mma", "shared", "shuffle", "mufu", "barrier", "l2")
    per_clock = gpu.peaks["memory_bandwidth"].value * DRAM_UNIT / (gpu.peaks["boost_clock"].value * 1e6)
    return Chip(
        **pipes,
        **{f"{name}_latency": gpu.rate(f"{name}_latency") for name in latencies},
        mma_issue=gpu.rate("mma_issue"),
        shared_return=gpu.rate("shared_return"),
        l2=gpu.rate("l2"),
        dram=per_clock / gpu.whole("sms"),
        sms=gpu.whole("sms"),
    )
