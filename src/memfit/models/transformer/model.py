"""The whole model, or the part of it that a stage of a pipeline has."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memfit.models.config import ModelConfig
from memfit.models.transformer.attention import EPSILON, Attention, LatentAttention, Rotation
from memfit.models.transformer.experts import Experts
from memfit.models.transformer.mlps import GELU, SwiGLU


class Block(nn.Module):
    """One layer: attention, then an MLP, each beside the residual stream."""

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
    """Tokens in, logits out. On a stage of a pipeline, what other stages have is ``None``, and hidden states go in or come out."""

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
        """Into how many parts hidden states are cut along the sequence, where tensor parallelism does it."""
        self.positions_here: Tensor | None = None
        """The positions of this GPU's part of the sequences, where context parallelism cuts them; ``None`` for all of them."""

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens``, or hidden states where another stage has the embedding."""
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
