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
from flashladder.toolchain.errors import diagnose, run_tool
from flashladder.toolchain.wheels import find_toolchain, host_compiler, load_pins

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
    if not source.is_file():
        what = "a folder" if source.is_dir() else "no such file"
        raise FlashladderError(what, where=str(source), expected="a CUDA C++ file")
    if source.suffix not in SOURCES:
        raise FlashladderError("not a CUDA C++ file", where=str(source), expected=f"a name that ends in {SOURCES[0]}")
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
        if code and "Unsupported gpu architecture" in text:
            raise _unknown(arch, toolchain.nvcc)
        if code:
            raise diagnose("nvcc", code, text, write_atomic(LOG, text), source.resolve().parent)
        if text.strip():
            print(text.strip(), file=sys.stderr)  # warnings
        return write_atomic(target, made.read_bytes())


def as_word(path: Path) -> str:
    """A path as a command line takes it: in quotes where needed, never like an option."""
    name = relative(path)
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def _unknown(arch: str, nvcc: Path) -> FlashladderError:
    """The error for an architecture that this nvcc does not make PTX for; it is asked which ones it does."""
    listed = subprocess.run([str(nvcc), "--list-gpu-arch"], capture_output=True, text=True, check=False).stdout
    known = ", ".join(f"sm_{name.removeprefix('compute_')}" for name in listed.split())
    return FlashladderError("nvcc does not know this --arch", expected=f"one of {known}", found=arch)


def compile_and_tell(file: str, arch: str, out: str = "") -> None:
    """``invoke nvcc``: compiles, and says where the PTX is and what to do with it; `out` as of `compile_file`."""
    if not file.strip():
        raise FlashladderError("no file is named", expected="a CUDA C++ file", found=repr(file))
    made = compile_file(Path(file), arch, Path(out) if out else None)
    if ".entry" not in made.read_text(encoding="utf-8", errors="replace"):
        print(f"{relative(made)}; no kernel is in it: nothing in {file} is __global__")
        return
    print(f"{relative(made)}; run it with `ptxemu {as_word(made)} --grid 1 --block 32 --arg ...`")
