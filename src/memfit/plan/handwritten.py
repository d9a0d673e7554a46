"""A policy as the few lines that somebody would write by hand, with nothing but torch."""

from __future__ import annotations

from typing import Final

from memfit.plan.policy import CheckpointingPolicy, UnitPolicy

_HEAD: Final = '''\
import contextlib
import functools

from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


@contextlib.contextmanager
def counted_once(unit, mode):
    """Norms count in forward; what they count when they are computed again is thrown away."""
    norms = [module for module in unit.modules() if getattr(module, "track_running_stats", False) and module.training]
    own = [dict(norm._buffers) for norm in norms]
    for norm in norms:
        norm._buffers.update((name, tensor.clone()) for name, tensor in norm._buffers.items() if tensor is not None)
    try:
        with mode:
            yield
    finally:
        for norm, buffers in zip(norms, own):
            norm._buffers.update(buffers)


def keeping(**calls):
    """Keeps the outputs of these calls of operators, counted in a unit's forward; everything else is computed again."""

    def contexts():
        counts = {}

        def policy(ctx, op, *args, **kwargs):
            key = (str(op), ctx.is_recompute)
            counts[key] = counts.get(key, -1) + 1
            is_kept = counts[key] in calls.get(str(op), ())
            return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy, allow_cache_entry_mutation=True)

    return contexts


def compute_again(unit, modes=lambda: (contextlib.nullcontext(), contextlib.nullcontext())):
    def contexts():
        forward, again = modes()
        return forward, counted_once(unit, again)

    unit.forward = functools.partial(checkpoint, unit.forward, use_reentrant=False, context_fn=contexts)

'''


def write_code(policy: CheckpointingPolicy | None) -> str:
    """Python that does to ``model`` what the policy says, but for offloading, which takes more than a few lines."""
    if policy is None or not policy.groups:
        return "# Nothing is computed again: train the model as it is.\n"
    return _HEAD + "".join("\n" + _group(group) for group in policy.groups)


def _group(group: UnitPolicy) -> str:
    names = "".join(f"    {name!r},\n" for name in group.units)
    calls: dict[str, list[int]] = {}
    for choice in sorted(group.choices):
        calls.setdefault(choice.operator, []).append(choice.call)
    kept = "".join(f'        "{operator}": {tuple(numbers)},\n' for operator, numbers in calls.items())
    options = f", keeping(**{{\n{kept}    }})" if kept else ""
    note = "# The plan offloads some of these outputs to the host; here they stay on the GPU.\n" if group.offloads else ""
    return f"{note}for name in (\n{names}):\n    compute_again(model.get_submodule(name){options})\n"
