"""What the compilers made of an iteration, for people: its PTX, and the ptxas table of one or all iterations.

Everything comes out of the content-addressed store; what is not there yet is compiled first. Machine code has a view of
its own, `flashladder.view.sass`.

Run: ``invoke ptx 7`` and ``invoke ptxas`` (all iterations) or ``invoke ptxas --iteration 7 --arch sm_80,sm_90``.
"""

from __future__ import annotations

from dataclasses import asdict
import json

from flashladder.build.compile import arches_of, compile_many, ptx_for, table_rows
from flashladder.build.ptxas_table import render
from flashladder.columns import terminal_width
from flashladder.errors import FlashladderError
from flashladder.ladder.ablation import load_description
from flashladder.ladder.iteration import load_all
from flashladder.ladder.selection import one_config, select_configs
from flashladder.machine_code.ptx import normalise, opcode_counts, read_ptx
from flashladder.toolchain.wheels import find_toolchain, require_arch


def show_ptx(description: str, config: str | None = None, *, counts: bool = False, normalised: bool = False) -> None:
    """Prints the PTX that ships for an iteration.

    Args:
        description: ``7``, or an ablation such as ``16 - swizzle``.
        config: a key that names one configuration; None for the A100's.
        counts: print opcodes with their counts instead.
        normalised: without comments, line numbers and debug sections, as the lock hashes it.

    Raises:
        FlashladderError: no such iteration or configuration, or it does not compile.
    """
    iteration = load_description(description)
    chosen = one_config(iteration, config)
    text = read_ptx(ptx_for(iteration, chosen, find_toolchain()).ptx)
    if not counts:
        print(normalise(text) if normalised else text, end="")
        return
    for opcode, n in sorted(opcode_counts(text).items(), key=lambda item: (-item[1], item[0])):
        print(f"{n:6d}  {opcode}")


def show_ptxas(
    description: str | None = None, arch: str | None = None, configs: str = "prog", *, as_json: bool = False
) -> None:
    """Prints registers, spills, shared memory and compile time of every selected kernel.

    Args:
        description: an iteration or ablation; None for the whole ladder.
        arch: ``sm_80`` or several separated by commas; None for the GPU present, else ``sm_80``.
        configs: selection key: prog, a100, tune, all, ``"64,64"``.
        as_json: rows as JSON instead of a table.

    Raises:
        FlashladderError: bad arguments, nothing selected, or a kernel does not compile.
    """
    iterations = [load_description(description)] if description else list(load_all())
    if arch and not description:  # of the ladder, what is made for it
        wanted = {require_arch(name.strip()) for name in arch.split(",")}
        iterations = [one for one in iterations if wanted <= set(one.family.targets.arches)]
    jobs = [
        (one, config, name)
        for one in iterations
        for config in select_configs(one, configs)
        for name in arches_of(one, arch)
    ]
    if not jobs:
        raise FlashladderError("no configuration is selected", found=configs, hint="try --configs prog")
    rows, warnings = table_rows(jobs, compile_many(jobs))
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print(render(rows, warnings, terminal_width()), end="")
