"""What the allocator was asked for up to the failure, and what it could give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memfit.allocator import AllocatorSettings, Replay, Requests, SegmentState
from memfit.allocator import replay as replay_requests
from memfit.analysis import Course
from memfit.explain.live_blocks import Holdings
from memfit.ledger import Coverage


@dataclass(frozen=True, eq=False, kw_only=True)
class Scene:
    """A run around the moment at which memory ran out."""

    requests: Requests
    """Up to the one that failed, which is the last; of a prediction, all of them."""
    settings: AllocatorSettings
    capacity: int | None
    """What the allocator could get from the device; ``None`` if it is not known."""
    total_memory: int | None
    """What the device has, if that is known."""
    ran_out: bool
    """Whether a request was not served in this memory."""
    failed: int | None
    """That request; ``None`` if there is none, or its size is not known."""
    asked: int | None
    """Bytes, as an error's message counts them: the new segment that the request needed."""
    future_known: bool
    """Whether the requests go on after the one that failed."""
    holdings: Holdings
    gpu: str = ""
    """The GPU it is replayed for, if that is not the one it ran on."""
    segments: list[SegmentState] | None = None
    """What lay where at the failure, if that was recorded; ``None`` leaves it to the replay."""
    notes: tuple[str, ...] = ()
    course: Course | None = None
    """How high each step, evaluation and save rose; ``None`` of a snapshot, which knows no steps."""
    covered: Coverage = Coverage()
    """What of a script was seen."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What was asked for: model, GPUs and how it is trained, as ``RunInfo.asked``."""

    def replay(self, requests: Requests | None = None, settings: AllocatorSettings | None = None) -> Replay:
        """The run, or a variant of it, in the memory that there was."""
        chosen = self.requests if requests is None else requests
        return replay_requests(chosen, settings or self.settings, capacity=self.capacity, total_memory=self.total_memory)
