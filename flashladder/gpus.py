"""Which file of configs/gpus/ describes a GPU: from the name that the driver reports to the key that YAML files use.

Each file holds the key (``a100``), patterns of names (``NVIDIA A100*``), the architecture, and peaks with unit and
source. ``python -c "from flashladder.gpus import gpu_key; print(gpu_key('NVIDIA H200'))"`` prints ``h200``.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
import yaml

from flashladder.errors import FlashladderError
from flashladder.files import CONFIGS, relative

GPUS = CONFIGS / "gpus"


class Quantity(BaseModel):
    """A number that means nothing without its unit and its source."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: Annotated[float, Field(gt=0)]
    unit: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=1, description="document and table, or the command that measured it")]


class Gpu(BaseModel):
    """One file of configs/gpus/: what is fixed about a GPU model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu: Annotated[str, Field(pattern=r"^[a-z0-9_]+$", description="the key; also the file's name")]
    title: Annotated[str, Field(min_length=1, description="the name that tables print")]
    names: Annotated[
        tuple[str, ...], Field(min_length=1, description="shell patterns of the names that the driver reports")
    ]
    arch: Annotated[str, Field(pattern=r"^sm_\d+$")]
    peaks: Annotated[
        Mapping[str, Quantity], Field(description="what no kernel can exceed: compute by dtype, bandwidth, sizes")
    ]

    def matches(self, name: str) -> bool:
        """Whether `name`, as the driver reports it, is this model; case does not matter."""
        return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in self.names)


@cache
def load_gpus(folder: Path = GPUS) -> Mapping[str, Gpu]:
    """All files of `folder`, by key.

    Raises:
        FlashladderError: a file is not YAML, has an unknown or missing key, or is named after another GPU.
    """
    return {gpu.gpu: gpu for gpu in map(_load, sorted(folder.glob("*.yaml")))}


def gpu_key(name: str, folder: Path = GPUS) -> str | None:
    """The key of the GPU that the driver calls `name`, such as ``"a100"``; None for one without a file."""
    return next((key for key, gpu in load_gpus(folder).items() if gpu.matches(name)), None)


def _load(path: Path) -> Gpu:
    """One validated file."""
    try:
        gpu = Gpu.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise FlashladderError("not YAML", where=relative(path), found=str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the whole file"
        raise FlashladderError(
            f"bad GPU description, {key}", where=relative(path), expected=first["msg"], found=repr(first["input"])
        ) from error
    if gpu.gpu != path.stem:
        raise FlashladderError("key and file name differ", where=relative(path), expected=path.stem, found=gpu.gpu)
    return gpu
