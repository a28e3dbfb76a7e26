"""The job array of a sweep: submitted once, found again, watched to its end; through submitit and Slurm's own programs.

Why not submitit's own waiting: it asks sacct, which many clusters lack. squeue knows every task that is waiting or
running, and for some minutes those that ended. What was measured is in the records, not in submitit's pickles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
import fcntl
import importlib.util
import io
from pathlib import Path
import shutil
import subprocess
import sys
import time
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.files import dump_json, load_json, make_folder, require_file_or_nothing, sha256, write_atomic
from flashladder.paths import BUILD
from flashladder.sweep.cells import CPU
from flashladder.sweep.slurm.options import MOST_TASKS, SlurmOptions, free_cpus, free_gpus
from flashladder.sweep.slurm.task import WARNING_S, Task

TASK_COMMAND = (sys.executable, "-m", "flashladder.sweep.array_task")
GPU_CPUS = 4  # per task
ENDED = frozenset(
    ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "PREEMPTED")
)
SHORTEST_POLL_S, LONGEST_POLL_S = 1.0, 15.0  # between two questions to Slurm, which serves everybody
SINFO = "NodeList:250|,StateCompact:20|,Gres:250|,GresUsed:250|,CPUsState:40"
ANSWER_S = 120  # of squeue, which a busy controller may keep waiting
RESTARTS = 10  # of a task that a signal ended
TIMEOUTS = 1000  # how often a task may run out of its time, as long as each time a cell was finished
# Slurm starts a task again after preemption and when its node died, submitit when its time is over. This is for what
# killed only the task's processes. SIGTERM (143) is how Slurm and people say that it shall end.
AFTER = [
    "code=$?",
    f"if (( code > 128 && code < 160 && code != 143 && ${{SLURM_RESTART_COUNT:-0}} < {RESTARTS} )); then",
    '    scontrol requeue "$SLURM_JOB_ID"',
    "fi",
    "exit $code",
]


@dataclass(frozen=True)
class Request:
    """A sweep as an array.

    Attributes:
        grid: its name.
        folder: of its records, absolute, on a file system that the nodes see too.
        arguments: of the sweep's command in every task, all but its shard.
        options: of ``--slurm``.
        machine: key of the GPU that each task needs, or ``cpu``.
        command: what runs the sweep in a task.
    """

    grid: str
    folder: Path
    arguments: tuple[str, ...]
    options: SlurmOptions
    machine: str
    command: tuple[str, ...] = TASK_COMMAND

    @property
    def gpu(self) -> bool:
        """Whether a task needs one."""
        return self.machine != CPU

    @property
    def name(self) -> str:
        """Of the jobs: the same for the same records, so that Slurm itself knows whether an array is running."""
        return f"flashladder-{self.grid}-{sha256(str(self.folder))[:8]}"

    @property
    def logs(self) -> Path:
        """Folder of what the tasks print, and of the array's state."""
        return self.folder / "slurm"


@dataclass(frozen=True)
class TaskState:
    """A task as squeue tells it: its id (``12_0``), its job's, its state, why it waits, where it runs."""

    task: str
    job: str
    state: str
    reason: str
    node: str

    @property
    def ended(self) -> bool:
        """Whether it will not run any more."""
        return self.state in ENDED


def require_slurm() -> None:
    """Raises `FlashladderError` where no job can be submitted from: Slurm's programs or submitit are missing."""
    missing = [program for program in ("sbatch", "squeue", "sinfo") if not shutil.which(program)]
    if missing:
        raise FlashladderError(
            f"{', '.join(missing)} not found, which --slurm needs", hint="run this where jobs are submitted from"
        )
    if importlib.util.find_spec("submitit") is None:
        hint = "pip install submitit, or `nox -s dev`, which brings it"
        raise FlashladderError("submitit is not installed, which --slurm needs", hint=hint)


def ask(*command: str) -> str:
    """What one of Slurm's programs prints.

    Raises:
        FlashladderError: it failed, or does not answer.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        raise FlashladderError(f"{command[0]} did not answer in {ANSWER_S} s") from None
    if done.returncode:
        raise FlashladderError(f"{command[0]} failed: {done.stderr.strip()}")
    return done.stdout


def tasks_of(request: Request, job: str | None = None) -> list[TaskState]:
    """The tasks that Slurm remembers of this sweep's arrays, or of one of them.

    Raises:
        FlashladderError: Slurm did not answer.
    """
    rows = ask("squeue", "--noheader", "-r", "-t", "all", "--name", request.name, "-o", "%i|%F|%T|%r|%N").splitlines()
    found = [TaskState(*(field.strip() for field in row.split("|", 4))) for row in rows]
    return [task for task in found if job in (None, task.job)]


def running_job(request: Request) -> str | None:
    """The job id of the array that waits or runs for these records, None where there is none."""
    jobs = {task.job for task in tasks_of(request) if not task.ended}
    noted = noted_job(request)
    return noted if noted in jobs else max(jobs, key=int, default=None)


def noted_job(request: Request) -> str | None:
    """The job id that was noted in the folder when the last array was submitted."""
    try:
        return str(load_json((request.logs / "array.json").read_bytes())["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def default_tasks(request: Request, cells: int) -> int:
    """How many tasks without ``array=``: one per free GPU or CPU, no more than cells, at least one."""
    partition = request.options.site.get("partition")
    only = ["-p", partition] if partition else []
    rows = ask("sinfo", "--noheader", "-N", *only, "-O", SINFO)
    each = request.options.cpus or 1
    free = free_gpus(rows, request.options.gpu_type) if request.gpu else free_cpus(rows) // each
    return max(1, min(free, cells, MOST_TASKS))


@contextmanager
def alone(request: Request) -> Iterator[None]:
    """Lets one process at a time look for an array and submit one."""
    make_folder(request.logs)
    require_file_or_nothing(request.logs / "lock")
    with (request.logs / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def parameters(request: Request) -> dict[str, Any]:
    """What submitit writes into the batch file."""
    options = request.options
    site = {name: value for name, value in options.site.items() if name != "reservation"}
    more = {"requeue": True, "chdir": str(BUILD.parent)}
    if "reservation" in options.site:
        more["reservation"] = options.site["reservation"]
    cpus = options.cpus or (GPU_CPUS if request.gpu else 1)
    gpu = {"gpus_per_task": 1} if request.gpu and "gres" not in site else {}
    return {
        "job_name": request.name, "time": options.minutes, "ntasks_per_node": 1, "cpus_per_task": cpus, **site, **gpu,
        "srun_args": [f"--cpus-per-task={cpus}"], "signal_delay_s": min(WARNING_S, options.minutes * 15),
        "wckey": None, "teardown": AFTER, "additional_parameters": more,
    }  # fmt: skip


def submit_array(request: Request, tasks: int) -> str:
    """Submits the array, notes its job id in the folder, and returns it.

    Raises:
        FlashladderError: Slurm refuses the job.
    """
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError

    words = io.StringIO()
    try:
        with redirect_stderr(words):
            executor = SlurmExecutor(folder=request.logs, max_num_timeout=TIMEOUTS)
            executor.update_parameters(**parameters(request))
            with executor.batch():
                jobs = [executor.submit(_share(request, i, tasks)) for i in range(tasks)]
    except FailedJobError as error:
        raise FlashladderError("Slurm refused the job", where="--slurm", found=str(error)) from error
    job = jobs[0].job_id.partition("_")[0]
    note = {"job": job, "name": request.name, "tasks": tasks, "arguments": list(request.arguments)}
    write_atomic(request.logs / "array.json", dump_json(note))
    return job


def _share(request: Request, index: int, count: int) -> Task:
    """One task of so many."""
    return Task(
        (*request.command, request.machine), (*request.arguments, "--shard", f"{index}/{count}"), request.folder
    )


Tell = Callable[[Mapping[str, Any]], object]


def watch(request: Request, job: str, done: Callable[[], int], tell: Tell) -> Counter[str]:
    """Waits until no task of the array waits or runs any more, and tells every change.

    Args:
        request: whose array it is.
        job: its id.
        done: counts the cells that have a record.
        tell: called with ``{"event": "slurm", "done": 12, "states": {"RUNNING": 2}, "waiting": [reasons]}`` or
            ``{"event": "slurm-silent", "message": ...}``.

    Returns:
        the last states that Slurm told, with how many tasks had each; empty where it has forgotten them.
    """
    told: Mapping[str, Any] | None = None
    poll, quiet, last = SHORTEST_POLL_S, 0, Counter[str]()
    while quiet < 2:  # a task that is being put back into the queue may look as if it had ended, for a moment
        try:
            tasks = tasks_of(request, job)
        except FlashladderError as error:
            event: Mapping[str, Any] = {"event": "slurm-silent", "message": str(error)}
            quiet = 0
        else:
            quiet = 0 if any(not task.ended for task in tasks) else quiet + 1
            last = Counter(task.state for task in tasks) or last
            waiting = sorted({task.reason for task in tasks if task.state == "PENDING"} - {"None"})
            event = {"event": "slurm", "done": done(), "states": dict(sorted(last.items())), "waiting": waiting}
        if event != told:
            told = event
            tell(event)
        if quiet < 2:
            time.sleep(poll if not quiet else SHORTEST_POLL_S)
            poll = min(LONGEST_POLL_S, poll * 1.1)
    return last


def last_error(request: Request, job: str) -> str | None:
    """The last line that begins with ``error:`` of the tasks' logs, for people; None where no task wrote one."""
    found = None
    for path in sorted(request.logs.glob(f"{job}_*_log.err")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found = next((line for line in reversed(lines) if line.startswith("error:")), found)
    return found
