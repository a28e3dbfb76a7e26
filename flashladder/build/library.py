"""From cubins to the library that torch loads: a fatbin per configuration, a table that embeds them, the host half.

The host sources compile in 2 s (torch's stable headers) and are the same for all iterations of a family, so the store
keeps their objects. An iteration adds fatbins, a generated table that compiles in 0.1 s, and one link.

A row of the table describes one configuration and points at its fatbin, which the assembler embeds with `.incbin`. Its
layout is `KernelRow` of kernels/host/rows.h. All is constant data, so static constructors can read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
import tempfile

from flashladder.build.store import STORE, entry_lock, outputs_of, whole_record
from flashladder.errors import FlashladderError
from flashladder.files import digest_files, dump_json, read_text, sha256, write_atomic
from flashladder.ladder.config import ELEMENT_BYTES, KernelConfig
from flashladder.ladder.family import Family
from flashladder.ladder.iteration import included_files
from flashladder.paths import KERNELS, ROOT
from flashladder.tool_runs import diagnose, run_tool
from flashladder.toolchain import Toolchain, host_compiler, host_compiler_version

HOST_SOURCES = (KERNELS / "host" / "binding.cpp", KERNELS / "host" / "launch.cpp")
LIBRARY_NAME = "_C.abi3.so"
WHEEL_INIT = Path(__file__).with_name("wheel_template.py")
# The oldest torch that loads the library: major in the top byte, minor in the next (torch/csrc/stable/version.h).
TORCH_TARGET_VERSION = "0x020a000000000000"

COMPILE_FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden"),
    *("-Wall", "-Wextra", "-Werror", f"-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}"),
)
# The libraries of all iterations and torch's own CUDA runtime share one process. If one of them exported its symbols or
# those of the static runtime, the others would use these. torch itself is already loaded; its soname finds it.
LINK_FLAGS = ("-shared", "-Wl,-Bsymbolic", "-Wl,--exclude-libs,ALL", "-Wl,-z,defs", "-Wl,--no-as-needed")


def host_sources(plan: str) -> tuple[Path, ...]:
    """The sources of a family's library, except its table: `HOST_SOURCES` and the family's `plan`."""
    return (*HOST_SOURCES, KERNELS / plan)


def torch_root() -> Path:
    """The folder of the installed torch package, found without importing it."""
    return Path(str(metadata.distribution("torch").locate_file("torch")))


def object_command(source: Path, output: Path, cuda_root: Path) -> list[str]:
    """The command that compiles one host source (`HOST_SOURCES` or a generated table) to an object file.

    `cuda_root` holds `include/` and `lib/` of the CUDA runtime. Third-party headers are system headers, so -Werror
    does not apply to them.
    """
    torch = torch_root()
    prefixes = [f"-ffile-prefix-map={ROOT}=.", f"-ffile-prefix-map={torch}=torch"]  # no machine paths inside
    includes = [f"-I{KERNELS}", "-isystem", str(torch / "include"), "-isystem", str(cuda_root / "include")]
    return [str(host_compiler()), *COMPILE_FLAGS, *prefixes, *includes, "-c", str(source), "-o", str(output)]


def library_command(objects: Sequence[Path], output: Path, cuda_root: Path) -> list[str]:
    """The command that links host objects and one table into the library."""
    libraries = [f"-L{torch_root() / 'lib'}", "-ltorch", "-ltorch_cpu", f"-L{cuda_root / 'lib'}", "-lcudart_static"]
    system = ["-Wl,--as-needed", "-lpthread", "-ldl", "-lrt"]
    return [str(host_compiler()), *LINK_FLAGS, *map(str, objects), *libraries, *system, "-o", str(output)]


OLDEST_TORCH = (2, 10)


@dataclass(frozen=True)
class Log:
    """Collects commands and their output for build.log; the file `failed` gets the text of a command that failed."""

    parts: list[str]
    failed: Path

    def run(self, command: Sequence[str], folder: Path) -> None:
        """Runs `command` in `folder`, which also holds its temporary files; raises `FlashladderError` if it fails."""
        with tempfile.TemporaryDirectory(dir=folder, prefix="tmp-") as scratch:
            code, text = run_tool(command, folder, Path(scratch))
        self.parts.append(f"$ {' '.join(command)}\n{text}")
        if code:
            log = write_atomic(self.failed, self.parts[-1])
            raise diagnose(Path(command[0]).name, code, text, log, folder)


def torch_version() -> str:
    """Version of the installed torch, without importing it.

    Raises:
        FlashladderError: torch is missing, or older than the stable ABI that the library uses.
    """
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = "no torch"
    if not version[0].isdigit() or tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
        hint = "run: pip install 'torch>=2.10' (in a checkout: nox -s dev)"
        raise FlashladderError("torch is missing or too old", expected="2.10 or later", found=version, hint=hint)
    return version


def host_inputs(toolchain: Toolchain, plan: str) -> dict[str, object]:
    """Everything that decides the host objects: digests, flags, versions; no path of this machine."""
    sources = host_sources(plan)
    headers = {path for source in sources for path in included_files(read_text(source))}
    return {
        "kind": "host",
        "sources": digest_files([*sources, *sorted(headers)]),
        "flags": [*COMPILE_FLAGS],
        "versions": {
            "torch": torch_version(),
            "nvidia-cuda-runtime": toolchain.versions["nvidia-cuda-runtime"],
            "host_compiler": host_compiler_version(host_compiler()),
        },
    }


def host_objects(toolchain: Toolchain, plan: str, store: Path = STORE) -> tuple[list[Path], str]:
    """binding.o, launch.o and plan.o from the store, compiled if they are not there yet (about 2 s), and their log.

    Raises:
        FlashladderError: the compiler is missing or failed.
    """
    inputs, sources = host_inputs(toolchain, plan), host_sources(plan)
    folder = store / sha256(dump_json(inputs))
    objects = [folder / f"{source.stem}.o" for source in sources]
    if whole_record(folder / "meta.json") is None:
        with entry_lock(folder):
            if whole_record(folder / "meta.json") is None:  # no other process has made it meanwhile
                log = Log([], folder / "host.failed.log")
                for source, target in zip(sources, objects, strict=True):
                    log.run(object_command(source, target, toolchain.root), folder)
                write_atomic(folder / "host.log", "".join(log.parts))
                record = {"inputs": inputs} | outputs_of(folder, [*objects, folder / "host.log"])
                write_atomic(folder / "meta.json", dump_json(record))
    return objects, (folder / "host.log").read_text(encoding="utf-8", errors="replace")


def fatbin(folder: Path, ptx: tuple[Path, str], cubins: Mapping[str, Path], toolchain: Toolchain, log: Log) -> Path:
    """Packs `cubins` (machine code by architecture) and `ptx` (with its target) into ``<folder>/kernel.fatbin``."""
    target = folder / "kernel.fatbin"
    images = [f"--image3=kind=elf,sm={arch.removeprefix('sm_')},file={path}" for arch, path in cubins.items()]
    images.append(f"--image3=kind=ptx,sm={ptx[1].removeprefix('compute_')},file={ptx[0]}")
    log.run([str(toolchain.fatbinary), "--64", f"--create={target}", *images], folder)
    return target


def link(folder: Path, table: str, objects: Sequence[Path], toolchain: Toolchain, log: Log) -> Path:
    """Compiles the generated table and links it with the host objects into ``<folder>/_C.abi3.so``.

    Raises:
        FlashladderError: the compiler or the linker failed.
    """
    source = write_atomic(folder / "table.cpp", table)
    made, library = folder / "table.o", folder / LIBRARY_NAME
    log.run(object_command(source, made, toolchain.root), folder)
    log.run(library_command([made, *objects], library, toolchain.root), folder)
    made.unlink()
    return library


Kernel = tuple[KernelConfig, Path, Sequence[int]]
"""A configuration, what `fatbinary` made of its machine code and PTX, and what else its family's plan needs to know."""

_FATBIN = """
asm(R"(.section .rodata.flashladder, "a", @progbits
.balign 64
.hidden flashladder_fatbin_{index}
.global flashladder_fatbin_{index}
flashladder_fatbin_{index}:
.incbin "{path}"
.previous
)");
extern "C" FLASHLADDER_HIDDEN const unsigned char flashladder_fatbin_{index}[];
"""


def _is_flat(family: Family, config: KernelConfig) -> bool:
    """Whether the kernel's grid has one dimension, for any number of heads and samples."""
    return family.grid(config, (2, config.B_r * config.B_c, 2, config.d_head))[1:] == (1, 1)


def table_source(
    namespace: str,
    family: Family,
    kernels: Sequence[Kernel],
    arches: Sequence[str],
    row_stride: int = 0,
    tuned: Mapping[int, KernelConfig] | None = None,
) -> str:
    """The C++ source of one library's table, in the order of `kernels`.

    Args:
        namespace: of the library's operators, lower-case letters, digits and underscores.
        family: of all kernels.
        kernels: at least one, each configuration once.
        arches: the architectures of the machine code, such as ``("sm_80", "sm_90")``; error messages name them.
        row_stride: elements from one position to the next that the kernels are built for; 0 for any.
        tuned: the configuration, of any dtype, mask and packing, that runs from a compute capability (90 for 9.0) on if
            the call names none. If it is not among `kernels`, and below all capabilities, the first one of the dtype,
            mask and packing runs.
    """
    tuned = tuned or {}
    capability = 10 * family.least_capability[0] + family.least_capability[1]
    alone = int(family.targets.alone)
    fatbins, rows = list[str](), list[str]()
    for index, (config, fatbin, own) in enumerate(kernels):
        max_row_stride = family.max_row_bytes(config) // ELEMENT_BYTES
        fatbins.append(_FATBIN.format(index=index, path=fatbin))
        rows.append(
            f'    {{"{config.short_form()}", "{config.dtype}", {config.B_r}, {config.B_c}, {config.d_head}, '
            f"{config.n_threads}, {config.smem_bytes}, {capability}, {row_stride}, flashladder_fatbin_{index}, "
            f"{alone}, {int(not config.multiples)}, {max_row_stride}, {int(config.is_general)}, "
            f"{int(config.mask == 'causal')}, {int(config.is_packed)}, {int(_is_flat(family, config))}, "
            f"{{{', '.join(map(str, own or (0,)))}}}}},"
        )
    places = {config: index for index, (config, _, _) in enumerate(kernels)}
    first = {(config.dtype, config.mask, config.is_packed): places[config] for config in reversed(places)}
    defaults = list[str]()
    for (dtype, mask, packed), other in reversed(first.items()):
        wanted = {at: tuned[at].with_dtype(dtype).with_mask(mask).with_packed(packed) for at in sorted(tuned)}
        chosen = {at: places.get(config, other) for at, config in wanted.items()}
        defaults += [f"{{{start}, {index}}}" for start, index in ({0: other} | chosen).items()]
    named = ", ".join(sorted(arches, key=lambda arch: (len(arch), arch)))
    body = "\n".join(rows)
    return f"""\
// Generated by flashladder/build/library.py: the kernels of {namespace}. Never edited, never committed.
#include "host/rows.h"
{"".join(fatbins)}
extern "C" {{
extern const KernelRow flashladder_kernels[] = {{
{body}
}};
extern const int flashladder_n_kernels = {len(rows)};
extern const TunedRow flashladder_tuned[] = {{{", ".join(defaults)}}};
extern const int flashladder_n_tuned = {len(defaults)};
extern const char flashladder_namespace[] = "{namespace}";
extern const char flashladder_arches[] = "{named}";
extern const char flashladder_targets[] = "{", ".join(family.targets.arches)}";
extern const char flashladder_ptx[] = "{family.targets.ptx}";
}}
"""
