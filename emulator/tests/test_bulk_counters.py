"""What bulk copies cost: bytes, requests, sectors of global memory."""

from __future__ import annotations

import numpy as np
import pytest

import ptxemu
from ptxemu.machine.tensor_map import TensorMap

HEAD = """.version 8.6
.target sm_90
.address_size 64
.visible .entry k(.param .align 128 .b8 m[128], .param .u64 p)
{
.shared .align 1024 .b8 box[8192]; .shared .align 8 .b64 bar;
.reg .b32 at, mb, turn; .reg .b64 map, out; .reg .pred one, ok;
mov.b64 map, m; cvta.param.u64 map, map; ld.param.u64 out, [p];
mov.u32 at, box; mov.u32 mb, bar; mov.u32 turn, %tid.x; setp.eq.u32 one, turn, 0;
@one mbarrier.init.shared::cta.b64 [mb], 1;
bar.sync 0;
"""
WAIT = """
again: mbarrier.try_wait.parity.shared::cta.b64 ok, [mb], 0;
@!ok bra again;
"""
TX = "mbarrier::complete_tx::bytes"


def counted(text: str, **fields: object) -> ptxemu.Counters:
    """Two blocks of a kernel with a map of 64 rows of 256 bytes, or other `fields`."""
    tensor = np.zeros((64, 128), np.float16)
    given = {"dtype": "f16", "dims": (128, 64), "strides": (256,), "box": (64, 16), **fields}
    counters = ptxemu.Counters()
    kernel = ptxemu.load(HEAD + text + "\nret;\n}\n").kernel()
    kernel.launch((2,), (64,), (TensorMap(tensor, **given), tensor), observers=counters)  # type: ignore[arg-type]  # fields
    return counters


@pytest.mark.parametrize(
    ("corner", "box", "sectors"),
    [
        ("0, 0", (64, 16), 16 * 4),
        ("8, 0", (64, 16), 16 * 5),  # rows begin in the middle of a sector
        ("96, 60", (64, 16), 4 * 2),  # 4 rows of 32 elements lie in the tensor
        ("-64, 0", (64, 16), 0),
        ("-8, 0", (16, 8), 8),
    ],
)
def test_a_box_is_one_request_and_the_sectors_that_it_has(corner: str, box: tuple[int, int], sectors: int) -> None:
    nbytes = 2 * box[0] * box[1]
    load = f"cp.async.bulk.tensor.2d.shared::cluster.global.tile.{TX}"
    text = f"@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [mb], {nbytes};\n"
    found = counted(f"{text}@one {load} [at], [map, {{{corner}}}], [mb];{WAIT}", box=box)
    traffic = found.traffic("global", "bulk ld")
    assert (traffic.requests, traffic.sectors, found.bulk_bytes) == (2, 2 * sectors, 2 * nbytes)
    line = next(line for line in found.lines if line.operation == "bulk ld")
    assert (line.line, line.traffic) == (13, traffic)


def test_stores_and_reductions_are_counted_apart() -> None:
    fill = (
        "mad.lo.u32 turn, turn, 16, at; st.shared.v4.u32 [turn], {mb, mb, mb, mb};\nfence.proxy.async;\nbar.sync 0;\n"
    )
    store = "@one cp.async.bulk.global.shared::cta.bulk_group [out], [at], 160;\n"
    add = "@one cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [out+4096], [at], 64;\n"
    end = "@one cp.async.bulk.commit_group;\n@one cp.async.bulk.wait_group 0;"
    found = counted(fill + store + add + end)
    assert (found.traffic("global", "bulk st").requests, found.traffic("global", "bulk st").sectors) == (2, 10)
    assert (found.traffic("global", "bulk red").requests, found.traffic("global", "bulk red").sectors) == (2, 4)
    assert found.bulk_bytes == 2 * (160 + 64)
    assert found.traffic("global", "st").requests == 0
