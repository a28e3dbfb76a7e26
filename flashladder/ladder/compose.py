"""From an iteration and a configuration to one CUDA translation unit, and to a view of it that a person can read.

The YAML says which parts an iteration is made of; its family turns that into C++ that names them
(`flashladder.ladder.family`), always under the same symbol: the difference between two iterations has no rename noise.

Run: ``invoke show 7`` prints `sources` as a page (`flashladder.view.fold`), with ``--all`` `flattened`;
``python -m flashladder.build.compile --iteration 7`` compiles `translation_unit`.
"""

from __future__ import annotations

from pathlib import Path
import re

from flashladder.errors import FlashladderError
from flashladder.files import read_text, relative
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
        FlashladderError: an included file does not exist, or is empty.
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
        waiting.extend((inner, relative(path)) for inner in _INCLUDE.findall(_source(path)))
    return tuple(sorted(found))


def flattened(iteration: Iteration, config: KernelConfig, kernels: Path = KERNELS) -> str:
    """The whole kernel as one text in reading order: what composes it, its main loop, its parts, then the floor.

    Include lines are left out, so that two flattened kernels differ only where the kernels do.
    """
    sections = [("the composition", translation_unit(iteration, config))]
    sections += [(f"kernels/{name}", text) for name, text in sources(iteration, config, kernels).items()]
    return "\n".join(f"// ==== {name} ====\n{_ANY_INCLUDE.sub('', text).strip()}\n" for name, text in sections)


def sources(iteration: Iteration, config: KernelConfig, kernels: Path = KERNELS) -> dict[str, str]:
    """The text of every file that a kernel includes, by its name below `kernels`: its parts first, in reading order."""
    parts = [kernels / name for name in part_files(iteration, config)]
    rest = [path for path in included_files(translation_unit(iteration, config), kernels) if path not in parts]
    return {path.relative_to(kernels).as_posix(): _source(path) for path in parts + rest}


def _source(path: Path) -> str:
    """The text of a file that a kernel includes.

    Raises:
        FlashladderError: it cannot be read, or is empty: a part without its code would fail in the compiler.
    """
    text = read_text(path)
    if not text.strip():
        raise FlashladderError(
            "the file is empty",
            where=relative(path),
            expected=f"its header line, such as: // ... `{path.stem}` (iteration N), and its code",
            hint="restore it",
        )
    return text
