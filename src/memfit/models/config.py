"""What tells one transformer from another."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer. The defaults are Llama's ways; GPT-2 and Qwen say where they differ."""

    name: str
    dim: int
    """Width of the residual stream."""
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    """Width inside an MLP, or inside each of its experts."""
    vocab: int
    context: int
    """The longest sequence it was made for."""
    source: str
    """Where the figures are from."""
    head_dim: int = 0
    """Left out: ``dim / heads``."""
    tied: bool = False
    """Is the output head the embedding again?"""
    qk_norm: bool = False
    """Are queries and keys normalised, head by head?"""
    qkv_bias: bool = False
    gpt2: bool = False
    """LayerNorm, GELU, learned positions and biases everywhere, in place of RMSNorm, SwiGLU, rotary positions and none."""
    dropout: float = 0.0
    num_experts: int = 0
    """0 for a dense MLP."""
    experts_per_token: int = 0
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self.dim // self.heads)
        if self.heads % self.kv_heads or (self.num_experts > 0) != (self.experts_per_token > 0):
            raise ConfigError(f"{self.name}: heads must be a multiple of kv_heads, and experts come with experts_per_token")

    @property
    def num_parameters(self) -> int:
        """Each counted once, a tied head not at all."""
        embeddings = self.vocab * self.dim * (1 if self.tied else 2) + (self.context * self.dim if self.gpt2 else 0)
        return embeddings + self.layers * self.parameters_a_layer + self._norm

    @property
    def parameters_a_layer(self) -> int:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * self.dim * (queries + keys)
        attention += queries + 2 * keys if self.qkv_bias or self.gpt2 else 0
        attention += self.dim if self.gpt2 else 0
        attention += 2 * self.head_dim if self.qk_norm else 0
        return attention + self._mlp + 2 * self._norm

    @property
    def _mlp(self) -> int:
        if self.gpt2:
            return 2 * self.dim * self.hidden + self.hidden + self.dim
        return 3 * self.dim * self.hidden * max(self.num_experts, 1) + self.dim * self.num_experts

    @property
    def _norm(self) -> int:
        return 2 * self.dim if self.gpt2 else self.dim
