"""``invoke bundle``: one file for a node without network; and what that file does there.

GPU nodes often have no network. They have Python, torch and a driver, and no compiler. The file holds everything else:
wheels of the iterations, the pipeline and its Python packages, PTX for the emulator, grids, locks, an SBOM, and a
runner (`flashladder.bundle.runner`), which unpacks it and calls `main`.

    invoke bundle --arch sm_90 --python 3.12              # all iterations, here; on the node: python3 BUNDLE.pyz
    invoke bundle --iterations 16 --out /tmp

Exit code: 0, or 2 if the bundle could not be made. The same checkout, toolchain and options give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
import importlib.util
import io
import os
from pathlib import Path
import re
import runpy
import shutil
import sys
import tempfile
from typing import Any
import uuid
import zipfile

from flashladder.arguments import Parser
from flashladder.build.command import build_iteration
from flashladder.build.compile import ptx_many, tools_of
from flashladder.build.library import torch_version
from flashladder.build.store import TOOLS_FILE
from flashladder.build.wheel import EPOCH_SECONDS, run, zipped
from flashladder.bundle import runner
from flashladder.columns import grouped, told_on_terminal
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors, require_checkout
from flashladder.files import (
    dump_json,
    files_in,
    load_json,
    make_folder,
    read_text,
    relative,
    require_folder_or_nothing,
    sha256,
    write_atomic,
)
from flashladder.gpu.doctor import n_gpus
from flashladder.ladder.ablation import load_description, parse_subject
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import gpu_key, load_gpus
from flashladder.ladder.grid import Grid, grid_names, load_grid
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.ladder.selection import select_configs
from flashladder.names import __version__
from flashladder.parallel import Bar
from flashladder.paths import BUILD, ROOT, path_of
from flashladder.sweep import command as sweeps
from flashladder.sweep import place
from flashladder.sweep.plan import wanted
from flashladder.toolchain import Pins, load_pins, require_arch

FACTS = "bundle.json"  # in the folder of builds: name, architectures, grids and iterations of the bundle
DEFAULT_OUT = "flashladder-results"
UNASKED = CPU, SMOKE = "cpu", "smoke"  # grids for a machine without a GPU, and for a GPU without a grid of its own
PYTHONS = tuple(f"3.{minor}" for minor in range(10, 15))
KEY = "prog"  # what is built of every iteration: its configuration on each GPU, in both dtypes
LOCK = ROOT / "requirements" / "node.txt"
KEPT = BUILD / "bundle"  # fetched packages
MACHINE = "x86_64"
# A node with glibc 2.28 runs the wheels of all of these; pip accepts exactly the platforms that it is given.
GLIBCS = ("_2_28", "_2_27", "_2_24", "_2_17", "2014", "_2_12", "2010", "_2_5", "1")
PLATFORMS = [f"manylinux{tag}_{MACHINE}" for tag in GLIBCS]
PLATFORM = rf"(manylinux(_[0-9]+_[0-9]+|1|2010|2014)|linux)_{MACHINE}"
LINKED = "nvidia-cuda-runtime"  # its static library is part of every iteration's library
# The pipeline's wheels contain: the packages, the ladder's files (setup.py), files that the metadata names.
SOURCES = (
    "flashladder", "configs", "iterations", "kernels", "requirements", "results/locks", "results/published",
    "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py", "tasks.py",
    "emulator/LICENSE", "emulator/README.md", "emulator/pyproject.toml", "emulator/src",
)  # fmt: skip
Kernel = tuple[str, str, str]
"""The description of an iteration, the CUDA version of its compiler (empty: the pinned one), a short form."""
USAGE = """\
python3 BUNDLE.pyz [--into FOLDER] [sweep] [--grid GRID] [--out FOLDER]   measures, and packs what was measured
python3 BUNDLE.pyz [--into FOLDER] TASK ARGUMENTS                         any other task, such as check 7, or help"""
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
    """Builds, fetches and writes what ``invoke bundle`` asks for; `FlashladderError`: a bad option, or it failed."""
    require_checkout("bundle")
    named = words(iterations, "[0-9]{1,3}", "--iterations takes numbers, commas between")
    numbers = [load_iteration(int(word)).number for word in named] or [one.number for one in load_all()]
    known = "|".join(map(re.escape, PYTHONS))
    pythons = words(python, known, "this Python is not supported", ", ".join(PYTHONS)) or [
        ".".join(map(str, sys.version_info[:2]))
    ]
    arches = [require_arch(word) for word in words(arch)] or list(load_pins().arches)
    expected = f"manylinux_X_Y_{MACHINE} or linux_{MACHINE}"
    tags = words(platform, PLATFORM, "not a platform of Linux on x86-64", expected) or PLATFORMS
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
    if missing := [name for name in UNASKED if name not in grids_that_run(kernels, arches)]:
        grids, option = " and ".join(missing), f"--grid {','.join(missing)}"
        print(f"warning: it lacks kernels of the grids {grids}; to include them: {option}", file=sys.stderr)
    print(f"on the node, with Python {' or '.join(pythons)} and torch: python3 {made.name} --help")


def words(text: str, known: str = ".*", what: str = "", expected: str | None = None) -> list[str]:
    """The words of a list with commas, each once. Raises `FlashladderError` if one does not match `known`."""
    found = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if wrong := [word for word in found if not re.fullmatch(known, word)]:
        raise FlashladderError(what, expected=expected, found=repr(wrong[0]))
    return found


@dataclass(frozen=True)
class Kernels:
    """`wheels` hold the kernels `built`; `store` maps a path below the folder of builds to a file, for `emulated`."""

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
    """Builds the kernels of iterations and grids; `FlashladderError`: a build failed, or nothing runs on `arches`."""
    ladder = [load_description(str(number)) for number in numbers]
    own = {(one.description, "", config.short_form()) for one in ladder for config in select_configs(one, KEY)}
    more = {kernel for grid in grids if grid.mode != "emulator" for kernel in kernels_of(grid)}
    by_wheel = grouped(sorted(own | more), lambda kernel: kernel[:2])
    wheels, built = list[Path](), set[Kernel]()
    order = sorted(by_wheel, key=lambda one: parse_subject(*one).package)
    for subject, cuda in Bar(order, desc="bundle", unit="wheel"):
        iteration = load_description(subject)
        serving = iteration.family.targets.serving
        if fit := dict.fromkeys(code for arch in arches if (code := serving(arch))):
            key = place.covering_key(subject, {config for *_, config in by_wheel[subject, cuda]})
            wheels.append(build_iteration(subject, ",".join(fit), key, install=False, cuda=cuda).wheel)
            built |= {(subject, cuda, config.short_form()) for config in select_configs(iteration, key)}
    if not wheels:
        raise FlashladderError("no iteration has machine code for these architectures", found=", ".join(arches))
    emulated = own | {kernel for grid in grids if grid.mode == "emulator" for kernel in kernels_of(grid)}
    with told_on_terminal("gathering PTX ..."):
        return Kernels(tuple(wheels), frozenset(built), frozenset(emulated), _store(sorted(emulated)))


def _store(kernels: Iterable[Kernel]) -> dict[str, bytes]:
    """The store's entries of these kernels' PTX, without times and paths of this machine, and the record of tools."""
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
    """The committed grids whose kernels are all in the bundle, for a GPU of one of `arches` or for the emulator."""
    found = []
    for name in grid_names():
        grid = load_grid(name)
        emulated = grid.mode == "emulator"
        fits = emulated or grid.gpu == "any" or load_gpus()[grid.gpu].arch in arches
        if fits and kernels_of(grid) <= (kernels.emulated if emulated else kernels.built):
            found.append(name)
    return found


def pinned(lock: str, python: str) -> list[str]:
    """The entries of a lock's text, with hashes and without markers, that apply to a Python (``3.12``) on Linux."""
    from packaging.requirements import Requirement

    found, target = [], {"python_version": python, "python_full_version": f"{python}.0"}
    text = "\n".join(line.rstrip(" \\") for line in lock.splitlines() if not line.startswith("#"))
    for entry in re.split(r"\n(?=\S)", text):
        first, *hashes = entry.splitlines()
        requirement = Requirement(first)
        if requirement.marker is None or requirement.marker.evaluate(target):
            found.append(" ".join([f"{requirement.name}{requirement.specifier}", *(line.strip() for line in hashes)]))
    return found


def packages(python: str, tags: Sequence[str], kept: Path = KEPT) -> list[Path]:
    """The wheels that a Python (``3.12``) needs beside torch, kept or fetched; `FlashladderError`: no pip, no wheel."""
    lines = pinned(read_text(LOCK), python)
    folder = kept / f"wheels-{sha256(repr((lines, python, tuple(tags))))[:12]}"
    if folder.is_dir():
        return files_in(folder, "*.whl")
    if importlib.util.find_spec("pip") is None:
        raise FlashladderError("pip, which fetches wheels of another Python, is not here", hint="run: nox -s dev")
    make_folder(kept)
    with tempfile.TemporaryDirectory(dir=kept, prefix=".wheels-") as scratch:
        listed, made = Path(scratch) / "requirements.txt", Path(scratch) / "wheels"
        listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
        options = [f"--platform={tag}" for tag in tags]
        options += [f"--python-version={python}", "--implementation=cp", "--only-binary=:all:", "--no-deps"]
        options += ["--require-hashes", "--quiet", "--disable-pip-version-check", f"--dest={made}", "-r", str(listed)]
        what = f"the Python packages of a bundle for Python {python} cannot be fetched"
        hint = "a network, or wheels that PIP_FIND_LINKS names, are needed once; --platform names others"
        error = FlashladderError(what, where=relative(LOCK), hint=hint)
        run([sys.executable, "-m", "pip", "download", *options], kept, error)
        made.replace(folder)
    return files_in(folder, "*.whl")


def own_wheels(out: Path) -> list[Path]:
    """Builds the wheels of flashladder and ptxemu into a folder that exists: the same bytes for the same files.

    It builds a copy of the checkout, because setuptools leaves folders beside its sources and reads old ones.
    Raises `FlashladderError`: this is no checkout, or the build failed.
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
        hint = "run: nox -s dev, whose environment has uv and setuptools"
        where = relative(ROOT / "pyproject.toml")
        error = FlashladderError("the pipeline's wheel could not be built", where=where, hint=hint)
        for package in (copy, copy / "emulator"):  # by this environment's backend, so that nothing is fetched
            variables = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH_SECONDS}
            run([*command, "--out-dir", str(made), str(package)], copy, error, cwd=package, env=variables)
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
    files[f"{runner.BUILD}/{FACTS}"] = dump_json(facts).encode()
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
    """Writes the zip `out`, always the same bytes; `install` maps Pythons to their wheels' paths among `files`."""
    whole = {**files, runner.RUNNER: Path(runner.__file__).read_bytes()}
    manifest = {
        "schema": runner.SCHEMA, "name": out.stem, "machine": machine, "install": dict(install),
        "files": {path: sha256(data) for path, data in whole.items()},
    }  # fmt: skip
    whole[runner.MANIFEST] = dump_json(manifest).encode()
    order = sorted(whole, key=lambda path: (path not in (runner.RUNNER, runner.MANIFEST), path))
    return write_atomic(out, zipped({path: whole[path] for path in order}))


def sbom(name: str, wheels: Mapping[str, bytes], pins: Pins) -> str:
    """The CycloneDX 1.6 JSON of a bundle with these wheels, by their paths, whose kernels `pins` compiled."""
    try:
        from cyclonedx.contrib.license.factories import LicenseFactory
        from cyclonedx.model import HashAlgorithm, HashType, Property
        from cyclonedx.model.bom import Bom, BomMetaData
        from cyclonedx.model.component import Component, ComponentScope, ComponentType
        from cyclonedx.output.json import JsonV1Dot6
        from packageurl import PackageURL
    except ImportError as error:
        raise FlashladderError("cyclonedx-python-lib, for the SBOM, is missing", hint="run: nox -s dev") from error

    whole = Component(type=ComponentType.APPLICATION, name=name, version=__version__, bom_ref=name)
    tools = [Property(name=f"flashladder:toolchain:{tool}", value=version) for tool, version in pins.packages.items()]
    day = datetime.fromtimestamp(int(EPOCH_SECONDS), timezone.utc)
    serial = uuid.uuid5(uuid.NAMESPACE_OID, sha256("".join(sha256(wheels[path]) for path in sorted(wheels))))
    bom = Bom(serial_number=serial, metadata=BomMetaData(component=whole, timestamp=day, properties=tools))
    static = Component(name=LINKED, version=pins.packages[LINKED], bom_ref=LINKED, description="linked statically")
    torch = Component(name="torch", bom_ref="torch", scope=ComponentScope.EXCLUDED, description="the node's own")
    components = [static, torch]
    for path, data in wheels.items():
        package, version, summary, licence = _described(data)
        facts: dict[str, Any] = {
            "hashes": [HashType(alg=HashAlgorithm.SHA_256, content=sha256(data))],
            "licenses": [LicenseFactory().make_from_string(licence)] if licence else [],
            "purl": PackageURL("pypi", name=package, version=version),
        }
        components.append(Component(name=package, version=version, bom_ref=path, description=summary, **facts))
    for component in components:
        bom.components.add(component)
    bom.register_dependency(whole, components)
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def _described(wheel: bytes) -> tuple[str, str, str | None, str]:
    """Name, version, summary and licence (empty if unknown) of a wheel."""
    from packaging.metadata import parse_email
    from packaging.utils import canonicalize_name

    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        found, _ = parse_email(archive.read(next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))))
    classified = next((line for line in found.get("classifiers", []) if line.startswith("License :: ")), "")
    licence = found.get("license_expression") or found.get("license") or classified.rpartition(" :: ")[2]
    return canonicalize_name(found["name"]), found["version"], found.get("summary"), licence


def facts(build: Path = BUILD) -> dict[str, list[str]]:
    """Lists of the unpacked bundle: ``name`` (one), ``arches``, ``grids``, ``iterations``; `FlashladderError`: none."""
    path = build / FACTS
    try:
        data = load_json(path.read_bytes())
        return {key: list(map(str, data[key])) for key in ("name", "arches", "grids", "iterations")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = "a bundle is run as `python3 BUNDLE.pyz`"
        raise FlashladderError("not an unpacked bundle", where=path, found=error, hint=hint) from error


def grid_here() -> str:
    """The name of the grid of the first GPU here; ``smoke`` if that GPU has no grid, ``cpu`` without a GPU."""
    if not n_gpus():
        return CPU
    found = place.cards()
    key = gpu_key(found[0].name) if found else None
    return key if key in grid_names() else SMOKE


def require_along(grid: Grid, came: dict[str, list[str]], *, own: bool) -> None:
    """Raises `FlashladderError` if the bundle (`came`) lacks kernels of a grid, unless `own`, or of the GPU here."""
    hint = "where there is a checkout: invoke bundle "
    if not own and grid.name not in came["grids"]:
        known = f"one of {', '.join(came['grids'])}" if came["grids"] else "a bundle with a grid (this one has none)"
        what = "not all kernels of this grid are in the bundle"
        raise FlashladderError(what, expected=known, found=grid.name, hint=f"{hint}--grid {grid.name}")
    if grid.mode == "emulator":
        return
    for card in place.cards():
        if card.arch in load_pins().arches and card.arch not in came["arches"]:
            what, found = "the bundle has no machine code for the GPU here", f"{card.arch} ({card.name})"
            known, hint = ", ".join(came["arches"]), f"{hint}--arch {card.arch}"
            raise FlashladderError(what, expected=known, found=found, hint=hint)


def sweep(words: Sequence[str]) -> int:
    """Measures, and copies the document to ``--out``, also if cells failed (`CheckFailed`); returns 0."""
    parser = Parser(
        prog="BUNDLE.pyz sweep",
        description="Measures a grid and packs what was measured into one file; other options are those of "
        "`flashladder sweep`, such as --dry-run, --gpus, --retry and --anyway.",
        epilog="example: python3 BUNDLE.pyz sweep --grid smoke --out results",
    )
    parser.add_argument("--grid", help="a grid, or a file that ends in .yaml (default: the one of the GPU here)")
    parser.add_argument("--out", type=Path, default=Path(DEFAULT_OUT), help=f"folder (default: {DEFAULT_OUT})")
    options, more = parser.parse_known_args(words)
    name = options.grid or grid_here()
    grid = load_grid(name)
    records = BUILD / "sweep" / grid.name
    given = ["--grid", name, "--no-build", "--out", str(records), *more]
    if {"--dry-run", "--help", "-h"} & set(more):
        return sweeps.main(given)
    require_along(grid, came=facts(), own=name.endswith(".yaml"))
    torch_version()
    write_atomic(options.out / ".writable", "").unlink()
    document = records.with_name(f"{grid.name}.json.gz")
    try:
        code = sweeps.main(given)
    except CheckFailed:
        _copy_out(document, options.out, [name, *more])
        raise
    _copy_out(document, options.out, [name, *more])
    return code


def _copy_out(document: Path, out: Path, words: Sequence[str]) -> None:
    if not document.is_file():
        return
    data = document.read_bytes()
    made = write_atomic(out / document.name, data)
    about = {
        "bundle": facts()["name"][0],
        "document": document.name,
        "document_sha256": sha256(data),
        "sweep": list(words),
        "python": sys.version.split()[0],
        "torch": metadata.version("torch"),
    }
    write_atomic(out / f"{document.name.removesuffix('.json.gz')}.bundle.json", dump_json(about))
    print(f"{made}: at home, `invoke verify {made.name}` checks it", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """The command of a bundle: ``sweep`` if only options are given, else a checkout's task."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["--help"], ["-h"]):
        print(USAGE)
        return 0
    if words and words[0] != "sweep" and not words[0].startswith("-"):
        sys.argv = ["flashladder", *words]
        runpy.run_module("flashladder", run_name="__main__")  # which leaves with the task's code
        return 0
    with one_line_errors():
        return sweep(words[1:] if words[:1] == ["sweep"] else words)


if __name__ == "__main__":
    raise SystemExit(main())
