"""Verbs for people: each task is one call of one package function; all the work is in `flashladder`.

    nox -s dev && source .venv/bin/activate     # once
    invoke                                      # the tasks by station
    invoke show 7 --help
Exit codes: 0 done, 1 a check failed, 2 could not run (with one line on stderr).
"""

from __future__ import annotations

from collections.abc import Sequence
import importlib

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task, task

from flashladder import arguments, usage
from flashladder.arguments import METHODS, ONE_CONFIG
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import last_iteration
from flashladder.gpu.present import require_gpu
from flashladder.ladder.config import DTYPES, EXAMPLE

usage.install()
Flag = str | bool | None
LONGEST = 9  # digits of a number


def call(module: str, *words: str, **flags: Flag) -> None:
    """Runs ``flashladder.<module>.main`` with `words` and the flags that are set; leaves with its exit code."""
    argv = list(words)
    for name, value in flags.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            argv.append(option)
        elif value:
            argv.append(f"{option}={value}")
    with one_line_errors():
        code = importlib.import_module(f"flashladder.{module}").main(argv)
    if code:
        raise Exit(code=code)


def step(text: str) -> str:
    """`text` if it is the number of an iteration; leaves with one line and exit code 2 otherwise."""
    with one_line_errors():
        from flashladder.ladder.iteration import load_iteration, no_such_iteration

        if not (text.isascii() and text.isdigit()):
            raise no_such_iteration(repr(text))
        if len(text) > LONGEST:
            raise no_such_iteration(text)
        number = load_iteration(int(text)).number
    return str(number)


def one_of(what: str, text: str, words: Sequence[str]) -> str:
    """`text` if it is one of some words; leaves with one line and exit code 2 otherwise."""
    with one_line_errors():
        if text not in words:
            raise FlashladderError(f"no such {what}", expected=" or ".join(words), found=repr(text))
    return text


def dtype_of(text: str) -> str:
    """`text` if it is a dtype or nothing; else as `one_of`."""
    return text and one_of("dtype", text, DTYPES)


def need_gpu() -> None:
    """Leaves with one line and exit code 2 where there is no GPU, before anything slow is imported."""
    with one_line_errors():
        require_gpu()


STATIONS = {
    "Read": ("list", "show", "diff"),
    "Build": ("build", "lock"),
    "Check and time": ("check", "emulate", "nvcc", "bench", "sweep"),
    "Look inside": ("ptxas", "ptx", "sass"),
    "Results": ("report", "gate", "verify"),
    "This machine": ("doctor", "help"),
}
"""Heading to tasks, in the order in which a person meets them."""

JSON = "print JSON, for scripts"
ARCH = "sm_XX, several separated by commas (default: the GPU present, else sm_80)"
CONFIGS = f"{arguments.CONFIGS} (default: prog)"
CONFIG = f"{ONE_CONFIG}, for example '{EXAMPLE}' (default: a100)"
DIFF_CONFIG = (
    f"a configuration of AFTER: {ONE_CONFIG}, for example '{EXAMPLE}'; BEFORE follows it as far as its parts can "
    "(default for a step and its parent: that of the step's claims, else AFTER's on the A100)"
)
DTYPE = "fp16 or bf16 (default: both)"
OUT = "result file to write (.json or .json.gz)"
TUNE = "rank the configurations instead, at S = 4096"
NUMBER = f"iteration, 1 to {last_iteration()}"
BACKEND = "gpu (default), or emulator: the PTX on this CPU, with small shapes"
STEP = "iteration, or an ablation such as '16 - swizzle'"


@task(default=True, name="help")
def help_(_: Context) -> None:
    """Shows these tasks.

    Example: `invoke help`.
    """
    with one_line_errors():
        tasks = [value for value in globals().values() if isinstance(value, Task)]
        lines = {str(found.name): (found.__doc__ or "").partition("\n")[0] for found in tasks}
        print(usage.overview(STATIONS, lines))


@task(name="list", help={"json": JSON})
def list_(_: Context, json: bool = False) -> None:
    """Prints the ladder: number, title, what each step changes.

    Example: `invoke list --json`.
    """
    call("view.command", "list", json=json)


@task(help={"iteration": STEP, "config": CONFIG, "json": JSON})
def show(_: Context, iteration: str, config: str = "", json: bool = False) -> None:
    """Prints an iteration: why, what changes, its whole kernel.

    Example: `invoke show 7`.
    """
    call("view.command", "show", iteration, config=config, json=json)


@task(help={"before": STEP, "after": STEP, "config": DIFF_CONFIG, "json": JSON})
def diff(_: Context, before: str, after: str, config: str = "", json: bool = False) -> None:
    """Compares two kernels: source and opcode counts.

    Example: `invoke diff 7 8`.
    """
    call("view.command", "diff", before, after, config=config, json=json)


@task(
    help={"iteration": STEP, "arch": ARCH, "configs": CONFIGS, "debug": "compile with -G -O0 for cuda-gdb",
          "toolchain": "CUDA version of the compiler's wheels, such as 13.1 (default: the pinned one)"}
)  # fmt: skip
def build(
    _: Context, iteration: str, arch: str = "", configs: str = "", debug: bool = False, toolchain: str = ""
) -> None:
    """Builds one iteration's wheel and installs it here.

    Example: `invoke build 7 --arch sm_90 --configs tune`.
    Example: `invoke build "16 - swizzle" --toolchain 13.1`.
    """
    call("build.command", iteration, arch=arch, configs=configs, debug=debug, toolchain=toolchain)


@task(
    help={"number": NUMBER, "configs": f"{CONFIGS[:-1]}; on the emulator a100)", "dtype": DTYPE,
          "quick": "short lengths only", "out": OUT, "backend": BACKEND}
)  # fmt: skip
def check(
    _: Context,
    number: str,
    configs: str = "",
    dtype: str = "",
    quick: bool = False,
    out: str = "",
    backend: str = "",
) -> None:
    """Checks numerics on the GPU, or on this CPU.

    Example: `invoke check 7 --backend emulator`.
    """
    how: dict[str, Flag] = {
        "quick": quick,
        "out": out,
        "backend": backend and one_of("backend", backend, ("gpu", "emulator")),
    }
    number, dtype = step(number), dtype_of(dtype)
    if backend != "emulator":
        need_gpu()
    call("check.command", number, configs=configs, dtype=dtype, **how)


@task(
    auto_shortflags=False,  # -h is for help, not for heads
    iterable=["arg", "save"],
    help={"iteration": f"{STEP}, or a PTX file", "seq_len": "positions (default: 256)",
          "batch": "samples (default: 1)", "heads": "default: 1",
          "dtype": "fp16 or bf16 (default: the configuration's)", "config": f"{ONE_CONFIG} (default: a100)",
          "kernel": "of a PTX file: its entry (default: the only one)", "grid": "blocks along x,y,z (default: 1)",
          "block": "threads along x,y,z", "arg": "an argument, in order: [NAME=]float32:64x128:randn, int32:5, @in.npy",
          "save": "an array after the launch: NAME=FILE.npy", "shared": "dynamic shared memory, such as 48KiB",
          "target": "whose limits hold, such as sm_90 (default: the file's)",
          "counters": "Nsight Compute's counters, and the source lines with bank conflicts",
          "hazards": "look for races and missing waits", "memory_budget": "registers and shared memory (default: 1GiB)",
          "seed": "of the inputs (default: 0)", "json": JSON}
)  # fmt: skip
def emulate(
    _: Context,
    iteration: str,
    *,
    seq_len: str = "",
    batch: str = "",
    heads: str = "",
    dtype: str = "",
    config: str = "",
    kernel: str = "",
    grid: str = "",
    block: str = "",
    arg: Sequence[str] | None = None,
    save: Sequence[str] | None = None,
    shared: str = "",
    target: str = "",
    counters: bool = False,
    hazards: bool = False,
    memory_budget: str = "",
    seed: str = "",
    json: bool = False,
) -> None:
    """Runs an iteration's PTX, or one's own, on this CPU.

    Example: `invoke emulate 1 --counters`.
    Example: `invoke emulate own.ptx --grid 4 --block 256 --arg x=float32:1024:randn --arg n=int32:5 --hazards`.
    """
    words = [iteration, *(f"--arg={each}" for each in arg or ()), *(f"--save={each}" for each in save or ())]
    shape = {"seq_len": seq_len, "batch": batch, "heads": heads}
    how: dict[str, Flag] = {"config": config, "memory_budget": memory_budget, "seed": seed, "json": json}
    own: dict[str, Flag] = {"kernel": kernel, "grid": grid, "block": block, "shared": shared, "target": target}
    call("emulate.command", *words, dtype=dtype_of(dtype), counters=counters, hazards=hazards, **shape, **how, **own)


@task(help={"file": "a CUDA C++ file", "arch": "sm_XX (default: sm_80)", "out": "PTX file (default: beside FILE)"})
def nvcc(_: Context, file: str, arch: str = "", out: str = "") -> None:
    """Compiles one's own CUDA file to PTX with the pinned wheels.

    Example: `invoke nvcc own.cu --arch sm_90`.
    """
    call("toolchain.own_cuda", file, arch=arch, out=out)


@task(
    help={
        "number": NUMBER,
        "configs": f"{arguments.CONFIGS} (default: this GPU's)",
        "dtype": DTYPE,
        "tune": TUNE,
        "references": "time these as well, commas between: all, cudnn, fa4, flash-attn",
        "method": "compare with other timers, commas between: nvbench, ncu",
        "out": OUT,
    }
)
def bench(
    _: Context,
    number: str,
    *,
    configs: str = "",
    dtype: str = "",
    tune: bool = False,
    references: str = "",
    method: str = "",
    out: str = "",
) -> None:
    """Times one iteration in turn with FA2 on the GPU.

    Example: `invoke bench 7 --dtype fp16`.
    Example: `invoke bench 16 --references all --method nvbench,ncu`.
    """
    number, dtype = step(number), dtype_of(dtype)
    methods = [one_of("method", name, METHODS) for name in method.split(",")] if method else []
    several = {"--references": references.split(",") if references else [], "--method": methods}
    need_gpu()
    words = [word for option, names in several.items() if names for word in (option, *names)]
    call("bench.command", number, *words, configs=configs, dtype=dtype, tune=tune, out=out)


@task(
    help={"grid": "a file of configs/grids, such as a100, smoke or cpu", "dry_run": "print cells, builds and time only",
          "out": "folder of the records (default: build/sweep/MACHINE/GRID)",
          "gpus": "all (default), indices or UUIDs separated by commas", "shard": "I/N: one of N parts of the cells",
          "no_build": "build nothing", "retry": "measure again what failed",
          "anyway": "on another GPU than the grid was made for", "timeout": "of one cell, in seconds", "json": JSON,
          "slurm": "submit to Slurm: partition=..., account=..., array=N, time=..., ... (docs/slurm.md)"}
)  # fmt: skip
def sweep(
    _: Context,
    grid: str,
    *,
    dry_run: bool = False,
    out: str = "",
    gpus: str = "",
    shard: str = "",
    no_build: bool = False,
    retry: bool = False,
    anyway: bool = False,
    timeout: str = "",
    json: bool = False,
    slurm: str = "",
) -> None:
    """Measures a grid, cell by cell; goes on where it stopped.

    Example: `invoke sweep --grid a100 --dry-run`.
    """
    how: dict[str, Flag] = {"out": out, "gpus": gpus, "shard": shard, "timeout": timeout, "slurm": slurm}
    yes = {"no_build": no_build, "retry": retry, "anyway": anyway, "json": json}
    call("sweep.command", f"--grid={grid}", dry_run=dry_run, **how, **yes)


@task(
    positional=["iteration"],
    help={"iteration": f"{STEP} (default: all)", "arch": ARCH, "configs": CONFIGS, "json": JSON},
)
def ptxas(_: Context, iteration: str = "", arch: str = "", configs: str = "prog", json: bool = False) -> None:
    """Prints registers, spills and shared memory.

    Example: `invoke ptxas 7 --arch sm_80,sm_90`.
    """
    with one_line_errors():
        from flashladder.view.code import show_ptxas

        show_ptxas(iteration or None, arch or None, configs, as_json=json)


@task(help={"iteration": STEP, "config": CONFIG, "arch": "sm_XX (default: sm_80)", "counts": "opcode classes only"})
def sass(_: Context, iteration: str, config: str = "", arch: str = "", counts: bool = False) -> None:
    """Prints machine code beside its source lines.

    Example: `invoke sass 8 --counts`.
    """
    call("view.sass", iteration, config=config, arch=arch, counts=counts)


@task(
    help={"iteration": STEP, "config": CONFIG, "counts": "opcode counts only",
          "normalised": "without comments and line numbers, as the lock hashes it"}
)  # fmt: skip
def ptx(_: Context, iteration: str, config: str = "", counts: bool = False, normalised: bool = False) -> None:
    """Prints the PTX that ships.

    Example: `invoke ptx 7 --counts`.
    """
    with one_line_errors():
        from flashladder.view.code import show_ptx

        show_ptx(iteration, config or None, counts=counts, normalised=normalised)


@task(help={"number": NUMBER, "reason": "why it is locked anew; it goes into the lock's history and CHANGELOG.md"})
def lock(_: Context, number: str, reason: str = "") -> None:
    """Locks one iteration's machine code anew.

    Example: `invoke lock 7 --reason 'barrier was missing'`.
    """
    number = step(number)
    with one_line_errors():
        from flashladder.lock.command import relock

        relock(int(number), reason)


@task(help={"check": "write nothing; exit 1 when a committed file is stale", "json": JSON})
def report(_: Context, check: bool = False, json: bool = False) -> None:
    """Renders tables, plot and README's table from results.

    Example: `invoke report --check`.
    """
    call("report.command", check=check, json=json)


@task(help={"json": JSON})
def gate(_: Context, json: bool = False) -> None:
    """Holds all that is committed to its sources.

    Example: `invoke gate --json`.
    """
    call("gate.command", json=json)


@task(
    positional=["path"],
    help={"path": "a result file, or a machine's folder (default: results/, all machines)", "json": JSON},
)
def verify(_: Context, path: str = "", json: bool = False) -> None:
    """Checks a result: seal, samples, statistics, code, cells.

    Example: `invoke verify results/h200`.
    """
    call("gate.verify", *([path] if path else []), json=json)


@task(help={"json": JSON})
def doctor(_: Context, json: bool = False) -> None:
    """Says what this machine can do, and what it lacks.

    Example: `invoke doctor --json`.
    """
    call("gpu.doctor", json=json)
