"""FSDP2 with gradients accumulated under ``set_requires_gradient_sync(False)``, as ``torchrun fsdp2.py`` starts it."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp import Net
from torch.distributed.fsdp import fully_shard


def main() -> None:
    is_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if is_gpu else "gloo")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if is_gpu else torch.device("cpu")
    torch.manual_seed(0)
    model = Net().to(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(4):
        for part in range(2):
            model.set_requires_gradient_sync(part == 1)
            tokens = torch.randint(0, 2000, (16, 256), device=device)
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()) / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {dist.get_rank()} loss {loss.item():.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
