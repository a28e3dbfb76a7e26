"""The protocol of a family of kernels (its data, rules, source and launch), and an iteration.

Iterations 1 to 19 are composed of Ampere's parts. Another family (``family:`` in the YAML) has other parts, arguments
and grids. All other rooms ask an iteration's family through this protocol and never ask which family it is. A family
is a module or package in `flashladder.ladder.families` that holds a `FAMILY`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
import re
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StrictInt, create_model

from flashladder.errors import FlashladderError
from flashladder.files import BOM, files_in, read_bytes, read_text, relative
from flashladder.ladder.claim import Expect
from flashladder.ladder.config import D_HEAD, MAX_SMEM_BYTES, KernelConfig
from flashladder.located import closest
from flashladder.machine_code.ptxas import PtxasUsage
from flashladder.paths import KERNELS
from flashladder.problem import Mask

DEFAULT = "ampere"  # the family of a file without the key `family`
HEAD = re.compile(rb"// [^`\r\n]+ `(?P<stem>\w+)` \(iteration (?P<number>\d+)\)")


@dataclass(frozen=True)
class Targets:
    """What a family's sources are compiled for: one PTX, and the machine code made from it."""

    ptx: str  # compute_80; compute_90a runs on one architecture only
    arches: tuple[str, ...]  # sm_80, sm_86 ...

    @property
    def alone(self) -> bool:
        """Whether the PTX runs on no later GPU."""
        return self.ptx.endswith("a")

    def serving(self, arch: str) -> str | None:
        """The architecture whose machine code a GPU runs: ``sm_90a`` on sm_90, else its own; None if there is none."""
        return next((own for own in (arch, f"{arch}a") if own in self.arches), None)


class Exclusion(NamedTuple):
    """A rule that takes configurations out of the tuning space."""

    name: str  # one word for reports
    why: str  # the mechanism that makes such a configuration slow
    excludes: Callable[[Any], bool]  # whether the rule excludes a configuration


@dataclass(frozen=True, eq=False)
class TensorBox:
    """The contents of a tensor map: a tensor and the box of it that one copy moves. The innermost axis comes first."""

    tensor: Any  # an array that starts at the tensor's first element
    dtype: str  # of its elements, fp16 or bf16
    dims: tuple[int, ...]  # elements along each axis
    strides: tuple[int, ...]  # bytes between neighbours along each axis but the first, whose elements are adjacent
    box: tuple[int, ...]  # elements along each axis that one copy moves
    swizzle: int  # bytes within which the rows of the box are permuted in shared memory
    wraps: bool = False  # addresses count modulo 2^64; only the boxes that are copied lie in the tensor


@dataclass(frozen=True)
class Launch:
    """The arguments of a launch, for an emulator or a driver."""

    grid: tuple[int, int, int]  # CTAs in x, y and z
    block: tuple[int, ...]  # threads of a CTA in x (y, z)
    # the kernel's parameters in order; a structure is a tuple of its members, a tensor map a `TensorBox`
    arguments: tuple[Any, ...]
    shared_bytes: int  # dynamic shared memory of a CTA
    cluster: tuple[int, int, int] = (1, 1, 1)  # CTAs of a cluster in x, y and z
    resident: bool = False  # each CTA computes several tiles, so x is at most the number of multiprocessors

    def ctas(self, multiprocessors: int) -> tuple[int, int, int]:
        """The grid on a GPU with so many multiprocessors."""
        x, y, z = self.grid
        return (min(x, multiprocessors) if self.resident else x, y, z)


class Model(BaseModel):
    """Part of a YAML file: no unknown keys, no conversion between types, no change after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def part_names(folder: Path) -> tuple[str, ...]:
    """The parts of a concern (``kernels/<family>/<concern>/<stem>.cuh``), in the order in which the ladder adds them.

    The first line of a part names it and its iteration: ``// Layout `xor` (iteration 2): ...``. Empty files and copies
    whose first line names another part come last; reading one of them is an error.
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
    """The model of ``change``: each concern is optional and takes the stem of one of its part files."""
    own: dict[str, Any] = {
        field.name: (Literal[part_names(KERNELS / family / field.name) or ("",)] | None, None)
        for field in fields(parts_type)
        if field.name not in others
    }
    return create_model("ChangeFile", __base__=Model, __doc__="What differs from the parent.", **own, **others)


def knobs_model(config_type: type[KernelConfig]) -> type[Model]:
    """The model of one GPU's ``configs``: keys of the family's sizes, numbers and flags."""
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


def part_text(path: Path) -> str:
    """The text of an included file; an empty file, or one whose first line names another part, is an error."""
    text, where, first = read_text(path), relative(path), f"// ... `{path.stem}` (iteration N)"
    if not text.strip():
        expected = f"its header line, such as: {first}, and its code"
        raise FlashladderError("the file is empty", where=where, expected=expected, hint="restore it")
    if (head := HEAD.match(text.encode())) and (found := head["stem"].decode()) != path.stem:
        hint = f"a copy has its own name there and in its code: struct {type_name(path.stem)}"
        raise FlashladderError("its first line names another part", where=where, expected=first, found=found, hint=hint)
    return text


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

    name: ClassVar[str]  # the value of ``family:``
    parts_type: ClassVar[type[Any]]  # a frozen dataclass with one field per concern
    config_type: ClassVar[type[KernelConfig]]  # of its configurations
    change_model: ClassVar[type[Model]]  # of a file's ``change``: the fields of `parts_type`, all optional
    legend: ClassVar[str] = ""  # lines of text that explain `KernelConfig.brief`
    required: ClassVar[tuple[str, ...]] = ()  # knobs that the family's first iteration must give
    # a concern and the knobs that belong to it: an ablation that changes the concern sets them too
    brought: ClassVar[tuple[str, tuple[str, ...]]] = ("", ())
    exclusions: ClassVar[Sequence[Exclusion]] = ()  # in the order in which they are reported
    # the C++ source, relative to ``kernels/``, that turns tensors into a launch; linked with ``kernels/host/``
    plan: ClassVar[str]
    least_capability: ClassVar[tuple[int, int]]  # the compute capability that its kernels need, (8, 0)
    # whether all warps of a kernel execute the same code, which explain and trace need
    warps_alike: ClassVar[bool] = True

    @property
    def concerns(self) -> tuple[str, ...]:
        """The names of the concerns, in order."""
        return tuple(field.name for field in fields(self.parts_type))

    @property
    @abstractmethod
    def targets(self) -> Targets:
        """The PTX and the machine code that its sources are compiled to."""

    def knobs(self, given: BaseModel) -> dict[str, Any]:
        """The knobs that a file gives (`knobs_model`): field of the configuration to value."""
        found = dict[str, Any]()
        fields_of = {word.key: word.fields for word in self.config_type.words}
        for key, value in given.model_dump(exclude_none=True).items():
            found |= zip(fields_of.get(key, (key,)), value if isinstance(value, tuple) else (value,), strict=True)
        return found

    def to_knobs(self, parts: Any, config: KernelConfig) -> dict[str, str]:
        """`config` as an iteration file writes it: YAML key to value, without the knobs that `parts` decide."""
        found: dict[str, object] = {name: getattr(config, name) for name in config.sizes[1:]}
        for word in config.words:
            values = [getattr(config, name) for name in word.fields if name not in self.decisions(parts)]
            if word.key and values:
                found[word.key] = str(values[0]).lower() if word.is_flag else values
            elif not word.is_flag:
                found |= zip(word.fields, values, strict=False)  # the parts decide all of them, or none
        return {key: str(value) for key, value in found.items()}

    def decisions(self, parts: Any) -> Mapping[str, tuple[Any, str]]:
        """The knobs of a configuration that `parts` decide, each with its value and the reason."""
        del parts
        return {}

    def masks(self, parts: Any) -> tuple[Mask, ...]:
        """The masks that kernels of `parts` are compiled for, each in a kernel of its own."""
        del parts
        return ("none",)

    def packs(self, parts: Any) -> bool:
        """Whether `parts` also make kernels for packed sequences, with each mask one."""
        del parts
        return False

    def max_row_bytes(self, config: Any) -> int:
        """The largest stride of a position, in bytes, that a launch of `config` can be told."""
        del config
        return 2**31 - 1

    def general(self, parts: Any) -> bool:
        """Whether kernels of `parts` take any lengths, head groups and scales, and give the log-sum-exp on request."""
        return bool(self.decisions(parts).get("general", (False, ""))[0])

    def incompatible(self, parts: Any) -> Iterable[tuple[str, ...]]:
        """Each reason why `parts` exclude each other, followed by the concerns whose values do."""
        del parts
        return ()

    def contradictions(self, parts: Any) -> list[tuple[str, list[str]]]:
        """A sentence and the concerns of each contradiction within `parts`; empty if a kernel can be composed."""
        return [
            (" with ".join(f"{concern} {getattr(parts, concern)}" for concern in concerns) + f" ({why})", concerns)
            for why, *concerns in self.incompatible(parts)
        ]

    @abstractmethod
    def rules(self, parts: Any, config: Any) -> Iterable[str]:
        """Why `parts` cannot express `config`, one sentence per reason, besides knobs that they decide."""

    def conflicts(self, parts: Any, config: Any) -> tuple[str, ...]:
        """Why `parts` cannot express `config`, one sentence per reason; empty when they can."""
        decided = [
            f"{name} must be {value}: {why}"
            for name, (value, why) in self.decisions(parts).items()
            if getattr(config, name) != value
        ]
        rules = [*self.rules(parts, config)]
        if config.d_head != D_HEAD:
            rules.append(f"d_head {config.d_head}: the kernels are written for {D_HEAD}")
        if config.smem_bytes > MAX_SMEM_BYTES:
            rules.append(f"{config.smem_bytes} bytes of shared memory: a CTA has at most {MAX_SMEM_BYTES}")
        return (*decided, *rules)

    def fit(self, parts: Any, config: Any) -> Any:
        """`config` with the knobs that `parts` decide set to these values; it may still conflict."""
        return replace(config, **{name: value for name, (value, _) in self.decisions(parts).items()})

    @abstractmethod
    def candidates(self, parts: Any) -> Iterable[KernelConfig]:
        """All fp16 configurations that the family knows, whether or not `parts` can express them."""

    @lru_cache(maxsize=128)  # a family lives as long as the process
    def legal_configs(self, parts: Any) -> tuple[Any, ...]:
        """The candidates that `parts` can express, fitted to them and sorted."""
        fitted = {self.fit(parts, config) for config in self.candidates(parts)}
        return tuple(sorted(config for config in fitted if not self.conflicts(parts, config)))

    def excluded_by(self, config: KernelConfig) -> tuple[Exclusion, ...]:
        """The rules that exclude `config` from the tuning space; empty if none does."""
        return tuple(rule for rule in self.exclusions if rule.excludes(config))

    def tuning_space(self, parts: Any) -> tuple[KernelConfig, ...]:
        """The legal configurations that no rule excludes, sorted."""
        return tuple(config for config in self.legal_configs(parts) if not self.excluded_by(config))

    def of_brief(self, parts: Any, text: str) -> KernelConfig | None:
        """The fp16 configuration whose `brief` is `text`, fitted to `parts`; None if `text` has another form."""
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
        """The source of a kernel: its includes, `Kernel` with these members, and the file of the entry point."""
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
        """The part files of this kernel, relative to ``kernels/``, in reading order."""

    @abstractmethod
    def grid(self, config: Any, shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
        """CTAs in x, y and z for tensors of `shape`, (batch, seq_len, n_heads, d_head)."""

    @abstractmethod
    def launch(
        self, config: Any, tensors: Sequence[Any], multiprocessors: int, lse: Any = None, bounds: Sequence[Any] = ()
    ) -> Launch:
        """The launch for Q, K, V and O: arrays (batch, seq_len, n_heads, d_head) with strides in bytes.

        `multiprocessors` is the GPU's number, for kernels that distribute work among them. `lse`: where kernels of
        general problems write the log-sum-exp, fp32 (batch, n_heads, seq_len); None: nowhere. `bounds`: for kernels of
        packed sequences, the rows of Q and those of K and V at which each begins, and the end, int32.
        """

    def live_registers(self, config: Any) -> int:
        """Estimated registers per thread of accumulators and operands; 0 if the family has no estimate."""
        del config
        return 0

    def refuses(self, usage: PtxasUsage) -> str:
        """Why machine code must not ship although ptxas reported no error; empty if it may ship."""
        del usage
        return ""

    def for_plan(self, parts: Any, config: Any) -> tuple[int, ...]:
        """At most four numbers that its `plan` needs besides the tile (``KernelRow.own``)."""
        del parts, config
        return ()

    def require_alike(self, what: str) -> None:
        """Raises an error if the command `what` cannot follow the family's kernels, because their warps have roles."""
        if not self.warps_alike:
            what, found = f"{what} follows one warp for all", f"the family {self.name}, whose warps have roles"
            raise FlashladderError(what, expected="kernels whose warps run alike", found=found)

    def runs_on(self, arch: str) -> bool:
        """Whether a GPU of an architecture (``sm_90``) can run the kernels of this family."""
        number, (major, minor) = int(arch.removeprefix("sm_").rstrip("af")), self.least_capability
        least = 10 * major + minor
        return number == least if self.targets.alone else number >= least

    @property
    def needs(self) -> str:
        """The GPUs that it needs: ``compute capability 8.0 or later``; ``sm_90a``."""
        if self.targets.alone:
            return self.targets.arches[0]
        return f"compute capability {self.least_capability[0]}.{self.least_capability[1]} or later"


@dataclass(frozen=True)
class Iteration:
    """One step of the ladder, or an ablation of one, resolved through its parents."""

    number: int  # its place, from 1; an ablation keeps the number of the iteration that it varies
    slug: str  # the idea in the file's name, safe in file names
    title: str  # the idea in a few words
    why: str  # the mechanism, in the field's terms
    unmeasured: str  # why no timing is required yet; empty otherwise. Its cases may have been checked before
    parent: int | None  # the iteration that this one differs from; None for the first
    change: Mapping[str, object]  # concern to new value: the differences from the parent
    family: Family
    parts: Any  # one value per concern of the family
    configs: Mapping[str, Any]  # GPU key (a100, rtx3090, h200) to its best fp16 configuration, of the family's type
    own_configs: Mapping[str, Mapping[str, object]]  # GPU key to the knobs that this step itself sets, by field
    expect: Expect  # claims against the parent
    path: Path  # the YAML file
    description: str  # what `load_description` accepts to get this iteration back, for example ``16 - swizzle``

    def __hash__(self) -> int:
        """Of description, parts and path, because mappings have no hash."""
        return hash((self.description, self.parts, self.path))

    @property
    def row_stride(self) -> int:
        """Elements between two rows of one head that the kernel is compiled for; 0 means any."""
        return getattr(self.parts, "row_stride", 0)

    @property
    def shown_arch(self) -> str:
        """The architecture whose machine code is shown by default: its family's first."""
        return self.family.targets.arches[0]

    def not_run_on(self, arch: str) -> str:
        """Why a GPU of an architecture (``sm_80``) cannot run this step, as one line; empty if it can."""
        if self.family.runs_on(arch):
            return ""
        return f"iteration {self.description}: not run here: needs {self.family.needs}"

    @property
    def is_ablation(self) -> bool:
        """Whether this is an ablation instead of a step of the ladder."""
        return self.description != str(self.number)


LOADED: dict[str, object] = {}
"""Module of `flashladder.ladder.families` to its `FAMILY`, or to the error of loading it."""


def families() -> tuple[Family, ...]:
    """Every family, by name; a module without a family, and two families with one name, are errors."""
    known: dict[str, Family] = {}
    for where, found in LOADED.items():
        if isinstance(found, FlashladderError):
            found.where = found.where or where
            raise found
        if not isinstance(found, Family) or found.name in known:
            expected = "a module with FAMILY, an instance of flashladder.ladder.family.Family of a name of its own"
            shown = " ".join(repr(found).split())[:200]
            raise FlashladderError("the family cannot be loaded", where=where, expected=expected, found=shown)
        known[found.name] = found
    return tuple(known[name] for name in sorted(known))


def family_named(name: object) -> Family:
    """The family that a file's ``family`` names; an unknown name is an error."""
    known = {family.name: family for family in families()}
    if found := known.get(str(name)):
        return found
    what, expected = "no such family of kernels", " or ".join(known)
    raise FlashladderError(what, expected=expected, found=repr(name), hint=closest(name, known))
