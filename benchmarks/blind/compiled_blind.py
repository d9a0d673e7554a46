"""Compiled workloads that no rule was learned from: predicted first, measured afterwards.

    python benchmarks/blind/compiled_blind.py --predict              # without a GPU: writes results/compiled_blind_predicted.json
    python benchmarks/blind/compiled_blind.py --measure              # on a GPU: writes results/compiled_blind_measured.json
    python benchmarks/blind/compiled_blind.py --compare              # both, side by side: writes results/compiled_blind.md
    python benchmarks/blind/compiled_blind.py --predict dropout ...  # some of them, added to what is there
    python benchmarks/blind/compiled_blind.py --set kinds --predict  # another set, of compiled_kinds.py: results/compiled_kinds_*
    python benchmarks/blind/compiled_blind.py --again --predict      # once more, when the measurement is known: results/*_again*

``BLIND[name](device)`` returns a ``Run`` as in ``zoo.py``; a workload that is one rank of several has ``.world``. Each runs in a
process of its own; with ``--measure`` several share the GPU, which changes no figure: every process has an allocator of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.workloads.frontier_zoo import world
from benchmarks.workloads.zoo import Llama, LlamaArgs, Run, hf, lm_batch

BENCHMARKS = pathlib.Path(__file__).parents[1]
RESULTS = BENCHMARKS / "results"
NOT_BLIND = "Predicted once more when the measurement was known, so not blind any more: the rules may have been learned from it."
DDP_AGAIN = (
    "ddp: measured three times more, its second step took 2,222.9 MiB, and 2,528 MiB were reserved, as predicted. In the first "
    "measurement the first buckets were probably still there: they are freed when NCCL's watchdog has seen them reduced."
)
STEPS = 3
MIB = 2**20
B16 = torch.bfloat16
SMALL = LlamaArgs(dim=1024, layers=3, heads=16, kv_heads=4, hidden=2816, vocab=16000, seq=1024)


def steps(loss_of, optimizer, *, autocast=None, scaler=None, clip=None, accumulate=1, step_of=None):
    """The plain loop, with a mark after each phase."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    update = step_of or (lambda: scaler.step(optimizer) if scaler else optimizer.step())

    def step(mark):
        for _ in range(accumulate):
            with torch.autocast("cuda", dtype=autocast or B16, enabled=autocast is not None):
                loss = loss_of()
            mark("forward")
            (scaler.scale(loss) if scaler else loss).backward()
            del loss
            mark("backward")
        if clip:
            nn.utils.clip_grad_norm_(params, clip)
        update()
        if scaler:
            scaler.update()
        mark("step")
        optimizer.zero_grad(set_to_none=True)

    return step


def language_model(
    make_model, prepare=lambda model: model, a=SMALL, batch=4, dtype=torch.float32, autocast=B16, optimizer=None, **kw
):
    """A causal language model whose loss is computed outside of what is compiled; ``prepare`` compiles."""

    def build(device):
        with torch.device(device):
            model = make_model(a)
        model = model.to(dtype)
        prepared = prepare(model)
        run = model if prepared is None else prepared
        opt = (optimizer or partial(torch.optim.AdamW, lr=1e-4, fused=True))([p for p in model.parameters() if p.requires_grad])
        tokens, labels = lm_batch(a, batch, device)
        loss = lambda: F.cross_entropy(run(tokens).flatten(0, 1).float(), labels.flatten())  # noqa: E731
        return Run(model, opt, steps(loss, opt, autocast=autocast, **kw))

    return build


def compile_blocks(model, **kw):
    for layer in model.layers:
        layer.compile(**kw)


# ---- models --------------------------------------------------------------------------------------------------------------


class GPTBlock(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.p = heads, dropout
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(b, s, d)), self.p, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.n2(x)))), self.p, self.training)


class GPT(nn.Module):
    """nanoGPT's: learned positions, biases, tied head."""

    def __init__(self, a, dropout=0.0, tied=True):
        super().__init__()
        self.embed, self.pos = nn.Embedding(a.vocab, a.dim), nn.Embedding(a.seq, a.dim)
        self.layers = nn.ModuleList(GPTBlock(a.dim, a.heads, dropout) for _ in range(a.layers))
        self.norm, self.head = nn.LayerNorm(a.dim), nn.Linear(a.dim, a.vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) + self.pos(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class BrokenGPT(GPT):
    """With something in the middle that no compiler takes."""

    def forward(self, tokens):
        x = self.embed(tokens)
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i == 1:
                torch._dynamo.graph_break()
        return self.head(self.norm(x))


class LoRA(nn.Module):
    def __init__(self, base, rank=16):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def with_adapters(a):
    model = Llama(a).requires_grad_(False)
    for layer in model.layers:
        for name in ("w1", "w2", "w3"):
            setattr(layer, name, LoRA(getattr(layer, name)))
    return model


class FlexBlock(GPTBlock):
    def forward(self, x, mask=None):
        from torch.nn.attention.flex_attention import flex_attention

        b, s, d = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).split(d, 2))
        y = flex_attention(q, k, v, block_mask=mask)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class FlexGPT(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.dim)
        self.layers = nn.ModuleList(FlexBlock(a.dim, a.heads, 0.0) for _ in range(a.layers))
        self.head = nn.Linear(a.dim, a.vocab, bias=False)

    def forward(self, tokens, mask):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def flex(device):
    from torch.nn.attention.flex_attention import create_block_mask

    a = SMALL
    with torch.device(device):
        model = FlexGPT(a).to(B16)
    compiled = torch.compile(model)
    mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 256), None, None, a.seq, a.seq, device=device)
    tokens, labels = lm_batch(a, 4, device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return Run(model, opt, steps(lambda: F.cross_entropy(compiled(tokens, mask).flatten(0, 1).float(), labels.flatten()), opt))


class ConvBlock(nn.Module):
    """ConvNeXt's."""

    def __init__(self, dim):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(dim, dim, 7, padding=3, groups=dim), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)


class ConvNet(nn.Module):
    def __init__(self, dims=(96, 192, 384), classes=1000):
        super().__init__()
        parts = [nn.Conv2d(3, dims[0], 4, 4)]
        for i, dim in enumerate(dims):
            parts += [ConvBlock(dim), ConvBlock(dim)] + ([nn.Conv2d(dim, dims[i + 1], 2, 2)] if i + 1 < len(dims) else [])
        self.body, self.head = nn.Sequential(*parts), nn.Linear(dims[-1], classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inp, out, stride):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(inp, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.c2, self.b2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.skip = nn.Sequential(nn.Conv2d(inp, out, 1, stride, bias=False), nn.BatchNorm2d(out)) if stride > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + self.skip(x))


def small_resnet():
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Residual(64, 64, 1), Residual(64, 128, 2), Residual(128, 256, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000),
    )  # fmt: skip


class UNet(nn.Module):
    """A diffusion model's: group norm, SiLU, upsampling, skips."""

    def __init__(self, c=64):
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.GroupNorm(8, i), nn.SiLU(), nn.Conv2d(i, o, 3, 1, 1))  # noqa: E731
        self.first, self.last = nn.Conv2d(4, c, 3, 1, 1), nn.Conv2d(c, 4, 3, 1, 1)
        self.d1, self.d2, self.mid = block(c, 2 * c), block(2 * c, 4 * c), block(4 * c, 4 * c)
        self.u1, self.u2 = block(8 * c, 2 * c), block(4 * c, c)

    def forward(self, x):
        x = self.first(x)
        a = self.d1(x)
        b = self.d2(F.avg_pool2d(a, 2))
        m = self.mid(b)
        y = F.interpolate(self.u1(torch.cat((m, b), 1)), scale_factor=2.0, mode="nearest")
        return self.last(self.u2(torch.cat((y, a), 1)))


def vision(make, batch, size, channels=3, channels_last=False, autocast=B16, optimizer=None, **kw):
    def build(device):
        with torch.device(device):
            model = make()
            x = torch.randn(batch, channels, size, size)
            y = torch.randint(0, 1000, (batch,))
        if channels_last:
            model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        opt = (optimizer or partial(torch.optim.SGD, lr=0.1, momentum=0.9))(model.parameters())
        compiled = torch.compile(model)

        def loss():
            out = compiled(x)
            return F.mse_loss(out.float(), x.float()) if out.dim() == 4 else F.cross_entropy(out.float(), y)

        return Run(model, opt, steps(loss, opt, autocast=autocast, **kw))

    return build


# ---- ways of compiling -----------------------------------------------------------------------------------------------------


def checkpointed_blocks(model, **kw):
    """Each block compiled, the checkpoint around it."""
    compile_blocks(model)
    model.checkpoint = True


def saving_products(model):
    """Selective checkpointing inside of what is compiled: results of matrix products are saved, the rest is recomputed."""

    def policy(ctx, op, *args, **kwargs):
        is_product = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    def forward(tokens):
        h, cos, sin = model.embed(tokens), model.cos[: tokens.shape[1]], model.sin[: tokens.shape[1]]
        for layer in model.layers:
            h = checkpoint(
                layer, h, cos, sin, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, policy)
            )
        return model.head(model.norm(h))

    return torch.compile(forward)


def changing_lengths(device, dynamic=None, lengths=(512, 768, 1024)):
    """Another length each step: compiled for one, then for any."""
    a = SMALL
    with torch.device(device):
        model = Llama(a).to(B16)
    compiled = torch.compile(model, dynamic=dynamic)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = [tuple(torch.randint(0, a.vocab, (4, length), device=device) for _ in range(2)) for length in lengths]
    number = iter(range(10**6))

    def loss():
        tokens, labels = batches[next(number) % len(batches)]
        return F.cross_entropy(compiled(tokens).flatten(0, 1).float(), labels.flatten())

    return Run(model, opt, steps(loss, opt))


def compiled_step(make_optimizer, layers=2):
    def build(device):
        a = LlamaArgs(dim=512, layers=layers, heads=8, kv_heads=8, hidden=1408, vocab=8000, seq=512)
        with torch.device(device):
            model = Llama(a)
        opt = make_optimizer(model.parameters())
        update = torch.compile(lambda: opt.step())
        tokens, labels = lm_batch(a, 4, device)
        loss = lambda: F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())  # noqa: E731
        return Run(model, opt, steps(loss, opt, step_of=update))

    return build


def chunked_loss(device):
    """Only the loss is compiled."""
    a = SMALL
    with torch.device(device):
        model = Llama(a).to(B16)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens, labels = lm_batch(a, 4, device)
    loss_of = torch.compile(lambda logits, y: F.cross_entropy(logits.flatten(0, 1).float(), y.flatten()))
    return Run(model, opt, steps(lambda: loss_of(model(tokens), labels), opt))


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.relu(x).square()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * F.relu(x)


def own_function(device):
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(6))).to(device)

    def run(x):
        for layer in model:
            x = x + Squared.apply(layer(x))
        return x.square().mean()

    compiled = torch.compile(run)
    x = torch.randn(8192, 2048, device=device)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    return Run(model, opt, steps(lambda: compiled(x), opt, autocast=B16))


def fsdp2(reshard=True, ckpt=False, size=8, a=LlamaArgs(dim=2048, layers=4, heads=16, kv_heads=8, hidden=5632)):
    @world(size)
    def build(device):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh("cuda", (size,), mesh_dim_names=("dp",))
        with torch.device(device):
            model = GPT(a, tied=False)
        compile_blocks(model, fullgraph=True)
        policy = MixedPrecisionPolicy(B16, torch.float32)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens, labels = lm_batch(a, 2, device)
        loss = lambda: F.cross_entropy(model(tokens).flatten(0, 1).float(), labels.flatten())  # noqa: E731
        return Run(model, opt, steps(loss, opt, clip=1.0), fsdp=True)

    return build


def tensor_parallel(size=4, a=LlamaArgs(dim=2048, layers=2, heads=16, kv_heads=16, hidden=8192)):
    @world(size)
    def build(device):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        class MLP(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.LayerNorm(a.dim)
                self.w1, self.w2 = nn.Linear(a.dim, a.hidden, bias=False), nn.Linear(a.hidden, a.dim, bias=False)

            def forward(self, x):
                return x + self.w2(F.gelu(self.w1(self.norm(x))))

        mesh = init_device_mesh("cuda", (size,), mesh_dim_names=("tp",))
        with torch.device(device):
            layers = nn.ModuleList(MLP() for _ in range(4))
        for layer in layers:
            parallelize_module(layer, mesh, {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
            layer.compile()
        opt = torch.optim.AdamW(layers.parameters(), lr=1e-4, foreach=False)
        x = torch.randn(4, 1024, a.dim, device=device)

        def loss():
            y = x
            for layer in layers:
                y = layer(y)
            return y.square().mean()

        return Run(layers, opt, steps(loss, opt, autocast=B16))

    return build


def ddp(device):
    model = nn.parallel.DistributedDataParallel(GPT(SMALL).to(device))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = torch.compile(model)
    tokens, labels = lm_batch(SMALL, 4, device)
    loss = lambda: F.cross_entropy(compiled(tokens).flatten(0, 1).float(), labels.flatten())  # noqa: E731
    return Run(model, opt, steps(loss, opt, autocast=B16))


ddp.world, ddp.is_nccl = 1, True


def hugging_face(*args, **kw):
    def build(device):
        run = hf(*args, **kw)(device)
        run.model.compile()
        return run

    return build


BLIND = {
    "gpt": language_model(GPT, torch.compile),
    "gpt_dropout": language_model(partial(GPT, dropout=0.1), torch.compile),
    "gpt_fp32": language_model(GPT, torch.compile, autocast=None, batch=2),
    "gpt_vocab_50257": language_model(GPT, torch.compile, a=LlamaArgs(dim=768, layers=2, heads=12, vocab=50257, seq=1024)),
    "gpt_breaks": language_model(BrokenGPT, torch.compile),
    "gpt_fp16_scaler": lambda device: _scaled(device),
    "llama_blocks": language_model(Llama, compile_blocks, dtype=B16, autocast=None),
    "llama_accumulate_clip": language_model(Llama, torch.compile, accumulate=2, clip=1.0),
    "llama_foreach": language_model(Llama, torch.compile, optimizer=partial(torch.optim.AdamW, lr=1e-4)),
    "llama_checkpoint_blocks": language_model(Llama, checkpointed_blocks, batch=8),
    "llama_selective": language_model(Llama, saving_products, batch=8),
    "llama_adapters": language_model(with_adapters, torch.compile, dtype=B16, autocast=None),
    "llama_aot_eager": language_model(Llama, partial(torch.compile, backend="aot_eager")),
    "llama_eager_backend": language_model(Llama, partial(torch.compile, backend="eager")),
    "llama_reduce_overhead": language_model(Llama, partial(torch.compile, mode="reduce-overhead"), dtype=B16, autocast=None),
    "gpt_reduce_overhead_blocks": language_model(GPT, partial(compile_blocks, mode="reduce-overhead"), dtype=B16, autocast=None),
    "llama_lengths": changing_lengths,
    "llama_dynamic": partial(changing_lengths, dynamic=True),
    "llama_loss_only": chunked_loss,
    "flex_attention": flex,
    "own_function": own_function,
    "step_sgd": compiled_step(partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
    "step_adamw": compiled_step(partial(torch.optim.AdamW, lr=1e-4)),
    "convnext": vision(ConvNet, 32, 224),
    "convnext_channels_last": vision(ConvNet, 32, 224, channels_last=True),
    "resnet_small": vision(small_resnet, 64, 224, channels_last=True),
    "unet": vision(UNet, 16, 64, channels=4, optimizer=partial(torch.optim.AdamW, lr=1e-4)),
    "hf_bert": hugging_face("BertForMaskedLM", dict(num_hidden_layers=3), 16, 512),
    "hf_vit": hugging_face("ViTForImageClassification", dict(num_labels=10, num_hidden_layers=4), 32, image=224),
    "hf_qwen3": hugging_face(
        "Qwen3ForCausalLM",
        dict(hidden_size=1024, num_hidden_layers=3, num_attention_heads=16, num_key_value_heads=8, intermediate_size=3072,
             vocab_size=32000, head_dim=64), 4, 1024, dtype=B16, autocast=None,
    ),
    "hf_t5": hugging_face(
        "T5ForConditionalGeneration",
        dict(d_model=512, d_ff=1024, num_layers=2, num_heads=8, decoder_start_token_id=0, pad_token_id=0), 8, 512,
    ),
    "hf_opt": hugging_face(
        "OPTForCausalLM",
        dict(hidden_size=768, num_hidden_layers=3, num_attention_heads=12, ffn_dim=3072, word_embed_proj_dim=768), 8, 512,
    ),
    "fsdp2": fsdp2(),
    "fsdp2_keep": fsdp2(reshard=False),
    "tensor_parallel": tensor_parallel(),
    "ddp": ddp,
}  # fmt: skip


def _scaled(device):
    scaler = torch.amp.GradScaler("cuda")
    return language_model(GPT, torch.compile, autocast=torch.float16, scaler=scaler)(device)


# ---- predicting, measuring, comparing ----------------------------------------------------------------------------------------


def predict_one(build_run) -> dict:
    import memfit

    world_size = getattr(build_run, "world", 0)
    levels = []

    def build():
        if world_size:
            torch.distributed.init_process_group("nccl")
        run = build_run("cuda")

        def step():
            seen = {}
            run.step(lambda mark: seen.setdefault(mark, torch.cuda.memory_allocated()))
            levels.append(seen)

        return step

    start = time.perf_counter()
    prediction = memfit.predict(build, gpu="H200", world_size=max(world_size, 1), steps=STEPS, torch_version="2.11+cu130")
    return {
        "peak": prediction.peak_allocated,
        "reserved": prediction.peak_reserved,
        "steps": [step.peak_allocated for step in prediction.steps],
        "levels": levels,
        "seconds": round(time.perf_counter() - start, 1),
        "torch": torch.__version__,
        "assumptions": list(prediction.assumptions),
    }


def measure_one(build_run) -> dict:
    cuda = torch.cuda
    world_size = getattr(build_run, "world", 0)
    if world_size:
        _join(world_size, getattr(build_run, "is_nccl", False))
    torch.manual_seed(0)
    cuda.init()
    run = build_run("cuda")
    cuda.synchronize()
    peaks, levels, initial = [], [], cuda.max_memory_allocated()
    for _ in range(STEPS):
        seen = {}
        cuda.reset_peak_memory_stats()
        run.step(lambda mark, seen=seen: (cuda.synchronize(), seen.setdefault(mark, cuda.memory_allocated())))
        cuda.synchronize()
        peaks.append(cuda.max_memory_allocated())
        levels.append(seen)
    return {
        "peak": max(initial, *peaks),
        "reserved": cuda.max_memory_reserved(),
        "steps": peaks,
        "levels": levels,
        "torch": torch.__version__,
    }


def _join(world_size: int, is_nccl: bool) -> None:
    import torch.distributed as dist

    if is_nccl:
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)


def in_fresh_process(name: str, action: list[str], limit_s: float) -> dict:
    """Compiled kernels of one process are not found by the next."""
    with tempfile.TemporaryDirectory() as cache:
        import os

        from benchmarks.accuracy.accuracy import problem_in

        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
        command = [sys.executable, __file__, *action, "--one", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=environment)
        except subprocess.TimeoutExpired:
            return {"error": f"no answer in {limit_s:.0f} s"}
        answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return json.loads(answers[-1]) if answers else {"error": problem_in(done.stderr)[:300]}


def read(path: pathlib.Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


class Files:
    """Where the figures of a set are. Predictions made again are in files of their own, by the torch that was installed."""

    def __init__(self, name: str, is_again: bool) -> None:
        self.is_again = is_again
        again = f"_again_{'.'.join(torch.__version__.split('.')[:2])}" if is_again else ""
        self.measured = RESULTS / f"compiled_{name}_measured.json"
        self.predicted = RESULTS / f"compiled_{name}{again or '_predicted'}.json"
        self.table = RESULTS / f"compiled_{name}{again}.md"


def workloads_of(name: str) -> dict:
    if name == "blind":
        return BLIND
    from benchmarks.blind.compiled_kinds import KINDS

    return KINDS


def run_all(names: list[str], action: list[str], path: pathlib.Path, jobs: int, limit_s: float) -> None:
    with ThreadPoolExecutor(jobs) as pool:
        for name, found in zip(names, pool.map(lambda name: in_fresh_process(name, action, limit_s), names), strict=True):
            path.write_text(json.dumps(read(path) | {name: found}, indent=1) + "\n")
            print(
                name,
                found.get("error") or f"{found['peak'] / MIB:,.1f} MiB, reserved {found['reserved'] / MIB:,.1f} MiB",
                flush=True,
            )


def compare(names: list[str], files: Files) -> list[str]:
    predicted, measured = read(files.predicted), read(files.measured)
    installed = ", ".join(sorted({said["torch"] for said in predicted.values() if "torch" in said}))
    lines = [
        f"Compiled workloads, predicted without a GPU (torch {installed} installed) for an H200 with torch 2.11, and measured:",
        "`python benchmarks/blind/compiled_blind.py`. MiB; `worst step` is the worst of the peaks of single steps.",
        *([NOT_BLIND] if files.is_again else []),
        "",
        "| workload | measured | predicted | off | worst step | reserved |",
        "|---|---|---|---|---|---|",
    ]
    offs: dict[str, list[float]] = {"Allocated peak": [], "Worst step": [], "Reserved peak": []}
    for name in names:
        said, truth = predicted.get(name, {"error": "not predicted"}), measured.get(name, {"error": "not measured"})
        if "error" in said or "error" in truth:
            problem = said.get("error") or truth["error"]
            lines.append(f"| {name} | {'' if 'error' in truth else round(truth['peak'] / MIB, 1)} | {problem[:100]} | | | |")
            continue
        off = said["peak"] / truth["peak"] - 1
        steps_off = [one / other - 1 for one, other in zip(said.get("steps", ()), truth["steps"], strict=False)]
        step = max(steps_off, key=abs, default=None)
        reserved = said["reserved"] / truth["reserved"] - 1
        for what, value in zip(offs, (off, step, reserved), strict=True):
            if value is not None:
                offs[what].append(abs(value))
        step_text = "" if step is None else f"{step:+.2%}"
        lines.append(
            f"| {name} | {truth['peak'] / MIB:,.1f} | {said['peak'] / MIB:,.1f} | {off:+.2%} | {step_text} | {reserved:+.2%} |"
        )
    ran = len(offs["Allocated peak"])
    lines += ["", f"{ran} of {len(names)} workloads have both figures."]
    if "ddp" in names:
        lines.append(DDP_AGAIN)
    with contextlib.suppress(statistics.StatisticsError):
        lines += [f"{what}: off by {statistics.median(v):.2%} in the median, {max(v):.2%} at worst." for what, v in offs.items()]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", help="all if none")
    parser.add_argument("--set", default="blind", choices=("blind", "kinds"))
    parser.add_argument("--again", action="store_true", help="predictions of workloads whose measurement is known")
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--one", action="store_true", help="in this process, as JSON")
    parser.add_argument("--jobs", type=int, default=0, help="processes at a time: 2 for predictions, 8 on a GPU")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    workloads = workloads_of(args.set)
    if args.one:
        name = args.workloads[0]
        print(json.dumps((predict_one if args.predict else measure_one)(workloads[name])))
        return
    files = Files(args.set, args.again)
    names = args.workloads or list(workloads)
    if args.predict:
        run_all(names, ["--set", args.set, "--predict"], files.predicted, args.jobs or 2, 600)
    if args.measure:
        run_all(names, ["--set", args.set, "--measure"], files.measured, args.jobs or 8, 300)
    if args.compare:
        lines = compare(list(workloads), files)
        files.table.write_text("\n".join(lines) + "\n")
        print("\n".join(lines))


if __name__ == "__main__":
    main()
