"""Ladders of rungs: per iteration and dtype the candidates that are left, what is to be timed next, and what failed.

Why apart from the lanes: which rung comes next follows from the records of those before, so that a resumed run replays
its records and goes on where it stopped. A candidate that brings its rung down is left out and the others are timed
again; where nothing says which one it was, the rung is halved until it is alone. Used by
`flashladder.sweep.tune.command`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
import json
import threading

from flashladder.bench.timing import FIRST_SEED
from flashladder.files import sha256
from flashladder.results.blocks import Plan, settle
from flashladder.results.cells import Failure, PlannedCell
from flashladder.results.derive import fastest_possible_us
from flashladder.results.origin import kernel_key
from flashladder.results.schema import A_A, BenchResult, Series
from flashladder.results.statistics import log_ratios
from flashladder.sweep.cells import Settings, Wanted, wanted_of
from flashladder.sweep.halving import survivors
from flashladder.sweep.lanes.lane import Task
from flashladder.sweep.lanes.run import Work
from flashladder.sweep.measure.rung import last_marked, names_alone
from flashladder.sweep.records import CellRecord, Records

NOBODYS = ("gpu-lost", "refused")  # failures that say nothing about a candidate where they name none


def key_of(cell: PlannedCell) -> str:
    """How series name a candidate."""
    return kernel_key(int(cell.subject), cell.config)


@dataclass
class Ladder:
    """One iteration in one dtype on its way through the rungs.

    Attributes:
        candidates: that are still in, fastest first.
        settings: under which each of them is planned.
        plans: how each rung is timed.
        first_seed: of the inputs.
        rung: index of the current one; `len(plans)` when all are done.
        parts: of the current rung, each timed as one group; several after a failure.
        documents: measured so far, in order.
        failures: candidates that are out because they crashed, hung or were wrong.
        held: what keeps this ladder from going on here: a failure that says nothing about a candidate.
    """

    candidates: list[PlannedCell]
    settings: Settings
    plans: Sequence[Plan]
    first_seed: int = FIRST_SEED
    rung: int = 0
    parts: list[tuple[PlannedCell, ...]] = field(default_factory=list)
    documents: list[BenchResult] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    held: str = ""
    _values: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Puts all candidates before the first rung."""
        self.entered = tuple(self.candidates)
        self._values = {key_of(cell): [] for cell in self.entered}
        self.parts = [tuple(self.candidates)]

    @property
    def is_final(self) -> bool:
        """Whether nobody is to be left out: all are timed once."""
        return len(self.plans) == 1

    @property
    def done(self) -> bool:
        """Whether every rung is measured, or nobody is left to measure."""
        return self.rung == len(self.plans) or not self.candidates

    def cell(self, part: Sequence[PlannedCell]) -> PlannedCell:
        """A part of the current rung as the one cell that its record is about."""
        first, plan = wanted_of(part[0]), self.plans[self.rung]
        name = "final" if self.is_final else f"rung {self.rung + 1} of {len(self.plans)}"
        code = sha256(json.dumps([name, asdict(plan), self.first_seed, [cell.address for cell in part]]))
        return Wanted(first.subject, f"{name}, {len(part)} candidates", first.dtype, first.shape).planned(
            code, self.settings
        )

    def follow(self, record: CellRecord) -> None:
        """Takes in the record of one part of the current rung, and climbs when it was the last."""
        part = next(part for part in self.parts if self.cell(part).address == record.cell.address)
        if isinstance(record.document, BenchResult):
            self.parts.remove(part)
            self._measured(part, record.document)
        elif record.failure:
            self._failed(part, record.failure)
        while not self.parts and not self.done:
            self._climb()

    def _measured(self, part: Sequence[PlannedCell], document: BenchResult) -> None:
        """Notes the ratios of a part, and who in it is wrong."""
        self.documents.append(document)
        group = document.groups[0]
        plan = self.plans[self.rung]
        blocks = settle(group.blocks, visit=plan.visit, min_pairs=plan.min_pairs)
        dropped = {block.index for block in blocks if block.dropped is not None}
        cells = {key_of(cell): cell for cell in part}
        for series in group.series:
            if series.kernel == A_A:
                continue
            if wrong := wrong_in(series, document):
                guilty = cells[series.kernel]
                self._leave_out(guilty, Failure(address=guilty.address, kind="wrong", message=wrong))
                continue
            kept = [pair for pair in series.pairs if pair.block not in dropped]
            if kept:
                ratios = log_ratios([pair.reference_us for pair in kept], [pair.kernel_us for pair in kept])
                self._values[series.kernel] += [float(ratio) for ratio in ratios]

    def _failed(self, part: tuple[PlannedCell, ...], failure: Failure) -> None:
        """Leaves the guilty candidate out, or halves the part."""
        cells = {key_of(cell): cell for cell in part}
        named = names_alone(failure.message, list(cells)) or last_marked(failure.tail, list(cells))
        if named is None and failure.kind in NOBODYS:
            self.held = f"{failure.kind}: {failure.message}"
            return
        self.parts.remove(part)
        guilty = cells[named] if named else part[0] if len(part) == 1 else None
        if guilty is None:
            middle = len(part) // 2
            self.parts += [part[:middle], part[middle:]]
            return
        self._leave_out(guilty, failure)
        if rest := tuple(cell for cell in part if cell != guilty):
            self.parts.append(rest)

    def _leave_out(self, cell: PlannedCell, failure: Failure) -> None:
        """Takes a candidate out, with the reason under its own address."""
        message = failure.message.removeprefix(f"{key_of(cell)}: ")
        self.failures.append(failure.model_copy(update={"address": cell.address, "message": message}))
        self.candidates.remove(cell)

    def _climb(self) -> None:
        """To the next rung, with those who are good enough."""
        by_key = {key_of(cell): cell for cell in self.candidates}
        self.candidates = [by_key[key] for key in survivors({key: self._values[key] for key in by_key})]
        self.rung += 1
        if not self.done:
            self.parts = [tuple(self.candidates)]


def wrong_in(series: Series, document: BenchResult) -> str | None:
    """What is wrong with a candidate's series: its numbers before or after, or a time that cannot be."""
    if series.wrong:
        return series.wrong
    limit = fastest_possible_us(document.groups[0].shape, document.gpu.name)
    best = min((pair.kernel_us for pair in series.pairs), default=None)
    if limit is not None and best is not None and best < limit:
        return f"{best:.1f} us is below the {limit:.1f} us that the GPU's peaks allow"
    return None


def replay(ladder: Ladder, records: Records, *, retry: bool = False) -> None:
    """Takes in the records that an earlier run left; with `retry` those of failures are not counted."""
    there = records.addresses()
    seen: set[str] = set()
    while new := [address for part in ladder.parts if (address := ladder.cell(part).address) in there - seen]:
        for address in new:
            seen.add(address)
            record = records.read(address)
            if record.failure is None or not retry:
                ladder.follow(record)
    ladder.held = ""


class Rungs(Work):
    """The work of a tuning run: every record may add tasks, so that a lane waits while another still measures.

    Args:
        ladders: with what is known of them.
        task_of: from a part of a ladder's rung to its task.
        budget_s: seconds after which no rung is started.
    """

    def __init__(
        self,
        ladders: Iterable[Ladder],
        task_of: Callable[[Ladder, tuple[PlannedCell, ...]], Task],
        budget_s: float | None = None,
    ) -> None:
        super().__init__((), budget_s)
        self._task_of = task_of
        self._changed = threading.Condition(self._lock)
        self._ready: list[Task] = []
        self._out: dict[str, Ladder] = {}  # addresses of tasks that are made, with or without a lane
        self._last: dict[int, str] = {}  # by lane's thread what it measured last
        self._stopped = False
        for ladder in ladders:
            self._add(ladder)

    def _add(self, ladder: Ladder) -> None:
        """Makes tasks of a ladder's parts that have none."""
        for part in () if ladder.held else ladder.parts:
            address = ladder.cell(part).address
            if address not in self._out:
                self._out[address] = ladder
                self._ready.append(self._task_of(ladder, part))

    def take(self, warm: str | None, broken: Collection[str] = ()) -> Task | None:
        """The next task; waits while others' records may still bring some, and for the caller's own last record.

        Of interpreters that are `broken` for the caller it gets none: with nothing but these it is done.
        """
        me = threading.get_ident()
        with self._changed:
            while not self._stopped and self._out:
                if self._last.get(me) not in self._out and self._ready:
                    ready = [task for task in self._ready if task.python not in broken]
                    if not ready or self.late():
                        return None
                    task = self._pick(ready, warm)
                    self._last[me] = task.cell.address
                    return task
                self._changed.wait()
        return None

    def _pick(self, ready: Sequence[Task], warm: str | None) -> Task:
        """Of the ready tasks one for the interpreter that is warm, the newest; else the first."""
        fitting = [task for task in ready if task.python == warm]
        task = fitting[-1] if fitting else ready[0]
        self._ready.remove(task)
        return task

    def follow(self, record: CellRecord) -> None:
        """Takes in a record: called by the main thread, when it is on disk."""
        with self._changed:
            ladder = self._out.pop(record.cell.address)
            ladder.follow(record)
            self._add(ladder)
            self._changed.notify_all()

    def give_back(self, task: Task) -> None:
        """Returns a task that was not measured."""
        with self._changed:
            self._last.pop(threading.get_ident(), None)
            self._ready.insert(0, task)
            self._changed.notify_all()

    def others(self, broken: Collection[str]) -> bool:
        """Whether tasks of other interpreters than these are ready."""
        with self._lock:
            return any(task.python not in broken for task in self._ready)

    def stop(self) -> None:
        """Wakes lanes that wait."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def __len__(self) -> int:
        """Tasks that are not measured."""
        with self._lock:
            return len(self._out)
