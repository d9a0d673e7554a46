"""Everything memfit.fsdp uses of torch that torch does not promise, in one place. Known to hold for torch 2.11 to 2.13."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed import _state_dict_utils
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers
from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_param_group

from memfit.errors import UnsupportedTorchError


def need(owner: Any, name: str) -> Any:
    """``owner.name``, or an error that names it."""
    found = getattr(owner, name, None)
    if found is None:
        raise UnsupportedTorchError(f"{getattr(owner, '__name__', owner)}.{name}", torch.__version__)
    return found


checkpoint_wrapper: Callable[..., nn.Module] = need(wrappers, "checkpoint_wrapper")
"""A module whose forward is checkpointed, and whose parameters keep their names."""

gather_state_dict: Callable[..., dict[str, Any]] = need(_state_dict_utils, "_gather_state_dict")
offload_state_dict: Callable[..., dict[str, Any]] = need(_state_dict_utils, "_offload_state_dict_to_cpu")
"""What distributed checkpoint itself uses; its own options leave out FULL on the CPU of every rank, or on the GPU of rank 0."""

TrainingState: Any = need(_fsdp_common, "TrainingState")
prefetch_unshard: Callable[[Any, str], None] = need(_fsdp_param_group.FSDPParamGroup, "_prefetch_unshard")
need(_fsdp_param_group.FSDPParamGroup, "reshard")


def parameter_groups(unit: Any) -> Iterator[Any]:
    """FSDP2's groups of one unit: one, or none where it has no parameters of its own; several with per-parameter meshes."""
    state = unit._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # one group a state before torch 2.12
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    yield from groups


def has_mesh(model: nn.Module) -> bool:
    """Was FSDP1 given a mesh?"""
    return getattr(model, "_device_mesh", None) is not None


def prefetch_after_backward(unit: Any) -> None:
    """The unit asks for the next one's parameters when its own have just been given back.

    ``post_backward`` reshards when all gradients are there and before it reduces them: the one moment between the two.
    """
    for group in parameter_groups(unit):
        group.reshard = _with_prefetch(group, group.reshard)


def _with_prefetch(group: Any, original: Callable[[], None]) -> Callable[[], None]:
    def reshard() -> None:
        original()
        if group._training_state == TrainingState.POST_BACKWARD and group._post_forward_indices:
            before = group.comm_ctx.post_forward_order[: group._post_forward_indices.pop()]
            # An outer unit ends after the units in it, which have had their backward.
            waiting = (other for other in reversed(before) if other._training_state != TrainingState.POST_BACKWARD)
            if (following := next(waiting, None)) is not None:
                prefetch_unshard(following, "backward")

    return reshard
