"""``python -m flashladder.bundle``: `flashladder.bundle.make`."""

from __future__ import annotations

from flashladder.bundle.make import main
from flashladder.errors import one_line_errors

if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
