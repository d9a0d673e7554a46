"""How long a pipeline takes in which every stage waits for its neighbours.

::

    rank 0   F F F F . . . B . B . B B       what a rank alone needs is known; where it has to wait follows from the order in which
    rank 1     F F F . . B F B . B B         each rank does its work, and from what that work needs: the stage before it, forward,
    rank 2       F F . B F B F B B           and the stage behind it, backward
    rank 3         F B F B F B B

Messages between stages take no time here: what they cost is in what a rank needs alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from memfit.errors import ConfigError


class StageWork(StrEnum):
    """What a rank does to one microbatch with one of its stages."""

    FORWARD = "F"
    BACKWARD = "B"
    OF_INPUTS = "I"
    """The part of backward that the stage before waits for."""
    OF_WEIGHTS = "W"
    """The rest of it."""


@dataclass(frozen=True)
class Task:
    """One piece of work."""

    stage: int
    work: StageWork
    microbatch: int


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """Seconds of one microbatch in one stage."""

    forward: float
    backward: float

    def of(self, work: StageWork) -> float:
        """Gradients of inputs and of weights take half of backward each."""
        if work is StageWork.FORWARD:
            return self.forward
        return self.backward if work is StageWork.BACKWARD else self.backward / 2


def all_forward_first(num_ranks: int, num_microbatches: int) -> list[list[Task]]:
    """GPipe: every rank has one stage, and goes back when all microbatches have come through."""
    return [
        [Task(rank, work, microbatch) for work in (StageWork.FORWARD, StageWork.BACKWARD) for microbatch in range(num_microbatches)]
        for rank in range(num_ranks)
    ]


def one_forward_one_backward(num_ranks: int, num_microbatches: int) -> list[list[Task]]:
    """1F1B: every rank has one stage, and goes back as soon as it can."""
    return [_in_turn(rank, min(num_microbatches, num_ranks - rank), num_microbatches) for rank in range(num_ranks)]


def _in_turn(rank: int, ahead: int, num_microbatches: int) -> list[Task]:
    """As many forward as there are ranks behind, then backward and forward in turn, then what is left of backward."""
    order = [Task(rank, StageWork.FORWARD, microbatch) for microbatch in range(ahead)]
    for microbatch in range(num_microbatches):
        order.append(Task(rank, StageWork.BACKWARD, microbatch))
        if microbatch + ahead < num_microbatches:
            order.append(Task(rank, StageWork.FORWARD, microbatch + ahead))
    return order


def pipeline_seconds(orders: Sequence[Sequence[Task]], times: Mapping[int, StageTime]) -> float:
    """From the first forward to the last backward of any rank. ``orders`` has each rank's tasks in its order."""
    last_stage = max(task.stage for order in orders for task in order)
    done: dict[Task, float] = {}
    now, place = [0.0] * len(orders), [0] * len(orders)
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while place[rank] < len(order):
                task = order[place[rank]]
                ready = _ready(task, last_stage, done)
                if ready is None:
                    break
                now[rank] = max(now[rank], ready) + times[task.stage].of(task.work)
                done[task] = now[rank]
                place[rank] += 1
                moved = True
    if any(place[rank] < len(order) for rank, order in enumerate(orders)):
        raise ConfigError("the ranks of this pipeline wait for each other for ever: its schedule has a mistake")
    return max(now)


def _ready(task: Task, last_stage: int, done: Mapping[Task, float]) -> float | None:
    """When what a task needs from another rank is there; ``None`` where it is not known yet. What it needs from its own rank comes
    before it in the rank's order."""
    stage, microbatch = task.stage, task.microbatch
    if task.work is StageWork.FORWARD:
        return 0.0 if stage == 0 else done.get(Task(stage - 1, StageWork.FORWARD, microbatch))
    if task.work is StageWork.OF_WEIGHTS:
        return 0.0
    if stage == last_stage:
        return done.get(Task(stage, StageWork.FORWARD, microbatch))
    behind = (done.get(Task(stage + 1, work, microbatch)) for work in (StageWork.BACKWARD, StageWork.OF_INPUTS))
    return next((moment for moment in behind if moment is not None), None)
