"""What the emulator's tests share: `--hw` asks this machine's GPU instead of the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from hypothesis import settings
import pytest

from ptxemu import PtxemuError
from ptxemu.chip import Gpu, open_gpu

settings.register_profile("the same inputs every time", derandomize=True)
settings.load_profile("the same inputs every time")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--hw`."""
    parser.addoption(
        "--hw",
        action="store_true",
        help="run the instruction cases on this machine's GPU, and read the counters of the access patterns with "
        "Nsight Compute, instead of emulating and reading the committed files",
    )


@pytest.fixture(scope="session")
def hardware(request: pytest.FixtureRequest) -> Iterator[Gpu | None]:
    """The machine's GPU with `--hw`, else None."""
    if not request.config.getoption("--hw"):
        yield None
        return
    with ExitStack() as stack:
        try:
            gpu = stack.enter_context(open_gpu())
        except PtxemuError as error:
            pytest.exit(f"--hw: {error}", returncode=2)
        yield gpu
