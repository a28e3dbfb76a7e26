"""Stands in for a sweep's command in tests of the array: notes node, GPUs and times in a record, and sleeps.

python -m tests.slurm.stand_in MACHINE PARENT FOLDER SECONDS --shard I/N
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import sys
import time

if __name__ == "__main__":
    _, machine, parent, folder, seconds, _, shard = sys.argv
    start = time.time()
    time.sleep(float(seconds))
    note = {
        "machine": machine,
        "shard": shard,
        "node": os.environ["SLURMD_NODENAME"],
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "cpus": os.environ.get("SLURM_CPUS_PER_TASK", ""),
        "start": start,
        "end": time.time(),
    }
    (Path(folder) / f"{int(shard.partition('/')[0]):016x}.json.gz").write_text(json.dumps(note), encoding="utf-8")
