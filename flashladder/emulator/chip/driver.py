"""The CUDA driver API as far as a launch needs it: typed functions whose failures are errors with the driver's words.

Why: NumPy and the driver's own library are all that a bare machine has. `gpu` builds launches on it.
Source: CUDA Driver API (13.0), sections 6.2 to 6.22.
"""

from __future__ import annotations

from collections.abc import Callable
import ctypes
from typing import Any

from flashladder.errors import FlashladderError

LIBRARY = "libcuda.so.1"

_HANDLE = ctypes.c_void_p
_INT, _UINT = ctypes.c_int, ctypes.c_uint
_SIZE = ctypes.c_size_t
_OUT = ctypes.c_void_p  # a pointer made by ctypes.byref
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_UINT,),
    "cuGetErrorName": (ctypes.c_int, _OUT),
    "cuDriverGetVersion": (_OUT,),
    "cuDeviceGetCount": (_OUT,),
    "cuDeviceGet": (_OUT, ctypes.c_int),
    "cuDeviceGetName": (ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_OUT, ctypes.c_int),
    "cuDevicePrimaryCtxRelease_v2": (ctypes.c_int,),
    "cuDevicePrimaryCtxReset_v2": (ctypes.c_int,),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuCtxSynchronize": (),
    "cuModuleLoadDataEx": (_OUT, ctypes.c_char_p, _UINT, _OUT, _OUT),
    "cuModuleUnload": (_HANDLE,),
    "cuModuleGetFunction": (_OUT, _HANDLE, ctypes.c_char_p),
    "cuFuncSetAttribute": (_HANDLE, ctypes.c_int, ctypes.c_int),
    "cuMemAlloc_v2": (_OUT, _SIZE),
    "cuMemFree_v2": (ctypes.c_uint64,),
    "cuMemcpyHtoD_v2": (ctypes.c_uint64, ctypes.c_void_p, _SIZE),
    "cuMemcpyDtoH_v2": (ctypes.c_void_p, ctypes.c_uint64, _SIZE),
    "cuLaunchKernel": (_HANDLE, *[_UINT] * 6, _UINT, _HANDLE, _OUT, _OUT),
    "cuTensorMapEncodeTiled": (_HANDLE, _INT, _UINT, ctypes.c_uint64, *[_OUT] * 4, *[_INT] * 4),
}
_SINCE_CUDA_12 = {"cuTensorMapEncodeTiled"}  # functions that an older driver does without


class Driver:
    """The driver's functions with their types; a status other than 0 is an error with the driver's own name for it."""

    def __init__(self, library: Any) -> None:
        self.functions: dict[str, Callable[..., int]] = {}
        for name, types in _SIGNATURES.items():
            if name in _SINCE_CUDA_12 and not hasattr(library, name):
                continue
            function = getattr(library, name)
            function.argtypes, function.restype = types, ctypes.c_int
            self.functions[name] = function

    def __call__(self, name: str, *arguments: Any, log: ctypes.Array[ctypes.c_char] | None = None) -> None:
        """Calls one function of the driver.

        Raises:
            FlashladderError: the driver refused; the message holds its name of the error and what `log` says.
        """
        if name not in self.functions:
            raise FlashladderError(f"the CUDA driver has no {name}", expected="one for CUDA 12 or newer")
        code = self.functions[name](*arguments)
        if code:
            told = log.value.decode(errors="replace").strip() if log is not None else ""
            raise FlashladderError(
                f"the CUDA driver refused {name}", found=f"{self.error_name(code)} ({code})", hint=told or None
            )

    def error_name(self, code: int) -> str:
        """For example ``CUDA_ERROR_INVALID_PTX``."""
        text = ctypes.c_char_p()
        self.functions["cuGetErrorName"](code, ctypes.byref(text))
        return (text.value or b"an error without a name").decode()


def load_driver(library: str = LIBRARY) -> Driver:
    """The driver of this machine.

    Raises:
        FlashladderError: there is none.
    """
    try:
        return Driver(ctypes.CDLL(library))
    except (OSError, AttributeError) as error:
        raise FlashladderError(
            f"no CUDA driver ({library})", found=str(error), hint="run it on a machine with an NVIDIA GPU"
        ) from error
