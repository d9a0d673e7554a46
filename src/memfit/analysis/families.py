"""Categories that people think of as one: a parameter, its shard and its unsharded copy are all parameters."""

from __future__ import annotations

from enum import Enum

from memfit.ledger import Category


class Family(Enum):
    """A few kinds of memory, for where a table of all categories would be too wide."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATIONS = "activations"
    THE_REST = "the rest"
    """Temporaries, buffers, inputs, workspaces and what collectives need."""


_MEMBERS = {
    Family.PARAMETERS: (Category.PARAMETER, Category.SHARDED_PARAMETER, Category.UNSHARDED_PARAMETER),
    Family.GRADIENTS: (Category.GRADIENT, Category.SHARDED_GRADIENT, Category.UNSHARDED_GRADIENT),
    Family.OPTIMIZER_STATE: (Category.OPTIMIZER_STATE,),
    Family.ACTIVATIONS: (Category.ACTIVATION,),
}


def family_of(category: Category) -> Family:
    """Every category has one family."""
    return next((family for family, members in _MEMBERS.items() if category in members), Family.THE_REST)
