"""What the intermediates of the online softmax are, and what is at fault where one is the first that differs.

Their names, in the order in which they are computed, are `flashladder.names.INTERMEDIATES`: all once per KV block, but
`out`, which is stored once behind the last.
"""

from __future__ import annotations

from flashladder.ladder.iteration import Iteration

STATISTICS = ("m", "l")
"""Those with a number a row, of which each of the four lanes that share the row has its own."""
MEANING = {
    "S": "Q K^T, the accumulators after the last k-tile",
    "S_scaled": "S scale, where the kernel multiplies before it takes the maximum",
    "m": "running maximum of the row",
    "P": "exp((S - m) scale) in fp32",
    "P16": "P as the tensor cores multiply it",
    "l": "running sum of P, each lane's columns",
    "O_rescaled": "O brought to the new maximum, before P V is added",
    "O": "O after P V, not yet divided by l",
    "out": "O / l in 16 bits, as it is stored",
}
STALE = "exp2_stale"  # softmax of kernels in which a row keeps its maximum until a score is far above it
STALE_MEANING = {
    "m": "what the row uses, in powers of two: kept until a score is 4 times above, then its maximum, 2 less if heavy",
    "P": "2^(S c - m) in fp32, up to 4",
    "O_rescaled": "O brought to the maximum in use, before P V is added",
}
STALE_SUSPECTS = {
    "m": "S and the m before are right there: look at the vote, what it compares, who follows, and who is heavy",
    "l": "P, m and the l before are right there: look at the sum over the row, and its correction where m is a new one",
    "O_rescaled": "m and the O before are right there: look at O's correction where m is a new one, or how O begins",
}
"""The same of these kernels, where they differ."""
SUSPECTS = {
    "S": "Q K^T is wrong: look at which rows and columns of Q and K reach the tensor cores",
    "S_scaled": "S is right there: look at the scale",
    "m": "S and the m before are right there: look at the maximum over the row and its exchange within the quad",
    "P": "S and m are right there: look at the scale, the subtraction and the exponential",
    "P16": "P is right there: look at its conversion to 16 bits",
    "l": "P, m and the l before are right there: look at the sum over the row and its correction to the new maximum",
    "O_rescaled": "m and the O before are right there: look at O's correction to the new maximum, or how O begins",
    "O": "P and the rescaled O are right there: look at which rows and columns of V reach the tensor cores",
    "out": "O and l are right there: look at l's sum over the quad, the division, the rounding and where O is written",
}
"""Where to look when this one is the first that differs: what it was made of is right."""


def keeps_maximum(iteration: Iteration) -> bool:
    """Whether a row may keep its maximum from one KV block to the next, though larger scores have come."""
    return getattr(iteration.parts, "softmax", None) == STALE


def meaning(iteration: Iteration, name: str) -> tuple[str, str]:
    """What an intermediate is, and where to look when it is the first that differs."""
    own = (STALE_MEANING, STALE_SUSPECTS) if keeps_maximum(iteration) else ({}, {})
    return own[0].get(name, MEANING[name]), own[1].get(name, SUSPECTS[name])
