"""Random operations on one mbarrier, by one thread, against the ISA's rules as a few lines of Python."""

from __future__ import annotations

from dataclasses import dataclass, field
import random

import numpy as np
import pytest
from tests.hopper_kernels import kernel

import ptxemu

OPERATIONS = 30
SPACE = "shared::cta.b64"


@dataclass
class Model:
    """Expected and pending arrivals, bytes, phase; `states` are the tokens so far, as their pending counts."""

    expected: int
    pending: int = field(init=False)
    nbytes: int = 0
    phase: int = 0

    def __post_init__(self) -> None:
        self.pending = self.expected

    def settle(self) -> None:
        if self.pending == 0 and self.nbytes == 0:
            self.phase, self.pending = self.phase + 1, self.expected

    def arrive(self, count: int, nbytes: int = 0, dropped: int = 0) -> int:
        """The pending count before; `count` is at most that."""
        self.nbytes += nbytes
        before, self.pending, self.expected = self.pending, self.pending - count, self.expected - dropped
        self.settle()
        return before


def operation(model: Model, random_: random.Random) -> tuple[str, int | None]:
    """A legal operation as PTX, applied to the model; and the pending count that its state has, if it has one."""
    choices = ["expect", "complete"]
    if model.pending:
        choices += ["arrive", "arrive", "expecting"]
        if model.expected > 2:
            choices.append("drop")
        if model.pending > 1:
            choices.append("quiet")
    kind = random_.choice(choices)
    if kind == "expect":
        nbytes = random_.randint(0, 64)
        model.nbytes += nbytes
        model.settle()
        return f"mbarrier.expect_tx.relaxed.cta.{SPACE} [%bar], {nbytes};", None
    if kind == "complete":
        nbytes = model.nbytes if model.nbytes > 0 and random_.random() < 0.7 else random_.randint(0, 64)
        model.nbytes -= nbytes
        model.settle()
        return f"mbarrier.complete_tx.relaxed.cta.{SPACE} [%bar], {nbytes};", None
    if kind == "expecting":
        nbytes = max(0, -model.nbytes) if random_.random() < 0.7 else random_.randint(0, 64)
        return f"mbarrier.arrive.expect_tx.{SPACE} %state, [%bar], {nbytes};", model.arrive(1, nbytes)
    if kind == "quiet":
        count = random_.randint(1, model.pending - 1)
        return f"mbarrier.arrive.noComplete.{SPACE} %state, [%bar], {count};", model.arrive(count)
    if kind == "drop":
        return f"mbarrier.arrive_drop.{SPACE} %state, [%bar];", model.arrive(1, dropped=1)
    count = random_.randint(1, model.pending)
    return f"mbarrier.arrive.{SPACE} %state, [%bar], {count};", model.arrive(count)


@pytest.mark.parametrize("seed", range(12))
def test_random_operations(seed: int) -> None:
    random_ = random.Random(seed)
    model = Model(random_.randint(1, 9))
    body = ["@!%first ret;", f"mbarrier.init.{SPACE} [%bar], {model.expected};", "mov.u64 %at, %out;"]
    wanted: list[int] = []
    for _ in range(OPERATIONS):
        text, pending = operation(model, random_)
        body.append(text)
        body.append("mov.u32 %word, 0;" if pending is None else "mbarrier.pending_count.b64 %word, %state;")
        for parity in (0, 1):
            body.append(f"mbarrier.test_wait.parity.{SPACE} %done, [%bar], {parity};\nselp.u32 %n, 1, 0, %done;")
            body.append("mad.lo.u32 %word, %word, 2, %n;")
        body.append("st.global.u32 [%at], %word;\nadd.u64 %at, %at, 4;")
        wanted.append((pending or 0) * 4 + (2 if model.phase & 1 else 1))
    body.append(f"mbarrier.inval.{SPACE} [%bar];")
    out = np.zeros(OPERATIONS, np.uint32)
    ptxemu.load(kernel("\n".join(body))).kernel().launch(1, 32, [out])
    assert out.tolist() == wanted
