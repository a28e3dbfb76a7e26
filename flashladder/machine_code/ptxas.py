"""What a kernel uses, as ``ptxas -v`` says it (registers, spills, shared memory), and how many CTAs one SM then holds.

Standard library only, because the build's workers import it. The occupancy rules are those of ``cuda_occupancy.h`` of
the CUDA runtime's wheel, for compute capability 8.0 to 9.0 (`tests/nvcc/test_explain.py` runs it beside this one).

Run: ``invoke ptxas 7``. Try ``load_gpus()["a100"].occupancy(registers=255, threads=128, shared_bytes=65536)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
import re

from flashladder.errors import FlashladderError
from flashladder.names import KERNEL

INT_FIELDS = ("registers", "stack", "spill_stores", "spill_loads", "barriers", "smem_static")

_NUMBER = r"(?:0|[1-9]\d{0,11})"  # as the tool writes it
_N = rf"({_NUMBER})"
_INFO = r"ptxas info\s*: "
_ENTRY = re.compile(rf"{_INFO}Compiling entry function '(?P<name>[^']+)' for '(?P<arch>[^']+)'")
_PROPERTIES = re.compile(rf"{_INFO}Function properties for '?(?P<name>[^\s']+)'?")
_STACK = re.compile(rf"\s+{_N} bytes stack frame, {_N} bytes spill stores, {_N} bytes spill loads")
_USED = re.compile(rf"{_INFO}Used {_N} registers(?P<rest>(?:, [^,]+)*)")
_TIME = re.compile(rf"{_INFO}Compile time = ((?:0|[1-9]\d{{0,11}})(?:\.\d{{1,12}})?) ms")
_GLOBAL = re.compile(rf"{_INFO}{_N} bytes gmem(?:, {_N} bytes cmem\[\d+\])*")
_OVERRIDING = re.compile(
    rf"{_INFO}Overriding maximum register limit {_N} for '[^']+' with\s+{_N} of maxrregcount option"
)
_COMMAND = re.compile(r"\$ .*")  # what was run, as the build writes it over a log
_WITHOUT_FACTS = (_GLOBAL, _OVERRIDING, _COMMAND)
_WARNING = re.compile(
    r"\bwarning\b|Potential Performance Loss|\(C75\d\d\)", re.IGNORECASE
)  # C75..: of wgmma, setmaxnreg
_PART = re.compile(
    rf"used (?P<barriers>{_NUMBER}) barriers|(?P<smem>{_NUMBER}) bytes smem|(?P<cmem>{_NUMBER}) bytes cmem\[\d+\]|"
    rf"(?P<stack>{_NUMBER}) bytes cumulative stack size|(?P<lmem>{_NUMBER}) bytes lmem|"
    rf"(?P<textures>{_NUMBER}) (?:textures|samplers|surfaces)"
)
"""What may stand behind the registers; each once, but for ``cmem``, which has banks, and ``textures``."""


@dataclass(frozen=True)
class PtxasUsage:
    """What one kernel uses on one architecture."""

    arch: str  # for example ``sm_80``
    registers: int  # 32-bit registers per thread
    stack: int  # bytes of stack frame per thread
    spill_stores: int  # bytes stored per thread when registers are spilled; `spill_loads` the bytes loaded back
    spill_loads: int
    barriers: int  # named barriers of a CTA
    smem_static: int  # bytes of static shared memory per CTA
    # bytes of constant memory, all banks (kernel parameters included); None where ptxas does not say (sm_90)
    cmem: int | None
    compile_ms: float  # ptxas' own time for the kernel in milliseconds
    warnings: tuple[str, ...] = ()  # every warning of the log, as ptxas wrote it

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> PtxasUsage:
        """The inverse of `dataclasses.asdict` followed by JSON; other keys of `data` are ignored."""
        if not isinstance(warnings := data["warnings"], list | tuple):
            raise FlashladderError("malformed ptxas record", expected="a list of warnings", found=warnings)
        numbers = {name: int(str(data[name])) for name in INT_FIELDS}
        cmem = None if data["cmem"] is None else int(str(data["cmem"]))
        times = float(str(data["compile_ms"]))
        return cls(str(data["arch"]), **numbers, cmem=cmem, compile_ms=times, warnings=(*map(str, warnings),))


@dataclass(frozen=True)
class PtxasRow:
    """One line of the table; the columns of the CSV, in order."""

    kernel: str  # which kernel, for people: for example ``07``
    config: str  # the configuration's short form
    arch: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    barriers: int
    smem_static: int
    smem_dynamic: int  # bytes of dynamic shared memory per CTA, which only the launch knows
    cmem: int | None
    compile_ms: float

    @classmethod
    def of(cls, kernel: str, config: str, smem_dynamic: int, usage: PtxasUsage) -> PtxasRow:
        """The row of `usage` for one kernel and configuration; `smem_dynamic` in bytes."""
        facts = asdict(usage)
        del facts["warnings"]
        return cls(kernel=kernel, config=config, smem_dynamic=smem_dynamic, **facts)


COLUMNS = tuple(field.name for field in fields(PtxasRow))
HEADERS = (
    *("kernel", "configuration", "arch", "regs", "stack", "spill st", "spill ld"),
    *("barriers", "smem static", "smem dynamic", "cmem", "ptxas ms"),
)


def parse_log(log: str, kernel: str = KERNEL, where: str | Path | None = None) -> PtxasUsage:
    """What `kernel` uses, from the output of ``ptxas -v`` for one architecture.

    Device functions that were not inlined (debug builds) have paragraphs of their own, which do not count.

    Raises:
        FlashladderError: the log holds a line that is not known; it has no such kernel, or not exactly one of its
            registers, its stack line and its compile time.
    """
    arches, lines = _paragraph(log, kernel, where)
    stacks, used, times = ([m for line in lines if (m := form.fullmatch(line))] for form in (_STACK, _USED, _TIME))
    if not all(len(found) == 1 for found in (arches, stacks, used, times)):
        raise FlashladderError(
            f"the ptxas log does not describe the kernel {kernel}",
            where=where,
            expected="its registers, stack frame and compile time (ptxas -v), each once",
            found=(lines or log.strip().splitlines() or ["an empty log"])[0],
        )
    parts: dict[str, list[int]] = {}
    for text in used[0]["rest"].split(", ")[1:]:
        part = _PART.fullmatch(text)
        name = str(part.lastgroup) if part else ""
        if part is None or (name in parts and name not in ("cmem", "textures")):
            raise FlashladderError("unknown line of ptxas", where=where, found=text)
        parts.setdefault(name, []).append(int(part[name]))
    stack, spill_stores, spill_loads = map(int, stacks[0].groups())
    return PtxasUsage(
        *(arches[0], int(used[0][1]), stack, spill_stores, spill_loads),
        barriers=sum(parts.get("barriers", ())),  # ptxas names barriers and smem only where there are some
        smem_static=sum(parts.get("smem", ())),
        cmem=sum(parts["cmem"]) if "cmem" in parts else None,
        compile_ms=float(times[0][1]),
        warnings=warnings_of(log),
    )


def _paragraph(log: str, kernel: str, where: str | Path | None) -> tuple[list[str], list[str]]:
    """The architectures that `kernel` was compiled for, and the lines that are about it and nothing else."""
    arches, about, lines = list[str](), "", list[str]()
    for line in map(str.rstrip, log.splitlines()):
        if entry := _ENTRY.fullmatch(line):
            about = ""
            arches += [entry["arch"]] if entry["name"] == kernel else []
        elif properties := _PROPERTIES.fullmatch(line):
            about = properties["name"]
        elif any(form.fullmatch(line) for form in (_STACK, _USED, _TIME)):
            lines += [line] if about == kernel and arches else []  # its properties stand behind its entry
        elif line and not (_WARNING.search(line) or any(form.fullmatch(line) for form in _WITHOUT_FACTS)):
            raise FlashladderError("unknown line of ptxas", where=where, found=line)
    return arches, lines


def warnings_of(log: str) -> tuple[str, ...]:
    """The lines of a tool's log that warn, in order, each once."""
    return tuple(dict.fromkeys(line.strip() for line in log.splitlines() if _WARNING.search(line)))


def to_csv(rows: Iterable[PtxasRow], columns: Sequence[str] = COLUMNS) -> str:
    """Some `columns` of the rows as CSV with a header; lines end in a newline."""
    from flashladder.columns import csv_text  # in here, as the build's workers start often and print nothing

    return csv_text(columns, ([getattr(row, name) for name in columns] for row in rows))


def format_table(rows: Sequence[PtxasRow], warnings: Iterable[str] = ()) -> str:
    """The rows for people: aligned columns, sizes in bytes, times in ms; then each distinct warning on its line."""
    from flashladder.columns import table

    def cell(value: object) -> str:
        return "-" if value is None else f"{value:.0f}" if isinstance(value, float) else str(value)

    cells = [HEADERS, *(tuple(map(cell, asdict(row).values())) for row in rows)]
    rule = ["-" * max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = table([HEADERS, rule, *cells[1:]], None, right=range(HEADERS.index("regs"), len(HEADERS)))
    return "\n".join([*lines, *dict.fromkeys(warnings)]) + "\n"


WARP = 32  # threads


@dataclass(frozen=True)
class Sm:
    """What one streaming multiprocessor has, and in which pieces it gives it away."""

    warps: int  # resident at once
    ctas: int  # resident at once
    registers: int  # of 32 bits
    partitions: int  # of the SM; each has its share of the registers, and a warp lives in one of them
    register_unit: int  # registers, in multiples of which a warp gets its own
    registers_per_cta: int  # the most that one CTA may have
    registers_per_thread: int  # the most that one thread may have
    threads_per_cta: int  # the most that one CTA may have
    shared_bytes: int  # shared memory, at its largest share of the L1
    shared_unit: int  # bytes, in multiples of which a CTA gets shared memory
    shared_reserved: int  # bytes that every CTA takes for the system
    barriers: int | None = None  # named barriers; None where they are no limit (before compute capability 9.0)


@dataclass(frozen=True)
class Occupancy:
    """What one SM holds of a kernel."""

    # CTAs that each resource alone would allow, by its name: ``warps``, ``CTAs``, ``registers``, ``shared memory``,
    # ``barriers``; a resource that the kernel does not use is not listed
    limits: Mapping[str, int]
    warps_per_cta: int  # warps of one CTA
    most_warps: int  # warps that the SM can hold

    @cached_property
    def ctas(self) -> int:
        """CTAs that are resident at once; 0 when the kernel cannot be launched."""
        return min(self.limits.values())

    @property
    def warps(self) -> int:
        """Warps that are resident at once."""
        return self.ctas * self.warps_per_cta

    @property
    def fraction(self) -> float:
        """Resident warps of those that the SM can hold, 0 to 1: what profilers call the theoretical occupancy."""
        return self.warps / self.most_warps

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that allow no more CTAs than there are, in the order of `limits`; at least one."""
        return tuple(name for name, ctas in self.limits.items() if ctas == self.ctas)


def occupancy(sm: Sm, *, registers: int, threads: int, shared_bytes: int, barriers: int = 1) -> Occupancy:
    """What one SM holds of a kernel.

    Args:
        sm: the streaming multiprocessor.
        registers: of 32 bits, per thread, as ptxas tells.
        threads: of a CTA, at least 1.
        shared_bytes: of a CTA, static and dynamic.
        barriers: named barriers of a CTA, as ptxas tells.
    """
    limits, warps = dict[str, int](), up(threads, WARP) // WARP
    if registers:
        # A warp's registers lie in one partition. A launch is refused, as the hardware does, by what its CTA would take
        # if each partition had as many warps of it.
        per_warp = up(registers * WARP, sm.register_unit)
        fits = registers <= sm.registers_per_thread and per_warp * up(warps, sm.partitions) <= sm.registers_per_cta
        limits["registers"] = fits * (sm.registers // sm.partitions // per_warp * sm.partitions // warps)
    limits["shared memory"] = sm.shared_bytes // up(shared_bytes + sm.shared_reserved, sm.shared_unit)
    limits["warps"] = sm.warps // warps if threads <= sm.threads_per_cta else 0
    limits["CTAs"] = sm.ctas
    if sm.barriers is not None and barriers:
        limits["barriers"] = sm.barriers // barriers
    return Occupancy(limits, warps, sm.warps)


def up(number: int, unit: int) -> int:
    """`number` rounded up to a multiple of `unit`."""
    return -(-number // unit) * unit
