"""A random program as PTX text."""

from __future__ import annotations

from collections.abc import Sequence
import re

from tests.fuzz_operations import LOCAL_BYTES, NO_NAN, Operation
from tests.fuzz_programs import (
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
    Web,
)
from tests.fuzz_threads import KINDS

DEPTH = 12  # loops within loops
DECLARATIONS = f"""
.reg .b32 %a<6>, %t<3>, %i<{DEPTH}>, %n<{DEPTH}>, %w, %me, %block, %start;
.reg .b64 %b<3>, %u<2>, %out, %table, %counters, %depot, %stack, %row;
.reg .f32 %c<3>; .reg .b16 %h<2>; .reg .pred %q<4>, %l<{DEPTH}>, %num, %v;
.shared .align 4 .b8 room[4096]; .local .align 8 .b8 frame[{LOCAL_BYTES}];
"""
PROLOGUE = """
ld.param.u64 %out, [out]; ld.param.u64 %table, [table]; ld.param.u64 %counters, [counters];
mov.u32 %me, %tid.z; mov.u32 %t0, %ntid.y; mov.u32 %t1, %tid.y; mad.lo.u32 %me, %me, %t0, %t1;
mov.u32 %t0, %ntid.x; mov.u32 %t1, %tid.x; mad.lo.u32 %me, %me, %t0, %t1;
mov.u32 %block, %ctaid.z; mov.u32 %t0, %nctaid.y; mov.u32 %t1, %ctaid.y; mad.lo.u32 %block, %block, %t0, %t1;
mov.u32 %t0, %nctaid.x; mov.u32 %t1, %ctaid.x; mad.lo.u32 %block, %block, %t0, %t1;
mov.u64 %depot, frame; cvta.local.u64 %stack, %depot;
"""
FIRST = {
    "tid": "mov.u32 %start, %me;",
    "block": "mov.u32 %start, %block;",
    "constant": "mov.u32 %start, {number};",
    "mixed": "mul.lo.u32 %start, %me, 77; mad.lo.u32 %start, %block, 1001, %start; add.u32 %start, %start, {number};",
    "lane": "mov.u32 %start, %laneid;",
}
INTO = {
    "r": "mov.u32 {0}, %start;",
    "d": "mul.wide.u32 {0}, %start, %start;",
    "h": "cvt.u16.u32 {0}, %start;",
    "f": "mov.b32 {0}, %start;" + NO_NAN.replace("@", ""),
    "p": "rem.u32 %t0, %start, 3; setp.ne.u32 {0}, %t0, 0;",
}
STORED = {
    "r": "cvt.u64.u32 %u0, {0};",
    "d": "mov.u64 %u0, {0};",
    "h": "cvt.u64.u16 %u0, {0};",
    "f": "mov.b32 %t0, {0}; cvt.u64.u32 %u0, %t0;",
    "p": "selp.u64 %u0, 1, 0, {0};",
}


def to_ptx(program: Program) -> str:
    """The program as a module with the kernel ``k(out, table, counters)``."""
    words = SLOTS + 2 * len(program.kept)
    writer = _Writer(program.threads)
    writer.add(DECLARATIONS + PROLOGUE)
    writer.add(f"mad.lo.u32 %t0, %block, {program.threads}, %me; mul.wide.u32 %row, %t0, {4 * words};")
    writer.add("add.u64 %out, %out, %row;")
    for name, (how, number) in program.starts.items():
        writer.add(FIRST[how].format(number=number) + " " + INTO[KINDS[name]].format(name))
    for place in range(0, LOCAL_BYTES, 4):
        writer.add(f"st.local.u32 [%depot+{place}], %a0;")
    writer.phases(program.phases)
    writer.statements(program.last, {"ret": "", "exit": ""})
    for index, name in enumerate(program.kept):
        writer.add(STORED[KINDS[name]].format(name))
        at = 4 * (SLOTS + 2 * index)
        writer.add(f"cvt.u32.u64 %t0, %u0; shr.u64 %u0, %u0, 32; st.global.u32 [%out+{at}], %t0;")
        writer.add(f"cvt.u32.u64 %t0, %u0; st.global.u32 [%out+{at + 4}], %t0;")
    head = ".version 8.0\n.target sm_80\n.address_size 64\n"
    parameters = ".param .u64 out, .param .u64 table, .param .u64 counters"
    return f"{head}.visible .entry k({parameters})\n{{\n" + "\n".join(writer.lines) + "\nret;\n}\n"


def _guard(test: Test | None) -> str:
    return "" if test is None else f"@{'!' if test.negated else ''}{test.register} "


def _opposite(test: Test) -> Test:
    return Test(test.register, not test.negated)


class _Writer:
    """The lines of one kernel; `ways` says where each way to leave leads (a label; nothing for the thread's end)."""

    def __init__(self, threads: int) -> None:
        self.lines: list[str] = []
        self.threads = threads
        self.labels = 0
        self.depth = 0

    def add(self, text: str) -> None:
        self.lines.append(text)

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def phases(self, phases: Sequence[Phase]) -> None:
        for phase in phases:
            if isinstance(phase, Meeting):
                self.meeting(phase)
            elif isinstance(phase, Rounds):
                self.rounds(phase)
            else:
                self.statements(phase, {})

    def meeting(self, meeting: Meeting) -> None:
        to, source = meeting.to, meeting.source
        odd = f"and.b32 %t0, {source}, 1; setp.ne.u32 %v, %t0, 0; "
        texts = {
            "exchange": f"mov.u32 %t0, room; mad.lo.u32 %t1, %me, 4, %t0; st.shared.u32 [%t1], {source}; bar.sync 0; "
            f"add.u32 %t1, %me, {meeting.shift}; rem.u32 %t1, %t1, {self.threads}; mad.lo.u32 %t1, %t1, 4, %t0; "
            f"ld.shared.u32 {to}, [%t1]; bar.sync 0;",
            "ballot": f"{odd} vote.sync.ballot.b32 {to}, %v, -1;",
            "first lane": f"shfl.sync.idx.b32 {to}, {source}, 0, 31, -1;",
            "sum": f"redux.sync.add.u32 {to}, {source}, -1;",
            "count": f"{odd} bar.red.popc.u32 {to}, 0, %v;",
        }
        self.add(texts[meeting.kind])

    def rounds(self, rounds: Rounds) -> None:
        head, end = self.label(), self.label()
        counter, limit, test = (f"%{kind}{self.depth}" for kind in "inl")
        self.depth += 1
        self.add(f"rem.u32 {limit}, %block, {rounds.spread}; add.u32 {limit}, {limit}, {rounds.least};")
        self.add(f"mov.u32 {counter}, 0;\n{head}:\nsetp.ge.u32 {test}, {counter}, {limit}; @{test} bra {end};")
        self.add(f"add.u32 {counter}, {counter}, 1;")
        self.phases(rounds.phases)
        self.statements(rounds.tail, {"continue": head})
        self.add(f"bra {head};\n{end}:")
        self.depth -= 1

    def statements(self, statements: Sequence[Statement], ways: dict[str, str]) -> None:
        for statement in statements:
            if isinstance(statement, Do):
                self.add(operation_text(statement))
            elif isinstance(statement, Store):
                self.add(f"{_guard(statement.guard)}st.global.u32 [%out+{4 * statement.slot}], {statement.source};")
            elif isinstance(statement, If):
                self.branch(statement, ways)
            elif isinstance(statement, Loop):
                self.loop(statement, ways)
            elif isinstance(statement, Leave):
                where = ways[statement.how]
                self.add(_guard(statement.guard) + (f"bra {where};" if where else f"{statement.how};"))
            else:
                self.web(statement)

    def branch(self, statement: If, ways: dict[str, str]) -> None:
        other, end = self.label(), self.label()
        self.add(f"{_guard(_opposite(statement.test))}bra {other if statement.other else end};")
        self.statements(statement.then, ways)
        if statement.other:
            self.add(f"bra {end};\n{other}:")
            self.statements(statement.other, ways)
        self.add(f"{end}:")

    def loop(self, loop: Loop, ways: dict[str, str]) -> None:
        head, again, end = self.label(), self.label(), self.label()
        counter, limit, test = (f"%{kind}{self.depth}" for kind in "inl")
        self.depth += 1
        done = f"setp.ge.u32 {test}, {counter}, {limit}; @{test} bra {end};"
        count = f"add.u32 {counter}, {counter}, 1;"
        self.add(f"and.b32 {limit}, {loop.source}, {loop.mask}; mov.u32 {counter}, 0;")
        if loop.style == "rotated":
            self.add(done)
        self.add(f"{head}:")
        if loop.style == "middle":
            self.add(f"{count} setp.gt.u32 {test}, {counter}, {limit}; @{test} bra {end};")
        elif loop.style == "while":
            self.add(f"{done} {count}")
        top = loop.style in {"while", "middle"}
        self.statements(loop.body, {**ways, "continue": head if top else again, "break": end})
        self.add(
            f"bra {head};" if top else f"{again}:\n{count} setp.lt.u32 {test}, {counter}, {limit}; @{test} bra {head};"
        )
        self.add(f"{end}:")
        self.depth -= 1

    def web(self, web: Web) -> None:
        labels, end = [self.label() for _ in web.nodes], self.label()
        _, test, yes, no = web.nodes[0]
        self.add(f"mov.u32 %w, {web.fuel}; {_guard(test)}bra {labels[yes]}; bra {labels[no]};")
        for index, (body, test, yes, no) in enumerate(web.nodes):
            self.add(f"{labels[index]}: setp.eq.u32 %num, %w, 0; @%num bra {end}; sub.u32 %w, %w, 1;")
            self.statements(body, {})
            self.add(f"{_guard(test)}bra {labels[yes]};")
            if no != index + 1 or index + 1 == len(labels):
                self.add(f"bra {labels[no]};")
        self.add(f"{end}:")


def operation_text(statement: Do) -> str:
    """The instructions of an operation with its guard on those that matter."""
    operation: Operation = statement.operation
    names = [*statement.to, *map(str, statement.sources)]
    text = operation.text.replace("{LAST}", "{" + str(len(names) - 1) + "}").format(*names)
    text = text.replace("@", _guard(statement.guard))
    wild = "" if statement.guard is None else _guard(_opposite(statement.guard))
    return re.sub(r"\^(mov[^;]*;)", (wild + r"\1") if wild else "", text)
