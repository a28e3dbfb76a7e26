"""The commands: ``invoke show 7``, or ``flashladder show 7`` from any folder; ``invoke show 7 --help`` explains one.

Exit codes: 0 done, 1 a check failed, 2 could not run (with one line on stderr). A task imports what it needs when it
runs, so that a command line is answered at once.
"""

from __future__ import annotations

from collections.abc import Callable
import sys

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task, task

from flashladder import program
from flashladder.arguments import (
    ARCHES,
    BACKENDS,
    CONFIGS,
    DTYPE,
    FILE_OPTIONS,
    GPU_KEYS,
    LINE_OPTIONS,
    METHODS,
    NUMBER,
    OUT,
    PAGE,
    STEP,
    first_line,
    one_of,
    several_of,
    words,
)
from flashladder.names import (
    DEFAULT_ARCH,
    DTYPES,
    EXAMPLE,
    INTERMEDIATES,
    PUBLISHED_GPU,
    REFERENCES,
    SEQ_LEN,
    TRACE_INPUTS,
)

CONFIG = (
    f"{GPU_KEYS}, what `invoke list` prints, or a short form, for example '{EXAMPLE}' (default: {PUBLISHED_GPU}; "
    "of a step that only Hopper runs, h200)"
)
JSON = "print JSON, for scripts"
CAUSAL = "the kernel with a causal mask, of iterations that have one"
LISTING = {  # of `ptx` and `sass`
    "iteration": f"{STEP}, or a wheel, .so, .o, fatbin, cubin or PTX file",
    "config": CONFIG,
    "arch": f"sm_XX (default: {DEFAULT_ARCH} or sm_90a; of a file without --kernel: all)",
    **FILE_OPTIONS,
    **LINE_OPTIONS,
    "json": JSON,
    "causal": CAUSAL,
}
LAUNCH = {
    "iteration": STEP,
    "seq-len": f"positions (default: {SEQ_LEN})",
    "batch": "samples (default: 1)",
    "heads": "heads (default: 1)",
    "dtype": "fp16 or bf16 (default: the configuration's)",
    "config": CONFIG,
    "seed": "seed of the inputs (default: 0)",
    "json": JSON,
}
GPU = f"a file of configs/gpus, such as h200 (default: {PUBLISHED_GPU})"


def leave(code: int) -> None:
    """Ends the program with an exit code unless that is 0."""
    if code:
        raise Exit(code=code)


def step(text: str) -> str:
    """The number of an iteration, checked before anything slow is imported; `FlashladderError` if there is none."""
    from flashladder.ladder.iteration import load_iteration, no_such_iteration

    if not (text.isascii() and text.isdigit()):
        raise no_such_iteration(repr(text))
    if len(text) > 9:
        raise no_such_iteration(text)
    return str(load_iteration(int(text)).number)


def need_gpu(instead: str = "") -> None:
    """Raises `FlashladderError` where there is no GPU, before anything slow is imported."""
    from flashladder.gpu.doctor import require_gpu

    require_gpu(instead)


@task(
    help={
        "yes": "do not pause between steps (the default without a terminal)",
        "start": "the first station (default: 1)",
    }
)
def tour(_: Context, *, yes: bool = False, start: int = 1) -> None:
    """Walks through the ladder, ten minutes without a GPU.

    Example: `invoke tour --start 5`.
    """
    from flashladder.view.tour import walk

    walk(start, waits=not yes)


@task(name="list", help={"json": JSON})
def list_(_: Context, *, json: bool = False) -> None:
    """Prints the ladder: number, title, what each step changes.

    Example: `invoke list --json`.
    """
    from flashladder.view.command import show_ladder

    show_ladder(as_json=json)


@task(help={"iteration": STEP, "config": CONFIG, "all": "the whole text of the kernel", "json": JSON, "causal": CAUSAL})
def show(
    _: Context,
    iteration: str,
    *,
    config: str | None = None,
    all_: bool = False,
    json: bool = False,
    causal: bool = False,
) -> None:
    """Prints an iteration: why, what changes, its kernel for reading.

    Example: `invoke show 7`.
    """
    from flashladder.view.command import show as show_one

    show_one(iteration, config, causal=causal, whole=all_, as_json=json)


@task(
    help={
        "before": STEP,
        "after": STEP,
        "config": f"a configuration of AFTER: {CONFIG}; BEFORE follows it as far as its parts can, and a step and its "
        "parent have that of the step's claims unless one is given",
        "all": "compare the whole texts of the kernels",
        "page": PAGE,
        "json": JSON,
    }
)
def diff(
    _: Context,
    before: str,
    after: str,
    *,
    config: str | None = None,
    all_: bool = False,
    page: str = "",
    json: bool = False,
) -> None:
    """Compares two kernels: source, opcodes, registers, speed.

    Example: `invoke diff 7 8`.
    """
    from flashladder.view.diff import diff as compare

    compare(before, after, config, whole=all_, page=page, as_json=json)


@task(
    help={
        "iteration": STEP,
        "arch": ARCHES,
        "configs": f"{CONFIGS} (default: prog)",
        "debug": "compile with -G -O0 for cuda-gdb",
        "toolchain": "CUDA version of the compiler's wheels, such as 13.1 (default: the pinned one)",
    }
)
def build(
    _: Context,
    iteration: str,
    *,
    arch: str | None = None,
    configs: str | None = None,
    debug: bool = False,
    toolchain: str | None = None,
) -> None:
    """Builds one iteration's wheel and installs it here.

    Example: `invoke build 7 --arch sm_90 --configs tune`.
    Example: `invoke build "16 - swizzle" --toolchain 13.1`.
    """
    from flashladder.build.command import main

    main(words(iteration, arch=arch, configs=configs, debug=debug, toolchain=toolchain))


@task(help={"number": NUMBER, "reason": "why it is locked anew; it goes into the lock's history and CHANGELOG.md"})
def lock(_: Context, number: str, *, reason: str = "") -> None:
    """Locks one iteration's machine code again.

    Example: `invoke lock 7 --reason 'barrier was missing'`.
    """
    from flashladder.lock.command import relock

    relock(int(step(number)), reason)


@task(
    help={
        "number": NUMBER,
        "configs": f"{CONFIGS} (default: prog; on the emulator {PUBLISHED_GPU})",
        "dtype": DTYPE,
        "quick": "short lengths only",
        "out": f"{OUT}; resumes if the file exists",
        "backend": "gpu (default), or emulator: the PTX on this CPU, with small shapes",
    }
)
def check(
    _: Context,
    number: str,
    *,
    configs: str | None = None,
    dtype: str | None = None,
    quick: bool = False,
    out: str | None = None,
    backend: str = "gpu",
) -> None:
    """Checks numerics on the GPU, or on this CPU.

    Example: `invoke check 7 --backend emulator`.
    """
    one_of("dtype", dtype, DTYPES)
    one_of("backend", backend, BACKENDS)
    number = step(number)
    if backend == "gpu":
        need_gpu()
    from flashladder.check.command import main

    main(words(number, configs=configs, dtype=dtype, quick=quick, out=out, backend=backend))


@task(
    auto_shortflags=False,  # -h is for help, not for heads
    help={
        **LAUNCH,
        "multiprocessors": "number of SMs, for persistent kernels (default: 132)",
        "counters": "Nsight Compute's counters, and the source lines with bank conflicts",
        "hazards": "look for races and missing waits",
        "memory-budget": "registers and shared memory (default: 1GiB)",
        "kv-len": "keys (default: as many as queries)",
        "kv-heads": "heads of K and V (default: as many as of Q)",
        "causal": "with the causal mask",
        "lengths": "packed sequences, their queries, separated by commas (instead of --seq-len)",
        "kv-lengths": "their keys (default: as many as queries)",
    },
)
def emulate(
    _: Context,
    iteration: str,
    *,
    seq_len: int = SEQ_LEN,
    batch: int = 1,
    heads: int = 1,
    dtype: str | None = None,
    config: str | None = None,
    multiprocessors: str | None = None,
    counters: bool = False,
    hazards: bool = False,
    memory_budget: str = "1GiB",
    seed: int = 0,
    json: bool = False,
    kv_len: int | None = None,
    kv_heads: int | None = None,
    causal: bool = False,
    lengths: str | None = None,
    kv_lengths: str | None = None,
) -> None:
    """Runs an iteration's PTX on this CPU (your own: `ptxemu`).

    Example: `invoke emulate 1 --counters`.
    Example: `invoke emulate 33 --lengths 100,37,300 --causal --hazards`.
    Example: `invoke emulate 31 --causal --heads 4 --kv-heads 2 --kv-len 300`.
    Example: `invoke emulate 16 --seq-len 512 --heads 2 --dtype bf16 --hazards`.
    """
    one_of("dtype", dtype, DTYPES)
    from flashladder.emulate.command import Options, run

    asked = Options(
        iteration, seq_len, batch, heads, dtype, config, multiprocessors, counters, hazards, memory_budget, seed, json,
        kv_len, kv_heads, causal, lengths, kv_lengths,
    )  # fmt: skip
    leave(run(asked))


@task(
    help={
        "file": "a CUDA C++ file",
        "arch": f"sm_XX (default: {DEFAULT_ARCH})",
        "out": "PTX file (default: beside FILE)",
    }
)
def nvcc(_: Context, file: str, *, arch: str = DEFAULT_ARCH, out: str = "") -> None:
    """Compiles your CUDA file to PTX with the pinned compiler.

    Example: `invoke nvcc own.cu --arch sm_90`.
    """
    from flashladder.toolchain import compile_and_tell

    compile_and_tell(file, arch, out)


@task(
    help={
        "number": NUMBER,
        "configs": f"{CONFIGS} (default: this GPU's)",
        "dtype": DTYPE,
        "tune": "instead rank the configurations of --configs (default: tune) at S = 4096",
        "references": f"also time these where they run, separated by commas: all, {', '.join(REFERENCES)}",
        "method": f"compare with other timers, separated by commas: {', '.join(METHODS)}",
        "seq-lens": "queries of a sample, separated by commas (default: six lengths from 512 on)",
        "batch": "samples (default: 16, but 8 at 8192 and 4 at 16384)",
        "heads": "heads of Q (default: 16)",
        "kv-heads": "heads of K and V (default: as many as of Q)",
        "kv-len": "keys of a sample (default: as many as queries)",
        "causal": "with a causal mask",
        "out": f"{OUT}; resumes if the file exists",
    }
)
def bench(
    _: Context,
    number: str,
    *,
    configs: str | None = None,
    dtype: str | None = None,
    tune: bool = False,
    references: str | None = None,
    method: str | None = None,
    seq_lens: str | None = None,
    batch: str | None = None,
    heads: str | None = None,
    kv_heads: str | None = None,
    kv_len: str | None = None,
    causal: bool = False,
    out: str | None = None,
) -> None:
    """Times one iteration on the GPU, alternating with FA2.

    Example: `invoke bench 7 --dtype fp16`.
    Example: `invoke bench 16 --references all --method nvbench,ncu`.
    Example: `invoke bench 31 --causal --heads 32 --kv-heads 8 --seq-lens 4096`.
    """
    one_of("dtype", dtype, DTYPES)
    several_of("references", references, ("all", *REFERENCES))
    several_of("method", method, METHODS)
    number = step(number)
    need_gpu("timing needs a GPU; `invoke explain N --gpu h200` predicts the speed of steps 1 to 19")
    from flashladder.bench.command import main

    what = {"configs": configs, "dtype": dtype, "tune": tune, "references": references, "method": method, "out": out}
    sizes = {"seq_lens": seq_lens, "batch": batch, "heads": heads, "kv_heads": kv_heads, "kv_len": kv_len}
    main(words(number, **what, **sizes, causal=causal))


@task(
    help={
        "grid": "a file of configs/grids, such as a100, smoke or cpu",
        "dry-run": "print the plan: cells, builds, time; measure nothing",
        "out": "folder of the records (default: build/sweep/MACHINE/GRID)",
        "gpus": "all (default), indices or UUIDs separated by commas",
        "shard": "I/N: only the I-th of N parts of the cells, from 0",
        "no-build": "build nothing: does not start if a kernel is missing",
        "retry": "measure again what failed",
        "anyway": "also on another GPU than the grid was made for",
        "timeout": "seconds for one cell (default: depends on its size)",
        "json": "print one JSON line per event, for scripts",
        "slurm": "submit to Slurm: partition=..., account=..., array=N, time=..., ... (docs/slurm.md)",
    }
)
def sweep(
    _: Context,
    grid: str,
    *,
    dry_run: bool = False,
    out: str | None = None,
    gpus: str | None = None,
    shard: str | None = None,
    no_build: bool = False,
    retry: bool = False,
    anyway: bool = False,
    timeout: str | None = None,
    json: bool = False,
    slurm: str | None = None,
) -> None:
    """Measures a grid, cell by cell; continues where it stopped.

    Example: `invoke sweep --grid a100 --dry-run`.
    """
    from flashladder.sweep.command import main

    flags = {"dry_run": dry_run, "no_build": no_build, "retry": retry, "anyway": anyway, "json": json}
    leave(main(words(grid=grid, out=out, gpus=gpus, shard=shard, timeout=timeout, slurm=slurm, **flags)))


@task(
    help={
        "arch": "sm_XX, several separated by commas (default: all)",
        "python": "the node's Python, several separated by commas (default: this one's)",
        "iterations": "numbers separated by commas (default: all)",
        "grid": "also the kernels of these grids, separated by commas, such as ablation",
        "platform": "wheel tags that the node accepts, separated by commas (default: glibc 2.28 on x86-64)",
        "out": "folder (default: build/bundle)",
    }
)
def bundle(
    _: Context,
    *,
    arch: str = "",
    python: str = "",
    iterations: str = "",
    grid: str = "",
    platform: str = "",
    out: str = "",
) -> None:
    """Makes one file that runs on a GPU node without network.

    Example: `invoke bundle --arch sm_90 --python 3.12`.
    """
    from flashladder.bundle.make import bundle as make

    make(arch=arch, python=python, iterations=iterations, grid=grid, platform=platform, out=out)


@task(
    positional=["iteration"],
    help={
        "iteration": f"{STEP} (default: all)",
        "arch": ARCHES,
        "configs": f"{CONFIGS} (default: prog)",
        "csv": "write the table to this file, FILE.csv, with the occupancy on every GPU",
        "json": JSON,
    },
)
def ptxas(
    _: Context,
    *,
    iteration: str = "",
    arch: str | None = None,
    configs: str = "prog",
    csv: str = "",
    json: bool = False,
) -> None:
    """Prints registers, spills, shared memory, occupancy.

    Example: `invoke ptxas 7 --arch sm_80,sm_90`.
    """
    from flashladder.view.code import show_ptxas

    show_ptxas(iteration or None, arch, configs, as_json=json, csv=csv)


@task(
    help={
        **LISTING,
        "counts": "opcode counts only",
        "normalised": "without comments and line numbers, as the lock hashes it",
    }
)
def ptx(
    _: Context,
    iteration: str,
    *,
    config: str | None = None,
    counts: bool = False,
    normalised: bool = False,
    kernel: str = "",
    list_: bool = False,
    clean: bool = False,
    out: str = "",
    line: str = "",
    opcode: str = "",
    arch: str = "",
    json: bool = False,
    causal: bool = False,
) -> None:
    """Prints the PTX that ships, or of any library.

    Example: `invoke ptx 7 --counts`.
    Example: `invoke ptx 8 --opcode LDSM`.
    Example: `invoke ptx kernel.cubin --clean`.
    """
    from flashladder.view.binary import Wanted
    from flashladder.view.code import show_ptx

    wanted = Wanted(
        config=config, counts=counts, normalised=normalised, kernel=kernel, list=list_, clean=clean, out=out, line=line,
        opcode=opcode, arch=arch, json=json, causal=causal,
    )  # fmt: skip
    show_ptx(iteration, wanted)


@task(
    help={
        **LISTING,
        "counts": "opcode classes only",
        "order": "the main loop alone: products, barriers and waits, and the instructions between them",
        "control": "stall counts, barriers and yield flags of each instruction",
        "page": PAGE,
    }
)
def sass(
    _: Context,
    iteration: str,
    *,
    config: str | None = None,
    arch: str = "",
    counts: bool = False,
    order: bool = False,
    control: bool = False,
    kernel: str = "",
    list_: bool = False,
    clean: bool = False,
    out: str = "",
    line: str = "",
    opcode: str = "",
    page: str = "",
    json: bool = False,
    causal: bool = False,
) -> None:
    """Prints machine code beside its source, or of any library.

    Example: `invoke sass 8 --counts`.
    Example: `invoke sass 24 --order`.
    Example: `invoke sass 8 --line ldmatrix.cuh`.
    Example: `invoke sass lib.so --kernel 'flash_fwd_kernel (FP16, 128, 128, 64, 4)' --control`.
    """
    from flashladder.view.binary import Wanted
    from flashladder.view.code import show_sass_of

    wanted = Wanted(
        config=config, arch=arch, counts=counts, order=order, control=control, kernel=kernel, list=list_, clean=clean,
        out=out, line=line, opcode=opcode, page=page, json=json, causal=causal,
    )  # fmt: skip
    show_sass_of(iteration, wanted)


@task(
    help={
        "iteration": f"{STEP}, or a library, fatbin or cubin",
        "config": CONFIG,
        "arch": f"sm_XX (default: {DEFAULT_ARCH}, or the one that the iteration is for)",
        "seq-len": "positions of the launch, which decide how often blocks run (default: 4096)",
        "counts": "print opcodes per region and per KV block",
        "dot": "print DOT, for Graphviz",
        "svg": "print a drawing as SVG",
        "kernel": "for a file: part of the kernel's name, mangled or not, or of its configuration",
        "json": JSON,
        "causal": CAUSAL,
    }
)
def cfg(
    _: Context,
    iteration: str,
    *,
    config: str | None = None,
    arch: str = "",
    seq_len: int = 4096,
    counts: bool = False,
    dot: bool = False,
    svg: bool = False,
    kernel: str = "",
    json: bool = False,
    causal: bool = False,
) -> None:
    """Draws the control flow: blocks, loops, how often each runs.

    Example: `invoke cfg 16`.
    Example: `invoke cfg 16 --counts`.
    """
    from flashladder.view.binary import Wanted
    from flashladder.view.cfg import show_cfg

    forms = {"counts": counts, "dot": dot, "svg": svg, "json": json}
    wanted = Wanted(config=config, causal=causal, arch=arch, kernel=kernel)
    show_cfg(iteration, wanted, seq_len, [name for name, asked in forms.items() if asked])


@task(
    auto_shortflags=False,  # -h is for help, not for heads
    help={
        **LAUNCH,
        "input": "normal (default), or with a readable result: range (S[i,j] = 1000 i + j), identity (O = V), ones (V)",
        "show": f"print values of one of {', '.join(INTERMEDIATES)}",
        "block": "for --show: the KV block (default: the first that differs, else the first visited)",
        "at": "for --show: first ROW,COLUMN (default: where it differs, else 0,0)",
        "sanitize": "also run compute-sanitizer's four tools, on a GPU with the iteration's build",
    },
)
def trace(
    _: Context,
    iteration: str,
    *,
    seq_len: int = SEQ_LEN,
    batch: int = 1,
    heads: int = 1,
    dtype: str | None = None,
    config: str | None = None,
    input_: str = "normal",
    show: str | None = None,
    block: str | None = None,
    at: str | None = None,
    seed: int = 0,
    sanitize: bool = False,
    json: bool = False,
) -> None:
    """Compares S, m, P, l, O of each KV block with PyTorch.

    Example: `invoke trace 7`.
    Example: `invoke trace 16 --input range --show S`.
    """
    one_of("dtype", dtype, DTYPES)
    one_of("input", input_, TRACE_INPUTS)
    one_of("show", show, INTERMEDIATES)
    from flashladder.trace.command import Options, run

    asked = Options(
        iteration, seq_len, batch, heads, dtype, config, input_, show, block, at, seed, sanitize=sanitize, json=json
    )
    leave(run(asked))


@task(help={"iteration": STEP, "gpu": GPU, "config": CONFIG, "seq-len": "positions (default: 4096)", "json": JSON})
def explain(
    _: Context,
    iteration: str,
    *,
    gpu: str = PUBLISHED_GPU,
    config: str | None = None,
    seq_len: int = 4096,
    json: bool = False,
) -> None:
    """Says what limits a kernel on a GPU, and predicts its speed.

    Example: `invoke explain 16 --gpu a100`.
    """
    from flashladder.explain.predict import show as show_prediction

    show_prediction(iteration, gpu, config, seq_len, as_json=json)


@task(
    help={
        "check": "write nothing; exit 1 when a committed file is stale",
        "open": "show the page in a browser",
        "json": JSON,
    }
)
def report(_: Context, *, check: bool = False, open_: bool = False, json: bool = False) -> None:
    """Renders page, tables and README's table from results.

    Example: `invoke report --open`.
    Example: `invoke report --check`.
    """
    from flashladder.report.command import report as render

    leave(render(check=check, as_json=json, show=open_))


@task(help={"json": JSON})
def gate(_: Context, *, json: bool = False) -> None:
    """Re-derives every committed number and table.

    Example: `invoke gate --json`.
    """
    from flashladder.gate.reproduce import gate as hold

    leave(hold(as_json=json))


@task(
    positional=["path"],
    help={
        "path": "a result file, or a machine's folder (default: results/, all machines)",
        "rerun": "also time a sample of its cells again on this GPU and compare",
        "cells": "how many cells a rerun draws (default: 8)",
        "seed": "which cells a rerun draws (default: 0)",
        "json": JSON,
    },
)
def verify(
    _: Context, *, path: str = "", rerun: bool = False, cells: int = 8, seed: int = 0, json: bool = False
) -> None:
    """Checks a result: samples, statistics, code, cells.

    Example: `invoke verify results/h200`.
    Example: `invoke verify results/h200/bench.json.gz --rerun`.
    """
    from flashladder.gate.verify import verify_and_tell

    leave(verify_and_tell(path, rerun=rerun, n_cells=cells, seed=seed, as_json=json))


@task(help={"json": JSON})
def doctor(_: Context, *, json: bool = False) -> None:
    """Says what this machine can do, and what it lacks.

    Example: `invoke doctor --json`.
    """
    from flashladder.gpu.doctor import doctor as diagnose

    leave(diagnose(as_json=json))


@task(name="help", default=True)
def help_(_: Context) -> None:
    """Shows these tasks.

    Example: `invoke help`.
    """
    width = max(len(one.name) for one in namespace.tasks.values())
    typed = program.called()
    lines = [f"{typed} TASK ARGUMENTS, for example `{typed} show 7`; `{typed} TASK --help`: more."]
    for heading, tasks in STATIONS.items():
        lines += ["", heading, *(f"  {one.name.ljust(width)}  {first_line(one)}" for one in tasks)]
    print("\n".join(lines))


STATIONS: dict[str, tuple[Task[Callable[..., None]], ...]] = {
    "Read": (tour, list_, show, diff),
    "Build": (build, lock),
    "Check and time": (check, emulate, nvcc, bench, sweep, bundle),
    "Look inside": (ptxas, ptx, sass, cfg, trace, explain),
    "Results": (report, gate, verify),
    "This machine": (doctor, help_),
}
"""Heading to tasks, in the order in which a person meets them."""

namespace = Collection(*(one for tasks in STATIONS.values() for one in tasks))

if program.called_by_invoke():  # whose own parser leaves with 1, "a check failed", for what it cannot read
    program.run(namespace, sys.argv[1:])
