"""Writes the programs into a folder that a machine with a GPU runs on its own: machine code, inputs, what is expected.

Why: `on_chip` needs Python and a driver only. Run where the toolchain is: ``python -m tests.hopper_programs.export
build/hopper_programs``; there: ``python3 run.py``; its answers.json is what ``results`` keeps, compressed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
import hashlib
import json
from pathlib import Path
import shutil
import sys
from typing import Any

import numpy as np
from tests.hopper_programs import on_chip
from tests.hopper_programs.program import FILES, Program, Run, cubin, kernel, programs
from tests.hopper_programs.tensors import REFUSED

from ptxemu.machine.arguments import pack
from ptxemu.machine.tensor_map import DATA_TYPES, FILLS, PROMOTIONS, SWIZZLES, TensorMap
from ptxemu.syntax.tree import Function, Instruction
from ptxemu.values import Array

MARK = 1 << 40  # stands for buffer 0's address where arguments are packed; the next ones follow
ALIGNMENT = 16  # bytes, of each buffer in the file


class _Blob:
    """The file that all buffers share."""

    def __init__(self) -> None:
        self.data = bytearray()

    def add(self, array: Array) -> list[int]:
        """Where an array lies: its first byte and its length."""
        self.data += bytes(-len(self.data) % ALIGNMENT)
        begin = len(self.data)
        self.data += np.ascontiguousarray(array).tobytes()
        return [begin, array.nbytes]


class _Buffers:
    """The arrays of one launch, in the order in which arguments name them."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def number(self, array: Array) -> int:
        """The number of the buffer that an array becomes."""
        for index, known in enumerate(self.arrays):
            if known.ctypes.data == array.ctypes.data and known.nbytes == array.nbytes:
                return index
        self.arrays.append(array)
        return len(self.arrays) - 1

    def address(self, array: Array) -> int:
        """A recognisable stand-in for its address."""
        return MARK + self.number(array)


def function_of(program: Program) -> Function:
    """The program's entry, parsed."""
    return kernel(program.file, program.kernel).function


def digest(program: Program, run: Run) -> str:
    """SHA-256 of all that decides what a chip computes: instructions, inputs, the launch."""
    hashed = hashlib.sha256(repr((program.grid, program.cluster, program.threads, program.shared_bytes)).encode())
    for item in function_of(program).body:
        hashed.update(f"{item}\n".encode() if isinstance(item, Instruction) else b"label\n")
    buffers = _Buffers()
    hashed.update(json.dumps(_arguments(program, run, buffers), sort_keys=True).encode())
    for array in buffers.arrays:
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def _arguments(program: Program, run: Run, buffers: _Buffers) -> list[dict[str, Any]]:
    function = function_of(program)
    found: list[dict[str, Any]] = []
    for parameter, argument in zip(function.parameters, run.arguments, strict=True):
        if isinstance(argument, TensorMap):
            found.append({"map": _map(argument, buffers)})
            continue
        alone = replace(function, parameters=(parameter,))
        data = pack(alone, [argument], buffers.address, program.file)
        words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) - 7, 8)]
        marked = [[8 * i, word - MARK] for i, word in enumerate(words) if MARK <= word < MARK + len(buffers.arrays)]
        found.append({"bytes": data.hex(), "pointers": marked})
    return found


def _map(given: TensorMap, buffers: _Buffers) -> dict[str, Any]:
    """A tensor map as the driver's numbers."""
    assert isinstance(given.tensor, np.ndarray)
    return {
        "buffer": buffers.number(given.tensor),
        "dtype": DATA_TYPES.index(given.dtype),
        "dims": list(given.dims),
        "strides": list(given.strides),
        "box": list(given.box),
        "element_strides": list(given.element_strides),
        "swizzle": SWIZZLES.index(given.swizzle),
        "l2_promotion": PROMOTIONS.index(given.l2_promotion),
        "fill": FILLS.index(given.fill),
    }


def described(program: Program, blob: _Blob) -> dict[str, Any]:
    """A program as `on_chip` reads it."""
    run, buffers = program.make(), _Buffers()
    arguments = _arguments(program, run, buffers)
    results = [
        {"buffer": buffers.number(found), "expected": blob.add(wanted), "itemsize": wanted.itemsize}
        for found, wanted in run.results
    ]
    return {
        "name": str(program),
        "cubin": f"{program.file}.cubin",
        "kernel": program.kernel,
        "threads": program.threads,
        "grid": list(program.grid),
        "cluster": list(program.cluster),
        "shared_bytes": program.shared_bytes,
        "tolerance": program.tolerance,
        "digest": digest(program, run),
        "arguments": arguments,
        "buffers": [blob.add(array) for array in buffers.arrays],
        "results": results,
    }


def export(folder: Path, chosen: Iterable[Program]) -> int:
    """Fills a folder; the number of programs.

    Raises:
        FlashladderError: no toolchain, or a tool refused a file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        cubin(file, folder / f"{file}.cubin")
    blob = _Blob()
    found = [described(program, blob) for program in chosen]
    (folder / "programs.json").write_text(json.dumps(found, sort_keys=True) + "\n", encoding="utf-8")
    (folder / "data.bin").write_bytes(bytes(blob.data))
    shutil.copyfile(on_chip.__file__, folder / "run.py")
    return len(found)


if __name__ == "__main__":
    print(f"{export(Path(sys.argv[1]), programs().values())} programs")
    print(f"{export(Path(sys.argv[1]) / 'refused', REFUSED)} that a chip refuses")
