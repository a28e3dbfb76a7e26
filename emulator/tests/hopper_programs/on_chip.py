"""Runs exported Hopper programs on a GPU: Python's standard library and the CUDA driver, nothing else.

Why: a machine with a GPU may have neither a compiler nor this project. `export` writes machine code, inputs and what is
expected into a folder, this file among them. A program that fails or hangs costs its own process, not the rest.

Run in that folder: ``python3 run.py`` (about 20 s); writes answers.json, prints a table; exit code 1 when any differs.
"""

from __future__ import annotations

import base64
import ctypes
import json
from pathlib import Path
import queue
import struct
import subprocess
import sys
import threading
import time
from typing import Any

FOLDER = Path(__file__).resolve().parent
REPEATS = 20  # of each launch: an order of events that matters shows in some of them
PATIENCE = 30  # seconds for one program, the first of a process included
CLUSTER, MAX_SHARED, NON_PORTABLE = 4, 8, 14  # CUlaunchAttributeID; CUfunction_attribute
HANDLE = ctypes.c_void_p


class Attribute(ctypes.Structure):
    """CUlaunchAttribute with a cluster's size as its value (64 bytes)."""

    _fields_ = (("id", ctypes.c_uint64), ("size", ctypes.c_uint * 16))


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", HANDLE),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


class Failure(Exception):
    """The driver refused; its own name for it."""


class Driver:
    """The driver's library."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: Any) -> None:
        """Calls a function; 64-bit integers and sizes are given as ctypes values."""
        status = getattr(self.library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(status, ctypes.byref(text))
            raise Failure(f"{name}: {(text.value or b'?').decode()} ({status})")

    def version(self) -> str:
        """CUDA's version as the driver has it."""
        number = ctypes.c_int()
        self("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"


def open_gpu(driver: Driver) -> str:
    """Makes GPU 0's primary context current; the GPU's name."""
    device, context, name = ctypes.c_int(), HANDLE(), ctypes.create_string_buffer(256)
    driver("cuInit", 0)
    driver("cuDeviceGet", ctypes.byref(device), 0)
    driver("cuDeviceGetName", name, 256, device)
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver("cuCtxSetCurrent", context)
    return name.value.decode()


class Launcher:
    """One program on the GPU."""

    def __init__(self, driver: Driver, program: dict[str, Any], data: bytes) -> None:
        self.driver, self.program, self.data = driver, program, data
        self.module, self.function = HANDLE(), HANDLE()
        driver("cuModuleLoad", ctypes.byref(self.module), str(FOLDER / program["cubin"]).encode())
        driver("cuModuleGetFunction", ctypes.byref(self.function), self.module, program["kernel"].encode())
        if program["shared_bytes"] > 48 << 10:
            driver("cuFuncSetAttribute", self.function, MAX_SHARED, program["shared_bytes"])
        self.is_cluster = max(program["cluster"]) > 1
        if self.is_cluster:
            driver("cuFuncSetAttribute", self.function, NON_PORTABLE, 1)
        self.addresses = [self._allocate(size) for _, size in program["buffers"]]
        self.storage = [self._argument(each) for each in program["arguments"]]

    def _allocate(self, size: int) -> int:
        place = ctypes.c_uint64()
        self.driver("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size))
        return place.value

    def _argument(self, given: dict[str, Any]) -> ctypes.Array[ctypes.c_char]:
        """The bytes of a parameter; those of a tensor map lie at a multiple of 64."""
        if "map" in given:
            return self._map(given["map"])
        data = bytearray.fromhex(given["bytes"])
        for offset, buffer in given["pointers"]:
            data[offset : offset + 8] = struct.pack("<Q", self.addresses[buffer])
        return ctypes.create_string_buffer(bytes(data), len(data))

    def _map(self, given: dict[str, Any]) -> ctypes.Array[ctypes.c_char]:
        room = bytearray(192)
        whole = (ctypes.c_char * 192).from_buffer(room)
        begin = -ctypes.addressof(whole) % 64
        place = (ctypes.c_char * 128).from_buffer(room, begin)
        rank, dims, strides = len(given["dims"]), given["dims"], given["strides"] or [0]
        self.driver(
            "cuTensorMapEncodeTiled",
            place,
            given["dtype"],
            rank,
            ctypes.c_uint64(self.addresses[given["buffer"]]),
            (ctypes.c_uint64 * rank)(*dims),
            (ctypes.c_uint64 * len(strides))(*strides),
            (ctypes.c_uint32 * rank)(*given["box"]),
            (ctypes.c_uint32 * rank)(*given["element_strides"]),
            0,
            *(given[name] for name in ("swizzle", "l2_promotion", "fill")),
        )
        return place

    def launch(self) -> list[bytes]:
        """Fresh inputs, one launch, what the checked buffers hold then."""
        for address, (begin, size) in zip(self.addresses, self.program["buffers"]):  # noqa: B905 - old Pythons too
            part = self.data[begin : begin + size]
            self.driver("cuMemcpyHtoD_v2", ctypes.c_uint64(address), part, ctypes.c_size_t(size))
        pointers = (HANDLE * len(self.storage))(*(ctypes.addressof(each) for each in self.storage))
        attribute = Attribute(CLUSTER, (ctypes.c_uint * 16)(*self.program["cluster"]))
        config = Config(
            (ctypes.c_uint * 3)(*self.program["grid"]),
            (ctypes.c_uint * 3)(self.program["threads"], 1, 1),
            self.program["shared_bytes"],
            None,
            ctypes.pointer(attribute),
            int(self.is_cluster),
        )
        self.driver("cuLaunchKernelEx", ctypes.byref(config), self.function, pointers, None)
        self.driver("cuCtxSynchronize")
        found = []
        for result in self.program["results"]:
            size = self.program["buffers"][result["buffer"]][1]
            out = ctypes.create_string_buffer(size)
            self.driver(
                "cuMemcpyDtoH_v2", out, ctypes.c_uint64(self.addresses[result["buffer"]]), ctypes.c_size_t(size)
            )
            found.append(out.raw)
        return found


def difference(found: bytes, wanted: bytes, tolerance: float, itemsize: int) -> str | None:
    """None, or the first element that is not as expected; with a tolerance both are 32-bit floats."""
    count, first = 0, ""
    for i in range(0, len(wanted), itemsize):
        a, b = found[i : i + itemsize], wanted[i : i + itemsize]
        if a != b and tolerance:
            x, y = struct.unpack("<f", a)[0], struct.unpack("<f", b)[0]
            if abs(x - y) <= tolerance * max(1.0, abs(y)):
                continue
        if a != b:
            count += 1
            first = first or f"first {i // itemsize}: expected 0x{b[::-1].hex()}, found 0x{a[::-1].hex()}"
    return f"{count} of {len(wanted) // itemsize} differ, {first}" if count else None


def answer(driver: Driver, program: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Runs one program some times; its outputs and how they compare."""
    launcher = Launcher(driver, program, data)
    runs = [launcher.launch() for _ in range(REPEATS)]
    problems = []
    for found, result in zip(runs[0], program["results"]):  # noqa: B905 - old Pythons too
        begin, size = result["expected"]
        problems.append(difference(found, data[begin : begin + size], program["tolerance"], result["itemsize"]))
    return {
        "name": program["name"],
        "digest": program["digest"],
        "outputs": [base64.b64encode(found).decode() for found in runs[0]],
        "distinct": len({b"".join(found) for found in runs}),
        "error": None,
        "against_expected": next((text for text in problems if text), None),
    }


def work(names: list[str]) -> int:
    """The part of a child process: one line of JSON for the machine, then one for each program."""
    programs = {each["name"]: each for each in json.loads((FOLDER / "programs.json").read_text())}
    data, driver = (FOLDER / "data.bin").read_bytes(), Driver()
    print(json.dumps({"gpu": open_gpu(driver), "cuda_driver": driver.version()}), flush=True)
    for name in names:
        try:
            print(json.dumps(answer(driver, programs[name], data)), flush=True)
        except Failure as error:
            print(json.dumps(lost(programs[name], str(error))), flush=True)
            return 1  # the context is gone
    return 0


def lost(program: dict[str, Any], error: str) -> dict[str, Any]:
    """The record of a program that gave no answer."""
    return {
        "name": program["name"],
        "digest": program["digest"],
        "outputs": [],
        "distinct": 0,
        "error": error,
        "against_expected": None,
    }


def _listen(child: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    """Hands over the lines that a child prints, then an empty one."""
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put("")


def supervise(programs: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Runs the programs in child processes, a new one after each that failed or hung."""
    machine: dict[str, Any] = {}
    records: list[dict[str, Any]] = []
    while len(records) < len(programs):
        rest = [each["name"] for each in programs[len(records) :]]
        command = [sys.executable, __file__, "--work", *rest]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_listen, args=(child, lines), daemon=True).start()
        before, error = len(records), "no answer"
        while True:
            try:
                line = lines.get(timeout=PATIENCE)
            except queue.Empty:
                error = f"no answer within {PATIENCE} s"
                break
            if not line:
                break
            record = json.loads(line)
            if "gpu" in record:
                machine = record
            else:
                records.append(record)
        child.kill()
        child.wait()
        if not machine:
            raise SystemExit("no GPU, or no driver: nothing was run")
        failed = len(records) > before and records[-1]["error"]
        if len(records) < len(programs) and not failed:
            records.append(lost(programs[len(records)], error))
    return machine, records


def main(arguments: list[str]) -> int:
    """The command line; names choose programs."""
    if arguments[:1] == ["--work"]:
        return work(arguments[1:])
    programs = json.loads((FOLDER / "programs.json").read_text())
    programs = [each for each in programs if not arguments or each["name"] in arguments]
    begin = time.monotonic()
    machine, records = supervise(programs)
    wrong = 0
    for record in records:
        text = record["error"] or record["against_expected"]
        if record["distinct"] > 1:
            text = f"{record['distinct']} different answers in {REPEATS} runs; {text}"
        wrong += text is not None
        if text:
            print(f"{record['name']:34s} {text}")
    document = {"schema": 1, "machine": machine, "records": records}
    (FOLDER / "answers.json").write_text(json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n")
    seconds = time.monotonic() - begin
    print(
        f"{machine['gpu']}: {len(records)} programs, {len(records) - wrong} as expected, {wrong} not; {seconds:.0f} s"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
