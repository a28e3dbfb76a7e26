"""``invoke bundle``: one file for a node without network.

GPU nodes are often behind no network; they have Python, torch and a driver, and no compiler. The file holds everything
else under the identity that it has here: wheels of the iterations, the pipeline and its Python packages, PTX for the
emulator, grids, locks, an SBOM, and a runner.

    invoke bundle --arch sm_90 --python 3.12              # all iterations, here; on the node: python3 BUNDLE.pyz
    invoke bundle --iterations 16 --out /tmp

Exit code: 0, or 2 where it could not be made. The same checkout, toolchain and options give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from email.message import Message
from email.parser import BytesParser
import importlib.util
import io
import os
from pathlib import Path
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from typing import Any
import uuid
import zipfile

from tqdm import tqdm

from flashladder.build.command import build_iteration
from flashladder.build.compile import ptx_many, tools_of
from flashladder.build.store import TOOLS_FILE
from flashladder.build.wheel import EPOCH, EPOCH_SECONDS
from flashladder.bundle import runner
from flashladder.columns import told_on_terminal
from flashladder.errors import FlashladderError, require_checkout
from flashladder.files import (
    dump_json,
    files_in,
    make_folder,
    read_text,
    relative,
    require_folder_or_nothing,
    sha256,
    write_atomic,
)
from flashladder.ladder.ablation import load_description, parse_subject
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.grid import Grid, grid_names, load_grid
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.ladder.selection import select_configs
from flashladder.names import __version__
from flashladder.paths import BUILD, ROOT, path_of
from flashladder.sweep.place import covering_key
from flashladder.sweep.plan import wanted
from flashladder.toolchain import Pins, load_pins, require_arch

UNASKED = ("cpu", "smoke")  # grids of a node without a GPU, and with a model that has none of its own
PYTHONS = tuple(f"3.{minor}" for minor in range(10, 15))
KEY = "prog"  # what is built of every iteration: its configuration on each GPU, in both dtypes
LOCK = ROOT / "requirements" / "node.txt"
KEPT = BUILD / "bundle"  # packages that were fetched once
MACHINE = "x86_64"
# pip takes a platform literally: a node of glibc 2.28 runs the wheels of all of these.
PLATFORMS = tuple(
    f"manylinux{version}_{MACHINE}"
    for version in ("_2_28", "_2_27", "_2_24", "_2_17", "2014", "_2_12", "2010", "_2_5", "1")
)
LINKED = "nvidia-cuda-runtime"  # its static library is part of every iteration's
# What the pipeline's wheels are made of: the packages, what setup.py carries along, what the metadata names.
SOURCES = (
    "flashladder", "configs", "iterations", "kernels", "requirements", "results/locks", "results/published",
    "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py", "tasks.py",
    "emulator/LICENSE", "emulator/README.md", "emulator/pyproject.toml", "emulator/src",
)  # fmt: skip
Kernel = tuple[str, str, str]
"""A subject as it describes itself, the CUDA version of its compiler (empty: the pinned one), a short form."""


TEXT = """\
{name}

One file of flashladder, for a machine without network. It needs Linux on x86-64 with glibc 2.28 or newer, Python
{pythons}, and torch 2.10 or newer for that Python; for timings an NVIDIA GPU ({arches}) with a driver for CUDA 13 (580
or newer). It installs nothing: what is in it is checked against MANIFEST.json and unpacked into a folder beside it, and
only that folder and the one that --out names are written.

    python3 {name}.pyz                                  measures: the grid of the GPU here, `cpu` without one
    python3 {name}.pyz sweep --grid smoke --out results
    python3 {name}.pyz sweep --dry-run                  what would be measured, and for how long
    python3 {name}.pyz check 7                          is a kernel right on this GPU?
    python3 {name}.pyz bench 7                          one iteration alternating with FA2
    python3 {name}.pyz doctor                           what this machine can do
    python3 {name}.pyz --into /scratch/me check 7       unpacks elsewhere

A sweep leaves GRID.json.gz in the folder that --out names (default: flashladder-results). That file is all that must be
carried home: `invoke verify GRID.json.gz` there checks it. Run again, a sweep goes on where it stopped.

Grids that run from this bundle: {grids}.
Iterations: {numbers}.
What it is made of, with licences: sbom.cdx.json.
"""


def bundle(
    *, arch: str = "", python: str = "", iterations: str = "", grid: str = "", platform: str = "", out: str = ""
) -> None:
    """Builds what is missing, fetches what is not kept, writes the bundle.

    Args:
        arch: ``sm_80,sm_90``: the GPUs; all where it is empty, as in the next four.
        python: ``3.11,3.12``: the node's; this one's where it is empty.
        iterations: ``7,16``.
        grid: grids whose kernels come along beyond the ladder's.
        platform: tags of wheels that the node takes.
        out: the folder of the bundle.

    Raises:
        FlashladderError: it could not be made.
    """
    require_checkout("bundle")
    numbers, pythons = numbers_of(iterations), pythons_of(python)
    arches = [require_arch(word) for word in words(arch)] or list(load_pins().arches)
    tags = platforms(words(platform))
    folder = path_of(out) if out else BUILD / "bundle"
    require_folder_or_nothing(folder)
    kernels = collect(numbers, [load_grid(word) for word in words(grid)], arches)
    with tempfile.TemporaryDirectory() as scratch:
        own = [*own_wheels(Path(scratch)), *kernels.wheels]
        install = {python: [*own, *packages(python, tags)] for python in pythons}
        with told_on_terminal("writing the bundle ..."):
            made = make(kernels, install, arches, numbers, folder)
    data = made.read_bytes()
    print(f"{relative(made)}: {len(data) / 1e6:.1f} MB, sha256 {sha256(data)}")
    if warned := lacking(grids_that_run(kernels, arches)):
        print(warned, file=sys.stderr)
    print(f"on the node, with Python {' or '.join(pythons)} and torch: python3 {made.name} --help")


def words(text: str) -> list[str]:
    """Words with commas between, each once."""
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def numbers_of(text: str) -> list[int]:
    """Iterations, each the number of one; all where `text` is empty.

    Raises:
        FlashladderError: there is no such iteration.
    """
    if not text:
        return [iteration.number for iteration in load_all()]
    _refuse(words(text), "[0-9]{1,3}", "--iterations takes numbers, commas between")
    return [load_iteration(int(word)).number for word in words(text)]


def pythons_of(text: str) -> list[str]:
    """Python versions, by default this one's.

    Raises:
        FlashladderError: the pipeline does not run on one of them.
    """
    found = words(text) or [".".join(map(str, sys.version_info[:2]))]
    _refuse(found, "|".join(map(re.escape, PYTHONS)), "no such Python is supported", ", ".join(PYTHONS))
    return found


def platforms(given: Sequence[str] = ()) -> tuple[str, ...]:
    """The platform tags whose wheels a node takes: those given, else of glibc 2.28 and older on x86-64.

    Raises:
        FlashladderError: a tag is none of Linux on x86-64, for which the iterations' wheels are.
    """
    known, expected = rf"(manylinux(_[0-9]+_[0-9]+|1|2010|2014)|linux)_{MACHINE}", f"manylinux_X_Y_{MACHINE}"
    _refuse(given, known, "no platform of Linux on x86-64", f"{expected} or linux_{MACHINE}")
    return tuple(given) or PLATFORMS


def _refuse(found: Iterable[str], known: str, what: str, expected: str | None = None) -> None:
    if wrong := [word for word in found if not re.fullmatch(known, word)]:
        raise FlashladderError(what, expected=expected, found=repr(wrong[0]))


@dataclass(frozen=True)
class Kernels:
    """What a bundle carries of the ladder: wheels with `built` in them, and `store`, which holds the PTX of `emulated`.

    `store` maps paths below the folder of builds to files.
    """

    wheels: tuple[Path, ...]
    built: frozenset[Kernel]
    emulated: frozenset[Kernel]
    store: dict[str, bytes]


def kernels_of(grid: Grid) -> set[Kernel]:
    """Every kernel that a grid measures."""
    return {
        (load_description(one.subject).description, one.toolchain, one.config) for one in wanted(grid) if one.config
    }


def collect(numbers: Sequence[int], grids: Sequence[Grid], arches: Sequence[str]) -> Kernels:
    """Builds what is missing of iterations and of further grids, and gathers it.

    Raises:
        FlashladderError: a build failed, or nothing runs on these architectures.
    """
    ladder = [load_description(str(number)) for number in numbers]
    own = {(one.description, "", config.short_form()) for one in ladder for config in select_configs(one, KEY)}
    more = {kernel for grid in grids if grid.mode != "emulator" for kernel in kernels_of(grid)}
    by_wheel: dict[tuple[str, str], set[str]] = {}
    for subject, cuda, config in sorted(own | more):
        by_wheel.setdefault((subject, cuda), set()).add(config)
    wheels, built = list[Path](), set[Kernel]()
    order = sorted(by_wheel, key=lambda one: parse_subject(*one).package)
    for subject, cuda in tqdm(order, desc="bundle", unit="wheel", disable=None, leave=False):
        iteration = load_description(subject)
        serving = iteration.family.targets.serving
        if fit := dict.fromkeys(code for arch in arches if (code := serving(arch))):
            key = covering_key(subject, by_wheel[subject, cuda])
            wheels.append(build_iteration(subject, ",".join(fit), key, install=False, cuda=cuda).wheel)
            built |= {(subject, cuda, config.short_form()) for config in select_configs(iteration, key)}
    if not wheels:
        raise FlashladderError("no iteration has machine code for these architectures", found=", ".join(arches))
    emulated = own | {kernel for grid in grids if grid.mode == "emulator" for kernel in kernels_of(grid)}
    with told_on_terminal("gathering PTX ..."):
        return Kernels(tuple(wheels), frozenset(built), frozenset(emulated), _store(sorted(emulated)))


def _store(kernels: Iterable[Kernel]) -> dict[str, bytes]:
    """The store's entries of these kernels' PTX, without times and paths of this machine, and what compiled them."""
    tools = tools_of()
    entries = ptx_many([(load_description(subject), KernelConfig.parse(config)) for subject, _, config in kernels])
    files = {f"store/{TOOLS_FILE}": tools.record().encode()}
    for entry in entries:
        meta = {key: value for key, value in entry.meta.items() if not key.endswith("_ms")}
        files |= {
            f"store/{entry.key}/{entry.source.name}": entry.source.read_bytes(),
            f"store/{entry.key}/{entry.OUTPUT}": entry.ptx.read_bytes(),
            f"store/{entry.key}/{entry.LOG}": b"compiled where the bundle was made\n",
            f"store/{entry.key}/meta.json": dump_json(meta).encode(),
        }
    return files


def grids_that_run(kernels: Kernels, arches: Sequence[str]) -> list[str]:
    """The committed grids all of whose kernels are there, for a GPU of one of `arches` or for the emulator."""
    found = []
    for name in grid_names():
        grid = load_grid(name)
        emulated = grid.mode == "emulator"
        fits = emulated or grid.gpu == "any" or load_gpus()[grid.gpu].arch in arches
        if fits and kernels_of(grid) <= (kernels.emulated if emulated else kernels.built):
            found.append(name)
    return found


def lacking(grids: Sequence[str]) -> str:
    """The line that says which of the grids that a node sweeps unasked cannot be swept; empty where both can."""
    missing = [name for name in UNASKED if name not in grids]
    told = f"kernels of the grids {' and '.join(missing)}; to include them: --grid {','.join(missing)}"
    return f"warning: it lacks {told}" if missing else ""


def pinned(lock: str, python: str) -> list[str]:
    """The entries of a lock's text, with their hashes, that a Python (``3.12``) on Linux installs; without markers."""
    from packaging.requirements import Requirement

    target = {
        "python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux",
        "platform_machine": MACHINE, "platform_system": "Linux", "os_name": "posix",
        "implementation_name": "cpython", "platform_python_implementation": "CPython",
    }  # fmt: skip
    found = []
    text = "\n".join(line.rstrip(" \\") for line in lock.splitlines() if not line.startswith("#"))
    for entry in re.split(r"\n(?=\S)", text):
        first, *hashes = entry.splitlines()
        wanted = Requirement(first)
        if wanted.marker is None or wanted.marker.evaluate(target):
            found.append(" ".join([f"{wanted.name}{wanted.specifier}", *(line.strip() for line in hashes)]))
    return found


def packages(python: str, tags: Sequence[str], kept: Path = KEPT) -> list[Path]:
    """The wheels that a node of a Python (``3.12``) needs beside torch, fetched unless they are kept.

    Raises:
        FlashladderError: pip is missing, or one of them cannot be had.
    """
    lines = pinned(read_text(LOCK), python)
    folder = kept / f"wheels-{sha256(repr((lines, python, tags)))[:12]}"
    if not folder.is_dir():
        _fetch(lines, python, tags, folder)
    return files_in(folder, "*.whl")


def _fetch(lines: Sequence[str], python: str, tags: Sequence[str], folder: Path) -> None:
    """Fetches exactly `lines` into a new folder, whole or not at all."""
    if importlib.util.find_spec("pip") is None:
        raise FlashladderError("pip, which fetches wheels of another Python, is not here", hint="run: nox -s dev")
    make_folder(folder.parent)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".wheels-") as scratch:
        wanted, made = Path(scratch) / "requirements.txt", Path(scratch) / "wheels"
        wanted.write_text("\n".join(lines) + "\n", encoding="utf-8")
        options = [f"--platform={tag}" for tag in tags]
        options += [f"--python-version={python}", "--implementation=cp", "--only-binary=:all:", "--no-deps"]
        options += ["--require-hashes", "--quiet", "--disable-pip-version-check", f"--dest={made}", "-r", str(wanted)]
        command = [sys.executable, "-m", "pip", "download", *options]
        failure = FlashladderError(
            f"the Python packages of a bundle for Python {python} cannot be fetched",
            where=relative(LOCK),
            hint="a network, or wheels that PIP_FIND_LINKS names, are needed once; --platform names others",
        )
        _run(command, failure)
        made.replace(folder)


def _run(command: Sequence[str], failure: FlashladderError, **options: Any) -> None:
    """Runs a program; raises `failure` with the last line on its stderr where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        told = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        failure.found = told[-1].removeprefix("ERROR: ") if told else "no message"
        raise failure


def own_wheels(out: Path) -> list[Path]:
    """Builds the wheels of flashladder and ptxemu into the folder `out`: the same bytes for the same files.

    From a copy of the checkout: setuptools leaves folders beside what it builds, and takes up what it left before.

    Raises:
        FlashladderError: this is no checkout, or the build failed.
    """
    require_checkout("the pipeline's wheel")
    no_files = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info", "*.so")
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "checkout"
        for name in SOURCES:
            source, target = ROOT / name, copy / name
            make_folder(target.parent)
            if source.is_dir():
                shutil.copytree(source, target, ignore=no_files, copy_function=shutil.copyfile)
            else:
                shutil.copyfile(source, target)
        for path in copy.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        made = Path(scratch) / "made"
        command = [sys.executable, "-m", "uv", "build", "--no-build-isolation", "--python", sys.executable, "--wheel"]
        failure = FlashladderError(
            "the pipeline's wheel could not be built",
            where=relative(ROOT / "pyproject.toml"),
            hint="run: nox -s dev, whose environment has uv and setuptools",
        )
        for package in (copy, copy / "emulator"):  # by this environment's backend, so that nothing is fetched
            variables = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH_SECONDS}
            _run([*command, "--out-dir", str(made), str(package)], failure, cwd=package, env=variables)
        make_folder(out)
        return [Path(shutil.copyfile(wheel, out / wheel.name)) for wheel in sorted(made.glob("*.whl"))]


def make(
    kernels: Kernels, install: dict[str, list[Path]], arches: Sequence[str], numbers: Sequence[int], out: Path
) -> Path:
    """Writes the bundle of these parts into the folder `out`."""
    name = "-".join(["flashladder", __version__, *arches, *("cp" + python.replace(".", "") for python in install)])
    grids = grids_that_run(kernels, arches)
    facts = {"name": [name], "arches": [*arches], "grids": grids, "iterations": [str(n) for n in numbers]}
    wheels = {f"{runner.WHEELS}/{path.name}": path.read_bytes() for paths in install.values() for path in paths}
    files = {f"{runner.BUILD}/{path}": data for path, data in kernels.store.items()}
    files[f"{runner.BUILD}/bundle.json"] = dump_json(facts).encode()
    text = TEXT.format(
        name=name, arches=", ".join(arches), pythons=" or ".join(install), numbers=", ".join(map(str, numbers)),
        grids=", ".join(grids) or "none of the committed ones",
    )  # fmt: skip
    files["README.txt"] = text.encode()
    files["LICENSE"] = (ROOT / "LICENSE").read_bytes()
    files["sbom.cdx.json"] = sbom(name, wheels, load_pins()).encode()
    inside = {python: [f"{runner.WHEELS}/{path.name}" for path in paths] for python, paths in install.items()}
    return write_bundle(out / f"{name}.pyz", MACHINE, inside, {**files, **wheels})


def write_bundle(out: Path, machine: str, install: Mapping[str, list[str]], files: Mapping[str, bytes]) -> Path:
    """Writes the bundle `out`, a zip that Python runs; always the same bytes for the same parts.

    Args:
        out: the file.
        machine: what its binaries run on, ``x86_64``.
        install: Python version to the wheels that are unpacked for it, by their path in the bundle.
        files: all others, by their path.
    """
    whole = {**files, runner.RUNNER: Path(runner.__file__).read_bytes()}
    manifest = {
        "schema": runner.SCHEMA, "name": out.stem, "machine": machine, "install": dict(install),
        "files": {path: sha256(data) for path, data in whole.items()},
    }  # fmt: skip
    whole[runner.MANIFEST] = dump_json(manifest).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path in sorted(whole, key=lambda path: (path not in (runner.RUNNER, runner.MANIFEST), path)):
            info = zipfile.ZipInfo(path, EPOCH)
            info.compress_type = zipfile.ZIP_STORED if path.endswith(".whl") else zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, whole[path], compresslevel=9)
    return write_atomic(out, stream.getvalue())


def metadata_of(wheel: bytes) -> Message:
    """The METADATA of a wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name), headersonly=True)


def sbom(name: str, wheels: Mapping[str, bytes], pins: Pins) -> str:
    """The CycloneDX 1.6 JSON of a bundle with these wheels, by their paths, whose kernels `pins` compiled."""
    try:
        from cyclonedx.model import Property
        from cyclonedx.model.bom import Bom, BomMetaData
        from cyclonedx.model.component import Component, ComponentScope, ComponentType
        from cyclonedx.output.json import JsonV1Dot6
    except ImportError as error:
        raise FlashladderError("cyclonedx-python-lib, for the SBOM, is missing", hint="run: nox -s dev") from error

    whole = Component(type=ComponentType.APPLICATION, name=name, version=__version__, bom_ref=name)
    tools = [Property(name=f"flashladder:toolchain:{tool}", value=version) for tool, version in pins.packages.items()]
    day = datetime.fromtimestamp(int(EPOCH_SECONDS), timezone.utc)
    serial = uuid.uuid5(uuid.NAMESPACE_OID, sha256("".join(sha256(wheels[path]) for path in sorted(wheels))))
    bom = Bom(serial_number=serial, metadata=BomMetaData(component=whole, timestamp=day, properties=tools))
    told = {path: metadata_of(data) for path, data in wheels.items()}
    components = {path: _component(path, wheels[path], told[path]) for path in wheels}
    static = Component(name=LINKED, version=pins.packages[LINKED], bom_ref=LINKED, description="linked statically")
    torch = Component(name="torch", bom_ref="torch", scope=ComponentScope.EXCLUDED, description="the node's own")
    for component in (*components.values(), static, torch):
        bom.components.add(component)
    bom.register_dependency(whole, components.values())
    known: dict[str, list[Any]] = {static.name: [static], torch.name: [torch]}
    for component in components.values():
        known.setdefault(component.name, []).append(component)
    for path, component in components.items():
        names = _needs(told[path]) | ({LINKED} if component.name.startswith("flashladder-") else set())
        bom.register_dependency(component, [one for needed in sorted(names) for one in known.get(needed, [])])
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def _component(path: str, data: bytes, told: Message) -> Any:
    """A wheel as a component."""
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component
    from packageurl import PackageURL
    from packaging.utils import canonicalize_name

    name, version = str(canonicalize_name(told["Name"])), str(told["Version"])
    classified = [str(line) for line in told.get_all("Classifier", []) if str(line).startswith("License :: ")]
    licence = told["License-Expression"] or told["License"] or "".join(classified[:1]).rpartition(" :: ")[2]
    return Component(
        name=name,
        version=version,
        bom_ref=path,
        description=told["Summary"],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256(data))],
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
        purl=PackageURL("pypi", name=name, version=version),
    )


def _needs(told: Message) -> set[str]:
    """The names of the packages that a wheel requires, on Linux and without extras."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    wanted = [Requirement(str(line)) for line in told.get_all("Requires-Dist", [])]
    here = {"extra": "", "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    return {str(canonicalize_name(one.name)) for one in wanted if one.marker is None or one.marker.evaluate(here)}
