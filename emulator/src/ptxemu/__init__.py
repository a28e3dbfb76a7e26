"""ptxemu: run a CUDA kernel's PTX on the CPU; check its numbers, races and hangs; count what Nsight Compute counts.

    import numpy as np
    import ptxemu

    kernel = ptxemu.load("vector_add.ptx").kernel()
    counters, hazards = ptxemu.Counters(), ptxemu.Hazards()
    kernel.launch((4,), (256,), (x, y, out, np.int32(1000)), observers=(counters, hazards))
    # `out` holds the result, hazards.reports the races, counters.as_dict() the counters

Importing the package is cheap: each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxemu.errors import EmulationError as EmulationError
    from ptxemu.errors import PtxemuError as PtxemuError
    from ptxemu.machine.arguments import pack as pack
    from ptxemu.machine.core import Machine as Machine
    from ptxemu.machine.core import Step as Step
    from ptxemu.machine.observer import Access as Access
    from ptxemu.machine.observer import Observer as Observer
    from ptxemu.machine.tensor_map import TensorMap as TensorMap
    from ptxemu.mutation import mutants as mutants
    from ptxemu.observe.counters import Counters as Counters
    from ptxemu.observe.dataflow import Dataflow as Dataflow
    from ptxemu.observe.dataflow import Event as Event
    from ptxemu.observe.dataflow import Value as Value
    from ptxemu.observe.hazards import Hazards as Hazards
    from ptxemu.run.launch import MEMORY_BUDGET as MEMORY_BUDGET
    from ptxemu.run.launch import Kernel as Kernel
    from ptxemu.run.launch import Program as Program
    from ptxemu.run.launch import Result as Result
    from ptxemu.run.launch import load as load
    from ptxemu.screen import render_counters as render_counters
    from ptxemu.screen import render_hazards as render_hazards
    from ptxemu.syntax.parser import parse as parse
    from ptxemu.syntax.tree import Instruction as Instruction
    from ptxemu.text import parse_bytes as parse_bytes
    from ptxemu.values import Array as Array

__version__ = "0.1.0"

_HOMES = {
    "errors": ("EmulationError", "PtxemuError"),
    "machine.arguments": ("pack",),
    "machine.core": ("Machine", "Step"),
    "machine.observer": ("Access", "Observer"),
    "machine.tensor_map": ("TensorMap",),
    "mutation": ("mutants",),
    "observe.counters": ("Counters",),
    "observe.dataflow": ("Dataflow", "Event", "Value"),
    "observe.hazards": ("Hazards",),
    "run.launch": ("MEMORY_BUDGET", "Kernel", "Program", "Result", "load"),
    "screen": ("render_counters", "render_hazards"),
    "syntax.parser": ("parse",),
    "syntax.tree": ("Instruction",),
    "text": ("parse_bytes",),
    "values": ("Array",),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)  # noqa: PLE0605 - a test compares it with the imports above


def __dir__() -> list[str]:
    """The public names, loaded yet or not; for completion in a shell."""
    return [*__all__, "__version__"]


def __getattr__(name: str) -> object:
    """Loads a public name at its first use."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found
