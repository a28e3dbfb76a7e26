"""Builds one iteration: compiles its kernels, links them, makes a wheel, installs it and proves that it imports.

Why a wheel per iteration: each is built in an environment of its own, and what was measured is a file with a digest.
The folder ``build/iteration_07/sm_80/`` keeps the wheel, both logs, the ptxas table, PTX and cubin per configuration,
and a manifest of all inputs and outputs; a build whose inputs did not change does nothing.

    nox -s build-iteration-7                                        # in an environment of its own
    python -m flashladder.build 7 --arch sm_90 --configs prog --debug
    python -m flashladder.build "16 - swizzle" --toolchain 13.1     # an ablation, through another compiler

An ablation, and an iteration through another CUDA version's compiler, are wheels of their own name, so that they are
installed beside the ladder's (`flashladder.ladder.subject`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
import errno
import fcntl
import os
from pathlib import Path
import shutil
import sys
import time

from flashladder.arguments import parser_of, whole
from flashladder.build import native, wheel
from flashladder.build.artifacts import Request, inputs_of, is_fresh, make
from flashladder.build.compile import arches_of, compile_many, table_rows
from flashladder.build.other_toolchains import toolchain_of
from flashladder.build.ptxas_table import render
from flashladder.columns import terminal_width
from flashladder.commands import COMMANDS
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import dump_json, make_folder, relative, require_file_or_nothing, sha256, write_atomic
from flashladder.ladder.ablation import load_description
from flashladder.ladder.selection import select_configs
from flashladder.ladder.subject import parse_subject
from flashladder.machine_code.ptxas import PtxasRow
from flashladder.toolchain.errors import disk_full
from flashladder.toolchain.pins import load_pins
from flashladder.toolchain.wheels import find_toolchain, gpu_arch
from flashladder.version import __version__

NEEDED_BYTES = 200 * 2**20  # what one iteration's store entries, library and wheel take at most, with room to spare


@dataclass(frozen=True)
class BuildResult:
    """What a build left.

    Attributes:
        folder: the folder of all files.
        wheel: the wheel in it.
        rows: the ptxas table, one row per configuration and architecture.
        up_to_date: nothing had changed, so nothing was made.
        seconds: wall-clock time of this call.
    """

    folder: Path
    wheel: Path
    rows: tuple[PtxasRow, ...]
    up_to_date: bool
    seconds: float


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
    """Builds iteration `subject`, or finds that it is built, and installs its wheel in this environment.

    Args:
        subject: an iteration's number, or an ablation such as ``16 - swizzle``.
        arch: ``sm_80`` or several separated by commas; None for the GPU present, else ``sm_80``.
        configs: a selection key: prog, a100, tune, all, ``"64,64"`` ...
        debug: compile with -G -O0 for cuda-gdb.
        n_jobs: compilers at once; None for one per CPU.
        install: install the wheel and import it; False leaves the environment alone.
        cuda: CUDA version of the compiler's wheels, installed if it is not here; empty for the pinned one.

    Raises:
        FlashladderError: bad arguments, a missing tool, another build of this iteration, a full disk, or a
            failed compiler.
    """
    started = time.monotonic()
    request = make_request(subject, arch, configs, debug=debug, cuda=cuda)
    with _disk_errors(request.folder.parent), _exclusive(request):
        toolchain, torch = find_toolchain(), native.torch_version()
        compiler = toolchain_of(request.cuda)
        entries = compile_many(request.jobs, n_jobs, toolchain=compiler, debug=debug)
        inputs = inputs_of(request, entries, toolchain, torch, compiler)
        digest = sha256(dump_json(inputs))
        rows, warnings = table_rows(request.jobs, entries)
        up_to_date = is_fresh(request.folder, digest)
        if not up_to_date:
            make(request, entries, toolchain, inputs, (rows, warnings))
        made = request.folder / wheel.wheel_name(request.name, __version__)
        if install:
            _install(request, made, digest)
    return BuildResult(request.folder, made, tuple(rows), up_to_date, time.monotonic() - started)


def _install(request: Request, made: Path, digest: str) -> None:
    """Installs the wheel unless it is, and checks that it imports unless a check of it has passed in this environment.

    What passed is noted beside the builds, in a file per interpreter: a check that failed is made again.
    """
    interpreter = sha256(f"{sys.executable}\n{sys.version}")
    passed = request.folder.parent / f".imports-{interpreter[:12]}"
    if wheel.installed_digest(request.name) != digest:
        passed.unlink(missing_ok=True)
        wheel.install(made)
    elif passed.is_file() and passed.read_bytes() == digest.encode():
        return
    wheel.check_import(request.name, [config.short_form() for config in request.configs])
    write_atomic(passed, digest)


def make_request(subject: int | str, arch: str | None, key: str, *, debug: bool = False, cuda: str = "") -> Request:
    """Checks the arguments and selects the configurations; warns when this machine's GPU would have to compile PTX.

    Raises:
        FlashladderError: no such iteration, ablation, architecture, selection or toolchain.
    """
    iteration, cuda = load_description(str(subject)), load_pins().axis(cuda)
    arches = arches_of(iteration, arch)
    configs = select_configs(iteration, key)
    if not configs:
        raise FlashladderError(
            "no configuration is selected",
            where=f"iteration {iteration.description}",
            found=key,
            hint="try --configs prog",
        )
    present = gpu_arch()
    if present is not None and (iteration.family.targets.serving(present) or present) not in arches:
        print(
            f"warning: the GPU here is {present}, but the machine code is for {', '.join(arches)}: its driver must "
            f"compile the PTX{f' of CUDA {cuda}' * bool(cuda)}; --arch {','.join([*arches, present])} builds for both",
            file=sys.stderr,
        )
    return Request(iteration, key, tuple(configs), arches, debug, cuda)


@contextmanager
def _exclusive(request: Request) -> Iterator[None]:
    """Holds the iteration against another build of it; does not wait.

    Raises:
        FlashladderError: another build of this iteration is running.
    """
    folder = request.folder.parent
    require_file_or_nothing(folder / ".lock")
    with (folder / ".lock").open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            raise FlashladderError(
                f"another build of {request.subject.label} is running",
                where=relative(folder),
                found=f"process {stream.read().strip() or 'unknown'}",
                hint="wait for it, or end it; then run the same command again",
            ) from error
        stream.truncate(0)
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Makes `folder`; turns a full disk, before and while building, and other trouble with files into one line."""
    try:
        make_folder(folder)
        free = shutil.disk_usage(folder).free
        if free < NEEDED_BYTES:
            raise FlashladderError(
                "too little disk space for a build",
                where=relative(folder),
                expected=f"{NEEDED_BYTES // 2**20} MiB free",
                found=f"{free // 2**20} MiB",
                hint="free space, or set FLASHLADDER_ROOT to a checkout on another disk",
            )
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise disk_full(folder) from error
        if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
            raise FlashladderError(
                f"the build folder cannot be written ({error.strerror})",
                where=relative(folder),
                found=error.filename,
                hint="fix its permissions, or set FLASHLADDER_ROOT to a checkout that you can write",
            ) from error
        raise FlashladderError(f"the build could not use a file ({error})", where=relative(folder)) from error


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        COMMANDS["build"], "build", "7 --arch sm_90 --configs prog --debug",
        iteration={"dest": "subject", "nargs": "+"}, configs={"metavar": "KEY"}, toolchain={"metavar": "VERSION"},
    )  # fmt: skip
    parser.add_argument("--jobs", type=whole, help="compilers at once (default: one per CPU)")
    parser.add_argument("--no-install", action="store_true", help="leave this environment as it is")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; exit code 2 and one line when something is wrong."""
    options = _parser().parse_args(arguments)
    with one_line_errors():
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
        state = "nothing has changed" if result.up_to_date else "built"
        size = result.wheel.stat().st_size / 1024
        label = parse_subject(" ".join(options.subject), options.toolchain).label
        print(f"{label}: {state} in {result.seconds:.1f} s: {relative(result.wheel)} ({size:.0f} KiB)")
    return 0
