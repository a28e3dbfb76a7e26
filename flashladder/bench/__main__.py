"""``python -m flashladder.bench``: see `flashladder.bench.command`."""

from flashladder.errors import run_main

if __name__ == "__main__":
    run_main("flashladder.bench.command")
