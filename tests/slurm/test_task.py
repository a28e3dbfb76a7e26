"""One task of the array in a process of its own, without Slurm: exit codes, the announced end, a killed parent."""

from __future__ import annotations

import json
import os
from pathlib import Path
import pickle
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.sweep.array_task import require_machine
from flashladder.sweep.measure import devices
from flashladder.sweep.slurm.task import GOT_NOWHERE, Task
from tests.slurm.conftest import processes_of, within

ROOT = Path(__file__).parents[2]
# What a task runs here: says that it is there, with the signals that it has blocked, and does as it is told.
COMMAND = """
import json, os, signal, sys, time
def term(*_):
    print("terminated", flush=True)
    sys.exit(2)
signal.signal(signal.SIGTERM, term)
blocked = [int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
what, folder = sys.argv[2], sys.argv[3]
if what == "record":
    open(os.path.join(folder, "0" * 16 + ".json.gz"), "w").close()
with open(os.path.join(folder, "there"), "w") as stream:
    json.dump({"pid": os.getpid(), "parent": int(sys.argv[1]), "blocked": blocked}, stream)
if what == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(what)) if what.isdigit() else time.sleep(600)
"""
# As submitit: the announcement calls checkpoint in the handler, while the main thread waits for the command.
HOLDER = """
import pickle, signal, sys
from pathlib import Path
from flashladder.sweep.slurm.task import Task
command, what, folder = sys.argv[1:]
task = Task((sys.executable, "-c", command), (what, folder), Path(folder))
def announced(*_):
    again = task.checkpoint()
    print(json_of(again), flush=True)
    sys.exit(7)
def json_of(again):
    return "none" if again is None else pickle.loads(pickle.dumps(again.function)).arguments
signal.signal(signal.SIGUSR2, announced)
signal.signal(signal.SIGTERM, lambda *_: None)
raise SystemExit(task())
"""


def held(folder: Path, what: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, COMMAND, what, str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def there(folder: Path) -> dict[str, Any]:
    """What the command said when it was started."""

    def said() -> str:
        return (folder / "there").read_text(encoding="utf-8") if (folder / "there").exists() else ""

    within(30, lambda: said().endswith("}"))
    return dict(json.loads(said()))


@pytest.mark.parametrize(("what", "code"), [("0", 0), ("1", 1), ("2", 2), ("kill", 128 + signal.SIGKILL)])
def test_the_exit_code_is_the_commands_as_a_shell_has_it(tmp_path: Path, what: str, code: int) -> None:
    holder = held(tmp_path, what)
    holder.communicate(timeout=30)
    assert holder.returncode == code


def test_the_announced_end_reaches_the_task_alone_and_it_goes_on_later(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    holder = held(tmp_path, "record")
    told = there(tmp_path)
    assert told["parent"] == holder.pid
    assert told["blocked"] == [signal.SIGUSR2]
    os.kill(told["pid"], signal.SIGUSR2)  # Slurm tells every process
    time.sleep(0.5)
    assert holder.poll() is None
    start = time.monotonic()
    holder.send_signal(signal.SIGUSR2)
    out, _ = holder.communicate(timeout=20)
    assert time.monotonic() - start < 10
    assert holder.returncode == 7
    assert out == f"terminated\n('record', '{tmp_path}')\n"
    assert told["pid"] not in processes_of(str(tmp_path))


def test_a_task_that_got_nowhere_is_not_started_again(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    (tmp_path / "00000000000000ff.json.gz").touch()  # of another time
    holder = held(tmp_path, "wait")
    there(tmp_path)
    holder.send_signal(signal.SIGUSR2)
    out, _ = holder.communicate(timeout=20)
    assert out.splitlines()[1:] == [f"error: {GOT_NOWHERE}", "none"]


def test_a_sweep_dies_with_its_task(tmp_path: Path) -> None:
    """However the task ends: else the one that is started again would measure beside it."""
    wait = (
        "import sys; from flashladder.sweep import array_task, command; from pathlib import Path; import time;"
        f"command.main = lambda argv: (Path({str(tmp_path / 'there')!r}).write_text('{{}}'), time.sleep(600));"
        "array_task.main(['cpu', sys.argv[1]])"
    )
    starter = (
        "import os, subprocess, sys, time;"
        "subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())]); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", starter, wait], cwd=ROOT)
    there(tmp_path)
    child = [pid for pid in processes_of(str(tmp_path)) if pid != parent.pid]
    assert len(child) == 1
    parent.kill()
    parent.wait()
    within(10, lambda: child[0] not in processes_of(str(tmp_path)))


def test_another_gpu_than_planned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [devices.Card(0, "NVIDIA A100-SXM4-80GB", "GPU-0", "sm_80")]
    monkeypatch.setattr(devices, "cards", lambda: cards)
    require_machine("a100")
    require_machine("cpu")
    with pytest.raises(
        FlashladderError, match="Slurm gave the task another GPU: expected h100, found a100; --slurm gres"
    ):
        require_machine("h100")
    cards.clear()
    with pytest.raises(FlashladderError, match="expected h100, found none"):
        require_machine("h100")


def test_a_task_is_pickled_without_its_process(tmp_path: Path) -> None:
    task = Task(("a",), ("b",), tmp_path)
    assert pickle.loads(pickle.dumps(task)) == task
