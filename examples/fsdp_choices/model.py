"""A transformer of 1.1 billion parameters whose sharding and checkpointing are arguments, so that memfit can compare them."""

import torch
from torch import nn

from memfit.fsdp import MixedPrecision, ShardingStrategy, shard

DIM, LAYERS, HEADS, BATCH, LENGTH = 2048, 22, 16, 4, 2048


def build(strategy="full_shard", checkpointing="none"):
    torch.distributed.init_process_group("nccl")
    is_sharded = strategy != "no_shard"
    # What is sharded gets its memory after it was cut into shards, so that no GPU ever holds the whole model.
    with torch.device("meta" if is_sharded else "cuda"):
        layers = [nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, dropout=0.0, batch_first=True) for _ in range(LAYERS)]
    model = shard(
        nn.Sequential(*layers),
        ShardingStrategy(strategy),
        # DDP, which does no_shard, has no mixed precision of its own: autocast stands in for it below.
        mixed_precision=MixedPrecision(torch.bfloat16, reduce_dtype=torch.float32) if is_sharded else None,
        units=nn.TransformerEncoderLayer,
        checkpointing=None if checkpointing == "none" else checkpointing,
    )
    if is_sharded:
        model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(BATCH, LENGTH, DIM, device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16, enabled=not is_sharded):
            loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
