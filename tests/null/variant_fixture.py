"""A packed sweep of ablations and toolchains with known speeds, for tests of their tables and plots."""

from __future__ import annotations

from flashladder.ladder.ablation import load_description, parse_subject
from flashladder.problem import Shape
from flashladder.results.derive import derive
from flashladder.results.schema import A_A, BenchResult, Failure, Kernel, PlannedCell, Series, Sweep
from tests.null.bench_fixture import GOOD, SHAPE, group, pairs, result

LONG = Shape(batch=4, seq_len=16384, n_heads=16, d_head=128)
ABLATIONS = {
    ("16", ""): (1.00, 40),
    ("16 - swizzle", ""): (0.50, 124),  # the change is worth 100 %
    ("16 - store_policy", ""): (1.00, 40),  # nothing
    ("16 - backward", ""): (1.10, 0),  # it costs a tenth of what it would be without
    ("1", ""): (0.20, 0),
    ("1 + swizzle", ""): (0.50, 0),  # worth 150 %
}
TOOLCHAINS = {
    ("16", ""): (1.00, 40),
    ("16", "13.1"): (1.05, 8),
    ("16", "13.2"): (1.00, 40),
}
CRASHED = Failure(address="f" * 16, kind="crash", message="the worker died")


def config_of(subject: str) -> str:
    """The short form of a subject's configuration for an A100, in fp16."""
    return str(load_description(subject).configs["a100"])


def kernel(subject: str, cuda: str, spills: int, text: str) -> Kernel:
    named = parse_subject(subject, cuda)
    return Kernel(
        iteration=named.number, variant=named.variant, config=config_of(subject), dtype="fp16", arch="sm_90",
        text_sha256=text, registers=255, spill_stores=spills, spill_loads=spills + 4,
        toolchain={"nvidia-cuda-nvcc": f"{cuda or '13.0'}.88"},
    )  # fmt: skip


def planned(subject: str, cuda: str, shape: Shape, address: str) -> PlannedCell:
    return PlannedCell(
        subject=subject, config=config_of(subject), dtype="fp16", shape=shape, toolchain=cuda, code="c", address=address
    )


def sweep(
    cells: dict[tuple[str, str], tuple[float, int]],
    *,
    shapes: tuple[Shape, ...] = (SHAPE, LONG),
    crashed: tuple[str, str] | None = None,
    texts: dict[tuple[str, str], str] | None = None,
) -> BenchResult:
    """Each subject and toolchain timed at its speed relative to FA2; `crashed` is planned, and failed instead."""
    kernels, plan, groups = dict[str, Kernel](), list[PlannedCell](), []
    for n, shape in enumerate(shapes):
        groups.append(
            group(shape=shape).model_copy(update={"series": (Series(kernel=A_A, pairs=pairs(1.0, 90 + n, shape)),)})
        )
        for i, (name, (speed, spills)) in enumerate(cells.items()):
            one = kernel(*name, spills, (texts or {}).get(name, f"{i:02x}" * 32))
            kernels[one.key] = one
            plan.append(planned(*name, shape, f"{100 * n + i:016x}"))
            series = Series(kernel=one.key, pairs=pairs(speed, 7 * i + n, shape), before=GOOD, after=GOOD)
            groups.append(group(shape=shape).model_copy(update={"series": (series,)}))
    if crashed:
        plan.append(planned(*crashed, SHAPE, CRASHED.address))
    named = Sweep(grid="g", grid_sha256="0" * 64, planned=tuple(plan), failures=(CRASHED,) if crashed else ())
    return derive(result(*groups).model_copy(update={"kernels": kernels, "sweep": named}))
