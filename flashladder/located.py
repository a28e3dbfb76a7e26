"""YAML with line numbers, and pydantic errors turned into one line that names file, line, expected and found.

Why: a person edits these files by hand, so each mistake must point at its own line. `flashladder.yaml_text` reads them.
Used for iterations, GPUs and grids.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
import difflib
from pathlib import Path
import re
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.yaml_text import Location, read_document

Model = TypeVar("Model", bound=BaseModel)
ALIKE = 3 / 4  # of letters: a word of four with one other letter, or with two swapped

_TYPES = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "finite_number": "a finite number",
}


@dataclass(frozen=True)
class Located:
    """The content of one YAML file and the line (from 1) of every key and list item in it."""

    path: Path
    data: Mapping[str, object]
    lines: Mapping[Location, int]

    def where(self, location: Location = ()) -> str:
        """``file:line`` of a location, or of the closest enclosing one that has a line."""
        while location and location not in self.lines:
            location = location[:-1]
        return f"{relative(self.path)}:{self.lines.get(location, 1)}"


def read_located(path: Path) -> Located:
    """Reads one YAML file whose content is a mapping.

    Raises:
        FlashladderError: as `flashladder.yaml_text.read_document`; or the content is not a mapping.
    """
    document = read_document(path)
    if not isinstance(document.data, dict):
        found = "an empty file" if document.data is None else _shown(document.data)
        line = document.lines.get((), 1)
        raise FlashladderError(
            "wrong content", where=f"{relative(path)}:{line}", expected="a mapping of keys to values", found=found
        )
    return Located(path, document.data, document.lines)


def closest(name: object, candidates: Iterable[str]) -> str | None:
    """A hint with the candidate that a misspelt `name` means, as `meant` finds it."""
    found = meant(name, candidates)
    return None if found is None else f"did you mean {found!r}?"


def meant(name: object, candidates: Iterable[str]) -> str | None:
    """The one candidate that a misspelt `name` can only mean; None where there is none, or several.

    It has the digits that were typed, and its letters are those typed in a similar order, or agree with more than three
    quarters of them. So a GPU, an architecture or an opcode is never taken for another one, a short word not for one
    with another letter; case, blanks and punctuation do not count.
    """
    letters, digits = _letters_and_digits(str(name))
    found: dict[float, list[str]] = {}
    for one in dict.fromkeys(candidates):
        other, its_digits = _letters_and_digits(one)
        alike = difflib.SequenceMatcher(None, letters, other, autojunk=False).ratio()
        if digits == its_digits and (alike > ALIKE or (alike == ALIKE and sorted(letters) == sorted(other))):
            found.setdefault(alike, []).append(one)
    best = found[max(found)] if found else []
    return best[0] if len(best) == 1 else None


def _letters_and_digits(text: str) -> tuple[str, str]:
    """The letters of `text`, in lower case, and its digits."""
    return "".join(filter(str.isalpha, text.lower())), "".join(filter(str.isdigit, text))


def validate(model: type[Model], located: Located) -> Model:
    """`located` as an instance of `model`.

    Raises:
        FlashladderError: the file does not fit; the mistake that comes first in the file, and how many more there are.
    """
    try:
        return model.model_validate(located.data)
    except ValidationError as error:
        problems = sorted(error.errors(include_url=False), key=lambda e: (_line(located, e), e["type"] == "missing"))
        raise _explain(model, located, problems[0], len(problems) - 1) from error


def is_of_a_file(error: FlashladderError) -> bool:
    """Whether an error names a file already: whoever met it on the way must not tell it as one of its own file."""
    return error.where is not None and re.search(r"\.(yaml|cuh|json)(:\d+)?$", error.where) is not None


def first_problem(error: Exception) -> str:
    """What is wrong with a document that programs write: the first offending key, or why it is no document."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"


def _line(located: Located, problem: ErrorDetails) -> int:
    """The line that a problem belongs to; problems of the whole file come last."""
    location = tuple(problem["loc"])
    return int(located.where(location).rpartition(":")[2]) if location and location[0] in located.data else 10**9


def _explain(model: type[BaseModel], located: Located, problem: ErrorDetails, n_more: int) -> FlashladderError:
    """One pydantic problem in this project's words."""
    location = tuple(problem["loc"])
    where = located.where(location)
    name = ".".join(str(step) for step in location if step != "[key]") or "the file"
    context: Mapping[str, Any] = problem.get("ctx") or {}
    kind, found = problem["type"], _shown(problem["input"])
    more = f"{n_more} more mistake{'s' * (n_more > 1)} in this file" if n_more else None
    if kind == "missing":
        return FlashladderError(
            f"missing key {name!r}", where=where, expected=f"a value for {name!r}", found="none", hint=more
        )
    if kind == "extra_forbidden":
        keys = _keys_at(model, location[:-1])
        hint = closest(location[-1], keys)
        return FlashladderError(
            f"unknown key {name!r}",
            where=where,
            expected=f"one of {', '.join(keys)}",
            found=repr(location[-1]),
            hint=hint or more,
        )
    hint = None
    if kind == "literal_error":
        expected: object = "one of " + str(context["expected"]).replace("'", "").replace(" or ", ", ")
        hint = closest(problem["input"], [value.strip() for value in str(expected)[7:].split(",")])
    elif kind == "string_pattern_mismatch":
        expected = f"text matching {context['pattern']}"
    elif kind in _TYPES:
        expected = _TYPES[kind]
    elif "expected" in context:
        expected, hint = context["expected"], context.get("hint")
        found = context.get("found", found)
    else:
        expected = re.sub(r"^(Input should be|\w+ should have|Value error,) ", "", problem["msg"])
    return FlashladderError(f"bad value for {name!r}", where=where, expected=expected, found=found, hint=hint or more)


def _keys_at(model: type[BaseModel], location: Location) -> list[str]:
    """The keys that are allowed in the mapping at `location` of `model`."""
    current: type[BaseModel] = model
    for step in location:
        field = current.model_fields.get(str(step))
        below = None if field is None else _model_in(field.annotation)
        current = below or current
    return [field.alias or name for name, field in current.model_fields.items()]


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model that an annotation like ``X | None``, ``dict[str, X]`` or ``list[X]`` holds, if any."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    arguments = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    return next((found for argument in arguments if (found := _model_in(argument)) is not None), None)


def _shown(value: object) -> str:
    """A value as the message shows it: YAML's words for null and booleans, cut at 60 characters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, Hashable) else f"{type(value).__name__.replace('dict', 'mapping')} {value}"
    return text if len(text) <= 60 else text[:57] + "..."
