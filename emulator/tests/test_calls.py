"""Calls of device functions: copies of bodies, parameters in local memory, and what cannot be called."""

from __future__ import annotations

import numpy as np
import pytest
from tests.programs import HEADER, OUT, REGISTERS, run

from ptxemu.errors import EmulationError
from ptxemu.isa import calls
from ptxemu.run.launch import load
from ptxemu.syntax.tree import Instruction

# twice(x) = 2 x, but 100 for x > 20: an early return in some lanes.
TWICE = """
.func (.param .b32 result) twice(.param .b32 x)
{
.reg .pred %p<2>; .reg .b32 %r<3>;
ld.param.u32 %r1, [x];
setp.gt.u32 %p1, %r1, 20;
@!%p1 bra small;
st.param.b32 [result+0], 100;
ret;
small:
add.u32 %r2, %r1, %r1;
st.param.b32 [result+0], %r2;
ret;
}
"""
CALL = """
{{
.param .b32 given; .param .b32 back;
st.param.b32 [given+0], {argument};
{call} (back), {function}, (given);
ld.param.b32 {result}, [back+0];
}}
"""
STORE = "st.global.u32 [%rd0], %r2;"


def calling(function: str = "twice", *, argument: str = "%r0", result: str = "%r2", call: str = "call.uni") -> str:
    return CALL.format(function=function, argument=argument, result=result, call=call)


def test_a_function_is_copied_into_its_caller() -> None:
    found = run(calling() + STORE, module=TWICE)
    lanes = np.arange(32)
    assert (found == np.where(lanes > 20, 100, 2 * lanes)).all()


def test_every_call_has_registers_and_places_of_its_own() -> None:
    body = calling() + calling(argument="%r2", result="%r3") + "mad.lo.u32 %r2, %r3, 1000, %r2;" + STORE
    lanes = np.arange(32)
    once = np.where(lanes > 20, 100, 2 * lanes)
    assert (run(body, module=TWICE) == np.where(once > 20, 100, 2 * once) * 1000 + once).all()


def test_functions_call_functions() -> None:
    outer = TWICE + f".func (.param .b32 r) outer(.param .b32 x) {{ {REGISTERS} ld.param.u32 %r0, [x];"
    outer += calling(argument="%r0") + "add.u32 %r2, %r2, 1; st.param.b32 [r+0], %r2; ret; }"
    lanes = np.arange(32)
    assert (run(calling("outer") + STORE, module=outer) == np.where(lanes > 20, 100, 2 * lanes) + 1).all()


def test_a_guarded_call_is_for_the_lanes_that_its_guard_admits() -> None:
    body = "mov.u32 %r2, 7; setp.lt.u32 %p1, %r0, 5;"
    body += ".param .b32 given; .param .b32 back; st.param.b32 [given], %r0; st.param.b32 [back], 9;"
    body += "@!%p1 call (back), twice, (given); ld.param.b32 %r2, [back];" + STORE
    lanes = np.arange(32)
    assert (run(body, module=TWICE) == np.where(lanes < 5, 9, np.where(lanes > 20, 100, 2 * lanes))).all()


@pytest.mark.parametrize("address", ["mov.u64 %rd5, twice;", "mov.u64 %rd5, table; ld.global.u64 %rd5, [%rd5+8];"])
def test_a_pointer_chooses_among_functions_whose_address_is_taken(address: str) -> None:
    other = TWICE.replace("twice", "other").replace(" 100;", " 50;")
    module = TWICE + other + ".global .align 8 .u64 table[2] = {other, twice};"
    take = address + "mov.u64 %rd6, other; setp.gt.u32 %p1, %r0, 25; @%p1 mov.u64 %rd5, %rd6;"
    body = take + "{ prototype_0 : .callprototype (.param .b32 _) _ (.param .b32 _); "
    body += CALL.format(call="call", function="%rd5", argument="%r0", result="%r2").replace(
        "(given);", "(given), prototype_0;"
    )
    lanes = np.arange(32)
    expected = np.where(lanes > 25, 50, np.where(lanes > 20, 100, 2 * lanes))
    assert (run(body + "}" + STORE, module=module) == expected).all()
    with pytest.raises(EmulationError, match="call of %rd5, thread 0 ") as caught:
        run(body.replace(take, "mov.u64 %rd5, 64;") + "}" + STORE, module=module)
    assert caught.value.kind == "unsupported"


def test_a_function_s_shared_memory_exists_once() -> None:
    module = """.func (.param .b32 result) next(.param .b32 x) { .reg .b32 %r<3>; .shared .align 4 .b32 count;
    mov.u32 %r1, count; ld.param.u32 %r2, [x]; red.shared.add.u32 [%r1], %r2; ld.shared.u32 %r2, [%r1];
    st.param.b32 [result], %r2; ret; }"""
    start = ".func start() { .reg .b32 %r<2>; ret; }\n"
    body = "call start, ();" + calling("next", argument="1") + calling("next", argument="2") + STORE
    with pytest.raises(EmulationError, match="not written before"):
        run(body, module=start + module)
    zero = module.replace("ld.param.u32 %r2, [x];", "ld.param.u32 %r2, [x]; st.shared.u32 [%r1], 0; bar.sync 0;")
    assert (run(calling("next", argument="2") + STORE, module=zero) == 64).all()
    kernel = load(
        f"{HEADER}{module}.visible .entry k(.param .u64 out) {{ {REGISTERS} {OUT} {body[15:]} ret; }}"
    ).kernel()
    assert [variable.name for variable in kernel.function.variables if variable.space == "shared"] == ["count#"]


@pytest.mark.parametrize("function", ["forever", "vprintf"])
def test_what_cannot_be_copied_is_an_error_once_it_is_executed(function: str) -> None:
    module = ".extern .func (.param .b32 r) vprintf(.param .b32 x);\n"
    module += f".func (.param .b32 r) forever(.param .b32 x) {{ {REGISTERS}"
    module += calling("forever", argument="1") + "st.param.b32 [r], %r2; ret; }"
    body = "setp.gt.u32 %p1, %r0, {limit}; mov.u32 %r2, 3; @!%p1 bra past;" + calling(function).replace(
        "{", "{{"
    ).replace("}", "}}")
    body += "past: " + STORE
    assert (run(body.format(limit=100), module=module) == 3).all()
    with pytest.raises(EmulationError, match=f"call of {function}, thread 4 .*does not call itself") as caught:
        run(body.format(limit=3), module=module)
    assert caught.value.kind == "unsupported"


def test_a_call_with_too_few_parameters_is_refused() -> None:
    with pytest.raises(EmulationError, match=r"call of twice with another number of parameters and results.*2.*1"):
        run(".param .b32 given; st.param.b32 [given], 1; call.uni twice, (given);", module=TWICE)


def test_calls_that_call_calls_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_ITEMS", 50)
    with pytest.raises(EmulationError, match="k has more than 50 instructions with all that it calls") as caught:
        run(calling() * 8 + STORE, module=TWICE)
    assert caught.value.kind == "unsupported"


def test_copied_instructions_say_who_called() -> None:
    text = TWICE.replace("add.u32", ".loc 1 7 0\nadd.u32")
    entry = f".visible .entry k(.param .u64 out) {{ {REGISTERS} {OUT}\n.loc 1 20 0\n{calling()} ret; }}\n"
    text = f'{HEADER}{text}{entry}.file 1 "a.cu"\n'
    body = load(text).kernel().function.body
    (add,) = (item for item in body if isinstance(item, Instruction) and str(item).startswith("add.u32 %r2#"))
    assert add.source is not None
    assert (str(add.source), str(add.source.inlined_at)) == ("a.cu:7", "a.cu:20")
