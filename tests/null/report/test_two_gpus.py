"""What docs/sweeps.md says about two GPUs, derived again from the committed sweeps of one and of two."""

from __future__ import annotations

import csv
import re

from flashladder.paths import RESULTS, ROOT
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult

H200 = RESULTS / "h200"
TEXT = " ".join((ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8").split())


def test_two_gpus_finish_a_grid_almost_twice_as_fast() -> None:
    rows = list(csv.DictReader((H200 / "throughput.csv").read_text(encoding="utf-8").splitlines()))
    busy: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row["sweep"], row["gpu"])
        busy[key] = busy.get(key, 0.0) + float(row["seconds"])
    one = sum(seconds for (sweep, _), seconds in busy.items() if sweep == "ablation_one_gpu")
    longest = max(seconds for (sweep, _), seconds in busy.items() if sweep == "ablation")
    cells = [{row["cell"] for row in rows if row["sweep"] == sweep} for sweep in ("ablation", "ablation_one_gpu")]
    assert cells[0] == cells[1]
    assert one / longest >= 1.9
    assert f"at {one / longest:.2f} times the throughput of one" in TEXT
    warm = sorted(float(row["overhead_s"]) for row in rows)
    assert warm[len(warm) // 2] < 1.5


def test_their_ratios_repeat_within_the_floor() -> None:
    one, two = (load_as(H200 / f"{name}.json.gz", BenchResult) for name in ("ablation_one_gpu", "ablation"))
    ratios = [{(each.kernel, each.shape): each.pct for each in result.summaries} for result in (one, two)]
    assert ratios[0].keys() == ratios[1].keys()
    moved = [abs(ratios[0][cell] - ratios[1][cell]) for cell in ratios[0]]
    floor = max(one.floors_pct["fp16"], two.floors_pct["fp16"])
    found = re.search(
        r"(\d+) of (\d+) ratios repeated within the A/A floor of ([\d.]+) points, all within ([\d.]+)", TEXT
    )
    assert found
    within = sum(change <= floor for change in moved)
    assert found.groups() == (str(within), str(len(moved)), f"{floor:.2f}", f"{max(moved):.2f}")
