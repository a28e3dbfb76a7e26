"""YAML files as people write them, read strictly: the text of a small regular file, and values that mean one thing.

Why: PyYAML reads YAML 1.1, in which ``0200`` is 128, ``2:08`` is 128 too and ``on`` is true, and it recurses as deep as
a file nests. Here such values are refused at their line; so are aliases, tags, duplicate keys, keys that are not text,
and files that are too large or no files at all. `flashladder.located` builds on this.

Run: ``python -c "from flashladder.yaml_text import read_yaml; print(read_yaml('configs/toolchain.yaml'))"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
import os
from pathlib import Path
import re
from typing import Any, cast

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor

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


class _Strict(Composer):
    """Composes nodes without aliases, so that a file reads top to bottom and cannot contain itself."""

    depth = 0
    peek_event: Any  # of the parser beside it
    check_event: Any

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuses aliases and files that nest too deep, composes everything else."""
        mark = self.peek_event().start_mark
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="an alias (*name) is not allowed", problem_mark=mark)
        if self.depth >= MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"it nests deeper than {MAX_DEPTH} levels", problem_mark=mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Loader(_Strict, yaml.SafeLoader):
    """The safe loader; its messages say what is wrong."""


_LIBYAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # where PyYAML was built with it


class _FastLoader(_Strict, _LIBYAML):  # type: ignore[misc]  # a class that is chosen at run time
    """The same over libyaml's parser, five times as fast."""

    def __init__(self, text: str) -> None:
        super().__init__()
        _LIBYAML.__init__(self, text)


def _composed(text: str) -> tuple[SafeConstructor, yaml.Node | None]:
    """A loader and the root node of its text.

    Raises:
        yaml.YAMLError: the text is no YAML; in the words of the safe loader, not of libyaml.
    """
    try:
        fast = _FastLoader(text)
        return fast, fast.get_single_node()
    except yaml.YAMLError:
        loader = _Loader(text)
        return loader, loader.get_single_node()


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


def _construct(
    loader: SafeConstructor, node: yaml.Node, location: Location, lines: dict[Location, int], path: Path
) -> object:
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
    if node.style or kind not in _MISREAD:  # in quotes, or a block of text
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
