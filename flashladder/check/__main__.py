"""``python -m flashladder.check``: see `flashladder.check.command`."""

from flashladder.errors import run_main

if __name__ == "__main__":
    run_main("flashladder.check.command")
