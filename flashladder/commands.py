"""What a person can ask for: every command with its options, their help, choices and defaults, each here alone.

Why: `invoke X`, ``flashladder X`` and ``python -m flashladder.X`` are one command. tasks.py makes a task of each row
(`flashladder.usage`), the package's parser takes its options from the same row (`flashladder.arguments.parser_of`) and
adds what only scripts need. Nothing to run here; ``invoke`` shows the commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from flashladder.arguments import CONFIGS, METHODS, NUMBER, ONE_CONFIG, Command, Option, result_file
from flashladder.ladder.config import DTYPES, EXAMPLE
from flashladder.names import DEFAULT_ARCH, INTERMEDIATES, PUBLISHED_GPU, REFERENCES, TRACE_INPUTS

BACKENDS = ("gpu", "emulator")
STEP = "iteration, or an ablation such as '16 - swizzle'"
AN_ITERATION, A_PTX_FILE = "an iteration", "a PTX file"  # whose options they are

_Flag = partial(Option, form="flag")
_Text = partial(Option, default="")
_OfIteration, _OfFile = partial(_Text, group=AN_ITERATION), partial(_Text, group=A_PTX_FILE)

_STEP = Option("iteration", STEP, form="word", required=True)
ONE_NUMBER = Option("number", NUMBER, form="word", required=True)
_JSON = _Flag("json", "print JSON, for scripts")
_ARCH = Option("arch", f"sm_XX, several separated by commas (default: the GPU present, else {DEFAULT_ARCH})")
_ONE_ARCH = Option("arch", f"sm_XX (default: {DEFAULT_ARCH})", default=DEFAULT_ARCH)
_CONFIGS = Option("configs", f"{CONFIGS} (default: prog)", default="prog")
KEYS = Option("configs", f"{CONFIGS} (default: {PUBLISHED_GPU})")
_CONFIG = Option("config", f"{ONE_CONFIG}, for example '{EXAMPLE}' (default: {PUBLISHED_GPU})")
DTYPE = Option("dtype", "fp16 or bf16 (default: both)", choices=DTYPES)
OUT = Option("out", "result file to write (.json or .json.gz)")
_RESUMED = Option("out", f"{OUT.help}; goes on when it exists")
_DIFF_CONFIG = Option(
    "config",
    f"a configuration of AFTER: {ONE_CONFIG}, for example '{EXAMPLE}'; BEFORE follows it as far as its parts can "
    "(default for a step and its parent: that of the step's claims, else AFTER's on the A100)",
)

SEVERAL_KEYS: Mapping[str, Any] = {"nargs": "+", "metavar": "KEY"}
SEVERAL_DTYPES: Mapping[str, Any] = {"dest": "dtypes", "nargs": "+", "default": list(DTYPES)}
PUBLISHED_KEYS: Mapping[str, Any] = {**SEVERAL_KEYS, "default": [PUBLISHED_GPU]}
A_RESULT_FILE: Mapping[str, Any] = {"type": result_file}
"""How a parser takes configurations, dtypes and ``--out``, where a task takes one word each."""

_READ = (
    Command(
        "tour",
        "Walks through the ladder, ten minutes without a GPU.",
        ("tour --start 5",),
        (
            _Flag("yes", "wait for nobody; without a terminal it does not wait either"),
            Option("start", "the station to begin with (default: 1)", default="1"),
        ),
    ),
    Command("list", "Prints the ladder: number, title, what each step changes.", ("list --json",), (_JSON,)),
    Command(
        "show",
        "Prints an iteration: why, what changes, its kernel for reading.",
        ("show 7",),
        (_STEP, _CONFIG, _Flag("all", "the whole text of the kernel"), _JSON),
    ),
    Command(
        "diff",
        "Compares two kernels: source and opcode counts.",
        ("diff 7 8",),
        (
            Option("before", STEP, form="word", required=True),
            Option("after", STEP, form="word", required=True),
            _DIFF_CONFIG,
            _Flag("all", "the whole texts of the kernels"),
            _JSON,
        ),
    ),
)

_BUILD = (
    Command(
        "build",
        "Builds one iteration's wheel and installs it here.",
        ("build 7 --arch sm_90 --configs tune", 'build "16 - swizzle" --toolchain 13.1'),
        (
            _STEP,
            _ARCH,
            _CONFIGS,
            _Flag("debug", "compile with -G -O0 for cuda-gdb"),
            _Text("toolchain", "CUDA version of the compiler's wheels, such as 13.1 (default: the pinned one)"),
        ),
    ),
    Command(
        "lock",
        "Locks one iteration's machine code anew.",
        ("lock 7 --reason 'barrier was missing'",),
        (
            ONE_NUMBER,
            _Text("reason", "why it is locked anew; it goes into the lock's history and CHANGELOG.md"),
        ),
    ),
)

_EMULATE = Command(
    "emulate",
    "Runs an iteration's PTX, or one's own, on this CPU.",
    (
        "emulate 1 --counters",
        "emulate own.ptx --grid 4 --block 256 --arg x=float32:1024:randn --arg n=int32:5 --hazards",
    ),
    (
        Option("iteration", f"{STEP}, or a PTX file", form="word", required=True),
        _OfIteration("seq-len", "positions (default: 256)"),
        _OfIteration("batch", "samples (default: 1)"),
        _OfIteration("heads", "heads (default: 1)"),
        _OfIteration("dtype", "fp16 or bf16 (default: the configuration's)", choices=DTYPES),
        _OfIteration("config", f"{ONE_CONFIG} (default: {PUBLISHED_GPU})"),
        _OfFile("kernel", "of a PTX file: its entry (default: the only one)"),
        _OfFile("grid", "blocks along x,y,z (default: 1)"),
        _OfFile("block", "threads along x,y,z"),
        _OfFile("arg", "an argument, in order: [NAME=]float32:64x128:randn, int32:5, @in.npy", form="again"),
        _OfFile("save", "an array after the launch: NAME=FILE.npy", form="again"),
        _OfFile("shared", "dynamic shared memory of a block, such as 48KiB (default: 0)"),
        _OfFile("target", "whose limits hold, such as sm_90 (default: the file's)"),
        _Flag("counters", "Nsight Compute's counters, and the source lines with bank conflicts"),
        _Flag("hazards", "look for races and missing waits"),
        Option("memory-budget", "registers and shared memory (default: 1GiB)", default="1GiB"),
        Option("seed", "of the inputs (default: 0)", default="0"),
        _JSON,
    ),
    short_flags=False,  # -h is for help, not for heads
)

_CHECK = Command(
    "check",
    "Checks numerics on the GPU, or on this CPU.",
    ("check 7 --backend emulator",),
    (
        ONE_NUMBER,
        Option("configs", f"{CONFIGS} (default: prog; on the emulator {PUBLISHED_GPU})"),
        DTYPE,
        _Flag("quick", "short lengths only"),
        _RESUMED,
        Option(
            "backend",
            "gpu (default), or emulator: the PTX on this CPU, with small shapes",
            choices=BACKENDS,
            default="gpu",
        ),
    ),
)

_NVCC = Command(
    "nvcc",
    "Compiles one's own CUDA file to PTX with the pinned wheels.",
    ("nvcc own.cu --arch sm_90",),
    (
        Option("file", "a CUDA C++ file", form="word", required=True),
        _ONE_ARCH,
        _Text("out", "PTX file (default: beside FILE)"),
    ),
)

_BENCH = Command(
    "bench",
    "Times one iteration in turn with FA2 on the GPU.",
    ("bench 7 --dtype fp16", "bench 16 --references all --method nvbench,ncu"),
    (
        ONE_NUMBER,
        Option("configs", f"{CONFIGS} (default: this GPU's)"),
        DTYPE,
        _Flag("tune", "rank the configurations of --configs (default: tune) instead, at S = 4096"),
        Option(
            "references",
            f"time these as well where they run, commas between: all, {', '.join(REFERENCES)}",
            form="several",
            choices=("all", *REFERENCES),
        ),
        Option(
            "method",
            f"compare with other timers, commas between: {', '.join(METHODS)}",
            form="several",
            choices=METHODS,
        ),
        _RESUMED,
    ),
)

_SWEEP = Command(
    "sweep",
    "Measures a grid, cell by cell; goes on where it stopped.",
    ("sweep --grid a100 --dry-run",),
    (
        Option("grid", "a file of configs/grids, such as a100, smoke or cpu", required=True),
        _Flag("dry-run", "print the plan: cells, builds, time; measure nothing"),
        Option("out", "folder of the records (default: build/sweep/MACHINE/GRID)"),
        Option("gpus", "all (default), indices or UUIDs separated by commas", default="all"),
        Option("shard", "I/N: only the I-th of N parts of the cells, from 0"),
        _Flag("no-build", "build nothing: what is not built is a failure"),
        _Flag("retry", "measure again what failed"),
        _Flag("anyway", "on another GPU than the grid was made for"),
        Option("timeout", "of one cell, in seconds (default: by its size)"),
        _Flag("json", "print events as JSON, a line each, for scripts"),
        Option("slurm", "submit to Slurm: partition=..., account=..., array=N, time=..., ... (docs/slurm.md)"),
    ),
)

_BUNDLE = Command(
    "bundle",
    "Makes one file that runs on a GPU node without network.",
    ("bundle --arch sm_90 --python 3.12",),
    (
        _Text("arch", "sm_XX, several separated by commas (default: all)"),
        _Text("python", "the node's Python, several separated by commas (default: this one's)"),
        _Text("iterations", "numbers separated by commas (default: all)"),
        _Text("grid", "grids separated by commas, whose kernels come along beyond the ladder's, such as ablation"),
        _Text("platform", "tags of wheels that the node takes, commas between (default: glibc 2.28 on x86-64)"),
        _Text("out", "folder (default: build/bundle)"),
    ),
)

_LOOK = (
    Command(
        "ptxas",
        "Prints registers, spills and shared memory.",
        ("ptxas 7 --arch sm_80,sm_90",),
        (Option("iteration", f"{STEP} (default: all)", form="word"), _ARCH, _CONFIGS, _JSON),
    ),
    Command(
        "ptx",
        "Prints the PTX that ships.",
        ("ptx 7 --counts",),
        (
            _STEP,
            _CONFIG,
            _Flag("counts", "opcode counts only"),
            _Flag("normalised", "without comments and line numbers, as the lock hashes it"),
        ),
    ),
    Command(
        "sass",
        "Prints machine code beside its source lines.",
        ("sass 8 --counts",),
        (
            Option("iteration", f"{STEP}, or a cubin", form="word", required=True),
            _CONFIG,
            _ONE_ARCH,
            _Flag("counts", "opcode classes only"),
        ),
    ),
)

_TRACE = Command(
    "trace",
    "Compares S, m, P, l, O of each KV block with PyTorch.",
    ("trace 7", "trace 16 --input range --show S"),
    (
        _STEP,
        _Text("seq-len", "positions (default: 256)"),
        _Text("batch", "samples (default: 1)"),
        _Text("heads", "heads (default: 1)"),
        Option("dtype", "fp16 or bf16 (default: the configuration's)", choices=DTYPES),
        _Text("config", f"{ONE_CONFIG} (default: {PUBLISHED_GPU})"),
        Option(
            "input",
            "normal (default), or to be read off: range (S is 1000 row + column), identity (O is V), ones (V)",
            choices=TRACE_INPUTS,
            default="normal",
        ),
        Option("show", f"print values of one of {', '.join(INTERMEDIATES)}", choices=INTERMEDIATES),
        _Text("block", "of --show: the KV block (default: where it differs, else the first visited)"),
        _Text("at", "of --show: ROW,COLUMN to begin with (default: where it differs, else 0,0)"),
        Option("seed", "of the inputs (default: 0)", default="0"),
        _Flag("sanitize", "also run compute-sanitizer's four tools, on a GPU with the iteration's build"),
        _JSON,
    ),
    short_flags=False,  # -h is for help, not for heads
)

_RESULTS = (
    Command(
        "report",
        "Renders page, tables and README's table from results.",
        ("report --open", "report --check"),
        (
            _Flag("check", "write nothing; exit 1 when a committed file is stale"),
            _Flag("open", "show the page in a browser"),
            _JSON,
        ),
    ),
    Command("gate", "Holds all that is committed to its sources.", ("gate --json",), (_JSON,)),
    Command(
        "verify",
        "Checks a result: seal, samples, statistics, code, cells.",
        ("verify results/h200", "verify results/h200/bench.json.gz --rerun"),
        (
            _Text("path", "a result file, or a machine's folder (default: results/, all machines)", form="word"),
            _Flag("rerun", "also time a sample of its cells anew on this GPU and compare"),
            Option("cells", "how many cells a rerun draws (default: 8)", default="8"),
            Option("seed", "which cells a rerun draws (default: 0)", default="0"),
            _JSON,
        ),
    ),
)

STATIONS: dict[str, tuple[Command, ...]] = {
    "Read": _READ,
    "Build": _BUILD,
    "Check and time": (_CHECK, _EMULATE, _NVCC, _BENCH, _SWEEP, _BUNDLE),
    "Look inside": (*_LOOK, _TRACE),
    "Results": _RESULTS,
    "This machine": (
        Command("doctor", "Says what this machine can do, and what it lacks.", ("doctor --json",), (_JSON,)),
        Command("help", "Shows these tasks.", ("help",)),
    ),
}
"""Heading to commands, in the order in which a person meets them."""

COMMANDS = {command.name: command for commands in STATIONS.values() for command in commands}
