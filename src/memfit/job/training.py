"""A recipe becomes a training step."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist

from memfit.choices import OPTIMIZERS, PRECISIONS
from memfit.engines import find_engine
from memfit.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy, shard
from memfit.fsdp.units import checkpoint_units, find_units
from memfit.job.options import LONGEST_STEP
from memfit.job.recipe import Recipe
from memfit.models import find_model
from memfit.models.transformer import Transformer
from memfit.regular import regular

LEARNING_RATE = 1e-4
"""No memory depends on it."""
MAX_NORM = 1.0
"""Gradients are clipped to it, as most training code does."""


def build_step(recipe: Recipe, longest: int = 0) -> Callable[[], None]:
    """Makes model, optimizer and data in the order of a training script; returns the function that does one step."""
    recipe = settle(recipe)
    num_parts, recipe = in_parts(recipe)
    model, loss_on = _workload(recipe)
    model = _adapted(recipe, model)
    batches = Batches(loss_on, recipe.seq, longest)
    model = _prepared(recipe, model)
    engine = find_engine(recipe.engine) if recipe.engine else None
    optimizer = make_optimizer(recipe.optimizer, model)
    scaler = torch.amp.GradScaler("cuda", enabled=PRECISIONS[recipe.precision].scales_loss)

    def step() -> None:
        loss_of = batches.next()
        for part in range(num_parts):
            is_last = part == num_parts - 1
            with nullcontext() if is_last or engine is None else engine.without_reduction(model):
                with _autocast(recipe):
                    loss = loss_of(model)
                scaler.scale(loss / num_parts if num_parts > 1 else loss).backward()
        scaler.unscale_(optimizer)
        clip = getattr(model, "clip_grad_norm_", None)  # FSDP1's own, which knows of the other ranks
        clip(MAX_NORM) if clip is not None else nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    does_the_same = engine is None or engine.repeats_steps
    return regular(step) if does_the_same and not recipe.hf and not longest else step  # models of others may have habits


def settle(recipe: Recipe) -> Recipe:
    """A copy in which everything that depends on the GPUs is filled in. With several GPUs, makes their process group."""
    world_size = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    recipe = recipe.settled(world_size, has_bf16=torch.cuda.get_device_capability() >= (8, 0))
    if recipe.strategy and not dist.is_initialized():
        dist.init_process_group("nccl")
    return recipe


def in_parts(recipe: Recipe) -> tuple[int, Recipe]:
    """The number of microbatches without a pipeline, and the recipe of one of them."""
    num_parts = max(1, recipe.microbatches)
    return num_parts, replace(recipe, batch=recipe.batch // num_parts, microbatches=0)


Made = TypeVar("Made")


class Batches(Generic[Made]):
    """The batches of the steps: one usual batch, made at once, and in one step the longest."""

    def __init__(self, make: Callable[[int], Made], seq: int, longest: int) -> None:
        self._make, self._longest, self._usual = make, longest, make(seq)
        self._number = 0

    def next(self) -> Made:
        self._number += 1
        return self._make(self._longest) if self._longest and self._number == LONGEST_STEP + 1 else self._usual


def _workload(recipe: Recipe) -> tuple[nn.Module, Callable[[int], Callable[[nn.Module], Tensor]]]:
    """The model on the meta device, and a function that makes its loss function on a batch of sequences of some length."""
    if recipe.hf:
        from memfit.models.huggingface import load_workload

        return load_workload(Path(recipe.hf), _base_dtype(recipe), batch=recipe.batch)

    def loss_on(seq: int) -> Callable[[nn.Module], Tensor]:
        tokens = make_tokens(replace(recipe, seq=seq))
        inputs, labels = tokens[:, :-1], tokens[:, 1:].flatten()
        return lambda model: F.cross_entropy(model(inputs).flatten(0, 1).float(), labels)

    return make_transformer(recipe), loss_on


def make_transformer(recipe: Recipe) -> Transformer:
    """A model by name, on the meta device."""
    with torch.device("meta"):
        return Transformer(find_model(recipe.model)).to(_base_dtype(recipe))


def make_tokens(recipe: Recipe) -> Tensor:
    """A batch of random sequences, with one token more than the model is given: the last label."""
    return torch.randint(0, find_model(recipe.model).vocab, (recipe.batch, recipe.seq + 1), device="cuda")


def _adapted(recipe: Recipe, model: nn.Module) -> nn.Module:
    """The model, frozen, with adapters where they are wanted."""
    if not recipe.lora:
        return model
    from memfit.models.adapters import adapt

    return adapt(
        model, recipe.lora, recipe.lora_modules, weights_dtype(recipe), quantize=recipe.quantize, computes=_base_dtype(recipe)
    )


# -- the model, on the GPU -------------------------------------------------------------------------------------------------------


def _prepared(recipe: Recipe, model: nn.Module) -> nn.Module:
    """The model, compiled, checkpointed, sharded and materialised."""
    if recipe.compile == "blocks":  # before anything is wrapped around them
        for unit in find_units(model, None):
            unit.compile()
    model = _sharded(recipe, model)
    if recipe.compile == "model":
        model.compile()
    return model


def _sharded(recipe: Recipe, model: nn.Module) -> nn.Module:
    checkpointing = None if recipe.checkpointing == "none" else recipe.checkpointing
    if not recipe.engine:
        checkpoint_units(model, find_units(model, None), checkpointing)
        return materialised(model, "cuda")
    engine, home = find_engine(recipe.engine), "cpu" if recipe.offload == "params" else "cuda"
    options = engine.options_giving_memory(_giving_memory_on(home))
    if not engine.wraps_meta_models:
        model = materialised(model, "cuda")
    model = shard(
        model,
        ShardingStrategy(recipe.strategy),
        engine=engine.name,
        mesh=tuple(map(int, recipe.mesh)) or None,
        mixed_precision=mixed_precision_of(recipe) if engine.has_mixed_precision else None,
        backward_prefetch=None if recipe.prefetch == "none" else BackwardPrefetch(recipe.prefetch),
        cpu_offload=CPUOffload(offload_params=recipe.offload == "params"),
        checkpointing=checkpointing,
        engine_options=options,
    )
    return materialised(model, home) if engine.wraps_meta_models and not options else model


def materialised(model: nn.Module, device: str) -> nn.Module:
    """Allocates every parameter and buffer of a meta model. Tied parameters stay tied."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((module, name))
    model.to_empty(device=device)
    for (first, first_name), *others in places.values():
        for module, name in others:
            setattr(module, name, getattr(first, first_name))
    for module, name, buffer in _buffers(model):
        setattr(module, name, buffer.to("cuda"))  # also where parameters are offloaded
    return model


def _buffers(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    return ((module, name, buffer) for module in model.modules() for name, buffer in list(module.named_buffers(recurse=False)))


def _giving_memory_on(device: str) -> Callable[[nn.Module], None]:
    """Gives a module's own parameters memory."""

    def give(module: nn.Module) -> None:
        module.to_empty(device=device, recurse=False)

    return give


# -- what the words mean to torch ------------------------------------------------------------------------------------------------


def weights_dtype(recipe: Recipe) -> torch.dtype:
    return _dtype(PRECISIONS[recipe.precision].weights)


def _base_dtype(recipe: Recipe) -> torch.dtype:
    """Of a model's own weights: frozen ones are kept in the type in which they are used."""
    frozen = _computing_dtype(recipe) if recipe.lora else None
    return weights_dtype(recipe) if frozen is None else frozen


def _computing_dtype(recipe: Recipe) -> torch.dtype | None:
    name = PRECISIONS[recipe.precision].computes
    return _dtype(name) if name else None


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def mixed_precision_of(recipe: Recipe) -> MixedPrecision | None:
    """The mixed precision of an engine that has its own; ``None`` if everything is computed in the type of the weights."""
    dtype = _computing_dtype(recipe)
    return None if dtype is None else MixedPrecision(param_dtype=dtype, reduce_dtype=torch.float32)


def _autocast(recipe: Recipe) -> AbstractContextManager[Any]:
    """Mixed precision where no engine has its own."""
    dtype = _computing_dtype(recipe)
    if dtype is None or (recipe.engine and find_engine(recipe.engine).has_mixed_precision):
        return nullcontext()
    return torch.autocast("cuda", dtype=dtype)


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer with this name, for all trainable parameters."""
    return optimizer_of(name, [parameter for parameter in model.parameters() if parameter.requires_grad])


def optimizer_of(name: str, parameters: Sequence[nn.Parameter] | Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimizer with this name, for parameters or groups of parameters."""
    row = OPTIMIZERS[name]
    kind = getattr(importlib.import_module(row.module), row.torch_name)
    made: torch.optim.Optimizer = kind(parameters, lr=LEARNING_RATE, **row.options)
    return made
