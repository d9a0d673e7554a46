"""Why nothing fits: what the least that was found is made of, when it is needed."""

from __future__ import annotations

from typing import Final

from memfit.analysis import Family, family_of
from memfit.errors import InfeasibleError
from memfit.ledger import Phase
from memfit.plan.checkpointing.trials import Trial
from memfit.units import format_bytes

STATES: Final = "states"

_ADVICE: Final = {
    STATES: "Shard them over more GPUs, offload them, or use an optimizer with less state",
    "init": "It is needed before the first step: build the model on the meta device, or load it piece by piece",
    "optimizer": "It is needed in the optimizer's step: use a fused one, or one with less state",
    "backward": "Use a smaller batch or shorter sequences, or name smaller units",
    "forward": "Use a smaller batch or shorter sequences, or name smaller units",
}


def infeasible(least: Trial) -> InfeasibleError:
    """The answer where even the least does not fit."""
    prediction = least.prediction
    states = sum(size for category, size in prediction.breakdown.items() if family_of(category) in _STATES)
    moment = prediction.ledger.moment_at(prediction.replay.peak_event)
    binding = STATES if states > least.budget_bytes else _binding(moment.phase, moment.in_a_step)
    return InfeasibleError(
        least.budget_bytes,
        least.need,
        binding,
        f"a budget of {format_bytes(least.budget_bytes)} is not enough: the least that fits needs {format_bytes(least.need)}, with "
        f"{format_bytes(least.need - least.smallest_fit)} that stay free for what a prediction cannot know. "
        f"Its peak is in {moment.label}; parameters, gradients and optimizer state are {format_bytes(states)} of it. "
        f"{_ADVICE[binding]}",
    )


_STATES: Final = (Family.PARAMETERS, Family.GRADIENTS, Family.OPTIMIZER_STATE)


def _binding(phase: Phase | None, in_a_step: bool) -> str:
    if not in_a_step:
        return "init"
    if phase is Phase.OPTIMIZER:
        return "optimizer"
    return "forward" if phase is Phase.FORWARD else "backward"
