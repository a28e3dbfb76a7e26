"""How often each instruction of an iteration's machine code runs in a launch, from the launch alone.

Why: the same launch that the emulator runs decides the branches of the machine code: its parameters are laid out as the
kernel finds them in constant memory, addresses excepted, and the code is walked through
(`flashladder.machine_code.flow.executions`). The emulator counts the PTX, this counts what ptxas made of it; classes
that have one instruction for one must agree (tests/nvcc/test_executions.py).

Try ``executed(iteration, config, "sm_80", Shape(batch=1, seq_len=4096, n_heads=16, d_head=128)).warp``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from flashladder.build.compile import cubin_for
from flashladder.emulate.kernel import MULTIPROCESSORS, NUMPY_DTYPES, arguments_of, kernel_of
from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.family import Launch
from flashladder.ladder.iteration import Iteration
from flashladder.machine_code.cubin import read_cubin
from flashladder.machine_code.flow.executions import Executions, run
from flashladder.machine_code.flow.regions import LOOP, PEELED, Regions, regions_of
from flashladder.machine_code.flow.values import Constants
from flashladder.machine_code.sass import Sass, disassemble
from flashladder.results.schema import Shape
from ptxemu import Array, pack

WARP = 32
ADDRESSES = (0, (1 << 64) - 16)  # of every tensor: what differs between the two is not known


@dataclass(frozen=True)
class Executed:
    """Machine code and what one launch runs of it.

    Attributes:
        regions: the control flow, and what each block is for.
        warp: what one warp runs; all warps of the kernel run alike.
        warps: of the launch.
    """

    regions: Regions
    warp: Executions
    warps: int

    @property
    def kv_blocks(self) -> int:
        """KV blocks that a CTA goes through: rounds of the main loop, and a peeled one."""
        loop = self.regions.flow.main_loop
        return (int(self.warp.trips(loop)) if loop else 0) + (PEELED in self.regions.present)

    def per_kv_block(self) -> dict[str, float]:
        """Instructions that a warp runs in a round of the main loop, by full opcode; 0 rounds leave nothing."""
        loop = self.regions.flow.main_loop
        rounds = self.warp.blocks[loop.header] if loop else 0
        counts = self.warp.counts(self.regions.blocks(LOOP))
        return {opcode: count / rounds for opcode, count in counts.items() if count} if rounds else {}

    def launch(self) -> Counter[str]:
        """Instructions that all warps of the launch run, by full opcode."""
        return Counter({opcode: count * self.warps for opcode, count in self.warp.counts().items()})


def executed(iteration: Iteration, config: KernelConfig, arch: str, shape: Shape, *, lines: bool = False) -> Executed:
    """What a launch on tensors of `shape` runs; with source `lines` on the instructions, or without.

    Raises:
        FlashladderError: the shape does not fit the configuration, the kernel does not compile, or its branches depend
            on more than the launch.
    """
    launch = launch_of(iteration, config, shape)
    cubin = cubin_for(iteration, config, arch).cubin
    place = read_cubin(cubin).parameters_at
    if place is None:
        raise FlashladderError("the cubin does not say where the kernel's parameters lie", where=relative(cubin))
    return walked(disassemble(cubin, lines=lines), launch, constants_of(iteration, config, launch, place))


def walked(sass: Sass, launch: Launch, constants: Constants, *, asked: bool = False) -> Executed:
    """What a launch runs of machine code that has been read, given what `constants_of` knows; `asked` as of `run`.

    Raises:
        FlashladderError: a branch depends on more than the launch.
    """
    regions = regions_of(sass)
    return Executed(
        regions, run(regions.flow, constants, asked=asked), prod(launch.grid) * -(-prod(launch.block) // WARP)
    )


def launch_of(
    iteration: Iteration, config: KernelConfig, shape: Shape, multiprocessors: int = MULTIPROCESSORS
) -> Launch:
    """The launch on tensors of `shape`, which have no contents; with a fixed row stride, the first heads of wider ones.

    Raises:
        FlashladderError: the tiles do not divide the length.
    """
    for tile, size in config.multiples.items():
        if shape.seq_len % size or shape.seq_len < 1:
            raise FlashladderError("sequence length", expected=f"a multiple of {tile} = {size}", found=shape.seq_len)
    heads = iteration.row_stride // shape.d_head if iteration.row_stride else shape.n_heads
    whole = (shape.batch, shape.seq_len, max(heads, shape.n_heads), shape.d_head)
    one = np.zeros(1, NUMPY_DTYPES[config.dtype])
    strides = [one.itemsize * prod(whole[i + 1 :]) for i in range(4)]
    tensor = as_strided(one, whole, strides, writeable=False)[:, :, : shape.n_heads]  # no memory behind it
    return iteration.family.launch(config, [tensor] * 4, multiprocessors)


def constants_of(iteration: Iteration, config: KernelConfig, launch: Launch, place: int) -> Constants:
    """The words of constant bank 0 that hold a launch's parameters, from offset `place` on, without addresses."""
    function = kernel_of(iteration, config).function
    first, second = (
        np.frombuffer(pack(function, arguments_of(launch), partial(_at, address)), np.uint32) for address in ADDRESSES
    )
    return {place + 4 * i: int(word) for i, word in enumerate(first) if word == second[i]}


def _at(address: int, _: Array) -> int:
    return address
