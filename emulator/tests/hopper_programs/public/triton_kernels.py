"""Kernels in Triton, compiled for Hopper by Triton's own compiler; importing this needs Triton (no GPU)."""

from typing import Any, NamedTuple

import triton
from triton import language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
TILE = "tensordesc<fp16[64,64]>"


class Compiled(NamedTuple):
    """PTX and what a launch has to know: threads of a block and bytes of dynamic shared memory."""

    ptx: str
    threads: int
    shared_bytes: int


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]  # Triton has no types; not everywhere is it installed
def pointers(a, b, c, rows, columns, depth, tile: tl.constexpr, step: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - Triton's language
    """C = A B, whose operands are loaded through pointers (cp.async)."""
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    along = tl.arange(0, step)
    total = tl.zeros((tile, tile), tl.float32)
    for k in range(0, depth, step):
        left = tl.load(a + row[:, None] * depth + (k + along)[None, :])
        right = tl.load(b + (k + along)[:, None] * columns + column[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + row[:, None] * columns + column[None, :], total)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]  # as above
def descriptors(a, b, c, depth, step: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as above
    row, column = tl.program_id(0) * 64, tl.program_id(1) * 64
    total = tl.zeros((64, 64), tl.float32)
    for k in range(0, depth, step):
        total = tl.dot(a.load([row, k]), b.load([column, k]).T, total)
    c.store([row, column], total.to(tl.float16))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]  # as above
def attention(q, k, v, o, length, scale):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as above
    """Attention of 64 queries per block, d = 64, through tensor maps; `scale` counts in powers of two."""
    row = tl.program_id(0) * 64
    query = q.load([row, 0])
    top = tl.full((64,), float("-inf"), tl.float32)
    weight = tl.zeros((64,), tl.float32)
    total = tl.zeros((64, 64), tl.float32)
    for start in range(0, length, 64):
        scores = tl.dot(query, k.load([start, 0]).T) * scale
        larger = tl.maximum(top, tl.max(scores, 1))
        scores = tl.exp2(scores - larger[:, None])
        factor = tl.exp2(top - larger)
        weight = weight * factor + tl.sum(scores, 1)
        total = tl.dot(scores.to(tl.float16), v.load([start, 0]), total * factor[:, None])
        top = larger
    o.store([row, 0], (total / weight[:, None]).to(tl.float16))


SIGNATURES: dict[str, tuple[Any, dict[str, str], dict[str, int]]] = {
    "pointers": (
        pointers,
        {"a": "*fp16", "b": "*fp16", "c": "*fp32", "rows": "i32", "columns": "i32", "depth": "i32"},
        {"tile": 64, "step": 32},
    ),
    "descriptors": (descriptors, {"a": TILE, "b": TILE, "c": TILE, "depth": "i32"}, {"step": 64}),
    "attention": (attention, {"q": TILE, "k": TILE, "v": TILE, "o": TILE, "length": "i32", "scale": "fp32"}, {}),
}


def compiled(name: str, warps: int = 4, stages: int = 3) -> Compiled:
    function, signature, constants = SIGNATURES[name]
    names = {**signature, **dict.fromkeys(constants, "constexpr")}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind[0] in "*i"}
    source = ASTSource(function, names, constants, aligned)
    made = triton.compile(source, target=HOPPER, options={"num_warps": warps, "num_stages": stages})
    return Compiled(made.asm["ptx"], 32 * made.metadata.num_warps, made.metadata.shared)
