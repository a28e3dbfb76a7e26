"""Wrong kernels: the project's own sources with one mistake each, and the case of the check that must catch it.

Each entry of ``wrong.yaml`` is a mistake that a developer could make: a replacement of text that occurs once in its
file. The check of ``check --backend emulator`` gets the kernel that the changed sources make. Twenty are compiled at a
time, in one translation unit with a namespace each, because nvcc spends half of a kernel's time in CUDA's headers.

``python -m tests.broken.wrong_kernels [NAME ...]`` tries new entries on every case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path
import re
import shutil
import sys
import tempfile
from types import ModuleType
from typing import Annotated, Literal
from unittest.mock import patch

import pydantic
import yaml

from flashladder.build.compile import tools_of
from flashladder.build.store import STORE, PtxEntry, fill_all, ptx_entry
from flashladder.build.wheel import chosen_configs
from flashladder.cases.inputs import EMULATED_REPEATS, Case, emulator_cases
from flashladder.cases.reference import References, Subject, check_case
from flashladder.check import command as check
from flashladder.check.command import EMULATED_CONFIGS, emulated_run
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.families import ampere, hopper
from flashladder.ladder.iteration import load_iteration, translation_unit
from flashladder.names import KERNEL
from flashladder.paths import KERNELS, ROOT
from flashladder.results.schema import CaseResult
import ptxemu
from tests.typed import module_of

TABLE = Path(__file__).parent / "wrong.yaml"
# The launch side: what the host checks, and what it hands over.
LAUNCH: Mapping[str, tuple[ModuleType, tuple[str, ...]]] = {
    "flashladder/emulate/kernel.py": (check, ("forward", "require")),
    "flashladder/ladder/families/ampere.py": (ampere, ("grid_of", "launch_of")),
    "flashladder/ladder/families/hopper.py": (hopper, ("grid_of", "launch_of", "map_of")),
}
"""File to the module in which the names that it defines are looked up."""
REFERENCES = References()  # of this process

# What gives a kernel away, as `check_case` words it.
EVIDENCE: Mapping[str, str] = {
    "numbers": r"^max error .*\(allowed",
    "holes": r"elements of O are NaN or infinite, or were not written",
    "outside": r"^wrote outside O",
    "race": r"^(the launch|run 2) failed: .*kernel\.ptx:\d+: (shared|global) ",
    "access": r"^the launch failed: .*kernel\.ptx:\d+: ",
    "taken": r"^took row strides",
    "lse": r"^log-sum-exp: ",
}
# Mistakes that round through CUDA's own 16-bit types, which the kernels do without.
CUDA_TYPES = re.compile(r"__(float2|half|nv_bfloat16)")
HEADERS = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"
Text = Annotated[str, pydantic.StringConstraints(min_length=1)]


class Edit(pydantic.BaseModel):
    """A replacement in one file; `old` stands there exactly once."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    file: Text
    old: Text
    new: str

    def apply(self, text: str) -> str:
        """`text` with the mistake in it.

        Raises:
            ValueError: the file has changed, so that the entry no longer says what it did.
        """
        count = text.count(self.old)
        if count != 1 or self.new == self.old:
            raise ValueError(f"{self.file}: expected the text to be replaced once, found {count} times: {self.old!r}")
        wrong = text.replace(self.old, self.new)
        return HEADERS + wrong if CUDA_TYPES.search(self.new) else wrong


class WrongKernel(pydantic.BaseModel):
    """One mistake.

    Attributes:
        story: what the kernel does wrong, in one line.
        iteration: the one that it is made in.
        edits: the mistake; at least one.
        dtype: in which it is tried: the one in which it shows.
        case: of the check, by name; it must fail.
        evidence: which words of the check it fails with.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    name: Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z0-9_]+$")]
    story: Annotated[str, pydantic.StringConstraints(min_length=1, max_length=120, pattern=r"[^.\n]$")]
    iteration: int
    edits: Annotated[tuple[Edit, ...], pydantic.Field(min_length=1)]
    dtype: Literal["fp16", "bf16"] = "fp16"
    case: Text
    evidence: Text

    def __str__(self) -> str:
        return self.name

    def sources(self) -> dict[str, str]:
        """File name to changed text.

        Raises:
            ValueError: see `Edit.apply`.
        """
        texts: dict[str, str] = {}
        for edit in self.edits:
            texts[edit.file] = edit.apply(texts.get(edit.file) or (ROOT / edit.file).read_text(encoding="utf-8"))
        return texts


@cache
def read_table() -> Mapping[str, tuple[WrongKernel, ...]]:
    """The wrong kernels by concern, in the order of the file."""
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return {concern: tuple(map(WrongKernel.model_validate, entries)) for concern, entries in table.items()}


def read_all() -> tuple[WrongKernel, ...]:
    """Every wrong kernel."""
    return tuple(wrong for group in read_table().values() for wrong in group)


@cache
def read_some() -> frozenset[WrongKernel]:
    """Every twentieth of each concern, for `nox -s tests`."""
    return frozenset(wrong for group in read_table().values() for wrong in group[::20])


@cache
def config_of(iteration: int, dtype: str) -> KernelConfig:
    """What ``check N --backend emulator`` checks in this dtype; with a mask, if the iteration knows one."""
    *_, config = chosen_configs(iteration, EMULATED_CONFIGS, (dtype,))
    return config


@cache
def quick_cases(iteration: int, dtype: str) -> frozenset[str]:
    """The names of the cases of ``check N --backend emulator --quick``."""
    stride = load_iteration(iteration).row_stride
    return frozenset(case.name for case in emulator_cases(config_of(iteration, dtype), stride, quick=True))


@cache
def standard_cases(iteration: int, dtype: str) -> Mapping[str, Case]:
    """The cases of ``check N --backend emulator``, by name."""
    stride = load_iteration(iteration).row_stride
    return {case.name: case for case in emulator_cases(config_of(iteration, dtype), stride)}


def outcome(iteration: int, dtype: str, case: Case) -> CaseResult:
    """One case of the check on the iteration's kernel, or on the wrong one inside of `compiled`.

    Races are looked for in a case that is longer than all before it, as when all run.
    """
    loaded, config = load_iteration(iteration), config_of(iteration, dtype)
    before = takewhile(lambda other: other != case, standard_cases(iteration, dtype).values())
    longer = all(case.shape.seq_len > other.shape.seq_len for other in before)
    watched = () if longer else (config.short_form(),)
    run = emulated_run(loaded, already_watched=watched)
    return check_case(Subject(iteration, config, run, loaded.row_stride), case, REFERENCES, "cpu", EMULATED_REPEATS)


@contextmanager
def made(wrong: WrongKernel) -> Iterator[Path]:
    """The folder of the changed CUDA sources; a changed launch side takes the place of the real one meanwhile."""
    with tempfile.TemporaryDirectory() as folder, launched(wrong):
        kernels = Path(folder) / KERNELS.name
        shutil.copytree(KERNELS, kernels)
        for name, text in wrong.sources().items():
            if name not in LAUNCH:
                (Path(folder) / name).write_text(text, encoding="utf-8")
        yield kernels


@contextmanager
def launched(wrong: WrongKernel) -> Iterator[None]:
    """A changed launch side takes the place of the real one meanwhile."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for name, text in wrong.sources().items():
            if name in LAUNCH:
                path = Path(folder) / Path(name).name
                path.write_text(text, encoding="utf-8")
                changed = module_of(path, "wrong_launch")
                user, names = LAUNCH[name]
                stack.enter_context(patch.multiple(user, **{one: getattr(changed, one) for one in names}))
                family = type(getattr(user, "FAMILY", None))
                for method, value in list(vars(family).items()):  # those that are functions of the module
                    if isinstance(value, staticmethod) and value.__func__.__name__ in names:
                        own = staticmethod(getattr(changed, value.__func__.__name__))
                        stack.enter_context(patch.object(family, method, own))
        yield


def evidence_of(found: CaseResult) -> str:
    """The kind of a failure, ``other`` where the words are none of `EVIDENCE`."""
    return next((kind for kind, words in EVIDENCE.items() if re.search(words, found.reason or "")), "other")


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
    """All that are wrong in a CUDA source, those of `read_some` first, so that their batches are few.

    The kernels of one batch have one target.
    """
    edited: dict[str, list[WrongKernel]] = {}
    for wrong in sorted(read_all(), key=lambda one: one not in read_some()):
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


def main(names: list[str]) -> None:
    """Prints which cases fail on the wrong kernels that are named (none: on all)."""
    for wrong in (one for one in read_all() if not names or one.name in names):
        with compiled(wrong):
            for case in standard_cases(wrong.iteration, wrong.dtype).values():
                found = outcome(wrong.iteration, wrong.dtype, case)
                if found.status == "fail":
                    print(f"{wrong.name}: {found.case}: {evidence_of(found)}: {found.reason}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
