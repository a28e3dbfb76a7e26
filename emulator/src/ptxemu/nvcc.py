"""CUDA C++ to PTX with nvcc: from the wheels of ``pip install 'ptxemu[nvcc]'``, else from PATH.

The wheels put a CUDA toolkit under ``site-packages/nvidia/cu13``; a host C++ compiler must be on the machine: ``$CXX``
if that is set, else g++, c++ or clang++. Extra options go into nvcc's own ``NVCC_APPEND_FLAGS='-Iinclude -DTILE=64'``.
"""

from __future__ import annotations

from collections.abc import Sequence
import importlib.util
import os
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile

from ptxemu.errors import PtxemuError, printable

HOST_COMPILERS = ("g++", "c++", "clang++")
SHELL = frozenset('$`"')  # nvcc writes paths in double quotes into lines that a shell runs
FLAGS = ("-ptx", "-std=c++17", "-lineinfo")  # the line table: reports name CUDA lines
PROGRAM_FLAGS = ("-std=c++17", "-lineinfo", "-no-compress")


def compile_file(source: Path, arch: str) -> str:
    """The PTX of a CUDA C++ file for an architecture such as ``sm_80``; what nvcc prints goes to stderr.

    Where stderr is a terminal, a line there says what is being compiled until it is done.

    Raises:
        PtxemuError: there is no nvcc or no host compiler here, nvcc refuses the file, or a path is not safe with nvcc.
    """
    options = [*FLAGS, f"-arch=compute_{arch.removeprefix('sm_')}"]
    with tempfile.TemporaryDirectory(prefix="ptxemu-") as folder:
        made = _compiled(source, arch, options, Path(folder) / "kernel.ptx")
        return made.read_text(encoding="utf-8")


def compile_program(source: Path, arch: str, folder: Path, libraries: Path) -> Path:
    """The program of a CUDA C++ file with a main function, in a folder; its kernels are PTX for `arch` alone.

    `libraries` has the libraries ``libcudart.so`` and ``libcuda.so`` that it is linked with.

    Raises:
        PtxemuError: as of `compile_file`.
    """
    number = arch.removeprefix("sm_")
    code = ("-gencode", f"arch=compute_{number},code=compute_{number}")
    options = [*PROGRAM_FLAGS, *code, "-cudart", "shared", "-cudadevrt", "none", f"-L{libraries}", "-lcuda"]
    return _compiled(source, arch, options, folder / source.stem)


def _compiled(source: Path, arch: str, options: Sequence[str], made: Path) -> Path:
    """Calls nvcc, whose own temporary files lie beside what it makes."""
    command = [*_nvcc(source), *options, str(source.resolve()), "-o", str(made)]
    if unsafe := next((word for word in command if set(word) & SHELL), None):
        what = "nvcc would run a part of this path as a shell command"
        raise PtxemuError(what, where=source, expected="a path without $, ` and double quotes", found=unsafe)
    waiting = sys.stderr is not None and sys.stderr.isatty()
    if waiting:
        print(f"compiling {printable(source.name)} with nvcc", end="", file=sys.stderr, flush=True)
    try:
        environment = os.environ | {
            "TMPDIR": str(made.parent)
        }  # the user's may be none: nvcc would fail, Python goes on
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    finally:
        if waiting:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
    for line in done.stdout.decode(errors="replace").splitlines():
        print(printable(line.expandtabs()), file=sys.stderr)
    if done.returncode:
        what = f"nvcc could not compile it for {arch} (exit code {done.returncode})"
        raise PtxemuError(what, where=source, hint=f"this nvcc is {command[0]}")
    if not made.is_file():
        raise PtxemuError("nvcc made nothing of it", where=source, hint="see $NVCC_APPEND_FLAGS and its like")
    return made


def toolkit() -> Path | None:
    """The folder of the wheels' CUDA toolkit, ``site-packages/nvidia/cu13``; None where it has no nvcc."""
    spec = importlib.util.find_spec("nvidia")  # a namespace package: it can have several folders
    places = [Path(place) / "cu13" for place in (spec and spec.submodule_search_locations) or ()]
    return next((root for root in places if os.access(root / "bin" / "nvcc", os.X_OK)), None)


def host_compiler() -> str | None:
    """The path of a C++ compiler: ``$CXX``, else the first of `HOST_COMPILERS` on PATH; None where there is none.

    Raises:
        PtxemuError: ``$CXX`` is set to something else than a program.
    """
    own = os.environ.get("CXX")
    if own and not shutil.which(own):
        raise PtxemuError("bad $CXX", expected="the name or path of a C++ compiler, without options", found=repr(own))
    return next(filter(None, map(shutil.which, [own] if own else HOST_COMPILERS)), None)


def _nvcc(source: Path) -> list[str]:
    """How nvcc is called: its path, and options that its origin needs."""
    if root := toolkit():
        return [str(root / "bin" / "nvcc"), f"-I{root / 'include' / 'cccl'}", *_host_option(source)]
    if found := shutil.which("nvcc"):
        return [found, *_host_option(source)]
    hint = "run: pip install 'ptxemu[nvcc]', or put nvcc of a CUDA toolkit on PATH"
    raise PtxemuError("there is no nvcc here to compile CUDA C++", where=source, hint=hint)


def _host_option(source: Path) -> list[str]:
    """The option that names the host compiler; none where nvcc's own variable does."""
    if os.environ.get("NVCC_CCBIN"):
        return []
    if found := host_compiler():
        return ["-ccbin", found]
    expected = f"$CXX, or one of {', '.join(HOST_COMPILERS)} on PATH"
    hint = "install one, for example: apt install g++"
    raise PtxemuError("nvcc needs a C++ compiler", where=source, expected=expected, hint=hint)
