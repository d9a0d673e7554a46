"""The models that memfit knows by name.

Each row is what the model's own ``config.json`` publishes; the tests build transformers' class from the same figures and count its
parameters.
"""

from __future__ import annotations

import difflib
from typing import Any, Final

from memfit.errors import ConfigError
from memfit.models.config import Latent, ModelConfig


def _llama(name: str, hub: str, dim: int, layers: int, heads: int, kv_heads: int, hidden: int, **others: Any) -> ModelConfig:
    source = f"config.json of huggingface.co/{hub}"
    return ModelConfig(name=name, dim=dim, layers=layers, heads=heads, kv_heads=kv_heads, hidden=hidden, source=source, **others)


def _gpt2(name: str, hub: str, dim: int, layers: int, heads: int) -> ModelConfig:
    return _llama(
        *(name, hub, dim, layers, heads, heads, 4 * dim),
        vocab=50257,
        context=1024,
        gpt2=True,
        tied=True,
        dropout=0.1,
    )


_LLAMA2: Final = {"vocab": 32000, "context": 4096}
_LLAMA3: Final = {"vocab": 128256, "context": 8192, "rope_theta": 5e5}
_LLAMA31: Final = {"vocab": 128256, "context": 131072, "rope_theta": 5e5}
_QWEN25: Final = {"vocab": 152064, "context": 131072, "qkv_bias": True, "rope_theta": 1e6}
_SMALL_QWEN25: Final = {"vocab": 151936, "context": 32768, "qkv_bias": True, "tied": True, "rope_theta": 1e6}
_QWEN3: Final = {"vocab": 151936, "context": 40960, "qk_norm": True, "head_dim": 128, "rope_theta": 1e6}
_EXPERTS: Final = {"num_experts": 128, "experts_per_token": 8}
_DEEPSEEK: Final = {"kv_rank": 512, "plain_dim": 128, "turned_dim": 64, "value_dim": 128}
_DEEPSEEK_V2_LITE: Final = {
    "vocab": 102400,
    "context": 163840,
    "latent": Latent(**_DEEPSEEK),
    "num_experts": 64,
    "experts_per_token": 6,
    "shared_experts": 2,
    "dense_layers": 1,
    "dense_hidden": 10944,
}
_DEEPSEEK_V3: Final = {
    "vocab": 129280,
    "context": 163840,
    "latent": Latent(query_rank=1536, **_DEEPSEEK),
    "num_experts": 256,
    "experts_per_token": 8,
    "shared_experts": 1,
    "dense_layers": 3,
    "dense_hidden": 18432,
    "sigmoid_router": True,
}

MODELS: Final = {
    config.name: config
    for config in (
        _gpt2("gpt2", "openai-community/gpt2", 768, 12, 12),
        _gpt2("gpt2-medium", "openai-community/gpt2-medium", 1024, 24, 16),
        _gpt2("gpt2-large", "openai-community/gpt2-large", 1280, 36, 20),
        _gpt2("gpt2-xl", "openai-community/gpt2-xl", 1600, 48, 25),
        _llama("llama2-7b", "meta-llama/Llama-2-7b-hf", 4096, 32, 32, 32, 11008, **_LLAMA2),
        _llama("llama2-13b", "meta-llama/Llama-2-13b-hf", 5120, 40, 40, 40, 13824, **_LLAMA2),
        _llama("llama2-70b", "meta-llama/Llama-2-70b-hf", 8192, 80, 64, 8, 28672, **_LLAMA2),
        _llama("llama3-8b", "meta-llama/Meta-Llama-3-8B", 4096, 32, 32, 8, 14336, **_LLAMA3),
        _llama("llama3-70b", "meta-llama/Meta-Llama-3-70B", 8192, 80, 64, 8, 28672, **_LLAMA3),
        _llama("llama3.1-8b", "meta-llama/Llama-3.1-8B", 4096, 32, 32, 8, 14336, **_LLAMA31),
        _llama("llama3.1-70b", "meta-llama/Llama-3.1-70B", 8192, 80, 64, 8, 28672, **_LLAMA31),
        _llama("llama3-405b", "meta-llama/Llama-3.1-405B", 16384, 126, 128, 8, 53248, **_LLAMA31),
        _llama("llama3.2-1b", "meta-llama/Llama-3.2-1B", 2048, 16, 32, 8, 8192, tied=True, **_LLAMA31),
        _llama("llama3.2-3b", "meta-llama/Llama-3.2-3B", 3072, 28, 24, 8, 8192, tied=True, **_LLAMA31),
        _llama("llama3.3-70b", "meta-llama/Llama-3.3-70B-Instruct", 8192, 80, 64, 8, 28672, **_LLAMA31),
        _llama(
            *("mistral-7b", "mistralai/Mistral-7B-v0.3", 4096, 32, 32, 8, 14336),
            vocab=32768,
            context=32768,
            rope_theta=1e6,
        ),
        _llama(
            *("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", 4096, 32, 32, 8, 14336),
            vocab=32000,
            context=32768,
            num_experts=8,
            experts_per_token=2,
            rope_theta=1e6,
        ),
        _llama("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", 896, 24, 14, 2, 4864, **_SMALL_QWEN25),
        _llama("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B", 1536, 28, 12, 2, 8960, **_SMALL_QWEN25 | {"context": 131072}),
        _llama("qwen2.5-3b", "Qwen/Qwen2.5-3B", 2048, 36, 16, 2, 11008, **_SMALL_QWEN25),
        _llama("qwen2.5-7b", "Qwen/Qwen2.5-7B", 3584, 28, 28, 4, 18944, **_QWEN25),
        _llama("qwen2.5-14b", "Qwen/Qwen2.5-14B", 5120, 48, 40, 8, 13824, **_QWEN25),
        _llama("qwen2.5-32b", "Qwen/Qwen2.5-32B", 5120, 64, 40, 8, 27648, **_QWEN25),
        _llama("qwen2.5-72b", "Qwen/Qwen2.5-72B", 8192, 80, 64, 8, 29568, **_QWEN25),
        _llama("qwen3-0.6b", "Qwen/Qwen3-0.6B", 1024, 28, 16, 8, 3072, tied=True, **_QWEN3),
        _llama("qwen3-1.7b", "Qwen/Qwen3-1.7B", 2048, 28, 16, 8, 6144, tied=True, **_QWEN3),
        _llama("qwen3-4b", "Qwen/Qwen3-4B", 2560, 36, 32, 8, 9728, tied=True, **_QWEN3),
        _llama("qwen3-8b", "Qwen/Qwen3-8B", 4096, 36, 32, 8, 12288, **_QWEN3),
        _llama("qwen3-14b", "Qwen/Qwen3-14B", 5120, 40, 40, 8, 17408, **_QWEN3),
        _llama("qwen3-32b", "Qwen/Qwen3-32B", 5120, 64, 64, 8, 25600, **_QWEN3),
        _llama("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", 2048, 48, 32, 4, 768, **_QWEN3, **_EXPERTS),
        _llama("qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", 4096, 94, 64, 4, 1536, **_QWEN3, **_EXPERTS),
        _llama("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", 2048, 27, 16, 16, 1408, **_DEEPSEEK_V2_LITE),
        _llama("deepseek-v3", "deepseek-ai/DeepSeek-V3", 7168, 61, 128, 128, 2048, **_DEEPSEEK_V3),
    )
}

_OTHER_NAMES: Final = {"llama3.1-405b": "llama3-405b", "llama3-1b": "llama3.2-1b", "llama3-3b": "llama3.2-3b", "gpt2-small": "gpt2"}


def find_model(name: str) -> ModelConfig:
    """The model of that name, forgivingly: ``llama3-8b``, ``Llama-3-8B``, ``meta-llama/Llama-3.1-8B``, ``Qwen3 30B A3B``."""
    wanted = _plain(name.rsplit("/", 1)[-1])
    for known, model in _OTHER_NAMES.items():
        if _plain(known) == wanted:
            return MODELS[model]
    for config in MODELS.values():
        if wanted in (_plain(config.name), _plain(config.source.rsplit("/", 1)[-1])):
            return config
    close = difflib.get_close_matches(name.lower(), [*MODELS, *_OTHER_NAMES], n=3)
    advice = f"did you mean {' or '.join(close)}? " if close else ""
    raise ConfigError(
        f"unknown model {name!r}: {advice}memfit knows {', '.join(MODELS)}. For any other, give the config.json of its repository "
        "with --hf, or hf= in Python."
    )


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "").removeprefix("meta").removesuffix("hf")
