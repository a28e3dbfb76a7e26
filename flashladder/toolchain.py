"""The compiler: its pinned versions, and where its programs are.

``configs/toolchain.yaml`` pins versions, architectures and flags (`load_pins`). The pinned wheels put the whole CUDA
toolchain under ``site-packages/nvidia/cu13``; only a C++ compiler must be on the machine. A CUDA install on PATH is
never used, and its settings never reach a compiler that came with a wheel.

``invoke nvcc own.cu --arch sm_90`` compiles your CUDA C++ to PTX with the pinned compiler, for ``ptxemu own.ptx``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
import functools
import importlib
from importlib import metadata
import os
from pathlib import Path
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from pydantic import BaseModel, ConfigDict

from flashladder.errors import FlashladderError
from flashladder.files import output_file, write_atomic
from flashladder.located import read_located, validate
from flashladder.names import DEFAULT_ARCH
from flashladder.paths import BUILD, CARRIED, CONFIGS, ROOT
from flashladder.tool_runs import diagnose, run_tool


class Flags(BaseModel):
    """Flags of one tool for every build, and those that a release or a debug build adds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    all: tuple[str, ...]
    release: tuple[str, ...]
    debug: tuple[str, ...]


class Pins(BaseModel):
    """``configs/toolchain.yaml`` as data: exact versions, architectures and flags (without -arch, -I, -ccbin)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cuda: str
    packages: dict[str, str]
    torch: str
    arches: tuple[str, ...]  # of GPUs
    own_arches: tuple[str, ...]  # such as sm_90a: machine code that runs on that GPU only and has its own PTX
    ptx_arch: str
    nvcc_flags: Flags
    ptxas_flags: Flags
    others: dict[str, dict[str, str]] = {}  # other CUDA versions to the packages that differ from the pinned ones

    def flags(self, tool: str, *, debug: bool) -> tuple[str, ...]:
        """The flags of `tool` ("nvcc" or "ptxas") for a release or a debug build."""
        table = self.nvcc_flags if tool == "nvcc" else self.ptxas_flags
        return table.all + (table.debug if debug else table.release)

    def axis(self, cuda: str) -> str:
        """`cuda` itself if it is one of `others`; empty for the pinned version; `FlashladderError` for any other."""
        if cuda in ("", self.cuda):
            return ""
        if cuda not in self.others:
            what, expected = "no toolchain of this CUDA version is pinned", ", ".join([self.cuda, *self.others])
            raise FlashladderError(what, where="configs/toolchain.yaml", expected=f"one of {expected}", found=cuda)
        return cuda


@functools.cache
def load_pins(path: Path = CONFIGS / "toolchain.yaml") -> Pins:
    """Reads the pins. Raises `FlashladderError` if the file is missing, is not YAML, or lacks a key."""
    return validate(Pins, read_located(path))


HOST_COMPILERS = ("g++", "c++", "clang++")
INSTALL_HOST_COMPILER = (
    "install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++) or set CXX to its path"
)

COMPILERS = ("bin/nvcc", "bin/ptxas")
READERS = ("bin/fatbinary", "bin/cuobjdump", "bin/nvdisasm")
NVCC_READS = (  # or runs, as ``nvcc -ptx --dryrun`` shows; without the host compiler
    *("nvvm/bin/cicc", "bin/nvcc.profile", "nvvm/libdevice/libdevice.10.bc"),
    *("include/cuda_runtime.h", "include/crt/host_config.h"),
)


@dataclass(frozen=True)
class Toolchain:
    """The pinned CUDA tools of the current environment."""

    root: Path  # ``site-packages/nvidia/cu13``
    nvcc: Path
    ptxas: Path
    fatbinary: Path
    cuobjdump: Path
    nvdisasm: Path
    versions: Mapping[str, str]  # by wheel, as installed


def find_toolchain(folder: Path | None = None, cuda: str = "") -> Toolchain:
    """The CUDA tools of the current environment, checked against the pins.

    `folder` holds the compiler of another CUDA version, `cuda` (`flashladder.build.wheel`). The tools that only read or
    pack machine code stay the environment's, so that only the compiler differs.
    Raises `FlashladderError`: a wheel is missing, has another version, or lacks one of its programs.
    """
    pins = load_pins()
    _require_versions(pins.packages, {name: _installed(name) for name in pins.packages})
    root = _cuda_root(pins)
    _require_files(pins, root, (*COMPILERS, *READERS, *NVCC_READS))
    tools = {Path(name).name: root / name for name in (*COMPILERS, *READERS)}
    own = Toolchain(root=root, **tools, versions=pins.packages)
    if folder is None:
        return own
    wanted = pins.others[cuda]
    found = {found.name: found.version for found in metadata.distributions(path=[str(folder)])}
    _require_versions(wanted, {name: found.get(name) for name in wanted})
    root = folder / "nvidia" / root.name
    _require_files(pins, root, (*COMPILERS, *NVCC_READS))
    nvcc, ptxas = (root / name for name in COMPILERS)
    return replace(own, root=root, nvcc=nvcc, ptxas=ptxas, versions={**own.versions, **wanted})


def _require_versions(wanted: Mapping[str, str], found: Mapping[str, str | None]) -> None:
    wrong = [name for name, version in wanted.items() if version != found[name]]
    if wrong:
        pinned = [f"{name}=={wanted[name]}" for name in wrong]
        what, where = "the CUDA toolchain of this environment is not the pinned one", "configs/toolchain.yaml"
        installed = ", ".join(f"{name} {found[name] or 'missing'}" for name in wrong)
        hint = "run: pip install " + ("'flashladder[build]'" if ROOT == CARRIED else " ".join(pinned))
        raise FlashladderError(what, where=where, expected=", ".join(pinned), found=installed, hint=hint)


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cuda_root(pins: Pins) -> Path:
    """``site-packages/nvidia/cu13`` of this environment."""
    folder = "nvidia/cu" + pins.cuda.partition(".")[0]
    return Path(str(metadata.distribution("nvidia-cuda-nvcc").locate_file(folder)))


def _require_files(pins: Pins, root: Path, names: Sequence[str]) -> None:
    if missing := next((root / name for name in names if not (root / name).is_file()), None):
        what = "the CUDA toolchain wheels are recorded as installed, but files are missing"
        wheels = " ".join(f"{name}=={version}" for name, version in pins.packages.items())
        hint = f"run: pip install --force-reinstall {wheels}"
        raise FlashladderError(what, expected=f"the file {missing}", hint=hint)


def host_compiler() -> Path:
    """The C++ compiler for nvcc: $CXX, else the first of `HOST_COMPILERS` on PATH; `FlashladderError`: none."""
    wanted = os.environ.get("CXX", "").strip()
    if found := next(filter(None, map(shutil.which, [wanted] if wanted else HOST_COMPILERS)), None):
        return Path(found)
    what, expected = "CXX does not name a C++ compiler", "one program without arguments"
    if not wanted:
        what = "no C++ compiler found, and nvcc needs one to preprocess"
        expected = f"one of {', '.join(HOST_COMPILERS)} on PATH, or CXX"
    raise FlashladderError(what, expected=expected, found=wanted or None, hint=INSTALL_HOST_COMPILER)


@functools.cache
def host_compiler_version(compiler: Path) -> str:
    """First line of ``compiler --version``, a part of every PTX key; `FlashladderError`: it does not run."""
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise FlashladderError("the C++ compiler does not run", where=compiler, hint=INSTALL_HOST_COMPILER) from error
    return done.stdout.partition("\n")[0].strip()


def find_ninja() -> Path:
    """ninja, from its wheel or else from PATH; `FlashladderError` if there is none."""
    try:
        found = shutil.which("ninja", path=str(importlib.import_module("ninja").BIN_DIR))
    except ImportError:
        found = None
    found = found or shutil.which("ninja")
    if found is None:
        raise FlashladderError("ninja, which schedules the compilers, was not found", hint="run: pip install ninja")
    return Path(found)


def gpu_arch() -> str | None:
    """``sm_XY`` of GPU 0, asked of NVML; None on a machine without a GPU."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(nvml.nvmlDeviceGetHandleByIndex(0))
        nvml.nvmlShutdown()
    except nvml.NVMLError:
        return None
    return f"sm_{major}{minor}"


def require_arch(arch: str) -> str:
    """`arch` itself. Raises `FlashladderError` if the toolchain's pins do not name it."""
    known = load_pins().arches + load_pins().own_arches
    if arch not in known:
        expected, found = f"one of {', '.join(known)}", arch or "nothing"
        hint = "use sm_80 for an A100, sm_86 for an RTX 30xx, sm_89 for an RTX 40xx, sm_90 for an H100 or H200"
        raise FlashladderError("unknown GPU architecture", expected=expected, found=found, hint=hint)
    return arch


FAST_MATH = "--use_fast_math"
SOURCES = (".cu", ".cc", ".cpp", ".cxx", ".c")  # endings of the files that nvcc compiles
LOG = BUILD / "nvcc.log"


def compile_file(source: Path, arch: str = DEFAULT_ARCH, out: Path | None = None) -> Path:
    """Compiles a CUDA C++ file to PTX, beside it unless `out` names a file; with the kernels' flags but `FAST_MATH`.

    Raises `FlashladderError`: no such file, a bad `arch`, no toolchain, or nvcc refused (the line says where).
    """
    if source.suffix == ".ptx":
        hint = f"run it with `ptxemu {as_word(source)}`"
        raise FlashladderError("PTX is compiled already", where=source, expected="a CUDA C++ file", hint=hint)
    if not source.is_file() or source.suffix not in SOURCES:
        what = "a folder" if source.is_dir() else "not a CUDA C++ file" if source.is_file() else "no such file"
        expected = f"a CUDA C++ file, whose name ends in {SOURCES[0]}"
        raise FlashladderError(what, where=source, expected=expected)
    if not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
        raise FlashladderError("bad --arch", expected="for example sm_80", found=repr(arch))
    target = output_file(str(out or source.with_suffix(".ptx")), ".ptx")
    if not target.parent.is_dir():
        raise FlashladderError("bad --out", expected="a file in a folder that exists", found=repr(str(target)))
    toolchain, folder = find_toolchain(), source.resolve().parent
    flags = [flag for flag in load_pins().flags("nvcc", debug=False) if flag != FAST_MATH]
    flags += ["-ccbin", str(host_compiler()), f"-I{toolchain.root / 'include' / 'cccl'}"]  # CUB and libcu++
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "out.ptx"
        files = [str(source.resolve()), "-o", str(made)]
        command = [str(toolchain.nvcc), "-ptx", f"-arch=compute_{arch[3:]}", *flags, *files]
        code, text = run_tool(command, folder, Path(scratch))
        if code:
            raise diagnose("nvcc", code, text, write_atomic(LOG, text), folder)
        if text.strip():
            print(text.strip(), file=sys.stderr)  # warnings
        return write_atomic(target, made.read_bytes())


def as_word(path: Path) -> str:
    """A path as a word of a command line: quoted if necessary, and never like an option."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def compile_and_tell(file: str, arch: str, out: str = "") -> None:
    """``invoke nvcc``: `compile_file`, then a line that says where the PTX is and how to run it."""
    if not file.strip():
        raise FlashladderError("no file is named", expected="a CUDA C++ file", found=repr(file))
    made = compile_file(Path(file), arch, Path(out) if out else None)
    if ".entry" in made.read_text(encoding="utf-8", errors="replace"):
        print(f"{made}; run it with `ptxemu {as_word(made)} --grid 1 --block 32 --arg ...`")
    else:
        hint = "define a __global__ function, or instantiate its template"
        print(f"{made}; no kernel is in it: no __global__ function of {file} was compiled; {hint}")
