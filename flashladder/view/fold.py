"""A composed kernel as a page that a person reads: what its parts are is written out, what all kernels share is folded.

Why: the whole text of a kernel is eleven hundred lines, most of them the same in every step. The page has every line of
the parts and the body, with the types and sizes of `Kernel` written where they are used; of what each kernel includes
it has one line for each function, and of the floor, ``kernels/ptx``, one for each function that this kernel calls. It
is for reading, not for compiling: ``invoke show 7 --all`` is the whole text. Only text is looked at, so that another
family's kernels need nothing here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
import re

from flashladder.view.compact import WIDTH, compact, cut, headed, signatures

FLOOR = "ptx/"
CHECKS = "contracts.cuh"
ENTRY = "entry.cuh"
NOTE = """\
// For reading: what `Kernel` names stands where it is used; the floor and what all kernels share are folded; asserts,
// qualifiers, #pragma unroll (of every loop with a constant count) and most words are left out. All of it: --all."""

_KERNEL = re.compile(r"^struct Kernel \{\n(?P<body>.*?)^\};\n", re.MULTILINE | re.DOTALL)
_TYPE = re.compile(r"^    using (\w+) = ([^;]+);", re.MULTILINE)
_VALUE = re.compile(r"^    static constexpr \w+ (\w+) = ([^;]+);", re.MULTILINE)
_ALIAS = re.compile(
    r"^    template <(?P<parameters>[^>]+)>\n    using (?P<name>\w+) = (?P<type>[^<;]+)<(?P<arguments>[^>]+)>;",
    re.MULTILINE,
)
_USING = re.compile(r"^\s*using (?:typename [\w:]+::(?P<same>\w+)|(?P<name>\w+) = (?P<type>[^;]+));$")
_INSTRUCTION = re.compile(r'asm(?: volatile)?\("([\w.:]+)')
_FUNCTION = re.compile(
    r"(?:^//(?P<comment>.*)\n)?^(?P<head>(?:template <.*> )?[\w:]+ (?P<name>\w+)(?:<(?P<of>\w+)>)?\(.*\)) \{"
    r"(?:  //(?P<behind>.*))?(?P<body>.* \}(?:  //.*)?$|(?:\n .*)+\n\}$)",
    re.MULTILINE,
)
_DECLARED = re.compile(  # what macros define
    r"(?:^//(?P<comment>.*)\n)?^(?:template <[^\n>]*>)(?:  //(?P<behind>.*))?\s(?P<head>[\w:]+ (?P<name>\w+)\(.*\));$",
    re.MULTILINE,
)


def folded(unit: str, sources: Mapping[str, str], shared: Collection[str]) -> str:
    """The page of a kernel.

    Args:
        unit: the translation unit, with its `Kernel`.
        sources: the texts of what it includes, in reading order, by their names below ``kernels/``.
        shared: names of those that are no parts of it; their functions are folded.
    """
    return _folded(unit, tuple(sources.items()), frozenset(shared))


@lru_cache(maxsize=64)
def _folded(unit: str, sources: tuple[tuple[str, str], ...], shared: frozenset[str]) -> str:
    """`folded`, once for the same texts: a kernel is shown, and compared with those before and after it."""
    names = _names_of_kernel(unit)
    texts = {name: _without_kernel(text, names) for name, text in sources if not name.endswith(CHECKS)}
    above = {name: text for name, text in texts.items() if not name.startswith(FLOOR)}
    aliases = _aliases("\n".join(above.values()), names)
    whole: list[str] = []
    folds: list[str] = []
    for name, text in above.items():
        said, body = headed(text)
        body = compact(_written_out(body, aliases))
        is_entry = name.rpartition("/")[2] == ENTRY
        if name in shared and not is_entry:
            body = _structs(signatures(body))
            folds.append(f"{_title(name, said)}\n{body}")
        else:
            whole.insert(0 if is_entry else len(whole), f"{_title(name, said)}\n{body}")
    floor = "\n".join(headed(text)[1] for name, text in texts.items() if name.startswith(FLOOR))
    lines = _floor(floor, "\n".join(above.values()), set(names.values()))
    folds.append("\n".join([_title(FLOOR, "one instruction for each function"), *lines]))
    return "\n".join([NOTE, *whole, *folds]) + "\n"


def _title(name: str, said: str) -> str:
    """The line over a file: its name and what it says of itself, cut where the line ends."""
    return cut(f"// == {name}: {said}")


def _names_of_kernel(unit: str) -> dict[str, str]:
    """What each member of the translation unit's `Kernel` stands for; an alias that moves its arguments stays."""
    kernel = _KERNEL.search(unit)
    body = kernel["body"] if kernel else ""
    names = dict([*_TYPE.findall(_ALIAS.sub("", body)), *_VALUE.findall(body)])
    for alias in _ALIAS.finditer(body):
        parameters = [word.split()[-1] for word in alias["parameters"].split(",")]
        if parameters == [word.strip() for word in alias["arguments"].split(",")]:
            names[alias["name"]] = alias["type"]
    return {name: _without_namespaces(text) for name, text in names.items()}


def _without_namespaces(text: str) -> str:
    """`text` without the project's namespace, and without that of a family before a type."""
    return re.sub(r"\bflashladder::(?:[a-z]\w*::(?=[A-Z]))?", "", text)


def _without_kernel(text: str, names: Mapping[str, str]) -> str:
    """`text` with the members of `Kernel` written out, and without what it takes to be a template on `Kernel`."""
    text = re.sub(r"(?:typename )?\bKernel::(?:template )?(\w+)", lambda m: names.get(m[1], m[0]), text)
    text = _without_namespaces(text.replace("<Kernel>", ""))
    return re.sub(r"(\.|->|::)template ", r"\1", text)


def _aliases(text: str, names: Mapping[str, str]) -> dict[str, str]:
    """Aliases that a struct gives to a type of `Kernel`, as ``using Layout = XorTiled;`` does."""
    found = {}
    types = {text.partition("<")[0] for text in names.values()}
    for line in text.splitlines():
        match = _USING.match(line)
        if match and match["name"] and match["type"].partition("<")[0] in types:
            found[match["name"]] = match["type"]
    return found


def _written_out(text: str, aliases: Mapping[str, str]) -> str:
    """`text` with each alias written out within the braces in which it is declared; comments stay."""
    lines: list[str] = []
    scopes: list[tuple[int, str]] = []
    depth = 0
    for line in text.splitlines():
        match = _USING.match(line)
        name = str(match["same"] or match["name"]) if match else ""
        if match and name in aliases and (match["same"] or match["type"] in (aliases[name], f"typename Cta::{name}")):
            scopes.append((depth, name))
            continue
        code, slashes, said = line.partition("//")
        code = re.sub(r"typename State::(\w+)", lambda m: aliases.get(m[1], m[0]), code)
        for _, alias in scopes:
            code = re.sub(rf"(?<![:\w]){alias}\b", aliases[alias], code)
        lines.append(code + slashes + said)
        depth += code.count("{") - code.count("}")
        scopes = [scope for scope in scopes if scope[0] <= depth]
    return "\n".join(lines) + "\n"


def _structs(text: str) -> str:
    """Compact `text` with ``{ ... }`` for what its structures hold, but for those of which others are made."""
    return re.sub(r"^((?:template <.*> )?struct \w+) \{.*\n(?: .*\n)+\};", r"\1 { ... };", text, flags=re.MULTILINE)


def _floor(text: str, above: str, types: Collection[str]) -> Iterator[str]:
    """One line for each function of the floor that `above` calls: its signature, instruction and comment."""
    code, defined = compact(text), set[str]()
    for function in _FUNCTION.finditer(code):
        defined.add(function["name"])
        if _is_called(function["name"], above) and function["of"] in {None, *types}:
            found = _INSTRUCTION.search(function["body"])
            yield _one_line(function, [found[1]] if found else [])
    for function in _DECLARED.finditer(code):
        if _is_called(function["name"], above) and function["name"] not in defined:
            yield _one_line(function, [])


def _is_called(name: str, above: str) -> bool:
    return re.search(rf"\bptx::{name}\b", above) is not None


def _one_line(function: re.Match[str], said: list[str]) -> str:
    """A function's head with its instruction, `said`, and its comment behind it, as far as they fit."""
    said += [comment.strip() for comment in function.group("comment", "behind") if comment]
    line = function["head"].removeprefix("template <> ") + ";"
    for word in said:
        longer = f"{line}{', ' if ';  //' in line else '  // '}{word}"
        line = longer if len(longer) <= WIDTH else line
    return line
