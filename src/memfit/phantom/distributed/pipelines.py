"""Pipelines: a stage whose neighbours are not there.

::

    PipelineStage(..., input_args=, output_args=)     the script has said what is sent and received
    PipelineStage(...)                                each stage runs once, on what the one before it describes. It is described by
                                                          the stage's own input_args, where it has some
                                                          an earlier stage of this rank: hidden states go through a model unchanged
                                                          the first stage, run in a prediction of its own rank before this one
    schedule.step(...)                                the installed torch's own schedules; what is sent goes nowhere, what is
                                                      received lies in the buffers that torch makes for it

The first stage is run by a *scout*: this prediction ends with ``NeighbourWanted``, another one follows the first stage's rank up to
its first message, and this one begins again with what that message said (``Neighbours``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from memfit.errors import PredictionError
from memfit.phantom.target import Target
from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat import pipelining
from memfit.torch_compat.patches import Patches

Result = TypeVar("Result")


class NeighbourWanted(BaseException):
    """A stage cannot know what it receives before the first stage has been run, on another rank."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"what rank {rank} sends")
        self.rank = rank


class NeighbourSeen(BaseException):
    """Ends the run of a scout: it has told its neighbour what it will send."""


@dataclass
class Neighbours:
    """What stages have told about what they send, by their number in the pipeline."""

    told: dict[int, Any] = field(default_factory=dict)
    is_scout: bool = False
    """Is this run over when its first stage has told the next one what it will send?"""

    def scouting(self) -> Neighbours:
        """For the run of another rank that finds out what is missing here."""
        return Neighbours(is_scout=True)

    def tell(self, stage: int, sent: Any) -> None:
        """A stage of this rank describes what it sends."""
        self.told[stage] = sent
        if self.is_scout:
            raise NeighbourSeen

    def ask(self, source: int, first_rank: Callable[[], int], assumptions: Assumptions) -> Any:
        """What stage ``source`` sends. Raises ``NeighbourWanted`` where no stage has told yet; ``first_rank`` has the first one."""
        nearest = max((number for number in self.told if number <= source), default=None)
        if nearest is None:
            raise NeighbourWanted(first_rank())
        if nearest != source:
            assumptions.add(
                f"stage {source} of the pipeline, which runs on another rank, is taken to send what stage {nearest} sends: hidden "
                "states of one shape go through all stages (input_args of PipelineStage says otherwise)"
            )
        return self.told[nearest]


def predict_with_scout(make: Callable[[Neighbours, int | None], Result], told: Mapping[int, Any] | None = None) -> Result:
    """Calls ``make(neighbours, rank)`` until it knows enough; the rank is another than the predicted one where a scout runs.

    ``told`` is what is known from other ranks.
    """
    neighbours = Neighbours(told=dict(told or {}))
    while True:
        try:
            return make(neighbours, None)
        except NeighbourWanted as wanted:
            scout = neighbours.scouting()
            try:
                make(scout, wanted.rank)
            except NeighbourSeen:
                neighbours.told.update(scout.told)
            if 0 not in neighbours.told:
                raise PredictionError(
                    f"rank {wanted.rank} holds the first stage of the pipeline, and does not say what it sends to the next: give "
                    "PipelineStage its input_args and output_args, on all ranks"
                ) from wanted


def install(patches: Patches, assumptions: Assumptions, target: Target, neighbours: Neighbours) -> None:
    patches.when_imported(pipelining.STAGES, lambda module: _install_stages(patches, module, assumptions, target, neighbours))
    patches.when_imported(pipelining.SCHEDULES, lambda module: pipelining.vote_alone(patches, module))


def _install_stages(patches: Patches, stages: Any, assumptions: Assumptions, target: Target, neighbours: Neighbours) -> None:
    def ask(stage: Any, source: int) -> Any:
        given = pipelining.given_inputs(stage, stages)
        if given is not None:
            return given
        return neighbours.ask(source, lambda: pipelining.first_rank(stage), assumptions)

    def tell(stage: Any, meta: Any) -> None:
        neighbours.tell(stage.stage_index, meta)

    if not pipelining.infers_gradients(stages):
        pipelining.answer_older_stages(patches, stages, ask, tell)
        return
    pipelining.answer_stages(patches, stages, ask, tell)
    if target.torch < pipelining.GRADIENTS_INFERRED_SINCE:
        pipelining.infer_as_before(patches, stages)
