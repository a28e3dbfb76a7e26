"""From cubins to the library that torch loads: pack a fatbin per configuration, embed them in a table, link.

Why so: the host sources cost 2 s (torch's stable headers) and are the same for all iterations of a family, so they are
compiled once into the store; an iteration adds fatbins, a table that compiles in 0.1 s, and one link. The commands are
`flashladder.build.host_library`'s; used by `flashladder.build.command`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
import subprocess
import tempfile

from flashladder.build import host_library
from flashladder.build.store import STORE
from flashladder.build.store_worker import entry_lock
from flashladder.errors import FlashladderError
from flashladder.files import digest_files, dump_json, load_json, read_text, sha256, write_atomic
from flashladder.ladder.compose import included_files
from flashladder.toolchain.environment import clean_environment
from flashladder.toolchain.errors import Failure, diagnose
from flashladder.toolchain.wheels import Toolchain, host_compiler, host_compiler_version

OLDEST_TORCH = (2, 10)


@dataclass(frozen=True)
class Log:
    """Keeps commands and all that they print, for build.log.

    Attributes:
        parts: one text per command, in order.
        failed: where the text of a command that failed goes, beside whatever the caller throws away.
    """

    parts: list[str]
    failed: Path

    def run(self, command: Sequence[str], folder: Path) -> None:
        """Runs `command` in `folder`, with its temporary files there too: the machine's own place may be full or small.

        Raises:
            FlashladderError: it failed; the message says why and names the log.
        """
        with tempfile.TemporaryDirectory(dir=folder, prefix="tmp-") as scratch:
            done = subprocess.run(
                command,
                cwd=folder,
                env=clean_environment(Path(scratch)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
        text = done.stdout.decode(errors="replace")
        self.parts.append(f"$ {' '.join(command)}\n{text}")
        if done.returncode != 0:
            log = write_atomic(self.failed, self.parts[-1])
            raise diagnose(Failure(Path(command[0]).name, done.returncode, text, log, folder))


def torch_version() -> str:
    """Version of the installed torch, without importing it.

    Raises:
        FlashladderError: torch is not installed, or is older than the stable ABI that the binding uses.
    """
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError as error:
        raise FlashladderError(
            "torch is not installed in this environment",
            expected="torch 2.10 or later",
            hint="use `nox -s build-iteration-N` or `nox -s dev`, which install it",
        ) from error
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
        raise FlashladderError("torch is too old for its stable ABI", expected="2.10 or later", found=version)
    return version


def host_inputs(toolchain: Toolchain, plan: str) -> dict[str, object]:
    """Everything that decides the host objects: digests, flags, versions; no path of this machine.

    `plan` is the family's source among them, relative to ``kernels/``.
    """
    sources = host_library.sources(plan)
    headers = {path for source in sources for path in included_files(read_text(source))}
    return {
        "kind": "host",
        "sources": digest_files([*sources, *sorted(headers)]),
        "flags": [*host_library.COMPILE_FLAGS],
        "versions": {
            "torch": torch_version(),
            "nvidia-cuda-runtime": toolchain.versions["nvidia-cuda-runtime"],
            "host_compiler": host_compiler_version(host_compiler()),
        },
    }


def host_objects(toolchain: Toolchain, plan: str, store: Path = STORE) -> tuple[list[Path], str]:
    """binding.o, launch.o and plan.o from the store, compiled if they are not there yet (about 2 s), and their log.

    Raises:
        FlashladderError: the compiler is missing or failed.
    """
    inputs, sources = host_inputs(toolchain, plan), host_library.sources(plan)
    folder = store / sha256(dump_json(inputs))
    objects = [folder / f"{source.stem}.o" for source in sources]
    with entry_lock(folder):
        if not _has_objects(folder, objects):
            log = Log([], folder / "host.failed.log")
            with tempfile.TemporaryDirectory(dir=folder, prefix="tmp-") as scratch:
                for source, target in zip(sources, objects, strict=True):
                    made = Path(scratch) / target.name
                    log.run(_object(source, made, toolchain), folder)
                    made.replace(target)
            write_atomic(folder / "host.log", "".join(log.parts))
            write_atomic(folder / "meta.json", dump_json({"inputs": inputs, "outputs": digest_files(objects)}))
    return objects, (folder / "host.log").read_text(encoding="utf-8", errors="replace")


def _has_objects(folder: Path, objects: Sequence[Path]) -> bool:
    """Whether the host objects are in `folder` with the digests that they had when they were made, and their log."""
    try:
        meta = load_json((folder / "meta.json").read_bytes())
        made = {Path(path).name: digest for path, digest in meta["outputs"].items()}
        whole = made == {path.name: sha256(path.read_bytes()) for path in objects}
        return whole and (folder / "host.log").is_file()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _object(source: Path, target: Path, toolchain: Toolchain) -> list[str]:
    """The command that compiles one object."""
    torch = host_library.torch_root()
    return host_library.object_command(source, target, compiler=host_compiler(), cuda_root=toolchain.root, torch=torch)


def fatbin(folder: Path, ptx: tuple[Path, str], cubins: Mapping[str, Path], toolchain: Toolchain, log: Log) -> Path:
    """Packs machine code for each architecture and the PTX into ``<folder>/kernel.fatbin``.

    Args:
        folder: where the fatbin goes.
        ptx: the PTX that all of `cubins` were made from, and its target (``compute_80``).
        cubins: architecture (``sm_80``) -> machine code.
        toolchain: whose `fatbinary` packs them.
        log: takes the command and its output.
    """
    target = folder / "kernel.fatbin"
    images = [f"--image3=kind=elf,sm={arch.removeprefix('sm_')},file={path}" for arch, path in cubins.items()]
    images.append(f"--image3=kind=ptx,sm={ptx[1].removeprefix('compute_')},file={ptx[0]}")
    log.run([str(toolchain.fatbinary), "--64", f"--create={target}", *images], folder)
    return target


def link(folder: Path, table: str, objects: Sequence[Path], toolchain: Toolchain, log: Log) -> Path:
    """Compiles the generated table and links it with the host objects into ``<folder>/_C.abi3.so``.

    Raises:
        FlashladderError: the compiler or the linker failed.
    """
    source = write_atomic(folder / "table.cpp", table)
    made, library = folder / "table.o", folder / host_library.LIBRARY_NAME
    log.run(_object(source, made, toolchain), folder)
    command = host_library.library_command(
        [made, *objects],
        library,
        compiler=host_compiler(),
        cuda_root=toolchain.root,
        torch=host_library.torch_root(),
    )
    log.run(command, folder)
    made.unlink()
    return library
