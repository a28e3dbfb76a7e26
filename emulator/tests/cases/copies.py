"""Cases of ``cp.async.mbarrier.arrive``: a phase completes once the copies that were issued before have landed."""

from collections.abc import Iterator

import numpy as np
from tests.cases.harness import CTA, Case, edge, given, text_of

# In the text ``copies`` every thread copies 16 bytes, the quarter of its own that begins with its number modulo 4.
WAIT = "again: mbarrier.try_wait.parity.shared::cta.b64 ok, [mb], 0;\n@!ok bra again;\n"
# Shows the word of the thread 5 further on, wrapped, that its copy brought for that thread.
SHOW = """add.u32 turn, turn, 5; and.b32 turn, turn, 127; mov.u32 at, box; mad.lo.u32 to, turn, 16, at;
and.b32 turn, turn, 3; mad.lo.u32 to, turn, 4, to; ld.shared.u32 d, [to];
"""


def cases() -> Iterator[Case]:
    words = edge("u32", 2 * CTA)
    expected = np.concatenate([np.roll(part, -5) for part in words.reshape(-1, CTA)])
    more = "mbarrier.arrive.shared::cta.b64 _, [mb];\n"
    for space in ("", ".shared", ".shared::cta"):
        for counted, arrivals, also in ((".noinc", CTA, ""), ("", CTA, more), (".noinc", 2 * CTA, more)):
            opcode = f"cp.async.mbarrier.arrive{counted}{space}.b64"
            generic = "" if space else "cvt.u64.u32 far, mb; cvta.shared.u64 far, far;\n"
            text = text_of("copies", arrivals=arrivals) + "\n"
            text += f"{generic}{opcode} [{'mb' if space else 'far'}];\n{also}{WAIT}{SHOW}"
            fields = {"note": f"{arrivals} arrivals", "target": "sm_90", "version": "8.6"}
            yield given(opcode, text, {"words": ("u32", words)}, {"d": ("u32", expected)}, **fields)


CASES = list(cases())
