"""``python -m flashladder.build``: see `flashladder.build.command`."""

from flashladder.errors import run_main

if __name__ == "__main__":
    run_main("flashladder.build.command")
