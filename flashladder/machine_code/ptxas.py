"""The resources of a kernel as ``ptxas -v`` reports them, and how many CTAs of it fit on one SM.

The occupancy rules are those of ``cuda_occupancy.h`` in the CUDA runtime's wheel, for compute capability 8.0 to 9.0;
`tests/nvcc/test_explain.py` compares both.

Run: ``invoke ptxas 7``. Try ``load_gpus()["a100"].occupancy(registers=255, threads=128, shared_bytes=65536)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
import re

from flashladder.columns import csv_text
from flashladder.errors import FlashladderError
from flashladder.names import KERNEL

INT_FIELDS = ("registers", "stack", "spill_stores", "spill_loads", "barriers", "smem_static")
COLUMNS = ("kernel", "config", "arch", *INT_FIELDS, "smem_dynamic", "cmem", "compile_ms")  # of the table

_NUMBER = r"(?:0|[1-9]\d{0,11})"  # as ptxas writes it
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
_COMMAND = re.compile(r"\$ .*")  # the build writes the command above its log
_WITHOUT_FACTS = (_GLOBAL, _OVERRIDING, _COMMAND)
# C75.. are warnings about wgmma and setmaxnreg
_WARNING = re.compile(r"\bwarning\b|Potential Performance Loss|\(C75\d\d\)", re.IGNORECASE)
_PART = re.compile(
    rf"used (?P<barriers>{_NUMBER}) barriers|(?P<smem>{_NUMBER}) bytes smem|(?P<cmem>{_NUMBER}) bytes cmem\[\d+\]|"
    rf"(?P<stack>{_NUMBER}) bytes cumulative stack size|(?P<lmem>{_NUMBER}) bytes lmem|"
    rf"(?P<textures>{_NUMBER}) (?:textures|samplers|surfaces)"
)
"""What may follow the registers in a line, each once; ``cmem`` once per bank, ``textures`` any number of times."""


@dataclass(frozen=True)
class PtxasUsage:
    """The resources of one kernel on one architecture."""

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


@dataclass(frozen=True, kw_only=True)
class PtxasRow(PtxasUsage):
    """One line of the table: the resources of one kernel in one configuration."""

    kernel: str  # its name for people, for example ``07``
    config: str  # the configuration's short form
    smem_dynamic: int  # bytes of dynamic shared memory per CTA, which only the launch knows

    @classmethod
    def of(cls, kernel: str, config: str, smem_dynamic: int, usage: PtxasUsage) -> PtxasRow:
        """The row of `usage` for one kernel and configuration; `smem_dynamic` in bytes."""
        return cls(**asdict(usage), kernel=kernel, config=config, smem_dynamic=smem_dynamic)

    def cells(self, columns: Sequence[str] = COLUMNS) -> dict[str, object]:
        """The values of some columns of the table."""
        return {name: getattr(self, name) for name in columns}


def parse_log(log: str, kernel: str = KERNEL, where: str | Path | None = None) -> PtxasUsage:
    """The resources of `kernel`, from the output of ``ptxas -v`` for one architecture.

    Device functions that were not inlined (debug builds) have paragraphs of their own, which do not count. An unknown
    line, and another number of register lines, stack lines or compile times of `kernel` than one, are errors.
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
        barriers=sum(parts.get("barriers", ())),  # ptxas does not print barriers and smem that are 0
        smem_static=sum(parts.get("smem", ())),
        cmem=sum(parts["cmem"]) if "cmem" in parts else None,
        compile_ms=float(times[0][1]),
        warnings=warnings_of(log),
    )


def _paragraph(log: str, kernel: str, where: str | Path | None) -> tuple[list[str], list[str]]:
    """The architectures that `kernel` was compiled for, and the lines about it alone."""
    arches, about, lines = list[str](), "", list[str]()
    for line in map(str.rstrip, log.splitlines()):
        if entry := _ENTRY.fullmatch(line):
            about = ""
            arches += [entry["arch"]] if entry["name"] == kernel else []
        elif properties := _PROPERTIES.fullmatch(line):
            about = properties["name"]
        elif any(form.fullmatch(line) for form in (_STACK, _USED, _TIME)):
            lines += [line] if about == kernel and arches else []  # the properties follow the entry
        elif line and not (_WARNING.search(line) or any(form.fullmatch(line) for form in _WITHOUT_FACTS)):
            raise FlashladderError("unknown line of ptxas", where=where, found=line)
    return arches, lines


def warnings_of(log: str) -> tuple[str, ...]:
    """The warnings in a tool's log, in order, each once."""
    return tuple(dict.fromkeys(line.strip() for line in log.splitlines() if _WARNING.search(line)))


def to_csv(rows: Iterable[PtxasRow], columns: Sequence[str] = COLUMNS) -> str:
    """Some `columns` of the rows as CSV with a header; lines end in a newline."""
    return csv_text(columns, (list(row.cells(columns).values()) for row in rows))


WARP = 32  # threads


@dataclass(frozen=True)
class Sm:
    """The resources of one streaming multiprocessor, and their units of allocation."""

    warps: int  # resident at once
    ctas: int  # resident at once
    registers: int  # of 32 bits
    partitions: int  # of the SM; each has its share of the registers, and a warp runs in one of them
    register_unit: int  # registers; a warp gets a multiple of it
    registers_per_cta: int  # the most that one CTA may have
    registers_per_thread: int  # the most that one thread may have
    threads_per_cta: int  # the most that one CTA may have
    shared_bytes: int  # shared memory, at its largest share of the L1
    shared_unit: int  # bytes of shared memory; a CTA gets a multiple of it
    shared_reserved: int  # bytes of shared memory that the system takes in every CTA
    barriers: int | None = None  # named barriers; None if they are no limit (before compute capability 9.0)


@dataclass(frozen=True)
class Occupancy:
    """How many CTAs of a kernel fit on one SM."""

    # the CTAs that each resource alone would allow: ``warps``, ``CTAs``, ``registers``, ``shared memory``,
    # ``barriers``; a resource that the kernel does not use is absent
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
        """Resident warps over the most that the SM can hold, 0 to 1: the theoretical occupancy of profilers."""
        return self.warps / self.most_warps

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that limit the number of CTAs, in the order of `limits`; at least one."""
        return tuple(name for name, ctas in self.limits.items() if ctas == self.ctas)


def occupancy(sm: Sm, *, registers: int, threads: int, shared_bytes: int, barriers: int = 1) -> Occupancy:
    """How many CTAs of a kernel fit on one SM.

    `registers` (32 bits, per thread) and named `barriers` (of a CTA) are as ptxas reports them; a CTA has `threads`, at
    least 1, and `shared_bytes`, static and dynamic.
    """
    limits, warps = dict[str, int](), up(threads, WARP) // WARP
    if registers:
        # A warp's registers lie in one partition. The hardware refuses a launch as if every partition held as many
        # warps of the CTA as the fullest one.
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
