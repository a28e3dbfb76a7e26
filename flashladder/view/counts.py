"""The opcode table under ``invoke diff N M``: what the step changes in machine code, both sides at `configs`.

It is that of the first architecture of each side's family: of the Ampere ladder sm_80, as in the published listings.

Why: counts of two tiles say nothing about a step, so that both sides are counted at the configurations whose source is
shown. They come from the committed lock; what is not locked is compiled, once (the store keeps it). To run it:
``invoke diff 7 8``.
"""

from __future__ import annotations

from collections.abc import Mapping

from flashladder.columns import table
from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.results.schema import kernel_key

Counts = Mapping[str, int]
ORDERS = {
    "mma_same_a": "mma whose A is that of the one before:",
    "mma_before_use": "mma between a load and its first use, summed:",
}
"""Measures of `flashladder.machine_code.order` in words."""


def opcode_counts(iteration: Iteration, config: KernelConfig) -> Counts | None:
    """Opcode counts of a kernel, from the lock or else its compilation; None where neither is to be had.

    Raises:
        FlashladderError: the kernel does not compile, or the lock cannot be read.
    """
    counts = locked_counts(iteration, config)
    return compiled_counts(iteration, config) if counts is None and not missing_tools() else counts


def locked_counts(iteration: Iteration, config: KernelConfig) -> Counts | None:
    """Opcode counts of a kernel from the committed lock; None for what is not locked (ablations never are)."""
    from flashladder.lock.command import opcode_counts as locked

    return None if iteration.is_ablation else locked(iteration.number, config, iteration.shown_arch)


def compiled_counts(iteration: Iteration, config: KernelConfig) -> Counts:
    """Opcode counts of a kernel as it compiles now.

    Raises:
        FlashladderError: it does not compile.
    """
    from flashladder.build.compile import cubin_for
    from flashladder.machine_code.sass import opcode_counts as counted

    return counted(cubin_for(iteration, config, iteration.shown_arch).cubin)


def missing_tools() -> str:
    """What to do to be able to compile here; empty when nothing is missing."""
    from flashladder.toolchain.wheels import find_ninja, find_toolchain, host_compiler

    try:
        find_toolchain()
        host_compiler()
        find_ninja()
    except FlashladderError as error:
        return error.hint or str(error)
    return ""


def diff_counts(before: Iteration, after: Iteration, configs: tuple[KernelConfig, KernelConfig]) -> str:
    """The change of the opcode counts at `configs`, under a line that names both; or one line that says what to do.

    Raises:
        FlashladderError: as `opcode_counts`.
    """
    old, new = opcode_counts(before, configs[0]), opcode_counts(after, configs[1])
    if old is None or new is None:
        return "opcode counts: not locked at this configuration and no toolchain here to compile it: " + missing_tools()
    arches = " -> ".join(dict.fromkeys((before.shown_arch, after.shown_arch)))
    head = f"opcode counts ({arches}), {configs[0].short_form()} -> {configs[1].short_form()}"
    order = order_changes(before, after, configs) if old == new else ""
    return f"{head}\n{count_changes(old, new)}{order}"


def order_changes(before: Iteration, after: Iteration, configs: tuple[KernelConfig, KernelConfig]) -> str:
    """What two kernels of the same opcodes differ in: the order of their PTX, as committed; nothing where not."""
    from flashladder.lock.step_counts import COUNTS, read_counts

    if not COUNTS.is_file() or before.is_ablation or after.is_ablation:
        return ""
    kernels = read_counts().kernels
    pair = [
        kernels.get(kernel_key(one.number, config.short_form()))
        for one, config in zip((before, after), configs, strict=True)
    ]
    if pair[0] is None or pair[1] is None:
        return ""
    old, new = pair[0].ptx, pair[1].ptx
    changes = [
        f"{words} {old.get(name, 0)} -> {new.get(name, 0)}"
        for name, words in ORDERS.items()
        if old.get(name, 0) != new.get(name, 0)
    ]
    return f"\nthe order in PTX does: {'; '.join(changes)}" if changes else ""


def count_changes(before: Counts, after: Counts) -> str:
    """A table of the opcode classes whose static count differs, largest change first."""
    rows = []
    for name in sorted({*before, *after}, key=lambda n: (n != "total", -abs(after.get(n, 0) - before.get(n, 0)), n)):
        old, new = before.get(name, 0), after.get(name, 0)
        if old != new:
            rows.append((name, str(old), str(new), f"{100 * (new - old) / old:+.1f} %" if old else "new"))
    if not rows:
        return "no opcode class changes its count"
    return "\n".join(table(rows, None, right={1, 2, 3}))
