"""Skips the tests of this folder if the toolchain or the host compiler is missing."""

from tests.nvcc.conftest import toolchain

__all__ = ["toolchain"]
