"""The exported JSON Schemas: current, fitting every committed file, and refusing what the models refuse."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from flashladder.ladder import json_schema as schema
from flashladder.ladder.iteration import load_iteration
from flashladder.located import read_yaml
from flashladder.paths import CONFIGS, ITERATIONS


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
