"""Wheels of iterations: assembled, installed, imported as a test, read back; and the compilers of other CUDA versions.

The same files give the same bytes. A wheel is a zip with three metadata files. The library inside needs no Python
symbol, hence ``cp310-abi3``. An environment holds one version of each wheel, so the compiler of another CUDA version is
installed into ``build/toolchains/<version>/``, exactly as ``requirements/toolchain-<version>.txt`` lists it.

    python -m flashladder.build.wheel    # installs every wheel that is built for this machine's GPU, else for sm_80
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
import hashlib
import importlib
import importlib.util
import io
import json
from pathlib import Path
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any
import zipfile

from flashladder.build.compile import default_arch
from flashladder.build.library import LIBRARY_NAME
from flashladder.build.store import entry_lock
from flashladder.errors import FlashladderError, run_main
from flashladder.files import files_in, load_json, make_folder, read_bytes, relative, sha256, write_atomic
from flashladder.ladder.ablation import Subject, load_description, parse_subject
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import load_all
from flashladder.ladder.selection import select_configs
from flashladder.paths import BUILD, ROOT
from flashladder.results.schema import Kernel
from flashladder.tool_runs import disk_full
from flashladder.toolchain import Toolchain, find_toolchain, load_pins

EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment a zip can hold: members carry no time of their own
EPOCH_SECONDS = "315532800"
LIBRARY_DIGEST = "library_sha256"  # its key in the manifest
COMPRESSION = 6  # zlib's default; level 9 makes wheels 0.5 % smaller in four times the time

# Runs in a process of its own: the operator exists, and the library offers exactly the configurations that were built.
# Without garbage collection, during torch's import and at the end, it takes 1.4 s of CPU time instead of 1.9 s.
_IMPORT_CHECK = """
import gc
gc.disable()
import importlib, json, sys
name, expected = sys.argv[1], json.loads(sys.argv[2])
module = importlib.import_module(name)
gc.freeze()
import torch
namespace = getattr(torch.ops, name)
namespace.forward.default, namespace.forward_out.default
found = sorted(module.configurations())
if found != sorted(expected):
    sys.exit(f"{module.__file__}: expected the configurations {expected}, found {found}")
print(module.__file__)
"""


def wheel_name(name: str, version: str) -> str:
    """File name of the wheel of package `name`: any CPython from 3.10 on, this platform."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"{name}-{version}-cp310-abi3-{platform}.whl"


def assemble(folder: Path, name: str, version: str, summary: str, members: Mapping[str, bytes]) -> Path:
    """Writes the wheel of the package `name` into `folder`; `members` map file names in the package to content."""
    final = folder / wheel_name(name, version)
    tag = "-".join(final.stem.split("-")[2:])
    info = f"{name}-{version}.dist-info"
    contents = {f"{name}/{member}": members[member] for member in sorted(members)}
    contents[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.4\nName: {name.replace('_', '-')}\nVersion: {version}\nSummary: {summary}\n"
        "License-Expression: Apache-2.0\nRequires-Python: >=3.10\nRequires-Dist: torch>=2.10\n"
    ).encode()
    contents[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: flashladder ({version})\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    record = f"{info}/RECORD"
    digests = [base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=") for data in contents.values()]
    rows = [f"{p},sha256={d.decode()},{len(contents[p])}\n" for p, d in zip(contents, digests, strict=True)]
    contents[record] = "".join([*rows, f"{record},,\n"]).encode()
    return write_atomic(final, zipped(contents))


def zipped(members: Mapping[str, bytes]) -> bytes:
    """A zip of `members`, by path and in this order; the same members give the same bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, data in members.items():
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.compress_type = zipfile.ZIP_STORED if path.endswith(".whl") else zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | (0o755 if path.endswith(".so") else 0o644)) << 16
            archive.writestr(entry, data, compresslevel=COMPRESSION)
    return packed.getvalue()


def installed_digest(name: str) -> str | None:
    """Digest of the inputs that the installed package `name` was built from; None if it is missing or damaged."""
    folder = package_folder(name)
    try:
        digest: str | None = None if folder is None else checked_manifest(folder).get("inputs_digest")
    except FlashladderError:
        return None
    return digest


def package_folder(name: str) -> Path | None:
    """The folder of the installed package `name`, found without an import; None if it is not installed."""
    importlib.invalidate_caches()  # it may have been installed a moment ago
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def checked_manifest(folder: Path, hint: str = "build it again") -> dict[str, Any]:
    """The manifest of the wheel installed in `folder`.

    If it or the library is missing, damaged or too old, it raises an error with the remedy `hint`.
    """
    path, library = folder / "manifest.json", folder / LIBRARY_NAME
    try:
        manifest: dict[str, Any] = dict(load_json(path.read_bytes()))
        expected, found = str(manifest[LIBRARY_DIGEST]), sha256(library.read_bytes())
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = "the wheel's manifest or library is missing, broken or too old"
        raise FlashladderError(what, where=folder, found=error, hint=hint) from error
    if found != expected:
        what = "the installed library is damaged: its digest is not the manifest's"
        raise FlashladderError(what, where=library, expected=expected[:12], found=found[:12], hint=hint)
    return manifest


def install(*wheels: Path) -> None:
    """Installs `wheels` into the environment of this Python, without dependencies and without a network.

    uv's cache is not used: an environment's files are hard links into it, so a file that was damaged in one environment
    would be installed again. A Python without uv or outside a virtual environment, and a failure of uv, are errors.
    """
    if sys.prefix == sys.base_prefix:
        what = "this Python is not in a virtual environment, so the wheel is not installed"
        instead = "use `nox -s build-iteration-N` or `nox -s dev`, or build with --no-install"
        raise FlashladderError(what, where=sys.prefix, hint=instead)
    error = FlashladderError("the wheel could not be installed", where=", ".join(map(relative, wheels)))
    options = ["--no-deps", "--no-index", "--reinstall", "--no-cache"]
    run([*installer(), *options, *wheels], Path(sys.prefix), error)


def run(command: Sequence[str | Path], folder: Path, error: FlashladderError, **options: Any) -> None:
    """Runs a program that writes into `folder`.

    If it fails because the disk is full, the error says so; else it is `error`, with the program's last line on stderr.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        if "No space left" in done.stderr:
            raise disk_full(folder)
        error.found = (done.stderr.strip().splitlines() or ["no message"])[-1].strip().removeprefix("ERROR: ")
        raise error


def installer() -> list[str]:
    """The command that installs into the environment of this Python. Raises `FlashladderError` without uv."""
    if importlib.util.find_spec("uv") is None:
        raise FlashladderError("uv is not in this environment", hint="run: pip install 'flashladder[build]'")
    return [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]


def install_built(build: Path = BUILD) -> list[str]:
    """Installs each release wheel of the selection ``prog`` in `build`, for the GPU present or else the first target.

    Returns the names of all these packages, also of those that are installed already. A broken manifest, and a failure
    of the installer, are errors.
    """
    wheels, names = list[Path](), list[str]()
    families = {iteration.number: iteration.family for iteration in load_all()}
    for manifest in files_in(build, "iteration_[0-9][0-9]/*/manifest.json"):
        number = manifest.parent.parent.name[-2:]
        if manifest.parent.name != default_arch(families.get(int(number))):
            continue
        try:
            digest = load_json(manifest.read_bytes())["inputs_digest"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            what, hint = f"the build's manifest is broken ({error})", "build that iteration again"
            raise FlashladderError(what, where=relative(manifest), hint=hint) from error
        names.append(f"flashladder_{number}")
        if installed_digest(names[-1]) != digest:
            wheels += files_in(manifest.parent, "*.whl")
    if wheels:
        install(*wheels)
    return names


def check_import(name: str, configs: Sequence[str]) -> None:
    """Imports the installed package `name` in a process of its own.

    It is an error if that fails, an operator is missing, or the library offers other short forms than `configs`.
    """
    hint = "the wheel was built with another torch or compiler than this environment's, or is broken"
    error = FlashladderError("the import check failed", where=name, hint=hint)
    run([sys.executable, "-I", "-c", _IMPORT_CHECK, name, json.dumps(sorted(configs))], Path(sys.prefix), error)


@dataclass(frozen=True)
class Installed:
    """One iteration's wheel: `run(q, k, v, out, short_form)` launches on the current stream (`launcher`)."""

    subject: Subject
    run: Callable[..., object]
    manifest: Mapping[str, Any]

    @property
    def kernels(self) -> Mapping[str, Mapping[str, Any]]:
        """What the manifest says about each configuration's kernels, by short form."""
        return dict(self.manifest.get("kernels", {}))

    @property
    def built(self) -> tuple[str, ...]:
        """Short forms of the configurations in this wheel."""
        return tuple(self.kernels)

    def require(self, config: KernelConfig) -> None:
        """Raises `FlashladderError` when the wheel does not hold this configuration."""
        if config.short_form() not in self.built:
            what, expected = f"{self.subject.label} was not built with this configuration", "; ".join(self.built)
            hint = f"invoke build {self.subject.options} --configs '{config.short_form()}'"
            raise FlashladderError(what, expected=f"one of {expected}", found=config.short_form(), hint=hint)

    def identity(self, config: KernelConfig, arch: str) -> Kernel:
        """What a result records about this kernel on a GPU of `arch`; without machine code it runs JIT-compiled PTX."""
        inputs = self.manifest.get("inputs", {})
        # the versions of all tools, the host compiler's among them, and the flags of nvcc and ptxas
        tools: dict[str, str] = inputs.get("toolchain", {}) | inputs.get("host", {}).get("versions", {})
        tools |= {f"{tool} flags": " ".join(given) for tool, given in inputs.get("flags", {}).items()}
        own = self.kernels.get(config.short_form(), {})
        arch = f"{arch}a" if f"{arch}a" in own else arch  # code for one architecture alone
        entry = own.get(arch, {})
        return Kernel(
            iteration=self.subject.number,
            variant=self.subject.variant,
            config=config.short_form(),
            dtype=config.dtype,
            arch=arch,
            build=self.manifest.get("inputs_digest"),
            toolchain=tools,
            **{name: entry.get(name) for name in ("text_sha256", "registers", "spill_stores", "spill_loads")},
        )


def launcher(operators: Any) -> Callable[..., object]:
    """The function that launches the kernels of a wheel: ``run(q, k, v, out, short_form, lse=None, bounds=())``.

    `operators` is the wheel's namespace in ``torch.ops``. Kernels of general problems have an operator of their own,
    which also takes `lse`, fp32 (batch, n_heads, seq_len), for the log-sum-exp; ValueError if another kernel gets one.
    Kernels of packed sequences take one sample, and the two `bounds` of its sequences (`Problem.bounds`), int32.
    """
    parsed = cache(KernelConfig.parse)  # this runs before every launch that is timed

    def run(q: Any, k: Any, v: Any, out: Any, short_form: str, lse: Any = None, bounds: Sequence[Any] = ()) -> object:
        config = parsed(short_form)
        if config.is_packed:
            found = (q[0], k[0], v[0], *bounds, out[0], None if lse is None else lse[0])
            return operators.attention_varlen_out(*found, config.mask == "causal", None, short_form)
        if getattr(config, "general", False):
            return operators.attention_out(q, k, v, out, lse, config.mask == "causal", None, short_form)
        if lse is not None:
            raise ValueError(f"lse: expected None, as {short_form} writes no log-sum-exp")
        return operators.forward_out(q, k, v, out, short_form)

    return run


def load_installed(subject: int | str, cuda: str = "") -> Installed:
    """Reads the manifest of a wheel, checks the library against it and imports the wheel.

    `subject` is an iteration or an ablation (``16 - swizzle``), `cuda` its compiler's version (empty: the pinned one).
    Names of nothing, and a wheel that is missing, is damaged or cannot be loaded, are errors.
    """
    wanted = parse_subject(subject, cuda)
    name = wanted.package
    folder = package_folder(name)
    if folder is None:
        what = f"{wanted.label} is not installed here (no module {name})"
        raise FlashladderError(what, hint=f"{wanted.session}, then install the wheel")
    manifest = checked_manifest(folder, f"build it again: {wanted.session}")
    import torch

    try:
        importlib.import_module(name)
    except ImportError as error:
        what = "the installed wheel cannot be loaded"
        raise FlashladderError(what, where=name, found=error, hint=wanted.session) from error
    return Installed(wanted, launcher(getattr(torch.ops, name)), manifest)


def chosen_configs(subject: int | str, keys: Sequence[str], dtypes: Sequence[str]) -> tuple[KernelConfig, ...]:
    """The configurations of an iteration or ablation that `keys` select (`select_configs`), each once."""
    iteration = load_description(str(subject))
    return tuple(dict.fromkeys(config for key in keys for config in select_configs(iteration, key, dtypes)))


TOOLCHAINS = BUILD / "toolchains"
REQUIREMENTS = ROOT / "requirements"
STAMP = ".flashladder-stamp"  # holds the digest of the requirements; written last


def toolchain_of(cuda: str = "", folder: Path = TOOLCHAINS) -> Toolchain:
    """The toolchain with the compiler of CUDA version `cuda` (``13.1``; empty for the pinned one), installed if needed.

    A version that is not pinned or cannot be installed, and an environment's toolchain that is not the pinned one, are
    errors.
    """
    version = load_pins().axis(cuda)
    return find_toolchain(provide(version, folder), version) if version else find_toolchain()


def provide(cuda: str, folder: Path = TOOLCHAINS) -> Path:
    """Installs the wheels of CUDA version `cuda` into a folder of `folder`, which it returns; all of them or none."""
    locked, target = REQUIREMENTS / f"toolchain-{cuda}.txt", make_folder(folder) / cuda
    digest, stamp = sha256(read_bytes(locked)), target / STAMP
    with entry_lock(folder):  # two builds that need it wait for one download
        if stamp.is_file() and stamp.read_bytes() == digest.encode():
            return target
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{cuda}-") as scratch:
            made = Path(scratch) / "wheels"
            options = ["--target", str(made), "--no-deps", "--require-hashes", "-r", str(locked)]
            hint = "a network, or wheels that UV_FIND_LINKS names, are needed once"
            what = f"the compiler of CUDA {cuda} could not be installed"
            run([*installer(), *options], folder, FlashladderError(what, where=relative(locked), hint=hint))
            shutil.rmtree(target, ignore_errors=True)
            made.replace(target)
        write_atomic(stamp, digest)
    return target


def main() -> None:
    """Installs what is built; prints the packages on one line."""
    names = install_built()
    print(f"built iterations installed here: {', '.join(names) or 'none'}")


if __name__ == "__main__":
    run_main(main)
