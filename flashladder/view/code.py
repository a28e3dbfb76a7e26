"""``invoke sass``, ``invoke ptx`` and ``invoke ptxas``: what the compilers made of iterations, and of others' kernels.

What is not in the content-addressed store yet is compiled first.

Run:
    invoke sass 7                       # the listing; `|` marks the main loop
    invoke sass 24 --order              # the main loop's products, barriers and waits, and what stands between them
    invoke sass LIBRARY.so              # `flashladder.view.binary`
    invoke sass 8 --line mma.cuh:23     # `flashladder.view.linked`
    invoke ptx 7 --counts               # the PTX that ships
    invoke ptxas 7 --arch sm_80,sm_90   # registers, spills, shared memory, and how many CTAs each GPU's SM holds
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
import json
import textwrap

from flashladder.build.compile import arches_of, compile_many, cubin_for, ptx_for, render, require_target, table_rows
from flashladder.columns import csv_text, hanging, natural_width, table, terminal_width
from flashladder.errors import FlashladderError
from flashladder.files import output_file, write_atomic
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import Gpu, load_gpus
from flashladder.ladder.iteration import load_all
from flashladder.ladder.selection import one_config, select_configs
from flashladder.machine_code.flow import main_loop
from flashladder.machine_code.order import WORK, steady, stretches, under_products, usual_path
from flashladder.machine_code.ptxas import COLUMNS, Occupancy, PtxasRow
from flashladder.machine_code.sass import Sass, count
from flashladder.toolchain import require_arch
from flashladder.view.binary import (
    CUBIN,
    PTX,
    Wanted,
    file_named,
    is_file,
    output_of,
    sass_of,
    show_ptx_of_file,
    show_sass,
)

FACTS = ("ctas", "warps", "occupancy", "limited_by")  # of a GPU, in the CSV of ptxas
LETTERS = {"registers": "R", "shared memory": "S", "warps": "W", "CTAs": "C", "barriers": "B"}
OCCUPANCY = (
    "CTAs of an SM x warps of a CTA, occupancy, limited by: R registers, S shared memory, W warps, C CTAs, B barriers."
)
LEGEND = "Behind each event: instructions up to the next one. Groups: of products that may be under way there."


def show_sass_of(target: str, wanted: Wanted) -> None:
    """Prints machine code of an iteration, or of a kernel in a file.

    Raises:
        FlashladderError: no such iteration, configuration or file, or options that do not go together.
    """
    if show_linked(target, wanted):
        return
    if wanted.order:
        wanted.require_only("--order", "order", "config", "kernel", "arch")
    path, title = file_named(target, wanted), ""
    if path is None:
        output_of(wanted, CUBIN)  # before a kernel is compiled
        iteration = load_description(target)
        config, arch = one_config(iteration, wanted.config), wanted.arch or iteration.shown_arch
        path = cubin_for(iteration, config, arch).cubin
        title = f"iteration {iteration.description}, {arch}: {config.brief()}, {config.dtype}"
        wanted = replace(wanted, arch="")
    if wanted.order:
        named, sass = sass_of(path, wanted.kernel, wanted.arch)
        print(order(title or named, sass))
    else:
        show_sass(path, wanted, title)


def show_linked(target: str, wanted: Wanted, *, ptx_first: bool = False) -> bool:
    """Does what ``--line``, ``--opcode`` or ``--page`` ask of an iteration; False where none of them was given.

    Args:
        target: the iteration.
        wanted: every option of the command.
        ptx_first: in order of the PTX, and not of addresses.

    Raises:
        FlashladderError: options that do not go together, or what they name is not there.
    """
    if not (wanted.page or wanted.line or wanted.opcode):
        return False
    if wanted.page:
        wanted.require_only("--page", "page", "config", "arch")
    wanted.require_only("--line and --opcode", "line", "opcode", "page", "config", "arch", "json")
    path = output_file(wanted.page, ".html", "--page") if wanted.page else None  # before anything is compiled for it
    if is_file(target):
        raise FlashladderError("a file alone has no CUDA lines to ask for", expected="an iteration", found=target)
    from flashladder.view import linked  # which brings the reader of PTX

    iteration = load_description(target)
    kernel = linked.linked(iteration, one_config(iteration, wanted.config), wanted.arch or iteration.shown_arch)
    if path:
        from flashladder.view.linked_page import page

        print(write_atomic(path, page([kernel])))
        return True
    chosen = linked.select(kernel, wanted.line, wanted.opcode)
    if wanted.json:
        print(json.dumps(linked.as_data(kernel, chosen), indent=2))
    else:
        print(linked.listing(kernel, chosen, ptx_first=ptx_first))
    return True


def order(title: str, sass: Sass) -> str:
    """The events of a kernel's main loop, the instructions between them, and how many of those stand under products.

    Raises:
        FlashladderError: nothing in the kernel loops.
    """
    whole = main_loop(sass)
    code = usual_path(whole, sass.targets)
    if not code:
        raise FlashladderError("the kernel has no loop", where=title, expected="a main loop")
    inside = len(steady(whole))
    rare, others = inside - len(code), len(whole) - inside
    rows: list[tuple[str, ...]] = [("at", "event", "groups", *WORK)]
    for one in stretches(code):
        counts = (str(one.work.get(name, "")) for name in WORK)
        rows.append((f"{one.address:x}", one.event or "the loop begins", str(one.pending or ""), *counts))
    text = "\n".join(table(rows, None, right={0, 2, *range(3, 3 + len(WORK))}))
    size = f"{len(code)} instructions"
    size += f", {rare} of rare blocks that wait for all products" if rare else ""
    size += f", plus {others} out of line (retry loops of waits, divergent paths)" if others else ""
    every, under = count(code), under_products(code)
    parts = [f"{n} of {every.get(name, 0)} {name}" for name, n in zip(WORK, under.values(), strict=False)]
    none = "No products of a warpgroup (HGMMA) in it: mma are waited for where they stand."
    said = f"Under products: {', '.join(parts)}." if parts else none
    head, *below = (hanging("", words) for words in (f"main loop, {size}", LEGEND, said))
    return "\n".join([title, head, "", text, "", *below])


def show_ptx(description: str, wanted: Wanted) -> None:
    """Prints the PTX that ships for an iteration, or that of a kernel in a file.

    Args:
        description: ``7``, an ablation such as ``16 - swizzle``, or a file.
        wanted: what of it, and how it is printed.

    Raises:
        FlashladderError: no such iteration, configuration or file, or it does not compile.
    """
    if show_linked(description, wanted, ptx_first=True):
        return
    if path := file_named(description, wanted):
        show_ptx_of_file(path, wanted)
        return
    output_of(wanted, PTX)  # before a kernel is compiled
    iteration = load_description(description)
    chosen = one_config(iteration, wanted.config)
    if wanted.arch:
        require_target(iteration, wanted.arch)
    show_ptx_of_file(ptx_for(iteration, chosen).ptx, replace(wanted, kernel="", arch=""))


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
    if as_json and csv:
        raise FlashladderError("--json does not go with --csv")
    out = output_file(csv, ".csv", "--csv") if csv else None
    iterations = [load_description(description)] if description else list(load_all())
    if arch and not description:  # of the ladder, what is made for it
        wanted = {require_arch(name.strip()) for name in arch.split(",")}
        iterations = [one for one in iterations if all(map(one.family.targets.serving, wanted))]
    selected = ((one, config) for one in iterations for config in select_configs(one, configs))
    jobs = [(one, config, name) for one, config in selected for name in arches_of(one, arch)]
    if not jobs:
        raise FlashladderError("no configuration is selected", found=configs, hint="try --configs prog")
    rows, warnings = table_rows(jobs, compile_many(jobs))
    if as_json:
        told = [
            {gpu: dict(zip(FACTS, _facts(one), strict=True)) for gpu, one in occupancy_of(row, rows).items()}
            for row in rows
        ]
        print(json.dumps([{**row.cells(), "occupancy": own} for row, own in zip(rows, told, strict=True)], indent=2))
    elif out:
        print(write_atomic(out, ptxas_csv(rows)))
    else:
        print(render(rows, warnings, terminal_width()))
        print(occupancy_table(rows, terminal_width()), end="")


def occupancy_of(row: PtxasRow, rows: Sequence[PtxasRow]) -> dict[str, Occupancy]:
    """What an SM holds of a kernel, on each GPU that would run the machine code of this row.

    A GPU runs the code for its own architecture where that is among `rows`, else the latest that it can run, as its
    driver chooses.
    """
    arches = {one.arch for one in rows if (one.kernel, one.config) == (row.kernel, row.config)}
    threads, shared = KernelConfig.parse(row.config).n_threads, row.smem_static + row.smem_dynamic
    return {
        key: gpu.occupancy(registers=row.registers, threads=threads, shared_bytes=shared, barriers=row.barriers)
        for key, gpu in _described().items()
        if row.arch == max(filter(gpu.runs, arches), key=lambda arch: int(arch[3:].rstrip("af")), default=None)
    }


def _described() -> Mapping[str, Gpu]:
    """The GPUs whose files describe an SM."""
    return {key: gpu for key, gpu in load_gpus().items() if gpu.describes_sm}


def _facts(one: Occupancy) -> tuple[int, int, float, tuple[str, ...]]:
    return one.ctas, one.warps, one.fraction, one.limited_by


def ptxas_csv(rows: Sequence[PtxasRow]) -> str:
    """The ptxas table with four columns for each GPU, empty where it runs another row; lines end in a newline."""
    gpus, lines = list(_described()), []
    for row in rows:
        cells, found = list(row.cells().values()), occupancy_of(row, rows)
        for gpu in gpus:
            one = found.get(gpu)
            facts = one and (one.ctas, one.warps, f"{one.fraction:.4g}", "+".join(one.limited_by))
            cells += facts or [None] * len(FACTS)
        lines.append(cells)
    return csv_text([*COLUMNS, *(f"{gpu}_{fact}" for gpu in gpus for fact in FACTS)], lines)


def occupancy_table(rows: Sequence[PtxasRow], limit: int) -> str:
    """The occupancy of each kernel on each GPU: CTAs x warps of a CTA, percentage, and letters of what limits them.

    Args:
        rows: of the ptxas table, at least one.
        limit: columns of the terminal; where they are too few, a kernel's configuration has a line of its own.
    """
    served: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        cells = served.setdefault((row.kernel, row.config), {})
        for gpu, one in occupancy_of(row, rows).items():
            letters = "".join(LETTERS[name] for name in one.limited_by)
            cells[gpu] = f"{one.ctas}x{one.warps_per_cta} {100 * one.fraction:.1f}% {letters}"
    gpus = _described()
    shown = [key for key in gpus if any(key in cells for cells in served.values())]
    configs = [(number, KernelConfig.parse(text)) for number, text in served]
    names = [(number, config.dtype, config.brief()) for number, config in configs]
    values = [[gpus[key].title for key in shown]]
    values += [[cells.get(key, "-") for key in shown] for cells in served.values()]
    wide = [(*n, *cells) for n, cells in zip([("#", "dtype", "configuration"), *names], values, strict=True)]
    if natural_width(wide) <= limit:
        lines = table(wide, limit, right={0})
    else:
        head, *below = (f"  {line}" for line in table(values, limit - 2))
        lines = [head, *(line for name, row in zip(names, below, strict=True) for line in (" ".join(name), row))]
    absent = [key for key in gpus if key not in shown]
    legend = OCCUPANCY + (f" No code for {', '.join(absent)}: --arch." if absent else "")
    return "\n".join([*lines, "", *textwrap.wrap(legend, limit)]) + "\n"
