"""``ModelConfig``: the sizes of a transformer, of a model that memfit knows (``data/models.toml``) or of a ``config.json``.

Hugging Face's ``config.json`` is read without transformers.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from memfit.data import FOLDER, parse_table, read_toml
from memfit.errors import ConfigError
from memfit.reading import read_regular


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Attention whose keys and values are made from a few numbers a token, as DeepSeek's."""

    kv_rank: int
    """Size of the vector from which keys and values are computed."""
    query_rank: int = 0
    """The same for queries; 0 if they are computed from the hidden state itself."""
    plain_dim: int
    """The part of a head without rotary positions."""
    turned_dim: int
    """The part with rotary positions, which all heads of the keys share."""
    value_dim: int


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer. The defaults are Llama's ways; GPT-2, Qwen and DeepSeek say where they differ."""

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
    """True if the output head shares the embedding's weight."""
    qk_norm: bool = False
    """True if queries and keys are normalised per head."""
    qkv_bias: bool = False
    gpt2: bool = False
    """LayerNorm, GELU, learned positions and biases everywhere, in place of RMSNorm, SwiGLU, rotary positions and none."""
    dropout: float = 0.0
    num_experts: int = 0
    """0 for a dense MLP."""
    experts_per_token: int = 0
    shared_experts: int = 0
    """Experts that process every token, besides the routed ones."""
    dense_layers: int = 0
    """Number of first layers with a dense MLP in place of experts."""
    dense_hidden: int = 0
    """Width inside the MLP of those."""
    sigmoid_router: bool = False
    """True if experts get sigmoid scores with a correction for load balance, in place of a softmax over all."""
    latent: Latent | None = None
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        if not self.head_dim:
            latent = self.latent
            object.__setattr__(self, "head_dim", latent.plain_dim + latent.turned_dim if latent else self.dim // self.heads)
        if self.heads % self.kv_heads or (self.num_experts > 0) != (self.experts_per_token > 0):
            raise ConfigError(f"{self.name}: heads must be a multiple of kv_heads, and experts come with experts_per_token")

    @property
    def num_parameters(self) -> int:
        """Number of parameters; a tied head counts once."""
        embeddings = self.vocab * self.dim * (1 if self.tied else 2) + (self.context * self.dim if self.gpt2 else 0)
        first_of_kind = {True: self.layers - 1, False: 0}
        layers = sum(count * self.parameters_of_layer(first_of_kind[kind]) for kind, count in self.kinds_of_layers().items())
        return embeddings + layers + self._norm

    @property
    def num_expert_parameters(self) -> int:
        """Number of parameters of routed experts."""
        return self.kinds_of_layers().get(True, 0) * self.experts_of_layer

    @property
    def experts_of_layer(self) -> int:
        """Number of parameters of a layer's routed experts."""
        return 3 * self.dim * self.hidden * self.num_experts

    @property
    def rotated_dim(self) -> int:
        """Size of the part of a head with rotary positions."""
        return self.latent.turned_dim if self.latent else self.head_dim

    def kinds_of_layers(self) -> dict[bool, int]:
        """Number of layers with experts (``True``) and without (``False``)."""
        dense = min(self.dense_layers, self.layers) if self.num_experts else self.layers
        return {has_experts: count for has_experts, count in {False: dense, True: self.layers - dense}.items() if count}

    def has_experts(self, layer: int) -> bool:
        return self.num_experts > 0 and layer >= self.dense_layers

    def parameters_of_layer(self, layer: int) -> int:
        return self._attention + self._mlp(layer) + 2 * self._norm

    @property
    def _attention(self) -> int:
        if self.latent is not None:
            return self._latent_attention(self.latent)
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * self.dim * (queries + keys)
        attention += queries + 2 * keys if self.qkv_bias or self.gpt2 else 0
        attention += self.dim if self.gpt2 else 0
        return attention + (2 * self.head_dim if self.qk_norm else 0)

    def _latent_attention(self, latent: Latent) -> int:
        queries = self.heads * self.head_dim
        made = (
            self.dim * latent.query_rank + latent.query_rank + latent.query_rank * queries
            if latent.query_rank
            else self.dim * queries
        )
        made += self.dim * (latent.kv_rank + latent.turned_dim) + latent.kv_rank
        made += latent.kv_rank * self.heads * (latent.plain_dim + latent.value_dim)
        return made + self.heads * latent.value_dim * self.dim

    def _mlp(self, layer: int) -> int:
        if self.gpt2:
            return 2 * self.dim * self.hidden + self.hidden + self.dim
        if not self.has_experts(layer):
            return 3 * self.dim * (self.dense_hidden if self.num_experts else self.hidden)
        return 3 * self.dim * self.hidden * (self.num_experts + self.shared_experts) + self.dim * self.num_experts

    @property
    def _norm(self) -> int:
        return 2 * self.dim if self.gpt2 else self.dim


# -- Hugging Face ----------------------------------------------------------------------------------------------------------------

_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "max_target_positions")
_WITHOUT_CONTEXT = 512
"""The default for configs without one, such as T5's."""


def read_config(path: Path) -> dict[str, Any]:
    """A Hugging Face ``config.json``."""
    try:
        config = json.loads(read_regular(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON ({error}): give the config.json of a Hugging Face model") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ConfigError(f"{path} has no model_type: give the config.json of a Hugging Face model")
    _check_sizes(path, config)
    return config


_COUNTS: Final = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_encoder_layers", "num_decoder_layers", "encoder_layers"),
    *("decoder_layers", "num_experts", "num_local_experts", "n_routed_experts"),
)
"""Of modules, each of which is made: layers and experts."""
_SIZES: Final = (
    *("hidden_size", "d_model", "n_embd", "intermediate_size", "d_ff", "ffn_dim", "n_inner", "vocab_size", "head_dim", "d_kv"),
    *("num_attention_heads", "num_heads", "n_head", "num_key_value_heads", "encoder_attention_heads", "decoder_attention_heads"),
    *("max_position_embeddings", "n_positions"),
)
_MOST_MODULES: Final = 10_000
_LARGEST: Final = 10**8
_HEAD_SIZES: Final = ("head_dim", "d_kv", "attention_head_size", "kv_channels", "qk_rope_head_dim", "true_hidden_size")
"""A config with one of these does not divide its hidden size among its heads."""


def _check_sizes(path: Path, config: dict[str, Any]) -> None:
    """Checks sizes, also those of nested configs (``text_config``)."""
    for name, value in config.items():
        if isinstance(value, dict):
            _check_sizes(path, value)
        elif name in _COUNTS:
            _check_size(path, name, value, _MOST_MODULES)
        elif name in _SIZES:
            for part in value if isinstance(value, list) else [value]:  # one for each layer
                _check_size(path, name, part, _LARGEST)
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if isinstance(hidden, int) and isinstance(heads, int) and hidden % heads and not any(config.get(name) for name in _HEAD_SIZES):
        raise ConfigError(f"{path}: {heads} heads cannot share a hidden_size of {hidden}: correct one of them")


def _check_size(path: Path, name: str, value: Any, largest: int) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= largest):
        raise ConfigError(f"{path}: {name} must be a whole number from 1 to {largest:,}, not {value!r:.40}")


def context_of(path: Path) -> int:
    """The longest sequence that the model supports."""
    config = read_config(path)
    nested = [part for part in (config.get("text_config"), config.get("decoder")) if isinstance(part, dict)]
    for part in (config, *nested):
        found = [part[name] for name in _CONTEXT_NAMES if isinstance(part.get(name), int) and part[name] > 0]
        if found:
            return int(found[0])
    return _WITHOUT_CONTEXT


_FACTS: Final = read_toml(FOLDER / "models.toml")


def _config(name: str, table: dict[str, Any]) -> ModelConfig:
    """A model of the file, with the keys of its family."""
    own = _FACTS["families"].get(table.get("family"), {}) | table
    own["source"] = f"config.json of huggingface.co/{own.pop('hub')}"
    own.pop("family", None)
    return parse_table(ModelConfig, {"name": name, **own}, f"models.toml, {name}")


MODELS: Final = {name: _config(name, table) for name, table in _FACTS["models"].items()}


def find_model(name: str) -> ModelConfig:
    """Finds a model by name, in any spelling: ``llama3-8b``, ``Llama-3-8B``, ``meta-llama/Llama-3.1-8B``, ``Qwen3 30B A3B``."""
    if name in MODELS:
        return MODELS[name]
    wanted = _plain(name.rsplit("/", 1)[-1])
    for known, model in _FACTS["other_names"].items():
        if _plain(known) == wanted:
            return MODELS[model]
    for config in MODELS.values():
        if wanted in (_plain(config.name), _plain(config.source.rsplit("/", 1)[-1])):
            return config
    close = difflib.get_close_matches(name.lower(), [*MODELS, *_FACTS["other_names"]], n=3)
    advice = f"did you mean {' or '.join(close)}? " if close else ""
    raise ConfigError(
        f"unknown model {name!r}: {advice}memfit knows {', '.join(MODELS)}. For any other, give the config.json of its repository "
        "with --hf, or hf= in Python."
    )


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "").removeprefix("meta").removesuffix("hf")
