"""Opcode counts of every step's kernel and its parent's, at equal tile: PTX and machine code of every architecture.

Claims and notes need both sides on all architectures, even on a machine without a compiler, so the counts are committed
(results/steps/counts.json). New counts are cached under ``build/counts/``, because nvdisasm is slow to start.

Run:
    python -m flashladder.lock.step_counts            # compares the committed counts with the kernels
    python -m flashladder.lock.step_counts --write    # writes them
Exit code: 0 current, 1 stale, 2 could not run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
import os
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from flashladder.arguments import module_parser
from flashladder.build.store import CubinEntry
from flashladder.errors import Checked, CheckFailed, FlashladderError, run_main
from flashladder.files import dump_json, relative, sha256, write_atomic
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration, claim_configs, load_all, load_iteration
from flashladder.located import read_committed
from flashladder.lock.schema import Count, Digest, LockedKernel, find_locked, read_lock
from flashladder.machine_code import flow, order, sass
from flashladder.machine_code.cubin import Cubin, read_cubin
from flashladder.machine_code.ptx import opcode_counts, ptx_sha256, read_ptx
from flashladder.machine_code.sass import opcode_class
from flashladder.parallel import Bar
from flashladder.paths import BUILD, RESULTS
from flashladder.results.schema import Strict, kernel_key
from flashladder.toolchain import find_toolchain, load_pins

COUNTS = RESULTS / "steps" / "counts.json"
HOW_TO_WRITE = "run: python -m flashladder.lock.step_counts --write"
CACHE = BUILD / "counts"
DISASSEMBLER = "nvidia-cuda-nvdisasm"
TOGETHER = 32  # kernels in one run of nvdisasm


class MachineCode(Strict):
    """One kernel on one architecture: instructions by opcode with modifiers, and measures, in the kernel and its loop.

    Measures are in lower case: ``total``, ``registers`` (of the kernel), and those of the order of instructions
    (`flashladder.machine_code.order`). `text_sha256` is the digest of the cubin's ``.text.flash_fwd_kernel``.
    """

    text_sha256: Digest
    kernel: dict[str, Count]
    main_loop: dict[str, Count]


class StepKernel(Strict):
    """One kernel of a step or of its parent; `ptx` holds PTX instructions by full opcode, and measures."""

    iteration: int
    config: str
    ptx_sha256: Digest
    ptx: dict[str, Count]
    sass: dict[str, MachineCode]


class StepCounts(Strict):
    """The counts of all kernels."""

    schema_version: Literal[1] = 1
    kind: Literal["step-counts"] = "step-counts"
    kernels: dict[str, StepKernel]

    def of(self, iteration: int, config: KernelConfig) -> StepKernel:
        """The kernel of an iteration in one configuration; an error if the counts lack it."""
        key = kernel_key(iteration, config.short_form())
        if key not in self.kernels:
            raise FlashladderError(f"no counts of {key}", where=relative(COUNTS), hint=HOW_TO_WRITE)
        return self.kernels[key]


def with_classes(counts: Mapping[str, int], *, of_sass: bool) -> dict[str, int]:
    """Counts by full opcode and by class: ``IADD3`` also counts ``IADD3.X``, ``add`` all of PTX's."""
    found = Counter({name: count for name, count in counts.items() if "." in name})
    for name, count in counts.items():
        group = opcode_class(name) if of_sass else name.partition(".")[0]
        if group != name or "." not in name:
            found[group] += count
    return dict(found)


def by_class(counts: Mapping[str, int]) -> dict[str, int]:
    """Instructions per opcode class in order of name, after their sum as ``total``, without other measures."""
    found: Counter[str] = Counter()
    for name, count in counts.items():
        if name[0].isupper():
            found[opcode_class(name)] += count
    return {"total": sum(found.values()), **dict(sorted(found.items()))}


def recount(entries: Sequence[CubinEntry], cache: Path = CACHE) -> list[MachineCode]:
    """The counts of each kernel, in order; one run of the disassembler counts a few dozen kernels that are not cached.

    A cubin that cannot be read, and a disassembler that is missing or fails, are errors.
    """
    nvdisasm = find_toolchain().nvdisasm
    readers = [Path(str(module.__file__)).read_bytes() for module in (sass, flow, order)]
    reader = "".join(map(sha256, [*readers, Path(__file__).read_bytes()])) + load_pins().packages[DISASSEMBLER]
    codes = [read_cubin(entry.cubin) for entry in entries]
    paths = [cache / f"{sha256(code.text_sha256 + code.arch + reader)}.json" for code in codes]
    found = dict[Path, MachineCode]()
    for path in paths:
        with suppress(OSError, ValidationError):  # not in the cache
            found[path] = MachineCode.model_validate_json(path.read_bytes())
    missing = {path: code for path, code in zip(paths, codes, strict=True) if path not in found}
    by_arch = defaultdict[str, list[Path]](list)
    for path, code in missing.items():
        by_arch[code.arch].append(path)
    batches = [group[i : i + TOGETHER] for group in by_arch.values() for i in range(0, len(group), TOGETHER)]

    def counted(batch: list[Path]) -> list[MachineCode]:
        kernels = [missing[path] for path in batch]
        listed = sass.disassemble_many([kernel.text for kernel in kernels], kernels[0].arch, nvdisasm)
        return list(map(_counts, kernels, listed))

    with (
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
        Bar(total=len(missing), desc="opcode counts", unit="kernel") as bar,
    ):
        for batch, made in zip(batches, pool.map(counted, batches), strict=True):
            for path, counts in zip(batch, made, strict=True):
                found[path] = counts
                with suppress(FlashladderError):  # without a writable folder, the next run counts again
                    write_atomic(path, dump_json(counts.model_dump()))
            bar.update(len(batch))
    return [found[path] for path in paths]


def _counts(cubin: Cubin, code: sass.Sass) -> MachineCode:
    loop = flow.main_loop(code)
    path = order.usual_path(loop, code.targets)
    main_loop = scope_of(loop, path)
    if len(path) < len(order.steady(loop)):
        main_loop[order.USUAL_PATH] = len(path)
    kernel = scope_of(code.instructions) | {"registers": cubin.registers}
    return MachineCode(text_sha256=cubin.text_sha256, kernel=kernel, main_loop=main_loop)


def scope_of(code: Sequence[sass.Instruction], path: Sequence[sass.Instruction] | None = None) -> dict[str, int]:
    """The counts of a kernel's or a loop's instructions; `path` gives those whose order is measured (None: all)."""
    found = dict(Counter(instruction.opcode for instruction in code))
    measures = {"total": len(code), "hmma_after_ldsm": order.hmma_after_ldsm(code)}
    return found | measures | order.under_products(order.steady(code) if path is None else path)


def read_counts(path: Path = COUNTS) -> StepCounts:
    """The committed counts; a missing or malformed file is an error."""
    return read_committed(path, StepCounts, "no counts of the steps", HOW_TO_WRITE)


def count_all() -> StepCounts:
    """Compiles (cached in the store) and counts every kernel that claims compare: each step's and its parent's."""
    from flashladder.build.compile import compile_many

    kernels: dict[tuple[Iteration, KernelConfig], None] = {}
    for iteration in load_all():
        config, parent_config = claim_configs(iteration)
        kernels[iteration, config] = None
        if iteration.parent is not None and parent_config is not None:
            kernels[load_iteration(iteration.parent), parent_config] = None
    every = sorted(kernels, key=lambda kernel: (kernel[0].number, kernel[1]))
    jobs = [(*kernel, arch) for kernel in every for arch in kernel[0].family.targets.arches]
    entries = compile_many(jobs)
    found: dict[str, StepKernel] = {}
    for (iteration, config, arch), entry, counts in zip(jobs, entries, recount(entries), strict=True):
        form = config.short_form()
        if (key := kernel_key(iteration.number, form)) not in found:
            text = read_ptx(entry.ptx)
            ptx = opcode_counts(text)
            ptx |= {"mma_before_use": order.mma_before_use(text), "mma_same_a": order.mma_same_a(text)}
            found[key] = StepKernel(
                iteration=iteration.number, config=form, ptx_sha256=ptx_sha256(text), ptx=ptx, sass={}
            )
        found[key].sass[arch] = counts
    return StepCounts(kernels=found)


def lock_problems(counts: StepCounts) -> Iterator[str]:
    """Kernels whose machine code is not the locked one, or whose counts are not the lock's."""
    for arch in LOCK_ARCHES:
        lock = read_lock(arch)
        for key, kernel in counts.kernels.items():
            if locked := find_locked(lock, kernel.iteration, kernel.config):
                yield from (f"{key} on {arch}: {line}" for line in _unlike(kernel, kernel.sass.get(arch), locked))


def _unlike(kernel: StepKernel, code: MachineCode | None, locked: LockedKernel) -> Iterator[str]:
    if code is None or (code.text_sha256, kernel.ptx_sha256) != (locked.text_sha256, locked.ptx_sha256):
        yield "what was counted is not what is locked"
        return
    scopes = ((code.kernel, {**locked.counts, "registers": locked.registers}), (code.main_loop, locked.main_loop))
    for counts, in_lock in scopes:
        found = Counter(with_classes(counts, of_sass=True))
        yield from (f"{name}: {found[name]}, in the lock {n}" for name, n in in_lock.items() if found[name] != n)


def check(path: Path = COUNTS) -> Checked:
    """Whether a new count gives the committed counts; errors as of `count_all` and `read_counts`."""
    found, committed = count_all(), read_counts(path)
    if found != committed:
        names = {*found.kernels, *committed.kernels}
        wrong = sorted(name for name in names if found.kernels.get(name) != committed.kernels.get(name))
        what = f"counts of {len(wrong)} kernels are not what their code gives"
        return Checked("", failure=CheckFailed(what, where=relative(path), found=wrong[0], hint=HOW_TO_WRITE))
    arches = {arch for kernel in found.kernels.values() for arch in kernel.sass}
    return Checked(f"{len(found.kernels)} kernels on {len(arches)} architectures")


def main(argv: Sequence[str] | None = None) -> None:
    """Counts all kernels, then writes or compares the counts."""
    description = "Instruction counts of every step and its parent, on every locked architecture."
    parser = module_parser("lock.step_counts", description, "--write")
    parser.add_argument("--write", action="store_true", help="write results/steps/counts.json")
    if parser.parse_args(argv).write:
        print(f"wrote {relative(write_atomic(COUNTS, dump_json(count_all().model_dump(mode='json'))))}")
    else:
        check().show()


if __name__ == "__main__":
    run_main(main)
