"""Small kernels for sm_90a as PTX text, and how tests launch them: what they have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import ptxemu
from ptxemu.machine.observer import Observer
from ptxemu.run.launch import Result
from ptxemu.values import Array

HEAD = """.version 8.6
.target sm_90a
.address_size 64
"""
# %t: thread, %bar: the mbarrier, %done: scratch; thread 0 initialises it for COUNT arrivals.
SETUP = """
.shared .align 8 .b64 bar[4];
.shared .align 16 .b32 words[1024];
.reg .b32 %t, %bar, %place, %word, %n, %r<8>;
.reg .b64 %out, %at, %state;
.reg .pred %first, %done, %p<4>;
ld.param.u64 %out, [out];
mov.u32 %t, %tid.x;
mov.u32 %bar, bar;
mov.u32 %place, words;
mad.lo.u32 %place, %t, 4, %place;
setp.eq.u32 %first, %t, 0;
"""
INIT = "@%first mbarrier.init.shared::cta.b64 [%bar], COUNT;\nbar.sync 0;\n"
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%bar];\n"


def wait(parity: int | str = 0, label: str = "again", barrier: str = "%bar") -> str:
    """A loop that ends when the phase of this parity is complete."""
    return f"{label}: mbarrier.try_wait.parity.shared::cta.b64 %done, [{barrier}], {parity};\n@!%done bra {label};\n"


def store(value: str) -> str:
    """out[block * threads + thread] = value."""
    return f"""
mov.u32 %r0, %ctaid.x;
mov.u32 %r1, %ntid.x;
mad.lo.u32 %r0, %r0, %r1, %t;
mul.wide.u32 %at, %r0, 4;
add.u64 %at, %out, %at;
st.global.u32 [%at], {value};
"""


def kernel(body: str, count: int = 1, directives: str = "") -> str:
    """A module with one kernel ``k(out)`` whose text is `body`."""
    text = f"{SETUP}{body}\nret;\n".replace("COUNT", str(count))
    return f"{HEAD}.visible .entry k(.param .u64 out) {directives}\n{{\n{text}}}\n"


def launch(
    text: str,
    threads: int = 64,
    blocks: int = 1,
    *,
    observers: Sequence[Observer] = (),
    cluster: int | None = None,
    schedule: str | int = "together",
) -> tuple[Array, Result]:
    """Runs it and returns what it stored, (blocks, threads)."""
    out = np.full((blocks, threads), 0xDEAD, np.uint32)
    program = ptxemu.load(text, path="k.ptx").kernel()
    result = program.launch(blocks, threads, [out], observers=observers, cluster=cluster, schedule=schedule)
    return out, result
