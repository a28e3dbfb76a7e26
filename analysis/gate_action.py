"""Question: does a kernel run without a race, with right numbers? `action.yml` asks it in workflows of other projects.

Why: inputs of a workflow are anybody's text, and must reach a program as words, never a shell as code.

Run: ``GATE_PTX=own.ptx GATE_BLOCK=256 GATE_ARGS=float32:1024:randn python analysis/gate_action.py``. Exit code: 0 all
holds, 1 a check failed, 2 it could not run. docs/ci.md says what each input is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
import os
from pathlib import Path
import secrets
import subprocess
import sys
import tempfile

import numpy as np

from flashladder.errors import CheckFailed, FlashladderError, one_line_errors

VERDICTS = ("holds", "failed", "could not run")  # by exit code


@dataclass(frozen=True)
class Inputs:
    """The action's inputs, by name in capitals; one that is absent is empty."""

    given: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self.given.get(f"GATE_{name}", "").strip()

    def lines(self, name: str) -> list[str]:
        """The lines of an input that are not blank."""
        return [line.strip() for line in self[name].splitlines() if line.strip()]


@dataclass(frozen=True)
class Done:
    """A command that ran: what it is about, its exit code, what it printed."""

    what: str
    code: int
    text: str


def ran(what: str, package: str, *words: str) -> Done:
    """Runs the command of a package, `ptxemu` or `flashladder`."""
    done = subprocess.run(
        [sys.executable, "-m", package, *words], capture_output=True, text=True, check=False, errors="replace"
    )
    return Done(what, done.returncode, f"{done.stdout}{done.stderr}".strip())


def expectations(inputs: Inputs) -> tuple[dict[str, Path], float]:
    """Names of arrays to the files of what they must hold, and the largest difference allowed.

    Raises:
        FlashladderError: a line is not NAME=FILE, names no file, no array of `args`, or one twice; the tolerance is no
            number of at least 0, or of nothing.
    """
    lines = [line.partition("=") for line in inputs.lines("ARGS")]
    found, arrays = dict[str, Path](), [name if equals else f"arg{n}" for n, (name, equals, _) in enumerate(lines)]
    for line in inputs.lines("EXPECTED"):
        name, _, file = line.partition("=")
        if not Path(file).is_file() or name not in arrays or name in found:
            expected = f"NAME=FILE.npy of a file that exists, each name once, of {', '.join(arrays) or 'no argument'}"
            raise FlashladderError("bad input `expected`", expected=expected, found=line)
        found[name] = Path(file)
    try:
        allowed = float(inputs["TOLERANCE"] or 0)
    except ValueError:
        allowed = -1.0
    if not 0 <= allowed < float("inf") or (allowed and not found):
        expected = "a number of 0 or more, beside the input `expected`"
        raise FlashladderError("bad input `tolerance`", expected=expected, found=inputs["TOLERANCE"])
    return found, allowed


def compared(name: str, wanted: Path, got: Path, allowed: float) -> Done:
    """Holds an array to a file."""
    what = f"{name} is that of {wanted.name}"
    try:
        expected, found = (np.load(path, allow_pickle=False).astype(np.float64) for path in (wanted, got))
    except (ValueError, OSError) as error:
        return Done(what, 2, f"error: cannot compare {wanted}: {error}")
    if expected.shape != found.shape:
        return Done(what, 1, f"error: {name}: expected the shape {expected.shape}, found {found.shape}")
    with np.errstate(invalid="ignore"):
        differences = np.where(found == expected, 0.0, np.abs(found - expected))  # an infinity is equal to itself
    worst = float(np.max(differences, initial=0.0))
    if not worst <= allowed:  # NaN agrees with nothing
        at = ", ".join(map(str, np.unravel_index(np.argmax(differences), found.shape)))
        return Done(what, 1, f"error: {name}[{at}]: expected a difference of at most {allowed:g}, found {worst:g}")
    return Done(what, 0, f"largest difference {worst:g}, allowed {allowed:g}")


def ran_whole(program: str, options: Iterable[str], inputs: Inputs) -> Done:
    """Runs a host program; `FlashladderError`: inputs that are for kernels alone."""
    for name in ("KERNEL", "BLOCK", "EXPECTED"):
        if inputs[name]:
            raise FlashladderError(f"the input `{name.lower()}` is for `ptx` and `cuda`", found=inputs[name])
    if inputs["TOLERANCE"] not in ("", "0"):
        raise FlashladderError("the input `tolerance` is for `ptx` and `cuda`", found=inputs["TOLERANCE"])
    words = (*options, "--", program, *inputs.lines("ARGS"))
    return ran(f"{Path(program).name} runs without a hazard", "ptxemu", "run", *words)


def checks(inputs: Inputs, folder: Path) -> Iterator[Done]:
    """Everything that the inputs ask for: launches the kernel of a PTX or CUDA file and compares, checks, verifies.

    Raises:
        FlashladderError: the inputs ask for nothing, for two kernels, or for what cannot be.
    """
    kernels = [name.lower() for name in ("PTX", "CUDA", "PROGRAM") if inputs[name]]
    if not kernels and not inputs["ITERATION"] and not inputs["RESULT"]:
        raise FlashladderError("nothing to gate", expected="one of the inputs ptx, cuda, program, iteration, result")
    if len(kernels) > 1:
        expected = "one of the inputs ptx, cuda and program"
        raise FlashladderError("two kernels to gate", expected=expected, found=" and ".join(kernels))
    if inputs["ARCH"] and kernels not in (["cuda"], ["program"]):
        raise FlashladderError("the input `arch` is for `cuda` and `program`", found=inputs["ARCH"])
    if inputs["CUDA"] and not inputs["CUDA"].endswith(".cu"):
        raise FlashladderError("bad input `cuda`", expected="a file that ends in .cu", found=inputs["CUDA"])
    common = [
        f"--{name.lower()}={inputs[name]}"
        for name in ("ARCH", "SCHEDULES", "BASELINE", "SARIF", "JUNIT")
        if inputs[name]
    ]
    if program := inputs["PROGRAM"]:
        yield ran_whole(program, common, inputs)
    if file := inputs["PTX"] or inputs["CUDA"]:
        wanted, allowed = expectations(inputs)
        saved = {name: folder / f"{number}.npy" for number, name in enumerate(wanted)}
        names = ("KERNEL", "GRID", "BLOCK", "SHARED")
        yield ran(
            f"{Path(file).name} runs without a hazard", "ptxemu", "--hazards", "--counters", *common,
            *(f"--{name.lower()}={inputs[name]}" for name in names if inputs[name]),
            *(f"--arg={line}" for line in inputs.lines("ARGS")),
            *(f"--save={name}={path}" for name, path in saved.items()), "--", file,
        )  # fmt: skip
        for name, path in saved.items():
            if path.is_file():
                yield compared(name, wanted[name], path, allowed)
    if number := inputs["ITERATION"]:
        what = f"iteration {number} is right on the emulator"
        yield ran(what, "flashladder", "check", number, "--backend=emulator", "--quick")
    if result := inputs["RESULT"]:
        yield ran(f"{result} holds", "flashladder", "verify", result)


def tell(done: Done) -> None:
    """Prints a check as a group of the log; a failed one also as an annotation."""
    verdict, token = VERDICTS[min(done.code, 2)], secrets.token_hex(16)
    print(f"::group::{escaped(f'{verdict}: {done.what}')}\n::stop-commands::{token}")
    print(f"{done.text}\n::{token}::\n::endgroup::", flush=True)
    if done.code:
        last = (done.text.splitlines() or ["nothing was printed"])[-1]
        print(f"::error title={escaped(done.what, property=True)}::{escaped(last.removeprefix('error: '))}", flush=True)


def escaped(text: str, *, property: bool = False) -> str:  # noqa: A002 - the runner's word for it
    """`text` as a command of the runner takes it: on one line, and in a property without its separators."""
    for character in "%\r\n" + (":," if property else ""):
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def publish(environment: Mapping[str, str], finished: list[Done]) -> None:
    """Appends a table to the job's summary and ``passed`` to the step's outputs, where the runner names their files."""
    passed = bool(finished) and not any(done.code for done in finished)
    rows = [f"| {done.what.replace('|', chr(92) + '|')} | {VERDICTS[min(done.code, 2)]} |" for done in finished]
    for variable, text in (
        ("GITHUB_STEP_SUMMARY", "\n".join(["| check | |", "| --- | --- |", *rows])),
        ("GITHUB_OUTPUT", f"passed={str(passed).lower()}"),
    ):
        if path := environment.get(variable):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")


def main() -> int:
    """Runs the checks and gives the worst exit code."""
    finished = list[Done]()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for done in checks(Inputs(os.environ), Path(folder)):
                tell(done)
                finished.append(done)
    finally:
        publish(os.environ, finished)
    if worst := max(done.code for done in finished):
        named = ", ".join(done.what for done in finished if done.code)
        raise (CheckFailed if worst == 1 else FlashladderError)(f"the gate is closed: {named}")
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
