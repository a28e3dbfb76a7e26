"""What a family of kernels is to everything downstream: its data, its rules, its source, its launch; and an iteration.

Iterations 1 to 19 are composed of Ampere's parts; kernels of other parts, other arguments and other grids stand beside
them (``family:`` in the YAML). Whatever reads, builds, locks, checks, emulates, times or reports an iteration asks its
family through this protocol, and never which one it is. A family is a module or package in
`flashladder.ladder.families` that holds a `FAMILY`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
import re
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, create_model

from flashladder.columns import listed
from flashladder.errors import FlashladderError
from flashladder.files import BOM, files_in, read_bytes
from flashladder.ladder.claim import Expect
from flashladder.ladder.config import D_HEAD, KernelConfig
from flashladder.located import closest
from flashladder.machine_code.ptxas import PtxasUsage
from flashladder.paths import KERNELS

DEFAULT = "ampere"  # of a file without the key `family`
HEAD = re.compile(rb"// [^`\r\n]+ `(?P<stem>\w+)` \(iteration (?P<number>\d+)\)")


@dataclass(frozen=True)
class Targets:
    """What a family's sources are compiled for: one PTX, and machine code made from it."""

    ptx: str  # compute_80; compute_90a is for one architecture alone
    arches: tuple[str, ...]  # sm_80, sm_86 ...

    @property
    def alone(self) -> bool:
        """Whether no later GPU takes the PTX."""
        return self.ptx.endswith("a")

    def serving(self, arch: str) -> str | None:
        """Whose machine code a GPU of an architecture runs: ``sm_90a`` on sm_90, else its own; None without any."""
        return next((own for own in (arch, f"{arch}a") if own in self.arches), None)


@dataclass(frozen=True)
class Contradiction:
    """Values of a few concerns that exclude each other, and why."""

    why: str
    concerns: tuple[str, ...]

    @classmethod
    def of(cls, parts: Any, why: str, *concerns: str) -> Contradiction:
        """The contradiction between the values that `parts` have for some concerns."""
        values = " with ".join(f"{concern} {getattr(parts, concern)}" for concern in concerns)
        return cls(f"{values} ({why})", concerns)


@dataclass(frozen=True)
class Exclusion:
    """A rule that takes configurations out of the tuning space.

    Attributes:
        name: one word for reports.
        why: the mechanism by which such a configuration loses.
        excludes: whether the rule applies to a configuration.
    """

    name: str
    why: str
    excludes: Callable[[Any], bool]


@dataclass(frozen=True, eq=False)
class TensorBox:
    """A tensor and the box of it that one copy moves: what a tensor map is made of; axes are listed innermost first.

    Attributes:
        tensor: the array whose first element is the tensor's.
        dtype: of its elements, fp16 or bf16.
        dims: elements along each axis.
        strides: bytes between neighbours along each axis but the first, whose elements are adjacent.
        box: elements that a copy spans along each axis.
        swizzle: bytes within which the box's rows are permuted in shared memory.
    """

    tensor: Any
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True)
class Launch:
    """A launch as data: what an emulator, or a driver, is told beside the kernel.

    Attributes:
        grid: CTAs in x, y and z.
        block: threads of a CTA in x (y, z).
        arguments: the kernel's parameters in order; a structure is a tuple of its members, a tensor map a `TensorBox`.
        shared_bytes: dynamic shared memory of a CTA.
        cluster: CTAs of a cluster in x, y and z.
        resident: a CTA goes on with what is left, so that no more of x are launched than there are multiprocessors.
    """

    grid: tuple[int, int, int]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    shared_bytes: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    resident: bool = False

    def ctas(self, multiprocessors: int) -> tuple[int, int, int]:
        """The grid as a GPU with so many multiprocessors gets it."""
        x, y, z = self.grid
        return (min(x, multiprocessors) if self.resident else x, y, z)


class Model(BaseModel):
    """Part of a YAML file: no unknown keys, no conversion between types, no change after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Knobs(Model):
    """Knobs of a configuration on one GPU; absent ones are inherited, or decided by the parts."""

    def knobs(self) -> dict[str, object]:
        """The knobs that are given, under the names of the family's configuration."""
        return self.model_dump(exclude_none=True)


def part_names(folder: Path) -> tuple[str, ...]:
    """The parts of a concern, in the order in which the ladder meets them.

    Args:
        folder: ``kernels/<family>/<concern>``; a part is a file ``<stem>.cuh`` whose first line names it:
            ``// Layout `xor` (iteration 2): ...``. The rest of it need not be UTF-8 here: whoever compiles or shows a
            part reads its text (`flashladder.ladder.iteration`), and names the file. So with an empty file, which is
            a part that was lost, and one that names another part, which is a copy: they stand last.

    Raises:
        FlashladderError: a file of that name cannot be read.
    """
    found, broken = [], []
    for path in files_in(folder, "*.cuh"):
        data = read_bytes(path).removeprefix(BOM)
        head = HEAD.match(data)
        if not data.strip() or (head and head["stem"].decode() != path.stem):
            broken.append(path.stem)
        elif head:
            found.append((int(head["number"]), path.stem))
    return (*(stem for _, stem in sorted(found)), *broken)


def values_of(family: str, parts_type: type[Any]) -> dict[str, tuple[str, ...]]:
    """The values of each concern of a family, in the order in which the ladder meets them: its part files."""
    return {
        field.name: part_names(KERNELS / family / field.name) for field in fields(parts_type) if field.type == "str"
    }


def change_model(values: Mapping[str, tuple[str, ...]], doc: str, **others: Any) -> type[Model]:
    """The model of ``change``: any of the concerns, each with one of its values."""
    own: dict[str, Any] = {name: (Literal[found or ("",)] | None, None) for name, found in values.items()}
    return create_model("ChangeFile", __base__=Model, __doc__=doc, **own, **others)


def type_name(stem: str) -> str:
    """The C++ type of a part: ``exp2_folded`` is ``Exp2Folded``."""
    return "".join(word.capitalize() for word in stem.split("_"))


class Family(ABC):
    """One kind of kernel.

    Attributes:
        name: what ``family:`` says.
        parts_type: a frozen dataclass, one field per concern, with its value.
        config_type: of its configurations.
        change_model: what a file's ``change`` may hold: the fields of `parts_type`, all optional.
        knobs_model: what ``configs`` may hold for a GPU.
        legend: what `KernelConfig.brief` of its configurations says, as lines of text.
        required: fields that an iteration without a parent of its family must give.
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
    required: ClassVar[tuple[str, ...]] = ()
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

    def decided(self, parts: Any) -> dict[str, Any]:
        """The knobs of a configuration that `parts` leave no choice about."""
        del parts
        return {}

    def first_config(self, knobs: Mapping[str, object]) -> KernelConfig:
        """The fp16 configuration of an iteration without a parent of this family: a tile that `knobs` must replace.

        Raises:
            FlashladderError: `knobs` leave open one of `required`.
        """
        if missing := [name for name in self.required if name not in knobs]:
            expected = listed(self.required)
            raise FlashladderError("incomplete configuration", expected=expected, found=f"no {missing[0]}")
        return self.config_type.of({"d_head": D_HEAD, **dict.fromkeys(self.required, 1)})

    def contradictions(self, parts: Any) -> Iterable[Contradiction]:
        """Every contradiction within `parts`; none when a kernel can be composed of them."""
        del parts
        return ()

    @abstractmethod
    def conflicts(self, parts: Any, config: Any) -> tuple[str, ...]:
        """Why `parts` cannot express `config`, one sentence per reason; empty when they can."""

    def fit(self, parts: Any, config: Any) -> Any:
        """`config` with every knob that `parts` decide set to what they decide; it may still conflict."""
        return replace(config, **self.decided(parts))

    @abstractmethod
    def candidates(self, parts: Any, dtype: str) -> Iterable[KernelConfig]:
        """Configurations over all sizes that the family knows, whether or not `parts` can express them."""

    def legal_configs(self, parts: Any, dtype: str = "fp16") -> tuple[Any, ...]:
        """The candidates that these parts can express, with what the parts decide, sorted."""
        return _legal_configs(self, parts, dtype)

    def of_brief(self, parts: Any, text: str) -> KernelConfig | None:
        """The fp16 configuration that its `brief` writes as `text`, with what the parts decide; None: another form."""
        knobs = self.config_type.read_brief(text)
        if knobs is None:
            return None
        config = self.config_type.of({"d_head": D_HEAD, **self.decided(parts), **knobs})
        return config if config.brief() == text else None

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
        number, (major, minor) = int(arch.removeprefix("sm_").rstrip("af")), self.least_capability
        least = 10 * major + minor
        return number == least if self.targets.alone else number >= least

    @property
    def needs(self) -> str:
        """What it runs on, in words: ``compute capability 8.0 or later``; ``sm_90a``."""
        if self.targets.alone:
            return self.targets.arches[0]
        return f"compute capability {self.least_capability[0]}.{self.least_capability[1]} or later"


@lru_cache(maxsize=128)
def _legal_configs(family: Family, parts: Any, dtype: str) -> tuple[Any, ...]:
    fitted = {family.fit(parts, config) for config in family.candidates(parts, dtype)}
    return tuple(sorted(config for config in fitted if not family.conflicts(parts, config)))


@dataclass(frozen=True)
class Iteration:
    """One step of the ladder, or an ablation of one, resolved through its parents.

    Attributes:
        number: its place, from 1; an ablation keeps the number of the iteration that it varies.
        slug: the idea as the file name says it, safe in file names.
        title: the idea in a few words.
        why: the mechanism, in the field's terms.
        unmeasured: why no timing of it is owed yet; empty as soon as one is. Its cases may have been checked before.
        parent: the iteration that this one differs from; None for the first.
        change: concern to new value; what differs from the parent.
        family: what kind of kernel it is: whose concerns, configurations and launch.
        parts: one value per concern of the family.
        configs: GPU key (a100, rtx3090, h200) to the fp16 configuration that is best there, of the family's type.
        own_configs: GPU key to the knobs that this step itself sets, under the names of the family's configuration.
        expect: claims against the parent.
        path: the YAML file.
        description: what `load_description` accepts to get this iteration back, for example ``16 - swizzle``.
    """

    number: int
    slug: str
    title: str
    why: str
    unmeasured: str
    parent: int | None
    change: Mapping[str, object]
    family: Family
    parts: Any
    configs: Mapping[str, Any]
    own_configs: Mapping[str, Mapping[str, object]]
    expect: Expect
    path: Path
    description: str

    def __hash__(self) -> int:
        """Equal iterations have equal descriptions and parts (mappings have no hash of their own)."""
        return hash((self.description, self.parts, self.path))

    @property
    def row_stride(self) -> int:
        """Elements between two rows of one head that the kernel is compiled for; 0 is any."""
        return self.family.row_stride(self.parts)

    @property
    def shown_arch(self) -> str:
        """The architecture whose machine code is shown where nobody names one: the first of its family's."""
        return self.family.targets.arches[0]

    def not_run_on(self, arch: str) -> str:
        """Why a GPU of an architecture (``sm_80``) cannot run this step, as one line; empty where it can."""
        if self.family.runs_on(arch):
            return ""
        return f"iteration {self.description}: not run here: needs {self.family.needs}"

    @property
    def is_ablation(self) -> bool:
        """Whether this is not a step of the ladder itself."""
        return self.description != str(self.number)


_LOADED: dict[str, object] = {}


def register(where: str, found: object) -> None:
    """Keeps the `FAMILY` of a module of `flashladder.ladder.families`, or the error that it could not be loaded for."""
    _LOADED[where] = found


def families() -> tuple[Family, ...]:
    """Every family, by name.

    Raises:
        FlashladderError: a module that should hold one could not be loaded, or two have one name.
    """
    known: dict[str, Family] = {}
    for where, found in _LOADED.items():
        if isinstance(found, FlashladderError):
            found.where = found.where or where
            raise found
        if not isinstance(found, Family):
            raise FlashladderError(
                "the family cannot be loaded",
                where=where,
                expected="a module with FAMILY, an instance of flashladder.ladder.family.Family",
                found=" ".join(repr(found).split())[:200],
            )
        if found.name in known:
            raise FlashladderError("two families of one name", where=where, found=found.name)
        known[found.name] = found
    return tuple(known[name] for name in sorted(known))


def family_named(name: object) -> Family:
    """The family that a file's ``family`` names.

    Raises:
        FlashladderError: there is no such family.
    """
    known = {family.name: family for family in families()}
    if not isinstance(name, str) or name not in known:
        found = "nothing" if name is None else repr(name)
        raise FlashladderError(
            "no such family of kernels", expected=" or ".join(known), found=found, hint=closest(name, known)
        )
    return known[name]
