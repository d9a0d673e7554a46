"""Will Llama-3 8B train on eight H100s with FSDP? Answered without a GPU.

    python predict.py                                                  # the verdict, and run.memfit
    memfit predict predict.py:build --gpu A100-80GB --world-size 16

``build`` is ordinary training code: it would run as it is on the real machines, under torchrun.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import memfit

DIM, LAYERS, HEADS, KV_HEADS, HIDDEN, VOCABULARY, LENGTH = 4096, 32, 32, 8, 14336, 128256, 8192
HEAD = DIM // HEADS


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.query, self.output = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.key, self.value = nn.Linear(DIM, KV_HEADS * HEAD, bias=False), nn.Linear(DIM, KV_HEADS * HEAD, bias=False)
        self.gate, self.up = nn.Linear(DIM, HIDDEN, bias=False), nn.Linear(DIM, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, DIM, bias=False)

    def attention(self, x):
        query, key, value = (project(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for project in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.output(mixed.transpose(1, 2).flatten(-2))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        hidden = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(hidden)) * self.up(hidden))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM)
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


def build():
    torch.distributed.init_process_group("nccl")
    with torch.device("meta"):
        model = Llama()
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=precision)
    fully_shard(model, mp_policy=precision)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(0, VOCABULARY, (1, LENGTH + 1), device="cuda")

    def step():
        logits = model(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    prediction = memfit.predict(build, gpu="H100-80GB", world_size=8)
    verdict = prediction.verdict
    answer = "fits" if prediction.fits else "does not fit"
    print(f"Llama-3 8B with FSDP on eight {verdict.gpu.name}: {answer}, {memfit.format_bytes(abs(verdict.margin))} ", end="")
    print("to spare." if prediction.fits else "are missing.")
    for what, size in {
        "allocated": prediction.peak_allocated,
        "smallest fit": prediction.smallest_fit,
        "reserved": prediction.peak_reserved,
    }.items():
        print(f"  {what:13} {memfit.format_bytes(size):>10}")
    prediction.ledger.save("run.memfit")
    print("Every byte is in run.memfit: memfit show run.memfit")
