"""Checks, sanitizer runs, counters, opinions and logs against what the manifest says of them.

Why apart from `flashladder.gate.evidence.manifest`: that reads a folder; here is a function per kind
of file, with one phrase per thing that is missing or otherwise. Nothing to run here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
import csv
from pathlib import Path
import re
from statistics import median

from flashladder.cases.inputs import N_HEADS, cases_for, shape_of
from flashladder.files import read_text
from flashladder.gate.evidence import bounds
from flashladder.gate.evidence.inside import POWER_SHARE
from flashladder.gate.evidence.timings import keys
from flashladder.gpu import sanitize
from flashladder.ladder import manifest
from flashladder.ladder.config import D_HEAD, KernelConfig
from flashladder.ladder.iteration import load_iteration
from flashladder.results.derive import fastest_possible_us
from flashladder.results.files import load_as, read_json
from flashladder.results.schema import (
    BenchResult,
    CaseResult,
    CheckResult,
    CounterResult,
    EnergyResult,
    Kernel,
    SanitizerResult,
    SecondOpinionResult,
    Shape,
    SoakResult,
)

ALIKE = 1.5  # times: mean power by the energy counter against looks, which the driver averages over a second

_PASSED = re.compile(
    r"^=+ (?:(\d+) failed, )?(\d+) passed(?:, (\d+) skipped)?(?:, .*)? in [\d.:() s]+ =+$", re.MULTILINE
)
_TEST = re.compile(r"^(\S+::\S.*) PASSED", re.MULTILINE)


def check(path: Path, spec: manifest.Cases) -> Iterator[str]:
    """Every kernel with every case, in the shape that its name says, within bounds that follow from the rule."""
    result = load_as(path, CheckResult)
    yield from same_kernels(result.kernels, spec.of)
    yield from every_case(result, spec)


def every_case(result: CheckResult | SoakResult, spec: manifest.EveryCase) -> Iterator[str]:
    """Cases that are missing, unknown or not as they must be."""
    by_kernel: dict[str, list[CaseResult]] = {}
    for case in result.cases:
        by_kernel.setdefault(case.kernel, []).append(case)
    for key, kernel in result.kernels.items():
        config = KernelConfig.parse(kernel.config)
        due = {case.name: case.shape for case in cases_for(config)}
        found = Counter(case.case for case in by_kernel.get(key, ()))
        asked = spec.cases + (0 if config.multiples else spec.ragged) + (spec.few if config.few_tiles else 0)
        if len(due) != asked:
            yield f"{key}: expected {asked} cases, the checker makes {len(due)}"
        yield from (f"{key}: case {name}: expected once, found {found[name]}" for name in due if found[name] != 1)
        yield from (f"{key}: case {name}: unknown" for name in found if name not in due)
        any_stride = not load_iteration(kernel.iteration).row_stride
        for case in by_kernel.get(key, ()):
            if any_stride and case.status == "not_applicable":
                yield f"{key}: case {case.case}: was refused, expected pass: it takes any row stride"
            yield from (f"{key}: case {case.case}: {line}" for line in _case(case, due.get(case.case), spec.repeats))


def _case(case: CaseResult, shape: Shape | None, repeats: int) -> Iterator[str]:
    if shape is not None and case.shape != shape:
        yield f"expected the shape {_shape(shape)}, found {_shape(case.shape)}"
    if case.status == "not_applicable":
        return
    if case.repeats < repeats:
        yield f"expected {repeats} runs that agree, found {case.repeats}"
    if case.accuracy is None:
        yield "expected its errors, found none"
    else:
        yield from bounds.problems(case.accuracy, case.dtype, shape or case.shape)


def _shape(shape: Shape) -> str:
    return f"{shape.batch}x{shape.seq_len}x{shape.n_heads}x{shape.d_head}"


def same_kernels(found: Mapping[str, Kernel], of: manifest.Kernels) -> Iterator[str]:
    """Kernels that are missing, or too many."""
    due = [key for key, _ in keys(of)]
    yield from (f"kernel {key}: is missing" for key in due if key not in found)
    yield from (f"kernel {key}: is not in the manifest" for key in found if key not in due)


def sanitizers(path: Path, spec: manifest.Sanitizers) -> Iterator[str]:
    """Every tool over every kernel, as many launches as it is shown (`flashladder.gpu.sanitize.launches`)."""
    result = load_as(path, SanitizerResult)
    yield from same_kernels(result.kernels, spec.of)
    ran = Counter(finding.tool for finding in result.findings)
    yield from (f"tool {tool}: expected once, found {ran[tool]}" for tool in spec.tools if ran[tool] != 1)
    configurations = spec.of.configurations()
    kernels = [one for configs in configurations.values() for one in configs]
    shown = sanitize.launches([*configurations], spec.of.configs)
    launches = sum(len(shown.shapes(one)) for one in kernels)
    for finding in result.findings:
        if f"\n{launches} launches\n" not in finding.tail:
            told = re.search(r"(\d+) launches", finding.tail)
            yield f"tool {finding.tool}: expected {launches} launches, found {told[1] if told else 'none'}"


def counters(path: Path, spec: manifest.Counters) -> Iterator[str]:
    """Every counter of every kernel, at the shape that the peers were read at."""
    result = load_as(path, CounterResult)
    yield from same_kernels(result.kernels, spec.of)
    shape = Shape(batch=1, seq_len=spec.seq_len, n_heads=N_HEADS, d_head=D_HEAD)
    if result.shape != shape:
        yield f"expected the shape {_shape(shape)}, found {_shape(result.shape)}"
    for key, _ in keys(spec.of):
        found = result.counters.get(key, {})
        yield from (f"{key}: counter {name}: is missing" for name in spec.counters if name not in found)
        yield from (f"{key}: counter {name}: is not in the manifest" for name in found if name not in spec.counters)


def opinions(path: Path, spec: manifest.Opinions) -> Iterator[str]:
    """Every tool's samples of every subject at every length."""
    result = load_as(path, SecondOpinionResult)
    yield from same_kernels(result.kernels, spec.of)
    made = {(str(one.method), str(one.dtype), one.shape): one for one in result.opinions}
    for method, least in spec.samples.items():
        for seq_len in spec.seq_lens:
            others = [(name, dtype) for name in ("fa2", *spec.references) for dtype in spec.of.dtypes]
            for key, dtype in [*keys(spec.of), *others]:
                opinion = made.get((method, dtype, shape_of(seq_len)))
                timings = opinion.of(key) if opinion else None
                n = len(timings.us) if timings else 0
                if n < least:
                    yield f"{method} {key} {dtype} S={seq_len}: expected {least} samples, found {n}"


def log(path: Path, spec: manifest.Log) -> Iterator[str]:
    """Pytest's last line, and as many tests above it as that counts, each once."""
    text = read_text(path)
    told = _PASSED.search(text)
    failed, passed, skipped = (int(one or 0) for one in told.groups()) if told else (0, 0, 0)
    names = Counter(_TEST.findall(text))
    listed = names.total()
    if (failed, passed, skipped, listed) != (0, spec.passed, spec.skipped, spec.passed):
        expected = f"expected {spec.passed} passed, {spec.skipped} skipped"
        yield f"tests: {expected}, found {passed} passed, {skipped} skipped, {failed} failed, {listed} listed"
    yield from (f"test {name}: expected once, found {n}" for name, n in names.items() if n > 1)


def seconds(path: Path, spec: manifest.Seconds) -> Iterator[str]:
    """A row for each planned cell of each sweep, and no other."""
    rows = list(csv.DictReader(read_text(path).splitlines()))
    found = Counter((row["sweep"], row["cell"]) for row in rows)
    due = set()
    for name in spec.sweeps:
        sweep = load_as(path.parent / f"{name}.json.gz", BenchResult).sweep
        due |= {(name, cell.address) for cell in sweep.planned} if sweep else set()
    yield from (f"{name} {cell}: is missing" for name, cell in sorted(due - found.keys()))
    yield from (
        f"{name} {cell}: is not a cell of it, once" for name, cell in found if found[name, cell] > ((name, cell) in due)
    )


def trials(path: Path, spec: manifest.Trials) -> Iterator[str]:
    """As many trials, and as many pairs in all."""
    found = read_json(path)["trials"]
    if len(found) != spec.trials:
        yield f"trials: expected {spec.trials}, found {len(found)}"
    if (pairs := sum(len(one["pairs_ms"]) for one in found)) != spec.pairs:
        yield f"pairs: expected {spec.pairs} in all, found {pairs}"


def energy(path: Path, spec: manifest.Energy) -> Iterator[str]:
    """Every turn of every kernel and reference at every length, long enough and within the card's limits."""
    result = load_as(path, EnergyResult)
    yield from same_kernels(result.kernels, spec.of)
    others = ("fa2", *spec.references)
    subjects = [*keys(spec.of), *((name, dtype) for name in others for dtype in spec.of.dtypes)]
    due = {
        (key, dtype, shape_of(seq_len), turn)
        for key, dtype in subjects
        for seq_len in spec.seq_lens
        for turn in range(spec.turns)
    }
    found = {(run.subject, run.dtype, run.shape, run.turn): run for run in result.runs}
    for key, dtype, shape, turn in sorted(due ^ set(found), key=str):
        what = "is missing" if (key, dtype, shape, turn) in due else "is not in the manifest"
        yield f"{key} {dtype} S={shape.seq_len}, turn {turn}: {what}"
    limit = result.gpu.power_limit_w
    for run in result.runs:
        where = f"{run.subject} {run.dtype} S={run.shape.seq_len}, turn {run.turn}"
        if run.seconds < spec.seconds:
            yield f"{where}: expected at least {spec.seconds:g} s, found {run.seconds:g}"
        if not run.samples:
            yield f"{where}: expected looks at the GPU, found none"
        if limit and run.watts > POWER_SHARE * limit:
            yield f"{where}: {run.watts:.0f} W, the limit is {limit:.0f}"
        looks = [one.power_w for one in run.samples if one.power_w is not None]
        if not looks or not 1 / ALIKE <= run.watts / median(looks) <= ALIKE:
            seen = f"{median(looks):.0f} W" if looks else "nothing"
            yield f"{where}: the counter tells {run.watts:.3g} W, looks at the card meanwhile {seen}"
        least = fastest_possible_us(run.shape, result.gpu.name)
        if least is not None and (took := run.seconds / run.launches * 1e6) < least:
            yield f"{where}: {took:.1f} us a launch is below the {least:.1f} us that the GPU's peaks allow"


def rates(path: Path, spec: manifest.Rates) -> Iterator[str]:
    """Every run, each as often as asked, with a span of every SM (of one, where a warp runs alone)."""
    document = read_json(path)
    found = document["runs"]
    if len(found) != spec.runs:
        yield f"runs: expected {spec.runs}, found {len(found)}"
    for run in found:
        due = [1 if run["alone"] else document["gpu"]["n_sm"]] * spec.repeats
        if (spans := [len(one) for one in run["spans"]]) != due:
            yield f"{run['round']}, {run['chains']} chains, {run['warps']} warps: expected {due} spans, found {spans}"
        elif min(min(one) for one in run["spans"]) <= 0:
            yield f"{run['round']}, {run['chains']} chains, {run['warps']} warps: a span that is not positive"
