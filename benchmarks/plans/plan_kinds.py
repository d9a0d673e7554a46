"""Further kinds of models for ``plan_on_gpu.py``: skip connections, masks, several towers, loss scaling, accumulation, stages.

Encoders get batches of different lengths with a mask, as they are trained; models of ``transformers`` are made from a config. What
uses a cache of keys and values by default does so here too: a plan is made for the code that people have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.plans.plan_workloads import BF16, GPT, LLAMA, Workload, images, next_token, tokens
from benchmarks.workloads.zoo import Llama

FP16 = torch.float16


class _ConvBlock(nn.Module):
    """Two convolutions with group norms, as in the U-Nets of diffusion models."""

    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, wide), nn.Conv2d(wide, narrow, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, narrow), nn.Conv2d(narrow, narrow, 3, padding=1)
        self.shortcut = nn.Conv2d(wide, narrow, 1) if wide != narrow else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.conv1(F.silu(self.norm1(x)))
        return self.conv2(F.silu(self.norm2(out))) + self.shortcut(x)


class UNet(nn.Module):
    """What goes down waits until it comes up again: every level's outputs are kept for the other side."""

    def __init__(self, width: int = 128, levels: tuple[int, ...] = (1, 2, 4), blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        self.smaller, self.larger = nn.ModuleList(), nn.ModuleList()
        kept = [channels := width]
        for factor in levels:
            for _ in range(blocks):
                self.down.append(_ConvBlock(channels, factor * width))
                kept.append(channels := factor * width)
            self.smaller.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
        self.middle = nn.Sequential(_ConvBlock(channels, channels), _ConvBlock(channels, channels))
        for factor in reversed(levels):
            self.larger.append(nn.ConvTranspose2d(channels, channels, 2, stride=2))
            for _ in range(blocks):
                self.up.append(_ConvBlock(channels + kept.pop(), factor * width))
                channels = factor * width
        self.blocks, self.head = blocks, nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, kept = self.stem(x), []
        for level, smaller in enumerate(self.smaller):
            for block in self.down[level * self.blocks : (level + 1) * self.blocks]:
                kept.append(x := block(x))
            x = smaller(x)
        x = self.middle(x)
        for level, larger in enumerate(self.larger):
            x = larger(x)
            for block in self.up[level * self.blocks : (level + 1) * self.blocks]:
                x = block(torch.cat((x, kept.pop()), 1))
        return self.head(x)


class ClassicUNet(nn.Module):
    """Double convolutions with batch norms, max pooling and one skip connection a level, for segmentation."""

    def __init__(self, width: int = 64, levels: int = 4, classes: int = 2) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        self.down = nn.ModuleList(_double(wide, narrow) for wide, narrow in zip([3, *widths], widths, strict=False))
        self.larger = nn.ModuleList(nn.ConvTranspose2d(2 * wide, wide, 2, stride=2) for wide in reversed(widths[:-1]))
        self.up = nn.ModuleList(_double(2 * wide, wide) for wide in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        kept.pop()
        for larger, block in zip(self.larger, self.up, strict=True):
            x = block(torch.cat((kept.pop(), larger(x)), 1))
        return self.head(x)


def _double(wide: int, narrow: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(wide, narrow, 3, padding=1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(inplace=True)),
        *(nn.Conv2d(narrow, narrow, 3, padding=1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(inplace=True)),
    )


class _DiTBlock(nn.Module):
    """A transformer block whose norms are scaled and shifted by a condition."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(dim, elementwise_affine=False) for _ in range(2))
        self.qkv, self.proj, self.condition = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), nn.Linear(dim, 6 * dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(F.silu(condition))[:, None].chunk(6, -1)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x) * (1 + scale1) + shift1).chunk(3, -1)
        )
        x = x + gate1 * self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    def __init__(self, dim: int = 1152, layers: int = 16, heads: int = 16, patch: int = 2) -> None:
        super().__init__()
        self.patches, self.time = nn.Conv2d(4, dim, patch, patch), nn.Linear(1, dim)
        self.blocks = nn.ModuleList(_DiTBlock(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, 4 * patch * patch)

    def forward(self, latents: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        x, condition = self.patches(latents).flatten(2).transpose(1, 2), self.time(when)
        for block in self.blocks:
            x = block(x, condition)
        return self.head(x)


def from_config(model: str, config: str, **values: Any) -> Callable[[], nn.Module]:
    """A model of ``transformers`` by the names of its class and its config's."""

    def make() -> nn.Module:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**values))

    return make


def gemma3() -> nn.Module:
    """Tied embeddings, logits that are capped, and layers with windows between those that see everything."""
    sizes = {"hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 12, "num_attention_heads": 8, "head_dim": 128}
    values = {"num_key_value_heads": 2, "vocab_size": 65536, "sliding_window": 512, "final_logit_softcapping": 30.0}
    return from_config("Gemma3ForCausalLM", "Gemma3TextConfig", **sizes, **values)()


def llava() -> nn.Module:
    """A frozen-size vision tower, a projector, and a language model that uses a cache unless told otherwise."""
    import transformers

    vision = transformers.CLIPVisionConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=12, num_attention_heads=16, image_size=336, patch_size=14
    )
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 10, "num_attention_heads": 16}
    text = transformers.LlamaConfig(vocab_size=32064, num_key_value_heads=8, **sizes)
    return transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=32000, vision_feature_layer=-2)
    )


class _Attended(nn.Module):
    """A block of convolutions, and attention over all places behind it."""

    def __init__(self, wide: int, narrow: int, heads: int = 8) -> None:
        super().__init__()
        self.block, self.norm, self.heads = _ConvBlock(wide, narrow), nn.GroupNorm(32, narrow), heads
        self.qkv, self.proj = nn.Conv2d(narrow, 3 * narrow, 1), nn.Conv2d(narrow, narrow, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(x)
        q, k, v = self.qkv(self.norm(x)).flatten(2).unflatten(1, (3, self.heads, -1)).transpose(-1, -2).unbind(1)
        return x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(x.shape))


class AttendedUNet(nn.Module):
    """As diffusion models have it: attention in the lower half, skips by concatenation, and a time that shifts every block."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        wide, deep = 2 * width, 4 * width
        self.stem, self.time = nn.Conv2d(4, width, 3, padding=1), nn.Linear(1, width)
        self.down = nn.ModuleList(
            [
                _ConvBlock(width, width),
                _ConvBlock(width, width),
                _Attended(width, wide),
                _Attended(wide, wide),
                _Attended(wide, deep),
            ]
        )
        self.up = nn.ModuleList(
            [_Attended(2 * deep, wide), _Attended(2 * wide, wide), _Attended(2 * wide, width), _ConvBlock(2 * width, width)]
        )
        self.up.append(_ConvBlock(2 * width, width))
        self.head = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        x, kept = self.stem(x) + self.time(when)[:, :, None, None], []
        for number, block in enumerate(self.down):
            kept.append(x := block(F.avg_pool2d(x, 2) if number in (2, 4) else x))
        for block in self.up:
            skip = kept.pop()
            x = F.interpolate(x, size=skip.shape[2:]) if x.shape[2:] != skip.shape[2:] else x
            x = block(torch.cat((x, skip), 1))
        return self.head(x)


def paligemma() -> nn.Module:
    """A SigLIP tower before a Gemma, whose logits are over a large vocabulary."""
    import transformers

    vision = transformers.SiglipVisionConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, image_size=224, patch_size=14
    )
    sizes = {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 10, "num_attention_heads": 12, "head_dim": 128}
    text = transformers.GemmaConfig(vocab_size=64128, num_key_value_heads=2, **sizes)
    return transformers.PaliGemmaForConditionalGeneration(
        transformers.PaliGemmaConfig(vision_config=vision, text_config=text, image_token_id=64000, projection_dim=1536)
    )


def text_behind_images(batch: int, length: int) -> Callable[[], Any]:
    """256 patches of an image at the start of every text; which tokens are of the text's second half, the model must tell."""

    def make() -> Any:
        text = torch.randint(3, 64000, (batch, length))
        text[:, :256] = 64000
        kinds = (torch.arange(length) >= length // 2).long().repeat(batch, 1)
        return tuple(part.cuda() for part in (text, torch.randn(batch, 3, 224, 224), torch.ones_like(text), kinds))

    return make


def told_of_images(model: nn.Module, batch: Any) -> torch.Tensor:
    text, pictures, mask, kinds = batch
    return model(input_ids=text, pixel_values=pictures, attention_mask=mask, token_type_ids=kinds, labels=text).loss


def waves(batch: int, seconds: int) -> Callable[[], Any]:
    return lambda: (torch.randn(batch, 16000 * seconds, device="cuda"), torch.randint(1, 32, (batch, 60), device="cuda"))


def spelled(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(input_values=batch[0], labels=batch[1]).loss


def padded(batch: int, length: int, vocab: int, shortest: int) -> Callable[[], Any]:
    """Tokens, a mask that hides what was padded, and labels."""

    def make() -> Any:
        lengths = torch.linspace(shortest, length, batch).long()
        mask = (torch.arange(length)[None] < lengths[:, None]).long()
        labels = torch.randint(3, vocab, (batch, length))
        labels[mask == 0] = -100
        return tuple(part.cuda() for part in (torch.randint(3, vocab, (batch, length)), mask, labels))

    return make


def masked_tokens(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(input_ids=batch[0], attention_mask=batch[1], labels=batch[2]).loss


def labelled_tokens(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(input_ids=batch[0], labels=batch[1]).loss


def image_tokens(batch: int, length: int) -> Callable[[], Any]:
    """One image of 576 patches at the start of every text."""

    def make() -> Any:
        text = torch.randint(3, 32000, (batch, length))
        text[:, 1:577] = 32000
        return tuple(part.cuda() for part in (text, torch.randn(batch, 3, 336, 336), torch.ones_like(text)))

    return make


def captioned(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(input_ids=batch[0], pixel_values=batch[1], attention_mask=batch[2], labels=batch[0]).loss


def sounds(batch: int, length: int) -> Callable[[], Any]:
    return lambda: (torch.randn(batch, 80, 3000, device="cuda"), torch.randint(0, 51865, (batch, length), device="cuda"))


def transcribed(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(input_features=batch[0], labels=batch[1]).loss


def labelled_images(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(pixel_values=batch[0], labels=batch[1]).loss


def noisy(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.mse_loss(model(batch[0]).float(), batch[0])


def noisy_latents(batch: int) -> Callable[[], Any]:
    return lambda: (torch.randn(batch, 4, 64, 64, device="cuda"), torch.rand(batch, 1, device="cuda"))


def denoised(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(*batch).float().square().mean()


def segmented(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def pictures_with_masks(batch: int, size: int) -> Callable[[], Any]:
    return lambda: (torch.randn(batch, 3, size, size, device="cuda"), torch.randint(0, 2, (batch, size, size), device="cuda"))


BERT = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
WHISPER = {"d_model": 768, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 12, "decoder_attention_heads": 12}
VIT = {"hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16, "intermediate_size": 4096, "num_labels": 1000}

KINDS: dict[str, Workload] = {
    "unet": Workload(UNet, noisy, images(24, 128), autocast=BF16),
    "unet_fp32": Workload(lambda: UNet(64), noisy, images(16, 128)),
    "unet_classic": Workload(ClassicUNet, segmented, pictures_with_masks(8, 256), autocast=FP16, scales_loss=True),
    "bert": Workload(
        from_config("BertForMaskedLM", "BertConfig", **BERT), masked_tokens, padded(16, 128, 30522, 32), autocast=BF16
    ),
    "bert_large": Workload(
        from_config("BertForMaskedLM", "BertConfig", **BERT_LARGE), masked_tokens, padded(32, 512, 30522, 128), autocast=BF16
    ),
    "roberta": Workload(
        from_config("RobertaForMaskedLM", "RobertaConfig", **BERT, vocab_size=50265, max_position_embeddings=514),
        masked_tokens,
        padded(64, 256, 50265, 64),
        autocast=FP16,
        scales_loss=True,
    ),
    "gemma3": Workload(gemma3, labelled_tokens, lambda: (tokens(4, 2048, 65536)()[0],) * 2, dtype=BF16),
    "llava": Workload(llava, captioned, image_tokens(4, 1024), autocast=BF16),
    "whisper": Workload(
        from_config("WhisperForConditionalGeneration", "WhisperConfig", **WHISPER), transcribed, sounds(8, 128), autocast=BF16
    ),
    "vit_hf": Workload(
        from_config("ViTForImageClassification", "ViTConfig", **VIT),
        labelled_images,
        images(128, 224),
        autocast=FP16,
        scales_loss=True,
    ),
    "bart": Workload(
        from_config("BartForConditionalGeneration", "BartConfig", d_model=1024, encoder_layers=6, decoder_layers=6),
        masked_tokens,
        padded(16, 512, 50265, 128),
        autocast=BF16,
    ),
    "convnext": Workload(
        from_config("ConvNextForImageClassification", "ConvNextConfig", num_labels=1000),
        labelled_images,
        images(64, 224),
        autocast=BF16,
    ),
    "resnet50": Workload(
        from_config("ResNetForImageClassification", "ResNetConfig", num_labels=1000),
        labelled_images,
        images(96, 224),
        autocast=BF16,
    ),
    "swin": Workload(
        from_config("SwinForImageClassification", "SwinConfig", num_labels=1000, depths=[2, 2, 6, 2]),
        labelled_images,
        images(64, 224),
        autocast=BF16,
    ),
    "unet_attended": Workload(AttendedUNet, denoised, noisy_latents(32), autocast=BF16),
    "distilbert": Workload(
        from_config("DistilBertForMaskedLM", "DistilBertConfig", n_layers=10),
        masked_tokens,
        padded(24, 192, 30522, 24),
        autocast=FP16,
        scales_loss=True,
    ),
    "albert": Workload(
        from_config(
            "AlbertForMaskedLM",
            "AlbertConfig",
            **{**BERT, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096},
        ),
        masked_tokens,
        padded(24, 512, 30000, 100),
        autocast=BF16,
    ),
    "gemma2": Workload(
        from_config(
            "Gemma2ForCausalLM",
            "Gemma2Config",
            hidden_size=1536,
            intermediate_size=6144,
            num_hidden_layers=10,
            num_attention_heads=12,
            num_key_value_heads=4,
            head_dim=128,
            vocab_size=64000,
            sliding_window=512,
        ),
        labelled_tokens,
        lambda: (tokens(4, 1536, 64000)()[0],) * 2,
        dtype=BF16,
    ),
    "paligemma": Workload(paligemma, told_of_images, text_behind_images(6, 768), autocast=BF16),
    "pegasus": Workload(
        from_config("PegasusForConditionalGeneration", "PegasusConfig", encoder_layers=8, decoder_layers=8, vocab_size=48000),
        masked_tokens,
        padded(16, 448, 48000, 64),
        autocast=BF16,
    ),
    "wav2vec2": Workload(
        from_config("Wav2Vec2ForCTC", "Wav2Vec2Config", num_hidden_layers=10, apply_spec_augment=False, layerdrop=0.0),
        spelled,
        waves(16, 12),
        autocast=BF16,
    ),
    "gpt2_hf": Workload(
        from_config("GPT2LMHeadModel", "GPT2Config", n_embd=1024, n_layer=16, n_head=16),
        labelled_tokens,
        lambda: (tokens(8, 1024, 50257)()[0],) * 2,
        autocast=FP16,
        scales_loss=True,
    ),
    "dit": Workload(DiT, denoised, noisy_latents(16), autocast=BF16),
    "gpt_scaled": Workload(lambda: GPT(1024, 16, 16), next_token, tokens(12, 1024, 50257), autocast=FP16, scales_loss=True),
    "llama_sync": Workload(lambda: Llama(LLAMA), next_token, tokens(2, 2048, 32000), world_size=8, accumulates=4),
    "gpt_ddp": Workload(
        lambda: GPT(1024, 12, 16), next_token, tokens(8, 1024, 50257), autocast=BF16, world_size=8, accumulates=4, engine="ddp"
    ),
    "qwen_moe": Workload(
        from_config(
            "Qwen3MoeForCausalLM",
            "Qwen3MoeConfig",
            hidden_size=1024,
            num_hidden_layers=8,
            num_attention_heads=16,
            num_key_value_heads=4,
            head_dim=64,
            num_experts=16,
            num_experts_per_tok=2,
            moe_intermediate_size=1024,
            vocab_size=32000,
        ),
        labelled_tokens,
        lambda: (tokens(4, 2048, 32000)()[0],) * 2,
        dtype=BF16,
    ),
}
