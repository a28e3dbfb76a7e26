"""Whose numbers a wrong row holds: of another query, another KV block, another column of V?

Why: an index that is off gives right numbers in the wrong place. A row of S that is not its own query's, and equals
that of another query to rounding, names the mistake. Nothing to run here; `flashladder.trace.screen` asks.
"""

from __future__ import annotations

import torch

from flashladder.trace.findings import Comparison, Trace, exact, of_ctas

SLACK = 4.0  # times what is allowed: another row's bound is of the same size, not the same


def lookalike(found: Trace, wrong: Comparison) -> str | None:
    """What the first wrong row of S, or column of O, holds instead, in words; None where nothing fits."""
    if wrong.first is None or wrong.block is None or wrong.name not in ("S", "O"):
        return None
    cta = found.ctas.index(wrong.first.cta)
    return _scores(found, wrong, cta) if wrong.name == "S" else _output(found, wrong, cta)


def _scores(found: Trace, wrong: Comparison, cta: int) -> str | None:
    assert wrong.first is not None
    assert wrong.block is not None
    keys = found.config.B_c
    q, k = (of_ctas(found, tensor)[cta] for tensor in found.tensors[:2])
    row, limit = exact(wrong.held)[cta, wrong.first.row], SLACK * wrong.first.allowed
    here = k[wrong.block * keys : (wrong.block + 1) * keys]
    for query in _matches(q @ here.T, row, limit):
        return f"the row is that of query {query}"
    blocks = (q[wrong.first.query] @ k.T).reshape(-1, keys)
    for block in _matches(blocks, row, limit):
        return f"the row is that of keys {block * keys} to {(block + 1) * keys - 1}"
    return None


def _output(found: Trace, wrong: Comparison, cta: int) -> str | None:
    assert wrong.first is not None
    assert wrong.block is not None
    assert wrong.first.column is not None
    keys, column = found.config.B_c, wrong.first.column
    step = found.steps[wrong.step]
    p, v = exact(step.p16.array)[cta], of_ctas(found, found.tensors[2])[cta]
    added = (exact(step.o.array) - exact(step.rescaled.array))[cta, :, column]
    limit = SLACK * wrong.first.allowed
    here = v[wrong.block * keys : (wrong.block + 1) * keys]
    for other in _matches((p @ here).T, added, limit):
        return f"what was added is P V of V's column {other}"
    blocks = torch.stack([p @ part[:, column] for part in v.reshape(-1, keys, v.shape[-1])])
    for block in _matches(blocks, added, limit):
        return f"what was added is P V of V's rows {block * keys} to {(block + 1) * keys - 1}"
    return None


def _matches(candidates: torch.Tensor, wanted: torch.Tensor, limit: float) -> list[int]:
    """Rows of `candidates` that are `wanted` to within `limit`; none where all are (equal inputs tell nothing)."""
    near = ((candidates - wanted).abs() <= limit).all(dim=-1)
    return [] if bool(near.all()) else [int(place) for place in near.nonzero().flatten()]
