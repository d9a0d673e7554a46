"""Attention, the block around it, and the whole model or the part of it that a pipeline stage holds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from memfit.models.config import Latent, ModelConfig
from memfit.models.transformer.experts import GELU, Experts, SwiGLU

EPSILON = 1e-6

Rotation = tuple[Tensor, Tensor] | None
"""Cosine and sine of every position's angles; ``None`` where positions are learned."""


class Attention(nn.Module):
    """Causal attention with grouped queries."""

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
    """DeepSeek's attention: keys and values of all heads are computed from a small vector per token."""

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
    """Applies rotary positions: rotates each pair of a head's numbers by the angle of its position."""
    if rotation is None:
        return x
    cosine, sine = rotation
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


class Block(nn.Module):
    """One layer: attention, then an MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = _norm(config)
        self.attention = Attention(config) if config.latent is None else LatentAttention(config, config.latent)
        self.mlp_norm, self.mlp = _norm(config), _mlp(config, layer)
        self.dropout = _dropout(config)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), rotation))
        out: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return out


class Transformer(nn.Module):
    """Maps tokens to logits. On a pipeline stage, modules of other stages are ``None``, and hidden states go in or come out."""

    embedding: nn.Embedding | None
    norm: nn.Module | None
    head: nn.Module | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.dim)
        self.positions = nn.Embedding(config.context, config.dim) if config.gpt2 else None
        self.dropout = _dropout(config)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = _norm(config)
        self.head = None if config.tied else nn.Linear(config.dim, config.vocab, bias=False)
        self.hidden_parts = 1
        """Number of parts into which tensor parallelism cuts hidden states along the sequence."""
        self.positions_here: Tensor | None = None
        """The positions of this GPU's part of the sequences under context parallelism; ``None`` for all positions."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Takes tokens, or hidden states if another stage has the embedding."""
        x = tokens if self.embedding is None else self.embedding(tokens)
        position = self._position(tokens)
        if self.positions is not None:
            x = x + self.positions(position)
        x = self.dropout(x)
        rotation = self._rotation(position, x.dtype)
        for block in self.blocks:
            x = block(x, rotation)
        if self.norm is None:
            return x  # type: ignore[no-any-return]
        x = self.norm(x)
        if self.head is None:
            assert self.embedding is not None
            return F.linear(x, self.embedding.weight)
        logits: Tensor = self.head(x)
        return logits

    def _position(self, given: Tensor) -> Tensor:
        if self.positions_here is not None:
            return self.positions_here
        parts = self.hidden_parts if self.embedding is None else 1
        return torch.arange(given.shape[1] * parts, device=given.device)

    def _rotation(self, position: Tensor, dtype: torch.dtype) -> Rotation:
        if self.config.gpt2:
            return None
        size = self.config.rotated_dim
        pairs = torch.arange(0, size, 2, device=position.device, dtype=torch.float32)
        angles = torch.outer(position.float(), self.config.rope_theta ** (-pairs / size))
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def _mlp(config: ModelConfig, layer: int) -> nn.Module:
    if config.gpt2:
        return GELU(config.dim, config.hidden)
    if config.has_experts(layer):
        return Experts(config)
    return SwiGLU(config.dim, config.dense_hidden if config.num_experts else config.hidden)


def _norm(config: ModelConfig) -> nn.Module:
    return nn.LayerNorm(config.dim) if config.gpt2 else nn.RMSNorm(config.dim, eps=EPSILON)


def _dropout(config: ModelConfig) -> nn.Module:
    return nn.Dropout(config.dropout) if config.dropout else nn.Identity()
