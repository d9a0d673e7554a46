"""State dicts of a sharded model and its optimizer, made and loaded through torch's distributed checkpoint.

::

    FSDP2, DDP   the sharded tensors ── FULL ──> gathered one by one, each to the CPU before the next where asked for
    FSDP1        SHARDED, and FULL as far as distributed checkpoint's options go, through it; the rest through FSDP1 itself
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel

from memfit.errors import ConfigError
from memfit.fsdp.words import OptimStateDictConfig, StateDictConfig, StateDictSettings, StateDictType
from memfit.record.run_hooks import in_checkpoint
from memfit.torch_compat.fsdp import gather_state_dict, has_mesh, offload_state_dict

FULL, LOCAL = StateDictType.FULL_STATE_DICT, StateDictType.LOCAL_STATE_DICT

Given = ParamSpec("Given")
Result = TypeVar("Result")


def _as_checkpoint(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """What the function does is a phase of the ledger, where one is being written."""

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        result: Result = in_checkpoint(lambda: function(*args, **kwargs))
        return result

    return call


@_as_checkpoint
def state_dict(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, settings: StateDictSettings | None = None
) -> dict[str, Any]:
    """``{"model": ..., "optimizer": ...}``, for ``torch.save`` or ``torch.distributed.checkpoint.save``; all ranks must call it.

    Names are those of the unsharded model. With ``rank0_only`` the other ranks get empty ones.
    """
    settings = settings or StateDictSettings()
    _check(model, settings)
    state: dict[str, Any] = {"model": _model_state(model, settings)}
    if optimizer is not None:
        state["optimizer"] = _optimizer_state(model, optimizer, settings)
    return state


@_as_checkpoint
def load_state_dict(
    model: nn.Module,
    state: dict[str, Any],
    optimizer: torch.optim.Optimizer | None = None,
    settings: StateDictSettings | None = None,
) -> None:
    """Loads what ``state_dict`` gave with the same settings; all ranks must call it.

    With ``rank0_only`` rank 0 has the state and sends it to the others, whose own may be empty.
    """
    settings = settings or StateDictSettings()
    _check(model, settings)
    if settings.state_dict_type is LOCAL:
        with _fsdp1_state(model, settings):
            model.load_state_dict(dict(state["model"]), strict=False)  # the flat parameters are there twice
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer"])
        return
    options = _loading(model, settings, settings.state_dict_config)
    set_model_state_dict(model, dict(state["model"]), options=options)
    if optimizer is not None:
        options = _loading(model, settings, settings.optim_state_dict_config)
        set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)


def _check(model: nn.Module, settings: StateDictSettings) -> None:
    if settings.state_dict_type is not LOCAL:
        return
    if not _is_fsdp1(model):
        raise ConfigError("LOCAL_STATE_DICT holds FSDP1's flat shards: it needs engine='fsdp1'; SHARDED_STATE_DICT is for all")
    if has_mesh(model):
        raise ConfigError(
            "FSDP1 has no LOCAL_STATE_DICT over a mesh: shard with engine_options={'device_mesh': None}, or save SHARDED_STATE_DICT"
        )


def _is_fsdp1(model: nn.Module) -> bool:
    return isinstance(model, FullyShardedDataParallel)


# -- making --------------------------------------------------------------------------------------------------------------------


def _model_state(model: nn.Module, settings: StateDictSettings) -> dict[str, Any]:
    config = settings.state_dict_config
    if not _is_fsdp1(model):
        return _placed(get_model_state_dict(model), settings, config)
    if (options := _expressible(settings, config)) is not None:
        return dict(get_model_state_dict(model, options=options))
    with _fsdp1_state(model, settings):
        return dict(model.state_dict())


def _optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, settings: StateDictSettings) -> dict[str, Any]:
    config = settings.optim_state_dict_config
    if not _is_fsdp1(model):
        return _placed(get_optimizer_state_dict(model, optimizer), settings, config)
    if settings.state_dict_type is LOCAL:
        return offload_state_dict(optimizer.state_dict()) if config.offload_to_cpu else optimizer.state_dict()
    if (options := _expressible(settings, config)) is not None:
        return dict(get_optimizer_state_dict(model, optimizer, options=options))
    with _fsdp1_state(model, settings):
        return FullyShardedDataParallel.optim_state_dict(model, optimizer)


def _placed(state: dict[str, Any], settings: StateDictSettings, config: StateDictConfig | OptimStateDictConfig) -> dict[str, Any]:
    """A sharded state dict, gathered and offloaded tensor by tensor as asked for."""
    if settings.state_dict_type is FULL:
        return gather_state_dict(state, cpu_offload=config.offload_to_cpu, ranks_only=(0,) if _rank0_only(config) else ())
    return offload_state_dict(state) if config.offload_to_cpu else state


def _rank0_only(config: StateDictConfig | OptimStateDictConfig) -> bool:
    return bool(getattr(config, "rank0_only", False))


def _expressible(settings: StateDictSettings, config: StateDictConfig | OptimStateDictConfig) -> StateDictOptions | None:
    """Distributed checkpoint's options; ``None`` where it has none: its FULL is offloaded to rank 0, or neither."""
    if settings.state_dict_type is LOCAL or (settings.state_dict_type is FULL and config.offload_to_cpu != _rank0_only(config)):
        return None
    return StateDictOptions(full_state_dict=settings.state_dict_type is FULL, cpu_offload=config.offload_to_cpu)


def _fsdp1_state(model: nn.Module, settings: StateDictSettings) -> AbstractContextManager[Any]:
    """FSDP1's own context, less its advice to use distributed checkpoint: what is asked for here, that cannot do."""
    stack = ExitStack()
    stack.enter_context(warnings.catch_warnings())
    warnings.filterwarnings("ignore", message="FSDP.state_dict_type", category=FutureWarning)
    theirs = settings.to_torch()
    stack.enter_context(
        FullyShardedDataParallel.state_dict_type(
            model, theirs.state_dict_type, theirs.state_dict_config, theirs.optim_state_dict_config
        )
    )
    return stack


# -- loading -------------------------------------------------------------------------------------------------------------------


def _loading(model: nn.Module, settings: StateDictSettings, config: StateDictConfig | OptimStateDictConfig) -> StateDictOptions:
    from_rank0 = _rank0_only(config) and dist.is_initialized()
    if from_rank0 and _is_fsdp1(model):
        raise ConfigError("FSDP1 loads a FULL_STATE_DICT on every rank: read it on every rank, and load with rank0_only=False")
    return StateDictOptions(full_state_dict=settings.state_dict_type is FULL, broadcast_from_rank0=from_rank0)
