"""YAML files as people write them: read strictly, validated, each mistake told in one line with file and line.

PyYAML reads YAML 1.1, in which ``0200`` is 128, ``2:08`` is 128 too and ``on`` is true, and it recurses as deep as a
file nests. Such values are refused at their line; so are aliases, tags, duplicate keys, keys that are not text, and
files that are too large or no files at all. `validate` turns pydantic's errors into file, line, expected and found.

Run: ``python -c "from flashladder.located import read_yaml; print(read_yaml('configs/toolchain.yaml'))"``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
import difflib
from functools import lru_cache
import os
from pathlib import Path
import re
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
import yaml

from flashladder.errors import FlashladderError
from flashladder.files import is_leftover, read_text, relative

Location = tuple["str | int", ...]

MAX_BYTES = 256 * 1024  # the longest file of the project has 4 KiB; PyYAML needs seconds for a megabyte
MAX_DEPTH = 24  # collections within collections; the deepest file has 4
_NUMBER = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?")
_NUMBER_IN_1_2 = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+")  # 1e3, 08: text in 1.1
_SPECIAL = re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE)
_MISREAD: Mapping[str, tuple[Callable[[str], object], str]] = {
    "int": (_NUMBER.fullmatch, "a whole number in decimals, or text in quotes"),
    "float": (
        lambda text: _NUMBER.fullmatch(text) or _SPECIAL.fullmatch(text),
        "a number such as 0.25, or text in quotes",
    ),
    "bool": (lambda text: text in {"true", "false"}, "true, false, or text in quotes"),
    "timestamp": (lambda _: False, "text in quotes"),
    "str": (lambda text: not _NUMBER_IN_1_2.fullmatch(text), "a number such as 2000 or 0.25, or text in quotes"),
}
"""Type of a plain value to what reads the same in YAML 1.1 and 1.2, and to what is expected instead of the rest."""


@dataclass(frozen=True)
class Document:
    """The content of one YAML file; `lines` holds the line (from 1) of every key and list item in it."""

    data: object
    lines: Mapping[Location, int]


_Fast: Any = getattr(yaml, "CSafeLoader", None)


class _Loader(yaml.SafeLoader):
    """The safe loader without aliases, so that a file reads top to bottom and cannot contain itself."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuses aliases and files that nest too deep, composes everything else."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # PyYAML's stub
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="an alias (*name) is not allowed", problem_mark=mark)
        if self.depth >= MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"it nests deeper than {MAX_DEPTH} levels", problem_mark=mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _composed(text: str) -> tuple[Any, yaml.Node | None]:
    """A loader and the node of a text: by libyaml, and where that is missing or refuses the text by PyYAML itself.

    libyaml is ten times as fast; PyYAML's messages are the better ones.
    """
    if _Fast is not None:
        try:
            depth = 0
            for event in yaml.parse(text, _Fast):  # before nodes are composed, which recurses
                depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
                if depth >= MAX_DEPTH or isinstance(event, yaml.AliasEvent):
                    break
            else:
                loader = _Fast(text)
                return loader, loader.get_single_node()
        except yaml.YAMLError:
            pass
    slow = _Loader(text)
    return slow, slow.get_single_node()


def yaml_files(folder: Path) -> list[Path]:
    """The YAML files of a folder, sorted by name.

    Raises:
        FlashladderError: no such folder, or a file in it that looks like YAML but that nobody would read.
    """
    try:
        with os.scandir(folder) as found:
            names = tuple(one.name for one in found if not is_leftover(one.name))
    except OSError as error:
        raise FlashladderError(f"cannot read the folder ({error.strerror})", where=relative(folder)) from error
    return list(_yaml_among(folder, names))


@lru_cache(maxsize=64)
def _yaml_among(folder: Path, names: tuple[str, ...]) -> tuple[Path, ...]:
    """`yaml_files` of a folder that holds `names`: an iteration is looked up thousands of times."""
    paths = sorted(folder / name for name in names)
    for path in paths:
        if path.suffix != ".yaml" and path.suffix.lower() in {".yaml", ".yml"}:
            raise FlashladderError(
                "the file is not read", where=relative(path), hint=f"rename it to {path.stem}.yaml, or remove it"
            )
    return tuple(path for path in paths if path.suffix == ".yaml")


def read_yaml(path: Path) -> object:
    """The content of one YAML file; None when it is empty.

    Raises:
        FlashladderError: as `read_document`.
    """
    return read_document(Path(path)).data


def plain(text: str) -> object:
    """The content of YAML whose keys may be numbers, without lines; aliases and deep nests are refused here too.

    Raises:
        yaml.YAMLError, ValueError: it is no YAML, or more than that.
    """
    return cast("object", _Loader(text).get_single_data())


def read_document(path: Path) -> Document:
    """The content of one YAML file with its lines; ``lines[()]`` is where it begins.

    Raises:
        FlashladderError: as `flashladder.files.read_text`; not YAML, nested too deep, a duplicate key, an alias, a tag,
            or a value that YAML 1.1 and 1.2 read differently.
    """
    text = read_text(path, MAX_BYTES)
    lines: dict[Location, int] = {}
    try:
        loader, node = _composed(text)
        return Document(None if node is None else _construct(loader, node, (), lines, path), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise FlashladderError(
            f"not valid YAML, {error.problem or error.context}",
            where=f"{relative(path)}:{mark.line + 1 if mark else 1}",
            hint="indent with spaces, one key per line" if "\\t" in str(error.problem) else None,
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise FlashladderError(f"not valid YAML, {error}", where=f"{relative(path)}:1") from error


def _construct(loader: Any, node: yaml.Node, location: Location, lines: dict[Location, int], path: Path) -> object:
    """The value of `node`; notes the line of every location below it."""
    lines.setdefault(location, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = _key(key_node, path)
            line = key_node.start_mark.line + 1
            if key in result:
                raise FlashladderError(
                    f"duplicate key {key!r}",
                    where=f"{relative(path)}:{line}",
                    expected="each key once",
                    found=f"it already on line {lines[(*location, key)]}",
                )
            lines[(*location, key)] = line
            result[key] = _construct(loader, value_node, (*location, key), lines, path)
        return result
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [_construct(loader, item, (*location, i), lines, path) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode) and (expected := _misread(node)):
        raise FlashladderError(
            "a value that programs read differently",
            where=f"{relative(path)}:{node.start_mark.line + 1}",
            expected=expected,
            found=node.value,
        )
    found: object = loader.construct_object(node, deep=True)
    if isinstance(found, str):
        _require_printable(found, node, path)
    return found


def _misread(node: yaml.ScalarNode) -> str | None:
    """What should stand there instead of a plain value that YAML 1.1 and 1.2 read differently; None for any other."""
    kind = node.tag.rpartition(":")[2]
    if node.style is not None or kind not in _MISREAD:  # in quotes, or a block of text
        return None
    same, expected = _MISREAD[kind]
    return None if same(node.value) else expected


def _require_printable(text: str, node: yaml.Node, path: Path) -> None:
    """Refuses what YAML's escapes can write and a terminal would obey: titles and reasons are printed as they are."""
    if wrong := next((one for one in text if not (one.isprintable() or one in "\n\t")), None):
        raise FlashladderError(
            "a character that cannot be shown",
            where=f"{relative(path)}:{node.start_mark.line + 1}",
            expected="text",
            found=f"U+{ord(wrong):04X}",
        )


def _key(node: yaml.Node, path: Path) -> str:
    """A mapping's key, which must be plain text (``on``, a truth value to YAML 1.1, is a key of claims)."""
    if isinstance(node, yaml.ScalarNode) and (node.tag == "tag:yaml.org,2002:str" or node.value == "on"):
        _require_printable(str(node.value), node, path)
        return str(node.value)
    found = node.value if isinstance(node, yaml.ScalarNode) else "a collection"
    raise FlashladderError(
        "bad key", where=f"{relative(path)}:{node.start_mark.line + 1}", expected="text", found=found
    )


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

    def error(
        self, location: Location, what: str, expected: object = None, found: object = None, hint: str | None = None
    ) -> FlashladderError:
        """An error at a location of the file."""
        return FlashladderError(what, where=self.where(location), expected=expected, found=found, hint=hint)

    def told(self, error: FlashladderError, location: Location, suffix: str = "") -> FlashladderError:
        """An error without a place as one of this file; one that names a file already, as it is."""
        if is_of_a_file(error):
            return error
        return self.error(location, error.what + suffix, error.expected, error.found, error.hint)


def read_located(path: Path) -> Located:
    """Reads one YAML file whose content is a mapping.

    Raises:
        FlashladderError: as `flashladder.located.read_document`; or the content is not a mapping.
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
    if kind == "too_short" and not problem["input"]:
        return FlashladderError(
            f"{name!r} is empty", where=where, expected="at least one item", found="none", hint=more
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
