"""Verdicts on machine-code claims, on machine code small enough to count by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashladder import claims
from flashladder.claims import judge, scope_counts
from flashladder.config import EXAMPLE, KernelConfig
from flashladder.errors import CheckFailed
from flashladder.iteration import Claim
from flashladder.sass import Sass, parse

CONFIG = KernelConfig.parse(EXAMPLE)
FALLS = Claim("LOP3+SHF", "kernel", "falls", at_least=0.5)


def code(prologue: int, loop: int) -> Sass:
    """A kernel with so many LOP3 before its main loop and in it."""
    xor = "LOP3.LUT R0, R1, R2, RZ, 0x3c, !PT"
    rows = [*[xor] * prologue, "", "HMMA.16816.F32 R0, R1, R2, R3", *[xor] * loop, "@P0 BRA `(.L_x_0)", "EXIT"]
    lines, address = ['.section .text.flash_fwd_kernel,"ax"'], 0
    for row in rows:
        lines.append(f"  /*{address:04x}*/ {row} ;" if row else ".L_x_0:")
        address += 16 if row else 0
    return parse("\n".join(lines))


def test_scope_decides_what_is_counted() -> None:
    sass = code(prologue=3, loop=2)
    assert FALLS.measure(scope_counts(FALLS, sass)) == 5
    assert FALLS.measure(scope_counts(replace(FALLS, scope="main_loop"), sass)) == 2


@pytest.mark.parametrize(("prologue", "holds"), [(1, True), (2, True), (3, False), (4, False), (9, False)])
def test_verdict_follows_the_counts(prologue: int, holds: bool) -> None:
    verdict = judge(8, FALLS, (CONFIG, code(prologue, 0)), (CONFIG, code(4, 0)))
    assert (verdict.before, verdict.after, verdict.holds) == (4, prologue, holds)
    assert str(verdict).startswith("holds" if holds else "FAILS")


def test_verdict_reads_as_one_line() -> None:
    verdict = judge(8, FALLS, (CONFIG, code(1, 0)), (CONFIG, code(4, 0)))
    line = "holds  iteration 8 at (64, 64, 4): LOP3+SHF falls by at least 50 %: 4 -> 1 (-75.0 %)"
    assert str(verdict) == line


def test_a_number_needs_no_parent() -> None:
    claim = Claim("LOP3", "kernel", "equals", value=2)
    verdict = judge(1, claim, (CONFIG, code(2, 0)), (None, None))
    assert verdict.holds
    assert verdict.before is None
    assert str(verdict).endswith("LOP3 is 2: 2")


def test_check_prints_every_verdict_and_fails_on_a_broken_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = judge(8, FALLS, (CONFIG, code(1, 0)), (CONFIG, code(4, 0)))
    bad = judge(9, FALLS, (CONFIG, code(4, 0)), (CONFIG, code(4, 0)))
    monkeypatch.setattr(claims, "verify", lambda *_: [good])
    claims.check([8])
    monkeypatch.setattr(claims, "verify", lambda *_: [good, bad])
    with pytest.raises(CheckFailed, match="iteration 9: 1 of 2 claims") as caught:
        claims.check()
    assert caught.value.exit_code == 1
    assert capsys.readouterr().out.splitlines() == [str(good), str(good), str(bad)]
