"""Kinds of models that took no part when the planner's rules were found: planned and committed before they are measured.

They are used once. What is learned of them makes them ordinary kinds, and the next set has others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.plans.plan_kinds import FP16, from_config, labelled_images, labelled_tokens, masked_tokens, padded, spelled, waves
from benchmarks.plans.plan_workloads import BF16, GPT, Workload, next_token, tokens


def same_tokens(batch: int, length: int, vocab: int) -> Callable[[], Any]:
    return lambda: (tokens(batch, length, vocab)()[0],) * 2


def clip() -> nn.Module:
    """Two towers whose outputs meet in one product."""
    import transformers

    text = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 14, "num_attention_heads": 16}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=768))


def captions(batch: int) -> Callable[[], Any]:
    return lambda: (torch.randint(3, 49000, (batch, 77), device="cuda"), torch.randn(batch, 3, 224, 224, device="cuda"))


def contrasted(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(input_ids=batch[0], pixel_values=batch[1], return_loss=True).loss


def scenes(batch: int, size: int) -> Callable[[], Any]:
    return lambda: (torch.randn(batch, 3, size, size, device="cuda"), torch.randint(0, 150, (batch, size, size), device="cuda"))


def clips(batch: int) -> Callable[[], Any]:
    return lambda: (torch.randn(batch, 16, 3, 224, 224, device="cuda"), torch.randint(0, 400, (batch,), device="cuda"))


FRESH: dict[str, Workload] = {
    "neox": Workload(
        from_config(
            "GPTNeoXForCausalLM",
            "GPTNeoXConfig",
            hidden_size=1536,
            intermediate_size=6144,
            num_hidden_layers=14,
            num_attention_heads=12,
            vocab_size=50304,
        ),
        labelled_tokens,
        same_tokens(6, 1536, 50304),
        autocast=BF16,
    ),
    "phi3": Workload(
        from_config(
            "Phi3ForCausalLM",
            "Phi3Config",
            hidden_size=1536,
            intermediate_size=4096,
            num_hidden_layers=14,
            num_attention_heads=12,
            num_key_value_heads=4,
        ),
        labelled_tokens,
        same_tokens(4, 3072, 32000),
        dtype=BF16,
    ),
    "olmoe": Workload(
        from_config(
            "OlmoeForCausalLM",
            "OlmoeConfig",
            hidden_size=1024,
            intermediate_size=1024,
            num_hidden_layers=10,
            num_attention_heads=16,
            num_key_value_heads=16,
            num_experts=32,
            num_experts_per_tok=4,
            vocab_size=50304,
        ),
        labelled_tokens,
        same_tokens(4, 2048, 50304),
        dtype=BF16,
    ),
    "deberta": Workload(
        from_config(
            "DebertaV2ForMaskedLM",
            "DebertaV2Config",
            hidden_size=768,
            intermediate_size=3072,
            num_hidden_layers=12,
            num_attention_heads=12,
            vocab_size=40000,
            relative_attention=True,
            position_buckets=128,
            pos_att_type=["p2c", "c2p"],
        ),
        masked_tokens,
        padded(16, 384, 40000, 96),
        autocast=BF16,
    ),
    "segformer": Workload(
        from_config(
            "SegformerForSemanticSegmentation",
            "SegformerConfig",
            depths=[3, 4, 12, 3],
            hidden_sizes=[64, 128, 320, 512],
            decoder_hidden_size=512,
            num_labels=150,
        ),
        labelled_images,
        scenes(8, 512),
        autocast=BF16,
    ),
    "clip": Workload(clip, contrasted, captions(96), autocast=FP16, scales_loss=True),
    "hubert": Workload(
        from_config("HubertForCTC", "HubertConfig", num_hidden_layers=12, apply_spec_augment=False, layerdrop=0.0),
        spelled,
        waves(12, 15),
        autocast=BF16,
    ),
    "mbart": Workload(
        from_config(
            "MBartForConditionalGeneration", "MBartConfig", d_model=1024, encoder_layers=8, decoder_layers=8, vocab_size=60000
        ),
        masked_tokens,
        padded(16, 384, 60000, 64),
        autocast=BF16,
    ),
    "videomae": Workload(
        from_config("VideoMAEForVideoClassification", "VideoMAEConfig", num_labels=400), labelled_images, clips(8), autocast=BF16
    ),
    "gpt_sync": Workload(lambda: GPT(1280, 14, 20), next_token, tokens(6, 1024, 50257), world_size=8, accumulates=3),
}
