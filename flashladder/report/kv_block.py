"""What a KV block costs at each iteration: instructions of a round of the main loop, by kind, from committed locks.

Why per tile of scores: a step that comes with a larger tile runs more instructions a round and fewer rounds. All
figures are warp instructions that a CTA issues for 64 queries by 64 keys; tensor instructions are then as many at every
iteration, and the rest is what a step can save. Counts are static: what a round's last execution skips is counted.

Run: ``python analysis/kv_block.py``; the page has them as a heat map.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import load_all
from flashladder.lock.schema import LOCKS, LockedKernel, read_lock
from flashladder.machine_code.opcodes import KINDS, by_kind
from flashladder.names import PUBLISHED_GPU

SIDE = 64  # queries, and keys, of the part of S that counts are for
WARP = 32


@dataclass(frozen=True)
class Cost:
    """One iteration's kernel in one GPU's configuration.

    Attributes:
        config: of the kernel; `locked` is its entry in the lock.
        kinds: warp instructions by kind, for `SIDE` queries by `SIDE` keys.
    """

    config: KernelConfig
    locked: LockedKernel
    kinds: dict[str, float]

    @property
    def total(self) -> float:
        """Of all kinds."""
        return sum(self.kinds.values())


def costs(gpu: str, locks: Path = LOCKS) -> dict[int, Cost]:
    """The cost of each locked iteration in the configuration of a GPU, on its architecture.

    Raises:
        FlashladderError: a lock or an iteration cannot be read.
    """
    lock, found = read_lock(load_gpus()[gpu].arch, locks), {}
    for step in load_all():
        config = step.configs.get(gpu, step.configs[PUBLISHED_GPU])
        entry = lock.iterations.get(step.number)
        kernel = entry.kernels.get(config.short_form()) if entry else None
        if kernel is not None:
            scale = _warps(config) * SIDE**2 / _scores(config)
            kinds = {kind: count * scale for kind, count in by_kind(kernel.main_loop).items()}
            found[step.number] = Cost(config, kernel, kinds)
    return found


def present(found: dict[int, Cost]) -> list[str]:
    """Kinds that occur at any iteration, in their order."""
    return [kind for kind in KINDS if any(cost.kinds[kind] for cost in found.values())]


def _warps(config: KernelConfig) -> int:
    return config.n_threads // WARP


def _scores(config: KernelConfig) -> int:
    """Elements of S that a CTA computes in a round."""
    return config.B_r * config.B_c
