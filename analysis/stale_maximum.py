"""What a stale row maximum does to the error: softmax of iteration 17 beside FA2's, simulated in torch on this CPU.

Why: the slack is a choice between speed and exactness (docs/decisions/024), and a maximum error is noise of an extreme;
this repeats it over seeds. P is rounded to 16 bits under the maximum in use, all else is fp32, the reference fp64.
`heavy` is iteration 17, with the numbers of the trace's reference: a slack of 2, and none for a row whose sum is small;
the others have one slack for all rows. Blocks are met from the last to the first. A maximum over a few seeds says
little: what sets the rules apart is how many of hundreds of seeds are far off, in rows of few keys first (S = 256).
Run: ``python analysis/stale_maximum.py --dtype bf16 --seq-len 1024 --heads 4 --seeds 3``; prints a table.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import math

import torch

from flashladder.arguments import Parser, whole
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.trace import reference as ref

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
D_HEAD = 128
SCALE = math.log2(math.e) / math.sqrt(D_HEAD)
FA2_ROWS, ROWS = 64, 64  # of K in a block: FA2's at this head size, and ours
SLACKS = (1.0, 1.5, 2.0, 8.0)
HEAVY = "heavy"  # the kernel's own rule, of what FA2's and the slacks of all rows stand beside
Rule = float | str | None
STEP = 512  # query rows at a time


def maxima(scores: torch.Tensor, rows: int, slack: Rule) -> torch.Tensor:
    """The maximum in use, (query rows, blocks) in powers of two; slack None is the running maximum."""
    if slack == HEAVY:
        return heavy_maxima(scores, rows)
    assert not isinstance(slack, str)
    blocks = scores.view(len(scores), -1, rows).amax(2) * SCALE
    used, m = [], blocks[:, 0]
    for block in blocks.unbind(1):
        if slack is None:
            m = torch.maximum(m, block)
        else:
            above = (block - m > slack).view(-1, ref.TOGETHER).any(1).repeat_interleave(ref.TOGETHER)
            m = torch.where(above, torch.maximum(m, block), m)
        used.append(m)
    return torch.stack(used, 1)


def heavy_maxima(scores: torch.Tensor, rows: int) -> torch.Tensor:
    """The m in use of iteration 17, by the trace's reference: of a heavy row its maximum less the slack."""
    natural, keys, used = SCALE * math.log(2), scores.shape[1], []
    state = ref.State.empty(1, len(scores), D_HEAD)
    for number, block in enumerate(scores.double().view(1, len(scores), -1, rows).unbind(2)):
        m, _ = ref.stale_maximum(state, block, natural, ref.Progress(number * rows, keys))
        p, _ = ref.stale_weights(block, m, natural)
        sums, _ = ref.total(state, m, p, math.log(2))
        state = ref.State(m, sums, state.o)
        used.append(m[0, :, 0].float())
    return torch.stack(used, 1)


def output(scores: torch.Tensor, v: torch.Tensor, dtype: torch.dtype, rows: int, slack: Rule) -> torch.Tensor:
    """O of these query rows, rounded to `dtype` as the kernel does."""
    scores, v = scores.flip(1), v.flip(0)
    used = maxima(scores, rows, slack)
    p = torch.exp2(scores * SCALE - used.repeat_interleave(rows, 1))
    later = torch.exp2(used - used[:, -1:]).repeat_interleave(rows, 1)  # what O and l were multiplied by since
    l = (p * later).sum(1, keepdim=True)  # noqa: E741  # the field's name
    return ((p.to(dtype).float() * later) @ v / l).to(dtype)


def errors(seed: int, dtype: torch.dtype, seq_len: int, heads: int, scale: float) -> dict[str, tuple[float, float]]:
    """Maximum and RMS error against fp64, by name."""
    generator = torch.Generator().manual_seed(seed)
    arms: dict[str, tuple[int, Rule]] = {"fa2": (FA2_ROWS, None), HEAVY: (ROWS, HEAVY)}
    arms |= {f"slack {slack:g}": (ROWS, slack) for slack in SLACKS}
    worst, squares = dict.fromkeys(arms, 0.0), dict.fromkeys(arms, 0.0)
    for _ in range(heads):
        q, k, v = (torch.randn(seq_len, D_HEAD, generator=generator) for _ in range(3))
        q, k, v = ((t * factor).to(dtype).float() for t, factor in ((q, scale), (k, 1.0), (v, 1.0)))
        for first in range(0, seq_len, STEP):
            scores = q[first : first + STEP] @ k.T
            want = torch.softmax(scores.double() / math.sqrt(D_HEAD), 1) @ v.double()
            for name, (rows, slack) in arms.items():
                off = (output(scores, v, dtype, rows, slack).double() - want).abs()
                worst[name] = max(worst[name], off.max().item())
                squares[name] += off.square().sum().item()
    return {name: (worst[name], math.sqrt(squares[name])) for name in arms}


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the errors over FA2's: the mean and the worst of the seeds' maxima, and the worst RMS."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=DTYPES, default="fp16")
    parser.add_argument("--seq-len", type=whole, default=1024, help=f"a multiple of {STEP}")
    parser.add_argument("--heads", type=whole, default=4)
    parser.add_argument("--seeds", type=whole, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="what Q is multiplied by")
    of = parser.parse_args(argv)
    with one_line_errors():
        if of.seq_len % STEP or not all((of.seq_len, of.heads, of.seeds)):
            raise FlashladderError("nothing to simulate", expected=f"numbers above 0, --seq-len a multiple of {STEP}")
        found = [errors(seed, DTYPES[of.dtype], of.seq_len, of.heads, of.scale) for seed in range(of.seeds)]
        if not all(0 < one["fa2"][1] < math.inf for one in found):
            raise FlashladderError(
                "FA2's errors cannot be divided by", where=f"--scale {of.scale:g}",
                expected="errors above 0, all finite", hint="a scale above 0, such as 30",
            )  # fmt: skip
        print("slack     max mean  max worst  rms worst")
        for name in found[0]:
            maximum = [one[name][0] / one["fa2"][0] for one in found]
            rms = max(one[name][1] / one["fa2"][1] for one in found)
            print(f"{name:9} {sum(maximum) / len(maximum):8.2f} {max(maximum):10.2f} {rms:10.3f}")


if __name__ == "__main__":
    main()
