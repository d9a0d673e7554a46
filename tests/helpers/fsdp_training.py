"""Run by test_training.py under torchrun: trains a small model on two gloo ranks in many ways, and leaves what it saw.

torchrun --nproc-per-node 2 fsdp_training.py FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

import memfit
from memfit.fsdp import (
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    MixedPrecision,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictSettings,
    StateDictType,
    load_state_dict,
    shard,
    state_dict,
)
from memfit.plan import CheckpointingPolicy, OperatorChoice, Plan, UnitPolicy
from memfit.plan.plan_file import PlanCost

DIM, STEPS = 16, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(DIM, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 4)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


PLAN = Plan(
    gpu="H200",
    budget_bytes=1,
    figures=PlanCost(peak_allocated_bytes=1, peak_reserved_bytes=1, smallest_fit_bytes=1),
    checkpointing=CheckpointingPolicy(
        groups=(
            UnitPolicy(units=("layers.0",), choices=(OperatorChoice(operator="aten.addmm.default", call=0),)),
            UnitPolicy(units=("layers.1",)),
        ),
        untouched=("layers.2",),
    ),
)

TRAINED = {
    "full_shard": {},
    "shard_grad_op": {"strategy": "shard_grad_op"},
    "hybrid_shard": {"strategy": "hybrid_shard", "mesh": (2, 1)},
    "hybrid_one_node": {"strategy": "hybrid_shard"},
    "hybrid_shard_zero2": {"strategy": "hybrid_shard_zero2", "mesh": (1, 2)},
    "no_shard": {"strategy": "no_shard"},
    "no_shard_fsdp2": {"strategy": "no_shard", "engine": "fsdp2"},
    "prefetch_post": {"backward_prefetch": "backward_post"},
    "prefetch_none": {"backward_prefetch": None},
    "prefetch_post_nested": {"backward_prefetch": "backward_post", "units": (Block, nn.Linear)},
    "checkpointed": {"checkpointing": "full"},
    "selective": {"checkpointing": "selective"},
    "own_policy": {"checkpointing": lambda ctx, op, *args, **kwargs: op is torch.ops.aten.relu.default},
    "checkpointed_no_shard": {"strategy": "no_shard", "checkpointing": "full"},
    "checkpointed_post": {"checkpointing": "full", "backward_prefetch": "backward_post"},
    "planned": {"checkpointing": PLAN},
    "planned_no_shard": {"strategy": "no_shard", "checkpointing": PLAN},
    "offloaded": {"cpu_offload": CPUOffload(offload_params=True)},
    "by_size": {"units": 1000},
    "by_name": {"units": "Block"},
    "by_policy": {"units": lambda module: isinstance(module, nn.Linear)},
    "double": {"mixed_precision": MixedPrecision(param_dtype=torch.float64)},
    "double_but_norms": {
        "mixed_precision": MixedPrecision(param_dtype=torch.float64, module_classes_to_ignore=(nn.LayerNorm,)),
    },
}


def make(words):
    torch.manual_seed(0)
    model = shard(Model(), **words) if words is not None else Model()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)


def train(model, optimizer, seed=0):
    """Each rank has half of the batch that the unsharded model has; gives the mean loss of all ranks."""
    torch.manual_seed(seed)
    losses = []
    for _ in range(STEPS):
        batch = torch.randn(6, DIM)
        halves = batch.chunk(2)[dist.get_rank()] if _is_sharded(model) else batch
        loss = model(halves).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / 2)
    return losses


def _is_sharded(model):
    return isinstance(model, nn.parallel.DistributedDataParallel) or type(model) is not Model


class Collectives(TorchDispatchMode):
    """Writes down collectives in the order in which they are issued."""

    def __init__(self):
        super().__init__()
        self.issued = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.issued += [word for word in ("gather", "reduce_scatter") if word in str(func)]
        return func(*args, **(kwargs or {}))


def order_in_backward(words):
    model, _ = make(words)
    loss = model(torch.randn(3, DIM)).sum()
    with Collectives() as collectives:
        loss.backward()
    return collectives.issued


# -- state dicts ---------------------------------------------------------------------------------------------------------------

FULL, SHARDED = StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT
SETTINGS = {
    **{
        f"full{'_offloaded' * offload}{'_rank0' * rank0}": StateDictSettings(
            FULL, FullStateDictConfig(offload, rank0), FullOptimStateDictConfig(offload, rank0)
        )
        for offload in (False, True)
        for rank0 in (False, True)
    },
    **{
        f"sharded{'_offloaded' * offload}": StateDictSettings(
            SHARDED, ShardedStateDictConfig(offload), ShardedOptimStateDictConfig(offload)
        )
        for offload in (False, True)
    },
}
SAVED = {
    "full_shard": ({}, list(SETTINGS)),
    "no_shard": ({"strategy": "no_shard"}, list(SETTINGS)),
    "checkpointed": ({"checkpointing": "full"}, ["full", "sharded"]),
    "offloaded": ({"cpu_offload": CPUOffload(offload_params=True)}, ["full_offloaded_rank0", "sharded"]),
    "hybrid": ({"strategy": "hybrid_shard", "mesh": (2, 1)}, ["full", "sharded"]),
}


def round_trip(words, settings):
    """Trained, saved, loaded into a fresh model: do both go on alike? And what was in the state dict?"""
    model, optimizer = make(words)
    train(model, optimizer)
    saved = copied(state_dict(model, optimizer, settings))
    fresh, fresh_optimizer = make(words)
    load_state_dict(fresh, saved, fresh_optimizer, settings)
    goes_on, fresh_goes_on = train(model, optimizer, seed=1), train(fresh, fresh_optimizer, seed=1)
    return {
        "goes_on": goes_on,
        "fresh_goes_on": fresh_goes_on,
        "model": _seen(saved["model"]),
        "optimizer": saved["optimizer"] != {},
    }


def copied(state):
    """What is saved must not change when training goes on."""
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) else state


def _seen(state):
    return {name: (tuple(value.shape), isinstance(value, DTensor)) for name, value in state.items()}


def tracked_save(words, settings, path):
    model, optimizer = make(words)
    with memfit.track(model, optimizer) as tracker:
        train(model, optimizer)
        state = state_dict(model, optimizer, settings)
        tracker.ledger.save(path)
    del state


def main(folder):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    results = {"plain": train(*make(None)), "trained": {}, "saved": {}}
    for name, words in TRAINED.items():
        results["trained"][name] = train(*make(words))
    # Also where the model is sharded before it is planned.
    model, optimizer = make({})
    results["planned_after"] = train(memfit.apply(model, PLAN), optimizer)
    for name in ("full_shard", "prefetch_post", "prefetch_none"):
        results["order", name] = order_in_backward(TRAINED[name])
    for name, (words, kinds) in SAVED.items():
        for kind in kinds:
            results["saved"][name, kind] = round_trip(words, SETTINGS[kind])
    tracked_save({}, SETTINGS["full"], folder / f"save-{rank}.memfit")
    torch.save(results, folder / f"results-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
