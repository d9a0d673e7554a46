"""A cache of keys and values is made in training where it was asked for, and not filled again when layers are computed again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import memfit
from memfit.plan import CheckpointingPolicy, UnitPolicy
from memfit.plan.applying import undo

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}


def gemma() -> nn.Module:
    config = transformers.Gemma3TextConfig(**SMALL, head_dim=8, vocab_size=64, sliding_window=4, final_logit_softcapping=30.0)
    return transformers.Gemma3ForCausalLM(config)


def bart() -> nn.Module:
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    return transformers.BartForConditionalGeneration(
        transformers.BartConfig(**sizes, encoder_attention_heads=4, decoder_attention_heads=4, vocab_size=64)
    )


def qwen_moe() -> nn.Module:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SMALL, **experts, head_dim=8, vocab_size=64))


FIRST = CheckpointingPolicy(groups=(UnitPolicy(units=("model.layers.0", "model.layers.2")),))


@pytest.mark.parametrize("make", [gemma, qwen_moe])
def test_a_model_with_a_plan_makes_no_cache_in_training_unless_asked_and_computes_the_same(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    bare = make()
    planned = memfit.apply(copy.deepcopy(bare), FIRST)
    tokens = torch.randint(3, 64, (2, 12))
    seen, expected = (copied(input_ids=tokens, labels=tokens) for copied in (copy.deepcopy(planned), bare))
    assert seen.past_key_values is None
    assert expected.past_key_values is not None
    assert trained(planned, tokens) == trained(bare, tokens)
    assert trained(planned, tokens, use_cache=True) == trained(bare, tokens)
    assert planned(tokens, past_key_values=expected.past_key_values).past_key_values is not None
    with torch.no_grad():
        assert planned(input_ids=tokens).past_key_values is not None
    assert planned.eval()(input_ids=tokens).past_key_values is not None
    assert undo(planned).train()(input_ids=tokens).past_key_values is not None


@pytest.mark.parametrize(
    ("make", "units"),
    [
        (gemma, ("model.layers.0", "model.layers.2")),
        (bart, ("model.encoder.layers.0", "model.decoder.layers.0", "model.decoder.layers.1")),
    ],
)
def test_losses_and_gradients_are_equal_bit_by_bit(make: Callable[[], nn.Module], units: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    bare = make()
    planned = memfit.apply(copy.deepcopy(bare), CheckpointingPolicy(groups=(UnitPolicy(units=units),)))
    tokens = torch.randint(3, 64, (2, 12))
    assert trained(planned, tokens, use_cache=True) == trained(bare, tokens, use_cache=True)


def trained(model: nn.Module, tokens: torch.Tensor, **asked: Any) -> list[Any]:
    torch.manual_seed(1)
    model.zero_grad()
    given = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}  # with labels, encoder-decoders take no cache
    seen = model(input_ids=tokens, **asked, **given)
    assert seen.past_key_values is not None or not asked
    loss = seen.logits.square().mean()
    loss.backward()
    return [loss.item(), *(None if one.grad is None else one.grad.tolist() for one in model.parameters())]
