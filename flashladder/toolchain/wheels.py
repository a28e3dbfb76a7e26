"""The compiler: its pinned versions, and where nvcc, ptxas, ninja and the host compiler are.

``configs/toolchain.yaml`` pins versions, architectures and flags (`load_pins`). The wheels that it names put the whole
CUDA toolchain under ``site-packages/nvidia/cu13``; only a C++ compiler must be on the machine. A missing or differing
wheel is an error that says what to install. A CUDA install on PATH is never used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
import functools
import importlib
from importlib import metadata
import importlib.util
import os
from pathlib import Path
import shutil
import subprocess
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.paths import CARRIED, CONFIGS, ROOT


@dataclass(frozen=True)
class Pins:
    """``configs/toolchain.yaml`` as data: exact versions, architectures and flags (without -arch, -I, -ccbin).

    `arches` are what GPUs are called; `own_arches` is machine code that runs on one of them alone, from PTX of its own.
    `others` maps the CUDA versions of the toolchain axis to the packages that differ from the pinned ones.
    """

    cuda: str
    packages: Mapping[str, str]
    torch: str
    arches: tuple[str, ...]
    own_arches: tuple[str, ...]
    ptx_arch: str
    nvcc_flags: Mapping[str, tuple[str, ...]]
    ptxas_flags: Mapping[str, tuple[str, ...]]
    others: Mapping[str, Mapping[str, str]]

    @property
    def code_arches(self) -> tuple[str, ...]:
        """All that ptxas makes machine code for."""
        return (*self.arches, *self.own_arches)

    def flags(self, tool: str, *, debug: bool) -> tuple[str, ...]:
        """The flags of `tool` ("nvcc" or "ptxas") for a release or a debug build."""
        table = {"nvcc": self.nvcc_flags, "ptxas": self.ptxas_flags}[tool]
        return table["all"] + table["debug" if debug else "release"]

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
    """Reads the pins.

    Raises:
        FlashladderError: the file is missing, is not YAML, or lacks a key.
    """
    from flashladder.located import read_located

    data: Mapping[str, Any] = read_located(path).data
    try:
        return Pins(
            cuda=str(data["cuda"]),
            packages=_versions(data["packages"]),
            torch=str(data["torch"]),
            arches=tuple(data["arches"]),
            own_arches=tuple(data["own_arches"]),
            ptx_arch=str(data["ptx_arch"]),
            others={str(cuda): _versions(packages) for cuda, packages in data.get("others", {}).items()},
            **{
                tool: {kind: tuple(data[tool][kind]) for kind in ("all", "release", "debug")}
                for tool in ("nvcc_flags", "ptxas_flags")
            },
        )
    except KeyError as error:
        raise FlashladderError(f"missing key {error}", where=relative(path)) from error
    except (TypeError, AttributeError) as error:
        raise FlashladderError("the toolchain pins are malformed", where=relative(path), found=error) from error


def _versions(packages: Mapping[object, object]) -> dict[str, str]:
    return {str(name): str(version) for name, version in packages.items()}


HOST_COMPILERS = ("g++", "c++", "clang++")
INSTALL_HOST_COMPILER = (
    "install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++) or set CXX to its path"
)

COMPILERS = ("nvcc", "ptxas", "fatbinary")
READERS = ("cuobjdump", "nvdisasm")
NVCC_RUNS = ("nvvm/bin/cicc",)  # of its own; beside it the host compiler (`host_compiler`)
NVCC_READS = (
    *("bin/nvcc.profile", "nvvm/libdevice/libdevice.10.bc"),
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
    tools = {name: _program(pins, root, f"bin/{name}") for name in (*COMPILERS, *READERS)}
    _require_parts(pins, root)
    own = Toolchain(root=root, **tools, cuxxfilt=_demangler(root), versions=dict(pins.packages))
    if folder is None:
        return own
    wanted = pins.others[cuda]
    found = {found.name: found.version for found in metadata.distributions(path=[str(folder)])}
    _require_versions(wanted, {name: found.get(name) for name in wanted})
    root = folder / "nvidia" / root.name
    nvcc, ptxas = (_program(pins, root, f"bin/{name}") for name in ("nvcc", "ptxas"))
    _require_parts(pins, root)
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
    """``nvidia/cu13`` of this environment: `nvidia` is a namespace package, so it can have several folders."""
    folder = "cu" + pins.cuda.split(".", maxsplit=1)[0]
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) / folder for place in (spec.submodule_search_locations or ())] if spec else []
    for place in places:
        if (place / "bin" / "nvcc").is_file():
            return place
    raise _incomplete(pins, f"nvidia/{folder}/bin/nvcc", ", ".join(str(place) for place in places) or "no such package")


def _require_parts(pins: Pins, root: Path) -> None:
    """Raises `FlashladderError` where a file is missing that ``nvcc -ptx --dryrun`` says it runs or reads."""
    for name in NVCC_RUNS:
        _program(pins, root, name)
    if missing := [name for name in NVCC_READS if not (root / name).is_file()]:
        raise _incomplete(pins, f"the file {root / missing[0]}", "no such file")


def _program(pins: Pins, root: Path, name: str) -> Path:
    path = root / name
    if path.is_file() and os.access(path, os.X_OK):
        return path
    raise _incomplete(pins, f"the program {path}", "nothing that can be run")


def _incomplete(pins: Pins, expected: str, found: str) -> FlashladderError:
    wheels = " ".join(f"{name}=={version}" for name, version in pins.packages.items())
    what = "the CUDA toolchain wheels are recorded as installed, but files are missing"
    return FlashladderError(what, expected=expected, found=found, hint=f"run: pip install --force-reinstall {wheels}")


def _demangler(root: Path) -> Path:
    path = root / "bin" / "cu++filt"
    return path if path.is_file() else Path(shutil.which("c++filt") or path)


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
    if wanted:
        raise FlashladderError(
            "CXX does not name a C++ compiler",
            expected="one program without arguments",
            found=wanted,
            hint="set CXX to the path of a C++ compiler, or unset it to use g++",
        )
    raise FlashladderError(
        "no C++ compiler found, and nvcc needs one to preprocess",
        expected="one of " + ", ".join(HOST_COMPILERS) + " on PATH, or CXX",
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


def find_ninja() -> Path:
    """ninja, from its wheel or else from PATH.

    Raises:
        FlashladderError: there is none.
    """
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
    """`arch` itself.

    Raises:
        FlashladderError: ptxas is not asked for it anywhere.
    """
    if arch not in load_pins().code_arches:
        raise FlashladderError(
            "unknown GPU architecture",
            expected="one of " + ", ".join(load_pins().code_arches),
            found=arch or "nothing",
            hint="use sm_80 for an A100, sm_86 for an RTX 30xx, sm_89 for an RTX 40xx, sm_90 for an H100 or H200",
        )
    return arch
