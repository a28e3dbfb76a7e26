"""The paired timer on a simulated GPU: order, pairing, flushes, warm-up and dropped blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flashladder.bench.timing import RUN_UP, Arm, Hardware, time_pairs, warm_up
from flashladder.results.derive import GPU_IDLE, SW_POWER_CAP, Plan, changed_state, settle
from flashladder.results.schema import Block, Pair, Sample

THERMAL = 0x40


@dataclass
class FakeGpu:
    """A GPU whose timeline is a number; launches add their duration, in ms."""

    now: float = 0.0
    log: list[str] = field(default_factory=list)
    bits: list[int] = field(default_factory=list)
    clock_mhz: Callable[[int], int | None] = lambda _: 1500
    samples: int = 0
    late: list[bool] = field(default_factory=list)
    asked: list[tuple[float, float]] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        return self.late.pop(0) if self.late else False

    def launch(self, name: str, milliseconds: float) -> Callable[[int], None]:
        def run(inputs: int) -> None:
            self.log.append(f"{name}{inputs}")
            self.now += milliseconds

        return run

    def flush(self) -> None:
        self.log.append("flush")
        self.now += 0.08

    def sample(self) -> Sample:
        self.samples += 1
        bits = self.bits.pop(0) if self.bits else 0
        return Sample(
            t_s=self.now, sm_clock_mhz=self.clock_mhz(self.samples), memory_clock_mhz=1, power_w=1.0, temperature_c=40,
            throttle_bits=bits,
        )  # fmt: skip

    def hardware(self) -> Hardware:
        return Hardware(lambda: FakeEvent(self), self.flush, lambda: None, self.sample, lambda: self.now / 1e3)


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.at = -1.0

    def record(self) -> None:
        self.at = self.gpu.now

    def synchronize(self) -> None:
        assert self.at >= 0, "waiting for a mark that was never made"

    def query(self) -> bool:
        self.gpu.asked.append((self.at, self.gpu.now))
        return self.gpu.waits

    def elapsed_time(self, end_event: FakeEvent) -> float:
        return end_event.at - self.at


def run(gpu: FakeGpu, plan: Plan) -> tuple[tuple[Block, ...], dict[str, tuple[Pair, ...]]]:
    reference = Arm("R", gpu.launch("R", 2.0))
    arms = [Arm("A", gpu.launch("A", 1.0)), Arm("B", gpu.launch("B", 4.0)), Arm("AA", reference.launch)]
    blocks, pairs = time_pairs(gpu.hardware(), reference, arms, plan)
    return blocks, dict(pairs)


def test_pairs_carry_the_times_of_their_own_arms_whatever_the_order() -> None:
    gpu = FakeGpu()
    blocks, pairs = run(gpu, Plan(pairs=8, blocks=4))
    assert gpu.asked
    assert all(now > mark for mark, now in gpu.asked), "asked before the launch was queued: it says nothing about it"
    assert {block.kernel_first for block in blocks} == {True, False}
    assert {(round(p[2]), round(p[3])) for p in pairs["A"]} == {(2000, 1000)}
    assert {(round(p[2]), round(p[3])) for p in pairs["B"]} == {(2000, 4000)}
    assert {(round(p[2]), round(p[3])) for p in pairs["AA"]} == {(2000, 2000)}
    assert [len(found) for found in pairs.values()] == [8, 8, 8]


def test_arms_of_a_pair_are_adjacent_on_the_same_inputs_and_each_is_flushed_before() -> None:
    gpu = FakeGpu()
    run(gpu, Plan(pairs=6, blocks=2, input_sets=3))
    launches = [(index, name) for index, name in enumerate(gpu.log) if name != "flush"]
    assert all(gpu.log[index - 1] == "flush" for index, _ in launches)
    timed = [name for _, name in launches]
    for letter in "AB":
        own = [index for index, name in enumerate(timed) if name[0] == letter]
        assert len(own) == 6
        for index in own:
            neighbours = {timed[index - 1], timed[index + 1] if index + 1 < len(timed) else ""}
            assert "R" + timed[index][1] in neighbours
        assert {timed[index][1] for index in own} == {"0", "1", "2"}


def test_the_host_is_ahead_of_the_gpu_before_a_blocks_first_pair() -> None:
    gpu = FakeGpu()
    run(gpu, Plan(pairs=1, blocks=1))
    assert gpu.log[: RUN_UP + 3] == ["flush", "R0", *["flush"] * (RUN_UP + 1)]
    assert RUN_UP >= 4


def test_order_differs_between_blocks_and_repeats_with_the_seed() -> None:
    first, _ = run(FakeGpu(), Plan(pairs=8, blocks=8, seed=3))
    again, _ = run(FakeGpu(), Plan(pairs=8, blocks=8, seed=3))
    assert [block.order for block in first] == [block.order for block in again]
    assert len({block.order for block in first}) > 1
    assert sum(block.kernel_first for block in first) == 4


def test_a_block_whose_throttle_bits_change_is_dropped_and_made_up_for() -> None:
    gpu = FakeGpu(bits=[0, 0, 0, THERMAL])
    blocks, pairs = run(gpu, Plan(pairs=4, blocks=4, extra_blocks=2, min_pairs=4))
    assert [block.dropped is None for block in blocks] == [True, False, True, True, True]
    assert blocks[1].dropped == "throttle reasons changed: hardware thermal"
    assert len(pairs["A"]) == 5  # raw pairs of the dropped block are kept


def test_a_block_in_which_the_gpu_waited_for_the_host_is_dropped_and_made_up_for() -> None:
    gpu = FakeGpu(late=[False] * 8 + [True, False, True])
    blocks, pairs = run(gpu, Plan(pairs=4, blocks=4, extra_blocks=2, min_pairs=4))
    assert [found.late for found in blocks] == [0, 2, 0, 0, 0]  # six launches a block
    assert [found.dropped for found in blocks][:3] == [None, "the GPU waited for the host before 2 launches", None]
    assert len(pairs["A"]) == 5


def test_a_host_that_is_always_late_leaves_its_blocks_where_they_would_all_go() -> None:
    blocks, _ = run(FakeGpu(late=[True] * 1000), Plan(pairs=4, blocks=4, extra_blocks=2, min_pairs=4))
    assert len(blocks) == 6
    assert all(found.late and found.dropped is None for found in blocks)
    hot = block(0, 0, THERMAL).model_copy(update={"late": 3})
    assert settle([hot], visit=1, min_pairs=1)[0].dropped == "throttle reasons changed: hardware thermal"


def sample(bits: int | None) -> Sample:
    return Sample(t_s=0, sm_clock_mhz=1, memory_clock_mhz=1, power_w=1.0, temperature_c=1, throttle_bits=bits)


def block(index: int, *bits: int | None) -> Block:
    return Block(index=index, kernel_first=False, order=("A",), samples=tuple(sample(bit) for bit in bits))


def test_idling_is_no_throttling() -> None:
    assert changed_state([sample(GPU_IDLE), sample(0)]) is None
    assert changed_state([sample(None), sample(THERMAL)]) is None  # a GPU that tells nothing drops nothing
    assert changed_state([sample(SW_POWER_CAP), sample(SW_POWER_CAP)]) is None
    assert changed_state([sample(0), sample(SW_POWER_CAP | THERMAL)]) is not None


def test_a_flickering_power_cap_drops_blocks_only_while_enough_remain() -> None:
    flicker, calm, hot = block(0, 0, SW_POWER_CAP), block(1, 0, 0), block(2, 0, THERMAL)
    strict = settle([flicker, calm, calm, hot], visit=10, min_pairs=20)
    assert [found.dropped is None for found in strict] == [False, True, True, False]
    lenient = settle([flicker, flicker, calm, hot], visit=10, min_pairs=20)
    assert [found.dropped is None for found in lenient] == [True, True, True, False]
    assert settle(lenient, visit=10, min_pairs=20) == lenient


def test_warm_up_waits_until_the_clock_is_level() -> None:
    gpu = FakeGpu(clock_mhz=lambda n: 1000 + 100 * min(n, 12))
    spent = warm_up(gpu.hardware(), Arm("R", gpu.launch("R", 5.0)), least_s=0.3, most_s=10.0)
    assert 1.2 < spent < 3.0


def test_warm_up_ends_on_a_clock_that_never_settles() -> None:
    gpu = FakeGpu(clock_mhz=lambda n: 1000 + 500 * (n % 2))
    assert 2.0 <= warm_up(gpu.hardware(), Arm("R", gpu.launch("R", 5.0)), least_s=0.3, most_s=2.0) < 2.5
