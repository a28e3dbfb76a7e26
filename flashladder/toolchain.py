"""The compiler: its pinned versions, where its programs are, how it is run, and what a failed run means.

``configs/toolchain.yaml`` pins versions, architectures and flags (`load_pins`). The wheels that it names put the whole
CUDA toolchain under ``site-packages/nvidia/cu13``; only a C++ compiler must be on the machine. A missing or differing
wheel is an error that says what to install. A CUDA install on PATH is never used, and its settings never reach a
compiler that came with a wheel (`clean_environment`). A failed run is one line that says what to do (`diagnose`).

``invoke nvcc own.cu --arch sm_90`` compiles your CUDA C++ to PTX with the pinned compiler, for ``ptxemu own.ptx``
(`compile_and_tell`): flags are those of the kernels without ``--use_fast_math``.
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
import signal
import subprocess
import sys
import tempfile

from pydantic import BaseModel, ConfigDict

from flashladder.errors import FlashladderError
from flashladder.files import output_file, relative, write_atomic
from flashladder.located import read_located, validate
from flashladder.names import DEFAULT_ARCH
from flashladder.paths import BUILD, CARRIED, CONFIGS, ROOT


class Flags(BaseModel):
    """Flags of one tool: of every build, and of a release or a debug build."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    all: tuple[str, ...]
    release: tuple[str, ...]
    debug: tuple[str, ...]


class Pins(BaseModel):
    """``configs/toolchain.yaml`` as data: exact versions, architectures and flags (without -arch, -I, -ccbin).

    `arches` are what GPUs are called; `own_arches` is machine code that runs on one of them alone, from PTX of its own.
    `others` maps the CUDA versions of the toolchain axis to the packages that differ from the pinned ones.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cuda: str
    packages: dict[str, str]
    torch: str
    arches: tuple[str, ...]
    own_arches: tuple[str, ...]
    ptx_arch: str
    nvcc_flags: Flags
    ptxas_flags: Flags
    others: dict[str, dict[str, str]] = {}

    def flags(self, tool: str, *, debug: bool) -> tuple[str, ...]:
        """The flags of `tool` ("nvcc" or "ptxas") for a release or a debug build."""
        table = self.nvcc_flags if tool == "nvcc" else self.ptxas_flags
        return table.all + (table.debug if debug else table.release)

    def axis(self, cuda: str) -> str:
        """`cuda` on the toolchain axis: itself, or empty for the pinned version, however it is said.

        Raises:
            FlashladderError: no compiler of that version is pinned.
        """
        if cuda in ("", self.cuda):
            return ""
        if cuda not in self.others:
            raise FlashladderError(
                "no toolchain of this CUDA version is pinned",
                where="configs/toolchain.yaml",
                expected=f"one of {', '.join([self.cuda, *self.others])}",
                found=cuda,
            )
        return cuda


@functools.cache
def load_pins(path: Path = CONFIGS / "toolchain.yaml") -> Pins:
    """Reads the pins. Raises `FlashladderError`: the file is missing, is not YAML, or does not hold them."""
    return validate(Pins, read_located(path))


HOST_COMPILERS = ("g++", "c++", "clang++")
INSTALL_HOST_COMPILER = (
    "install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++) or set CXX to its path"
)

COMPILERS = ("bin/nvcc", "bin/ptxas")
READERS = ("bin/fatbinary", "bin/cuobjdump", "bin/nvdisasm")
NVCC_READS = (  # and runs, as ``nvcc -ptx --dryrun`` says; beside it the host compiler (`host_compiler`)
    *("nvvm/bin/cicc", "bin/nvcc.profile", "nvvm/libdevice/libdevice.10.bc"),
    *("include/cuda_runtime.h", "include/crt/host_config.h"),
)


@dataclass(frozen=True)
class Toolchain:
    """The pinned CUDA tools of the current environment.

    Attributes:
        root: ``site-packages/nvidia/cu13``.
        cuxxfilt: ``cu++filt`` where a wheel carries it, else the host's ``c++filt``; may not exist, see `demangle`.
        versions: wheel name -> version, as installed (and equal to the pins).
    """

    root: Path
    nvcc: Path
    ptxas: Path
    fatbinary: Path
    cuobjdump: Path
    nvdisasm: Path
    cuxxfilt: Path
    versions: Mapping[str, str]


def find_toolchain(folder: Path | None = None, cuda: str = "") -> Toolchain:
    """The CUDA tools of the current environment, checked against the pins.

    Args:
        folder: where the compiler of another CUDA version is installed (`flashladder.build.wheel`); what
            only reads or packs machine code stays the environment's, so that nothing but the compiler differs.
        cuda: that version, ``13.1``.

    Raises:
        FlashladderError: a wheel is missing, has another version, or lacks one of its programs.
    """
    pins = load_pins()
    _require_versions(pins.packages, {name: _installed(name) for name in pins.packages})
    root = _cuda_root(pins)
    _require_files(pins, root, (*COMPILERS, *READERS, *NVCC_READS))
    tools = {Path(name).name: root / name for name in (*COMPILERS, *READERS)}
    filt = root / "bin" / "cu++filt"
    demangler = filt if filt.is_file() else Path(shutil.which("c++filt") or filt)
    own = Toolchain(root=root, **tools, cuxxfilt=demangler, versions=pins.packages)
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
        raise FlashladderError(
            "the CUDA toolchain of this environment is not the pinned one",
            where="configs/toolchain.yaml",
            expected=", ".join(f"{name}=={wanted[name]}" for name in wrong),
            found=", ".join(f"{name} {found[name] or 'missing'}" for name in wrong),
            hint="run: pip install "
            + ("'flashladder[build]'" if ROOT == CARRIED else " ".join(f"{name}=={wanted[name]}" for name in wrong)),
        )


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
        raise FlashladderError(
            "the CUDA toolchain wheels are recorded as installed, but files are missing",
            expected=f"the file {missing}",
            hint="run: pip install --force-reinstall "
            + " ".join(f"{name}=={version}" for name, version in pins.packages.items()),
        )


def demangle(text: str, toolchain: Toolchain) -> str:
    """`text` (a log, a listing) with C++ symbol names made readable.

    Raises:
        FlashladderError: no demangler is on this machine.
    """
    try:
        done = subprocess.run([toolchain.cuxxfilt], input=text, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise FlashladderError(
            "no working demangler", where=toolchain.cuxxfilt, hint="install binutils, which has c++filt"
        ) from error
    return done.stdout


def host_compiler() -> Path:
    """The C++ compiler that nvcc preprocesses with: $CXX, else the first of g++, c++, clang++ on PATH.

    Raises:
        FlashladderError: there is none, or $CXX does not name a program.
    """
    wanted = os.environ.get("CXX", "").strip()
    found = next(filter(None, map(shutil.which, [wanted] if wanted else HOST_COMPILERS)), None)
    if found:
        return Path(found)
    raise FlashladderError(
        "CXX does not name a C++ compiler" if wanted else "no C++ compiler found, and nvcc needs one to preprocess",
        expected="one program without arguments" if wanted else f"one of {', '.join(HOST_COMPILERS)} on PATH, or CXX",
        found=wanted or None,
        hint=INSTALL_HOST_COMPILER,
    )


@functools.cache
def host_compiler_version(compiler: Path) -> str:
    """First line of ``compiler --version``: part of every PTX key, because its headers are.

    Raises:
        FlashladderError: the compiler does not run.
    """
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise FlashladderError("the C++ compiler does not run", where=compiler, hint=INSTALL_HOST_COMPILER) from error
    return done.stdout.partition("\n")[0].strip()


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
    """`arch` itself. Raises `FlashladderError`: ptxas is not asked for it anywhere."""
    known = load_pins().arches + load_pins().own_arches
    if arch not in known:
        raise FlashladderError(
            "unknown GPU architecture",
            expected="one of " + ", ".join(known),
            found=arch or "nothing",
            hint="use sm_80 for an A100, sm_86 for an RTX 30xx, sm_89 for an RTX 40xx, sm_90 for an H100 or H200",
        )
    return arch


FOREIGN_ENV = (
    *("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"),
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "GCC_EXEC_PREFIX", "CCC_OVERRIDE_OPTIONS"),
)


def clean_environment(scratch: Path) -> dict[str, str]:
    """The caller's environment without foreign CUDA settings, in English, with temporary files in `scratch`."""
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN_ENV}
    return kept | {"LC_ALL": "C", "TMPDIR": str(scratch.resolve())}


FEWER_JOBS = "use fewer jobs (--jobs 1), or a machine with more memory"
FREE_SPACE = "free space there and run the same command again: finished entries are kept"
LEAST_FREE_BYTES = 16 * 2**20  # with less, a tool that fails most likely failed to write, whatever it says

_DISK_FULL = re.compile(r"no space left on device|disk quota exceeded|Internal error: writing file", re.IGNORECASE)


# What a compiler prints about some trouble of the machine; the message; what to do.
_RULES = (
    (
        re.compile(r"died due to signal 9|Killed signal terminated program|\bKilled$", re.MULTILINE),
        "{tool} was killed (signal 9): the machine most likely ran out of memory",
        FEWER_JOBS,
    ),
    (
        re.compile(r"unsupported .*?(?:version|compiler|configuration)![^!\n]*", re.IGNORECASE),
        "the host C++ compiler is not one that nvcc supports",
        "install an older one and name it: CXX=/usr/bin/g++-14",
    ),
    (
        re.compile(
            r".*Failed to preprocess host compiler properties.*|.*cannot execute .*cc1plus.*|.*cc1plus: No such file.*"
            r"|nvcc fatal\s*: (?:Cannot find compiler|Host compiler targets unsupported OS).*"
        ),
        "nvcc could not run the host C++ compiler",
        "check that it works ({compiler} --version), reinstall it, or set CXX to another",
    ),
    (
        re.compile(r"undefined reference to [`'](?:std::|operator (?:new|delete)|vtable for (?:std|__cxxabiv1)).*"),
        "the host compiler does not link the C++ library",
        "set CXX to a C++ compiler, such as g++ or clang++, or unset it",
    ),
    (
        re.compile(
            r"Unsupported gpu architecture '[^']+'|Value '[^']+' is not defined for option 'gpu-name'"
            r"|SM version specified by \.target is higher than.*"
        ),
        "{tool} does not know this GPU architecture, or it is older than the PTX",
        "choose one of `arches` in configs/toolchain.yaml",
    ),
)
_ERROR_LINES = (
    re.compile(
        r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.+)$", re.MULTILINE
    ),
    re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+)(?::\d+)?: (?:fatal )?error: (?P<text>.+)$", re.MULTILINE),
    re.compile(r"^ptxas (?P<file>.+), line (?P<line>\d+); error\s*: (?P<text>.+)$", re.MULTILINE),
)
_PART = re.compile(r"\[with Part=(?P<part>.+?)\]\"?(?: at line|$)", re.MULTILINE)
_ANY_ERROR = re.compile(r"^.*\b(?:error|fatal)\b.*$", re.MULTILINE | re.IGNORECASE)


def run_tool(command: Sequence[str | Path], folder: Path, scratch: Path) -> tuple[int, str]:
    """Runs a compiler in `folder`, with its temporary files in `scratch`: exit code, and all that it printed."""
    environment = clean_environment(scratch)
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.returncode, done.stdout.decode(errors="replace")


def diagnose(tool: str, returncode: int, text: str, log: Path, folder: Path) -> FlashladderError:
    """The error to raise for a tool that failed: the first rule that knows it, from the machine's to the source's.

    Args:
        tool: its name, "nvcc" or "ptxas".
        returncode: as `subprocess` reports it, negative for a signal.
        text: everything it printed.
        log: the file that holds `text`.
        folder: the folder it ran in, to which the paths in its messages are relative.
    """
    text = text.replace("\0", "")  # which no path can hold
    if _DISK_FULL.search(text) or _is_full(folder):
        return disk_full(folder)
    killed = returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}
    for pattern, what, remedy in _RULES:
        match = pattern.search(text)
        if match or (killed and remedy is FEWER_JOBS):
            found = match[0].strip() if match else None
            hint = remedy.format(compiler=os.environ.get("CXX", "").strip() or "g++")
            return FlashladderError(what.format(tool=tool), where=_shown(log), found=found, hint=hint)
    hint = f"the full log is {_shown(log)}"
    errors = [match for match in (pattern.search(text) for pattern in _ERROR_LINES) if match]
    if first := min(errors, key=lambda match: match.start(), default=None):
        where = f"{relative((folder / first['file']).resolve())}:{first['line']}"
        part = _part(folder, text[first.end() :])
        return FlashladderError(f"{tool}: {first['text'].strip()}", where=where, found=part, hint=hint)
    ended = f"exit code {returncode}" if returncode >= 0 else f"signal {-returncode}"
    said = _ANY_ERROR.search(text) or re.search(r"\S.*", text)
    found = said[0].strip() if said else "no output"
    return FlashladderError(f"{tool} failed with {ended}", found=found, hint=hint)


def _shown(log: Path) -> str:
    """A log's path that leads there from where the person is: absolute outside the checkout's root."""
    return relative(log) if Path.cwd() == ROOT else str(log.resolve())


def disk_full(where: Path) -> FlashladderError:
    """The error for a disk that has no space left, found while building in `where`.

    It names the folder for temporary files where that one is full and `where` is not.
    """
    temporary = Path(os.environ.get("TMPDIR") or tempfile.gettempdir())  # which passes over one that is full
    if _is_full(temporary) and not _is_full(where):
        hint = "free space there, or set TMPDIR to a folder on another disk"
        return FlashladderError("the disk of the folder for temporary files is full", where=temporary, hint=hint)
    return FlashladderError("the disk is full", where=relative(where), hint=FREE_SPACE)


def _is_full(folder: Path) -> bool:
    """Whether the disk of a folder, or of the one that it will be made in, has less than a compiler needs."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    return shutil.disk_usage(there).free < LEAST_FREE_BYTES


def _part(folder: Path, context: str) -> str | None:
    """The part of a kernel that breaks a contract (kernels/ampere/contracts.cuh), if that is the first error.

    nvcc names it by the alias in the translation unit, which says what the alias stands for.
    """
    match = _PART.search(context.partition("error:")[0])
    if match is None:
        return None
    unit = folder / "kernel.cu"
    text = unit.read_text(encoding="utf-8", errors="replace") if unit.is_file() else ""
    named = re.search(rf"using {re.escape(match['part'].removeprefix('Kernel::'))} = ([^;]+);", text)
    return named[1] if named else match["part"]


FAST_MATH = "--use_fast_math"
SOURCES = (".cu", ".cc", ".cpp", ".cxx", ".c")  # what nvcc compiles, by the end of the name
LOG = BUILD / "nvcc.log"


def compile_file(source: Path, arch: str = DEFAULT_ARCH, out: Path | None = None) -> Path:
    """Compiles a CUDA C++ file to PTX; the PTX file, beside the source unless `out` names it.

    Raises:
        FlashladderError: no such file, a bad `arch`, no toolchain, or nvcc refused (the line says where).
    """
    if source.suffix == ".ptx":
        hint = f"run it with `ptxemu {as_word(source)}`"
        raise FlashladderError("PTX is compiled already", where=str(source), expected="a CUDA C++ file", hint=hint)
    if not source.is_file() or source.suffix not in SOURCES:
        what = "a folder" if source.is_dir() else "not a CUDA C++ file" if source.is_file() else "no such file"
        expected = f"a CUDA C++ file, whose name ends in {SOURCES[0]}"
        raise FlashladderError(what, where=str(source), expected=expected)
    if not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
        raise FlashladderError("bad --arch", expected="for example sm_80", found=repr(arch))
    target = output_file(str(out or source.with_suffix(".ptx")), ".ptx")
    if not target.parent.is_dir():
        raise FlashladderError("bad --out", expected="a file in a folder that exists", found=repr(str(target)))
    toolchain, host = find_toolchain(), host_compiler()
    flags = [flag for flag in load_pins().flags("nvcc", debug=False) if flag != FAST_MATH]
    include = toolchain.root / "include" / "cccl"  # CUB and libcu++
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "out.ptx"
        arguments = ["-ptx", f"-arch=compute_{arch[3:]}", "-ccbin", str(host), f"-I{include}", *flags]
        command = [str(toolchain.nvcc), *arguments, str(source.resolve()), "-o", str(made)]
        code, text = run_tool(command, source.resolve().parent, Path(scratch))
        if code:
            raise diagnose("nvcc", code, text, write_atomic(LOG, text), source.resolve().parent)
        if text.strip():
            print(text.strip(), file=sys.stderr)  # warnings
        return write_atomic(target, made.read_bytes())


def as_word(path: Path) -> str:
    """A path as a command line takes it: in quotes where needed, never like an option."""
    name = str(path)
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def compile_and_tell(file: str, arch: str, out: str = "") -> None:
    """``invoke nvcc``: compiles, and says where the PTX is and what to do with it; `out` as of `compile_file`."""
    if not file.strip():
        raise FlashladderError("no file is named", expected="a CUDA C++ file", found=repr(file))
    made = compile_file(Path(file), arch, Path(out) if out else None)
    if ".entry" not in made.read_text(encoding="utf-8", errors="replace"):
        hint = "define a __global__ function, or instantiate its template"
        print(f"{made}; no kernel is in it: no __global__ function of {file} was compiled; {hint}")
        return
    print(f"{made}; run it with `ptxemu {as_word(made)} --grid 1 --block 32 --arg ...`")
