"""``python -m flashladder.view.flow``: see `flashladder.view.flow.command`."""

from __future__ import annotations

from flashladder.errors import one_line_errors

if __name__ == "__main__":
    with one_line_errors():
        from flashladder.view.flow.command import main  # in here, so that Ctrl-C meanwhile is one line, too

        raise SystemExit(main())
