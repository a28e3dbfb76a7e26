"""``--slurm partition=...,account=...`` measures a grid as a job array with submitit, one exclusive GPU per task.

The host that submits builds the kernels. Tasks write records to the shared file system. A task that is killed,
preempted or out of time is requeued. This process only watches. After Ctrl-C the tasks keep running, and the same
command finds them again by the job's name. When all tasks have ended, it packs the result, without a GPU.
submitit waits for jobs with sacct, which many clusters lack. So this module uses squeue, which lists all active tasks.

    python -m flashladder.sweep --grid h100 --slurm partition=gpu,account=me,time=2:00:00,array=8
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
import importlib.util
import io
from pathlib import Path
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import relative, sha256
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.grid import Grid
from flashladder.located import closest
from flashladder.paths import BUILD
from flashladder.results.files import machine_name
from flashladder.sweep import place, plan
from flashladder.sweep.place import Place
from flashladder.sweep.plan import CPU
from flashladder.sweep.records import Records, locked
from flashladder.sweep.screen import Screen, finish
from flashladder.sweep.workers import Device

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

SITE = ("partition", "account", "qos", "constraint", "gres", "mem")  # keys that submitit takes under the same names
KEYS = {
    "partition": "as sinfo lists them; default: the site's",
    "account": "account to charge",
    "qos": "quality of service",
    "gpu": "GPU of the tasks, a key of configs/gpus; default: the grid's; required if the grid is made for any GPU",
    "constraint": "features of a node, for example h100",
    "reservation": "name of a reservation",
    "gres": "GPUs of a task, for example gpu:h100:1; default: one GPU of any type",
    "cpus": "CPUs of a task, 1 to 1000; default: 4 with a GPU, 1 for the cpu grid",
    "mem": "memory of a task, for example 32G; default: the site's",
    "time": "time limit of a task (minutes, H:M:S, D-H); default: 60 minutes; a task that times out is requeued",
    "array": "number of tasks, 1 to 1000; default: 8",
}
DEFAULT_TASKS = 8  # tasks without a free GPU wait in the queue
MOST_ARRAY = 1000  # Slurm's MaxArraySize less one, by default
DEFAULT_MINUTES = 60
GPU_CPUS = 4  # per task
WARNING_S = 90  # longest warning before a task's time limit
TIMEOUTS = 1000  # requeues after a timeout, if the task finished at least one cell each time
ENDED = frozenset(
    ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "PREEMPTED")
)
SHORTEST_POLL_S, LONGEST_POLL_S = 1.0, 15.0  # between two squeue calls, to limit the load on Slurm
ANSWER_S = 120  # limit of one squeue call; a busy controller answers late
# Slurm requeues a task after preemption or a node failure; submitit requeues it at its time limit. This batch script
# requeues it, up to ten times, when a signal killed the task's process. After SIGTERM (143) the task must end.
AFTER = [
    "code=$?",
    "if (( code > 128 && code < 160 && code != 143 && ${SLURM_RESTART_COUNT:-0} < 10 )); then",
    '    scontrol requeue "$SLURM_JOB_ID"',
    "fi",
    "exit $code",
]
Options = Mapping[str, Any]
"""Checked values of `KEYS`: ``time`` in minutes, ``cpus`` and ``array`` as numbers, others as text. Absent: default."""
Command = Callable[[Sequence[str]], int]


def parse_options(text: str) -> Options:
    """The ``key=value`` pairs of ``--slurm``; `FlashladderError`: an unknown, repeated or invalid one."""
    found: dict[str, Any] = {}
    for item in text.split(",") if text.strip() else []:
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in KEYS:
            expected, hint = f"one of {', '.join(KEYS)}", closest(key, list(KEYS))
            raise FlashladderError("unknown key", where="--slurm", expected=expected, found=repr(key), hint=hint)
        if key in found or not (checked := _checked(key, value)):
            what = f"{key} twice" if key in found else f"not a value of {key}"
            raise FlashladderError(what, where="--slurm", expected=KEYS[key], found=repr(item))
        found[key] = checked
    return found


def _checked(key: str, value: str) -> str | int:
    """A key's checked value, a time in whole minutes (rounded up). Empty or 0 if the value is invalid."""
    if key == "gpu":
        return value if value in load_gpus() else ""
    if key in ("cpus", "array"):
        return int(value) if re.fullmatch(r"[0-9]{1,4}", value) and int(value) <= MOST_ARRAY else 0
    if key != "time":
        return value if re.fullmatch(r"[^\s\"'`$\\;]+", value) else ""
    match = re.fullmatch(r"(?:([0-9]{1,6})-)?([0-9]{1,6})(?::([0-9]{1,6}))?(?::([0-9]{1,6}))?", value)
    days, *parts = match.groups() if match else ("0", "0", None, None)
    units = (3600, 60, 1) if days or parts[2] else (60, 1)
    seconds = 86400 * int(days or 0) + sum(int(part or 0) * unit for part, unit in zip(parts, units, strict=False))
    return -(-seconds // 60)


def on_machine(machine: str, sweep: Command, words: Sequence[str]) -> int:
    """Runs the sweep's command on a node. Raises `FlashladderError`: the node's GPU is not the planned `machine`."""
    cards = [] if machine == CPU else place.cards()
    found = machine_name(cards[0].name) if cards else "none"
    if machine not in (CPU, found):
        hint = "--slurm gres=gpu:TYPE:1 or constraint=... selects a model"
        raise FlashladderError("Slurm gave the task another GPU", expected=machine, found=found, hint=hint)
    return sweep(words)


@dataclass
class Request:
    """A sweep as a job array, or one task of it, which submitit pickles and runs on a node."""

    grid: str
    folder: Path  # of the records; an absolute path on a file system that the nodes share
    arguments: tuple[str, ...]  # of `sweep`, beside the task's shard
    options: Options
    machine: str  # key of the tasks' GPU, or ``cpu``
    sweep: Command  # what a task calls
    before: int = 0  # number of records when the task started

    @property
    def name(self) -> str:
        """The job's name. It depends on grid and folder only, so squeue finds a running array by it."""
        return f"flashladder-{self.grid}-{sha256(str(self.folder))[:8]}"

    @property
    def logs(self) -> Path:
        """Folder with the output of the tasks."""
        return self.folder / "slurm"

    def __call__(self) -> int:
        """Runs the sweep's command in a task; returns 0, or 1 if cells failed. Their records contain the reasons.

        Raises `SystemExit`: it could not start or did not finish (2), or received SIGTERM or SIGINT (143).
        """
        self.before = len(Records(self.folder).addresses())
        try:
            with one_line_errors():
                return self.sweep(self.arguments)
        except SystemExit as error:
            if error.code == 1:
                return 1
            raise SystemExit(128 + signal.SIGTERM if error.code == 128 + signal.SIGINT else error.code) from None

    def checkpoint(self) -> DelayedSubmission | None:
        """The task to requeue at the time limit; None if the sweep finished no cell, because it would never finish.

        submitit calls this when Slurm warns of the time limit. All measurements are already in the records.
        """
        from submitit.helpers import DelayedSubmission

        if len(Records(self.folder).addresses()) > self.before:
            return DelayedSubmission(self)
        reason = "the task finished no cell within its time limit and is not requeued"
        print(f"error: {reason}; --slurm time=... gives it more time", file=sys.stderr, flush=True)
        return None


def require_possible(grid: Grid, options: argparse.Namespace) -> None:
    """Raises `FlashladderError` if the options or the grid exclude ``--slurm``, or this host cannot submit jobs."""
    if options.shard or options.gpus != "all":
        flag = "--shard" if options.shard else "--gpus"
        raise FlashladderError(f"--slurm and {flag} exclude each other", hint="Slurm gives each task its GPU and cells")
    if grid.mode == "tune":
        raise FlashladderError("--slurm does not support tuning runs", hint="--shard I/N measures part of the ladders")
    if options.dry_run:
        return
    if missing := [program for program in ("sbatch", "squeue") if not shutil.which(program)]:
        hint = "run this on a host that submits jobs"
        raise FlashladderError(f"{', '.join(missing)} not found, which --slurm needs", hint=hint)
    if importlib.util.find_spec("submitit") is None:
        hint = "pip install submitit, or run `nox -s dev`, which installs it"
        raise FlashladderError("submitit is not installed, which --slurm needs", hint=hint)


def destination(grid: Grid, wanted: Options, *, anyway: bool) -> Place:
    """GPUs of the grid's model, or of the model in ``gpu=``; `FlashladderError`: neither is given, or they differ."""
    key = CPU if grid.mode == "emulator" else wanted.get("gpu", grid.gpu)
    tasks = tuple(Device(f"task{number}", key) for number in range(wanted.get("array", DEFAULT_TASKS)))
    if key == CPU:
        return Place(tasks, CPU, "")
    if key == "any":
        expected = ", ".join(f"gpu={name}" for name in load_gpus())
        raise FlashladderError("the tasks' GPU is not specified", where="--slurm", expected=f"one of {expected}")
    other = grid.gpu if grid.gpu not in ("any", key) else None
    if other:
        place.require_same(other, f"gpu={key}", anyway=anyway)
    return Place(tasks, key, load_gpus()[key].arch, other)


def tasks_of(request: Request) -> list[tuple[str, str, str]]:
    """Job id, state and waiting reason of each task that squeue lists. Raises `FlashladderError`: squeue failed."""
    words = ["squeue", "--noheader", "-r", "-t", "all", "--name", request.name, "-o", "%F|%T|%r"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        raise FlashladderError(f"squeue did not answer in {ANSWER_S} s") from None
    if done.returncode:
        raise FlashladderError(f"squeue failed: {done.stderr.strip()}")
    split = (row.strip().split("|", 2) for row in done.stdout.splitlines())
    return [(job, state, reason) for job, state, reason in split]


def running_job(request: Request) -> str | None:
    """The job id of this sweep's queued or running array; None if there is none."""
    return max((job for job, state, _ in tasks_of(request) if state not in ENDED), key=int, default=None)


def parameters(request: Request) -> dict[str, Any]:
    """The parameters that submitit writes into the batch file."""
    options, on_gpu = request.options, request.machine != CPU
    minutes, cpus = options.get("time", DEFAULT_MINUTES), options.get("cpus", GPU_CPUS if on_gpu else 1)
    reservation = {"reservation": options["reservation"]} if "reservation" in options else {}
    return {
        "job_name": request.name, "time": minutes, "ntasks_per_node": 1, "cpus_per_task": cpus,
        **{name: options[name] for name in SITE if name in options},
        **({"gpus_per_task": 1} if on_gpu and "gres" not in options else {}),
        "srun_args": [f"--cpus-per-task={cpus}"], "signal_delay_s": min(WARNING_S, minutes * 15),
        "wckey": None, "teardown": AFTER,
        "additional_parameters": {"requeue": True, "chdir": str(BUILD.parent), **reservation},
    }  # fmt: skip


def submit_array(request: Request, tasks: int) -> str:
    """Submits the array and returns its job id. Raises `FlashladderError`: Slurm refused the job."""
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError

    parts = [replace(request, arguments=(*request.arguments, "--shard", f"{index}/{tasks}")) for index in range(tasks)]
    try:
        with redirect_stderr(io.StringIO()):
            executor = SlurmExecutor(folder=request.logs, max_num_timeout=TIMEOUTS)
            executor.update_parameters(**parameters(request))
            with executor.batch():
                jobs = [executor.submit(part) for part in parts]
    except FailedJobError as error:
        raise FlashladderError("Slurm refused the job", where="--slurm", found=str(error)) from error
    return jobs[0].job_id.partition("_")[0]


def watch(request: Request, job: str, done: Callable[[], int]) -> Iterator[Mapping[str, Any]]:
    """Waits until all tasks of the array `job` have ended; `done` returns the number of cells with a record.

    Yields an event per change: ``{"event": "slurm", "done": 12, "states": {"RUNNING": 2}, "waiting": [reasons]}``, or
    ``{"event": "slurm-silent", "message": ...}`` if squeue fails.
    """
    last: Mapping[str, Any] = {}
    poll_s, quiet, states = SHORTEST_POLL_S, 0, Counter[str]()
    while True:
        try:
            tasks = [(state, reason) for found, state, reason in tasks_of(request) if found == job]
        except FlashladderError as error:
            event: Mapping[str, Any] = {"event": "slurm-silent", "message": str(error)}
            quiet = 0
        else:
            quiet = 0 if any(state not in ENDED for state, _ in tasks) else quiet + 1
            states = Counter(state for state, _ in tasks) or states
            waiting = sorted({reason for state, reason in tasks if state == "PENDING"} - {"None"})
            event = {"event": "slurm", "done": done(), "states": dict(sorted(states.items())), "waiting": waiting}
        if event != last:
            yield event
        if quiet == 2:  # not after one look: a task that is being requeued may appear ended for a moment
            return
        last = event
        time.sleep(SHORTEST_POLL_S if quiet else poll_s)
        poll_s = min(LONGEST_POLL_S, poll_s * 1.1)


def measure(
    made: plan.Plan, place: Place, options: argparse.Namespace, lines: Sequence[str], records: Records, sweep: Command
) -> int:
    """Submits the array or finds a running one, watches it and packs the result. Each task runs the command `sweep`.

    Raises `FlashladderError`: Slurm failed or refused the job, or cells are missing at the end. Raises as `finish`.
    """
    words = ["--grid", options.grid, "--out", str(records.folder.resolve()), "--no-build"]
    words += ["--anyway"] if options.anyway else []
    words += ["--timeout", f"{options.timeout:g}"] if options.timeout else []
    request = Request(
        grid=made.grid.name,
        folder=records.folder.resolve(),
        arguments=tuple(words),
        options=parse_options(options.slurm),
        machine=place.machine,
        sweep=partial(on_machine, place.machine, sweep),
    )
    missing = records.missing(made.cells, retry=options.retry)
    seconds = made.estimate_s(missing) / len(place.devices)
    screen = Screen(made, len(made.cells), len(missing), seconds, as_json=options.json)
    screen.begin(lines, request.folder)
    with locked(request.logs / "lock"):  # only one process at a time looks for an array and submits one
        job, event = running_job(request), "slurm-found"
        how = "is already queued or running; new --slurm options are ignored"
        missing = records.missing(made.cells, retry=options.retry and job is None)
        if job is None and missing:
            for cell in missing:  # delete failures here: tasks run without --retry
                records.path(cell.address).unlink(missing_ok=True)
            job = submit_array(request, min(request.options.get("array", DEFAULT_TASKS), len(missing)))
            event, how = "slurm-submitted", "submitted"
    if job:
        screen.event({"event": event, "logs": str(request.logs), "job": job})
        screen.line(f"Slurm job {job} {how}; logs: {relative(request.logs)}; `scancel {job}` ends it")
        states = _show(request, job, made, records, screen)
        if missing := records.missing(made.cells):
            raise incomplete(request, job, states, f"{len(missing)} of {len(made.cells)}")
    return finish(made, records, screen, place.made_for)


def _show(request: Request, job: str, made: plan.Plan, records: Records, screen: Screen) -> Mapping[str, int]:
    """Shows the events of an array until it has ended; returns the number of its tasks in each state."""
    states: Mapping[str, int] = {}
    planned = {cell.address for cell in made.cells}
    try:
        for event in watch(request, job, lambda: len(planned & records.addresses())):  # often: opens no file
            screen.event({**event, "job": job})
            if "message" in event:
                screen.line(f"Slurm does not answer, retrying: {event['message']}")
                continue
            states = event["states"]
            waiting = f" (waiting: {', '.join(event['waiting'])})" if event["waiting"] else ""
            cells = f"{event['done']} of {len(planned)} cells"
            screen.line(f"{time.strftime('%H:%M:%S')}  {cells}; tasks: {in_words(states) or 'none'}{waiting}")
    except KeyboardInterrupt:
        screen.line(f"job {job} keeps running; run the same command to watch it again; `scancel {job}` ends it")
        raise
    return states


def in_words(states: Mapping[str, int]) -> str:
    """``1 completed, 2 running``."""
    return ", ".join(f"{count} {name.lower()}" for name, count in sorted(states.items()))


def incomplete(request: Request, job: str, states: Mapping[str, int], cells: str) -> FlashladderError:
    """The error that `cells`, such as ``3 of 64``, are not measured. Contains the last error in the logs."""
    lines = [
        line
        for path in sorted(request.logs.glob(f"{job}_*_log.err"))
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.startswith("error:")
    ]
    what, tasks = f"job {job} has ended, and {cells} cells are not measured", in_words(states)
    found = f"tasks: {tasks or 'no longer listed by Slurm'}{f' ({lines[-1]})' if lines else ''}"
    hint = f"logs: {relative(request.logs)}; the same command submits the rest"
    return FlashladderError(what, where=relative(request.folder), found=found, hint=hint)
