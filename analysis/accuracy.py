"""Question: how far off are the latest steps, beside other attention kernels, at logits of many sizes and orders?

Why: P under a stale maximum is rounded at another place than under the true one. Every kernel and every library gets
the same inputs; maximum and RMS error are against fp64. `flashladder.report.accuracy` makes the table, the gate
holds bounds.

Run on a machine with a GPU:
    python analysis/accuracy.py --wheels FOLDER --out results/h200/accuracy.json.gz
    python analysis/accuracy.py --wheels FOLDER --family hopper --references all --out accuracy_hopper.json.gz
FOLDER holds the unpacked wheels of the family's iterations from 16 on (``python -m flashladder.build 20 21 22 23 24
--configs h200``). Needs torch, and what `invoke bench` needs; takes less than a minute.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
import gzip
import json
from pathlib import Path
import platform
import sys
from typing import Any

import torch

from flashladder.arguments import Parser, result_file
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import write_atomic
from flashladder.ladder.family import DEFAULT, families
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.names import REFERENCES
from flashladder.results.published import N_ITERATIONS

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
HEADS, D_HEAD = 16, 128
DEVICE = "cuda"
NORMAL = (
    (128, 8, 5), (256, 8, 5), (512, 4, 5), (1024, 2, 5), (2048, 1, 4), (4096, 1, 2), (16384, 1, 1),
)  # length, batch, seeds  # fmt: skip
OTHERS = (512, 1024, 2048)
SCALES = (2, 3, 5, 10, 20, 30)  # of Q, and so of the logits
FACTOR = 100  # of the outlier in V
SURE = 1.5  # times its own query: a key that gets all but some 1e-4 of the weight
ROWS = 2048  # of Q at a time in fp64

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """Inputs of one kind: Q, K and V of (batch, seq_len, 16, 128)."""

    inputs: str
    seq_len: int
    batch: int
    seed: int


def cases() -> Iterator[Case]:
    """N(0, 1) at the lengths of `NORMAL`, then what puts the logits elsewhere."""
    for seq_len, batch, seeds in NORMAL:
        yield from (Case("normal", seq_len, batch, seed) for seed in range(seeds))
    kinds = (*(f"scale {scale}" for scale in SCALES), "rising", "falling", "matching", "one-hot", "equal", "outlier")
    yield from (Case(kind, seq_len, 1, seed) for kind in kinds for seed, seq_len in enumerate(OTHERS))


def tensors(case: Case, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Q, K and V of a case, rounded to `dtype`."""
    generator = torch.Generator(device=DEVICE).manual_seed(case.seed)
    shape = (case.batch, case.seq_len, HEADS, D_HEAD)
    q, k, v = (torch.randn(shape, device=DEVICE, generator=generator) for _ in range(3))
    if case.inputs.startswith("scale"):
        q *= float(case.inputs.split()[1])
    elif case.inputs in ("rising", "falling"):
        ends = (0.05, 2.0) if case.inputs == "rising" else (2.0, 0.05)
        q, k = q.abs(), k.abs() * torch.linspace(*ends, case.seq_len, device=DEVICE).view(1, -1, 1, 1)
    elif case.inputs == "matching":
        k = q.clone()
    elif case.inputs == "one-hot":
        k = SURE * q.roll(case.seq_len // 2, 1)
    elif case.inputs == "equal":
        k = k[:, :1].expand(shape).clone()
    elif case.inputs == "outlier":
        v[:, case.seq_len // 3] *= FACTOR
    return q.to(dtype), k.to(dtype), v.to(dtype)


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention in fp64, (batch, seq_len, heads, d_head)."""
    out = torch.empty(q.shape, dtype=torch.float64, device=DEVICE)
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            keys, values = k[b, :, h].double(), v[b, :, h].double()
            for first in range(0, q.shape[1], ROWS):
                rows = slice(first, first + ROWS)
                scores = q[b, rows, h].double() @ keys.T / D_HEAD**0.5
                out[b, rows, h] = torch.softmax(scores, -1) @ values
    return out


def steps(family: str) -> tuple[int, ...]:
    """The iterations of a family from the last published one on."""
    return tuple(step.number for step in load_all() if step.family.name == family and step.number >= N_ITERATIONS)


def kernels(wheels: Path, numbers: Sequence[int]) -> dict[str, Kernel]:
    """The iterations of the unpacked wheels, by number."""
    for number in numbers:
        if not (wheels / f"flashladder_{number}").is_dir():
            hint = "pip install --no-deps --target FOLDER build/iteration_*/*/*.whl"
            raise FlashladderError(f"no unpacked wheel of iteration {number}", where=wheels, hint=hint)
    sys.path.insert(0, str(wheels))
    from flashladder import forward

    def of(number: int) -> Kernel:
        return lambda q, k, v: forward(q, k, v, iteration=number, config=short_form(number, str(q.dtype)))

    return {str(number): of(number) for number in numbers}


def libraries(names: Sequence[str]) -> tuple[dict[str, Kernel], dict[str, str]]:
    """FA2 and those of `names` that run here in both dtypes, and their versions; a line for each that is left out."""
    from flashladder.bench.references import BACKENDS, FA2, arms

    beside = arms(names, tuple(DTYPES))
    for line in beside.left_out:
        print(f"left out: {line}")
    both = [name for name in beside.identities if sum(one.key == name for one in beside.subjects) == len(DTYPES)]
    found = {name: BACKENDS[name].forward() for name in (FA2, *both)}
    return found, {name: beside.identities[name].version or f"torch {torch.__version__}" for name in both}


def short_form(number: int, dtype: str) -> str:
    """The configuration of an iteration for an H200, which every Hopper GPU is given here."""
    names = {str(value): name for name, value in DTYPES.items()}
    config: str = load_iteration(number).configs["h200"].with_dtype(names[dtype]).short_form()
    return config


def identities(numbers: Sequence[int]) -> dict[str, dict[str, str]]:
    """Which machine code runs: by kernel, its iteration, configuration and digest."""
    from flashladder.build.wheel import load_installed
    from flashladder.ladder.config import KernelConfig

    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    found = {}
    for number in numbers:
        for value in DTYPES.values():
            config = short_form(number, str(value))
            kernel = load_installed(number).identity(KernelConfig.parse(config), arch)
            own = {"arch": kernel.arch, "text_sha256": kernel.text_sha256 or ""}
            found[kernel.key] = {"iteration": str(number), "config": config, **own}
    return found


def measured(arms: dict[str, Kernel]) -> Iterator[dict[str, Any]]:
    """One record per case and dtype: [maximum, RMS] error of each arm; a library that fails is left out from there."""
    arms = dict(arms)
    for name, dtype in DTYPES.items():
        for case in cases():
            q, k, v = tensors(case, dtype)
            want, errors = exact(q, k, v), {}
            for arm, kernel in tuple(arms.items()):
                try:
                    off = kernel(q, k, v).double() - want
                except Exception as error:  # a library may raise anything
                    if arm.isdecimal():
                        raise
                    print(f"left out: {arm} fails at {case}: {error}")
                    del arms[arm]
                    continue
                errors[arm] = [off.abs().max().item(), off.square().mean().sqrt().item()]
            yield {"dtype": name, **vars(case), "errors": errors}


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and writes; prints the worst ratio of each arm."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True, help="folder of unpacked wheels")
    names, known = [one.name for one in families()], ("all", *REFERENCES)
    parser.add_argument("--family", choices=names, default=DEFAULT, help=f"default: {DEFAULT}")
    parser.add_argument("--references", nargs="+", default=[], choices=known, metavar="NAME", help=", ".join(known))
    parser.add_argument("--out", type=result_file, required=True, help="the file to write (.json.gz)")
    of = parser.parse_args(argv)
    with one_line_errors():
        if not of.wheels.is_dir():
            raise FlashladderError("no such folder", where=str(of.wheels), expected="a folder of unpacked wheels")
        if not torch.cuda.is_available():
            raise FlashladderError("no GPU that torch can use", hint="invoke doctor says what is there")
        measure(of)
    return 0


def measure(of: argparse.Namespace) -> None:
    """Measures all arms, writes their errors to `of.out`, prints the worst ratios."""
    gpu, numbers = torch.cuda.get_device_properties(0), steps(of.family)
    beside, versions = libraries(of.references)
    records = list(measured({**beside, **kernels(of.wheels, numbers)}))
    whole = set.intersection(*(set(record["errors"]) for record in records))
    for record in records:
        record["errors"] = {arm: errors for arm, errors in record["errors"].items() if arm in whole}
    document = {
        "what": "[maximum, RMS] error against fp64, by iteration and library; 16 heads, d_head 128",
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gpu": {"name": gpu.name, "uuid": f"GPU-{gpu.uuid}"},
        "torch": torch.__version__,
        "python": platform.python_version(),
        "references": {name: version for name, version in versions.items() if name in whole},
        "kernels": identities(numbers),
        "records": records,
    }
    write_atomic(of.out, gzip.compress(json.dumps(document).encode(), mtime=0))
    for kind in dict.fromkeys(record["inputs"] for record in records):
        own = [record["errors"] for record in records if record["inputs"] == kind]
        worst = {arm: max(one[arm][0] / one["fa2"][0] for one in own) for arm in own[0] if arm != "fa2"}
        print(f"{kind:10} " + " ".join(f"{arm}: {value:.2f}" for arm, value in worst.items()))


if __name__ == "__main__":
    raise SystemExit(main())
