# /// script
# requires-python = ">=3.10"
# dependencies = ["nox[uv]>=2025.2.9", "pyyaml"]
# ///
"""Isolation: every job of this repository in an environment of its own.

Why: the builds must not see each other, the machine's CUDA or its Python
packages. uv makes that cheap: all environments share one copy of torch and of
the CUDA toolchain by hard links. uv itself comes with the block above.

    pip install nox && nox -s reproduce     # the main job
    pip install nox && nox -s tests         # tests before a push
    nox -s build-iteration-7 -- --arch sm_90 --configs prog --debug
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
import hashlib
import json
import os
from pathlib import Path
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

import nox
from nox.command import CommandFailed
import yaml

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True
nox.options.sessions = ["lint", "typecheck", "tests"]

ROOT = Path(__file__).resolve().parent
REQUIREMENTS = ROOT / "requirements"
SOURCES = f"{ROOT}{os.pathsep}{ROOT / 'emulator' / 'src'}"  # of both packages, for tools that do not install them
TITLE = re.compile(r"^title: (.+)$", re.MULTILINE)
STAMP = ".flashladder-stamp"
EPOCH = {"SOURCE_DATE_EPOCH": "315532800"}  # 1980, the first moment a zip can hold
EMULATED = {"analysis", "emulator"}  # environments with one of these files of requirements/ get ptxemu, from emulator/
BARE = {"headers"}  # of requirements/: wheels of which only files are wanted, not what their Python code imports
COMPILED = ("torch", "torchgen", "numpy", "pydantic", "pydantic_core", "yaml")  # packages that every build imports
CXX_SUFFIXES = {".cuh", ".cu", ".h", ".cpp"}
# A toolkit or compiler setting of the machine must not leak into a session.
os.environ.pop("CUDA_HOME", None)
os.environ.pop("CUDA_PATH", None)
os.environ.pop("PYTHONPATH", None)


def pins() -> dict[str, str]:
    """Exact versions of torch and of the toolchain's wheels, from configs/toolchain.yaml."""
    raw = yaml.safe_load((ROOT / "configs" / "toolchain.yaml").read_text(encoding="utf-8"))
    return {"torch": str(raw["torch"]), **{name: str(version) for name, version in raw["packages"].items()}}


def other_pins() -> dict[str, dict[str, str]]:
    """CUDA version of the toolchain axis to the exact versions of its compiler's wheels."""
    raw = yaml.safe_load((ROOT / "configs" / "toolchain.yaml").read_text(encoding="utf-8"))
    return {cuda: dict(packages) for cuda, packages in raw.get("others", {}).items()}


def refuse_others(session: nox.Session, *known: str) -> None:
    """Ends a session that would ignore an argument."""
    for word in session.posargs:
        if word not in known:
            session.error(f"no such argument: expected {' or '.join(known) or 'none'}, found {word}")


def share_files(session: nox.Session) -> None:
    """Keeps uv's cache on the environments' file system, without which nothing can be hard-linked."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    while not default.exists():
        default = default.parent
    if "UV_CACHE_DIR" not in os.environ and default.stat().st_dev != ROOT.stat().st_dev:
        session.env["UV_CACHE_DIR"] = str(ROOT / ".nox" / ".uv-cache")


def install(session: nox.Session, *names: str, torch: bool = True, venv: Path | None = None) -> None:
    """Installs requirements/<name>.txt (and torch), `BARE` ones alone, unless the environment has them already.

    The stamp in it says from what it was made, where, and what that put into site-packages: where it was moved, or a
    package is gone, everything is installed anew.
    """
    venv = venv or Path(session.virtualenv.location)
    files = [REQUIREMENTS / f"{name}.txt" for name in names]
    arguments, bare = [f"torch=={pins()['torch']}"] if torch else [], list[str]()
    for file in files:
        (bare if file.stem in BARE else arguments).extend(("-r", file.relative_to(ROOT).as_posix()))
    digest = hashlib.sha256(repr((arguments, bare, sys.version_info[:2], os.environ.get("UV_FIND_LINKS"))).encode())
    for file in [*files, ROOT / "emulator" / "pyproject.toml"]:
        digest.update(file.read_bytes())
    source, folder, *packages = stamped(venv)
    broken = bool(source) and (folder != str(venv) or not installed(venv).issuperset(filter(None, packages)))
    if source == digest.hexdigest() and not broken:
        return
    share_files(session)
    for chosen in (arguments, ["--no-deps", *bare] if bare else []):
        if chosen:
            pip_install(session, *["--reinstall"] * broken, "--python", str(venv), *chosen)
    if EMULATED & {*names}:
        editable(session, venv, "./emulator")
    if torch:
        share_bytecode(venv)
    lines = [digest.hexdigest(), str(venv), *sorted(installed(venv))]
    (venv / STAMP).write_text("\n".join(lines), encoding="utf-8")


def share_bytecode(venv: Path) -> None:
    """Links what Python compiled of `COMPILED` for `nox -s reproduce` into `venv`, where both have the same file.

    Without it the first import in each environment compiles a thousand files: two seconds.
    """
    other = ROOT / ".nox" / "reproduce"
    folders = [folder for name in COMPILED for folder in other.glob(f"lib/python*/site-packages/{name}")]
    for compiled in (path for folder in folders for path in folder.glob("**/*.pyc")):
        source = compiled.parent.parent / f"{compiled.name.partition('.')[0]}.py"
        mine = venv / compiled.relative_to(other)
        theirs = venv / source.relative_to(other)
        if theirs.is_file() and source.is_file() and theirs.samefile(source) and not mine.exists():
            mine.parent.mkdir(exist_ok=True)
            os.link(compiled, mine)


def stamped(venv: Path) -> list[str]:
    """The lines of an environment's stamp, two or more."""
    return [*((venv / STAMP).read_text(encoding="utf-8").split("\n") if (venv / STAMP).is_file() else [""]), ""]


def installed(venv: Path) -> set[str]:
    """What lies in an environment's site-packages, without the wheels that were built here, which come and go."""
    names = (path.name for path in venv.glob("lib/python*/site-packages/[!_]*"))
    return {name for name in names if not name.startswith("flashladder")}


def editable(session: nox.Session, venv: Path, folder: str) -> None:
    """Installs a package of this checkout so that edits count at once; what it needs is installed already."""
    options = ("--no-deps", "--no-build-isolation", "--editable", folder)
    session.run("uv", "pip", "install", "--quiet", "--python", str(venv), *options, silent=True)


def pip_install(session: nox.Session, *arguments: str) -> None:
    """``uv pip install``; where that fails, once more from uv's cache alone, as there may be no network."""
    command = ("uv", "pip", "install")
    try:
        session.run(*command, *arguments, silent=not sys.stderr.isatty())
    except CommandFailed as first:
        session.log("trying again without the network, with what is in uv's cache")
        try:
            session.run(*command, "--offline", *arguments, silent=not sys.stderr.isatty())
        except CommandFailed:
            session.log("uv's cache does not have all of it; why the first try failed is said above")
            raise first from None


def titles() -> dict[int, str]:
    """Number and title of every iteration, without reading more of a file that may be broken."""
    found = {}
    for path in sorted((ROOT / "iterations").glob("[0-9][0-9]_*.yaml")):
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        title = TITLE.search(text)
        found[int(path.name[:2])] = title[1] if title else path.name
    return found


def build_session(number: int, title: str) -> Callable[[nox.Session], None]:
    """The session that builds iteration `number` in an environment that serves nothing else; its help is the title."""

    def build(session: nox.Session) -> None:
        install(session, "build")
        session.run("python", "-m", "flashladder.build", str(number), *session.posargs)

    build.__doc__ = title
    return build


for _number, _title in titles().items():
    nox.session(name=f"build-iteration-{_number}")(build_session(_number, _title))


@nox.session
def reproduce(session: nox.Session) -> None:
    """The main job: build every iteration, check, time, verify, print.

    First compiles all kernels and links all wheels, with all CPUs. Then each iteration's own session installs its own.
    """
    say_how_long(session, "reproduce")
    install(session, "build", "analysis")
    session.run("python", "-m", "flashladder.build", "--all", *session.posargs)
    session.run("python", "-c", "import torch")  # compiles its modules for all environments, see `share_bytecode`
    build_each(session)
    session.run("python", "-m", "flashladder.build.wheel")
    session.run("python", "-m", "flashladder.gate.reproduce")


def say_how_long(session: nox.Session, command: str) -> None:
    """Says how long one of README's two commands took where it was timed."""
    times = json.loads((ROOT / "results" / "times.json").read_text(encoding="utf-8"))
    first, again = (f"{seconds:.0f} s" for seconds in times["seconds"][command].values())
    session.log(f"{command} took {first}, and {again} when all was compiled, on {times['cpus']} CPUs ({times['cpu']})")


def build_each(session: nox.Session) -> None:
    """Runs the session of every iteration: environment, wheel, import check.

    One more runs at a time than there are CPUs, as some wait for the disk. Packages of nox itself were checked already.
    """
    numbers, started = list(titles()), time.monotonic()

    def build(number: int) -> subprocess.CompletedProcess[str]:
        nox_here = [sys.executable, "-m", "nox", "--script-mode", "none", "-f", __file__]
        command = [*nox_here, "-s", f"build-iteration-{number}", "--"]
        return subprocess.run([*command, *session.posargs], capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0)) + 1) as pool:
        for done, run in enumerate(pool.map(build, numbers), 1):
            if run.returncode:
                pool.shutdown(cancel_futures=True)
                session.error(f"iteration {numbers[done - 1]} cannot be installed:\n{run.stdout}{run.stderr}")
            passed = time.monotonic() - started
            left = f"about {passed / done * (len(numbers) - done):.0f} s left"
            session.log(f"iteration {numbers[done - 1]}: installed in its own environment, imported; {left}")


@nox.session
def emulator(session: nox.Session) -> None:
    """Tests of ptxemu alone, without the pipeline (-- -k wgmma)."""
    install(session, "emulator", "headers", torch=False)
    session.chdir("emulator")
    session.run("python", "-m", "pytest", *spread(), *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def tests(session: nox.Session) -> None:
    """Tests before a push; of a path that is named, all (-- tests/null -k lock).

    A process more than there are CPUs, as some wait; each has one thread. ``-- -n0`` is one, for a debugger.
    """
    named = any((ROOT / word.partition("::")[0]).exists() for word in session.posargs)
    tier = () if named else ("-m", "not exhaustive")
    if not session.posargs:
        say_how_long(session, "tests")
    install(session, "build", "analysis", "test", "slurm", "bundle", "headers")
    session.run("python", "-m", "flashladder.build.wheel")
    session.run("python", "-m", "pytest", *spread(), *tier, *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session(venv_backend="none")
def exhaustive(session: nox.Session) -> None:
    """All tests, browser, packages (-- --fifth COMMIT: a drawn fifth)."""
    session.notify("tests", posargs=("tests", "emulator/tests", *session.posargs))
    if not session.posargs:
        session.notify("browser")
        session.notify("package")


def spread() -> tuple[str, ...]:
    """Options of pytest for a process more than there are CPUs."""
    return ("-n", str(len(os.sched_getaffinity(0)) + 1), "--dist", "worksteal")


@nox.session(venv_backend="none")
def times(session: nox.Session) -> None:
    """Times README's two commands on fresh clones: results/times.json.

    Each runs twice, with an empty `build/` and with a full one. The machine must have nothing else to do.
    """
    refuse_others(session)
    seconds: dict[str, dict[str, float]] = {"reproduce": {}, "tests": {}}
    for command, found in seconds.items():
        with tempfile.TemporaryDirectory() as folder:
            session.run("git", "clone", "--quiet", str(ROOT), folder, external=True)
            for number in ("first", "second"):
                started = time.monotonic()
                session.run(sys.executable, "-m", "nox", "-f", f"{folder}/noxfile.py", "-s", command, external=True)
                found[number] = round(time.monotonic() - started, 1)
                session.log(f"{command}, {number} run: {found[number]} s")
    commit = session.run("git", "rev-parse", "HEAD", external=True, silent=True)
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    facts = {"schema_version": 1, "kind": "command-times", "commit": str(commit).strip(), "seconds": seconds}
    facts |= {"cpu": cpu[1] if cpu else platform.machine(), "cpus": len(os.sched_getaffinity(0))}
    facts |= {"date": time.strftime("%Y-%m-%d"), "python": platform.python_version()}
    (ROOT / "results" / "times.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    session.log("written: results/times.json; next: invoke report, which puts it into README")


@nox.session
def coverage(session: nox.Session) -> None:
    """Lines and branches that all tests reach: fails below 92 % in all."""
    install(session, "build", "analysis", "test", "slurm", "bundle", "coverage", "headers")
    session.run("python", "-m", "flashladder.build.wheel")
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", *spread(), env={"OMP_NUM_THREADS": "1"})
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report", *session.posargs)


@nox.session
def mutation(session: nox.Session) -> None:
    """Planted mistakes that tests notice (-- lock --all)."""
    install(session, "build", "analysis", "test", "slurm", "mutation")
    session.run("python", "analysis/mutation.py", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def fuzz(session: nox.Session) -> None:
    """Damaged inputs for every reader (-- --inputs 100000 --target ptx)."""
    install(session, "build", "analysis", "test", "slurm", "fuzz", torch=False)
    session.run("python", "-m", "tests.fuzz.run", *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """Tests of the page in Chromium, and by axe-core (needs npm).

    Fails where there is no browser; ``nox -s tests`` skips these tests.
    """
    install(session, "build", "analysis", "test", "browser", torch=False)
    packages = Path(session.create_tmp()).resolve() / "npm"
    packages.mkdir(exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / "tests" / "browser" / name, packages)
    session.run("npm", "ci", "--prefix", str(packages), "--no-audit", "--no-fund", "--silent", external=True)
    axe = packages / "node_modules" / "axe-core" / "axe.min.js"
    env = {"FLASHLADDER_AXE": str(axe), "FLASHLADDER_BROWSER": "required"}
    session.run("python", "-m", "pytest", "tests/browser", *session.posargs, env=env)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, clang-format, codespell, imports (-- --fix repairs)."""
    refuse_others(session, "--fix")
    install(session, "lint", torch=False)
    fix = "--fix" in session.posargs
    folders = [Path(name) for name in ("kernels", "tests/broken", "tests/nvcc", "emulator/src", "emulator/tests")]
    sources = sorted(str(path) for folder in folders for path in folder.rglob("*") if path.suffix in CXX_SUFFIXES)
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")
    if sources:
        session.run("clang-format", *(["-i"] if fix else ["--dry-run", "-Werror"]), *sources)
    session.run("codespell")
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": SOURCES})


@nox.session
def typecheck(session: nox.Session) -> None:
    """Types: mypy --strict on package, scripts, tasks and tests."""
    install(session, "build", "analysis", "test", "browser", "slurm", "bundle", "typecheck")
    session.run("mypy", *session.posargs)


@nox.session
def package(session: nox.Session) -> None:
    """Sdist and wheel, tried on every Python here (-- 3.13)."""
    install(session, "build", "analysis", "package", torch=False)
    made = Path(session.create_tmp()) / "dist"
    shutil.rmtree(made, ignore_errors=True)
    backend = ("--build-constraints", str(REQUIREMENTS / "build.txt"), "--require-hashes")
    for folder in (ROOT, ROOT / "emulator"):
        session.run("uv", "build", *backend, "--out-dir", str(made), str(folder), silent=True, env=EPOCH)
    sdists, wheels = (sorted(map(str, made.glob(pattern))) for pattern in ("*.tar.gz", "*.whl"))
    session.run("twine", "check", "--strict", *sdists, *wheels)
    session.run("python", "tests/package/installed.py", *wheels, *session.posargs, env={"PYTHONPATH": str(ROOT)})


@nox.session
def bundle(session: nox.Session) -> None:
    """A bundle of everything, unpacked and run without network."""
    install(session, "build", "analysis", "bundle")
    made = Path(session.create_tmp())
    node = made / "node"
    if not (node / "bin" / "python").exists():
        session.run("uv", "venv", "--quiet", "--python", sys.executable, str(node))
    pip_install(session, "--quiet", "--python", str(node), f"torch=={pins()['torch']}")
    session.run("python", "-m", "flashladder", "bundle", "--arch", "sm_90", "--out", str(made), *session.posargs)
    session.run("python", "tests/package/node.py", str(made), str(node), env={"PYTHONPATH": str(ROOT)})


@nox.session
def audit(session: nox.Session) -> None:
    """Known vulnerabilities of all pinned packages (needs network)."""
    install(session, "audit", torch=False)
    service = session.posargs or ["--vulnerability-service", "osv"]
    for path in sorted(REQUIREMENTS.glob("*.txt")):
        command = ("pip-audit", "--disable-pip", "--require-hashes", "--progress-spinner=off", *service)
        session.run(*command, "-r", str(path))


@nox.session
def docs(session: nox.Session) -> None:
    """The site of all pages, with every link checked: build/site."""
    refuse_others(session)
    install(session, "docs", torch=False)
    own = {"PYTHONPATH": SOURCES, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    session.run("python", "analysis/docs_site.py", env=own)
    session.run("mkdocs", "build", "--strict", "--quiet", "--config-file", "build/docs/mkdocs.yml", env=own)
    session.run("python", "analysis/docs_site.py", "--check", env=own)


@nox.session
def dev(session: nox.Session) -> None:
    """Make .venv to work in: package, invoke, torch, toolchain, checkers."""
    refuse_others(session)
    venv = ROOT / ".venv"
    if not (venv / "bin" / "python").exists() or stamped(venv)[1] != str(venv):  # new, or moved
        session.run("uv", "venv", "--allow-existing", "--python", sys.executable, str(venv))
    names = ("build", "analysis", "test", "browser", "slurm", "bundle", "headers", "lint", "typecheck", "dev")
    install(session, *names, venv=venv)
    editable(session, venv, ".")
    session.log("ready: `source .venv/bin/activate`, then `invoke --list`; nothing else on this machine was changed")


@nox.session
def relock(session: nox.Session) -> None:
    """Make requirements/*.txt anew from pyproject.toml, toolchain.yaml."""
    exact = Path(session.create_tmp()) / "toolchain.txt"
    exact.write_text("".join(f"{name}=={version}\n" for name, version in pins().items()), encoding="utf-8")
    done = [exact]
    for name, groups in LOCK_GROUPS.items():
        out = REQUIREMENTS / f"{name}.txt"
        arguments = [f"--group={group}" for group in groups] + [f"--constraints={path}" for path in done]
        arguments += ["--no-deps"] if name in BARE else []
        session.run("uv", "pip", "compile", *COMPILE_FLAGS, *arguments, "--output-file", str(out), silent=True)
        out.write_text(LOCK_HEADER + out.read_text(encoding="utf-8"), encoding="utf-8")
        done.append(out)
    for cuda, packages in other_pins().items():
        relock_toolchain(session, cuda, packages)


def relock_toolchain(session: nox.Session, cuda: str, packages: dict[str, str]) -> None:
    """Makes requirements/toolchain-<cuda>.txt: the compiler that `invoke build --toolchain <cuda>` installs."""
    exact, out = Path(session.create_tmp()) / f"toolchain-{cuda}.in", REQUIREMENTS / f"toolchain-{cuda}.txt"
    exact.write_text("".join(f"{name}=={version}\n" for name, version in packages.items()), encoding="utf-8")
    session.run("uv", "pip", "compile", *COMPILE_FLAGS, str(exact), "--output-file", str(out), silent=True)
    out.write_text(LOCK_HEADER + out.read_text(encoding="utf-8"), encoding="utf-8")


# requirements/<key>.txt is compiled from these dependency groups of pyproject.toml; earlier files constrain later ones.
LOCK_GROUPS = {
    "build": ("build", "toolchain", "torch-python"),
    "analysis": ("analysis",),
    "emulator": ("emulator", "toolchain"),
}
OTHERS = "test browser slurm node bundle headers package audit docs lint typecheck fuzz dev coverage mutation"
LOCK_GROUPS |= {name: (name,) for name in OTHERS.split()}
COMPILE_FLAGS = (
    *("--upgrade", "--generate-hashes", "--universal", "--python-version=3.10", "--no-python-downloads"),
    *("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
)
LOCK_HEADER = "# Generated by `nox -s relock` from pyproject.toml and configs/toolchain.yaml; do not edit.\n"
