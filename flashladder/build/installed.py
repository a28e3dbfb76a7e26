"""The built iterations as they are installed here: their operator, their manifest and the identity of each kernel.

Why: check, bench and counters must measure the wheel that was built, and say which machine code that was. A wheel
`flashladder_07` holds the operator `torch.ops.flashladder_07.forward_out` and a `manifest.json` with text hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import importlib
from typing import Any

from flashladder.build import wheel
from flashladder.errors import FlashladderError
from flashladder.ladder.ablation import Subject, load_description, parse_subject
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.selection import select_configs
from flashladder.results.schema import Kernel

Operator = Callable[..., object]


@dataclass(frozen=True)
class Installed:
    """One iteration's wheel: `run(q, k, v, out, short_form)` launches on the current stream."""

    number: int
    run: Operator
    manifest: Mapping[str, Any]
    subject: Subject | None = None

    @property
    def named(self) -> Subject:
        """The subject; a step of the ladder where none was given."""
        return self.subject or Subject(self.number)

    @property
    def kernels(self) -> Mapping[str, Mapping[str, Any]]:
        """Per short form what the manifest says about its kernels."""
        return dict(self.manifest.get("kernels", {}))

    @property
    def built(self) -> tuple[str, ...]:
        """Short forms of the configurations in this wheel."""
        return tuple(self.kernels)

    def require(self, config: KernelConfig) -> None:
        """Raises `FlashladderError` when the wheel does not hold this configuration."""
        if config.short_form() not in self.built:
            raise FlashladderError(
                f"{self.named.label} was not built with this configuration",
                expected="one of " + "; ".join(self.built),
                found=config.short_form(),
                hint=f"invoke build {self.named.options} --configs '{config.short_form()}'",
            )

    def identity(self, config: KernelConfig, arch: str) -> Kernel:
        """What a result says about this kernel on a GPU of `arch`; without machine code it runs JIT-compiled PTX."""
        own = self.kernels.get(config.short_form(), {})
        arch = f"{arch}a" if f"{arch}a" in own else arch  # code for one architecture alone
        entry = own.get(arch, {})
        return Kernel(
            iteration=self.number,
            variant=self.named.variant,
            config=config.short_form(),
            dtype=config.dtype,
            arch=arch,
            text_sha256=entry.get("text_sha256"),
            build=self.manifest.get("inputs_digest"),
            registers=entry.get("registers"),
            spill_stores=entry.get("spill_stores"),
            spill_loads=entry.get("spill_loads"),
            toolchain=self._toolchain(),
        )

    def _toolchain(self) -> dict[str, str]:
        """Versions of all tools, the host compiler's among them, and the flags that nvcc and ptxas were given."""
        inputs = self.manifest.get("inputs", {})
        versions: dict[str, str] = inputs.get("toolchain", {}) | inputs.get("host", {}).get("versions", {})
        return versions | {f"{tool} flags": " ".join(given) for tool, given in inputs.get("flags", {}).items()}


def load_installed(subject: int | str, cuda: str = "") -> Installed:
    """Reads the manifest of an iteration's wheel, checks the library against it and imports the wheel.

    Args:
        subject: the iteration's number, or an ablation such as ``16 - swizzle``.
        cuda: the CUDA version of its compiler; empty for the pinned one.

    Raises:
        FlashladderError: `subject` or `cuda` names nothing; the wheel is not installed, is damaged, was built before
            libraries were checked, or cannot be loaded.
    """
    wanted = parse_subject(subject, cuda)
    name = wanted.package
    folder = wheel.package_folder(name)
    if folder is None:
        raise FlashladderError(
            f"{wanted.label} is not installed here (no module {name})",
            hint=f"{wanted.session}, then install the wheel",
        )
    manifest = wheel.checked_manifest(folder, f"build it again: {wanted.session}")
    import torch

    try:
        importlib.import_module(name)
    except ImportError as error:
        raise FlashladderError(
            "the installed wheel cannot be loaded", where=name, found=error, hint=wanted.session
        ) from error
    return Installed(wanted.number, getattr(torch.ops, name).forward_out, manifest, wanted)


def chosen_configs(subject: int | str, keys: Sequence[str], dtypes: Sequence[str]) -> tuple[KernelConfig, ...]:
    """The configurations that a person means, each once.

    Args:
        subject: the iteration, or an ablation of one.
        keys: of `flashladder.ladder.selection.select_configs`.
        dtypes: ``fp16``, ``bf16`` or both; a short form has its own.
    """
    iteration = load_description(str(subject))
    return tuple(dict.fromkeys(config for key in keys for config in select_configs(iteration, key, dtypes)))
