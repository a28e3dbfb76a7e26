"""What the exponentials of a row subtract: its maximum, where that may be older than the KV block.

Why apart from `flashladder.trace.roles`: a maximum that no instruction of the block made is not found behind the
exponentials, only beside the scores that they were made of. Nothing to run here; `flashladder.trace.recorder` asks.
"""

from __future__ import annotations

from collections.abc import Sequence

from flashladder.trace.roles import UnknownForm
from ptxemu import Event, Value


def subtracted(rows: Sequence[Sequence[Value]]) -> list[Value]:
    """What all exponents of a row were made of, and none of another row's.

    Args:
        rows: of two or more rows the results of their `ex2`.

    Raises:
        UnknownForm: there is no such value, or more than one.
    """
    exponents = [[_exponent(element) for element in row] for row in rows]
    shared = [set.intersection(*({id(value) for value in one.sources} for one in row)) for row in exponents]
    of_all = set.intersection(*shared)
    found = []
    for row, names in zip(exponents, shared, strict=True):
        own = {id(value): value for value in row[0].sources if id(value) in names - of_all}
        if len(own) != 1:
            raise UnknownForm("the exponents of a row do not subtract one value", row[0], found=len(own))
        found.append(_positive(next(iter(own.values())), row[0]))
    return found


def _exponent(element: Value) -> Event:
    """What made the exponent of an `ex2`."""
    event = element.event.sources[0].event if element.event else None
    if event is None or event.word not in ("fma", "sub"):
        raise UnknownForm("an exponent that is no fma or sub", event or element.event)
    return event


def _positive(value: Value, user: Event) -> Value:
    """What a ``sub`` subtracts, or the opposite of what an ``fma`` adds, with what made it."""
    if user.word == "sub":
        return value
    event = value.event
    if event is not None and event.word == "neg":
        event = event.sources[0].event if event.sources else event
    return Value(-value.as_type("f32"), event)
