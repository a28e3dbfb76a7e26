"""C++ on fewer lines, for reading: what fits on a line stands on one, and what says nothing of the kernel goes.

Why: a page has a limit, and `invoke show` spends it on what a kernel does. Nothing here knows this project's kernels:
text goes in as clang-format lays it out, text comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
import re

WIDTH = 120  # columns

_NOISE = re.compile(
    r"^[ \t]*(?:#[ \t]*(?:include\b.*|pragma[ \t]+(?:once|unroll)[ \t]*)|"
    r"namespace [\w:]+ \{|\}  // namespace.*|template <typename Kernel>)\n",
    re.MULTILINE,
)
_ASSERT = re.compile(r"^[ \t]*static_assert\(.*?\);(?:  //.*)?\n", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^(?P<indent>[ \t]*)//.*\n(?:(?P=indent)//.*\n)+", re.MULTILINE)
_HEAD = re.compile(r"\A(?://.*\n)+")
_CONSTANT = re.compile(r"(\s*(?:static )?constexpr (\w+) )(\w+ = [^;{]+);(?:\s*//.*)?")
_MEMBER = re.compile(r"( +(?:const )?[\w:]+(?:<[\w:, ]+>)? )(\w+(?:, \w+)*);")
_STATEMENT = re.compile(r"(?:;|\S \})(?:  //.*)?$")
_LOOPS = re.compile(
    r"^(?P<indent> *)(?P<outer>for \(.*\) )\{\n"
    r"(?P=indent)    (?P<inner>for \(.*\{(?:  //.*)?)\n"
    r"(?P<body>(?:(?P=indent)     .*\n)+)(?P=indent)    \}\n(?P=indent)\}",
    re.MULTILINE,
)


def compact(text: str) -> str:
    """`text` without its frame (includes, namespaces, static asserts, qualifiers), on as few lines as read well."""
    text = _NOISE.sub("", _ASSERT.sub("", text))
    text = re.sub(r"__device__ (?:__forceinline__ )?", "", text)
    text = re.sub(r"\n{2,}", "\n", _COMMENT.sub(_first_sentence, text)).strip("\n")
    lines: list[str] = []
    for line in text.splitlines():
        lines.append(line)
        while _joined(lines):
            pass
    text, before = "\n".join(lines), ""
    while text != before:
        text, before = _LOOPS.sub(_one_nest, text), text
    return "\n".join(_comments_behind(text.splitlines()))


def cut(line: str) -> str:
    """`line` as far as it fits, to whole words."""
    return line if len(line) <= WIDTH else line[: line.rindex(" ", 0, WIDTH - 3)] + " ..."


def headed(text: str) -> tuple[str, str]:
    """What a file says of itself, the first paragraph of its head on one line, and the rest of it."""
    head = _HEAD.match(text)
    if head is None:
        return "", text
    paragraph = head[0].partition("//\n")[0]
    return " ".join(line.removeprefix("//").strip() for line in paragraph.splitlines()), text[head.end() :]


def signatures(text: str) -> str:
    """Compact `text` with ``{ ... }`` for the body of each function of several lines, and without lines of comment."""
    lines: list[str] = []
    depth = 0
    for line in text.splitlines():
        change = line.count("{") - line.count("}")
        if depth:
            depth += change
            if not depth:  # a line that is full goes without its braces
                lines[-1] = (
                    whole if len(whole := f"{lines[-1]} ... }}") <= WIDTH else f"{lines[-1].removesuffix(' {')};"
                )
        elif not line.lstrip().startswith("//") and not re.match(r"struct \w+;", line):
            lines.append(line)
            if change > 0 and "(" in line:
                depth = change
                lines[-1] = line.partition("  //")[0]
    return "\n".join(lines)


def _first_sentence(block: re.Match[str]) -> str:
    """A comment of several lines on one, or else its first sentence, as far as it fits."""
    text = " ".join(line.strip().removeprefix("//").strip() for line in block[0].splitlines())
    line = f"{block['indent']}// {text}"
    if len(line) > WIDTH:
        line = re.split(r"(?<=\.) +(?=[A-Z])", line, maxsplit=1)[0]
    return cut(line) + "\n"


def _comments_behind(lines: list[str]) -> Iterator[str]:
    """`lines` with each comment of one line behind the line that it stands over, where it fits there."""
    waiting = ""
    for line, above in zip(lines, ["//", *lines], strict=False):
        alone = line.lstrip().startswith("//")
        if waiting and not alone and "//" not in line and len(behind := f"{line}  {waiting.strip()}") <= WIDTH:
            yield behind
            waiting = ""
            continue
        if waiting:
            yield waiting
        waiting = line if alone and not above.lstrip().startswith("//") else ""
        if not waiting:
            yield line
    if waiting:
        yield waiting


def _one_nest(loops: re.Match[str]) -> str:
    """Two loops of which the outer holds nothing but the inner, on one line."""
    body = re.sub(r"^    ", "", loops["body"], flags=re.MULTILINE)
    if len(loops["indent"] + loops["outer"] + loops["inner"]) > WIDTH:
        return loops[0]
    return f"{loops['indent']}{loops['outer']}{loops['inner']}\n{body}{loops['indent']}}}"


def _joined(lines: list[str]) -> bool:
    """Joins the last lines of `lines` where they are one declaration, one run of constants or one short block."""
    if len(lines) >= 2:
        for fits in (_continues, _more_constants, _more_members, _more_names):
            line = fits(*lines[-2:])
            if line is not None and len(line) <= WIDTH:
                lines[-2:] = [line]
                return True
    return lines[-1].strip() == "}" and _short_block(lines)


def _continues(before: str, line: str) -> str | None:
    """The parameters of a template or an unfinished expression, with what follows."""
    if "//" in before or not before.strip() or line.lstrip().startswith("//"):
        return None
    if re.fullmatch(r"\s*template <.*>", before):
        return f"{before} {line.strip()}"
    if before[-1] in "(,=+:?" or line.lstrip().startswith(": "):
        return f"{before}{'' if before[-1] == '(' else ' '}{line.strip()}"
    return None


def _more_constants(before: str, line: str) -> str | None:
    """Two declarations of constants of one type, without their comments."""
    old, new = _CONSTANT.fullmatch(before), _CONSTANT.fullmatch(line)
    return f"{old[1]}{old[3]}, {new[3]};" if old and new and old[1] == new[1] else None


def _more_members(before: str, line: str) -> str | None:
    """Two members of one type that are not said anything of."""
    old, new = _MEMBER.fullmatch(before), _MEMBER.fullmatch(line)
    return f"{old[1]}{old[2]}, {new[2]};" if old and new and old[1] == new[1] else None


def _more_names(before: str, line: str) -> str | None:
    """Two names for types."""
    both = before.lstrip().startswith("using ") and line.lstrip().startswith("using ") and "//" not in before
    return f"{before} {line.strip()}" if both else None


def _short_block(lines: list[str]) -> bool:
    """Puts the block that ends `lines` on one line: up to three short statements, the last with its comment."""
    for n in (1, 2, 3):
        head, *inner = lines[-n - 2 : -1]
        if len(inner) != n or not _opens(head, lines[-1]) or not all(_STATEMENT.search(one) for one in inner):
            continue
        *before, last = (one.strip() for one in inner)
        last, comment, said = last.partition("  //")
        line = " ".join([head, *before, last, "}"]) + comment + said
        if len(line) <= WIDTH and not any("//" in one for one in before):
            lines[-n - 2 :] = [line]
            return True
    return False


def _opens(head: str, end: str) -> bool:
    """Whether `head` opens the block that `end` closes, and may stand on a line with it."""
    indent = len(end) - len(end.lstrip())
    return re.match(rf" {{{indent}}}(?!struct\b|}})\S[^/]*\{{$", head) is not None
