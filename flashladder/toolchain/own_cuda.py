"""``invoke nvcc FILE.cu``: your CUDA C++ to PTX with the pinned compiler, for ``ptxemu FILE.ptx``.

Why: the wheels hold nvcc in a folder that nobody has in PATH, and it needs a host compiler, its own headers and an
environment without other CUDAs. Flags are those of the kernels without ``--use_fast_math``: C++17, line table.

Run: invoke nvcc own.cu --arch sm_90 --out own.ptx
"""

from __future__ import annotations

from pathlib import Path
import re
import shlex
import subprocess
import sys
import tempfile

from flashladder.errors import FlashladderError
from flashladder.files import output_file, relative, write_atomic
from flashladder.names import DEFAULT_ARCH
from flashladder.paths import BUILD
from flashladder.toolchain.environment import clean_environment
from flashladder.toolchain.errors import Failure, diagnose
from flashladder.toolchain.wheels import find_toolchain, host_compiler, load_pins

FAST_MATH = "--use_fast_math"
LOG = BUILD / "nvcc.log"


def compile_file(source: Path, arch: str = DEFAULT_ARCH, out: Path | None = None) -> Path:
    """Compiles a CUDA C++ file to PTX; the PTX file, beside the source unless `out` names it.

    Raises:
        FlashladderError: no such file, a bad `arch`, no toolchain, or nvcc refused (the line says where).
    """
    if source.suffix == ".ptx":
        hint = f"run it with `ptxemu {shlex.quote(str(source))}`"
        raise FlashladderError("PTX is compiled already", where=str(source), expected="a CUDA C++ file", hint=hint)
    if not source.is_file():
        raise FlashladderError("no such file", where=str(source), expected="a CUDA C++ file")
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
        done = subprocess.run(
            [str(toolchain.nvcc), *arguments, str(source.resolve()), "-o", str(made)],
            cwd=source.resolve().parent,
            env=clean_environment(Path(scratch)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        text = done.stdout.decode(errors="replace")
        if done.returncode and "Unsupported gpu architecture" in text:
            raise _unknown(arch, toolchain.nvcc)
        if done.returncode:
            log = write_atomic(LOG, text)
            raise diagnose(Failure("nvcc", done.returncode, text, log, source.resolve().parent))
        if text.strip():
            print(text.strip(), file=sys.stderr)  # warnings
        return write_atomic(target, made.read_bytes())


def _unknown(arch: str, nvcc: Path) -> FlashladderError:
    """The error for an architecture that this nvcc does not make PTX for; it is asked which ones it does."""
    listed = subprocess.run([str(nvcc), "--list-gpu-arch"], capture_output=True, text=True, check=False).stdout
    known = ", ".join(f"sm_{name.removeprefix('compute_')}" for name in listed.split())
    return FlashladderError("nvcc does not know this --arch", expected=f"one of {known}", found=arch)


def compile_and_tell(file: str, arch: str, out: str = "") -> None:
    """``invoke nvcc``: compiles, and says where the PTX is and what to do with it; `out` as of `compile_file`."""
    made = compile_file(Path(file), arch, Path(out) if out else None)
    print(f"{relative(made)}; run it with `ptxemu {shlex.quote(relative(made))} --grid 1 --block 32 --arg ...`")
