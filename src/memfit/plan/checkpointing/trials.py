"""Policies, tried: each is applied in the phantom world and predicted exactly, as the GPU would run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from torch import nn
from torch.utils.checkpoint import CheckpointError

from memfit.allocator import AllocatorSettings, Replay, parse_alloc_conf, replay, smallest_fit
from memfit.allocator.engine import SegmentChange
from memfit.errors import ConfigError, StepFailedError
from memfit.job import PredictOptions
from memfit.ledger import Phase
from memfit.phantom.current import current
from memfit.plan.applying import apply
from memfit.plan.applying.named_units import named_units
from memfit.plan.checkpointing.roots import Step, seeing_models
from memfit.plan.plan_file import PlanCost
from memfit.plan.policy import CheckpointingPolicy
from memfit.predict.api import predict_build
from memfit.predict.result import Prediction
from memfit.timing.breakdown import covered_seconds
from memfit.timing.operators.calls import Bound
from memfit.timing.timeline import COMMUNICATION

RESERVE: Final = 2.0
"""Hosts differ, and the one that trains may be slower than the one that was measured, or busy."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A policy, and what it takes."""

    policy: CheckpointingPolicy | None
    prediction: Prediction
    limit_bytes: int
    """What it may need: the budget less its margin."""
    budget_bytes: int
    """What the allocator may get."""

    @cached_property
    def _settings(self) -> AllocatorSettings:
        return parse_alloc_conf(self.prediction.alloc_conf, self.prediction.torch_version)

    @cached_property
    def smallest_fit(self) -> int:
        return smallest_fit(self.prediction.requests, self._settings).capacity

    @cached_property
    def completes(self) -> bool:
        return self.smallest_fit <= self.limit_bytes and self._replayed(self.limit_bytes).completes

    @property
    def fits(self) -> bool:
        return self.completes and self.is_steady

    def _replayed(self, capacity_bytes: int) -> Replay:
        return replay(self.prediction.requests, self._settings, capacity=capacity_bytes)

    @cached_property
    def is_steady(self) -> bool:
        """In the last step, the allocator gives no memory back to get other memory: that would take time which is not counted.

        With all of the budget: without its margin it would cost a little time, while what does not complete costs the run.
        """
        starts = self.prediction.ledger.step_starts
        requests = self.prediction.requests
        first = int(np.searchsorted(requests.event, starts[-1])) if len(starts) else 0
        log = self._replayed(self.budget_bytes).outcome.segment_log
        gives_back = np.isin(log[:, 1], (SegmentChange.FREE, SegmentChange.UNMAP))
        return not bool((gives_back & (log[:, 0] >= first)).any())

    @property
    def chooses_operators(self) -> bool:
        return self.policy is not None and any(group.choices for group in self.policy.groups)

    @property
    def seconds(self) -> float:
        return self.prediction.step_seconds or 0.0

    def figures(self) -> PlanCost:
        times = self.prediction.time_breakdown
        return PlanCost(
            peak_allocated_bytes=int(self.prediction.peak_allocated),
            peak_reserved_bytes=int(self.prediction.peak_reserved),
            smallest_fit_bytes=int(self.smallest_fit),
            step_seconds=self.prediction.step_seconds,
            recompute_seconds=0.0 if times is None else times.recompute,
            offload_seconds=self._offload_seconds(),
        )

    def _offload_seconds(self) -> float:
        """Copies between host and device run in the last step, and nothing else does."""
        time, policy = self.prediction.time, self.policy
        if time is None or not time.num_steps or policy is None or not any(group.offloads for group in policy.groups):
            return 0.0
        part = slice(time.steps[-2].span, time.steps[-1].span)
        begin, seconds, cost = time.spans.begin[part], time.spans.seconds[part], time.spans.cost[part]
        links = np.array([known.bound is Bound.LINK for known in time.costs], dtype=bool)
        is_copy = links[cost] & (time.spans.stream[part] > COMMUNICATION)
        return max(0.0, covered_seconds(begin, seconds) - covered_seconds(begin[~is_copy], seconds[~is_copy]))

    @property
    def checkpoints_by_itself(self) -> bool:
        """Does the model compute something again that no plan asked for?"""
        return self.policy is None and bool((self.prediction.ledger.scopes.phase == Phase.RECOMPUTE).any())


def predict_planned(build: Callable[[], Step], options: PredictOptions) -> Prediction:
    """As ``memfit.predict``; what is wrong with units is told as such, and not as a step that failed."""
    try:
        prediction = predict_build(build, options)
        assert isinstance(prediction, Prediction)  # of one rank
        return prediction
    except StepFailedError as failed:
        if isinstance(failed.error, ConfigError):
            raise failed.error from None
        if isinstance(failed.error, CheckpointError):
            raise ConfigError(
                "computing a layer again gives other tensors than its forward did: it keeps something between calls, as a cache of "
                "keys and values does. Switch that off for training (use_cache=False in transformers), or name other units"
            ) from failed
        raise


class Trials:
    """Predicts policies, each once."""

    def __init__(self, build: Callable[[], Step], limit_bytes: int, budget_bytes: int, options: PredictOptions) -> None:
        self._build, self.limit_bytes, self._budget_bytes, self._options = build, limit_bytes, budget_bytes, options
        self._done: dict[CheckpointingPolicy | None, Trial] = {}

    @property
    def all(self) -> list[Trial]:
        return list(self._done.values())

    def knows(self, policy: CheckpointingPolicy | None) -> bool:
        return policy in self._done

    def run(self, policy: CheckpointingPolicy | None) -> Trial:
        if policy not in self._done:
            prediction = predict_planned(self._applied(policy), self._options)
            self._done[policy] = Trial(policy, prediction, self.limit_bytes, self._budget_bytes)
        return self._done[policy]

    def seconds_on_a_slow_host(self, trial: Trial) -> float:
        """What the step of a trial takes where choosing operators costs the host ``RESERVE`` times what was measured."""
        build = self._applied(trial.policy)

        def build_on_a_slow_host() -> Step:
            current().mode_slowness = RESERVE
            return build()

        return predict_planned(build_on_a_slow_host, self._options).step_seconds or 0.0

    def _applied(self, policy: CheckpointingPolicy | None) -> Callable[[], Step]:
        if policy is None:
            return self._build
        is_applied = False

        def see(model: nn.Module) -> None:
            nonlocal is_applied
            if not is_applied and named_units(model).keys() >= {*policy.units, *policy.untouched}:
                apply(model, policy)
                is_applied = True

        return seeing_models(self._build, see)
