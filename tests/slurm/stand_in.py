"""Stands in for the sweep's command in tests of the array: notes node, GPUs and times in a record, and sleeps."""

from __future__ import annotations

from collections.abc import Sequence
import json
import os
from pathlib import Path
import time


def sweep(words: Sequence[str]) -> int:
    """``FOLDER SECONDS --shard I/N``."""
    folder, seconds, _, shard = words
    start = time.time()
    time.sleep(float(seconds))
    note = {
        "shard": shard,
        "node": os.environ["SLURMD_NODENAME"],
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "cpus": os.environ.get("SLURM_CPUS_PER_TASK", ""),
        "start": start,
        "end": time.time(),
    }
    (Path(folder) / f"{int(shard.partition('/')[0]):016x}.json.gz").write_text(json.dumps(note), encoding="utf-8")
    return 0
