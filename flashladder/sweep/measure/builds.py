"""Builds what a plan lacks, before anything is timed: each iteration in its own environment, by nox where it is there.

Why before: a compiler beside a measurement takes its CPU and its clock. Used by `flashladder.sweep.command`.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
import shutil
import subprocess
import sys

from tqdm import tqdm

from flashladder.errors import FlashladderError
from flashladder.ladder.ablation import load_description, parse_subject
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.selection import select_configs
from flashladder.paths import BUILD, ROOT
from flashladder.sweep.cells import Wanted

KEYS = ("prog", "prog-all", "tune", "all")  # from few kernels to many


def build_all(kernels: Sequence[Wanted], arch: str) -> None:
    """Builds and installs the wheels that hold these kernels.

    Raises:
        FlashladderError: a build failed; its last line is the reason.
    """
    by_wheel: dict[tuple[str, str], set[str]] = {}
    for kernel in kernels:
        by_wheel.setdefault((kernel.subject, kernel.toolchain), set()).add(kernel.config)
    environment = {**os.environ, "FLASHLADDER_BUILD": str(BUILD)}
    for (subject, toolchain), configs in tqdm(by_wheel.items(), desc="build", unit="wheel", disable=None, leave=False):
        command = command_for(subject, toolchain, covering_key(subject, configs), arch)
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            lines = [line for line in (ran.stdout + ran.stderr).splitlines() if line.strip()]
            told = next((line for line in reversed(lines) if line.startswith("error:")), lines[-1] if lines else "")
            raise FlashladderError(
                f"iteration {subject} could not be built",
                where=" ".join(command),
                found=told.removeprefix("error: "),
                hint="invoke doctor says what this machine lacks",
            )


def covering_key(subject: str, configs: set[str]) -> str:
    """The selection key with the fewest kernels that selects all these configurations.

    Raises:
        FlashladderError: no key does.
    """
    iteration = load_description(subject)
    for key in KEYS:
        if configs <= {config.short_form() for config in select_configs(iteration, key)}:
            return key
    wanted = ", ".join(sorted(KernelConfig.parse(config).brief() for config in configs))
    raise FlashladderError(f"no selection key holds all configurations of iteration {subject}", found=wanted)


def command_for(subject: str, toolchain: str, key: str, arch: str) -> list[str]:
    """The command that builds and installs one wheel: in the environment of its iteration where nox is, else here."""
    number, *change = parse_subject(subject).text.split()
    options = ["--arch", arch, "--configs", key, *(["--toolchain", toolchain] if toolchain else [])]
    if (nox := shutil.which("nox")) and (ROOT / "noxfile.py").is_file():
        return [nox, "-s", f"build-iteration-{number}", "--", *change, *options]
    return [sys.executable, "-m", "flashladder.build", number, *change, *options]
