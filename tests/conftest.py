"""What all tests share: the longest begin first."""

from __future__ import annotations

from collections.abc import Sequence
import gc
import signal

from hypothesis import settings
import pytest

from flashladder import parallel
from flashladder.gpu import device

settings.register_profile("same inputs every time", derandomize=True)  # `nox -s fuzz` looks for new ones
settings.load_profile("same inputs every time")
SECONDS = {"slow": 20.0, "nvcc": 0.4, "": 0.0}  # about, by marker, for the order alone
LONG = {  # files of `nvcc` whose tests are far from that, in seconds
    "test_new_family.py": 70.0,
    "test_hopper_tiles.py": 120.0,
    "test_pages.py": 70.0,
    "test_hopper_public.py": 55.0,
    "test_cuda.py": 45.0,
    "test_emulate.py": 40.0,
    "test_lock_nvcc.py": 30.0,
    "test_explain.py": 30.0,
    "test_bundle.py": 25.0,
}


def pytest_configure() -> None:
    """A shell that starts a run in the background lets it ignore Ctrl-C, and with it all that tests start."""
    gc.disable()  # until all tests are collected
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests first, so that no process is left with one at the end: in one process, or in each one's share."""
    items.sort(key=lambda item: item.path.name != "test_sweep_gpu.py")  # before any other test is on the GPU
    shares = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = dealt(items, int(shares))


def kind_of(item: pytest.Item) -> str:
    """Which of `SECONDS` a test takes about."""
    return next((name for name in ("slow", "nvcc") if item.get_closest_marker(name)), "")


def dealt(items: Sequence[pytest.Item], shares: int) -> list[pytest.Item]:
    """Tests in an order whose equal parts, which is what ``--dist worksteal`` gives to processes, take equally long.

    What compiles stays with its file, whose fixtures are made once; slow tests are dealt one by one, but for those that
    share a cluster. The other tests fill the parts up.
    """
    units: dict[str, list[pytest.Item]] = {}
    rest = [item for item in items if not kind_of(item)]
    for item in items:
        alone = kind_of(item) == "slow" and "slurm" not in getattr(item, "fixturenames", ())
        if kind_of(item):
            units.setdefault(item.nodeid if alone else str(item.path), []).append(item)
    parts: list[list[pytest.Item]] = [[] for _ in range(shares)]
    loads = [0.0] * shares
    for unit in sorted(units.values(), key=_seconds, reverse=True):
        least = loads.index(min(loads))
        parts[least] += unit
        loads[least] += _seconds(unit)
    left = len(items)
    for index, part in enumerate(parts):
        fill = max(0, left // (shares - index) - len(part))
        part.extend(rest[:fill])
        del rest[:fill]
        left -= len(part)
    return [item for part in parts for item in part] + rest


def _seconds(items: Sequence[pytest.Item]) -> float:
    """About how long a unit takes: slow tests by their number, those of a file as the file is known for."""
    slow = sum(SECONDS["slow"] for item in items if kind_of(item) == "slow")
    others = [item for item in items if kind_of(item) != "slow"]
    known = LONG.get(others[0].path.name) if others else None
    return slow + (sum(SECONDS[kind_of(item)] for item in others) if known is None else known)


def pytest_collection_finish() -> None:
    """Thousands of tests and their parameters are there to the end."""
    parallel.tune_gc()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """GPUs that tests make up have one name: processes that run tests side by side must not wait for each other."""
    device.LOCKS = tmp_path_factory.mktemp("locks")
