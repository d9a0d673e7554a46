"""The category of each block.

A block's category is decided when the run is over, from what was learned of it (its roles) and, where nothing was, from when it was
born and when it died:

1. roles win, the most telling first: a tensor that became ``.grad`` was a gradient from birth, a block held in ``optimizer.state``
   is optimizer state;
2. born in forward: still there when the next backward starts -> activation, gone by then -> forward temporary. Work outside every
   module counts as forward from a model's forward until the next backward (the loss);
3. born in recomputation: outlives it -> activation, otherwise -> forward temporary;
4. born in backward or in an optimizer's step -> its temporary; around an engine's units -> the buffers of its collectives; in the
   making or loading of a state dict -> checkpoint;
5. anything else -> other.
"""

from __future__ import annotations

import numpy as np

from memfit.ledger.columns import Columns
from memfit.ledger.schema import Array, Category, Phase

ROLE_ORDER = (
    Category.SHARDED_PARAMETER,
    Category.UNSHARDED_PARAMETER,
    Category.PARAMETER,
    Category.BUFFER,
    Category.OPTIMIZER_STATE,
    Category.SHARDED_GRADIENT,
    Category.UNSHARDED_GRADIENT,
    Category.GRADIENT,
    Category.KEY_VALUE_CACHE,
    Category.INPUT,
    Category.ALL_GATHER,
    Category.REDUCE_SCATTER,
    Category.ALL_REDUCE,
    Category.WORKSPACE,
    Category.CHECKPOINT,
)
"""Priority of roles where a block has several: what it holds, before how it got there."""

BY_PHASE = {
    Phase.BACKWARD: Category.BACKWARD_TEMPORARY,
    Phase.OPTIMIZER: Category.OPTIMIZER_TEMPORARY,
    Phase.PRE_FORWARD: Category.ALL_GATHER,
    Phase.PRE_BACKWARD: Category.ALL_GATHER,
    Phase.POST_FORWARD: Category.ALL_GATHER,
    Phase.POST_BACKWARD: Category.REDUCE_SCATTER,
    Phase.CHECKPOINT: Category.CHECKPOINT,
}
"""The category of a block without a role, by the phase in which it was allocated."""


def decide_categories(ledger: Columns) -> Array:
    """One ``Category`` per block."""
    categories = _from_lives(ledger)
    rank = np.full(len(ledger.blocks), len(ROLE_ORDER))
    ranks = np.full(len(Category), len(ROLE_ORDER))
    ranks[list(ROLE_ORDER)] = np.arange(len(ROLE_ORDER))
    np.minimum.at(rank, ledger.roles.block, ranks[ledger.roles.role])
    known = rank < len(ROLE_ORDER)
    categories[known] = np.array(ROLE_ORDER, dtype=np.uint8)[rank[known]]
    return categories


def _from_lives(ledger: Columns) -> Array:
    born_in = ledger.block_phase
    categories = np.full(len(ledger.blocks), Category.OTHER, dtype=np.uint8)
    for phase, category in BY_PHASE.items():
        categories[born_in == phase] = category

    in_forward = (born_in == Phase.FORWARD) | ((born_in == -1) & _after_a_forward(ledger))
    next_backward = _next_index(ledger, _backward_starts(ledger))[ledger.birth]
    kept = ledger.death > next_backward
    categories[in_forward & kept] = Category.ACTIVATION
    categories[in_forward & ~kept] = Category.FORWARD_TEMPORARY

    recomputed = born_in == Phase.RECOMPUTE
    outlives = np.zeros(len(ledger.blocks), dtype=bool)
    outlives[recomputed] = (
        ledger.death[recomputed] > ledger.scope_exit[_outermost_recompute(ledger)[ledger.blocks.scope[recomputed]]]
    )
    categories[recomputed & outlives] = Category.ACTIVATION
    categories[recomputed & ~outlives] = Category.FORWARD_TEMPORARY
    return categories


def _backward_starts(ledger: Columns) -> Array:
    whole = (ledger.scopes.phase == Phase.BACKWARD) & (ledger.scopes.module == -1)
    starts: Array = ledger.scope_enter[whole]
    return starts


def _next_index(ledger: Columns, marks: Array) -> Array:
    """For each event the first of ``marks`` at or after it, or the last event's index where there is none."""
    last = max(len(ledger.events) - 1, 0)
    marks = np.append(np.sort(marks), last)
    following: Array = marks[np.searchsorted(marks[:-1], np.arange(len(ledger.events)))]
    return following


def _after_a_forward(ledger: Columns) -> Array:
    """Per block: true if it was allocated after a model's forward began, with no backward or optimizer step since."""
    outer = ledger.scopes.parent == -1
    started = np.sort(ledger.scope_enter[outer & (ledger.scopes.phase == Phase.FORWARD)])
    done = outer & ((ledger.scopes.phase == Phase.BACKWARD) | (ledger.scopes.phase == Phase.OPTIMIZER))
    ended = np.sort(ledger.scope_enter[done])
    after: Array = _last_before(started, ledger.birth) > _last_before(ended, ledger.birth)
    return after


def _last_before(marks: Array, at: Array) -> Array:
    marks = np.concatenate(([-1], marks))
    return marks[np.searchsorted(marks, at, side="right") - 1]


def _outermost_recompute(ledger: Columns) -> Array:
    """For each scope inside a recomputation, the scope in which that recomputation began."""
    phase, parent = ledger.scopes.phase, ledger.scopes.parent
    outermost = np.arange(len(phase))
    # Parents come before children, so one pass in order reaches every depth.
    for scope in np.flatnonzero(phase == Phase.RECOMPUTE):
        above = parent[scope]
        if above >= 0 and phase[above] == Phase.RECOMPUTE:
            outermost[scope] = outermost[above]
    return outermost
