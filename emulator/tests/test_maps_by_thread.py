"""One instruction whose threads name different tensor maps: each thread copies its own map's box."""

from __future__ import annotations

import numpy as np
from tests.test_tensor_maps import GOOD, HEAD, LOAD

import ptxemu
from ptxemu.machine.tensor_map import TensorMap

TWO = f""".reg .b64 more; .reg .b32 word;
@one mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [mb], 2048;
setp.lt.u32 ok, turn, 2; mul.wide.u32 more, turn, 128; add.s64 map, map, more; mad.lo.u32 at, turn, 2048, at;
@ok {LOAD} [at], [map, {{0, 0}}], [mb];
again: mbarrier.try_wait.parity.shared::cta.b64 ok, [mb], 0;
@!ok bra again;
setp.lt.u32 ok, turn, 2; mul.wide.u32 more, turn, 4; add.s64 out, out, more;
@ok ld.shared.u32 word, [at];
@ok st.global.u32 [out], word;
ret;
}}
"""


def test_threads_of_one_instruction_name_different_maps() -> None:
    tensors = [np.full((64, 128), number, np.float16) for number in (1, 2)]
    maps = tuple(TensorMap(each, **GOOD) for each in tensors)
    out = np.zeros(4, np.float16)
    ptxemu.load(HEAD.replace("m[128]", "m[256]") + TWO).kernel().launch((1,), (64,), (maps, out))
    assert out.tolist() == [1, 1, 2, 2]
