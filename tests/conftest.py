"""What all tests share: the longest begin first, and `--hw` asks the chip instead of the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
import gc
import signal
from typing import Any

import pytest

from flashladder import device, lasting


def pytest_configure() -> None:
    """A shell that starts a run in the background lets it ignore Ctrl-C, and with it all that tests start."""
    gc.disable()  # until all tests are collected
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--hw",
        action="store_true",
        help="run the emulator's instruction cases on this machine's GPU, and read the counters of its access patterns "
        "with Nsight Compute, instead of emulating and reading the committed file",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests to the front: where each CPU has a process, none is left with a long one at the end."""
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("slow", "nvcc")])


def pytest_collection_finish() -> None:
    """Thousands of tests and their parameters are there to the end."""
    lasting.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """GPUs that tests make up have one name: processes that run tests side by side must not wait for each other."""
    device.LOCKS = tmp_path_factory.mktemp("locks")


@pytest.fixture(scope="session")
def hardware(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The machine's GPU with `--hw`, else None."""
    if not request.config.getoption("--hw"):
        yield None
        return
    from flashladder.emulator.gpu import open_gpu
    from flashladder.errors import FlashladderError

    with ExitStack() as stack:
        try:
            gpu = stack.enter_context(open_gpu())
        except FlashladderError as error:
            pytest.exit(f"--hw: {error}", returncode=2)
        yield gpu
