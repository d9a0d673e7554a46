"""``memfit.apply``: a plan, its file or a policy becomes what a model does."""

from __future__ import annotations

from pathlib import Path

from memfit.errors import ConfigError
from memfit.plan.applying.model import Model, apply_policy
from memfit.plan.plan_file import Plan
from memfit.plan.policy import CheckpointingPolicy


def apply(model: Model, plan: Plan | CheckpointingPolicy | Path | str) -> Model:
    """Has the model compute again, keep and offload what a plan says; the model is changed in place, and returned.

    ``plan`` is a ``Plan``, the path of its file, or a policy. Call it before the first step, before or after the model is sharded
    or compiled: names of parameters and state dicts stay as they are. What the model computes stays the same, bit by bit where its
    kernels give the same twice. ``memfit.plan.applying.undo(model)`` takes it back.

    A plan that also shards, compiles or otherwise changes the model raises ``ConfigError``, and the model is left as it is:
    ``plan.code()`` writes all of it in torch's words, ``plan.apply_to(model)`` does the checkpointing alone.
    """
    if isinstance(plan, str | Path):
        plan = Plan.load(plan)
    if isinstance(plan, Plan):
        rest = ", ".join(f"{name}={value}" for name, value in plan.beyond_checkpointing.items())
        if rest:
            raise ConfigError(
                f"this plan does more than memfit.apply can do to a model: {rest}. print(plan.code()) writes all of it as torch "
                "code; where your own code does that already, plan.apply_to(model) does the checkpointing alone"
            )
        return plan.apply_to(model)  # type: ignore[no-any-return]
    if isinstance(plan, CheckpointingPolicy):
        return apply_policy(model, plan)
    raise ConfigError(f"memfit.apply takes a plan, its file or a policy, not {type(plan).__name__}")
