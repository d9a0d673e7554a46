"""The step time of a job whose ranks were predicted one by one.

::

    no pipeline       the slowest rank: every step ends with a collective of all of them
    a pipeline        the first weights are gathered; what each rank needs for a microbatch, in the order of its schedule, with all
                      waiting for neighbours; then gradients are reduced, and the slowest rank's clipping and optimizer step

A rank's time alone has no waiting in it (docs/timing.md): a pipeline would look as if it had no bubble.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.choices import SCHEDULES, Schedule
from memfit.ledger import Phase
from memfit.ledger.schema import Array
from memfit.predict.ranks import JobPrediction
from memfit.predict.result import Prediction
from memfit.timing.breakdown import RunTime
from memfit.timing.pipelines import StageTime, StageWork, Task, all_forward_first, one_forward_one_backward, pipeline_seconds
from memfit.timing.timeline import COMMUNICATION
from memfit.torch_compat.pipelining import orders_of

_IN_THE_PIPELINE = (
    Phase.FORWARD,
    Phase.BACKWARD,
    Phase.RECOMPUTE,
    Phase.PRE_FORWARD,
    Phase.POST_FORWARD,
    Phase.PRE_BACKWARD,
    Phase.POST_BACKWARD,
)
_COMPUTES = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE)


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """The last step of one rank alone, in seconds."""

    opening: float
    """Before its first product: the first weights are gathered, once in a step."""
    in_pipeline: float
    """From then until its last backward is done."""
    closing: float
    """Gradients of all microbatches are reduced."""
    afterwards: float
    """Clipping and the optimizer's step."""
    forward_share: float
    """Of what its kernels take in the pipeline."""

    @property
    def until_reduced(self) -> float:
        return self.opening + self.in_pipeline + self.closing

    @classmethod
    def from_prediction(cls, prediction: Prediction) -> RankTime | None:
        """``None`` where no step was seen."""
        time = prediction.time
        if time is None or not time.num_steps:
            return None
        first, end = time.steps[-2], time.steps[-1]
        part = slice(first.span, end.span)
        scope, begin, seconds = time.spans.scope[part], time.spans.begin[part] - first.seconds, time.spans.seconds[part]
        phase = phase_of_scopes(scope, prediction.ledger.scopes.phase)
        inside = np.isin(phase, _IN_THE_PIPELINE)
        finish = begin + seconds
        until = float(finish[inside].max(initial=0.0))
        is_product = np.array([cost.flops > 0 for cost in time.costs], dtype=bool)[time.spans.cost[part]]
        opening = float(begin[inside & is_product].min(initial=until))
        computed = float(finish[np.isin(phase, _COMPUTES)].max(initial=opening))
        is_reduced = (phase == Phase.POST_BACKWARD) & (time.spans.stream[part] <= COMMUNICATION) & (begin >= computed)
        reducing = float(begin[is_reduced].min(initial=until))
        inside &= begin < reducing
        busy = float(seconds[inside].sum())
        forward = float(seconds[inside & np.isin(phase, (Phase.FORWARD, Phase.PRE_FORWARD, Phase.POST_FORWARD))].sum())
        return cls(
            opening=opening,
            in_pipeline=reducing - opening,
            closing=until - reducing,
            afterwards=end.seconds - first.seconds - until,
            forward_share=forward / busy if busy else 1 / 3,
        )


def phase_of_scopes(scope: Array, phases: Array) -> Array:
    """The phase of each scope; -1 outside all scopes, which the unsigned numbers of a ledger cannot hold."""
    return np.append(phases.astype(np.int64), -1)[np.maximum(scope, -1)]


def step_seconds_in_parts(prediction: Prediction, predicted: int, wanted: int, *, is_sharded: bool) -> float:
    """Of a batch that is computed in ``wanted`` parts, where ``predicted`` of them were. 0 where no step was seen.

    Where gradients are sharded, each further part takes as long as the last two are apart: what is reduced overlaps with the next.
    Where they are whole, it takes as long as the last one: the first has no gradients to add to.
    """
    time, seconds, rank = prediction.time, prediction.step_seconds, RankTime.from_prediction(prediction)
    if time is None or rank is None or not seconds:
        return 0.0
    begins = _begins_of_parts(time)
    if len(begins) != predicted or predicted < 2:
        return seconds * wanted / predicted
    last = time.steps[-2].seconds + rank.until_reduced - begins[-1]
    return seconds + (wanted - predicted) * (begins[-1] - begins[-2] if is_sharded else last)


def _begins_of_parts(time: RunTime) -> list[float]:
    """When tokens are looked up, in the last step: every part begins with it."""
    part = slice(time.steps[-2].span, time.steps[-1].span)
    found: dict[int, list[float]] = {}
    for number, begin in zip(time.spans.cost[part].tolist(), time.spans.begin[part].tolist(), strict=True):
        if time.costs[number].tokens:
            found.setdefault(number, []).append(begin)
    return max(found.items(), key=lambda each: time.costs[each[0]].tokens, default=(0, []))[1]


def job_step_seconds(job: JobPrediction, schedule: str, pp: int, microbatches: int, *, simulated: int = 0) -> float:
    """From the beginning of a step until its slowest rank is done; 0 where no step was seen.

    ``simulated`` is how many microbatches the pipeline is to be timed with, where that is not how many were predicted: each takes
    as long as those that were.
    """
    by_stage: dict[int, RankTime] = {}
    for kind in job.kinds:
        found = RankTime.from_prediction(kind.prediction)
        if found is None:
            return 0.0
        place = kind.rank // (job.world_size // pp)
        known = by_stage.get(place)
        if known is None or found.in_pipeline > known.in_pipeline:
            by_stage[place] = found
    row = SCHEDULES[schedule]
    times = {}
    for rank in range(pp):
        # A stage whose rank was not predicted is like the nearest one that was.
        alone = by_stage[min(by_stage, key=lambda place: abs(place - rank))]
        per_stage = alone.in_pipeline / microbatches / row.stages_a_rank
        for stage in row.stages_of(rank, pp):
            times[stage] = StageTime(forward=per_stage * alone.forward_share, backward=per_stage * (1 - alone.forward_share))
    inside = pipeline_seconds(pipeline_orders(row, pp, simulated or microbatches), times)
    ranks = by_stage.values()
    return (
        max(rank.opening for rank in ranks) + inside + max(rank.closing for rank in ranks) + max(rank.afterwards for rank in ranks)
    )


def pipeline_orders(row: Schedule, pp: int, microbatches: int) -> list[list[Task]]:
    """What each rank does, in its order."""
    if row.stages_a_rank > 1:
        found = orders_of(row.torch_name, pp, microbatches, row.stages_a_rank)
        return [[Task(stage, StageWork(work), microbatch) for stage, work, microbatch in order] for order in found]
    return one_forward_one_backward(pp, microbatches) if row.name == "1f1b" else all_forward_first(pp, microbatches)
