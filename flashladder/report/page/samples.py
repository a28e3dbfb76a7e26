"""Raw pairs of a timing, packed for the page: whole nanoseconds, each as the difference from the one before.

Why packed: the page holds the samples of every number that it shows, some 40,000 pairs, and stays a file that one
sends. ``templates/page.js`` unpacks them when a number is asked for. Nothing to run here.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

from flashladder.results.schema import Accuracy, Block, Group, Pair, Series

NS = 1000  # per microsecond; a GPU's events tell no less than 32


def packed(group: Group, series: Series) -> dict[str, Any]:
    """The pairs of one series; JSON holds the values alone, in this order.

    Returns:
        ``process`` and the ``seeds`` of its inputs; ``fa2`` and ``kernel``: in units of ``unit`` nanoseconds, the first
        and then differences; ``inputs``: input sets of the first pairs, which then come again; ``errors``: largest
        before and after timing, and what is allowed; ``blocks``: columns of index, pairs, whether the kernel went
        first, why it was dropped (0: it counts), SM clock in MHz, power in W and temperature in degrees C when it
        began; a column that is the same throughout is one value.
    """
    fa2 = [round(pair.reference_us * NS) for pair in series.pairs]
    kernel = [round(pair.kernel_us * NS) for pair in series.pairs]
    unit = math.gcd(*fa2, *kernel) or 1
    return {
        "process": group.process,
        "seeds": list(group.input_seeds),
        "unit": unit,
        "fa2": differences([time // unit for time in fa2]),
        "kernel": differences([time // unit for time in kernel]),
        "inputs": cycle([pair.input_set for pair in series.pairs]),
        "errors": [_error(series.before), _error(series.after)],
        "blocks": in_columns([_block(block, series.pairs) for block in group.blocks if _pairs(block, series.pairs)]),
    }


def differences(whole: Sequence[int]) -> list[int]:
    """The first, then each less the one before it."""
    return [*whole[:1], *(whole[i] - whole[i - 1] for i in range(1, len(whole)))]


def cycle(inputs: Sequence[int]) -> list[int]:
    """The shortest beginning that, repeated, gives the whole."""
    lengths = (n for n in range(1, len(inputs)) if all(one == inputs[i % n] for i, one in enumerate(inputs)))
    return list(inputs[: next(lengths, len(inputs))])


def in_columns(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """The columns of a table; one that holds one value throughout is that value."""
    turned = [list(column) for column in zip(*rows, strict=True)]
    return [column[0] if all(one == column[0] for one in column) else column for column in turned]


def _error(look: Accuracy | None) -> list[float] | None:
    if look is None or look.max_error is None:
        return None
    return [float(f"{look.max_error:.3g}"), float(f"{look.max_allowed:.3g}")]


def _pairs(block: Block, pairs: Sequence[Pair]) -> int:
    return sum(pair.block == block.index for pair in pairs)


def _block(block: Block, pairs: Sequence[Pair]) -> list[Any]:
    began = block.samples[0] if block.samples else None
    power = None if began is None or began.power_w is None else round(began.power_w)
    looks = (began.sm_clock_mhz, power, began.temperature_c) if began else (None, None, None)
    return [block.index, _pairs(block, pairs), int(block.kernel_first), block.dropped or 0, *looks]
