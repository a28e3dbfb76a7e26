"""Small PTX programs for the tests: a kernel's body in, a loaded kernel or what its threads stored out.

`program` and `run` are for sm_80 and give registers and the address of the thread's word of `out`; `kernel` and
`launch` are for sm_90a, with an mbarrier in shared memory; `entry` is a module to parse.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxemu
from ptxemu import EmulationError, Hazards, Kernel, Result
from ptxemu.values import Array

HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"  # lines 1 to 3
REGISTERS = (
    ".reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .b64 %rd<32>; .reg .f32 %f<32>; .reg .f64 %d<16>;"
)
Race = tuple[str, str, str]


TEXTS = Path(__file__).parent / "texts"


def text_of(file: str, section: str | None = None) -> str:
    """PTX of ``texts/FILE.ptx``: all of it, or the section that follows the line ``// ==== SECTION``."""
    text = (TEXTS / f"{file}.ptx").read_text(encoding="utf-8")
    if section is None:
        return text
    return dict(each.split("\n", 1) for each in text.split("// ==== ")[1:])[section]


def table_of(file: str, name: str) -> Any:
    """The value of a name among the tables of ``tests/test_FILE.py``; most are rows of a parametrized test."""
    return json.loads((TEXTS / "tables.json").read_text(encoding="utf-8"))[file][name]


# Leaves the thread's index in %r0, the block's in %r60, the address of out[block, thread] in %rd0.
OUT = "\n" + text_of("programs", "out")


@contextmanager
def refuses(kind: str, match: str = ".") -> Iterator[pytest.ExceptionInfo[EmulationError]]:
    """The block raises an `EmulationError` of this kind, whose one line matches."""
    with pytest.raises(EmulationError, match=match) as caught:
        yield caught
    error, lane = caught.value, caught.value.lane
    assert (error.kind, "\n" in str(error)) == (kind, False), error
    places = [] if lane is None else [f", thread {lane} (warp {lane >> 5}, lane {lane & 31})"]
    places += [] if error.block is None else [f", block {error.block}"]
    assert all(place in str(error) for place in places), error


def program(body: str, *, declarations: str = "", module: str = "", parameters: str = ".param .u64 out") -> Kernel:
    """A kernel `k` whose first parameter is the pointer `out`."""
    text = f"{HEADER}{module}\n.visible .entry k({parameters})\n{{\n{REGISTERS}\n{declarations}\n{body}\nret;\n}}\n"
    return ptxemu.load(text, path="k.ptx").kernel()


def run(
    body: str, threads: int = 32, blocks: int = 1, *, declarations: str = "", module: str = "", **options: Any
) -> Array:
    """Runs `OUT` and a body that stores to [%rd0]; returns what each thread stored, as (blocks, threads) of u32."""
    out = np.full((blocks, threads), 0xDEAD, dtype=np.uint32)
    program(OUT + body, declarations=declarations, module=module).launch(blocks, threads, (out,), **options)
    return out


def races_of(body: str, threads: int = 64, blocks: int = 1, **options: Any) -> list[str]:
    """The kinds of the races of `run`."""
    hazards = Hazards()
    run(body, threads, blocks, observers=hazards, **options)
    return [report.kind for report in hazards.reports]


# --- modules to parse -------------------------------------------------------------------------------------------------


def entry(body: str, *, before: str = "", head: str = ".visible .entry k()") -> str:
    """A module with one entry: `before` begins on line 4, the body's first line is two lines after `before` ends.

    Registers: predicates p, q; 32 bits a, b, c; 64 bits %rd0 ... %rd3; all declared on the line of the brace.
    """
    registers = ".reg .pred p, q; .reg .b32 a, b, c; .reg .b64 %rd<4>;"
    return f"{HEADER}{before}{head}\n{{ {registers}\n{body}\n}}\n"


# --- Hopper -----------------------------------------------------------------------------------------------------------

# %t: thread, %bar: the mbarrier, %place: the thread's word of shared memory, %done: scratch.
SETUP = "\n" + text_of("programs", "setup")
INIT = "@%first mbarrier.init.shared::cta.b64 [%bar], COUNT;\nbar.sync 0;\n"
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%bar];\n"


def wait(parity: int | str = 0, label: str = "again", barrier: str = "%bar") -> str:
    """A loop that ends when the phase of this parity is complete."""
    return f"{label}: mbarrier.try_wait.parity.shared::cta.b64 %done, [{barrier}], {parity};\n@!%done bra {label};\n"


def store(value: str) -> str:
    """out[block * threads + thread] = value."""
    return "\n" + text_of("programs", "store").replace("VALUE", value)


def kernel(body: str, count: int = 1, directives: str = "") -> str:
    """A module with one kernel ``k(out)`` whose text is `body`; `INIT` is for `count` arrivals."""
    text = f"{SETUP}{body}\nret;\n".replace("COUNT", str(count))
    head = ".version 8.6\n.target sm_90a\n.address_size 64\n"
    return f"{head}.visible .entry k(.param .u64 out) {directives}\n{{\n{text}}}\n"


def launch(text: str, threads: int = 64, blocks: int = 1, **options: Any) -> tuple[Array, Result]:
    """Runs it and returns what it stored, (blocks, threads)."""
    out = np.full((blocks, threads), 0xDEAD, np.uint32)
    return out, ptxemu.load(text, path="k.ptx").kernel().launch(blocks, threads, [out], **options)


def races(text: str, threads: int = 64, blocks: int = 1, **options: Any) -> list[Race]:
    """The races of `launch` as (kind, first opcode, second opcode)."""
    hazards = Hazards()
    launch(text, threads, blocks, observers=hazards, **options)
    return [(each.kind, each.first.opcode, each.second.opcode) for each in hazards.reports]
