"""Workloads that no rule was learned from: other model families, adapters, 2-D parallelism, offloading, scaling, checkpoints.

    python benchmarks/workloads/more_zoo.py --measure              # on a GPU: writes truth/more_h200.json, truth/more_traces/*.npz
    python benchmarks/workloads/more_zoo.py --measure hf_swin ...  # some of them, added to what is there

``MORE[name](device)`` returns a ``Run`` as in ``zoo.py``; ``WORLD_SIZES`` says how many ranks those that are distributed have.
``python benchmarks/accuracy/accuracy.py --zoo more`` predicts them.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import pathlib
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.workloads.choice_zoo import CHOICES
from benchmarks.workloads.zoo import Llama, LlamaArgs, Run, lm_batch, lm_step, single

BENCHMARKS = pathlib.Path(__file__).parents[1]
TRUTH = BENCHMARKS / "truth" / "more_h200.json"
B16 = torch.bfloat16
Build = Callable[[str], Run]
Mark = Callable[[str], None]


def training_step(
    loss_of: Callable[[], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    autocast: torch.dtype | None = None,
    scaler: Any = None,
    after: Callable[[], Any] = lambda: None,
) -> Callable[[Mark], None]:
    """The plain loop; ``after`` comes last in a step: an average of weights, a checkpoint."""

    def step(mark: Mark) -> None:
        with torch.autocast("cuda", dtype=autocast or B16, enabled=autocast is not None):
            loss = loss_of()
        mark("forward")
        (scaler.scale(loss) if scaler else loss).backward()
        del loss
        mark("backward")
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        mark("step")
        optimizer.zero_grad(set_to_none=True)
        mark("zero")
        after()

    return step


# -- Hugging Face --------------------------------------------------------------------------------------------------------------

Inputs = Callable[[str, torch.dtype], dict[str, Any]]


def text(batch: int, length: int, vocab: int = 1000, labels: bool = True, mask: bool = False) -> Inputs:
    def make(device: str, dtype: torch.dtype) -> dict[str, Any]:
        tokens = torch.randint(3, vocab, (batch, length), device=device)
        inputs = {"input_ids": tokens}
        if labels:
            inputs["labels"] = tokens.clone()
        if mask:
            inputs["attention_mask"] = torch.ones_like(tokens)
        return inputs

    return make


def classes(batch: int, length: int, num_labels: int = 2) -> Inputs:
    def make(device: str, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "input_ids": torch.randint(3, 1000, (batch, length), device=device),
            "attention_mask": torch.ones(batch, length, dtype=torch.long, device=device),
            "labels": torch.randint(0, num_labels, (batch,), device=device),
        }

    return make


def images(batch: int, size: int, labels: bool = True) -> Inputs:
    def make(device: str, dtype: torch.dtype) -> dict[str, Any]:
        inputs = {"pixel_values": torch.randn(batch, 3, size, size, device=device, dtype=dtype)}
        if labels:
            inputs["labels"] = torch.randint(0, 10, (batch,), device=device)
        return inputs

    return make


def segments(batch: int, size: int) -> Inputs:
    def make(device: str, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "pixel_values": torch.randn(batch, 3, size, size, device=device, dtype=dtype),
            "labels": torch.randint(0, 10, (batch, size, size), device=device),
        }

    return make


def pairs(batch: int, length: int, size: int) -> Inputs:
    def make(device: str, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "input_ids": torch.randint(3, 1000, (batch, length), device=device),
            "attention_mask": torch.ones(batch, length, dtype=torch.long, device=device),
            "pixel_values": torch.randn(batch, 3, size, size, device=device, dtype=dtype),
            "return_loss": True,
        }

    return make


def spectrograms(batch: int, length: int) -> Inputs:
    def make(device: str, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "input_features": torch.randn(batch, 80, 3000, device=device, dtype=dtype),
            "labels": torch.randint(3, 1000, (batch, length), device=device),
        }

    return make


def sounds(batch: int, samples: int, length: int) -> Inputs:
    def make(device: str, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "input_values": torch.randn(batch, samples, device=device, dtype=dtype),
            "labels": torch.randint(1, 30, (batch, length), device=device),
        }

    return make


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def hf(
    name: str,
    config: dict[str, Any],
    inputs: Inputs,
    *,
    dtype: torch.dtype = torch.float32,
    autocast: torch.dtype | None = B16,
    attention: str | None = None,
    checkpointing: bool = False,
    make_optimizer: Callable[[Any], torch.optim.Optimizer] = adamw,
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> Build:
    def build(device: str) -> Run:
        import transformers

        kind = getattr(transformers, name)
        settings = kind.config_class(**config)
        if attention:
            settings._attn_implementation = attention
        with torch.device(device):
            model = kind(settings)
        model = prepare(model if dtype == torch.float32 else model.to(dtype))
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        optimizer = make_optimizer([param for param in model.parameters() if param.requires_grad])
        batch = inputs(device, dtype)
        return Run(model, optimizer, training_step(lambda: model(**batch).loss, optimizer, autocast=autocast))

    return build


class LoRA(nn.Module):
    """A frozen linear layer and a trained correction of low rank."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        device, dtype = base.weight.device, torch.float32
        self.down = nn.Linear(base.in_features, rank, bias=False, device=device, dtype=dtype)
        self.up = nn.Linear(rank, base.out_features, bias=False, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        correction: torch.Tensor = self.up(self.down(F.dropout(x, 0.05, self.training).to(self.down.weight.dtype)))
        return self.base(x) + correction.to(x.dtype)


def with_adapters(rank: int) -> Callable[[nn.Module], nn.Module]:
    def prepare(model: nn.Module) -> nn.Module:
        model.requires_grad_(False)
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if name in ("q_proj", "v_proj"):
                    setattr(parent, name, LoRA(child, rank))
        return model

    return prepare


LLAMA = {
    "hidden_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 5632,
    "vocab_size": 32000,
}
SMALL = {
    "hidden_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "intermediate_size": 2048,
    "vocab_size": 32000,
}
EXPERTS = SMALL | {
    "num_hidden_layers": 4,
    "moe_intermediate_size": 768,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "head_dim": 64,
}

HUGGING_FACE = {
    "hf_mixtral": hf("MixtralForCausalLM", SMALL | {"num_local_experts": 8, "num_hidden_layers": 4}, text(2, 1024)),
    "hf_qwen3_moe": hf("Qwen3MoeForCausalLM", EXPERTS, text(2, 1024), dtype=B16, autocast=None),
    "hf_gemma2": hf("Gemma2ForCausalLM", SMALL | {"head_dim": 64}, text(2, 1024), attention="eager"),
    "hf_gemma3": hf("Gemma3ForCausalLM", SMALL | {"head_dim": 256, "sliding_window": 512}, text(2, 1024)),
    "hf_mistral": hf("MistralForCausalLM", SMALL | {"sliding_window": 512}, text(4, 1024), dtype=B16, autocast=None),
    "hf_phi": hf("PhiForCausalLM", SMALL | {"num_key_value_heads": 12}, text(4, 1024)),
    "hf_gpt_neox": hf("GPTNeoXForCausalLM", {k: v for k, v in SMALL.items() if k != "num_key_value_heads"}, text(4, 1024)),
    "hf_opt": hf("OPTForCausalLM", {"hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 6}, text(4, 1024, mask=True)),
    "hf_bloom": hf("BloomForCausalLM", {"hidden_size": 768, "n_layer": 6, "n_head": 12, "vocab_size": 50000}, text(4, 512)),
    "hf_falcon": hf("FalconForCausalLM", {"hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16}, text(4, 1024)),
    "hf_mamba": hf("MambaForCausalLM", {"hidden_size": 512, "num_hidden_layers": 2, "vocab_size": 32000}, text(2, 128)),
    "hf_roberta": hf("RobertaForSequenceClassification", {"num_hidden_layers": 6}, classes(16, 256)),
    "hf_deberta": hf("DebertaV2ForSequenceClassification", {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12,
                     "intermediate_size": 3072, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, classes(8, 256)),
    "hf_bart": hf("BartForConditionalGeneration", {"encoder_layers": 4, "decoder_layers": 4, "d_model": 768}, text(8, 256)),
    "hf_whisper": hf("WhisperForConditionalGeneration", {"d_model": 512, "encoder_layers": 4, "decoder_layers": 4,
                     "encoder_attention_heads": 8, "decoder_attention_heads": 8}, spectrograms(4, 128)),
    "hf_wav2vec2": hf("Wav2Vec2ForCTC", {"num_hidden_layers": 4, "mask_time_prob": 0.0, "layerdrop": 0.0}, sounds(4, 48000, 30)),
    "hf_clip": hf("CLIPModel", {}, pairs(16, 77, 224)),
    "hf_swin": hf("SwinForImageClassification", {"num_labels": 10}, images(32, 224)),
    "hf_convnext": hf("ConvNextForImageClassification", {"num_labels": 10}, images(32, 224)),
    "hf_convnext_fp32": hf("ConvNextForImageClassification", {"num_labels": 10}, images(16, 224), autocast=None),
    "hf_segformer": hf("SegformerForSemanticSegmentation", {"num_labels": 10}, segments(8, 256)),
    "hf_vit_mae": hf("ViTMAEForPreTraining", {"num_hidden_layers": 6}, images(32, 224, labels=False)),
    "hf_dinov2": hf("Dinov2ForImageClassification", {"num_hidden_layers": 6, "num_labels": 10}, images(16, 518)),
    "hf_efficientnet": hf("EfficientNetForImageClassification", {"num_labels": 10, "image_size": 224, "width_coefficient": 1.0,
                          "depth_coefficient": 1.0, "hidden_dim": 1280}, images(32, 224)),
    "hf_regnet": hf("RegNetForImageClassification", {"num_labels": 10}, images(32, 224), autocast=None),
    "hf_resnet_amp": hf("ResNetForImageClassification", {"num_labels": 10}, images(32, 224)),
    "hf_mobilenet": hf("MobileNetV2ForImageClassification", {"num_labels": 10}, images(32, 224), dtype=torch.float32),
    "lora_llama": hf("LlamaForCausalLM", LLAMA, text(2, 1024), dtype=B16, autocast=None, prepare=with_adapters(16)),
    "lora_llama_gc": hf("LlamaForCausalLM", LLAMA, text(4, 1024), checkpointing=True, prepare=with_adapters(16)),
}  # fmt: skip


# -- recurrent -----------------------------------------------------------------------------------------------------------------


class RecurrentLM(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], vocab: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.drop = nn.Dropout(dropout)
        self.rnn = kind(width, width, layers, dropout=dropout)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.head(self.drop(self.rnn(self.drop(self.embed(tokens)))[0]))
        return hidden


def recurrent(kind: str, autocast: torch.dtype | None = None, vocab: int = 20000, width: int = 1024) -> Build:
    def build(device: str) -> Run:
        model = RecurrentLM(getattr(nn, kind), vocab, width, 2, 0.2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        tokens = torch.randint(0, vocab, (128, 64), device=device)

        def loss() -> torch.Tensor:
            return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

        return Run(model, optimizer, training_step(loss, optimizer, autocast=autocast))

    return build


# -- diffusion -----------------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, times: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(times, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(32, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        out: torch.Tensor = self.skip(x) + self.conv2(F.silu(self.norm2(h)))
        return out


class PixelAttention(nn.Module):
    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(32, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, width, height, breadth = x.shape
        h = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(h).view(batch, height * breadth, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, height * breadth, width)
        out: torch.Tensor = x + self.out(h).transpose(1, 2).reshape(x.shape)
        return out


class UNet(nn.Module):
    """Two levels down, two up, attention in the lower."""

    def __init__(self, width: int = 160, times: int = 640) -> None:
        super().__init__()
        self.inner, self.outer = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.high, self.low = Residual(width, width, times), Residual(width, 2 * width, times)
        self.down, self.up = nn.Conv2d(width, width, 3, 2, 1), nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.attend, self.middle = PixelAttention(2 * width), Residual(2 * width, 2 * width, times)
        self.last = Residual(3 * width, width, times)
        self.norm = nn.GroupNorm(32, width)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        high = self.high(self.inner(x), time)
        low = self.middle(self.attend(self.low(self.down(high), time)), time)
        back = self.up(F.interpolate(low, scale_factor=2.0, mode="nearest"))
        out: torch.Tensor = self.outer(F.silu(self.norm(self.last(torch.cat((back, high), 1), time))))
        return out


def diffusion(autocast: torch.dtype | None, channels_last: bool = False, batch: int = 8) -> Build:
    def build(device: str) -> Run:
        model = UNet().to(device)
        x, noise = (torch.randn(batch, 4, 64, 64, device=device) for _ in range(2))
        if channels_last:
            model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        time_of = torch.randn(batch, 640, device=device)
        optimizer = adamw(model.parameters())
        return Run(model, optimizer, training_step(lambda: F.mse_loss(model(x, time_of), noise), optimizer, autocast=autocast))

    return build


# -- ways to train -------------------------------------------------------------------------------------------------------------


def llama(
    args: LlamaArgs = LlamaArgs(),
    *,
    batch: int = 4,
    autocast: torch.dtype | None = B16,
    around: Callable[[nn.Module], Any] = lambda model: contextlib.nullcontext(),
    make_optimizer: Callable[[Any], torch.optim.Optimizer] = adamw,
    scaled: bool = False,
    after: Callable[[nn.Module, Any], Callable[[], Any]] = lambda model, optimizer: lambda: None,
) -> Build:
    """The zoo's model, with something around its forward, another optimizer, or something after each step."""

    def build(device: str) -> Run:
        with torch.device(device):
            model = Llama(args)
        optimizer = make_optimizer(model.parameters())
        tokens, labels = lm_batch(args, batch, device)

        def loss() -> torch.Tensor:
            with around(model):
                logits = model(tokens)
            return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

        scaler = torch.amp.GradScaler("cuda") if scaled else None
        step = training_step(loss, optimizer, autocast=autocast, scaler=scaler, after=after(model, optimizer))
        return Run(model, optimizer, step)

    return build


def offloaded(pinned: bool) -> Callable[[nn.Module], Any]:
    return lambda model: torch.autograd.graph.save_on_cpu(pin_memory=pinned, device_type="cuda")


def selective(model: nn.Module) -> Any:
    """Every second matrix product is kept, the rest computed again."""
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def contexts() -> Any:
        seen = {False: 0, True: 0}

        def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            if op is torch.ops.aten.mm.default:
                seen[context.is_recompute] += 1
                return CheckpointPolicy.MUST_SAVE if seen[context.is_recompute] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
            return CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    for layer in model.layers if not hasattr(model, "_selective") else ():
        plain = layer.forward
        layer.forward = lambda *args, plain=plain: checkpoint(plain, *args, use_reentrant=False, context_fn=contexts)
    model._selective = True
    return contextlib.nullcontext()


def averaging(model: nn.Module, optimizer: Any) -> Callable[[], None]:
    average = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update() -> None:
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)

    return update


def saving(model: nn.Module, optimizer: Any) -> Callable[[], None]:
    def save() -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, io.BytesIO())

    return save


def loading(model: nn.Module, optimizer: Any) -> Callable[[], None]:
    def reload() -> None:
        model.load_state_dict(copy.deepcopy(model.state_dict()))

    return reload


SHORT = LlamaArgs(layers=4, seq=1024)
WAYS = {
    "llama_fp16_scaler": llama(SHORT, autocast=torch.float16, scaled=True),
    "llama_offload_activations": llama(SHORT, around=offloaded(False)),
    "llama_offload_pinned": llama(SHORT, around=offloaded(True)),
    "llama_selective": llama(SHORT, around=selective),
    "llama_average": llama(SHORT, after=averaging),
    "llama_save": llama(SHORT, after=saving),
    "llama_reload": llama(SHORT, after=loading),
    "llama_loop": llama(SHORT, make_optimizer=lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=False)),
    "llama_rmsprop": llama(SHORT, make_optimizer=lambda p: torch.optim.RMSprop(p, lr=1e-4, momentum=0.9)),
    "llama_adafactor_bf16": single(SHORT, dtype=B16, opt="adafactor"),
    "llama_fp32_clip": single(SHORT, clip=1.0, accum=3),
    "rnn_lstm": recurrent("LSTM"),
    "rnn_gru": recurrent("GRU"),
    "rnn_lstm_amp": recurrent("LSTM", autocast=B16),
    "unet": diffusion(None),
    "unet_amp": diffusion(B16),
    "unet_amp_channels_last": diffusion(B16, channels_last=True),
}


# -- distributed ---------------------------------------------------------------------------------------------------------------


def shard_heads(layer: nn.Module, size: int) -> None:
    layer.attention.h //= size
    layer.attention.kv //= size


def tensor_parallel(data: int, tensor: int, args: LlamaArgs = LlamaArgs(dim=2048, layers=8, hidden=5632), batch: int = 2) -> Build:
    """Heads and hidden units over ``tensor`` ranks, the rest over ``data`` ranks by FSDP2."""

    def build(device: str) -> Run:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh(device, (data, tensor), mesh_dim_names=("dp", "tp"))
        with torch.device(device):
            model = Llama(args)
        plan = {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")} | {"attention.wo": RowwiseParallel()}
        plan |= {"w1": ColwiseParallel(), "w3": ColwiseParallel(), "w2": RowwiseParallel()}
        for layer in model.layers:
            shard_heads(layer, tensor)
            parallelize_module(layer, mesh["tp"], plan)
        ends = {"embed": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(output_layouts=Replicate())}
        parallelize_module(model, mesh["tp"], ends)
        if data > 1:
            policy = MixedPrecisionPolicy(param_dtype=B16, reduce_dtype=torch.float32)
            for layer in model.layers:
                fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
            fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
        # Without FSDP some parameters are plain tensors, which foreach does not mix with sharded ones.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=data > 1)
        tokens, labels = lm_batch(args, batch, device)
        return Run(model, optimizer, lm_step(model, optimizer, tokens, labels, autocast=None if data > 1 else B16), fsdp=True)

    return build


def sharded(
    args: LlamaArgs = LlamaArgs(dim=2048, layers=8, hidden=5632), *, batch: int = 2, saves: bool = False, delays: bool = False
) -> Build:
    """FSDP2 over eight ranks: with a full state dict after each step, or reducing only every second gradient."""

    def build(device: str) -> Run:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh(device, (8,), mesh_dim_names=("dp",))
        with torch.device(device):
            model = Llama(args)
        policy = MixedPrecisionPolicy(param_dtype=B16, reduce_dtype=torch.float32)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        optimizer = adamw(model.parameters())
        tokens, labels = lm_batch(args, batch, device)

        def loss() -> torch.Tensor:
            return F.cross_entropy(model(tokens).flatten(0, 1).float(), labels.flatten())

        def save() -> None:
            if saves:
                get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))

        last = training_step(loss, optimizer, after=save)

        def step(mark: Mark) -> None:
            if delays:
                model.set_requires_gradient_sync(False)
                loss().backward()
                model.set_requires_gradient_sync(True)
            last(mark)

        return Run(model, optimizer, step, fsdp=True)

    return build


def unsynced(args: LlamaArgs = SHORT, batch: int = 4) -> Build:
    """DDP that adds up two batches before it reduces."""

    def build(device: str) -> Run:
        with torch.device(device):
            model = nn.parallel.DistributedDataParallel(Llama(args))
        optimizer = adamw(model.parameters())
        tokens, labels = lm_batch(args, batch, device)

        def loss() -> torch.Tensor:
            return F.cross_entropy(model(tokens).flatten(0, 1).float(), labels.flatten())

        last = training_step(loss, optimizer, autocast=B16)

        def step(mark: Mark) -> None:
            with model.no_sync(), torch.autocast("cuda", dtype=B16):
                loss().backward()
            last(mark)

        return Run(model, optimizer, step)

    return build


DISTRIBUTED = {
    "tp_8": (8, tensor_parallel(1, 8)),
    "fsdp2_tp": (8, tensor_parallel(4, 2)),
    "fsdp2_save": (8, sharded(saves=True)),
    "fsdp2_delayed": (8, sharded(delays=True)),
    "ddp_no_sync": (1, unsynced()),
}
WORLD_SIZES = {name: size for name, (size, _) in DISTRIBUTED.items()} | {name: 1 for name in CHOICES if name.startswith("ddp")}
MORE: dict[str, Build] = HUGGING_FACE | WAYS | {name: build for name, (_, build) in DISTRIBUTED.items()} | CHOICES


# -- on a GPU ------------------------------------------------------------------------------------------------------------------


def join_world(name: str) -> None:
    """Rank 0 of a world whose other ranks are not there; DDP is C++ and wants a real group, of one."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if name.startswith("ddp"):
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    elif name in WORLD_SIZES:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD_SIZES[name])


def measure(name: str, traces: pathlib.Path, steps: int = 3) -> dict[str, Any]:
    """In this process: peaks and levels a step; the allocator's log of all but the last goes to a file."""
    cuda = torch.cuda
    join_world(name)
    torch.manual_seed(0)
    cuda.init()
    cuda.memory._record_memory_history("all", context=None, max_entries=2_000_000)
    run = MORE[name]("cuda")
    cuda.synchronize()
    init = {"allocated": cuda.memory_allocated(), "peak": cuda.max_memory_allocated(), "reserved": cuda.memory_reserved()}
    found: list[dict[str, Any]] = []
    for number in range(steps):
        cuda.reset_peak_memory_stats()
        marks: dict[str, int] = {}

        def mark(what: str, marks: dict[str, int] = marks) -> None:
            cuda.synchronize()
            marks.setdefault(what, cuda.memory_allocated())

        start = time.perf_counter()
        run.step(mark)
        cuda.synchronize()
        found.append(
            {
                "peak": cuda.max_memory_allocated(),
                "reserved": cuda.max_memory_reserved(),
                "requested": cuda.memory_stats()["requested_bytes.all.peak"],
                "wall": time.perf_counter() - start,
                "marks": marks,
            }
        )
        if number == steps - 2:
            save_trace(traces / f"trace_{name}.npz")
            cuda.memory._record_memory_history(None)
    return {
        "name": name,
        "mode": "real",
        "torch": torch.__version__,
        "init": init,
        "iters": found,
        "peak": max(step["peak"] for step in found),
        "reserved": max(step["reserved"] for step in found),
        "params": sum(param.numel() for param in run.model.parameters()),
    }


def save_trace(path: pathlib.Path) -> None:
    """The allocator's log in columns, as in truth/traces."""
    import numpy as np

    snapshot = torch.cuda.memory._snapshot()
    log = snapshot["device_traces"][0]
    actions = sorted({entry["action"] for entry in log})
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        actions=np.array(actions),
        action=np.array([actions.index(entry["action"]) for entry in log], dtype=np.uint8),
        addr=np.array([entry.get("addr", 0) for entry in log], dtype=np.uint64),
        size=np.array([entry["size"] for entry in log], dtype=np.int64),
        stream=np.array([entry["stream"] for entry in log], dtype=np.uint64),
        peak_allocated=torch.cuda.max_memory_allocated(),
        peak_reserved=torch.cuda.max_memory_reserved(),
    )


def measure_all(names: list[str], jobs: int, traces: pathlib.Path) -> None:
    """Each in a fresh process, several at a time."""
    start = time.monotonic()

    def in_fresh_process(name: str) -> dict[str, Any]:
        command = [sys.executable, __file__, "--measure-here", "--traces", str(traces), name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=150)
        except subprocess.TimeoutExpired:
            return {"name": name, "error": "no end in 150 s"}
        line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
        found: dict[str, Any] = json.loads(line[7:]) if line else {"name": name, "error": done.stderr[-400:]}
        said = found.get("error") or f"{found['peak'] / 2**20:10.1f} MiB, reserved {found['reserved'] / 2**20:10.1f} MiB"
        print(f"{time.monotonic() - start:6.1f} s  {name:28s} {said}", flush=True)
        return found

    known = json.loads(TRUTH.read_text()) if TRUTH.exists() else {}
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(in_fresh_process, names):
            if "error" not in found:
                known[found["name"]] = found
    TRUTH.write_text(json.dumps(known, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=list(MORE))
    parser.add_argument("--measure", action="store_true", help="on a GPU")
    parser.add_argument("--measure-here", action="store_true", help="one of them, in this process, as JSON")
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time")
    parser.add_argument("--traces", type=pathlib.Path, default=BENCHMARKS / "truth" / "more_traces")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    if args.measure_here:
        print("RESULT " + json.dumps(measure(args.workloads[0], args.traces)), flush=True)
    elif args.measure:
        measure_all(args.workloads, args.jobs, args.traces)
    else:
        print("\n".join(args.workloads))


if __name__ == "__main__":
    main()
