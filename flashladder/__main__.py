"""``flashladder``: runs the tasks of the checkout from any folder; without words it shows them by station.

``flashladder show 7`` is ``invoke show 7``; ``python -m flashladder show 7`` does the same without the script.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
import sys

from flashladder.errors import FlashladderError, one_line_errors
from flashladder.paths import ROOT


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a task of the checkout and exits with its code. Raises `SystemExit`: always."""
    words = sys.argv[1:] if argv is None else argv
    with one_line_errors():
        from flashladder import program

        if not (ROOT / "tasks.py").is_file():
            hint = "set FLASHLADDER_ROOT to a checkout of flashladder"
            raise FlashladderError("no tasks.py here, so this is not a checkout", where=ROOT, hint=hint)
        sys.dont_write_bytecode = True  # as invoke does: reading commands write nothing into the checkout
        sys.path.insert(0, str(ROOT))
        program.run(import_module("tasks").namespace, words)


if __name__ == "__main__":
    main()
