"""llm-foundry's MPT models, written anew as memory and time see them: learned positions, tied embeddings, FSDP1.

As at commit b2a43a1, with composer 0.16.4. Norms are in half types (``low_precision_layernorm``). The loss is flash_attn's, which
keeps half logits and one float a token. After each microbatch composer computes two metrics of the logits, the cross entropy and
the perplexity, each in float32 (``Trainer._eval_train_metrics``, ``ComposerMPTCausalLM``).

Attention is the FlashAttention in Triton of 2022 (``attn_impl`` of ``submit_benchmarks.py``). FlashAttention 2 is 1.3 to 2.5 times
as fast (arXiv 2307.08691). Torch's memory-efficient kernel stands for it: it keeps the same tensors, was written at that time
without Hopper's instructions too, and FlashAttention 2 was measured to be 2.1 to 2.3 times as fast as that one.
"""

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
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    from torch.nn.attention import SDPBackend, sdpa_kernel

    width, layers, heads = SIZES[size]
    half = torch.bfloat16

    class HalfNorm(nn.LayerNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", enabled=False):
                return F.layer_norm(x.to(half), self.normalized_shape, self.weight.to(half), self.bias.to(half), self.eps)

    class FusedLoss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            largest = logits.amax(-1).float()  # logits are read once
            losses = torch.empty_like(largest)
            ctx.save_for_backward(logits, largest, labels)
            return losses.mean()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            logits, *_ = ctx.saved_tensors
            return logits * gradient.to(half), None

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = HalfNorm(width), HalfNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, s, _ = x.shape
            q, k, v = (part.view(b, s, heads, width // heads).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1))
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(found.transpose(1, 2).reshape(b, s, width))
            return x + self.down(F.gelu(self.up(self.norm_2(x))))

    class Mpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(seq, width)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), HalfNorm(width)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.tokens(ids) + self.places(torch.arange(seq, device=ids.device))
            for block in self.blocks:
                x = block(x)
            return F.linear(self.norm(x), self.tokens.weight)

    dist.init_process_group("nccl")
    with torch.device("meta"):
        model = Mpt()
    model = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(param_dtype=half, reduce_dtype=half if pure else torch.float32, buffer_dtype=half),
        sharding_strategy=ShardingStrategy.FULL_SHARD if reshard else ShardingStrategy.SHARD_GRAD_OP,
        backward_prefetch=BackwardPrefetch.BACKWARD_POST,  # composer's defaults, this and the next
        use_orig_params=True,
        param_init_fn=lambda module: module.to_empty(device="cuda", recurse=False),
        limit_all_gathers=True,
    )
    if checkpointing:
        apply_activation_checkpointing(model, checkpoint_wrapper, lambda module: isinstance(module, Block))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)

    metrics = torch.zeros(2, device="cuda").unbind()

    def step() -> None:
        for _ in range(microbatches):
            ids = torch.randint(0, VOCABULARY, (batch, seq), device="cuda")
            (ids[:, 0] >= 0).sum().item()  # is the first token of each sequence attended to?
            labels = torch.roll(ids, -1)
            with torch.autocast("cuda", half):
                logits = model(ids).view(-1, VOCABULARY)
                loss = FusedLoss.apply(logits, labels.view(-1))
            (loss / microbatches).backward()
            with torch.no_grad(), torch.autocast("cuda", half):
                for metric in metrics:
                    metric += F.cross_entropy(logits, labels.view(-1), reduction="sum")
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
