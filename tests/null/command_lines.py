"""Odd command lines as data: words after ``invoke``, and a part of the one line that is said; nothing is compiled."""

from __future__ import annotations

NUMBER = "no such iteration: expected a number from 1 to 32, found "
WORDS = "not a description of an iteration: expected a number from 1 to 32, or a number with one change"
SPELLING = (
    "no such configuration: expected one of a100, h100, h200, rtx3090, rtx4090, "
    "what `invoke list` prints, or a short form"
)
SHORT_FORM = "not the short form of a kernel configuration"
ARCH = "unknown GPU architecture: expected one of sm_80, sm_86, sm_89, sm_90, sm_90a, found "
SHOW = ["show", "8", "--config"]
SWEEP = ["sweep", "--grid"]
LONG = "1" * 5000

CASES: list[tuple[list[str], str]] = [
    # iterations
    (["show", "0"], f"{NUMBER}0"),
    (["show", LONG], f"{NUMBER}1111111111"),
    (["show", ""], WORDS),
    (["show", "-1"], WORDS),
    (["show", "16 - swizle"], "did you mean 'swizzle'?"),
    (["check", "seven"], f"{NUMBER}'seven'"),
    (["check", "16 - swizzle"], "takes whole steps; `invoke emulate '16 - swizzle'` runs an ablation"),
    (["lock", "x", "--reason", "because"], f"{NUMBER}'x'"),
    (["build", "16", "--toolchain", "12.0"], "no toolchain of this CUDA version is pinned: expected one of 13.0"),
    (["emulate", "1", "--heads", "0"], "bad --heads: expected a whole number from 1 to 65535, found '0'"),
    (["emulate", "1", "--batch", "65536"], "bad --batch: expected a whole number from 1 to 65535, found '65536'"),
    (["emulate", "26", "--multiprocessors", "0"], "bad --multiprocessors: expected a whole number from 1 to "),
    (["emulate", "24", "--multiprocessors", "2"], "expected a kernel whose CTAs compute tile after tile"),
    (["emulate", "16", "--heads", "17"], "row stride of 2048 is compiled in: expected at most 16, found 17"),
    (["emulate", "1", "--seq-len", "100"], "expected a multiple of B_r = 64, found 100"),
    (["lock", "7"], "a lock needs a reason"),
    (["ptxas", "7", "8"], "ptxas takes no further argument: found '8'"),
    (["show", "7", "--config"], "--config needs a value"),
    (["build"], "'iteration'"),
    # configurations
    (
        [*SHOW, "A100"],
        f"{SPELLING}, found 'A100'; did you mean 'a100'?",
    ),
    ([*SHOW, "prog:b200"], SPELLING),
    ([*SHOW, "64,64,4 9_9_9"], "load size 9 of Q: must be 0 or 2"),
    ([*SHOW, "0,0,0 0_0_0"], "bad kernel configuration, B_r: expected 1 or more, found 0"),
    ([*SHOW, "96,64"], "no configuration with tile 96,64 in the tuning space of iteration 8"),
    ([*SHOW, f"(FP16, 128, {LONG}, 64, 4): async+load_0_0_0_tiles"], SHORT_FORM),
    ([*SHOW, "(FP32, 128, 64, 64, 4): async+load_0_0_0_tiles"], "bad kernel configuration, dtype"),
    ([*SHOW, "tune"], "'tune' names 47 configurations of iteration 8, and one is needed"),
    (["trace", "7", "--input", "zeros"], "no such input"),
    (["trace", "7", "--seq-len", "65536"], "too large to trace"),
    (["sass", "8", "--list"], "--list is for files: expected a library, cubin or PTX file, found 8"),
    (["cfg", "nowhere/a.so"], "nowhere/a.so: no such file"),
    (["show", "8", "--causal"], "iteration 8 has no kernel with a causal mask; --causal is for iterations 31 and 32"),
    (["sass", "30", "--causal", "--opcode", "LDS"], "iteration 30 has no kernel with a causal mask"),
    (["ptx", "8", "--causal", "--out", "own.ptx"], "iteration 8 has no kernel with a causal mask"),
    (["cfg", "16 - swizzle", "--causal"], "iteration 16 - swizzle has no kernel with a causal mask"),
    (["ptx", "own.ptx", "--causal"], "--causal is for iterations: found own.ptx; --kernel chooses in a file"),
    (["sass", "8", "--page", "x"], "bad --page: expected a file that ends in .html, found 'x'"),
    (["sass", "8", "--out", "own.cu"], "bad --out: expected a file that ends in .cubin, found 'own.cu'"),
    (["ptxas", "8", "--csv", "no-such.csv", "--json"], "--json does not go with --csv"),
    (["ptxas", "8", "--csv", "README.md"], "bad --csv: expected a file that ends in .csv, found 'README.md'"),
    (["sass", "8", "--line", "a:1", "--counts"], "--counts does not go with --line and --opcode"),
    (["sass", "a.cubin", "--opcode", "LDSM"], "a file alone has no CUDA lines to ask for"),
    (["ptxas", "7", "--configs", ""], "--configs needs a value"),
    # empty values, as of a shell variable that is not set
    (["verify", ""], "path needs a value: found ''"),
    (["ptx", "8", "--out", ""], "--out needs a value: found ''"),
    # options that would be ignored
    (["ptx", "8", "--out", "own.ptx", "--counts"], "--counts does not go with --out"),
    (["sass", "tests/data/tiny.sm_80.cubin", "--out", "own.cubin", "--json"], "--json does not go with --out"),
    (["sass", "tests/data/tiny.sm_80.cubin", "--config", "h200"], "--config is for iterations"),
    (["cfg", "tests/data/tiny.sm_80.cubin", "--config", "h200"], "--config is for iterations"),
    (["diff", "7", "8", "--page", "own.html", "--json"], "--json does not go with --page"),
    (["trace", "7", "--show", "S", "--json"], "--show does not go with --json"),
    # architectures, dtypes, shapes
    (["ptxas", "7", "--arch", ","], f"{ARCH}nothing; use sm_80"),
    (["check", "7", "--dtype", "FP16"], "no such dtype: expected fp16 or bf16, found 'FP16'"),
    (["check", "7", "--backend", "Emulator"], "no such backend: expected gpu or emulator, found 'Emulator'"),
    (
        ["bench", "7", "--method", "ncu,nope"],
        "no such method: expected nvbench or ncu or torch or warm or turns, found 'nope'",
    ),
    (["emulate", "1", "--seq-len", "0"], "bad --seq-len: expected a whole number from 1 to 2147483647, found '0'"),
    (["explain", "19", "--seq-len", "-64"], "bad --seq-len: expected a whole number from 1 to 2147483647, found '-64'"),
    (["verify", "x", "--rerun", "--cells=-3"], "bad --cells: expected a whole number from 1 to 2147483647, found '-3'"),
    (["emulate", "1", "--seq-len", LONG], "--seq-len needs a whole number"),
    (["emulate", "1", "--seq-len", "1073741824"], "the tensors are too large to emulate"),
    (["cfg", "8", "--seq-len", "96"], "seq_len does not fit the tiles: expected a multiple of B_r = 128, found 96"),
    (["cfg", "8", "--dot", "--json"], "expected one of --counts, --dot, --svg, --json, found dot and json"),
    (["emulate", "1", "--memory-budget", "0"], "not a memory budget"),
    # files
    (["nvcc", ""], "no file is named: expected a CUDA C++ file, found ''"),
    (["nvcc", "kernels/ptx/mma.cuh"], "mma.cuh: not a CUDA C++ file: expected"),
    (["emulate", "K.PTX", "--block", "32"], "`ptxemu K.PTX --grid"),
    (["emulate", "my own.cu"], "`ptxemu 'my own.cu' --grid"),
    (["emulate", "my own.so"], "`invoke ptx 'my own.so' --out own.ptx`"),
    (["emulate", "lib.so"], "`invoke ptx lib.so --out own.ptx`, then `ptxemu own.ptx"),
    (["ptx", "/dev/null"], "/dev/null: not a regular file"),
    (["verify", "nosuch", "--rerun"], "nosuch: no such result: expected a result file or a folder of them"),
    (["verify", "/dev/null"], "/dev/null: not a regular file: expected a result file or a folder of them"),
    (["sass", "nosuch.cubin"], "nosuch.cubin: no such file"),
    (["sass", "tests/data/tiny.ptx"], "tiny.ptx: no SASS of a kernel in the file; `invoke ptx FILE` reads its PTX"),
    (["sass", "tests/data/tiny.sm_80.cubin", "--kernel", "nosuch"], "no such kernel in the file: expected a part of"),
    (["sass", "tests/data/tiny.sm_80.cubin", "--arch", "sm_90"], "no code for this architecture: expected sm_80"),
    (["cfg", "tests/data/tiny.sm_80.cubin", "--arch", "sm_90"], "no code for this architecture: expected sm_80"),
    (["sass", "tests/data/tiny.cu"], "tiny.cu: no GPU code in the file: expected a wheel, library, object"),
    (["ptx", "tests/data/tiny.sm_80.cubin"], "no PTX in the file, nor in its cubins; ptxas keeps it"),
    (["explain", "24"], "explain follows one warp for all: expected kernels whose warps run alike"),
    (["trace", "20"], "trace follows one warp for all: expected kernels whose warps run alike"),
    (["explain", "7", "--gpu", "b200"], "no such GPU: expected a100, h100, h200, rtx3090, rtx4090, found 'b200'\n"),
    # sweeps
    (["sweep"], "sweep needs 'grid'"),
    ([*SWEEP, "smok"], "unknown grid: expected one of a100, "),
    ([*SWEEP, "smok"], "or a path that ends in .yaml, found 'smok'; did you mean 'smoke'?"),
    (["sweep", "--gird", "cpu"], "found --gird; did you mean '--grid'?"),
    (
        ["check", "7", "--backend", "gpu", "--backend", "emulator"],
        "--backend needs one value: found it again after 'gpu'; `flashladder check --help` says more",
    ),
    (["trace", "7", "--input", "identitty"], "found 'identitty'; did you mean 'identity'?"),
    (["bench", "7", "--references", "fa5"], "or flash-attn, found 'fa5'\n"),
    ([*SWEEP, "nosuch.yaml"], "nosuch.yaml: no such file of a grid"),
    ([*SWEEP, "cpu", "--gpus", "0"], "the grid runs on this machine's CPUs: expected no --gpus, found 0"),
    ([*SWEEP, "cpu", "--shard", "2/2"], "argument --shard: expected I/N with I from 0 to N - 1, found '2/2'"),
    ([*SWEEP, "cpu", "--out", "README.md"], "argument --out: expected a folder, found the file README.md"),
    ([*SWEEP, "cpu", "--out", "/proc/x"], "expected a folder, found /proc: no file can be made in this folder ("),
    (["check", "7", "--backend", "emulator", "--out", "/proc/c.json"], "/proc: no file can be made in this folder ("),
    ([*SWEEP, "cpu", "--out", " "], "argument --out: expected a folder, found ' '"),
    ([*SWEEP, "cpu", "--timeout", "0"], "argument --timeout: expected a number of seconds above 0, found '0'"),
    ([*SWEEP, "cpu", "--timeout", "inf"], "expected a number of seconds, found 'inf'"),
    # tasks and flags
    (["shwo"], "no such task: found 'shwo'; did you mean 'show'?"),
    (["--dry", "list"], "no such option, or none that does anything here: found '--dry'"),
    (["--help", "shwo"], "no such task: found 'shwo'; did you mean 'show'?"),
    (["--list", "nosuch"], "there are no groups of tasks"),
    (["show"], "show needs 'iteration'; `flashladder show --help` says more"),
    (["diff"], "diff needs 'before', 'after'"),
    (["show", "-h", "7"], "show takes no further argument: found '7'"),
    (["list", "7"], "list takes no further argument: found '7'"),
    (["list", "--jso"], "list has no such flag: expected --json, found --jso; did you mean '--json'?"),
    (["ptxas", "7", "lits"], "found 'lits'; did you mean 'list'?"),
    (["-D", "x", "list"], "--list-depth needs a whole number, found 'x'"),
]
