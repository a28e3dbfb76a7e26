"""``python -m flashladder.lock``: see `flashladder.lock.command`."""

from flashladder.errors import run_main

if __name__ == "__main__":
    run_main("flashladder.lock.command")
