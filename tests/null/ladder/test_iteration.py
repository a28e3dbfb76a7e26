"""Iterations: what is read, what is refused, and ablations of them."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import partial
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from flashladder.errors import FlashladderError
from flashladder.ladder.ablation import load_description, parse_subject
from flashladder.ladder.claim import Claim
from flashladder.ladder.families.ampere import AmpereConfig
from flashladder.ladder.grid import schemas
from flashladder.ladder.iteration import claim_configs, load_all, load_iteration
from flashladder.located import read_yaml
from flashladder.names import GPUS
from flashladder.paths import CONFIGS, ITERATIONS, RESULTS
from tests.data_files import table_of, text_of
from tests.typed import error_line

ROOT = text_of("null/ladder/iteration", "root")
STEP = text_of("null/ladder/iteration", "step")
HOPPER_ROOT = text_of("null/ladder/iteration", "hopper_root")
HOPPER_STEP = text_of("null/ladder/iteration", "hopper_step")


LADDER = load_all()
PUBLISHED = (RESULTS / "published" / "published_configs.csv").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("row", list(csv.DictReader(PUBLISHED)), ids=lambda row: f"{row['iteration']}-{row['gpu']}")
def test_configurations_are_the_published_winners(row: dict[str, str]) -> None:
    configs = load_iteration(int(row["iteration"])).configs
    knobs: dict[str, Any] = {name: int(row[name]) for name in list(row)[3:]}  # 0 and 1 equal False and True
    for gpu in ("a100", "rtx3090") if row["gpu"] == "any" else (row["gpu"].lower(),):
        assert configs[gpu] == AmpereConfig(dtype=row["dtype"], **knobs)


def test_an_absent_configuration_is_inherited(tmp_path: Path) -> None:
    files = {path.name: path.read_text(encoding="utf-8") for path in ITERATIONS.glob("*.yaml")}
    static = (
        "iteration: 8\ntitle: Static\nparent: 7\nwhy: A sentence about the mechanism, long enough to be read.\n"
        "change: {layout: xor_static}\nconfigs:\n  rtx3090: {load_tiles: [0, 2, 0]}\n"
    )
    fill(tmp_path, files | {load_iteration(8).path.name: static})
    before, after = load_iteration(7, tmp_path), load_iteration(8, tmp_path)
    assert after.configs["a100"] == replace(before.configs["a100"], optimized_softmax=False)
    assert after.configs["rtx3090"].load_tiles == (0, 2, 0)
    assert after.configs["rtx3090"].mma_double_buffer_loads
    knobs = {"Q_mma_load_K_tiles": 0, "K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 0}
    assert dict(after.own_configs) == {"rtx3090": knobs}


def test_an_edited_file_is_read_again_and_a_gpus_own_knobs_win_over_those_of_any(tmp_path: Path) -> None:
    for more, tile in (("", 64), ("  rtx3090: {B_c: 32}\n", 32)):
        fill(tmp_path, {"01_base.yaml": ROOT + more})
        configs = load_iteration(1, tmp_path).configs
        assert [(configs[gpu].B_r, configs[gpu].B_c) for gpu in GPUS] == [(64, 64), (64, tile), (64, 64)]


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    for load in (load_all, partial(load_iteration, 1)):
        message = error_line(partial(load, folder=tmp_path))
        assert message == f"{tmp_path}: no iterations found: expected files named NN_name.yaml"
    with pytest.raises(FlashladderError, match=r"nowhere: cannot read the folder \(No such file or directory\)$"):
        load_all(tmp_path / "nowhere")


def test_claims_are_made_at_equal_tiles() -> None:
    for step in LADDER[1:]:
        own, parent = claim_configs(step)
        if load_iteration(step.parent or 0).family is not step.family:
            assert parent is None
            continue
        assert parent is not None
        assert own.tile == parent.tile
        assert step.family.conflicts(step.parts, own) == ()
        assert step.family.conflicts(load_iteration(step.parent or 0).parts, parent) == ()
    assert claim_configs(LADDER[0])[1] is None
    own, _ = claim_configs(load_iteration(8))
    assert own.short_form() == "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles"


def test_claim_arithmetic() -> None:
    falls, equals = Claim("A+B", "kernel", "falls", at_least=0.5), Claim("A", "kernel", "equals")
    assert falls.holds({"A": 1, "B": 1}, {"A": 3, "B": 1})
    assert not falls.holds({"A": 1, "B": 2}, {"A": 3, "B": 1})
    assert not Claim("A", "kernel", "falls").holds({"A": 3}, {"A": 3})
    assert Claim("A", "kernel", "rises").holds({"A": 1}, {})
    assert replace(equals, metric="total").holds({"A": 1, "B": 2}, {"total": 3})
    assert not replace(equals, metric="TYPO").holds({"A": 1}, {"A": 1})
    assert equals.holds({"A": 0}, {"A": 0})
    assert not replace(equals, metric="A/B", value=0).holds({"A": 1, "B": 0})
    ratio = replace(equals, metric="A/B", value=32, within=0.01)
    assert ratio.holds({"A": 322, "B": 10})
    assert not ratio.holds({"A": 324, "B": 10})
    assert not replace(equals, value=0).holds({"A": math.nan})
    assert not Claim("A", "kernel", "falls").holds({"A": math.nan}, {"A": 1})
    with pytest.raises(ValueError, match="needs the parent's counts"):
        falls.holds({"A": 1})


CASES = yaml.safe_load((Path(__file__).parents[2] / "data" / "malformed.yaml").read_text(encoding="utf-8"))


def fill(folder: Path, files: dict[str, str]) -> None:
    """Writes the files of one case."""
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def edited(case: dict[str, Any]) -> tuple[dict[str, str], str]:
    """The files of a case of tests/data/malformed.yaml, and the name of the malformed one."""
    kind = case["case"].partition("-")[0]
    base, step = (HOPPER_ROOT, HOPPER_STEP) if kind == "hopper" else (ROOT, STEP)
    name = case.get("file", "01_base.yaml" if kind == "root" else "02_step.yaml")
    lines = (base if kind == "root" else step).splitlines(keepends=True)
    if "lines" in case:
        first, last = case["lines"]
        lines[first - 1 : last] = [case["become"]]
    text = case.get("text", "".join(lines))
    return ({name: text} if kind == "root" else {"01_base.yaml": base, name: text}), name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_one_line(tmp_path: Path, case: dict[str, Any]) -> None:
    files, name = edited(case)
    fill(tmp_path, files)
    assert error_line(partial(load_all, tmp_path)) == f"{tmp_path / name}:{case['line']}: {case['says']}"


@pytest.mark.parametrize(("name", "data", "message"), table_of("null/ladder/iteration", "bad_files"))
def test_bad_files(tmp_path: Path, name: str, data: str, message: str) -> None:
    fill(tmp_path, {"01_base.yaml": ROOT})
    (tmp_path / name).write_bytes(data.encode("latin-1"))
    assert error_line(partial(load_all, tmp_path)) == f"{tmp_path / name}: {message}"


def test_what_editors_leave_is_no_iteration_and_a_file_that_nobody_reads_is_told(tmp_path: Path) -> None:
    fill(tmp_path, {"01_base.yaml": ROOT})
    for name in (".#01_base.yaml", "._01_base.yaml", "#01_base.yaml#", "01_base.yaml~", ".x.yml"):
        (tmp_path / name).symlink_to("somebody@nowhere.42:1")  # as Emacs locks a file
    assert [one.number for one in load_all(tmp_path)] == [1]
    fill(tmp_path, {"17_mine.YAML": STEP})
    assert "the file is not read; rename it to 17_mine.yaml, or remove it" in error_line(load_all, tmp_path)


SCHEMAS = {path: path.read_text(encoding="utf-8") for path in (CONFIGS / "schema").glob("*.json")}
RULES = {path.stem: json.loads(text) for path, text in SCHEMAS.items()}
FOLDERS = {"iteration": ITERATIONS, "gpu": CONFIGS / "gpus", "grid": CONFIGS / "grids"}


def test_exported_schemas_are_current() -> None:
    assert schemas() == SCHEMAS, "run: python -m flashladder.ladder.grid"


@pytest.mark.parametrize("name", FOLDERS)
def test_committed_files_fit_their_json_schema(name: str) -> None:
    for path in FOLDERS[name].glob("*.yaml"):
        jsonschema.validate(read_yaml(path), RULES[name])


def test_the_json_schema_refuses_what_the_models_refuse() -> None:
    good = read_yaml(load_iteration(8).path)
    assert isinstance(good, dict)
    for bad in ({"titel": "x"}, {"change": {"layout": "round"}}, {"expect": {"sass": {"LOP3": {"falls": -1}}}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(good | bad, RULES["iteration"])


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("28 - flattened", ", without flattened, and so without split and merged store"),
        ("16 - static_swizzle", ", without static swizzle, and so without row major and encoded"),
        ("16 + stale_maximum", "GMEM stride, with stale maximum"),
    ],
)
def test_the_title_names_what_goes_back_too(text: str, end: str) -> None:
    assert load_description(text).title.endswith(end)


@pytest.mark.parametrize(("text", "change"), table_of("null/ladder/iteration", "ablations"))
def test_one_change_and_what_hangs_on_it(text: str, change: dict[str, object]) -> None:
    assert dict(load_description(text).change) == change


def test_configurations_follow_the_parts_of_an_ablation() -> None:
    base = load_iteration(16).configs["a100"]
    for text, found in (
        ("16 - tiled", ((0, 0, 0), False)),
        ("16 - double_buffer", (base.load_tiles, False)),
        ("3 + double_buffer", ((2, 2, 2), True)),
    ):
        config = load_description(text).configs["a100"]
        assert (config.load_tiles, config.mma_double_buffer_loads) == found
    assert load_description("9 - tuned").configs["a100"].brief() == "64,64,4 2_2_2+buffer"
    assert dict(load_description("6 + tuned").configs) == dict(load_iteration(7).configs)


@pytest.mark.parametrize("number", range(2, 17))
def test_every_name_that_can_be_taken_back_gives_a_legal_iteration(number: int) -> None:
    with pytest.raises(FlashladderError) as caught:
        load_description(f"{number} - nothing")
    names = str(caught.value.expected).removeprefix("one of ").split(", ")
    assert len(names) >= number - 1
    for name in {*names} - ({"tuned"} if number == 7 else set()):  # 7 without it is iteration 6
        ablation = load_description(f"{number} - {name}")
        assert not ablation.family.contradictions(ablation.parts)
        assert ablation.parts != load_iteration(number).parts or ablation.configs != load_iteration(number).configs
        for config in ablation.configs.values():
            assert ablation.family.conflicts(ablation.parts, config) == ()


@pytest.mark.parametrize(("text", "message"), table_of("null/ladder/iteration", "bad_descriptions"))
def test_bad_descriptions(text: str, message: str) -> None:
    assert message.replace("LAST", str(len(LADDER))) in error_line(partial(load_description, text))


def test_a_ladder_with_gaps_lists_its_numbers(tmp_path: Path) -> None:
    fill(tmp_path, dict.fromkeys(("01_step.yaml", "02_step.yaml", "04_step.yaml"), ""))
    assert "no such iteration: expected one of 1, 2, 4, found 3" in error_line(load_iteration, 3, tmp_path)


@pytest.mark.parametrize(
    ("subject", "cuda", "text", "variant", "package", "options", "session"), table_of("null/ladder/iteration", "names")
)
def test_every_name_follows(
    subject: int | str, cuda: str, text: str, variant: str, package: str, options: str, session: str
) -> None:
    found = parse_subject(subject, cuda)
    assert (found.text, found.variant, found.options) == (text, variant, options)
    assert found.session == f"nox -s build-iteration-{found.number}{session}"
    assert load_description(found.text).description == text
    assert found.package == f"flashladder_{found.tag}" == f"flashladder_{package}"
