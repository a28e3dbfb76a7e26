"""What a block may have on the architecture that a launch is for: threads, grid sizes, bytes of shared memory.

A GPU refuses a launch that asks for more. PTX for sm_80 runs on every newer GPU, whose limit may be higher or lower:
by default the file's own ``.target`` counts, `Kernel.launch(target=...)` names another one.

Source: CUDA C++ Programming Guide 13.0, table "Technical Specifications per Compute Capability" (maximum amount of
shared memory per thread block; above 48 KiB it has to be asked for).
"""

from __future__ import annotations

import re

from ptxemu.errors import EmulationError

MAX_THREADS = 1024  # threads of a block
FIRST_CLUSTERS = 90  # the number of the first architecture that has clusters
MAX_CLUSTER = 16  # blocks of a cluster; more than 8 need cudaFuncAttributeNonPortableClusterSizeAllowed
GRID_LIMITS = (2**31 - 1, 65535, 65535)
BLOCK_LIMITS = (1024, 1024, 64)
SHARED_KIB = {  # KiB of shared memory that a block may have, by the number behind sm_
    **dict.fromkeys((50, 52, 53, 60, 61, 62), 48),
    **dict.fromkeys((70, 72), 96),
    75: 64,
    **dict.fromkeys((80, 87), 163),
    **dict.fromkeys((86, 89, 120, 121), 99),
    **dict.fromkeys((90, 100, 103, 110), 227),
}
_TARGET = re.compile(r"(?:sm|compute)_(\d+)([af]?)")
_WIDE = ("u16", "s16", "u32", "s32", "u64", "s64")
_TO_BF16 = tuple(f"cvt.{mode}.bf16.{kind}" for mode in ("rn", "rz") for kind in (*_WIDE, "f16", "f64"))
_ROUNDED = [(mode, kind) for mode in ("rni", "rzi", "rmi", "rpi") for kind in (*_WIDE, "bf16")]
_ROUNDED += [(mode, "f16") for mode in ("rn", "rz", "rm", "rp")]
_FROM_BF16 = tuple(f"cvt.{mode}.{kind}.bf16" for mode, kind in _ROUNDED)
_TF32 = tuple(f"cvt.{mode}{relu}.tf32" for mode in ("rn", "rz") for relu in ("", ".relu"))
_EIGHT_BITS = tuple(f"cvt.rn{relu}.f16x2.{kind}" for relu in ("", ".relu") for kind in ("e4m3", "e5m2"))
_TO_EIGHT_BITS = tuple(f"cvt.rn.satfinite{relu}.{kind}" for relu in ("", ".relu") for kind in ("e4m3", "e5m2"))
# Beginnings of opcodes, and the target that they need: from this architecture on, from it on and with a suffix ("a"),
# or it alone ("only").
SINCE = (
    (("wgmma",), 90, "only"),
    (("setmaxnreg",), 90, "a"),
    (("barrier.cluster", "mapa", "getctarank", "elect", "griddepcontrol"), 90, ""),
    (("cp.async.bulk", "cp.reduce.async.bulk", "st.async", "red.async", "stmatrix"), 90, ""),
    (("mbarrier.try_wait", "mbarrier.expect_tx", "mbarrier.complete_tx", "mbarrier.arrive.expect_tx"), 90, ""),
    (("fence.proxy.async", "fence.mbarrier_init"), 90, ""),
    (("mbarrier", "cp.async.mbarrier"), 80, ""),
    ((*_EIGHT_BITS, *_TO_EIGHT_BITS), 89, ""),
    ((*_TO_BF16, "cvt.rm.bf16", "cvt.rp.bf16", *_FROM_BF16, "cvt.f64.bf16", *_TF32), 90, ""),
)


def number_of(target: str) -> int | None:
    """80 of ``sm_80``, ``compute_80`` or ``sm_80, debug``; None for anything else."""
    match = _TARGET.fullmatch(target.partition(",")[0].strip())
    return int(match[1]) if match else None


def chosen(own: str, wanted: str | None, path: str) -> str:
    """The architecture that a launch is for, ``sm_80``: the module's own, or a newer one that was asked for.

    Raises:
        EmulationError: (arguments) an unknown architecture, or one that is older than the module's.
    """
    least = number_of(own)
    alone = own.partition(",")[0].strip().endswith("a")  # sm_90a: for that architecture and no other
    number = least if wanted is None else number_of(str(wanted))
    older = least is not None and number is not None and number < least
    if wanted is not None and (number not in SHARED_KIB or older or (alone and number != least)):
        newer = [each for each in sorted(SHARED_KIB) if each >= (least or 0) and (each == least or not alone)]
        known = ", ".join(f"sm_{each}" for each in newer)
        raise EmulationError(
            "arguments", f"target of a launch of PTX for {own}", path=path, expected=f"one of {known}", found=wanted
        )
    return own if number is None else f"sm_{number}"


def lacks(target: str, opcode: str) -> str | None:
    """The ``.target`` that PTX needs for an opcode, where its own one, such as ``sm_80``, is too old; else None."""
    match = _TARGET.fullmatch(target.partition(",")[0].strip())
    if match is None:
        return None
    for beginnings, first, suffix in SINCE:
        if opcode.startswith(beginnings):
            number, specific = int(match[1]), match[2] != ""
            fits = number >= first and (specific or not suffix) and (number == first or suffix != "only")
            return None if fits else f"sm_{first}" + ("a" if suffix else " or newer")
    return None


def reserved_shared(target: str) -> int:
    """Bytes at the start of the shared window that belong to the system: variables begin at 0x400 from sm_90 on."""
    return 1024 if (number_of(target) or 0) >= FIRST_CLUSTERS else 0


def shared_limit(target: str) -> int:
    """Bytes of shared memory that a block may have; of an architecture that is not in the table the most of any."""
    return 1024 * SHARED_KIB.get(number_of(target) or 0, max(SHARED_KIB.values()))
