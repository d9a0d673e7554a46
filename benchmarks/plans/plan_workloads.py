"""What ``plan_on_gpu.py`` plans: models of four kinds, as large as keeps an H200 busy, eager, sharded and compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.workloads.zoo import Llama, LlamaArgs

BF16 = torch.bfloat16


class GPTBlock(nn.Module):
    """As GPT-2's: dropout in attention, after it and after the MLP."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.ln_1(x)).split(dim, -1))
        seen = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)
        x = x + self.dropout(self.proj(seen.transpose(1, 2).reshape(batch, length, dim)))
        return x + self.dropout(self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh")))


class GPT(nn.Module):
    def __init__(self, dim: int = 1600, layers: int = 12, heads: int = 25, vocab: int = 50257, length: int = 1024) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(GPTBlock(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ViT(nn.Module):
    """Torch's own encoder layers, which have dropout too."""

    def __init__(self, dim: int = 1280, layers: int = 20, heads: int = 16, patch: int = 14, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


class Bottleneck(nn.Module):
    """As ResNet's: batch norms, whose statistics must not be counted twice, and activations in place."""

    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(wide, narrow, 1, bias=False), nn.BatchNorm2d(narrow)
        self.conv2, self.bn2 = nn.Conv2d(narrow, narrow, 3, padding=1, bias=False), nn.BatchNorm2d(narrow)
        self.conv3, self.bn3 = nn.Conv2d(narrow, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + x)


class ResNet(nn.Module):
    def __init__(self, wide: int = 512, narrow: int = 256, blocks: int = 16, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, wide, 8, 8)
        self.blocks = nn.Sequential(*(Bottleneck(wide, narrow) for _ in range(blocks)))
        self.head = nn.Linear(wide, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 1024, "d_ff": 4096, "d_kv": 64, "num_heads": 16, "num_layers": 8, "num_decoder_layers": 8}
    return T5ForConditionalGeneration(
        T5Config(vocab_size=32128, feed_forward_proj="gated-gelu", use_cache=False, decoder_start_token_id=0, **sizes)
    )


@dataclass(frozen=True)
class Workload:
    """How to make a model and its step; ``way`` is eager, compiled blocks, or a compiled model."""

    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    batch: Callable[[], Any]
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    world_size: int = 1
    way: str = "eager"
    scales_loss: bool = False
    """With a ``GradScaler``, as float16 needs it."""
    accumulates: int = 1
    """Batches in a step; gradients are reduced in the last one."""
    engine: str = "fsdp2"
    """Of several GPUs."""

    def build(self, prepare: Callable[[nn.Module], Any] = lambda model: None) -> Callable[[], torch.Tensor]:
        """``prepare`` is given the model before its first step."""
        model = self._placed()
        if self.way == "blocks":
            for block in _blocks(model):
                block.compile()
        elif self.way == "model":
            model.compile()
        prepare(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        scaler = torch.amp.GradScaler("cuda", enabled=self.scales_loss)
        batch = self.batch()

        def step() -> torch.Tensor:
            for number in range(self.accumulates):
                with self._without_sync(model, is_last=number == self.accumulates - 1):
                    with torch.autocast("cuda", dtype=self.autocast or BF16, enabled=self.autocast is not None):
                        loss = self.loss(model, batch)
                    scaler.scale(loss / self.accumulates if self.accumulates > 1 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach()

        return step

    def _without_sync(self, model: nn.Module, is_last: bool) -> AbstractContextManager[Any]:
        if self.world_size == 1 or self.accumulates == 1:
            return nullcontext()
        if self.engine == "ddp":
            return nullcontext() if is_last else model.no_sync()
        model.set_requires_gradient_sync(is_last)
        return nullcontext()

    def _placed(self) -> nn.Module:
        with torch.device("cuda"):
            model = self.model().to(self.dtype)
        if self.world_size == 1:
            return model
        if self.engine == "ddp":
            return nn.parallel.DistributedDataParallel(model)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh("cuda", (self.world_size,))
        options: dict[str, Any] = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32)}
        for block in _blocks(model):
            fully_shard(block, **options)
        fully_shard(model, **options)
        return model


def _blocks(model: nn.Module) -> list[nn.Module]:
    from memfit.fsdp.units import repeated_blocks

    return repeated_blocks(model)


def tokens(batch: int, length: int, vocab: int) -> Callable[[], Any]:
    return lambda: (
        torch.randint(0, vocab, (batch, length), device="cuda"),
        torch.randint(0, vocab, (batch, length), device="cuda"),
    )


def images(batch: int, size: int) -> Callable[[], Any]:
    return lambda: (torch.randn(batch, 3, size, size, device="cuda"), torch.randint(0, 1000, (batch,), device="cuda"))


def next_token(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1).float(), batch[1].flatten())


def classify(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def translate(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(input_ids=batch[0], labels=batch[1]).loss


LLAMA = LlamaArgs(dim=2048, layers=12, heads=16, kv_heads=8, hidden=5632, vocab=32000, seq=2048)
LONG = LlamaArgs(dim=2048, layers=8, heads=16, kv_heads=8, hidden=5632, vocab=8192, seq=16384)

WORKLOADS: dict[str, Workload] = {
    "llama": Workload(lambda: Llama(LLAMA), next_token, tokens(6, 2048, 32000), dtype=BF16),
    "llama_long": Workload(lambda: Llama(LONG), next_token, tokens(1, 16384, 8192), dtype=BF16),
    "llama_fsdp2": Workload(lambda: Llama(LLAMA), next_token, tokens(6, 2048, 32000), world_size=8),
    "llama_blocks": Workload(lambda: Llama(LLAMA), next_token, tokens(6, 2048, 32000), dtype=BF16, way="blocks"),
    "gpt": Workload(GPT, next_token, tokens(12, 1024, 50257), autocast=BF16),
    "gpt_model": Workload(lambda: GPT(layers=4), next_token, tokens(24, 1024, 50257), autocast=BF16, way="model"),
    "gpt_fsdp2": Workload(GPT, next_token, tokens(12, 1024, 50257), world_size=8),
    "vit": Workload(ViT, classify, images(96, 224), autocast=BF16),
    "resnet": Workload(ResNet, classify, images(96, 256), autocast=BF16),
    "t5": Workload(t5, translate, tokens(16, 512, 32128), autocast=BF16),
}


def every_workload() -> dict[str, Workload]:
    """With the further kinds, which build on this module."""
    from benchmarks.plans.plan_fresh_kinds import FRESH
    from benchmarks.plans.plan_kinds import KINDS

    return WORKLOADS | KINDS | FRESH
