"""A real Slurm on this machine: munged, slurmctld and a slurmd per node as ordinary processes of a temporary folder.

Why: a sweep on a cluster is tested against what clusters run, not against an imitation. Nothing of the machine is
changed: configuration, key, sockets, state and logs lie in the folder, and ports are free ones. A keeper process holds
the daemons and adopts whatever a job leaves behind; when its stdin closes, because the test ended or was killed, it
kills all of them.

    apt-get install --no-install-recommends slurmctld slurmd slurm-client munge
"""

from __future__ import annotations

from collections.abc import Iterator
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
# Every node offers two GPUs that are no GPUs: Slurm wants devices, and sets CUDA_VISIBLE_DEVICES to their indices.
DEVICES = ("/dev/null", "/dev/zero")
# cred_expire is how long a requeued task waits, 5 s at least; KillWait how long one has between SIGTERM and SIGKILL.
CONF = """\
ClusterName=flashladder
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
GresTypes=gpu
"""


@dataclass(frozen=True)
class Cluster:
    """A running Slurm.

    Attributes:
        folder: its configuration, state and logs.
        nodes: names of its nodes, two pretended GPUs each, all in the partition ``main``.
    """

    folder: Path
    nodes: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment, with Slurm's programs pointed at this cluster."""
        return os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def ask(self, *command: str) -> str:
        """What one of Slurm's programs prints.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout

    def tasks(self) -> dict[str, tuple[str, str]]:
        """Every task of every array that Slurm remembers: id to state and node."""
        rows = [row.split("|") for row in self.ask("squeue", "-h", "-r", "-t", "all", "-o", "%i|%T|%N").splitlines()]
        return {name: (state, node) for name, state, node in rows}


def missing() -> str | None:
    """Why no cluster can be started here, or None."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    absent = [program for program in PROGRAMS if not shutil.which(program, path=path)]
    return f"needs {', '.join(absent)}: apt-get install --no-install-recommends {PACKAGES}" if absent else None


@contextmanager
def cluster(nodes: int = 2, cpus: int = 1) -> Iterator[Cluster]:
    """A cluster of `nodes` nodes of `cpus` CPUs each for the length of a ``with``; it does not outlive this process.

    Raises:
        RuntimeError: a daemon did not start; the message holds the ends of the logs.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name:
        command = [sys.executable, str(Path(__file__)), name, str(nodes), str(cpus)]
        keeper = subprocess.Popen(  # of a session of its own: Ctrl-C is for the process that holds its stdin
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


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
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


def _daemons(folder: Path, nodes: int) -> Iterator[list[str]]:
    """The commands that start them, in order, each in the foreground."""
    munge = [f"--{what}-file={folder}/munge.{what}" for what in ("key", "pid", "seed", "log")]
    conf = ["-f", str(folder / "slurm.conf")]
    yield ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge]
    yield ["slurmctld", "-D", *conf]
    yield from (["slurmd", "-D", "-N", f"node{i}", *conf] for i in range(nodes))


def _kill_all() -> None:
    """Ends every process that came from this one: daemons, and what jobs left behind, which this one adopts."""
    deadline = time.monotonic() + STOP_S
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            for tasks in Path("/proc/self/task").glob("*/children"):
                for pid in tasks.read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
            time.sleep(0.02)


def _wait_until_idle(folder: Path, nodes: int, daemons: list[subprocess.Popen[bytes]]) -> str | None:
    """Waits for all nodes; the reason when that fails."""
    deadline = time.monotonic() + START_S
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    command = ["sinfo", "--noheader", "-N", "-o", "%T"]
    states = ""
    while time.monotonic() < deadline:
        dead = [str(process.args) for process in daemons if process.poll() is not None]
        if dead:
            return f"ended at once: {dead}"
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        states = done.stdout + done.stderr
        if done.returncode == 0 and done.stdout.split() == ["idle"] * nodes:
            return None
        time.sleep(0.1)
    return f"no {nodes} idle nodes after {START_S:g} s: {states}"


def keep(folder: Path, nodes: int, cpus: int) -> int:
    """The keeper: starts the daemons, says ``ready``, and ends everything when stdin does."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    _configure(folder, nodes, cpus)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / "daemons.log").open("wb") as log:
            for command in _daemons(folder, nodes):
                bound = ["setpriv", "--pdeathsig", "KILL", "--", *command]
                daemons.append(subprocess.Popen(bound, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
                socket_file = folder / "munge.socket"
                deadline = time.monotonic() + STOP_S
                while not socket_file.exists() and time.monotonic() < deadline and daemons[0].poll() is None:
                    time.sleep(0.02)
        reason = _wait_until_idle(folder, nodes, daemons)
        if reason:
            ends = [path.read_text(encoding="utf-8", errors="replace")[-2000:] for path in sorted(folder.glob("*.log"))]
            print(reason, *ends, sep="\n", flush=True)
            return 2
        print("ready", flush=True)
        sys.stdin.read()
        return 0
    finally:
        _kill_all()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(keep(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
