"""The commands, a row each, by station; those that run PTX on this CPU are `flashladder.commands.on_cpu`'s.

Why: `invoke X`, ``flashladder X`` and ``python -m flashladder.X`` are one command. tasks.py makes a task of each row
(`flashladder.usage`), the package's parser takes its options from the same row (`flashladder.arguments.parser_of`) and
adds what only scripts need. Nothing to run here; ``invoke`` shows the commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashladder.arguments import (
    CONFIGS,
    DEFAULT_CONFIG,
    METHODS,
    NUMBER,
    OF_FILES,
    OF_LINES,
    ONE_CONFIG,
    PAGE,
    Command,
    Option,
    result_file,
)  # fmt: skip
from flashladder.commands.on_cpu import A_STEP as _STEP
from flashladder.commands.on_cpu import EMULATE, EXPLAIN, STEP, TRACE
from flashladder.commands.on_cpu import JSON as _JSON
from flashladder.commands.on_cpu import Flag as _Flag
from flashladder.commands.on_cpu import Text as _Text
from flashladder.ladder.config import DTYPES, EXAMPLE
from flashladder.names import DEFAULT_ARCH, PUBLISHED_GPU, REFERENCES

BACKENDS = ("gpu", "emulator")
A_BINARY = "a wheel, .so, .o, fatbin, cubin or PTX file"
ONE_NUMBER = Option("number", NUMBER, form="word", required=True)
_ARCH = Option("arch", f"sm_XX, several separated by commas (default: the GPU present, else {DEFAULT_ARCH})")
_STEP_ARCH = Option("arch", f"sm_XX (default: {DEFAULT_ARCH}, or the one that the iteration is for)", default="")
_FILES_ARCH = Option("arch", f"sm_XX (default: {DEFAULT_ARCH} or sm_90a; of a file without --kernel: all)", default="")
_CONFIGS = Option("configs", f"{CONFIGS} (default: prog)", default="prog")
KEYS = Option("configs", f"{CONFIGS} (default: {PUBLISHED_GPU})")
_CONFIG = Option("config", f"{ONE_CONFIG}, for example '{EXAMPLE}' (default: {DEFAULT_CONFIG})")
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
        "Compares two kernels: source, opcodes, registers, speed.",
        ("diff 7 8",),
        (
            Option("before", STEP, form="word", required=True),
            Option("after", STEP, form="word", required=True),
            _DIFF_CONFIG,
            _Flag("all", "the whole texts of the kernels"),
            PAGE,
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
        Option("arch", f"sm_XX (default: {DEFAULT_ARCH})", default=DEFAULT_ARCH),
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
        "Prints registers, spills, shared memory, occupancy.",
        ("ptxas 7 --arch sm_80,sm_90",),
        (
            Option("iteration", f"{STEP} (default: all)", form="word"),
            _ARCH,
            _CONFIGS,
            _Text("csv", "write the table to this file, FILE.csv, with the occupancy on every GPU"),
            _JSON,
        ),
    ),
    Command(
        "ptx",
        "Prints the PTX that ships, or of any library.",
        ("ptx 7 --counts", "ptx 8 --opcode LDSM", "ptx kernel.cubin --clean"),
        (
            Option("iteration", f"{STEP}, or {A_BINARY}", form="word", required=True),
            _CONFIG,
            _Flag("counts", "opcode counts only"),
            _Flag("normalised", "without comments and line numbers, as the lock hashes it"),
            *OF_FILES,
            *OF_LINES,
            _FILES_ARCH,
            _JSON,
        ),
    ),
    Command(
        "sass",
        "Prints machine code beside its source, or of any library.",
        (
            *("sass 8 --counts", "sass 24 --order", "sass 8 --line ldmatrix.cuh"),
            "sass lib.so --kernel 'flash_fwd_kernel (FP16, 128, 128, 64, 4)' --control",
        ),
        (
            Option("iteration", f"{STEP}, or {A_BINARY}", form="word", required=True),
            _CONFIG,
            _FILES_ARCH,
            _Flag("counts", "opcode classes only"),
            _Flag("order", "the main loop alone: products, barriers and waits, and what stands between them"),
            _Flag("control", "stalls, barriers and yields of each instruction, from its encoding"),
            *OF_FILES,
            *OF_LINES,
            PAGE,
            _JSON,
        ),
    ),
)

_FORMS = {"counts": "opcodes by region, those of a KV block too", "dot": "DOT, for Graphviz", "svg": "SVG"}
_CFG = Command(
    "cfg", "Draws the control flow: blocks, loops, how often each runs.", ("cfg 16", "cfg 16 --counts"),
    (Option("iteration", f"{STEP}, or a library, fatbin or cubin", form="word", required=True), _CONFIG, _STEP_ARCH,
     Option("seq-len", "positions of the launch, which decide how often blocks run (default: 4096)", default="4096"),
     *(_Flag(name, f"print {what}") for name, what in _FORMS.items()), _JSON,
     Option("kernel", "of a file: part of its name, mangled or not, or of its configuration", default="")),
)  # fmt: skip

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
    "Check and time": (_CHECK, EMULATE, _NVCC, _BENCH, _SWEEP, _BUNDLE),
    "Look inside": (*_LOOK, _CFG, TRACE, EXPLAIN),
    "Results": _RESULTS,
    "This machine": (
        Command("doctor", "Says what this machine can do, and what it lacks.", ("doctor --json",), (_JSON,)),
        Command("help", "Shows these tasks.", ("help",)),
    ),
}
"""Heading to commands, in the order in which a person meets them."""

COMMANDS = {command.name: command for commands in STATIONS.values() for command in commands}
