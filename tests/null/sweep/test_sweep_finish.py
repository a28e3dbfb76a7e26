"""The end of a sweep: packed once, read afterwards, failures named; a finished one is answered at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
import time

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.results.files import load_result
from flashladder.results.schema import AnyResult
from flashladder.sweep import finish, plan
from flashladder.sweep.records import Records
from flashladder.sweep.screen import Screen
from tests.null.sweep_fixture import SMALL, digests, failed, grid, timed

MANY = (
    SMALL.replace("[1, 16]", "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]")
    .replace("dtypes: [fp16]", "dtypes: [fp16, bf16]")
    .replace(
        "  - {seq_len: 1024, batch: 1}\n",
        "".join(f"  - {{seq_len: {n}, batch: 1}}\n" for n in (1024, 2048, 4096, 8192)),
    )
)


def filled(tmp_path: Path, text: str = SMALL) -> tuple[plan.Plan, Records, Screen]:
    made = plan.make(grid(tmp_path, text), "h200", digests)
    records = Records(tmp_path / "out")
    for number, cell in enumerate(made.cells):
        records.write(timed(cell, made, seed=number))
    return made, records, Screen(made, made.cells, (), (), as_json=True)


def test_a_complete_sweep_is_packed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, records, screen = filled(tmp_path)
    assert finish.whole(made, records, screen) == 0
    out = tmp_path / "out.json.gz"
    first = out.stat().st_mtime_ns
    assert finish.whole(made, records, screen) == 0
    assert out.stat().st_mtime_ns == first
    assert capsys.readouterr().out.count("packed") == 1


def test_another_grids_document_is_not_replaced(tmp_path: Path) -> None:
    made, records, screen = filled(tmp_path)
    finish.require_own_name(made.grid, records.folder)  # nothing is there yet
    finish.whole(made, records, screen)
    finish.require_own_name(made.grid, records.folder)
    with pytest.raises(FlashladderError) as caught:
        finish.require_own_name(replace(made.grid, name="other"), records.folder)
    where = f"{tmp_path / 'out.json.gz'}: another grid's document has this place: "
    assert str(caught.value) == f"{where}expected other, found {made.grid.name}; another folder as --out"
    (tmp_path / "out.json.gz").write_bytes(b"half")
    finish.require_own_name(replace(made.grid, name="other"), records.folder)


def test_a_packed_document_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, records, screen = filled(tmp_path)
    finish.whole(made, records, screen)
    read: list[Path] = []

    def noted(path: Path) -> AnyResult:
        read.append(path)
        return load_result(path)

    monkeypatch.setattr(finish, "load_result", noted)
    finish.require_own_name(made.grid, records.folder)
    assert finish.whole(made, records, screen) == 0
    assert read == [tmp_path / "out.json.gz"]


@pytest.mark.parametrize("why", ["younger", "grid", "made_for", "damaged", "cells"])
def test_a_document_that_is_not_of_these_records_is_made_anew(tmp_path: Path, why: str) -> None:
    made, records, screen = filled(tmp_path)
    finish.whole(made, records, screen)
    out, made_for = tmp_path / "out.json.gz", None
    if why == "younger":
        records.write(timed(made.cells[0], made, seed=99))
    elif why == "grid":
        (tmp_path / "small.yaml").write_text(SMALL + "# changed\n", encoding="utf-8")
        made = plan.make(grid(tmp_path, SMALL + "# changed\n"), "h200", digests)
    elif why == "made_for":
        made_for = "a100"
    elif why == "damaged":
        out.write_bytes(b"")
    else:
        made = plan.Plan(made.grid, made.settings, made.cells[::-1])
    assert finish.packed_before(made, records, out, made_for) is None
    assert finish.whole(made, records, screen, made_for=made_for) == 0
    assert finish.packed_before(made, records, out, made_for) is not None


def test_failures_are_told_by_the_whole_and_by_a_part(tmp_path: Path) -> None:
    made, records, screen = filled(tmp_path)
    records.write(failed(made.cells[1]))
    for _ in range(2):  # packed, then read
        with pytest.raises(
            CheckFailed, match=r"1 of 6 cells failed, the first: 1 .* S=1024 .*: crash: its worker ended"
        ):
            finish.whole(made, records, screen)
    with pytest.raises(CheckFailed, match="1 of 3 cells failed"):
        finish.shard(records, made.cells[:3], (0, 2))
    assert finish.shard(records, made.cells[2:], (1, 2)) == 0


def test_a_finished_grid_of_192_cells_is_answered_within_three_seconds(tmp_path: Path) -> None:
    made, records, screen = filled(tmp_path, MANY)
    assert len(made.cells) >= 170
    finish.whole(made, records, screen)
    start = time.process_time()
    assert records.missing(made.cells) == []
    assert finish.whole(made, records, screen) == 0
    assert time.process_time() - start < 2.0  # what remains of three seconds is the start of Python
