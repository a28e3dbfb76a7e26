"""The last step of `nox -s reproduce`: everything this machine can prove about the sixteen wheels that were just built.

With a GPU: each kernel is checked against a high-precision reference and timed beside FA2; both results go to
`results/<machine>/` and the report. With and without: results follow from their raw samples, tables and plot from
the results, machine code is the locked one, claims about it hold, progressions fit the published ones. Ends with the
table, where the plot is, and one line per check.

Run: ``nox -s reproduce``, or, in an environment that has the wheels, ``python -m flashladder.reproduce``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
import re
import sys

from flashladder.errors import CheckFailed, one_line_errors
from flashladder.files import RESULTS, relative
from flashladder.iteration import load_all

SECONDS_OF_CHECKS = 900.0  # no iteration is started after this; what is done by then is kept, and a rerun goes on


def require_wheels() -> list[str]:
    """Loads all sixteen wheels and returns one line about each.

    Raises:
        FlashladderError: a wheel is missing, or lacks a configuration that its iteration names.
    """
    from flashladder.installed import load_installed
    from flashladder.selection import select_configs

    lines = []
    for iteration in load_all():
        installed = load_installed(iteration.number)
        for config in select_configs(iteration, "prog"):
            installed.require(config)
        lines.append(f"iteration {iteration.number:2d}: {len(installed.built)} kernels")
    return lines


def machine_folder(gpu_name: str) -> Path:
    """Where results of this GPU model go: ``results/h200`` for a known one, else its name made safe for a path."""
    from flashladder.gpus import gpu_key

    return RESULTS / (gpu_key(gpu_name) or re.sub(r"[^a-z0-9]+", "_", gpu_name.lower()).strip("_"))


def measure() -> str:
    """Checks and times every iteration on this machine's GPU, and renders the report anew.

    Returns:
        One line that says what was done, or why nothing was.

    Raises:
        CheckFailed: a kernel computes something wrong.
    """
    from flashladder.toolchain import gpu_arch

    if gpu_arch() is None:
        return "no GPU here: kernels were built and their machine code is verified, but nothing was run or timed"
    from flashladder import bench, check, report
    from flashladder.device import open_device
    from flashladder.results import seal

    folder = machine_folder(open_device().gpu.name)
    check.main(["--all", f"--budget={SECONDS_OF_CHECKS:g}", f"--out={folder / 'check.json.gz'}"])
    bench.main(["--all", f"--out={folder / 'bench.json.gz'}"])
    seal(folder)
    report.report()
    return f"checked and timed on this GPU: {relative(folder)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Verifies, prints the table and one line per check; exit code 1 when a check failed."""
    parser = argparse.ArgumentParser(
        prog="python -m flashladder.reproduce",
        description="Everything this machine can prove about the sixteen built iterations.",
        epilog="example: nox -s reproduce",
    )
    parser.parse_args(argv)
    from flashladder import gate, report_tables
    from flashladder.report import PLOT, REPORT
    from flashladder.report_data import collect

    with one_line_errors():
        wheels = require_wheels()
        measured = measure()
        outcomes = gate.run_gate()
        print(report_tables.terminal(collect()))
        print(f"\nplot    {relative(REPORT / PLOT)}.svg, .png\ntables  {relative(REPORT / 'progression.md')}, .csv")
        print(f"\n{len(wheels)} wheels loaded; {measured}\n{gate.render(outcomes)}")
        failed = [outcome.name for outcome in outcomes if outcome.status == "failed"]
        if failed:
            raise CheckFailed("not reproduced: " + ", ".join(failed), hint="the lines above say which cell and why")
    print("reproduced: every check that this machine can run holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
