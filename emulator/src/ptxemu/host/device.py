"""The device of one host program: its memory, modules and kernels, and what every launch showed.

Device memory is a file in memory that the program has, too. An allocation begins at a page of the file, and its device
address is far from those of all others, so that an index which leaves it finds nothing, as in `machine.memory`.
No address is used twice: a pointer to freed memory finds nothing, either.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
import math
import mmap
import os

import numpy as np

from ptxemu.command import Orders
from ptxemu.errors import EmulationError, PtxemuError
from ptxemu.host.fatbin import ptx_of
from ptxemu.host.gpus import Gpu
from ptxemu.machine.arguments import offsets, size_of
from ptxemu.machine.memory import Buffer, GlobalMemory
from ptxemu.machine.observer import Observer
from ptxemu.machine.tensor_map import DATA_TYPES, FILLS, INTERLEAVES, PROMOTIONS, SWIZZLES, TensorMap
from ptxemu.observe.counters import Counters
from ptxemu.observe.hazards import Hazard, Hazards
from ptxemu.run.engine import Progress
from ptxemu.run.launch import MAX_INSTRUCTIONS, MEMORY_BUDGET, Kernel, Program, Result, allocate_globals, load
from ptxemu.run.placement import Layout
from ptxemu.values import Array

# Error numbers that the runtime and the driver share.
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONFIGURATION, INVALID_SYMBOL = 0, 1, 2, 9, 13
INVALID_FUNCTION, NO_KERNEL_IMAGE = 98, 209
ILLEGAL_ADDRESS, ASSERTED, MISALIGNED_ADDRESS, LAUNCH_FAILURE, NOT_SUPPORTED = 700, 710, 716, 719, 801
BROKEN_BY = {"out-of-bounds": ILLEGAL_ADDRESS, "misaligned": MISALIGNED_ADDRESS}  # kinds of errors; others: a failure
COULD_NOT_RUN = {"unsupported": NOT_SUPPORTED, "syntax": NOT_SUPPORTED, "arguments": INVALID_VALUE}

FIRST, LAST = 1 << 45, 1 << 46  # device addresses; stand_in.cpp has the same
GAP = 1 << 30  # bytes without memory behind an allocation
MOST_DYNAMIC = 48 << 10  # bytes of dynamic shared memory that a kernel may have without asking for more
REGISTERS = 32  # of a thread, as programs are told: ptxas has not run, so nobody knows
MAX_DYNAMIC = 8  # cudaFuncAttributeMaxDynamicSharedMemorySize


class Refused(PtxemuError):
    """A call that cannot be done: the error number that the program gets, and one line for the person."""

    def __init__(self, error: int, what: str, **facts: object) -> None:
        super().__init__(what, **facts)  # type: ignore[arg-type]  # facts of `PtxemuError`
        self.error = error
        self.here = error in {NOT_SUPPORTED, NO_KERNEL_IMAGE, OUT_OF_MEMORY}  # a GPU would have done it


class DeviceMemory(GlobalMemory):
    """Global memory in a file that the host program shares."""

    def __init__(self) -> None:
        super().__init__()
        self.file = os.memfd_create("ptxemu device memory", os.MFD_CLOEXEC)
        self.end = 0  # of the file
        self.next = FIRST
        self.places: dict[int, tuple[int, mmap.mmap]] = {}  # of an allocation: its place in the file, and its mapping

    def close(self) -> None:
        """Gives the memory back."""
        os.close(self.file)
        self._buffers, self._bases, self.places = [], [], {}

    def reserve(self, nbytes: int, name: str) -> int:
        """Allocates zeros; the address.

        Raises:
            Refused: there is no room left.
        """
        size = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        if self.next + size + GAP > LAST:
            raise Refused(OUT_OF_MEMORY, "out of device addresses", found=f"{nbytes} bytes more")
        place, base = self.end, self.next
        try:
            os.ftruncate(self.file, place + size)
            mapped = mmap.mmap(self.file, size, offset=place)
        except OSError as error:
            raise Refused(OUT_OF_MEMORY, f"{nbytes} bytes of device memory", found=error.strerror) from error
        self.end, self.next = place + size, (base + size + GAP) // mmap.PAGESIZE * mmap.PAGESIZE
        self.places[base] = place, mapped
        self._bases.append(base)
        self._buffers.append(Buffer(name, base, nbytes, np.frombuffer(mapped, np.uint8)))
        return base

    def allocate(self, contents: Array, name: str) -> int:
        """Allocates memory that holds an array."""
        base = self.reserve(contents.nbytes, name)
        view = np.frombuffer(self.places[base][1], np.uint8)
        view[: contents.nbytes] = np.ascontiguousarray(contents).reshape(-1).view(np.uint8)
        return base

    def free(self, base: int) -> None:
        """Ends an allocation; its pages go back to the machine."""
        at = bisect_left(self._bases, base)
        if at == len(self._bases) or self._bases[at] != base:
            raise Refused(INVALID_VALUE, "the address begins no allocation", found=hex(base))
        del self._bases[at], self._buffers[at]
        _, mapped = self.places.pop(base)
        mapped.madvise(mmap.MADV_REMOVE)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Everything that is allocated."""
        return tuple(self._buffers)

    def room(self, address: int) -> int:
        """Bytes from an address to the end of its allocation; 0 outside of all."""
        at = bisect_right(self._bases, address) - 1
        return 0 if at < 0 else max(0, self._bases[at] + self._buffers[at].nbytes - address)


@dataclass(eq=False)
class Loaded:
    """A module of the program: its PTX, and where its variables lie once one of its kernels or variables is used."""

    program: Program
    allocate: Callable[[Array, str], int]

    @cached_property
    def globals(self) -> dict[str, int]:
        """Addresses of the module's variables and functions."""
        return allocate_globals(self.program.module, self.allocate)


@dataclass(eq=False)
class Entry:
    """A kernel that the program has asked for.

    Attributes:
        kernel: its code.
        module: the one that it is of.
        name: as C++ has it, with the types of its parameters.
        dynamic: bytes of dynamic shared memory that it may have, as the program has set it.
    """

    kernel: Kernel
    module: Loaded
    name: str
    dynamic: int = MOST_DYNAMIC

    @property
    def directives(self) -> dict[str, tuple[int, ...]]:
        """Such as ``.maxntid``."""
        return dict(self.kernel.function.directives)

    @property
    def least_grid(self) -> tuple[int, int, int]:
        """The smallest grid that it may have: one cluster."""
        return _three([*self.directives.get("reqnctapercluster", ()), 1, 1, 1][:3])

    def block_of(self, threads: int) -> tuple[int, int, int]:
        """A block of so many threads, or the only one that it may have."""
        return _three([*self.directives.get("reqntid", (max(1, threads),)), 1, 1, 1][:3])


@dataclass
class Launch:
    """One launch and what it showed.

    Attributes:
        kernel: its name.
        grid, block, cluster: sizes; `cluster` is None without one.
        shared_bytes: dynamic shared memory of a block.
        lane_instructions: what it executed.
        seconds: wall-clock time of all orders.
        watched: whether hazards were looked for.
        schedules: orders of warps in which it was run.
        differing: allocations that held something else after another order, and after which one.
        may_differ: why other orders may show something else, as `Hazards.may_differ`.
        hazards: found in it.
        error: why it ended early; None if it did not.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None
    shared_bytes: int
    lane_instructions: int = 0
    seconds: float = 0.0
    watched: bool = True
    schedules: tuple[str | int, ...] = ()
    may_differ: tuple[str, ...] = ()
    differing: dict[str, str | int] = field(default_factory=dict)
    hazards: tuple[Hazard, ...] = ()
    error: EmulationError | None = None


@dataclass(frozen=True)
class Options:
    """How kernels are run; see `ptxemu run --help`."""

    gpu: Gpu
    hazards: bool = True
    schedules: tuple[str | int, ...] = ("together",)
    exited_arrive: bool = False
    memory_budget: int = MEMORY_BUDGET
    max_instructions: int = MAX_INSTRUCTIONS


@dataclass(eq=False)
class Device:
    """What one host program uses: calls in their order, as `server` reads them.

    Attributes:
        name: of the program, for messages.
        options: how kernels are run.
        tell: gets every launch as soon as it has ended.
        watch: makes the progress of a launch, by kernel and number of blocks; None shows none.
    """

    name: str
    options: Options
    tell: Callable[[Launch], object] = lambda _: None
    watch: Callable[[str, int], tuple[Progress, Observer] | None] = lambda _, __: None
    memory: DeviceMemory = field(default_factory=DeviceMemory)
    modules: list[Loaded] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    allocated: int = 0  # allocations so far

    def allocate(self, nbytes: int) -> tuple[int, int]:
        """Allocates memory: its address, and its place in the file."""
        self.allocated += 1
        base = self.memory.reserve(nbytes, f"allocation {self.allocated}")
        return base, self.memory.places[base][0]

    def module(self, image: bytes) -> int:
        """Reads a module; its number."""
        path = f"{self.name}.ptx" if not self.modules else f"{self.name}.{len(self.modules) + 1}.ptx"
        try:
            text = ptx_of(image, self.options.gpu.capability, self.name)
        except PtxemuError as error:
            raise _refused(NO_KERNEL_IMAGE, error) from error
        self.modules.append(Loaded(load(text, path=path), self.memory.allocate))
        return len(self.modules) - 1

    def function(self, module: int, name: str, shown: str) -> list[int]:
        """Finds a kernel, which messages call `shown`.

        Returns:
            Its number, the facts that stand_in.cpp reads, and offset and bytes of each parameter.
        """
        loaded = self.modules[module]
        if name not in loaded.program.entries:
            raise Refused(INVALID_FUNCTION, f"no kernel {name}", where=loaded.program.module.path)
        entry = Entry(loaded.program.kernel(name), loaded, shown)
        self.entries.append(entry)
        function, own = entry.kernel.function, entry.directives
        places, total = offsets(function)
        layout = Layout(loaded.program.module, function, entry.least_grid, entry.block_of(1), 0)
        threads = math.prod(own.get("reqntid", own.get("maxntid", (1024,))))
        gpu = self.options.gpu
        facts = [len(self.entries) - 1, total, layout.shared_bytes, threads, layout.local_bytes]
        facts += [gpu.capability, gpu.shared_of_block - layout.shared_bytes, REGISTERS]
        pairs = [(places[one.name], size_of(one)) for one in function.parameters]
        return [*facts, *(number for pair in pairs for number in pair)]

    def variable(self, module: int, name: str) -> tuple[int, int, int]:
        """Finds a variable of a module: address, bytes, place in the file."""
        loaded = self.modules[module]
        base = loaded.globals.get(name)
        if base is None or base not in self.memory.places:
            raise Refused(INVALID_SYMBOL, f"no variable {name}", where=loaded.program.module.path)
        return base, self.memory.room(base), self.memory.places[base][0]

    def limit(self, number: int, attribute: int, value: int) -> None:
        """Sets an attribute of a kernel: its most dynamic shared memory; the others change nothing here."""
        if attribute != MAX_DYNAMIC:
            return
        entry = self.entries[number]
        most = self.options.gpu.shared_of_block
        if not 0 <= value <= most:
            expected = f"at most {most} on the {self.options.gpu.name}"
            what = f"dynamic shared memory of {entry.name}"
            raise Refused(INVALID_VALUE, what, expected=expected, found=value)
        entry.dynamic = value

    def occupancy(self, number: int, threads: int, shared: int, cluster: int) -> int:
        """Blocks of a kernel that a multiprocessor holds; with a cluster size, clusters that the GPU holds."""
        entry = self.entries[number]
        function, block = entry.kernel.function, entry.block_of(threads)
        layout = Layout(entry.module.program.module, function, entry.least_grid, block, shared)
        blocks = self.options.gpu.resident(threads, layout.shared_bytes)
        return blocks * self.options.gpu.multiprocessors // cluster if cluster else blocks

    def tensor_map(self, words: list[int]) -> bytes:
        """The 128 bytes of a map, from the arguments of cuTensorMapEncodeTiled."""
        kind, interleave, swizzle, promotion, fill, address, *numbers = words
        rank = (len(numbers) + 1) // 4
        named: list[tuple[str, int, tuple[str, ...]]] = [
            *(("data type", kind, DATA_TYPES), ("interleave", interleave, INTERLEAVES), ("fill", fill, FILLS)),
            *(("swizzle", swizzle, SWIZZLES), ("L2 promotion", promotion, PROMOTIONS)),
        ]
        for what, number, known in named:
            if number >= len(known):
                expected = ", ".join(f"{at} ({name})" for at, name in enumerate(known))
                raise Refused(NOT_SUPPORTED, f"cuTensorMapEncodeTiled: {what}", expected=expected, found=number)
        dims, strides, rest = numbers[:rank], numbers[rank : 2 * rank - 1], numbers[2 * rank - 1 :]
        if not self.memory.room(address):
            raise Refused(INVALID_VALUE, "cuTensorMapEncodeTiled: the tensor's address", found=hex(address))
        try:
            made = TensorMap(
                0, DATA_TYPES[kind], tuple(dims), tuple(strides), tuple(rest[:rank]), tuple(rest[rank:]),
                SWIZZLES[swizzle], "none", FILLS[fill], PROMOTIONS[promotion],
            )  # fmt: skip
            return made.encoded(address)
        except EmulationError as error:
            raise _refused(INVALID_VALUE, error) from error

    def launch(self, number: int, sizes: list[int], shared: int, data: bytes) -> int:
        """Runs a kernel; what every later call of the program returns, `SUCCESS` if it ran to its end.

        Raises:
            Refused: the launch does not fit the kernel or the GPU, or the kernel cannot be run here.
        """
        entry = self.entries[number]
        grid, block, wanted = (_three(sizes[at : at + 3]) for at in (0, 3, 6))
        cluster = wanted if all(wanted) else None
        launch = Launch(entry.name, grid, block, cluster, shared, watched=self.options.hazards)
        if shared > entry.dynamic:
            expected = f"at most {entry.dynamic} bytes, or cudaFuncSetAttribute before"
            what = f"dynamic shared memory of {entry.name}"
            raise Refused(INVALID_VALUE, what, expected=expected, found=shared)
        if not all((*grid, *block)):
            what = f"grid and block of {entry.name}"
            raise Refused(INVALID_CONFIGURATION, what, expected="1 or more each", found=(grid, block))
        hazards, counters = Hazards() if self.options.hazards else None, Counters()
        held = {buffer.name: buffer.storage for buffer in self.memory.buffers}

        def run(schedule: str | int, observers: Sequence[Observer]) -> Result:
            return self._run(entry, launch, data, observers, schedule)

        orders, error = Orders(self.options.schedules, run, hazards, held), SUCCESS
        try:
            orders.run(counters)
        except EmulationError as found:
            if found.kind in COULD_NOT_RUN:
                what = f"{entry.name}: {found.what}"
                raise _refused(COULD_NOT_RUN[found.kind], found, what) from found
            launch.error, error = found, BROKEN_BY.get(found.kind, LAUNCH_FAILURE)
            if found.kind == "trap" and "assert" in found.what:
                error = ASSERTED
        launch.schedules, launch.lane_instructions = tuple(orders.done), counters.lane_instructions
        launch.differing = orders.differing
        if hazards:
            launch.hazards, launch.may_differ = hazards.reports, hazards.may_differ
        self.tell(launch)
        return error

    def _run(
        self, entry: Entry, launch: Launch, data: bytes, observers: Sequence[Observer], schedule: str | int
    ) -> Result:
        """Runs a launch in one order; raises `EmulationError`."""
        shown, chosen = self.watch(entry.name, math.prod(launch.grid)), self.options
        sizes = (launch.grid, launch.block, launch.shared_bytes, self._target(entry), launch.cluster)
        result = entry.kernel.execute(
            Layout(entry.module.program.module, entry.kernel.function, *sizes), data, self.memory,
            entry.module.globals, (*observers, *([shown[1]] if shown else [])),
            chosen.memory_budget, chosen.max_instructions, shown[0] if shown else None,
            exited_arrive=chosen.exited_arrive, schedule=schedule,
        )  # fmt: skip
        launch.seconds += result.seconds
        return result

    def _target(self, entry: Entry) -> str | None:
        """The architecture of a launch; PTX for one architecture alone is for itself."""
        own = entry.module.program.module.target.partition(",")[0].strip()
        return None if own[-1:].isalpha() else self.options.gpu.target


def _refused(error: int, found: PtxemuError, what: str = "") -> Refused:
    facts = {"where": found.where, "expected": found.expected, "found": found.found, "hint": found.hint}
    return Refused(error, what or found.what, **facts)


def _three(sizes: list[int]) -> tuple[int, int, int]:
    x, y, z = sizes
    return x, y, z
