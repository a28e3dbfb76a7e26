"""Cases of `ptxemu.isa.moves`: copies keep bits, vectors are packed lowest first, addresses come back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tests.cases.harness import Case, edge, given, named, plain, sample

from ptxemu.values import DTYPES, Array

SCALARS = ("u16", "s16", "u32", "s32", "f32", "u64", "s64", "f64", "b16", "b32", "b64")
LITERALS = (
    ("f32", "0f3FC00000", 0x3FC00000), ("b32", "0f3FC00000", 0x3FC00000), ("b32", "-2", 0xFFFFFFFE),
    ("u16", "65535", 0xFFFF), ("s64", "-9223372036854775808", 1 << 63),
    ("f64", "0d7FF0000000000000", 0x7FF0000000000000), ("b64", "0x0123456789ABCDEF", 0x0123456789ABCDEF),
)  # fmt: skip


def copies() -> Iterator[Case]:
    for kind in SCALARS:
        yield plain(f"mov.{kind}", named(kind, edge(kind, 64)), kind, edge(kind, 64))
    yield plain("mov.pred", named("pred", sample("pred", 64)), "pred", sample("pred", 64))
    for kind, literal, bits in LITERALS:
        wanted = np.full(64, bits, np.uint64).astype(f"u{DTYPES[kind].itemsize}").view(DTYPES[kind])
        inputs, text = named("u32", np.zeros(64, np.uint32)), f"mov.{kind} d, {literal};"
        yield given(f"mov.{kind}", text, inputs, {"d": (kind, wanted)}, note="immediate")


def vectors() -> Iterator[Case]:
    for kind, part, count in (("b32", "b16", 2), ("b64", "b32", 2), ("b64", "b16", 4)):
        parts = named(part, *(np.roll(edge(part, 64), 11 * place) for place in range(count)))
        rows, bits = zip(*(array for _, array in parts.values()), strict=True), int(part[1:])
        joined = [sum(int(x) << (bits * i) for i, x in enumerate(row)) for row in rows]
        whole, vector = {"w": (kind, np.array(joined, DTYPES[kind]))}, "{" + ", ".join(parts) + "}"
        yield given(f"mov.{kind}", f"mov.{kind} w, {vector};", parts, whole)
        yield given(f"mov.{kind}", f"mov.{kind} {vector}, w;", whole, parts)
    a, text = edge("f32", 64), ".reg .b16 low;\nmov.b32 {low, d}, a;\nmov.b32 {_, d}, a;"
    wanted = (a.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    yield given("mov.b32", text, named("f32", a), {"d": ("b16", wanted)}, note="bits of a float; a sink")
    a, text = edge("f64", 64), ".reg .b32 low;\nmov.b64 {low, d}, a;"
    wanted = (a.view(np.uint64) >> np.uint64(32)).astype(np.uint32)
    yield given("mov.b64", text, named("f64", a), {"d": ("b32", wanted)}, note="bits of a float")


def special_registers() -> Iterator[Case]:
    lanes = np.arange(256, dtype=np.uint32)  # two CTAs of 128 threads
    equal = np.uint64(1) << (lanes % 32).astype(np.uint64)
    below, every = equal - np.uint64(1), np.uint64(0xFFFFFFFF)
    values: dict[str, Array | int] = {
        "%tid.x": lanes % 128, "%tid.y": 0, "%ntid.x": 128, "%ntid.z": 1, "%ctaid.x": lanes // 128, "%ctaid.z": 0,
        "%nctaid.x": 2, "%nctaid.y": 1, "%laneid": lanes % 32, "%lanemask_eq": equal, "%lanemask_lt": below,
        "%lanemask_le": below | equal, "%lanemask_gt": every ^ below ^ equal, "%lanemask_ge": every ^ below,
        "%dynamic_smem_size": 0, "WARP_SZ": 32,
    }  # fmt: skip
    for name, value in values.items():
        wanted = np.broadcast_to(value, 256).astype(np.uint32)
        yield given("mov.u32", f"mov.u32 d, {name};", named("u32", lanes), {"d": ("u32", wanted)}, note=name)


def addresses() -> Iterator[Case]:
    offset = np.arange(64, dtype=np.uint64) * 4
    inputs, zero = named("u64", offset), {"d": ("u64", offset * 0)}
    for space in ("shared", "local"):
        text = (
            f".{space} .align 16 .b8 box[512];\n.reg .b64 start, generic, back;\n.reg .pred yes;\n"
            f"mov.u64 start, box;\nadd.u64 start, start, a;\ncvta.{space}.u64 generic, start;\n"
            f"cvta.to.{space}.u64 back, generic;\nsub.u64 d, back, start;\n"
        )
        for opcode in (f"cvta.{space}.u64", f"cvta.to.{space}.u64"):
            yield given(opcode, text, inputs, zero)
        for asked in ("shared", "local", "global"):
            query = f"{text}isspacep.{asked} p, generic;\nmov.u64 d, 0;"
            yield given(f"isspacep.{asked}", query, inputs, zero | {"p": ("pred", np.full(64, asked == space))})
    text = (
        ".shared .align 4 .b32 word;\n.reg .b64 generic;\ncvta.shared::cta.u64 generic, word;\n"
        "isspacep.shared::cta p, generic;\ncvta.to.shared::cta.u64 generic, generic;"
    )
    for opcode in ("cvta.shared::cta.u64", "cvta.to.shared::cta.u64", "isspacep.shared::cta"):
        yield given(opcode, text, inputs, {"p": ("pred", np.full(64, True))})
    for space in ("global", "const"):
        text = f".reg .b64 generic, back;\ncvta.{space}.u64 generic, %at2;\ncvta.to.{space}.u64 back, generic;\n"
        for opcode in (f"cvta.{space}.u64", f"cvta.to.{space}.u64"):
            yield given(opcode, f"{text}sub.u64 d, back, %at2;", inputs, zero)
    text = ".reg .b64 generic;\ncvta.param.u64 generic, a;\ncvta.to.param.u64 d, generic;"
    for opcode in ("cvta.param.u64", "cvta.to.param.u64"):
        yield given(opcode, text, inputs, {"d": ("u64", offset)})


CASES = [*copies(), *vectors(), *special_registers(), *addresses()]
