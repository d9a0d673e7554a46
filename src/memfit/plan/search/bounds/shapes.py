"""What one GPU computes of a transformer, from its config: sizes, no tensors.

::

    tokens ──> a layer: products, attention, what is done to every element ──> x layers ──> the head and the loss

Only what must be there is counted. Where a model computes more (rotary positions, casts, routing), its time is above what follows
from these sizes, never below.
"""

from __future__ import annotations

from dataclasses import dataclass

from memfit.models import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One forward and backward of some sequences on one GPU."""

    sequences: int
    seq: int
    tp: int
    cp: int
    item_bytes: int
    """Of a number in the computation."""

    @property
    def tokens(self) -> int:
        """Of this GPU's part of the sequences; tensor parallelism does not cut what goes into products."""
        return self.sequences * self.seq // self.cp


@dataclass(frozen=True, kw_only=True)
class Product:
    """``rows`` by ``inner``, times ``inner`` by ``columns``."""

    rows: int
    inner: int
    columns: int

    @property
    def backward(self) -> tuple[Product, Product]:
        """The gradients of what goes in, and of the weights."""
        return (
            Product(rows=self.rows, inner=self.columns, columns=self.inner),
            Product(rows=self.columns, inner=self.rows, columns=self.inner),
        )


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """One layer's share on one GPU."""

    products: tuple[Product, ...]
    """In forward; the last one is what makes the layer's output."""
    heads: int
    head_dim: int
    kv_heads: int
    stream: int
    """Numbers of the residual stream that this GPU has between attention and MLP: a part of the sequence for each GPU of tp."""
    gathered: int
    """The same of all GPUs of tp together: what products are given."""
    queries: int
    """Numbers of the queries; attention gives as many."""
    keys: int
    """Numbers of the keys; as many are values."""
    hidden: int
    """Numbers inside the MLP, of one of the tensors there."""
    has_gate: bool
    """Are there two of those, one of which opens the other?"""
    num_sums: int
    """How many gradients of what products are given are added up."""
    is_turned: bool
    """Are queries and keys turned by their position?"""
    spread: int = 0
    """Numbers of the rows that experts are given, one for each expert that a token goes to; they give as many. 0 of a dense MLP."""


def layer_shape(config: ModelConfig, layer: int, part: Pass) -> LayerShape:
    tokens, tp = part.tokens, part.tp
    queries, keys = config.heads * config.head_dim // tp, config.kv_heads * config.head_dim // tp
    if config.latent is not None:
        # Keys and values are made from a few numbers; only what is always there is counted.
        queries, keys = config.heads * min(config.head_dim, config.latent.value_dim) // tp, 0
        attention: tuple[Product, ...] = (_product(tokens, config.dim, queries), _product(tokens, queries, config.dim))
    else:
        attention = (
            _product(tokens, config.dim, queries),
            _product(tokens, config.dim, keys),
            _product(tokens, config.dim, keys),
            _product(tokens, queries, config.dim),
        )
    rows, hidden = _mlp_size(config, layer, part)
    has_gate = not config.gpt2
    inside = (_product(rows, config.dim, hidden),) * (2 if has_gate else 1)
    return LayerShape(
        products=(*attention, *inside, _product(rows, hidden, config.dim)),
        heads=config.heads // tp,
        head_dim=config.head_dim,
        kv_heads=max(1, config.kv_heads // tp),
        stream=tokens * config.dim // tp,
        gathered=tokens * config.dim,
        queries=tokens * queries,
        keys=tokens * keys,
        hidden=rows * hidden,
        has_gate=has_gate,
        num_sums=(2 if keys else 0) + (1 if has_gate and not config.has_experts(layer) else 0),
        is_turned=not config.gpt2 and config.latent is None,
        spread=rows * config.dim if config.has_experts(layer) else 0,
    )


def _mlp_size(config: ModelConfig, layer: int, part: Pass) -> tuple[int, int]:
    """Rows and width. Experts are not cut by tp: each GPU sends its own part of the sequence to them."""
    if config.has_experts(layer):
        return part.tokens // part.tp * config.experts_per_token, config.hidden
    return part.tokens, (config.dense_hidden if config.num_experts else config.hidden) // part.tp


def _product(rows: int, inner: int, columns: int) -> Product:
    return Product(rows=rows, inner=inner, columns=columns)


def head_product(config: ModelConfig, part: Pass) -> Product:
    return _product(part.tokens, config.dim, config.vocab // part.tp)
