"""Question: of mistakes planted one by one in the code whose verdicts others trust, how many do its own tests notice?

mutmut plants them (an operator turned round, an argument dropped, a text changed) and runs, for each, the tests that
call the changed function. A room of configs/mutation.yaml has thousands, so each run tries a fixed share of each room:
the mutants whose names hash lowest with the seed. docs/quality.md says what was found.

Run: ``nox -s mutation [-- ROOM ...] [--all]``. It prints the diff of each survivor. Exit code 1: a score is too low.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.files import sha256
from flashladder.located import read_yaml
from flashladder.paths import ROOT

SETTINGS = ROOT / "configs" / "mutation.yaml"
TREES = ROOT / "build" / "mutation"
MUTMUT = str(Path(sys.executable).with_name("mutmut"))  # of this environment
NOTICED = {"killed", "timeout", "segfault"}
Settings = Mapping[str, Any]


def planted(tree: Path, modules: Sequence[str]) -> list[str]:
    """The names of all mutants that mutmut would plant in the files of `tree` that match `modules`."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    found: list[str] = []
    for path in sorted(path for pattern in modules for path in tree.glob(pattern)):
        file = path.relative_to(tree)
        mutated = mutate_file_contents(str(file), path.read_text(encoding="utf-8"))
        module = ".".join(file.with_suffix("").parts)
        names = (name for name in mutated.line_span_by_function_name if name.rpartition("__mutmut_")[2].isdigit())
        found += [f"{module}.{name}" for name in names]
    return found


def prepare(tree: Path, room: Settings, settings: Settings) -> None:
    """Copies the checkout with mutmut's settings into `tree`, where mutmut works and writes."""
    shutil.rmtree(tree, ignore_errors=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    files = [name for name in os.fsdecode(listed.stdout).split("\0") if name and (ROOT / name).is_file()]
    for name in files:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    others = sorted({name.partition("/")[0] for name in files} - {"flashladder", "tests", "pyproject.toml"})
    options = {
        "source_paths": ["flashladder"],
        "only_mutate": room["modules"],
        "also_copy": others,
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-m", "not nvcc and not gpu and not slow"],
        "pytest_add_cli_args_test_selection": room["tests"],
        "timeout_multiplier": ["10"],  # of what its tests take: on a busy machine 4 were too few for some that pass
        "do_not_mutate_patterns": [ignored["pattern"] for ignored in settings["ignored"]],
    }
    text = "".join(f"{key} =\n" + "".join(f"    {one}\n" for one in values) for key, values in options.items())
    (tree / "setup.cfg").write_text(f"[mutmut]\n{text}use_git_change_detection = false\n", encoding="utf-8")


def tried(tree: Path, mutants: Sequence[str]) -> dict[str, str]:
    """Runs mutmut on `mutants`; what came of each, in mutmut's words."""
    from mutmut.stats import status_by_exit_code

    with (tree / "mutmut.log").open("w", encoding="utf-8") as log:
        command = [MUTMUT, "run", "--max-children", str(len(os.sched_getaffinity(0))), *mutants]
        done = subprocess.run(command, cwd=tree, stdout=log, stderr=log, check=False)
    if done.returncode:
        raise FlashladderError("mutmut could not run", where=str(tree / "mutmut.log"), hint="read its last lines")
    codes: dict[str, int | None] = {}
    for path in (tree / "mutants").rglob("*.meta"):
        codes |= dict(json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"])
    return {name: status_by_exit_code[codes[name]] for name in mutants}


def judge(name: str, settings: Settings, size: int | None) -> float:
    """Tries `size` mutants of one room (None: all) and prints its survivors; the percentage that tests noticed."""
    room, tree = settings["rooms"][name], TREES / name
    prepare(tree, room, settings)
    mutants = planted(tree, room["modules"])
    by_hash = sorted(mutants, key=lambda name: sha256(f"{settings['seed']}\n{name}"))
    outcome = tried(tree, by_hash[:size])
    for mutant, status in outcome.items():
        if status not in NOTICED:
            print(f"{status}: {mutant}", flush=True)
            subprocess.run([MUTMUT, "show", mutant], cwd=tree, check=False)
    score = 100.0 * sum(status in NOTICED for status in outcome.values()) / max(1, len(outcome))
    print(f"{name}: {score:.1f} % of {len(outcome)} mutants noticed, {len(mutants)} planted", flush=True)
    return score


def main(argv: Sequence[str] | None = None) -> None:
    """Tries the rooms that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", nargs="*", help="of configs/mutation.yaml")
    parser.add_argument("--all", action="store_true", help="every mutant instead of the sample (hours)")
    options = parser.parse_args(argv)
    with one_line_errors():
        settings: Any = read_yaml(SETTINGS)
        rooms, least = settings["rooms"], settings["score"]
        if wrong := [name for name in options.room if name not in rooms]:
            raise FlashladderError("no such room", expected=", ".join(rooms), found=", ".join(wrong))
        names = options.room or list(rooms)
        scores = {name: judge(name, settings, None if options.all else rooms[name]["sample"]) for name in names}
        if low := [f"{name} {score:.1f} %" for name, score in scores.items() if score < least]:
            raise CheckFailed("tests notice too few mutants", expected=f"a score of {least} %", found=", ".join(low))


if __name__ == "__main__":
    main()
