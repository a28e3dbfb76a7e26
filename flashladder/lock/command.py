"""The machine-code lock: compiles, compares with `results/locks/sm_XX.json`, explains, and re-locks with a reason.

An edit of a part that eight iterations share would make eight published numbers false. The lock turns such an edit into
an error that says what changed and which file caused it. Comments, file times and the checkout's path have no effect.

Run:
    python -m flashladder.lock verify [--arch sm_80] [--iterations 6 7]
    python -m flashladder.lock write --reason "..." [--arch sm_80] [--iterations 6 7]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flashladder.arguments import module_parser, whole
from flashladder.errors import Checked, CheckFailed, FlashladderError, require_checkout
from flashladder.files import read_text, relative, require_file_or_nothing, write_atomic
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
from flashladder.ladder.selection import select_configs
from flashladder.lock import step_counts
from flashladder.lock.schema import LOCKS, Lock, LockedKernel, LockFile, find_locked, read_lock, write_lock
from flashladder.lock.step_counts import MachineCode, by_class, recount
from flashladder.machine_code.cubin import read_cubin
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.paths import KERNELS, ROOT

if TYPE_CHECKING:
    from flashladder.build.store import CubinEntry

    Compiled = tuple[KernelConfig, CubinEntry, MachineCode]

Name = TypeVar("Name", str, int)
Value = TypeVar("Value")

RULE = "a part named in a lock is not edited, only succeeded by a new file"
HOST_COMPILER = "host compiler"
HOST_ADVICE = "only its headers reach a kernel, so look for another cause first"
TOOLCHAIN_ADVICE = (
    "another toolchain makes other machine code; install the locked one (configs/toolchain.yaml), "
    "or re-lock every iteration with that reason"
)
UNNAMED_CAUSE = (
    "no included file, flag or tool changed: the iteration's description, its configuration or "
    "its family (flashladder/ladder/families/) composes another translation unit"
)
SHOWN = 6  # kernels explained in full; the rest is only counted
KEY = "prog"  # the selection key whose configurations are locked
CHANGELOG = ROOT / "CHANGELOG.md"
TITLES = {
    "text_sha256": "machine code (.text)",
    "ptx_sha256": "PTX",
    "counts": "opcode counts, whole kernel",
    "main_loop": "opcode counts, main loop",
}
KINDS = {
    "changed": "is not the locked kernel",
    "missing": "has no lock; to lock it: invoke lock {} --reason '...'",
    "record": "was not made as its lock says; to correct it: invoke lock {} --reason '...'",
    "surplus": "is locked but no longer built; to drop it: invoke lock {} --reason '...'",
}


@dataclass(frozen=True)
class Difference:
    """One kernel that differs from its lock; `config` is empty where the difference concerns the whole iteration.

    `kind` is ``changed``, ``missing`` (compiled, but not locked), ``surplus`` (locked, but no longer selected) or
    ``record`` (the locked machine code, made with another toolchain or other flags). `moved` says what changed.
    `causes` says why: edited files and the iterations that lock them, toolchain, flags.
    """

    arch: str
    iteration: int
    config: str
    kind: str
    moved: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()

    def headline(self) -> str:
        """Which kernel, and in what way it differs."""
        name = ", ".join(filter(None, (f"iteration {self.iteration}", self.arch, self.config)))
        return f"{name}: {KINDS[self.kind].format(self.iteration)}"


def compare(locked: LockFile, current: Mapping[int, Lock], *, everything: bool) -> list[Difference]:
    """The differences between a lock file and the kernels compiled now, in order of iteration and configuration.

    With `everything`, `current` is the whole ladder: locked iterations that it lacks are surplus.
    """
    before = {number: lock for number, lock in locked.iterations.items() if everything or number in current}
    found = []
    for number, old, new in _changes(before, current):
        differs = partial(Difference, locked.arch, number)
        if old is None or new is None:
            found.append(differs("", "surplus" if new is None else "missing"))
            continue
        kernels = _changes(old.kernels, new.kernels)
        for config, was, now in kernels:
            if was is None or now is None:
                found.append(differs(config, "surplus" if now is None else "missing"))
            else:
                moved, causes = what_moved(was, now), _causes(locked, number, old, new)
                found.append(differs(config, "changed", tuple(moved), tuple(causes)))
        if not kernels and (wrong := [line for line in _toolchain_causes(old, new) if HOST_COMPILER not in line]):
            found.append(differs("", "record", tuple(wrong)))
    return found


def _changes(old: Mapping[Name, Value], new: Mapping[Name, Value]) -> list[tuple[Name, Value | None, Value | None]]:
    """Each entry that differs, in order of its name, with its old and new value; None where it is absent."""
    names = sorted(old.keys() | new.keys())
    return [(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def what_moved(old: LockedKernel, new: LockedKernel) -> list[str]:
    """Old and new values of everything that differs between two kernels, one line each."""
    lines = []
    for name in LockedKernel.model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if isinstance(before, dict):
            delta = _count_delta(before, after)
        elif isinstance(before, str):
            delta = f"{before[:12]} -> {after[:12]}"
        else:
            delta = f"{before} -> {after} ({after - before:+d})"
        lines.append(f"{TITLES.get(name, name.replace('_', ' '))}: {delta}")
    if old.text_sha256 != new.text_sha256 and old.counts == new.counts:
        lines.append("opcode counts: equal, so order, registers or constants moved")
    return lines


def _count_delta(old: Mapping[str, int], new: Mapping[str, int]) -> str:
    """The classes whose counts differ, the largest change first: ``FMUL 132 -> 194 (+62), ...``."""
    moved = [(name, before or 0, after or 0) for name, before, after in _changes(old, new)]
    moved.sort(key=lambda row: (row[0] != "total", -abs(row[2] - row[1]), row[0]))
    return ", ".join(f"{name} {before} -> {after} ({after - before:+d})" for name, before, after in moved)


def _causes(locked: LockFile, number: int, old: Lock, new: Lock) -> list[str]:
    causes = _toolchain_causes(old, new)
    if edited := _changes(old.files, new.files):
        for path, _, _ in edited:
            if holders := [n for n, lock in locked.iterations.items() if path in lock.files]:
                causes.append(f"part {path} is locked by {_named(holders)}: {RULE}")
            else:
                causes.append(f"{path} is new here: the iteration's description or an edited file includes it")
        causes.append(f"if this is a true bug fix run: invoke lock {number} --reason '...'")
    return causes or [UNNAMED_CAUSE]


def _toolchain_causes(old: Lock, new: Lock) -> list[str]:
    causes = []
    for name, before, after in _changes(old.toolchain, new.toolchain):
        advice = HOST_ADVICE if name == HOST_COMPILER else TOOLCHAIN_ADVICE
        causes.append(f"toolchain: {name} {before or 'absent'} -> {after or 'absent'}: {advice}")
    for tool, *flags in _changes(old.flags, new.flags):
        before, after = (" ".join(words or ()) or "none" for words in flags)
        causes.append(f"flags of {tool}: {before} -> {after}")
    return causes


def harmless_edits(locked: LockFile, current: Mapping[int, Lock], differences: Iterable[Difference]) -> list[str]:
    """Files edited since the lock in iterations whose kernels all match it: only comments or formatting changed."""
    whole = current.keys() & locked.iterations.keys() - {difference.iteration for difference in differences}
    return sorted({path for n in whole for path, *_ in _changes(locked.iterations[n].files, current[n].files)})


def explain(differences: Sequence[Difference]) -> str:
    """The explanation for a terminal: the first kernels in full, the number of the others, each cause once."""
    lines: list[str] = []
    for difference in differences[:SHOWN]:
        lines += [difference.headline(), *(f"  {line}" for line in difference.moved)]
    if rest := differences[SHOWN:]:
        lines.append(f"... and {len(rest)} more, of {_named({one.iteration for one in rest})}")
    if causes := dict.fromkeys(cause for difference in differences for cause in difference.causes):
        lines += ["why:", *(f"  {cause}" for cause in causes)]
    return "\n".join(lines)


def _named(numbers: Collection[int]) -> str:
    return f"iteration{'s' if len(numbers) > 1 else ''} {', '.join(map(str, sorted(numbers)))}"


def locked_kernel(number: int, config: KernelConfig, arch: str) -> LockedKernel | None:
    """Everything that the committed lock says about one kernel; None when it is not locked."""
    return find_locked(read_lock(arch), number, config.short_form())


def verify(arch: str, iterations: Sequence[int] | None = None, *, folder: Path = LOCKS) -> list[Difference]:
    """Compiles the kernels in the lock of `arch` (cached in the store) and returns every kernel that differs.

    It recomputes every number of the lock from the machine code, opcode counts included. `iterations` None means the
    whole ladder, and then locked iterations that no longer exist count too.
    """
    locked = read_lock(arch, folder)
    return compare(locked, snapshot(arch, iterations), everything=iterations is None)


def check(
    arches: Sequence[str] = LOCK_ARCHES, iterations: Sequence[int] | None = None, *, kernels: Path = KERNELS
) -> Checked:
    """Whether the machine code on `arches` is the locked one; explains differences and notes harmless edits."""
    found, lines, notes, n_kernels = list[Difference](), list[str](), list[str](), 0
    for arch in arches:
        locked, current = read_lock(arch), snapshot(arch, iterations, kernels=kernels)
        differences = compare(locked, current, everything=iterations is None)
        found += differences
        if harmless := harmless_edits(locked, current, differences):
            notes.append(f"{arch}: edited since the lock without effect on machine code: {', '.join(harmless)}")
            lines.append(notes[-1])
        n = sum(len(lock.kernels) for lock in current.values())
        n_kernels += n
        if not differences:
            whole = f"the machine code is the locked one, {n} kernels counted anew"
            lines.append(f"{arch}: {whole if n else 'none of these iterations is made for it'}")
    if not found:
        return Checked(f"{n_kernels} kernels compiled and counted anew", tuple(lines), tuple(notes))
    what = f"{len(found)} kernel{'s' if len(found) > 1 else ''} differ from the machine-code lock"
    hint = "the explanation stands above; invoke lock N --reason '...' re-locks iteration N"
    failure = CheckFailed(what, where=relative(LOCKS), hint=hint)
    explained = (*lines, *explain(found).splitlines())
    return Checked("", explained, problems=explained, failure=failure)


def write(arch: str, iterations: Sequence[int] | None, reason: str, *, folder: Path = LOCKS) -> Path:
    """Locks `iterations` (None: all) for `arch` as they compile now, and appends `reason` to their histories."""
    reason = _checked_reason(reason)
    locked = read_lock(arch, folder)
    entries = {} if iterations is None else dict(locked.iterations)
    for number, lock in snapshot(arch, iterations).items():
        history = locked.iterations[number].history if number in locked.iterations else ()
        entries[number] = lock.model_copy(update={"history": (*history, reason)})
    return write_lock(LockFile(arch=arch, iterations=dict(sorted(entries.items()))), folder)


def relock(number: int, reason: str, *, folder: Path = LOCKS, changelog: Path = CHANGELOG) -> None:
    """``invoke lock N --reason``: locks iteration `number` again for every architecture and adds a changelog line.

    It prints a line and writes nothing if the machine code on every architecture is the locked one. It raises an error
    and writes nothing if there is no reason or no such iteration, or a kernel does not compile.
    """
    require_checkout("lock")
    reason = _checked_reason(reason)
    require_file_or_nothing(changelog)
    before = read_text(changelog) if changelog.is_file() else "# Changelog\n\n"
    arches = _made_for([number])
    if not any(verify(arch, [number], folder=folder) for arch in arches):
        print(f"nothing to lock: iteration {number}'s machine code is the locked one")
        return
    verb = "re-lock" if any(number in read_lock(arch, folder).iterations for arch in arches) else "lock"
    for arch in arches:
        print(f"locked iteration {number}: {relative(write(arch, [number], reason, folder=folder))}")
    separator = "" if before.endswith("\n") else "\n"
    write_atomic(changelog, f"{before}{separator}- {verb} iteration {number}: {reason}\n")


def _ladder(iterations: Sequence[int] | None) -> Sequence[Iteration]:
    return load_all() if iterations is None else [load_iteration(number) for number in iterations]


def _made_for(iterations: Sequence[int] | None) -> list[str]:
    return [arch for arch in LOCK_ARCHES if any(arch in one.family.targets.arches for one in _ladder(iterations))]


def _checked_reason(reason: str) -> str:
    if words := " ".join(reason.split()):
        return words
    expected = "--reason 'what was wrong and is right now'"
    raise FlashladderError("a lock needs a reason", expected=expected, found="nothing")


def snapshot(arch: str, iterations: Sequence[int] | None = None, *, kernels: Path = KERNELS) -> dict[int, Lock]:
    """Compiles the locked configurations of `iterations` (None: all) and measures them."""
    from flashladder.build.compile import compile_many

    ladder = [iteration for iteration in _ladder(iterations) if arch in iteration.family.targets.arches]
    jobs = [(iteration, config) for iteration in ladder for config in select_configs(iteration, KEY)]
    entries = compile_many([(*job, arch) for job in jobs], kernels=kernels)
    made: dict[int, list[Compiled]] = {iteration.number: [] for iteration in ladder}
    for (iteration, config), entry, counts in zip(jobs, entries, recount(entries), strict=True):
        made[iteration.number].append((config, entry, counts))
    return {number: _lock(rows) for number, rows in made.items()}


def _lock(rows: Sequence[Compiled]) -> Lock:
    files, kernels = dict[str, str](), dict[str, LockedKernel]()
    for config, entry, counts in rows:
        included: Any = entry.ptx_entry.inputs["includes"]
        files |= {f"{KERNELS.name}/{path}": digest for path, digest in included.items()}
        cubin, usage = read_cubin(entry.cubin), entry.usage
        kernels[config.short_form()] = LockedKernel(
            text_sha256=cubin.text_sha256,
            ptx_sha256=ptx_sha256(read_ptx(entry.ptx)),
            registers=cubin.registers,
            spill_stores=usage.spill_stores,
            spill_loads=usage.spill_loads,
            stack=usage.stack,
            static_smem=usage.smem_static,
            dynamic_smem=config.smem_bytes,
            counts=by_class(counts.kernel),
            main_loop=by_class(counts.main_loop),
        )
    ptxas: Mapping[str, Any] = rows[0][1].inputs
    nvcc: Mapping[str, Any] = rows[0][1].ptx_entry.inputs
    flags, versions = {"nvcc": nvcc["flags"], "ptxas": ptxas["flags"]}, nvcc["versions"] | ptxas["versions"]
    return Lock(history=("not locked",), toolchain=versions, flags=flags, files=files, kernels=kernels)


def main(argv: Sequence[str] | None = None) -> None:
    """``verify`` or ``write``; exit code 1 if a kernel differs, 2 if it could not run."""
    parser = module_parser("lock", "Verifies or writes the machine-code lock.", "verify --arch sm_80 --iterations 6 7")
    parser.add_argument("what", choices=("verify", "write"))
    parser.add_argument("--arch", action="append", choices=LOCK_ARCHES, help="only this architecture (default: all)")
    parser.add_argument("--iterations", type=whole, nargs="+", metavar="N", help="only these (default: all)")
    parser.add_argument("--reason", default="", help="why the lock changes (write)")
    args = parser.parse_args(argv)
    require_checkout("lock")
    if args.what == "verify":
        check(args.arch or LOCK_ARCHES, args.iterations).show()
        if not (args.arch or args.iterations):
            step_counts.check().show()
        return
    for arch in args.arch or _made_for(args.iterations):
        print(f"locked: {relative(write(arch, args.iterations, args.reason))}")
