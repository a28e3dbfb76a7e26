"""Ablations: an iteration with one change taken back or added, for example ``16 - swizzle`` or ``7 + xor_static``.

Why: a grid can then ask what each step is worth at the end of the ladder. A change is named by its step (the
name in the file's name, ``swizzle``) or by the value it brought (``xor``). Each concern is a chain of refinements, so
that taking a step back returns the concern to what it was before that step; what cannot stand without it goes back too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.ladder.inherit import frozen
from flashladder.ladder.iteration import Expect, Iteration, load_all, load_iteration, no_such_iteration
from flashladder.ladder.subject import not_a_description, split_description
from flashladder.located import closest
from flashladder.paths import ITERATIONS


def load_description(text: str, folder: Path = ITERATIONS) -> Iteration:
    """An iteration by its number (``16``), or an ablation of it (``16 - swizzle``, ``7 + xor_static``).

    Raises:
        FlashladderError: not a description, nothing of that name, or a result that no configuration can express.
    """
    found = split_description(text)
    if found is None:
        raise no_such_iteration(text, folder) if text.isascii() and text.isdigit() else not_a_description(text)
    number, sign, name = found
    base = load_iteration(number, folder)
    if not sign:
        return base
    lineage = _lineage(base, folder)
    candidates = _names(lineage[1:] if sign == "-" else _others(lineage, folder))
    if not candidates:
        every = f"every change of the family {base.family.name}: there is none to add"
        verb = "no change to take back" if sign == "-" else every
        raise FlashladderError(f"iteration {base.number} has {verb}", found=repr(text))
    if name not in candidates:
        done = "taken back from" if sign == "-" else "added to"
        raise FlashladderError(
            f"nothing named {name!r} can be {done} iteration {base.number}",
            expected=f"one of {', '.join(candidates)}",
            found=repr(text),
            hint=closest(name, list(candidates)),
        )
    step, concerns = candidates[name]
    back = sign == "-"
    parts = _taken_back(base, step, concerns, lineage) if back else _added(base, step, concerns)
    return _ablation(base, parts, step, f"{base.number} {sign} {name}", folder, frozenset(concerns))


def nameable(number: int, folder: Path = ITERATIONS) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What can be taken back from an iteration, and what can be added to it, by name."""
    lineage = _lineage(load_iteration(number, folder), folder)
    return tuple(_names(lineage[1:])), tuple(_names(_others(lineage, folder)))


def _lineage(iteration: Iteration, folder: Path) -> list[Iteration]:
    """The iteration with all its ancestors of its family, first ancestor first."""
    lineage = [iteration]
    while lineage[0].parent is not None:
        parent = load_iteration(lineage[0].parent, folder)
        if parent.family is not iteration.family:
            break
        lineage.insert(0, parent)
    return lineage


def _others(lineage: Iterable[Iteration], folder: Path) -> list[Iteration]:
    """Every step of the family that is not in the lineage."""
    known = {step.number: step.family for step in lineage}
    return [step for step in load_all(folder) if step.number not in known and step.family in known.values()]


def _names(steps: Iterable[Iteration]) -> dict[str, tuple[Iteration, tuple[str, ...]]]:
    """Name to step and the concerns meant by it: a step's own name means all that it changes."""
    steps = list(steps)
    names = {step.slug: (step, tuple(step.change)) for step in steps}
    for step in steps:
        for concern, value in step.change.items():
            if isinstance(value, str):
                names.setdefault(value, (step, (concern,)))
    return names


def _taken_back(base: Iteration, step: Iteration, concerns: Iterable[str], lineage: list[Iteration]) -> Any:
    """The parts of `base` without the step: its concerns as before it; what contradicts them goes back step by step."""
    fixed = set(concerns)
    history = [earlier.parts for earlier in lineage]
    before = history[lineage.index(step) - 1]
    result = replace(base.parts, **{concern: getattr(before, concern) for concern in fixed})
    for older in reversed(history[:-1]):
        loose = {concern for found in base.family.contradictions(result) for concern in found.concerns} - fixed
        result = replace(result, **{concern: getattr(older, concern) for concern in loose})
    return result


def _added(base: Iteration, step: Iteration, concerns: Iterable[str]) -> Any:
    """The parts of `base` with the step's change, wholly where a part of it cannot stand alone."""
    result = replace(base.parts, **{concern: step.change[concern] for concern in concerns})
    if base.family.contradictions(result):
        result = replace(base.parts, **step.change)
    return result


def _ablation(
    base: Iteration, parts: Any, step: Iteration, description: str, folder: Path, meant: frozenset[str]
) -> Iteration:
    """The iteration with these parts, checked; its title says what changed besides the concerns that were meant."""
    reasons = [found.why for found in base.family.contradictions(parts)]
    configs = {gpu: _config(base, gpu, parts, step, description, folder) for gpu in base.configs}
    for gpu, config in configs.items():
        reasons += [f"{gpu}: {reason}" for reason in base.family.conflicts(parts, config)]
    change = {c: getattr(parts, c) for c in base.family.concerns if getattr(parts, c) != getattr(base.parts, c)}
    if not change and configs == dict(base.configs):
        reasons.append(f"it differs in nothing from iteration {base.number}")
    if reasons:
        raise FlashladderError(
            f"{description!r} is not a possible iteration", expected="parts that go together", found=reasons[0]
        )
    sign, name = description.split()[1:]
    word = "without" if sign == "-" else "with"
    fell = {c: getattr(base.parts, c) for c in base.family.concerns if c in change.keys() - meant and sign == "-"}
    also = [value if isinstance(value, str) else concern for concern, value in fell.items()]
    said = (f"{name}, and so without {' and '.join(also)}" if also else name).replace("_", " ")
    return replace(
        base,
        slug=f"{base.slug}_{word}_{name}",
        title=f"{base.title}, {word} {said}",
        why=f"Iteration {base.number} {word} the change of iteration {step.number} ({step.title}). {step.why}",
        parent=base.number,
        change=frozen(change),
        parts=parts,
        configs=frozen(configs),
        own_configs=frozen({}),
        expect=Expect((), (), (), frozen({})),
        description=description,
    )


def _config(base: Iteration, gpu: str, parts: Any, step: Iteration, description: str, folder: Path) -> Any:
    """The base's configuration, with the knobs that the step itself is about, fitted to the parts."""
    added, names = "+" in description, base.family.own_knobs(step)
    if not step.change:  # a step that only tunes
        source = step if added or step.parent is None else load_iteration(step.parent, folder)
    else:
        source, names = step, names if added else ()
    knobs = {name: getattr(source.configs[gpu], name) for name in names}
    return base.family.fit(parts, replace(base.configs[gpu], **knobs))
