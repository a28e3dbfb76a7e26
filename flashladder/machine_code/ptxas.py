"""The resources of a kernel as ``ptxas -v`` reports them.

Standard library only, because the build's workers import it. Run: ``invoke ptxas 7``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
import re

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

    def cells(self, columns: Sequence[str] = COLUMNS) -> dict[str, object]:
        """The values of some columns of the table."""
        return {name: getattr(self, name) for name in columns}


def parse_log(log: str, where: str | Path | None = None) -> PtxasUsage:
    """The resources of the kernel, from the output of ``ptxas -v`` for one architecture.

    Device functions that were not inlined (debug builds) have paragraphs of their own, which do not count. An unknown
    line, and another number of register lines, stack lines or compile times of the kernel than one, are errors.
    """
    arches, lines = _paragraph(log, where)
    stacks, used, times = ([m for line in lines if (m := form.fullmatch(line))] for form in (_STACK, _USED, _TIME))
    if not all(len(found) == 1 for found in (arches, stacks, used, times)):
        what = f"the ptxas log does not describe the kernel {KERNEL}"
        expected = "its registers, stack frame and compile time (ptxas -v), each once"
        first = (lines or log.strip().splitlines() or ["an empty log"])[0]
        raise FlashladderError(what, where=where, expected=expected, found=first)
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


def _paragraph(log: str, where: str | Path | None) -> tuple[list[str], list[str]]:
    """The architectures that the kernel was compiled for, and the lines about it alone."""
    arches, about, lines = list[str](), "", list[str]()
    for line in map(str.rstrip, log.splitlines()):
        if entry := _ENTRY.fullmatch(line):
            about = ""
            arches += [entry["arch"]] if entry["name"] == KERNEL else []
        elif properties := _PROPERTIES.fullmatch(line):
            about = properties["name"]
        elif any(form.fullmatch(line) for form in (_STACK, _USED, _TIME)):
            lines += [line] if about == KERNEL and arches else []  # the properties follow the entry
        elif line and not (_WARNING.search(line) or any(form.fullmatch(line) for form in _WITHOUT_FACTS)):
            raise FlashladderError("unknown line of ptxas", where=where, found=line)
    return arches, lines


def warnings_of(log: str) -> tuple[str, ...]:
    """The warnings in a tool's log, in order, each once."""
    return tuple(dict.fromkeys(line.strip() for line in log.splitlines() if _WARNING.search(line)))


def to_csv(rows: Iterable[PtxasRow], columns: Sequence[str] = COLUMNS) -> str:
    """Some `columns` of the rows as CSV with a header; lines end in a newline."""
    from flashladder.columns import csv_text  # imported late: the build's workers start often and print nothing

    return csv_text(columns, (list(row.cells(columns).values()) for row in rows))


WARP = 32  # threads
