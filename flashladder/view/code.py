"""What the compilers made of an iteration, for people: its PTX, and the ptxas table of one or all iterations.

Everything comes out of the content-addressed store; what is not there yet is compiled first. Machine code has a view of
its own, `flashladder.view.sass`.

Run: ``invoke ptx 7`` and ``invoke ptxas`` (all iterations) or ``invoke ptxas --iteration 7 --arch sm_80,sm_90``.
"""

from __future__ import annotations

from dataclasses import replace
import json
from pathlib import Path

from flashladder.build.compile import arches_of, compile_many, ptx_for, render, require_target, table_rows
from flashladder.columns import terminal_width
from flashladder.errors import FlashladderError
from flashladder.files import output_file, relative, write_atomic
from flashladder.ladder.ablation import load_description
from flashladder.ladder.iteration import load_all
from flashladder.ladder.selection import one_config, select_configs
from flashladder.toolchain.wheels import find_toolchain, require_arch
from flashladder.view.binary import PTX, Wanted, is_file, output_of, refuse_config, refuse_of_files
from flashladder.view.binary import show_ptx as show_ptx_of_file
from flashladder.view.residency import as_data, to_csv
from flashladder.view.residency import render as residency

WHOLE = Wanted()


def show_ptx(description: str, config: str | None = None, wanted: Wanted = WHOLE) -> None:
    """Prints the PTX that ships for an iteration, or that of a kernel in a file.

    Args:
        description: ``7``, an ablation such as ``16 - swizzle``, or a file.
        config: a key that names one configuration; None for the A100's.
        wanted: what of it, and how it is printed.

    Raises:
        FlashladderError: no such iteration, configuration or file, or it does not compile.
    """
    if is_file(description):
        refuse_config(config, Path(description))
        show_ptx_of_file(Path(description), wanted)
        return
    refuse_of_files(description, vars(wanted))
    output_of(wanted, PTX)  # before a kernel is compiled
    iteration = load_description(description)
    chosen = one_config(iteration, config)
    if wanted.arch:
        require_target(iteration, wanted.arch)
    show_ptx_of_file(ptx_for(iteration, chosen, find_toolchain()).ptx, replace(wanted, kernel="", arch=""))


def show_ptxas(
    description: str | None = None,
    arch: str | None = None,
    configs: str = "prog",
    *,
    as_json: bool = False,
    csv: str = "",
) -> None:
    """Prints registers, spills, shared memory, compile time and occupancy of every selected kernel.

    Args:
        description: an iteration or ablation; None for the whole ladder.
        arch: ``sm_80`` or several separated by commas; None for the GPU present, else ``sm_80``.
        configs: selection key: prog, a100, tune, all, ``"64,64"``.
        as_json: rows as JSON instead of a table.
        csv: a file to which the rows are written instead, as CSV.

    Raises:
        FlashladderError: bad arguments, nothing selected, or a kernel does not compile.
    """
    out = output_file(csv, ".csv", "--csv") if csv else None
    iterations = [load_description(description)] if description else list(load_all())
    if arch and not description:  # of the ladder, what is made for it
        wanted = {require_arch(name.strip()) for name in arch.split(",")}
        iterations = [one for one in iterations if all(map(one.family.targets.serving, wanted))]
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
        print(json.dumps([as_data(row, rows) for row in rows], indent=2))
    elif out:
        print(relative(write_atomic(out, to_csv(rows))))
    else:
        print(render(rows, warnings, terminal_width()))
        print(residency(rows, terminal_width()), end="")
