"""What a family of kernels is to everything downstream: its data, its rules, its source, its launch.

Why: iterations 1 to 19 are composed of Ampere's parts; kernels of other parts, other arguments and other grids stand
beside them (``family:`` in the YAML). Whatever reads, builds, locks, checks, emulates, times or reports an iteration
asks its family through this protocol, and never which one it is. A family is a module or package in
`flashladder.ladder.families` that holds a `FAMILY`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.protocol.data import Contradiction, Exclusion, Knobs, Launch, Model, Targets, TensorBox
from flashladder.located import closest

if TYPE_CHECKING:
    from flashladder.ladder.iteration import Iteration
    from flashladder.machine_code.ptxas import PtxasUsage

__all__ = [
    "DEFAULT",
    "Contradiction",
    "Exclusion",
    "Family",
    "Knobs",
    "Launch",
    "Model",
    "Targets",
    "TensorBox",
    "families",
    "family_named",
    "register",
    "report_broken",
]

DEFAULT = "ampere"  # of a file without the key `family`


class Family(ABC):
    """One kind of kernel.

    Attributes:
        name: what ``family:`` says.
        parts_type: a frozen dataclass, one field per concern, with its value.
        config_type: of its configurations.
        change_model: what a file's ``change`` may hold: the fields of `parts_type`, all optional.
        knobs_model: what ``configs`` may hold for a GPU.
        legend: what `KernelConfig.brief` of its configurations says, as lines of text.
        keys: fields of the configuration whose key in YAML is another one than their name.
        exclusions: the rules that take configurations out of the tuning space, in the order in which they are reported.
        plan: the C++ source that turns tensors into a launch, relative to ``kernels/``; it is linked with
            the sources in ``kernels/host/``.
        least_capability: the compute capability that its kernels need, (8, 0).
        warps_alike: whether all warps of a kernel run the same way: then a walk through its machine code counts what
            runs, a model predicts it and a trace follows it.
        max_row_bytes: from one position to the next at most; what the argument structure can hold.
    """

    name: ClassVar[str]
    parts_type: ClassVar[type[Any]]
    config_type: ClassVar[type[KernelConfig]]
    change_model: ClassVar[type[Model]]
    knobs_model: ClassVar[type[Knobs]]
    legend: ClassVar[str] = ""
    keys: ClassVar[Mapping[str, str]] = {}
    exclusions: ClassVar[Sequence[Exclusion]] = ()
    plan: ClassVar[str]
    least_capability: ClassVar[tuple[int, int]]
    max_row_bytes: ClassVar[int] = 2**31 - 1
    warps_alike: ClassVar[bool] = True

    @property
    def concerns(self) -> tuple[str, ...]:
        """What an iteration decides, in order."""
        return tuple(field.name for field in fields(self.parts_type))

    @property
    @abstractmethod
    def targets(self) -> Targets:
        """What its sources are compiled for."""

    @abstractmethod
    def first_config(self, knobs: Mapping[str, object]) -> KernelConfig:
        """The fp16 configuration of an iteration without a parent of this family, before the parts decide theirs.

        Raises:
            FlashladderError: `knobs` leave one open that nothing decides.
        """

    @abstractmethod
    def contradictions(self, parts: Any) -> tuple[Contradiction, ...]:
        """Every contradiction within `parts`; empty when a kernel can be composed of them."""

    @abstractmethod
    def conflicts(self, parts: Any, config: Any) -> tuple[str, ...]:
        """Why `parts` cannot express `config`, one sentence per reason; empty when they can."""

    @abstractmethod
    def fit(self, parts: Any, config: Any) -> Any:
        """`config` with every knob that `parts` decide set to what they decide."""

    @abstractmethod
    def legal_configs(self, parts: Any, dtype: str = "fp16") -> Sequence[KernelConfig]:
        """Every configuration that these parts can express, sorted, over the sizes that the family knows."""

    @abstractmethod
    def of_brief(self, parts: Any, text: str) -> KernelConfig | None:
        """The fp16 configuration that its `brief` writes as `text`, with what the parts decide; None: another form."""

    @abstractmethod
    def to_knobs(self, parts: Any, config: Any) -> Mapping[str, str]:
        """`config` as iterations write it, key to value in YAML, without what `parts` decide."""

    @abstractmethod
    def translation_unit(self, of: Iteration, config: Any) -> str:
        """The CUDA source of one kernel; `kernels/` is its include folder. `conflicts` is empty.

        It defines ``extern "C" __global__ void flash_fwd_kernel`` (`flashladder.names.KERNEL`) with one parameter, the
        family's argument structure.
        """

    @abstractmethod
    def part_files(self, of: Iteration, config: Any) -> tuple[str, ...]:
        """The part files that this kernel is composed of, relative to ``kernels/``, in reading order."""

    @abstractmethod
    def grid(self, config: Any, shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
        """CTAs in x, y and z for tensors of `shape`, (batch, seq_len, n_heads, d_head)."""

    @abstractmethod
    def launch(self, config: Any, tensors: Sequence[Any], multiprocessors: int) -> Launch:
        """The launch for Q, K, V and O: arrays (batch, seq_len, n_heads, d_head) with strides in bytes.

        `multiprocessors` are those of the GPU, for kernels that share work out among them.
        """

    def in_brief(self, reason: str) -> str:
        """One of the reasons of `conflicts` in the words of `KernelConfig.brief`."""
        return reason

    def live_registers(self, config: Any) -> int:
        """Registers per thread that accumulators and operands take on paper; 0 where the family does not count them."""
        del config
        return 0

    def refuses(self, usage: PtxasUsage) -> str:
        """What is wrong with machine code that ptxas made without an error; empty where it may ship."""
        del usage
        return ""

    def for_plan(self, parts: Any, config: Any) -> tuple[int, ...]:
        """At most four numbers that its `plan` needs beside sizes of the tile: ``KernelRow.own``."""
        del parts, config
        return ()

    def row_stride(self, parts: Any) -> int:
        """Elements between two rows of one head, where the parts fix it at compile time; 0 is any."""
        del parts
        return 0

    def facts(self, parts: Any) -> dict[str, object]:
        """What else there is to know of `parts`, for ``invoke show --json``."""
        del parts
        return {}

    def own_knobs(self, step: Iteration) -> tuple[str, ...]:
        """Knobs that a step's change is about, so that an ablation takes them along."""
        del step
        return ()

    def require_alike(self, what: str) -> None:
        """Refuses for a command, `what`, kernels whose warps have roles.

        Raises:
            FlashladderError: they have.
        """
        if not self.warps_alike:
            raise FlashladderError(
                f"{what} follows one warp for all",
                expected="kernels whose warps run alike",
                found=f"the family {self.name}, whose warps have roles",
            )

    def excluded_by(self, config: KernelConfig) -> tuple[Exclusion, ...]:
        """The rules that keep `config` out of the tuning space; empty when it is in."""
        return tuple(rule for rule in self.exclusions if rule.excludes(config))

    def tuning_space(self, parts: Any, dtype: str = "fp16") -> tuple[KernelConfig, ...]:
        """The legal configurations that no rule excludes, sorted."""
        return tuple(config for config in self.legal_configs(parts, dtype) if not self.excluded_by(config))

    def runs_on(self, arch: str) -> bool:
        """Whether a GPU of an architecture, ``sm_90``, can run the kernels of this family."""
        number, least = (
            int(arch.removeprefix("sm_").rstrip("af")),
            10 * self.least_capability[0] + self.least_capability[1],
        )
        return number == least if self.targets.alone else number >= least

    @property
    def needs(self) -> str:
        """What it runs on, in words: ``compute capability 8.0 or later``; ``sm_90a``."""
        if self.targets.alone:
            return self.targets.arches[0]
        return f"compute capability {self.least_capability[0]}.{self.least_capability[1]} or later"


_FAMILIES: dict[str, Family] = {}
_BROKEN: dict[str, BaseException] = {}


def register(family: Family) -> Family:
    """Makes `family` known under its name.

    Raises:
        FlashladderError: another one has this name.
    """
    if not isinstance(family, Family):
        raise FlashladderError("not a family of kernels", expected="FAMILY = an instance of Family", found=repr(family))
    other = _FAMILIES.setdefault(family.name, family)
    if type(other) is not type(family):
        raise FlashladderError(
            "two families of one name",
            where=type(family).__module__,
            expected=f"another name than that of {type(other).__module__}",
            found=family.name,
        )
    return other


def report_broken(where: str, error: BaseException) -> None:
    """Keeps why a module of `flashladder.ladder.families` could not be loaded, until somebody asks for families."""
    _BROKEN[where] = error


def families() -> tuple[Family, ...]:
    """Every family, by name.

    Raises:
        FlashladderError: a module that should hold one could not be loaded.
    """
    for where, error in _BROKEN.items():
        if isinstance(error, FlashladderError):
            error.where = error.where or where
            raise error
        raise FlashladderError(
            "the family cannot be loaded",
            where=where,
            expected="a module with FAMILY, an instance of flashladder.ladder.family.Family",
            found=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
        ) from error
    return tuple(_FAMILIES[name] for name in sorted(_FAMILIES))


def family_named(name: object) -> Family:
    """The family that a file's ``family`` names.

    Raises:
        FlashladderError: there is no such family.
    """
    known = [family.name for family in families()]
    if not isinstance(name, str) or name not in known:
        found = "nothing" if name is None else repr(name)
        raise FlashladderError(
            "no such family of kernels", expected=" or ".join(known), found=found, hint=closest(name, known)
        )
    return _FAMILIES[name]
