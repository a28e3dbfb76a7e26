"""How often blocks run: the integer instructions behind a branch, and kernels walked through with their parameters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from flashladder.errors import FlashladderError
from flashladder.machine_code.executions import WORD, Executions, Values, advance, run
from flashladder.machine_code.flow import graph_of
from flashladder.machine_code.sass import Instruction
from tests.null.sass_fixture import code

MMA = "HMMA.16816.F32 R8, R4, R16, R8"
words = st.integers(0, WORD - 1)


def after(row: str, values: Values, constants: dict[int, int] | None = None) -> Values:
    """What is known behind one instruction."""
    predicate, _, rest = row.partition(" ") if row.startswith("@") else ("", "", row)
    opcode, _, operands = rest.partition(" ")
    values = dict(values)
    advance(Instruction(0, predicate, opcode, operands), values, constants or {})
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


@pytest.mark.parametrize(
    ("row", "lost"),
    [
        ("LDG.E R4, [R2.64]", "R4"),
        ("LDS.128 R4, [R9]", "R4 R5 R6 R7"),
        ("LDSM.16.M88.4 R4, [R9]", "R4 R5 R6 R7"),
        ("LDSM.16.MT88.2 R4, [R9]", "R4 R5"),
        ("LDSM.16.M88 R4, [R9]", "R4"),
        ("HMMA.16816.F16 R8, R4, R16, R8", "R8 R9"),
        (MMA, "R8 R9 R10 R11"),
        ("CS2R R4, SR_CLOCKLO", "R4 R5"),
        ("IMAD.WIDE.U32 R4, R2, R3, c[0x0][0x160]", "R4 R5"),
        ("SHFL.BFLY PT, R4, R2, 0x1, 0x1f", "R4"),
        ("FSETP.GT.AND P0, PT, R1, R2, PT", "P0"),
        ("IADD3 R4, P0, R1, R99, RZ", "R4 P0"),
        ("IADD3.X R4, R1, R2, RZ, P0, !PT", "R4"),
        ("@P5 MOV R4, 0x1", "R4"),
        ("STG.E [R4.64], R5", ""),
        ("@P0 STS [R4], R5", ""),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", ""),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R4], [R6.64]", ""),
    ],
)
def test_what_is_written_otherwise_is_forgotten(row: str, lost: str) -> None:
    known: Values = {f"R{i}": i for i in range(16)} | {"P0": 1, "UR4": 4}
    assert after(row, known) == {name: value for name, value in known.items() if name not in lost.split()}


def test_a_kernel_is_walked_through() -> None:
    rows = (
        "MOV R0, c[0x0][0x160]", "MOV R1, RZ", "ISETP.LT.AND P0, PT, R0, 0x1, PT", "@P0 EXIT",
        ".L_x_0:", "IADD3 R1, R1, 0x1, RZ", "ISETP.GE.AND P1, PT, R1, R0, PT", MMA, "@!P1 LDGSTS.E [R2], [R4.64]",
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
    with pytest.raises(FlashladderError, match=r"^address 0x30, @P0 EXIT: which way a branch goes is not known"):
        walk(*rows)


VOTED = (
    "MOV R0, RZ", ".L_x_0:", "FSETP.GT.AND P3, PT, R4, R5, PT", "VOTE.ANY P4, P3", "@!P4 BRA `(.L_x_1)",
    "VOTE.ANY P5, P3", "@!P5 BRA `(.L_x_1)", "FMUL R4, R4, R6",
    ".L_x_1:", "IADD3 R0, R0, 0x1, RZ", MMA, "ISETP.NE.AND P0, PT, R0, 0x3, PT", "@P0 BRA `(.L_x_0)", "EXIT",
)  # fmt: skip


@pytest.mark.parametrize(("asked", "scaled", "votes"), [(False, 0, 1), (True, 3, 2)])
def test_what_a_vote_on_data_guards_is_left_out_or_asked_for_in_every_round(
    *, asked: bool, scaled: int, votes: int
) -> None:
    found = run(graph_of(code(*VOTED)), {}, asked=asked)
    assert (found.counts()["FMUL"], found.counts()["HMMA.16816.F32"]) == (scaled, 3)
    assert len(found.votes) == votes
    assert {found.flow.sass.instructions[place].opcode for place in found.votes} == {"VOTE.ANY"}


def test_a_vote_on_what_is_known_is_decided_and_one_for_a_mask_is_not() -> None:
    assert after("VOTE.ANY P4, P3", {"P3": 1}) == {"P4": 1}  # P3 might have been written too
    assert after("VOTE.ANY P4, P3", {}) == {"P4": 0}
    assert after("VOTE.ALL P4, P3", {}) == {"P4": 1}
    assert after("VOTEU.ANY UP4, P3", {}) == {"UP4": 0}
    assert after("VOTE.ANY R4, PT, P3", {"R4": 1}) == {}
    assert walk("MOV R0, RZ", "EXIT").votes == frozenset()


def test_an_unknown_predicate_of_what_is_no_branch_is_told() -> None:
    found = walk("@P0 LDGSTS.E [R2], [R4.64]", "EXIT")
    assert found.counts()["LDGSTS.E"] == 1
    assert found.unknown == {0}


def test_rounds_of_an_inner_loop_are_counted_for_each_entry() -> None:
    found = walk(
        "MOV R0, RZ", ".L_x_0:", "MOV R1, RZ", ".L_x_1:", "IADD3 R1, R1, 0x1, RZ",
        "ISETP.NE.AND P1, PT, R1, 0x3, PT", "@P1 BRA `(.L_x_1)", "IADD3 R0, R0, 0x1, RZ",
        "ISETP.NE.AND P0, PT, R0, 0x7, PT", "@P0 BRA `(.L_x_0)", "EXIT",
    )  # fmt: skip
    assert [found.trips(loop) for loop in found.flow.loops] == [7, 3]


def test_a_loop_without_end_and_a_call_are_errors() -> None:
    with pytest.raises(FlashladderError, match="does not end"):
        run(graph_of(code(".L_x_0:", "NOP", "BRA `(.L_x_0)")), {}, limit=9)
    with pytest.raises(FlashladderError, match="found a call"):
        walk("CALL.REL.NOINC `(.L_x_0)", "EXIT", ".L_x_0:", "RET.REL.NODEC R2 `(f)")
