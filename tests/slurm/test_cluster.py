"""The cluster of these tests is real, and leaves no process behind, however its holder ends."""

from __future__ import annotations

from pathlib import Path
import signal
import subprocess
import sys

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import processes_of, require, within

ROOT = Path(__file__).parents[2]


def test_it_runs_jobs_on_two_nodes_with_a_gpu_each(slurm: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "%a"
    script = f"--output={out}", "--array=0-1", "--gpus-per-task=1", "-n1"
    slurm.ask("sbatch", *script, "--wrap", "srun bash -c 'sleep 1; echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'")
    within(30, lambda: all(state == "COMPLETED" for state, _ in slurm.tasks().values()), slurm.tasks)
    assert sorted((tmp_path / name).read_text(encoding="utf-8") for name in "01") == ["node0 0\n", "node1 0\n"]


def test_a_killed_holder_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    require()
    holder = subprocess.Popen(
        [sys.executable, "-m", "tests.slurm.cluster", "--nodes", "1"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    conf = Path(holder.stdout.readline().strip().removeprefix("export SLURM_CONF="))
    one = Cluster(conf.parent, ("node0",))
    # A process that escapes its task: of another session, its parent gone.
    one.ask(
        "sbatch", "--output=/dev/null", "--wrap", "setsid sleep 600 & touch ran; srun sleep 600", f"--chdir={tmp_path}"
    )
    within(20, (tmp_path / "ran").exists)
    assert any("sleep 600" in line for line in processes_of(str(conf.parent)).values())
    assert any("slurmctld" in line for line in processes_of(str(conf.parent)).values())
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    within(10, lambda: not processes_of(str(conf.parent)), lambda: processes_of(str(conf.parent)))
    within(5, lambda: not conf.parent.exists())
