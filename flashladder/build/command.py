"""Builds one iteration: compiles its kernels, links them, makes a wheel, installs it and checks that it imports.

The folder ``build/iteration_07/sm_80/`` keeps the wheel, both logs, the ptxas table, PTX and cubin per configuration,
and a manifest of all inputs and outputs. It is made in a scratch folder and renamed, so a build is complete or absent.
A build whose inputs did not change does nothing.

    nox -s build-iteration-7                                        # in an environment of its own
    python -m flashladder.build 7 --arch sm_90 --configs prog --debug
    python -m flashladder.build "16 - swizzle" --toolchain 13.1     # an ablation, through another compiler
    python -m flashladder.build --all                               # every iteration's wheel; installs none
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from flashladder import files
from flashladder.arguments import ARCHES, CONFIGS, STEP, module_parser, whole
from flashladder.build import library, wheel
from flashladder.build.compile import arches_of, compile_many, render, table_rows
from flashladder.build.library import LIBRARY_NAME, WHEEL_INIT, table_source
from flashladder.build.store import CubinEntry, default_jobs, entry_lock, outputs_of, whole_record
from flashladder.columns import terminal_width
from flashladder.errors import FlashladderError, say
from flashladder.ladder.ablation import Subject, load_description, parse_subject
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import tuned_from
from flashladder.ladder.iteration import Iteration, load_all
from flashladder.ladder.selection import select_configs
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.machine_code.ptxas import COLUMNS, PtxasRow, to_csv
from flashladder.names import __version__
from flashladder.paths import BUILD, ROOT
from flashladder.tool_runs import file_errors
from flashladder.toolchain import Toolchain, find_toolchain, gpu_arch, load_pins

SCHEMA = 1
WIDE = 200  # columns of a table in a file
UNTIMED = [name for name in COLUMNS if name != "compile_ms"]  # of the wheel, whose bytes are the same each time
# This package's files whose text decides what a build makes.
BUILDERS = ("command.py", "library.py", "wheel.py", WHEEL_INIT.name)


@dataclass(frozen=True)
class Request:
    """What is to be built: `key` selected `configs`, and `cuda` is that of `build_iteration`."""

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
    def folder(self) -> Path:
        """The folder of all that the build makes: ``sm_80``, ``sm_80-sm_90``, ``sm_80_tune_debug`` ..."""
        key = "" if self.key == "prog" else "_" + re.sub(r"[^A-Za-z0-9]+", "-", self.key)
        variant = "-".join(self.arches) + key + "_debug" * self.debug
        return BUILD / f"iteration_{self.subject.tag}" / variant


Entries = Mapping[tuple[KernelConfig, str], CubinEntry]
"""The machine code of each configuration and architecture of a request, in order."""


def inputs_of(
    request: Request, entries: Entries, toolchain: Toolchain, torch: str, compiler: Toolchain
) -> dict[str, object]:
    """Everything that decides the build's outputs; no path and no time of this machine.

    `toolchain` is the pinned one, which makes the host half; `compiler` the one that made `entries`.
    """
    kernels = {
        config.short_form(): {
            "ptx": entries[config, request.arches[0]].ptx_entry.key,
            **{arch: entries[config, arch].key for arch in request.arches},
        }
        for config in request.configs
    }
    first = next(iter(entries.values()))
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
        "host": library.host_inputs(toolchain, request.iteration.family.plan),
        "builders": files.digest_files(Path(__file__).with_name(name) for name in BUILDERS),
        "version": __version__,
    }


def is_fresh(folder: Path, digest: str) -> bool:
    """Whether `folder` holds a complete build of exactly these inputs: every output has the recorded digest."""
    return (whole_record(folder / "manifest.json") or {}).get("inputs_digest") == digest


def make(
    request: Request,
    entries: Entries,
    toolchain: Toolchain,
    inputs: Mapping[str, object],
    table: tuple[Sequence[PtxasRow], Sequence[str]],
) -> None:
    """Makes the folder of a build, in place of an older one.

    `toolchain` is the pinned one, which makes the host half; `inputs` are `inputs_of` the request; `table` holds the
    rows of the ptxas table and warnings. A compiler or linker that fails is an error.
    """
    files.require_folder_or_nothing(request.folder)
    iteration, family = request.iteration, request.iteration.family
    objects, host_log = library.host_objects(toolchain, family.plan)
    parent = request.folder.parent
    scratch = Path(tempfile.mkdtemp(prefix=f".{request.folder.name}-", dir=parent))
    try:
        logs = dict.fromkeys(path for entry in entries.values() for path in (entry.ptx_entry.log, entry.log))
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in logs]
        log = library.Log([*texts, host_log], parent / f"{request.folder.name}.failed.log")
        kernels = [_kernel(scratch, request, config, entries, toolchain, log) for config in request.configs]
        tuned = tuned_from(iteration.configs)
        table_cpp = table_source(request.subject.package, family, kernels, request.arches, iteration.row_stride, tuned)
        built = library.link(scratch, table_cpp, objects, toolchain, log).read_bytes()
        text = "\n".join(log.parts)
        files.write_atomic(scratch / "build.log", text)
        if symbols := set(re.findall(r"\b_Z\w+", text)):  # a debug build does not inline functions
            from flashladder.binaries import demangled  # as slow to load as the ELF reader of `_manifest`

            names = demangled(symbols)
            files.write_atomic(scratch / "build.demangled.log", re.sub(r"\b_Z\w+", lambda match: names[match[0]], text))
        files.write_atomic(scratch / "kernels.csv", to_csv(table[0]))
        files.write_atomic(scratch / "kernels.txt", render(*table, WIDE))
        manifest = _manifest(request, entries, inputs) | {wheel.LIBRARY_DIGEST: files.sha256(built)}
        members = {
            "__init__.py": files.read_text(WHEEL_INIT).encode(),
            LIBRARY_NAME: built,
            "manifest.json": files.dump_json(manifest).encode(),
            "kernels.csv": to_csv(table[0], UNTIMED).encode(),
        }
        summary = f"flashladder {request.subject.label}: {iteration.title}"
        wheel.assemble(scratch, request.subject.package, __version__, summary, members)
        outputs = outputs_of(scratch, [path for path in scratch.rglob("*") if path.is_file()])
        files.write_atomic(scratch / "manifest.json", files.dump_json(manifest | outputs | {"git": git_revision()}))
        scratch.chmod(0o755)
        if request.folder.exists():
            shutil.rmtree(request.folder)
        scratch.replace(request.folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _kernel(
    scratch: Path, request: Request, config: KernelConfig, entries: Entries, toolchain: Toolchain, log: library.Log
) -> library.Kernel:
    """Copies one configuration's files from the store into its folder, and packs its fatbin."""
    unit, family = entries[config, request.arches[0]].ptx_entry, request.iteration.family
    folder = scratch / config.slug()
    folder.mkdir()
    shutil.copyfile(unit.source, folder / "kernel.cu")
    ptx = Path(shutil.copyfile(unit.ptx, folder / "kernel.ptx"))
    cubins = {
        arch: Path(shutil.copyfile(entries[config, arch].cubin, folder / f"kernel.{arch}.cubin"))
        for arch in request.arches
    }
    packed = library.fatbin(folder, (ptx, family.targets.ptx), cubins, toolchain, log)
    return config, packed.relative_to(scratch), family.for_plan(request.iteration.parts, config)


def _manifest(request: Request, entries: Entries, inputs: Mapping[str, object]) -> dict[str, object]:
    """The wheel's manifest; the same for the same inputs: no path, no time, no commit."""
    from flashladder.machine_code.cubin import read_cubin  # its ELF reader takes longer to load than all else

    kernels: dict[str, dict[str, dict[str, object]]] = {}
    for (config, arch), entry in entries.items():
        usage = entry.usage
        kernels.setdefault(config.short_form(), {})[arch] = {
            "text_sha256": read_cubin(entry.cubin).text_sha256,
            "ptx_sha256": ptx_sha256(read_ptx(entry.ptx)),
            **{name: getattr(usage, name) for name in ("registers", "spill_stores", "spill_loads")},
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
        "inputs_digest": files.sha256(files.dump_json(inputs)),
    }


def git_revision() -> str | None:
    """The commit of the checkout, with ``+changes`` if files differ from it; None outside a repository."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+changes"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


class BuildResult(NamedTuple):
    """A build's wheel, whose folder holds everything else, its ptxas table, and whether nothing had to be made."""

    wheel: Path
    rows: list[PtxasRow]
    up_to_date: bool


def build_iteration(
    subject: int | str,
    arch: str | None = None,
    configs: str = "prog",
    *,
    debug: bool = False,
    n_jobs: int | None = None,
    install: bool = True,
    cuda: str = "",
) -> BuildResult:
    """Builds iteration `subject` unless it is up to date, and installs its wheel in this environment.

    Args:
        subject: an iteration's number, or an ablation such as ``16 - swizzle``.
        arch: ``sm_80`` or several separated by commas; None for the GPU present, else ``sm_80``.
        configs: a selection key: prog, a100, tune, all, ``"64,64"`` ...
        debug: compile with -G -O0 for cuda-gdb.
        n_jobs: compilers at once; None for one per CPU.
        install: install the wheel and import it; False leaves the environment alone.
        cuda: CUDA version of the compiler's wheels, installed if it is not here; empty for the pinned one.
    """
    request = make_request(subject, arch, configs, debug=debug, cuda=cuda)
    running = f"another build of {request.subject.label} is running"
    with file_errors(request.folder.parent), entry_lock(request.folder.parent, 0.0, running):
        toolchain, torch = find_toolchain(), library.torch_version()  # before anything is compiled
        compiler = wheel.toolchain_of(request.cuda) if request.cuda else toolchain
        pairs = [(config, arch) for config in request.configs for arch in request.arches]
        jobs = [(request.iteration, *pair) for pair in pairs]
        compiled = compile_many(jobs, n_jobs, toolchain=compiler, debug=debug)
        entries = dict(zip(pairs, compiled, strict=True))
        inputs = inputs_of(request, entries, toolchain, torch, compiler)
        digest = files.sha256(files.dump_json(inputs))
        rows, warnings = table_rows(jobs, compiled)
        if not (up_to_date := is_fresh(request.folder, digest)):
            make(request, entries, toolchain, inputs, (rows, warnings))
        made = request.folder / wheel.wheel_name(request.subject.package, __version__)
        if install:
            _install(request, made, digest)
    return BuildResult(made, rows, up_to_date)


def _install(request: Request, made: Path, digest: str) -> None:
    """Installs the wheel and checks that it imports, unless both are done already in this environment.

    A file per interpreter, beside the builds, records a check that passed. A check that failed runs again.
    """
    interpreter = files.sha256(f"{sys.executable}\n{sys.version}")
    passed = request.folder.parent / f".imports-{interpreter[:12]}"
    if wheel.installed_digest(request.subject.package) != digest:
        passed.unlink(missing_ok=True)
        wheel.install(made)
    elif passed.is_file() and passed.read_bytes() == digest.encode():
        return
    wheel.check_import(request.subject.package, [config.short_form() for config in request.configs])
    files.write_atomic(passed, digest)


def make_request(subject: int | str, arch: str | None, key: str, *, debug: bool = False, cuda: str = "") -> Request:
    """Checks the arguments and selects the configurations; warns when this machine's GPU would have to compile PTX.

    An iteration, ablation, architecture, selection or toolchain that does not exist is an error.
    """
    iteration, cuda = load_description(str(subject)), load_pins().axis(cuda)
    arches = arches_of(iteration, arch)
    configs = select_configs(iteration, key)
    if not configs:
        where, hint = f"iteration {iteration.description}", "try --configs prog"
        raise FlashladderError("no configuration is selected", where=where, found=key, hint=hint)
    present = gpu_arch()
    if present is not None and (iteration.family.targets.serving(present) or present) not in arches:
        print(
            f"warning: the GPU here is {present}, but the machine code is for {', '.join(arches)}: its driver must "
            f"compile the PTX{f' of CUDA {cuda}' * bool(cuda)}; --arch {','.join([*arches, present])} builds for both",
            file=sys.stderr,
        )
    return Request(iteration, key, tuple(configs), arches, debug, cuda)


def build_all(options: argparse.Namespace) -> None:
    """Builds every iteration that is not up to date, with all CPUs; prints a line for each, and installs none.

    All kernels are compiled in one pass, so that no CPU waits while another one finishes an iteration.
    """
    started, asked = time.monotonic(), {"debug": options.debug, "cuda": options.toolchain}
    numbers = [iteration.number for iteration in load_all()]
    requests = [make_request(number, options.arch, options.configs, **asked) for number in numbers]
    toolchain, torch = find_toolchain(), library.torch_version()
    compiler = wheel.toolchain_of(requests[0].cuda) if requests[0].cuda else toolchain
    plans = {one.iteration.family.plan for one in requests}
    jobs = [(one.iteration, config, arch) for one in requests for config in one.configs for arch in one.arches]
    with file_errors(BUILD), ThreadPoolExecutor(options.jobs or default_jobs()) as pool:
        hosts = pool.submit(lambda: [library.host_objects(toolchain, plan) for plan in plans])
        compile_many(jobs, options.jobs, toolchain=compiler, debug=options.debug)
        hosts.result()
        say(f"{len(jobs)} kernels compiled ({time.monotonic() - started:.0f} s, torch {torch}); now their wheels")
        make_one = partial(build_iteration, arch=options.arch, configs=options.configs, install=False, **asked)
        for number, built in zip(numbers, pool.map(make_one, numbers), strict=True):
            say(f"iteration {number}: {'up to date' if built.up_to_date else 'built'}: {files.relative(built.wheel)}")
    say(f"{len(numbers)} iterations in {time.monotonic() - started:.0f} s")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; exit code 2 and one line when something is wrong."""
    started, example = time.monotonic(), "7 --arch sm_90 --configs prog --debug"
    parser = module_parser("build", "Builds one iteration's wheel.", example, is_task=True)
    parser.add_argument("subject", nargs="*", metavar="ITERATION", help=STEP)
    parser.add_argument("--all", action="store_true", help="every iteration's wheel; installs none")
    parser.add_argument("--arch", help=ARCHES)
    parser.add_argument("--configs", default="prog", metavar="KEY", help=f"{CONFIGS} (default: prog)")
    parser.add_argument("--debug", action="store_true", help="compile with -G -O0 for cuda-gdb")
    parser.add_argument("--toolchain", default="", metavar="VERSION", help="CUDA version of the compiler's wheels")
    parser.add_argument("--jobs", type=whole, help="compilers at once (default: one per CPU)")
    parser.add_argument("--no-install", action="store_true", help="leave this environment as it is")
    options = parser.parse_args(arguments)
    if options.all == bool(options.subject):
        parser.error("give one iteration, or --all")
    if options.all:
        build_all(options)
        return
    result = build_iteration(
        " ".join(options.subject),
        options.arch,
        options.configs,
        debug=options.debug,
        n_jobs=options.jobs,
        install=not options.no_install,
        cuda=options.toolchain,
    )
    if not result.up_to_date:
        print(render(result.rows, (), terminal_width()), end="")
    seconds = time.monotonic() - started
    state = f"up to date ({seconds:.1f} s)" if result.up_to_date else f"built in {seconds:.1f} s"
    size = result.wheel.stat().st_size / 1024
    subject = parse_subject(" ".join(options.subject), options.toolchain)
    print(f"{subject.label}: {state}: {files.relative(result.wheel)} ({size:.0f} KiB)")
    place = "not installed" if options.no_install else f"installed in {files.relative(Path(sys.prefix))}"
    check = f"check {subject.number}{'' if gpu_arch() else ' --backend emulator'}"
    advice = f"; next: invoke {f'emulate {subject.text!r}' if subject.sign else check}"
    print(f"{place}{'' if subject.cuda else advice}")  # no such command takes another compiler's kernel
