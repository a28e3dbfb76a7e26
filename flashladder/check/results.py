"""What checks keep on disk: which earlier cases still hold, and the identity of a kernel that ran on the emulator.

Why apart from `flashladder.check.command`: on a GPU and on the emulator a case holds for as long as the code behind its
kernel is the same; only what counts as that code differs. Nothing to run here; `--out` of the check does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flashladder.bench.references import reference_identity
from flashladder.cases import case, contents, inputs, reference
from flashladder.files import sha256
from flashladder.gpu.doctor import rung
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.results.files import OTHER_FILE, load_as, this_host, write_result
from flashladder.results.schema import CaseResult, CheckResult, EmulatedCheckResult, Kernel

RULE = (reference, inputs, contents, case)


def rule() -> str:
    """A digest of what decides a verdict beside the kernel: cases, inputs and bounds."""
    files = (*(Path(str(one.__file__)) for one in RULE), Path(__file__).with_name("on_emulator.py"))
    return sha256("".join(sha256(path.read_bytes()) for path in files))


def earlier(path: Path | None, kernels: Mapping[str, Kernel], gpu_uuid: str) -> tuple[CaseResult, ...]:
    """Cases in an earlier file that still hold: not failed, same rule, GPU, and machine code behind the kernel."""
    if path is None or not path.is_file():
        return ()
    result = load_as(path, CheckResult, hint=OTHER_FILE)
    same = result.gpu.uuid == gpu_uuid and result.rule == rule()
    return _unchanged(result, kernels) if same else ()


def earlier_emulated(path: Path | None, kernels: Mapping[str, Kernel]) -> tuple[CaseResult, ...]:
    """Cases in an earlier file that still hold: not failed, same PTX, emulator and rule; on whatever machine."""
    if path is None or not path.is_file():
        return ()
    return _unchanged(load_as(path, EmulatedCheckResult, hint=OTHER_FILE), kernels)


def tell_kept(path: Path | None, cases: Sequence[CaseResult]) -> None:
    """Says how many cases of the file at `path` are not run again, where there are any."""
    if cases:
        print(f"{len(cases)} case{'s' if len(cases) > 1 else ''} kept from {path}, not run again")


def _unchanged(result: CheckResult | EmulatedCheckResult, kernels: Mapping[str, Kernel]) -> tuple[CaseResult, ...]:
    same = {key for key, kernel in result.kernels.items() if key in kernels and kernels[key].same_code(kernel)}
    return tuple(case for case in result.cases if case.kernel in same and case.status != "fail")


def emulated_identity(iteration: Iteration, config: KernelConfig) -> Kernel:
    """What a result says about a kernel whose PTX the emulator runs.

    Raises:
        FlashladderError: nothing here can compile it.
    """
    from flashladder.build.compile import ptx_for, tools_of
    from flashladder.emulate.take_reading import version
    from flashladder.machine_code.ptx import ptx_sha256, read_ptx

    return Kernel(
        iteration=iteration.number,
        config=config.short_form(),
        dtype=config.dtype,
        arch=iteration.family.targets.ptx,
        text_sha256=None,
        build=sha256(version() + rule() + ptx_sha256(read_ptx(ptx_for(iteration, config).ptx))),
        toolchain=dict(tools_of().ptx_versions),
    )


def write_emulated(path: Path, kernels: Mapping[str, Kernel], cases: Sequence[CaseResult]) -> Path:
    """Writes the cases of a check on the emulator, with the identity of every kernel among them."""
    result = EmulatedCheckResult(
        rung=rung(gpu=False, counted=False, clocks=False),
        host=this_host(),
        kernels={key: kernels[key] for key in dict.fromkeys(case.kernel for case in cases)},
        reference=reference_identity({}),
        cases=tuple(cases),
    )
    return write_result(path, result)
