"""DeepSpeed: ZeRO stages, precisions, offloading, pipelines and other models, predicted first and measured afterwards.

    python benchmarks/blind/deepspeed_blind.py --predict              # without a GPU: results/deepspeed_blind.json
    python benchmarks/blind/deepspeed_blind.py --measure --jobs 2     # on a GPU: truth/deepspeed_blind.json
    python benchmarks/blind/deepspeed_blind.py --compare              # results/deepspeed_blind.md

Each row is rank 0 of a job under torch's fake process group, in a process of its own: every buffer is really allocated, and no
peer is needed. DeepSpeed 0.19.8 must be importable; only rows that end in ``_fused`` make it compile anything. Rows that begin with
``e_`` were measured by others (``truth/h200_engines.json``) and known when the engine was written; the others are blind.
"""

from __future__ import annotations

import functools
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.blind.two_sides import BENCHMARKS, Sides, begin_trace, main, read, write_trace

STEPS = 3
KNOWN = read(BENCHMARKS / "truth" / "h200_engines.json")

Step = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One rank of a job; ``build`` gives what a training step does."""

    build: Callable[[], Step]
    world: int = 8


# -- models, each with a batch -------------------------------------------------------------------------------------------------


def tokens(batch: int, length: int, vocab: int) -> torch.Tensor:
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(1))


def language_model(kind: str, batch: int, length: int, **config: Any) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    import transformers

    settings = getattr(transformers, f"{kind}Config")(**config)
    head = {"Bert": "ForMaskedLM", "GPT2": "LMHeadModel", "T5": "ForConditionalGeneration"}.get(kind, "ForCausalLM")
    model = getattr(transformers, f"{kind}{head}")(settings)
    model.config.use_cache = False
    ids = tokens(batch, length, settings.vocab_size)
    return model, {"input_ids": ids, "labels": ids}


def llama(batch: int = 2, length: int = 2048, **config: Any) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8, "num_attention_heads": 16}
    sizes |= {"num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096}
    return language_model("Llama", batch, length, **sizes | config)


def gpt2(batch: int, length: int = 1024, layers: int = 12, width: int = 1024) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return language_model("GPT2", batch, length, n_layer=layers, n_embd=width, n_head=16)


def bert(batch: int, length: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 16}
    return language_model("Bert", batch, length, **sizes)


def t5(batch: int, length: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return language_model(
        "T5", batch, length, d_model=1024, d_ff=2816, d_kv=64, num_heads=16, num_layers=6, decoder_start_token_id=0
    )


def qwen(batch: int, length: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    sizes = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 6, "num_attention_heads": 12}
    return language_model("Qwen2", batch, length, num_key_value_heads=2, vocab_size=64000, tie_word_embeddings=True, **sizes)


def vit(batch: int, dtype: torch.dtype) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    import transformers

    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 16, "num_labels": 1000}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes))
    return model, {"pixel_values": torch.zeros(batch, 3, 224, 224, dtype=dtype), "labels": torch.zeros(batch, dtype=torch.long)}


class Block(nn.Module):
    """A layer of a transformer, perhaps with experts, computed again in backward by DeepSpeed's own checkpointing."""

    def __init__(self, width: int, *, experts: int = 0, checkpointed: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        mlp: nn.Module = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        if experts:
            from deepspeed.moe.layer import MoE

            mlp = MoE(width, mlp, num_experts=experts, k=1, capacity_factor=1.25)
        self.mlp, self.checkpointed, self.has_experts = mlp, checkpointed, bool(experts)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (each.view(batch, length, -1, 64).transpose(1, 2) for each in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        made = self.mlp(self.norm2(x))
        return x + (made[0] if self.has_experts else made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.checkpointed:
            return self.compute(x)
        import deepspeed

        return deepspeed.checkpointing.checkpoint(self.compute, x)


class Head(nn.Linear):
    """The last layer of a pipeline."""


class Model(nn.Module):
    """Blocks between an embedding and a head, with the loss."""

    def __init__(self, layers: int, width: int, vocab: int, *, experts: int = 0, checkpointed: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, width), Head(width, vocab)
        with_experts = [experts if index % 2 else 0 for index in range(layers)]
        self.blocks = nn.ModuleList(Block(width, experts=each, checkpointed=checkpointed) for each in with_experts)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return cross_entropy(self.head(x), labels)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


# -- jobs ------------------------------------------------------------------------------------------------------------------------


def config_of(batch: int, accum: int, precision: str, zero: dict[str, Any], **more: Any) -> dict[str, Any]:
    config = {"train_micro_batch_size_per_gpu": batch, "gradient_accumulation_steps": accum, "zero_optimization": zero}
    if precision:
        config[precision] = {"enabled": True} | ({"initial_scale_power": 8} if precision == "fp16" else {})
    unchecked = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "steps_per_print": 10**9}
    return config | unchecked | {"gradient_clipping": 1.0} | more


def pinned(*what: str) -> dict[str, Any]:
    return {f"offload_{each}": {"device": "cpu", "pin_memory": True} for each in what}


def train(
    make: Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]],
    stage: int,
    *,
    precision: str = "bf16",
    accum: int = 1,
    world: int = 8,
    optimizer: str = "AdamW",
    configured: dict[str, Any] | None = None,
    made_sharded: bool = False,
    checkpointed: bool = False,
    prepare: Callable[[nn.Module], Any] = lambda model: None,
    config: dict[str, Any] | None = None,
    **zero: Any,
) -> Row:
    """Training with ``deepspeed.initialize``: ``optimizer`` of torch, or as ``configured`` in DeepSpeed's words."""

    def build() -> Step:
        import deepspeed

        settings = config_of(1, accum, precision, {"stage": stage, **zero}, **config or {})
        torch.manual_seed(0)
        if made_sharded:
            with deepspeed.zero.Init(config_dict_or_path=settings):
                model, batch = make()
        else:
            model, batch = make()
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        prepare(model)
        model.train()
        given: dict[str, Any] = {}
        if configured:
            settings["optimizer"] = configured
        else:
            given["optimizer"] = getattr(torch.optim, optimizer)([p for p in model.parameters() if p.requires_grad], lr=1e-5)
        engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings, **given)[0]
        moved = {id(tensor): tensor.cuda() for tensor in batch.values()}
        inputs = {name: moved[id(tensor)] for name, tensor in batch.items()}

        def step() -> None:
            for _ in range(accum):
                loss = loss_in(engine(**inputs))
                engine.backward(loss)
                engine.step()

        return step

    return Row(build, world)


def loss_in(found: Any) -> torch.Tensor:
    """Of what a model returns; nothing else of it is kept."""
    return found if isinstance(found, torch.Tensor) else found.loss


def moe(world: int = 8) -> Row:
    def build() -> Step:
        import deepspeed
        from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split

        torch.manual_seed(0)
        model = Model(6, 1024, 32000, experts=8)
        groups = split({"params": list(model.parameters()), "name": "all"})
        settings = config_of(1, 1, "bf16", {"stage": 2, "reduce_bucket_size": 10**8}, gradient_clipping=0.0)
        optimizer = torch.optim.AdamW(groups, lr=1e-5)
        engine = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
        ids = tokens(8, 1024, 32000).cuda()

        def step() -> None:
            engine.backward(engine(ids, ids))
            engine.step()

        return step

    return Row(build, world)


def pipeline(*, precision: str, stage: int, interval: int, micro: int = 4, world: int = 4) -> Row:
    """A pipeline of one stage: DeepSpeed's own schedule, on every rank the whole model."""

    def build() -> Step:
        import deepspeed
        from deepspeed.pipe import LayerSpec, PipelineModule

        deepspeed.init_distributed()
        torch.manual_seed(0)
        width, vocab = 1024, 32000
        specs = [LayerSpec(nn.Embedding, vocab, width), *(LayerSpec(Block, width) for _ in range(8)), LayerSpec(Head, width, vocab)]
        model = PipelineModule(
            specs, num_stages=1, loss_fn=cross_entropy, activation_checkpoint_interval=interval, checkpointable_layers=["Block"]
        )
        settings = config_of(4, micro, precision, {"stage": stage})
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        engine = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
        ids = tokens(4, 1024, vocab)

        def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            while True:
                yield ids, ids

        data = batches()
        return lambda: engine.train_batch(data_iter=data)

    return Row(build, world)


def freeze_most(model: nn.Module) -> None:
    """All but the matrices of attention."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("self_attn" in name)


def checkpoint_with_deepspeed(model: nn.Module, **options: Any) -> None:
    import deepspeed

    deepspeed.init_distributed()
    deepspeed.checkpointing.configure(None, **options)


ADAMW = {"type": "AdamW", "params": {"lr": 1e-5}}
B16 = torch.bfloat16

ROWS: dict[str, Row] = {
    "e_ds1": train(llama, 1),
    "e_ds3": train(llama, 3),
    "e_ds2_offload": train(llama, 2, **pinned("optimizer")),
    "gpt2_z1_fp16": train(functools.partial(gpt2, 8), 1, precision="fp16"),
    "gpt2_z2_accum": train(functools.partial(gpt2, 4), 2, accum=4, reduce_bucket_size=5 * 10**7, world=4),
    "gpt2_z0_bf16_accum": train(functools.partial(gpt2, 4), 0, accum=2, world=2),
    "bert_z0_fp16": train(functools.partial(bert, 16, 512), 0, precision="fp16"),
    "vit_z2_overlap": train(functools.partial(vit, 64, B16), 2, overlap_comm=True, round_robin_gradients=True, world=16),
    "t5_z3_ckpt": train(
        functools.partial(t5, 16, 512),
        3,
        checkpointed=True,
        stage3_prefetch_bucket_size=10**7,
        stage3_param_persistence_threshold=10**4,
    ),
    "t5_z2_not_contiguous": train(functools.partial(t5, 8, 512), 2, contiguous_gradients=False, reduce_scatter=False),
    "qwen_z1_accum_overlap": train(functools.partial(qwen, 2, 1024), 1, accum=3, overlap_comm=True, reduce_bucket_size=2 * 10**8),
    "qwen_z3_fp16_few_live": train(
        functools.partial(qwen, 2, 1024), 3, precision="fp16", stage3_max_live_parameters=10**8, stage3_max_reuse_distance=10**8
    ),
    "llama_z3_offload_all": train(llama, 3, **pinned("optimizer", "param")),
    "llama_z3_sharded_accum": train(llama, 3, made_sharded=True, accum=2, world=16),
    "llama_z3_hpz": train(functools.partial(llama, 1), 3, zero_hpz_partition_size=4),
    "llama_z3_frozen": train(functools.partial(llama, 2), 3, prepare=freeze_most),
    "llama_z2_world1": train(functools.partial(llama, 1), 2, world=1),
    "llama_z1_offload_fp16_accum": train(functools.partial(llama, 1), 1, precision="fp16", accum=2, **pinned("optimizer")),
    "llama_z2_autocast": train(
        functools.partial(llama, 1), 2, precision="", config={"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    ),
    "bert_z2_fp32_sgd": train(functools.partial(bert, 8, 512), 2, precision="", optimizer="SGD"),
    "blocks_z2_checkpointing": train(
        lambda: (Model(8, 1536, 32000, checkpointed=True), {name: tokens(4, 2048, 32000) for name in ("input_ids", "labels")}),
        2,
        prepare=functools.partial(checkpoint_with_deepspeed, partition_activations=True, checkpoint_in_cpu=True),
    ),
    "experts_z2": moe(),
    "pipe1_z1_bf16": pipeline(precision="bf16", stage=1, interval=0),
    "pipe1_z0_fp16_ckpt": pipeline(precision="fp16", stage=0, interval=1),
    "llama_z1_fused": train(functools.partial(llama, 1), 1, configured=ADAMW),
    "llama_z3_offload_fused": train(functools.partial(llama, 1), 3, configured=ADAMW, **pinned("optimizer")),
}


# -- both sides ----------------------------------------------------------------------------------------------------------------


def predict(name: str) -> dict:
    import memfit

    def build() -> Step:
        os.environ.setdefault("LOCAL_RANK", "0")
        torch.distributed.init_process_group("nccl")
        return ROWS[name].build()

    row, start = ROWS[name], time.perf_counter()
    found = memfit.predict(build, gpu="H200", world_size=row.world, steps=STEPS, torch_version="2.11+cu130")
    return {
        "name": name,
        "world_size": row.world,
        "torch": torch.__version__,
        "init": found.init.end_allocated,
        "peaks": [step.peak_allocated for step in found.steps],
        "peak": found.peak_allocated,
        "reserved": found.peak_reserved,
        "seconds": round(time.perf_counter() - start, 1),
        "breakdown": {category.label: size for category, size in found.breakdown.items()},
        "assumptions": found.assumptions,
    }


def measure(name: str, trace: pathlib.Path | None) -> dict:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    row, cuda = ROWS[name], torch.cuda
    os.environ.setdefault("LOCAL_RANK", "0")
    if trace is not None:
        begin_trace()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=row.world)
    torch.manual_seed(0)
    cuda.init()
    step = row.build()
    cuda.synchronize()
    init, init_peak, reserved, peaks = cuda.memory_allocated(), cuda.max_memory_allocated(), [cuda.max_memory_reserved()], []
    for _ in range(STEPS):
        cuda.reset_peak_memory_stats()
        step()
        cuda.synchronize()
        peaks.append(cuda.max_memory_allocated())
        reserved.append(cuda.max_memory_reserved())
    if trace is not None:
        write_trace(trace / f"{name}.gz")
    return {
        "name": name,
        "torch": torch.__version__,
        "gpu": cuda.get_device_name(),
        "init": init,
        "peaks": peaks,
        "peak": max(*peaks, init_peak),
        "reserved": max(reserved),
    }


SIDES = Sides(
    script=pathlib.Path(__file__),
    cases=tuple(ROWS),
    place=lambda name: (name, f"0 of {ROWS[name].world}"),
    predict=predict,
    measure=measure,
    choose=lambda names: names or list(ROWS),
    measured_before=KNOWN.get,
    heading=(
        "DeepSpeed 0.19.8, predicted without a GPU before anything was measured, then run on an H200: "
        "`python benchmarks/blind/deepspeed_blind.py`. MiB.",
    ),
    footing=("", "\\* measured by others, and known when the engine was written."),
    limit_s=1200,
)


if __name__ == "__main__":
    main(SIDES, __doc__.splitlines()[0])
