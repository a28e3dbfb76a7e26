"""The Hopper family behind the protocol: parts, rings, registers, the translation unit and the launch with its maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model

from flashladder.errors import FlashladderError
from flashladder.ladder.config import D_HEAD
from flashladder.ladder.families.hopper import launch, unit
from flashladder.ladder.families.hopper.config import BRIEF, INTEGERS, REGISTERS, HopperConfig
from flashladder.ladder.families.hopper.parts import (
    VALUES,
    Parts,
    config_conflicts,
    contradictions,
    derived_knobs,
    fit_config,
)
from flashladder.ladder.families.hopper.space import EXCLUSIONS, legal_configs, live_registers
from flashladder.ladder.family import Contradiction, Family, Knobs, Launch, Model, Targets

if TYPE_CHECKING:
    from flashladder.ladder.iteration import Iteration
    from flashladder.machine_code.ptxas import PtxasUsage

_TILE = ("B_r", "B_c", "n_consumers")
_STAGES = ("k_stages", "v_stages")
_Size = Annotated[int, Field(gt=0)] | None


class _Change(Model):
    """What differs from the parent: any of the six concerns."""


class _Knobs(Knobs):
    """Knobs of the configuration on one GPU; absent ones are inherited, or decided by the parts."""

    B_r: _Size = None
    B_c: _Size = None
    n_consumers: _Size = None
    k_stages: _Size = None
    v_stages: _Size = None
    producer_registers: _Size = None
    consumer_registers: _Size = None


def _change_model() -> type[Model]:
    """The model of ``change`` with the values that the files under kernels/ give each concern."""
    values: dict[str, Any] = {name: (Literal[found or ("",)] | None, None) for name, found in VALUES.items()}
    return create_model("ChangeFile", __base__=_Change, __doc__=_Change.__doc__, **values)


class Hopper(Family):
    """Kernels that only an H100 or H200 runs: their PTX is compute_90a's, which no other GPU takes."""

    name = "hopper"
    parts_type = Parts
    config_type = HopperConfig
    change_model = _change_model()
    knobs_model = _Knobs
    legend = (
        "For sm_90a: B_r,B_c,warpgroups that multiply, stages of K_V, then, where a\n"
        "producer fetches tiles, registers per thread of it and of the others."
    )
    exclusions = EXCLUSIONS
    plan = "hopper/plan.cpp"
    least_capability = (9, 0)
    warps_alike = False
    max_row_bytes = 2**40 - 16  # of a tensor map's strides

    @property
    def targets(self) -> Targets:
        """One architecture, and PTX for it alone."""
        return Targets("compute_90a", ("sm_90a",))

    def first_config(self, knobs: Mapping[str, object]) -> HopperConfig:
        """A tile of one row and rings of one stage, which `knobs` must replace.

        Raises:
            FlashladderError: `knobs` leave the tile or the stages open.
        """
        missing = [name for name in (*_TILE, *_STAGES) if name not in knobs]
        if missing:
            expected = ", ".join((*_TILE, *_STAGES))
            raise FlashladderError("incomplete configuration", expected=expected, found=f"no {missing[0]}")
        return HopperConfig("fp16", D_HEAD, 1, 1, 1, 1, 1)

    def contradictions(self, parts: Parts) -> tuple[Contradiction, ...]:
        """See `flashladder.ladder.families.hopper.parts`."""
        return tuple(contradictions(parts))

    def conflicts(self, parts: Parts, config: HopperConfig) -> tuple[str, ...]:
        """See `flashladder.ladder.families.hopper.parts`."""
        return config_conflicts(parts, config)

    def fit(self, parts: Parts, config: HopperConfig) -> HopperConfig:
        """See `flashladder.ladder.families.hopper.parts`."""
        return fit_config(parts, config)

    def legal_configs(self, parts: Parts, dtype: str = "fp16") -> tuple[HopperConfig, ...]:
        """See `flashladder.ladder.families.hopper.space`."""
        return legal_configs(parts, dtype)

    def of_brief(self, parts: Parts, text: str) -> HopperConfig | None:
        """``128,128,2 2_2 24_240``."""
        match = BRIEF.fullmatch(text)
        if match is None:
            return None
        knobs: dict[str, Any] = {name: int(found) for name, found in match.groupdict().items() if found}
        return fit_config(parts, HopperConfig("fp16", D_HEAD, **knobs))

    def to_knobs(self, parts: Parts, config: HopperConfig) -> dict[str, str]:
        """``{B_r: 128, ...}``: tile, stages, and registers where a producer has them."""
        decided = derived_knobs(parts)
        names = [name for name in INTEGERS if name != "d_head" and name not in decided]
        return {name: str(getattr(config, name)) for name in names}

    def translation_unit(self, of: Iteration, config: HopperConfig) -> str:
        """See `flashladder.ladder.families.hopper.unit`."""
        return unit.translation_unit(of, config)

    def part_files(self, of: Iteration, config: HopperConfig) -> tuple[str, ...]:
        """See `flashladder.ladder.families.hopper.unit`."""
        del config
        return unit.part_files(of)

    def grid(self, config: HopperConfig, shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
        """See `flashladder.ladder.families.hopper.launch`."""
        return launch.grid_of(config, shape)

    def launch(self, config: HopperConfig, tensors: Sequence[Any], multiprocessors: int) -> Launch:
        """See `flashladder.ladder.families.hopper.launch`."""
        return launch.launch_of(config, tensors, multiprocessors)

    def live_registers(self, config: HopperConfig) -> int:
        """See `flashladder.ladder.families.hopper.space`."""
        return live_registers(config)

    def for_plan(self, parts: Parts, config: HopperConfig) -> tuple[int, int, int, int]:
        """Rows of a box of Q and of O, whether a CTA computes several tiles, whether several CTAs share a tile."""
        del parts
        return config.rows, launch.store_rows(config), int(config.persistent), int(config.split)

    def refuses(self, usage: PtxasUsage) -> str:
        """Products that ptxas serialised, registers that it did not deal out, anything in local memory.

        Such code is right and several times slower; ptxas says so in notes, C7504 to C7519, and goes on.
        """
        notes = [warning for warning in usage.warnings if "(C75" in warning]
        spills = f"{usage.stack} bytes of stack, {usage.spill_stores} stored and {usage.spill_loads} loaded in spills"
        return notes[0] if notes else spills if usage.stack or usage.spill_stores or usage.spill_loads else ""

    def own_knobs(self, step: Iteration) -> tuple[str, ...]:
        """Registers of a step that brings roles; everything of a step that only tunes."""
        if not step.change:
            return (*_TILE, *_STAGES, *REGISTERS)
        return REGISTERS if "roles" in step.change else ()


FAMILY = Hopper()
