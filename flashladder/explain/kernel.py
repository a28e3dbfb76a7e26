"""A kernel as the model takes it: the instructions of one KV block and of a short CTA, in the order in which they run.

Why from a launch: which way branches go, how many rounds the loop makes and what is peeled follow from the kernel's
parameters (`flashladder.machine_code.flow.executions`), not from a guess about the listing. A CTA of a few KV blocks is
walked through from its first instruction to its last; longer ones differ by rounds of the loop. What a warp votes on,
its data, decides branches too: every block takes the common path, on which no lane asks (docs/explain.md).

Try ``kernel_of(load_iteration(16), config, "sm_80")``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from flashladder.build.compile import cubin_for
from flashladder.emulate.executions import constants_of, launch_of
from flashladder.emulate.kernel import forward, make_tensors
from flashladder.emulate.reading import READING, load_reading
from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.machine_code.cubin import Cubin, read_cubin
from flashladder.machine_code.flow.executions import path
from flashladder.machine_code.flow.formulas import is_vote
from flashladder.machine_code.flow.regions import regions_of
from flashladder.machine_code.flow.values import operands
from flashladder.machine_code.occupancy import WARP
from flashladder.machine_code.sass import Instruction, disassemble
from flashladder.names import WAVEFRONTS
from flashladder.results.schema import Shape
from ptxemu import Counters

KV_BLOCKS = 4  # of the short CTA: enough for what is peeled and for rounds of the loop
HEADS, D_HEAD = 16, 128


@dataclass(frozen=True)
class Kernel:
    """One iteration's machine code in one configuration, and what runs of it.

    Attributes:
        iteration: of the ladder, or an ablation.
        config: of it.
        cubin: its machine code.
        whole: instructions of a warp from a CTA's begin to its end, with `kv_blocks` KV blocks.
        block: those of one round of the main loop: a KV block.
        kv_blocks: of `whole`.
        conflicts: wavefronts of loads from shared memory over those without bank conflicts, as the emulator counts
            them in the PTX.
        votes: votes of the warp in `block`; none is taken to find a lane that asks for what stands behind it.
    """

    iteration: Iteration
    config: KernelConfig
    cubin: Cubin
    whole: tuple[Instruction, ...]
    block: tuple[Instruction, ...]
    kv_blocks: int
    conflicts: float
    votes: int = 0

    @property
    def warps(self) -> int:
        """Of a CTA."""
        return self.needs["threads"] // WARP

    @cached_property
    def needs(self) -> dict[str, int]:
        """Registers, threads and shared bytes of a CTA, as occupancy asks for them."""
        needs = {name: value for name, (value, _) in self.config.needs().items()}
        return {
            "registers": self.cubin.registers,
            "threads": needs["threads_per_block"],
            "shared_bytes": needs["shared_memory_per_block"],
        }


def kernel_of(iteration: Iteration, config: KernelConfig, arch: str) -> Kernel:
    """An iteration's kernel, compiled if it is not in the store yet.

    Raises:
        FlashladderError: it does not compile, loops over nothing, or its branches depend on more than the launch.
    """
    compiled = cubin_for(iteration, config, arch).cubin
    cubin = read_cubin(compiled)
    if cubin.parameters_at is None:
        raise FlashladderError("the cubin does not say where the kernel's parameters lie", where=relative(compiled))
    length = short_length(config)
    launch = launch_of(iteration, config, Shape(batch=1, seq_len=length, n_heads=HEADS, d_head=D_HEAD))
    flow = regions_of(disassemble(compiled, lines=False)).flow
    order = list(path(flow, constants_of(iteration, config, launch, cubin.parameters_at)))
    starts = [place for place, block in enumerate(order) if flow.main_loop and block == flow.main_loop.header]
    if len(starts) < 2:
        raise FlashladderError(
            "the kernel has no loop over KV blocks", where=relative(compiled), expected="rounds of a main loop",
            found=f"{len(starts)} with {length} keys",
        )  # fmt: skip
    block = tuple(one for index in order[starts[0] : starts[1]] for one in flow.code(index))
    return Kernel(
        iteration=iteration,
        config=config,
        cubin=cubin,
        whole=tuple(one for index in order for one in flow.code(index)),
        block=block,
        kv_blocks=length // config.B_c,
        conflicts=conflicts_of(iteration, config),
        votes=sum(is_vote(one, operands(one)) for one in block),
    )


def short_length(config: KernelConfig) -> int:
    """The sequence length of the short CTA: `KV_BLOCKS` KV blocks, and whole blocks of query rows."""
    least = KV_BLOCKS * config.B_c
    return -(-least // config.B_r) * config.B_r


def conflicts_of(iteration: Iteration, config: KernelConfig) -> float:
    """Wavefronts of loads from shared memory over those without bank conflicts, as the emulator counts them.

    They are read where they were counted, in the A100's configuration, and counted on a short CTA where not.

    Raises:
        EmulationError: the kernel does something it may not.
    """
    read = READING.is_file() and not iteration.is_ablation
    found = load_reading().find(iteration.number) if read else None
    if found is not None:
        return found.counters[WAVEFRONTS.format("ld")] / found.ideal_wavefronts["ld"]
    counters = Counters()
    shape = Shape(batch=1, seq_len=config.multiples["B_r"], n_heads=1, d_head=D_HEAD)
    forward(iteration, config, make_tensors(iteration, config, shape), observers=(counters,))
    return counters.as_dict()[WAVEFRONTS.format("ld")] / counters.traffic("shared", "ld").phases
