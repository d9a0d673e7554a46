"""All of it together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from memfit.allocator import Replay, SegmentState, smallest_fit
from memfit.allocator.sources.files import NUM_START_BYTES, is_ledger
from memfit.analysis import Course
from memfit.analysis.report import plain as plain_course
from memfit.errors import TraceError
from memfit.explain.from_ledger import scene_from_ledger
from memfit.explain.from_snapshot import scene_from_snapshot
from memfit.explain.live_blocks import Holdings
from memfit.explain.remedies import Remedy, find_remedies
from memfit.explain.scene import Scene
from memfit.explain.unusable import Unusable, Wanted, find_unusable
from memfit.ledger import Coverage, Ledger
from memfit.reading import RefusedFileError, read_regular, read_start
from memfit.units import format_bytes

_PICKLE = b"\x80"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why memory ran out, and what would have made it fit. All figures are bytes."""

    source: str
    """``ledger`` or ``snapshot``."""
    gpu: str
    """The GPU it was replayed for; empty where it is about the one it ran on."""
    ran_out: bool
    """Did it, in this memory? If not, the figures are those of the end, and there is nothing to remedy."""
    future_known: bool
    """Whether the run goes on after the failure: of a prediction it does."""
    asked: int | None
    """What a new segment for the request would have held."""
    capacity: int | None
    """What the allocator could get from the device."""
    enough: int | None
    """The least that the allocator must be able to get for the run to complete; ``None`` where it ran out, or no GPU is named."""
    allocated: int
    reserved: int
    holdings: Holdings
    unusable: tuple[Unusable, ...]
    """Reserved, but not usable for the request, by reason."""
    remedies: tuple[Remedy, ...]
    notes: tuple[str, ...]
    course: Course | None
    """How high each step, evaluation and save rose, up to the failure; ``None`` of a snapshot, which knows no steps."""
    covered: Coverage
    """What of a script was seen, in the prediction of one."""
    about: Mapping[str, Any]
    """What was asked for: model, GPUs and how it is trained, as ``RunInfo.asked``; empty where it is not known."""

    @property
    def left(self) -> int | None:
        """What the allocator could still get."""
        return None if self.capacity is None else max(0, self.capacity - self.reserved)

    @property
    def unusable_bytes(self) -> int:
        return sum(group.size_bytes for group in self.unusable)

    @property
    def knows_modules(self) -> bool:
        """Are blocks known by category, operator and module, or only by the place in the code that asked for them?"""
        return bool(self.holdings.categories)

    def to_json(self) -> dict[str, Any]:
        """Every figure, for programs."""
        plain = asdict(self) | {"left": self.left, "unusable_bytes": self.unusable_bytes}
        categories = {category.name.lower(): size for category, size in self.holdings.categories.items()}
        moment = self.holdings.moment
        seen = {
            "course": self.course and plain_course(self.course),
            "covered": self.covered.to_json() if self.covered.is_known else None,
        }
        words = {"where": self.holdings.where, "moment": moment and moment.to_json()}
        return plain | seen | {"holdings": plain["holdings"] | words | {"categories": categories}}


def explain(source: Ledger | Path | str, gpu: str | None = None) -> Explanation:
    """Explains an out-of-memory error from a ledger or a PyTorch snapshot, or where a run would run out on a GPU."""
    return _explain(_open(source, gpu))


def _open(source: Ledger | Path | str, gpu: str | None) -> Scene:
    if isinstance(source, Ledger):
        return scene_from_ledger(source.check(), gpu)
    path = Path(source)
    try:
        start = read_start(path, NUM_START_BYTES)
        if is_ledger(start) or not start.startswith(_PICKLE):
            return scene_from_ledger(Ledger.load(path).check(), gpu)
        return scene_from_snapshot(path, read_regular(path), gpu)
    except RefusedFileError as error:
        raise TraceError(path, error.problem, error.advice) from error


def _explain(scene: Scene) -> Explanation:
    replayed = scene.replay()
    segments = scene.segments
    if segments is None:  # the request that fails makes the allocator give back what it can
        segments = replayed.segments_at(replayed.num_served if scene.failed is None else scene.failed + 1) if scene.ran_out else []
    return Explanation(
        source=scene.requests.source,
        gpu=scene.gpu,
        ran_out=scene.ran_out,
        future_known=scene.future_known,
        asked=scene.asked,
        capacity=scene.capacity,
        enough=None if scene.ran_out or scene.capacity is None else smallest_fit(scene.requests, scene.settings).capacity,
        allocated=_bytes(segments, "active_allocated") if segments else int(replayed.allocated[-1:].sum()),
        reserved=sum(segment.size for segment in segments) if segments else int(replayed.reserved[-1:].sum()),
        holdings=scene.holdings,
        unusable=find_unusable(segments, _wanted(scene), scene.settings),
        remedies=find_remedies(scene),
        notes=(*scene.notes, *_doubts(scene, replayed)),
        course=scene.course,
        covered=scene.covered,
        about=scene.about,
    )


def _bytes(segments: list[SegmentState], state: str) -> int:
    return sum(block.size for segment in segments for block in segment.blocks if block.state == state)


def _wanted(scene: Scene) -> Wanted | None:
    if scene.failed is None:
        return None
    requests = scene.requests
    pool = int(requests.pool[scene.failed])
    return Wanted(size_bytes=int(requests.size[scene.failed]), stream=int(requests.stream[scene.failed]), pool=pool)


def _doubts(scene: Scene, replayed: Replay) -> list[str]:
    """Where the replay and the error disagree."""
    if scene.failed is None or scene.future_known or replayed.num_served == scene.failed:
        return []
    amount = format_bytes(scene.capacity or 0)
    if replayed.completes:
        what = "gets what it asked for: something that was not recorded took memory, so what would have been enough cannot be told"
    else:
        what = f"runs out {scene.failed - replayed.num_served:,} requests earlier: what it says is a little too strict"
    return [f"replayed in {amount}, the run {what}"]
