"""The GPUs that `ptxemu run` can pretend to have: what programs ask a device for.

Source: CUDA Runtime API 13.0 (cudaDeviceAttr, cudaDeviceProp); CUDA C++ Programming Guide 13.0, table "Technical
Specifications per Compute Capability"; data sheets for the numbers of multiprocessors, L2 and memory.
"""

from __future__ import annotations

from dataclasses import dataclass
import struct

from ptxemu.targets import BLOCK_LIMITS, GRID_LIMITS, MAX_THREADS, shared_limit

KIB = 1 << 10
MEMORY = 64 << 30  # bytes that a program is told; the machine's own memory is the limit
RESERVED = KIB  # bytes of shared memory that the driver takes of each block
REGISTERS = 65536  # of a multiprocessor, and of a block

# cudaDeviceProp: where a field begins, and the attribute (cudaDeviceAttr) that is the same number. `WIDE` ones are of
# type size_t.
PROPERTIES_BYTES, MEMORY_PLACE = 1008, 288
WIDE = {8, 9, 11, 14, 30, 51, 81, 97, 111}
PROPERTIES = {
    296: 8, 304: 12, 308: 10, 312: 11, 320: 1, 324: 2, 328: 3, 332: 4, 336: 5, 340: 6, 344: 7, 352: 9, 360: 75,
    364: 76, 368: 14, 376: 51, 384: 16, 392: 19, 552: 30, 560: 31, 584: 40, 588: 41, 592: 37, 596: 38, 604: 39,
    608: 78, 612: 79, 616: 80, 624: 81, 632: 82, 636: 83, 648: 86, 656: 89, 660: 90, 664: 91, 668: 95, 672: 97,
    688: 106, 696: 111, 720: 115, 748: 120,
}  # fmt: skip


@dataclass(frozen=True)
class Gpu:
    """One model.

    Attributes:
        name: as ``nvidia-smi`` shows it, behind "ptxemu ".
        capability: 90 for 9.0.
        multiprocessors: of the whole GPU.
        shared: bytes of shared memory of a multiprocessor.
        threads, blocks: that a multiprocessor holds at once.
        l2: bytes.
        bus: bits.
    """

    name: str
    capability: int
    multiprocessors: int
    shared: int
    threads: int
    blocks: int
    l2: int
    bus: int

    @property
    def target(self) -> str:
        """The architecture, ``sm_90``."""
        return f"sm_{self.capability}"

    @property
    def shared_of_block(self) -> int:
        """Bytes of shared memory that a block may ask for."""
        return shared_limit(self.target)

    def attribute(self, number: int) -> int:
        """The value of a cudaDeviceAttr, which is also the driver's number; 0 of those that nothing here has."""
        return self._attributes().get(number, 0)

    def _attributes(self) -> dict[int, int]:
        clusters = self.capability >= 90
        return {
            1: MAX_THREADS,
            **dict(zip((2, 3, 4), BLOCK_LIMITS, strict=True)),
            **dict(zip((5, 6, 7), GRID_LIMITS, strict=True)),
            8: 48 * KIB, 9: 64 * KIB, 10: 32, 11: (1 << 31) - 1, 12: REGISTERS, 13: 1_500_000, 14: 512, 15: 1, 30: 512,
            16: self.multiprocessors, 19: 1, 31: 1, 36: 1_500_000, 37: self.bus, 38: self.l2, 39: self.threads,
            40: 1, 41: 1, 51: 32, 75: self.capability // 10, 76: self.capability % 10, 78: 1, 79: 1, 80: 1,
            81: self.shared, 82: REGISTERS, 83: 1, 86: 1, 87: 2, 89: 1, 90: 1, 91: 1, 95: 1,
            97: self.shared_of_block, 106: self.blocks, 111: RESERVED, 115: 1, 120: int(clusters),
        }  # fmt: skip

    def properties(self) -> bytes:
        """A cudaDeviceProp of CUDA 13."""
        made = bytearray(PROPERTIES_BYTES)
        struct.pack_into("<256s", made, 0, f"ptxemu {self.name}".encode())
        struct.pack_into("<Q", made, MEMORY_PLACE, MEMORY)
        for place, number in PROPERTIES.items():
            struct.pack_into("<Q" if number in WIDE else "<i", made, place, self.attribute(number))
        return bytes(made)

    def resident(self, threads: int, shared: int) -> int:
        """Blocks that a multiprocessor holds at once, by threads and shared memory; registers are not known here."""
        if not 0 < threads <= MAX_THREADS or shared > self.shared_of_block:
            return 0
        warps = -(-threads // 32)
        return min(self.blocks, self.threads // (32 * warps), self.shared // (shared + RESERVED))


GPUS = {
    "a100": Gpu("A100", 80, 108, 164 * KIB, 2048, 32, 40 << 20, 5120),
    "rtx3090": Gpu("RTX 3090", 86, 82, 100 * KIB, 1536, 16, 6 << 20, 384),
    "rtx4090": Gpu("RTX 4090", 89, 128, 100 * KIB, 1536, 24, 72 << 20, 384),
    "h100": Gpu("H100", 90, 132, 228 * KIB, 2048, 32, 50 << 20, 5120),
}
