"""JSON Schema of the YAML files, for editors.

``python -m flashladder.ladder.json_schema`` writes ``configs/schema/*.json``.

Why generated: the pydantic models are the truth; a test checks that the committed files are current.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
import sys
from typing import Any, Union

from pydantic import TypeAdapter

from flashladder.arguments import Parser
from flashladder.errors import one_line_errors
from flashladder.files import dump_json, relative, write_atomic
from flashladder.ladder.family import families
from flashladder.ladder.gpus import Gpu
from flashladder.ladder.grid import GridFile
from flashladder.ladder.iteration import file_model
from flashladder.paths import CONFIGS

FOLDER = CONFIGS / "schema"


def models() -> Mapping[str, Any]:
    """Name to what a file may be: an iteration is one of its family's."""
    iteration: Any = Union[tuple(file_model(family) for family in families())]  # noqa: UP007  # of a computed tuple
    return {"iteration": iteration, "gpu": Gpu, "grid": GridFile}


def schemas() -> dict[Path, str]:
    """File to text of every schema, as it should be on disk."""
    return {
        FOLDER / f"{name}.json": dump_json(
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                **TypeAdapter(model).json_schema(mode="validation"),
            }
        )
        for name, model in models().items()
    }


def main(argv: Sequence[str] = ()) -> None:
    """Writes all schemas; the command line takes nothing."""
    description = "Writes the JSON Schemas of all YAML files."
    Parser(prog="python -m flashladder.ladder.json_schema", description=description).parse_args(argv)
    for path, text in schemas().items():
        write_atomic(path, text)
        print(f"wrote {relative(path)}")


if __name__ == "__main__":
    with one_line_errors():
        main(sys.argv[1:])
