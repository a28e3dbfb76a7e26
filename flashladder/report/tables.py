"""Tables of the report: Markdown for README and results/report/progression.md, CSV for programs.

Percentages are of FA2's speed: 100 is FA2, more is better. A dash, in CSV an empty field, means that no number exists.
Below the steps are the libraries that were timed beside the last step.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from functools import cache
import hashlib
from pathlib import Path
import statistics
from typing import TYPE_CHECKING, Any, get_args

from flashladder.columns import grouped, listed, markdown
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import load_all
from flashladder.lock.code_claims import Verdict, verify
from flashladder.lock.step_counts import read_counts
from flashladder.names import DTYPES, HEADLINE_LENGTH, LIBRARIES, PUBLISHED_GPU
from flashladder.report.data import MODE, TITLES, Anchor, Ladder, Machine, Timing, plain
from flashladder.results.published import Statistic

if TYPE_CHECKING:
    import jinja2

DASH = "–"
NOT_RUN = "not run here"  # the step's family does not run on this GPU
LONG = ("95 % interval", "harmonic mean", "registers", "spills, B")  # columns that README's table leaves out
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
TEMPLATES = Path(__file__).with_name("templates")


@cache
def environment(folder: Path, *, escapes: bool = True) -> jinja2.Environment:
    """jinja2 over the templates of a folder; it escapes every value for HTML, and an unknown name is an error."""
    import jinja2
    from markupsafe import Markup

    loader = jinja2.FileSystemLoader((folder, TEMPLATES))
    made = jinja2.Environment(
        loader=loader, autoescape=escapes,  # noqa: S701  # Markdown is no HTML
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=not escapes,
    )  # fmt: skip
    made.filters |= {"median": statistics.median, "one_line": _one_line, "sha256": _sha256}
    made.globals["file"] = lambda name: Markup(loader.get_source(made, name)[0])  # noqa: S704  # this project's own
    return made


def _one_line(text: str) -> str:
    return " ".join(text.split()) + "\n"


def _sha256(text: str) -> str:
    """The digest as a content policy names it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def written(template: str, **values: Any) -> str:
    """The text of a page: a Markdown template of ``templates/`` with these values."""
    return environment(TEMPLATES, escapes=False).get_template(template).render(values)


def gpu_title(key: str) -> str:
    """The title of a GPU key in tables: ``rtx3090`` -> ``RTX 3090``."""
    gpu = load_gpus().get(key)
    return plain(gpu.title) if gpu else key


def headline_machine(ladder: Ladder) -> Machine | None:
    """The machine of README's table: it has the most measured kernels, and the first name among equals."""
    return max(ladder.machines, key=lambda machine: len(machine.measured), default=None)


def table(ladder: Ladder, machine: Machine | None, dtype: str, configs_of: str | None = None) -> str:
    """One progression table; without a machine it has no measured columns."""
    header, *lines = _lines(ladder, machine, dtype, configs_of)
    return markdown(header, lines)


def _lines(ladder: Ladder, machine: Machine | None, dtype: str, configs_of: str | None = None) -> list[list[str]]:
    """The header and the rows of a progression table, the libraries last."""
    header, gpus = ["#", "Step"], ladder.published.gpus
    if machine:
        header += [f"{machine.title} TFLOP/s", f"{machine.title} % of FA2", "95 % interval", "harmonic mean"]
    for key in gpus:
        header += [f"{gpu_title(key)} %", "harmonic mean"]
    lines = [[*header, "registers", "spills, B"]]
    for row in ladder.rows(machine, dtype, configs_of):
        number, locked = row.iteration.number, row.locked
        cells = [str(number), row.iteration.title]
        if machine:
            cells += _speed(row.measured, NOT_RUN if row.iteration.not_run_on(machine.gpu.arch) else DASH)
        theirs = [ladder.published.find(number, key, statistic) for key in gpus for statistic in STATISTICS]
        cells += [f"{cell.value:.1f}" if cell else DASH for cell in theirs]
        lines.append([*cells, *((str(locked.registers), str(locked.spill_stores)) if locked else (DASH, DASH))])
    for one in anchors_below(machine, dtype, configs_of):
        cells = ["", one.title, *_speed(one)]
        lines.append([*cells, *[DASH] * (len(lines[0]) - len(cells))])
    return lines


def _speed(timing: Timing | None, missing: str = DASH) -> list[str]:
    """TFLOP/s, percent of FA2, its interval, and the harmonic mean."""
    one, mean = (timing.headline, timing.mean) if timing else (None, None)
    speed = [DASH, missing, DASH]
    if one:
        speed = [f"{timing.tflops:.1f}" if timing and timing.tflops else DASH, f"**{one.pct:.1f}**"]
        speed.append(f"{one.pct_low:.1f} to {one.pct_high:.1f}")
    return [*speed, f"{mean.pct:.1f}" if mean else DASH]


def anchors_below(machine: Machine | None, dtype: str, configs_of: str | None = None) -> list[Anchor]:
    """The libraries below a table of the machine's own configurations; other tables have none."""
    if machine is None or configs_of not in (None, machine.configs_of):
        return []
    return [one for one in machine.anchors if one.dtype == dtype and HEADLINE_LENGTH in one.summaries]


def caption(ladder: Ladder, machine: Machine | None, dtype: str, configs_of: str | None = None) -> str:
    """Says what the table shows: GPU, dtype, configurations, rung, clocks, floor, and what is only published."""
    facts = {"published_gpu": gpu_title(PUBLISHED_GPU)}
    if machine:
        timed = filter(None, (row.headline for row in ladder.rows(machine, dtype, configs_of)))
        clocks = [one.sm_clock_mhz for one in timed if one.sm_clock_mhz is not None]
        serving = (one.family.targets.serving(machine.gpu.arch) for one in ladder.iterations)
        facts = {
            "cards": cards_text(machine, dtype), "configs": gpu_title(configs_of or machine.configs_of),
            "clocks": _range(clocks) if clocks else "", "fa2": fa2_text(machine, dtype), "idle": _idle(ladder, machine),
            "floor": floor_text(machine, dtype) if machine.floors(dtype) else "",
            "code": " and ".join(f"{arch}'s" for arch in dict.fromkeys(filter(None, serving))),
        }  # fmt: skip
    return written(
        "caption.md.j2", machine=machine, dtype=dtype, length=HEADLINE_LENGTH, mode=MODE, **facts,
        gpus=" and ".join(map(gpu_title, ladder.published.gpus)), description=ladder.published.description,
    ).strip()  # fmt: skip


def _range(values: Sequence[float], form: str = "{:.0f}") -> str:
    """``1500 to 1980``; one number if both are printed alike."""
    return " to ".join(dict.fromkeys((form.format(min(values)), form.format(max(values)))))


def _idle(ladder: Ladder, machine: Machine) -> str:
    """The steps that the machine does not run, with the reasons."""
    reasons = filter(None, (one.not_run_on(machine.gpu.arch) for one in ladder.iterations))
    return "".join(f" {reason}." for reason in reasons).replace(" iteration", " Iteration")


def cards_text(machine: Machine, dtype: str) -> str:
    """``one NVIDIA H200``; a second sentence lists separate runs."""
    name, runs = machine.gpu.name, [_span(numbers) for numbers in machine.fa2(dtype).values()]
    if len(runs) < 2:
        return f"one {name}"
    return f"an {name}. Steps {listed(runs)} were timed in separate runs, each on one card"


def floor_text(machine: Machine, dtype: str) -> str:
    """The A/A floors of the runs that timed the kernels, smallest to largest, and of other cards."""
    own = f"The A/A floor (FA2 timed against itself) is {_range(machine.floors(dtype), '±{:.2f}')}"
    others = [f"±{floor:.2f}" for floor in machine.other_floors.get(dtype, ())]
    more = f" (on a second card {' and '.join(others)})" if others else ""
    return f"{own} points{more}; intervals include it"


def fa2_text(machine: Machine, dtype: str) -> str:
    """Defines the column of TFLOP/s: the ratio to FA2 times one figure for FA2 per run."""
    runs = machine.fa2(dtype)
    if not runs:
        return ""
    least, middle, most = next(iter(runs))
    fa2 = f", {middle:.1f}: the median of what it reached beside the kernels ({least:.1f} to {most:.1f})"
    if len(runs) > 1:
        of = [f"{middle:.1f} ({least:.1f} to {most:.1f}) for {_span(of)}" for (least, middle, most), of in runs.items()]
        fa2 = f" in each run, the median of what it reached beside the kernels: {', '.join(of)}"
    return f"TFLOP/s are the percentage of one figure for FA2{fa2}; each as timed is in `results/report/cells.csv`. "


def _span(numbers: list[int]) -> str:
    """``17 to 19`` for consecutive numbers, otherwise ``17, 19 and 21``."""
    if len(numbers) > 1 and numbers == [*range(numbers[0], numbers[-1] + 1)]:
        return f"{numbers[0]} to {numbers[-1]}"
    return listed([*map(str, numbers)])


def readme_block(ladder: Ladder) -> str:
    """The text between README's markers: the fp16 table of the headline machine, and the plot."""
    machine = headline_machine(ladder)
    header, *lines = _lines(ladder, machine, "fp16")
    kept = [i for i, title in enumerate(header) if title not in LONG]
    short = [title.partition(" ")[2] if title.endswith("% of FA2") else title for title in header]
    table = markdown([short[i] for i in kept], [[line[i] for i in kept] for line in lines])
    timed = {one.name for one in anchors_below(machine, "fp16")}
    facts = {} if machine else {"caption": caption(ladder, None, "fp16")}
    if machine:
        facts = {
            "cards": cards_text(machine, "fp16"), "idle": _idle(ladder, machine),
            "floor": floor_text(machine, "fp16") if machine.floors("fp16") else "",
            "lacking": listed([TITLES[name] for name in LIBRARIES if name not in timed]) if timed else "",
            "gpus": listed([*map(gpu_title, ladder.published.gpus)]),
        }  # fmt: skip
    return written(
        "readme.md.j2", table=table, machine=machine, length=HEADLINE_LENGTH, emulated=ladder.emulated,
        shape=ladder.published.description.shape, repository=ladder.published.description.source.repository,
        several=machine and len(machine.fa2("fp16")) > 1, **facts,
    )  # fmt: skip


def terminal(ladder: Ladder) -> str:
    """The caption and README's table without Markdown's emphasis."""
    machine = headline_machine(ladder)
    return f"{caption(ladder, machine, 'fp16')}\n\n{table(ladder, machine, 'fp16').replace('**', '  ')}"


def document(ladder: Ladder) -> str:
    """results/report/progression.md: every machine, dtype and set of configurations, and all lengths."""
    sections = [
        (
            f"{machine.title}, {dtype}, configurations of the {gpu_title(key)}", caption(ladder, machine, dtype, key),
            table(ladder, machine, dtype, key), _by_length(ladder, machine, dtype, key),
        )
        for machine in ladder.machines
        for dtype, key in sets_of(ladder, machine)
    ]  # fmt: skip
    if not ladder.machines:
        sections = [("Published", caption(ladder, None, "fp16"), table(ladder, None, "fp16"), "")]
    return written("progression.md.j2", sections=sections, architectures=_by_architecture(), refused=ladder.refused)


def sets_of(ladder: Ladder, machine: Machine) -> Iterator[tuple[str, str]]:
    """(dtype, GPU key of the configurations) of every table of a machine that is not empty."""
    for dtype in DTYPES:
        for configs_of in dict.fromkeys((machine.configs_of, PUBLISHED_GPU)):
            if any(row.headline for row in ladder.rows(machine, dtype, configs_of)):
                yield dtype, configs_of


def _by_length(ladder: Ladder, machine: Machine, dtype: str, configs_of: str) -> str:
    lengths = ladder.published.description.shape.seq_lens
    timed: list[tuple[str, str, Timing | None]] = [
        (str(row.iteration.number), f"`{row.config}`", row.measured) for row in ladder.rows(machine, dtype, configs_of)
    ]
    timed += [("", one.title, one) for one in anchors_below(machine, dtype, configs_of)]
    lines = []
    for number, name, timing in timed:
        found = timing.summaries if timing else {}
        lines.append([number, name, *(f"{found[n].pct:.1f}" if n in found else DASH for n in lengths)])
    return markdown(["#", "Configuration", *map(str, lengths)], lines)


def rounded(value: float | None, digits: int = 3) -> str | None:
    """A measured value for CSV, with fixed digits, so the bytes do not depend on a float's last bit."""
    return None if value is None else f"{value:.{digits}f}"


def gpus_of(arch: str) -> str:
    """``sm_90 (H100, H200)``."""
    names = [gpu.title for gpu in load_gpus().values() if gpu.arch == arch]
    return f"{arch} ({', '.join(names)})" if names else arch


def counts_of(verdicts: Sequence[Verdict]) -> str:
    """The counts of verdicts, each with the places where it was found."""
    by_counts = grouped(verdicts, lambda one: one.counts + ("" if one.holds else ", which fails"))
    return "; ".join(f"{counts} ({', '.join(one.place for one in own)})" for counts, own in by_counts.items())


def _by_architecture() -> str:
    """The table of the claims about machine code that are not made on every architecture."""
    counts, lines = read_counts(), []
    counted = {kernel.iteration for kernel in counts.kernels.values()}
    verdicts = verify([one.number for one in load_all() if one.number in counted], counts)
    for (number, claim), own in grouped(verdicts, lambda one: (one.iteration, one.claim)).items():
        if claim.on:
            outside, made = ([one for one in own if one.claimed is claimed] for claimed in (False, True))
            where = ", ".join(gpus_of(one.place) for one in outside)
            lines.append([str(number), str(claim), counts_of(made), f"{where}: {counts_of(outside)}"])
    return markdown(["#", "Claim", "where it is made", "elsewhere"], lines, left=4)


def progression(ladder: Ladder) -> list[dict[str, object]]:
    """Rows of progression.csv: one per machine, dtype, set of configurations and iteration."""
    sets: list[tuple[Machine | None, str, str]] = [
        (machine, dtype, key) for machine in ladder.machines for dtype, key in sets_of(ladder, machine)
    ]
    found = []
    for machine, dtype, key in sets or [(None, "fp16", PUBLISHED_GPU)]:
        for row in ladder.rows(machine, dtype, key):
            step, own, code = row.iteration, row.measured, row.locked
            one, mean = (row.headline if own and own.fa2 else None), own.mean if own else None
            theirs = {
                f"published_{gpu}_pct_{statistic}": ladder.published.find(step.number, gpu, statistic)
                for gpu in ladder.published.gpus
                for statistic in STATISTICS
            }
            found.append({
                **_where(machine), "dtype": dtype, "configs_of": key, "iteration": step.number, "title": step.title,
                "config": row.config, "tflops_seq4096": rounded(row.tflops),
                "fa2_tflops_seq4096": rounded(own.fa2[1] if own and own.fa2 else None),
                "sm_clock_mhz_seq4096": rounded(one.sm_clock_mhz if one else None, 0),
                **_pick(one, "_seq4096", pct_of_fa2="pct", pct_low="pct_low", pct_high="pct_high", verdict="verdict"),
                **_pick(mean, "_hmean", pct_of_fa2="pct", pct_low="pct_low", pct_high="pct_high"),
                **_pick(own, a_a_floor_points="floor"),
                **{name: cell.value if cell else None for name, cell in theirs.items()},
                **_pick(code, registers="registers", spill_store_bytes="spill_stores", spill_load_bytes="spill_loads"),
                **_pick(code, text_sha256="text_sha256"),
            })  # fmt: skip
    return found


def _pick(of: object, suffix: str = "", **columns: str) -> dict[str, object]:
    """Maps columns to attributes of `of`, floats rounded; None for a missing attribute."""
    found = {name + suffix: getattr(of, attribute, None) for name, attribute in columns.items()}
    return {name: rounded(value) if isinstance(value, float) else value for name, value in found.items()}


def _where(machine: Machine | None) -> dict[str, object]:
    values = (machine.name, machine.gpu.name, machine.rungs.replace(" and ", "+"), MODE) if machine else (None,) * 4
    return dict(zip(("machine", "gpu", "rung", "mode"), values, strict=True))


def cells(ladder: Ladder) -> list[dict[str, object]]:
    """Rows of cells.csv: every measured kernel at every length."""
    return [
        {
            **_where(machine), "iteration": number, "config": config, "dtype": one.dtype,
            **_pick(one.shape, seq_len="seq_len", batch="batch", n_heads="n_heads", d_head="d_head"),
            **_pick(one, tflops="tflops", fa2_tflops="reference_tflops", kernel_us="kernel_us", fa2_us="reference_us"),
            **_pick(one, pct_of_fa2="pct", pct_low="pct_low", pct_high="pct_high", verdict="verdict"),
            **_pick(one, n_pairs="n_pairs", dropped_share="dropped_share"),
            "sm_clock_mhz": rounded(one.sm_clock_mhz, 0), "text_sha256": measured.kernel.text_sha256,
        }
        for machine in ladder.machines
        for (number, config), measured in sorted(machine.measured.items())
        for _, one in sorted(measured.summaries.items())
    ]  # fmt: skip
