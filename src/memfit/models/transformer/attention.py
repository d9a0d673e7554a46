"""Every position looks at those before it: with grouped queries, or with keys and values made from a few numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from memfit.models.config import Latent, ModelConfig

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
        query, key, value = (_heads(project(x), self.config.head_dim) for project in (self.query, self.key, self.value))
        query, key = (_turned(each, rotation) for each in (self.query_norm(query), self.key_norm(key)))
        mixed = F.scaled_dot_product_attention(
            *(query, key, value),
            dropout_p=self.config.dropout if self.training else 0.0,
            is_causal=True,
            enable_gqa=self.config.heads != self.config.kv_heads,
        )
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return out


class LatentAttention(nn.Module):
    """As DeepSeek's: what is kept of a token is small, and each head makes its keys and values from it."""

    def __init__(self, config: ModelConfig, latent: Latent) -> None:
        super().__init__()
        self.config, self.latent = config, latent
        dim, rank, queries = config.dim, latent.query_rank, config.heads * config.head_dim
        self.query_down = nn.Linear(dim, rank, bias=False) if rank else nn.Identity()
        self.query_norm = nn.RMSNorm(rank, eps=EPSILON) if rank else nn.Identity()
        self.query = nn.Linear(rank or dim, queries, bias=False)
        self.key_value_down = nn.Linear(dim, latent.kv_rank + latent.turned_dim, bias=False)
        self.key_value_norm = nn.RMSNorm(latent.kv_rank, eps=EPSILON)
        self.key_value = nn.Linear(latent.kv_rank, config.heads * (latent.plain_dim + latent.value_dim), bias=False)
        self.output = nn.Linear(config.heads * latent.value_dim, dim, bias=False)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        sizes = self.latent
        query = _heads(self.query(self.query_norm(self.query_down(x))), self.config.head_dim)
        plain_query, turned_query = query.split([sizes.plain_dim, sizes.turned_dim], dim=-1)
        kept, turned_key = self.key_value_down(x).split([sizes.kv_rank, sizes.turned_dim], dim=-1)
        made = _heads(self.key_value(self.key_value_norm(kept)), sizes.plain_dim + sizes.value_dim)
        plain_key, value = made.split([sizes.plain_dim, sizes.value_dim], dim=-1)
        turned_key = _turned(_for_own_heads(turned_key).unsqueeze(1), rotation).expand(-1, made.shape[1], -1, -1)
        query = torch.cat((plain_query, _turned(turned_query, rotation)), dim=-1)
        key = torch.cat((plain_key, turned_key), dim=-1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return out


def _for_own_heads(key: Tensor) -> Tensor:
    """Of the key that all heads share, what tensor parallelism must know: each GPU's heads give a part of its gradient."""
    if not isinstance(key, DTensor):
        return key
    own: Tensor = key.to_local(grad_placements=[Partial()])
    return own


def _heads(x: Tensor, head_dim: int) -> Tensor:
    heads: Tensor = x.unflatten(-1, (-1, head_dim)).transpose(1, 2)
    return heads


def _turned(x: Tensor, rotation: Rotation) -> Tensor:
    """Each pair of a head's numbers, turned by the angle of its position."""
    if rotation is None:
        return x
    cosine, sine = rotation
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine
