"""Sweeps first: their workers wait until they are alone on a GPU, and after any other test this process is on it."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of sweeps before all others; otherwise the order stays."""
    items.sort(key=lambda item: item.path.name != "test_sweep_gpu.py")
