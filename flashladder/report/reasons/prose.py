"""Reasons as a template: which forms it may have, and no figure in its words.

Why: prose beside data rots. Here words are words and every figure is a call, ``{{ falls("LOP3", "sm_80") }}``, so that
a number follows its data and a direction that no longer holds is an error. Digits stand in names alone (A100, sm_90,
m16n8k16, iteration 8), and a number in words from three up counts as a figure.

Nothing to run here; ``python analysis/render_notes.py --check`` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
import re

import jinja2
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from flashladder.errors import FlashladderError

NAMES = re.compile(
    r"\b[Ii]terations? \d+(?:(?:, \d+)* (?:and|to|or) \d+)?\b"  # iterations 8, 9 and 10
    r"|\bRTX \d{4}\b"
    r"|(?<![\w.])(?!x\d+\.\d)[A-Za-z_%][\w.%]*"  # A100, sm_90, x4, IADD3, ldmatrix.x4: a word that begins with a letter
)
_WORDS = (
    "three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million half halves halved third "
    "thirds quarter quarters eighth eighths tenth tenths twice thrice doubles doubled doubling triple triples tripled "
    "quadruple quadruples quadrupled dozen dozens"
)
IN_WORDS = re.compile(rf"\b(?:{'|'.join(_WORDS.split())}|\w+fold|double(?! buffer))\b", re.IGNORECASE)
DIGITS = re.compile(r"\S*\d\S*")
NUMBERS = ("of", "at")  # arguments that name an iteration and a sequence length


def environment() -> jinja2.Environment:
    """A sandbox that knows nothing but what a page is given; an unknown name is an error."""
    return ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False)


def check(text: str, where: str, known: Collection[str]) -> None:
    """Refuses a page that is more than words and calls.

    Args:
        text: of the page.
        where: its path, for the message.
        known: names that it may call.

    Raises:
        FlashladderError: a figure stands in the words, a name is unknown, or a form is not allowed; the first of them.
    """
    for line, what, found, expected in problems(text, where, known):
        raise FlashladderError(what, where=f"{where}:{line}", expected=expected, found=found)


def problems(text: str, where: str, known: Collection[str]) -> Iterator[tuple[int, str, str, str]]:
    """Line, what is wrong, what was found and what was expected.

    Raises:
        FlashladderError: it is no template at all.
    """
    try:
        tree = environment().parse(text)
    except jinja2.TemplateSyntaxError as error:
        raise FlashladderError("broken page of reasons", where=f"{where}:{error.lineno}", found=error) from error
    for block in tree.body:
        if not isinstance(block, nodes.Output):
            yield block.lineno, "a form that a page of reasons may not have", type(block).__name__.lower(), "calls"
            continue
        for part in block.nodes:
            yield from _words(part) if isinstance(part, nodes.TemplateData) else _call(part, known)


def _words(part: nodes.TemplateData) -> Iterator[tuple[int, str, str, str]]:
    expected = 'a call, such as {{ count("LOP3", "sm_80") }}'
    for number, line in enumerate(part.data.split("\n"), part.lineno):
        left = NAMES.sub(lambda name: re.sub(r"\d", "x", name[0]), line)
        for found in (*DIGITS.findall(left), *IN_WORDS.findall(line)):
            yield number, "a figure typed by hand", found, expected


def _call(part: nodes.Expr, known: Collection[str]) -> Iterator[tuple[int, str, str, str]]:
    """Calls of known names with text; numbers name an iteration or a length alone."""
    if not isinstance(part, nodes.Call) or not isinstance(part.node, nodes.Name) or part.dyn_args or part.dyn_kwargs:
        yield part.lineno, "a form that a page of reasons may not have", type(part).__name__.lower(), "a call"
        return
    if part.node.name not in known:
        yield part.lineno, "an unknown name", part.node.name, ", ".join(sorted(known))
    for argument in part.args:
        if not isinstance(argument, nodes.Const) or not isinstance(argument.value, str):
            yield part.lineno, "an argument without a name is a text", part.node.name, '"sm_80"'
    for named in part.kwargs:
        kind = int if named.key in NUMBERS else str
        if not isinstance(named.value, nodes.Const) or type(named.value.value) is not kind:
            yield part.lineno, f"bad value of {named.key}", part.node.name, f"a constant {kind.__name__}"
