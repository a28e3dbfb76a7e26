"""What a check found, as data: a command prints it, the gate makes one line of it.

Why: a check that prints its verdicts can be read by people only. Nothing to run here.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashladder.errors import CheckFailed


@dataclass(frozen=True)
class Checked:
    """A check that ran to its end.

    Attributes:
        summary: what was compared, and how many; what is said of a check that holds.
        lines: all that the check's own command prints; `summary` where there are none.
        notes: lines worth telling although the check holds.
        problems: lines that lead to `failure`.
        failure: the check's no; None where it holds.
    """

    summary: str
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    failure: CheckFailed | None = None

    def show(self) -> None:
        """Prints what was found.

        Raises:
            CheckFailed: the check does not hold.
        """
        if lines := self.lines or (() if self.failure else (self.summary,)):
            print("\n".join(lines))
        if self.failure:
            raise self.failure
