"""The commands that run or model kernels on this CPU with their options, and the words that other rows share.

Why: `flashladder.commands.rows` holds the other rows; a file of rows stays short enough to be read.
"""

from __future__ import annotations

from functools import partial

from flashladder.arguments import DEFAULT_CONFIG, ONE_CONFIG, Command, Option
from flashladder.ladder.config import DTYPES
from flashladder.names import INTERMEDIATES, PUBLISHED_GPU, TRACE_INPUTS

STEP = "iteration, or an ablation such as '16 - swizzle'"
AN_ITERATION, A_PTX_FILE = "an iteration", "a PTX file"  # whose options they are

Flag = partial(Option, form="flag")
Text = partial(Option, default="")
OfIteration, OfFile = partial(Text, group=AN_ITERATION), partial(Text, group=A_PTX_FILE)

A_STEP = Option("iteration", STEP, form="word", required=True)
JSON = Flag("json", "print JSON, for scripts")

EMULATE = Command(
    "emulate",
    "Runs an iteration's PTX, or one's own, on this CPU.",
    (
        "emulate 1 --counters",
        "emulate own.ptx --grid 4 --block 256 --arg x=float32:1024:randn --arg n=int32:5 --hazards",
    ),
    (
        Option("iteration", f"{STEP}, or a PTX file", form="word", required=True),
        OfIteration("seq-len", "positions (default: 256)"),
        OfIteration("batch", "samples (default: 1)"),
        OfIteration("heads", "heads (default: 1)"),
        OfIteration("dtype", "fp16 or bf16 (default: the configuration's)", choices=DTYPES),
        OfIteration("config", f"{ONE_CONFIG} (default: {DEFAULT_CONFIG})"),
        OfIteration("multiprocessors", "of the GPU: of kernels whose CTAs compute tile after tile (default: 132)"),
        OfFile("kernel", "of a PTX file: its entry (default: the only one)"),
        OfFile("grid", "blocks along x,y,z (default: 1)"),
        OfFile("block", "threads along x,y,z"),
        OfFile("cluster", "blocks of a cluster along x,y,z (default: as the kernel requires)"),
        OfFile("schedule", "together (default), reverse, or a seed: the order of warps that could go on"),
        OfFile("arg", "an argument, in order: [NAME=]float32:64x128:randn, int32:5, @in.npy", form="again"),
        OfFile("save", "an array after the launch: NAME=FILE.npy", form="again"),
        OfFile("shared", "dynamic shared memory of a block, such as 48KiB (default: 0)"),
        OfFile("target", "whose limits hold, such as sm_90 (default: the file's)"),
        Flag("counters", "Nsight Compute's counters, and the source lines with bank conflicts"),
        Flag("hazards", "look for races and missing waits"),
        Option("memory-budget", "registers and shared memory (default: 1GiB)", default="1GiB"),
        Option("seed", "of the inputs (default: 0)", default="0"),
        JSON,
    ),
    short_flags=False,  # -h is for help, not for heads
)

TRACE = Command(
    "trace",
    "Compares S, m, P, l, O of each KV block with PyTorch.",
    ("trace 7", "trace 16 --input range --show S"),
    (
        A_STEP,
        Text("seq-len", "positions (default: 256)"),
        Text("batch", "samples (default: 1)"),
        Text("heads", "heads (default: 1)"),
        Option("dtype", "fp16 or bf16 (default: the configuration's)", choices=DTYPES),
        Text("config", f"{ONE_CONFIG} (default: {DEFAULT_CONFIG})"),
        Option(
            "input",
            "normal (default), or to be read off: range (S is 1000 row + column), identity (O is V), ones (V)",
            choices=TRACE_INPUTS,
            default="normal",
        ),
        Option("show", f"print values of one of {', '.join(INTERMEDIATES)}", choices=INTERMEDIATES),
        Text("block", "of --show: the KV block (default: where it differs, else the first visited)"),
        Text("at", "of --show: ROW,COLUMN to begin with (default: where it differs, else 0,0)"),
        Option("seed", "of the inputs (default: 0)", default="0"),
        Flag("sanitize", "also run compute-sanitizer's four tools, on a GPU with the iteration's build"),
        JSON,
    ),
    short_flags=False,  # -h is for help, not for heads
)

EXPLAIN = Command(
    "explain",
    "Says what binds a kernel on a GPU, and predicts its speed.",
    ("explain 16 --gpu a100",),
    (
        A_STEP,
        Option("gpu", f"a file of configs/gpus, such as h200 (default: {PUBLISHED_GPU})", default=PUBLISHED_GPU),
        Option("config", f"{ONE_CONFIG} (default: the GPU's own)"),
        Option("seq-len", "positions (default: 4096)", default="4096"),
        JSON,
    ),
)
