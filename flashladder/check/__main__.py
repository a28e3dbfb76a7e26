"""``python -m flashladder.check``: see `flashladder.check.command`."""

from __future__ import annotations

from flashladder.errors import one_line_errors

if __name__ == "__main__":
    with one_line_errors():
        from flashladder.check.command import main  # here, so that Ctrl-C during this import prints one line, too

        raise SystemExit(main())
