"""What a soak's result says: a table of it, and what is wrong in it.

Why apart from `flashladder.check.soak.command`: a committed file is judged by the same words, without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flashladder.columns import table
from flashladder.problem import Shape
from flashladder.results.schema import FarRows, Hammered, SoakResult


def problems(result: SoakResult) -> list[str]:
    """One line per thing that went wrong."""
    found = [f"hung: {result.hung}"] if result.hung else []
    found += [f"{one.kernel}, case {one.case}: {one.reason}" for one in result.cases if one.status == "fail"]
    found += [
        f"{one.kernel} at {told(one.shape)}: {one.differing} of {one.looks} looks found other bits than the first"
        for one in result.hammered
        if one.differing
    ]
    found += [
        f"{one.kernel} at {told(one.shape)}: elements of O are NaN or infinite, or were not written"
        for one in result.hammered
        if not one.finite
    ]
    return [*found, *(f"{one.kernel} at {told(one.shape)}: {line}" for one in result.far for line in _far(one))]


def _far(one: FarRows) -> Iterator[str]:
    if one.differing:
        yield f"{one.differing} of {one.launches} launches wrote other bits than the first"
    if not one.finite:
        yield "elements of O are NaN or infinite, or were not written"
    for what, error, allowed in (
        ("max error", one.max_error, one.max_allowed),
        ("relative RMS", one.rms_error, one.rms_allowed),
    ):
        if error is None or not error <= allowed:
            yield f"{what} {'NaN' if error is None else f'{error:.3g}'} (allowed {allowed:.3g})"


def told(shape: Shape) -> str:
    """``B=1, S=512, H=2``."""
    return f"B={shape.batch}, S={shape.seq_len}, H={shape.n_heads}"


def render(result: SoakResult) -> str:
    """A table of each part that was run."""
    lines = [f"{result.gpu.name}, torch {result.reference.torch}"]
    if result.cases:
        head = ("kernel", "cases", "passed", "refused", "runs of a case", "launches beside load", "of their time")
        rows = [head, *(_beside(result, key) for key in dict.fromkeys(one.kernel for one in result.cases))]
        lines += ["", "beside matrix products, bit for bit", *table(rows, None, right={1, 2, 3, 4, 5, 6})]
    if result.hammered:
        head = ("kernel", "shape", "by the host", "by graphs", "us each", "looks", "other bits")
        lines += ["", "launched again and again", *table([head, *map(_hammered, result.hammered)], None, right=RIGHT)]
    if result.far:
        head = ("kernel", "shape", "launches", "s each", "other bits", "max of allowed", "RMS of allowed")
        lines += ["", "long rows", *table([head, *map(_far_row, result.far)], None, right=RIGHT)]
    wrong = problems(result)
    return "\n".join([*lines, "", *(f"FAILED {line}" for line in wrong), f"{len(wrong)} problems"])


RIGHT = {2, 3, 4, 5, 6}


def _beside(result: SoakResult, key: str) -> Sequence[str]:
    own = [one for one in result.cases if one.kernel == key]
    load = [one for one in result.beside if one.kernel == key]
    spent = sum(one.seconds for one in load)
    counts = [sum(one.status == status for one in own) for status in ("pass", "not_applicable")]
    return (
        _short(key), str(len(own)), *map(str, counts), str(max(one.repeats for one in own)),
        f"{sum(one.launches for one in load):,}",
        f"{100 * sum(one.beside_s for one in load) / spent:.0f} %" if spent else "",
    )  # fmt: skip


def _hammered(one: Hammered) -> Sequence[str]:
    each = f"{one.seconds / one.launches * 1e6:.1f}"
    return (
        _short(one.kernel),
        told(one.shape),
        f"{one.plain:,}",
        f"{one.replayed:,}",
        each,
        str(one.looks),
        str(one.differing),
    )


def _far_row(one: FarRows) -> Sequence[str]:
    return (
        _short(one.kernel), told(one.shape), str(one.launches), f"{one.seconds:.3f}", str(one.differing),
        _share(one.max_error, one.max_allowed), _share(one.rms_error, one.rms_allowed),
    )  # fmt: skip


def _share(found: float | None, allowed: float) -> str:
    return "NaN" if found is None else f"{found / allowed:.0%}"


def _short(key: str) -> str:
    """``27 FP16`` of a kernel's key."""
    number, _, form = key.partition(" (")
    return f"{number} {form.partition(',')[0]}"
