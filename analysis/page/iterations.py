"""The note of each iteration: its reason, predictions, machine code, configurations and timing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
import re

from flashladder.emulate import reading as emulated
from flashladder.errors import FlashladderError
from flashladder.files import read_text
from flashladder.ladder.iteration import Iteration
from flashladder.lock import code_claims
from flashladder.lock.code_claims import Verdict
from flashladder.lock.schema import LOCKS
from flashladder.lock.step_counts import COUNTS, read_counts
from flashladder.paths import RESULTS
from flashladder.report.book import Book
from flashladder.report.page import Block, Fold
from flashladder.view.command import changes

ORDER, TITLE = 50, "Iterations"
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def of_code(book: Book) -> list[Verdict]:
    """The claims about machine code and PTX, of the steps that have committed counts: a new one has none yet."""
    counts = read_counts(book.results / COUNTS.relative_to(RESULTS))
    counted = {kernel.iteration for kernel in counts.kernels.values()}
    return code_claims.verify([one.number for one in book.ladder.iterations if one.number in counted], counts)


def claims(book: Book) -> str:
    """How many claims hold, and each one that does not."""
    looks, locks = [partial(of_code, book)], book.results / LOCKS.name
    looks += [partial(emulated.hardware_claims, path, locks) for path in emulated.counter_files(book.results)]
    if book.ladder.emulated is not None:
        looks.append(partial(emulated.claims, book.ladder.emulated))
    made, wrong = list[Verdict](), list[str]()
    for look in looks:
        try:
            made += [one for one in look() if one.claimed]
        except FlashladderError as error:
            wrong.append(f"not judged yet: {error}")
    wrong += [f"iteration {one.iteration} on {one.place}: {one.problem}" for one in made if not one.holds]
    held = f"{sum(one.holds for one in made)} of {len(made)} claims hold where they are made"
    about = "about machine code of four architectures, the PTX that ships, counters of GPUs and of the emulator"
    return "\n".join([f"{held}: {about}.", "", *(f"- {one}" for one in wrong)])


def note(book: Book, step: Iteration) -> str:
    """The iteration's note without its title and footer, or its reason alone where none was rendered yet."""
    path = book.root / "iterations" / "notes" / f"{step.number:02d}.md"
    text = read_text(path).partition("\n")[2].rpartition("\n---\n")[0] if path.is_file() else step.why
    return LINK.sub(r"\1", text)


def content(book: Book) -> Sequence[Block]:
    """How many claims hold, then a folded note for each iteration."""
    notes = [
        Fold(f"{step.number}. {step.title} ({changes(step)})", [note(book, step)], f"iteration-{step.number}")
        for step in book.ladder.iterations
    ]
    code = "`invoke show 8` prints a kernel, `invoke diff 7 8` what a step changes; [code.html](code.html) shows both."
    return [claims(book), code, *notes]
