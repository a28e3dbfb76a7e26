"""Which kind of failure an exception is: by what CUDA, NVML, torch and Python really say."""

from __future__ import annotations

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.sweep.lanes.failures import POISONS_CONTEXT, CellFailed, first_line, kind_of, told_exit


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "illegal-address"),
        (RuntimeError("CUDA error: misaligned address"), "illegal-address"),
        (RuntimeError("CUDA error: device-side assert triggered"), "crash"),
        (RuntimeError("CUDA error: an illegal instruction was encountered"), "crash"),
        (RuntimeError("CUDA error: unspecified launch failure"), "crash"),
        (RuntimeError("GPU is lost"), "gpu-lost"),
        (RuntimeError("NVML: GPU has fallen off the bus"), "gpu-lost"),
        (RuntimeError("no CUDA-capable device is detected"), "gpu-lost"),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "gpu-lost"),
        (RuntimeError("CUDA error: unknown error"), "gpu-lost"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out-of-memory"),
        (type("OutOfMemoryError", (RuntimeError,), {})("Tried to allocate"), "out-of-memory"),
        (OSError(12, "Cannot allocate memory"), "out-of-memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out-of-memory"),
        (MemoryError(), "out-of-memory"),
        (ValueError("shape"), "refused"),
        (FlashladderError("not installed here"), "refused"),
        (CheckFailed("other bits after timing"), "wrong"),
        (CellFailed("timeout", "GPU is lost"), "timeout"),
        (ZeroDivisionError("of all things"), "crash"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value)[:30],
)
def test_an_exception_has_its_kind(error: Exception, kind: str) -> None:
    assert kind_of(error) == kind


def test_after_a_fault_a_context_is_good_for_nothing_and_after_wrong_numbers_it_is() -> None:
    assert {"illegal-address", "crash", "gpu-lost"} == POISONS_CONTEXT


def test_a_failure_is_told_in_one_line() -> None:
    assert first_line(RuntimeError("\n  CUDA error: x \nCompile with")) == "CUDA error: x"
    assert first_line(MemoryError()) == "MemoryError"
    assert [told_exit(code) for code in (3, -11, -200)] == ["exit code 3", "signal SIGSEGV", "signal 200"]
