"""One target under atheris, for `tests.fuzz.run`: ``python -m tests.fuzz.under_atheris TARGET INPUTS SEED FOLDER``."""

from __future__ import annotations

from pathlib import Path
import sys

import atheris

with atheris.instrument_imports(include=["flashladder"]):
    from tests.fuzz.target import attempt
    from tests.fuzz.targets import TARGETS


def main(name: str, inputs: str, seed: str, folder: str) -> None:
    """Runs libFuzzer, which ends the process."""
    target, seen, out = TARGETS[name], set[str](), Path(folder)
    corpus = out / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for old in corpus.iterdir():
        old.unlink()
    for index, data in enumerate(target.seeds()):
        if len(data) <= 1 << 16:
            (corpus / f"{index:03d}").write_bytes(data)
    dictionary = out / "words"  # libFuzzer ends at an empty one
    dictionary.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words), encoding="ascii")

    def one(data: bytes) -> None:
        found = attempt(target, data)
        if found and found.place not in seen:
            seen.add(found.place)
            (out / f"{len(seen):02d}.found").write_bytes(data)

    limits = ["-max_len=65536", "-rss_limit_mb=6000", "-timeout=60", "-verbosity=0", "-print_final_stats=1"]
    words = [f"-dict={dictionary}"] if target.words else []
    atheris.Setup([sys.argv[0], f"-runs={inputs}", f"-seed={seed}", *limits, *words, str(corpus)], one)
    atheris.Fuzz()


def _escaped(word: str) -> str:
    """As libFuzzer's dictionaries write bytes."""
    return "".join(f"\\x{byte:02X}" for byte in word.encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    main(*sys.argv[1:])
