"""Errors beside FA2's: pooling of seeds, the page, and edits of the committed files that the gate names."""

from __future__ import annotations

from collections.abc import Callable
import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from flashladder.gate.verify import verify_file
from flashladder.paths import RESULTS
from flashladder.report.accuracy import NAME, cells, load_errors, page
from flashladder.results.files import read_json
from tests.typed import error_line

Edit = Callable[[dict[str, Any]], object]


def edited(tmp_path: Path, edit: Edit, of: Path = RESULTS / "h200" / NAME) -> Path:
    """A copy of a committed file with one edit."""
    document = read_json(of)
    edit(document)
    path = tmp_path / of.name
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def larger(inputs: str, arm: str, which: int, factor: float) -> Edit:
    """Sets one error of the first fp16 draw of `inputs` to `factor` times FA2's; `which`: 0 maximum, 1 RMS."""

    def edit(document: dict[str, Any]) -> None:
        draws = (one["errors"] for one in document["records"] if (one["inputs"], one["dtype"]) == (inputs, "fp16"))
        errors = next(draws)
        errors[arm][which] = errors["fa2"][which] * factor

    return edit


EDITS: dict[str, tuple[Edit, str]] = {
    "a maximum on N(0, 1)": (larger("normal", "19", 0, 9.0), "iteration 19, fp16, normal, S = 128: maximum error"),
    "an RMS on N(0, 1)": (larger("normal", "17", 1, 4.0), "iteration 17, fp16, normal, S = 128: RMS error"),
    "no number": (larger("scale 30", "19", 0, math.nan), "maximum error nan times FA2's, allowed 2"),
    "an arm": (lambda d: [r["errors"].pop("18") for r in d["records"]], "expected errors of iterations 16, 17, 18, 19"),
    "a draw twice": (lambda d: d["records"].__setitem__(3, d["records"][2]), "expected one record, found 2"),
    "no error at all": (larger("outlier", "18", 0, 0.0), "implausible errors"),
}


@pytest.mark.parametrize(("edit", "message"), EDITS.values(), ids=EDITS)
def test_an_edit_is_named(tmp_path: Path, edit: Edit, message: str) -> None:
    found = verify_file(edited(tmp_path, edit)).details
    assert any(message in line for line in found), found


@pytest.mark.parametrize(("name", "arm"), [(NAME, "19"), ("accuracy_hopper.json.gz", "24")])
@pytest.mark.parametrize(("factor", "inputs"), [(1.19, "normal"), (1.21, "normal"), (1.21, "rising")])
def test_the_first_family_has_a_bound_of_its_own_on_normal_inputs(
    tmp_path: Path, name: str, arm: str, factor: float, inputs: str
) -> None:
    def edit(document: dict[str, Any]) -> None:
        for one in document["records"]:
            one["errors"] = {arm: [*one["errors"]["fa2"]] for arm in one["errors"]}
            if (one["inputs"], one["seq_len"], one["dtype"]) == (inputs, 512, "bf16"):
                one["errors"][arm][0] *= factor

    found = list(verify_file(edited(tmp_path, edit, RESULTS / "h200" / name)).details)
    line = f"iteration {arm}, bf16, {inputs}, S = 512: maximum error 1.210 times FA2's, allowed 1.2"
    assert found == ([line] if (arm, factor, inputs) == ("19", 1.21, "normal") else [])


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["records"][0]["errors"].pop("fa2"),
        lambda d: d["records"][0]["errors"].update(fa2=[0.0, 0.0]),
        lambda d: d["records"][0].update(seq_len="512"),
        lambda d: d["records"][0]["errors"].update({"19": [1e-5]}),
        lambda d: d["records"][0]["errors"].update({"19": [10**400, 1e-5]}),
        lambda d: [one["errors"].update(cudnn=one["errors"]["fa2"]) for one in d["records"]],
    ],
)
def test_another_form_is_one_line(tmp_path: Path, edit: Edit) -> None:
    assert "not a file of errors" in error_line(lambda: load_errors(edited(tmp_path, edit)))


def test_seeds_are_pooled_and_the_page_shows_the_worst_length() -> None:
    """The maximum of the maxima, the root of the mean of the squares, over FA2's of the same draws."""
    document = load_errors(RESULTS / "h200" / NAME)
    where = ("bf16", "normal", 1024)
    drawn = [one.errors for one in document.records if (one.dtype, one.inputs, one.seq_len) == where]
    assert len(drawn) == 5
    (cell,) = (one for one in cells(document) if (one.dtype, one.inputs, one.seq_len) == where)
    assert cell.maximum["19"] == max(one["19"][0] for one in drawn)
    assert cell.rms["fa2"] == pytest.approx(math.sqrt(sum(one["fa2"][1] ** 2 for one in drawn) / 5))
    worst = max(c.ratios("17")[0] for c in cells(document) if (c.dtype, c.inputs) == ("fp16", "normal"))
    (line,) = (one for one in page(document).splitlines() if one.startswith("| N(0, 1)") and " fp16 " in one)
    assert line.split("|")[5].strip() == f"{worst:.2f}"
