"""The executed machine code agrees with the PTX that the emulator runs, in classes that ptxas translates one to one.

The counts come from the control-flow graph: each block's instructions times its executions, loop trips included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
import json
import math

import numpy as np
import pytest

from flashladder.build.compile import compile_many
from flashladder.emulate import kernel
from flashladder.emulate.kernel import MULTIPROCESSORS, arguments_of, constants_of, executed, forward, make_tensors
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
from flashladder.machine_code.cubin import Cubin, read_cubin
from flashladder.machine_code.executions import Executions, run
from flashladder.machine_code.flow import LOOP, PEELED, Regions, main_loop, regions_of
from flashladder.machine_code.ptxas import WARP
from flashladder.machine_code.sass import Sass, count, disassemble_many
from flashladder.names import PUBLISHED_GPU
from flashladder.problem import Problem
from flashladder.toolchain import find_toolchain
from flashladder.view.cfg import outline, picture_of
import ptxemu
from ptxemu.machine.core import Machine
from ptxemu.machine.observer import Observer
from ptxemu.syntax.tree import Instruction
from ptxemu.values import Array, BoolArray
from tests.typed import command

pytestmark = pytest.mark.nvcc

FIRST = ("peeled", "backward", "rings")  # schedules with a first block of their own
SMALL = Problem(batch=1, seq_len=256, n_heads=1, d_head=128)  # four KV blocks
LADDER = [step for step in load_all() if step.family.warps_alike]
NUMBERS = [step.number for step in LADDER]
VOTING = [step.number for step in LADDER if step.parts.softmax == "exp2_stale"]


@cache
def machine_code(arch: str) -> dict[int, tuple[Cubin, Sass]]:
    """Every iteration's kernel, in the A100's configuration."""
    steps = [step for step in LADDER if arch in step.family.targets.arches]
    entries = compile_many([(step, step.configs[PUBLISHED_GPU], arch) for step in steps])
    cubins = [read_cubin(entry.cubin) for entry in entries]
    sass = disassemble_many([cubin.text for cubin in cubins], arch, find_toolchain().nvdisasm)
    return {step.number: found for step, *found in zip(steps, cubins, sass, strict=True)}  # type: ignore[misc] # pairs


def runs(step: Iteration, arch: str, shape: Problem, *, asked: bool = False) -> tuple[Regions, Executions, int]:
    """What each warp of a launch runs, and the number of warps."""
    cubin, sass = machine_code(arch)[step.number]
    config = step.configs[PUBLISHED_GPU]
    launch, regions = kernel.launch_of(step, config, shape), regions_of(sass)
    assert cubin.parameters_at is not None
    warp = run(regions.flow, constants_of(step, config, launch, cubin.parameters_at), asked=asked)
    return regions, warp, math.prod(launch.grid) * math.prod(launch.block) // WARP


def sass_classes(warp: Executions, n_warps: int) -> Counter[str]:
    """Instructions of the classes that PTX has too, under PTX's names; LDSM by its number of matrices."""
    classes: Counter[str] = Counter()
    for opcode, each in warp.counts().items():
        n, words = each * n_warps, opcode.split(".")
        head, last = words[0], words[-1]
        if head in ("HMMA", "LDGSTS") or opcode == "MUFU.EX2":
            classes[{"HMMA": "mma", "LDGSTS": "cp.async", "MUFU": "ex2"}[head]] += n
        elif head == "LDSM":
            classes[f"ldmatrix.x{last if last in '24' else 1}"] += n
    return classes


def ptx_classes(opcodes: Counter[str]) -> Counter[str]:
    classes: Counter[str] = Counter()
    for opcode, n in opcodes.items():
        words = opcode.split(".")
        if words[0] in ("mma", "ex2"):
            classes[words[0]] += n
        elif words[0] == "ldmatrix":
            classes[f"ldmatrix.{next(word for word in words if word in ('x1', 'x2', 'x4'))}"] += n
        elif opcode.startswith(("cp.async.cg.", "cp.async.ca.")):
            classes["cp.async"] += n
    return classes


def counted(step: Iteration, *, rising: bool) -> Counter[str]:
    """The opcodes that the emulator runs if no score exceeds the first block's, or each block exceeds all before."""
    config, counters = step.configs[PUBLISHED_GPU], ptxemu.Counters()
    q, k, v, out = make_tensors(step, config, SMALL)
    q[...], k[...] = 0, 0
    order = np.arange(SMALL.seq_len) // config.B_c
    backward = step.parts.schedule in ("backward", "rings")
    q[..., 0] = 8
    k[..., 0] = 8 * np.reshape(order[::-1] if backward else order, (-1, 1)) if rising else 8
    forward(step, config, (q, k, v, out), observers=[counters])
    return counters.opcodes


@pytest.mark.parametrize("number", VOTING)
def test_what_votes_guard_runs_where_every_lane_asks(number: int) -> None:
    step = load_iteration(number)
    wanted = ptx_classes(counted(step, rising=True))
    assert wanted["ex2"] > ptx_classes(counted(step, rising=False))["ex2"]
    for arch in step.family.targets.arches:
        _, warp, n_warps = runs(step, arch, SMALL, asked=True)
        assert sass_classes(warp, n_warps) == wanted
        assert len(warp.votes) == 5


def test_on_normal_inputs_a_ninth_of_the_votes_finds_a_lane() -> None:
    """The assumption of `explain` ignores these (docs/explain.md): one CTA of the H200's launch at S = 4096."""
    step = load_iteration(17)
    config, votes = step.configs["h200"], Votes()
    tensors = make_tensors(step, config, Problem(batch=1, seq_len=4096, n_heads=1, d_head=128))
    launch = step.family.launch(config, tensors, MULTIPROCESSORS)
    kernel.kernel_of(step, config).launch(
        (1, 1, 1), launch.block, arguments_of(launch), shared_bytes=launch.shared_bytes, observers=(votes,)
    )
    first, *groups = (found / asked for asked, found in votes.counts.values())
    assert first == pytest.approx(0.12, abs=0.03)
    assert sum(groups) / len(groups) == pytest.approx(0.35, abs=0.08)


class Votes(Observer):
    """For each vote of the PTX, by line: the warps that executed it, and those that found a lane."""

    def __init__(self) -> None:
        self.counts: dict[int, Array] = {}

    def follow(self, machine: Machine, instruction: Instruction) -> Callable[[BoolArray | None], None] | None:
        if not instruction.opcode.startswith("vote."):
            return None
        slot, shape = machine.slots[str(instruction.operands[0])], (*machine.shape[:2], WARP)

        def note(mask: BoolArray | None) -> None:
            active = np.broadcast_to(True if mask is None else mask, shape)
            found = np.broadcast_to(machine.registers[slot], shape).astype(bool) & active
            count = np.array([active.any(2).sum(), found.any(2).sum()])
            self.counts[instruction.line] = self.counts.get(instruction.line, 0) + count

        return note


@pytest.mark.parametrize("number", NUMBERS)
def test_executed_machine_code_agrees_with_executed_ptx(number: int) -> None:
    step = load_iteration(number)
    wanted = ptx_classes(counted(step, rising=False))
    assert all(wanted[name] > 0 for name in ("mma", "ldmatrix.x4", "ex2", "cp.async"))
    for arch in step.family.targets.arches:
        assert sass_classes(*runs(step, arch, SMALL)[1:]) == wanted, arch


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_regions_are_as_the_schedule_has_them(arch: str) -> None:
    for step in LADDER:
        regions, warp, _ = runs(step, arch, SMALL)
        flow = regions.flow
        assert flow.is_reducible
        assert count(regions.code(LOOP)) == count(main_loop(machine_code(arch)[step.number][1]))
        peeled, loop = (count(regions.code(name)).get("HMMA", 0) for name in (PEELED, LOOP))
        assert loop == sum(len(flow.tensor(block)) for block in range(len(flow.blocks))) - peeled
        assert peeled == (loop if step.parts.schedule in FIRST else 0)
        text = outline(picture_of(f"iteration {step.number}, {arch}", regions, warp))
        assert max(map(len, text.splitlines())) <= 80, step.number
        assert ("The warp votes on data" in " ".join(text.split())) == (step.number in VOTING)


def test_the_command_draws_in_each_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("cfg", "3", "--arch", "sm_90", "--json", "--seq-len", "640") == 0
    found = json.loads(capsys.readouterr().out)
    assert [loop["trips"] for loop in found["loops"]] == [10]
    assert found["per_kv_block"]["HMMA"] == 128
    cubin = compile_many([(load_iteration(3), load_iteration(3).configs[PUBLISHED_GPU], "sm_90")])[0].cubin
    assert command("cfg", str(cubin), "--dot") == 0
    assert capsys.readouterr().out.startswith("digraph")
    assert command("cfg", "3", "--dot", "--config", "rtx3090") == 0
    assert capsys.readouterr().out.startswith('digraph "iteration 3, sm_80, S = 4096: (FP16, 128, ')


def test_the_next_k_is_not_copied_in_the_last_round() -> None:
    step = load_iteration(16)
    shape = Problem(batch=1, seq_len=640, n_heads=2, d_head=128)
    regions, warp = executed(step, step.configs[PUBLISHED_GPU], "sm_80", shape)
    per_block = picture_of("", regions, warp)["per_kv_block"]
    assert regions.flow.main_loop is not None
    assert warp.trips(regions.flow.main_loop) + (PEELED in regions.present) == 10
    assert [per_block["LDGSTS"], per_block["HMMA"]] == pytest.approx([8 + 8 * 8 / 9, 256])
