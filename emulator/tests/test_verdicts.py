"""Small kernels in right and wrong variants: right ones are silent and compute the right numbers, wrong ones reported.

The PTX, its CUDA source and the right verdict of each variant are in ``data/verdicts.json.gz``. Each runs in lockstep,
warp by warp from the last one, and in an order by chance.
"""

from __future__ import annotations

from collections.abc import Callable
import gzip
import json
from pathlib import Path
import sys
from typing import Any

import numpy as np
import pytest

import ptxemu
from ptxemu.command import Orders

DATA = json.loads(gzip.decompress((Path(__file__).parent / "data" / "verdicts.json.gz").read_bytes()))
SCHEDULES = ("together", "reverse", 1)
F32, I32 = np.float32, np.int32
X256 = np.arange(256, dtype=F32)
T32, T64 = np.arange(32), np.arange(64)
Launched = tuple[Any, Any, list[Any], Any]  # grid, threads, arguments (the first is the output), what is right
VARIANTS = [(case, name) for case, own in DATA["cases"].items() for name in own["variants"]]


def zeros(*shape: int, dtype: Any = F32) -> Any:
    return np.zeros(shape, dtype)


def copied(threads: int, size: int, *more: Any, blocks: int = 1) -> Launched:
    """A kernel that copies `size` numbers, in each of several blocks."""
    x = np.arange(size, dtype=F32)
    out = zeros(size) if blocks == 1 else zeros(blocks, size)
    return blocks, threads, [out, x, *more], x


def descriptor() -> Launched:
    numbers = np.random.default_rng(0)
    a, b = (numbers.integers(-4, 5, (rows, 64)).astype(np.float16) for rows in (64, 8))
    maps = [ptxemu.TensorMap(x, "f16", (64, len(x)), (128,), (64, len(x)), swizzle="128B") for x in (a, b)]
    product, t = a.astype(F32) @ b.astype(F32).T, np.arange(128)
    row, column = 16 * (t // 32) + t % 32 // 4, 2 * (t % 4)
    right = [product[row + 8 * down, column + across] for down in (0, 1) for across in (0, 1)]
    return 1, 128, [zeros(128, 4), *maps], np.stack(right, 1)


def tma_ring() -> Launched:
    x, out = np.arange(48 * 64, dtype=F32).reshape(48, 64), zeros(48, 64)
    maps = [ptxemu.TensorMap(one, "f32", (64, 48), (256,), (64, 8)) for one in (x, out)]
    return 1, 160, [out, maps[0], maps[1], I32(6)], 2 * x


def warp_wide_tma_store() -> Launched:
    out = zeros(8, 64)
    target = ptxemu.TensorMap(out, "f32", (64, 8), (256,), (64, 4))
    return 1, 128, [out, target], np.concatenate([X256, zeros(256)]).reshape(8, 64)


def bulk_store_release() -> Launched:
    return 1, 160, [zeros(6, 128), I32(6)], 1000 * np.arange(6)[:, None] + np.arange(128)


LAUNCHES: dict[str, Callable[[], Launched]] = {
    "descriptor": descriptor,
    "dsmem": lambda: (2, 64, [zeros(2, 64)], np.stack([100 + (T64 ^ 1), T64 ^ 1])),
    "elect_assumes_lane0": lambda: copied(256, 256),
    "global_proxy": lambda: (1, 256, [zeros(256), zeros(256)], X256),
    "noinc_clock": lambda: copied(64, 128),
    "setmaxnreg": lambda: (1, 384, [zeros(384)], np.ones(384)),
    "st_async": lambda: (2, 64, [zeros(2, 64, dtype=I32)], np.stack([100 + T64, T64])),
    "store_exit": lambda: (1, 128, [zeros(128)], np.arange(128)),
    "test_wait_once": lambda: copied(256, 256),
    "global_protocols": lambda: (4, 64, [zeros(1), zeros(4), zeros(1, dtype=np.uint32)], X256.sum()),
    "matrix_suffix_order": lambda: (1, 32, [zeros(128, dtype=np.uint32)], np.arange(128)),
    "spin_flags": lambda: (1, 64, [zeros(32)], T32),
    "warp_masks": lambda: (1, 64, [zeros(64, dtype=I32)], T64 ^ 1),
    "warp_wide_tma_store": warp_wide_tma_store,
    "arrive_no_syncwarp": lambda: (1, 64, [zeros(32), T32.astype(F32)], 2 * T32[::-1]),
    "bounds": lambda: copied(64, 64, I32(64)),
    "bulk_store_release": bulk_store_release,
    "init_fence": lambda: copied(256, 256),
    "mbarrier_order": lambda: (1, 64, [zeros(32)], 2 * T32[::-1]),
    "mixed_deadlock": lambda: (2, 64, [zeros(128)], 1),
    "multicast_mask": lambda: copied(256, 256, blocks=2),
    "stuck_lane": lambda: (1, 64, [zeros(64)], None),
    "tma_ring": tma_ring,
    "two_loads_one_bar": lambda: copied(256, 256),
    "warp_reduction": lambda: (1, 32, [zeros(1)], 2016),
}
WITHOUT_OUTPUT = ("tma_ring", "warp_wide_tma_store")  # their output is a tensor map's


def verdict(case: str, name: str, schedule: str | int) -> tuple[set[str], bool]:
    """The kinds of what is reported, and whether the numbers are right, of `--schedules` with one order more."""
    grid, threads, (out, *rest), right = LAUNCHES[case]()
    hazards, kinds = ptxemu.Hazards(), set[str]()
    arguments = rest if case in WITHOUT_OUTPUT else [out, *rest]
    kernel = ptxemu.load(DATA["cases"][case]["variants"][name]["ptx"]).kernel()

    def launch(order: str | int, observers: Any) -> Any:
        return kernel.launch(grid, threads, arguments, observers=observers, schedule=order, max_instructions=20_000)

    orders = Orders([schedule, schedule], launch, hazards, {"out": out} if isinstance(out, np.ndarray) else {})
    try:
        orders.run(ptxemu.Counters())
    except ptxemu.EmulationError as error:
        kinds.add(error.kind)
    kinds |= {report.kind for report in hazards.reports}
    return kinds, right is None or bool((out == right).all())


@pytest.mark.parametrize(("case", "name"), VARIANTS)
def test_the_verdict_is_right_in_every_order(case: str, name: str) -> None:
    variant = DATA["cases"][case]["variants"][name]
    wrong = []
    for schedule in SCHEDULES:
        kinds, right = verdict(case, name, schedule)
        expected = not kinds and right if variant["right"] == "silent" else bool(kinds)
        if not expected:
            wrong.append(schedule)
    assert wrong == [], f"{variant['right']}: {variant['why']}"


FOUND = ("potential_race", "not_wellsynced", "invalid_lifecycle")  # results of SentryWard


def compared() -> list[str]:
    """Rows of the page's table: what the tools report; ptxemu is right, as tested above."""
    rows, sums = [], [0] * 11
    for case, own in DATA["cases"].items():
        counts = [0] * 11
        for variant in own["variants"].values():
            tools, proof = any(variant["h200"]["sanitizer"].values()), variant["sentryward"]["result"]
            silent = variant["right"] == "silent"
            judged = proof in (*FOUND, "race_free")
            hangs = not tools and variant["h200"]["alone"] == "hangs"
            told: tuple[int, ...] = (1, tools, hangs, proof in FOUND, judged, True)
            if silent:
                told = (0,) * 6 + (1, tools, proof in FOUND, judged, False)
            counts = [one + more for one, more in zip(counts, (*told, *[0] * (11 - len(told))), strict=True)]
        sums = [one + more for one, more in zip(sums, counts, strict=True)]
        rows.append(f"| `{case}` | {_cells(counts)} |")
    return [*sorted(rows), f"| all | {_cells(sums)} |"]


def _cells(counts: list[int]) -> str:
    cells = list(map(str, counts))
    for at in (8, 3):
        cells[at : at + 2] = [f"{counts[at]} of {counts[at + 1]}"]
    return " | ".join(cells)


def test_the_page_says_what_other_tools_found() -> None:
    page = (Path(__file__).parents[1] / "docs" / "verdict.md").read_text(encoding="utf-8").splitlines()
    rows = compared()
    begin = page.index(rows[0])
    assert page[begin : begin + len(rows)] == rows


def test_every_case_is_launched() -> None:
    assert LAUNCHES.keys() == DATA["cases"].keys()


if __name__ == "__main__":  # python -m tests.test_verdicts CASE VARIANT: on this machine's GPU
    from ptxemu.chip import open_gpu

    wanted, which = sys.argv[1:]
    grid, threads, (result, *others), right = LAUNCHES[wanted]()
    given = others if wanted in WITHOUT_OUTPUT else [result, *others]
    with open_gpu() as gpu:
        gpu.load(DATA["cases"][wanted]["variants"][which]["ptx"]).kernel().launch(grid, threads, given)
    print("right" if right is None or bool((result == right).all()) else "wrong")
