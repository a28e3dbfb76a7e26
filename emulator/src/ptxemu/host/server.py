"""The messages between a host program and its device: what stand_in.cpp asks, and what `Device` answers.

A message is three numbers of 64 bits (what is asked, how many words follow, how many bytes follow), the words, and the
bytes. An answer is the same with an error number in front. Each process of the program has a connection and a device of
its own, in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import socket
import struct
import threading

from ptxemu.errors import PtxemuError
from ptxemu.host.device import NOT_SUPPORTED, SUCCESS, Device, Refused

HEAD = struct.Struct("<3Q")
STATIC = "cuGetExportTable"  # what the runtime inside of a program asks the driver for

Answer = tuple[int, list[int], bytes]


class Ended(Exception):
    """There are no more messages."""


class Server:
    """Listens at a socket of the file system and answers every program that connects."""

    def __init__(self, path: Path, make: Callable[[], Device], complain: Callable[[PtxemuError], object]) -> None:
        self.path, self.make, self.complain = path, make, complain
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen()
        self.failure: BaseException | None = None
        self.threads: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:  # closed
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Takes no further program, and waits for those whose processes have ended to be answered."""
        self.listener.close()
        for thread in self.threads:
            thread.join(1.0)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            device = self.make()
            try:
                socket.send_fds(connection, [b"d"], [device.memory.file])
                while True:
                    connection.sendall(_packed(*self._answer(device, *_message(connection))))
            except (Ended, ConnectionError):
                device.memory.close()
            except BaseException as error:  # noqa: BLE001 - of another thread: `ptxemu run` raises it
                self.failure = error

    def _answer(self, device: Device, what: int, words: list[int], data: bytes) -> Answer:
        try:
            return ASKED[what - 1](device, words, data)
        except Refused as error:
            self.complain(error)
            return error.error, [SUCCESS], b""
        except PtxemuError as error:
            self.complain(error)
            return NOT_SUPPORTED, [SUCCESS], b""


def _allocate(device: Device, words: list[int], _: bytes) -> Answer:
    return SUCCESS, list(device.allocate(words[0])), b""


def _free(device: Device, words: list[int], _: bytes) -> Answer:
    device.memory.free(words[0])
    return SUCCESS, [], b""


def _module(device: Device, _: list[int], data: bytes) -> Answer:
    return SUCCESS, [device.module(data)], b""


def _function(device: Device, words: list[int], data: bytes) -> Answer:
    name, _, plain = data.decode(errors="replace").partition("\0")
    return SUCCESS, device.function(words[0], name, plain or name), b""


def _variable(device: Device, words: list[int], data: bytes) -> Answer:
    return SUCCESS, list(device.variable(words[0], data.decode(errors="replace"))), b""


def _launch(device: Device, words: list[int], data: bytes) -> Answer:
    return SUCCESS, [device.launch(words[0], words[1:10], words[10], data)], b""


def _tensor_map(device: Device, words: list[int], _: bytes) -> Answer:
    return SUCCESS, [], device.tensor_map(words)


def _attribute(device: Device, words: list[int], _: bytes) -> Answer:
    return SUCCESS, [device.options.gpu.attribute(words[0])], b""


def _properties(device: Device, _: list[int], __: bytes) -> Answer:
    return SUCCESS, [], device.options.gpu.properties()


def _occupancy(device: Device, words: list[int], _: bytes) -> Answer:
    return SUCCESS, [device.occupancy(*words)], b""


def _limit(device: Device, words: list[int], _: bytes) -> Answer:
    number, attribute, value = words
    device.limit(number, attribute, value - (1 << 64) if value >> 63 else value)
    return SUCCESS, [], b""


def _missing(device: Device, _: list[int], data: bytes) -> Answer:
    name = data.decode(errors="replace")
    if name == STATIC:
        hint = "link it with the shared one: nvcc -cudart shared (CMake: CMAKE_CUDA_RUNTIME_LIBRARY Shared)"
        raise Refused(NOT_SUPPORTED, "the program has the CUDA runtime inside", where=device.name, hint=hint)
    hint = "the program was ended; everything else than graphs, textures and the like is there"
    raise Refused(NOT_SUPPORTED, f"{name} is not supported", where=device.name, hint=hint)


def _refused(device: Device, words: list[int], data: bytes) -> Answer:
    raise Refused(words[0], data.decode(errors="replace"), where=device.name)


# What messages ask for, numbered from 1; the same numbers are in stand_in.cpp.
ASKED: tuple[Callable[[Device, list[int], bytes], Answer], ...] = (
    *(_allocate, _free, _module, _function, _variable, _launch, _tensor_map, _attribute, _properties),
    *(_occupancy, _missing, _refused, _limit),
)


def _message(connection: socket.socket) -> tuple[int, list[int], bytes]:
    what, count, nbytes = HEAD.unpack(_bytes(connection, HEAD.size))
    words = struct.unpack(f"<{count}Q", _bytes(connection, 8 * count))
    return what, list(words), _bytes(connection, nbytes)


def _bytes(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise Ended
        parts += part
    return bytes(parts)


def _packed(error: int, words: list[int], data: bytes) -> bytes:
    return HEAD.pack(error, len(words), len(data)) + struct.pack(f"<{len(words)}Q", *words) + data
