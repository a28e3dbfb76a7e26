"""``python -m flashladder.sweep``: see `flashladder.sweep.command`."""

from __future__ import annotations

from flashladder.errors import one_line_errors

if __name__ == "__main__":
    with one_line_errors():
        from flashladder.sweep.command import main  # here: Ctrl-C during the import prints one line, too

        raise SystemExit(main())
