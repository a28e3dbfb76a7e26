"""Names of what is built and measured: an iteration or an ablation of one, through one CUDA version's compiler.

An ablation is an iteration with one change taken back or added, ``16 - swizzle`` or ``7 + xor_static``. A change has
the name of its step (in the file's name, ``swizzle``) or of the value that it sets (``xor``). Taking a step back
restores the previous values of its concerns, and of all parts that contradict these.

The names of a wheel, its torch namespace, its build folder and its environment follow from a `Subject`:

    >>> parse_subject("16 - swizzle", "13.1").package
    'flashladder_16_minus_swizzle_cuda_13_1'
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
import re
from types import MappingProxyType
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.files import last_iteration
from flashladder.ladder.claim import Expect
from flashladder.ladder.iteration import Iteration, load_all, load_iteration, no_such_iteration
from flashladder.located import closest
from flashladder.toolchain import load_pins

_DESCRIPTION = re.compile(r"\s*(\d{1,9})\s*(?:([+-])\s*([A-Za-z0-9_ -]*?)\s*)?", re.ASCII)
_WORDS = {"-": "minus", "+": "plus", "": ""}


@dataclass(frozen=True)
class Subject:
    """One iteration with at most one change, through one CUDA version's compiler."""

    number: int  # of the iteration, or of the one that an ablation varies
    sign: str = ""  # ``-`` for a change taken back, ``+`` for one added, else empty
    change: str = ""  # its name, ``double_buffer``; else empty
    cuda: str = ""  # version of the compiler's wheels, ``13.1``; empty for the pinned one

    @property
    def text(self) -> str:
        """The description that `load_description` takes: ``16``, ``16 - swizzle``."""
        return f"{self.number} {self.sign} {self.change}".strip()

    @property
    def variant(self) -> str:
        """The end of a kernel's key, after the number: `` - swizzle cuda 13.1``; empty for the ladder's own kernels."""
        return self.text.removeprefix(str(self.number)) + f" cuda {self.cuda}" * bool(self.cuda)

    @property
    def label(self) -> str:
        """The name in messages: ``iteration 16 - swizzle (CUDA 13.1)``."""
        return f"iteration {self.text}" + f" (CUDA {self.cuda})" * bool(self.cuda)

    @property
    def tag(self) -> str:
        """The name in files: ``16_minus_swizzle_cuda_13_1``."""
        words = [f"{self.number:02d}", _WORDS[self.sign], self.change, "cuda" * bool(self.cuda), self.cuda]
        return "_".join(filter(None, words)).replace(".", "_")

    @property
    def package(self) -> str:
        """Import name of its wheel, and torch namespace: ``flashladder_16_minus_swizzle_cuda_13_1``."""
        return f"flashladder_{self.tag}"

    @property
    def options(self) -> str:
        """The arguments of ``invoke build``: ``"16 - swizzle" --toolchain 13.1``."""
        return (f'"{self.text}"' if self.sign else self.text) + self._toolchain

    @property
    def session(self) -> str:
        """The command that builds it in the environment of its iteration."""
        words = self.text.removeprefix(str(self.number)) + self._toolchain
        return f"nox -s build-iteration-{self.number}" + f" --{words}" * bool(words)

    @property
    def _toolchain(self) -> str:
        return f" --toolchain {self.cuda}" * bool(self.cuda)


def split_description(text: str) -> tuple[int, str, str]:
    """``16 - double buffer`` as number, sign and name: 16, "-", "double_buffer"; another form is an error."""
    if (match := _DESCRIPTION.fullmatch(text)) is None:
        numbers = f"a number from 1 to {last_iteration()}"
        expected = f"{numbers}, or a number with one change, such as '16 - swizzle' or '7 + xor_static'"
        raise FlashladderError("not a description of an iteration", expected=expected, found=repr(text))
    return int(match[1]), match[2] or "", re.sub(r"[ -]+", "_", (match[3] or "").lower())


@lru_cache(maxsize=4096)
def parse_subject(subject: int | str, cuda: str = "") -> Subject:
    """The subject ``16``, or an ablation such as ``16 - swizzle``, by the compiler's CUDA version (empty: the pinned).

    It does not check that the iteration and the change exist. A malformed description, and a version that is not
    pinned, are errors.
    """
    return Subject(*split_description(str(subject)), load_pins().axis(cuda))


def load_description(text: str) -> Iteration:
    """An iteration by its number (``16``), or an ablation of it (``16 - swizzle``, ``7 + xor_static``).

    A malformed description, an unknown name, and parts that no configuration can express are errors.
    """
    if len(text) > 9 and text.isascii() and text.isdigit():
        raise no_such_iteration(text)
    number, sign, name = split_description(text)
    if sign == "-" and name.isdigit() and int(name) > number:  # 1-5
        numbers = ", ".join(str(one) for one in range(number, min(int(name), number + 4) + 1))
        raise FlashladderError("ranges are not read", expected=f"numbers one by one: {numbers}", found=repr(text))
    base = load_iteration(number)
    if not sign:
        return base
    lineage = _lineage(base)
    known = {step.number for step in lineage}
    others = (step for step in load_all() if step.family is base.family and step.number not in known)
    candidates = _names(lineage[1:] if sign == "-" else others)
    if name not in candidates:
        named = f"nothing named {name!r}" if name and text.count(" - ") < 2 else "exactly one change"
        what = f"{named} can be {'taken back from' if sign == '-' else 'added to'} iteration {base.number}"
        expected = f"one of {', '.join(candidates)}" if candidates else "no change: there is none"
        raise FlashladderError(what, expected=expected, found=repr(text), hint=closest(name, candidates))
    step, concerns = candidates[name]
    if sign == "-":
        parts = _taken_back(base, step, concerns, lineage)
    else:
        parts = replace(base.parts, **{concern: step.change[concern] for concern in concerns})
        if base.family.contradictions(parts):  # this concern needs the rest of the change
            parts = replace(base.parts, **step.change)
    return _ablation(base, parts, step, f"{base.number} {sign} {name}", concerns)


def _lineage(iteration: Iteration) -> list[Iteration]:
    """The iteration with all its ancestors of its family, first ancestor first."""
    lineage = [iteration]
    while lineage[0].parent is not None:
        parent = load_iteration(lineage[0].parent)
        if parent.family is not iteration.family:
            break
        lineage.insert(0, parent)
    return lineage


def _names(steps: Iterable[Iteration]) -> dict[str, tuple[Iteration, tuple[str, ...]]]:
    """Name to step and concerns: a step's name stands for all that it changes, a value's name for its concern."""
    steps = list(steps)
    names = {step.slug: (step, tuple(step.change)) for step in steps}
    for step in steps:
        for concern, value in step.change.items():
            if isinstance(value, str):
                names.setdefault(value, (step, (concern,)))
    return names


def _taken_back(base: Iteration, step: Iteration, concerns: Iterable[str], lineage: list[Iteration]) -> Any:
    """The parts of `base` with the concerns as before the step; parts that contradict them go back step by step."""
    fixed = set(concerns)
    history = [earlier.parts for earlier in lineage]
    before = history[lineage.index(step) - 1]
    result = replace(base.parts, **{concern: getattr(before, concern) for concern in fixed})
    for older in reversed(history[:-1]):
        loose = {concern for _, concerns in base.family.contradictions(result) for concern in concerns} - fixed
        result = replace(result, **{concern: getattr(older, concern) for concern in loose})
    return result


def _ablation(base: Iteration, parts: Any, step: Iteration, description: str, asked: Iterable[str]) -> Iteration:
    """The iteration with these parts, checked; its title names changes besides the concerns that were `asked` for."""
    reasons = [why for why, _ in base.family.contradictions(parts)]
    configs = {gpu: _config(base, gpu, parts, step, description) for gpu in base.configs}
    for gpu, config in configs.items():
        reasons += [f"{gpu}: {reason}" for reason in base.family.conflicts(parts, config)]
    change = {c: getattr(parts, c) for c in base.family.concerns if getattr(parts, c) != getattr(base.parts, c)}
    if not change and configs == dict(base.configs):
        reasons.append(f"it differs in nothing from iteration {base.number}")
    if reasons:
        what = f"{description!r} is not a possible iteration"
        raise FlashladderError(what, expected="parts that go together", found=reasons[0])
    sign, name = description.split()[1:]
    word = "without" if sign == "-" else "with"
    lost = {c: getattr(base.parts, c) for c in change if c not in asked and sign == "-"}
    also = [value if isinstance(value, str) else concern for concern, value in lost.items()]
    changed = (f"{name}, and so without {' and '.join(also)}" if also else name).replace("_", " ")
    return replace(
        base,
        slug=f"{base.slug}_{word}_{name}",
        title=f"{base.title}, {word} {changed}",
        why=f"Iteration {base.number} {word} the change of iteration {step.number} ({step.title}). {step.why}",
        parent=base.number,
        change=MappingProxyType(change),
        parts=parts,
        configs=MappingProxyType(configs),
        own_configs=MappingProxyType({}),
        expect=Expect((), (), (), MappingProxyType({})),
        description=description,
    )


def _config(base: Iteration, gpu: str, parts: Any, step: Iteration, description: str) -> Any:
    """The base's configuration, with the knobs that belong to the step, fitted to the parts."""
    added, (concern, names) = "+" in description, base.family.brought
    if not step.change:  # a step that only tunes sets all knobs
        names = (*base.family.required, *names)
        source = step if added or step.parent is None else load_iteration(step.parent)
    else:
        source, names = step, names if added and concern in step.change else ()
    knobs = {name: getattr(source.configs[gpu], name) for name in names}
    return base.family.fit(parts, replace(base.configs[gpu], **knobs))
