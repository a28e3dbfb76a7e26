"""Question: of mistakes planted one by one in the code whose verdicts others trust, how many do its own tests notice?

mutmut plants them (an operator turned round, an argument dropped, a text changed) and runs, for each, the tests that
call the changed function. A room of configs/mutation.yaml has thousands, so a fixed share of each room is tried: those
whose text hashes lowest with the seed, which stay the same while their code does. A survivor is explained in the same
file, or a test is missing.

Run: ``nox -s mutation [-- ROOM ...] [--all] [--record]``; ``--record`` keeps the figures in tests/data/mutation.json
and renders docs/quality.md. Exit code 1: a room's score is too low, or a survivor is explained that no longer survives.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
import difflib
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from analysis import quality
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.files import sha256
from flashladder.located import read_yaml
from flashladder.paths import ROOT

SETTINGS = ROOT / "configs" / "mutation.yaml"
TREES = ROOT / "build" / "mutation"
KILLED = {"killed", "timeout", "segfault"}  # the test run did not pass
UNSEEN = {"survived", "no tests"}
Setting = Mapping[str, Any]  # of a room: `modules`, `tests`, `sample`


@dataclass(frozen=True)
class Mutant:
    """One planted mistake: mutmut's name of it, the function that holds it, its lines before and after."""

    name: str
    function: str
    before: str
    after: str

    @property
    def text(self) -> str:
        """What tells it from other mutants while its own lines stay as they are."""
        return f"{self.function}\n{self.before}\n{self.after}"


def sampled(mutants: Sequence[Mutant], seed: int, size: int | None) -> list[Mutant]:
    """The `size` mutants whose text hashes lowest with `seed`, or all (None)."""
    order = sorted(mutants, key=lambda mutant: (sha256(f"{seed}\n{mutant.text}"), mutant.name))
    return order[:size]


def from_spans(module: str, lines: Sequence[str], spans: Mapping[str, tuple[int, int]]) -> Iterator[Mutant]:
    """Mutants of a mutated file: `spans` gives first and last line (from 1) of each function mutmut wrote into it."""
    for name, (first, last) in spans.items():
        stem, _, number = name.rpartition("__mutmut_")
        if not number.isdigit():
            continue
        own_first, own_last = spans[f"{stem}__mutmut_orig"]
        before = [line.replace("__mutmut_orig", "", 1) for line in lines[own_first - 1 : own_last]]
        after = [line.replace(f"__mutmut_{number}", "", 1) for line in lines[first - 1 : last]]
        changed = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
        minus, plus = (" ".join(x[1:].strip() for x in changed if x[0] == sign) for sign in "-+")
        function = stem.removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")
        yield Mutant(f"{module}.{name}", f"{module}.{function}", minus, plus)


def planted(tree: Path, modules: Sequence[str]) -> list[Mutant]:
    """All that mutmut would plant in the files of `tree` that match `modules`."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    found: list[Mutant] = []
    for path in sorted(path for pattern in modules for path in tree.glob(pattern)):
        file = path.relative_to(tree)
        mutated = mutate_file_contents(str(file), path.read_text(encoding="utf-8"))
        spans = {name: (span.start, span.end) for name, span in mutated.line_span_by_function_name.items()}
        found += from_spans(".".join(file.with_suffix("").parts), mutated.code.splitlines(), spans)
    return found


def prepare(tree: Path, room: Setting, settings: Setting) -> None:
    """A copy of the checkout with mutmut's settings: what it writes, and where it works, is there alone."""
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
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


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """What mutmut does reads its settings from the folder it is started in."""
    try:
        from mutmut.configuration import reset_config
    except ModuleNotFoundError as error:
        raise FlashladderError("mutmut is missing", hint="run: nox -s mutation") from error

    before = Path.cwd()
    os.chdir(folder)
    reset_config()
    try:
        yield
    finally:
        os.chdir(before)


def tried(tree: Path, mutants: Sequence[Mutant]) -> dict[str, str]:
    """Runs mutmut on `mutants`; name to what came of it, as mutmut calls that."""
    from mutmut.stats import status_by_exit_code

    mutmut = Path(sys.executable).with_name("mutmut")
    with (tree / "mutmut.log").open("w", encoding="utf-8") as log:
        command = [str(mutmut), "run", "--max-children", str(len(os.sched_getaffinity(0)))]
        done = subprocess.run(
            [*command, *(mutant.name for mutant in mutants)], cwd=tree, stdout=log, stderr=log, check=False
        )
    if done.returncode:
        raise FlashladderError("mutmut could not run", where=str(tree / "mutmut.log"), hint="read its last lines")
    codes: dict[str, int | None] = {}
    for path in (tree / "mutants").rglob("*.meta"):
        codes |= dict(json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"])
    return {mutant.name: status_by_exit_code[codes[mutant.name]] for mutant in mutants}


def counted(mutants: Sequence[Mutant], outcome: Mapping[str, str], planted_in: Mapping[str, int]) -> dict[str, Any]:
    """Per module: mutants planted, tried, killed, timed out and survived."""
    modules: dict[str, dict[str, int]] = {}
    for module, number in planted_in.items():
        own = [outcome[mutant.name] for mutant in mutants if mutant.name.rpartition(".")[0] == module]
        modules[module] = {
            "planted": number,
            "tried": len(own),
            "killed": sum(one in KILLED and one != "timeout" for one in own),
            "timeout": own.count("timeout"),
            "survived": sum(one not in KILLED for one in own),
        }
    return modules


def stale(
    explained: Sequence[Mapping[str, str]], mutants: Sequence[Mutant], outcome: Mapping[str, str]
) -> Iterator[str]:
    """Explained survivors of these mutants' modules that are planted no more, or that a test kills by now."""
    modules = {mutant.name.rpartition(".")[0] for mutant in mutants}
    for one in explained:
        if not any(one["function"].startswith(f"{module}.") for module in modules):
            continue
        same = [mutant for mutant in mutants if (mutant.function, mutant.after) == (one["function"], one["becomes"])]
        if not same:
            yield f"{one['function']}: no mutant becomes `{one['becomes']}` any more"
        elif {outcome.get(mutant.name) in KILLED for mutant in same} == {True}:
            yield f"{one['function']}: a test notices `{one['becomes']}` by now"


def unexplained(
    explained: Sequence[Mapping[str, str]], mutants: Sequence[Mutant], outcome: Mapping[str, str]
) -> Iterator[Mutant]:
    """Survivors that no entry explains."""
    known = {(one["function"], one["becomes"]) for one in explained}
    for mutant in mutants:
        if outcome.get(mutant.name, "killed") in UNSEEN and (mutant.function, mutant.after) not in known:
            yield mutant


def judge(name: str, settings: Setting, size: int | None) -> tuple[dict[str, Any], list[str]]:
    """Tries one room; its figures per module and what is wrong."""
    room, tree = settings["rooms"][name], TREES / name
    prepare(tree, room, settings)
    with working_in(tree):
        mutants = planted(tree, room["modules"])
    chosen = sampled(mutants, settings["seed"], size)
    outcome = tried(tree, chosen)
    planted_in: dict[str, int] = {}
    for mutant in mutants:
        module = mutant.name.rpartition(".")[0]
        planted_in[module] = planted_in.get(module, 0) + 1
    figures = counted(chosen, outcome, planted_in)
    explained = [one for group in settings["survivors"] for one in group["mutants"]]
    problems = list(stale(explained, mutants, outcome))
    for mutant in unexplained(explained, chosen, outcome):
        print(f"survived: {mutant.function} ({outcome[mutant.name]})\n  - {mutant.before}\n  + {mutant.after}")
    score = quality.score(figures.values())
    print(f"{name}: {score:.1f} % of {len(chosen)} mutants noticed, {len(mutants)} planted", flush=True)
    if score < settings["score"]:
        problems.append(f"{name}: expected a score of {settings['score']} %, found {score:.1f} %")
    return figures, problems


def main(argv: Sequence[str] | None = None) -> None:
    """Tries the rooms that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", nargs="*", help="of configs/mutation.yaml")
    parser.add_argument("--all", action="store_true", help="every mutant instead of the sample (hours)")
    parser.add_argument("--record", action="store_true", help="keep the figures and render docs/quality.md")
    options = parser.parse_args(argv)
    with one_line_errors():
        settings: Any = read_yaml(SETTINGS)
        wrong = [name for name in options.room if name not in settings["rooms"]]
        if wrong:
            raise FlashladderError("no such room", expected=", ".join(settings["rooms"]), found=", ".join(wrong))
        problems: list[str] = []
        for name in options.room or settings["rooms"]:
            figures, found = judge(name, settings, None if options.all else settings["rooms"][name]["sample"])
            problems += found
            if options.record:
                quality.keep_mutation(name, figures)
        if problems:
            raise CheckFailed("; ".join(problems))


if __name__ == "__main__":
    main()
