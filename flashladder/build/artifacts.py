"""What a build of one iteration is made from and what it leaves: inputs, digests, files, manifest.

Everything is made in a scratch folder and renamed into ``build/iteration_07/sm_80/``: a build is whole or not there.
PTX and machine code are copies, so that an edit there cannot reach the store. Used by `flashladder.build.command`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import csv
from dataclasses import dataclass
import io
from pathlib import Path
import re
import shutil
import subprocess
import tempfile

from flashladder.build import native, wheel
from flashladder.build.host_library import LIBRARY_NAME, WHEEL_INIT, wheel_init
from flashladder.build.kernel_table import TableRow, table_source
from flashladder.build.store import CubinEntry, PtxEntry
from flashladder.files import digest_files, dump_json, load_json, require_folder_or_nothing, sha256, write_atomic
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import tuned_from
from flashladder.ladder.iteration import Iteration
from flashladder.ladder.subject import Subject, parse_subject
from flashladder.machine_code.cubin import text_sha256
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.machine_code.ptxas import PtxasRow, format_table, to_csv
from flashladder.paths import BUILD, ROOT
from flashladder.toolchain.pins import load_pins
from flashladder.toolchain.wheels import Toolchain, demangle
from flashladder.version import __version__

SCHEMA = 1
# This package's files whose text decides what a build leaves.
BUILDERS = ("artifacts.py", "native.py", "kernel_table.py", "host_library.py", "wheel.py", WHEEL_INIT.name)


@dataclass(frozen=True)
class Request:
    """What is to be built.

    Attributes:
        iteration: which step of the ladder.
        key: the selection key that gave `configs`.
        configs: the kernels.
        arches: the architectures to make machine code for; compute_80 PTX always goes along.
        debug: -G -O0 instead of -lineinfo.
        cuda: version of another compiler's wheels, ``13.1``; empty for the pinned one.
    """

    iteration: Iteration
    key: str
    configs: tuple[KernelConfig, ...]
    arches: tuple[str, ...]
    debug: bool
    cuda: str = ""

    @property
    def subject(self) -> Subject:
        """What is built, by name."""
        return parse_subject(self.iteration.description, self.cuda)

    @property
    def name(self) -> str:
        """The import name of the wheel's package, ``flashladder_07``."""
        return self.subject.package

    @property
    def folder(self) -> Path:
        """Where everything that the build leaves goes: ``sm_80``, ``sm_80-sm_90``, ``sm_80_tune_debug`` ..."""
        key = "" if self.key == "prog" else "_" + re.sub(r"[^A-Za-z0-9]+", "-", self.key)
        variant = "-".join(self.arches) + key + "_debug" * self.debug
        return BUILD / f"iteration_{self.subject.tag}" / variant

    @property
    def jobs(self) -> list[tuple[Iteration, KernelConfig, str]]:
        """Every kernel and architecture, in order."""
        return [(self.iteration, config, arch) for config in self.configs for arch in self.arches]


def inputs_of(
    request: Request, entries: Sequence[CubinEntry], toolchain: Toolchain, torch: str, compiler: Toolchain
) -> dict[str, object]:
    """Everything that decides the build's outputs; no path and no time of this machine.

    `toolchain` is the pinned one, which makes the host half; `compiler` the one that made `entries`.
    """
    kernels: dict[str, dict[str, str]] = {}
    for (_, config, arch), entry in zip(request.jobs, entries, strict=True):
        kernels.setdefault(config.short_form(), {"ptx": entry.ptx_entry.key})[arch] = entry.key
    first = entries[0]
    return {
        "schema": SCHEMA,
        "iteration": {"number": request.iteration.number, "row_stride": request.iteration.row_stride},
        "subject": request.iteration.description,
        "configs": request.key,
        "kernels": kernels,
        "order": [config.short_form() for config in request.configs],
        "tuned": {key: config.short_form() for key, config in request.iteration.configs.items()},
        "flags": {"nvcc": first.ptx_entry.inputs["flags"], "ptxas": first.inputs["flags"]},
        "toolchain": dict(compiler.versions),
        "torch": torch,
        "host": native.host_inputs(toolchain, request.iteration.family.plan),
        "builders": digest_files(Path(__file__).with_name(name) for name in BUILDERS),
        "version": __version__,
    }


def is_fresh(folder: Path, digest: str) -> bool:
    """Whether `folder` holds a whole build of exactly these inputs: every output is there with the digest it had."""
    try:
        manifest = load_json((folder / "manifest.json").read_bytes())
        if manifest["inputs_digest"] != digest:
            return False
        return all(sha256((folder / name).read_bytes()) == known for name, known in manifest["outputs"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def make(
    request: Request,
    entries: Sequence[CubinEntry],
    toolchain: Toolchain,
    inputs: Mapping[str, object],
    table: tuple[Sequence[PtxasRow], Sequence[str]],
) -> None:
    """Makes everything that the build of `request` leaves, in place of what was there.

    Args:
        request: what is built.
        entries: the machine code of ``request.jobs``, in that order.
        toolchain: the pinned CUDA tools, which make the host half whatever compiler made `entries`.
        inputs: `inputs_of` the same request.
        table: rows of the ptxas table, and warnings.

    Raises:
        FlashladderError: a compiler or the linker failed.
    """
    require_folder_or_nothing(request.folder)
    objects, host_log = native.host_objects(toolchain, request.iteration.family.plan)
    parent = request.folder.parent
    scratch = Path(tempfile.mkdtemp(prefix=f".{request.folder.name}-", dir=parent))
    try:
        log = native.Log([*_logs(entries), host_log], parent / f"{request.folder.name}.failed.log")
        rows = [_kernel(scratch, request, config, entries, toolchain, log) for config in request.configs]
        table_cpp = table_source(request.name, rows, tuned_from(request.iteration.configs))
        native.link(scratch, table_cpp, objects, toolchain, log)
        write_logs(scratch, "\n".join(log.parts), toolchain)
        write_atomic(scratch / "kernels.csv", to_csv(table[0]))
        write_atomic(scratch / "kernels.txt", format_table(*table))
        library = sha256((scratch / LIBRARY_NAME).read_bytes())
        manifest = _manifest(request, entries, inputs) | {wheel.LIBRARY_DIGEST: library}
        _assemble(scratch, request, manifest, table[0])
        manifest |= _outputs(scratch) | {"git": git_revision()}
        write_atomic(scratch / "manifest.json", dump_json(manifest))
        scratch.chmod(0o755)
        if request.folder.exists():
            shutil.rmtree(request.folder)
        scratch.replace(request.folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_logs(folder: Path, text: str, toolchain: Toolchain) -> None:
    """Writes ``build.log``, and ``build.demangled.log`` where the log names C++ symbols.

    Those are the functions of a debug build: the kernel is ``extern "C"``, and a release build inlines all others.

    Raises:
        FlashladderError: there are such names, and no demangler is on this machine.
    """
    write_atomic(folder / "build.log", text)
    if re.search(r"\b_Z\w", text):
        write_atomic(folder / "build.demangled.log", demangle(text, toolchain))


def _logs(entries: Sequence[CubinEntry]) -> list[str]:
    """What nvcc and ptxas were asked and printed, each log once, in order."""
    logs: dict[Path, None] = {}
    for entry in entries:
        logs |= {entry.ptx_entry.log: None, entry.log: None}
    return [path.read_text(encoding="utf-8", errors="replace") for path in logs]


def _kernel(
    scratch: Path,
    request: Request,
    config: KernelConfig,
    entries: Sequence[CubinEntry],
    toolchain: Toolchain,
    log: native.Log,
) -> TableRow:
    """Copies one configuration's files from the store into its folder, packs its fatbin, and gives its table row."""
    mine = [entry for (_, other, _), entry in zip(request.jobs, entries, strict=True) if other == config]
    unit: PtxEntry = mine[0].ptx_entry
    folder = scratch / config.slug()
    folder.mkdir()
    shutil.copyfile(unit.source, folder / "kernel.cu")
    ptx = Path(shutil.copyfile(unit.ptx, folder / "kernel.ptx"))
    cubins = {e.arch: Path(shutil.copyfile(e.cubin, folder / f"kernel.{e.arch}.cubin")) for e in mine}
    packed = native.fatbin(folder, (ptx, request.iteration.family.targets.ptx), cubins, toolchain, log)
    of = request.iteration
    own = of.family.for_plan(of.parts, config)
    return TableRow(config, packed.relative_to(scratch), of.family, request.arches, of.row_stride, own)


def _assemble(scratch: Path, request: Request, manifest: Mapping[str, object], rows: Sequence[PtxasRow]) -> None:
    """The wheel: the library, its `__init__.py`, the manifest and the ptxas table without its times."""
    members = {
        "__init__.py": wheel_init().encode(),
        LIBRARY_NAME: (scratch / LIBRARY_NAME).read_bytes(),
        "manifest.json": dump_json(manifest).encode(),
        "kernels.csv": _untimed(to_csv(rows)).encode(),
    }
    summary = f"flashladder {request.subject.label}: {request.iteration.title}"
    wheel.assemble(scratch, request.name, __version__, summary, members)


def _untimed(table: str) -> str:
    """A ptxas table without the column of compile times, which differ from run to run."""
    records = list(csv.DictReader(io.StringIO(table)))
    out = io.StringIO()
    writer = csv.DictWriter(
        out, [name for name in records[0] if name != "compile_ms"], "", "ignore", lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def _manifest(request: Request, entries: Sequence[CubinEntry], inputs: Mapping[str, object]) -> dict[str, object]:
    """What the wheel says about itself; the same for the same inputs: no path, no time, no commit."""
    kernels: dict[str, dict[str, dict[str, object]]] = {}
    for (_, config, arch), entry in zip(request.jobs, entries, strict=True):
        usage = entry.usage
        kernels.setdefault(config.short_form(), {})[arch] = {
            "text_sha256": text_sha256(entry.cubin),
            "ptx_sha256": ptx_sha256(read_ptx(entry.ptx)),
            "registers": usage.registers,
            "spill_stores": usage.spill_stores,
            "spill_loads": usage.spill_loads,
        }
    return {
        "schema": SCHEMA,
        "iteration": request.iteration.number,
        "subject": request.iteration.description,
        "variant": request.subject.variant,
        "cuda": request.cuda or load_pins().cuda,
        "arches": list(request.arches),
        "debug": request.debug,
        "kernels": kernels,
        "toolchain": inputs["toolchain"],
        "inputs": dict(inputs),
        "inputs_digest": sha256(dump_json(inputs)),
    }


def _outputs(folder: Path) -> dict[str, object]:
    """Digest of every file under `folder`, under the key ``outputs``."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {"outputs": {path.relative_to(folder).as_posix(): sha256(path.read_bytes()) for path in files}}


def git_revision() -> str | None:
    """The commit of the checkout, with ``+changes`` where files differ from it; None outside a repository."""
    commands = (["git", "rev-parse", "--verify", "HEAD"], ["git", "status", "--porcelain", "--untracked-files=no"])
    try:
        commit, changes = (
            subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + "+changes" * bool(changes)
