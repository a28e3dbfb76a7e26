"""Well-formed iteration files, two of each family, which tests/data/malformed.yaml edits."""

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
why: >
  A producer and two consumers, with everything that a later step changes.
change:
  pipeline: rings
  roles: specialised
  mainloop: wgmma
  softmax: exact
  scheduler: one_tile
  epilogue: warpgroup_store
configs:
  any: {B_r: 128, B_c: 128, n_consumers: 2, k_stages: 2, v_stages: 2, producer_registers: 24, consumer_registers: 240}
"""
HOPPER_STEP = """\
iteration: 2
title: Turns
family: hopper
parent: 1
why: One warpgroup issues its products while the other computes exponentials.
change:
  roles: ping_pong
configs:
  any: {B_c: 144}
expect:
  main_loop: {BAR: 2}
"""
