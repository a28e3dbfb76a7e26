"""Iterations: read ``iterations/*.yaml``, resolve each through its parents, and hand out frozen dataclasses.

Why: the YAML is the only place where an iteration is spelled out. `load_iteration(8)` is the ladder's step 8,
`load_description("16 - swizzle")` an ablation. Each mistake in a file is one line: file:line, expected, found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
import re
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.files import relative, unreadable
from flashladder.ladder.claim import Claim
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.family import DEFAULT, Family, families, family_named
from flashladder.ladder.file_schema import Expect, IterationFile, file_model
from flashladder.ladder.inherit import (
    family_forgotten,
    first_to_run,
    frozen,
    own_configs,
    resolve_config,
    resolve_expect,
    resolve_parts,
    wrong,
)
from flashladder.located import Located, read_located, validate
from flashladder.names import GPUS, PUBLISHED_GPU
from flashladder.paths import ITERATIONS
from flashladder.yaml_text import yaml_files

__all__ = [
    "Claim",
    "Expect",
    "Iteration",
    "claim_configs",
    "load_all",
    "load_iteration",
    "no_such_iteration",
]

_FILE_NAME = re.compile(r"(?P<number>\d{2})_(?P<slug>[a-z0-9_]+)\.yaml", re.ASCII)


@dataclass(frozen=True)
class Iteration:
    """One step of the ladder, or an ablation of one, resolved through its parents.

    Attributes:
        number: its place, from 1; an ablation keeps the number of the iteration that it varies.
        slug: the idea as the file name says it, safe in file names.
        title: the idea in a few words.
        why: the mechanism, in the field's terms.
        unmeasured: why no timing of it is owed yet; empty as soon as one is. Its cases may have been checked before.
        parent: the iteration that this one differs from; None for the first.
        change: concern to new value; what differs from the parent.
        family: what kind of kernel it is: whose concerns, configurations and launch.
        parts: one value per concern of the family.
        configs: GPU key (a100, rtx3090, h200) to the fp16 configuration that is best there, of the family's type.
        own_configs: GPU key to the knobs that this step itself sets, under the names of the family's configuration.
        expect: claims against the parent.
        path: the YAML file.
        description: what `load_description` accepts to get this iteration back, for example ``16 - swizzle``.
    """

    number: int
    slug: str
    title: str
    why: str
    unmeasured: str
    parent: int | None
    change: Mapping[str, object]
    family: Family
    parts: Any
    configs: Mapping[str, Any]
    own_configs: Mapping[str, Mapping[str, object]]
    expect: Expect
    path: Path
    description: str

    def __hash__(self) -> int:
        """Equal iterations have equal descriptions and parts (mappings have no hash of their own)."""
        return hash((self.description, self.parts, self.path))

    @property
    def row_stride(self) -> int:
        """Elements between two rows of one head that the kernel is compiled for; 0 is any."""
        return self.family.row_stride(self.parts)

    @property
    def shown_arch(self) -> str:
        """The architecture whose machine code is shown where nobody names one: the first of its family's."""
        return self.family.targets.arches[0]

    def not_run_on(self, arch: str) -> str:
        """Why a GPU of an architecture (``sm_80``) cannot run this step, as one line; empty where it can."""
        if self.family.runs_on(arch):
            return ""
        return f"iteration {self.description}: not run here: needs {self.family.needs}"

    @property
    def is_ablation(self) -> bool:
        """Whether this is not a step of the ladder itself."""
        return self.description != str(self.number)


def load_iteration(number: int, folder: Path = ITERATIONS) -> Iteration:
    """The iteration `number` of the ladder in `folder`.

    Raises:
        FlashladderError: there is no such iteration, or its file or one of its parents' is wrong.
    """
    if path := _files(folder).get(number):
        return _current(path, folder)
    raise no_such_iteration(number, folder)


def _current(path: Path, folder: Path) -> Iteration:
    """A file as it is now."""
    try:
        stat = path.stat()
    except OSError as error:  # a link that leads nowhere
        raise unreadable(path, error) from error
    return _load(path, folder, (stat.st_mtime_ns, stat.st_size))


def no_such_iteration(found: object, folder: Path = ITERATIONS) -> FlashladderError:
    """The error that `found` is the number of no iteration in `folder`; it says which there are."""
    files = _files(folder)
    gapless = list(files) == list(range(1, len(files) + 1))
    expected = f"a number from 1 to {len(files)}" if gapless else f"one of {', '.join(map(str, files))}"
    return FlashladderError("no such iteration", expected=expected, found=found)


def load_all(folder: Path = ITERATIONS) -> tuple[Iteration, ...]:
    """Every iteration of the ladder, in order.

    Raises:
        FlashladderError: there is none, a file is wrong, or two claim one number.
    """
    return tuple(_current(path, folder) for path in _files(folder).values())


def load_runnable(arch: str) -> tuple[Iteration, ...]:
    """Those of the ladder that a GPU of an architecture can run, in order.

    Raises:
        FlashladderError: as `load_all`.
    """
    return tuple(iteration for iteration in load_all() if not iteration.not_run_on(arch))


def begun(ladder: Iterable[Iteration], numbers: Iterable[int]) -> tuple[Iteration, ...]:
    """Those of `ladder` whose family has one among `numbers`.

    Why: a machine's results owe every step of a family once they hold one of it, and nothing of the others, nor of a
    step that says why it has not been measured yet.
    """
    families = {load_iteration(number).family for number in {*numbers} & set(_files(ITERATIONS))}
    return tuple(iteration for iteration in ladder if iteration.family in families and not iteration.unmeasured)


def claim_configs(
    iteration: Iteration, folder: Path = ITERATIONS, gpu: str = PUBLISHED_GPU
) -> tuple[KernelConfig, KernelConfig | None]:
    """The fp16 configurations at which claims are checked: the iteration's own, and its parent's at equal tile.

    The parent's is None for the first iteration of its family; knobs that the parent's parts decide differently follow
    the parent.
    """
    config = iteration.family.fit(iteration.parts, replace(iteration.configs[gpu], **iteration.expect.at))
    parent = None if iteration.parent is None else load_iteration(iteration.parent, folder)
    if parent is None or parent.family is not iteration.family:
        return config, None
    return config, parent.family.fit(parent.parts, config)


def runnable(numbers: Iterable[int], arch: str, tell: Callable[[str], object] = print) -> list[int]:
    """Those of the iterations that a GPU of an architecture can run; `tell` gets a line about each of the others."""
    reasons = {number: load_iteration(number).not_run_on(arch) for number in numbers}
    for reason in filter(None, reasons.values()):
        tell(reason)
    return [number for number, reason in reasons.items() if not reason]


def same_but_for_parts(before: tuple[Iteration, KernelConfig], after: tuple[Iteration, KernelConfig]) -> bool:
    """Whether two configurations differ in nothing but what the parts of either side decide.

    Then the kernels differ by the step alone: a switch that only one side has is part of the step, a tile is not.
    """
    (older, old), (newer, new) = before, after
    family = older.family
    return family is newer.family and (family.fit(older.parts, new) == old or family.fit(newer.parts, old) == new)


def _files(folder: Path) -> dict[int, Path]:
    """Number to file, in order of the numbers; at least one."""
    files: dict[int, Path] = {}
    for path in yaml_files(folder):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            raise FlashladderError(
                "bad file name", where=relative(path), expected="NN_name.yaml, lower case", found=path.name
            )
        number = int(match["number"])
        if number in files:
            raise FlashladderError(
                f"iteration {number} exists twice",
                where=relative(path),
                expected="one file per number",
                found=files[number].name,
            )
        files[number] = path
    if not files:
        raise FlashladderError("no iterations found", where=relative(folder), expected="files named NN_name.yaml")
    return files


@lru_cache(maxsize=256)
def _load(path: Path, folder: Path, stamp: tuple[int, int]) -> Iteration:
    """One file, resolved; `stamp` (mtime and size) makes an edited file a new one."""
    del stamp
    located = read_located(path)
    with family_forgotten(located, int(path.name[:2]), lambda number: load_iteration(number, folder).family):
        return _resolved(located, path, folder)


def _resolved(located: Located, path: Path, folder: Path) -> Iteration:
    family = _family(located)
    file = validate(file_model(family), located)
    number, slug = int(path.name[:2]), path.stem[3:]
    if file.iteration != number:
        raise wrong(
            located, ("iteration",), "bad value for 'iteration'", f"{number}, as the file name says", file.iteration
        )
    parent = _parent(file, located, folder)
    base = parent if parent is not None and parent.family is family else None  # the others have nothing to inherit
    change = file.change.model_dump(exclude_none=True)
    parts = resolve_parts(located, family, change, None if base is None else base.parts)
    own = own_configs(file)
    if parent is not None and not change and not own:
        raise wrong(
            located, (), "the iteration differs in nothing from its parent", "a 'change' or 'configs'", "neither"
        )
    configs = {
        gpu: resolve_config(
            located, gpu, (family, parts), own.get(gpu, {}), None if base is None else base.configs[gpu]
        )
        for gpu in first_to_run(family)  # the one that a mistake is told of
    }
    return Iteration(
        number=number,
        slug=slug,
        title=file.title,
        why=" ".join(file.why.split()),
        unmeasured=" ".join((file.unmeasured or "").split()),
        parent=file.parent,
        change=frozen(change),
        family=family,
        parts=parts,
        configs=frozen({gpu: configs[gpu] for gpu in GPUS}),
        own_configs=frozen({gpu: frozen(knobs) for gpu, knobs in own.items()}),
        expect=resolve_expect(file, located, (family, parts), configs, first=base is None),
        path=path,
        description=str(number),
    )


def _family(located: Located) -> Family:
    """The family that the file names, which decides what else it may hold."""
    data = located.data if isinstance(located.data, Mapping) else {}
    families()  # one that cannot be loaded is no mistake of this file
    try:
        return family_named(data.get("family", DEFAULT))
    except FlashladderError as error:
        error.where = located.where(("family",))
        raise


def _parent(file: IterationFile, located: Located, folder: Path) -> Iteration | None:
    """The resolved parent, which must exist and come earlier (so that a cycle cannot be)."""
    if file.parent is None:
        if file.iteration != 1:
            raise wrong(located, (), "missing key 'parent'", f"an iteration before {file.iteration}", "none")
        return None
    if file.parent >= file.iteration:
        raise wrong(
            located, ("parent",), "bad value for 'parent'", f"an iteration before {file.iteration}", file.parent
        )
    known = _files(folder)
    if file.parent not in known:
        listed = ", ".join(str(n) for n in known if n < file.iteration) or "none exists"
        raise wrong(located, ("parent",), "the parent does not exist", f"one of {listed}", file.parent)
    return load_iteration(file.parent, folder)
