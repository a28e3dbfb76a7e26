"""The waterfall's labels: a gain that rounds to nothing has no sign."""

from __future__ import annotations

from analysis.page.worth import points


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert [points(gain) for gain in (-0.04, 0.04, 0.0, -0.06, 1.25, 30.0)] == [
        "0.0",
        "0.0",
        "0.0",
        "-0.1",
        "+1.2",
        "+30.0",
    ]
