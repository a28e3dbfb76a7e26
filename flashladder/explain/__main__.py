"""``python -m flashladder.explain 16 --gpu a100``: what binds an iteration."""

from flashladder.explain.command import main

if __name__ == "__main__":
    raise SystemExit(main())
