"""Compares locked machine code with what was just compiled, and says in words what moved and why.

Why: "the digest differs" helps nobody. The explanation goes from the kernel (which iteration, configuration and
architecture) over what moved in it (digest, registers, spills, opcode classes) to the cause: a part of a kernel that
was edited, another toolchain, other flags, or another description.

Everything here is pure: two `Lock` values in, text out (`flashladder.lock.command` compiles and reads files).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from flashladder.lock.schema import Lock, LockedKernel, LockFile

RULE = "a part named in a lock is not edited, only succeeded by a new file"
HOST_COMPILER = "host compiler"
HOST_ADVICE = "only its headers reach a kernel, so look for another cause first"
TOOLCHAIN_ADVICE = (
    "another toolchain makes other machine code; install the locked one (configs/toolchain.yaml), "
    "or re-lock every iteration with that reason"
)
SHOWN = 6  # kernels explained in full; the rest is only counted
NUMBERS = ("registers", "spill_stores", "spill_loads", "stack", "static_smem", "dynamic_smem")


@dataclass(frozen=True)
class Difference:
    """One kernel that is not as it was locked.

    Attributes:
        kind: ``changed``, ``missing`` (compiled, but not locked), ``surplus`` (locked, but no longer selected) or
            ``record`` (the machine code is the locked one, but not made as the lock says).
        config: the configuration's short form; empty when the whole iteration is missing or surplus.
        moved: what moved, one line each (empty unless `changed`).
        causes: why, one line each: edited files and who locks them, toolchain, flags.
    """

    arch: str
    iteration: int
    config: str
    kind: str
    moved: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()

    def headline(self) -> str:
        """Which kernel, and in what way it differs."""
        name = f"iteration {self.iteration}, {self.arch}" + (f", {self.config}" if self.config else "")
        verdict = {
            "changed": "is not the locked kernel",
            "missing": f"has no lock; to lock it: invoke lock {self.iteration} --reason '...'",
            "record": f"was not made as its lock says; to correct it: invoke lock {self.iteration} --reason '...'",
            "surplus": f"is locked but no longer built; to drop it: invoke lock {self.iteration} --reason '...'",
        }
        return f"{name}: {verdict[self.kind]}"

    def __str__(self) -> str:
        """The whole explanation of this kernel, several lines."""
        return "\n".join([self.headline(), *(f"  {line}" for line in (*self.moved, *self.causes))])


def compare(locked: LockFile, current: Mapping[int, Lock], *, everything: bool) -> list[Difference]:
    """What differs between a lock file and what was compiled now, in order of iteration and configuration.

    Args:
        locked: the committed lock of one architecture.
        current: the same facts of freshly compiled kernels.
        everything: `current` is the whole ladder, so that iterations it lacks are surplus.
    """
    found = []
    for number in sorted(set(current) | (set(locked.iterations) if everything else set())):
        old, new = locked.iterations.get(number), current.get(number)
        if old is None or new is None:
            found.append(Difference(locked.arch, number, "", "surplus" if new is None else "missing"))
        else:
            found += _compare_iteration(locked, number, old, new)
    return found


def _compare_iteration(locked: LockFile, number: int, old: Lock, new: Lock) -> list[Difference]:
    found = []
    for config in sorted(set(old.kernels) | set(new.kernels)):
        before, after = old.kernels.get(config), new.kernels.get(config)
        if before is None or after is None:
            kind = "surplus" if after is None else "missing"
            found.append(Difference(locked.arch, number, config, kind))
        elif moved := what_moved(before, after):
            causes = _causes(locked, number, old, new)
            found.append(Difference(locked.arch, number, config, "changed", tuple(moved), tuple(causes)))
    if not found and (wrong := [line for line in toolchain_causes(old, new) if HOST_COMPILER not in line]):
        found.append(Difference(locked.arch, number, "", "record", tuple(wrong)))
    return found


def what_moved(old: LockedKernel, new: LockedKernel) -> list[str]:
    """Old and new values of everything that differs between two kernels, one line each."""
    lines = []
    if old.text_sha256 != new.text_sha256:
        lines.append(f"machine code (.text): {old.text_sha256[:12]} -> {new.text_sha256[:12]}")
    if old.ptx_sha256 != new.ptx_sha256:
        same = "" if old.text_sha256 != new.text_sha256 else " (same machine code, but the PTX ships too)"
        lines.append(f"PTX: {old.ptx_sha256[:12]} -> {new.ptx_sha256[:12]}{same}")
    for name in NUMBERS:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            lines.append(f"{name.replace('_', ' ')}: {before} -> {after} ({after - before:+d})")
    for title, before, after in (("whole kernel", old.counts, new.counts), ("main loop", old.main_loop, new.main_loop)):
        if delta := count_delta(before, after):
            lines.append(f"opcode counts, {title}: {delta}")
    if lines and old.counts == new.counts and old.text_sha256 != new.text_sha256:
        lines.append("opcode counts: equal, so order, registers or constants moved")
    return lines


def count_delta(old: Mapping[str, int], new: Mapping[str, int]) -> str:
    """The classes whose counts differ, the largest change first: ``FMUL 132 -> 194 (+62), ...``; empty if none."""
    pairs = {name: (old.get(name, 0), new.get(name, 0)) for name in set(old) | set(new)}
    moved = [(name, a, b) for name, (a, b) in pairs.items() if a != b]
    moved.sort(key=lambda row: (row[0] != "total", -abs(row[2] - row[1]), row[0]))
    return ", ".join(f"{name} {a} -> {b} ({b - a:+d})" for name, a, b in moved)


def _causes(locked: LockFile, number: int, old: Lock, new: Lock) -> list[str]:
    causes = toolchain_causes(old, new)
    edited = changed_files(old, new)
    holders = {path: [n for n, lock in locked.iterations.items() if path in lock.files] for path in edited}
    for path in edited:
        if holders[path]:
            causes.append(f"part {path} is locked by {_spans(holders[path])}: {RULE}")
        else:
            causes.append(f"{path} is new here: the iteration's description or an edited file includes it")
    if edited:
        causes.append(f"if this is a true bug fix run: invoke lock {number} --reason '...'")
    if not causes:
        causes.append(
            "no included file, flag or tool changed: the iteration's description, its configuration or "
            "its family (flashladder/ladder/families/) composes another translation unit"
        )
    return causes


def toolchain_causes(old: Lock, new: Lock) -> list[str]:
    """Versions and flags that are not those of the lock, each named as a cause."""
    causes = []
    for name in sorted(set(old.toolchain) | set(new.toolchain)):
        before, after = old.toolchain.get(name, "absent"), new.toolchain.get(name, "absent")
        if before != after:
            advice = HOST_ADVICE if name == HOST_COMPILER else TOOLCHAIN_ADVICE
            causes.append(f"toolchain: {name} {before} -> {after}: {advice}")
    for tool in sorted(set(old.flags) | set(new.flags)):
        flags, now = old.flags.get(tool, ()), new.flags.get(tool, ())
        if flags != now:
            causes.append(f"flags of {tool}: {' '.join(flags) or 'none'} -> {' '.join(now) or 'none'}")
    return causes


def changed_files(old: Lock, new: Lock) -> list[str]:
    """Included files whose bytes differ, that are included now only, or that no longer are."""
    return sorted(path for path in set(old.files) | set(new.files) if old.files.get(path) != new.files.get(path))


def harmless_edits(locked: LockFile, current: Mapping[int, Lock], differences: Iterable[Difference]) -> list[str]:
    """Files edited since the lock in iterations whose kernels are all as locked: comments and layout of text."""
    broken = {difference.iteration for difference in differences}
    files = {
        path
        for number, lock in current.items()
        if number in locked.iterations and number not in broken
        for path in changed_files(locked.iterations[number], lock)
    }
    return sorted(files)


def explain(differences: Sequence[Difference]) -> str:
    """The explanation for a terminal: the first kernels in full, the count of the others, each cause once."""
    lines: list[str] = []
    for difference in differences[:SHOWN]:
        lines += [difference.headline(), *(f"  {line}" for line in difference.moved)]
    if len(differences) > SHOWN:
        rest = differences[SHOWN:]
        lines.append(f"... and {len(rest)} more, of {_spans(sorted({d.iteration for d in rest}))}")
    causes = dict.fromkeys(cause for difference in differences for cause in difference.causes)
    if causes:
        lines += ["why:", *(f"  {cause}" for cause in causes)]
    return "\n".join(lines)


def _spans(numbers: Sequence[int]) -> str:
    """``iteration 6``, ``iterations 6..9``, ``iterations 1, 3..5``."""
    runs = [
        [number for _, number in group]
        for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ]
    text = ", ".join(f"{run[0]}..{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"iteration{'s' if len(numbers) > 1 else ''} {text}"
