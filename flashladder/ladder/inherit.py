"""Resolves one iteration file against its parent: parts, configurations, claims, each error at its own line.

Why apart from `flashladder.ladder.iteration`: this is what a file means; that is which files exist and how to ask for
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import TypeVar

from flashladder.errors import FlashladderError
from flashladder.ladder.config import KEYS, KernelConfig
from flashladder.ladder.file_schema import Expect, IterationFile
from flashladder.ladder.gpus import require_fit
from flashladder.ladder.parts import (
    CONCERNS,
    D_HEAD,
    MAX_SMEM_BYTES,
    Parts,
    config_conflicts,
    contradictions,
    fit_config,
)
from flashladder.located import Located
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


def resolve_parts(located: Located, change: Mapping[str, object], parent: Parts | None) -> Parts:
    """The parent's parts with the change applied.

    Raises:
        FlashladderError: a concern that does not change, or parts that contradict each other; without a parent, a
            concern that is left open.
    """
    if parent is None:
        missing = [concern for concern in CONCERNS if concern not in change]
        if missing:
            what, expected = "the first iteration must decide every concern", ", ".join(CONCERNS)
            raise wrong(located, ("change",), what, expected, f"no {', '.join(missing)}")
        parts = Parts(**change)  # type: ignore[arg-type]  # complete, and typed by the model
    else:
        for concern, value in change.items():
            old = getattr(parent, concern)
            if old == value:
                raise wrong(
                    located, ("change", concern), f"{concern!r} does not change", f"not the parent's {old}", value
                )
        parts = replace(parent, **change)  # type: ignore[arg-type]  # typed by the model
    if found := contradictions(parts):
        at = next((("change", concern) for concern in found[0].concerns if concern in change), ("change",))
        raise wrong(located, at, "the parts contradict each other", "parts that go together", found[0].why)
    return parts


def own_configs(file: IterationFile) -> dict[str, dict[str, object]]:
    """GPU to the knobs that the file itself sets there, under the names of `KernelConfig`."""
    everywhere = {} if file.configs.any is None else file.configs.any.knobs()
    own: dict[str, dict[str, object]] = {}
    for gpu in GPUS:
        given = getattr(file.configs, gpu)
        knobs = everywhere | ({} if given is None else given.knobs())
        if knobs:
            own[gpu] = knobs
    return own


def resolve_config(
    located: Located, gpu: str, parts: Parts, knobs: Mapping[str, object], parent: KernelConfig | None
) -> KernelConfig:
    """The fp16 configuration on one GPU: the parent's, then what the file says, then what the parts decide.

    Raises:
        FlashladderError: the file says something that the parts decide otherwise, or the result is not legal or too
            large for that GPU.
    """
    at: Location = next((at for at in (("configs", gpu), ("configs", "any")) if at in located.lines), ("change",))
    if parent is None:
        missing = [name for name in ("B_r", "B_c", "n_warps") if name not in knobs]
        if missing:
            raise wrong(located, at, f"incomplete configuration for {gpu}", "B_r, B_c and n_warps", f"no {missing[0]}")
        parent = KernelConfig("fp16", D_HEAD, 1, 1, 1, False, False, False, 0, 0, 0, False, False)
    wanted = replace(parent, **knobs)  # type: ignore[arg-type]  # names and types are those of the model
    config = fit_config(parts, wanted)
    said, decided = asdict(wanted), asdict(config)
    for name in knobs:
        if said[name] != decided[name]:
            key = KEYS.get(name, name)
            places = [place for place in ((*at, key), ("configs", "any", key)) if place in located.lines]
            reason = next(r for r in config_conflicts(parts, wanted) if r.startswith((name, key)))
            raise wrong(located, places[0], f"the parts contradict {key!r} on {gpu}", reason, said[name])
    conflicts = config_conflicts(parts, config)
    try:
        if not conflicts or config.smem_bytes > MAX_SMEM_BYTES:  # then this GPU's own limit says more than the largest
            require_fit(gpu, config)
    except FlashladderError as error:
        raise wrong(located, at, error.what, error.expected, error.found) from error
    if conflicts:
        raise wrong(located, at, f"illegal configuration for {gpu}", "a legal combination", conflicts[0])
    return config


def resolve_expect(file: IterationFile, located: Located, parts: Parts, configs: Mapping[str, KernelConfig]) -> Expect:
    """The claims, with metric and scope filled in.

    Raises:
        FlashladderError: a claim against a parent that does not exist, or made at an illegal configuration.
    """
    expect = file.expect
    result = Expect(
        sass=(
            *(replace(claim, metric=name) for name, claim in expect.sass.items()),
            *(replace(claim, metric=name, scope="main_loop") for name, claim in expect.main_loop.items()),
        ),
        ptx=tuple(replace(claim, metric=name, scope="ptx") for name, claim in expect.ptx.items()),
        counters=tuple(replace(claim, metric=name, scope="counters") for name, claim in expect.counters.items()),
        at=frozen({} if expect.at is None else expect.at.knobs()),
    )
    if file.parent is None and (lonely := [c for c in result.claims if c.needs_parent]):
        raise wrong(located, ("expect",), "a claim against a parent that does not exist", "{equals: number}", lonely[0])
    for config in configs.values() if result.at else ():
        at = replace(config, **result.at)  # type: ignore[arg-type]  # names and types are those of the model
        if conflicts := config_conflicts(parts, at):
            raise wrong(located, ("expect", "at"), "claims at an illegal configuration", "a legal one", conflicts[0])
    return result
