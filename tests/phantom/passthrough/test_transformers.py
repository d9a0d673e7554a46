"""Hugging Face transformers inside the phantom world."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom


def test_transformers_does_not_believe_that_it_is_traced():
    import_utils = pytest.importorskip("transformers.utils.import_utils")
    with phantom():
        assert not import_utils.is_tracing(torch.ones(2, device="cuda"))
    assert import_utils.is_fake_tensor.__module__ == "transformers.utils.import_utils"


@pytest.mark.parametrize("early_stopping", [False, True])
def test_beams_go_on_to_the_last_token_allowed_and_this_is_named(early_stopping):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    calls = []
    with phantom() as world:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes)).cuda().eval()
        model.register_forward_hook(lambda *args: calls.append(1))
        prompt = torch.ones(2, 5, dtype=torch.int64, device="cuda")
        found = model.generate(prompt, max_new_tokens=7, num_beams=3, do_sample=False, early_stopping=early_stopping)
        assert found.shape == (2, 12)
        assert any("beams were taken to go on" in sentence for sentence in world.assumptions.sentences())
    assert len(calls) == 7
