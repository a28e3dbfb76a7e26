"""Question: how far off are the steps with a stale maximum, beside FA2, at logits small and large, rising and falling?

Why: P under a stale maximum is rounded at another place than under the true one. Every kernel and FA2 get the same
inputs; maximum and RMS error are against fp64. `flashladder.report.costs.accuracy` makes the table, the gate holds
bounds.

Run on a machine with a GPU: ``python analysis/accuracy.py --wheels FOLDER --out results/h200/accuracy.json.gz``, where
FOLDER holds the unpacked wheels of iterations 16 to 19 (``python -m flashladder.build 16 17 18 19 --configs h200``).
Needs torch, and what `invoke bench` needs.
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

import torch

from flashladder.arguments import result_file
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import write_atomic

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
HEADS, D_HEAD = 16, 128
ITERATIONS = (16, 17, 18, 19)
NORMAL = (
    (128, 8, 5),
    (256, 8, 5),
    (512, 4, 5),
    (1024, 2, 5),
    (2048, 1, 4),
    (4096, 1, 2),
    (16384, 1, 1),
)  # length, batch, seeds
OTHERS = (512, 1024, 2048)
SCALES = (2, 3, 5, 10, 20, 30)  # of Q, and so of the logits
FACTOR = 100  # of the outlier in V
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
    kinds = (*(f"scale {scale}" for scale in SCALES), "rising", "falling", "matching", "outlier")
    yield from (Case(kind, seq_len, 1, seed) for kind in kinds for seed, seq_len in enumerate(OTHERS))


def tensors(case: Case, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Q, K and V of a case, rounded to `dtype`."""
    generator = torch.Generator(device="cuda").manual_seed(case.seed)
    shape = (case.batch, case.seq_len, HEADS, D_HEAD)
    q, k, v = (torch.randn(shape, device="cuda", generator=generator) for _ in range(3))
    if case.inputs.startswith("scale"):
        q *= float(case.inputs.split()[1])
    elif case.inputs in ("rising", "falling"):
        ends = (0.05, 2.0) if case.inputs == "rising" else (2.0, 0.05)
        q, k = q.abs(), k.abs() * torch.linspace(*ends, case.seq_len, device="cuda").view(1, -1, 1, 1)
    elif case.inputs == "matching":
        k = q.clone()
    elif case.inputs == "outlier":
        v[:, case.seq_len // 3] *= FACTOR
    return q.to(dtype), k.to(dtype), v.to(dtype)


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention in fp64, (batch, seq_len, heads, d_head)."""
    out = torch.empty(q.shape, dtype=torch.float64, device="cuda")
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            keys, values = k[b, :, h].double(), v[b, :, h].double()
            for first in range(0, q.shape[1], ROWS):
                rows = slice(first, first + ROWS)
                scores = q[b, rows, h].double() @ keys.T / D_HEAD**0.5
                out[b, rows, h] = torch.softmax(scores, -1) @ values
    return out


def fa2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The FlashAttention-2 that torch ships."""
    length = q.shape[1]
    attend = torch.ops.aten._flash_attention_forward  # noqa: SLF001  # the operator's name
    out: torch.Tensor = attend(q, k, v, None, None, length, length, 0.0, False, False)[0]
    return out


def kernels(wheels: Path) -> dict[str, Kernel]:
    """FA2 and the iterations of the unpacked wheels, by name."""
    for number in ITERATIONS:
        if not (wheels / f"flashladder_{number}").is_dir():
            raise FlashladderError(
                f"no unpacked wheel of iteration {number}",
                where=wheels,
                hint="pip install --no-deps --target FOLDER build/iteration_*/*/*.whl",
            )
    sys.path.insert(0, str(wheels))
    from flashladder import forward

    def of(number: int) -> Kernel:
        return lambda q, k, v: forward(q, k, v, iteration=number, config=short_form(number, str(q.dtype)))

    return {"fa2": fa2, **{str(number): of(number) for number in ITERATIONS}}


def short_form(number: int, dtype: str) -> str:
    """The configuration of an iteration for an H200, which every Hopper GPU is given here."""
    from flashladder.ladder.iteration import load_iteration

    names = {str(value): name for name, value in DTYPES.items()}
    config: str = load_iteration(number).configs["h200"].with_dtype(names[dtype]).short_form()
    return config


def identities() -> dict[str, dict[str, str]]:
    """Which machine code runs: by kernel, its iteration, configuration and digest."""
    from flashladder.build.installed import load_installed
    from flashladder.ladder.config import KernelConfig

    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    found = {}
    for number in ITERATIONS:
        for value in DTYPES.values():
            config = short_form(number, str(value))
            kernel = load_installed(number).identity(KernelConfig.parse(config), arch)
            own = {"arch": arch, "text_sha256": kernel.text_sha256 or ""}
            found[kernel.key] = {"iteration": str(number), "config": config, **own}
    return found


def measured(arms: dict[str, Kernel]) -> Iterator[dict[str, object]]:
    """One record per case and dtype: [maximum, RMS] error of each arm."""
    for name, dtype in DTYPES.items():
        for case in cases():
            q, k, v = tensors(case, dtype)
            want, errors = exact(q, k, v), {}
            for arm, kernel in arms.items():
                off = kernel(q, k, v).double() - want
                errors[arm] = [off.abs().max().item(), off.square().mean().sqrt().item()]
            yield {"dtype": name, **vars(case), "errors": errors}


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and writes; prints the worst ratio of each arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True, help="folder of unpacked wheels")
    parser.add_argument("--out", type=result_file, required=True, help="the file to write (.json.gz)")
    of = parser.parse_args(argv)
    with one_line_errors():
        if not torch.cuda.is_available():
            raise FlashladderError("no GPU that torch can use", hint="invoke doctor says what is there")
        measure(of.wheels, of.out)
    return 0


def measure(wheels: Path, out: Path) -> None:
    """Measures all arms, writes their errors to `out`, prints the worst ratios."""
    gpu = torch.cuda.get_device_properties(0)
    records = list(measured(kernels(wheels)))
    document = {
        "what": "[maximum, RMS] error against fp64, by iteration and for torch's FA2; 16 heads, d_head 128",
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gpu": {"name": gpu.name, "uuid": f"GPU-{gpu.uuid}"},
        "torch": torch.__version__,
        "python": platform.python_version(),
        "kernels": identities(),
        "records": records,
    }
    write_atomic(out, gzip.compress(json.dumps(document).encode(), mtime=0))
    for kind in dict.fromkeys(str(record["inputs"]) for record in records):
        worst = [
            max(e[str(n)][0] / e["fa2"][0] for r in records if r["inputs"] == kind and (e := r["errors"]))  # type: ignore[index]
            for n in ITERATIONS
        ]
        print(
            f"{kind:10} " + " ".join(f"{number}: {value:.2f}" for number, value in zip(ITERATIONS, worst, strict=True))
        )


if __name__ == "__main__":
    raise SystemExit(main())
