"""What `ptxemu run` is made of, without a compiler: fatbins, GPUs, device memory."""

from __future__ import annotations

import struct
import sys

import pytest

from ptxemu.errors import PtxemuError
from ptxemu.host.device import LAUNCH_FAILURE, MISALIGNED_ADDRESS, Device, Launch, Options, Refused
from ptxemu.host.fatbin import FILE, HEADER, LZ4, MACHINE_CODE, MAGIC, PTX, ZSTD, ptx_of
from ptxemu.host.gpus import GPUS


def fatbin(*files: tuple[int, int, int, bytes]) -> bytes:
    """A fatbin of (kind, capability, flags, contents)."""
    body = b""
    for kind, capability, flags, contents in files:
        padded = contents + bytes(-len(contents) % 8)
        body += FILE.pack(kind, 0x101, FILE.size, len(padded), len(contents), 0, 0, 8, capability, 0, 0, flags, 0, 0)
        body += padded
    return HEADER.pack(MAGIC, 1, HEADER.size, len(body)) + body


def ptx(target: str) -> bytes:
    return f".version 8.0\n.target {target}\n// {target}".encode()


@pytest.mark.parametrize(("targets", "capability", "chosen"), [
    (("sm_80", "sm_90"), 90, "sm_90"),
    (("sm_90", "sm_80"), 90, "sm_90"),
    (("sm_80", "sm_90"), 86, "sm_80"),
    (("sm_90", "sm_90a"), 90, "sm_90a"),
    (("sm_80", "sm_90a"), 100, "sm_80"),
    (("sm_80a", "sm_80"), 90, "sm_80"),
])  # fmt: skip
def test_the_ptx_that_a_gpu_takes(targets: tuple[str, ...], capability: int, chosen: str) -> None:
    image = fatbin((MACHINE_CODE, 90, 0, b"\x7fELF"), *((PTX, 0, 0, ptx(target)) for target in targets))
    assert ptx_of(image, capability, "program").endswith(f"// {chosen}")


@pytest.mark.parametrize(("image", "found"), [
    (fatbin((PTX, 90, 0, ptx("sm_90a"))), "found PTX for sm_90a"),
    (fatbin((MACHINE_CODE, 80, 0, b"\x7fELF")), "found machine code for sm_80"),
    (fatbin(), "found nothing"),
    (b"\x7fELF and more than a header", "found machine code alone"),
])  # fmt: skip
def test_no_ptx_for_a_gpu(image: bytes, found: str) -> None:
    with pytest.raises(PtxemuError, match=f"program: no PTX: expected PTX that a GPU of .* 8.0 runs, {found}"):
        ptx_of(image, 80, "program")


@pytest.mark.parametrize(("flag", "package"), [(LZ4, "lz4"), (ZSTD, "zstandard")])
def test_compressed_ptx_needs_a_package(flag: int, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lz4", "lz4.block", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PtxemuError, match=f"{package} is not installed; run: pip install {package}"):
        ptx_of(fatbin((PTX, 80, flag, b"?")), 80, "program")


def test_what_a_multiprocessor_holds() -> None:
    h100 = GPUS["h100"]
    assert (h100.resident(128, 0), h100.resident(1024, 0), h100.resident(33, 0)) == (16, 2, 32)
    assert (h100.resident(32, 57 << 10), h100.resident(32, 56 << 10)) == (3, 4)  # 1 KiB of each is the driver's
    assert (h100.resident(1025, 0), h100.resident(32, 228 << 10), h100.resident(0, 0)) == (0, 0, 0)


def test_properties_are_the_attributes() -> None:
    """Where a field of cudaDeviceProp begins was read off the header of CUDA 13.0."""
    for gpu in GPUS.values():
        made = gpu.properties()
        assert made.startswith(f"ptxemu {gpu.name}\0".encode())
        fields = {384: 16, 604: 39, 308: 10, 360: 75, 364: 76, 748: 120, 688: 106}
        assert {place: struct.unpack_from("<i", made, place)[0] for place in fields} == {
            place: gpu.attribute(number) for place, number in fields.items()
        }
        assert struct.unpack_from("<3Q", made, 288)[1:] == (48 << 10, 65536 | 32 << 32)
        assert struct.unpack_from("<Q", made, 672)[0] == gpu.shared_of_block


KERNEL = """
.version 8.0
.target sm_80
.address_size 64
.visible .global .u32 count = 5;
.visible .entry k(.param .u64 p) {
.reg .b32 %r<2>; .reg .b64 %rd<2>;
ld.param.u64 %rd0, [p];
ld.global.u32 %r0, [%rd0];
ret;
}
"""


def test_a_device_from_its_memory_to_a_launch() -> None:
    launches = list[Launch]()
    device = Device("program", Options(GPUS["a100"]), launches.append)
    base, place = device.allocate(100)
    other, behind = device.allocate(100)
    assert (other - base > 1 << 30, behind - place >= 100, device.memory.room(base + 40)) == (True, True, 60)
    module = device.module(KERNEL.encode())
    address, nbytes, _ = device.variable(module, "count")
    assert (nbytes, device.memory.places[address][1][:4]) == (4, b"\5\0\0\0")
    number, total, *_ = device.function(module, "k", "k(int*)")
    sizes = [1, 1, 1, 32, 1, 1, 0, 0, 0]
    assert total == 8
    assert device.launch(number, sizes, 0, base.to_bytes(8, "little")) == 0
    assert device.launch(number, sizes, 0, (base + 1).to_bytes(8, "little")) == MISALIGNED_ADDRESS != LAUNCH_FAILURE
    assert [launch.error is None for launch in launches] == [True, False]
    device.memory.free(base)
    assert device.launch(number, sizes, 0, base.to_bytes(8, "little")) == 700
    for wrong in (
        lambda: device.memory.free(base),
        lambda: device.launch(number, [1, 1, 1, 0, 1, 1, 0, 0, 0], 0, bytes(8)),
        lambda: device.launch(number, sizes, 50_000, bytes(8)),
        lambda: device.limit(number, 8, 1 << 20),
        lambda: device.function(module, "none", "none"),
        lambda: device.variable(module, "none"),
        lambda: device.tensor_map([99, 0, 0, 0, 0, base, 4, 4, 1]),
    ):
        with pytest.raises(Refused):
            wrong()
    with pytest.raises(PtxemuError):
        device.module(b"garbage")
