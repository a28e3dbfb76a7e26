"""Files of iterations, GPUs and grids: malformed ones are one line, and the exported JSON Schemas are current."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from flashladder.errors import FlashladderError
from flashladder.ladder import json_schema as schema
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.located import read_yaml
from flashladder.paths import CONFIGS, ITERATIONS
from tests.null.malformed_templates import HOPPER_ROOT, HOPPER_STEP, ROOT, STEP

CASES = yaml.safe_load((Path(__file__).parents[2] / "data" / "malformed.yaml").read_text(encoding="utf-8"))


def fill(folder: Path, files: dict[str, str]) -> Path:
    """Writes the files of one case."""
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


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
    with pytest.raises(FlashladderError) as caught:
        load_all(fill(tmp_path, files))
    assert str(caught.value) == f"{tmp_path / name}:{case['line']}: {case['says']}"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("2_swizzle.yaml", b"", "bad file name: expected NN_name.yaml, lower case, found 2_swizzle.yaml"),
        ("02_Swizzle.yaml", b"", "bad file name: expected NN_name.yaml, lower case, found 02_Swizzle.yaml"),
        ("01_other.yaml", b"", "iteration 1 exists twice: expected one file per number, found 01_base.yaml"),
        ("02_latin.yaml", b"title: \xe9\n", "not UTF-8 (byte 0xe9 at offset 7); save the file as UTF-8"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    fill(tmp_path, {"01_base.yaml": ROOT})
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FlashladderError) as caught:
        load_all(tmp_path)
    assert str(caught.value) == f"{tmp_path / name}: {message}"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", [".#01_base.yaml", "._01_base.yaml", "#01_base.yaml#", "01_base.yaml~", ".x.yml"])
def test_what_editors_leave_is_no_iteration(tmp_path: Path, name: str) -> None:
    fill(tmp_path, {"01_base.yaml": ROOT})
    (tmp_path / name).symlink_to("somebody@nowhere.42:1")  # as Emacs locks a file
    assert [one.number for one in load_all(tmp_path)] == [1]


@pytest.mark.parametrize("name", ["17_mine.yml", "17_mine.YAML", "17_mine.Yml"])
def test_a_file_that_nobody_reads(tmp_path: Path, name: str) -> None:
    fill(tmp_path, {"01_base.yaml": ROOT, name: STEP})
    with pytest.raises(FlashladderError) as caught:
        load_all(tmp_path)
    hint = "rename it to 17_mine.yaml, or remove it"
    assert str(caught.value) == f"{tmp_path / name}: the file is not read; {hint}"
    assert caught.value.exit_code == 2


def test_a_file_of_thirty_megabytes_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    with (tmp_path / "01_base.yaml").open("wb") as stream:
        stream.truncate(30 << 20)  # sparse
    with pytest.raises(
        FlashladderError, match=r"01_base\.yaml: the file is too large: expected at most 256 KiB, found"
    ):
        load_all(tmp_path)


def test_the_error_of_a_parent_names_the_parents_file(tmp_path: Path) -> None:
    fill(tmp_path, {"01_base.yaml": ROOT.replace("softmax: exp", "softmax: expp"), "02_step.yaml": STEP})
    with pytest.raises(FlashladderError, match=r"01_base\.yaml:10: bad value for 'change\.softmax'"):
        load_all(tmp_path)


def test_exported_schemas_are_current() -> None:
    for path, text in schema.schemas().items():
        assert path.read_text(encoding="utf-8") == text, "run: python -m flashladder.ladder.json_schema"
    assert {path.name for path in (CONFIGS / "schema").glob("*.json")} == {path.name for path in schema.schemas()}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        *(("iteration", path) for path in sorted(ITERATIONS.glob("*.yaml"))),
        *(("gpu", path) for path in sorted((CONFIGS / "gpus").glob("*.yaml"))),
        *(("grid", path) for path in sorted((CONFIGS / "grids").glob("*.yaml"))),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.parent.name}-{value.stem}",
)
def test_committed_files_fit_their_json_schema(name: str, path: Path) -> None:
    rules = yaml.safe_load(next(text for file, text in schema.schemas().items() if file.stem == name))
    jsonschema.validate(read_yaml(path), rules)


def test_the_json_schema_refuses_what_the_models_refuse() -> None:
    rules = next(json.loads(text) for file, text in schema.schemas().items() if file.stem == "iteration")
    good = read_yaml(load_iteration(8).path)
    assert isinstance(good, dict)
    for bad in ({"titel": "x"}, {"change": {"layout": "round"}}, {"expect": {"sass": {"LOP3": {"falls": -1}}}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(good | bad, rules)


def test_the_schema_command_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(schema, "FOLDER", tmp_path)
    schema.main()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "gpu.json",
        "grid.json",
        "iteration.json",
    ]
    assert capsys.readouterr().out.count("wrote") == 3
