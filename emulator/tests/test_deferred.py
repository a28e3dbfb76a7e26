"""Asynchronous operations finish oldest first: when they are forced, or of their own accord where they may."""

from __future__ import annotations

from ptxemu.machine.deferred import Deferred


class Noted:
    """An operation that writes its name down."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def complete(self) -> None:
        """It has happened."""
        self.notes.append(self.name)


def test_the_oldest_that_may_finishes_first() -> None:
    notes: list[str] = []
    allowed: set[str] = set()
    deferred = Deferred()
    for name in "abc":
        deferred.add(Noted(name, notes), lambda name=name: name in allowed)  # type: ignore[misc]  # mypy cannot type a default
    assert not deferred.advance()
    allowed |= {"b", "c"}
    assert deferred.advance()
    assert deferred.advance()
    assert not deferred.advance()
    assert (notes, deferred.finished, len(deferred)) == (["b", "c"], 2, 1)


def test_a_wait_forces_what_it_guarantees_in_order_ready_or_not() -> None:
    notes: list[str] = []
    deferred = Deferred()
    operations = [Noted(name, notes) for name in "abcd"]
    for operation in operations:
        deferred.add(operation, lambda: False)
    deferred.force(lambda operation: operation in operations[1:3])
    assert notes == ["b", "c"]
    assert deferred.pending == (operations[0], operations[3])


def test_what_finishes_may_add_another() -> None:
    notes: list[str] = []
    deferred = Deferred()

    class Adding(Noted):
        def complete(self) -> None:
            super().complete()
            deferred.add(Noted("later", notes))

    deferred.add(Adding("first", notes))
    assert deferred.advance()
    assert deferred.advance()
    assert notes == ["first", "later"]
