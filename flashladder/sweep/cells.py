"""The address of a cell: a digest of what is measured, on which machine, how, and of the code that runs.

Why content-addressed: a resumed sweep looks for the records of its own cells by name; changed machine code, another GPU
model or another protocol gives other names, so that a stale record is never taken for a current one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
import json

from flashladder.bench.references import BACKENDS
from flashladder.files import sha256
from flashladder.results.schema import PROTOCOL_VERSION, PlannedCell, Shape

DIGITS = 16
REFERENCES = tuple(BACKENDS)  # subjects that are no iteration; fa2 beside itself is the A/A floor
CPU = "cpu"  # the machine of a grid of the emulator


@dataclass(frozen=True)
class Settings:
    """What is the same for all cells of a sweep: the machine's key, how it is measured, and how often.

    `pairs`, `blocks` and `min_pairs` as in `flashladder.bench.timing.Plan`; all 0 on the emulator, which times nothing.
    """

    machine: str
    mode: str
    pairs: int = 0
    blocks: int = 0
    min_pairs: int = 0
    protocol: str = PROTOCOL_VERSION


@dataclass(frozen=True, order=True)
class Wanted:
    """A cell before anything is known about its code: fields as of `flashladder.results.schema.PlannedCell`."""

    subject: str
    config: str
    dtype: str
    shape: tuple[int, int, int, int]
    toolchain: str = ""

    @property
    def is_reference(self) -> bool:
        """Whether this is no kernel of ours."""
        return self.subject in REFERENCES

    def planned(self, code: str, settings: Settings) -> PlannedCell:
        """This cell with its code's digest and its address."""
        batch, seq_len, n_heads, d_head = self.shape
        return PlannedCell.model_construct(  # of values that the grid has checked: thousands of them in a second
            subject=self.subject,
            config=self.config,
            dtype=self.dtype,
            shape=Shape(batch=batch, seq_len=seq_len, n_heads=n_heads, d_head=d_head),
            toolchain=self.toolchain,
            code=code,
            address=address_of(self, code, settings),
        )


def wanted_of(cell: PlannedCell) -> Wanted:
    """The cell as it was wanted."""
    shape = cell.shape
    sizes = (shape.batch, shape.seq_len, shape.n_heads, shape.d_head)
    return Wanted(cell.subject, cell.config, cell.dtype, sizes, cell.toolchain)


def address_of(wanted: Wanted, code: str, settings: Settings) -> str:
    """The first 16 hex digits of the SHA-256 of the canonical JSON of all that decides what a record means."""
    return _address(wanted, code, _json(asdict(settings)))


def _address(wanted: Wanted, code: str, settings: str) -> str:
    own = (wanted.subject, wanted.config, wanted.dtype, wanted.shape, wanted.toolchain, code)
    return sha256(_json(own) + settings)[:DIGITS]


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def title(cell: PlannedCell) -> str:
    """The cell in one line for people: ``16 (FP16, ...): ... S=4096 B=16 H=16``."""
    name = f"{cell.subject}{f' cuda {cell.toolchain}' if cell.toolchain else ''}"
    kernel = f"{name} {cell.config}" if cell.config else f"{name} {cell.dtype}"
    return f"{kernel} S={cell.shape.seq_len} B={cell.shape.batch} H={cell.shape.n_heads}"
