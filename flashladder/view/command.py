"""``invoke list`` and ``invoke show N``: the ladder as a table, and one iteration as a page.

The page gives the reason, the changes and the claims of the step, then the composed kernel in reading order. A whole
kernel has 1,100 lines, most of them equal in every step. The page keeps every line of the parts and the body, and
writes the types and sizes of `Kernel` where they are used. Headers that all kernels share are folded to one line per
function, ``kernels/ptx`` to the functions that this kernel calls. The folding works on text alone: `compact` takes any
C++ in clang-format's layout.

Run: ``invoke list``, ``invoke show 7``, ``invoke show 7 --all`` (the whole text); ``--json`` of each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
import json
import re
import textwrap

from flashladder.columns import hanging, listed, natural_width, table, terminal_width
from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.ladder.ablation import load_description
from flashladder.ladder.claim import COUNTERS, Claim
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import Iteration, claim_configs, flattened, load_all, sources, translation_unit
from flashladder.ladder.selection import one_config
from flashladder.names import GPUS


def changes(iteration: Iteration) -> str:
    """What an iteration changes, as ``concern: value``, or ``configurations only``."""
    if iteration.parent is None:
        return "everything"
    if claim_configs(iteration)[1] is None:  # the first of its family
        return f"everything: family {iteration.family.name}"
    return ", ".join(f"{concern}: {value}" for concern, value in iteration.change.items()) or "configurations only"


def on_gpus(iteration: Iteration) -> dict[str, KernelConfig | None]:
    """The configuration on each GPU that iterations are tuned for; None if the family does not run there."""
    gpus, runs = load_gpus(), iteration.family.runs_on
    return {key: iteration.configs[key] if runs(gpus[key].arch) else None for key in GPUS}


def config_of(iteration: Iteration, key: str | None, *, causal: bool) -> KernelConfig:
    """The configuration that ``--config`` names; `causal`: of the kernel with a mask, an error if there is none."""
    if not causal:
        return one_config(iteration, key)
    if "causal" not in iteration.family.masks(iteration.parts):
        known = [str(one.number) for one in load_all() if "causal" in one.family.masks(one.parts)]
        what = f"iteration {iteration.description} has no kernel with a causal mask"
        raise FlashladderError(what, hint=f"--causal is for iterations {listed(known)}")
    return one_config(iteration, key, mask="causal").with_mask("causal")


def which_mask(iteration: Iteration, config: KernelConfig) -> str:
    """``, causal`` or ``, no mask`` for a kernel of an iteration that has both; otherwise empty."""
    if len(iteration.family.masks(iteration.parts)) == 1:
        return ""
    return ", no mask" if config.mask == "none" else f", {config.mask}"


def list_iterations(limit: int | None = None) -> str:
    """The ladder as a table of at most `limit` columns (None: the terminal's), or as two if one is too wide."""
    limit = limit or terminal_width()
    steps = load_all()
    rows: list[tuple[str, ...]] = [("#", "title", "changes", *GPUS)]
    for step in steps:
        configs = (config.brief() if config else "-" for config in on_gpus(step).values())
        rows.append((str(step.number), step.title, changes(step), *configs))
    if natural_width(rows) <= limit:
        lines = table(rows, limit, right={0})
    else:
        lines = table([row[:3] for row in rows], limit, right={0}, wrapped={1, 2})
        lines += ["", *table([(row[0], *row[3:]) for row in rows], limit, right={0}, wrapped={1, 2, 3})]
    legends = [legend for family in dict.fromkeys(step.family for step in steps) if (legend := family.legend)]
    return "\n".join([*lines, "", "Configurations, as --config takes them:", *legends])


def as_data(iteration: Iteration) -> dict[str, object]:
    """Everything about an iteration except its kernel, as JSON can hold it."""
    names = ("description", "slug", "title", "why", "unmeasured", "parent")
    claims = iteration.expect
    return {
        "iteration": iteration.number,
        **{name: getattr(iteration, name) for name in names},
        "change": dict(iteration.change),
        "parts": asdict(iteration.parts),
        "configs": {gpu: c.short_form() if c else None for gpu, c in on_gpus(iteration).items()},
        "expect": {name: list(map(str, getattr(claims, name))) for name in ("sass", "ptx", "counters")},
        "file": relative(iteration.path),
    }


def expectation(claim: Claim) -> str:
    """A claim as one line: where it is counted, what is counted, and how the count changes."""
    if claim.scope == "counters":
        counters = {name: short for short, name in COUNTERS.items()}
        short = re.sub(r"[^+/]+", lambda match: counters.get(match[0], match[0]), claim.metric)
        full = f" ({claim.metric})" if short != claim.metric else ""
        return f"counter {short}{full} {claim.in_words()}"
    place = {"kernel": "SASS", "main_loop": "main loop", "ptx": "PTX"}[claim.scope]
    metric = re.sub(r"\btotal\b", "total instructions", claim.metric)
    return f"{place}: {metric} {claim.in_words().replace('is unchanged', 'unchanged')}"


def header(iteration: Iteration) -> str:
    """The page's head, as lines that fit the terminal."""
    width = terminal_width()
    parent = "the first iteration" if iteration.parent is None else f"from iteration {iteration.parent}"
    claims = [hanging("  ", expectation(claim)) for claim in iteration.expect.claims]
    sections = [
        textwrap.fill(f"Iteration {iteration.description}: {iteration.title} ({parent})", width),
        textwrap.fill(iteration.why, width),
        textwrap.fill(f"Not measured yet: {iteration.unmeasured}", width) if iteration.unmeasured else "",
        section("changes", iteration.change.items()),
        section("parts", asdict(iteration.parts).items(), marked=iteration.change),
        section("configurations", ((gpu, c.short_form() if c else "-") for gpu, c in on_gpus(iteration).items())),
        "\n".join(["expected:", *claims] if claims else []),
    ]
    return "\n\n".join(filter(None, sections))


def section(title: str, items: Iterable[tuple[str, object]], marked: Mapping[str, object] | None = None) -> str:
    """A titled block of aligned names and values with a star behind `marked` names; empty without items."""
    pairs = [(name, str(value)) for name, value in items]
    longest = max((len(name) for name, _ in pairs), default=0)
    rows = (hanging(f"  {n.ljust(longest)}  ", f"{v}{'  *' * (n in (marked or {}))}") for n, v in pairs)
    return "\n".join([f"{title}:", *rows]) if pairs else ""


def show_ladder(*, as_json: bool = False) -> None:
    """Prints all iterations as a table or as JSON."""
    print(json.dumps([as_data(step) for step in load_all()], indent=2) if as_json else list_iterations())


def show(description: str, key: str | None, *, causal: bool, whole: bool, as_json: bool) -> None:
    """Prints an iteration or ablation and its kernel in the configuration of `config_of`; errors as of that."""
    iteration = load_description(description)
    config = config_of(iteration, key, causal=causal)
    if as_json:
        found = {"config": config.short_form(), "kernel": kernel_text(iteration, config, whole=whole)}
        print(json.dumps(as_data(iteration) | found, indent=2))
    else:
        words = textwrap.wrap(" ".join(NOTE.replace("//", "").split()), terminal_width() - 3)
        note = "\n".join(f"// {line}" for line in words)
        kernel = kernel_text(iteration, config, whole=whole).replace(NOTE, note, 1)
        print(f"{header(iteration)}\n\n// {config.short_form()}\n{kernel}", end="")


WIDTH = 120  # columns
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
    r"(?:^//(?P<comment>.*)\n)?^(?P<head>(?:template <.*> )?[\w:]+ (?P<name>\w+)(?:<(?P<of>\w+)>)?"
    r"\((?:[^{}\n]|\n {4,})*\)) \{"
    r"(?:  //(?P<behind>.*))?(?P<body>.* \}(?:  //.*)?$|(?:\n .*)+\n\}$)",
    re.MULTILINE,
)
_DECLARED = re.compile(  # functions that macros define
    r"(?:^//(?P<comment>.*)\n)?^(?:template <[^\n>]*>)(?:  //(?P<behind>.*))?\s(?P<head>[\w:]+ (?P<name>\w+)\(.*\));$",
    re.MULTILINE,
)


def kernel_text(iteration: Iteration, config: KernelConfig, *, whole: bool = False) -> str:
    """The composed kernel in reading order, folded or `whole`; raises `FlashladderError` if it cannot be composed."""
    if whole:
        return re.sub(r"\n(?:[ \t]*\n){2,}", "\n\n", flattened(iteration, config))
    texts = sources(iteration, config)
    parts = {*iteration.family.part_files(iteration, config)}
    return folded(translation_unit(iteration, config), texts, shared=texts.keys() - parts)


def folded(unit: str, sources: Mapping[str, str], shared: Collection[str]) -> str:
    """The folded text of a kernel, of which `unit` is the translation unit with its `Kernel`.

    `sources` are the texts of the included files in reading order, by their names below ``kernels/``. Those that are
    not parts are `shared`: their functions are folded.
    """
    names = _names_of_kernel(unit)
    texts = {name: _without_kernel(text, names) for name, text in sources.items() if not name.endswith(CHECKS)}
    above = {name: text for name, text in texts.items() if not name.startswith(FLOOR)}
    aliases = _aliases("\n".join(above.values()), names)
    entry, whole, folds = list[str](), list[str](), list[str]()
    for name, text in above.items():
        subject, body = _headed(text)
        body = compact(_written_out(body, aliases))
        place = entry if name.endswith(ENTRY) else folds if name in shared else whole
        place.append(f"{_cut(f'// == {name}: {subject}')}\n{_signatures(body) if place is folds else body}")
    floor = "\n".join(_headed(text)[1] for name, text in texts.items() if name.startswith(FLOOR))
    folds.append(f"// == {FLOOR}: one instruction for each function")
    folds += _floor(floor, "\n".join(above.values()), set(names.values()))
    return "\n".join([NOTE, *entry, *whole, *folds]) + "\n"


def _names_of_kernel(unit: str) -> dict[str, str]:
    """Maps each member of `Kernel` to its text, except aliases that reorder their arguments."""
    kernel = _KERNEL.search(unit)
    body = kernel["body"] if kernel else ""
    names = dict([*_TYPE.findall(_ALIAS.sub("", body)), *_VALUE.findall(body)])
    for alias in _ALIAS.finditer(body):
        parameters = [word.split()[-1] for word in alias["parameters"].split(",")]
        if parameters == [word.strip() for word in alias["arguments"].split(",")]:
            names[alias["name"]] = alias["type"]
    return {name: _without_namespaces(text) for name, text in names.items()}


def _without_namespaces(text: str) -> str:
    """`text` without the project's namespace, and without a family's namespace before a type."""
    return re.sub(r"\bflashladder::(?:[a-z]\w*::(?=[A-Z]))?", "", text)


def _without_kernel(text: str, names: Mapping[str, str]) -> str:
    """`text` with the members of `Kernel` written out, and without template syntax for `Kernel`."""
    text = re.sub(r"(?:typename )?\bKernel::(?:template )?(\w+)", lambda m: names.get(m[1], m[0]), text)
    text = _without_namespaces(text.replace("<Kernel>", ""))
    return re.sub(r"(\.|->|::)template ", r"\1", text)


def _aliases(text: str, names: Mapping[str, str]) -> dict[str, str]:
    """Aliases that structs give to a type of `Kernel`: ``using Layout = XorTiled;``."""
    types = {text.partition("<")[0] for text in names.values()}
    matches = filter(None, map(_USING.match, text.splitlines()))
    return {one["name"]: one["type"] for one in matches if one["name"] and one["type"].partition("<")[0] in types}


def _written_out(text: str, aliases: Mapping[str, str]) -> str:
    """`text` with each alias written out within the braces that declare it; comments stay."""
    lines: list[str] = []
    scopes: list[tuple[int, str]] = []
    depth = 0
    for line in text.splitlines():
        match = _USING.match(line)
        name = str(match["same"] or match["name"]) if match else ""
        if match and name in aliases and (match["same"] or match["type"] in (aliases[name], f"typename Cta::{name}")):
            scopes.append((depth, name))
            continue
        code, slashes, comment = line.partition("//")
        code = re.sub(r"typename State::(\w+)", lambda m: aliases.get(m[1], m[0]), code)
        for _, alias in scopes:
            code = re.sub(rf"(?<![:\w]){alias}\b", aliases[alias], code)
        lines.append(code + slashes + comment)
        depth += code.count("{") - code.count("}")
        scopes = [scope for scope in scopes if scope[0] <= depth]
    return "\n".join(lines) + "\n"


def _floor(text: str, above: str, types: Collection[str]) -> Iterator[str]:
    """One line for each function of ``ptx/`` that `above` calls: signature, instruction and comment."""
    code, called = compact(text), set(re.findall(r"\bptx::(\w+)", above))
    functions = [one for one in _FUNCTION.finditer(code) if one["of"] in {None, *types}]
    defined = {one["name"] for one in _FUNCTION.finditer(code)}
    for one in [*functions, *(one for one in _DECLARED.finditer(code) if one["name"] not in defined)]:
        if one["name"] in called:
            line = _cut(" ".join(one["head"].removeprefix("template <> ").split()) + ";")
            for word in filter(None, [*_INSTRUCTION.findall(one[0])[:1], *one.group("comment", "behind")]):
                longer = f"{line}{', ' if ';  //' in line else '  // '}{word.strip()}"
                line = longer if len(longer) <= WIDTH else line
            yield line


_NOISE = re.compile(
    r"^[ \t]*(?:#[ \t]*(?:include\b.*|pragma[ \t]+(?:once|unroll)[ \t]*)|"
    r"namespace [\w:]+ \{|\}  // namespace.*|template <typename Kernel>)\n",
    re.MULTILINE,
)
_ASSERT = re.compile(r"^[ \t]*static_assert\(.*?\);(?:  //.*)?\n", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^(?P<indent>[ \t]*)//.*\n(?:(?P=indent)//.*\n)+", re.MULTILINE)
_UNFINISHED = re.compile(r"\s*template <.*>|.*[(,=+:?]")
_SHORT_BLOCK = re.compile(  # up to three statements
    r"^(?P<head>(?P<indent> *)(?!struct\b|\})\S[^/\n]*\{)\n"
    r"(?P<inner>(?:(?:(?!//).)*(?:;|\S \})\n){0,2}(?:(?!  //).)*(?:;|\S \}))(?P<said>  //.*)?\n(?P=indent)\}\Z",
    re.MULTILINE,
)


def compact(text: str) -> str:
    """`text` without includes, namespaces, static asserts and qualifiers, with short blocks joined to one line."""
    text = _NOISE.sub("", _ASSERT.sub("", text))
    text = re.sub(r"__device__ (?:__forceinline__ )?", "", text)
    text = re.sub(r"\n{2,}", "\n", _COMMENT.sub(_first_sentence, text)).strip("\n")
    lines: list[str] = []
    for line in text.splitlines():
        lines.append(line)
        while (joined := _joined(lines)) and len(joined[1]) <= WIDTH:
            lines[-joined[0] :] = [joined[1]]
    return "\n".join(lines)


def _joined(lines: list[str]) -> tuple[int, str] | None:
    """The number of last lines that form one declaration, expression or short block, and their text on one line."""
    before, line = ["", *lines][-2:]
    ends = before.strip() and "//" not in before and not line.lstrip().startswith("//")
    if ends and (_UNFINISHED.fullmatch(before) or line.lstrip().startswith(": ")):
        return 2, f"{before}{'' if before.endswith('(') else ' '}{line.strip()}"
    if block := _SHORT_BLOCK.search("\n".join(lines[-5:])):  # the last statement keeps its comment
        inner = " ".join(one.strip() for one in block["inner"].splitlines())
        return block[0].count("\n") + 1, f"{block['head']} {inner} }}{block['said'] or ''}"
    return None


def _cut(line: str) -> str:
    """`line` as far as it fits, to whole words."""
    return line if len(line) <= WIDTH else line[: line.rindex(" ", 0, WIDTH - 3)] + " ..."


def _headed(text: str) -> tuple[str, str]:
    """The first paragraph of a file's head comment on one line, and the text behind that comment."""
    head = re.match(r"(?://.*\n)*", text)
    assert head is not None  # the pattern also matches an empty head
    paragraph = head[0].partition("//\n")[0]
    return " ".join(line.removeprefix("//").strip() for line in paragraph.splitlines()), text[head.end() :]


def _signatures(text: str) -> str:
    """Compact `text` with ``{ ... }`` for the body of each function and structure, without comment lines."""
    lines: list[str] = []
    depth = 0
    for line in text.splitlines():
        change = line.count("{") - line.count("}")
        if depth:
            depth += change
            if not depth:  # a line without room for braces ends in a semicolon
                whole = f"{lines[-1]} ... }}"
                lines[-1] = whole if len(whole) <= WIDTH else f"{lines[-1].removesuffix(' {')};"
        elif not line.lstrip().startswith("//") and not re.match(r"struct \w+;", line):
            lines.append(line)
            if change > 0 and "(" in line:
                depth = change
                lines[-1] = line.partition("  //")[0]
    text = "\n".join(lines)
    return re.sub(r"^((?:template <.*> )?struct \w+) \{.*\n(?: .*\n)+\};", r"\1 { ... };", text, flags=re.MULTILINE)


def _first_sentence(block: re.Match[str]) -> str:
    """A comment of several lines on one line, or its first sentence, as far as it fits."""
    text = " ".join(line.strip().removeprefix("//").strip() for line in block[0].splitlines())
    line = f"{block['indent']}// {text}"
    if len(line) > WIDTH:
        line = re.split(r"(?<=\.) +(?=[A-Z])", line, maxsplit=1)[0]
    return _cut(line) + "\n"
