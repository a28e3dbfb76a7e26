"""The sweep's worker on a GPU, with planted kernels: one reads beyond all memory, one never ends, one is wrong.

PLANTS names them (JSON: subject to word). Started by lanes with ``module="tests.gpu.planted_gpu"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import json
import os
import sys
from typing import Any
from unittest.mock import patch

import torch

from flashladder.bench.references import Subject, kernel_subject
from flashladder.cases.inputs import Tensors
from flashladder.ladder.config import KernelConfig
from flashladder.sweep import measure as measure_gpu
from flashladder.sweep import workers as worker

PLANTS: Mapping[str, str] = json.loads(os.environ.get("PLANTS", "{}"))
Run = Callable[..., object]
FAR = 2**40  # elements: no GPU has so much memory behind a tensor
FOREVER = 10**14  # cycles: about a day


class Beyond:
    """Memory that begins with a tensor's and goes on where there is none."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": (FAR + tensor.numel(),), "typestr": "<f2", "data": (tensor.data_ptr(), False), "version": 3,
        }  # fmt: skip


def illegal(run: Run, form: str, tensors: Tensors) -> None:
    """The kernel itself, with a Q of the right form that lies where nothing is."""
    far = torch.as_tensor(Beyond(tensors.q), device="cuda")[FAR:].view(tensors.q.dtype).view(tensors.q.shape)
    run(far, tensors.k, tensors.v, tensors.out, form)


def hang(run: Run, form: str, tensors: Tensors) -> None:
    torch.cuda._sleep(FOREVER)  # type: ignore[no-untyped-call]  # torch has no types for it
    run(tensors.q, tensors.k, tensors.v, tensors.out, form)


def wrong(run: Run, form: str, tensors: Tensors) -> None:
    run(tensors.q * 2, tensors.k, tensors.v, tensors.out, form)


DEEDS: Mapping[str, Callable[[Run, str, Tensors], None]] = {"illegal": illegal, "hang": hang, "wrong": wrong}


def planted(iteration: int, config: KernelConfig, run: Run, variant: str = "") -> Subject:
    """What the timer is given in place of a kernel's own subject."""
    subject = kernel_subject(iteration, config, run, variant)
    if word := PLANTS.get(str(iteration)):
        return Subject(subject.key, config.dtype, lambda tensors: DEEDS[word](run, config.short_form(), tensors))
    return subject


def make(backend: str) -> tuple[worker.Measure, worker.Answer]:
    measure, ready = worker.measurer(backend)

    def with_plants(cell: Any, request: Mapping[str, Any]) -> tuple[Any, float]:
        with patch.object(measure_gpu, "kernel_subject", planted):
            return measure(cell, request)

    return with_plants, ready


if __name__ == "__main__":
    raise SystemExit(worker.main(sys.argv[1], int(sys.argv[2]), make))
