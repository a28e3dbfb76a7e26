"""One instruction at a time: a case holds PTX text, inputs and what an independent reference says must come out.

The same case runs on the emulator in every test run and on a GPU when there is one, and both are compared with
`expected`, so that neither machine is the other's only witness. `inputs.py` makes the inputs. A module of cases is one
file of this folder with `CASES`; `collect` finds them. Run: ``pytest tests/test_cases.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
import importlib
from pathlib import Path
from string import Template
from typing import Any, Protocol, TypeAlias

import numpy as np
from tests.cases.inputs import LIMIT, edge, pairs, sample, triples

import ptxemu.isa  # noqa: F401 - fills the table
from ptxemu.machine.tensor_map import TensorMap
from ptxemu.values import DTYPES, Array, halves

__all__ = ["LIMIT", "edge", "pairs", "sample", "triples"]  # of `inputs`, and all below

Typed: TypeAlias = dict[str, tuple[str, Array]]  # operand name -> (PTX type, values)


class Kernel(Protocol):
    """What the emulator's kernels and the GPU's have in common; arrays are updated in place."""

    def launch(self, grid: Sequence[int], block: Sequence[int], args: Sequence[Array | TensorMap]) -> object: ...


class Program(Protocol):
    def kernel(self, name: str) -> Kernel: ...


Load = Callable[[str], Program]
Outputs = Mapping[str, Array]
FLOATS = ("f16", "bf16", "f32", "f64")
CTA = 128  # threads of a CTA where the number of elements allows it, else one warp


@dataclass(frozen=True, eq=False)
class Case:
    """PTX statements, their inputs, and what must come out; thread `i` computes element `i`.

    Attributes:
        opcode: a key of `ptxemu.table.ROWS`; `text`: statements with named operands, ``add.s32 d, a, b;``.
        inputs: operand name -> (PTX type, 1-D array of that type's dtype); all of one length n <= `LIMIT`. A predicate
            is a bool array; ``f16x2``, ``bf16x2`` and ``b32`` are uint32. n is padded to whole warps with copies of the
            last element; a case that looks across its warp gives a multiple of 32.
        outputs: operand name -> PTX type.
        expected: operand name -> array of length n, of the type's dtype (with a tolerance also float64); from a
            reference that shares no code with the row: Python integers, `fractions.Fraction`, `math`, NumPy.
        tolerance: greatest relative error; 0: the same bits, but any NaN equals any NaN in a float type.
        note: where the tolerance comes from (the ISA's stated error), or what is special.
        absolute: with a tolerance, an absolute error that is fine too (near zeros of ``sin``, in flushed ranges).
        target, version: the oldest architecture and version of PTX that have the opcode.
        maps: name of a 64-bit register -> (operand, fields of a `TensorMap`): the map's generic address.
        cluster: CTAs of a cluster, a divisor of the number of CTAs.
    """

    opcode: str
    text: str
    inputs: Mapping[str, tuple[str, Array]]
    outputs: Mapping[str, str]
    expected: Mapping[str, Array]
    tolerance: float = 0.0
    note: str = ""
    absolute: float = 0.0
    target: str = "sm_80"
    version: str = "8.2"
    maps: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    cluster: int = 1
    n: int = field(init=False)

    def __post_init__(self) -> None:
        """A slip in a case (a type, a length, a name) is a `ValueError`, not mistaken for one in an instruction."""
        lengths = {len(array) for _, array in self.inputs.values()} or {len(next(iter(self.expected.values())))}
        if len(lengths) != 1 or not 0 < min(lengths) <= LIMIT:
            raise ValueError(f"{self.opcode}: inputs of lengths {sorted(lengths)}, expected one of 1 to {LIMIT}")
        object.__setattr__(self, "n", lengths.pop())
        if set(self.expected) != set(self.outputs):
            raise ValueError(f"{self.opcode}: expected {sorted(self.expected)}, outputs {sorted(self.outputs)}")
        wanted = {name: (kind, self.expected[name]) for name, kind in self.outputs.items()}
        for name, (kind, array) in [*self.inputs.items(), *wanted.items()]:
            loose = self.tolerance > 0 and name in wanted and array.dtype == np.float64
            if (not loose and array.dtype != DTYPES[kind]) or array.shape != (self.n,):
                found = f"{array.dtype} {array.shape}"
                raise ValueError(f"{self.opcode}: {name} is {found}, expected {DTYPES[kind]} ({self.n},)")

    @property
    def threads(self) -> int:
        return CTA if self.n % CTA == 0 else 32

    @property
    def ctas(self) -> int:
        """CTAs of the grid; together with `threads` they cover n padded to whole warps."""
        return -(-self.n // self.threads)


def given(opcode: str, text: str, inputs: Typed, results: Typed, **fields: Any) -> Case:
    kinds = {name: kind for name, (kind, _) in results.items()}
    return Case(opcode, text, inputs, kinds, {name: array for name, (_, array) in results.items()}, **fields)


def plain(opcode: str, inputs: Typed, kind: str, expected: Array, **fields: Any) -> Case:
    return given(opcode, f"{opcode} d, {', '.join(inputs)};", inputs, {"d": (kind, expected)}, **fields)


def text_of(name: str, **fields: object) -> str:
    """The section of ``texts.ptx`` that follows the line ``// ==== NAME``, with its ``$fields`` filled in."""
    sections = (Path(__file__).parent / "texts.ptx").read_text(encoding="utf-8").split("// ==== ")[1:]
    text = dict(section.split("\n", 1) for section in sections)[name]
    return Template(text[:-1]).substitute({key: str(value) for key, value in fields.items()})


def named(kind: str, *arrays: Array) -> Typed:
    return {name: (kind, array) for name, array in zip("abcdef", arrays, strict=False)}


# PTX type -> (type of the register, suffix of ld/st), where they differ. 8-bit values live in 16-bit registers.
_REGISTERS = {"u8": ("u16", "u8"), "s8": ("s16", "s8"), "b8": ("b16", "b8"), "pred": ("pred", "u8")}
_REGISTERS |= dict.fromkeys(("f16", "bf16"), ("b16", "b16")) | dict.fromkeys(("f16x2", "bf16x2"), ("b32", "b32"))
_HEAD = """\t.reg .b32 %index<4>;
\t.reg .b64 %at<3>;
\t.reg .b32 %flag;
\tmov.u32 %index1, %ctaid.x;
\tmov.u32 %index2, %ntid.x;
\tmov.u32 %index3, %tid.x;
\tmad.lo.s32 %index0, %index1, %index2, %index3;"""


def entry_name(index: int) -> str:
    return f"case_{index:04d}"


def ptx_of(cases: Sequence[Case]) -> str:
    """A module with one kernel per case, which loads the inputs, runs the text and stores the outputs."""
    target = max((case.target for case in cases), default="sm_80")
    version = max((case.version for case in cases), default="8.2")
    head = f".version {version}\n.target {target}\n.address_size 64\n"
    return head + "".join(_entry(entry_name(index), case) for index, case in enumerate(cases))


def _entry(name: str, case: Case) -> str:
    operands = {**{key: kind for key, (kind, _) in case.inputs.items()}, **case.outputs}
    parameters = [*(f"{name}_in_{key}" for key in case.inputs), *(f"{name}_out_{key}" for key in case.outputs)]
    declared = [f"\t.param .u64 {item}" for item in parameters]
    declared += [f"\t.param .align 128 .b8 {name}_map_{key}[128]" for key in case.maps]
    directives = f" .explicitcluster .reqnctapercluster {case.cluster}, 1, 1" if case.cluster > 1 else ""
    registers = {key: _REGISTERS.get(kind, (kind, kind)) for key, kind in operands.items()}
    lines = [f"\n.visible .entry {name}(", ",\n".join(declared), f"){directives}\n{{"]
    lines += [*(f"\t.reg .{register} {key};" for key, (register, _) in registers.items()), _HEAD]
    for key in case.maps:
        lines.append(f"\t.reg .b64 {key};\n\tmov.b64 {key}, {name}_map_{key};\n\tcvta.param.u64 {key}, {key};")
    for key in case.inputs:
        lines.append(_address(f"{name}_in_{key}", operands[key]))
        is_flag, load = operands[key] == "pred", f"\tld.global.{registers[key][1]}"
        lines += [f"{load} %flag, [%at2];\n\tsetp.ne.u32 {key}, %flag, 0;" if is_flag else f"{load} {key}, [%at2];"]
    lines += [f"\t{line.strip()}" for line in case.text.strip().splitlines()]
    for key, kind in case.outputs.items():
        lines.append(_address(f"{name}_out_{key}", kind))
        if kind == "pred":
            lines.append(f"\tselp.u32 %flag, 1, 0, {key};")
        lines.append(f"\tst.global.{registers[key][1]} [%at2], {'%flag' if kind == 'pred' else key};")
    return "\n".join([*lines, "\tret;\n}\n"])


def _address(parameter: str, kind: str) -> str:
    return (
        f"\tld.param.u64 %at0, [{parameter}];\n\tcvta.to.global.u64 %at0, %at0;\n"
        f"\tmul.wide.u32 %at1, %index0, {DTYPES[kind].itemsize};\n\tadd.s64 %at2, %at0, %at1;"
    )


def launch_case(case: Case, kernel: Kernel) -> dict[str, Array]:
    """Runs the kernel that `ptx_of` made of the case and returns the outputs, of length n."""
    padded = case.ctas * case.threads
    sources = [np.concatenate([array, np.repeat(array[-1:], padded - case.n)]) for _, array in case.inputs.values()]
    results = {key: np.zeros(padded, DTYPES[kind]) for key, kind in case.outputs.items()}
    arrays = [
        np.ascontiguousarray(array).view(np.uint8) for array in (*sources, *results.values())
    ]  # pointers to bytes
    maps = [TensorMap(arrays[list(case.inputs).index(of)], **fields) for of, fields in case.maps.values()]
    kernel.launch((case.ctas,), (case.threads,), [*arrays, *maps])
    return {key: array[: case.n] for key, array in results.items()}


def run_case(case: Case, load: Load) -> dict[str, Array]:
    """The case in a module of its own, for example with ``ptxemu.load``."""
    return launch_case(case, load(ptx_of([case])).kernel(entry_name(0)))


def compare(case: Case, outputs: Outputs) -> str | None:
    """None when every output is what the case expects, else one line about the first element that is not."""
    for name, ptx_type in case.outputs.items():
        wrong = np.flatnonzero(~_agree(case, ptx_type, outputs[name], case.expected[name]))
        if len(wrong):
            first = int(wrong[0])
            inputs = ", ".join(f"{key} = {_show(array[first])}" for key, (_, array) in case.inputs.items())
            wanted, found = _show(case.expected[name][first]), _show(outputs[name][first])
            count = f"{len(wrong)} of {case.n} elements differ"
            return f"{case.opcode}: {count}, first {first}: {inputs}: {name} expected {wanted}, found {found}"
    return None


def _agree(case: Case, ptx_type: str, found: Array, wanted: Array) -> Array:
    """Per element: equal enough?"""
    if ptx_type in {"f16x2", "bf16x2"}:
        pair = halves(found, ptx_type), halves(wanted, ptx_type)
        return np.asarray(_agree(case, ptx_type.removesuffix("x2"), *pair).all(axis=-1))
    if ptx_type not in FLOATS:
        return np.asarray(found == wanted)
    with np.errstate(all="ignore"):
        both_nan = np.isnan(found) & np.isnan(wanted)
        if not case.tolerance:
            raw = (np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}") for array in (found, wanted))
            return np.asarray(both_nan | np.equal(*raw))
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        near = np.abs(a - b) <= np.maximum(case.tolerance * np.abs(b), case.absolute)
        same = (a == b) & ((a != 0) | (np.signbit(a) == np.signbit(b)))
        signs = (b != 0) | bool(case.absolute)  # a zero has its sign, unless the case allows an absolute error
        return np.asarray(both_nan | same | (near & np.isfinite(a) & np.isfinite(b) & signs))


def _show(value: np.generic) -> str:
    bits = int.from_bytes(value.tobytes(), "little")
    return f"{value} ({bits:#0{2 + 2 * value.dtype.itemsize}x})"


def collect() -> dict[str, list[Case]]:
    """The cases of every group: a module's list of them by the module's name, or a module's groups by theirs."""
    found: dict[str, list[Case]] = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        cases = getattr(importlib.import_module(f"tests.cases.{path.stem}"), "CASES", {})
        found |= cases if isinstance(cases, dict) else {path.stem: list(cases)}
    return dict(sorted(found.items()))
