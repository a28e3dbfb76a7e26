"""``python -m flashladder.sweep``: see `flashladder.sweep.command`."""

from flashladder.errors import run_main

if __name__ == "__main__":
    run_main("flashladder.sweep.command")
