"""``invoke sass``, ``invoke ptx`` and ``invoke ptxas``: the compilers' output for iterations, and others' kernels.

A kernel that the content-addressed store lacks is compiled first. All commands raise `FlashladderError` for conflicting
options, unknown iterations, configurations and files, and failed compilations. Run: ``invoke sass 8 --counts``.
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
from flashladder.ladder.gpus import OF_SM, Gpu, Occupancy, load_gpus
from flashladder.ladder.iteration import load_all
from flashladder.ladder.selection import select_configs
from flashladder.machine_code.flow import main_loop
from flashladder.machine_code.order import WORK, steady, stretches, under_products, usual_path
from flashladder.machine_code.ptxas import COLUMNS, PtxasRow
from flashladder.machine_code.sass import Sass, count
from flashladder.toolchain import require_arch
from flashladder.view.binary import Wanted, file_named, is_file, output_of, sass_of, show_ptx_of_file, show_sass
from flashladder.view.command import config_of, which_mask

FACTS = ("ctas", "warps", "occupancy", "limited_by")  # for each GPU, in JSON and CSV
LETTERS = {"registers": "R", "shared memory": "S", "warps": "W", "CTAs": "C", "barriers": "B"}
OCCUPANCY = (
    "CTAs of an SM x warps of a CTA, occupancy, limited by: R registers, S shared memory, W warps, C CTAs, B barriers."
)
LEGEND = "Behind each event: instructions up to the next one. Groups: of products that may be under way there."


def show_sass_of(target: str, wanted: Wanted) -> None:
    """Prints machine code of an iteration, or of a kernel in a file."""
    if show_linked(target, wanted):
        return
    if wanted.order:
        wanted.require_only("--order", "order", "config", "causal", "kernel", "arch")
    path, title = file_named(target, wanted), ""
    if path is None:
        output_of(wanted, ".cubin")  # refuses bad options before the compilation
        iteration = load_description(target)
        config = config_of(iteration, wanted.config, causal=wanted.causal)
        arch = wanted.arch or iteration.shown_arch
        path = cubin_for(iteration, config, arch).cubin
        title = f"iteration {iteration.description}, {arch}: {config.brief()}, {config.dtype}"
        title += which_mask(iteration, config)
        wanted = replace(wanted, arch="")
    if wanted.order:
        named, sass = sass_of(path, wanted.kernel, wanted.arch)
        print(order(title or named, sass))
    else:
        show_sass(path, wanted, title)


def show_linked(target: str, wanted: Wanted, *, ptx_first: bool = False) -> bool:
    """Handles ``--line``, ``--opcode`` and ``--page``; False if none is given. `ptx_first`: in PTX order."""
    if not (wanted.page or wanted.line or wanted.opcode):
        return False
    if wanted.page:
        wanted.require_only("--page", "page", "config", "causal", "arch")
    wanted.require_only("--line and --opcode", "line", "opcode", "page", "config", "causal", "arch", "json")
    path = output_file(wanted.page, ".html", "--page") if wanted.page else None
    if is_file(target):
        raise FlashladderError("a file alone has no CUDA lines to ask for", expected="an iteration", found=target)
    from flashladder.view import linked  # slow to import: it brings the reader of PTX

    iteration = load_description(target)
    config = config_of(iteration, wanted.config, causal=wanted.causal)
    kernel = linked.linked(iteration, config, wanted.arch or iteration.shown_arch)
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
    """The events of a kernel's main loop and the code between them; raises `FlashladderError` if there is no loop."""
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
    hidden = f"Under products: {', '.join(parts)}." if parts else none
    head, *below = (hanging("", words) for words in (f"main loop, {size}", LEGEND, hidden))
    return "\n".join([title, head, "", text, "", *below])


def show_ptx(description: str, wanted: Wanted) -> None:
    """Prints the PTX of an iteration (``7``), an ablation (``16 - swizzle``) or a kernel in a file."""
    if show_linked(description, wanted, ptx_first=True):
        return
    if path := file_named(description, wanted):
        show_ptx_of_file(path, wanted)
        return
    output_of(wanted, ".ptx")  # refuses bad options before the compilation
    iteration = load_description(description)
    chosen = config_of(iteration, wanted.config, causal=wanted.causal)
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
    """Prints registers, spills, shared memory, compile time and occupancy of every kernel that `configs` selects.

    `description` None: the whole ladder. `arch` None: that of the GPU present, else ``sm_80``. `csv`: a file to write.
    """
    if as_json and csv:
        raise FlashladderError("--json does not go with --csv")
    out = output_file(csv, ".csv", "--csv") if csv else None
    iterations = [load_description(description)] if description else list(load_all())
    if arch and not description:  # of the whole ladder, only the iterations built for these architectures
        wanted = {require_arch(name.strip()) for name in arch.split(",")}
        iterations = [one for one in iterations if all(map(one.family.targets.serving, wanted))]
    selected = ((one, config) for one in iterations for config in select_configs(one, configs))
    jobs = [(one, config, name) for one, config in selected for name in arches_of(one, arch)]
    if not jobs:
        raise FlashladderError("no configuration is selected", found=configs, hint="try --configs prog")
    rows, warnings = table_rows(jobs, compile_many(jobs))
    if as_json:
        found = []
        for row in rows:
            facts = {key: (o.ctas, o.warps, o.fraction, o.limited_by) for key, o in occupancy_of(row, rows).items()}
            by_gpu = {key: dict(zip(FACTS, values, strict=True)) for key, values in facts.items()}
            found.append({**row.cells(), "occupancy": by_gpu})
        print(json.dumps(found, indent=2))
    elif out:
        print(write_atomic(out, ptxas_csv(rows)))
    else:
        shown = [_with_mask(row) for row in rows]
        print(render(shown, warnings, terminal_width()))
        print(occupancy_table(shown, terminal_width()), end="")


def _with_mask(row: PtxasRow) -> PtxasRow:
    """The row, marked behind its number if its kernel has a mask, which tables do not print with a configuration."""
    masked = KernelConfig.parse(row.config).mask != "none"
    return replace(row, kernel=f"{row.kernel} mask") if masked else row


def occupancy_of(row: PtxasRow, rows: Sequence[PtxasRow]) -> dict[str, Occupancy]:
    """The occupancy on each GPU that runs this row: its own architecture's code if `rows` has it, else the latest."""
    arches = {one.arch for one in rows if (one.kernel, one.config) == (row.kernel, row.config)}
    threads, shared = KernelConfig.parse(row.config).n_threads, row.smem_static + row.smem_dynamic
    return {
        key: gpu.occupancy(registers=row.registers, threads=threads, shared_bytes=shared, barriers=row.barriers)
        for key, gpu in _described().items()
        if row.arch == max(filter(gpu.runs, arches), key=lambda arch: int(arch[3:].rstrip("af")), default=None)
    }


def _described() -> Mapping[str, Gpu]:
    """The GPUs whose files describe an SM, which is optional."""
    return {key: gpu for key, gpu in load_gpus().items() if gpu.peaks.keys() >= {*OF_SM}}


def ptxas_csv(rows: Sequence[PtxasRow]) -> str:
    """The ptxas table with four columns for each GPU, which are empty if the GPU runs another row."""
    gpus, lines = list(_described()), []
    for row in rows:
        cells, found = list[object](row.cells().values()), occupancy_of(row, rows)
        for one in map(found.get, gpus):
            facts = one and (one.ctas, one.warps, f"{one.fraction:.4g}", "+".join(one.limited_by))
            cells += facts or [None] * len(FACTS)
        lines.append(cells)
    return csv_text([*COLUMNS, *(f"{gpu}_{fact}" for gpu in gpus for fact in FACTS)], lines)


def occupancy_table(rows: Sequence[PtxasRow], limit: int) -> str:
    """The occupancy of each kernel on each GPU: CTAs x warps per CTA, percentage, and letters for the limits.

    If `limit` columns are too few, each kernel's configuration gets its own line.
    """
    served: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        cells = served.setdefault((row.kernel, row.config), {})
        for gpu, one in occupancy_of(row, rows).items():
            letters = "".join(LETTERS[name] for name in one.limited_by)
            cells[gpu] = f"{one.ctas}x{one.warps_per_cta} {100 * one.fraction:.1f}% {letters}"
    gpus = _described()
    shown = [key for key in gpus if any(key in cells for cells in served.values())]
    rows_of_table = [("#", "dtype", "configuration", *(gpus[key].title for key in shown))]
    for (number, text), cells in served.items():
        config = KernelConfig.parse(text)
        rows_of_table.append((number, config.dtype, config.brief(), *(cells.get(key, "-") for key in shown)))
    if natural_width(rows_of_table) <= limit:
        lines = table(rows_of_table, limit, right={0})
    else:
        head, *below = (f"  {line}" for line in table([row[3:] for row in rows_of_table], limit - 2))
        lines = [head]
        for row_of_table, line in zip(rows_of_table[1:], below, strict=True):
            lines += [" ".join(row_of_table[:3]), line]
    absent = [key for key in gpus if key not in shown]
    legend = OCCUPANCY + (f" No code for {', '.join(absent)}: --arch." if absent else "")
    legend += " mask: the kernel with the causal mask." if any(number.endswith(" mask") for number, _ in served) else ""
    return "\n".join([*lines, "", *textwrap.wrap(legend, limit)]) + "\n"
