"""Ranks, schedules and combinations that nothing was tuned to: predicted first, measured afterwards.

    python benchmarks/blind/ranks_blind.py --predict             # without a GPU: results/ranks_blind.json
    python benchmarks/blind/ranks_blind.py --measure             # on a GPU: truth/ranks_blind.json
    python benchmarks/blind/ranks_blind.py --compare             # results/ranks_blind.md
    python benchmarks/blind/ranks_blind.py --predict pp_zbv_0    # some of them

Each row is one rank of a job under torch's fake process group, in a process of its own: every buffer is really allocated, and no
peer is needed. Commit the predictions before you measure.
"""

from __future__ import annotations

import pathlib
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.blind.parallel_recipes import RECIPES
from benchmarks.blind.two_sides import Sides, begin_trace, main, write_trace
from benchmarks.workloads.frontier_zoo import E4, E5, Experts, Float8Linear, Stage, pipeline, world
from benchmarks.workloads.zoo import B16, Llama, LlamaArgs, Run, fsdp2, lm_batch, lm_step

STEPS = 3
SMALL = LlamaArgs(dim=1536, layers=8, heads=12, kv_heads=4, hidden=4096, vocab=50304, seq=1024)


# -- pipelines with more in a stage --------------------------------------------------------------------------------------------


def fuller_pipeline(schedule, rank, *, stages=2, virtual=1, micro=8, batch=16, tp=1, dp=1, ckpt=False, precision=B16, a=SMALL):
    """Stages with tensor parallelism, FSDP with mixed precision, or checkpointed blocks."""

    @world(stages * dp * tp, rank * dp * tp)
    def build(device):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from torch.distributed.pipelining import PipelineStage, schedules
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cuda", (stages, dp, tp), mesh_dim_names=("pp", "dp", "tp"))
        total = stages * virtual
        mine = [rank, total - 1 - rank] if "V" in schedule else [rank + stages * turn for turn in range(virtual)]
        parts, per = [], batch // micro
        for number in mine:
            with torch.device(device):
                part = Stage(a, number == 0, number == total - 1, a.layers // total).to(precision)
            plan = {"w1": ColwiseParallel(), "w3": ColwiseParallel(), "w2": RowwiseParallel()}
            for index, layer in enumerate(part.layers):
                if tp > 1:
                    parallelize_module(layer, mesh["tp"], plan)
                part.layers[index] = checkpoint_wrapper(layer, preserve_rng_state=False) if ckpt else layer
            if dp > 1:
                policy = MixedPrecisionPolicy(param_dtype=B16, reduce_dtype=torch.float32)
                for layer in part.layers:
                    fully_shard(layer, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)
                fully_shard(part, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)
            sent = torch.empty(per, a.seq, a.dim, dtype=B16 if dp > 1 else precision, device="meta")
            tokens = torch.empty(per, a.seq, dtype=torch.long, device="meta")
            logits = torch.empty(per, a.seq, a.vocab, dtype=sent.dtype, device="meta")
            parts.append(
                PipelineStage(
                    part,
                    number,
                    total,
                    torch.device("cuda", 0),
                    input_args=(tokens if number == 0 else sent,),
                    output_args=(logits if number == total - 1 else sent,),
                    group=mesh["pp"].get_group(),
                )
            )
        kind = schedules.get_schedule_class(schedule)
        runner = kind(
            parts if issubclass(kind, schedules.PipelineScheduleMulti) else parts[0],
            micro,
            loss_fn=lambda output, target: F.cross_entropy(output.flatten(0, 1).float(), target.flatten()),
        )
        model = nn.ModuleList(part.submod for part in parts)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=tp == 1)
        tokens, labels = lm_batch(a, batch, device)

        def step(mark):
            last = {"target": labels, "losses": []} if total - 1 in mine else {}
            runner.step(*((tokens,) if 0 in mine else ()), **last)
            mark("backward")
            optimizer.step()
            optimizer.zero_grad()
            mark("step")

        return Run(model, optimizer, step)

    return build


# -- context parallelism -------------------------------------------------------------------------------------------------------


def context(rotate, rank, size=4, *, backend="FLASH_ATTENTION", balanced=True, kv_heads=16, seq=16384, batch=1):
    @world(size, rank)
    def build(device):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import _cp_options, set_rotate_method
        from torch.nn.attention import SDPBackend, sdpa_kernel

        mesh = init_device_mesh("cuda", (size,), mesh_dim_names=("cp",))
        set_rotate_method(rotate)
        _cp_options.enable_load_balance = balanced
        a = LlamaArgs(dim=2048, layers=3, heads=16, kv_heads=kv_heads, hidden=5632, seq=seq)
        with torch.device(device):
            model = Llama(a).to(B16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step(mark):
            tokens, labels = lm_batch(a, batch, device)
            buffers = [tokens, labels, model.cos, model.sin]
            parallel = context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1, 1, 0, 0], no_restore_buffers={tokens, labels})
            with parallel, sdpa_kernel([getattr(SDPBackend, backend)]):
                loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), labels.flatten())
                mark("forward")
                loss.backward()
            del loss
            mark("backward")
            optimizer.step()
            optimizer.zero_grad()
            mark("step")

        return Run(model, optimizer, step)

    return build


# -- expert parallelism --------------------------------------------------------------------------------------------------------


class SharedExperts(Experts):
    """One dense expert beside the routed ones."""

    def __init__(self, dim, hidden, experts, k, ep):
        super().__init__(dim, hidden, experts, k, ep)
        self.up, self.down = nn.Linear(dim, 2 * hidden, bias=False), nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        gate, value = self.up(x).chunk(2, -1)
        return super().forward(x) + self.down(F.silu(gate) * value)


def experts(ep, rank=0, *, num=32, k=4, kind=Experts, ckpt=False, fsdp=False, batch=4, fused=True):
    @world(max(ep, 1), rank)
    def build(device):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        a = LlamaArgs(dim=1024, layers=5, hidden=2816)
        with torch.device(device):
            model = Llama(a)
            for layer in model.layers:
                layer.moe = kind(1024, 1408, num, k, ep)
                del layer.w1, layer.w2, layer.w3
                layer.forward = _with_experts(layer)
        model.to(B16)
        if ep > 1:
            mesh = init_device_mesh("cuda", (ep,), mesh_dim_names=("ep",))
            for layer in model.layers:
                layer.moe.group = mesh.get_group()
                if fsdp:
                    fully_shard(layer.attention, mesh=mesh)
        model.checkpoint = ckpt
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **({"fused": True} if fused else {"foreach": False}))
        tokens, labels = lm_batch(a, batch, device)
        return Run(model, optimizer, lm_step(model, optimizer, tokens, labels))

    return build


def _with_experts(layer):
    def forward(x, cos, sin):
        x = x + layer.attention(layer.attention_norm(x), cos, sin)
        return x + layer.moe(layer.ffn_norm(x))

    return forward


# -- float8 --------------------------------------------------------------------------------------------------------------------


def rowwise(x, dtype):
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / torch.finfo(dtype).max
    return (x.float() / scale).to(dtype), scale


class RowwiseMatmul(torch.autograd.Function):
    """A scale for every row of both factors; the gradient of the weight in bfloat16."""

    @staticmethod
    def forward(ctx, x, w):
        flat = x.flatten(0, -2)
        x8, sx = rowwise(flat, E4)
        w8, sw = rowwise(w, E4)
        ctx.save_for_backward(flat, w)
        ctx.shape = x.shape
        return torch._scaled_mm(x8, w8.t(), sx, sw.t(), out_dtype=B16, use_fast_accum=True).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, g):
        flat, w = ctx.saved_tensors
        g = g.flatten(0, -2)
        g8, sg = rowwise(g, E5)
        w8, sw = rowwise(w.t().contiguous(), E4)
        dx = torch._scaled_mm(g8, w8.t(), sg, sw.t(), out_dtype=B16)
        return dx.view(ctx.shape), g.t() @ flat


class RowwiseLinear(nn.Linear):
    def forward(self, x):
        return RowwiseMatmul.apply(x, self.weight)


def float8(kind=Float8Linear, *, batch=4, ckpt=False, a=SMALL, fsdp=0):
    @world(max(fsdp, 1))
    def build(device):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        with torch.device(device):
            model = Llama(a).to(B16)
        for layer in model.layers:
            for module in layer.modules():
                if isinstance(module, nn.Linear):
                    module.__class__ = kind
        if fsdp:
            mesh = init_device_mesh("cuda", (fsdp,), mesh_dim_names=("dp",))
            for layer in model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        model.checkpoint = ckpt
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        tokens, labels = lm_batch(a, batch, device)
        return Run(model, optimizer, lm_step(model, optimizer, tokens, labels))

    return build


# -- shards ----------------------------------------------------------------------------------------------------------------------


def sharded(size, rank, **more):
    build = fsdp2(world=size, **more)
    return world(size, rank)(lambda device: build(device))


def tensor_parallel(tp, dp, rank, a=SMALL, batch=2):
    """Tensor and sequence parallelism in the blocks, FSDP around them."""

    @world(tp * dp, rank)
    def build(device):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cuda", (dp, tp), mesh_dim_names=("dp", "tp"))
        with torch.device(device):
            model = Llama(a).to(B16)
        plan = {"w1": ColwiseParallel(), "w3": ColwiseParallel(), "w2": RowwiseParallel()}
        for layer in model.layers:
            parallelize_module(layer, mesh["tp"], plan)
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
        tokens, labels = lm_batch(a, batch, device)
        return Run(model, optimizer, lm_step(model, optimizer, tokens, labels))

    return build


WIDE = LlamaArgs(dim=2048, layers=6, heads=16, kv_heads=8, hidden=5632)

ROWS = {
    "pp_1f1b_1": pipeline("1F1B", 1),
    "pp_1f1b_2": pipeline("1F1B", 2),
    "pp_gpipe_3": pipeline("GPipe", 3),
    "pp_gpipe_mid": pipeline("GPipe", 1, stages=2, micro=4, batch=16),
    "pp_interleaved_1": pipeline("Interleaved1F1B", 1, virtual=2),
    "pp_interleaved_3": pipeline("Interleaved1F1B", 3, virtual=2),
    "pp_loopedbfs_0": pipeline("LoopedBFS", 0, virtual=2),
    "pp_loopedbfs_3": pipeline("LoopedBFS", 3, virtual=2),
    "pp_izb_0": pipeline("InterleavedZeroBubble", 0, virtual=2),
    "pp_izb_2": pipeline("InterleavedZeroBubble", 2, virtual=2),
    "pp_zbv_0": pipeline("ZBVZeroBubble", 0, virtual=2),
    "pp_zbv_3": pipeline("ZBVZeroBubble", 3, virtual=2),
    "pp_dualpipev_0": fuller_pipeline("DualPipeV", 0, virtual=2),
    "pp_dualpipev_1": fuller_pipeline("DualPipeV", 1, virtual=2),
    "pp_fsdp_0": pipeline("1F1B", 0, dp=4),
    "pp_interleaved_fsdp_1": pipeline("Interleaved1F1B", 1, virtual=2, dp=2),
    "pp_fsdp_mixed_1": fuller_pipeline("1F1B", 1, dp=8, precision=torch.float32),
    "pp_fsdp_mixed_ckpt_0": fuller_pipeline("Interleaved1F1B", 0, virtual=2, dp=4, ckpt=True, precision=torch.float32),
    "pp_ckpt_0": fuller_pipeline("1F1B", 0, stages=4, ckpt=True),
    "pp_tp_0": fuller_pipeline("1F1B", 0, tp=2),
    "pp_tp_1": fuller_pipeline("GPipe", 1, tp=4),
    "pp_fsdp_tp_1": fuller_pipeline("1F1B", 1, dp=2, tp=2, precision=torch.float32),
    "cp_allgather_3": context("allgather", 3),
    "cp_alltoall_1": context("alltoall", 1),
    "cp_pair": context("allgather", 1, 2, kv_heads=8, seq=8192, batch=2),
    "cp_cudnn": context("allgather", 0, backend="CUDNN_ATTENTION"),
    "cp_efficient": context("alltoall", 2, backend="EFFICIENT_ATTENTION"),
    "cp_unbalanced_2": context("allgather", 2, balanced=False),
    "moe_ep4_3": experts(4, 3),
    "moe_ep16_top2": experts(16, 5, num=64, k=2),
    "moe_shared": experts(8, kind=SharedExperts),
    "moe_ckpt": experts(2, 1, ckpt=True, batch=2),
    "moe_fsdp": experts(8, 7, fsdp=True, fused=False),
    "fp8_tensorwise": float8(),
    "fp8_rowwise": float8(RowwiseLinear),
    "fp8_ckpt": float8(ckpt=True, batch=8),
    "fp8_fsdp": float8(fsdp=8),
    "fsdp_uneven_first": sharded(7, 0, a=WIDE),
    "fsdp_uneven_last": sharded(7, 6, a=WIDE),
    "hsdp_last": sharded(8, 7, a=WIDE, mesh=(2, 4)),
    "tp_fsdp_last": tensor_parallel(4, 2, 7),
    **RECIPES,
}


# -- predicting ----------------------------------------------------------------------------------------------------------------


def predict(name: str) -> dict:
    import memfit

    def build():
        torch.distributed.init_process_group("nccl")
        run = ROWS[name]("cuda")
        return lambda: run.step(lambda mark: None)

    row, start = ROWS[name], time.perf_counter()
    found = memfit.predict(build, gpu="H200", world_size=row.world, rank=row.rank, steps=STEPS, torch_version="2.11+cu130")
    return {
        "name": name,
        "world_size": row.world,
        "rank": row.rank,
        "torch": torch.__version__,
        "init": found.init.end_allocated,
        "peaks": [step.peak_allocated for step in found.steps],
        "peak": found.peak_allocated,
        "reserved": found.peak_reserved,
        "seconds": round(time.perf_counter() - start, 1),
        "assumptions": found.assumptions,
    }


# -- measuring -----------------------------------------------------------------------------------------------------------------


def measure(name: str, trace: pathlib.Path | None) -> dict:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    row, cuda = ROWS[name], torch.cuda
    if trace is not None:
        begin_trace()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=row.rank, world_size=row.world)
    torch.manual_seed(0)
    cuda.init()
    run = row("cuda")
    cuda.synchronize()
    init, init_peak, peaks = cuda.memory_allocated(), cuda.max_memory_allocated(), []
    for _ in range(STEPS):
        cuda.reset_peak_memory_stats()
        run.step(lambda mark: None)
        cuda.synchronize()
        peaks.append(cuda.max_memory_allocated())
    if trace is not None:
        write_trace(trace / f"{name}.gz")
    return {
        "name": name,
        "torch": torch.__version__,
        "gpu": cuda.get_device_name(),
        "init": init,
        "peaks": peaks,
        "peak": max(*peaks, init_peak),
        "reserved": cuda.memory_stats()["reserved_bytes.all.peak"],
    }


# -- both sides ----------------------------------------------------------------------------------------------------------------

SIDES = Sides(
    script=pathlib.Path(__file__),
    cases=tuple(ROWS),
    place=lambda name: (name, f"{ROWS[name].rank} of {ROWS[name].world}"),
    predict=predict,
    measure=measure,
    choose=lambda names: names or list(ROWS),
    heading=(
        "Predicted without a GPU before anything was measured, then run on an H200: `python benchmarks/blind/ranks_blind.py`. MiB.",
    ),
)


if __name__ == "__main__":
    main(SIDES, __doc__.splitlines()[0])
