"""Enters configurations into iteration files: one line of text is replaced, everything else stays as a person wrote it.

Why text and not a YAML writer: comments, order and alignment of these files are read by people. What the edited files
mean is checked in a copy before the first of them is touched: exactly the wanted configurations change. Used by
`flashladder.sweep.tune.winner`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
import re
import shutil
import tempfile

from flashladder.errors import FlashladderError
from flashladder.files import read_text, relative, write_atomic
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
from flashladder.located import read_located
from flashladder.paths import ITERATIONS

EVIDENCE = "tuned: "  # leads the comment above an entered line


def enter(configs: Mapping[int, KernelConfig], gpu: str, evidence: str, folder: Path = ITERATIONS) -> list[Path]:
    """Writes configurations for one GPU into the iterations' files, all of them or none; returns the changed files.

    Args:
        configs: iteration to its new fp16 configuration.
        gpu: the key under which it stands.
        evidence: what a comment says about where it comes from.
        folder: of the iterations.

    Raises:
        FlashladderError: a file is not laid out as expected, or an edit would change more than was asked for.
    """
    before = {iteration.number: iteration for iteration in load_all(folder)}
    texts = {
        number: edited(load_iteration(number, folder), config, gpu, evidence) for number, config in configs.items()
    }
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / folder.name
        shutil.copytree(folder, copy)
        for number, text in texts.items():
            write_atomic(copy / before[number].path.name, text)
        for after in load_all(copy):
            wanted = dict(before[after.number].configs)
            if after.number in configs:
                wanted[gpu] = configs[after.number]
            if dict(after.configs) != wanted:
                raise FlashladderError(
                    "the edit would change another configuration than was asked for",
                    where=relative(before[after.number].path),
                    hint="an iteration may inherit it: give that one a line of its own first",
                )
    return [write_atomic(before[number].path, text) for number, text in texts.items()]


def edited(iteration: Iteration, config: KernelConfig, gpu: str, evidence: str) -> str:
    """The text of an iteration's file with another configuration for `gpu`, and a comment about its evidence above it.

    Raises:
        FlashladderError: the file has no one-line mapping for that GPU.
    """
    located = read_located(iteration.path)
    lines = read_text(iteration.path).splitlines(keepends=True)
    place = located.lines.get(("configs", gpu))
    match = re.fullmatch(rf"(\s+){gpu}:\s*\{{[^{{}}#]*\}}(\s*#.*)?\n?", lines[place - 1]) if place else None
    if place is None or match is None:
        raise FlashladderError(
            f"no configuration of {gpu} on a line of its own",
            where=located.where(("configs", gpu)),
            expected=f"  {gpu}: {{B_r: ..., ...}}",
            found=lines[place - 1].strip() if place else "none",
            hint="enter it by hand: " + knobs(iteration, config),
        )
    new = f"{match[1]}{gpu}: {knobs(iteration, config)}{match[2] or ''}\n"
    comment = f"{match[1]}# {EVIDENCE}{evidence}\n"
    start = place - 1
    if start and lines[start - 1].strip().startswith(f"# {EVIDENCE}"):
        start -= 1
    return "".join([*lines[:start], comment, new, *lines[place:]])


def knobs(iteration: Iteration, config: KernelConfig) -> str:
    """A configuration as iterations write it: ``{B_r: 128, ...}``, without what the iteration's parts decide."""
    found = iteration.family.to_knobs(iteration.parts, config)
    return "{" + ", ".join(f"{key}: {value}" for key, value in found.items()) + "}"
