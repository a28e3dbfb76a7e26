"""Small PTX programs for the emulator's tests: a kernel's body in, a loaded kernel out."""

from __future__ import annotations

import numpy as np

from ptxemu.machine.observer import Observer
from ptxemu.run.launch import Kernel, Result, load
from ptxemu.values import Array

HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"
REGISTERS = (
    ".reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .b64 %rd<32>; .reg .f32 %f<32>; .reg .f64 %d<16>;"
)
# Leaves the thread's index in %r0, the address of out[thread] in %rd0, of the k-th input's element in %rd1, %rd2, ...
OUT = """
ld.param.u64 %rd0, [out];
mov.u32 %r0, %tid.x;
mov.u32 %r60, %ctaid.x;
mov.u32 %r61, %ntid.x;
mad.lo.s32 %r62, %r60, %r61, %r0;
mul.wide.u32 %rd31, %r62, 4;
add.s64 %rd0, %rd0, %rd31;
"""


def program(body: str, *, declarations: str = "", module: str = "", parameters: str = ".param .u64 out") -> Kernel:
    """A kernel `k` whose first parameter is the pointer `out`."""
    text = f"{HEADER}{module}\n.visible .entry k({parameters})\n{{\n{REGISTERS}\n{declarations}\n{body}\nret;\n}}\n"
    return load(text, path="k.ptx").kernel()


def run(
    body: str,
    *,
    threads: int = 32,
    blocks: int = 1,
    declarations: str = "",
    module: str = "",
    shared_bytes: int = 0,
    observers: tuple[Observer, ...] = (),
    max_instructions: int = 20_000,
    memory_budget: int = 1 << 30,
    exited_arrive: bool = False,
) -> Array:
    """Runs `OUT` and a body that stores to [%rd0]; returns what each thread stored, as (blocks, threads) of u32."""
    out = np.full((blocks, threads), 0xDEAD, dtype=np.uint32)
    launch(
        program(OUT + body, declarations=declarations, module=module),
        out,
        threads,
        blocks,
        shared_bytes=shared_bytes,
        observers=observers,
        max_instructions=max_instructions,
        memory_budget=memory_budget,
        exited_arrive=exited_arrive,
    )
    return out


def launch(kernel: Kernel, out: Array, threads: int, blocks: int, **options: object) -> Result:
    """Launches with `out` as the only argument."""
    return kernel.launch((blocks,), (threads,), (out,), **options)  # type: ignore[arg-type]  # passed through
