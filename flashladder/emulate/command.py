"""``invoke emulate N``: an iteration's kernel on this CPU, with its errors, counters and races.

It replaces a test, Nsight Compute and compute-sanitizer on a machine without a GPU. For instance,
`invoke emulate 1 --counters` names the source lines whose bank conflicts iteration 2 removes.

Run:
    invoke emulate 1 --counters
    invoke emulate 16 --seq-len 512 --heads 2 --dtype bf16 --hazards --json
Exit code: 0 right and no hazards, 1 wrong numbers, hazards or a forbidden access, 2 it could not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
import math

import numpy as np
from tqdm import tqdm

from flashladder.arguments import integers, own_kernel, within
from flashladder.build.compile import ptx_for
from flashladder.cases.reference import UNIT_ROUNDOFF
from flashladder.columns import hanging
from flashladder.emulate.kernel import (
    ELEMENT,
    MULTIPROCESSORS,
    attention_fp64,
    bounds_of,
    forward,
    kernel_of,
    make_tensors,
    require_length,
)
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.files import dump_json, relative
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import D_HEAD, KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.ladder.selection import one_config
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.names import SEQ_LEN
from flashladder.problem import Mask, Problem
import ptxemu
from ptxemu import MEMORY_BUDGET, Array, parse_bytes

SCORES = 1 << 24  # elements of the fp64 reference's scores at a time: 128 MiB
LARGEST = 4 << 30  # bytes of Q, K, V and O together
AXIS = 65535  # most CTAs along y (heads) and z (batch) of a grid
SCHEMA_VERSION = 2
# Files whose lines say less than their callers or callees: one-instruction functions, and the composed file.
WRAPPERS = ("kernels/ptx/", "kernel.cu:")
SHORT = (4, 5)  # lengths of trial runs, in least common multiples of the tiles: beyond the loop's first and last rounds
DELAY = 0.5  # seconds before a bar shows
OUR_FAULT = ("syntax", "unsupported", "arguments")  # kinds of `EmulationError` that are no error of the kernel


@dataclass(frozen=True)
class Errors:
    """Errors of O against an fp64 reference, and the allowed ones."""

    max_error: float  # largest absolute difference; NaN if O is not finite
    max_allowed: float  # 2 u max|V| for unit roundoff u: P and O are rounded once each, and rows of P sum to 1
    rms_error: float  # root mean square of the difference, relative to that of the reference
    rms_allowed: float  # u

    @property
    def right(self) -> bool:
        """Whether both errors are allowed; NaN is not."""
        return self.max_error <= self.max_allowed and self.rms_error <= self.rms_allowed


@dataclass(frozen=True)
class Emulation:
    """One forward pass on the CPU, and its findings."""

    iteration: Iteration
    config: KernelConfig
    shape: Problem
    result: ptxemu.Result
    errors: Errors
    counters: ptxemu.Counters
    hazards: ptxemu.Hazards | None = None  # None: not looked for
    sharing: int = 1  # CTAs of a cluster, which compute one tile together

    @property
    def passed(self) -> bool:
        """Right numbers and no hazard found."""
        return self.errors.right and not (self.hazards and self.hazards.reports)

    @property
    def speed(self) -> float:
        """Lane-instructions per second; a warp instruction counts once for each lane that executes it."""
        return self.counters.lane_instructions / max(self.result.seconds, 1e-9)


def emulate(
    iteration: Iteration,
    config: KernelConfig,
    shape: Problem,
    *,
    hazards: bool = False,
    seed: int = 0,
    memory_budget: int = MEMORY_BUDGET,
    multiprocessors: int | None = None,
    progress: bool = False,
) -> Emulation:
    """Runs a kernel on N(0, 1) inputs and compares O with fp64.

    `config` decides the dtype. A kernel with a fixed row stride gets some heads of a wider tensor. `hazards` looks for
    races in a second run, so that this does not slow the timed run. `memory_budget`: bytes for registers and shared
    memory at a time. `multiprocessors`: CTAs of a persistent kernel; None: an H200's. `progress`: a bar on a terminal.

    Raises:
        FlashladderError: the kernel cannot take this shape, `multiprocessors` does not apply to it, or nothing here
            can compile it.
        EmulationError: the kernel does something it may not.
    """
    require_fits(iteration, config, shape)
    tensors, n_sms = make_tensors(iteration, config, shape, seed), multiprocessors or MULTIPROCESSORS
    bounds = bounds_of(shape)
    launch = iteration.family.launch(config, tensors, n_sms, bounds=bounds)
    if multiprocessors is not None and not launch.resident:
        expected = "a kernel whose CTAs compute tile after tile"
        raise FlashladderError("--multiprocessors", expected=expected, found=f"iteration {iteration.description}")
    counters, races = ptxemu.Counters(), ptxemu.Hazards() if hazards else None
    kernel = kernel_of(iteration, config)

    def run(observer: ptxemu.Counters | ptxemu.Hazards, what: str) -> ptxemu.Result:
        total = partial(expected_instructions, iteration, config, shape)
        with ticking(what, "instructions", total, shown=progress) as tick:
            return forward(
                iteration, config, tensors, kernel=kernel, observers=(observer,), memory_budget=memory_budget,
                progress=tick, multiprocessors=n_sms, bounds=bounds,
            )  # fmt: skip

    result = run(counters, f"emulate {iteration.description}")
    errors = distance(*tensors, UNIT_ROUNDOFF[config.dtype], shape, progress=progress)
    if races is not None:
        run(races, "look for races")
    return Emulation(iteration, config, shape, result, errors, counters, races, math.prod(launch.cluster))


def require_fits(iteration: Iteration, config: KernelConfig, shape: Problem) -> None:
    """Checks a shape; `FlashladderError`: too many heads, a length that the tiles do not divide, too large tensors."""
    row_stride = iteration.row_stride
    widest = row_stride // shape.d_head if row_stride else shape.n_heads
    if shape.n_heads > widest:
        what = f"too many heads for iteration {iteration.description}, whose row stride of {row_stride} is compiled in"
        raise FlashladderError(what, expected=f"at most {widest}", found=shape.n_heads)
    require_length(config, shape.seq_len)
    if refused := config.refuses(shape):
        what = f"this kernel of iteration {iteration.description} does not compute this: {refused}"
        hint = (
            "iterations from 29 on take other lengths and head counts, from 31 on --causal, from 33 on --lengths; "
            "a --config is for one mask, and for packed sequences or not"
        )
        raise FlashladderError(what, hint=hint)
    rows = 2 * shape.seq_len * widest + 2 * shape.kv_len * (widest if shape.is_square else shape.n_kv_heads)
    n_bytes = ELEMENT * shape.batch * rows * shape.d_head
    if n_bytes > LARGEST:
        expected = f"at most {LARGEST >> 30} GiB"
        raise FlashladderError("the tensors are too large to emulate", expected=expected, found=f"{n_bytes} bytes")


def distance(
    q: Array, k: Array, v: Array, out: Array, roundoff: float, shape: Problem, *, progress: bool = False
) -> Errors:
    """Compares O with an fp64 reference, in pieces of one head and some query rows (`SCORES`), with a progress bar."""
    group = shape.n_heads // shape.n_kv_heads
    largest = squares = reference = 0.0
    with ticking("compare with fp64", "rows", lambda: out[..., 0].size, shown=progress) as tick:
        for batch, (rows, keys), head in product(range(shape.batch), shape.sequences, range(shape.n_heads)):
            kv_head = head // group
            q_rows, o_rows = (one[batch : batch + 1, rows, head : head + 1] for one in (q, out))
            k_rows, v_rows = (one[batch : batch + 1, keys, kv_head : kv_head + 1] for one in (k, v))
            queries, n_rows = q_rows.shape[1], max(1, SCORES // max(k_rows.shape[1], 1))
            for start in range(0, queries, n_rows):
                piece = (slice(None), slice(start, start + n_rows))
                exact = attention_fp64(q_rows[piece], k_rows, v_rows, mask=shape.mask, first=start, queries=queries)
                error = o_rows[piece].astype(np.float64) - exact
                largest = float(np.maximum(largest, np.abs(error).max()))  # keeps NaN, unlike max()
                squares += float(np.square(error).sum())
                reference += float(np.square(exact).sum())
                tick(exact.shape[1])
    bound = 2 * roundoff * float(np.abs(v.astype(np.float64)).max(initial=0))
    relative_rms = float(np.sqrt(squares / reference)) if reference else float(np.sqrt(squares))
    return Errors(largest, bound, relative_rms, roundoff)


@dataclass(frozen=True)
class LaunchOptions:
    """The kernel and the shape: the options that `emulate` and `trace` share; None: not given."""

    iteration: str
    seq_len: int = SEQ_LEN
    batch: int = 1
    heads: int = 1
    dtype: str | None = None
    config: str | None = None

    @property
    def shape(self) -> Problem:
        """Of Q, K, V and O; raises `FlashladderError` for a size that no launch has."""
        batch, n_heads = within("batch", self.batch, most=AXIS), within("heads", self.heads, most=AXIS)
        return Problem(batch=batch, seq_len=within("seq-len", self.seq_len), n_heads=n_heads, d_head=D_HEAD)


@dataclass(frozen=True)
class Options(LaunchOptions):
    """The options of ``invoke emulate``; tasks.py explains them."""

    multiprocessors: str | None = None
    counters: bool = False
    hazards: bool = False
    memory_budget: str = "1GiB"
    seed: int = 0
    json: bool = False
    kv_len: int | None = None
    kv_heads: int | None = None
    causal: bool = False
    lengths: str | None = None
    kv_lengths: str | None = None

    @property
    def shape(self) -> Problem:
        """What the launch computes; raises `FlashladderError` for a size that no launch has."""
        square = super().shape
        keys = square.seq_len if self.kv_len is None else within("kv-len", self.kv_len)
        kv_heads = square.n_heads if self.kv_heads is None else within("kv-heads", self.kv_heads)
        if square.n_heads % kv_heads:
            raise FlashladderError("--kv-heads", expected=f"a divisor of --heads {square.n_heads}", found=kv_heads)
        mask: Mask = "causal" if self.causal else "none"
        if self.lengths is not None:
            return self.packing(self.lengths, square.n_heads, kv_heads, mask)
        if self.kv_lengths is not None:
            raise FlashladderError("--kv-lengths", expected="--lengths beside it", found="none")
        return Problem(**square.model_dump(), kv_len=keys, n_kv_heads=kv_heads, mask=mask)

    def packing(self, lengths: str, n_heads: int, n_kv_heads: int, mask: Mask) -> Problem:
        """Packed sequences."""
        others = {"batch": (self.batch, 1), "seq-len": (self.seq_len, SEQ_LEN), "kv-len": (self.kv_len, None)}
        if given := [f"--{name} {value}" for name, (value, usual) in others.items() if value != usual]:
            raise FlashladderError("--lengths", expected="no other lengths and no --batch", found=" and ".join(given))
        q_lens = integers("lengths", lengths)
        kv_lens = integers("kv-lengths", lengths if self.kv_lengths is None else self.kv_lengths)
        if len(q_lens) != len(kv_lens):
            raise FlashladderError("--kv-lengths", expected=f"as many as --lengths, {len(q_lens)}", found=len(kv_lens))
        for option, what, found in (("--lengths", "query", q_lens), ("--kv-lengths", "key", kv_lens)):
            if not sum(found):
                raise FlashladderError(option, expected=f"at least one {what} in all", found="none")
        sizes = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "d_head": D_HEAD}
        return Problem.packing(q_lens, kv_lens, **sizes, mask=mask)


def render(found: Emulation, *, counters: bool) -> str:
    """The screen, with `counters` or without, and with the hazards if there was a search for them."""
    config, shape, iteration, errors = found.config, found.shape, found.iteration, found.errors
    size = f"batch {shape.batch}, seq_len {shape.seq_len}, heads {shape.n_heads}, d_head {shape.d_head}"
    if shape.is_packed:
        size = str(shape)
    elif not shape.is_square:
        size = f"{size}; kv_len {shape.kv_len}, kv_heads {shape.n_kv_heads}, mask {shape.mask}"
    warps, shared, blocks = config.n_threads // 32, config.smem_bytes >> 10, found.result.blocks
    sharing = f", {found.sharing} to a tile" if found.sharing > 1 else ""
    ctas = f"{blocks} CTA{'s' if blocks > 1 else ''} of {warps} warps{sharing}, {shared} KiB of shared memory each"
    title = f"iteration {iteration.description}: {iteration.title}"
    head = (title, config.short_form(), f"{size}: {ctas}", relative(ptx_for(iteration, config).ptx))
    numbers = (
        f"{'right' if errors.right else 'WRONG'}: max error {errors.max_error:.2g} (allowed {errors.max_allowed:.2g}), "
        f"relative RMS error {errors.rms_error:.2g} (allowed {errors.rms_allowed:.2g}) against fp64"
    )
    slices = f", {found.result.slices} slices" if found.result.slices > 1 else ""
    lanes, millions = found.counters.lane_instructions, found.speed / 1e6
    speed = f"{millions:,.0f}" if millions >= 10 else f"{millions:.2g}"
    took = f"speed    {found.result.seconds:.2f} s{slices}: {lanes:,} lane-instructions, {speed} million a second"
    parts = ["\n".join(head), f"{hanging('numbers  ', numbers)}\n{took}"]
    if counters:
        parts.append(ptxemu.render_counters(found.counters, wrappers=WRAPPERS, folder="kernels/"))
    if found.hazards is not None:
        parts.append(ptxemu.render_hazards(found.hazards))
    return "\n\n".join(parts)


def as_json(found: Emulation, *, counters: bool) -> str:
    """The facts of the screen, with all places and hazards."""
    ptx, hazards = ptx_for(found.iteration, found.config).ptx, found.hazards
    facts = {
        "schema_version": SCHEMA_VERSION,
        "iteration": found.iteration.description,
        "title": found.iteration.title,
        "config": found.config.short_form(),
        "dtype": found.config.dtype,
        "shape": found.shape.model_dump(),
        "ptx": {"path": relative(ptx), "sha256": ptx_sha256(read_ptx(ptx))},
        "ctas": found.result.blocks,
        "slices": found.result.slices,
        "seconds": found.result.seconds,
        "lane_instructions": found.counters.lane_instructions,
        "lane_instructions_per_second": found.speed,
        "right": found.errors.right,
        "errors": {name: value if value == value else None for name, value in asdict(found.errors).items()},  # noqa: PLR0124 - JSON has no NaN
        "counters": found.counters.facts(WRAPPERS) if counters else None,
        "hazards": hazards and [hazard.fields() for hazard in hazards.reports],
        "hazards_dropped": hazards and hazards.dropped,
    }
    return dump_json(facts).rstrip()


def mask_of(iteration: Iteration, shape: Problem) -> Mask:
    """The mask of the kernel for a problem; one that the iteration does not know is an error, and so is packing."""
    known = iteration.family.masks(iteration.parts)
    if shape.is_packed and not iteration.family.packs(iteration.parts):
        what, hint = f"iteration {iteration.description} has no packed sequences", "from iteration 33 on there are some"
        raise FlashladderError(what, expected="--seq-len", found="--lengths", hint=hint)
    if shape.mask not in known:
        what, hint = f"iteration {iteration.description} has no causal mask", "from iteration 31 on there is one"
        raise FlashladderError(what, expected=f"the mask {' or '.join(known)}", found=shape.mask, hint=hint)
    return shape.mask


def expected_instructions(iteration: Iteration, config: KernelConfig, shape: Problem) -> int:
    """Warp instructions of a forward pass: so many a tile, and a block of a tile, as in two short runs on one head."""

    def work(queries: int, keys: int) -> tuple[int, int]:
        """Tiles of a head, and their blocks of keys."""
        ends = range(config.B_r, queries + config.B_r, config.B_r)
        seen = [min(end + keys - queries, keys) if shape.mask == "causal" else keys for end in ends]
        return len(ends), sum(max(-(-one // config.B_c), 1) for one in seen)

    def measured(seq_len: int) -> int:
        counts: list[int] = []
        one = Problem(batch=1, seq_len=seq_len, n_heads=1, d_head=config.d_head)
        if config.is_packed:
            one = Problem.packing([seq_len], n_heads=1, d_head=config.d_head)
        tensors = make_tensors(iteration, config, one)
        forward(iteration, config, tensors, progress=counts.append, bounds=bounds_of(one))
        return sum(counts)

    heads, lengths = shape.batch * shape.n_heads, [math.lcm(config.B_r, config.B_c) * multiple for multiple in SHORT]
    if shape.seq_len == shape.kv_len <= lengths[1] and not shape.is_packed:
        return heads * measured(shape.seq_len)
    known = [work(length, length) for length in lengths]
    each = np.linalg.solve(np.array(known, float), np.array([measured(length) for length in lengths], float))
    all_work = [work(rows.stop - rows.start, keys.stop - keys.start) for rows, keys in shape.sequences]
    return round(heads * float(np.sum(np.array(all_work) @ each)))


@contextmanager
def ticking(what: str, unit: str, total: Callable[[], int], *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal: yields the function that advances it. `total` runs only if there is a bar."""
    hidden = None if shown else True
    with tqdm(desc=what, disable=hidden, unit=f" {unit}", unit_scale=True, leave=False, delay=DELAY) as bar:
        if not bar.disable:
            bar.reset(total())  # its clock begins now

        def tick(count: int) -> None:
            bar.update(count)

        yield tick


@contextmanager
def judged(description: str, hint: str = "a smaller shape") -> Iterator[None]:
    """Turns a forbidden access of a kernel into a failed check, and a lack of memory into one line."""
    try:
        yield
    except ptxemu.EmulationError as error:
        if error.kind in OUR_FAULT:
            raise
        raise CheckFailed(f"iteration {description} may not do this: {error}") from error
    except MemoryError as error:
        raise FlashladderError("not enough memory", hint=hint) from error


def run(options: Options) -> int:
    """Runs and prints; exit code 1 when the numbers are wrong or a hazard was found.

    Raises:
        FlashladderError: bad options, or a kernel that cannot be read.
        CheckFailed: the kernel does something it may not.
    """
    if error := own_kernel(options.iteration):
        raise error
    iteration, shape = load_description(options.iteration), options.shape
    with judged(options.iteration, "a smaller shape, or a smaller --memory-budget"):
        found = emulate(
            iteration,
            one_config(
                iteration, options.config, options.dtype or "", mask_of(iteration, shape), packed=shape.is_packed
            ),
            shape,
            hazards=options.hazards,
            seed=within("seed", options.seed, least=0),
            memory_budget=parse_bytes(options.memory_budget),
            multiprocessors=within("multiprocessors", options.multiprocessors) if options.multiprocessors else None,
            progress=True,
        )
    print((as_json if options.json else render)(found, counters=options.counters))
    return 0 if found.passed else 1
