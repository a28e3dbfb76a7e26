"""What one check of the gate says, and how a check is run so that none hides another.

Why apart from `flashladder.gate.command`: that module lists what is checked; here is how a function that finds
problems or raises becomes one outcome with one line. Nothing to run here; `invoke gate` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
import os
from pathlib import Path

from tqdm import tqdm

from flashladder.errors import Checked, FlashladderError, failures
from flashladder.files import relative
from flashladder.results.differences import Found

BROUGHT_BY_TORCH = {"nvidia-cuda-runtime"}  # a CUDA build of torch needs it as well: no sign of a toolchain


@dataclass(frozen=True)
class Outcome:
    """One check: ``ok``, ``failed`` or ``skipped``, and a line per failing cell (or why it was skipped).

    `summary` says what was compared, and how many.
    """

    name: str
    status: str
    details: tuple[str, ...] = ()
    summary: str = ""


@dataclass(frozen=True)
class Check:
    """A named check; `run` may raise."""

    name: str
    run: Callable[[], Outcome]


def run_all(checks: Sequence[Check], tell: Callable[[Outcome], object] = lambda _: None) -> list[Outcome]:
    """Every check's outcome, in order, with a progress bar on a terminal; what one raises is its own failure.

    `tell` gets each outcome as soon as it is known.
    """
    outcomes = []
    with tqdm(total=len(checks), desc="gate", unit="check", disable=None, leave=False) as bar:
        for check in checks:
            bar.set_postfix_str(check.name)
            outcomes.append(attempt(check))
            tell(outcomes[-1])
            bar.update()
    return outcomes


def attempt(check: Check) -> Outcome:
    """The outcome of one check; an error of any kind fails this check alone."""
    try:
        return check.run()
    except failures() as error:
        return Outcome(check.name, "failed", (str(error),))
    except Exception as error:  # noqa: BLE001 - a defect of one check must not hide what the others say
        return Outcome(check.name, "failed", (" ".join(f"{type(error).__name__}: {error}".split()),))


def outcome(name: str, problems: Iterable[str], summary: str) -> Outcome:
    """``failed`` with the problems, or ``ok``."""
    details = tuple(problems)
    return Outcome(name, "failed" if details else "ok", details, summary)


def over(name: str, paths: Sequence[Path], compare: Callable[[Path], Found], unit: str) -> Outcome:
    """One check over files or folders: skipped where there are none; one that cannot be read is a failure.

    Args:
        name: of the check.
        paths: what is looked at.
        compare: what is wrong with one of them, and how many `unit` it compared.
        unit: what is counted, in the plural.
    """
    if not paths:
        return Outcome(name, "skipped", ("nothing of this kind under results/",))
    details: list[str] = []
    n = 0
    for path in paths:
        try:
            found = compare(path)
        except FlashladderError as error:
            details.append(str(error))
            continue
        details += found.problems
        n += found.n
    where = ", ".join(relative(path).removeprefix("results/") for path in paths)
    return outcome(name, details, f"{n:,} {unit}: {where}")


def needs_toolchain(name: str, check: Callable[[], Checked]) -> Outcome:
    """Runs a check that compiles; skipped where nothing was installed for it, failed where the wrong thing was."""
    from flashladder.toolchain import wheels as toolchain

    try:
        toolchain.find_toolchain()
    except FlashladderError as error:
        return Outcome(name, "failed" if _has_toolchain() else "skipped", (str(error),))
    try:
        toolchain.host_compiler()
    except FlashladderError as error:
        return Outcome(name, "failed" if os.environ.get("CXX", "").strip() else "skipped", (str(error),))
    return checked(name, check)


def _has_toolchain() -> bool:
    """Whether any wheel of the toolchain is installed, of whatever version."""
    from flashladder.toolchain.wheels import load_pins

    try:
        wanted = load_pins().packages.keys() - BROUGHT_BY_TORCH
    except FlashladderError:
        return True  # malformed pins are no reason to skip
    return any(next(iter(metadata.distributions(name=name)), None) for name in wanted)


def checked(name: str, check: Callable[[], Checked]) -> Outcome:
    """The outcome of a check that is a command as well."""
    found = check()
    if found.failure:
        return Outcome(name, "failed", (*found.problems, str(found.failure)))
    return Outcome(name, "ok", found.notes, found.summary)
