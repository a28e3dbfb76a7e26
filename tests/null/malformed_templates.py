"""Two well-formed iteration files, and the means to edit one place of them, for tables of malformed ones."""

from __future__ import annotations

ROOT = """\
iteration: 1
title: Base
why: >
  A kernel with everything that a tensor core needs and nothing that makes it fast.
change:
  layout: linear
  schedule: lazy
  operands: whole
  k_order: column_major
  softmax: exp
  normalize: divide
  gmem: advance
  epilogue: offsets
  store_policy: write_back
  row_stride: 0
configs:
  any: {B_r: 64, B_c: 64, n_warps: 4}
"""
STEP = """\
iteration: 2
title: Swizzling
parent: 1
why: Units of sixteen bytes are permuted, so that rows spread over the banks.
change:
  layout: xor
configs:
  a100: {B_r: 128}
expect:
  sass: {LOP3: rises}
"""
HOPPER_ROOT = """\
iteration: 1
title: Base
family: hopper
why: A claim where no machine code is made for would never be judged.
change:
  pipeline: rings
  roles: together
  mainloop: wgmma
  softmax: exact
  scheduler: one_tile
  epilogue: warpgroup_store
configs:
  any: {B_r: 128, B_c: 128, n_consumers: 2, k_stages: 2, v_stages: 2}
expect:
  main_loop: {HGMMA: {equals: 16, on: [sm_80, sm_90]}}
"""


def step(old: str, new: str) -> str:
    """STEP with one edit."""
    assert STEP.count(old) == 1, old
    return STEP.replace(old, new)


def root(old: str, new: str) -> str:
    """ROOT with one edit."""
    assert ROOT.count(old) == 1, old
    return ROOT.replace(old, new)
