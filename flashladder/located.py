"""YAML files that people write: strict reading and validation; each mistake is one line with file and line number.

PyYAML reads YAML 1.1, in which ``0200`` is 128, ``2:08`` is 128 too and ``on`` is true, and it recurses as deep as a
file nests. The reader refuses such values, and aliases, tags, duplicate keys, keys that are not text, and files that
are too large. `validate` turns pydantic's errors into file, line, expected and found.

Run: ``python -c "from flashladder.located import read_yaml; print(read_yaml('configs/toolchain.yaml'))"``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
import difflib
from functools import lru_cache
from pathlib import Path
import re
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
import yaml

from flashladder.errors import FlashladderError
from flashladder.files import checked_json, is_leftover, read_text, relative

Location = tuple["str | int", ...]

MAX_BYTES = 256 * 1024  # the longest file of the project has 4 KiB; PyYAML needs seconds for a megabyte
MAX_DEPTH = 24  # collections within collections; the deepest file has 4
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast
_SAME = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?|[-+]?\.(inf|nan)|true|false|null|~|")  # in YAML 1.1 and in 1.2
_NUMBER_IN_1_2 = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+")  # 1e3, 08: text in 1.1


def yaml_files(folder: Path) -> list[Path]:
    """The YAML files of a folder, sorted by name; a missing folder, or a suffix such as ``.yml``, is an error."""
    try:
        paths = sorted(path for path in folder.iterdir() if not is_leftover(path.name))
    except OSError as error:
        raise FlashladderError(f"cannot read the folder ({error.strerror})", where=relative(folder)) from error
    for path in paths:
        if path.suffix != ".yaml" and path.suffix.lower() in {".yaml", ".yml"}:
            hint = f"rename it to {path.stem}.yaml, or remove it"
            raise FlashladderError("the file is not read", where=relative(path), hint=hint)
    return [path for path in paths if path.suffix == ".yaml"]


def read_yaml(path: Path) -> object:
    """The content of one YAML file; None when it is empty.

    Raises `FlashladderError`: as `flashladder.files.read_text`; not YAML, nested too deep, a duplicate key, an alias, a
    tag, or a value that YAML 1.1 and 1.2 read differently.
    """
    return _read(Path(path))[0]


def plain(text: str) -> object:
    """YAML whose keys may be numbers, without lines; YAMLError or ValueError: not YAML, an alias, too deep."""
    _root(text)
    return cast("object", LOADER(text).get_single_data())


def _read(path: Path) -> tuple[object, dict[Location, int]]:
    """The content of one YAML file, and the line (from 1) of every key and list item; errors as of `read_yaml`."""
    text, reader = read_text(path, MAX_BYTES), _Reader(path)
    try:
        root = _root(text)
        return None if root is None else reader.value(root, ()), reader.lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise FlashladderError(
            f"not valid YAML, {error.problem or error.context}",
            where=f"{relative(path)}:{mark.line + 1 if mark else 1}",
            hint="indent with spaces, one key per line" if "start any token" in str(error.problem) else None,
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise FlashladderError(f"not valid YAML, {error}", where=f"{relative(path)}:1") from error


def _mistake(what: str, place: yaml.Event | yaml.Node) -> yaml.MarkedYAMLError:
    mark: Any = place.start_mark  # of libyaml or of PyYAML
    return yaml.MarkedYAMLError(problem=what, problem_mark=mark)


def _root(text: str) -> Any:
    """The root node; None if the file is empty. It checks the events first, because deep nodes need a deep stack."""
    depth = n_documents = 0
    for event in yaml.parse(text, Loader=LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        n_documents += isinstance(event, yaml.DocumentStartEvent)
        if isinstance(event, yaml.AliasEvent):
            raise _mistake("an alias (*name) is not allowed", event)
        if depth > MAX_DEPTH:
            raise _mistake(f"it nests deeper than {MAX_DEPTH} levels", event)
        if n_documents > 1:
            raise _mistake("but found another document", event)
    return LOADER(text).get_single_node()


class _Reader:
    """A file's content from its nodes, and the line of every location in it."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, dict[Location, int]()
        self.construct = LOADER("").construct_object

    def value(self, node: Any, location: Location) -> object:
        """The value of a node."""
        self.lines.setdefault(location, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        kind = "map" if isinstance(node, yaml.MappingNode) else "seq"
        if node.tag != f"tag:yaml.org,2002:{kind}":
            raise _mistake(f"could not determine a constructor for the tag {node.tag!r}", node)
        if kind == "seq":
            return [self.value(item, (*location, i)) for i, item in enumerate(node.value)]
        result: dict[str, object] = {}
        for key_node, value in node.value:
            key = self.key(key_node)
            if key in result:
                found = f"it already on line {self.lines[(*location, key)]}"
                raise self.error(key_node, f"duplicate key {key!r}", "each key once", found)
            self.lines[(*location, key)] = key_node.start_mark.line + 1
            result[key] = self.value(value, (*location, key))
        return result

    def key(self, node: Any) -> str:
        """A mapping's key, which must be text (``on``, a Boolean in YAML 1.1, is a key of claims)."""
        is_scalar = isinstance(node, yaml.ScalarNode)
        text = node.value if is_scalar else "a collection"
        if not is_scalar or not (node.tag.endswith(":str") or text == "on"):
            raise self.error(node, "bad key", "text", text)
        self.require_printable(text, node)
        return str(text)

    def scalar(self, node: Any) -> object:
        """A scalar's value, if YAML 1.1 and 1.2 agree on it."""
        is_text = node.tag.endswith(":str")
        same = not _NUMBER_IN_1_2.fullmatch(node.value) if is_text else _SAME.fullmatch(node.value)
        if not (node.style or same):
            expected = "a decimal number, true, false, or text in quotes"
            raise self.error(node, "a value that programs read differently", expected, node.value)
        found: object = self.construct(node, deep=True)
        if isinstance(found, str):
            self.require_printable(found, node)
        return found

    def require_printable(self, text: str, node: Any) -> None:
        """Refuses control characters, which YAML can escape: titles and reasons go to the terminal unchanged."""
        if wrong := next((char for char in text if not (char.isprintable() or char in "\n\t")), None):
            raise self.error(node, "a character that cannot be shown", "text", f"U+{ord(wrong):04X}")

    def error(self, node: Any, what: str, expected: str, found: str) -> FlashladderError:
        """An error at the line of a node."""
        where = f"{relative(self.path)}:{node.start_mark.line + 1}"
        return FlashladderError(what, where=where, expected=expected, found=found)


Model = TypeVar("Model", bound=BaseModel)
Answer = TypeVar("Answer")
ALIKE = 3 / 4  # of the letters: a word of four with one letter changed, or with two swapped

_TYPES = {
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "an integer"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
}


@dataclass(frozen=True)
class Located:
    """The content of one YAML file and the line (from 1) of every key and list item in it."""

    path: Path
    data: Mapping[str, object]
    lines: Mapping[Location, int]

    def where(self, location: Location = ()) -> str:
        """``file:line`` of a location, or of the innermost enclosing one that has a line."""
        while location and location not in self.lines:
            location = location[:-1]
        return f"{relative(self.path)}:{self.lines.get(location, 1)}"

    def error(
        self, location: Location, what: str, expected: object = None, found: object = None, hint: str | None = None
    ) -> FlashladderError:
        """An error at a location of the file."""
        return FlashladderError(what, where=self.where(location), expected=expected, found=found, hint=hint)

    @contextmanager
    def placing(self, location: Location, suffix: str = "") -> Iterator[None]:
        """Raises an error within it as one at `location`, unless the error names a file already."""
        try:
            yield
        except FlashladderError as error:
            if re.search(r"\.(yaml|cuh|json)(:\d+)?$", str(error.where)):
                raise
            raise self.error(location, error.what + suffix, error.expected, error.found, error.hint) from error


def read_located(path: Path) -> Located:
    """Reads one YAML file; errors as of `read_yaml`, or the content is not a mapping."""
    data, lines = _read(path)
    if not isinstance(data, dict):
        found = "an empty file" if data is None else _shown(data)
        where = f"{relative(path)}:{lines.get((), 1)}"
        raise FlashladderError("wrong content", where=where, expected="a mapping of keys to values", found=found)
    return Located(path, data, lines)


def closest(name: object, candidates: Iterable[str]) -> str | None:
    """A hint with the candidate that `meant` finds for a misspelt `name`."""
    found = meant(name, candidates)
    return None if found is None else f"did you mean {found!r}?"


def meant(name: object, candidates: Iterable[str]) -> str | None:
    """The candidate that a misspelt `name` most resembles; None if there is none, or if several are equally close.

    A candidate has the same digits and more than three quarters of the letters in order, or the same letters with two
    swapped. So one GPU, architecture or opcode never stands for another. Case, blanks and punctuation do not count.
    """
    letters, digits = _letters_and_digits(str(name))
    by_ratio: dict[float, list[str]] = {}
    for candidate in dict.fromkeys(candidates):
        other, other_digits = _letters_and_digits(candidate)
        ratio = difflib.SequenceMatcher(None, letters, other, autojunk=False).ratio()
        if digits == other_digits and (ratio > ALIKE or (ratio == ALIKE and sorted(letters) == sorted(other))):
            by_ratio.setdefault(ratio, []).append(candidate)
    best = by_ratio[max(by_ratio)] if by_ratio else []
    return best[0] if len(best) == 1 else None


def _letters_and_digits(text: str) -> tuple[str, str]:
    """The letters of `text`, in lower case, and its digits."""
    return "".join(filter(str.isalpha, text.lower())), "".join(filter(str.isdigit, text))


def validate(model: type[Model], located: Located) -> Model:
    """`located` as an instance of `model`; the error is the first mistake in the file."""
    try:
        return model.model_validate(located.data)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        first = min(problems, key=lambda problem: (_line(located, problem), problem["type"] == "missing"))
        raise _explain(model, located, first) from error


def first_problem(error: Exception) -> str:
    """The problem of a document that a program wrote: its first wrong key, or why it cannot be read."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"


def read_committed(path: Path, model: type[Answer], absent: str, hint: str) -> Answer:
    """A committed document that this project wrote, as `model`; a missing or malformed one is an error.

    `absent` is the message for a missing file, and `hint` says how to make it.
    """
    try:
        return parsed(path.read_bytes(), model)
    except (OSError, ValueError) as error:
        what = absent if isinstance(error, FileNotFoundError) else first_problem(error)
        raise FlashladderError(what, where=relative(path), hint=hint) from error


def parsed(raw: bytes, model: type[Answer]) -> Answer:
    """A JSON document as `model`, the same object for the same bytes; raises ValueError if it is malformed."""
    return cast("Answer", _parsed(raw, cast("Hashable", model)))


@lru_cache(maxsize=24)  # of the committed documents
def _parsed(raw: bytes, model: Any) -> object:
    return TypeAdapter(model).validate_json(checked_json(raw))


def _line(located: Located, problem: ErrorDetails) -> int:
    """The line of a problem; problems of the whole file come last."""
    location = tuple(problem["loc"])
    return int(located.where(location).rpartition(":")[2]) if location and location[0] in located.data else 10**9


def _explain(model: type[BaseModel], located: Located, problem: ErrorDetails) -> FlashladderError:
    """The error for one of pydantic's problems."""
    location = tuple(problem["loc"])
    where = located.where(location)
    name = ".".join(map(str, _place(located, problem))) or "the file"
    context: Mapping[str, Any] = problem.get("ctx") or {}
    kind, found = problem["type"], _shown(problem["input"])
    what, hint = f"bad value for {name!r}", None
    expected: object
    if kind == "missing":
        what, expected, found = f"missing key {name!r}", f"a value for {name!r}", "none"
    elif kind == "extra_forbidden":
        keys = _keys_at(model, location[:-1])
        what, expected, found = f"unknown key {name!r}", f"one of {', '.join(keys)}", repr(location[-1])
        hint = closest(location[-1], keys)
    elif kind == "too_short" and not problem["input"]:
        what, expected, found = f"{name!r} is empty", "at least one item", "none"
    elif kind == "literal_error":
        expected = "one of " + str(context["expected"]).replace("'", "").replace(" or ", ", ")
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
    return FlashladderError(what, where=where, expected=expected, found=found, hint=hint)


def _place(located: Located, problem: ErrorDetails) -> Location:
    """A problem's location in the document, without ``[key]`` and the alternatives of a union, which pydantic adds."""
    place: Location = ()
    for step in problem["loc"]:
        if (*place, step) in located.lines or (problem["type"] == "missing" and step == problem["loc"][-1]):
            place = (*place, step)
    return place


def _keys_at(model: type[BaseModel], location: Location) -> list[str]:
    """The keys that are allowed in the mapping at `location` of `model`."""
    for step in location:
        if field := model.model_fields.get(str(step)):
            model = _model_in(field.annotation) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model that an annotation like ``X | None``, ``dict[str, X]`` or ``list[X]`` holds, if any."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    arguments = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    return next((found for argument in arguments if (found := _model_in(argument)) is not None), None)


def _shown(value: object) -> str:
    """A value for messages: booleans as in YAML, at most 60 characters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, Hashable) else f"{type(value).__name__.replace('dict', 'mapping')} {value}"
    return text if len(text) <= 60 else text[:57] + "..."
