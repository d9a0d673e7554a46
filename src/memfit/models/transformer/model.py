"""A small transformer that every named model is an instance of.

::

    tokens ──> Embedding (+ positions) ──> Block x layers ──> norm ──> head ──> logits
                                            │
                                            ├─ x + Attention(norm(x))     grouped queries, rotary, scaled_dot_product_attention
                                            └─ x + MLP(norm(x))           SwiGLU, GELU, or experts.py

It uses memory as today's training code does: fused norms, fused attention that keeps no matrix of scores, rotary positions in the
type of the computation. It trains for real; its weights start as torch's modules start them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memfit.models.config import ModelConfig
from memfit.models.experts import Experts

EPSILON = 1e-6

Rotation = tuple[Tensor, Tensor] | None
"""Cosine and sine of every position's angles; ``None`` where positions are learned."""


class Attention(nn.Module):
    """Every position looks at those before it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        dim, head_dim, bias = config.dim, config.head_dim, config.qkv_bias or config.gpt2
        self.query = nn.Linear(dim, config.heads * head_dim, bias=bias)
        self.key = nn.Linear(dim, config.kv_heads * head_dim, bias=bias)
        self.value = nn.Linear(dim, config.kv_heads * head_dim, bias=bias)
        self.output = nn.Linear(config.heads * head_dim, dim, bias=config.gpt2)
        self.query_norm = nn.RMSNorm(head_dim, eps=EPSILON) if config.qk_norm else nn.Identity()
        self.key_norm = nn.RMSNorm(head_dim, eps=EPSILON) if config.qk_norm else nn.Identity()

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        query, key, value = (self._heads(project(x)) for project in (self.query, self.key, self.value))
        query, key = (_turned(each, rotation) for each in (self.query_norm(query), self.key_norm(key)))
        mixed = F.scaled_dot_product_attention(
            *(query, key, value),
            dropout_p=self.config.dropout if self.training else 0.0,
            is_causal=True,
            enable_gqa=self.config.heads != self.config.kv_heads,
        )
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)
        return heads


def _turned(x: Tensor, rotation: Rotation) -> Tensor:
    """Each pair of a head's numbers, turned by the angle of its position."""
    if rotation is None:
        return x
    cosine, sine = rotation
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


class SwiGLU(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class GELU(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.dim, config.hidden)
        self.down = nn.Linear(config.hidden, config.dim)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return out


class Block(nn.Module):
    """One layer: attention, then an MLP, each beside the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm, self.attention = _norm(config), Attention(config)
        mlp = GELU if config.gpt2 else Experts if config.num_experts else SwiGLU
        self.mlp_norm, self.mlp = _norm(config), mlp(config)
        self.dropout = _dropout(config)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), rotation))
        out: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return out


class Transformer(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.dim)
        self.positions = nn.Embedding(config.context, config.dim) if config.gpt2 else None
        self.dropout = _dropout(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = _norm(config)
        self.head = None if config.tied else nn.Linear(config.dim, config.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        position = torch.arange(tokens.shape[1], device=tokens.device)
        if self.positions is not None:
            x = x + self.positions(position)
        x = self.dropout(x)
        rotation = self._rotation(position, x.dtype)
        for block in self.blocks:
            x = block(x, rotation)
        x = self.norm(x)
        logits: Tensor = F.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        return logits

    def _rotation(self, position: Tensor, dtype: torch.dtype) -> Rotation:
        if self.positions is not None:
            return None
        pairs = torch.arange(0, self.config.head_dim, 2, device=position.device, dtype=torch.float32)
        angles = torch.outer(position.float(), self.config.rope_theta ** (-pairs / self.config.head_dim))
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def _norm(config: ModelConfig) -> nn.Module:
    return nn.LayerNorm(config.dim) if config.gpt2 else nn.RMSNorm(config.dim, eps=EPSILON)


def _dropout(config: ModelConfig) -> nn.Module:
    return nn.Dropout(config.dropout) if config.dropout else nn.Identity()
