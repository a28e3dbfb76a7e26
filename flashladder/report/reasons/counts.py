"""Counts that a page of reasons may name: of machine code, PTX and counters, of a step beside its parent.

Why places: a step alone is compared at equal configuration (sm_80 to sm_90, ptx), a GPU runs its own configuration
(a100, rtx3090, h200: what the lock holds), and counters are of the A100's (emulator, ncu). Nothing to run here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from flashladder.emulate.agreement import counter_files
from flashladder.errors import FlashladderError
from flashladder.ladder.claim import COUNTERS, LOCK_ARCHES, Claim, Scope
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import Iteration, claim_configs, load_iteration
from flashladder.lock.code_claims import scope_counts
from flashladder.lock.command import locked_kernel
from flashladder.lock.schema import LockedKernel
from flashladder.lock.step_counts import read_counts
from flashladder.machine_code.opcodes import unknown
from flashladder.names import GPUS, PUBLISHED_GPU
from flashladder.report.data import Ladder
from flashladder.report.reasons.guarded import Change, figure
from flashladder.results.files import load_as
from flashladder.results.published import sass_counts
from flashladder.results.schema import CounterResult, kernel_key

SCOPES: Mapping[str, Scope] = {"kernel": "kernel", "loop": "main_loop"}
LISTINGS = {f"published {gpu}": gpu for gpu in ("a100", "rtx3090")}
COUNTED = ("emulator", "ncu")
MEASURES = ("registers", "spill_stores", "spill_loads", "dynamic_smem")  # of a locked kernel, beside its opcodes
Counts = Mapping[str, float]


@dataclass(frozen=True)
class Counted:
    """Of one step: `number` is the page's."""

    ladder: Ladder
    number: int

    def vocabulary(self) -> Mapping[str, Callable[..., str]]:
        """What a page may call."""
        return {"count": self.count, "falls": self.falls, "rises": self.rises, "stays": self.stays, "knob": self.knob,
                "ctas": self.ctas}  # fmt: skip

    def value(self, metric: str, where: str, scope: str, of: int) -> float:
        """A count, a sum of counts (``A+B``) or a quotient (``A/B``).

        Raises:
            FlashladderError: no such name or place, or nothing was counted there.
        """
        counts = self._counts(where, scope, of)
        for name in Claim(metric, "kernel", "equals").names:
            _known(name, where, counts)
        return Claim(metric, "kernel", "equals").measure(counts)

    def _counts(self, where: str, scope: str, of: int) -> Counts:
        if scope not in SCOPES:
            raise FlashladderError("no such scope", expected=", ".join(SCOPES), found=scope)
        if where in (*LOCK_ARCHES, "ptx"):
            return self._step(where, scope, of)
        if where in GPUS:
            return _locked_counts(locked(load_iteration(of), where), scope)
        if where in LISTINGS and scope == "kernel":
            return sass_counts()[of, LISTINGS[where]]
        if where in COUNTED:
            return self._counters(where, of)
        known = (*LOCK_ARCHES, "ptx", *GPUS, *LISTINGS, *COUNTED)
        raise FlashladderError("no such place to count in", expected=", ".join(known), found=where)

    def _step(self, where: str, scope: str, of: int) -> Counts:
        """At the configuration of the page's step, which `of` is or is the parent of."""
        step = load_iteration(self.number)
        own, before = claim_configs(step)
        if of not in (step.number, step.parent) or (of == step.parent and before is None):
            raise FlashladderError(f"the step alone compares iterations {step.parent} and {step.number}", found=of)
        config = own if of == step.number or before is None else before
        claim = Claim("total", "ptx" if where == "ptx" else SCOPES[scope], "equals")
        return scope_counts(claim, read_counts().of(of, config), where)

    def _counters(self, where: str, of: int) -> Counts:
        if where == "ncu":
            found = self._ncu[kernel_key(of, load_iteration(of).configs[PUBLISHED_GPU].short_form())]
            return {short: found[name] for short, name in COUNTERS.items() if name in found}
        if self.ladder.emulated is None:
            raise FlashladderError("no emulated counters", hint="python -m flashladder.emulate.take_reading --write")
        kernel = self.ladder.emulated.of(of)
        counters = {short: kernel.counters[name] for short, name in COUNTERS.items() if name in kernel.counters}
        ideal = {f"ideal_{one}_wavefronts": count for one, count in kernel.ideal_wavefronts.items()}
        return {**counters, **ideal, "ptx_instructions": kernel.warp_instructions}

    @cached_property
    def _ncu(self) -> Mapping[str, Mapping[str, int]]:
        """Readings of the one machine that has some, by kernel."""
        (path,) = counter_files()
        return load_as(path, CounterResult).counters

    def count(self, metric: str, where: str, scope: str = "loop", of: int = 0) -> str:
        """``44``: in one KV block's trip of the main loop, unless `scope` is ``kernel``."""
        return figure(self.value(metric, where, _scope(where, scope), of or self.number))

    def change(self, metric: str, where: str, scope: str) -> Change:
        """Of the page's step against its parent."""
        scope = _scope(where, scope)
        parent = load_iteration(self.number).parent
        if parent is None:
            raise FlashladderError(f"iteration {self.number} has no parent to be compared with")
        old, new = (self.value(metric, where, scope, of) for of in (parent, self.number))
        return Change(f"{metric} ({where})", old, new)

    def falls(self, metric: str, where: str, scope: str = "loop") -> str:
        """``149 to 44``: fewer than in the parent.

        Raises:
            Contradicted: they are not.
        """
        return self.change(metric, where, scope).require("falls").said()

    def rises(self, metric: str, where: str, scope: str = "loop") -> str:
        """As `falls`, of what grows."""
        return self.change(metric, where, scope).require("rises").said()

    def stays(self, metric: str, where: str, scope: str = "loop") -> str:
        """``72``: as many as in the parent."""
        return self.change(metric, where, scope).require("stays").said()

    def knob(self, name: str, gpu: str, of: int = 0) -> str:
        """``128``: a number of a GPU's configuration, by the field's name (B_r, B_c, n_warps)."""
        value = getattr(load_iteration(of or self.number).configs[gpu], name, None)
        if not isinstance(value, int) or isinstance(value, bool):
            raise FlashladderError("no such number of a configuration", found=name)
        return figure(value)

    def ctas(self, gpu: str, of: int = 0, configs: str | None = None) -> str:
        """CTAs that one of a GPU's SMs holds at once, in its own configuration or in that for another GPU."""
        iteration = load_iteration(of or self.number)
        config, kernel = iteration.configs[configs or gpu], locked(iteration, gpu, configs)
        fits = load_gpus()[gpu].occupancy(
            registers=kernel.registers, threads=config.n_threads, shared_bytes=kernel.dynamic_smem + kernel.static_smem
        )
        return figure(fits.ctas)


def _scope(where: str, scope: str) -> str:
    """Loops are told apart in our machine code alone; everything else is counted whole."""
    return scope if where in (*LOCK_ARCHES, *GPUS) else "kernel"


def locked(iteration: Iteration, gpu: str, configs: str | None = None) -> LockedKernel:
    """The locked kernel of a GPU's own configuration, or of that for another one.

    Raises:
        FlashladderError: it is not locked.
    """
    config = iteration.configs[configs or gpu]
    arch = iteration.family.targets.serving(load_gpus()[gpu].arch)
    if arch and (found := locked_kernel(iteration.number, config, arch)):
        return found
    raise FlashladderError(f"iteration {iteration.number} is not locked", expected=config.short_form(), found=gpu)


def _locked_counts(kernel: LockedKernel, scope: str) -> Counts:
    counts = kernel.main_loop if scope == "loop" else kernel.counts
    return {**counts, **{name: getattr(kernel, name) for name in MEASURES}}


def _known(name: str, where: str, counts: Counts) -> None:
    """Refuses a name that could only ever be counted zero times."""
    if name in counts:
        return
    language = "ptx" if where == "ptx" else "sass"
    wrong = (", ".join(counts), None) if where in COUNTED else unknown(name, language)
    if wrong:
        raise FlashladderError(f"nothing is called {name!r} in {where}", expected=wrong[0], hint=wrong[1])
