# /// script
# requires-python = ">=3.10"
# dependencies = ["nox[uv]>=2025.2.9", "pyyaml"]
# ///
"""Isolation: every job of this repository in an environment of its own, with exact versions.

Why: sixteen builds must not see each other, the machine's CUDA or its Python packages. uv makes that cheap: all
environments share one copy of torch and of the CUDA toolchain by hard links.

    pip install nox && nox -s reproduce     # the main job; the block above fetches uv and the rest by itself
    nox -l                                  # every session with its help
"""

from __future__ import annotations

from collections.abc import Callable
import hashlib
import os
from pathlib import Path
import sys

import nox
import yaml

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True
nox.options.sessions = ["lint", "typecheck", "tests"]

ROOT = Path(__file__).resolve().parent
REQUIREMENTS = ROOT / "requirements"
NUMBERS = range(1, 17)
CXX_SUFFIXES = {".cuh", ".cu", ".h", ".cpp"}
# A toolkit or compiler setting of the machine must not leak into a session.
os.environ.pop("CUDA_HOME", None)
os.environ.pop("CUDA_PATH", None)
os.environ.pop("PYTHONPATH", None)


def pins() -> dict[str, str]:
    """Exact versions of torch and of the toolchain's wheels, from configs/toolchain.yaml."""
    raw = yaml.safe_load((ROOT / "configs" / "toolchain.yaml").read_text(encoding="utf-8"))
    return {"torch": str(raw["torch"]), **{name: str(version) for name, version in raw["packages"].items()}}


def share_files(session: nox.Session) -> None:
    """Keeps uv's cache on the environments' file system, without which nothing can be hard-linked."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    while not default.exists():
        default = default.parent
    if "UV_CACHE_DIR" not in os.environ and default.stat().st_dev != ROOT.stat().st_dev:
        session.env["UV_CACHE_DIR"] = str(ROOT / ".nox" / ".uv-cache")


def install(session: nox.Session, *names: str, torch: bool = True, venv: Path | None = None) -> None:
    """Installs requirements/<name>.txt (and torch), unless the environment has exactly these already."""
    venv = venv or Path(session.virtualenv.location)
    files = [REQUIREMENTS / f"{name}.txt" for name in names]
    arguments = [f"torch=={pins()['torch']}"] if torch else []
    for file in files:
        arguments += ["-r", file.relative_to(ROOT).as_posix()]
    digest = hashlib.sha256(repr((arguments, sys.version_info[:2], os.environ.get("UV_FIND_LINKS"))).encode())
    for file in files:
        digest.update(file.read_bytes())
    stamp = venv / ".flashladder-stamp"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == digest.hexdigest():
        return
    share_files(session)
    session.run("uv", "pip", "install", "--python", str(venv), *arguments, silent=not sys.stderr.isatty())
    stamp.write_text(digest.hexdigest(), encoding="utf-8")


def build_session(number: int) -> Callable[[nox.Session], None]:
    """The session that builds iteration `number` in an environment that serves nothing else."""

    def build(session: nox.Session) -> None:
        install(session, "build")
        session.run("python", "-m", "flashladder.build", str(number), *session.posargs)

    build.__doc__ = (
        f"Build iteration {number}: wheel, logs, ptxas table, import check "
        f"(nox -s build-iteration-{number} -- --arch sm_90 --configs prog --debug)."
    )
    return build


for _number in NUMBERS:
    nox.session(name=f"build-iteration-{_number}")(build_session(_number))


@nox.session(venv_backend="none")
def reproduce(session: nox.Session) -> None:
    """Do the main job: build all sixteen iterations, check and time them, verify locks, print the table."""
    for number in NUMBERS:
        session.notify(f"build-iteration-{number}", posargs=session.posargs)
    session.notify("verify", posargs=())


@nox.session
def verify(session: nox.Session) -> None:
    """Verify what was built: locks, claims, check and bench where there is a GPU, report, gate."""
    install(session, "build", "analysis")
    session.run("python", "-m", "flashladder.wheel")
    session.run("python", "-m", "flashladder.reproduce", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run every test that this machine can run (nox -s tests -- tests/null -k lock)."""
    install(session, "build", "analysis", "test")
    session.run("python", "-m", "flashladder.wheel")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style: ruff, clang-format, codespell (nox -s lint -- --fix repairs what can be repaired)."""
    install(session, "lint", torch=False)
    fix = "--fix" in session.posargs
    folders = [Path("kernels"), Path("tests", "broken"), Path("tests", "nvcc")]
    sources = sorted(str(path) for folder in folders for path in folder.rglob("*") if path.suffix in CXX_SUFFIXES)
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")
    if sources:
        session.run("clang-format", *(["-i"] if fix else ["--dry-run", "-Werror"]), *sources)
    session.run("codespell")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check types: mypy --strict on the package, the scripts, the tasks and the tests."""
    install(session, "build", "analysis", "test", "typecheck")
    session.run("mypy", *session.posargs)


@nox.session
def dev(session: nox.Session) -> None:
    """Make .venv to work in: the package editable, invoke, torch, the toolchain and every checker."""
    venv = ROOT / ".venv"
    if not (venv / "bin" / "python").exists():
        session.run("uv", "venv", "--python", sys.executable, str(venv))
    install(session, "build", "analysis", "test", "lint", "typecheck", "dev", venv=venv)
    editable = ("--no-deps", "--no-build-isolation", "--editable", ".")
    session.run("uv", "pip", "install", "--python", str(venv), *editable, silent=True)
    session.log("ready: `source .venv/bin/activate`, then `invoke --list`; nothing else on this machine was changed")


@nox.session
def relock(session: nox.Session) -> None:
    """Regenerate requirements/*.txt from pyproject.toml's groups and configs/toolchain.yaml (needs a network)."""
    exact = Path(session.create_tmp()) / "toolchain.txt"
    exact.write_text("".join(f"{name}=={version}\n" for name, version in pins().items()), encoding="utf-8")
    done = [exact]
    for name, groups in LOCK_GROUPS.items():
        out = REQUIREMENTS / f"{name}.txt"
        arguments = [f"--group={group}" for group in groups] + [f"--constraints={path}" for path in done]
        session.run("uv", "pip", "compile", *COMPILE_FLAGS, *arguments, "--output-file", str(out), silent=True)
        out.write_text(LOCK_HEADER + out.read_text(encoding="utf-8"), encoding="utf-8")
        done.append(out)


# requirements/<key>.txt is compiled from these dependency groups of pyproject.toml; earlier files constrain later ones.
LOCK_GROUPS = {
    "build": ("build", "toolchain", "torch-python"),
    "analysis": ("analysis",),
    "test": ("test",),
    "lint": ("lint",),
    "typecheck": ("typecheck",),
    "dev": ("dev",),
}
COMPILE_FLAGS = (
    "--upgrade",
    "--generate-hashes",
    "--universal",
    "--python-version=3.10",
    "--no-header",
    "--no-annotate",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-python-downloads",
)
LOCK_HEADER = "# Generated by `nox -s relock` from pyproject.toml and configs/toolchain.yaml; do not edit.\n"
