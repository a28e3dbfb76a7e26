"""Where every number of the page comes from: raw samples, machine, digest of the machine code, command.

Why numbered records: a cell of a table and a point of a plot name theirs by number, and the page holds each once, as
deflated JSON that a click turns into a dialog. What no section asks for is not in the page. Nothing to run here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import json
from pathlib import Path
import re
from typing import Any

from flashladder.files import read_text, sha256
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.lock.schema import read_lock
from flashladder.report.page.samples import packed
from flashladder.results.derive import by_cell
from flashladder.results.files import identity, load_as, load_result
from flashladder.results.schema import A_A, BenchResult, Kernel, Reference, Result, Shape

MADE_BY = re.compile(r"^\| ([^|]+) \|.*\| ([^|]+) \|$", re.MULTILINE)  # first and last column of a machine's README
FILE = re.compile(r"`([^`]+)`")
Facts = list[tuple[str, str]]


class Records:
    """The records of one page, each once, by number in the order in which sections ask for them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._numbers: dict[object, int] = {}
        self._records: list[dict[str, Any]] = []
        self._documents: dict[Path, int] = {}
        self._sources: list[Facts] = []
        self._kernels: dict[tuple[Path, str], int] = {}
        self._codes: list[tuple[str, Facts]] = []
        self._cells: dict[Path, Mapping[Any, Any]] = {}
        self._made: dict[Path, dict[str, str]] = {}
        self._locked: set[str] | None = None
        self._benches: dict[Path, BenchResult] = {}
        self._one_compiler: dict[Path, bool] = {}

    def timing(self, path: Path, kernel: str, dtype: str, shape: Shape) -> str:
        """The record of one timed cell, with its raw pairs; empty where the file has no such cell."""
        key = (path, kernel, dtype, shape)
        if key not in self._numbers:
            document = self._bench(path)
            parts = self._parts(path, document).get((kernel, dtype, shape))
            if not parts:
                return ""
            record = {
                "title": f"{dtype}, S = {shape.seq_len}, batch {shape.batch}, {shape.n_heads} heads",
                "source": self.document(path),
                "code": self._code(path, document, kernel),
                "parts": [list(packed(group, series).values()) for group, series in parts],
            }
            self._add(key, record)
        return str(self._numbers[key])

    def floor(self, path: Path, dtype: str) -> str:
        """The records behind an A/A floor: FA2 timed beside itself, at every length."""
        document = self._bench(path)
        cells = [key for key in self._parts(path, document) if key[0] == A_A and key[1] == dtype]
        return join(self.timing(path, *key) for key in cells)

    def mean(self, path: Path, kernel: str, dtype: str) -> str:
        """The records behind a harmonic mean: the kernel at every length."""
        document = self._bench(path)
        cells = [key for key in self._parts(path, document) if key[:2] == (kernel, dtype)]
        return join(self.timing(path, *key) for key in cells)

    def fact(self, path: Path, title: str, facts: Mapping[str, object], kernel: Kernel | None = None) -> str:
        """The record of what a file says without samples: a count, an error, a published figure."""
        told = tuple((name, str(value)) for name, value in facts.items())
        key = (path, title, told)
        if key not in self._numbers:
            code = -1 if kernel is None else self._code_of(path, kernel.key, self._kernel_facts(kernel))
            self._add(key, {"title": title, "source": self.document(path), "code": code, "facts": list(told)})
        return str(self._numbers[key])

    def document(self, path: Path) -> int:
        """The number of a file among the sources."""
        if path not in self._documents:
            self._documents[path] = len(self._sources)
            self._sources.append(self.described(path))
        return self._documents[path]

    def described(self, path: Path) -> Facts:
        """What a file says of itself: path, command, machine, host, driver, protocol, days, digest."""
        name = self._name(path)
        made = self.made_by(path)
        facts: Facts = [("file", name), *([("made by", made)] if made else [])]
        result = load_result(path) if path.name.endswith(".json.gz") else None
        if not isinstance(result, Result):
            return [*facts, ("SHA-256 of the file", sha256(path.read_bytes()))]
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
            days = sorted({process.started_utc for process in result.processes})
            settings = result.settings
            facts += [
                ("mode", result.mode),
                ("started", ", ".join(days)),
                ("reference", f"{result.reference.op} of torch {result.reference.torch}"),
                ("settings", f"{settings.pairs} pairs in {settings.blocks} blocks, {settings.flush_bytes:,} B flushed"),
                *([("compiled by", compilers.pop())] if len(compilers := _compilers(result)) == 1 else []),
                *((f"A/A floor, {dtype}", f"±{floor:.2f} points") for dtype, floor in result.floors_pct.items()),
            ]
        return [*facts, ("SHA-256 of the content", identity(path)[1])]

    def made_by(self, path: Path) -> str:
        """The command that made a file, as the README of its folder tells; empty where it does not."""
        readme = path.parent / "README.md"
        if readme not in self._made:
            text = read_text(readme) if readme.is_file() else ""
            rows = [(FILE.findall(first), last) for first, last in MADE_BY.findall(text)]
            self._made[readme] = {name: last.replace("`", "").strip() for names, last in rows for name in names}
        return self._made[readme].get(path.name, "")

    def data(self) -> str:
        """All records that were asked for, as the page's script reads them: JSON."""
        whole = {"records": self._records, "sources": self._sources, "codes": self._codes}
        return in_script(whole)

    def _add(self, key: object, record: dict[str, Any]) -> None:
        self._numbers[key] = len(self._records)
        self._records.append(record)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.name

    def _bench(self, path: Path) -> BenchResult:
        if path not in self._benches:
            self._benches[path] = load_as(path, BenchResult)
        return self._benches[path]

    def _parts(self, path: Path, document: BenchResult) -> Mapping[Any, Any]:
        if path not in self._cells:
            self._cells[path] = by_cell(document.groups)
        return self._cells[path]

    def _code(self, path: Path, document: BenchResult, key: str) -> int:
        if kernel := document.kernels.get(key):
            facts = self._kernel_facts(kernel)
            if path not in self._one_compiler:
                self._one_compiler[path] = len(_compilers(document)) == 1
            if not self._one_compiler[path]:
                facts.append(("compiled by", _compiler(kernel)))
            return self._code_of(path, key, facts)
        reference = document.reference if key == A_A else document.references.get(key)
        return -1 if reference is None else self._code_of(path, key, _reference_facts(reference))

    def _code_of(self, path: Path, key: str, facts: Facts) -> int:
        if (path, key) not in self._kernels:
            self._kernels[path, key] = len(self._codes)
            self._codes.append((key, facts))
        return self._kernels[path, key]

    def _kernel_facts(self, kernel: Kernel) -> Facts:
        """Machine code and compiler of a kernel, and whether a lock holds it."""
        digest = kernel.text_sha256 or "compiled by the driver"
        locked = f", as in results/locks/{kernel.arch}.json" if digest in self._every_locked() else ""
        facts = [(f"machine code, {kernel.arch}", f"SHA-256 of .text {digest}{locked}")]
        if kernel.registers is not None:
            spills = f"{kernel.spill_stores}/{kernel.spill_loads} bytes spilled"
            facts.append(("registers", f"{kernel.registers} per thread, {spills} (stored/loaded)"))
        return facts

    def _every_locked(self) -> set[str]:
        if self._locked is None:
            locks = [read_lock(arch, self.root / "results" / "locks") for arch in LOCK_ARCHES]
            entries = (entry for lock in locks for entry in lock.iterations.values())
            self._locked = {kernel.text_sha256 for entry in entries for kernel in entry.kernels.values()}
        return self._locked


def in_script(value: Any) -> str:
    """JSON that can stand in a script element: whatever a title holds, it does not end there."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _compiler(kernel: Kernel) -> str:
    """The versions that decide machine code."""
    tools = {name.removeprefix("nvidia-cuda-"): found for name, found in kernel.toolchain.items()}
    return ", ".join(f"{name} {found}" for name, found in tools.items())


def _compilers(result: Result) -> set[str]:
    """Of all kernels in a document: mostly one."""
    return {_compiler(kernel) for kernel in result.kernels.values()}


def _reference_facts(reference: Reference) -> Facts:
    """Version and kernels of what is timed beside ours."""
    facts = [("reference", f"{reference.op}, {reference.version or f'torch {reference.torch}'}")]
    return facts + [(f"its kernel, {dtype}", name) for dtype, name in reference.kernels.items()]


def join(records: Iterable[str]) -> str:
    """Several records as a cell names them, each once."""
    return ",".join(dict.fromkeys(number for record in records for number in record.split(",") if number))
