"""Something to time, a kernel of the ladder or a reference: how it is launched, and one checked run of it.

Why apart from `flashladder.bench.run`: kernels and references are timed and checked by one path, and neither knows the
other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashladder.cases.case import Run
from flashladder.cases.inputs import Tensors
from flashladder.cases.reference import Expected, accuracy, gather
from flashladder.ladder.config import KernelConfig
from flashladder.results.schema import Accuracy, kernel_key

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Subject:
    """Something to time.

    Attributes:
        key: how results name it: a kernel's key, or a reference's name.
        dtype: fp16 or bf16.
        launch: queues it once on these tensors and copies nothing besides.
        returns: `launch` returns O, (B, S, H, D), instead of writing it into the tensors' own.
    """

    key: str
    dtype: str
    launch: Callable[[Tensors], object]
    returns: bool = False

    def fill(self, tensors: Tensors) -> None:
        """Launches once and leaves the result in `tensors.out`."""
        found = self.launch(tensors)
        if self.returns:
            tensors.out.copy_(found)  # type: ignore[arg-type]  # a tensor, as `returns` says


@dataclass(frozen=True)
class Fingerprint:
    """What one run wrote: the sum of all its bits as 32-bit integers, and the compared slices themselves."""

    total: int
    slices: torch.Tensor

    def same(self, other: Fingerprint) -> bool:
        """Whether both runs wrote the same bits."""
        import torch

        return self.total == other.total and torch.equal(self.slices.view(torch.int16), other.slices.view(torch.int16))


def kernel_subject(iteration: int, config: KernelConfig, run: Run, variant: str = "") -> Subject:
    """A kernel of the ladder, or an ablation of one: `run(q, k, v, out, short_form)`."""
    form = config.short_form()
    return Subject(
        kernel_key(iteration, form, variant),
        config.dtype,
        lambda tensors: run(tensors.q, tensors.k, tensors.v, tensors.out, form),
    )


def checked_run(subject: Subject, tensors: Tensors, expected: Expected) -> tuple[Accuracy, Fingerprint]:
    """One run on poisoned output, compared with the high-precision reference."""
    import torch

    tensors.poison()
    subject.fill(tensors)
    found = accuracy(tensors.out, expected)
    total = int(tensors.out.view(torch.int32).sum(dtype=torch.int64))
    return found, Fingerprint(total, gather(tensors.out, expected.slices))
