"""Cases of `ptxemu.isa.moves`: copies keep bits, vectors are packed lowest first, addresses come back."""

from __future__ import annotations

import numpy as np
from tests.cases.harness import Case, edge, sample

from ptxemu.values import DTYPES, Array

SCALARS = ("u16", "s16", "u32", "s32", "f32", "u64", "s64", "f64", "b16", "b32", "b64")
CASES: list[Case] = []


def _copies() -> None:
    for kind in SCALARS:
        a = edge(kind, 64)
        CASES.append(Case(f"mov.{kind}", f"mov.{kind} d, a;", {"a": (kind, a)}, {"d": kind}, {"d": a}))
    flags = sample("pred", 64)
    CASES.append(Case("mov.pred", "mov.pred d, a;", {"a": ("pred", flags)}, {"d": "pred"}, {"d": flags}))
    lanes = np.zeros(64, np.uint32)
    for kind, literal, bits in (
        ("f32", "0f3FC00000", 0x3FC00000),
        ("b32", "0f3FC00000", 0x3FC00000),
        ("b32", "-2", 0xFFFFFFFE),
        ("u16", "65535", 0xFFFF),
        ("s64", "-9223372036854775808", 1 << 63),
        ("f64", "0d7FF0000000000000", 0x7FF0000000000000),
        ("b64", "0x0123456789ABCDEF", 0x0123456789ABCDEF),
    ):
        width = DTYPES[kind].itemsize
        wanted = np.full(64, bits, np.uint64).astype(f"u{width}").view(DTYPES[kind])
        text = f"mov.{kind} d, {literal};"
        CASES.append(Case(f"mov.{kind}", text, {"a": ("u32", lanes)}, {"d": kind}, {"d": wanted}, note="immediate"))


def _join(items: list[Array], kind: str) -> Array:
    """Python's own joining of numbers, the first lowest."""
    bits = 8 * items[0].dtype.itemsize
    numbers = [sum(int(x) << (bits * i) for i, x in enumerate(row)) for row in zip(*items, strict=True)]
    return np.array(numbers, DTYPES[kind])


def _vectors() -> None:
    for kind, part, count in (("b32", "b16", 2), ("b64", "b32", 2), ("b64", "b16", 4)):
        names = "abcd"[:count]
        items = [np.roll(edge(part, 64), 11 * place) for place in range(count)]
        whole = _join(items, kind)
        vector = "{" + ", ".join(names) + "}"
        sources = {name: (part, item) for name, item in zip(names, items, strict=True)}
        CASES.append(Case(f"mov.{kind}", f"mov.{kind} w, {vector};", sources, {"w": kind}, {"w": whole}))
        results = dict(zip(names, items, strict=True))
        outputs = dict.fromkeys(names, part)
        text = f"mov.{kind} {vector}, w;"
        CASES.append(Case(f"mov.{kind}", text, {"w": (kind, whole)}, outputs, results))
    a = edge("f32", 64)
    text = ".reg .b16 low;\nmov.b32 {low, d}, a;\nmov.b32 {_, d}, a;"
    wanted = (a.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    CASES.append(Case("mov.b32", text, {"a": ("f32", a)}, {"d": "b16"}, {"d": wanted}, note="bits of a float; a sink"))
    number = edge("f64", 64)
    wanted = (number.view(np.uint64) >> np.uint64(32)).astype(np.uint32)
    text = ".reg .b32 low;\nmov.b64 {low, d}, a;"
    CASES.append(Case("mov.b64", text, {"a": ("f64", number)}, {"d": "b32"}, {"d": wanted}, note="bits of a float"))


def _special_registers() -> None:
    lanes = np.arange(256, dtype=np.uint32)  # two CTAs of 128 threads
    below = (1 << (lanes % 32).astype(np.uint64)) - 1
    equal = np.uint64(1) << (lanes % 32).astype(np.uint64)
    every = np.uint64(0xFFFFFFFF)
    values = {
        "%tid.x": lanes % 128,
        "%tid.y": lanes * 0,
        "%ntid.x": lanes * 0 + 128,
        "%ntid.z": lanes * 0 + 1,
        "%ctaid.x": lanes // 128,
        "%ctaid.z": lanes * 0,
        "%nctaid.x": lanes * 0 + 2,
        "%nctaid.y": lanes * 0 + 1,
        "%laneid": lanes % 32,
        "%lanemask_eq": equal,
        "%lanemask_lt": below,
        "%lanemask_le": below | equal,
        "%lanemask_gt": every ^ below ^ equal,
        "%lanemask_ge": every ^ below,
        "%dynamic_smem_size": lanes * 0,
        "WARP_SZ": lanes * 0 + 32,
    }
    for name, value in values.items():
        wanted = value.astype(np.uint32)
        case = Case("mov.u32", f"mov.u32 d, {name};", {"a": ("u32", lanes)}, {"d": "u32"}, {"d": wanted}, note=name)
        CASES.append(case)


def _addresses() -> None:
    offset = np.arange(64, dtype=np.uint64) * 4
    variable = {"shared": ".shared .align 16 .b8 box[512];\n", "local": ".local .align 16 .b8 box[512];\n"}
    for space, declared in variable.items():
        text = (
            f"{declared}.reg .b64 start, generic, back;\n.reg .pred yes;\n"
            f"mov.u64 start, box;\nadd.u64 start, start, a;\ncvta.{space}.u64 generic, start;\n"
            f"cvta.to.{space}.u64 back, generic;\nsub.u64 d, back, start;\n"
        )
        for opcode in (f"cvta.{space}.u64", f"cvta.to.{space}.u64"):
            case = Case(opcode, text, {"a": ("u64", offset)}, {"d": "u64"}, {"d": offset * 0})
            CASES.append(case)
        for asked in ("shared", "local", "global"):
            query = f"{text}isspacep.{asked} p, generic;\nmov.u64 d, 0;"
            outputs, wanted = {"d": "u64", "p": "pred"}, {"d": offset * 0, "p": np.full(64, asked == space)}
            CASES.append(Case(f"isspacep.{asked}", query, {"a": ("u64", offset)}, outputs, wanted))
    text = (
        ".shared .align 4 .b32 word;\n.reg .b64 generic;\ncvta.shared::cta.u64 generic, word;\n"
        "isspacep.shared::cta p, generic;\ncvta.to.shared::cta.u64 generic, generic;"
    )
    for opcode in ("cvta.shared::cta.u64", "cvta.to.shared::cta.u64", "isspacep.shared::cta"):
        case = Case(opcode, text, {"a": ("u64", offset)}, {"p": "pred"}, {"p": np.full(64, True)})
        CASES.append(case)
    there_and_back = (
        ".reg .b64 generic, back;\ncvta.{0}.u64 generic, %at2;\ncvta.to.{0}.u64 back, generic;\nsub.u64 d, back, %at2;"
    )
    for space in ("global", "const"):
        for form in (f"cvta.{space}.u64", f"cvta.to.{space}.u64"):
            text = there_and_back.format(space)
            CASES.append(Case(form, text, {"a": ("u64", offset)}, {"d": "u64"}, {"d": offset * 0}))
    text = ".reg .b64 generic;\ncvta.param.u64 generic, a;\ncvta.to.param.u64 d, generic;"
    forms = ("cvta.param.u64", "cvta.to.param.u64")
    CASES.extend(Case(form, text, {"a": ("u64", offset)}, {"d": "u64"}, {"d": offset}) for form in forms)


_copies()
_vectors()
_special_registers()
_addresses()
