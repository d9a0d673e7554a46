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


def small_whisper(transformers, vocab_size: int = 100):
    sides = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in (("layers", 1), ("attention_heads", 1))}
    config = transformers.WhisperConfig(
        vocab_size=vocab_size, d_model=16, encoder_ffn_dim=16, decoder_ffn_dim=16, pad_token_id=0, decoder_start_token_id=1, **sides
    )
    model = transformers.WhisperForConditionalGeneration(config).cuda().eval()
    model.generation_config.no_timestamps_token_id = 59  # 60 to 99 are timestamps
    return model


@pytest.mark.parametrize(("num_frames", "num_windows"), [(3000, 1), (9000, 3)])
def test_whisper_writes_one_segment_for_each_window_and_this_is_named(num_frames: int, num_windows: int):
    transformers = pytest.importorskip("transformers")
    windows = []
    with phantom() as world:
        model = small_whisper(transformers)
        model.get_encoder().register_forward_hook(lambda *args: windows.append(1))
        sound = torch.randn(2, 80, num_frames, device="cuda")
        mask = torch.ones(2, num_frames, dtype=torch.int64).cuda()
        found = model.generate(sound, attention_mask=mask, max_new_tokens=6, return_timestamps=True, return_segments=True)
        assert [len(segments) for segments in found["segments"]] == [num_windows] * 2
        assert any("no timestamps" in sentence for sentence in world.assumptions.sentences())
    assert len(windows) == num_windows


def test_a_smaller_model_that_proposes_tokens_stops_at_its_last_one():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    proposed = []

    def count(*args) -> None:
        proposed.append(1)
        assert len(proposed) <= 20

    with phantom():
        model, small = (transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes)).cuda().eval() for _ in "ab")
        small.register_forward_hook(count)
        found = model.generate(torch.randint(3, 60, (1, 16), device="cuda"), max_new_tokens=7, assistant_model=small)
        assert found.shape == (1, 23)
    assert proposed


@pytest.mark.parametrize("is_known", [False, True])
def test_candidates_that_are_looked_up_in_the_prompt(is_known: bool):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    with phantom():
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes)).cuda().eval()
        prompt = torch.tensor([[5, 6, 7, 8] * 4]).cuda() if is_known else torch.randint(3, 60, (1, 16), device="cuda")
        found = model.generate(prompt, max_new_tokens=7, prompt_lookup_num_tokens=4, do_sample=False)
        assert found.shape == (1, 23)
