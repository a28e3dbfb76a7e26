"""What this machine can do, what it lacks, and what to do about each thing it lacks.

Why: a missing compiler, an old driver or a refused counter should be known before the first build, not after it.
Nothing is changed: clocks are not touched, no kernel is launched, torch is not imported.

Run:
    invoke doctor
    python -m flashladder.gpu.doctor --json
Exit code 0; 2 when the machine can neither compile a kernel nor run one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
import importlib.metadata
import importlib.util
import os
from pathlib import Path
import platform
import re
import shutil
import sys

from flashladder.arguments import parser_of
from flashladder.columns import hanging
from flashladder.commands import COMMANDS
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import dump_json, require_folder_or_nothing
from flashladder.gpu.doctor_gpu import Finding, counters, find_ncu, gpus, privileged, rung
from flashladder.gpu.present import torch_build
from flashladder.paths import BUILD, ROOT

DISK_GB = 8.0  # one torch and toolchain environment is 1.1 GB, all build environments and the store fit in the rest
OLDEST_TORCH = (2, 10)  # first release with the stable ABI that kernels/host/binding.cpp uses


@dataclass(frozen=True)
class Diagnosis:
    """All findings, the rung this machine stands on, and what can be done on it."""

    findings: tuple[Finding, ...]
    rung: str
    can: tuple[str, ...]

    @property
    def useful(self) -> bool:
        """Whether the machine can compile a kernel or run one."""
        return bool(self.can)


def python_version() -> Finding:
    """The interpreter; 3.10 is the oldest supported."""
    found = f"{platform.python_version()} at {sys.executable}"
    return Finding("python", sys.version_info >= (3, 10), found, "install Python 3.10 or newer")


def _lacking(name: str, error: FlashladderError, remedy: str) -> Finding:
    """What `error` says, where, and its hint as the remedy."""
    told = FlashladderError(error.what, where=error.where, expected=error.expected, found=error.found)
    return Finding(name, False, str(told), error.hint or remedy)


def compiler() -> Finding:
    """The host C++ compiler that nvcc and the binding need, with its first version line."""
    from flashladder.toolchain.wheels import host_compiler, host_compiler_version

    try:
        path = host_compiler()
        return Finding("compiler", True, f"{host_compiler_version(path)} at {path}")
    except FlashladderError as error:
        return _lacking("compiler", error, "install g++, or set CXX")


def toolchain() -> Finding:
    """nvcc, ptxas and their friends, from wheels."""
    from flashladder.toolchain.wheels import find_toolchain

    try:
        versions = find_toolchain().versions
    except FlashladderError as error:
        return _lacking("toolchain", error, "run: nox -s dev")
    names = {name: re.sub(r"^nvidia-(cuda-)?", "", name) for name in versions}
    return Finding("toolchain", True, ", ".join(f"{names[name]} {version}" for name, version in versions.items()))


def ninja() -> Finding:
    """The build tool that schedules the compilers."""
    from flashladder.toolchain.wheels import find_ninja

    try:
        return Finding("ninja", True, str(find_ninja()))
    except FlashladderError as error:
        return Finding("ninja", False, "not found", error.hint or "run: pip install ninja")


def tool(name: str, remedy: str) -> Finding:
    """A command that sits beside this interpreter or on PATH."""
    beside = Path(sys.executable).with_name(name)
    path = str(beside) if beside.is_file() else shutil.which(name)
    return Finding(name, path is not None, path or "not found", remedy)


def torch(gpu: bool) -> Finding:
    """Version of torch and the CUDA it was built with."""
    remedy = "run: nox -s dev (or install torch >= 2.10; a CPU build is enough to compile)"
    build = torch_build()
    if build is None:
        return Finding("torch", False, "not installed in this environment", remedy)
    ok = tuple(int(part) for part in re.findall(r"\d+", build.version)[:2]) >= OLDEST_TORCH
    if gpu and not build.cuda:
        found = f"{build.version}, CPU only beside a GPU"
        return Finding("torch", False, found, "install a CUDA build of torch >= 2.10 (on Linux: pip install torch)")
    return Finding("torch", ok, f"{build.version}, " + (f"CUDA {build.cuda}" if build.cuda else "CPU only"), remedy)


def emulator() -> Finding:
    """What runs PTX on the CPU: this package with bfloat16 for NumPy."""
    found = importlib.util.find_spec("ml_dtypes") is not None
    text = f"ml_dtypes {importlib.metadata.version('ml_dtypes')}" if found else "ml_dtypes is not installed"
    return Finding("emulator", found, text, "run: pip install ml-dtypes")


def disk(folder: Path = ROOT, needed_gb: float = DISK_GB) -> Finding:
    """Free space where builds go."""
    build = BUILD if folder == ROOT else folder / "build"
    try:
        require_folder_or_nothing(build)
    except FlashladderError as error:
        return Finding("disk", False, f"{error.where} is {error.found}, where builds need a folder", "remove it")
    place = build if build.is_dir() else folder
    free = shutil.disk_usage(place).free / 1e9
    return Finding(
        "disk", free >= needed_gb, f"{free:.1f} GB free in {place}", f"free space: builds need {needed_gb:g} GB"
    )


def diagnose() -> Diagnosis:
    """Looks at everything; takes about a second."""
    found, gpu, driver = gpus()
    admin = privileged()
    counted = counters(find_ncu(), admin=admin)
    clocks = Finding(
        "clocks", bool(found) and admin, "may be locked (not tried)" if found and admin else "not ours to lock",
        "not needed: ratios are paired, and nothing here changes a clock",
    )  # fmt: skip
    uv = "run: pip install 'nox[uv]' (pip is used without it: slower, and no hard links between environments)"
    findings = (
        python_version(), compiler(), toolchain(), ninja(), torch(bool(found)), emulator(),
        tool("nox", "run: pip install nox"), tool("uv", uv), disk(), gpu, driver, counted, clocks,
    )  # fmt: skip
    ok = {finding.name: finding.ok for finding in findings}
    compiles = ok["compiler"] and ok["toolchain"] and ok["ninja"] and (BUILD.is_dir() or not os.path.lexists(BUILD))
    can = {
        "compile kernels, verify locks": compiles,
        "emulate kernels": compiles and ok["emulator"],
        "build and load torch operators": compiles and ok["torch"],
        "check and time kernels": bool(found) and ok["torch"],
        "profile with ncu": bool(found) and ok["counters"],
    }
    return Diagnosis(findings, rung(bool(found), ok["counters"], ok["clocks"]), tuple(k for k, v in can.items() if v))


def render(diagnosis: Diagnosis) -> str:
    """The diagnosis for people: one line per finding, remedies under what is lacking."""
    lines = []
    for finding in diagnosis.findings:
        lines.append(hanging(f"{'ok     ' if finding.ok else 'lacking'}  {finding.name:9s}  ", finding.found))
        if not finding.ok and finding.remedy:
            lines.append(hanging(f"{'':9s}{'':9s}  -> ", finding.remedy))
    can = (
        "; ".join(diagnosis.can)
        if diagnosis.useful
        else "nothing until a compiler with the toolchain, or a GPU, is here"
    )
    return "\n".join([*lines, "", f"rung     {diagnosis.rung}", hanging("can      ", can)])


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the diagnosis; 2 when nothing can be done here."""
    wants_json = parser_of(COMMANDS["doctor"], "gpu.doctor", "--json").parse_args(argv).json
    diagnosis = diagnose()
    print(dump_json(asdict(diagnosis)).rstrip() if wants_json else render(diagnosis))
    return 0 if diagnosis.useful else 2


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
