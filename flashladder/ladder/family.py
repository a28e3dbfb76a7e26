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
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, create_model

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
    """A rule that takes configurations out of the tuning space."""

    name: str  # one word for reports
    why: str  # the mechanism by which such a configuration loses
    excludes: Callable[[Any], bool]  # whether the rule applies to a configuration


@dataclass(frozen=True, eq=False)
class TensorBox:
    """A tensor and the box of it that one copy moves: what a tensor map is made of; axes are listed innermost first."""

    tensor: Any  # the array whose first element is the tensor's
    dtype: str  # of its elements, fp16 or bf16
    dims: tuple[int, ...]  # elements along each axis
    strides: tuple[int, ...]  # bytes between neighbours along each axis but the first, whose elements are adjacent
    box: tuple[int, ...]  # elements that a copy spans along each axis
    swizzle: int  # bytes within which the box's rows are permuted in shared memory


@dataclass(frozen=True)
class Launch:
    """A launch as data: what an emulator, or a driver, is told beside the kernel."""

    grid: tuple[int, int, int]  # CTAs in x, y and z
    block: tuple[int, ...]  # threads of a CTA in x (y, z)
    # the kernel's parameters in order; a structure is a tuple of its members, a tensor map a `TensorBox`
    arguments: tuple[Any, ...]
    shared_bytes: int  # dynamic shared memory of a CTA
    cluster: tuple[int, int, int] = (1, 1, 1)  # CTAs of a cluster in x, y and z
    # a CTA goes on with what is left, so that no more of x are launched than there are multiprocessors
    resident: bool = False

    def ctas(self, multiprocessors: int) -> tuple[int, int, int]:
        """The grid as a GPU with so many multiprocessors gets it."""
        x, y, z = self.grid
        return (min(x, multiprocessors) if self.resident else x, y, z)


class Model(BaseModel):
    """Part of a YAML file: no unknown keys, no conversion between types, no change after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def part_names(folder: Path) -> tuple[str, ...]:
    """The parts of a concern, in the order in which the ladder meets them: ``kernels/<family>/<concern>/<stem>.cuh``.

    The first line of each names it: ``// Layout `xor` (iteration 2): ...``; whoever compiles or shows a part reads the
    rest. An empty file is a part that was lost, and one that names another part is a copy: they stand last, and whoever
    reads them tells.
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


def change_model(family: str, parts_type: type[Any], **others: Any) -> type[Model]:
    """The model of ``change``: any concern, with one of its values: its part files, in the order of the ladder."""
    own: dict[str, Any] = {
        field.name: (Literal[part_names(KERNELS / family / field.name) or ("",)] | None, None)
        for field in fields(parts_type)
        if field.name not in others
    }
    return create_model("ChangeFile", __base__=Model, __doc__="What differs from the parent.", **own, **others)


def knobs_model(config_type: type[KernelConfig]) -> type[Model]:
    """The model of a GPU's ``configs``: sizes, numbers and flags of the family's configuration under their keys."""
    size: Any = (Annotated[int, Field(gt=0)] | None, None)
    own: dict[str, Any] = dict.fromkeys(config_type.sizes[1:], size)
    for word in config_type.words:
        if word.key:
            numbers: Any = Annotated[tuple[(StrictInt,) * len(word.fields)], Field(strict=False)]  # type: ignore[misc]  # computed
            own[word.key] = ((bool if word.is_flag else numbers) | None, None)
        elif not word.is_flag:
            own |= dict.fromkeys(word.fields, size)
    doc = "Knobs of the configuration on one GPU; absent ones are inherited, or decided by the parts."
    return create_model(f"{config_type.__name__}Knobs", __base__=Model, __doc__=doc, **own)


def type_name(stem: str) -> str:
    """The C++ type of a part: ``exp2_folded`` is ``Exp2Folded``."""
    return "".join(word.capitalize() for word in stem.split("_"))


_UNIT = """\
// {title}
// Iteration {number}, {short_form}
// Generated by flashladder/ladder/families/{family}.py from {source}; the parts are under kernels/{family}/.
{includes}

struct Kernel {{
    using Args = flashladder::{args};
    using value_t = flashladder::{dtype};
{members}
}};

#include "{entry}"
"""


class Family(ABC):
    """One kind of kernel."""

    name: ClassVar[str]  # what ``family:`` says
    parts_type: ClassVar[type[Any]]  # a frozen dataclass, one field per concern, with its value
    config_type: ClassVar[type[KernelConfig]]  # of its configurations
    change_model: ClassVar[type[Model]]  # what a file's ``change`` may hold: the fields of `parts_type`, all optional
    legend: ClassVar[str] = ""  # what `KernelConfig.brief` of its configurations says, as lines of text
    # fields that an iteration without a parent of its family must give; an ablation of a step that only tunes takes
    # them along
    required: ClassVar[tuple[str, ...]] = ()
    # a concern, and the knobs that a change of it is about, so that an ablation takes them along
    brought: ClassVar[tuple[str, tuple[str, ...]]] = ("", ())
    # the rules that take configurations out of the tuning space, in the order in which they are reported
    exclusions: ClassVar[Sequence[Exclusion]] = ()
    # the C++ source that turns tensors into a launch, relative to ``kernels/``; it is linked with the sources in
    # ``kernels/host/``
    plan: ClassVar[str]
    least_capability: ClassVar[tuple[int, int]]  # the compute capability that its kernels need, (8, 0)
    # from one position to the next at most; what the argument structure can hold
    max_row_bytes: ClassVar[int] = 2**31 - 1
    # whether all warps of a kernel run the same way: then a walk through its machine code counts what runs, a model
    # predicts it and a trace follows it
    warps_alike: ClassVar[bool] = True

    @property
    def concerns(self) -> tuple[str, ...]:
        """What an iteration decides, in order."""
        return tuple(field.name for field in fields(self.parts_type))

    @property
    @abstractmethod
    def targets(self) -> Targets:
        """What its sources are compiled for."""

    def key(self, knob: str) -> str:
        """The key in YAML of a field of the configuration."""
        return next((word.key for word in self.config_type.words if word.key and knob in word.fields), knob)

    def knobs(self, given: BaseModel) -> dict[str, Any]:
        """What a file says of a configuration (`knobs_model`), under the names of its fields."""
        said, found = given.model_dump(exclude_none=True), dict[str, Any]()
        fields_of = {word.key: word.fields for word in self.config_type.words}
        for key, value in said.items():
            found |= zip(fields_of.get(key, (key,)), value if isinstance(value, tuple) else (value,), strict=True)
        return found

    def to_knobs(self, parts: Any, config: KernelConfig) -> dict[str, str]:
        """`config` as iterations write it, key to value in YAML, without what `parts` decide."""
        found: dict[str, object] = {name: getattr(config, name) for name in config.sizes[1:]}
        for word in config.words:
            values = [getattr(config, name) for name in word.fields if name not in self.decisions(parts)]
            if word.key and values:
                found[word.key] = str(values[0]).lower() if word.is_flag else values
            elif not word.is_flag:
                found |= zip(word.fields, values, strict=False)  # the parts decide all of them, or none
        return {key: str(value) for key, value in found.items()}

    def decisions(self, parts: Any) -> Mapping[str, tuple[Any, str]]:
        """Knobs of a configuration that `parts` leave no choice about, each with its value and why."""
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
    def rules(self, parts: Any, config: Any) -> Iterable[str]:
        """Why `parts` cannot express `config`, one sentence per reason, besides what they decide."""

    def conflicts(self, parts: Any, config: Any) -> tuple[str, ...]:
        """Why `parts` cannot express `config`, one sentence per reason; empty when they can."""
        decided = [
            f"{name} must be {value}: {why}"
            for name, (value, why) in self.decisions(parts).items()
            if getattr(config, name) != value
        ]
        return (*decided, *self.rules(parts, config))

    def fit(self, parts: Any, config: Any) -> Any:
        """`config` with every knob that `parts` decide set to what they decide; it may still conflict."""
        return replace(config, **{name: value for name, (value, _) in self.decisions(parts).items()})

    @abstractmethod
    def candidates(self, parts: Any) -> Iterable[KernelConfig]:
        """fp16 configurations over all sizes that the family knows, whether or not `parts` can express them."""

    @lru_cache(maxsize=128)  # families stay
    def legal_configs(self, parts: Any) -> tuple[Any, ...]:
        """The candidates that these parts can express, with what the parts decide, sorted."""
        fitted = {self.fit(parts, config) for config in self.candidates(parts)}
        return tuple(sorted(config for config in fitted if not self.conflicts(parts, config)))

    def excluded_by(self, config: KernelConfig) -> tuple[Exclusion, ...]:
        """The rules that keep `config` out of the tuning space; empty when it is in."""
        return tuple(rule for rule in self.exclusions if rule.excludes(config))

    def tuning_space(self, parts: Any) -> tuple[KernelConfig, ...]:
        """The legal configurations that no rule excludes, sorted."""
        return tuple(config for config in self.legal_configs(parts) if not self.excluded_by(config))

    def of_brief(self, parts: Any, text: str) -> KernelConfig | None:
        """The fp16 configuration that its `brief` writes as `text`, with what the parts decide; None: another form."""
        knobs = self.config_type.read_brief(text)
        if knobs is None:
            return None
        config: KernelConfig = replace(self.fit(parts, self.config_type.of({"d_head": D_HEAD, **knobs})), **knobs)
        return config if config.brief() == text else None

    @abstractmethod
    def translation_unit(self, of: Iteration, config: Any) -> str:
        """The CUDA source of one kernel; `kernels/` is its include folder. `conflicts` is empty.

        It defines ``extern "C" __global__ void flash_fwd_kernel`` (`flashladder.names.KERNEL`) with one parameter, the
        family's argument structure.
        """

    def composed(
        self, of: Iteration, config: Any, files: Iterable[str], args: str, members: Iterable[str], entry: str
    ) -> str:
        """The source of a kernel: included part files, `Kernel` with these members, and the file with the entry."""
        return _UNIT.format(
            title=of.title,
            number=of.number,
            short_form=config.short_form(),
            family=self.name,
            source=of.path.name,
            includes="\n".join(f'#include "{name}"' for name in sorted(files)),
            args=args,
            dtype=config.dtype,
            members="\n".join(f"    {member}" for member in members),
            entry=entry,
        )

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

    def own_knobs(self, step: Iteration) -> tuple[str, ...]:
        """Knobs that a step's change is about; of a step that only tunes, all."""
        concern, knobs = self.brought
        if not step.change:
            return (*self.required, *knobs)
        return knobs if concern in step.change else ()

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


@dataclass(frozen=True)
class Iteration:
    """One step of the ladder, or an ablation of one, resolved through its parents."""

    number: int  # its place, from 1; an ablation keeps the number of the iteration that it varies
    slug: str  # the idea as the file name says it, safe in file names
    title: str  # the idea in a few words
    why: str  # the mechanism, in the field's terms
    unmeasured: str  # why no timing of it is owed yet; empty as soon as one is. Its cases may have been checked before
    parent: int | None  # the iteration that this one differs from; None for the first
    change: Mapping[str, object]  # concern to new value; what differs from the parent
    family: Family  # what kind of kernel it is: whose concerns, configurations and launch
    parts: Any  # one value per concern of the family
    # GPU key (a100, rtx3090, h200) to the fp16 configuration that is best there, of the family's type
    configs: Mapping[str, Any]
    # GPU key to the knobs that this step itself sets, under the names of the family's configuration
    own_configs: Mapping[str, Mapping[str, object]]
    expect: Expect  # claims against the parent
    path: Path  # the YAML file
    description: str  # what `load_description` accepts to get this iteration back, for example ``16 - swizzle``

    def __hash__(self) -> int:
        """Equal iterations have equal descriptions and parts (mappings have no hash of their own)."""
        return hash((self.description, self.parts, self.path))

    @property
    def row_stride(self) -> int:
        """Elements between two rows of one head that the kernel is compiled for; 0 is any."""
        return getattr(self.parts, "row_stride", 0)

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


LOADED: dict[str, object] = {}
"""Module of `flashladder.ladder.families` to its `FAMILY`, or to the error that it could not be loaded for."""


def families() -> tuple[Family, ...]:
    """Every family, by name.

    Raises:
        FlashladderError: a module that should hold one could not be loaded, or two have one name.
    """
    known: dict[str, Family] = {}
    for where, found in LOADED.items():
        if isinstance(found, FlashladderError):
            found.where = found.where or where
            raise found
        if not isinstance(found, Family) or found.name in known:
            raise FlashladderError(
                "the family cannot be loaded",
                where=where,
                expected="a module with FAMILY, an instance of flashladder.ladder.family.Family of a name of its own",
                found=" ".join(repr(found).split())[:200],
            )
        known[found.name] = found
    return tuple(known[name] for name in sorted(known))


def family_named(name: object) -> Family:
    """The family that a file's ``family`` names.

    Raises:
        FlashladderError: there is no such family.
    """
    known = {family.name: family for family in families()}
    if found := known.get(str(name)):
        return found
    raise FlashladderError(
        "no such family of kernels", expected=" or ".join(known), found=repr(name), hint=closest(name, known)
    )
