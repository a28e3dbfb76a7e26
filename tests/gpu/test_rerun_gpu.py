"""``invoke verify --rerun`` on a GPU: cells of the committed results, timed anew here.

Run: ``pytest tests/gpu/test_rerun_gpu.py`` where the iterations' wheels are installed.
"""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU that torch can use", allow_module_level=True)

from flashladder.errors import FlashladderError
from flashladder.gate.verify import rerun_here as main
from flashladder.paths import RESULTS

pytestmark = pytest.mark.gpu


def test_committed_cells_are_found_again() -> None:
    try:
        found = main(RESULTS / "h200" / "bench.json.gz", 6, 0)
    except FlashladderError as error:
        if "is not installed" in str(error):
            pytest.skip(str(error))
        raise
    assert found.told.startswith("6 of 264 cells of results/h200/bench.json.gz timed anew on this ")
    assert found.problems == ()
