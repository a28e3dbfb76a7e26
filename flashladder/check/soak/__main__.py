"""``python -m flashladder.check.soak``: see `flashladder.check.soak.command`."""

from __future__ import annotations

from flashladder.errors import one_line_errors

if __name__ == "__main__":
    with one_line_errors():
        from flashladder.check.soak.command import main  # in here, so that Ctrl-C meanwhile is one line, too

        raise SystemExit(main())
