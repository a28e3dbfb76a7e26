"""Runs a random program thread by thread in plain Python: what its PTX must compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.fuzz_operations import LOCAL_BYTES, M16, M32, N_COUNTERS, Thread, bits_float, float_bits
from tests.fuzz_programs import (
    REGISTERS,
    SLOTS,
    Do,
    If,
    Leave,
    Loop,
    Meeting,
    Phase,
    Program,
    Rounds,
    Statement,
    Store,
    Test,
)

UNSTORED = 0xDEAD
KINDS = {name: kind for kind, names in REGISTERS.items() for name in names}


def expected(program: Program) -> tuple[list[list[int]], list[int]]:
    """(for each thread of the grid the words that it stores: `SLOTS`, then two for each kept register; counters)."""
    counters = [0] * N_COUNTERS
    words = []
    for block in range(program.blocks):
        threads = [Thread(counters, {}) for _ in range(program.threads)]
        for tid, thread in enumerate(threads):
            thread.registers = {name: first_value(name, *how, tid, block) for name, how in program.starts.items()}
            for place in range(0, LOCAL_BYTES, 4):
                thread.local[place : place + 4] = thread.registers["%a0"].to_bytes(4, "little")
        _phases(program.phases, threads, block)
        for thread in threads:
            ended = _run(program.last, thread)
            places = [thread.stores.get(slot, UNSTORED) for slot in range(SLOTS)]
            for name in program.kept:
                value = word(thread.registers[name]) if ended is None else UNSTORED | UNSTORED << 32
                places += [value & M32, value >> 32] if ended is None else [UNSTORED, UNSTORED]
            words.append(places)
    return words, counters


def first_value(name: str, how: str, number: int, tid: int, block: int) -> Any:
    """What a register holds at first."""
    value = {
        "tid": tid,
        "block": block,
        "constant": number,
        "mixed": tid * 77 + block * 1001 + number,
        "lane": tid % 32,
    }
    raw = value[how] & M32
    kind = KINDS[name]
    return {"r": raw, "d": raw * raw, "h": raw & M16, "f": bits_float(raw), "p": raw % 3 != 0}[kind]


def word(value: Any) -> int:
    """A register as the 64 bits that are stored."""
    return float_bits(value) if isinstance(value, float) else int(value)


def holds(test: Test | None, thread: Thread) -> bool:
    """Whether a guard lets the thread through."""
    return test is None or bool(thread.registers[test.register]) != test.negated


def _phases(phases: Sequence[Phase], threads: list[Thread], block: int) -> None:
    for phase in phases:
        if isinstance(phase, Meeting):
            _meet(phase, threads)
        elif isinstance(phase, Rounds):
            for _ in range(phase.least + block % phase.spread):
                _phases(phase.phases, threads, block)
                for thread in threads:
                    _run(phase.tail, thread)
        else:
            for thread in threads:
                _run(phase, thread)


def _meet(meeting: Meeting, threads: list[Thread]) -> None:
    given = [thread.registers[meeting.source] for thread in threads]
    odd = [value & 1 for value in given]
    for tid, thread in enumerate(threads):
        first = tid // 32 * 32
        warp = range(first, min(first + 32, len(threads)))
        thread.registers[meeting.to] = {
            "exchange": given[(tid + meeting.shift) % len(threads)],
            "ballot": sum(odd[i] << (i - first) for i in warp),
            "first lane": given[first],
            "sum": sum(given[i] for i in warp) & M32,
            "count": sum(odd),
        }[meeting.kind]


def _run(statements: Sequence[Statement], thread: Thread) -> str | None:
    """Runs statements; how they were left early: ``continue``, ``break``, ``ret``, ``exit``."""
    left: str | None = None
    for statement in statements:
        if isinstance(statement, Do):
            if holds(statement.guard, thread):
                _do(statement, thread)
        elif isinstance(statement, Store):
            if holds(statement.guard, thread):
                thread.stores[statement.slot] = thread.registers[statement.source]
        elif isinstance(statement, If):
            left = _run(statement.then if holds(statement.test, thread) else statement.other, thread)
        elif isinstance(statement, Loop):
            left = _loop(statement, thread)
        elif isinstance(statement, Leave):
            left = statement.how if holds(statement.guard, thread) else None
        else:
            _, test, yes, no = statement.nodes[0]
            at = yes if holds(test, thread) else no
            for _ in range(statement.fuel):
                body, test, yes, no = statement.nodes[at]
                _run(body, thread)
                at = yes if holds(test, thread) else no
        if left is not None:
            return left
    return None


def _do(statement: Do, thread: Thread) -> None:
    values = [thread.registers[s] if isinstance(s, str) else s for s in statement.sources]
    results = statement.operation.rule(thread, *values)
    results = results if isinstance(results, tuple) else (results,)
    for name, result in zip(statement.to, results, strict=True):
        thread.registers[name] = result


def _loop(loop: Loop, thread: Thread) -> str | None:
    trips = thread.registers[loop.source] & loop.mask
    for _ in range(max(trips, 1) if loop.style == "do" else trips):
        left = _run(loop.body, thread)
        if left == "break":
            break
        if left not in {None, "continue"}:
            return left
    return None
