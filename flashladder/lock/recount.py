"""Opcode counts of compiled kernels, whole and main loop, as nvdisasm reads them; kept by the digest of the code.

Why: the counts of a lock are checked against machine code and never against the lock itself. Hundreds of
kernels are locked, and nvdisasm takes a fifth of a second to start: it reads many at once, and counts are kept under
``build/counts/`` by everything that decides them (machine code, architecture, disassembler, reader), so that they are
made once. Nothing to run here; `invoke gate` and ``python -m flashladder.lock verify`` do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
import os
from pathlib import Path
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from tqdm import tqdm

from flashladder.build.store import CubinEntry
from flashladder.errors import FlashladderError
from flashladder.files import dump_json, sha256, write_atomic
from flashladder.machine_code import order, sass
from flashladder.machine_code.cubin import read_cubin
from flashladder.paths import BUILD
from flashladder.toolchain.wheels import find_toolchain, load_pins

KEPT = BUILD / "counts"
DISASSEMBLER = "nvidia-cuda-nvdisasm"
TOGETHER = 32  # kernels in one run of nvdisasm


class Scope(BaseModel):
    """Instructions by opcode with all its modifiers, and measures of their order.

    Attributes:
        opcodes: opcode to count.
        hmma_after_ldsm: the order of LDSM and HMMA (`order`).
        under_products: measure to count (`order`); empty of kernels without products of a warpgroup.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    opcodes: dict[str, NonNegativeInt]
    hmma_after_ldsm: NonNegativeInt
    under_products: dict[str, NonNegativeInt] = {}

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
    """The counts of each kernel, in order; those not kept yet are made, a few dozen by one run of the disassembler.

    Raises:
        FlashladderError: a cubin cannot be read, or the disassembler is missing or fails.
    """
    nvdisasm = find_toolchain().nvdisasm
    files = [Path(str(one.__file__)) for one in (sass, order)]
    reader = (
        "".join(sha256(path.read_bytes()) for path in (*files, Path(__file__))) + load_pins().packages[DISASSEMBLER]
    )
    codes = [read_cubin(entry.cubin) for entry in entries]
    paths = [kept / f"{sha256(code.text_sha256 + code.arch + reader)}.json" for code in codes]
    found = {path: counts for path in paths if (counts := _kept(path))}
    missing = {path: code for path, code in zip(paths, codes, strict=True) if path not in found}
    by_arch: dict[str, list[Path]] = {}
    for path, code in missing.items():
        by_arch.setdefault(code.arch, []).append(path)
    parts = [(arch, own[i : i + TOGETHER]) for arch, own in by_arch.items() for i in range(0, len(own), TOGETHER)]
    with (
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
        tqdm(total=len(missing), desc="opcode counts", unit="kernel", disable=None, leave=False) as bar,
    ):

        def many(part: tuple[str, list[Path]]) -> list[Counts]:
            arch, own = part
            return [_counts(one) for one in sass.disassemble_many([missing[path].text for path in own], arch, nvdisasm)]

        for (_, own), made in zip(parts, pool.map(many, parts), strict=True):
            for path, counts in zip(own, made, strict=True):
                found[path] = counts
                with suppress(FlashladderError):  # a folder that cannot be written costs time, not the counts
                    write_atomic(path, dump_json(counts.model_dump()))
            bar.update(len(own))
    return [found[path] for path in paths]


def _kept(path: Path) -> Counts | None:
    try:
        return Counts.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _counts(code: sass.Sass) -> Counts:
    loop = code.main_loop()
    path = order.usual_path(loop, code.targets)
    usual = {order.USUAL_PATH: len(path)} if len(path) < len(order.steady(loop)) else {}
    return Counts(kernel=scope_of(code.instructions), loop=scope_of(loop, path, usual))


def scope_of(
    code: Sequence[sass.Instruction],
    path: Sequence[sass.Instruction] | None = None,
    usual: Mapping[str, int] = MappingProxyType({}),
) -> Scope:
    """The counts of some code, of a kernel or its main loop; of the order on `path`, unless all of it is one."""
    path = order.steady(code) if path is None else path
    opcodes = Counter(instruction.opcode for instruction in code)
    return Scope(
        opcodes=dict(opcodes),
        hmma_after_ldsm=order.hmma_after_ldsm(code),
        under_products=order.under_products(path) | dict(usual),
    )
