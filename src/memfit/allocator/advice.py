"""Which settings of the allocator would need least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from memfit.allocator.alloc_conf import parse_alloc_conf
from memfit.allocator.fit import smallest_fit
from memfit.allocator.replaying import replay
from memfit.allocator.requests import Requests

EXPANDABLE: Final = "expandable_segments:True"
USUAL_SETTINGS: Final = (EXPANDABLE, "max_split_size_mb:128", "max_split_size_mb:512", "roundup_power2_divisions:8")
"""Worth trying, apart from the defaults."""


@dataclass(frozen=True)
class SettingsNeed:
    """What a run needs under certain settings."""

    alloc_conf: str
    """As in ``PYTORCH_CUDA_ALLOC_CONF``."""
    smallest_fit: int
    peak_reserved: int
    """With memory to spare."""


def compare_settings(
    requests: Requests, torch_version: str, alloc_confs: tuple[str, ...] = ("", *USUAL_SETTINGS)
) -> tuple[SettingsNeed, ...]:
    """What the run needs under each of the settings, least first."""
    needs = []
    for conf in alloc_confs:
        settings = parse_alloc_conf(conf, torch_version)
        needs.append(SettingsNeed(conf, smallest_fit(requests, settings).capacity, replay(requests, settings).peak_reserved))
    return tuple(sorted(needs, key=lambda need: need.smallest_fit))
