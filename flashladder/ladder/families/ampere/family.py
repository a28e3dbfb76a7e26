"""The Ampere family behind the protocol: parts, tiles, the translation unit and the launch of `flash_fwd_kernel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StrictInt, create_model

from flashladder.errors import FlashladderError
from flashladder.ladder.config import D_HEAD
from flashladder.ladder.families.ampere import launch, unit
from flashladder.ladder.families.ampere.config import BRIEF, FLAGS, INTEGERS, KEYS, LOADS, AmpereConfig
from flashladder.ladder.families.ampere.parts import (
    VALUES,
    Parts,
    config_conflicts,
    contradictions,
    derived_knobs,
    fit_config,
)
from flashladder.ladder.families.ampere.space import EXCLUSIONS, legal_configs, live_registers
from flashladder.ladder.family import Contradiction, Family, Knobs, Launch, Model, Targets
from flashladder.toolchain.wheels import load_pins

if TYPE_CHECKING:
    from flashladder.ladder.iteration import Iteration

_LOADS = (*LOADS, "mma_double_buffer_loads")
LEGEND = """\
B_r,B_c,n_warps, then the loads of Q_K_V in units of 8 elements of k (0: all up
front).
+buffer: the next step's fragments are loaded while this step's mma run.
+opt: optimized softmax; iterations 6 and 7: scale and maximum fold into one
      FFMA before ex2; from 10 on: the first KV block starts the row statistics
      instead of correcting -inf and 0."""
_TUNED = ("B_r", "B_c", "n_warps", *_LOADS)


class _Change(Model):
    """What differs from the parent: any of the ten concerns."""


class _Knobs(Knobs):
    """Knobs of the configuration on one GPU; absent ones are inherited, or decided by the parts."""

    B_r: Annotated[int, Field(gt=0)] | None = None
    B_c: Annotated[int, Field(gt=0)] | None = None
    n_warps: Annotated[int, Field(gt=0)] | None = None
    load_tiles: Annotated[tuple[StrictInt, StrictInt, StrictInt], Field(strict=False)] | None = None

    def knobs(self) -> dict[str, object]:
        """The knobs that are given, under the names of `AmpereConfig`."""
        given = super().knobs()
        if self.load_tiles is not None:
            del given["load_tiles"]
            given |= zip(LOADS, self.load_tiles, strict=True)
        for name, flag in FLAGS.items():
            if flag.key in given:
                given[name] = given.pop(flag.key)
        return given


def _change_model() -> type[Model]:
    """The model of ``change`` with the values that the files under kernels/ give each concern."""
    values: dict[str, Any] = {name: (Literal[found or ("",)] | None, None) for name, found in VALUES.items()}
    values["row_stride"] = (Annotated[int, Field(ge=0, lt=2**22)] | None, None)
    return create_model("ChangeFile", __base__=_Change, __doc__=_Change.__doc__, **values)


def _knobs_model() -> type[Knobs]:
    """The model of a GPU's knobs, with the flags that a file may set."""
    flags: dict[str, Any] = {flag.key: (bool | None, None) for flag in FLAGS.values() if flag.key}
    return create_model("KnobsFile", __base__=_Knobs, __doc__=_Knobs.__doc__, **flags)


class Ampere(Family):
    """Iterations 1 to 19, and what goes on from them."""

    name = "ampere"
    parts_type = Parts
    config_type = AmpereConfig
    change_model = _change_model()
    knobs_model = _knobs_model()
    legend = LEGEND
    keys = KEYS
    exclusions = EXCLUSIONS
    plan = "ampere/plan.cpp"
    least_capability = (8, 0)

    @property
    def targets(self) -> Targets:
        """Those that the toolchain is pinned for: one PTX serves all."""
        pins = load_pins()
        return Targets(pins.ptx_arch, pins.arches)

    def first_config(self, knobs: Mapping[str, object]) -> AmpereConfig:
        """A tile of one row, which `knobs` must replace.

        Raises:
            FlashladderError: `knobs` leave B_r, B_c or n_warps open.
        """
        missing = [name for name in ("B_r", "B_c", "n_warps") if name not in knobs]
        if missing:
            raise FlashladderError(
                "incomplete configuration", expected="B_r, B_c and n_warps", found=f"no {missing[0]}"
            )
        return AmpereConfig("fp16", D_HEAD, 1, 1, 1, False, False, False, 0, 0, 0, False, False)

    def contradictions(self, parts: Parts) -> tuple[Contradiction, ...]:
        """See `flashladder.ladder.families.ampere.parts`."""
        return contradictions(parts)

    def conflicts(self, parts: Parts, config: AmpereConfig) -> tuple[str, ...]:
        """See `flashladder.ladder.families.ampere.parts`."""
        return config_conflicts(parts, config)

    def fit(self, parts: Parts, config: AmpereConfig) -> AmpereConfig:
        """See `flashladder.ladder.families.ampere.parts`."""
        return fit_config(parts, config)

    def legal_configs(self, parts: Parts, dtype: str = "fp16") -> tuple[AmpereConfig, ...]:
        """See `flashladder.ladder.families.ampere.space`."""
        return legal_configs(parts, dtype)

    def of_brief(self, parts: Parts, text: str) -> AmpereConfig | None:
        """``128,64,4 2_2_2+buffer``."""
        match = BRIEF.fullmatch(text)
        if match is None:
            return None
        found, decided = match.groupdict(), derived_knobs(parts)
        knobs: dict[str, Any] = {name: int(found[name]) for name in INTEGERS if name in found}
        knobs |= {name: found[name] is not None if name in found else decided[name] for name in FLAGS}
        return AmpereConfig("fp16", D_HEAD, **knobs)

    def to_knobs(self, parts: Parts, config: AmpereConfig) -> dict[str, str]:
        """``{B_r: 128, ...}``: tile, loads and the flags that are free."""
        found = {name: str(getattr(config, name)) for name in ("B_r", "B_c", "n_warps")}
        found["load_tiles"] = str(list(config.load_tiles))
        decided = derived_knobs(parts)
        free = {name: flag.key for name, flag in FLAGS.items() if flag.key and name not in decided}
        return found | {key: str(getattr(config, name)).lower() for name, key in free.items()}

    def translation_unit(self, of: Iteration, config: AmpereConfig) -> str:
        """See `flashladder.ladder.families.ampere.unit`."""
        return unit.translation_unit(of, config)

    def part_files(self, of: Iteration, config: AmpereConfig) -> tuple[str, ...]:
        """See `flashladder.ladder.families.ampere.unit`."""
        return unit.part_files(of, config)

    def grid(self, config: AmpereConfig, shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
        """See `flashladder.ladder.families.ampere.launch`."""
        return launch.grid_of(config, shape)

    def launch(self, config: AmpereConfig, tensors: Sequence[Any], multiprocessors: int) -> Launch:
        """See `flashladder.ladder.families.ampere.launch`; every GPU gets the same grid."""
        del multiprocessors
        return launch.launch_of(config, tensors)

    def in_brief(self, reason: str) -> str:
        """Flags as ``+buffer`` and ``no +buffer``."""
        for name, flag in FLAGS.items():
            reason = reason.replace(f"{name} must be True", f"no +{flag.brief}")
            reason = reason.replace(f"{name} must be False", f"+{flag.brief}")
        return reason

    def live_registers(self, config: AmpereConfig) -> int:
        """See `flashladder.ladder.families.ampere.space`."""
        return live_registers(config)

    def row_stride(self, parts: Parts) -> int:
        """That of ``gmem: static_stride``."""
        return parts.row_stride

    def facts(self, parts: Parts) -> dict[str, object]:
        """The body that composes them."""
        return {"era": parts.era}

    def own_knobs(self, step: Iteration) -> tuple[str, ...]:
        """Loads of a step that brings operands; the whole tile of a step that only tunes."""
        if not step.change:
            return _TUNED
        return _LOADS if "operands" in step.change else ()


FAMILY = Ampere()
