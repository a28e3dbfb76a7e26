"""The published ladder's family: mma.m16n8k16, ldmatrix and cp.async, from compute capability 8.0 on."""

from flashladder.ladder.families.ampere.family import FAMILY

__all__ = ["FAMILY"]
