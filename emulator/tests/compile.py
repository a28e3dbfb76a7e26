"""Compiles CUDA files with the compiler's wheels (``pip install ./emulator[nvcc]``); PTX is kept in ``build/tests``.

The name of a result is the digest of all that decides it: the text, the headers, the options, the versions of the
wheels and of the host compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
import hashlib
from importlib import metadata
import os
from pathlib import Path
import subprocess
import tempfile

from ptxemu.nvcc import host_compiler, toolkit

BUILD = Path(__file__).parents[1] / "build" / "tests"
PACKAGES = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
PARTS = ("bin/nvcc", "bin/ptxas", "nvvm/bin/cicc", "include/cuda_runtime.h", "include/cccl")
FAST = ("-std=c++17", "--use_fast_math", "-lineinfo")
NEEDS = "needs `pip install ./emulator[nvcc]` and a C++ compiler"  # where `root` is None
LEAKS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")


host = cache(host_compiler)


@cache
def root() -> Path | None:
    """The toolkit of the wheels; None where a part of it or the host compiler is missing."""
    found = toolkit()
    return found if found and host() and all((found / part).exists() for part in PARTS) else None


def tool(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs ``nvcc`` or ``ptxas``, without options from the environment."""
    environment = {key: value for key, value in os.environ.items() if key not in LEAKS}
    command = [f"{root()}/bin/{name}", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def ptx(
    source: Path,
    flags: Sequence[str] = FAST,
    *,
    arch: str = "sm_90a",
    headers: Iterable[Path] | None = None,
    text: str | None = None,
) -> str:
    """The PTX of a CUDA file.

    Args:
        source: the file; its folder is searched for headers, as are CUB's and libcu++'s.
        flags: further options of nvcc.
        arch: the virtual or real architecture.
        headers: the files that it includes, part of the digest; None: ``*.cuh`` in its folder.
        text: what to compile instead of the file's own text, such as a changed one.

    Raises:
        AssertionError: nvcc refuses the file; the message holds its log.
    """
    texts = [text or source.read_text(encoding="utf-8")]
    texts += [each.read_text(encoding="utf-8") for each in headers or sorted(source.parent.glob("*.cuh"))]
    decides = "\0".join([*texts, source.name, arch, *flags, *_versions()])
    target = BUILD / hashlib.sha256(decides.encode()).hexdigest() / f"{source.stem}.ptx"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            unit, out = Path(folder, source.name) if text else source, Path(folder, target.name)
            if text:
                unit.write_text(text, encoding="utf-8")
            include = [f"-I{each}" for each in (source.parent, f"{root()}/include/cccl")]
            done = tool("nvcc", "-ptx", f"-arch={arch}", *flags, *include, f"-ccbin={host()}", unit, "-o", out)
            assert done.returncode == 0, done.stderr
            out.replace(target)
    return target.read_text(encoding="utf-8")


def ptx_of_all(sources: Iterable[Path], flags: Sequence[str] = FAST) -> None:
    """Compiles several files at once, so that `ptx` finds them."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda source: ptx(source, flags), sources))


@cache
def _versions() -> tuple[str, ...]:
    compiler = subprocess.run([str(host()), "--version"], capture_output=True, text=True, check=True).stdout
    return (*map(metadata.version, PACKAGES), compiler.partition("\n")[0])
