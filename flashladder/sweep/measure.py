"""Measures one cell in a worker process: on this CPU in the emulator, or on a GPU with the timer of `invoke bench`.

On the CPU, the emulator runs a kernel's PTX. The check's rule judges its numbers, and the document stores its counters
and hazards. Two runs of a cell give the same document. On a GPU, one kernel or one reference is timed, alternating with
FA2. A session keeps GPU, flush buffer and inputs between cells, so the overhead of a cell is about one second. A rung
of a tuning run is timed as one group: candidates that differ by 0.5 % must share clock and temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
import sys
import time
from typing import Any

from flashladder.bench import references
from flashladder.bench.timing import FIRST_SEED, Prepared, bench_group, cuda_hardware, prepare
from flashladder.build.compile import ptx_planned, tools_of
from flashladder.build.wheel import load_installed
from flashladder.cases.inputs import FULL_HEADS, Case, View, make_tensors
from flashladder.cases.reference import References, accuracy
from flashladder.check.command import as_arrays, emulated_identity, rule_digest
from flashladder.emulate.kernel import forward, version
from flashladder.errors import FlashladderError, first_line
from flashladder.files import sha256
from flashladder.gpu.device import open_device, origin
from flashladder.gpu.doctor import rung
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import KernelConfig
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.problem import Problem
from flashladder.results import schema
from flashladder.results.derive import Plan, derive, problems
from flashladder.results.files import this_host
from flashladder.sweep.records import CellFailed, kind_of
import ptxemu
from ptxemu import EmulationError

_REFERENCES = References()
FIRST_WARM_UP_S = 1.5
WARM_UP_S = 0.2  # of a worker that measured within the last COLD_AFTER_S
COLD_AFTER_S = 3.0  # idle time after which a worker needs the long warm-up
HELD_BACK_S = 600.0  # longest wait of a cell for a GPU that other processes use
LOOK_S = 2.0  # between two queries of the GPU's processes
MARK = "candidate: "  # starts a stderr line with the candidate being checked; empty: all are being timed

_loaded = lru_cache(maxsize=32)(load_installed)  # hashes the library once, not per cell


def known_digests(wanted: Sequence[schema.PlannedCell]) -> list[str]:
    """A digest of each cell's PTX, emulator and the check's rule; empty if its PTX is not in the store."""
    try:
        tools = tools_of()
    except FlashladderError:
        return [""] * len(wanted)
    machine, digests = sha256(version() + rule_digest()), dict[tuple[str, str], str]()
    for subject, config in {(cell.subject, cell.config) for cell in wanted}:
        stored = ptx_planned(load_description(subject), KernelConfig.parse(config), tools)
        digests[subject, config] = sha256(machine + ptx_sha256(read_ptx(stored.ptx))) if stored.is_complete else ""
    return [digests[cell.subject, cell.config] for cell in wanted]


def emulated(cell: schema.PlannedCell, request: Mapping[str, Any]) -> tuple[schema.EmulatedSweepResult, float]:
    """The document of a cell on this CPU, and seconds emulated. `CellFailed`: wrong numbers, or a hazard."""
    iteration, config = load_description(cell.subject), KernelConfig.parse(cell.config)
    view: View = "head_slice" if iteration.row_stride and cell.shape.n_heads < FULL_HEADS else "contiguous"
    case = Case("sweep", cell.shape, view, seed=cell.shape.seq_len)
    tensors = make_tensors(case, cell.dtype, "cpu")
    arrays = as_arrays(tensors.q, tensors.k, tensors.v, tensors.out)
    counters, hazards = ptxemu.Counters(), ptxemu.Hazards()
    try:
        ran = forward(iteration, config, arrays, observers=(counters, hazards))
    except EmulationError as error:
        raise CellFailed("crash", " ".join(str(error).split())) from error
    found = accuracy(tensors.out, _REFERENCES.expected(case, cell.dtype, tensors))
    if not found.ok:
        raise CellFailed("wrong", found.errors)
    if hazards.reports:  # the numbers are right, but depend on the order of threads
        raise CellFailed("wrong", " ".join(hazards.reports[0].render().split()))
    measured = schema.EmulatedCell(
        address=cell.address,
        accuracy=found,
        counters={name: int(value) for name, value in counters.as_dict().items() if "_op_atom" not in name},
        instructions=counters.warp_instructions,
        hazards=len(hazards.reports),
    )
    own = {"variant": iteration.description.removeprefix(str(iteration.number)), "build": cell.code}
    kernel = emulated_identity(iteration, config).model_copy(update=own)
    document = schema.EmulatedSweepResult(
        rung=rung(gpu=False, counted=False, clocks=False),
        host=this_host(),
        kernels={kernel.key: kernel},
        sweep=schema.Sweep(grid=str(request["grid"]), grid_sha256=str(request["grid_sha256"]), planned=(cell,)),
        cells=(measured,),
    )
    return document, ran.seconds


class Session:
    """The GPU of one worker, with the inputs and identities that it keeps between cells."""

    def __init__(self) -> None:
        self._device = open_device()
        self._hardware, self._flush_bytes = cuda_hardware(self._device.telemetry.sample, self._device.gpu.l2_bytes)
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._inputs: dict[tuple[object, ...], Prepared] = {}
        self._identities: dict[tuple[str, str, Problem], schema.Reference] = {}
        self._last = float("-inf")
        gpu = self._device.gpu
        self.facts = {"gpu": gpu.name, "uuid": gpu.uuid, "rung": self._device.rung}  # sent when the worker is ready

    def measure(self, cell: schema.PlannedCell, request: Mapping[str, Any]) -> tuple[schema.BenchResult, float]:
        """The document of a cell, and the seconds of GPU time that it took.

        A request with candidates is a rung of a tuning run: all are timed in one group. If a candidate's numbers are
        wrong, its series contains the reason. stderr names each candidate before its check, in case the process dies.
        Raises `CellFailed`: wrong numbers, an impossible time, a busy GPU, a kernel that differs from the planned one,
        or a CUDA error. For a rung, the message starts with the candidate that caused it, if known.
        """
        is_rung = "candidates" in request
        plan, current = Plan(**request["plan"]), ""

        def about(key: str) -> None:
            nonlocal current
            current = key
            print(f"{MARK}{key}", file=sys.stderr, flush=True)  # readable after the process died

        try:
            about("")
            found = [self._subject(schema.PlannedCell.model_validate(one)) for one in request.get("candidates", [cell])]
            subjects = [subject for subject, _ in found if subject]
            before = self._wait_until_alone(request["tell"])
            inputs = self._drawn(cell, plan, request.get("first_seed", FIRST_SEED))
            warm_up_s = FIRST_WARM_UP_S if time.monotonic() - self._last > COLD_AFTER_S else WARM_UP_S
            a_a = is_rung or not subjects
            group = bench_group(
                self._hardware, subjects, inputs, plan, process=0, warm_up_s=warm_up_s, a_a=a_a, about=about
            )
            self._last = time.monotonic()
            after = self._device.telemetry.foreign_processes(own_context=True)
        except Exception as error:
            line = first_line(error)
            blame = f"{current}: " if is_rung and current and not line.startswith(current) else ""
            raise CellFailed(kind_of(error), blame + line) from error
        is_library = subjects and not cell.config
        is_floor = cell.subject == references.FA2 or request.get("profile")
        document = schema.BenchResult(
            purpose="tune" if request["mode"] == "tune" else "report",
            **origin(self._device),
            kernels={kernel.key: kernel for _, kernel in found if kernel},
            reference=self._identity(references.FA2, cell) if is_floor else references.reference_identity({}),
            references={cell.subject: self._identity(cell.subject, cell)} if is_library else {},
            sweep=schema.Sweep(grid=str(request["grid"]), grid_sha256=str(request["grid_sha256"]), planned=(cell,)),
            settings=schema.Settings(**request["settings"], flush_bytes=self._flush_bytes),
            processes=(schema.Process(index=0, started_utc=self._started, foreign_before=before, foreign_after=after),),
            groups=(group,),
        )
        if not is_rung:
            wrong = [series.wrong for series in group.series if series.wrong]
            if wrong := wrong or problems(document := derive(document)):
                raise CellFailed("wrong", wrong[0])
        launches = sum(pair.reference_us + pair.kernel_us for series in group.series for pair in series.pairs)
        return document, group.warm_up_s + launches / 1e6

    def _subject(self, cell: schema.PlannedCell) -> tuple[references.Subject | None, schema.Kernel | None]:
        """The subject to time (None for FA2, timed against itself), and its kernel (None for references)."""
        if cell.subject == references.FA2:
            return None, None
        if not cell.config:
            if reason := references.lacking(cell.subject, cell.dtype, references.like(cell.shape)):
                raise CellFailed("refused", reason)
            return references.reference_subject(cell.subject, cell.dtype, cell.shape), None
        installed, config = _loaded(cell.subject, cell.toolchain), KernelConfig.parse(cell.config)
        installed.require(config)
        kernel = installed.identity(config, self._device.gpu.arch)
        if (found := str(kernel.text_sha256 or kernel.build)) != cell.code:
            what, hint = "the installed machine code differs from the planned one", "run the same command again"
            raise FlashladderError(what, expected=cell.code[:12], found=found[:12], hint=hint)
        return references.kernel_subject(kernel.iteration, config, installed.run, kernel.variant), kernel

    def _drawn(self, cell: schema.PlannedCell, plan: Plan, first_seed: int) -> Prepared:
        """The inputs of a cell. Keeps those of both dtypes, for cells with the same shape and seed."""
        common = (cell.shape, plan.input_sets, first_seed)
        self._inputs = {key: inputs for key, inputs in self._inputs.items() if key[1:] == common}  # frees memory first
        key = (cell.dtype, *common)
        if key not in self._inputs:
            self._inputs[key] = prepare(cell.dtype, cell.shape, plan, first_seed=first_seed)
        return self._inputs[key]

    def _wait_until_alone(self, tell: Callable[[Mapping[str, Any]], object]) -> int | None:
        """Waits until no other process uses the GPU; returns 0, or None if NVML lists no processes.

        It sends a ``held-back`` event after each query. Raises `CellFailed` after `HELD_BACK_S`.
        """
        end = time.monotonic() + HELD_BACK_S
        while found := self._device.telemetry.foreign_processes(own_context=True):
            if time.monotonic() > end:
                raise CellFailed("refused", f"{found} other processes still used this GPU after {HELD_BACK_S:.0f} s")
            tell({"event": "held-back", "others": found})
            time.sleep(LOOK_S)
        return found

    def _identity(self, name: str, cell: schema.PlannedCell) -> schema.Reference:
        """A reference with its kernel for such a cell. The profiler finds the kernel once, after a cell is timed."""
        key = (name, cell.dtype, references.like(cell.shape))
        if key not in self._identities:
            unknown = references.reference_identity({}, name)
            self._identities[key] = references.profiled(unknown, name, (cell.dtype,), cell.shape)
        return self._identities[key]


def candidate_in(failure: schema.Failure, keys: Sequence[str]) -> str | None:
    """The candidate at the start of a failure's message, or the last one on its worker's stderr; None if neither."""
    if named := max((key for key in keys if failure.message.startswith(key)), key=len, default=None):
        return named
    marks = [line.partition(MARK)[2].strip() for line in failure.tail.splitlines() if MARK in line]
    return marks[-1] if marks and marks[-1] in keys else None
