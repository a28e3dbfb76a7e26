"""What a chip answered to the programs: how a GPU is asked, what is kept of it, and the digest that ties both.

`tools/hw_hopper.py` asks a GPU and writes `FILE`; tests/nvcc/test_hopper_programs.py compares.
"""

import base64
from dataclasses import replace
import gzip
import hashlib
import json
from pathlib import Path
import re
from typing import Any

import numpy as np
from tests.hopper_programs.program import HERE, Program, Run, module, text_of

from ptxemu.chip import Gpu
from ptxemu.errors import PtxemuError
from ptxemu.machine.arguments import pack
from ptxemu.machine.tensor_map import DATA_TYPES, FILLS, PROMOTIONS, SWIZZLES, TensorMap
from ptxemu.syntax.tree import Function, Instruction
from ptxemu.values import Array

FILE = HERE.parent / "data" / "hopper_programs_h200.json.gz"
MARK = 1 << 40  # stands for the address of the first array where arguments are packed; the next ones follow
REPEATS = 20  # of each launch: an order of events that matters shows in some of them
NON_PORTABLE = 14  # CUfunction_attribute of clusters of more than eight blocks


def digest(program: Program, run: Run) -> str:
    """SHA-256 of all that decides what a chip computes: instructions, inputs, the launch."""
    function = module(program.file).kernel(program.kernel).function
    hashed = hashlib.sha256(repr((program.grid, program.cluster, program.threads, program.shared_bytes)).encode())
    for item in function.body:
        hashed.update(f"{item}\n".encode() if isinstance(item, Instruction) else b"label\n")
    arrays: list[Array] = []
    hashed.update(json.dumps(_arguments(function, run, arrays), sort_keys=True).encode())
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def _arguments(function: Function, run: Run, arrays: list[Array]) -> list[dict[str, Any]]:

    def number(array: Any) -> int:
        places = [(each.ctypes.data, each.nbytes) for each in arrays]
        if (array.ctypes.data, array.nbytes) not in places:
            arrays.append(array)
            return len(arrays) - 1
        return places.index((array.ctypes.data, array.nbytes))

    found: list[dict[str, Any]] = []
    for parameter, given in zip(function.parameters, run.arguments, strict=True):
        if isinstance(given, TensorMap):
            fields = ("dims", "strides", "box", "element_strides")
            names = (("dtype", DATA_TYPES), ("swizzle", SWIZZLES), ("l2_promotion", PROMOTIONS), ("fill", FILLS))
            described: dict[str, Any] = {name: list(getattr(given, name)) for name in fields}
            described |= {name: known.index(getattr(given, name)) for name, known in names}
            found.append({"map": {"buffer": number(given.tensor), **described}})
            continue
        data = pack(replace(function, parameters=(parameter,)), [given], lambda array: MARK + number(array), "")
        words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) - 7, 8)]
        marked = [[8 * i, word - MARK] for i, word in enumerate(words) if MARK <= word < MARK + len(arrays)]
        found.append({"bytes": data.hex(), "pointers": marked})
    return found


def read(path: Path = FILE) -> dict[str, dict[str, Any]]:
    """The answers by program: digest, outputs (base64), how many answers differed, why there is none."""
    return {each["name"]: each for each in json.loads(gzip.decompress(path.read_bytes()))["records"]}


def arrays_of(answer: dict[str, Any], run: Run) -> Run:
    raw = zip(answer["outputs"], run.results, strict=True)
    found = ((np.frombuffer(base64.b64decode(text), b.dtype).reshape(b.shape), b) for text, (_, b) in raw)
    return Run(run.arguments, tuple(found))


def ask(gpu: Gpu, program: Program) -> dict[str, Any]:
    """The record of one program on a GPU, whose driver compiles the PTX that the emulator runs."""
    first = program.make()
    record = {"name": str(program), "digest": digest(program, first), "outputs": [], "distinct": 0, "error": None}
    text, is_cluster = text_of(program.file), max(program.cluster) > 1
    if is_cluster and ".explicitcluster" not in text.partition(f".entry {program.kernel}(")[2].partition("{")[0]:
        of_cluster = f".explicitcluster\n.reqnctapercluster {', '.join(map(str, program.cluster))}"
        text = re.sub(rf"(\.entry {program.kernel}\([^{{]*?)\n{{", rf"\1\n{of_cluster}\n{{", text)
    try:
        kernel = gpu.load(text).kernel(program.kernel)
        if is_cluster:
            gpu.call("cuFuncSetAttribute", kernel.function, NON_PORTABLE, 1)
        runs = [program.make() for _ in range(REPEATS)]
        for run in runs:
            kernel.launch(program.grid, program.threads, run.arguments, shared_bytes=program.shared_bytes)
    except PtxemuError as error:
        return record | {"error": str(error), "against_expected": None}
    outputs = [[base64.b64encode(found.tobytes()).decode() for found, _ in run.results] for run in runs]
    distinct = len({tuple(each) for each in outputs})
    return record | {"outputs": outputs[0], "distinct": distinct, "against_expected": program.mismatch(runs[0])}


def write(machine: dict[str, str], records: list[dict[str, Any]], path: Path = FILE) -> None:
    document = {"schema": 1, "machine": machine, "records": sorted(records, key=lambda each: str(each["name"]))}
    text = json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n"
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
