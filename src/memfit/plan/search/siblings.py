"""Configurations of which one does all that another does, and more: what is predicted of the other bounds it.

::

    the same, but that it ...            does in addition
        gives whole weights back         another gather of each layer
        computes some of it again        that part of forward; all of it may be quicker than a choice, which the host has to make
        computes in more passes          gathers and sums of gradients for each pass, smaller kernels
        shares sequences among more      what goes around the ring, smaller kernels

Each of these costs time, and all but the ring save memory: what one needs that saves bounds what one needs that does not. Smaller
kernels may be quicker for their size where what they work on stays in the GPU's cache; a bound from sizes knows how much, so that
it scales what is carried over. ``benchmarks/plans/plan_bounds.py`` predicts pairs drawn at random: none was below what is carried
over here.
"""

from __future__ import annotations

from typing import Final

from memfit.choices import CHECKPOINTINGS, STRATEGIES
from memfit.job import Configuration
from memfit.plan.search.space import sequences_of

AT_LEAST: Final = 0.99
"""Of the time of the one that does less, and of the memory of the one that keeps less."""

Group = tuple[object, ...]
Work = tuple[int, ...]

_CHECKPOINTINGS: Final = tuple(name for name in CHECKPOINTINGS if name != "none")

_OF_THE_WORK: Final = ("strategy", "checkpointing", "microbatches", "batch", "cp")


def group_of(asked: Configuration) -> Group:
    """Configurations of one group differ only in what is ordered. More microbatches keep a pipeline busier, so that there their
    number is no such thing. Of a function nothing is known: each is a group of its own."""
    if not asked.is_model:
        return (id(asked),)
    recipe, strategy = asked.recipe, STRATEGIES.get(asked.recipe.strategy)
    split = strategy.split if strategy is not None else None
    passes = recipe.microbatches if recipe.pp > 1 else 0
    others = (value for name, value in asked.inputs.items() if name not in _OF_THE_WORK)
    return (sequences_of(asked), split, passes, *others)


def work_of(asked: Configuration) -> Work:
    """How much of each, in addition."""
    if not asked.is_model:
        return ()
    recipe, strategy = asked.recipe, STRATEGIES.get(asked.recipe.strategy)
    gives_back = strategy is not None and strategy.reshards
    passes = 1 if recipe.pp > 1 else max(1, recipe.microbatches)
    return int(gives_back), *(recipe.checkpointing == name for name in _CHECKPOINTINGS), passes, recipe.cp


def does_no_less(more: Work, less: Work) -> bool:
    return all(mine >= others for mine, others in zip(more, less, strict=True))


def keeps_no_less(more: Work, less: Work) -> bool:
    """Of one group: the first gives no weights back and computes nothing again that the second does not, in as many passes. A
    longer ring keeps what a shorter one keeps, and what goes around it."""
    if not more:
        return True
    *saving, passes, ring = zip(more, less, strict=True)
    return all(mine <= others for mine, others in saving) and passes[0] == passes[1] and ring[0] >= ring[1]
