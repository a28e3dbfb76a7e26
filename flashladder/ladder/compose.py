"""From an iteration and a configuration to one CUDA translation unit, and to a view of it that a person can read.

The YAML says which parts an iteration is made of; its family turns that into C++ that names them
(`flashladder.ladder.family`), always under the same symbol: the difference between two iterations has no rename noise.

Run: ``invoke show 7`` prints `flattened`; ``python -m flashladder.build.compile --iteration 7`` compiles
`translation_unit`.
"""

from __future__ import annotations

from pathlib import Path
import re

from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.paths import KERNELS

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_ANY_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(include|pragma once).*\n", re.MULTILINE)


def part_files(iteration: Iteration, config: KernelConfig) -> tuple[str, ...]:
    """The part files that this kernel is composed of, relative to ``kernels/``, in reading order."""
    return iteration.family.part_files(iteration, config)


def translation_unit(iteration: Iteration, config: KernelConfig) -> str:
    """The CUDA source of one kernel; `kernels/` is its include folder.

    Raises:
        FlashladderError: the configuration is not one that the iteration can express.
    """
    conflicts = iteration.family.conflicts(iteration.parts, config)
    if conflicts:
        raise FlashladderError(
            f"iteration {iteration.number} cannot express this configuration",
            expected="; ".join(conflicts),
            found=config.short_form(),
        )
    return iteration.family.translation_unit(iteration, config)


def included_files(text: str, kernels: Path = KERNELS) -> tuple[Path, ...]:
    """Every file under `kernels` that `text` includes with quotes, directly or through others, sorted by path.

    Raises:
        FlashladderError: an included file does not exist.
    """
    found: dict[Path, None] = {}
    waiting = [(name, "the translation unit") for name in _INCLUDE.findall(text)]
    while waiting:
        name, source = waiting.pop()
        path = kernels / name
        if path in found:
            continue
        if not path.is_file():
            raise FlashladderError(
                "an included file is missing", where=source, expected=relative(path), found="no such file"
            )
        found[path] = None
        waiting.extend((inner, relative(path)) for inner in _INCLUDE.findall(path.read_text(encoding="utf-8")))
    return tuple(sorted(found))


def flattened(iteration: Iteration, config: KernelConfig, kernels: Path = KERNELS) -> str:
    """The whole kernel as one text in reading order: what composes it, its main loop, its parts, then the floor.

    Include lines are left out, so that two flattened kernels differ only where the kernels do.
    """
    text = translation_unit(iteration, config)
    first = [kernels / name for name in part_files(iteration, config)]
    rest = [path for path in included_files(text, kernels) if path not in first]
    sections = [("the composition", _ANY_INCLUDE.sub("", text))]
    for path in first + rest:
        name = path.relative_to(kernels).as_posix()
        sections.append((f"kernels/{name}", _ANY_INCLUDE.sub("", path.read_text(encoding="utf-8"))))
    return "\n".join(f"// ==== {name} ====\n{body.strip()}\n" for name, body in sections)
