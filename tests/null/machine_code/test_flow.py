"""The control-flow graph: blocks and edges of machine code, dominators, loops, and what each block is for."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
import pytest

from flashladder.errors import FlashladderError
from flashladder.machine_code import flow as dominance
from flashladder.machine_code.executions import run
from flashladder.machine_code.flow import (
    EPILOGUE,
    LAST,
    LOOP,
    PEELED,
    PROLOGUE,
    UNREACHED,
    Flow,
    Regions,
    graph_of,
    main_loop,
    regions_of,
)
from flashladder.machine_code.sass import Sass, parse
from tests.null.sass_fixture import code

LISTING = Path(__file__).parents[2] / "data" / "tiny.sm_80.sass"
LISTINGS = [LISTING, *sorted(LISTING.parent.glob("toolchains/*/*.sass"))]  # of each toolchain that is kept
MMA, WAIT, BARRIER = "HMMA.16816.F32 R0, R1, R2, R3", "DEPBAR.LE SB0, 0x0", "BAR.SYNC.DEFER_BLOCKING 0x0"


@pytest.fixture(scope="module")
def tiny() -> Sass:
    return parse(LISTING.read_text(encoding="utf-8"))


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    """Up to nine nodes with up to three edges each."""
    size = draw(st.integers(1, 9))
    return [draw(st.lists(st.integers(0, size - 1), max_size=3, unique=True)) for _ in range(size)]


def edges(flow: Flow) -> set[tuple[int, int, str]]:
    return {(edge.source, edge.target, edge.kind) for edge in flow.edges}


def sizes(regions: Regions) -> dict[str, int]:
    return {name: len(regions.code(name)) for name in regions.present}


def test_blocks_begin_at_targets_and_behind_branches(tiny: Sass) -> None:
    flow = graph_of(tiny)
    starts = [tiny.instructions[block.begin].address for block in flow.blocks]
    assert starts == [0x00, 0x70, 0xA0, 0x130, 0x170, 0x1C0, 0x210, 0x340, 0x3E0, 0x3F0]
    assert [block.label for block in flow.blocks] == [
        "",
        "",
        ".L_x_1",
        ".L_x_0",
        "",
        "",
        ".L_x_3",
        ".L_x_2",
        ".L_x_4",
        "",
    ]
    assert flow.reachable == frozenset(range(8))  # not the trap behind the end, nor the padding behind that


@pytest.mark.parametrize("path", LISTINGS, ids=lambda path: str(path.relative_to(LISTING.parent)))
def test_listings_of_every_toolchain_become_graphs(path: Path) -> None:
    sass = parse(path.read_text(encoding="utf-8"))
    regions = regions_of(sass)
    assert regions.flow.is_reducible
    assert regions.code(LOOP) == main_loop(sass)
    assert sum(len(regions.code(name)) for name in regions.present) == len(sass.instructions)
    ends = [i for i in regions.flow.reachable if not regions.flow.successors[i]]
    assert {regions.flow.code(i)[-1].opcode_class for i in ends} == {"EXIT"}


@pytest.mark.parametrize("opcode", ["BRA.DIV", "BRA.CONV"])
def test_a_branch_of_parted_threads_is_never_taken_by_a_warp_that_runs_together(opcode: str) -> None:
    flow = graph_of(code(f"{opcode} ~URZ, `(.L_x_0)", "NOP", ".L_x_0:", "EXIT"))
    assert edges(flow) == {(0, 1, "falls"), (0, 2, "diverges"), (1, 2, "falls")}
    assert run(flow, {}).blocks == (1, 1, 1)


def test_a_call_in_a_kernel_that_never_returns_is_a_branch() -> None:
    flow = graph_of(code("@P0 CALL.REL.NOINC `(.L_x_0)", "CALL.REL.NOINC `(.L_x_0)", ".L_x_0:", "EXIT"))
    assert edges(flow) == {(0, 1, "falls"), (0, 2, "branches"), (1, 2, "jumps")}


def test_waiting_for_the_other_threads_of_a_warp_is_no_edge() -> None:
    flow = graph_of(code("BSSY B0, `(.L_x_0)", "WARPSYNC R1", "BREAK B0", "BSYNC B0", ".L_x_0:", "EXIT"))
    assert len(flow.blocks) == 1


def test_an_indirect_branch_goes_where_nvdisasm_lists() -> None:
    listed = 'BRX R2 -0x50 (*"BRANCH_TARGETS .L_x_0,.L_x_1"*)'
    flow = graph_of(code(listed, "NOP", ".L_x_0:", "EXIT", ".L_x_1:", "EXIT"))
    assert edges(flow) == {(0, 2, "branches"), (0, 3, "branches"), (1, 2, "falls")}
    with pytest.raises(FlashladderError, match=r"^address 0x0: an indirect branch does not say where it goes"):
        graph_of(code("BRX R2 -0x50", "EXIT"))


@given(graphs())
def test_a_dominator_is_a_node_without_which_there_is_no_way(graph: list[list[int]]) -> None:
    found = dominance.immediate_dominators(graph)
    alive = dominance.reached([0], graph)
    assert {node for node, above in enumerate(found) if above is not None} == alive - {0}
    for node in alive:
        without = {
            other for other in alive
            if other == node or node not in dominance.reached([0] if other else [], graph, frozenset({other}))
        }  # fmt: skip
        assert {other for other in alive if dominance.dominates(found, other, node)} == without | {0}


@given(graphs())
def test_loops_are_entered_through_their_header_alone_and_lead_back_to_it(graph: list[list[int]]) -> None:
    immediate = dominance.immediate_dominators(graph)
    loops = dominance.natural_loops(graph, immediate)
    before = dominance.backward(graph)
    alive = dominance.reached([0], graph)
    for loop in loops:
        entered = {node for node in loop.nodes for p in before[node] if p in alive and p not in loop.nodes}
        assert entered <= {loop.header}
        assert all(loop.header in graph[latch] and latch in loop.nodes for latch in loop.latches)
        assert loop.depth == sum(loop.header in other.nodes for other in loops)
        assert loop.parent is None or loop.nodes < {other.header: other.nodes for other in loops}[loop.parent]
    cyclic = {node for node in alive if node in dominance.reached(graph[node], graph)}
    if dominance.is_reducible(graph, immediate):
        assert cyclic == frozenset().union(*(loop.nodes for loop in loops))


def test_of_nested_loops_the_inner_one_with_the_tensor_instructions_is_the_main_one() -> None:
    flow = graph_of(
        code(".L_x_0:", "LDG.E R4, [R2.64]", ".L_x_1:", MMA, "@P0 BRA `(.L_x_1)", MMA, "@P1 BRA `(.L_x_0)", "EXIT")
    )
    assert [(loop.header, loop.parent, loop.depth) for loop in flow.loops] == [(0, None, 1), (1, 0, 2)]
    assert flow.main_loop == flow.loops[1]
    assert flow.innermost(2) == flow.loops[0]
    assert flow.innermost(3) is None


def test_a_peeled_block_begins_where_its_first_tile_has_landed() -> None:
    regions = regions_of(
        code(
            "LDGSTS.E [R1], [R2.64]", "DEPBAR.LE SB0, 0x1", "WARPSYNC R3", "LDSM.16.M88.4 R4, [R1]",
            WAIT, "IADD3 R9, R9, 0x1, RZ", BARRIER, MMA, WAIT, BARRIER, "@P0 BRA `(.L_x_0)", "LDGSTS.E [R1], [R2.64]",
            ".L_x_0:", MMA, "@P1 BRA `(.L_x_2)",
            ".L_x_1:", BARRIER, MMA, MMA, "@P2 BRA `(.L_x_1)",
            ".L_x_2:", "FMUL R0, R0, R1", "EXIT",
        )
    )  # fmt: skip
    assert sizes(regions) == {PROLOGUE: 4, PEELED: 10, LOOP: 4, EPILOGUE: 2}
    assert regions.code(PEELED)[0].opcode == "DEPBAR.LE"
    assert regions.flow.counts(regions.blocks(PEELED))["LDGSTS"] == 1


def test_a_peeled_block_whose_barrier_stands_in_a_block_before() -> None:
    regions = regions_of(
        code(
            "NOP", BARRIER, "@P0 BRA `(.L_x_0)", "LDGSTS.E [R1], [R2.64]", ".L_x_0:", MMA,
            ".L_x_1:", MMA, MMA, "@P2 BRA `(.L_x_1)", "EXIT",
        )
    )  # fmt: skip
    assert sizes(regions) == {PROLOGUE: 1, PEELED: 4, LOOP: 3, EPILOGUE: 1}
    without = regions_of(code("NOP", MMA, ".L_x_1:", MMA, MMA, "@P2 BRA `(.L_x_1)", "EXIT"))
    assert sizes(without) == {PEELED: 2, LOOP: 3, EPILOGUE: 1}


def test_tensor_instructions_behind_the_loop_are_a_last_block() -> None:
    regions = regions_of(
        code(".L_x_0:", MMA, MMA, "@P0 BRA `(.L_x_0)", "FADD R0, R0, R1", MMA, "FMUL R0, R0, R1", "EXIT")
    )
    assert sizes(regions) == {LOOP: 3, LAST: 2, EPILOGUE: 2}


def test_code_moved_behind_the_end_belongs_where_it_comes_from() -> None:
    regions = regions_of(
        code(
            ".L_x_0:", MMA, "BRA.DIV ~URZ, `(.L_x_2)", ".L_x_1:", "@P0 BRA `(.L_x_0)",
            "BRA.DIV ~URZ, `(.L_x_4)", ".L_x_3:", "EXIT",
            ".L_x_2:", "SHFL.BFLY PT, R0, R1, 0x1, 0x1f", "BRA `(.L_x_1)",
            ".L_x_4:", "SHFL.BFLY PT, R0, R1, 0x1, 0x1f", "BRA `(.L_x_3)",
            ".L_x_5:", "BRA `(.L_x_5)",
        )
    )  # fmt: skip
    assert sizes(regions) == {LOOP: 5, EPILOGUE: 4, UNREACHED: 1}


def test_rounds_of_a_loop_around_the_main_one_have_their_own_prologue_and_epilogue() -> None:
    regions = regions_of(
        code("NOP", ".L_x_0:", "LDG.E R4, [R2.64]", ".L_x_1:", MMA, "@P0 BRA `(.L_x_1)", "STG.E [R2.64], R4",
             "@P1 BRA `(.L_x_0)", "EXIT")
    )  # fmt: skip
    assert sizes(regions) == {PROLOGUE: 2, LOOP: 2, EPILOGUE: 3}
