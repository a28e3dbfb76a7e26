"""Shared by all tests: long tests start first, and GPUs have locks of their own."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cache
import gc
import hashlib
import signal

from hypothesis import settings
import pytest
import yaml

from flashladder import parallel
from flashladder.gpu import device
from flashladder.paths import ROOT

settings.register_profile("same inputs every time", derandomize=True)  # `nox -s fuzz` looks for new ones
settings.load_profile("same inputs every time")
SECONDS = {"exhaustive": 3.0, "nvcc": 0.4, "": 0.0}  # about, by marker, for the order alone
LONG = {  # files whose exhaustive tests take far longer than that each
    "test_sweep_faults.py": 80.0, "test_new_family.py": 70.0, "test_mutation.py": 60.0, "test_slurm.py": 40.0,
    "test_emulate.py": 30.0, "test_pages.py": 20.0, "test_lock_nvcc.py": 15.0, "test_bundle.py": 15.0,
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of `nox -s exhaustive -- --fifth COMMIT`."""
    parser.addoption("--fifth", metavar="COMMIT", default="", help="a fifth of the exhaustive tests, drawn by a commit")


def pytest_configure() -> None:
    """Restores Ctrl-C for this run and the processes that tests start: a background job of a shell ignores it."""
    gc.disable()  # until all tests are collected
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Marks exhaustive tests before ``-m`` chooses; then long tests first, in each worker's share of what is left."""
    for item in items:
        if is_exhaustive(item):
            item.add_marker("exhaustive")
    if commit := config.getoption("fifth"):
        config.hook.pytest_deselected(items=[item for item in items if not drawn(item, commit)])
        items[:] = [item for item in items if drawn(item, commit)]
    yield
    items.sort(key=lambda item: item.path.name != "test_sweep_gpu.py")  # before any other test is on the GPU
    shares = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = dealt(items, int(shares))


@cache
def listed() -> dict[str, dict[str, int | list[str]]]:
    """The tests of ``exhaustive.yaml`` by file and function, with the parameters that `nox -s tests` keeps."""
    tables: dict[str, dict[str, int | list[str]]] = yaml.safe_load((ROOT / "tests" / "exhaustive.yaml").read_bytes())
    return tables


def is_exhaustive(item: pytest.Item) -> bool:
    """Whether ``exhaustive.yaml`` leaves a test to `nox -s exhaustive`."""
    name, _, parameters = item.name.partition("[")
    kept = listed().get(item.path.relative_to(ROOT).as_posix(), {}).get(name, 0)
    if isinstance(kept, list):
        return parameters.removesuffix("]") not in kept
    return kept == 1 or (kept > 1 and _number(item.name) % kept != 0)


def _number(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def drawn(item: pytest.Item, commit: str) -> bool:
    """Whether an exhaustive test is in the fifth that a commit draws."""
    return item.get_closest_marker("exhaustive") is not None and _number(f"{commit} {item.nodeid}") % 5 == 0


def kind_of(item: pytest.Item) -> str:
    """The key of `SECONDS` for a test."""
    return next((name for name in ("exhaustive", "nvcc") if item.get_closest_marker(name)), "")


def dealt(items: Sequence[pytest.Item], shares: int) -> list[pytest.Item]:
    """Orders tests so that equal parts take equally long; ``--dist worksteal`` gives such parts to the workers.

    Tests that compile stay with their file, so that its fixtures run once. Exhaustive tests are distributed one by one,
    except those that share a cluster. The other tests fill the parts.
    """
    units: dict[str, list[pytest.Item]] = {}
    rest = [item for item in items if not kind_of(item)]
    for item in items:
        alone = kind_of(item) == "exhaustive" and "slurm" not in getattr(item, "fixturenames", ())
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
    """The estimated time of a unit."""
    return sum(
        LONG.get(item.path.name, SECONDS["exhaustive"]) if kind_of(item) == "exhaustive" else SECONDS[kind_of(item)]
        for item in items
    )


def pytest_collection_finish() -> None:
    """Excludes the thousands of collected tests from garbage collection, because they live to the end."""
    parallel.tune_gc()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Gives each process its own folder of GPU locks: simulated GPUs share a name, and workers must not wait."""
    device.LOCKS = tmp_path_factory.mktemp("locks")
