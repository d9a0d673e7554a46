"""Workloads whose memory we measure on a real GPU and then ask every tool to predict.

Each workload is a function device -> Run(model, optimizer, step) where step(mark) performs one training
step and calls mark("forward"/"backward"/"step"/"zero") between its phases. Nothing here knows a tracker.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Run:
    model: nn.Module
    optimizer: Any
    step: Callable  # step(mark) -> None
    batch: Any = None
    fsdp: bool = False


@dataclass
class LlamaArgs:
    dim: int = 1024
    layers: int = 8
    heads: int = 16
    kv_heads: int = 8
    hidden: int = 2816
    vocab: int = 32000
    seq: int = 2048


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def rope(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).type_as(x)


class Attention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.h, self.kv, self.d = a.heads, a.kv_heads, a.dim // a.heads
        self.wq = nn.Linear(a.dim, a.dim, bias=False)
        self.wk = nn.Linear(a.dim, self.kv * self.d, bias=False)
        self.wv = nn.Linear(a.dim, self.kv * self.d, bias=False)
        self.wo = nn.Linear(a.dim, a.dim, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        q = self.wq(x).view(b, s, self.h, self.d).transpose(1, 2)
        k = self.wk(x).view(b, s, self.kv, self.d).transpose(1, 2)
        v = self.wv(x).view(b, s, self.kv, self.d).transpose(1, 2)
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        k = k.repeat_interleave(self.h // self.kv, 1)
        v = v.repeat_interleave(self.h // self.kv, 1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(o.transpose(1, 2).reshape(b, s, -1))


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.attention_norm, self.ffn_norm = RMSNorm(a.dim), RMSNorm(a.dim)
        self.attention = Attention(a)
        self.w1 = nn.Linear(a.dim, a.hidden, bias=False)
        self.w2 = nn.Linear(a.hidden, a.dim, bias=False)
        self.w3 = nn.Linear(a.dim, a.hidden, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.args = a
        self.embed = nn.Embedding(a.vocab, a.dim)
        self.layers = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm = RMSNorm(a.dim)
        self.head = nn.Linear(a.dim, a.vocab, bias=False)
        d = a.dim // a.heads
        t = torch.outer(torch.arange(a.seq).float(), 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d))
        self.register_buffer("cos", t.cos(), persistent=False)
        self.register_buffer("sin", t.sin(), persistent=False)
        self.checkpoint = False

    def forward(self, tokens):
        h = self.embed(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for layer in self.layers:
            if self.checkpoint:
                h = torch.utils.checkpoint.checkpoint(layer, h, cos, sin, use_reentrant=False)
            else:
                h = layer(h, cos, sin)
        return self.head(self.norm(h))


def lm_step(model, opt, tokens, labels, accum=1, clip=None, autocast=None, zero=True):
    def step(mark):
        for _ in range(accum):
            ctx = torch.autocast("cuda", dtype=autocast) if autocast else torch.autocast("cuda", enabled=False)
            with ctx:
                logits = model(tokens)
                loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
            del logits
            mark("forward")
            loss.backward()
            del loss
            mark("backward")
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        mark("step")
        opt.zero_grad(set_to_none=True)
        mark("zero")

    return step


def lm_batch(a, batch, device):
    tokens = torch.randint(0, a.vocab, (batch, a.seq), device=device)
    return tokens, torch.randint(0, a.vocab, (batch, a.seq), device=device)


def single(a=LlamaArgs(), batch=4, dtype=torch.float32, autocast=None, ckpt=False, accum=1, clip=None, opt="adamw", **okw):
    def build(device):
        with torch.device(device):
            model = Llama(a)
        model = model if dtype == torch.float32 else model.to(dtype)
        model.checkpoint = ckpt
        kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adafactor": torch.optim.Adafactor}
        optimizer = kinds[opt](model.parameters(), lr=1e-4, **okw)
        tokens, labels = lm_batch(a, batch, device)
        return Run(model, optimizer, lm_step(model, optimizer, tokens, labels, accum, clip, autocast))

    return build


def fsdp2(
    a=LlamaArgs(dim=2048, layers=16, heads=16, kv_heads=8, hidden=5632),
    batch=2,
    world=8,
    reshard=True,
    param_dtype=torch.bfloat16,
    reduce_dtype=torch.float32,
    offload=False,
    mesh=None,
    ckpt=False,
    accum=1,
    clip=1.0,
):
    def build(device):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

        dm = init_device_mesh(torch.device(device).type, mesh or (world,), mesh_dim_names=("dp",) if not mesh else ("rep", "dp"))
        with torch.device("meta"):
            model = Llama(a)
        if ckpt:
            from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

            for i, layer in enumerate(model.layers):
                model.layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False)
        kw = dict(
            mesh=dm,
            reshard_after_forward=reshard,
            mp_policy=MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype),
            offload_policy=CPUOffloadPolicy() if offload else OffloadPolicy(),
        )
        for layer in model.layers:
            fully_shard(layer, **kw)
        fully_shard(model, **kw)
        model.to_empty(device="cpu" if offload else device)
        if offload:
            model.cos, model.sin = model.cos.to(device), model.sin.to(device)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(0.01) if p.dim() < 2 else p.normal_(0, 0.02)
            model.cos.fill_(1.0), model.sin.fill_(0.0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens, labels = lm_batch(a, batch, device)
        return Run(model, optimizer, lm_step(model, optimizer, tokens, labels, accum, clip), fsdp=True)

    return build


def ddp(a=LlamaArgs(), batch=4, **kw):
    def build(device):
        with torch.device(device):
            model = Llama(a)
        model = nn.parallel.DistributedDataParallel(model, **kw)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens, labels = lm_batch(a, batch, device)
        return Run(model, optimizer, lm_step(model, optimizer, tokens, labels, autocast=torch.bfloat16))

    return build


def fsdp1(
    a=LlamaArgs(dim=2048, layers=16, heads=16, kv_heads=8, hidden=5632),
    batch=2,
    strategy="FULL_SHARD",
    prefetch="BACKWARD_PRE",
    offload=False,
):
    def build(device):
        import functools

        from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        with torch.device(device):
            model = Llama(a)
        model = FullyShardedDataParallel(
            model,
            sharding_strategy=ShardingStrategy[strategy],
            device_id=torch.device(device, 0) if device == "cuda" else None,
            auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
            backward_prefetch=BackwardPrefetch[prefetch] if prefetch else None,
            cpu_offload=CPUOffload(offload),
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
            use_orig_params=True,
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens, labels = lm_batch(a, batch, device)
        return Run(model, optimizer, lm_step(model, optimizer, tokens, labels, clip=None), fsdp=True)

    return build


def hf(
    name,
    cfg,
    batch,
    seq=None,
    dtype=torch.float32,
    autocast=torch.bfloat16,
    gc=False,
    image=None,
    opt=None,
    attn=None,
    config_name=None,
):
    def build(device):
        import transformers

        config = getattr(
            transformers,
            config_name
            or name.replace("ForCausalLM", "")
            .replace("ForMaskedLM", "")
            .replace("ForImageClassification", "")
            .replace("ForConditionalGeneration", "")
            .replace("LMHeadModel", "")
            + "Config",
        )(**cfg)
        if attn:
            config._attn_implementation = attn
        with torch.device(device):
            model = getattr(transformers, name)(config)
        model = model if dtype == torch.float32 else model.to(dtype)
        model.train()
        if gc:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        optimizer = (opt or (lambda p: torch.optim.AdamW(p, lr=1e-4)))(model.parameters())
        if image:
            inputs = dict(
                pixel_values=torch.randn(batch, 3, image, image, device=device, dtype=dtype),
                labels=torch.randint(0, 10, (batch,), device=device),
            )
        elif "T5" in name:
            t = torch.randint(0, 1000, (batch, seq), device=device)
            inputs = dict(input_ids=t, labels=t.clone())
        else:
            t = torch.randint(0, 1000, (batch, seq), device=device)
            inputs = dict(input_ids=t, labels=t.clone())

        def step(mark):
            with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
                out = model(**inputs)
            loss = out.loss
            del out
            mark("forward")
            loss.backward()
            del loss
            mark("backward")
            optimizer.step()
            mark("step")
            optimizer.zero_grad(set_to_none=True)
            mark("zero")

        return Run(model, optimizer, step)

    return build


B16 = torch.bfloat16
ZOO = {
    "llama_fp32": single(),
    "llama_amp": single(autocast=B16),
    "llama_bf16_fused": single(dtype=B16, fused=True),
    "llama_amp_ckpt": single(autocast=B16, ckpt=True, batch=8),
    "llama_accum_clip": single(autocast=B16, accum=2, clip=1.0),
    "llama_sgd": single(opt="sgd", momentum=0.9, autocast=B16),
    "llama_adafactor": single(opt="adafactor", autocast=B16),
    "fsdp2_full": fsdp2(),
    "fsdp2_zero2": fsdp2(reshard=False),
    "fsdp2_hsdp": fsdp2(mesh=(2, 4)),
    "fsdp2_fp32": fsdp2(param_dtype=None, reduce_dtype=None),
    "fsdp2_ckpt": fsdp2(ckpt=True, batch=4),
    "fsdp2_offload": fsdp2(offload=True),
    "fsdp2_accum": fsdp2(accum=2),
    "fsdp2_64": fsdp2(world=64),
    "ddp": ddp(),
    "ddp_view": ddp(gradient_as_bucket_view=True),
    "fsdp1_full": fsdp1(),
    "fsdp1_zero2": fsdp1(strategy="SHARD_GRAD_OP"),
    "fsdp1_noshard": fsdp1(strategy="NO_SHARD"),
    "fsdp1_post": fsdp1(prefetch="BACKWARD_POST"),
    "hf_gpt2": hf("GPT2LMHeadModel", dict(n_embd=1024, n_layer=12, n_head=16), 4, 1024),
    "hf_llama": hf(
        "LlamaForCausalLM",
        dict(
            hidden_size=2048,
            num_hidden_layers=8,
            num_attention_heads=16,
            num_key_value_heads=8,
            intermediate_size=5632,
            vocab_size=32000,
        ),
        2,
        2048,
    ),
    "hf_qwen3_gc": hf(
        "Qwen3ForCausalLM",
        dict(
            hidden_size=1024,
            num_hidden_layers=12,
            num_attention_heads=16,
            num_key_value_heads=8,
            intermediate_size=3072,
            vocab_size=151936,
            head_dim=128,
        ),
        2,
        2048,
        gc=True,
    ),
    "hf_bert": hf("BertForMaskedLM", {}, 16, 512),
    "hf_t5": hf(
        "T5ForConditionalGeneration",
        dict(d_model=768, d_ff=2048, num_layers=8, num_heads=12, decoder_start_token_id=0, pad_token_id=0),
        8,
        512,
    ),
    "hf_vit": hf("ViTForImageClassification", dict(num_labels=10), 32, image=224),
    "hf_resnet": hf("ResNetForImageClassification", dict(num_labels=10), 32, image=224, autocast=None),
    "hf_llama_bf16": hf(
        "LlamaForCausalLM",
        dict(
            hidden_size=2048,
            num_hidden_layers=8,
            num_attention_heads=16,
            num_key_value_heads=8,
            intermediate_size=5632,
            vocab_size=32000,
        ),
        2,
        2048,
        dtype=B16,
        autocast=None,
    ),
    "hf_llama_eager": hf(
        "LlamaForCausalLM",
        dict(
            hidden_size=2048,
            num_hidden_layers=4,
            num_attention_heads=16,
            num_key_value_heads=8,
            intermediate_size=5632,
            vocab_size=32000,
        ),
        2,
        1024,
        attn="eager",
    ),
}


def llama3(dim, layers, heads, hidden, **kw):
    return fsdp2(
        LlamaArgs(dim=dim, layers=layers, heads=heads, kv_heads=8, hidden=hidden, vocab=128256, seq=kw.pop("seq", 8192)), **kw
    )


BIG = {
    "fsdp2_llama3_8b_w8": llama3(4096, 32, 32, 14336, world=8, batch=1, ckpt=True),
    "fsdp2_llama3_8b_w8_nockpt": llama3(4096, 32, 32, 14336, world=8, batch=1, seq=4096),
    "fsdp2_llama3_70b_w64": llama3(8192, 80, 64, 28672, world=64, batch=1, ckpt=True, seq=4096),
    "fsdp2_llama3_405b_w512": llama3(16384, 126, 128, 53248, world=512, batch=1, ckpt=True, seq=4096),
}
ZOO |= BIG
DISTRIBUTED = ("fsdp", "ddp")
