"""Wrong kernels compiled twenty at a time: one translation unit, of which each is a namespace with its own sources.

Why: half of what nvcc does for one kernel goes into CUDA's headers. Compiled with others a kernel is the same
program, but for the numbers of its registers (tests/broken/test_wrong_kernels.py).

Run: pytest tests/broken/test_wrong_kernels.py; ``python -m tests.broken.wrong_kernels NAME`` compiles one alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
import re
from unittest.mock import patch

from flashladder.build.compile import tools_of
from flashladder.build.store import STORE, PtxEntry, fill_all, ptx_entry
from flashladder.check import command as check
from flashladder.ladder.iteration import load_iteration, translation_unit
from flashladder.names import KERNEL
from flashladder.paths import KERNELS, ROOT
import ptxemu
from tests.broken.wrong_kernels import LAUNCH, WrongKernel, config_of, launched, read_all

BATCH = 20  # more would gain little: 0.4 s for the headers, 0.3 s for each kernel
_INCLUDE = re.compile(r'^\s*#\s*include\s*(?P<line>[<"](?P<name>[^>"]+)[>"])')
_ENTRY = re.compile(
    r"^\.visible \.entry (?P<name>\w+)\(.*?^\}$(?!\n\s*// end inline asm)", re.MULTILINE | re.DOTALL
)  # inline PTX may have braces of its own


@contextmanager
def compiled(wrong: WrongKernel) -> Iterator[None]:
    """Meanwhile the check gets the wrong kernel in the place of the iteration's own, and a changed launch side."""
    with ExitStack() as stack:
        stack.enter_context(launched(wrong))
        if not set(wrong.sources()) <= set(LAUNCH):
            kernel = ptxemu.load(ptx_of(wrong), path=f"{wrong.name}/kernel.ptx").kernel()
            stack.enter_context(patch.object(check, "kernel_of", lambda *_: kernel))
        yield


def symbol(wrong: WrongKernel) -> str:
    """The name of a kernel in its batch."""
    return f"{KERNEL}_{wrong.name}"


def ptx_of(wrong: WrongKernel) -> str:
    """A wrong kernel's PTX."""
    return split(next(batch for batch in batches() if wrong in batch))[symbol(wrong)]


@cache
def split(batch: Sequence[WrongKernel]) -> Mapping[str, str]:
    """The PTX of each kernel of a batch by its symbol: the batch's without the other kernels."""
    entry = batch_entry(batch)
    fill_all([entry])
    text = entry.ptx.read_text(encoding="utf-8")
    found = list(_ENTRY.finditer(text))
    head, tail = text[: found[0].start()], text[found[-1].end() :]
    return {each["name"]: f"{head}{each[0]}{tail}" for each in found}


@cache
def batches() -> tuple[tuple[WrongKernel, ...], ...]:
    """All that are wrong in a CUDA source, in the order of the table; those of one batch have one target."""
    edited: dict[str, list[WrongKernel]] = {}
    for wrong in read_all():
        if not set(wrong.sources()) <= set(LAUNCH):
            edited.setdefault(_target(wrong), []).append(wrong)
    return tuple(
        tuple(group[first : first + BATCH]) for group in edited.values() for first in range(0, len(group), BATCH)
    )


def _target(wrong: WrongKernel) -> str:
    """What its PTX is made for: ``compute_80``."""
    return load_iteration(wrong.iteration).family.targets.ptx


@cache
def batch_entry(batch: Sequence[WrongKernel]) -> PtxEntry:
    """The store's entry of a batch, filled or not."""
    headers: dict[str, None] = {}
    bodies = [_namespace(wrong, headers) for wrong in batch]
    text = "\n".join([*(f"#include {header}" for header in headers), *bodies, ""])
    tools = tools_of()
    kept = (flag for flag in tools.nvcc_flags if not flag.startswith("-arch="))
    own = replace(tools, nvcc_flags=(f"-arch={_target(batch[0])}", *kept))
    return ptx_entry(text, KERNELS, (), own, STORE)


def _namespace(wrong: WrongKernel, headers: dict[str, None]) -> str:
    """A wrong kernel with all that it includes, in a namespace of its own; CUDA's headers are added to `headers`."""
    changed = wrong.sources()
    unit = translation_unit(load_iteration(wrong.iteration), config_of(wrong.iteration, wrong.dtype))

    def read(name: str) -> str:
        path = f"{KERNELS.name}/{name}"
        text = changed.get(path) or (ROOT / path).read_text(encoding="utf-8")
        return text.replace(f"{KERNEL}(", f"{symbol(wrong)}(")

    body = _inlined(wrong.name, "kernel.cu", unit, read, headers, set())
    return "\n".join([f"namespace wrong_{wrong.name} {{", *body, "}"])


def _inlined(
    place: str, name: str, text: str, read: Callable[[str], str], headers: dict[str, None], seen: set[str]
) -> Iterator[str]:
    """The lines of a source with the text of its own includes in their place, each once, as ``#pragma once`` has it."""
    yield f'#line 1 "{place}/{name}"'
    for number, line in enumerate(text.splitlines(), 1):
        include = _INCLUDE.match(line)
        if include is None:
            yield "" if line.startswith("#pragma once") else line
        elif include["line"].startswith("<"):
            headers[include["line"]] = None
            yield ""
        elif include["name"] not in seen:
            seen.add(include["name"])
            yield from _inlined(place, include["name"], read(include["name"]), read, headers, seen)
            yield f'#line {number + 1} "{place}/{name}"'
        else:
            yield ""
