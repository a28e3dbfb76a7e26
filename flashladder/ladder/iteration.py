"""Iterations: reads ``iterations/*.yaml``, resolves each through its parents, and composes its CUDA translation unit.

`load_iteration(8)` is the ladder's step 8. Each mistake in a file is one line: file:line, expected, found.
``invoke show 7`` prints `sources`; with ``--all`` it prints `flattened`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
import re
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from flashladder.columns import listed
from flashladder.errors import FlashladderError
from flashladder.files import relative, unreadable
from flashladder.ladder.claim import ClaimValue, CodeClaimValue, CounterName, Expect, PtxName, SassName, Scope
from flashladder.ladder.config import D_HEAD, MAX_SMEM_BYTES, KernelConfig
from flashladder.ladder.family import DEFAULT, Family, Iteration, Model, families, family_named, knobs_model, part_text
from flashladder.ladder.gpus import load_gpus, require_fit
from flashladder.located import Located, Location, read_located, validate, yaml_files
from flashladder.names import GPUS, PUBLISHED_GPU
from flashladder.paths import ITERATIONS, KERNELS

__all__ = ["Iteration", "load_all", "load_iteration", "translation_unit"]


class GpusFile(Model):
    """Knobs per GPU; ``any`` is every GPU, and a GPU's own knobs win over it."""


class ExpectFile(Model):
    """Claims against the parent: machine code and PTX at equal tile configuration, counters each at its own."""

    at: Model | None = None
    sass: Mapping[SassName, CodeClaimValue] = Field(default_factory=dict)
    main_loop: Mapping[SassName, CodeClaimValue] = Field(default_factory=dict)
    ptx: Mapping[PtxName, ClaimValue] = Field(default_factory=dict)
    counters: Mapping[CounterName, ClaimValue] = Field(default_factory=dict)


class IterationFile(Model):
    """One file ``iterations/NN_name.yaml``: what differs from the parent, why, and what is expected of it."""

    iteration: Annotated[int, Field(ge=1, le=99)]
    title: Annotated[str, Field(min_length=3, max_length=80, pattern=r"^[^\\\n]+$")]
    parent: Annotated[int, Field(ge=1, le=99)] | None = None
    family: str = DEFAULT
    why: Annotated[str, Field(min_length=40)]
    unmeasured: Annotated[str, Field(min_length=40)] | None = None
    change: Model = Model()
    configs: GpusFile = GpusFile()
    expect: ExpectFile = ExpectFile()


@cache
def file_model(family: Family) -> type[IterationFile]:
    """The form of a family's files: `IterationFile` with its concerns and knobs."""
    knobs: Any = (knobs_model(family.config_type) | None, None)
    gpus = dict.fromkeys(("any", *GPUS), knobs)
    configs = create_model("ConfigsFile", __base__=GpusFile, __doc__=GpusFile.__doc__, **gpus)
    expect = create_model("ExpectFile", __base__=ExpectFile, __doc__=ExpectFile.__doc__, at=knobs)
    own: dict[str, Any] = {
        "family": (Literal[family.name], DEFAULT if family.name == DEFAULT else ...),
        "change": (family.change_model, family.change_model()),
        "configs": (configs, configs()),
        "expect": (expect, expect()),
    }
    return create_model("IterationFile", __base__=IterationFile, __doc__=IterationFile.__doc__, **own)


def _resolve_parts(located: Located, family: Family, change: Mapping[str, object], parent: Any) -> Any:
    """The parent's parts with the change applied; `parent` is None for the first iteration of its family."""
    if parent is None:
        if missing := [concern for concern in family.concerns if concern not in change]:
            what = f"the first iteration of the family {family.name} must decide every concern"
            raise located.error(("change",), what, ", ".join(family.concerns), f"no {', '.join(missing)}")
        parts = family.parts_type(**change)
    else:
        for concern, value in change.items():
            if value == getattr(parent, concern):
                what, expected = f"{concern!r} does not change", f"not the parent's {value}"
                raise located.error(("change", concern), what, expected, value)
        parts = replace(parent, **change)
    for why, concerns in family.contradictions(parts):
        at = next((("change", concern) for concern in concerns if concern in change), ("change",))
        raise located.error(at, "the parts contradict each other", "parts that go together", why)
    return parts


def _resolve_config(
    located: Located, gpu: str, family: Family, parts: Any, knobs: Mapping[str, object], parent: Any
) -> Any:
    """The fp16 configuration on one GPU: the parent's, with the file's `knobs`, then with what the parts decide."""
    at: Location = next((at for at in (("configs", gpu), ("configs", "any")) if at in located.lines), ("change",))
    if parent is None:
        if missing := [name for name in family.required if name not in knobs]:
            what, expected = f"incomplete configuration for {gpu}", listed(family.required)
            raise located.error(at, what, expected, f"no {missing[0]}")
        parent = family.config_type.of({"d_head": D_HEAD, **dict.fromkeys(family.required, 1)})
    with located.placing(at, f" for {gpu}"):
        config = family.fit(parts, replace(parent, **knobs))
    for name, (value, why) in family.decisions(parts).items():
        if knobs.get(name, value) != value:
            key = next((word.key for word in config.words if word.key and name in word.fields), name)
            place = next(one for one in ((*at, key), ("configs", "any", key)) if one in located.lines)
            reason = f"{name} must be {value}: {why}"
            raise located.error(place, f"the parts contradict {key!r} on {gpu}", reason, knobs[name])
    conflicts = family.conflicts(parts, config)
    if not conflicts or config.smem_bytes > MAX_SMEM_BYTES:  # this GPU's own limit is more exact than the largest one
        with located.placing(at):
            require_fit(gpu, config, family=family)
    if conflicts:
        raise located.error(at, f"illegal configuration for {gpu}", "a legal combination", conflicts[0])
    return config


def _resolve_expect(
    expect: ExpectFile, located: Located, family: Family, parts: Any, configs: Mapping[str, Any], *, first: bool
) -> Expect:
    """The claims, with metric and scope filled in; `first`: no parent of its family precedes the iteration."""
    scopes: dict[str, Scope] = {"sass": "kernel", "main_loop": "main_loop", "ptx": "ptx", "counters": "counters"}
    found = {
        key: tuple(replace(claim, metric=name, scope=scope) for name, claim in getattr(expect, key).items())
        for key, scope in scopes.items()
    }
    at = {} if expect.at is None else family.knobs(expect.at)
    result = Expect((*found["sass"], *found["main_loop"]), found["ptx"], found["counters"], MappingProxyType(at))
    if first and (lonely := [c for c in result.claims if c.needs_parent]):
        raise located.error(("expect",), "a claim against a parent that does not exist", "{equals: number}", lonely[0])
    for claim in result.sass:
        if nowhere := sorted({*claim.on} - {*family.targets.arches}):
            place: Location = ("expect", "main_loop" if claim.scope == "main_loop" else "sass", claim.metric)
            what = f"a claim for machine code that the family {family.name} does not have"
            raise located.error(place, what, " or ".join(family.targets.arches), ", ".join(nowhere))
    for config in configs.values() if at else ():
        if conflicts := family.conflicts(parts, replace(config, **at)):
            raise located.error(("expect", "at"), "claims at an illegal configuration", "a legal one", conflicts[0])
    return result


_FILE_NAME = re.compile(r"(?P<number>\d{2})_(?P<slug>[a-z0-9_]+)\.yaml", re.ASCII)


def load_iteration(number: int, folder: Path = ITERATIONS) -> Iteration:
    """The iteration `number` of the ladder in `folder`; a wrong number or a mistake in a file is an error."""
    if path := _files(folder).get(number):
        return _current(path, folder)
    raise no_such_iteration(number, folder)


def _current(path: Path, folder: Path) -> Iteration:
    """The iteration in a file, read again after an edit."""
    try:
        stat = path.stat()
    except OSError as error:  # a link that leads nowhere
        raise unreadable(path, error) from error
    return _load(path, folder, (stat.st_mtime_ns, stat.st_size))


def no_such_iteration(found: object, folder: Path = ITERATIONS) -> FlashladderError:
    """The error for a number without an iteration in `folder`; it names those that exist."""
    files = _files(folder)
    gapless = list(files) == list(range(1, len(files) + 1))
    expected = f"a number from 1 to {len(files)}" if gapless else f"one of {', '.join(map(str, files))}"
    is_ablation = re.match(r"'\d{1,9} *[-+] *[A-Za-z]", str(found))
    hint = f"this command takes whole steps; `invoke emulate {found}` runs an ablation" if is_ablation else None
    return FlashladderError("no such iteration", expected=expected, found=found, hint=hint)


def load_all(folder: Path = ITERATIONS) -> tuple[Iteration, ...]:
    """Every iteration of the ladder, in order; an empty folder or a mistake in a file is an error."""
    return tuple(_current(path, folder) for path in _files(folder).values())


def load_runnable(arch: str) -> tuple[Iteration, ...]:
    """The iterations that a GPU of an architecture can run, in order; errors as of `load_all`."""
    return tuple(iteration for iteration in load_all() if not iteration.not_run_on(arch))


def begun(ladder: Iterable[Iteration], numbers: Iterable[int]) -> tuple[Iteration, ...]:
    """The iterations of `ladder` that results must hold if they hold those of `numbers`.

    Results that hold one step of a family must hold all its steps, except those with a reason in `unmeasured`.
    """
    begun_families = {load_iteration(number).family for number in {*numbers} & _files(ITERATIONS).keys()}
    return tuple(step for step in ladder if step.family in begun_families and not step.unmeasured)


def claim_configs(iteration: Iteration) -> tuple[KernelConfig, KernelConfig | None]:
    """The fp16 configurations at which claims are checked: the iteration's own, and its parent's at equal tile.

    The parent's is None for the first iteration of its family. Knobs that the parent's parts decide follow the parent.
    """
    config = iteration.family.fit(iteration.parts, replace(iteration.configs[PUBLISHED_GPU], **iteration.expect.at))
    parent = None if iteration.parent is None else load_iteration(iteration.parent)
    if parent is None or parent.family is not iteration.family:
        return config, None
    return config, parent.family.fit(parent.parts, config)


def runnable(numbers: Iterable[int], arch: str) -> list[int]:
    """The iterations that a GPU of an architecture can run; prints a line about each of the others."""
    reasons = {number: load_iteration(number).not_run_on(arch) for number in numbers}
    for reason in filter(None, reasons.values()):
        print(reason)
    return [number for number, reason in reasons.items() if not reason]


def same_but_for_parts(before: tuple[Iteration, KernelConfig], after: tuple[Iteration, KernelConfig]) -> bool:
    """Whether two configurations differ only in knobs that the parts of one side decide.

    Then the kernels differ only by the step: a switch that only one side has belongs to the step, a tile does not.
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
            expected = "NN_name.yaml, lower case"
            raise FlashladderError("bad file name", where=relative(path), expected=expected, found=path.name)
        number = int(match["number"])
        if number in files:
            what, found = f"iteration {number} exists twice", files[number].name
            raise FlashladderError(what, where=relative(path), expected="one file per number", found=found)
        files[number] = path
    if not files:
        raise FlashladderError("no iterations found", where=relative(folder), expected="files named NN_name.yaml")
    return files


@lru_cache(maxsize=256)
def _load(path: Path, folder: Path, stamp: tuple[int, int]) -> Iteration:
    """One file, resolved; `stamp` (mtime and size) makes the cache read an edited file again."""
    del stamp
    located, number = read_located(path), int(path.name[:2])
    family = _family(located, number, folder)
    file = validate(file_model(family), located)
    if file.iteration != number:
        expected = f"{number}, as the file name says"
        raise located.error(("iteration",), "bad value for 'iteration'", expected, file.iteration)
    parent = _parent(file, located, folder)
    base = parent if parent is not None and parent.family is family else None  # no other family's parts are inherited
    change = file.change.model_dump(exclude_none=True)
    parts = _resolve_parts(located, family, change, None if base is None else base.parts)
    given = {key: family.knobs(model) if model else {} for key, model in file.configs}
    knobs = {gpu: given["any"] | given[gpu] for gpu in GPUS}
    own = {gpu: MappingProxyType(set_here) for gpu, set_here in knobs.items() if set_here}
    if parent is not None and not change and not own:
        what = "the iteration differs in nothing from its parent"
        raise located.error((), what, "a 'change' or 'configs'", "neither")
    gpus, configs = load_gpus(), {}  # GPUs that run the family come first, so that an error names one of them
    for gpu in sorted(GPUS, key=lambda gpu: gpu in gpus and not family.runs_on(gpus[gpu].arch)):
        inherited = None if base is None else base.configs[gpu]
        configs[gpu] = _resolve_config(located, gpu, family, parts, knobs[gpu], inherited)
    return Iteration(
        number=number,
        slug=path.stem[3:],
        title=file.title,
        why=" ".join(file.why.split()),
        unmeasured=" ".join((file.unmeasured or "").split()),
        parent=file.parent,
        change=MappingProxyType(change),
        family=family,
        parts=parts,
        configs=MappingProxyType({gpu: configs[gpu] for gpu in GPUS}),
        own_configs=MappingProxyType(own),
        expect=_resolve_expect(file.expect, located, family, parts, configs, first=base is None),
        path=path,
        description=str(number),
    )


def _family(located: Located, number: int, folder: Path) -> Family:
    """The family that the file names; a file without that key must not have a parent of another family."""
    families()  # an error in loading a family must not point to this file
    parent = located.data.get("parent")
    if "family" not in located.data and isinstance(parent, int) and parent in _files(folder) and parent < number:
        name = load_iteration(parent, folder).family.name
        if name != DEFAULT:
            found = f"none, and iteration {parent}, its parent, is of the family {name}"
            raise located.error((), "missing key 'family'", f"'family: {name}'", found)
    with located.placing(("family",)):
        return family_named(located.data.get("family", DEFAULT))


def _parent(file: IterationFile, located: Located, folder: Path) -> Iteration | None:
    """The resolved parent, which must exist and have a smaller number, so that there is no cycle."""
    if file.parent is None:
        if file.iteration != 1:
            raise located.error((), "missing key 'parent'", f"an iteration before {file.iteration}", "none")
        return None
    if file.parent >= file.iteration:
        raise located.error(("parent",), "bad value for 'parent'", f"an iteration before {file.iteration}", file.parent)
    known = _files(folder)
    if file.parent not in known:
        listed = ", ".join(str(n) for n in known if n < file.iteration) or "none exists"
        raise located.error(("parent",), "the parent does not exist", f"one of {listed}", file.parent)
    return load_iteration(file.parent, folder)


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_ANY_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(include|pragma once).*\n", re.MULTILINE)


def translation_unit(iteration: Iteration, config: KernelConfig) -> str:
    """The CUDA source of one kernel, with `kernels/` as include folder; an error if the iteration cannot express it."""
    if conflicts := iteration.family.conflicts(iteration.parts, config):
        what = f"iteration {iteration.number} cannot express this configuration"
        raise FlashladderError(what, expected="; ".join(conflicts), found=config.short_form())
    return iteration.family.translation_unit(iteration, config)


def included_files(text: str, kernels: Path = KERNELS) -> tuple[Path, ...]:
    """Every file under `kernels` that `text` includes with quotes, directly or through others, sorted by path."""
    found: dict[Path, None] = {}
    waiting: list[tuple[str, Path | None]] = [(name, None) for name in _INCLUDE.findall(text)]
    while waiting:
        name, source = waiting.pop()
        path = kernels / name
        if path in found:
            continue
        if not path.is_file():
            where, what = relative(source) if source else "the translation unit", "an included file is missing"
            raise FlashladderError(what, where=where, expected=relative(path), found="no such file")
        found[path] = None
        waiting.extend((inner, path) for inner in _INCLUDE.findall(part_text(path)))
    return tuple(sorted(found))


def flattened(iteration: Iteration, config: KernelConfig, kernels: Path = KERNELS) -> str:
    """The whole kernel as one text in reading order: the composition, the main loop, the parts, then shared headers.

    The text has no include lines, so that two flattened kernels differ only where the kernels do.
    """
    sections = [("the composition", translation_unit(iteration, config))]
    sections += [(f"kernels/{name}", text) for name, text in sources(iteration, config, kernels).items()]
    return "\n".join(f"// ==== {name} ====\n{_ANY_INCLUDE.sub('', text).strip()}\n" for name, text in sections)


def sources(iteration: Iteration, config: KernelConfig, kernels: Path = KERNELS) -> dict[str, str]:
    """The text of every file that a kernel includes, by its name below `kernels`: its parts first, in reading order."""
    parts = [kernels / name for name in iteration.family.part_files(iteration, config)]
    rest = [path for path in included_files(translation_unit(iteration, config), kernels) if path not in parts]
    return {path.relative_to(kernels).as_posix(): part_text(path) for path in parts + rest}
