"""What is known of selective activation checkpointing, with PyTorch's names for it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple


@dataclass
class SACStats:
    """The operators of a module's forward, in order. A module that is called several times has those of all calls."""

    func_names: list[str]
    """``mm``, ``native_dropout``. Operators that ``torch.utils.checkpoint`` passes over are left out."""
    runtimes: list[float]
    """Milliseconds that running it again takes: none after the last tensor that autograd keeps, where checkpointing stops."""
    memory: list[int]
    """Bytes that the operator allocated: none for a view, for work in place, and for what the module returns and autograd keeps."""
    view_like_ops: list[int]
    """Those that only look at a tensor in another way: they are always run again."""
    rand_ops: list[int]
    """Those that draw random numbers: all of them are run again, or none."""
    saved_autograd_ops: list[int]
    """Those whose results autograd keeps for backward."""
    inplace_ops: list[tuple[int, int]]
    """Work in place, and the operator that made the tensor: both are run again, or none. An operator that stands beside itself
    changed a tensor from outside the module, and must not run twice."""
    force_store_random: bool
    """No tensor is passed in: random operators are never run again."""


class MSPS(NamedTuple):
    """Memory per second: operators that are decided together."""

    func_names: set[str]
    op_idx: int
    """The first of them."""
    memory: int
    runtime: float
    msps: float
    """``memory`` by ``runtime``; the largest float where it takes no time."""


@dataclass
class SACTradeOffStats:
    """What discarding memory costs, as shares of ``sac_memory`` and ``sac_runtime``."""

    n_segments: int
    """How many straight pieces there are: as many as were asked for, or fewer where the curve has no more."""
    slopes: list[float]
    intercepts: list[float]
    fit_breaks: list[float]
    """Where pieces begin and end. The last is the most that can be discarded."""
    tradeoff_curve: OrderedDict[float, float]
    """Share of memory discarded -> share of time that runs again, for every policy in the greedy order."""
    sac_memory: int
    sac_runtime: float


@dataclass
class SACGreedyOrderMeta:
    """In which order operators are discarded: those first that give back most for their time."""

    recomputed_ops: set[int]
    """Always run again."""
    stored_ops: set[int]
    """The first of each group that is never run again."""
    inplace_op_groups: dict[int, set[int]]
    """The operator that made a tensor -> it and all that works on that tensor in place."""
    random_ops_group: dict[int, set[int]]
    """The first random operator -> all random operators."""
    msps_meta: list[MSPS]
    """What is left to decide, in the order."""
