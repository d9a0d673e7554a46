"""Policies, tried: each is applied in the phantom world and predicted exactly, as the GPU would run it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from torch import nn

from memfit.allocator import AllocatorSettings, Replay, Requests, parse_alloc_conf, replay, smallest_fit
from memfit.allocator.engine import SegmentChange
from memfit.ledger import Phase
from memfit.plan.applying.model import apply_policy
from memfit.plan.applying.named_units import depths_of, named_units, unwrapped
from memfit.plan.checkpointing.runs import PlannedRun, See
from memfit.plan.checkpointing.uncertain import most_needed, with_more_steps
from memfit.plan.plan_file import PlanCost
from memfit.plan.policy import CheckpointingPolicy
from memfit.predict.result import Prediction
from memfit.timing.breakdown import covered_seconds
from memfit.timing.operators.calls import Bound
from memfit.timing.timeline import COMMUNICATION

RESERVE: Final = 2.0
"""Hosts differ, and the one that trains may be slower than the one that was measured, or busy."""

SETTLED: Final = 2
"""Steps after which the allocator has all that it needs: in the first the optimizer makes its state, the second has it from the
start. A Llama under FSDP2 whose prediction gave memory back in its third step, and in none after its seventh, retried 16
allocations in five steps on an H200, and was 19 % slower than every second layer."""

IDLE: Final = 0.15
"""Of a step: a GPU that is idle for longer waits for its host."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A policy, and what it takes."""

    policy: CheckpointingPolicy | None
    prediction: Prediction
    budget_bytes: int
    """What the allocator may get."""
    margin: float
    """The share of it that is left free, as far as every request is known."""

    @cached_property
    def _settings(self) -> AllocatorSettings:
        return parse_alloc_conf(self.prediction.alloc_conf, self.prediction.torch_version)

    @cached_property
    def _requests(self) -> Requests:
        return with_more_steps(self.prediction.ledger, self.prediction.requests)

    @cached_property
    def smallest_fit(self) -> int:
        return smallest_fit(self._requests, self._settings).capacity

    @property
    def certain_need(self) -> int:
        """What it needs with the margin, if every request is as predicted and the process is new."""
        return math.ceil(self.smallest_fit / (1.0 - self.margin))

    @cached_property
    def need(self) -> int:
        """The budget under which it is trusted to complete: with the margin, whatever cuDNN chooses, and in a used process."""
        return max(self.certain_need, most_needed(self.prediction.ledger, self.prediction.requests, self._settings))

    @cached_property
    def completes(self) -> bool:
        budget = self.budget_bytes
        return self.certain_need <= budget and self.need <= budget and self._replayed(budget).completes

    @property
    def fits(self) -> bool:
        return self.completes and self.is_steady

    def _replayed(self, capacity_bytes: int) -> Replay:
        return replay(self._requests, self._settings, capacity=capacity_bytes)

    @cached_property
    def is_steady(self) -> bool:
        """From the third step on, the allocator gives no memory back to get other memory: that takes time which is not counted, and
        what is not settled by then is so near the brim that it is settled by chance."""
        starts, requests = self.prediction.ledger.step_starts, self.prediction.requests
        first = int(np.searchsorted(requests.event, starts[min(SETTLED, len(starts) - 1)])) if len(starts) else 0
        log = self._replayed(self.budget_bytes).outcome.segment_log
        gives_back = np.isin(log[:, 1], (SegmentChange.FREE, SegmentChange.UNMAP))
        return not bool((gives_back & (log[:, 0] >= first)).any())

    @property
    def chooses_operators(self) -> bool:
        return self.policy is not None and any(group.choices for group in self.policy.groups)

    @property
    def waits_for_its_host(self) -> bool:
        """Does the GPU have nothing to do for a good part of the step?"""
        times = self.prediction.time_breakdown
        return times is not None and times.idle > IDLE * times.total

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


class Trials:
    """Predicts policies, each once."""

    def __init__(self, run: PlannedRun, budget_bytes: int, margin: float) -> None:
        self._run, self.budget_bytes, self._margin = run, budget_bytes, margin
        self._done: dict[CheckpointingPolicy | None, Trial] = {}

    @property
    def all(self) -> list[Trial]:
        return list(self._done.values())

    def knows(self, policy: CheckpointingPolicy | None) -> bool:
        return policy in self._done

    def run(self, policy: CheckpointingPolicy | None) -> Trial:
        """A step that leaves all as it found it is not run a third time."""
        if policy not in self._done:
            self._done[policy] = self._trial(policy, every_step=False)
        return self._done[policy]

    def with_every_step(self, trial: Trial) -> Trial:
        """The same policy, with all steps run: a user's steps may differ."""
        return self._trial(trial.policy, every_step=True)

    def seconds_on_a_slow_host(self, trial: Trial) -> float:
        """What the step of a trial takes where choosing operators costs the host ``RESERVE`` times what was measured."""
        return self._run.predict(applying(trial.policy), every_step=False, mode_slowness=RESERVE).step_seconds or 0.0

    def _trial(self, policy: CheckpointingPolicy | None, *, every_step: bool) -> Trial:
        return Trial(policy, self._run.predict(applying(policy), every_step=every_step), self.budget_bytes, self._margin)


def applying(policy: CheckpointingPolicy | None) -> See | None:
    """Applies a policy to the first model that has all of its units."""
    if policy is None:
        return None
    is_applied = False

    def see(model: nn.Module) -> None:
        nonlocal is_applied
        if not is_applied and named_units(model).keys() >= {*policy.units, *policy.untouched}:
            apply_policy(model, policy, depths_of(unwrapped(model)))  # it is made for this model
            is_applied = True

    return see
