"""Tensor maps of launches on a GPU: what the driver is asked to encode, with our own driver in its place."""

from __future__ import annotations

from collections.abc import Iterator
import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.test_gpu import Library

from ptxemu import chip
from ptxemu.chip import Driver, Gpu, open_gpu
from ptxemu.errors import PtxemuError
from ptxemu.machine.tensor_map import TensorMap

PTX = """.version 8.0
.target sm_90
.address_size 64
.visible .entry take(.param .align 64 .b8 map[128], .param .u64 p) { ret; }
"""


class Encoder(Library):
    """The driver that keeps what it encodes, and whose maps are bytes 1, 2, 3, ..."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded: list[tuple[Any, ...]] = []

    def do_cuTensorMapEncodeTiled(self, *arguments: Any) -> None:
        """Keeps the arguments, arrays as tuples."""
        self.encoded.append(tuple(tuple(each) if isinstance(each, ctypes.Array) else each for each in arguments))
        assert arguments[0] % 64 == 0
        ctypes.memmove(arguments[0], bytes(range(1, 129)), 128)

    def do_cuMemAlloc_v2(self, out: Any, size: int) -> None:
        """Memory at a multiple of 256, as a GPU's is."""
        room = ctypes.create_string_buffer(size + 256)
        out._obj.value = ctypes.addressof(room) + -ctypes.addressof(room) % 256
        self.memory[out._obj.value] = room

    def do_cuLaunchKernel(self, function: Any, *sizes: Any) -> None:
        """Keeps the parameters: a map and a pointer."""
        tensor_map, pointer = sizes[-2]
        self.launches.append((ctypes.string_at(tensor_map, 128), ctypes.c_uint64.from_address(pointer).value))


@pytest.fixture
def library() -> Encoder:
    return Encoder()


@pytest.fixture
def gpu(library: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    monkeypatch.setattr(chip, "VERSION_FILE", tmp_path / "version")
    with open_gpu(driver=Driver(library)) as opened:
        yield opened


def test_the_driver_encodes_the_description(library: Encoder, gpu: Gpu) -> None:
    tensor = np.zeros((64, 32), np.float16)
    given = TensorMap(tensor, "f16", (32, 64), (64,), (32, 8), (1, 2), swizzle="64B", fill="nan", l2_promotion="128B")
    gpu.load(PTX).kernel("take").launch((1,), (32,), (given, tensor))
    (_, kind, rank, address, *rest) = library.encoded[0]
    assert (kind, rank) == (6, 2)
    assert rest == [(32, 64), (64,), (32, 8), (1, 2), 0, 2, 2, 1]
    encoded, pointer = library.launches[0]
    assert encoded == bytes(range(1, 129))
    assert pointer == address  # the map's tensor is the array that is passed, too


def test_a_driver_without_tensor_maps_says_so() -> None:
    class Old(Library):
        """A driver of CUDA 11."""

        def __init__(self) -> None:
            super().__init__()
            delattr(self, "cuTensorMapEncodeTiled")

    call = Driver(Old())
    with pytest.raises(PtxemuError, match="has no cuTensorMapEncodeTiled: expected one for CUDA 12 or newer"):
        call("cuTensorMapEncodeTiled")
