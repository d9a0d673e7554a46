"""Judges whether a run fits on a GPU.

::

    allocated  <=  smallest fit  <=  reserved          bytes that PyTorch's allocator counts
                        │
                        └─ + context + communicators  <=  usable memory of the GPU:  it fits
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from memfit.allocator.alloc_conf import parse_alloc_conf
from memfit.allocator.fit import SmallestFit, smallest_fit
from memfit.allocator.replaying import OutOfMemory, Replay, recorded_settings, replay
from memfit.allocator.requests import Requests
from memfit.allocator.settings import NEWEST, AllocatorSettings, version_text
from memfit.drawing import Drawn
from memfit.hardware import Gpu, least_gpu
from memfit.ledger import Category, Ledger, Moment
from memfit.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Verdict(Drawn):
    """Whether a run fits on a GPU, by how much, and what would help if it does not. All figures are bytes."""

    gpu: Gpu
    settings: AllocatorSettings
    peak_allocated: int
    """What ``torch.cuda.max_memory_allocated()`` would return."""
    smallest_fit: int
    """The smallest allocator limit with which the run completes."""
    peak_reserved: int
    """What ``torch.cuda.max_memory_reserved()`` would return with memory to spare."""
    context: int
    """Taken by CUDA and its libraries."""
    communicators: int
    """Taken by NCCL, for all process groups."""
    capacity: int
    """What the allocator can get on this GPU."""
    fits: bool
    num_alloc_retries: int
    """How often the allocator must free cached memory on this GPU to complete."""
    given_back: int
    """The bytes freed that way."""
    out_of_memory: OutOfMemory | None
    """Where memory runs out on this GPU, ``None`` if it does not."""
    least_gpu: Gpu | None
    """The smallest known GPU on which it fits; ``None`` if there is none."""
    moment: Moment | None
    """When the peak was, and what ran; ``None`` without a ledger."""
    largest: tuple[tuple[str, int], ...]
    """The peak by category, largest first; empty without a ledger."""
    alternatives: tuple[SettingsNeed, ...]
    """The needs under other settings, smallest first."""
    warnings: tuple[str, ...]

    @property
    def needed(self) -> int:
        """The GPU memory that the process needs."""
        return self.smallest_fit + self.context + self.communicators

    @property
    def where(self) -> str:
        """The step and phase of the peak in words, ``step 1, backward``; empty if no ledger says so."""
        return "" if self.moment is None else replace(self.moment, module="").label

    @property
    def margin(self) -> int:
        """What is left of the GPU's usable memory; negative if some is missing."""
        return self.capacity - self.smallest_fit

    def to_json(self) -> dict[str, Any]:
        """Every figure, for programs."""
        plain = asdict(self) | {"needed": self.needed, "margin": self.margin, "usable": self.gpu.usable_bytes}
        plain |= {"gpu": self.gpu.name, "least_gpu": self.least_gpu and self.least_gpu.name}
        return plain | {"where": self.where, "moment": self.moment and self.moment.to_json()}


def judge(
    requests: Requests,
    gpu: Gpu,
    settings: AllocatorSettings | None = None,
    *,
    num_process_groups: int | None = None,
    with_advice: bool = True,
    unlimited: Replay | None = None,
) -> Verdict:
    """Judges whether a run fits. By default with its recorded settings and process groups, or one group if it had several ranks.

    Most of the work is the needs under other settings. Without advice ``alternatives`` is empty; ``advised`` fills it in.
    ``unlimited`` is the run with these settings and memory to spare, if it was replayed already.
    """
    settings = settings or recorded_settings(requests)
    communicators = (num_process_groups, 0) if num_process_groups is not None else (0, 0)
    if num_process_groups is None and requests.ledger is not None:
        communicators = requests.ledger.info.communicators
    capacity = _capacity(gpu, settings, communicators)
    unlimited = unlimited or replay(requests, replace(settings, per_process_memory_fraction=None))
    least = smallest_fit(requests, settings)
    here = unlimited
    if not _is_the_same_within(capacity, settings, unlimited):
        here = replay(requests, settings, capacity=capacity, total_memory=gpu.usable_bytes)
    fits = least.capacity <= capacity and here.completes
    ledger, event = requests.ledger, unlimited.peak_event
    verdict = Verdict(
        gpu=gpu,
        settings=settings,
        peak_allocated=unlimited.peak_allocated,
        smallest_fit=least.capacity,
        peak_reserved=unlimited.peak_reserved,
        context=gpu.context_bytes,
        communicators=gpu.communicators_bytes(*communicators),
        capacity=capacity,
        fits=fits,
        num_alloc_retries=here.num_alloc_retries,
        given_back=here.given_back,
        out_of_memory=here.out_of_memory,
        least_gpu=least_gpu(least.capacity, *communicators),
        moment=ledger.moment_at(event) if ledger is not None and event >= 0 else None,
        largest=largest_categories(ledger, event) if ledger is not None and event >= 0 else (),
        alternatives=(),
        warnings=(*requests.warnings, *_warnings(requests, settings, gpu, unlimited, least)),
    )
    return advised(verdict, requests) if with_advice else verdict


def advised(verdict: Verdict, requests: Requests) -> Verdict:
    """The verdict on these requests, with the needs under other settings."""
    others = (EXPANDABLE,) if verdict.fits else USUAL_SETTINGS
    return replace(verdict, alternatives=compare_settings(requests, verdict.settings.torch_version, others))


def _is_the_same_within(capacity: int, settings: AllocatorSettings, unlimited: Replay) -> bool:
    """Is a run with memory to spare known to be the same where the allocator can get no more than ``capacity``?"""
    depends_on_gpu = settings.per_process_memory_fraction is not None or settings.expandable_segments
    return not depends_on_gpu and not unlimited.prepared.address.any() and unlimited.outcome.most_granted <= capacity


def _capacity(gpu: Gpu, settings: AllocatorSettings, communicators: tuple[int, int]) -> int:
    capacity = gpu.capacity(*communicators)
    if settings.per_process_memory_fraction is None:
        return capacity
    return min(capacity, int(settings.per_process_memory_fraction * gpu.usable_bytes))


def _warnings(requests: Requests, settings: AllocatorSettings, gpu: Gpu, unlimited: Replay, least: SmallestFit) -> list[str]:
    found = [f"{gpu.name}: {gpu.caveat}"] if gpu.caveat else []
    if settings.version > NEWEST:
        found.append(
            f"torch {settings.torch_version} is newer than memfit knows; its allocator is assumed to be that of "
            f"{version_text(NEWEST)}"
        )
    recorded = requests.recorded_peaks.get("peak_reserved", 0)
    if recorded and settings == recorded_settings(requests) and abs(unlimited.peak_reserved - recorded) > 0.003 * recorded:
        found.append(
            f"the recorded run reserved {format_bytes(recorded)}, the replay reserves {format_bytes(unlimited.peak_reserved)}"
        )
    if least.lucky:
        found.append(
            f"some capacities between {format_bytes(least.lucky[0])} and {format_bytes(least.capacity)} are enough too, "
            "but not all of them"
        )
    return found


def largest_categories(ledger: Ledger, event: int) -> tuple[tuple[str, int], ...]:
    """Memory in use after an event by category, on the event's device, largest first."""
    here = ledger.blocks.device == ledger.blocks.device[ledger.events.subject[event]]
    held = np.where(here, ledger.block_bytes_at(event), 0)
    totals = np.bincount(ledger.categories, weights=held, minlength=len(Category)).astype(np.int64)
    found = [(category.label, int(totals[category])) for category in Category if totals[category] > 0]
    return tuple(sorted(found, key=lambda item: -item[1]))


EXPANDABLE: Final = "expandable_segments:True"
USUAL_SETTINGS: Final = (EXPANDABLE, "max_split_size_mb:128", "max_split_size_mb:512", "roundup_power2_divisions:8")
"""Worth trying, apart from the defaults."""


@dataclass(frozen=True)
class SettingsNeed:
    """The memory that a run needs under certain settings."""

    alloc_conf: str
    """As in ``PYTORCH_CUDA_ALLOC_CONF``."""
    smallest_fit: int
    peak_reserved: int
    """With memory to spare."""


def compare_settings(
    requests: Requests, torch_version: str, alloc_confs: tuple[str, ...] = ("", *USUAL_SETTINGS)
) -> tuple[SettingsNeed, ...]:
    """The run's needs under each of the settings, smallest first."""
    needs = []
    for conf in alloc_confs:
        settings = parse_alloc_conf(conf, torch_version)
        least = smallest_fit(requests, settings)
        needs.append(SettingsNeed(conf, least.capacity, least.peak_reserved))
    return tuple(sorted(needs, key=lambda need: need.smallest_fit))
