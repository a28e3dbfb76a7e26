"""The host half of a built library: the commands that compile and link it, and the Python file beside it.

`binding.cpp` and `launch.cpp` are compiled once and linked with each iteration's generated table
(`flashladder.build.kernel_table`). Neither needs nvcc: a host C++ compiler, torch's headers and the CUDA runtime's
headers and static library from the toolchain wheels are all. `flashladder.build.command` runs these commands; so does
tests/nvcc.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from flashladder.errors import FlashladderError
from flashladder.files import read_text
from flashladder.paths import KERNELS, ROOT

HOST_SOURCES = (KERNELS / "host" / "binding.cpp", KERNELS / "host" / "launch.cpp")
LIBRARY_NAME = "_C.abi3.so"
WHEEL_INIT = Path(__file__).with_name("wheel_template.py")
# The oldest torch that loads the library: major in the top byte, minor in the next (torch/csrc/stable/version.h).
TORCH_TARGET_VERSION = "0x020a000000000000"

COMPILE_FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
    f"-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}",
)
# The libraries of all iterations and torch's own CUDA runtime share one process: nothing of ours, nor of the static
# runtime, may be exported, or the first library loaded would answer for all. torch itself is found already loaded, by
# its soname.
LINK_FLAGS = ("-shared", "-Wl,-Bsymbolic", "-Wl,--exclude-libs,ALL", "-Wl,-z,defs", "-Wl,--no-as-needed")


def sources(plan: str) -> tuple[Path, ...]:
    """What a library of a family is made of beside its table: `HOST_SOURCES` and the family's `plan`."""
    return (*HOST_SOURCES, KERNELS / plan)


def torch_root() -> Path:
    """The folder of the installed torch package, found without importing it.

    Raises:
        FlashladderError: torch is not installed here.
    """
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise FlashladderError("torch is not installed", expected="torch 2.10 or later", hint="pip install torch")
    return Path(next(iter(spec.submodule_search_locations)))


def object_command(source: Path, output: Path, *, compiler: Path, cuda_root: Path, torch: Path) -> list[str]:
    """The command that compiles one host source (`HOST_SOURCES` or a generated table) to an object file.

    `cuda_root` holds `include/` and `lib/` of the CUDA runtime; `torch` is `torch_root()`. Third-party headers are
    system headers, so that warnings as errors concern our own code only.
    """
    prefixes = [f"-ffile-prefix-map={ROOT}=.", f"-ffile-prefix-map={torch}=torch"]  # no machine paths inside
    includes = [f"-I{KERNELS}", "-isystem", str(torch / "include"), "-isystem", str(cuda_root / "include")]
    return [str(compiler), *COMPILE_FLAGS, *prefixes, *includes, "-c", str(source), "-o", str(output)]


def library_command(objects: list[Path], output: Path, *, compiler: Path, cuda_root: Path, torch: Path) -> list[str]:
    """The command that links host objects and one table into the library that torch loads."""
    libraries = [f"-L{torch / 'lib'}", "-ltorch", "-ltorch_cpu", f"-L{cuda_root / 'lib'}", "-lcudart_static"]
    system = ["-Wl,--as-needed", "-lpthread", "-ldl", "-lrt"]
    return [str(compiler), *LINK_FLAGS, *map(str, objects), *libraries, *system, "-o", str(output)]


def wheel_init() -> str:
    """The text of `flashladder_NN/__init__.py`, the same for every iteration."""
    return read_text(WHEEL_INIT)
