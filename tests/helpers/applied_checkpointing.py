"""A plan of ``sac_milp``, applied to a model with ``torch.utils.checkpoint``, operator by operator."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from memfit.compat import SACEstimator
from memfit.compat.sac_ilp import get_optimal_checkpointing_policy_per_module


def apply_plan(model: nn.Module, decisions: Mapping[str, float], estimator: SACEstimator) -> None:
    """Makes each module of a plan keep what its share allows. Their names begin with the model's class."""
    for name, share in decisions.items():
        _, _, path = name.partition(".")
        stats = estimator.sac_mod_stats[name]
        policy = get_optimal_checkpointing_policy_per_module(stats, 1 - share)
        assert policy, name
        _checkpoint(model.get_submodule(path), list(zip(stats.func_names, policy, strict=True)))


def _checkpoint(module: nn.Module, decisions: list[tuple[str, int]]) -> None:
    forward = module.forward

    @functools.wraps(forward)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    def contexts() -> Any:
        in_order: dict[bool, Iterator[tuple[str, int]]] = {}

        def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            remaining = in_order.setdefault(context.is_recompute, iter(decisions))
            name, kept = next(remaining)
            assert name == operator.overloadpacket.__name__, (name, operator)
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

        # What works in place on a kept tensor is kept with it: both are what they were at the end of the forward.
        return create_selective_checkpoint_contexts(policy, allow_cache_entry_mutation=True)

    module.forward = checkpointed
