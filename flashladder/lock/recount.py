"""Opcode counts of compiled kernels, whole and main loop, as nvdisasm reads them; kept by the digest of the code.

Why: the counts of a lock are checked against machine code and never against the lock itself. A kernel takes a quarter
of a second to disassemble, 256 of them are locked: counts are kept under ``build/counts/`` by everything that decides
them (machine code, architecture, disassembler, reader), so that they are made once. Nothing to run here; `invoke gate`
and ``python -m flashladder.lock verify`` do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from tqdm import tqdm

from flashladder.build.store import CubinEntry
from flashladder.errors import FlashladderError
from flashladder.files import dump_json, sha256, write_atomic
from flashladder.machine_code import instruction_order, sass
from flashladder.machine_code.cubin import read_cubin
from flashladder.paths import BUILD
from flashladder.toolchain.wheels import find_toolchain, load_pins

KEPT = BUILD / "counts"
DISASSEMBLER = "nvidia-cuda-nvdisasm"


class Scope(BaseModel):
    """Instructions by opcode with all its modifiers, and the order of LDSM and HMMA (`instruction_order`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    opcodes: dict[str, NonNegativeInt]
    hmma_after_ldsm: NonNegativeInt

    def by_class(self) -> dict[str, int]:
        """Instructions per opcode class, and ``total``, as `flashladder.machine_code.sass.count` gives them."""
        found: Counter[str] = Counter()
        for opcode, count in self.opcodes.items():
            found[sass.opcode_class(opcode)] += count
        return {"total": sum(found.values()), **dict(sorted(found.items()))}


class Counts(BaseModel):
    """What one cubin holds, in the whole kernel and within its loop over KV blocks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kernel: Scope
    loop: Scope

    @property
    def counts(self) -> dict[str, int]:
        """Instructions per opcode class in the whole kernel."""
        return self.kernel.by_class()

    @property
    def main_loop(self) -> dict[str, int]:
        """Instructions per opcode class in the main loop."""
        return self.loop.by_class()


def recount(entries: Sequence[CubinEntry], kept: Path = KEPT) -> list[Counts]:
    """The counts of each kernel, in order; those not kept yet are made, one disassembler per CPU.

    Raises:
        FlashladderError: a cubin cannot be read, or the disassembler is missing or fails.
    """
    made = find_toolchain().nvdisasm
    files = (Path(sass.__file__), Path(instruction_order.__file__), Path(__file__))
    reader = "".join(sha256(path.read_bytes()) for path in files) + load_pins().packages[DISASSEMBLER]
    with (
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
        tqdm(total=len(entries), desc="opcode counts", unit="kernel", disable=None, leave=False) as bar,
    ):

        def one(entry: CubinEntry) -> Counts:
            found = _counts(entry, made, reader, kept)
            bar.update()
            return found

        return list(pool.map(one, entries))


def _counts(entry: CubinEntry, nvdisasm: Path, reader: str, kept: Path) -> Counts:
    path = kept / f"{sha256(read_cubin(entry.cubin).text_sha256 + entry.arch + reader)}.json"
    try:
        return Counts.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        code = sass.disassemble(entry.cubin, nvdisasm, lines=False)
    found = Counts(kernel=_scope(code.instructions), loop=_scope(code.main_loop()))
    try:
        write_atomic(path, dump_json(found.model_dump()))
    except FlashladderError:
        return found  # a folder that cannot be written costs time, not the counts
    return found


def _scope(code: Sequence[sass.Instruction]) -> Scope:
    opcodes = Counter(instruction.opcode for instruction in code)
    return Scope(opcodes=dict(opcodes), hmma_after_ldsm=instruction_order.hmma_after_ldsm(code))
