"""Random programs on the emulator and thread by thread in plain Python: both must store the same words.

Each statement is made once, as PTX text and as what it does in Python to one thread's registers, so that the expected
results come from nothing of the emulator's. A program is phases in which threads diverge as they like (branches, loops
left early, irreducible webs of jumps, early exits), and between them places where the threads of a warp or block meet.
More of them by seed: ``python -m tests.test_fuzz FIRST COUNT``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
import sys
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import numpy as np

from ptxemu import Counters, Hazards, load
from ptxemu.values import Array

M32 = (1 << 32) - 1
REGISTERS = {"r": [f"%a{i}" for i in range(6)], "p": ["%q0", "%q1", "%q2", "%q3"]}
NAMES = [*REGISTERS["r"], *REGISTERS["p"]]
NUMBERS = (0, 1, 2, 3, 7, 31, 32, 33, 255, 0x7FFFFFFF, 0x80000000, M32)
UNSTORED, SLOTS, COUNTERS = 0xDEAD, 3, 8


@dataclass
class Thread:
    """One thread's registers (integers without sign, bools), words for the host, local memory; counters are global."""

    counters: list[int]
    registers: dict[str, Any] = field(default_factory=dict)
    stores: dict[int, int] = field(default_factory=dict)
    local: list[int] = field(default_factory=lambda: [0] * 8)

    def count(self, value: int, index: int) -> None:
        self.counters[index & 7] = (self.counters[index & 7] + value) & M32

    def put(self, value: int, index: int) -> None:
        self.local[index & 7] = value


def signed(value: int) -> int:
    return (value & M32) - (1 << 32) if value & 0x80000000 else value & M32


# (text, kinds of destinations, kinds of sources, rule): {0} and up are the operands, destinations first; @ stands where
# the guard goes. AT puts base + 4 * (the last source & 7) into %u0, and garbage there where the guard does not hold.
Rule = Callable[..., Any]
AT = "and.b32 %t0, {{{}}}, 7; mul.wide.u32 %u0, %t0, 4; add.u64 %u0, %u0, {}; ^mov.u64 %u0, 0x7777777777777777; "
OPERATIONS: list[tuple[str, str, str, Rule]] = [
    ("@add.u32 {0}, {1}, {2};", "r", "rr", lambda t, a, b: a + b & M32),
    ("@mad.lo.s32 {0}, {1}, {2}, {3};", "r", "rrr", lambda t, a, b, c: a * b + c & M32),
    ("@shl.b32 {0}, {1}, {2};", "r", "rr", lambda t, a, b: a << b & M32 if b < 32 else 0),
    ("@shr.s32 {0}, {1}, {2};", "r", "rr", lambda t, a, b: signed(a) >> min(b, 31) & M32),
    ("@mov.u32 {0}, {1};", "r", "r", lambda t, a: a),
    ("@selp.b32 {0}, {1}, {2}, {3};", "r", "rrp", lambda t, a, b, p: a if p else b),
    ("@not.pred {0}, {1};", "p", "p", lambda t, p: not p),
    ("@mov.b64 %u0, {{{2}, {3}}}; @mov.b64 {{{0}, {1}}}, %u0;", "rr", "rr", lambda t, a, b: (a, b)),
    (
        "@sub.cc.u32 %t1, {2}, {3}; @subc.u32 {0}, {4}, {5}; @mov.u32 {1}, %t1;",
        *("rr", "rrrr", lambda t, a, b, c, d: ((c - d - (a < b)) & M32, a - b & M32)),
    ),
    ("@setp.eq.u32 {0}|{1}, {2}, {3};", "pp", "rr", lambda t, a, b: (a == b, a != b)),
    ("@setp.ne.or.s32 {0}, {1}, {2}, !{3};", "p", "rrp", lambda t, a, b, p: a != b or not p),
    (AT.format(1, "%depot") + "@st.local.u32 [%u0], {0};", "", "rr", lambda t, value, i: t.put(value, i)),
    (AT.format(1, "%stack") + "@ld.u32 {0}, [%u0];", "r", "r", lambda t, i: t.local[i & 7]),
    (AT.format(1, "%counters") + "@red.global.add.u32 [%u0], {0};", "", "rr", lambda t, value, i: t.count(value, i)),
]
STARTS: dict[str, tuple[str, Callable[[int, int, int], int]]] = {
    "block": ("mov.u32 %start, %block;", lambda n, tid, block: block),
    "constant": ("mov.u32 %start, {};", lambda n, tid, block: n),
    "mixed": (
        "mul.lo.u32 %start, %me, 77; mad.lo.u32 %start, %block, 1001, %start; add.u32 %start, %start, {};",
        lambda n, tid, block: tid * 77 + block * 1001 + n,
    ),
    "lane": ("mov.u32 %start, %laneid;", lambda n, tid, block: tid % 32),
}
Run = Callable[[Thread], str | None]  # how the thread left early: ``continue``, ``break``, ``ret``, ``exit``
Statement = tuple[str, Run]
Phase = tuple[str, Callable[[Sequence[Thread], int], None]]  # for all threads of a block, and its number


def each(run: Run) -> Callable[[Sequence[Thread], int], None]:
    def all_of_them(threads: Sequence[Thread], block: int) -> None:
        for thread in threads:
            run(thread)

    return all_of_them


class Author:
    """Writes one random program: `text`, and `expected`."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.room = random.choice((4, 8, 16, 30))  # statements left
        self.depth = self.labels = 0
        choose = random.choice
        self.block = choose(((32, 1, 1), (40, 1, 1), (8, 3, 2), (64, 1, 1), (5, 1, 1), (16, 2, 3), (33, 2, 1)))
        self.grid = choose(((1, 1, 1), (2, 1, 1), (3, 1, 1), (1, 2, 2)))
        self.threads, self.blocks = int(np.prod(self.block)), int(np.prod(self.grid))
        self.starts = {name: (choose(list(STARTS)), choose((*NUMBERS, random.getrandbits(32)))) for name in NAMES}
        self.phases = self._phases(random.randint(0, 4))
        self.last = self._statements({"ret": "", "exit": ""}, least=2)
        self.kept = [name for name in NAMES if random.random() < 0.6]
        self.words = SLOTS + len(self.kept)

    # --- statements

    def _label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def _test(self) -> tuple[str, str, Callable[[Thread], bool]]:
        """(guard, opposite guard, rule)."""
        name, negated = self.random.choice(REGISTERS["p"]), self.random.random() < 0.5
        guards = (f"@{name} ", f"@!{name} ")
        return guards[negated], guards[not negated], lambda t: bool(t.registers[name]) != negated

    def _guard(self, chance: float = 0.3) -> tuple[str, str, Callable[[Thread], bool]]:
        return self._test() if self.random.random() < chance else ("", "", lambda t: True)

    def _do(self) -> Statement:
        text, kinds, needs, rule = self.random.choice(OPERATIONS)
        guard, opposite, holds = self._guard()
        to: list[str] = []
        for kind in kinds:
            to.append(self.random.choice([name for name in REGISTERS[kind] if name not in to]))
        sources: list[str | int] = [
            self.random.choice(NUMBERS if kind == "r" and self.random.random() < 0.2 else REGISTERS[kind])
            for kind in needs
        ]

        def run(t: Thread) -> None:
            if holds(t):
                found = rule(t, *(t.registers[s] if isinstance(s, str) else s for s in sources))
                t.registers.update(zip(to, found if isinstance(found, tuple) else (found,), strict=bool(to)))

        text = text.format(*to, *sources).replace("@", guard)
        garbage = text[text.find("^") : text.find(";", text.find("^")) + 2] if "^" in text else ""
        return text.replace(garbage, garbage.replace("^", opposite) if guard else "") if garbage else text, run

    def _store(self) -> Statement:
        slot, source = self.random.randrange(SLOTS), self.random.choice(REGISTERS["r"])
        guard, _, holds = self._guard()

        def run(t: Thread) -> None:
            if holds(t):
                t.stores[slot] = t.registers[source]

        return f"{guard}st.global.u32 [%out+{4 * slot}], {source};", run

    def _leave(self, ways: dict[str, str]) -> Statement:
        how = self.random.choice(sorted(ways))
        guard, _, holds = self._guard(0.9)
        return guard + (f"bra {ways[how]};" if ways[how] else f"{how};"), lambda t: how if holds(t) else None

    def _branch(self, ways: dict[str, str]) -> Statement:
        (_, opposite, holds), other, end = self._test(), self._label(), self._label()
        (yes, run), (no, run_not) = self._statements(ways), self._statements(ways)
        text = f"{opposite}bra {other};\n{yes}\nbra {end};\n{other}: {no}\n{end}:"
        return text, lambda t: run(t) if holds(t) else run_not(t)

    def _loop(self, ways: dict[str, str]) -> Statement:
        """A loop that tests at its top, or at its end and so runs at least once."""
        top, mask, source = (
            self.random.random() < 0.5,
            self.random.choice((1, 3, 3, 7)),
            self.random.choice(REGISTERS["r"]),
        )
        head, again, end = (self._label() for _ in range(3))
        counter, limit, test = (f"%{kind}{self.depth}" for kind in "inl")
        body, run = self._statements({**ways, "continue": head if top else again, "break": end})
        count = f"add.u32 {counter}, {counter}, 1;"
        first = f"setp.ge.u32 {test}, {counter}, {limit}; @{test} bra {end}; {count}" if top else ""
        last = (
            f"bra {head};" if top else f"{again}: {count} setp.lt.u32 {test}, {counter}, {limit}; @{test} bra {head};"
        )
        text = f"and.b32 {limit}, {source}, {mask}; mov.u32 {counter}, 0;\n{head}: {first}{body}\n{last}"

        def loop(t: Thread) -> str | None:
            trips = t.registers[source] & mask
            for _ in range(trips if top else max(trips, 1)):
                left = run(t)
                if left == "break":
                    break
                if left not in {None, "continue"}:
                    return left
            return None

        return f"{text}\n{end}:", loop

    def _web(self) -> Statement:
        """Blocks that jump to each other anywhere, entered at two places, until the fuel is spent: irreducible loops."""
        pick, fuel, end = self.random.randrange, self.random.randint(1, 9), self._label()
        labels = [self._label() for _ in range(self.random.randint(2, 4))]
        nodes = [
            ([self._do() for _ in range(pick(3))], self._test(), pick(len(labels)), pick(len(labels))) for _ in labels
        ]
        text = f"mov.u32 %w, {fuel};\n"
        for index, (body, (guard, *_), yes, no) in enumerate([([], *nodes[0][1:]), *nodes]):
            here = f"{labels[index - 1]}: setp.eq.u32 %num, %w, 0; @%num bra {end}; sub.u32 %w, %w, 1;" if index else ""
            jump = f"{guard}bra {labels[yes]}; bra {labels[no]};"
            text += "\n".join([here, *(do for do, _ in body), jump]) + "\n"

        def run(t: Thread) -> None:
            _, (*_, holds), yes, no = nodes[0]
            for _ in range(fuel):
                body, (*_, following), *ways = nodes[yes if holds(t) else no]
                for _, do in body:
                    do(t)
                holds, (yes, no) = following, ways

        return f"{text}{end}:", run

    def _statements(self, ways: dict[str, str], least: int = 1) -> Statement:
        made: list[Statement] = []
        for _ in range(self.random.randint(least, 6)):
            self.room -= 1
            what = self.random.random() if self.room > 0 and self.depth < 4 else 1.0
            self.depth += 1
            makers = [(0.12, lambda: self._branch(ways)), (0.22, lambda: self._loop(ways)), (0.27, self._web)]
            makers += [(0.37, (lambda: self._leave(ways)) if ways else self._do), (0.42, self._store), (2.0, self._do)]
            made.append(next(maker for most, maker in makers if what < most)())
            self.depth -= 1

        def run(t: Thread) -> str | None:
            return next((left for _, statement in made if (left := statement(t)) is not None), None)

        return "\n".join(text for text, _ in made), run

    # --- phases

    def _phases(self, count: int) -> Phase:
        made: list[Phase] = []
        for _ in range(count):
            what = self.random.random()
            if what < 0.35:
                made.append(self._meeting())
            elif what < 0.55 and self.depth < 2:
                made.append(self._rounds())
            else:
                text, run = self._statements({})
                made.append((text, each(run)))

        def run_all(threads: Sequence[Thread], block: int) -> None:
            for _, phase in made:
                phase(threads, block)

        return "\n".join(text for text, _ in made), run_all

    def _rounds(self) -> Phase:
        """Phases repeated as often as the block says; the tail may begin the next round early."""
        least, spread = self.random.randint(1, 2), self.random.randint(1, 3)
        head, end = self._label(), self._label()
        counter, limit, test = (f"%{kind}{self.depth + 6}" for kind in "inl")
        self.depth += 1
        (inner, run), (tail, run_tail) = self._phases(self.random.randint(1, 3)), self._statements({"continue": head})
        self.depth -= 1

        def rounds(threads: Sequence[Thread], block: int) -> None:
            for _ in range(least + block % spread):
                run(threads, block)
                each(run_tail)(threads, block)

        begin = f"rem.u32 {limit}, %block, {spread}; add.u32 {limit}, {limit}, {least}; mov.u32 {counter}, 0;\n"
        again = f"{head}: setp.ge.u32 {test}, {counter}, {limit}; @{test} bra {end}; add.u32 {counter}, {counter}, 1;\n"
        return f"{begin}{again}{inner}\n{tail}\nbra {head};\n{end}:", rounds

    def _meeting(self) -> Phase:
        to, source = (self.random.choice(REGISTERS["r"]) for _ in range(2))
        shift = self.random.choice((1, 31, 32, 5))
        kind = self.random.choice(("exchange", "ballot", "first", "sum", "count"))
        odd = f"and.b32 %t0, {source}, 1; setp.ne.u32 %v, %t0, 0; "
        text = {
            "exchange": f"mov.u32 %t0, room; mad.lo.u32 %t1, %me, 4, %t0; st.shared.u32 [%t1], {source}; bar.sync 0; "
            f"add.u32 %t1, %me, {shift}; rem.u32 %t1, %t1, {self.threads}; mad.lo.u32 %t1, %t1, 4, %t0; "
            f"ld.shared.u32 {to}, [%t1]; bar.sync 0;",
            "ballot": f"{odd} vote.sync.ballot.b32 {to}, %v, -1;",
            "first": f"shfl.sync.idx.b32 {to}, {source}, 0, 31, -1;",
            "sum": f"redux.sync.add.u32 {to}, {source}, -1;",
            "count": f"{odd} bar.red.popc.u32 {to}, 0, %v;",
        }[kind]

        def meet(threads: Sequence[Thread], block: int) -> None:
            given_ = [t.registers[source] for t in threads]
            for tid, t in enumerate(threads):
                first = tid // 32 * 32
                warp = given_[first : first + 32]
                t.registers[to] = {
                    "exchange": given_[(tid + shift) % len(threads)],
                    "ballot": sum((value & 1) << lane for lane, value in enumerate(warp)),
                    "first": warp[0],
                    "sum": sum(warp) & M32,
                    "count": sum(value & 1 for value in given_),
                }[kind]

        return text, meet

    # --- the whole

    @property
    def text(self) -> str:
        """A module with the kernel ``k(out, counters)``."""
        into = ["rem.u32 %t0, %start, 3; setp.ne.u32 {}, %t0, 0;", "mov.u32 {}, %start;"]
        out = ["selp.u32 %t0, 1, 0, {};", "mov.u32 %t0, {};"]
        lines = [
            """.version 8.0\n.target sm_80\n.address_size 64
.visible .entry k(.param .u64 out, .param .u64 counters) {
.reg .b32 %a<6>, %t<3>, %i<12>, %n<12>, %w, %me, %block, %start; .reg .pred %q<4>, %l<12>, %num, %v;
.reg .b64 %u<2>, %out, %counters, %depot, %stack, %row;
.shared .align 4 .b8 room[4096]; .local .align 8 .b8 frame[32];
ld.param.u64 %out, [out]; ld.param.u64 %counters, [counters];
mov.u32 %me, %tid.z; mov.u32 %t0, %ntid.y; mov.u32 %t1, %tid.y; mad.lo.u32 %me, %me, %t0, %t1;
mov.u32 %t0, %ntid.x; mov.u32 %t1, %tid.x; mad.lo.u32 %me, %me, %t0, %t1;
mov.u32 %block, %ctaid.z; mov.u32 %t0, %nctaid.y; mov.u32 %t1, %ctaid.y; mad.lo.u32 %block, %block, %t0, %t1;
mov.u32 %t0, %nctaid.x; mov.u32 %t1, %ctaid.x; mad.lo.u32 %block, %block, %t0, %t1;
mov.u64 %depot, frame; cvta.local.u64 %stack, %depot;""",
            f"mad.lo.u32 %t0, %block, {self.threads}, %me; mul.wide.u32 %row, %t0, {4 * self.words};",
            "add.u64 %out, %out, %row;",
        ]
        for name, (how, number) in self.starts.items():
            lines.append(STARTS[how][0].format(number) + into[name in REGISTERS["r"]].format(name))
        lines += [f"st.local.u32 [%depot+{place}], %a0;" for place in range(0, 32, 4)]
        lines += [self.phases[0], self.last[0]]
        for place, name in enumerate(self.kept, start=SLOTS):
            lines.append(out[name in REGISTERS["r"]].format(name) + f"st.global.u32 [%out+{4 * place}], %t0;")
        return "\n".join([*lines, "ret;\n}\n"])

    def expected(self) -> tuple[Array, list[int]]:
        """(for each thread of the grid the words that it stores: `SLOTS`, then the kept registers; counters)."""
        counters, words = [0] * COUNTERS, []
        for block in range(self.blocks):
            threads = [Thread(counters) for _ in range(self.threads)]
            for tid, t in enumerate(threads):
                for name, (how, number) in self.starts.items():
                    raw = STARTS[how][1](number, tid, block) & M32
                    t.registers[name] = raw if name in REGISTERS["r"] else raw % 3 != 0
                t.local = [t.registers["%a0"]] * 8
            self.phases[1](threads, block)
            for t in threads:
                ended = self.last[1](t)
                kept = [int(t.registers[name]) if ended is None else UNSTORED for name in self.kept]
                words.append([t.stores.get(slot, UNSTORED) for slot in range(SLOTS)] + kept)
        return np.array(words, np.uint32), counters


def check(author: Author) -> None:
    """The emulator agrees with Python, in slices too; observers change nothing, count alike and find no race."""
    text, (words, counters) = author.text, author.expected()
    whole, cut, hazards = Counters(), Counters(), Hazards()
    for observers, budget in ((((whole, hazards)), 1 << 30), ((cut,), 1), ((), 1 << 30)):
        found, counted = np.full_like(words, UNSTORED), np.zeros(COUNTERS, np.uint32)
        kernel = load(text, path="fuzz.ptx").kernel()
        kernel.launch(author.grid, author.block, (found, counted), observers=observers, memory_budget=budget)
        wrong = np.argwhere(found != words)
        assert not wrong.size, f"{text}\n(thread, word) {wrong[:5].tolist()} of {author.grid} x {author.block}"
        assert counted.tolist() == counters
    assert whole.as_dict() == cut.as_dict()
    assert (whole.opcodes, whole.lane_instructions) == (cut.opcodes, cut.lane_instructions)
    assert hazards.render() == ""


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(random=st.randoms(use_true_random=False))
def test_random_programs_compute_what_python_says(random: Random) -> None:
    check(Author(random))


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, first + count):
        try:
            check(Author(Random(seed)))
        except Exception:  # the seed is the report
            print(f"seed {seed}", flush=True)
            raise
    print(f"{count} programs agree")
