"""How large models are trained today: compiled, in float8, pipelined, with context and expert parallelism. Same contract as zoo.py.

``FRONTIER[name](device)`` returns a ``Run``; a workload that is one rank of several has ``.world`` and ``.rank``. What an H200 did
is in ``truth/h200_frontier.json``: multi-GPU rows were measured as one rank under the fake process group, with real allocations.
``python benchmarks/accuracy/accuracy.py --zoo frontier`` predicts them.
"""

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.workloads.zoo import B16, Block, Llama, LlamaArgs, RMSNorm, Run, hf, lm_batch, lm_step, single


def world(size, rank=0):
    def mark(build):
        build.world, build.rank = size, rank
        return build

    return mark


def _std_step(model, optimizer, loss_fn, autocast=None, clip=None):
    def step(mark):
        with torch.autocast("cuda", dtype=autocast or B16, enabled=autocast is not None):
            loss = loss_fn()
        mark("forward")
        loss.backward()
        del loss
        mark("backward")
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        mark("step")
        optimizer.zero_grad(set_to_none=True)
        mark("zero")

    return step


MID = LlamaArgs(dim=2048, layers=8, heads=16, kv_heads=8, hidden=5632)


# ---- compiled ------------------------------------------------------------------------------------------------------------


def compiled(
    batch=4,
    a=LlamaArgs(),
    dtype=torch.float32,
    autocast=B16,
    ckpt=False,
    mode=None,
    per_block=False,
    fused=False,
    step_too=False,
    **kw,
):
    def build(device):
        run = single(a, batch=batch, dtype=dtype, autocast=autocast, ckpt=ckpt, **({"fused": True} if fused else {}))(device)
        tokens, labels = lm_batch(a, batch, device)
        model = run.model
        if per_block:
            for layer in model.layers:
                layer.compile(**kw)
        else:
            model = torch.compile(model, mode=mode, **kw)
        opt = run.optimizer
        if step_too:

            class CompiledStep:
                step, zero_grad = staticmethod(torch.compile(lambda: run.optimizer.step())), run.optimizer.zero_grad

            opt = CompiledStep
        return Run(run.model, opt, lm_step(model, opt, tokens, labels, autocast=autocast))

    return build


def compiled_loss(device):
    """Model and loss in one graph: the logits' gradient is fused."""
    run = single(batch=4, dtype=B16, fused=True)(device)
    tokens, labels = lm_batch(LlamaArgs(), 4, device)
    loss = torch.compile(lambda t, y: F.cross_entropy(run.model(t).flatten(0, 1).float(), y.flatten()))
    return Run(run.model, run.optimizer, _std_step(run.model, run.optimizer, lambda: loss(tokens, labels), clip=1.0))


def hf_compiled(name, cfg, *args, **kw):
    def build(device):
        run = hf(name, cfg, *args, **kw)(device)
        run.model.compile()
        return run

    return build


def resnet_compiled(device):
    run = hf("ResNetForImageClassification", dict(num_labels=1000), 64, image=224)(device)
    run.model.to(memory_format=torch.channels_last)
    run.model.compile()
    return run


def fsdp2_compiled(
    ckpt=False, a=LlamaArgs(dim=2048, layers=16, heads=16, kv_heads=8, hidden=5632), batch=2, size=8, selective=False
):
    @world(size)
    def build(device):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        dm = init_device_mesh("cuda", (size,), mesh_dim_names=("dp",))
        with torch.device("meta"):
            model = Llama(a)
        for i, layer in enumerate(model.layers):
            if ckpt and (not selective or i % 2 == 0):
                layer = checkpoint_wrapper(layer, preserve_rng_state=False)
            layer.compile(fullgraph=True)
            model.layers[i] = layer
        mp = MixedPrecisionPolicy(B16, torch.float32)
        for layer in model.layers:
            fully_shard(layer, mesh=dm, mp_policy=mp)
        fully_shard(model, mesh=dm, mp_policy=mp)
        model.to_empty(device=device)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(0.01)
            model.cos.fill_(1.0), model.sin.fill_(0.0)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        tokens, labels = lm_batch(a, batch, device)
        return Run(model, opt, lm_step(model, opt, tokens, labels, clip=1.0), fsdp=True)

    return build


# ---- float8 --------------------------------------------------------------------------------------------------------------

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


def to_fp8(x, dtype):
    s = torch.finfo(dtype).max / x.abs().amax().float().clamp(min=1e-12)
    return (x.float() * s).clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype), s.reciprocal()


class Float8Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        flat = x.flatten(0, -2)
        x8, sx = to_fp8(flat, E4)
        w8, sw = to_fp8(w, E4)
        ctx.save_for_backward(flat, w)
        ctx.shape = x.shape
        return torch._scaled_mm(x8, w8.t(), sx, sw, out_dtype=B16, use_fast_accum=True).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, g):
        flat, w = ctx.saved_tensors
        g = g.flatten(0, -2)
        g8, sg = to_fp8(g, E5)
        w8, sw = to_fp8(w, E4)
        dx = torch._scaled_mm(g8, w8.t().contiguous().t(), sg, sw, out_dtype=B16)
        x8, sx = to_fp8(flat, E4)
        dw = torch._scaled_mm(g8.t().contiguous(), x8.t().contiguous().t(), sg, sx, out_dtype=B16)
        return dx.view(ctx.shape), dw


class Float8Linear(nn.Linear):
    def forward(self, x):
        return Float8Matmul.apply(x, self.weight)


def float8(compile=False):
    def build(device):
        a = MID
        with torch.device(device):
            model = Llama(a).to(B16)
        for layer in model.layers:
            for m in layer.modules():
                if isinstance(m, nn.Linear):
                    m.__class__ = Float8Linear
            if compile:
                layer.compile()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        tokens, labels = lm_batch(a, 2, device)
        return Run(model, opt, lm_step(model, opt, tokens, labels))

    return build


# ---- pipelines -----------------------------------------------------------------------------------------------------------


class Stage(nn.Module):
    def __init__(self, a, first, last, layers):
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.dim) if first else None
        self.layers = nn.ModuleList(Block(a) for _ in range(layers))
        self.norm, self.head = (RMSNorm(a.dim), nn.Linear(a.dim, a.vocab, bias=False)) if last else (None, None)
        d = a.dim // a.heads
        t = torch.outer(torch.arange(a.seq).float(), 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d))
        self.register_buffer("cos", t.cos()), self.register_buffer("sin", t.sin())

    def forward(self, h):
        if self.embed is not None:
            h = self.embed(h)
        for layer in self.layers:
            h = layer(h, self.cos, self.sin)
        return self.head(self.norm(h)) if self.head is not None else h


def pipeline(schedule, rank, stages=4, virtual=1, micro=8, batch=8, dp=1, a=MID):
    @world(stages * dp, rank * dp)
    def build(device):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.pipelining import PipelineStage, schedules

        mesh = init_device_mesh("cuda", (stages, dp), mesh_dim_names=("pp", "dp"))
        group = mesh["pp"].get_group()
        total = stages * virtual
        zbv = "ZBV" in schedule
        mine = [rank, total - 1 - rank] if zbv else [rank + stages * v for v in range(virtual)]
        parts, mods = [], []
        mb = batch // micro
        for s in mine:
            with torch.device(device):
                mod = Stage(a, s == 0, s == total - 1, a.layers // total).to(B16)
            if dp > 1:
                for layer in mod.layers:
                    fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=False)
                fully_shard(mod, mesh=mesh["dp"], reshard_after_forward=False)
            hidden = torch.empty(mb, a.seq, a.dim, dtype=B16, device="meta")
            inp = torch.empty(mb, a.seq, dtype=torch.long, device="meta") if s == 0 else hidden
            out = torch.empty(mb, a.seq, a.vocab, dtype=B16, device="meta") if s == total - 1 else hidden
            parts.append(PipelineStage(mod, s, total, torch.device("cuda", 0), input_args=(inp,), output_args=(out,), group=group))
            mods.append(mod)

        def loss(o, y):
            return F.cross_entropy(o.flatten(0, 1).float(), y.flatten())

        cls = schedules.get_schedule_class(schedule)
        sched = cls(parts if issubclass(cls, schedules.PipelineScheduleMulti) else parts[0], micro, loss_fn=loss)
        model = nn.ModuleList(mods)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens, labels = lm_batch(a, batch, device)
        has_first, has_last = 0 in mine, total - 1 in mine

        def step(mark):
            kw = dict(target=labels, losses=[]) if has_last else {}
            sched.step(*((tokens,) if has_first else ()), **kw)
            mark("backward")
            opt.step()
            opt.zero_grad()
            mark("step")

        return Run(model, opt, step, fsdp=dp > 1)

    return build


# ---- context and expert parallelism --------------------------------------------------------------------------------------


def context(rotate, size=4):
    @world(size)
    def build(device):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method
        from torch.nn.attention import SDPBackend, sdpa_kernel

        mesh = init_device_mesh("cuda", (size,), mesh_dim_names=("cp",))
        set_rotate_method(rotate)
        a = LlamaArgs(dim=2048, layers=4, heads=16, kv_heads=16, hidden=5632, seq=16384)
        with torch.device(device):
            model = Llama(a).to(B16)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step(mark):
            tokens, labels = lm_batch(a, 1, device)
            shared = context_parallel(
                mesh,
                buffers=[tokens, labels, model.cos, model.sin],
                buffer_seq_dims=[1, 1, 0, 0],
                no_restore_buffers={tokens, labels},
            )
            with shared, sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
                loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), labels.flatten())
                mark("forward")
                loss.backward()
            del loss
            mark("backward")
            opt.step()
            opt.zero_grad()
            mark("step")

        return Run(model, opt, step)

    return build


class Experts(nn.Module):
    """Dropless experts, tokens exchanged in equal shares, grouped matrix products."""

    def __init__(self, dim, hidden, experts, k, ep):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        shapes = ((dim, hidden), (hidden, dim), (dim, hidden))
        self.w1, self.w2, self.w3 = (nn.Parameter(torch.empty(experts // ep, *s).normal_(0, 0.02)) for s in shapes)
        self.k, self.ep, self.e, self.group = k, ep, experts, None

    def forward(self, x):
        from torch.distributed._functional_collectives import all_to_all_single_autograd as a2a

        flat = x.flatten(0, -2)
        w, idx = self.gate(flat).softmax(-1).topk(self.k, -1)
        order = idx.flatten().argsort()
        tok = order // self.k
        sent = flat[tok]
        n = sent.shape[0] // self.ep
        got = a2a(sent, [n] * self.ep, [n] * self.ep, self.group) if self.ep > 1 else sent
        local = self.e // self.ep
        offs = torch.arange(1, local + 1, device=x.device, dtype=torch.int32) * (got.shape[0] // local)
        h = F.silu(torch._grouped_mm(got, self.w1, offs=offs)) * torch._grouped_mm(got, self.w3, offs=offs)
        y = torch._grouped_mm(h, self.w2, offs=offs)
        back = a2a(y, [n] * self.ep, [n] * self.ep, self.group) if self.ep > 1 else y
        out = torch.zeros_like(flat)
        return out.index_add(0, tok, back * w.flatten()[order, None].to(back.dtype)).view_as(x)


def forward_with_experts(layer):
    def forward(x, cos, sin):
        y = x + layer.attention(layer.attention_norm(x), cos, sin)
        return y + layer.moe(layer.ffn_norm(y))

    return forward


def experts(ep, ckpt=False):
    @world(max(ep, 1))
    def build(device):
        from torch.distributed.device_mesh import init_device_mesh

        a = LlamaArgs(dim=1024, layers=6, hidden=2816)
        with torch.device(device):
            model = Llama(a)
            for layer in model.layers:
                layer.moe = Experts(1024, 1408, 32, 4, ep)
                del layer.w1, layer.w2, layer.w3
                layer.forward = forward_with_experts(layer)
        model.to(B16)
        if ep > 1:
            mesh = init_device_mesh("cuda", (ep,), mesh_dim_names=("ep",))
            for layer in model.layers:
                layer.moe.group = mesh.get_group()
        model.checkpoint = ckpt
        opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        tokens, labels = lm_batch(a, 4, device)
        return Run(model, opt, lm_step(model, opt, tokens, labels, clip=1.0))

    return build


FRONTIER = {
    "f_c_llama_amp": compiled(),
    "f_c_llama_ckpt": compiled(ckpt=True, batch=8),
    "f_c_llama_fp32": compiled(autocast=None, batch=2),
    "f_c_reduce_overhead": compiled(mode="reduce-overhead", dtype=B16, autocast=None, fused=True),
    "f_c_loss": compiled_loss,
    "f_c_gpt2": hf_compiled("GPT2LMHeadModel", dict(n_embd=768, n_layer=12, n_head=12), 8, 1024),
    "f_c_resnet": resnet_compiled,
    "f_c_fsdp2": fsdp2_compiled(),
    "f_c_fsdp2_selective": fsdp2_compiled(ckpt=True, selective=True, batch=4),
    "f_fp8": float8(),
    "f_fp8_compiled": float8(compile=True),
    "f_pp_gpipe_0": pipeline("GPipe", 0),
    "f_pp_1f1b_0": pipeline("1F1B", 0),
    "f_pp_1f1b_3": pipeline("1F1B", 3),
    "f_pp_interleaved_0": pipeline("Interleaved1F1B", 0, virtual=2),
    "f_pp_fsdp_3": pipeline("1F1B", 3, dp=4),
    "f_cp_allgather": context("allgather"),
    "f_moe_ep8": experts(8),
}
