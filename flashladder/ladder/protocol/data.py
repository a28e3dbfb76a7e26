"""The data that a family answers with: targets, contradictions, exclusions, a launch, models of its part of a file.

Nothing to run here; `flashladder.ladder.family` is the protocol that uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True)
class Targets:
    """What a family's sources are compiled for: one PTX, and machine code made from it."""

    ptx: str  # compute_80; compute_90a is for one architecture alone
    arches: tuple[str, ...]  # sm_80, sm_86 ...

    @property
    def alone(self) -> bool:
        """Whether no later GPU takes the PTX."""
        return self.ptx.endswith("a")

    def serving(self, arch: str) -> str | None:
        """Whose machine code a GPU of an architecture runs: ``sm_90a`` on sm_90, else its own; None without any."""
        return next((own for own in (arch, f"{arch}a") if own in self.arches), None)


@dataclass(frozen=True)
class Contradiction:
    """Values of a few concerns that exclude each other, and why."""

    why: str
    concerns: tuple[str, ...]


@dataclass(frozen=True)
class Exclusion:
    """A rule that takes configurations out of the tuning space.

    Attributes:
        name: one word for reports.
        why: the mechanism by which such a configuration loses.
        excludes: whether the rule applies to a configuration.
    """

    name: str
    why: str
    excludes: Callable[[Any], bool]


@dataclass(frozen=True, eq=False)
class TensorBox:
    """A tensor and the box of it that one copy moves: what a tensor map is made of; axes are listed innermost first.

    Attributes:
        tensor: the array whose first element is the tensor's.
        dtype: of its elements, fp16 or bf16.
        dims: elements along each axis.
        strides: bytes between neighbours along each axis but the first, whose elements are adjacent.
        box: elements that a copy spans along each axis.
        swizzle: bytes within which the box's rows are permuted in shared memory.
    """

    tensor: Any
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True)
class Launch:
    """A launch as data: what an emulator, or a driver, is told beside the kernel.

    Attributes:
        grid: CTAs in x, y and z.
        block: threads of a CTA in x (y, z).
        arguments: the kernel's parameters in order; a structure is a tuple of its members, a tensor map a `TensorBox`.
        shared_bytes: dynamic shared memory of a CTA.
        cluster: CTAs of a cluster in x, y and z.
        resident: a CTA goes on with what is left, so that no more of x are launched than there are multiprocessors.
    """

    grid: tuple[int, int, int]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    shared_bytes: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    resident: bool = False

    def ctas(self, multiprocessors: int) -> tuple[int, int, int]:
        """The grid as a GPU with so many multiprocessors gets it."""
        x, y, z = self.grid
        return (min(x, multiprocessors) if self.resident else x, y, z)


class Model(BaseModel):
    """Part of a YAML file: no unknown keys, no conversion between types, no change after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Knobs(Model):
    """Knobs of a configuration on one GPU; absent ones are inherited, or decided by the parts."""

    def knobs(self) -> dict[str, object]:
        """The knobs that are given, under the names of the family's configuration."""
        return self.model_dump(exclude_none=True)
