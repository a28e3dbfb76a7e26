"""Fixtures of the tests that need a compiler, among them a real host library with empty fatbins, loaded into torch."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
import subprocess
import sys
import tempfile

import pytest

from flashladder.build import library as host_library
from flashladder.build.compile import tools_of
from flashladder.build.library import LIBRARY_NAME, WHEEL_INIT, object_command, table_source, torch_root
from flashladder.errors import FlashladderError
from flashladder.files import sha256
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.families.ampere import FAMILY
from flashladder.ladder.families.hopper import FAMILY as HOPPER
from flashladder.ladder.families.hopper import HopperConfig
from flashladder.ladder.family import Family
from flashladder.paths import BUILD, KERNELS
from flashladder.toolchain import find_toolchain, host_compiler

CONFIGS = (
    KernelConfig.parse("(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"),
    KernelConfig.parse("(BF16, 128, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax"),
)
NAMESPACES = {"flashladder_95": 0, "flashladder_96": 2048}  # row stride: any; that of iteration 16
BY_MAPS = "flashladder_92"  # of the Hopper family, whose tensors are described by maps
MAP_CONFIG = HopperConfig("fp16", 128, 128, 128, 2, 2, 2, 24, 240)
GENERAL = "flashladder_93"  # as from iteration 33 on: a plain kernel and a causal one, of samples and packed sequences
GENERAL_CONFIGS = tuple(
    HopperConfig("fp16", 128, 128, 96, 2, 2, 3, 24, 240, persistent=True, general=True, causal=causal, packed=packed)
    for packed in (False, True)
    for causal in (False, True)
)


@pytest.fixture(scope="session", autouse=True)
def toolchain() -> None:
    """Skips the tests of this folder if the toolchain or the host compiler is missing."""
    try:
        tools_of()
    except FlashladderError as error:
        pytest.skip(f"needs the toolchain: {error}")


def cuda_root() -> Path:
    return find_toolchain().root


def compiled(folder: Path, program: str, *options: str | Path) -> Path:
    """A C++ program that includes the kernels' host sources."""
    source, made = folder / "main.cpp", folder / "program"
    source.write_text(program, encoding="utf-8")
    includes = [f"-I{KERNELS}", "-isystem", f"{cuda_root()}/include"]
    subprocess.run([host_compiler(), "-std=c++17", *includes, *options, source, "-o", made], check=True)
    return made


def compile_libraries(folder: Path) -> None:
    fatbin = folder / "empty.fatbin"
    fatbin.write_bytes(bytes(64))
    commands, objects = [], {}
    for source in {*host_library.host_sources(FAMILY.plan), *host_library.host_sources(HOPPER.plan)}:
        objects[source] = folder / f"{source.parent.name}_{source.stem}.o"
        commands.append(object_command(source, objects[source], cuda_root()))
    kernels = [(config, fatbin, ()) for config in CONFIGS]
    tables: dict[str, tuple[Family, str]] = {
        name: (FAMILY, table_source(name, FAMILY, kernels, ("sm_90", "sm_80"), row_stride))
        for name, row_stride in NAMESPACES.items()
    }
    tables[BY_MAPS] = HOPPER, table_source(BY_MAPS, HOPPER, [(MAP_CONFIG, fatbin, (64, 64))], ("sm_90a",))
    general = [(config, fatbin, (64, 16, 1, 0)) for config in GENERAL_CONFIGS]
    tables[GENERAL] = HOPPER, table_source(GENERAL, HOPPER, general, ("sm_90a",))
    for name, (family, text) in tables.items():
        table, package = folder / f"{name}.cpp", folder / name
        table.write_text(text)
        package.mkdir()
        (package / "__init__.py").write_bytes(WHEEL_INIT.read_bytes())
        commands.append(object_command(table, table.with_suffix(".o"), cuda_root()))
        own = [objects[source] for source in host_library.host_sources(family.plan)]
        commands.append(
            host_library.library_command([*own, table.with_suffix(".o")], package / LIBRARY_NAME, cuda_root())
        )
    for command in commands:
        subprocess.run(command, check=True)


@pytest.fixture(scope="session")
def binding_site() -> Path:
    """A folder with both packages, on sys.path; compiled when their sources, the compiler or torch changed."""
    torch = pytest.importorskip("torch")
    package = Path(host_library.__file__).parent
    sources = [*(KERNELS / "host").iterdir(), KERNELS / FAMILY.plan, KERNELS / HOPPER.plan, Path(__file__)]
    sources.append(KERNELS / "hopper" / "args.cuh")
    sources += [package / name for name in ("library.py", "wheel_template.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    key = sha256(f"{text}{torch.__version__}{torch_root()}{cuda_root()}{host_compiler()}")
    folder = BUILD / "tests" / f"binding-{key[:16]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            compile_libraries(made)
            with contextlib.suppress(OSError):  # another process was faster
                made.rename(folder)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    for name in (*NAMESPACES, BY_MAPS, GENERAL):
        importlib.import_module(name)
    return folder
