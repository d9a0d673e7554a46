"""llm-foundry's MPT models, written anew as memory and time see them: no biases, learned positions, tied embeddings, FSDP1."""

from __future__ import annotations

from typing import Any

SIZES = {
    "125m": (768, 12, 12), "350m": (1024, 24, 16), "760m": (1536, 24, 12), "1b": (2048, 24, 16), "3b": (2560, 32, 20),
    "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 48, 56), "70b": (8192, 80, 64),
}  # fmt: skip
"""Width, layers, heads: scripts/train/yamls/pretrain in llm-foundry."""
VOCABULARY = 50368


def build(size: str, seq: int, batch: int, microbatches: int, pure: bool, checkpointing: bool, reshard: bool) -> Any:
    """One step on eight GPUs or more, as composer does it."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing, checkpoint_wrapper
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    width, layers, heads = SIZES[size]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, s, _ = x.shape
            q, k, v = (part.view(b, s, heads, width // heads).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, width))
            return x + self.down(F.gelu(self.up(self.norm_2(x))))

    class Mpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(seq, width)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width, bias=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.tokens(ids) + self.places(torch.arange(seq, device=ids.device))
            for block in self.blocks:
                x = block(x)
            return F.linear(self.norm(x), self.tokens.weight)

    dist.init_process_group("nccl")
    with torch.device("meta"):
        model = Mpt()
    half = torch.bfloat16
    model = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(param_dtype=half, reduce_dtype=half if pure else torch.float32, buffer_dtype=half),
        sharding_strategy=ShardingStrategy.FULL_SHARD if reshard else ShardingStrategy.SHARD_GRAD_OP,
        use_orig_params=False,
        param_init_fn=lambda module: module.to_empty(device="cuda", recurse=False),
        limit_all_gathers=True,
    )
    if checkpointing:
        apply_activation_checkpointing(model, checkpoint_wrapper, lambda module: isinstance(module, Block))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        for _ in range(microbatches):
            ids = torch.randint(0, VOCABULARY, (batch, seq), device="cuda")
            with torch.autocast("cuda", half):
                logits = model(ids)
                loss = F.cross_entropy(logits.view(-1, VOCABULARY), ids.view(-1))
            (loss / microbatches).backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
