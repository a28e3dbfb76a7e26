"""Control flow: lanes that part and meet, the order of blocks, registers between instructions, calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.programs import HEADER, OUT, REGISTERS, program, refuses, run, table_of, text_of

from ptxemu import EmulationError, Instruction, Machine, Observer, load
from ptxemu.isa import calls
from ptxemu.machine.control import Block, build_flow, execution_order, uses_and_defines
from ptxemu.syntax.tree import Address, Immediate, Register, Vector
from ptxemu.values import Array, BoolArray

STORE_1 = "st.global.u32 [%rd0], %r1;"
LANES = np.arange(32)


@pytest.mark.parametrize(
    ("ways", "order"),
    [
        ([[1, 2], [3], [3], []], [0, 1, 2, 3]),  # a diamond: the meeting point last
        ([[1], [2, 3], [], [1]], [0, 1, 3, 2]),  # a loop is contiguous before its exit
        ([[1], [2], [3], [2, 4], [1, 5], []], [0, 1, 2, 3, 4, 5]),  # nested loops
        ([[2], [2], []], [0, 2]),  # unreachable blocks are left out
        ([[2], [2], [1, 3], []], [0, 2, 1, 3]),  # a loop entered in the middle runs to its end
        # two ways back: a latch behind the loop's blocks, here of the header 1; of an inner loop that continues it, too
        ([[1], [2, 4], [1, 3], [1], []], [0, 1, 2, 3, ~1, 4]),
        ([[1], [2], [1, 3], [2, 4], []], [0, 1, 2, 3, ~1, 4]),
    ],
)
def test_order_of_blocks(ways: list[list[int]], order: list[int]) -> None:
    assert execution_order(ways) == order


SUM = """mov.u32 %r1, 0; mov.u32 %r2, 0; add.u32 %r3, %r0, %r60; loop: setp.ge.u32 %p1, %r2, %r3; @%p1 bra done;
add.u32 %r2, %r2, 1; add.u32 %r1, %r1, %r2; bra loop; done: """
# an H200 passes this barrier, whose warps are whole in every round, though `continue` goes straight to the header
CONTINUE = """mov.u32 %r1, 0; loop: bar.sync 0; setp.ge.u32 %p1, %r1, 4; @%p1 bra done; add.u32 %r1, %r1, 1;
and.b32 %r2, %r0, 1; setp.eq.u32 %p2, %r2, 0; @%p2 bra loop; add.u32 %r3, %r1, 7; bra loop; done: """
NESTED = """mov.u32 %r1, 0; mov.u32 %r2, 0; and.b32 %r5, %r0, 3; setp.eq.u32 %p1, %r5, 0; @%p1 bra done;
loop: and.b32 %r3, %r2, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra even; add.u32 %r1, %r1, 100; bra next;
even: add.u32 %r1, %r1, 1; next: add.u32 %r2, %r2, 1; setp.lt.u32 %p3, %r2, %r5; @%p3 bra loop; done: """
TWO_ENTRIES = """mov.u32 %r1, 0; mov.u32 %r2, 0; and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra second;
first: add.u32 %r1, %r1, 1; second: add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, %r0; @%p2 bra first;
mad.lo.u32 %r1, %r2, 100, %r1; """
FREED = """mov.u32 %r1, %r0; cvt.u64.u32 %rd3, %r0; add.u32 %r2, %r1, 1; cvt.u32.u64 %r3, %rd3; add.u32 %r2, %r2, %r3;
st.global.u32 [%rd0], %r2; setp.ge.u32 %p1, %r0, 7; @%p1 bra done; mov.u32 %r1, 5; mov.u64 %rd3, 6;
cvt.u32.u64 %r3, %rd3; add.u32 %r1, %r1, %r3; st.global.u32 [%rd0], %r1; done:"""
COPIES = """mul.lo.u32 %r1, %r0, 3; mov.u32 %r2, %r1; mov.b32 %f1, %r1; setp.lt.u32 %p1, %r0, 9;
@%p1 add.u32 %r1, %r1, 1000; red.global.add.u32 [%rd0], %r1; add.u32 %r1, %r1, 7; mov.b32 %r3, %f1;
add.u32 %r1, %r2, %r3;"""
LOADED = """st.global.u32 [%rd0], %r0; ld.global.u32 %r1, [%rd0]; st.global.u32 [%rd0], 77; mov.u32 %r4, tile;
st.shared.u32 [%r4], 5; bar.sync 0; ld.shared.u32 %r2, [%r4]; bar.sync 0; st.shared.u32 [%r4], 6;
st.local.u32 [frame], %r0; ld.local.u32 %r3, [frame]; st.local.u32 [frame], 9; add.u32 %r1, %r1, %r2;
add.u32 %r1, %r1, %r3;"""
GARBAGE = """setp.lt.u32 %p1, %r0, 0; mov.u64 %rd5, 12345; mov.u32 %r5, 99999; mov.u32 %r1, 4;
@%p1 ld.global.u32 %r1, [%rd5]; @%p1 st.shared.u32 [%r5], %r1; @%p1 atom.global.add.u32 %r1, [%rd5], 1;
@%p1 ld.u32 %r1, [%rd5]; @%p1 cp.async.ca.shared.global [%r5], [%rd5], 4;"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (SUM + STORE_1, lambda t, b: (t + b) * (t + b + 1) // 2),
        (CONTINUE + STORE_1, lambda t, b: 4 + 0 * t),
        (NESTED + STORE_1, lambda t, b: np.choose(t % 4, [0, 1, 101, 102])),
        (TWO_ENTRIES + STORE_1, lambda t, b: 100 * np.maximum(t, 1) + np.maximum(t, 1) - 1 + t % 2),
        # early exits
        ((f"setp.gt.u32 %p1, %r0, 20; @%p1 ret; mov.u32 %r1, %r0; {STORE_1} setp.gt.u32 %p2, %r0, 5; @%p2 exit; "
         f"mov.u32 %r1, 99; {STORE_1}"), lambda t, b: np.where(t > 20, 0xDEAD, np.where(t > 5, t, 99))),
        # guards
        (("and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0; mov.u32 %r1, 5; @%p1 add.u32 %r1, %r1, 10; "
         f"@!%p1 mul.lo.u32 %r1, %r1, %r0; {STORE_1}"), lambda t, b: np.where(t % 2 == 0, 15, 5 * t)),
        ("add.u32 %r1, %r0, %r60; " + STORE_1, lambda t, b: t + b),
        # a register is freed, and written again by some lanes; kept while waiting lanes need it; a copy keeps its value
        (FREED, lambda t, b: np.where(t < 7, 11, 2 * t + 1)),
        ("mul.lo.u32 %r1, %r0, 3; setp.ge.u32 %p1, %r0, 8; @%p1 bra join; add.u32 %r2, %r1, 1; mov.u32 %r1, %r2; join: "
         + STORE_1, lambda t, b: 3 * t + (t < 8)),
        (COPIES + STORE_1, lambda t, b: 6 * t),
        (LOADED + STORE_1, lambda t, b: 2 * t + 5),
        (GARBAGE + STORE_1, lambda t, b: 4 + 0 * t),  # a guard that holds nowhere reads no garbage address
        ("cvt.rn.f16.f32 %r1, 0f3FC00000; " + STORE_1, lambda t, b: 0x3E00 + 0 * t),  # a half in a wider register
        # a 32-bit address wraps: base 2**32 - 2048 + 4 * lane, offset 2048; an H200 reads the word of the lane
        (("mov.u32 %r1, tile; mad.lo.u32 %r2, %r0, 4, %r1; st.shared.u32 [%r2], %r0; sub.u32 %r2, %r2, 2048; "
         f"ld.shared.u32 %r1, [%r2+2048]; {STORE_1}"), lambda t, b: t),
        ("add.s64 %rd5, %rd0, 0; prefetchu.L1 [%rd5]; st.global.u32 [%rd5], 3;", lambda t, b: 3 + 0 * t),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("threads", "blocks"), [(40, 3), (64, 1)])
def test_programs(body: str, expected: Callable[[Array, Array], Array], threads: int, blocks: int) -> None:
    declarations = ".shared .align 16 .b8 tile[4096]; .local .align 4 .b8 frame[8];"
    wanted = expected(np.arange(threads)[None], np.arange(blocks)[:, None])
    for budget in (1 << 30, 1):
        out = run(body, threads, blocks, declarations=declarations, memory_budget=budget)
        assert (out == wanted.astype(np.uint32)).all()


class Visits(Observer):
    """(first instruction, active lanes) of every basic block that runs, and the bytes in registers when it begins."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int | str]] = []
        self.bytes: list[int] = []

    def start(self, machine: Machine) -> None:
        self.machine = machine

    def block(self, block: Block, mask: BoolArray | None) -> None:
        if block.instructions:
            lanes = "all" if mask is None else int(mask.sum())
            self.seen.append((str(block.instructions[0]), lanes))
        self.bytes.append(sum(value.nbytes for value in self.machine.registers))


def test_lanes_meet_before_the_join_and_behind_a_loop() -> None:
    for body in (
        "setp.lt.u32 %p1, %r0, 10; @%p1 bra small; mov.u32 %r1, 100; bra done; small: mov.u32 %r1, 7; done:",
        "mov.u32 %r1, 0; loop: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, %r0; @%p1 bra loop;",
    ):
        visits = Visits()
        run(f"{body} st.global.u32 [%rd0], %r1;", observers=visits)
        assert [lanes for text, lanes in visits.seen if text.startswith("st.")] == ["all"]


@pytest.mark.parametrize(("threads", "leave"), [(64, 99), (40, 99), (64, 20)])
def test_registers_are_freed_when_all_lanes_left_are_there(threads: int, leave: int) -> None:
    visits = Visits()
    use = "".join(f"mul.lo.u32 %r{i}, %r0, {i}; add.u32 %r40, %r40, %r{i};" for i in range(1, 30))
    leaving = f"mov.u32 %r40, 0; setp.gt.u32 %p1, %r0, {leave}; @%p1 exit;"
    run(f"{leaving} {use} bra end; end: st.global.u32 [%rd0], %r40;", threads, observers=visits)
    assert visits.bytes[-1] < 8 * 4 * 64


def test_registers_die_where_nothing_reads_them() -> None:
    kernel = program("mov.u32 %r1, 1; add.u32 %r2, %r1, %r1; st.global.u32 [%rd1], %r2;")
    dying = build_flow(kernel.function, "k.ptx").blocks[0].dying
    assert dying[1] == ("%r1",)
    assert "%r2" in dying[2]
    guarded = program("mov.u32 %r1, 1; @%p1 mov.u32 %r1, 2; st.global.u32 [%rd1], %r1;")
    assert guarded.flow.blocks[0].dying[0] == ()
    (move, *_) = [item for item in kernel.function.body if isinstance(item, Instruction)]
    assert uses_and_defines(move) == ((), ("%r1",))
    assert load(HEADER + ".visible .entry k()\n{\n}\n").kernel().launch(2, 32).instructions == 0


@pytest.mark.parametrize(("body", "what"), table_of("control", "bad_operands"))
def test_operands_that_do_not_fit_are_named(body: str, what: str) -> None:
    with refuses("syntax", what) as caught:
        run(body)
    assert caught.value.line == 17


def test_instructions_take_as_many_operands_as_the_isa_says() -> None:
    kernel = program("")

    def refused(opcode: str, count: int) -> bool:
        body = [Instruction(opcode, (Immediate(0),) * count), Instruction("ret", ())]
        try:
            kernel.with_body(body).launch(1, 128, (0,))
        except EmulationError as error:
            return f"operands of {opcode}" in str(error)
        return False

    for opcode, least, most in table_of("control", "operand_counts"):
        tried = range(max(0, least - 1), most + 2)
        assert [n for n in tried if not refused(opcode, n)] == [*range(least, most + 1)], opcode


# --- calls ------------------------------------------------------------------------------------------------------------

# twice(x) = 2 x, but 100 for x > 20: an early return in some lanes.
TWICE = text_of("control", "twice")
CALL = """{{ .param .b32 given; .param .b32 back; st.param.b32 [given+0], {argument};
{call} (back), {function}, (given); ld.param.b32 {result}, [back+0]; }}"""
STORE = "st.global.u32 [%rd0], %r2;"
FUNCTIONS = text_of("control", "functions")
# The predicates are those of a function, too; a parameter of the kernel by a computed address.
BOTH = "setp.lt.u32 %p1, %r0, 15; mov.pred %p0, %p1; mov.pred %p2, %p1; mov.u64 %rd5, out; ld.param.u32 %r4, [%rd5];"
BOTH += "ld.param.u32 %r5, [out]; sub.u32 %r4, %r4, %r5; selp.u32 %r5, 1000, 0, %p1; add.u32 %r4, %r4, %r5;"
SUM = "mad.lo.u32 %r2, %r3, 100, %r2; add.u32 %r2, %r2, %r4;"


def calling(function: str = "twice", *, argument: str = "%r0", result: str = "%r2", call: str = "call.uni") -> str:
    return CALL.format(function=function, argument=argument, result=result, call=call)


def twice(x: Array) -> Array:
    return np.where(x > 20, 100, 2 * x)


OUTER = f"{TWICE}.func (.param .b32 r) outer(.param .b32 x) {{ {REGISTERS} ld.param.u32 %r0, [x]; {calling()}"
OUTER += "add.u32 %r2, %r2, 1; st.param.b32 [r+0], %r2; ret; }"
GUARDED = (
    "setp.lt.u32 %p1, %r0, 5; .param .b32 given; .param .b32 back; st.param.b32 [given], %r0; st.param.b32 [back], 9;"
)


@pytest.mark.parametrize(
    ("body", "module", "expected"),
    [
        (calling() + STORE, TWICE, twice(LANES)),
        (calling() + calling(argument="%r2", result="%r3") + "mad.lo.u32 %r2, %r3, 1000, %r2;" + STORE, TWICE,
         twice(twice(LANES)) * 1000 + twice(LANES)),
        (calling("outer") + STORE, OUTER, twice(LANES) + 1),
        (BOTH + calling("inner") + calling("small", result="%r3") + SUM + STORE, FUNCTIONS,
         np.where(LANES > 20, 7, 11 - (LANES < 5)) + 100 * LANES + 1000 * (LANES < 15)),
        (f"{GUARDED} @!%p1 call (back), twice, (given); ld.param.b32 %r2, [back]; {STORE}", TWICE,
         np.where(LANES < 5, 9, twice(LANES))),
    ],
)  # fmt: skip
def test_functions_are_copied_into_their_callers(body: str, module: str, expected: Array) -> None:
    assert (run(body, module=module) == expected).all()


@pytest.mark.parametrize(("name", "module", "body", "expected"), table_of("control", "calls"))
def test_what_calls_hand_over(name: str, module: str, body: str, expected: list[int] | str) -> None:
    if isinstance(expected, str):
        with refuses("trap", expected):
            run(body, module=module)
    else:
        assert run(body + STORE, len(expected), module=module)[0].tolist() == expected, name


@pytest.mark.parametrize("address", ["mov.u64 %rd5, twice;", "mov.u64 %rd5, table; ld.global.u64 %rd5, [%rd5+8];"])
def test_a_pointer_chooses_among_functions_whose_address_is_taken(address: str) -> None:
    other = TWICE.replace("twice", "other").replace(" 100;", " 50;")
    module = TWICE + other + ".global .align 8 .u64 table[2] = {other, twice};"
    take = address + "mov.u64 %rd6, other; setp.gt.u32 %p1, %r0, 25; @%p1 mov.u64 %rd5, %rd6;"
    call = calling("%rd5", call="call").replace("(given);", "(given), prototype_0;")
    body = f"{take} {{ prototype_0 : .callprototype (.param .b32 _) _ (.param .b32 _); {call} }} {STORE}"
    assert (run(body, module=module) == np.where(LANES > 25, 50, twice(LANES))).all()
    for wrong in ("64", "wide"):  # no function; one whose parameter has another size
        with refuses("unsupported", "call of %rd5 is not supported, thread 0 "):
            run(body.replace(take, f"mov.u64 %rd5, {wrong};"), module=module + FUNCTIONS)


def test_a_function_s_shared_memory_exists_once() -> None:
    module = """.func (.param .b32 result) next(.param .b32 x) { .reg .b32 %r<3>; .shared .align 4 .b32 count;
    mov.u32 %r1, count; ld.param.u32 %r2, [x]; red.shared.add.u32 [%r1], %r2; ld.shared.u32 %r2, [%r1];
    st.param.b32 [result], %r2; ret; }"""
    start = "mov.u32 %r5, 0; setp.eq.u32 %p1, %r0, 0;"
    with refuses("uninitialised", "not written before"):
        run(start + calling("next", argument="1") + STORE, module=module)
    zero = module.replace("ld.param.u32 %r2, [x];", "ld.param.u32 %r2, [x]; st.shared.u32 [%r1], 0; bar.sync 0;")
    twice_called = calling("next", argument="1") + "bar.sync 0;" + calling("next", argument="2") + STORE
    assert (run(twice_called, module=zero) == 64).all()
    kernel = load(
        f"{HEADER}{module}.visible .entry k(.param .u64 out) {{ {REGISTERS} {OUT} {twice_called} ret; }}"
    ).kernel()
    assert [variable.name for variable in kernel.function.variables if variable.space == "shared"] == ["count#"]


@pytest.mark.parametrize("function", ["forever", "ping", "vprintf"])
def test_what_cannot_be_copied_is_an_error_once_it_is_executed(function: str) -> None:
    module = text_of("control", "endless")
    body = f"mov.u32 %r2, 3; setp.gt.u32 %p1, %r0, LIMIT; @!%p1 bra past; {calling(function)} past: {STORE}"
    assert (run(body.replace("LIMIT", "100"), module=module) == 3).all()
    with refuses("unsupported", f"call of {function} is not supported, thread 4 .*does not call itself"):
        run(body.replace("LIMIT", "3"), module=module)


def test_calls_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses("syntax", r"call of twice with another number of parameters and results.*2.*1"):
        run(".param .b32 given; st.param.b32 [given], 1; call.uni twice, (given);", module=TWICE)
    monkeypatch.setattr(calls, "MOST_ITEMS", 50)
    with refuses("unsupported", "k has more than 50 instructions with all that it calls"):
        run(calling() * 8 + STORE, module=TWICE)


def test_the_box_of_a_copy_is_renamed_too() -> None:
    a, b, c, x, y = map(Register, "abcxy")
    found = calls.renamed(Address(a, 8, coordinates=Vector((b, c))), {"a": x, "b": y})
    assert found == Address(x, 8, coordinates=Vector((y, c)))


def test_copied_instructions_say_who_called() -> None:
    entry = f".visible .entry k(.param .u64 out) {{ {REGISTERS} {OUT}\n.loc 1 20 0\n{calling('outer')} ret; }}\n"
    inner = OUTER.replace("add.u32", "\n.loc 1 7 0\nadd.u32", 1).replace("{ .param", "\n.loc 1 9 0\n{ .param", 1)
    text = f'{HEADER}{inner}{entry}.file 1 "a.cu"\n'
    items: list[Any] = list(load(text).kernel().function.body)
    add = next(item for item in items if str(item).startswith("add.u32 %r2#"))
    places = [add.source, add.source.inlined_at, add.source.inlined_at.inlined_at]
    assert [*map(str, places)] == ["a.cu:7", "a.cu:9", "a.cu:20"]
