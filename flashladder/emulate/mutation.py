"""Mutation of the shipped kernels: delete one barrier, wait or commit at a time, and check that the emulator notices.

A race detector that never fires proves nothing. In every iteration this removes each barrier, wait, arrival, fence and
commit of the PTX alone (`ptxemu.mutants`); in iteration 2 it also replaces each XOR of the swizzle by a plain copy. A
mutant is caught if the program stops with an error, a race is reported, a number changes, or bank conflicts appear. A
mutant that passes runs again in another order of warps and elected lanes. ``configs/equivalent_mutants.yaml`` lists
those that change nothing the ISA guarantees, with the reason; they must stay uncaught.

Run: ``python -m flashladder.emulate.mutation [N ...]`` (0.1 s a mutant, from iteration 20 on 0.3 s); exit code 1 if a
verdict is not as listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, product
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic

from flashladder.arguments import NUMBERS, module_parser, whole
from flashladder.emulate.kernel import MULTIPROCESSORS, bounds_of, forward, kernel_of, launch_of, make_tensors
from flashladder.errors import CheckFailed, FlashladderError, run_main
from flashladder.files import relative
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
from flashladder.ladder.selection import one_config
from flashladder.located import first_problem, read_yaml
from flashladder.names import CONFLICTS
from flashladder.parallel import Bar
from flashladder.paths import ROOT
from flashladder.problem import Problem
import ptxemu
from ptxemu import Array, Instruction

EQUIVALENT = ROOT / "configs" / "equivalent_mutants.yaml"
SWIZZLE, SWIZZLED_ITERATION = "xor.b32", 2
BLOCKS = 4  # KV tiles: enough for the prologue, two rounds of the main loop and the last tile
ORDERS = ("together", "elect-last", "reverse")  # each runs if those before find nothing on the same shape

Planned = tuple[Problem, int]  # a launch: its shape, and the number of multiprocessors
Caught = Literal["error", "race", "numbers", "conflicts"]


class Equivalent(pydantic.BaseModel):
    """Mutants that change nothing the ISA guarantees: of the n-th `opcode`, from 1, in these iterations."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    iterations: tuple[int, ...]
    opcode: str
    nth: int
    reason: str


@dataclass(frozen=True)
class Mutant:
    """A kernel with one changed instruction: the `nth` of its opcode, from 1."""

    iteration: Iteration
    config: KernelConfig
    instruction: Instruction
    nth: int
    kernel: ptxemu.Kernel

    def __str__(self) -> str:
        source = f" ({self.instruction.source})" if self.instruction.source else ""
        return f"iteration {self.iteration.number:2d} line {self.instruction.line}: `{self.instruction}`{source}"


@dataclass(frozen=True)
class Verdict:
    """The result of a mutant."""

    mutant: Mutant
    caught: Caught | None
    evidence: str  # a line of the report
    reason: str | None  # why the mutant is listed as equivalent; None if it is not listed

    @property
    def as_listed(self) -> bool:
        """Caught and not listed, or listed and not caught."""
        return (self.caught is None) == (self.reason is not None)

    def __str__(self) -> str:
        state = f"caught as {self.caught}: {self.evidence}" if self.caught else f"equivalent: {self.reason}"
        return f"{self.mutant}: {state}" if self.as_listed else f"WRONG {self.mutant}: {self.evidence or 'not caught'}"


def read_equivalent(path: Path = EQUIVALENT) -> tuple[Equivalent, ...]:
    """The committed list, or that of another file; raises `FlashladderError` if it cannot be read."""
    try:
        return pydantic.TypeAdapter(tuple[Equivalent, ...]).validate_python(read_yaml(path) or ())
    except pydantic.ValidationError as error:
        raise FlashladderError(
            "cannot read the list of equivalent mutants", where=relative(path), found=first_problem(error)
        ) from error


def config_of(iteration: Iteration) -> KernelConfig:
    """The A100's configuration in fp16; with a mask and for packed sequences, if the iteration knows them."""
    family, parts = iteration.family, iteration.parts
    return one_config(iteration, mask=family.masks(parts)[-1], packed=family.packs(parts))


def mutants_of(iteration: Iteration) -> Iterator[Mutant]:
    """Every mutant of an iteration's kernel (`config_of`)."""
    config = config_of(iteration)
    original = kernel_of(iteration, config)
    for one in ptxemu.mutants(original):
        yield Mutant(iteration, config, one.instruction, one.nth, one.kernel)
    if iteration.number == SWIZZLED_ITERATION:
        body, nth = original.function.body, count(1)
        for place, item in enumerate(body):
            if isinstance(item, Instruction) and item.opcode == SWIZZLE:
                copy = replace(item, opcode="mov.b32", operands=item.operands[:2])  # of the first source
                changed = original.with_body((*body[:place], copy, *body[place + 1 :]))
                yield Mutant(iteration, config, item, next(nth), changed)


def judge(mutant: Mutant, original: Sequence[Seen], listed: Sequence[Equivalent]) -> Verdict:
    """Runs a mutant in all its launches and orders of warps until one catches it; `original`: the kernel's own runs."""
    which, number = (mutant.instruction.opcode, mutant.nth), mutant.iteration.number
    entries = (one for one in listed if number in one.iterations and (one.opcode, one.nth) == which)
    reason = next((entry.reason for entry in entries), None)
    launches = zip(launches_of(mutant.iteration, mutant.config), original, strict=True)
    for schedule, (planned, before) in product(ORDERS, launches):
        caught, evidence = _caught_in(mutant, planned, before, schedule)
        if caught:
            return Verdict(mutant, caught, evidence, reason)
    return Verdict(mutant, None, "", reason)


def _caught_in(mutant: Mutant, planned: Planned, before: Seen, schedule: str) -> tuple[Caught | None, str]:
    """How one launch catches a mutant, and the evidence; `before` is the same launch of the kernel itself."""
    try:
        counted = mutant.instruction.opcode == SWIZZLE  # no barrier or wait changes which banks are accessed
        seen = look(mutant.iteration, mutant.config, planned, mutant.kernel, schedule=schedule, counted=counted)
    except ptxemu.EmulationError as error:
        return "error", str(error)
    if seen.races:
        return "race", seen.races[0]
    differs = seen.out != before.out
    if schedule == "reverse" and alone(mutant.iteration, mutant.config, planned):
        differs = differs[:1, : mutant.config.B_r, :1]
    if differs.any():
        return "numbers", f"{int(differs.sum())} of {differs.size} elements of O differ"
    if seen.conflicts > before.conflicts:
        return "conflicts", f"bank conflicts rise from {before.conflicts} to {seen.conflicts}"
    return None, ""


def verify(numbers: Sequence[int], only: str | None = None) -> Iterator[Verdict]:
    """The verdict on every mutant of some iterations, or on the mutants of one opcode.

    Raises:
        CheckFailed: the unmodified kernel has a race.
        FlashladderError: none of the deleted instructions has this opcode.
    """
    listed, judged, others = read_equivalent(), 0, set[str]()
    for number in numbers:
        iteration = load_iteration(number)
        original, *more = (observe(iteration, config_of(iteration), schedule=one) for one in ORDERS)
        if races := [race for seen in (original, *more) for race in seen[-1].races]:  # a launch with a race is the last
            raise CheckFailed(f"iteration {number} as it ships is reported", found=races[0])
        for mutant in mutants_of(iteration):
            if f"{mutant.instruction.opcode}.".startswith(f"{only}." if only else ""):
                judged += 1
                yield judge(mutant, original, listed)
            else:
                others.add(mutant.instruction.opcode)
    if not judged:
        raise FlashladderError("no such opcode is deleted", expected=", ".join(sorted(others)), found=repr(only))


@dataclass(frozen=True)
class Seen:
    """What one launch showed."""

    out: Array  # bits of O
    conflicts: int
    races: tuple[str, ...]


class RaceFound(Exception):
    """Ends a launch at its first race."""


def launches_of(iteration: Iteration, config: KernelConfig) -> tuple[Planned, ...]:
    """The launches in which a kernel is observed, the quickest first: one head of `BLOCKS` tiles.

    A persistent kernel runs one CTA on three launches instead. Four tiles of one block: only Q's ring stops the
    producer. Three tiles of three blocks: the odd number makes tiles begin and end in both of two buffers. Four tiles
    of four blocks: from four on a maximum may be kept, so that no wait for O comes before the end. With a mask a CTA's
    last tile is a short one, so a tile of five blocks runs alone. Packed sequences
    also run with a CTA more than there are tiles. A kernel that splits tiles also runs seven tiles of
    seven blocks, each on a cluster, whose parts have different lengths.
    """

    def heads(count: int, length: int, keys: int | None = None) -> Problem:
        sizes: dict[str, Any] = {"n_heads": count, "d_head": config.d_head, "mask": config.mask}
        if config.is_packed:
            return Problem.packing([length], [keys or length], **sizes)
        return Problem(batch=1, seq_len=length, kv_len=keys or length, **sizes)

    usual = heads(1, max(config.B_r, BLOCKS * config.B_c))
    if not launch_of(iteration, config, usual, 1).resident:
        return ((usual, 1),)
    on_one = [heads(4, config.B_c), heads(1, 3 * config.B_c), heads(1, 4 * config.B_c)]
    if config.mask != "none":
        on_one.append(heads(1, config.B_r, (BLOCKS + 1) * config.B_c))
    more = [(heads(1, config.B_c), 2)] if config.is_packed else []  # one CTA has no tile
    shared = heads(1, (BLOCKS + 3) * config.B_c)
    is_split = prod(launch_of(iteration, config, shared).cluster) > 1
    return (*((one, 1) for one in on_one), *more, *([(shared, MULTIPROCESSORS)] if is_split else []))


def alone(iteration: Iteration, config: KernelConfig, planned: Planned) -> bool:
    """Whether every CTA or cluster of this launch computes one tile, so that the first stands for all."""
    launch = launch_of(iteration, config, *planned)
    return not launch.resident or prod(launch.cluster) > 1


def scale_rows(q: Array, k: Array) -> None:
    """Scales rows of Q and K unevenly, in place: later blocks exceed the maxima of some warps but not of others."""
    q *= np.where(np.arange(q.shape[1]) // 16 % 2, 1.0, 0.25).astype(q.dtype)[:, None, None]
    rows = np.arange(k.shape[1])
    k *= (1 + 3 * np.random.default_rng(5).random(rows.size)).astype(k.dtype)[:, None, None]


def look(
    iteration: Iteration,
    config: KernelConfig,
    planned: Planned,
    kernel: ptxemu.Kernel | None = None,
    *,
    schedule: str | int = "together",
    counted: bool = True,
) -> Seen:
    """One launch with the race detector, and counters if `counted`; that of another `kernel` ends at its first race.

    In the reverse order, which runs one warp at a time, only the first CTA or cluster runs if it is `alone`.
    """
    shape, multiprocessors = planned
    first = 1 if schedule == "reverse" and alone(iteration, config, planned) else None
    tensors = make_tensors(iteration, config, shape, seed=1)
    scale_rows(*tensors[:2])
    counters, hazards = ptxemu.Counters(), ptxemu.Hazards()

    def stop(_: int) -> None:
        if hazards.reports:
            raise RaceFound

    with suppress(RaceFound):
        forward(
            iteration, config, tensors, kernel=kernel, observers=(counters, hazards) if counted else (hazards,),
            bounds=bounds_of(shape), multiprocessors=multiprocessors, first=first, schedule=schedule,
            progress=None if kernel is None else stop,
        )  # fmt: skip
    conflicts = sum(int(counters.as_dict()[CONFLICTS.format(kind)]) for kind in ("ld", "st"))
    return Seen(tensors[3].view(np.uint16), conflicts, tuple(report.render() for report in hazards.reports))


def observe(iteration: Iteration, config: KernelConfig, *, schedule: str | int = "together") -> tuple[Seen, ...]:
    """Runs an iteration's kernel in all `launches_of`, up to the first one with a race."""
    seen = list[Seen]()
    for planned in launches_of(iteration, config):
        if not (seen and seen[-1].races):
            seen.append(look(iteration, config, planned, schedule=schedule))
    return tuple(seen)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a line per mutant and a count."""
    description = "Deletes each barrier, wait and commit of the kernels in turn; every mutant must be caught."
    parser = module_parser("emulate.mutation", description, "7 8 --only bar.sync")
    parser.add_argument("--only", metavar="OPCODE", help="an opcode, or how it begins: bar.sync, mbarrier.arrive")
    parser.add_argument("numbers", nargs="*", type=whole, metavar="N", help=f"{NUMBERS} (default: all)")
    options = parser.parse_args(argv)
    numbers = options.numbers or [iteration.number for iteration in load_all()]
    n = caught = wrong = 0
    for verdict in Bar(verify(numbers, options.only), desc="mutants", unit="mutant"):
        print(verdict)
        n += 1
        caught += verdict.caught is not None
        wrong += not verdict.as_listed
    print(f"{n} mutants: {caught} caught, {n - caught} equivalent; {wrong} not as listed")
    if wrong:
        raise CheckFailed(f"{wrong} of {n} mutants are not as listed in {relative(EQUIVALENT)}")


if __name__ == "__main__":
    run_main(main)
