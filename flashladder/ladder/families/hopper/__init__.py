"""Kernels for sm_90a alone: tiles through the copy engine (TMA), mbarriers, tensor cores by the warpgroup (wgmma)."""

from flashladder.ladder.families.hopper.family import FAMILY

__all__ = ["FAMILY"]
