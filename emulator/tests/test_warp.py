"""Warp-wide instructions beyond `tests.cases`: who has to take part, masks, matrices of many blocks, what is kept."""

from __future__ import annotations

import numpy as np
import pytest
from tests.programs import program, races_of, refuses, run, table_of, text_of

from ptxemu.isa import matrix
from ptxemu.isa.warp import route
from ptxemu.values import BFLOAT16, Array

STORE = "st.global.u32 [%rd0], %r1;"
LANES = np.arange(32)


def lanes(body: str, threads: int = 32) -> list[int]:
    """What the lanes of one block store in %r1."""
    found: list[int] = run(f"{body}{STORE}\nDONE:", threads)[0].tolist()
    return found


@pytest.mark.parametrize(("body", "expected"), table_of("warp", "who_takes_part"))
def test_who_takes_part(body: str, expected: list[int]) -> None:
    assert lanes(body) == expected


def test_whole_warps_may_be_elsewhere() -> None:
    body = "shr.u32 %r2, %r0, 5; setp.eq.u32 %p1, %r2, 1; mov.u32 %r1, 5; @%p1 bra past; setp.ne.u32 %p2, %r0, 3;"
    found = lanes(body + "vote.sync.ballot.b32 %r1, %p2, -1; past:", 96)
    assert found == 32 * [0xFFFFFFF7] + 32 * [5] + 32 * [0xFFFFFFFF]


@pytest.mark.parametrize("x", range(32))
def test_a_butterfly_moves_the_widest_pieces_that_stay_together(x: int) -> None:
    known = route("bfly", x, 31)
    assert np.array_equal(known.lane.reshape(32), LANES ^ x)
    assert known.piece.itemsize == (16 if x % 4 == 0 else 8 if x % 2 == 0 else 4)
    body = f"mad.lo.u32 %r2, %r60, 100, %r0; shfl.sync.bfly.b32 %r1, %r2, {x}, 31, -1; {STORE}"
    assert (run(body, 64, 2) == 100 * np.arange(2)[:, None] + (np.arange(64) ^ x)).all()


MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
TILE = ".shared .align 16 .b8 tile[2048];"


@pytest.mark.parametrize(("body", "says", "lane"), table_of("warp", "missing_lanes"))
def test_lanes_that_are_missing_are_named(body: str, says: str | None, lane: int) -> None:
    with refuses("divergent-warp" if says else "undefined", says or "is stored") as caught:
        run(f"mov.u32 %r1, 0; {body}\nDONE:", 64, declarations=TILE)
    assert caught.value.lane == lane
    assert caught.value.line == 17


def test_mma_with_registers_that_do_not_make_up_k_is_an_error() -> None:
    with refuses("syntax", "registers of A, B, C"):
        run(f"{MMA} {{%f0, %f1, %f2, %f3}}, {{%r1, %r1, %r1}}, {{%r1, %r1}}, {{%f0, %f1, %f2, %f3}};")


# --- matrices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "kind"), [(8, "misaligned"), (2048, "out-of-bounds"), (4096 + 16, "out-of-bounds"), (1024, "uninitialised")]
)
def test_ldmatrix_names_the_lane_with_a_bad_row(row: int, kind: str) -> None:
    """Lanes 16 to 31 of .x2 name no row, and theirs is no address."""
    body = f"""mov.u32 %r2, tile; mad.lo.u32 %r3, %r0, 16, %r2; st.shared.v4.u32 [%r3], {{%r0, %r0, %r0, %r0}};
    bar.sync 0; and.b32 %r4, %r0, 31; setp.ge.u32 %p1, %r4, 16; selp.u32 %r3, 0xfffffff1, %r3, %p1;
    setp.eq.u32 %p2, %r0, 43; WRONG ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r1, %r5}}, [%r3]; {STORE}"""
    run(body.replace("WRONG", ""), 64, declarations=TILE)
    with refuses(kind) as caught:
        run(body.replace("WRONG", f"@%p2 mov.u32 %r3, {row};"), 64, declarations=TILE)
    assert (caught.value.lane, caught.value.address) == (43, row)


PRODUCT = text_of("warp")


def registers(values: Array, columns: bool = False) -> Array:
    """(..., 16, K) of 16-bit numbers, or B as (..., K, 8), as each lane's words."""
    tiles = values.swapaxes(-1, -2) if columns else values
    pieces = [
        tiles[..., rows : rows + 8, k : k + 8]
        for k in range(0, tiles.shape[-1], 8)
        for rows in range(0, tiles.shape[-2], 8)
    ]
    words = [np.ascontiguousarray(piece).view(np.uint32).reshape(*values.shape[:-2], 32) for piece in pieces]
    return np.stack(words, axis=-1)


def product(
    a: Array, b: Array, blocks: int, warps: int, index: tuple[str, str], skip: int = 99, mma: str = MMA
) -> Array:
    """(blocks, warps, 16, 8): each warp's A times B, whose numbers among the given ones are `index`."""
    text = PRODUCT.replace("WARPS", str(warps)).replace("SKIP", str(skip)).replace("MMA", mma)
    text = text.replace("INDEX_A", index[0]).replace("INDEX_B", index[1])
    d = np.zeros((blocks, warps, 32, 4), np.float32)
    kernel = program(text, parameters=".param .u64 a, .param .u64 b, .param .u64 d")
    kernel.launch(blocks, 32 * warps, (registers(a), registers(b, columns=True), d))
    row, column = LANES >> 2, 2 * (LANES & 3)
    found = np.zeros((blocks, warps, 16, 8), np.float32)
    for word in range(4):
        found[..., row + 8 * (word >> 1), column + (word & 1)] = d[..., word]
    return found


def numbers(seed: int, *shape: int) -> Array:
    """Small integers: products and sums are exact."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float16)


WHO = {
    "0": lambda block, warp: 0 * block * warp,
    "%r10": lambda block, warp: warp + 0 * block,
    "%r9": lambda block, warp: block + 0 * warp,
}
WHO["%r12"] = lambda block, warp: 4 * block + warp


@pytest.mark.parametrize("first", ["0", "%r10", "%r9"])
@pytest.mark.parametrize("second", ["0", "%r10", "%r9"])
def test_mma_of_matrices_that_blocks_or_warps_share(first: str, second: str) -> None:
    """A guard leaves warp 1 out. Operands of one kind and value are converted once, and the same arrays come again."""
    block, warp = np.arange(3)[:, None], np.arange(4)[None]
    for seed in range(3):
        a, b = numbers(seed, 4, 16, 16), numbers(seed + 100, 4, 16, 8)
        expected = a.astype("f4")[WHO[first](block, warp)] @ b.astype("f4")[WHO[second](block, warp)]
        expected[:, 1] = 0
        assert np.array_equal(product(a, b, 3, 4, (first, second), skip=1), expected)


def test_the_same_bits_in_another_type_are_another_operand() -> None:
    a, b = numbers(1, 1, 16, 16), numbers(2, 1, 16, 8)
    both = MMA + " {%f0, %f1, %f2, %f3}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f8, %f8, %f8, %f8}; @%p1 "
    both = "mov.f32 %f8, 0f00000000; " + both + MMA.replace("f16.f16", "bf16.bf16")
    found = product(a, b, 1, 1, ("0", "0"), mma=both)
    brain = a.view(BFLOAT16).astype("f4")[0] @ b.view(BFLOAT16).astype("f4")[0]
    assert np.allclose(found[0, 0], a.astype("f4")[0] @ b.astype("f4")[0] + brain, rtol=1e-3)


def test_sums_of_f16_are_rounded_once() -> None:
    """2048 + 1 + 1: each addition alone would be rounded back to 2048."""
    body = """setp.eq.u32 %p1, %r0, 0; mov.u32 %r2, 0x3c003c00; mov.u32 %r4, 0; and.b32 %r5, %r0, 3;
    setp.eq.u32 %p1, %r5, 0; selp.u32 %r2, %r2, 0, %p1; mov.u32 %r3, 0x68006800;  // first, operands that begin alike
    mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r1, %r6}, {%r2, %r2, %r2, %r2}, {%r2, %r2}, {%r3, %r3};
    mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r1, %r6}, {%r2, %r2, %r4, %r4}, {%r2, %r4}, {%r3, %r3};"""
    assert (np.array(lanes(body), np.uint32).view(np.float16) == 2050).all()


def test_16_bit_numbers_are_widened_exactly() -> None:
    """With infinities and NaN beside them, of either sign alone, and without: two different ways."""
    every = np.arange(1 << 16, dtype=np.uint16)
    for patterns in (every, every[: 1 << 15], every[1 << 15 :], every[every & 0x7C00 != 0x7C00]):
        for kind, dtype in (("f16", np.float16), ("bf16", BFLOAT16)):
            found = matrix.widened(patterns.view(matrix.ROW).reshape(1, 1, -1, 1), kind).reshape(-1)
            wanted = patterns.view(dtype).astype(np.float32)
            assert ((np.isnan(found) & np.isnan(wanted)) | (found.view("u4") == wanted.view("u4"))).all()
    raw = np.full(4, 0xBF803FFF, np.uint32).view(matrix.ROW).reshape(1, 1, 1, 1)
    assert (matrix.widened(raw, "tf32").view("u4") == 0xBF802000).all()  # 13 bits are not looked at


def test_only_the_warps_that_execute_a_load_of_tiles_read() -> None:
    body = """and.b32 %r2, %r0, 31; mov.u32 %r3, tile; mad.lo.u32 %r3, %r2, 16, %r3; setp.lt.u32 %p1, %r0, 32;
    @!%p1 bra DONE; st.shared.v4.u32 [%r3], {%r0, %r0, %r0, %r0}; bar.warp.sync -1;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r3]; DONE:"""
    assert races_of(body, declarations=TILE) == []


@pytest.mark.parametrize(
    ("other", "upper", "kinds"), [(1, -65536, []), (16, -65536, ["RAW"]), (15, 0x7FFF0000, ["RAW"])]
)
def test_lanes_that_meet_in_two_groups_know_nothing_of_others(other: int, upper: int, kinds: list[str]) -> None:
    body = f"""mov.u32 %r3, tile; mad.lo.u32 %r2, %r0, 4, %r3; st.shared.u32 [%r2], %r0; setp.lt.u32 %p1, %r0, 16;
    selp.u32 %r4, 0xffff, {upper}, %p1; shr.u32 %r7, %r4, %r0; and.b32 %r7, %r7, 1; setp.eq.u32 %p2, %r7, 1;
    @%p2 bar.warp.sync %r4; xor.b32 %r5, %r0, {other}; mad.lo.u32 %r2, %r5, 4, %r3;
    ld.shared.u32 %r6, [%r2];"""
    assert races_of(body, 32, declarations=TILE) == kinds
