"""Iterations as data: YAML deltas, parts, inheritance, configurations, ablations, grids, GPUs; composed sources.

The folder iterations/ is the one place where a step is spelled out. `iteration.load_iteration` reads one, `config`
names a tile configuration, `compose` writes the translation unit that build and emulator compile.
"""

from flashladder.ladder import families

__all__ = ["families"]
