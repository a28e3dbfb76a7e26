"""A bundle on a node that is cut off: unpacked and run by a Python that has torch alone, without network and compiler.

``nox -s bundle`` and tests/nvcc/test_bundle.py run ``python tests/package/node.py FOLDER VENV [--grid GRID]``.
Exit code 1 if the node's results differ from those of this checkout.
"""

from __future__ import annotations

from collections.abc import Sequence
import gzip
import json
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

from flashladder.gate import verify
from flashladder.results.schema import PlannedCell
from flashladder.sweep import measure as cpu

ALONE = ("unshare", "--map-root-user", "--net")  # a network namespace with nothing in it


def cut_off() -> list[str]:
    """What a command begins with to be without network; empty where the kernel does not allow it."""
    tried = subprocess.run([*ALONE, "true"], capture_output=True, check=False) if shutil.which("unshare") else None
    return list(ALONE) if tried and tried.returncode == 0 else []


def main(argv: Sequence[str]) -> int:
    """Runs a grid, by default `cpu`, from the bundle; compares codes with this checkout's."""
    (bundle,), node = sorted(Path(argv[0]).glob("*.pyz")), Path(argv[1]).resolve()
    alone = cut_off()
    print("the node has no network" if alone else "no namespaces here: the node is only told to use no index")
    with tempfile.TemporaryDirectory(prefix="a folder, empty ") as scratch:
        file = Path(shutil.copy(bundle, Path(scratch) / bundle.name))
        variables = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PIP_NO_INDEX": "1", "CXX": "no-compiler"}
        command = [*alone, str(node / "bin" / "python"), str(file), "--out", "out", *argv[2:]]
        start = time.monotonic()
        ran = subprocess.run(command, cwd=scratch, env=variables, capture_output=True, text=True, check=False)
        if ran.returncode:
            print(ran.stderr)
            return 1
        print(f"unpacked and swept in {time.monotonic() - start:.0f} s")
        made = {path.name for path in Path(scratch).iterdir()} == {bundle.name, bundle.stem, "out"}
        (result,), (about,) = (list(Path(scratch, "out").glob(name)) for name in ("*.json.gz", "*.bundle.json"))
        made &= json.loads(about.read_bytes())["bundle"] == bundle.stem
        found = verify.verify(result)
        for one in found:
            verify.print_at_once(one)
        document: dict[str, Any] = json.loads(gzip.decompress(result.read_bytes()))
        planned = [PlannedCell.model_validate(cell) for cell in document["sweep"]["planned"]]
        same = cpu.known_digests(planned) == [cell.code for cell in planned]
        print(f"{len(planned)} cells, of the same code as here" if same else "other code than here")
        return 0 if made and same and not found[0].details else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
