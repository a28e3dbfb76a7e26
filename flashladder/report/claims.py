"""The report's table of claims that hold on some architectures only: what the step did on the others.

Why: the reasons of the ladder were published for sm_80. Where another assembler had done the work already, a reader of
another GPU's column must not take the reason for that column's. Nothing to run here; `invoke report` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from flashladder.columns import markdown
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import load_all
from flashladder.lock.code_claims import Verdict, verify
from flashladder.lock.step_counts import read_counts


def gpus_of(arch: str) -> str:
    """``sm_90 (H100, H200)``."""
    names = [gpu.title for gpu in load_gpus().values() if gpu.arch == arch]
    return f"{arch} ({', '.join(names)})" if names else arch


def found(verdicts: Sequence[Verdict]) -> str:
    """Counts with the places where they were found, equal ones once."""
    by_counts: dict[str, list[str]] = {}
    for verdict in verdicts:
        failing = "" if verdict.holds else ", which fails"
        by_counts.setdefault(verdict.counts + failing, []).append(verdict.place)
    return "; ".join(f"{counts} ({', '.join(places)})" for counts, places in by_counts.items())


def rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """Step, claim, what was found where it is made, and where it is not."""
    table = []
    for claim, number in dict.fromkeys((one.claim, one.iteration) for one in verdicts if one.claim.on):
        own = [one for one in verdicts if (one.claim, one.iteration) == (claim, number)]
        outside = [one for one in own if not one.claimed]
        where = ", ".join(gpus_of(one.place) for one in outside)
        made = found([one for one in own if one.claimed])
        table.append([str(number), str(claim), made, f"{where}: {found(outside)}"])
    return table


def section() -> list[str]:
    """The section of results/report/progression.md, as paragraphs; of the steps that have committed counts."""
    counts = read_counts()
    counted = {kernel.iteration for kernel in counts.kernels.values()}
    verdicts = verify([one.number for one in load_all() if one.number in counted], counts)
    text = (
        "Claims about machine code hold on sm_80, sm_86, sm_89 and sm_90 but for these. Where one is not made, it is "
        "no reason for that GPU's figures: [the notes](../../iterations/notes) give every claim's counts on every "
        "architecture."
    )
    header = ["#", "Claim", "where it is made", "elsewhere"]
    return ["## By architecture", text, markdown(header, rows(verdicts), left=4)]
