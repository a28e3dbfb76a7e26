"""Compiles kernels to PTX and machine code, each source once: `ptx_for`, `cubin_for` and, for many, `compile_many`.

nvcc compiles an iteration and configuration to PTX once. ptxas makes every architecture's machine code from that PTX.
So the GPU, the emulator and newer GPUs, for which the wheel ships PTX, all run the same PTX.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from flashladder.build import store
from flashladder.columns import table
from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.family import Family, Targets
from flashladder.ladder.iteration import Iteration, included_files, translation_unit
from flashladder.machine_code.ptxas import PtxasRow
from flashladder.paths import KERNELS
from flashladder.toolchain import (
    Toolchain,
    find_toolchain,
    gpu_arch,
    host_compiler,
    host_compiler_version,
    load_pins,
    require_arch,
)

# The packages that decide what nvcc -ptx writes; ptxas is part of the first one.
PTX_PACKAGES = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl")


def tools_of(toolchain: Toolchain | None = None, *, debug: bool = False) -> store.Tools:
    """Programs, versions and flags for a release build (-lineinfo) or a debug build (-G -O0).

    If the store came with a bundle, a release build's are those that the bundle recorded (`read_recorded`). A missing
    toolchain or host compiler is an error.
    """
    if toolchain is None and not debug and (found := store.read_recorded(store.STORE)):
        return found
    toolchain = toolchain or find_toolchain()
    pins, host, versions = load_pins(), host_compiler(), toolchain.versions
    return store.Tools(
        root=toolchain.root,
        nvcc=toolchain.nvcc,
        ptxas=toolchain.ptxas,
        host_compiler=host,
        nvcc_flags=(f"-arch={pins.ptx_arch}", *pins.flags("nvcc", debug=debug)),
        ptxas_flags=pins.flags("ptxas", debug=debug),
        ptx_versions={name: versions[name] for name in PTX_PACKAGES} | {"host compiler": host_compiler_version(host)},
        ptxas_version=versions["nvidia-cuda-nvcc"],
        debug=debug,
    )


def ptx_planned(
    iteration: Iteration, config: KernelConfig, tools: store.Tools, kernels: Path = KERNELS
) -> store.PtxEntry:
    """The store's entry for a kernel's PTX, filled or not; compiles nothing."""
    text = translation_unit(iteration, config)
    kept = (flag for flag in tools.nvcc_flags if not flag.startswith("-arch="))
    own = replace(tools, nvcc_flags=(f"-arch={iteration.family.targets.ptx}", *kept))
    return store.ptx_entry(text, kernels, included_files(text, kernels), own, store.STORE)


def ptx_for(iteration: Iteration, config: KernelConfig, kernels: Path = KERNELS) -> store.PtxEntry:
    """The PTX of one kernel; otherwise as `ptx_many`."""
    return ptx_many([(iteration, config)], kernels)[0]


def cubin_for(iteration: Iteration, config: KernelConfig, arch: str) -> store.CubinEntry:
    """The machine code of one kernel for `arch` (for example ``sm_80``); otherwise as `compile_many`."""
    return compile_many([(iteration, config, arch)])[0]


def ptx_many(pairs: Iterable[tuple[Iteration, KernelConfig]], kernels: Path = KERNELS) -> list[store.PtxEntry]:
    """The PTX of each (iteration, configuration), in order, compiled if it is not in the store.

    If the toolchain is missing, or nvcc fails, the line of the error says why and where the log is.
    """
    tools = tools_of()
    entries = [ptx_planned(iteration, config, tools, kernels) for iteration, config in pairs]
    _fill(entries, None, tools)
    return entries


def _fill(entries: Sequence[store.PtxEntry | store.CubinEntry], n_jobs: int | None, tools: store.Tools) -> None:
    """Compiles the missing entries; recorded tools cannot compile."""
    if tools.recorded and (missing := store.missing_entries(entries)):
        what = f"{len(missing)} of the kernels that this needs did not come with the bundle, and nothing here compiles"
        raise FlashladderError(what, hint="where there is a checkout: invoke bundle")
    store.fill_all(entries, n_jobs)


def compile_many(
    jobs: Iterable[tuple[Iteration, KernelConfig, str]],
    n_jobs: int | None = None,
    *,
    toolchain: Toolchain | None = None,
    debug: bool = False,
    kernels: Path = KERNELS,
) -> list[store.CubinEntry]:
    """The machine code of each (iteration, configuration, arch), in order; what is missing is compiled, each once.

    `n_jobs`: compilers at once; None for one per CPU. `debug`: -G -O0 instead of -lineinfo; such entries live beside
    the release ones. `kernels`: the folder with the CUDA sources (the lock's tests compile a changed copy of it). It is
    an error if a tool is missing or fails, or if the family refuses the machine code (`Family.refuses`).
    """
    tools = tools_of(toolchain, debug=debug)
    units: dict[tuple[int, KernelConfig], store.PtxEntry] = {}  # by identity: an iteration holds mappings
    jobs, entries = list(jobs), []
    for iteration, config, arch in jobs:
        unit = units.get((id(iteration), config)) or ptx_planned(iteration, config, tools, kernels)
        units[id(iteration), config] = unit
        entries.append(store.cubin_entry(unit, require_target(iteration, arch), tools, store.STORE))
    _fill(entries, n_jobs, tools)
    for (iteration, config, _), entry in zip(jobs, entries, strict=True):
        if not debug and (problem := iteration.family.refuses(entry.usage)):
            what = f"iteration {iteration.description} {config.short_form()}: what ptxas made is not fit to ship"
            expected = f"no note C75.. and nothing spilled on {entry.arch}"
            raise FlashladderError(what, where=relative(entry.log), expected=expected, found=problem)
    return entries


def require_target(iteration: Iteration, arch: str) -> str:
    """The target of an iteration's family for `arch`: itself, or ``sm_90a`` for sm_90; an error if it has none."""
    targets, code = iteration.family.targets, iteration.family.targets.serving(require_arch(arch))
    if code is None:
        family = f"of the family {iteration.family.name}, which has no code for this"
        what, expected = f"iteration {iteration.description} is {family}", " or ".join(targets.arches)
        raise FlashladderError(what, expected=expected, found=arch)
    return code


def table_rows(
    jobs: Sequence[tuple[Iteration, KernelConfig, str]], entries: Sequence[store.CubinEntry]
) -> tuple[list[PtxasRow], list[str]]:
    """The ptxas table of compiled `jobs` and the warnings of its logs, each naming its kernel."""
    rows, warnings = [], list[str]()
    for (iteration, config, arch), entry in zip(jobs, entries, strict=True):
        usage = entry.usage
        name, form = f"{iteration.number:02d}", config.short_form()
        rows.append(PtxasRow(**asdict(usage), kernel=name, config=form, smem_dynamic=config.smem_bytes))
        warnings += [f"{name} {form} {arch}: {line}" for line in usage.warnings]
    return rows, warnings


def default_arch(family: Family | None = None) -> str:
    """The family's target for GPU 0, else its first target; without a family, of all supported architectures."""
    found, pins = gpu_arch(), load_pins()
    targets = Targets(pins.ptx_arch, pins.arches) if family is None else family.targets
    return (targets.serving(found) if found else None) or targets.arches[0]


def arches_of(iteration: Iteration, arch: str | None) -> tuple[str, ...]:
    """The targets for ``--arch sm_80,sm_90``, each once; raises as `require_target`. None: the family's default."""
    words = arch.split(",") if arch else [default_arch(iteration.family)]
    return tuple(dict.fromkeys(require_target(iteration, word.strip()) for word in words))


HEADERS = ("#", "dtype", "configuration", "arch", "regs", "stack", "st", "ld", "bar", "static", "dynamic", "cmem", "ms")
LEGEND = """\
regs: registers per thread; bar: barriers of a CTA; ms: compile time of ptxas.
Bytes: stack, spills (st, ld), shared memory (static, dynamic), constant (cmem)."""
CONFIGURATION, ARCH = 2, 3  # columns up to the architecture are text


def render(rows: Iterable[PtxasRow], warnings: Iterable[str], limit: int) -> str:
    """The rows as a table at most `limit` characters wide, then each warning once."""
    shown: list[Sequence[str]] = [HEADERS]
    for row in rows:
        config = KernelConfig.parse(row.config)
        spills, smem = (row.spill_stores, row.spill_loads), (row.smem_static, row.smem_dynamic)
        cmem = "-" if row.cmem is None else row.cmem
        numbers = (row.registers, row.stack, *spills, row.barriers, *smem, cmem, f"{row.compile_ms:.0f}")
        shown.append([row.kernel, config.dtype, config.brief(), row.arch, *map(str, numbers)])
    lines = table(shown, limit, right={0, *range(ARCH + 1, len(HEADERS))}, wrapped={CONFIGURATION})
    return "\n".join([*lines, LEGEND, *dict.fromkeys(warnings)]) + "\n"
