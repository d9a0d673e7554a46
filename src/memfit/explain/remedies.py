"""What would have made it fit, each tried by replay.

Settings change the allocator; a smaller micro-batch, checkpointing and offloading change what it is asked for (``variants.py``).
Where nothing does alone, they are tried together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from memfit.allocator import AllocatorSettings, Requests, parse_alloc_conf, smallest_fit
from memfit.allocator import replay as replay_requests
from memfit.allocator.verdict import EXPANDABLE, USUAL_SETTINGS
from memfit.explain.checkpointing import checkpoint
from memfit.explain.scene import Scene
from memfit.explain.variants import Variant
from memfit.hardware import least_gpu
from memfit.ledger import Category

COLLECTING: Final = "garbage_collection_threshold:0.8"
"""Acts only where the process may take only a share of the device."""
HALF: Final = 0.5

_SETTING, _BATCH, _CHECKPOINTING, _OFFLOAD, _GPU = "setting", "micro-batch", "checkpointing", "offload", "gpu"


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One thing to change, or several together, and what came of it in the replay."""

    kind: str
    """``setting``, ``micro-batch``, ``checkpointing``, ``offload``, ``gpu``, or several of them joined by a plus sign."""
    what: str
    peak_allocated: int
    smallest_fit: int
    """The least that the allocator would have to be able to get."""
    served: bool | None
    """Whether it would fit, as a verdict says it: in this memory, and in all larger ones. ``None`` if the replay cannot tell."""


def find_remedies(scene: Scene) -> tuple[Remedy, ...]:
    """What was tried: what serves the request first, the least change of memory needed first among equals."""
    if scene.failed is None:
        return ()
    trials = _RemedyTrials(scene)
    found = [*trials.settings(), *trials.variants()]
    if not any(remedy.served for remedy in found):
        found += trials.together()
    return (*sorted(found, key=lambda remedy: not remedy.served), *trials.larger_gpu())


class _RemedyTrials:
    """Tries things out in one scene."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._variant = Variant.of(scene.requests)
        self._checkpointed = checkpoint(self._variant) if self._variant is not None else None
        self._can_tell = not scene.replay().completes
        self._part = "sequence length" if scene.about.get("batch") == 1 else "micro-batch"

    def settings(self) -> Iterator[Remedy]:
        limited = self._scene.settings.per_process_memory_fraction is not None
        for conf in (*USUAL_SETTINGS, *((COLLECTING,) if limited else ())):
            settings = self._settings(conf)
            if settings != self._scene.settings:
                yield self._remedy(_SETTING, conf, self._scene.requests, settings)

    def variants(self) -> Iterator[Remedy]:
        if self._variant is None:
            return
        yield from self._batches(self._variant)
        if self._checkpointed is not None:
            yield self._remedy(_CHECKPOINTING, "activation checkpointing of every repeated layer", self._checkpointed.requests)
        offloaded = self._variant.without(Category.OPTIMIZER_STATE)
        if len(offloaded.requests) < len(self._scene.requests):
            yield self._remedy(_OFFLOAD, "optimizer state on the CPU", offloaded.requests)

    def _batches(self, variant: Variant) -> Iterator[Remedy]:
        """Half the micro-batch, and the largest part of it that works."""
        half = variant.scaled(HALF).requests
        if int(half.size.sum()) == int(variant.requests.size.sum()):
            return  # nothing depends on it
        largest = self._largest_share(variant)
        if largest and largest != round(100 * HALF):
            yield self._remedy(_BATCH, f"{largest} % of the {self._part}", variant.scaled(largest / 100).requests)
        yield self._remedy(_BATCH, f"half the {self._part}", half)

    def _largest_share(self, variant: Variant) -> int:
        """In hundredths, 0 if none; found by bisection."""
        works, fails = 0, 100
        while self._can_tell and fails - works > 1:
            share = (works + fails) // 2
            if self._is_served(variant.scaled(share / 100).requests, self._scene.settings):
                works = share
            else:
                fails = share
        return works

    def _is_served(self, requests: Requests, settings: AllocatorSettings, least: int | None = None) -> bool:
        """True if it completes in this memory and in all larger ones: a run that completes by luck is not said to fit."""
        if not self._scene.replay(requests, settings).completes:
            return False
        capacity = self._scene.capacity
        return capacity is None or (smallest_fit(requests, settings).capacity if least is None else least) <= capacity

    def together(self) -> Iterator[Remedy]:
        expandable = self._settings(EXPANDABLE)
        variants = [(_CHECKPOINTING, "activation checkpointing", self._checkpointed)]
        variants += [(_BATCH, f"half the {self._part}", self._variant and self._variant.scaled(HALF))]
        both = self._checkpointed.scaled(HALF) if self._checkpointed is not None else None
        variants += [(f"{_CHECKPOINTING} + {_BATCH}", f"activation checkpointing, half the {self._part}", both)]
        for kind, what, variant in variants:
            if variant is not None:
                yield self._remedy(f"{_SETTING} + {kind}", f"{EXPANDABLE}, {what}", variant.requests, expandable)

    def larger_gpu(self) -> Iterator[Remedy]:
        """The least GPU on which it would have been served as it was, with the whole of it to itself."""
        scene, ledger = self._scene, self._scene.requests.ledger
        settings = replace(scene.settings, per_process_memory_fraction=None)
        least = smallest_fit(scene.requests, settings).capacity
        gpu = least_gpu(least, int(ledger is not None and ledger.info.world_size > 1))
        if gpu is not None and self._can_tell:
            peak = replay_requests(scene.requests, settings).peak_allocated
            yield Remedy(
                kind=_GPU,
                what=f"the smallest GPU on which it fits: {gpu.name}",
                peak_allocated=peak,
                smallest_fit=least,
                served=True,
            )

    def _settings(self, conf: str) -> AllocatorSettings:
        """Others in place of the run's own, under the same limit."""
        own = self._scene.settings
        return replace(parse_alloc_conf(conf, own.torch_version), per_process_memory_fraction=own.per_process_memory_fraction)

    def _remedy(self, kind: str, what: str, requests: Requests, settings: AllocatorSettings | None = None) -> Remedy:
        settings = settings or self._scene.settings
        least = smallest_fit(requests, settings).capacity
        return Remedy(
            kind=kind,
            what=what,
            peak_allocated=replay_requests(requests, replace(settings, per_process_memory_fraction=None)).peak_allocated,
            smallest_fit=least,
            served=self._is_served(requests, settings, least) if self._can_tell else None,
        )
