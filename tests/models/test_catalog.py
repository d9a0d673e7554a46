"""Every named model has exactly the parameters of transformers' own class, made from an equal config."""

from dataclasses import replace

import pytest
import torch
import transformers

from memfit.errors import ConfigError
from memfit.models import MODELS, ModelConfig, find_model
from memfit.models.transformer import Transformer

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,
}
"""The total that each model's repository on the Hub states for its weights."""


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def theirs(config: ModelConfig):
    """The same architecture in transformers' words."""
    shape = {
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.hidden,
        "vocab_size": config.vocab,
        "tie_word_embeddings": config.tied,
        "pad_token_id": None,
    }
    family = config.name.partition("-")[0]
    if config.gpt2:
        names = {"n_embd": config.dim, "n_layer": config.layers, "n_head": config.heads}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**names, n_positions=config.context, vocab_size=config.vocab))
    if family == "qwen3" and config.num_experts:
        experts = {"num_experts": config.num_experts, "num_experts_per_tok": config.experts_per_token}
        made = transformers.Qwen3MoeConfig(**shape, **experts, moe_intermediate_size=config.hidden)
        return transformers.Qwen3MoeForCausalLM(made)
    if family == "deepseek":
        return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**shape | deepseeks_words(config)))
    if family == "mixtral":
        experts = {"num_local_experts": config.num_experts, "num_experts_per_tok": config.experts_per_token}
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(**shape, **experts))
    kinds = {
        "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config),
        "qwen2.5": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config),
        "mistral": (transformers.MistralForCausalLM, transformers.MistralConfig),
    }
    kind, made = kinds.get(family, (transformers.LlamaForCausalLM, transformers.LlamaConfig))
    return kind(made(**shape))


def deepseeks_words(config: ModelConfig) -> dict[str, object]:
    assert config.latent is not None
    return {
        "intermediate_size": config.dense_hidden,
        "moe_intermediate_size": config.hidden,
        "first_k_dense_replace": config.dense_layers,
        "n_routed_experts": config.num_experts,
        "n_shared_experts": config.shared_experts,
        "num_experts_per_tok": config.experts_per_token,
        "n_group": 1,
        "topk_group": 1,
        "q_lora_rank": config.latent.query_rank or None,
        "kv_lora_rank": config.latent.kv_rank,
        "qk_nope_head_dim": config.latent.plain_dim,
        "qk_rope_head_dim": config.latent.turned_dim,
        "v_head_dim": config.latent.value_dim,
    }


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_transformers(name: str):
    """Of one and of two layers; the rest are more of the same, and num_parameters counts them so."""
    for layers in (1, 2):
        config = replace(MODELS[name], layers=layers, dense_layers=min(1, MODELS[name].dense_layers))
        with torch.device("meta"):
            assert config.num_parameters == count(Transformer(config)) == count(theirs(config))


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name: str):
    assert MODELS[name].num_parameters == PUBLISHED[name]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("llama3-8b", "llama3-8b"),
        ("Llama-3-8B", "llama3-8b"),
        ("meta-llama/Meta-Llama-3-8B", "llama3-8b"),
        ("meta-llama/Llama-3.1-405B", "llama3-405b"),
        ("Qwen3 30B A3B", "qwen3-30b-a3b"),
        ("gpt2-small", "gpt2"),
        ("openai-community/gpt2-xl", "gpt2-xl"),
    ],
)
def test_names_are_read_forgivingly(said: str, meant: str):
    assert find_model(said) is MODELS[meant]


def test_an_unknown_model_gets_suggestions():
    with pytest.raises(ConfigError, match=r"unknown model 'lama3-8b': did you mean llama3-8b.*--hf"):
        find_model("lama3-8b")


def test_a_config_that_cannot_be_meant():
    with pytest.raises(ConfigError, match="multiple of kv_heads"):
        replace(MODELS["llama3-8b"], kv_heads=5)
    with pytest.raises(ConfigError, match="experts_per_token"):
        replace(MODELS["llama3-8b"], num_experts=4)
