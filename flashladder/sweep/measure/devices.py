"""What a sweep measures on: this host's GPUs, chosen and locked by UUID, or its CPUs for a grid of the emulator.

Why: one task per GPU, whoever else uses the machine; a grid that was made for one GPU model says so before hours are
spent on another. NVML is asked, no CUDA context is opened: the workers do that, each on its own GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
import os

from flashladder.errors import FlashladderError
from flashladder.gpu.device import exclusive
from flashladder.gpu.doctor import gpus as described
from flashladder.ladder.gpus import gpu_key, load_gpus
from flashladder.results.machine import machine_name
from flashladder.sweep.lanes.lane import Device

MOST_CPUS = 8  # workers: each may take a gigabyte


@dataclass(frozen=True)
class Card:
    """A GPU of this host as NVML tells it."""

    index: int
    name: str
    uuid: str
    arch: str


def cpus() -> list[Device]:
    """A lane per CPU that this process may use; in a task of Slurm per CPU that it was given."""
    given = os.environ.get("SLURM_CPUS_PER_TASK", "")
    count = min(len(os.sched_getaffinity(0)), int(given) if given.isdigit() else MOST_CPUS, MOST_CPUS)
    return [Device(f"cpu{number}", "cpu", {"OMP_NUM_THREADS": "1"}) for number in range(count)]


def cards(environment: Mapping[str, str] = os.environ) -> list[Card]:
    """The GPUs that this process may use: all of the host, or those that CUDA_VISIBLE_DEVICES names.

    Raises:
        FlashladderError: there is none, or NVML does not answer.
    """
    from flashladder.gpu.doctor import require_gpu

    require_gpu("`invoke sweep --grid cpu` sweeps on this CPU")
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise FlashladderError("NVML binding not installed", hint="pip install nvidia-ml-py") from error
    pynvml.nvmlInit()
    found = []
    for gpu in described()[0]:
        handle = pynvml.nvmlDeviceGetHandleByIndex(gpu.index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        found.append(Card(gpu.index, gpu.name, uuid if isinstance(uuid, str) else uuid.decode(), gpu.arch))
    return visible(found, environment.get("CUDA_VISIBLE_DEVICES"))


def visible(found: Sequence[Card], named: str | None) -> list[Card]:
    """Of `found` those that CUDA_VISIBLE_DEVICES names, by index or by the beginning of their UUID; None: all."""
    if named is None:
        return list(found)
    words = [word.strip() for word in named.split(",") if word.strip()]
    return [card for word in words for card in found if str(card.index) == word or card.uuid.startswith(word)]


def chosen(found: Sequence[Card], text: str) -> list[Card]:
    """The cards that ``--gpus`` names: ``all``, indices or UUIDs separated by commas.

    Raises:
        FlashladderError: there is no such card, or one is named twice.
    """
    if text == "all":
        return list(found)
    picked: list[Card] = []
    for word in (word.strip() for word in text.split(",")):
        match = [card for card in found if str(card.index) == word or (len(word) > 4 and card.uuid.startswith(word))]
        if len(match) != 1 or match[0] in picked:
            raise FlashladderError(
                "no such GPU" if not match else "a GPU is named twice",
                expected="all, or some of " + ", ".join(f"{card.index} ({card.uuid})" for card in found),
                found=repr(word),
            )
        picked += match
    return picked


def fitting(found: Sequence[Card], made_for: str, *, anyway: bool) -> tuple[list[Card], str | None]:
    """The cards of one model that a grid may be measured on, and what it was made for if that is another model.

    Raises:
        FlashladderError: the grid was made for a GPU that is not here, or the cards are of different models.
    """
    if not found:
        raise FlashladderError("no GPU is left to measure on", hint="unset CUDA_VISIBLE_DEVICES, or see invoke doctor")
    fit = [card for card in found if made_for in ("any", gpu_key(card.name))]
    other = None
    if not fit and anyway:
        fit, other = list(found), made_for
    if not fit:
        raise FlashladderError(
            f"the grid was made for another GPU: {load_gpus()[made_for].title}",
            expected=made_for,
            found=", ".join(dict.fromkeys(card.name for card in found)),
            hint="--anyway measures it here, and marks the results as this GPU's",
        )
    if len(models := dict.fromkeys(card.name for card in fit)) > 1:
        raise FlashladderError(
            "GPUs of different models, which one table must not mix",
            found=", ".join(models),
            hint="--gpus names some of one model",
        )
    return fit, other


@contextmanager
def locked(found: Sequence[Card]) -> Iterator[list[Device]]:
    """The cards as lanes, each locked against other measurements of this host for as long as this lasts.

    Raises:
        FlashladderError: another process measures on one of them.
    """
    with ExitStack() as stack:
        for card in found:
            stack.enter_context(exclusive(card.uuid))
        yield [
            Device(f"gpu{card.index}", "gpu", {"CUDA_VISIBLE_DEVICES": card.uuid, "OMP_NUM_THREADS": "4"}, card.uuid)
            for card in found
        ]


def machine_of(found: Sequence[Card]) -> str:
    """The key under which results of these cards are kept."""
    return machine_name(found[0].name)
