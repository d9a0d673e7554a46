"""Trains a language model of 1.3 billion parameters on one GPU. Started as it is, it runs out of memory even on an H200.

python train.py                             # needs a GPU
memfit run --gpu H200 train.py              # needs none
memfit run --gpu H200 train.py --batch 16
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

VOCABULARY, DIM, HEADS, LAYERS, LENGTH = 32_000, 2048, 16, 24, 2048


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.output = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        heads = self.qkv(self.attention_norm(x)).unflatten(-1, (3, HEADS, -1)).transpose(1, 3)
        mixed = F.scaled_dot_product_attention(*heads.unbind(2), is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    def __init__(self, checkpointing):
        super().__init__()
        self.checkpointing = checkpointing
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32, help="sequences of 2,048 tokens")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--checkpointing", action="store_true", help="keep only what enters each block, and compute the rest again")
    args = parser.parse_args()

    model = Model(args.checkpointing).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(args.steps):
        tokens = torch.randint(0, VOCABULARY, (args.batch, LENGTH + 1)).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.3f}")
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"peak: {allocated / 2**30:.2f} GiB allocated, {reserved / 2**30:.2f} GiB reserved")


if __name__ == "__main__":
    main()
