"""PTX on the CPU: load a module, launch its kernels with NumPy arrays, read counters and hazards.

Why: most machines that build kernels have no GPU. The emulator runs the PTX that nvcc wrote, instruction by instruction
for all threads of the grid at once, counts what Nsight Compute counts, and reports races and missing waits.
"""

from flashladder.emulator.errors import EmulationError
from flashladder.emulator.machine.copies.tensor_map import TensorMap
from flashladder.emulator.observe.counters import Counters
from flashladder.emulator.observe.hazards import Hazards
from flashladder.emulator.run.launch import Kernel, Program, Result, load

__all__ = ["Counters", "EmulationError", "Hazards", "Kernel", "Program", "Result", "TensorMap", "load"]
