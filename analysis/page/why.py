"""Why each step is faster: its gain, the instructions of a KV block, the part of the source, counters on chip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
import math
from typing import TYPE_CHECKING, Any

from flashladder.emulate.reading import NAME
from flashladder.errors import FlashladderError
from flashladder.files import files_in, relative
from flashladder.ladder.gpus import load_gpus
from flashladder.machine_code.opcodes import KINDS
from flashladder.names import CONFLICTS, HEADLINE_LENGTH, INSTRUCTIONS, LDSM, SECTORS, TENSOR, WAVEFRONTS
from flashladder.report import page
from flashladder.report.book import Book
from flashladder.report.counters import costs
from flashladder.report.data import Machine
from flashladder.report.page import FAINT, INK, SERIES, Block, Cell, Column, Fold, Panel, Table, draw, heated
from flashladder.results.files import load_as
from flashladder.results.schema import CounterResult
from flashladder.view.linked_page import read_document

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ORDER, TITLE = 30, "Why each step is faster"
SHOWN = ("h200", "a100", "rtx3090")  # heat maps
LINKED = "code.html"
FLOOR = "kernels/ptx/"  # one instruction per function: who calls them says more
COUNTED = {
    "ld wavefronts": WAVEFRONTS.format("ld"),
    "ld conflicts": CONFLICTS.format("ld"),
    "st wavefronts": WAVEFRONTS.format("st"),
    "st conflicts": CONFLICTS.format("st"),
    "ld sectors": SECTORS[0],
    "st sectors": SECTORS[1],
    "ldsm": LDSM,
    "mma": TENSOR,
}
BLOCK = (
    "A round of the main loop, from the locks: the instructions that a CTA's warps issue for 64 queries by 64 keys, "
    "whatever the tile. Tensor instructions are as many at every iteration of a family; a step can save the others. "
    "`invoke cfg 16` draws the loop."
)
CODE = (
    f"[{LINKED}]({LINKED}) beside this page shows source, PTX and machine code of every step with linked lines. An "
    "instruction counts for the innermost part that calls it."
)


def waterfall(book: Book, one: Machine) -> Panel:
    """Percent of FA2 from step to step: a bar from where the ladder stood to where the step left it."""
    timed = book.ladder.headlines(one)
    found = [(step.number, step.slug.replace("_", " "), summary) for step, summary in timed]
    noise = math.sqrt(2) * max((its.floors_pct.get("fp16", 0.0) for _, its in one.files), default=0.0)
    bars = [(0.0, found[0][2].pct), *((old.pct, new.pct) for (*_, old), (*_, new) in pairwise(found))] if found else []

    def fill(axes: Axes) -> None:
        for i, (before, after) in enumerate(bars):
            color = INK if not i else SERIES[0] if after > before else SERIES[1]
            beyond = abs(after - before) > noise
            axes.barh(i, after - before, left=before, height=0.7, color=color if beyond else "none", edgecolor=color)
            gain = f"{after - before:+.1f}" if round(after - before, 1) else "0.0"
            axes.text(1.01, i, gain, transform=axes.get_yaxis_transform(), va="center", fontsize=7.5)
        axes.axvline(100, color=FAINT, linewidth=1, zorder=0)
        axes.set_yticks(range(len(found)), [f"{name} {number}" for number, name, _ in found])
        axes.invert_yaxis()
        axes.set(xlabel=f"percent of FA2, S = {HEADLINE_LENGTH}, fp16")
        axes.margins(x=0.02, y=0.01)

    told = (
        f"{one.title}, fp16, S = {HEADLINE_LENGTH}, {one.days}. Points of FA2's speed gained (blue) and lost (orange) "
        f"from step to step; hollow bars lie within {noise:.2f} points, the largest A/A floor of two ratios."
    )
    height = 1 + 0.19 * len(found)
    return draw(f"waterfall-{one.name}", f"The ladder on {one.title}", told, [found, bars], fill, height)


def heat_map(book: Book, gpu: str) -> Table:
    """Kind by iteration in one GPU's configurations, coloured by the share of the row's largest; sums lead to locks."""
    found, facts = costs(gpu, book.results / "locks"), load_gpus()[gpu]
    records = {number: book.locked_record(facts.arch, number, cost.locked) for number, cost in found.items()}
    most = max(cost.total for cost in found.values())
    rows = [[Cell("all"), *(heated(cost.total, most, records[n]) for n, cost in found.items())]]
    largest = {kind: max(cost.kinds[kind] for cost in found.values()) for kind in KINDS}
    rows += [
        [Cell(kind), *(heated(cost.kinds[kind], most) for cost in found.values())]
        for kind, most in largest.items()
        if most
    ]
    columns = [Column("kind", "code"), *(Column(str(n), hint=cost.config.brief()) for n, cost in found.items())]
    whose = f"{facts.arch}, the {facts.title}'s configurations"
    caption = f"{whose}: warp instructions for 64 queries by 64 keys, by iteration"
    return Table(f"kv-block-{gpu}", caption, columns, rows)


def linked(book: Book) -> list[dict[str, Any]]:
    """The kernels of the linked view, with its files; `FlashladderError` if these kernels are not what is locked."""
    path = book.results / "report" / LINKED
    document = read_document(path.read_bytes()) if path.is_file() else {"kernels": [], "files": []}
    for kernel in document["kernels"]:
        lock = book.ladder.locks.get(kernel["arch"])
        entry = lock.iterations.get(int(kernel["key"])) if lock else None
        locked = entry.kernels.get(kernel["config"]) if entry else None
        digests = {"PTX": locked.ptx_sha256, "machine code": locked.text_sha256} if locked else None
        if kernel["sha256"] != digests:
            raise FlashladderError(
                f"the linked view shows another kernel of iteration {kernel['key']} than is locked",
                where=relative(path), hint="run: python analysis/linked_page.py",
            )  # fmt: skip
    return [{**kernel, "names": [name for name, _ in document["files"]]} for kernel in document["kernels"]]


def part(chain: list[tuple[int, int]], names: list[str]) -> str:
    """The part of the kernel that a chain of calls ends in: its concern, or the body that calls the parts."""
    for file, _ in chain:
        folders = names[file].split("/")
        if names[file].startswith("kernels/") and not names[file].startswith(FLOOR):
            return folders[2] if len(folders) > 3 else "body" if "flash_fwd" in folders[-1] else folders[-1]
    return "the compilers' own"


def by_part(kernel: Mapping[str, Any]) -> Counter[str]:
    """Machine instructions of the main loop by the part that they were made from."""
    data, found = kernel["data"], Counter[str]()
    for first, last in data["loop"]:
        for origin, _ in data["sass"][first : last + 1]:
            chain = data["chains"][data["ptx"][origin][1]] if origin >= 0 else []
            found[part(chain, kernel["names"])] += 1
    return found


def parts(kernels: list[dict[str, Any]]) -> Table:
    """Parts of the source by iteration, coloured by share of the row's largest."""
    counts = [by_part(kernel) for kernel in kernels]
    names = sorted({name for one in counts for name in one}, key=lambda name: (-max(one[name] for one in counts), name))
    rows = [[Cell("total"), *(page.number(one.total(), 0) for one in counts)]]
    rows += [[Cell(name), *(heated(one[name], max(own[name] for own in counts)) for one in counts)] for name in names]
    columns = [Column("made from", "text"), *(Column(kernel["key"]) for kernel in kernels)]
    caption = "sm_80, the A100's configurations: machine instructions of the main loop by the part they were made from"
    return Table("linked-parts", caption, columns, rows)


def emulated(book: Book) -> Iterator[Table]:
    """The emulator's reading of the PTX that ships."""
    reading = book.ladder.emulated
    if reading is None:
        return
    rows, shape = [], reading.shape
    for step in book.ladder.iterations:
        if kernel := reading.find(step.number):
            facts = {
                "configuration": kernel.config, "normalised PTX": f"SHA-256 {kernel.ptx_sha256['fp16']}",
                "made again by": "python -m flashladder.emulate.reading",
            }  # fmt: skip
            record = book.records.fact(book.results / NAME, f"Iteration {step.number}, emulated", facts)
            races, counts = sum(kernel.races.values()), [kernel.counters[name] for name in COUNTED.values()]
            rows.append([
                page.step(step.number), Cell(step.title), page.number(counts[0], 0, record),
                *(page.number(count, 0) for count in (*counts[1:], kernel.warp_instructions)),
                page.number(races, 0, record, "holds" if races == 0 else "fails"),
            ])  # fmt: skip
    columns = [*page.columns("#", "Step|text"), *(Column(title, hint=name) for title, name in COUNTED.items())]
    where = f"batch {shape.batch}, S = {shape.seq_len}, {shape.n_heads} heads, fp16, the A100's configurations"
    caption = f"Counted by the emulator in the PTX that ships: {where}"
    yield Table("counters-emulated", caption, [*columns, *page.columns("PTX instructions", "races")], rows)


def on_gpu(book: Book) -> Iterator[Table]:
    """Counters as Nsight Compute read them on a GPU."""
    for path in files_in(book.results, "*/counters.json.gz"):
        result, rows = load_as(path, CounterResult), []
        names = {**COUNTED, "SASS instructions": INSTRUCTIONS}
        for key, counts in result.counters.items():
            kernel = result.kernels[key]
            facts = {"read by": f"Nsight Compute {result.ncu}", "mode": result.mode}
            first, *others = [counts.get(name) for name in names.values()]
            record = book.records.fact(path, key, facts, kernel)
            numbers = [page.number(first, 0, record), *(page.number(count, 0) for count in others)]
            rows.append([page.step(kernel.iteration), Cell(kernel.config), *numbers])
        shape, gpu = result.shape, result.gpu.name.replace("NVIDIA ", "")
        caption = f"Counted by Nsight Compute on {gpu}: batch {shape.batch}, S = {shape.seq_len}, {shape.n_heads} heads"
        columns = page.columns("#", "configuration|code")
        columns += [Column(title, hint=name) for title, name in names.items()]
        yield Table(f"counters-{path.parent.name}", caption, columns, rows)


def content(book: Book) -> Sequence[Block]:
    """Gains first, then what was counted."""
    maps = [page.fold(heat_map(book, gpu)) for gpu in SHOWN if costs(gpu, book.results / "locks")]
    kinds = Fold("What the kinds are", ["\n".join(f"- `{kind}`: {what}" for kind, what in KINDS.items())])
    code: list[Block] = [CODE, page.fold(parts(kernels))] if (kernels := linked(book)) else []
    counters = [page.fold(one) for one in (*emulated(book), *on_gpu(book))]
    gains = [waterfall(book, one) for one in book.machines if one.summaries]
    return [gains, BLOCK, *maps, kinds, *code, *counters]
