"""The commands that run or model kernels on this CPU with their options, and the words that other rows share.

Why: `flashladder.commands.rows` holds the other rows; a file of rows stays short enough to be read.
"""

from __future__ import annotations

from functools import partial
import shlex

from flashladder.arguments import DEFAULT_CONFIG, ONE_CONFIG, Command, Option
from flashladder.errors import FlashladderError
from flashladder.ladder.config import DTYPES
from flashladder.names import INTERMEDIATES, PUBLISHED_GPU, TRACE_INPUTS

STEP = "iteration, or an ablation such as '16 - swizzle'"

Flag = partial(Option, form="flag")
Text = partial(Option, default="")

A_STEP = Option("iteration", STEP, form="word", required=True)
JSON = Flag("json", "print JSON, for scripts")

EMULATE = Command(
    "emulate",
    "Runs an iteration's PTX on this CPU (`ptxemu`: your own).",
    ("emulate 1 --counters", "emulate 16 --seq-len 512 --heads 2 --dtype bf16 --hazards"),
    (
        A_STEP,
        Text("seq-len", "positions (default: 256)"),
        Text("batch", "samples (default: 1)"),
        Text("heads", "heads (default: 1)"),
        Text("dtype", "fp16 or bf16 (default: the configuration's)", choices=DTYPES),
        Text("config", f"{ONE_CONFIG} (default: {DEFAULT_CONFIG})"),
        Text("multiprocessors", "of the GPU: of kernels whose CTAs compute tile after tile (default: 132)"),
        Flag("counters", "Nsight Compute's counters, and the source lines with bank conflicts"),
        Flag("hazards", "look for races and missing waits"),
        Option("memory-budget", "registers and shared memory (default: 1GiB)", default="1GiB"),
        Option("seed", "of the inputs (default: 0)", default="0"),
        JSON,
    ),
    short_flags=False,  # -h is for help, not for heads
)


def own_kernel(word: str) -> FlashladderError | None:
    """The error for a file where `emulate` takes an iteration; None for other words."""
    run = "--grid 4 --block 256 --arg x=float32:1024:randn --hazards`"
    if word.lower().endswith((".ptx", ".cu")):
        hint = f"your own kernel: `ptxemu {shlex.quote(word)} {run}"
    elif word.lower().endswith((".cubin", ".fatbin", ".so")):
        hint = f"your own kernel: `invoke ptx {shlex.quote(word)} --out own.ptx`, then `ptxemu own.ptx {run}"
    else:
        return None
    return FlashladderError("emulate runs iterations", expected="an iteration, such as 7", found=word, hint=hint)


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
