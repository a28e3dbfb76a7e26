"""Control flow of a listing: blocks, loops, the order of instructions, and how often each runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
import pytest

from flashladder.errors import FlashladderError
from flashladder.lock.step_counts import by_class, scope_of
from flashladder.machine_code import executions
from flashladder.machine_code import flow as flows
from flashladder.machine_code.executions import WORD, Executions, Values, advance, run
from flashladder.machine_code.flow import Flow, Graph, graph_of, reached
from flashladder.machine_code.order import mma_before_use, steady, stretches, under_products, usual_path
from flashladder.machine_code.sass import Instruction, Sass, parse
from flashladder.view.code import order
from tests.data_files import table_of
from tests.null.machine_code.test_sass import code
from tests.typed import error_line

LISTING = Path(__file__).parents[2] / "data" / "tiny.sm_80.sass"
MMA, WAIT, BARRIER = "HMMA.16816.F32 R0, R1, R2, R3", "DEPBAR.LE SB0, 0x0", "BAR.SYNC.DEFER_BLOCKING 0x0"


@pytest.fixture(scope="module")
def tiny() -> Sass:
    return parse(LISTING.read_text(encoding="utf-8"))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to nine nodes with up to three edges each."""
    size = draw(st.integers(1, 9))
    return Graph([draw(st.lists(st.integers(0, size - 1), max_size=3, unique=True)) for _ in range(size)])


def edges(flow: Flow) -> set[tuple[int, int, str]]:
    return {(source, *edge) for source, own in enumerate(flow.edges) for edge in own}


def test_blocks_begin_at_targets_and_behind_branches(tiny: Sass) -> None:
    flow = graph_of(tiny)
    starts = [tiny.instructions[block.begin].address for block in flow.blocks]
    assert starts == [0x00, 0x70, 0xA0, 0x130, 0x170, 0x1C0, 0x210, 0x340, 0x3E0, 0x3F0]
    labels = [block.label.removeprefix(".L_x_") for block in flow.blocks]
    assert labels == ["", "", "1", "0", "", "", "3", "2", "4", ""]
    assert flow.reachable == frozenset(range(8))  # not the trap behind the end, nor the padding behind that


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (("@P0 CALL.REL.NOINC `(.L_x_0)", "CALL.REL.NOINC `(.L_x_0)", ".L_x_0:", "EXIT"),  # nothing returns
         {(0, 1, "falls"), (0, 2, "branches"), (1, 2, "jumps")}),
        (("BRA.DIV ~URZ, `(.L_x_0)", "NOP", ".L_x_0:", "EXIT"), {(0, 1, "falls"), (0, 2, "diverges"), (1, 2, "falls")}),
        (("BRA.CONV ~URZ, `(.L_x_0)", ".L_x_0:", "EXIT"), {(0, 1, "falls"), (0, 1, "diverges")}),
        (("BSSY B0, `(.L_x_0)", "WARPSYNC R1", "BREAK B0", "BSYNC B0", ".L_x_0:", "EXIT"), set()),
        (('BRX R2 -0x50 (*"BRANCH_TARGETS .L_x_0,.L_x_1"*)', "NOP", ".L_x_0:", "EXIT", ".L_x_1:", "EXIT"),
         {(0, 2, "branches"), (0, 3, "branches"), (1, 2, "falls")}),
    ],
    ids=["call", "parted", "conv", "sync", "indirect"],
)  # fmt: skip
def test_where_control_goes(rows: tuple[str, ...], expected: set[tuple[int, int, str]]) -> None:
    assert edges(graph_of(code(*rows))) == expected
    with pytest.raises(FlashladderError, match=r"^address 0x0: an indirect branch does not say where it goes"):
        graph_of(code("BRX R2 -0x50", "EXIT"))


@given(graphs())
def test_a_dominator_is_a_node_without_which_there_is_no_way(graph: Graph) -> None:
    alive = graph.reachable
    assert {node for node, above in enumerate(graph.dominators) if above is not None} == alive - {0}
    for node in alive:
        without = {
            other for other in alive
            if other == node or node not in reached([0] if other else [], graph.successors, frozenset({other}))
        }  # fmt: skip
        assert {other for other in alive if graph.dominates(other, node)} == without | {0}


@given(graphs())
def test_loops_are_entered_through_their_header_alone_and_lead_back_to_it(graph: Graph) -> None:
    loops, alive = graph.loops, graph.reachable
    for loop in loops:
        entered = {node for node in loop.nodes for p in graph.predecessors[node] if p in alive and p not in loop.nodes}
        assert entered <= {loop.header}
        assert all(loop.header in graph.successors[latch] and latch in loop.nodes for latch in loop.latches)
        assert loop.depth == sum(loop.header in other.nodes for other in loops)
        assert loop.parent is None or loop.nodes < {other.header: other.nodes for other in loops}[loop.parent]
    cyclic = {node for node in alive if node in reached(graph.successors[node], graph.successors)}
    if graph.is_reducible:
        assert cyclic == frozenset().union(*(loop.nodes for loop in loops))


@pytest.mark.parametrize(("rows", "sizes"), table_of("null/machine_code/flow", "regions"))
def test_each_instruction_has_its_region(rows: tuple[str, ...], sizes: dict[str, int]) -> None:
    regions = flows.regions_of(code(*rows))
    assert {name: len(regions.code(name)) for name in regions.present} == sizes


PTX_MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2}, {%r1, %r2}, {%r3, %r4}, {%f1, %f2}"
OTHER = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f3, %f4}, {%r5, %r6}, {%r7, %r8}, {%f3, %f4}"
LEFT = "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r9]"
RIGHT = "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r3, %r4}, [%r9]"
UNREAD = "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r10, %r11}, [%r9]"


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([LEFT, RIGHT, PTX_MMA], 0),
        ([LEFT, OTHER, RIGHT, PTX_MMA], 1),
        ([LEFT, RIGHT, OTHER, OTHER, PTX_MMA], 4),
        ([LEFT, RIGHT, PTX_MMA, OTHER, PTX_MMA], 0),  # the first reader counts
        ([LEFT, LEFT, OTHER, PTX_MMA], 1),  # the second load replaces the first, which nobody reads
        ([UNREAD, OTHER], 0),
    ],
)
def test_mma_between_a_load_and_its_first_reader(statements: list[str], expected: int) -> None:
    text = "".join(f"\t{statement};\n" for statement in statements)
    assert mma_before_use(f".entry k() {{\n.reg .b32 %r<12>;\n{text}ret;\n}}\n") == expected


PRODUCT, SENT = "HGMMA.64x128x16.F32 R24, gdesc[UR8], R24", "HGMMA.64x128x16.F32 R24, gdesc[UR8], R24, gsb0"
WAITS = "WARPGROUP.DEPBAR.LE gsb0, 0x{}"


def instructions(*rows: str, begin: int = 0x100) -> tuple[Instruction, ...]:
    return tuple(replace(one, address=begin + one.address) for one in code(*rows).instructions)


TURN = instructions(
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR45+0x28010], R7", "NOP", "BAR.SYNC.DEFER_BLOCKING R2, 0x100",
    "WARPGROUP.ARRIVE", PRODUCT, "UIADD3 UR8, UR8, 0x2", SENT, PRODUCT, SENT, "BAR.ARV R11, 0x100",
    WAITS.format(1), "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR45], RZ", "MUFU.EX2 R0, R4", "FADD R1, R1, R0",
    "MUFU.EX2 R2, R4", WAITS.format(0), "MUFU.EX2 R3, R4", "F2FP.F16.F32.PACK_AB R4, R2, R3", "NOP",
)  # fmt: skip


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        (TURN, (2, 0, 1)),
        # a group that a round leaves under way covers the beginning of the next
        (instructions("MUFU.EX2 R0, R4", WAITS.format(0), "MUFU.EX2 R1, R4", PRODUCT, SENT, "F2FP.F16 R2, R0, R1"),
         (1, 1, 0)),
        # a wait that leaves one group keeps what follows covered
        (instructions(PRODUCT, SENT, PRODUCT, SENT, WAITS.format(1), "MUFU.EX2 R0, R4", WAITS.format(0)), (1, 0, 0)),
        (instructions(PRODUCT, SENT, WAITS.format(0), "MUFU.EX2 R0, R4"), (0, 0, 0)),
        (instructions(PRODUCT, SENT, WAITS.format(0), WAITS.format(1), "MUFU.EX2 R0, R4"), (0, 0, 0)),  # none is left
        # only waits for products end them
        (instructions(PRODUCT, SENT, "DEPBAR.LE SB0, 0x0", "MUFU.EX2 R0, R4", WAITS.format(0)), (1, 0, 0)),
    ],
)  # fmt: skip
def test_work_under_products(loop: tuple[Instruction, ...], expected: tuple[int, int, int]) -> None:
    names = ("mufu_under_products", "f2fp_under_products", "fadd_under_products")
    assert under_products(loop) == dict(zip(names, expected, strict=True))


def test_events_are_told_with_what_stands_behind_them() -> None:
    found = stretches(TURN)
    assert [one.event for one in found] == [
        "wait for an mbarrier", "wait at a barrier", "fence before products", "2 products 64x128x16, a group",
        "2 products 64x128x16, a group", "arrive at a barrier", "wait until 1 group is left", "arrive on an mbarrier",
        "wait until 0 groups are left",
    ]  # fmt: skip
    assert [one.pending for one in found] == [0, 0, 0, 1, 2, 2, 1, 1, 0]
    assert [one.work for one in found[-2:]] == [{"MUFU": 2, "FADD": 1}, {"MUFU": 1, "F2FP": 1}]
    assert [f"{one.address:x}" for one in found[:3]] == ["100", "120", "130"]


def test_blocks_that_lie_apart_repeat_a_wait_and_do_not_count() -> None:
    again = instructions("SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR45], R7", "MUFU.EX2 R9, R9", begin=0x4000)
    assert steady((*TURN, *again)) == TURN
    before = instructions("SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR45], R7", *["MUFU.EX2 R9, R9"] * 40, begin=-0x4000)
    assert steady((*before, *TURN)) == TURN, "first and longer, and without a product"
    left = instructions("MUFU.EX2 R0, R4", WAITS.format(0), PRODUCT, SENT, "FADD R1, R1, R0")  # in flight at the end
    counted = scope_of((*left, *again))
    assert counted.items() >= under_products(left).items(), "what is committed and claimed"
    assert by_class(counted)["MUFU"] == 2, "opcodes are those of all blocks"


@pytest.mark.parametrize(
    "asked", [WAITS.format(0), "SHFL.BFLY PT, R9, R12, 0x2, 0x1f", "VOTE.ANY P0, P0"], ids=["wait", "shfl", "vote"]
)
def test_a_rare_block_that_waits_or_in_which_lanes_ask_each_other_is_walked_around(asked: str) -> None:
    around = (PRODUCT, SENT, PRODUCT, SENT, WAITS.format(1), "@!P0 BRA `(.L_x_1)", asked, "FADD R0, R1, R2")
    sass = loop_of(*around, "MUFU.EX2 R5, R6", ".L_x_1:", "MUFU.EX2 R0, R4", "F2FP.F16.F32.PACK_AB R4, R2, R3")
    loop = flows.main_loop(sass)
    path = usual_path(loop, sass.targets)
    assert (len(loop), len(path)) == (12, 9)
    assert under_products(path) == {"mufu_under_products": 1, "f2fp_under_products": 1, "fadd_under_products": 0}
    assert (under_products(loop)["mufu_under_products"] == 0) == asked.startswith("WARPGROUP"), "every round waits"


def loop_of(*turn: str) -> Sass:
    """A kernel that is this loop."""
    return code(".L_x_0:", *turn, "@P0 BRA `(.L_x_0)", "MUFU.RCP R0, R1", "F2FP.F16.F32.PACK_AB R4, R2, R3", "EXIT")


def test_the_table_ends_with_how_much_is_under_products() -> None:
    text = order("kernel", loop_of(*map(str, TURN[:-1])))
    assert text.startswith("kernel\nmain loop, 19 instructions\n")
    assert text.endswith("Under products: 2 of 3 MUFU, 0 of 1 F2FP, 1 of 1 FADD.")
    assert "2 products 64x128x16, a group" in text
    plain = order("kernel", loop_of("BAR.SYNC.DEFER_BLOCKING R2", "HMMA.16816.F32 R0", "MUFU.EX2 R0"))
    assert plain.endswith("mma are waited for where they stand.")


HMMA = "HMMA.16816.F32 R8, R4, R16, R8"
words = st.integers(0, WORD - 1)


def after(row: str, values: Values, constants: dict[int, int] | None = None) -> Values:
    """The known values after one instruction."""
    values = dict(values)
    advance(code(row).instructions[0], values, constants or {})
    return values


def walk(*rows: str, constants: dict[int, int] | None = None) -> Executions:
    return run(graph_of(code(*rows)), constants or {})


@given(a=words, b=words, c=words)
def test_arithmetic_is_that_of_32_bits(a: int, b: int, c: int) -> None:
    known: Values = {"R1": a, "R2": b, "UR3": c}
    expected = {
        "IADD3 R0, R1, -R2, UR3": (a - b + c) % WORD,
        "IADD3 R0, P0, R1, R2, RZ": (a + b) % WORD,
        "VIADD R0, R1, 0xffffffff": (a - 1) % WORD,
        "IMAD R0, R1.reuse, R2, UR3": (a * b + c) % WORD,
        "IMAD.MOV.U32 R0, RZ, RZ, R1": a,
        "IMAD.SHL.U32 R0, R1, 0x10, RZ": a * 16 % WORD,
        "MOV R0, R2": b,
        "LOP3.LUT R0, R1, R2, UR3, 0x96, !PT": a ^ b ^ c,
        "LOP3.LUT R0, R1, R2, RZ, 0xc0, !PT": a & b,
        "SEL R0, R1, R2, !PT": b,
    }
    for row, value in expected.items():
        assert after(row, known)["R0"] == value, row
    assert after("UIADD3 UR0, UPT, UPT, UR3, -0x1, URZ", known)["UR0"] == (c - 1) % WORD
    assert after("UIADD3 UR0, UR3, 0x1, URZ", known)["UR0"] == (c + 1) % WORD


@given(a=words, b=words, c=st.integers(0, 1))
def test_comparisons_are_signed_unless_they_say_u32(a: int, b: int, c: int) -> None:
    known: Values = {"R1": a, "R2": b, "P3": c}
    x, y = (v - WORD if v >> 31 else v for v in (a, b))
    assert after("ISETP.GT.AND P0, P1, R1, R2, P3", known) == {
        **known, "P0": int(x > y and c), "P1": int(x <= y and c),
    }  # fmt: skip
    assert after("ISETP.LE.U32.OR P0, PT, R1, R2, !P3", known)["P0"] == int(a <= b or not c)
    assert after("ISETP.NE.XOR P0, PT, R1, 0x0, P3", known)["P0"] == int((a != 0) != bool(c))
    assert "P0" not in after("ISETP.GE.U32.AND.EX P0, PT, R1, R2, PT, P3", {**known, "P0": 1})


@given(bits=st.tuples(*[st.integers(0, 1)] * 3), lut=st.integers(0, 255))
def test_a_table_of_predicates(bits: tuple[int, int, int], lut: int) -> None:
    known: Values = {f"P{i}": bit for i, bit in enumerate(bits)}
    row = bits[0] * 4 + bits[1] * 2 + bits[2]
    found = after(f"PLOP3.LUT P4, PT, P0, P1, P2, {lut:#x}, 0x0", known)
    assert found["P4"] == lut >> row & 1


def test_constants_are_parameters() -> None:
    given = {0x160: 7, 0x164: 9}
    assert after("ULDC UR4, c[0x0][0x160]", {}, given) == {"UR4": 7}
    assert after("LDC.64 R4, c[0x0][0x160]", {}, given) == {"R4": 7, "R5": 9}
    assert after("MOV R1, c[0x0][0x164]", {}, given) == {"R1": 9}
    assert after("MOV R1, c[0x0][0x168]", {"R1": 3}, given) == {}
    assert after("CS2R R4, SRZ", {"R4": 1, "R5": 2, "R6": 3}) == {"R4": 0, "R5": 0, "R6": 3}
    assert after("CS2R.32 R4, SRZ", {"R4": 1, "R5": 2}) == {"R4": 0, "R5": 2}
    assert after("LDC R4, c[0x0][R3+0x160]", {"R4": 3}, given) == {}


@pytest.mark.parametrize(("row", "lost"), table_of("null/machine_code/flow", "forgotten"))
def test_what_is_written_otherwise_is_forgotten(row: str, lost: str) -> None:
    known: Values = {f"R{i}": i for i in range(16)} | {"P0": 1, "UR4": 4}
    assert after(row, known) == {name: value for name, value in known.items() if name not in lost.split()}


def test_a_kernel_is_walked_through() -> None:
    rows = (
        "MOV R0, c[0x0][0x160]", "MOV R1, RZ", "ISETP.LT.AND P0, PT, R0, 0x1, PT", "@P0 EXIT",
        ".L_x_0:", "IADD3 R1, R1, 0x1, RZ", "ISETP.GE.AND P1, PT, R1, R0, PT", HMMA, "@!P1 LDGSTS.E [R2], [R4.64]",
        "@P1 BRA `(.L_x_1)", "LDS R9, [R2]",
        ".L_x_1:", "BRA.DIV ~URZ, `(.L_x_2)", "@!P1 BRA `(.L_x_0)", "STG.E [R4.64], R8", "EXIT",
        ".L_x_2:", "SHFL.BFLY PT, R9, R9, 0x1, 0x1f", "BRA `(.L_x_1)",
    )  # fmt: skip
    found = walk(*rows, constants={0x160: 5})
    counts = found.counts()
    expected = {"HMMA.16816.F32": 5, "LDGSTS.E": 4, "LDS": 4, "STG.E": 1, "SHFL.BFLY": 0, "EXIT": 1}
    assert {name: counts[name] for name in expected} == expected
    assert found.flow.main_loop is not None
    assert found.trips(found.flow.main_loop) == 5
    assert walk(*rows, constants={0x160: 0}).counts()["HMMA.16816.F32"] == 0
    assert error_line(walk, *rows).startswith("address 0x30, @P0 EXIT: which way a branch goes is not known")


def test_a_vote_on_what_is_known_is_decided_and_one_for_a_mask_is_not() -> None:
    assert after("VOTE.ANY P4, P3", {"P3": 1}) == {"P4": 1}  # P3 might have been written too
    assert after("VOTE.ANY P4, P3", {}) == {"P4": 0}
    assert after("VOTE.ALL P4, P3", {}) == {"P4": 1}
    assert after("VOTEU.ANY UP4, P3", {}) == {"UP4": 0}
    assert after("VOTE.ANY R4, PT, P3", {"R4": 1}) == {}
    assert walk("MOV R0, RZ", "EXIT").votes == frozenset()


def test_rounds_of_an_inner_loop_are_counted_for_each_entry() -> None:
    found = walk(
        "MOV R0, RZ", ".L_x_0:", "MOV R1, RZ", ".L_x_1:", "IADD3 R1, R1, 0x1, RZ",
        "ISETP.NE.AND P1, PT, R1, 0x3, PT", "@P1 BRA `(.L_x_1)", "IADD3 R0, R0, 0x1, RZ",
        "ISETP.NE.AND P0, PT, R0, 0x7, PT", "@P0 BRA `(.L_x_0)", "EXIT",
    )  # fmt: skip
    assert [found.trips(loop) for loop in found.flow.loops] == [7, 3]


def test_a_loop_without_end_and_a_call_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executions, "LIMIT", 9)
    assert "does not end" in error_line(walk, ".L_x_0:", "NOP", "BRA `(.L_x_0)")
    assert "found a call" in error_line(walk, "CALL.REL.NOINC `(.L_x_0)", "EXIT", ".L_x_0:", "RET.REL.NODEC R2 `(f)")


def test_of_nested_loops_the_inner_one_with_the_tensor_instructions_is_the_main_one() -> None:
    flow = graph_of(
        code(".L_x_0:", "LDG.E R4, [R2.64]", ".L_x_1:", MMA, "@P0 BRA `(.L_x_1)", MMA, "@P1 BRA `(.L_x_0)", "EXIT")
    )
    assert [(loop.header, loop.parent, loop.depth) for loop in flow.loops] == [(0, None, 1), (1, 0, 2)]
    assert flow.main_loop == flow.loops[1]
    assert flow.innermost(2) == flow.loops[0]
    assert flow.innermost(3) is None
    starts = [row for n in range(3) for row in (f".L_x_{n}:", "NOP")]
    first, second, third = graph_of(code(*starts, *(f"@P0 BRA `(.L_x_{n})" for n in (2, 1, 0)), "EXIT")).loops
    assert (first.parent, second.parent, third.parent) == (None, first.header, second.header)
