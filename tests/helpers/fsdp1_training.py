"""Run by test_fsdp1_on_gpu.py under torchrun: FSDP1, which refuses the CPU, on NCCL, with one rank a GPU that is there.

torchrun --nproc-per-node GPUS fsdp1_training.py
"""

import json

import torch
import torch.distributed as dist
from fsdp_training import DIM, SETTINGS, STEPS, Model, copied

from memfit.fsdp import CPUOffload, load_state_dict, shard, state_dict

TRAINED = {
    "full_shard": {},
    "shard_grad_op": {"strategy": "shard_grad_op"},
    "no_shard": {"strategy": "no_shard"},
    "prefetch_post": {"backward_prefetch": "backward_post"},
    "prefetch_none": {"backward_prefetch": None},
    "checkpointed": {"checkpointing": "full"},
    "selective": {"checkpointing": "selective"},
    "offloaded": {"cpu_offload": CPUOffload(offload_params=True)},
}


def make(words):
    torch.manual_seed(0)
    model = Model().cuda()
    if words is not None:
        model = shard(model, engine="fsdp1", **words)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model, optimizer, seed=0):
    """Every rank has the same batch, so the mean of the gradients is that of the unsharded model."""
    torch.manual_seed(seed)
    losses = []
    for _ in range(STEPS):
        loss = model(torch.randn(6, DIM, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def round_trip(kind):
    model, optimizer = make({})
    train(model, optimizer)
    saved = copied(state_dict(model, optimizer, SETTINGS[kind]))
    fresh, fresh_optimizer = make({})
    load_state_dict(fresh, saved, fresh_optimizer, SETTINGS[kind])
    return train(model, optimizer, seed=1), train(fresh, fresh_optimizer, seed=1)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    found = {name: train(*make(words)) for name, words in TRAINED.items()}
    found |= {kind: round_trip(kind) for kind in ("full", "full_offloaded", "sharded", "sharded_offloaded")}
    if dist.get_rank() == 0:
        print(json.dumps({"plain": train(*make(None))} | found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
