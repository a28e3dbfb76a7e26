"""The data of the page's sections: the ladder, committed timings, and the records behind numbers.

A click on a number shows its record: raw samples, machine, digest of the machine code, command. Cells name records
by number. The page holds each record once, as deflated JSON that ``templates/page.js`` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
import json
import math
from pathlib import Path
import re
from typing import Any

import numpy as np

from flashladder.files import files_in, read_text, sha256
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.lock.schema import LockedKernel, lock_path, read_lock
from flashladder.paths import ROOT
from flashladder.problem import Problem
from flashladder.report.data import Ladder, Machine, Timed, stated_result, swept, swept_files
from flashladder.results.derive import by_cell
from flashladder.results.files import load_as, load_result
from flashladder.results.schema import A_A, Accuracy, BenchResult, Group, Kernel, Reference, Result, Series

MADE_BY = re.compile(r"^\| ([^|]+) \|.*\| ([^|]+) \|$", re.MULTILINE)  # first and last column of a machine's README
FILE = re.compile(r"`([^`]+)`")
NS = 1000  # nanoseconds per microsecond; a GPU's events have a resolution of 32 ns
Numbered = dict[object, tuple[int, Any]]  # by key: number and value
Facts = list[tuple[str, str]]


@dataclass
class Book:
    """All data of the sections; `root` is the checkout."""

    ladder: Ladder
    root: Path = ROOT

    @cached_property
    def records(self) -> Records:
        """The records that sections have asked for."""
        return Records(self.root)

    @property
    def results(self) -> Path:
        """The folder of results."""
        return self.root / "results"

    @cached_property
    def machines(self) -> list[Machine]:
        """Every measured GPU, by its benchmarks or, without these, its sweep."""
        every = (*self.ladder.machines, *swept(self.ladder, self.results))
        return sorted(every, key=lambda one: one.name, reverse=True)

    @cached_property
    def sweeps(self) -> tuple[Timed, ...]:
        """Each machine's sweep of its own grid: the ladder beside all references."""
        return tuple(Timed(((path, stated_result(path)),)) for path in swept_files(self.results)[::-1])

    @cached_property
    def beside_libraries(self) -> tuple[Timed, ...]:
        """Every sweep with libraries, sweeps of the first steps first."""
        return (*self.sweeps, *self.grids("hopper"), *self.grids("persistent"))

    def grids(self, grid: str) -> tuple[Timed, ...]:
        """Every machine's sweep of one grid, such as ``hopper``."""
        files = files_in(self.results, f"*/{grid}.json.gz")[::-1]
        return tuple(Timed(((path, stated_result(path)),)) for path in files)

    def locked_record(self, arch: str, number: int, kernel: LockedKernel) -> str:
        """The record of a kernel's entry in the lock of an architecture."""
        path = lock_path(arch, self.results / "locks")
        entry = (self.ladder.locks.get(arch) or read_lock(arch, path.parent)).iterations[number]
        facts = {
            "machine code": f"SHA-256 of .text {kernel.text_sha256}", "normalised PTX": f"SHA-256 {kernel.ptx_sha256}",
            "compiled by": ", ".join(f"{name} {found}" for name, found in entry.toolchain.items()),
            "registers": kernel.registers, "spilled": f"{kernel.spill_stores}/{kernel.spill_loads} bytes stored/loaded",
            "derived again by": "python -m flashladder.lock verify", "locked because": entry.history[-1],
        }  # fmt: skip
        return self.records.fact(path, f"Iteration {number}, {arch}", facts)


class Records:
    """The records of one page, numbered in the order in which sections ask for them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._records: Numbered = {}
        self._sources: Numbered = {}
        self._codes: Numbered = {}

    def timing(self, path: Path, kernel: str, dtype: str, shape: Problem) -> str:
        """The record of one timed cell, with its raw pairs; empty if the file has no such cell."""
        parts = self._parts(path).get((kernel, dtype, shape))
        if not parts:
            return ""

        def record() -> dict[str, Any]:
            document = load_as(path, BenchResult)
            beside = {A_A: document.reference, **document.references}
            own = document.kernels.get(kernel)
            facts = self._kernel_facts(own) if own else _reference_facts(beside[kernel])
            sizes = f"S = {shape.seq_len}, batch {shape.batch}, {shape.n_heads} heads"
            return {
                "title": ", ".join(filter(None, (dtype, sizes, shape.kind))),
                "source": numbered(self._sources, path, lambda: self.described(path)),
                "code": numbered(self._codes, (path, kernel), lambda: [kernel, facts]),
                "parts": [list(packed(group, series).values()) for group, series in parts],
            }

        return str(numbered(self._records, (path, kernel, dtype, shape), record))

    def mean(self, path: Path, kernel: str, dtype: str) -> str:
        """The records behind a harmonic mean or a floor: the kernel, or FA2 beside itself (`A_A`), at every length."""
        cells = [key for key in self._parts(path) if key[:2] == (kernel, dtype)]
        return join(self.timing(path, *key) for key in cells)

    def fact(self, path: Path, title: str, facts: Mapping[str, object], kernel: Kernel | None = None) -> str:
        """The record of a figure without samples: a count, an error, a published figure."""
        texts = tuple((name, str(value)) for name, value in facts.items())

        def record() -> dict[str, Any]:
            source, code = numbered(self._sources, path, lambda: self.described(path)), -1
            if kernel is not None:
                code = numbered(self._codes, (path, kernel.key), lambda: [kernel.key, self._kernel_facts(kernel)])
            return {"title": title, "source": source, "code": code, "facts": list(texts)}

        return str(numbered(self._records, (path, title, texts), record))

    def described(self, path: Path) -> Facts:
        """The provenance of a file: path, command, machine, host, driver, protocol, days, digest."""
        name = path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.name
        facts: Facts = [("file", name), *(("made by", made) for made in [self.made_by(path)] if made)]
        result = load_result(path) if path.name.endswith(".json.gz") else None
        digest = ("SHA-256 of the file", sha256(path.read_bytes()))
        if not isinstance(result, Result):
            return [*facts, digest]
        gpu, host = result.gpu, result.host
        power = f", {gpu.power_limit_w:.0f} W" if gpu.power_limit_w else ""
        facts += [
            ("derived again by", f"invoke verify {name}"),
            ("GPU", f"{gpu.name}{power}, driver {gpu.driver}"),
            ("card", gpu.uuid),
            ("host", f"{host.cpu}, {host.n_cpus} CPUs, {host.system}, Python {host.python} ({host.digest})"),
            ("rung", result.rung),
            ("protocol", result.protocol_version),
        ]
        if isinstance(result, BenchResult):
            settings = result.settings
            facts += [
                ("mode", result.mode),
                ("started", ", ".join(sorted({process.started_utc for process in result.processes}))),
                ("reference", f"{result.reference.op} of torch {result.reference.torch}"),
                ("settings", f"{settings.pairs} pairs in {settings.blocks} blocks, {settings.flush_bytes:,} B flushed"),
                *((f"A/A floor, {dtype}", f"±{floor:.2f} points") for dtype, floor in result.floors_pct.items()),
            ]
        return [*facts, digest]

    def made_by(self, path: Path) -> str:
        """The command that made a file, from the README of its folder; empty if that has none."""
        readme = path.parent / "README.md"
        text = read_text(readme) if readme.is_file() else ""
        rows: dict[str, str] = {name: last for first, last in MADE_BY.findall(text) for name in FILE.findall(first)}
        return rows.get(path.name, "").replace("`", "").strip()

    def data(self) -> str:
        """All records that sections have asked for, as JSON for the page's script."""
        found = {"records": self._records, "sources": self._sources, "codes": self._codes}
        return in_script({name: [value for _, value in own.values()] for name, own in found.items()})

    @cache
    def _parts(self, path: Path) -> Mapping[Any, Any]:
        return by_cell(load_as(path, BenchResult).groups)

    def _kernel_facts(self, kernel: Kernel) -> Facts:
        """Machine code and compiler of a kernel, and whether a lock holds it."""
        digest = kernel.text_sha256 or "compiled by the driver"
        locked = f", as in results/locks/{kernel.arch}.json" if digest in self._every_locked else ""
        tools = {name.removeprefix("nvidia-cuda-"): found for name, found in kernel.toolchain.items()}
        facts = [
            (f"machine code, {kernel.arch}", f"SHA-256 of .text {digest}{locked}"),
            ("compiled by", ", ".join(f"{name} {found}" for name, found in tools.items())),
        ]
        if kernel.registers is not None:
            spills = f"{kernel.spill_stores}/{kernel.spill_loads} bytes spilled"
            facts.append(("registers", f"{kernel.registers} per thread, {spills} (stored/loaded)"))
        return facts

    @cached_property
    def _every_locked(self) -> set[str]:
        locks = [read_lock(arch, self.root / "results" / "locks") for arch in LOCK_ARCHES]
        entries = (entry for lock in locks for entry in lock.iterations.values())
        return {kernel.text_sha256 for entry in entries for kernel in entry.kernels.values()}


def numbered(known: Numbered, key: object, make: Callable[[], Any]) -> int:
    """The number of a key; a new key gets the next number and the value that `make` returns."""
    if key not in known:
        value = make()
        known[key] = len(known), value
    return known[key][0]


def in_script(value: Any) -> str:
    """JSON for a script element; no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _reference_facts(reference: Reference) -> Facts:
    facts = [("reference", f"{reference.op}, {reference.version or f'torch {reference.torch}'}")]
    return facts + [(f"its kernel, {dtype}", name) for dtype, name in reference.kernels.items()]


def join(records: Iterable[str]) -> str:
    """Several records in the form for a cell, each once."""
    return ",".join(dict.fromkeys(number for record in records for number in record.split(",") if number))


def packed(group: Group, series: Series) -> dict[str, Any]:
    """The raw pairs of one series; JSON holds the values alone, in this order.

    Returns:
        ``process`` and the ``seeds`` of its inputs; ``fa2`` and ``kernel``: times in units of ``unit`` nanoseconds, the
        first one and then differences; ``inputs``: input sets of the first pairs, which then repeat; ``errors``: the
        largest and the allowed error, before and after timing; ``blocks``: columns of index, number of pairs, whether
        the kernel went first, why the block was dropped (0: it counts), SM clock in MHz, power in W and temperature in
        degrees C at its start; a constant column is one value.
    """
    fa2 = [round(pair.reference_us * NS) for pair in series.pairs]
    kernel = [round(pair.kernel_us * NS) for pair in series.pairs]
    unit = math.gcd(*fa2, *kernel) or 1
    rows = []
    for block in group.blocks:
        if n_pairs := sum(pair.block == block.index for pair in series.pairs):
            clock, power, heat = next(
                ((one.sm_clock_mhz, one.power_w, one.temperature_c) for one in block.samples), (None,) * 3
            )
            power = None if power is None else round(power)
            rows.append((block.index, n_pairs, int(block.kernel_first), block.dropped or 0, clock, power, heat))
    columns = [list(column) for column in zip(*rows, strict=True)]
    return {
        "process": group.process,
        "seeds": list(group.input_seeds),
        "unit": unit,
        "fa2": np.diff([time // unit for time in fa2], prepend=0).tolist(),
        "kernel": np.diff([time // unit for time in kernel], prepend=0).tolist(),
        "inputs": cycle([pair.input_set for pair in series.pairs]),
        "errors": [_error(series.before), _error(series.after)],
        "blocks": [column[0] if all(one == column[0] for one in column) else column for column in columns],
    }


def cycle(inputs: Sequence[int]) -> list[int]:
    """The shortest prefix whose repetition gives the whole."""
    lengths = (n for n in range(1, len(inputs)) if all(one == inputs[i % n] for i, one in enumerate(inputs)))
    return list(inputs[: next(lengths, len(inputs))])


def _error(look: Accuracy | None) -> list[float] | None:
    if look is None or look.max_error is None:
        return None
    return [float(f"{look.max_error:.3g}"), float(f"{look.max_allowed:.3g}")]
