"""A real Slurm on this machine: munged, slurmctld and a slurmd per node, as processes with a temporary folder.

Ports are free ones, and everything else is in the folder. A keeper process holds the daemons and adopts the processes
that jobs leave behind. When its stdin closes, it kills all of them. Needs slurmctld, slurmd, slurm-client and munge.
``python -m tests.slurm.cluster`` prints how to use it, until Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
import ctypes
from dataclasses import dataclass
import getpass
import os
from pathlib import Path
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "sinfo", "scontrol", "scancel", "setpriv")
PACKAGES = "slurmctld slurmd slurm-client munge"
START_S = 30.0  # until every node is idle; it takes one
STOP_S = 10.0
PR_SET_CHILD_SUBREAPER = 36
# Every node has two GPUs that are other devices. Slurm sets CUDA_VISIBLE_DEVICES to their indices.
DEVICES = ("/dev/null", "/dev/zero")
CONF = Path(__file__).with_name("slurm.conf").read_text(encoding="utf-8")  # with names in braces to fill in


@dataclass(frozen=True)
class Cluster:
    """A running Slurm with its files in `folder`. All nodes are in the partition ``main``."""

    folder: Path
    nodes: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment; Slurm's programs use this cluster."""
        return os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def ask(self, *command: str) -> str:
        """The output of one of Slurm's programs. Raises `subprocess.CalledProcessError`: it failed."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout

    def tasks(self) -> dict[str, tuple[str, str]]:
        """State and node of every task of every array that Slurm remembers, by id."""
        rows = [row.split("|") for row in self.ask("squeue", "-h", "-r", "-t", "all", "-o", "%i|%T|%N").splitlines()]
        return {name: (state, node) for name, state, node in rows}


def missing() -> str | None:
    """The reason why no cluster can start here, or None."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    absent = [program for program in PROGRAMS if not shutil.which(program, path=path)]
    return f"needs {', '.join(absent)}: apt-get install --no-install-recommends {PACKAGES}" if absent else None


@contextmanager
def cluster(nodes: int = 2, cpus: int = 1) -> Iterator[Cluster]:
    """A cluster inside the context, with so many CPUs per node. It does not outlive this process.

    Raises `RuntimeError`: a daemon did not start; the message contains the ends of the logs.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name:
        command = [sys.executable, str(Path(__file__)), name, str(nodes), str(cpus)]
        keeper = subprocess.Popen(  # in a new session: Ctrl-C is for the process that holds its stdin
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            assert keeper.stdout is not None
            line = keeper.stdout.readline()
            if line.strip() != "ready":
                raise RuntimeError(line + keeper.stdout.read())
            yield Cluster(Path(name), tuple(f"node{i}" for i in range(nodes)))
        finally:
            keeper.communicate()  # closes its stdin and waits


def wait_until(is_true: Callable[[], object], seconds: float) -> bool:
    """Waits until `is_true()`, at most `seconds`; returns whether it is."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in sockets]


def _configure(folder: Path, nodes: int, cpus: int) -> None:
    """Writes slurm.conf, gres.conf and munge's key."""
    ports = _free_ports(nodes + 1)
    host = socket.gethostname().split(".")[0]
    text = CONF.format(host=host, port=ports[0], user=getpass.getuser(), folder=folder)
    gres = ""
    for i, port in enumerate(ports[1:]):
        where = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
        text += f"NodeName=node{i} {where} CPUs={cpus} RealMemory=2000 Gres=gpu:{len(DEVICES)}\n"
        gres += "".join(f"NodeName=node{i} Name=gpu File={device}\n" for device in DEVICES)
        (folder / f"node{i}").mkdir()
    text += "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    (folder / "gres.conf").write_text(gres, encoding="utf-8")
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))


def _kill_all() -> None:
    """Kills all descendants of this process: daemons, and the processes of jobs that it has adopted."""
    deadline = time.monotonic() + STOP_S
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            for children in Path("/proc/self/task").glob("*/children"):
                for pid in children.read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
            time.sleep(0.02)


def keep(folder: Path, nodes: int, cpus: int) -> int:
    """The keeper: starts the daemons, prints ``ready``, and ends everything when stdin closes."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    _configure(folder, nodes, cpus)
    files = [f"--{what}-file={folder}/munge.{what}" for what in ("key", "pid", "seed", "log")]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files],
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", f"node{i}"] for i in range(nodes)),
    ]

    def states() -> list[str]:
        asked = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True, check=False)
        return asked.stdout.split()

    try:
        with (folder / "daemons.log").open("wb") as log:
            for command in commands:
                bound = ["setpriv", "--pdeathsig", "KILL", "--", *command]
                subprocess.Popen(bound, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                wait_until((folder / "munge.socket").exists, STOP_S)
        if not wait_until(lambda: states() == ["idle"] * nodes, START_S):
            logs = [path.read_text(encoding="utf-8", errors="replace")[-2000:] for path in sorted(folder.glob("*.log"))]
            print(f"no {nodes} idle nodes after {START_S:g} s: {states()}", *logs, sep="\n", flush=True)
            return 2
        print("ready", flush=True)
        sys.stdin.read()
        return 0
    finally:
        _kill_all()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        raise SystemExit(keep(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
    with suppress(KeyboardInterrupt), cluster() as started:
        print(f"export SLURM_CONF={started.folder}/slurm.conf", flush=True)
        signal.pause()
