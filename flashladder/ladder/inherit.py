"""Resolves one iteration file against its parent: parts, configurations, claims, each error at its own line.

Why apart from `flashladder.ladder.iteration`: this is what a file means; that is which files exist and how to ask for
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, TypeVar

from flashladder.errors import FlashladderError
from flashladder.ladder.config import MAX_SMEM_BYTES
from flashladder.ladder.family import DEFAULT, Family, Knobs
from flashladder.ladder.file_schema import Expect, IterationFile
from flashladder.ladder.gpus import load_gpus, require_fit
from flashladder.located import Located, is_of_a_file
from flashladder.names import GPUS
from flashladder.yaml_text import Location

K = TypeVar("K")
V = TypeVar("V")


def frozen(mapping: Mapping[K, V]) -> Mapping[K, V]:
    """A read-only copy."""
    return MappingProxyType(dict(mapping))


def wrong(located: Located, location: Location, what: str, expected: object, found: object) -> FlashladderError:
    """An error at a location of a file."""
    return FlashladderError(what, where=located.where(location), expected=expected, found=found)


@contextmanager
def family_forgotten(located: Located, before: int, family_of: Callable[[int], Family]) -> Iterator[None]:
    """Adds to an error of a file, iteration `before`, without a ``family``, that its parent is not of the default one.

    Why: to such a file every key of the parent's family is unknown, which is not what is wrong with it.
    """
    try:
        yield
    except FlashladderError as error:
        data = located.data if isinstance(located.data, Mapping) else {}
        number, own = data.get("parent"), (error.where or "").rpartition(":")[0] == located.where(()).rpartition(":")[0]
        if own and "family" not in data and isinstance(number, int) and number < before:
            try:
                family = family_of(number).name
            except FlashladderError:  # the parent has a mistake of its own
                family = DEFAULT
            if family != DEFAULT:
                said = f"iteration {number}, its parent, is of the family {family}: 'family: {family}' is missing"
                error.hint = f"{error.hint}; {said}" if error.hint else said
        raise


def resolve_parts(located: Located, family: Family, change: Mapping[str, object], parent: Any) -> Any:
    """The parent's parts with the change applied; `parent` is None for the first iteration of its family.

    Raises:
        FlashladderError: a concern that does not change, or parts that contradict each other; without a parent, a
            concern that is left open.
    """
    if parent is None:
        missing = [concern for concern in family.concerns if concern not in change]
        if missing:
            what = f"the first iteration of the family {family.name} must decide every concern"
            expected = ", ".join(family.concerns)
            raise wrong(located, ("change",), what, expected, f"no {', '.join(missing)}")
        parts = family.parts_type(**change)
    else:
        for concern, value in change.items():
            old = getattr(parent, concern)
            if old == value:
                raise wrong(
                    located, ("change", concern), f"{concern!r} does not change", f"not the parent's {old}", value
                )
        parts = replace(parent, **change)
    if found := family.contradictions(parts):
        at = next((("change", concern) for concern in found[0].concerns if concern in change), ("change",))
        raise wrong(located, at, "the parts contradict each other", "parts that go together", found[0].why)
    return parts


def own_configs(file: IterationFile) -> dict[str, dict[str, object]]:
    """GPU to the knobs that the file itself sets there, under the names of its family's configuration."""
    given: Mapping[str, Knobs | None] = dict(file.configs)
    everywhere, own = given.get("any"), dict[str, dict[str, object]]()
    for gpu in GPUS:
        both = [one.knobs() for one in (everywhere, given[gpu]) if one is not None]
        knobs = {name: value for one in both for name, value in one.items()}
        if knobs:
            own[gpu] = knobs
    return own


def first_to_run(family: Family) -> list[str]:
    """The GPUs of configurations, those that run a family's kernels before the others."""
    gpus = load_gpus()
    return sorted(GPUS, key=lambda gpu: gpu in gpus and not family.runs_on(gpus[gpu].arch))


def resolve_config(
    located: Located, gpu: str, composed: tuple[Family, Any], knobs: Mapping[str, object], parent: Any
) -> Any:
    """The fp16 configuration on one GPU: the parent's, then what the file says, then what the parts decide.

    Args:
        located: the file.
        gpu: key of the GPU.
        composed: the family, and the iteration's parts.
        knobs: what the file says for this GPU.
        parent: the parent's configuration; None for the first iteration of its family.

    Raises:
        FlashladderError: the file says something that the parts decide otherwise, or the result is not legal or too
            large for that GPU.
    """
    at: Location = next((at for at in (("configs", gpu), ("configs", "any")) if at in located.lines), ("change",))
    family, parts = composed
    if parent is None:
        try:
            parent = family.first_config(knobs)
        except FlashladderError as error:
            raise wrong(located, at, f"{error.what} for {gpu}", error.expected, error.found) from error
    wanted = replace(parent, **knobs)
    config = family.fit(parts, wanted)
    said, decided = asdict(wanted), asdict(config)
    for name in knobs:
        if said[name] != decided[name]:
            key = family.keys.get(name, name)
            places = [place for place in ((*at, key), ("configs", "any", key)) if place in located.lines]
            reason = next(r for r in family.conflicts(parts, wanted) if r.startswith((name, key)))
            raise wrong(located, places[0], f"the parts contradict {key!r} on {gpu}", reason, said[name])
    conflicts = family.conflicts(parts, config)
    try:
        if not conflicts or config.smem_bytes > MAX_SMEM_BYTES:  # then this GPU's own limit says more than the largest
            require_fit(gpu, config, family=family)
    except FlashladderError as error:
        if is_of_a_file(error):
            raise
        raise wrong(located, at, error.what, error.expected, error.found) from error
    if conflicts:
        raise wrong(located, at, f"illegal configuration for {gpu}", "a legal combination", conflicts[0])
    return config


def resolve_expect(
    file: IterationFile, located: Located, composed: tuple[Family, Any], configs: Mapping[str, Any], *, first: bool
) -> Expect:
    """The claims, with metric and scope filled in; `first`: no parent of its family precedes the iteration.

    Raises:
        FlashladderError: a claim against a parent that does not exist, for an architecture that the family has no code
            for, or made at an illegal configuration.
    """
    expect, (family, parts) = file.expect, composed
    result = Expect(
        sass=(
            *(replace(claim, metric=name) for name, claim in expect.sass.items()),
            *(replace(claim, metric=name, scope="main_loop") for name, claim in expect.main_loop.items()),
        ),
        ptx=tuple(replace(claim, metric=name, scope="ptx") for name, claim in expect.ptx.items()),
        counters=tuple(replace(claim, metric=name, scope="counters") for name, claim in expect.counters.items()),
        at=frozen({} if expect.at is None else expect.at.knobs()),
    )
    if first and (lonely := [c for c in result.claims if c.needs_parent]):
        raise wrong(located, ("expect",), "a claim against a parent that does not exist", "{equals: number}", lonely[0])
    for claim in result.sass:
        if nowhere := sorted({*claim.on} - {*family.targets.arches}):
            place: Location = ("expect", "main_loop" if claim.scope == "main_loop" else "sass", claim.metric)
            what = f"a claim for machine code that the family {family.name} does not have"
            raise wrong(located, place, what, " or ".join(family.targets.arches), ", ".join(nowhere))
    for config in configs.values() if result.at else ():
        at = replace(config, **result.at)
        if conflicts := family.conflicts(parts, at):
            raise wrong(located, ("expect", "at"), "claims at an illegal configuration", "a legal one", conflicts[0])
    return result
