"""Run by test_two_ranks.py under torchrun: trains a small model on two gloo ranks in many ways, tracked and not, and leaves all.

torchrun --nproc-per-node 2 two_ranks.py FOLDER
"""

import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

import memfit

DIM = 16
KINDS = ["fsdp2", "fsdp2_mixed", "fsdp2_keep", "fsdp2_offload", "ddp", "ddp_view", "tp"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class CollectiveCounter(TorchDispatchMode):
    """Counts collectives as they are really issued."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, (DTensor, AsyncCollectiveTensor)) for kind in types):
            return NotImplemented  # they issue their own
        if func.namespace in ("c10d", "_c10d_functional"):
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def parallelize(kind, model):
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "ddp_view":
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if kind == "tp":
        mesh = init_device_mesh("cpu", (2,))
        for layer in model.layers:
            parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return model
    options = {
        "fsdp2": {},
        "fsdp2_mixed": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.float64, reduce_dtype=torch.float32)},
        "fsdp2_keep": {"reshard_after_forward": False},
        "fsdp2_offload": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
    }[kind]
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard([model.norm, model.head], **options)
    return fully_shard(model, **options)


def train(kind, tracked_to):
    torch.manual_seed(0)
    model = parallelize(kind, Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    torch.manual_seed(dist.get_rank() if kind != "tp" else 0)
    losses = []
    tracker = memfit.track(model, optimizer) if tracked_to else None
    with CollectiveCounter() as counter:
        if tracker:
            tracker.__enter__()
        for _ in range(3):
            loss = model(torch.randn(3, DIM)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            last_gradients = [_local(p.grad).clone() for p in model.parameters()]
            optimizer.zero_grad()
        if tracker:
            tracker.__exit__(None, None, None)
            tracker.ledger.save(tracked_to)
    return {"losses": losses, "gradients": last_gradients, "collectives": dict(counter.counts)}


def _local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def main(folder):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for kind in KINDS:
        bare = train(kind, None)
        tracked = train(kind, folder / f"{kind}-{rank}.memfit")
        torch.save({"bare": bare, "tracked": tracked}, folder / f"{kind}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
