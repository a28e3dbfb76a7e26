"""Question: how many instructions of each kind does an SM of this GPU take per clock, and how long is one's latency?

Why: the model of what binds a kernel (`configs/gpus/*.yaml`) needs rates that no document gives. Every SM runs one CTA
of 4, 8 or 16 warps with independent chains (rate), or one warp with a single chain (latency); spans are SM clocks, so
that the card's clock, which falls under load, plays no part. Each span of each SM is kept.

Run on a machine with a GPU: ``python analysis/pipe_rates.py --out results/h200/rates.json.gz``
Needs torch, for the GPU's identity, and NVIDIA's driver, which compiles the PTX.

``pipe_rates.ptx`` is the kernel around the instructions. In the texts of `OPS` ``{i}`` is the chain. A result feeds the
next instruction of its chain, so that nothing can be left out; two registers that alternate keep ptxas from folding two
instructions into one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
import gzip
import json
from pathlib import Path
import statistics
from string import Template
from typing import Any

import numpy as np

from flashladder.errors import one_line_errors
from flashladder.files import write_atomic
from flashladder.gpu.device import open_device
from ptxemu.chip import GpuProgram, open_gpu

SHARED_BYTES = 64 * 1024  # zeros that shared-memory instructions read, and scratch that they write
LOOP = 64  # instructions of one loop trip, about: the loop's own three are little beside them


@dataclass(frozen=True)
class Op:
    """One instruction: its text, its registers by type, and what they hold at first."""

    text: str  # the instruction, and what feeds its result into the next one
    registers: Mapping[str, tuple[str, ...]]  # PTX type to names, each with ``{i}``
    start: tuple[str, ...] = ()  # fill those registers from %zero (0), %one (1.0f), %thread, %shared and %global
    after: str = ""  # follows the loop's last round, once
    instructions: int = 1  # of its text that are counted (what only keeps the chain alive is not)


def _float(text: str) -> Op:
    return Op(text, {"f32": ("%x{i}",)}, ("mov.f32 %x{i}, %one;",))


def _word(text: str) -> Op:
    return Op(text, {"b32": ("%w{i}",)}, ("add.u32 %w{i}, %thread, {i};",))


def _mma(kind: str) -> Op:
    parts = tuple(f"%c{{i}}_{part}" for part in range(4))
    c = ", ".join(parts)
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{{{{c}}}}}, "
        f"{{{{%a0, %a1, %a2, %a3}}}}, {{{{%a4, %a5}}}}, {{{{{c}}}}};"
    )
    return Op(text, {"f32": parts}, tuple(f"mov.f32 {part}, %one;" for part in parts))


def _shared(load: str, results: int, stride: int) -> Op:
    """A load of shared memory whose address is the last one plus the zero that it read; `stride`: bytes per lane."""
    names = tuple(f"%s{{i}}_{part}" for part in range(results))
    listed = "{{" + ", ".join(names) + "}}" if results > 1 else names[0]
    start = (f"mad.lo.u32 %p{{i}}, %lane, {stride}, %shared;",)
    return Op(f"{load} {listed}, [%p{{i}}];\n    add.u32 %p{{i}}, %p{{i}}, {names[0]};",
              {"b32": (*names, "%p{i}")}, start)  # fmt: skip


OPS: dict[str, Op] = {
    "mma.f16": _mma("f16"),
    "mma.bf16": _mma("bf16"),
    "ldmatrix.x4": _shared("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 4, 16),
    "ldmatrix.x4.trans": _shared("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", 4, 16),
    "ldmatrix.x4 8-way": _shared("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 4, 128),
    "ld.shared.b32": _shared("ld.shared.b32", 1, 4),
    "ld.shared.v4": _shared("ld.shared.v4.b32", 4, 16),
    "st.shared.b32": Op(
        "st.volatile.shared.b32 [%q{i}], %zero;", {"b32": ("%q{i}",)}, ("mad.lo.u32 %q{i}, %lane, 4, %shared;",)
    ),
    "st.shared.v4": Op(
        "st.volatile.shared.v4.b32 [%q{i}], {{%zero, %zero, %zero, %zero}};",
        {"b32": ("%q{i}",)},
        ("mad.lo.u32 %q{i}, %lane, 16, %shared;",),
    ),
    "shfl.bfly": _word("shfl.sync.bfly.b32 %w{i}, %w{i}, 1, 31, -1;"),
    "ex2": _float("ex2.approx.ftz.f32 %x{i}, %x{i};"),
    "fma": _float("fma.rn.ftz.f32 %x{i}, %x{i}, %f0, %f1;"),
    "mul": _float("mul.rn.ftz.f32 %x{i}, %x{i}, %f0;"),
    "add": _float("add.rn.ftz.f32 %x{i}, %x{i}, %f0;"),
    "max, min": Op(
        "max.ftz.f32 %x{i}, %x{i}, %y{i};\n    min.ftz.f32 %y{i}, %x{i}, %f0;",
        {"f32": ("%x{i}", "%y{i}")},
        ("mov.f32 %x{i}, %one;", "mov.f32 %y{i}, %f1;"),
        instructions=2,
    ),
    "cvt.f16x2": Op(
        "cvt.rn.f16x2.f32 %w{i}, %x{i}, %f0;\n    mov.b32 %x{i}, %w{i};",
        {"b32": ("%w{i}",), "f32": ("%x{i}",)},
        ("mov.f32 %x{i}, %one;",),
    ),
    "fma.f16x2": _word("fma.rn.f16x2 %w{i}, %w{i}, %a0, %a1;"),
    "ex2.f16x2": _word("ex2.approx.f16x2 %w{i}, %w{i};"),
    "iadd": _word("add.u32 %w{i}, %w{i}, %w{j};"),
    "lop3": _word("lop3.b32 %w{i}, %w{i}, %w{j}, %a0, 0x2d;"),
    "imad": _word("mad.lo.u32 %w{i}, %w{i}, %a0, %a1;"),
    "prmt": _word("prmt.b32 %w{i}, %w{i}, %w{j}, %a0;"),
    "bar.sync": Op("bar.sync 0;", {}),
    "cp.async.cg 16": Op(
        "cp.async.cg.shared.global [%q{i}], [%g{i}], 16;",
        {"b32": ("%q{i}",), "b64": ("%g{i}",)},
        ("mad.lo.u32 %q{i}, %lane, 16, %shared;", "add.u64 %g{i}, %global, {i}0000;"),
        "cp.async.commit_group;\n    cp.async.wait_group 0;",
    ),
    "ld.global.cg.v4": Op(
        "ld.global.cg.v4.b32 {{%l{i}_0, %l{i}_1, %l{i}_2, %l{i}_3}}, [%g{i}];\n    cvt.u64.u32 %h{i}, %l{i}_0;\n"
        "    add.u64 %g{i}, %g{i}, %h{i};",
        {"b32": tuple(f"%l{{i}}_{part}" for part in range(4)), "b64": ("%g{i}", "%h{i}")},
        ("add.u64 %g{i}, %global, {i}0000;",),
    ),
}

PTX = Template(Path(__file__).with_suffix(".ptx").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Kernel:
    """A round of instructions, so many of each, in `chains` independent chains of every warp."""

    round: tuple[tuple[str, int], ...]
    chains: int

    @property
    def name(self) -> str:
        """For example ``mma.f16 + 2 ex2``."""
        return " + ".join(op if count == 1 else f"{count} {op}" for op, count in self.round)

    @property
    def rounds(self) -> int:
        """Rounds of one loop trip: each chain gets as many."""
        each = sum(count for _, count in self.round)
        return max(1, LOOP // (each * self.chains)) * self.chains

    def text(self, target: str = "sm_80") -> str:
        """The PTX: every warp writes the SM's clock before and after its trips to `times`."""
        body: list[str] = []
        used: dict[str, int] = dict.fromkeys((op for op, _ in self.round), 0)
        for _ in range(self.rounds):
            for op, count in self.round:
                for _ in range(count):
                    body.append(self._filled(OPS[op].text, used[op]))
                    used[op] = (used[op] + 1) % self.chains
        body += [self._filled(OPS[op].after, 0) for op, _ in self.round if OPS[op].after]
        starts = [
            self._filled(line, chain) for op, _ in self.round for line in OPS[op].start for chain in range(self.chains)
        ]
        loop = [
            "bar.sync 0;", "mov.u64 %before, %clock64;", "loop:", *body, "sub.u32 %trip, %trip, 1;",
            "setp.ne.u32 %more, %trip, 0;", "@%more bra loop;", "mov.u32 %sum, 0;", *self._sums(),
        ]  # fmt: skip
        lines = [line if line.endswith(":") else f"    {line}" for line in (*starts, *loop)]
        declared = [f"    .reg .{kind} {', '.join(names)};" for kind, names in self._registers().items()]
        values = {"registers": "\n".join(declared), "loop": "\n".join(lines), "shared_bytes": SHARED_BYTES}
        return PTX.substitute(values, target=target)

    @property
    def instructions(self) -> dict[str, int]:
        """Instructions of one loop trip of a warp, by their name in `OPS`."""
        return {op: self.rounds * count * OPS[op].instructions for op, count in self.round}

    def _filled(self, text: str, chain: int) -> str:
        return text.format(i=chain, j=(chain + 1) % self.chains)

    def _registers(self) -> dict[str, dict[str, None]]:
        """Type to the names of all registers, each once, in order."""
        found: dict[str, dict[str, None]] = {}
        for op, _ in self.round:
            for kind, names in OPS[op].registers.items():
                every = (self._filled(name, chain) for name in names for chain in range(self.chains))
                found.setdefault(kind, {}).update(dict.fromkeys(every))
        return found

    def _sums(self) -> list[str]:
        """Everything computed goes into one word, which decides about a store that never happens."""
        lines = []
        for kind, names in self._registers().items():
            for name in names:
                if move := {"f32": "mov.b32", "b64": "cvt.u32.u64"}.get(kind):
                    lines.append(f"{move} %lead, {name};")
                lines.append(f"xor.b32 %sum, %sum, {'%lead' if move else name};")
        return lines


PER_SM = 120 * 1024  # bytes of shared memory, more than half of an SM's: one CTA on each
TRIPS = 64
REPEATS = 5  # after one that is not kept
DATA_BYTES = 4 << 20  # of zeros, in L2
PAIRS = (
    "mma.f16 + ex2", "mma.f16 + 2 ex2", "mma.f16 + 2 fma", "mma.f16 + 4 fma", "mma.f16 + 2 mul", "mma.f16 + 4 iadd",
    "mma.f16 + cvt.f16x2", "mma.f16 + shfl.bfly", "2 mma.f16 + ldmatrix.x4", "mma.f16 + ldmatrix.x4",
    "ex2 + 4 fma", "ex2 + cvt.f16x2", "ex2 + shfl.bfly", "ldmatrix.x4 + shfl.bfly", "ldmatrix.x4 + 4 fma",
    "fma + iadd", "fma + max, min", "fma + imad", "cvt.f16x2 + 2 fma",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A kernel with so many warps on each SM, or on one SM alone."""

    kernel: Kernel
    warps: int
    alone: bool = False


def named(text: str, chains: int) -> Kernel:
    """``2 mma.f16 + ldmatrix.x4`` as a kernel."""
    parts = [part.split(" ", 1) if part.split(" ", 1)[0].isdigit() else ["1", part] for part in text.split(" + ")]
    return Kernel(tuple((op, int(count)) for count, op in parts), chains)


def runs() -> Iterator[Run]:
    """Latencies, rates of each instruction alone, and of pairs."""
    yield from (Run(named(op, 1), 1, alone=True) for op in OPS)
    yield from (Run(named(op, chains), warps) for op in OPS for chains in (4, 8) for warps in (4, 8, 16))
    yield from (Run(named(pair, 4), warps) for pair in PAIRS for warps in (4, 8, 16))


def inputs() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """What the kernels read: zero, 1.0, two factors near one, six words of small halves; then zeros."""
    data = np.zeros(DATA_BYTES + (1 << 20), np.uint8)
    data[4:16].view(np.float32)[:] = (1.0, 0.9990234375, 0.0009765625)
    data[16:40].view(np.uint32)[:] = 0x11001100
    return data


def measure(program: GpuProgram, run: Run, sms: int, data: np.ndarray[Any, np.dtype[np.uint8]]) -> list[list[int]]:
    """Clocks from the first warp's begin to the last one's end, for each SM, of each repeat."""
    data.flags.writeable = False  # not copied back
    ctas, spans = 1 if run.alone else sms, []
    for _ in range(REPEATS + 1):
        times = np.zeros((ctas, run.warps, 2), np.uint64)
        program.kernel().launch(ctas, 32 * run.warps, (times, data, TRIPS), shared_bytes=PER_SM)
        spans.append((times[..., 1].max(1) - times[..., 0].min(1)).astype(int).tolist())
    return spans[1:]


def per_clock(run: Run, spans: Sequence[Sequence[int]]) -> float:
    """Instructions of the round's first kind per clock and SM; for a latency, clocks per instruction."""
    count = TRIPS * next(iter(run.kernel.instructions.values()))
    middle = statistics.median(span for repeat in spans for span in repeat)
    return middle / count if run.alone else count * run.warps / middle


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the file to write (.json.gz)")
    options = parser.parse_args(argv)
    with one_line_errors(), open_gpu() as gpu:
        device = open_device()
        data, found = inputs(), []
        for run in runs():
            program = gpu.load(run.kernel.text())
            spans = measure(program, run, device.gpu.n_sm, data)
            program.unload()
            row = {"round": run.kernel.name, "chains": run.kernel.chains, "warps": run.warps, "alone": run.alone}
            found.append(row | {"instructions": run.kernel.instructions, "trips": TRIPS, "spans": spans})
            print(f"{run.kernel.name:24} {run.kernel.chains} chains {run.warps:2} warps {per_clock(run, spans):8.3f}")
        finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
        who = {"gpu": device.gpu.model_dump(mode="json"), "host": device.host.model_dump(mode="json")}
        document = {"what": "spans in SM clocks", "finished": finished, **who, "runs": found}
        write_atomic(options.out, gzip.compress(json.dumps(document).encode(), mtime=0))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
