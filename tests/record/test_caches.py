"""Keys and values that a model caches have a category of their own."""

from __future__ import annotations

import pytest
import torch

import memfit
from memfit.ledger import Category

transformers = pytest.importorskip("transformers")


def tiny() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=128
    )
    return transformers.LlamaForCausalLM(config)


def bytes_by_category(ledger: memfit.Ledger) -> dict[Category, int]:
    """The largest block of each category."""
    largest: dict[Category, int] = {}
    sizes = ledger.events.size[ledger.birth]
    for category, size in zip(ledger.categories.tolist(), sizes.tolist(), strict=True):
        largest[Category(category)] = max(largest.get(Category(category), 0), size)
    return largest


def test_generation_on_the_phantom():
    def build():
        model = tiny().cuda().eval()

        def step():
            model.generate(torch.ones(3, 10, dtype=torch.long, device="cuda"), max_new_tokens=6, do_sample=False)

        return step

    found = bytes_by_category(memfit.predict(build, gpu="H200", steps=1).ledger)
    assert found[Category.KEY_VALUE_CACHE] == 3 * 2 * 15 * 16 * 4  # batch, heads, all tokens but the last, width of a head, bytes


def test_a_real_forward():
    model = tiny().eval()
    with memfit.track(model) as tracker, torch.no_grad():
        cache = model(torch.ones(3, 10, dtype=torch.long), use_cache=True).past_key_values
    assert cache.get_seq_length() == 10
    assert bytes_by_category(tracker.ledger)[Category.KEY_VALUE_CACHE] == 3 * 2 * 10 * 16 * 4


def test_in_training_they_are_activations():
    model = tiny()
    with memfit.track(model) as tracker:
        model(torch.ones(3, 10, dtype=torch.long), use_cache=True).logits.sum().backward()
    assert Category.KEY_VALUE_CACHE not in bytes_by_category(tracker.ledger)
